//! What the text of a request may do to a transaction, read byte by byte as it passes.
//!
//! The only use is the question whether a request in flight is *harmless*: so every doubt is answered with "yes, it
//! may commit". A statement's kind is its first word (PostgreSQL's grammar, `gram.y`: a transaction statement can
//! begin with nothing else), so quotes, comments and dollar quotes are followed (`scan.l`), and nothing is kept but
//! the current word.

/// What a request may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Something whose effect can outlive the connection, in a transaction that commits.
    pub(super) works: bool,
    /// It may commit: COMMIT, END, PREPARE, CALL, DO.
    pub(super) commits: bool,
    /// It does commit: COMMIT, END or PREPARE, read with certainty.
    pub(super) certain: bool,
    /// It may commit on its own in autocommit and fail later: CALL, DO, and what runs CONCURRENTLY.
    pub(super) calls: bool,
    /// It may end the block: those, ROLLBACK and ABORT.
    pub(super) ends: bool,
    /// Something works after the block may have ended.
    pub(super) goes_on: bool,
    /// It goes on behind a commit of its own: that lasts though the answer is an error.
    pub(super) midway: bool,
    /// It begins a block that is READ ONLY (true), or one that isn't, or does what a READ ONLY one mustn't be trusted
    /// with from then on (false): it may make it writable, or have its COMMIT send a notification.
    pub(super) read_only: Option<bool>,
    /// RESET ALL: the session's own settings go.
    pub(super) resets: bool,
}

impl Effects {
    /// An ordinary statement: SELECT, INSERT, …
    pub(super) const PLAIN: Self = Self { works: true, ..Self::NOTHING };
    /// Anything at all. (An error to it is taken at its word all the same.)
    pub(super) const DOUBT: Self = Self { goes_on: true, read_only: Some(false), ..Self::CALLS };
    const MAY_COMMIT: Self = Self { commits: true, certain: true, ends: true, ..Self::PLAIN };
    const CALLS: Self = Self { calls: true, certain: false, ..Self::MAY_COMMIT };
    const NOTHING: Self = Self {
        works: false,
        commits: false,
        certain: false,
        calls: false,
        ends: false,
        goes_on: false,
        midway: false,
        read_only: None,
        resets: false,
    };

    /// First this, then `next`.
    #[must_use]
    pub(super) fn then(self, next: Self) -> Self {
        Self {
            works: self.works || next.works,
            commits: self.commits || next.commits,
            certain: self.certain || next.certain,
            calls: self.calls || next.calls,
            ends: self.ends || next.ends,
            goes_on: self.goes_on || next.goes_on || (self.ends && next.works),
            midway: self.midway || next.midway || (self.certain && next.works),
            resets: self.resets || next.resets,
            read_only: match (self.read_only, next.read_only) {
                (a, None) => a,
                // What has been written before BEGIN READ ONLY in one text is committed with its block.
                (None, b) => b.map(|only| only && !self.works),
                // A second BEGIN can stand behind a savepoint, whose rollback would undo it.
                (Some(_), Some(_)) => Some(false),
            },
        }
    }

    /// This or `other`: it isn't known which.
    #[must_use]
    pub(super) fn or(self, other: Self) -> Self {
        if self == other {
            return self;
        }
        let both = self.then(other);
        Self { goes_on: self.goes_on || other.goes_on, read_only: both.read_only.map(|_| false), ..both }
    }
}

/// The longest word that means anything here is `transaction_read_only`.
const WORD: usize = 22;
/// A dollar quote's tag is an identifier: longer ones than PostgreSQL's own limit are a doubt.
const TAG: usize = 63;

#[derive(Clone, Copy)]
enum Mode {
    Plain,
    Word,
    /// After a `-` or a `/` that may open a comment.
    Dash,
    Slash,
    Line,
    /// In a comment of that depth; `prev` is the byte before.
    Block {
        depth: u32,
        prev: u8,
    },
    /// In '…'; whether a backslash escapes.
    Quote {
        escapes: bool,
    },
    /// After a backslash in '…'.
    Escaped,
    /// After a closing quote, which may be the first of two.
    QuoteEnd {
        escapes: bool,
    },
    Ident,
    /// In the opening tag of a dollar quote.
    DollarTag,
    /// In a dollar-quoted text: how much of the closing tag has come (`None`: not even its `$`).
    Dollar(Option<usize>),
}

/// The first words and what they mean so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No word yet.
    Empty,
    Begin,
    Set,
    Rollback,
    Other,
}

/// What a whole text may do. `conforming`: `standard_conforming_strings` is known to be on.
pub(super) fn effects(text: &[u8], conforming: bool) -> Effects {
    let mut s = Scanner::new(conforming);
    for &b in text {
        s.byte(b);
    }
    s.finish()
}

/// Reads one text.
struct Scanner {
    mode: Mode,
    /// `standard_conforming_strings` is known to be on: a backslash in '…' is a backslash.
    conforming: bool,
    doubt: bool,
    word: [u8; WORD],
    word_len: usize,
    tag: [u8; TAG],
    tag_len: usize,
    kind: Kind,
    /// Words of the statement so far, capped: only the second matters.
    words: u8,
    /// The word before was READ.
    read: bool,
    statement: Effects,
    total: Effects,
    /// A statement before this one ended the block.
    left: bool,
}

fn starts_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80
}

impl Scanner {
    fn new(conforming: bool) -> Self {
        Self {
            mode: Mode::Plain,
            conforming,
            doubt: false,
            word: [0; WORD],
            word_len: 0,
            tag: [0; TAG],
            tag_len: 0,
            kind: Kind::Empty,
            words: 0,
            read: false,
            statement: Effects::default(),
            total: Effects::default(),
            left: false,
        }
    }

    /// What the whole text may do.
    fn finish(mut self) -> Effects {
        match self.mode {
            Mode::Word => self.end_word(),
            Mode::Plain | Mode::Dash | Mode::Slash | Mode::Line | Mode::QuoteEnd { .. } => {}
            // Open quotes and comments: the server will refuse the text, unless it reads it otherwise than we do.
            _ => self.doubt = true,
        }
        self.end_statement();
        // What its statements begin with is known all the same.
        if !self.doubt {
            return self.total;
        }
        let Effects { certain, calls, midway, .. } = self.total;
        Effects { certain, calls, midway, ..Effects::DOUBT }
    }

    fn byte(&mut self, b: u8) {
        self.mode = match self.mode {
            Mode::Plain => self.plain(b),
            Mode::Word => {
                if starts_word(b) || b == b'$' {
                    // Server versions differ on where `1$a$` begins a dollar quote.
                    self.doubt |= b == b'$' && self.word[0].is_ascii_digit();
                    self.push(b);
                    Mode::Word
                } else {
                    // Only E'…' knows backslashes; of the other prefixes (B, X, N, U&) none does.
                    let escape = self.word_len == 1 && self.word[0] == b'E' && b == b'\'';
                    self.end_word();
                    if escape { Mode::Quote { escapes: true } } else { self.plain(b) }
                }
            }
            Mode::Dash if b == b'-' => Mode::Line,
            Mode::Slash if b == b'*' => Mode::Block { depth: 1, prev: 0 },
            Mode::Dash | Mode::Slash => self.plain(b),
            Mode::Line => {
                if b == b'\n' || b == b'\r' {
                    Mode::Plain
                } else {
                    Mode::Line
                }
            }
            Mode::Block { depth, prev } => match (prev, b) {
                (b'/', b'*') => Mode::Block { depth: depth.saturating_add(1), prev: 0 },
                (b'*', b'/') if depth == 1 => Mode::Plain,
                (b'*', b'/') => Mode::Block { depth: depth - 1, prev: 0 },
                _ => Mode::Block { depth, prev: b },
            },
            Mode::Quote { escapes } => match b {
                b'\'' => Mode::QuoteEnd { escapes },
                b'\\' if escapes => Mode::Escaped,
                b'\\' => {
                    self.doubt |= !self.conforming;
                    Mode::Quote { escapes }
                }
                _ => Mode::Quote { escapes },
            },
            Mode::Escaped => Mode::Quote { escapes: true },
            Mode::QuoteEnd { escapes } if b == b'\'' => Mode::Quote { escapes },
            Mode::QuoteEnd { escapes } => {
                // The next quote may continue this string, and then a backslash escapes there as well.
                self.conforming &= !escapes;
                self.plain(b)
            }
            Mode::Ident if b == b'"' => Mode::Plain,
            Mode::Ident => Mode::Ident,
            Mode::DollarTag => self.dollar_tag(b),
            Mode::Dollar(at) => self.dollar(at, b),
        };
    }

    fn plain(&mut self, b: u8) -> Mode {
        match b {
            b';' => {
                self.end_statement();
                Mode::Plain
            }
            b'\'' => Mode::Quote { escapes: false },
            b'"' => {
                // SET LOCAL "transaction_read_only" is as good as without quotes.
                if self.kind == Kind::Set {
                    self.statement.read_only = Some(false);
                }
                Mode::Ident
            }
            b'-' => Mode::Dash,
            b'/' => Mode::Slash,
            b'$' => {
                self.tag_len = 0;
                Mode::DollarTag
            }
            _ if starts_word(b) => {
                self.word_len = 0;
                self.push(b);
                Mode::Word
            }
            _ => Mode::Plain,
        }
    }

    fn dollar_tag(&mut self, b: u8) -> Mode {
        match b {
            b'$' => Mode::Dollar(None),
            // `$1` is a parameter.
            _ if b.is_ascii_digit() && self.tag_len == 0 => Mode::Plain,
            _ if starts_word(b) && self.tag_len < TAG => {
                self.tag[self.tag_len] = b;
                self.tag_len += 1;
                Mode::DollarTag
            }
            _ => {
                self.doubt |= self.tag_len == TAG;
                self.plain(b)
            }
        }
    }

    fn dollar(&mut self, at: Option<usize>, b: u8) -> Mode {
        Mode::Dollar(match (at, b) {
            (Some(n), b'$') if n == self.tag_len => return Mode::Plain,
            (_, b'$') => Some(0),
            (Some(n), _) if n < self.tag_len && self.tag[n] == b => Some(n + 1),
            _ => None,
        })
    }

    fn push(&mut self, b: u8) {
        if self.word_len < WORD {
            self.word[self.word_len] = b.to_ascii_uppercase();
            self.word_len += 1;
        }
    }

    fn end_word(&mut self) {
        // Only the words of a few short statements matter; the rest of a SELECT is passed over.
        let word = &self.word[..self.word_len];
        let was_read = std::mem::replace(&mut self.read, word == b"READ");
        self.words = self.words.saturating_add(1);
        match (self.kind, word) {
            (Kind::Empty, _) => {
                (self.kind, self.statement) = match word {
                    b"COMMIT" | b"END" | b"PREPARE" => (Kind::Other, Effects::MAY_COMMIT),
                    b"CALL" | b"DO" => (Kind::Other, Effects::CALLS),
                    b"ROLLBACK" | b"ABORT" => (Kind::Rollback, Effects { ends: true, ..Effects::default() }),
                    b"BEGIN" | b"START" => {
                        (Kind::Begin, Effects { read_only: Some(false), ..Effects::default() })
                    }
                    b"SET" | b"RESET" => (Kind::Set, Effects::default()),
                    b"NOTIFY" => (Kind::Other, Effects { read_only: Some(false), ..Effects::PLAIN }),
                    b"SAVEPOINT" | b"RELEASE" | b"SHOW" => (Kind::Other, Effects::default()),
                    _ => (Kind::Other, Effects::PLAIN),
                }
            }
            (Kind::Begin, b"ONLY") if was_read => self.statement.read_only = Some(true),
            (Kind::Begin | Kind::Set, b"WRITE") if was_read => self.statement.read_only = Some(false),
            (Kind::Set, b"TRANSACTION_READ_ONLY") => self.statement.read_only = Some(false),
            (Kind::Set, b"ALL") if self.words == 2 => self.statement.resets = true,
            // ROLLBACK PREPARED is of another transaction, and lasts.
            (Kind::Rollback, b"PREPARED") if self.words == 2 => self.statement = Effects::MAY_COMMIT,
            // ROLLBACK [WORK | TRANSACTION] TO [SAVEPOINT] s: the block goes on.
            (Kind::Rollback, b"TO") if self.words <= 3 => self.statement = Effects::default(),
            // A READ ONLY block may notify, and its COMMIT sends that.
            (Kind::Other, b"PG_NOTIFY") => self.statement.read_only = Some(false),
            // CREATE INDEX, DETACH PARTITION and their like commit several times, and leave what they had done behind
            // when they fail. (REFRESH doesn't; in a block all the others are refused.)
            (Kind::Other, b"CONCURRENTLY") => self.statement.calls = true,
            _ => {}
        }
    }

    fn end_statement(&mut self) {
        // What stands behind a COMMIT may fail, and what was committed lasts.
        let behind = self.total.certain || (self.left && self.statement.calls);
        self.total = self.total.then(self.statement);
        self.total.midway |= behind && self.kind != Kind::Empty;
        self.left |= self.statement.ends && !self.statement.calls;
        self.kind = Kind::Empty;
        self.words = 0;
        self.read = false;
        self.statement = Effects::default();
    }
}

#[cfg(test)]
mod tests;
