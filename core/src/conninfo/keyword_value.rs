//! The keyword/value form (`host=a port=5432`), by the rules of libpq's `conninfo_parse`.

use super::{Pairs, invalid};
use crate::error::Error;

/// What C's `isspace` calls a blank.
fn blank(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Reads every pair into `pairs`.
pub(super) fn parse(text: &str, pairs: &mut Pairs) -> Result<(), Error> {
    let b = text.as_bytes();
    let skip = |mut i: usize| {
        while i < b.len() && blank(b[i]) {
            i += 1;
        }
        i
    };
    let mut i = skip(0);
    while i < b.len() {
        let start = i;
        while i < b.len() && b[i] != b'=' && !blank(b[i]) {
            i += 1;
        }
        let name = &text[start..i];
        i = skip(i);
        if b.get(i) != Some(&b'=') {
            // The word is not shown: it may be the rest of a password that needed quotes.
            let behind = pairs.last().map_or(String::new(), |k| format!(", behind {k}"));
            return Err(invalid(format!(
                "missing \"=\" after the word at byte {}{behind}: write keyword=value pairs (a value with blanks in \
                 single quotes) or a URI that begins with postgresql://",
                start + 1
            )));
        }
        i = skip(i + 1);
        let value = if b.get(i) == Some(&b'\'') {
            let (value, end) = quoted(text, i + 1).ok_or_else(|| {
                invalid(format!(
                    "the quoted value at byte {} has no closing quote ('); write a quote inside it as \\'",
                    i + 1
                ))
            })?;
            i = end;
            value
        } else {
            let (value, end) = bare(text, i);
            i = end;
            value
        };
        pairs.put(name, value, start + 1)?;
        i = skip(i);
    }
    Ok(())
}

/// A value without quotes, up to a blank; a backslash takes the next character as it is.
fn bare(text: &str, from: usize) -> (String, usize) {
    let mut value = String::new();
    let mut chars = text[from..].char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|n| n.1)),
            c if c.is_ascii() && blank(c as u8) => return (value, from + at),
            c => value.push(c),
        }
    }
    (value, text.len())
}

/// A value in quotes; `from` is behind the opening one. `None`: no closing quote.
fn quoted(text: &str, from: usize) -> Option<(String, usize)> {
    let mut value = String::new();
    let mut chars = text[from..].char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|n| n.1)),
            '\'' => return Some((value, from + at + 1)),
            c => value.push(c),
        }
    }
    None
}

/// Writes a value so that [`parse`] (and libpq) reads it back unchanged.
pub(crate) fn quote(value: &str) -> String {
    let plain = !value.is_empty() && value.bytes().all(|b| !blank(b) && b != b'\'' && b != b'\\');
    if plain { value.to_owned() } else { format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'")) }
}
