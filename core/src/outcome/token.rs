//! A token: what a transaction left behind, so that anybody can ask later what became of it.

use std::fmt;
use std::str::FromStr;

use crate::decide::outcome::{Given, Mark, Table};
use crate::error::{Class, Code, Error};

/// The first field of a token's text: another layout would have another number.
const VERSION: &str = "1";

/// Has the server say it where a commit's wait for a standby is broken off.
pub(crate) const WARNINGS: &str = "SET LOCAL client_min_messages = 'warning'";

/// What a transaction left behind for the outcome check. It holds no secret, and its text form can be kept and checked by
/// another process, in another language, days later (up to half of [`crate::outcome::PURGE_HORIZON`]).
///
/// ```
/// use pgfollow::outcome::Token;
/// let text = "1.0123456789abcdef0123456789abcdef.7000000000000000001.16384.1700000000000000.3.-.-.16390.16390";
/// let token: Token = text.parse()?;
/// assert_eq!(token.to_string(), text);
/// # Ok::<(), pgfollow::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    pub(crate) id: u128,
    pub(crate) given: Given,
    pub(crate) twin: Option<Twin>,
}

/// The backend that ran the transaction. Both together name it for ever on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Twin {
    pub(crate) pid: i32,
    /// When it was started, in microseconds since 1970.
    pub(crate) start: i64,
}

impl Token {
    /// The transaction's last act, by which it takes its token.
    pub(crate) fn last_act(&self) -> String {
        format!("{WARNINGS}; INSERT INTO pgfollow.outcome (token, state) VALUES ('{}', 'd')", self.uuid())
    }

    /// The row's key, as SQL reads it.
    pub(crate) fn uuid(&self) -> String {
        // Version 4, variant 1 (RFC 9562): nothing reads them, but the type promises them.
        let id = (self.id & !(0xf << 76) & !(0b11 << 62)) | (0x4 << 76) | (0b10 << 62);
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            id >> 96,
            id >> 80 & 0xffff,
            id >> 64 & 0xffff,
            id >> 48 & 0xffff,
            id & 0xffff_ffff_ffff
        )
    }
}

/// A field that may be missing.
struct Maybe<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for Maybe<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(v) => v.fmt(f),
            None => f.write_str("-"),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Given { system, database, made_at, timeline, mark } = self.given;
        let (pid, start) = (self.twin.map(|t| t.pid), self.twin.map(|t| t.start));
        write!(f, "{VERSION}.{:032x}.{system}.{database}.{made_at}.{}", self.id, Maybe(timeline))?;
        write!(f, ".{}.{}", Maybe(pid), Maybe(start))?;
        match mark {
            Mark::Row { table } => write!(f, ".{}.{}", table.oid, table.file),
            Mark::Number { xid, lsn, start, replay } => write!(f, ".{xid}.{lsn}.{start}.{}", Maybe(replay)),
        }
    }
}

fn read<T: FromStr>(field: &str) -> Option<T> {
    field.parse().ok()
}

/// `Some(None)` for a field that is missing by its own word.
#[expect(clippy::option_option, reason = "unreadable is not the same as missing")]
fn read_maybe<T: FromStr>(field: &str) -> Option<Option<T>> {
    if field == "-" { Some(None) } else { read(field).map(Some) }
}

fn parse(text: &str) -> Option<Token> {
    let fields: Vec<&str> = text.splitn(13, '.').collect();
    let (head, tail) = fields.split_at_checked(8)?;
    let &[VERSION, id, system, database, made_at, timeline, pid, start] = head else { return None };
    if id.len() != 32 {
        return None;
    }
    let mark = match tail {
        [oid, file] => Mark::Row { table: Table { oid: read(oid)?, file: read(file)? } },
        [xid, lsn, start, replay] => Mark::Number {
            xid: read(xid)?,
            lsn: read(lsn)?,
            start: read(start)?,
            replay: read_maybe(replay)?,
        },
        _ => return None,
    };
    let twin = match (read_maybe(pid)?, read_maybe(start)?) {
        (Some(pid), Some(start)) => Some(Twin { pid, start }),
        (None, None) => None,
        _ => return None,
    };
    let given = Given {
        system: read(system)?,
        database: read(database)?,
        made_at: read(made_at)?,
        timeline: read_maybe(timeline)?,
        mark,
    };
    Some(Token { id: u128::from_str_radix(id, 16).ok()?, given, twin })
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| {
            Error::new(
                Code::InvalidOption,
                Class::Permanent,
                "not a token: give the whole text that the error of the run had",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens() -> impl Strategy<Value = Token> {
        let number = (any::<u64>(), any::<u64>(), any::<i64>(), any::<Option<u64>>())
            .prop_map(|(xid, lsn, start, replay)| Mark::Number { xid, lsn, start, replay });
        let row =
            (any::<u32>(), any::<u32>()).prop_map(|(oid, file)| Mark::Row { table: Table { oid, file } });
        let mark = prop_oneof![row, number];
        let twin = any::<Option<(i32, i64)>>().prop_map(|t| t.map(|(pid, start)| Twin { pid, start }));
        let rest = (any::<u128>(), any::<u64>(), any::<u32>(), any::<i64>(), any::<Option<u32>>());
        (rest, mark, twin).prop_map(|((id, system, database, made_at, timeline), mark, twin)| Token {
            id,
            given: Given { system, database, made_at, timeline, mark },
            twin,
        })
    }

    proptest! {
        #[test]
        fn a_token_that_was_kept_as_text_is_the_same_token(token in tokens()) {
            prop_assert_eq!(token.to_string().parse::<Token>().ok(), Some(token));
        }

        #[test]
        fn a_text_that_is_no_token_is_refused_and_nothing_breaks(text in "[0-9a-f.-]{0,120}") {
            if let Ok(token) = text.parse::<Token>() {
                prop_assert_eq!(token.to_string().parse::<Token>().ok(), Some(token));
            }
        }
    }

    #[test]
    fn a_cut_or_lengthened_token_is_refused() {
        let whole = "1.0123456789abcdef0123456789abcdef.7.16384.17.3.42.99.812.5000.16.-";
        let token: Token = whole.parse().expect("a token");
        assert_eq!(token.uuid(), "01234567-89ab-4def-8123-456789abcdef");
        for bad in [&whole[..whole.len() - 2], &whole[2..], "", "2.0", &format!("{whole}.1")] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }
}
