//! Cuts a byte stream into the protocol's frames, across any split, keeping only the few bytes that are wanted.

/// How much of a frame's body its reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// The frame is passed over: nobody is told of its end either.
    Skip,
    /// Nothing of the body.
    Nothing,
    /// The first that many bytes (fewer if the body is shorter).
    Prefix(usize),
}

impl Keep {
    /// How much that is of a body.
    fn of(self, body: usize) -> usize {
        match self {
            Self::Skip | Self::Nothing => 0,
            Self::Prefix(n) => n.min(body),
        }
    }
}

/// Reads frames as they come by.
pub(super) trait Reader {
    /// Why reading stops.
    type Stop;
    /// A frame begins: its tag (0 for the untagged startup packet) and the length of its body.
    fn head(&mut self, tag: u8, body: usize) -> Result<Keep, Self::Stop>;
    /// A frame is complete. `kept` is what was wanted of it; `body` its full length.
    fn frame(&mut self, tag: u8, kept: &[u8], body: usize) -> Result<(), Self::Stop>;
    /// A frame's length can't be: below its own four bytes.
    fn malformed(&mut self, tag: u8) -> Self::Stop;
}

/// The state of a half-read frame.
#[derive(Debug)]
pub(super) struct Scanner {
    /// The next frame has no tag: a client's first.
    untagged: bool,
    header: [u8; 5],
    have: usize,
    tag: u8,
    body: usize,
    left: usize,
    keep: Keep,
    kept: Vec<u8>,
    in_body: bool,
}

impl Scanner {
    pub(super) fn new(untagged_first: bool) -> Self {
        Self {
            untagged: untagged_first,
            header: [0; 5],
            have: 0,
            tag: 0,
            body: 0,
            left: 0,
            keep: Keep::Nothing,
            kept: Vec::new(),
            in_body: false,
        }
    }

    /// The tag of the frame that is half read; `None` between two frames.
    pub(super) fn open(&self) -> Option<u8> {
        match (self.in_body, self.have) {
            (true, _) => Some(self.tag),
            (false, 0) => None,
            (false, _) if self.untagged => Some(0),
            (false, _) => Some(self.header[0]),
        }
    }

    /// Takes the next bytes.
    pub(super) fn feed<R: Reader>(&mut self, bytes: &[u8], reader: &mut R) -> Result<(), R::Stop> {
        let bytes = if self.untagged || self.open().is_some() { bytes } else { whole(bytes, reader)? };
        if bytes.is_empty() { Ok(()) } else { self.pieces(bytes, reader) }
    }

    /// Takes bytes among which is a frame that has not come in full.
    #[cold]
    fn pieces<R: Reader>(&mut self, mut bytes: &[u8], reader: &mut R) -> Result<(), R::Stop> {
        loop {
            if !self.in_body {
                let skip = usize::from(self.untagged);
                let size = 5 - skip;
                let n = (size - self.have).min(bytes.len());
                self.header[skip + self.have..skip + self.have + n].copy_from_slice(&bytes[..n]);
                self.have += n;
                bytes = &bytes[n..];
                if self.have < size {
                    return Ok(());
                }
                self.tag = if self.untagged { 0 } else { self.header[0] };
                self.untagged = false;
                let [_, a, b, c, d] = self.header;
                let length = u32::from_be_bytes([a, b, c, d]);
                let Some(body) = length.checked_sub(4) else { return Err(reader.malformed(self.tag)) };
                self.body = usize::try_from(body).unwrap_or(usize::MAX);
                self.left = self.body;
                self.keep = reader.head(self.tag, self.body)?;
                self.kept.clear();
                self.in_body = true;
            }
            let n = self.left.min(bytes.len());
            let missing = self.keep.of(self.body) - self.kept.len();
            self.kept.extend_from_slice(&bytes[..n.min(missing)]);
            self.left -= n;
            if self.left > 0 {
                return Ok(());
            }
            self.finish();
            if self.keep != Keep::Skip {
                reader.frame(self.tag, &self.kept, self.body)?;
            }
            bytes = whole(&bytes[n..], reader)?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    fn finish(&mut self) {
        self.in_body = false;
        self.have = 0;
        self.left = 0;
    }
}

/// Reads the frames that lie in `bytes` in full, as nearly all do, without a state to keep. Returns the rest.
fn whole<'a, R: Reader>(mut bytes: &'a [u8], reader: &mut R) -> Result<&'a [u8], R::Stop> {
    while let [tag, a, b, c, d, rest @ ..] = bytes {
        let length = u32::from_be_bytes([*a, *b, *c, *d]);
        let Some(body) = length.checked_sub(4) else { return Err(reader.malformed(*tag)) };
        let body = usize::try_from(body).unwrap_or(usize::MAX);
        let Some((frame, next)) = rest.split_at_checked(body) else { break };
        match reader.head(*tag, body)? {
            Keep::Skip => {}
            keep => reader.frame(*tag, &frame[..keep.of(body)], body)?,
        }
        bytes = next;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Default)]
    struct Log(Vec<(u8, Vec<u8>, usize)>);

    impl Reader for Log {
        type Stop = ();
        fn head(&mut self, _: u8, body: usize) -> Result<Keep, ()> {
            Ok(match body % 3 {
                0 => Keep::Skip,
                1 => Keep::Nothing,
                _ => Keep::Prefix(7),
            })
        }
        fn frame(&mut self, tag: u8, kept: &[u8], body: usize) -> Result<(), ()> {
            self.0.push((tag, kept.to_vec(), body));
            Ok(())
        }
        fn malformed(&mut self, _: u8) {}
    }

    fn stream(bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for (i, b) in bodies.iter().enumerate() {
            out.push(b'A' + u8::try_from(i % 26).unwrap());
            out.extend(u32::try_from(b.len() + 4).unwrap().to_be_bytes());
            out.extend(b);
        }
        out
    }

    proptest! {
        #[test]
        fn splits_at_any_byte_change_nothing(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..8),
            cuts in prop::collection::vec(1_usize..9, 1..200),
        ) {
            let bytes = stream(&bodies);
            let mut whole = Log::default();
            Scanner::new(false).feed(&bytes, &mut whole).unwrap();
            prop_assert_eq!(whole.0.len(), bodies.iter().filter(|b| !b.len().is_multiple_of(3)).count());
            let (mut split, mut scanner, mut rest) = (Log::default(), Scanner::new(false), &bytes[..]);
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let n = (*cuts.next().unwrap()).min(rest.len());
                scanner.feed(&rest[..n], &mut split).unwrap();
                rest = &rest[n..];
            }
            prop_assert_eq!(scanner.open(), None);
            prop_assert_eq!(whole.0, split.0);
        }
    }

    #[test]
    fn a_length_below_its_own_four_bytes_is_malformed() {
        assert_eq!(Scanner::new(false).feed(&[b'R', 0, 0, 0, 3], &mut Log::default()), Err(()));
    }
}
