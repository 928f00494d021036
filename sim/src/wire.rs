//! Frames as the server's side of PostgreSQL's protocol reads and writes them.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pgfollow_lab::wire::message::{Message, frame};

/// One message of a client. The startup packet, which has no type, is 0.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) body: Bytes,
}

/// Takes the next whole message. Before the startup packet messages have no type.
pub(crate) fn next_frame(buf: &mut BytesMut, started: bool) -> Option<Frame> {
    let head = usize::from(started);
    let length = buf.get(head..head + 4)?;
    let length = usize::try_from(u32::from_be_bytes(length.try_into().ok()?)).ok()?;
    if buf.len() < head + length {
        return None;
    }
    let kind = if started { buf.get_u8() } else { 0 };
    buf.advance(4);
    Some(Frame { kind, body: buf.split_to(length.saturating_sub(4)).freeze() })
}

/// A NUL-terminated text at the front of a body.
pub(crate) fn text(body: &mut Bytes) -> String {
    let end = body.iter().position(|b| *b == 0).unwrap_or(body.len());
    let s = String::from_utf8_lossy(&body[..end]).into_owned();
    body.advance((end + 1).min(body.len()));
    s
}

/// The parameters of a Bind, as 8-byte integers: the only kind that the workload binds.
pub(crate) fn bound(mut body: Bytes) -> (String, Vec<i64>) {
    text(&mut body);
    let statement = text(&mut body);
    let formats = usize::from(body.get_u16());
    body.advance(2 * formats);
    let count = body.get_u16();
    let mut value = || {
        body.advance(4); // its length
        body.get_i64()
    };
    (statement, (0..count).map(|_| value()).collect())
}

/// RowDescription; every column is text.
pub(crate) fn describe(out: &mut BytesMut, columns: &[String]) {
    frame(out, b'T', |b| {
        b.put_u16(u16::try_from(columns.len()).unwrap_or(u16::MAX));
        for name in columns {
            b.put_slice(name.as_bytes());
            b.put_u8(0);
            b.put_i32(0);
            b.put_i16(0);
            b.put_i32(25);
            b.put_i16(-1);
            b.put_i32(-1);
            b.put_i16(0);
        }
    });
}

/// DataRow.
pub(crate) fn row(out: &mut BytesMut, values: &[Option<String>]) {
    frame(out, b'D', |b| {
        b.put_u16(u16::try_from(values.len()).unwrap_or(u16::MAX));
        for v in values {
            match v {
                None => b.put_i32(-1),
                Some(v) => {
                    b.put_i32(i32::try_from(v.len()).unwrap_or(i32::MAX));
                    b.put_slice(v.as_bytes());
                }
            }
        }
    });
}

/// A message without a body.
pub(crate) fn bare(out: &mut BytesMut, kind: u8) {
    frame(out, kind, |_| {});
}

/// ParameterDescription: that many 8-byte integers.
pub(crate) fn parameters(out: &mut BytesMut, count: usize) {
    frame(out, b't', |b| {
        b.put_u16(u16::try_from(count).unwrap_or(u16::MAX));
        (0..count).for_each(|_| b.put_i32(20));
    });
}

/// An ErrorResponse.
pub(crate) fn error(out: &mut BytesMut, severity: &str, code: &str, text: &str) {
    let (severity, code, text) = (severity.to_owned(), code.to_owned(), text.to_owned());
    Message::Error { severity, code, text }.encode(out);
}

/// A warning, with the routine that raised it.
pub(crate) fn warning(out: &mut BytesMut, code: &str, text: &str, routine: &str) {
    let (severity, code, text) = ("WARNING".to_owned(), code.to_owned(), text.to_owned());
    Message::Notice { severity, code, text, routine: Some(routine.to_owned()) }.encode(out);
}

/// CommandComplete.
pub(crate) fn complete(out: &mut BytesMut, tag: &str) {
    Message::Command(tag.to_owned()).encode(out);
}
