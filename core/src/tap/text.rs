//! What a statement's text may do to its transaction. Only words outside quotes and comments count; where the text
//! can't be told apart with certainty, the answer is the careful one.

/// What a request's text may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// It may commit: COMMIT, END, PREPARE, CALL or DO stands in it.
    pub(super) may_end: bool,
    /// It calls code that may commit on its own in autocommit: CALL or DO.
    pub(super) calls: bool,
    /// It makes the block READ ONLY (BEGIN READ ONLY, SET TRANSACTION READ ONLY).
    pub(super) read_only: bool,
    /// It only reads by its first word (SELECT could still write through a function, so this is no proof).
    pub(super) read_write: bool,
}

impl Effect {
    /// Of a text that was not seen, or not in full.
    pub(super) const UNKNOWN: Self = Self { may_end: true, calls: true, read_only: false, read_write: true };

    /// Both, one after the other.
    pub(super) fn and(self, o: Self) -> Self {
        Self {
            may_end: self.may_end || o.may_end,
            calls: self.calls || o.calls,
            read_only: self.read_only || o.read_only,
            read_write: self.read_write || o.read_write,
        }
    }
}

/// Reads a statement.
pub(super) fn effect(text: &[u8]) -> Effect {
    let mut e = Effect::default();
    let mut previous: Word = Word::Other;
    let mut scan = Words { rest: text };
    while let Some(word) = scan.next_word() {
        let word = Word::of(word);
        match word {
            Word::Ends => e.may_end = true,
            Word::Calls => {
                e.may_end = true;
                e.calls = true;
            }
            Word::Only if previous == Word::Read => e.read_only = true,
            Word::Write if previous == Word::Read => e.read_write = true,
            _ => {}
        }
        previous = word;
    }
    // SET TRANSACTION READ WRITE, or both: not READ ONLY for sure.
    e.read_only &= !e.read_write;
    e
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Ends,
    Calls,
    Read,
    Only,
    Write,
    Other,
}

impl Word {
    fn of(w: &[u8]) -> Self {
        let is = |s: &str| w.eq_ignore_ascii_case(s.as_bytes());
        if is("commit") || is("end") || is("prepare") {
            Self::Ends
        } else if is("call") || is("do") {
            Self::Calls
        } else if is("read") {
            Self::Read
        } else if is("only") {
            Self::Only
        } else if is("write") {
            Self::Write
        } else {
            Self::Other
        }
    }
}

/// Words outside quotes and comments (PostgreSQL manual, "Lexical Structure").
struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    fn next_word(&mut self) -> Option<&'a [u8]> {
        loop {
            let r = self.rest;
            match r {
                [] => return None,
                [b'\'', ..] => self.quoted(b'\''),
                [b'"', ..] => self.quoted(b'"'),
                [b'-', b'-', ..] => self.rest = after(r, b"\n"),
                [b'/', b'*', ..] => self.comment(),
                [b'$', ..] => self.dollar(),
                [c, ..] if is_word(*c) => {
                    let n = r.iter().position(|c| !is_word(*c)).unwrap_or(r.len());
                    let (word, rest) = r.split_at(n);
                    self.rest = rest;
                    return Some(word);
                }
                _ => self.rest = &r[1..],
            }
        }
    }

    /// A quoted text ends at the next quote; a doubled one begins the next text at once, which comes to the same.
    /// Backslashes count only in E'…' (and with standard_conforming_strings off), where a quote after one may end
    /// the text too early: then more words are seen than there are, which is the careful side.
    fn quoted(&mut self, q: u8) {
        self.rest = after(&self.rest[1..], &[q]);
    }

    fn comment(&mut self) {
        // Comments nest.
        let mut depth = 0_usize;
        loop {
            match self.rest {
                [b'/', b'*', rest @ ..] => {
                    depth += 1;
                    self.rest = rest;
                }
                [b'*', b'/', rest @ ..] => {
                    depth -= 1;
                    self.rest = rest;
                    if depth == 0 {
                        return;
                    }
                }
                [_, rest @ ..] => self.rest = rest,
                [] => return,
            }
        }
    }

    fn dollar(&mut self) {
        let r = self.rest;
        let tag = r[1..].iter().position(|c| *c == b'$').map(|n| &r[..n + 2]);
        match tag {
            // $1 is a parameter; $tag$ begins a text.
            Some(tag) if tag[1..tag.len() - 1].iter().all(|c| is_word(*c)) && !tag[1].is_ascii_digit() => {
                self.rest = after(&r[tag.len()..], tag);
            }
            _ => self.rest = &r[1..],
        }
    }
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80
}

fn after<'a>(r: &'a [u8], what: &[u8]) -> &'a [u8] {
    r.windows(what.len()).position(|w| w == what).map_or(&[], |n| &r[n + what.len()..])
}

#[cfg(test)]
mod tests {
    use super::effect;

    #[test]
    fn a_word_that_ends_a_transaction_is_seen_wherever_it_may_count() {
        for yes in [
            "COMMIT",
            "insert into t values (1); commit",
            "end",
            "PREPARE TRANSACTION 'x'",
            "/* a /* b */ */ COMMIT",
            "call p()",
            "DO $$ begin end $$",
            "select 'it''s' ; commit",
            "-- no\ncommit",
            "select $1; end",
            "select E'it\\'s'; commit; select 'x'",
            "select case when a then b end",
        ] {
            assert!(effect(yes.as_bytes()).may_end, "{yes}");
        }
    }

    #[test]
    fn words_in_quotes_and_comments_do_not_count() {
        for no in [
            "select 'commit'",
            "select \"end\"",
            "-- commit",
            "/* commit */ select 1",
            "select $x$ commit $x$",
            "select commit_id from commits",
            "update t set a = $1",
            "select $$ call p() $$",
        ] {
            assert!(!effect(no.as_bytes()).may_end, "{no}");
        }
    }

    #[test]
    fn a_read_only_block_is_known_by_its_words() {
        assert!(effect(b"START TRANSACTION READ ONLY").read_only);
        assert!(effect(b"begin isolation level serializable, read only, deferrable").read_only);
        assert!(!effect(b"begin read write").read_only);
        assert!(!effect(b"begin; select 'read only'").read_only);
        assert!(!effect(b"set transaction read only; set transaction read write").read_only);
    }
}
