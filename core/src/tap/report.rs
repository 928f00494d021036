//! ErrorResponse and NoticeResponse: the fields that matter (PostgreSQL manual, "Error and Notice Message Fields").

use crate::error::SqlState;

/// Longest text of a server that is kept.
const TEXT: usize = 1_024;

/// An error or a notice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The severity, never localised where the server sends it so (field V), else as sent (S).
    pub(crate) severity: String,
    pub(crate) sqlstate: SqlState,
    /// Cleaned and cut.
    pub(crate) message: String,
    /// The source routine.
    pub(crate) routine: String,
}

impl Report {
    pub(crate) fn read(body: &[u8]) -> Self {
        let mut r = Self::default();
        for field in body.split(|b| *b == 0) {
            let [kind, value @ ..] = field else { continue };
            let text = String::from_utf8_lossy(value);
            match kind {
                b'V' => r.severity = text.into_owned(),
                b'S' if r.severity.is_empty() => r.severity = text.into_owned(),
                b'C' => r.sqlstate = SqlState::new(&text).unwrap_or_default(),
                b'M' => r.message = clean(&text),
                b'R' => r.routine = text.into_owned(),
                _ => {}
            }
        }
        r
    }
}

/// Whether the server says that a prepared statement is gone (26000), or that its tables have changed under it ("cached
/// plan must not change result type": `RevalidateCachedQuery` in plancache.c). Nothing was executed.
pub(crate) fn is_stale_statement(sqlstate: &str, routine: Option<&str>) -> bool {
    sqlstate == "26000" || (sqlstate == "0A000" && routine == Some("RevalidateCachedQuery"))
}

/// A text without control characters (a terminal would obey them), cut at a bound.
pub(crate) fn clean(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if out.len() + c.len_utf8() > TEXT {
            out.push('…');
            break;
        }
        out.push(if c.is_control() { ' ' } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_server_never_reach_a_terminal() {
        let r = Report::read(b"SFATAL\0VFATAL\0C57P01\0Mgo\x1b]0;x\x07\0Rproc\0\0");
        assert_eq!(
            (r.severity.as_str(), r.sqlstate.as_str(), r.message.as_str()),
            ("FATAL", "57P01", "go ]0;x ")
        );
        assert!(clean(&"é".repeat(9_000)).len() <= TEXT + 3);
    }
}
