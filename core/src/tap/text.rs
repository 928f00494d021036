//! What a statement's text may do to its transaction. Only a statement's first word counts for that (ON CONFLICT DO and
//! CASE … END are no commands), outside quotes and comments; where the text
//! can't be told apart with certainty, the answer is the careful one.

/// What a request's text may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// It may commit: COMMIT, END, PREPARE, CALL or DO stands in it.
    pub(super) may_end: bool,
    /// COMMIT, END or PREPARE stands in it for certain.
    pub(super) commits: bool,
    /// It calls code that may commit on its own in autocommit: CALL or DO.
    pub(super) calls: bool,
    /// It makes the block READ ONLY (BEGIN READ ONLY, SET TRANSACTION READ ONLY), whatever it wrote before.
    pub(super) read_only: bool,
    /// It may make the block READ WRITE.
    pub(super) read_write: bool,
    /// It is BEGIN READ ONLY and nothing else: a block that it opens writes nothing.
    pub(super) opens_read_only: bool,
    /// Somebody waits for its answer. (Nobody does when a dropped statement is closed.)
    pub(super) asked: bool,
    /// It runs something. (Preparing a statement doesn't.)
    pub(super) runs: bool,
    /// It leaves the block: COMMIT, END, PREPARE TRANSACTION, ROLLBACK or ABORT.
    pub(super) leaves: bool,
    /// Something runs behind the block's end, in a transaction of its own.
    pub(super) beyond: bool,
    /// It commits and goes on: that stays committed whatever the answer is.
    pub(super) midway: bool,
}

impl Effect {
    /// Of a text that was not seen, or not in full.
    pub(super) const UNKNOWN: Self = Self {
        may_end: true,
        commits: false,
        calls: true,
        read_only: false,
        read_write: true,
        opens_read_only: false,
        asked: true,
        runs: true,
        leaves: true,
        beyond: true,
        midway: false,
    };

    /// Of a statement that is prepared.
    pub(super) const PREPARED: Self = Self { asked: true, ..Self::NOTHING };
    const NOTHING: Self = Self {
        may_end: false,
        commits: false,
        calls: false,
        read_only: false,
        read_write: false,
        opens_read_only: false,
        asked: false,
        runs: false,
        leaves: false,
        beyond: false,
        midway: false,
    };

    /// Both, one after the other.
    pub(super) fn and(self, o: Self) -> Self {
        let beyond = self.beyond || o.beyond || (self.leaves && o.runs);
        Self {
            // What runs behind a ROLLBACK runs outside the block, and commits by itself.
            may_end: self.may_end || o.may_end || beyond,
            commits: self.commits || o.commits,
            calls: self.calls || o.calls,
            read_only: self.read_only || o.read_only,
            read_write: self.read_write || o.read_write,
            opens_read_only: if self.runs { self.opens_read_only && !o.runs } else { o.opens_read_only },
            asked: self.asked || o.asked,
            runs: self.runs || o.runs,
            leaves: self.leaves || o.leaves,
            beyond,
            midway: self.midway || o.midway,
        }
    }
}

/// Reads a statement.
pub(super) fn effect(text: &[u8]) -> Effect {
    let mut e = Effect { asked: true, runs: true, ..Effect::NOTHING };
    let mut previous: Word = Word::Other;
    let mut scan = Words { rest: text, doubtful: false, begins: true };
    let (mut statements, mut opens, mut left, mut committed) = (0, false, false, false);
    while let Some((word, first)) = scan.next_word() {
        let word = Word::of(word);
        if first {
            statements += 1;
            opens = word == Word::Opens;
            // The statements before this one are over.
            e.beyond |= left;
            e.leaves |= left;
            e.midway |= committed || (left && word == Word::Calls);
        }
        match word {
            Word::Ends if first => {
                (e.may_end, e.commits) = (true, true);
                (left, committed) = (true, true);
            }
            Word::Back if first => left = true,
            // ROLLBACK [WORK | TRANSACTION] TO [SAVEPOINT] s: the block goes on.
            Word::To if previous == Word::Back => left = false,
            Word::Calls if first => {
                e.may_end = true;
                e.calls = true;
            }
            Word::Only if previous == Word::Read => {
                e.read_only = true;
                e.opens_read_only = opens && statements == 1;
            }
            Word::Write if previous == Word::Read => e.read_write = true,
            Word::ReadOnly => e.read_write = true,
            _ => {}
        }
        if !(word == Word::Noise && previous == Word::Back) {
            previous = word;
        }
    }
    e.leaves |= left;
    e.may_end |= e.beyond;
    e.opens_read_only &= statements == 1;
    if scan.doubtful {
        // What it begins with is known all the same.
        return Effect { commits: e.commits, calls: e.calls, midway: e.midway, ..Effect::UNKNOWN };
    }
    // SET TRANSACTION READ WRITE, or both: not READ ONLY for sure.
    e.read_only &= !e.read_write;
    e
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    /// COMMIT, END, PREPARE.
    Ends,
    /// ROLLBACK, ABORT.
    Back,
    /// BEGIN, START.
    Opens,
    To,
    /// WORK, TRANSACTION.
    Noise,
    /// The setting `transaction_read_only`.
    ReadOnly,
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
        } else if is("rollback") || is("abort") {
            Self::Back
        } else if is("begin") || is("start") {
            Self::Opens
        } else if is("to") {
            Self::To
        } else if is("work") || is("transaction") {
            Self::Noise
        } else if is("transaction_read_only") {
            Self::ReadOnly
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
    /// The end of a text could not be told.
    doubtful: bool,
    /// The next word begins a statement. ON CONFLICT DO and CASE … END are no commands.
    begins: bool,
}

impl<'a> Words<'a> {
    fn next_word(&mut self) -> Option<(&'a [u8], bool)> {
        loop {
            let r = self.rest;
            match r {
                [] => return None,
                [b'\'', ..] => self.quoted(b'\''),
                [b'"', ..] => self.quoted(b'"'),
                [b'-', b'-', ..] => {
                    let end = r.iter().position(|c| matches!(c, b'\n' | b'\r'));
                    self.rest = end.map_or(&[], |n| &r[n + 1..]);
                }
                [b'/', b'*', ..] => self.comment(),
                [b'$', ..] => self.dollar(),
                [c, ..] if is_word(*c) => {
                    let n = r.iter().position(|c| !is_word(*c)).unwrap_or(r.len());
                    let (word, rest) = r.split_at(n);
                    // A name may hold a dollar sign, which then begins no text.
                    self.doubtful |= rest.first() == Some(&b'$');
                    self.rest = rest;
                    return Some((word, std::mem::replace(&mut self.begins, false)));
                }
                [c, ..] => {
                    self.begins |= *c == b';';
                    self.rest = &r[1..];
                }
            }
        }
    }

    /// A quoted text ends at the next quote; a doubled one begins the next text at once, which comes to the same.
    /// A backslash may escape a quote (in E'…', or with standard_conforming_strings off): then nobody knows here
    /// where the text ends.
    fn quoted(&mut self, q: u8) {
        let text = &self.rest[1..];
        self.rest = after(text, &[q]);
        self.doubtful |= q == b'\'' && text[..text.len() - self.rest.len()].contains(&b'\\');
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
            "select 1 -- a carriage return ends a comment too\r; commit",
            "select 1 as a$x$; commit; select 2 as b$x$",
            ";; commit",
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
            "select case when a then b end",
            "insert into t values (1) on conflict do nothing",
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
