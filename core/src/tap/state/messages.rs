//! What each message that passes does to what is known: requests leave and are answered, blocks open and end, parameters
//! are told.

use super::{Fatal, Inner, PARAMETERS, REQUESTS, Request, VALUE, commits_inside, on_off};
use crate::clock::Moment;
use crate::error::TxStatus;
use crate::tap::done;
use crate::tap::text::Effects;

impl Inner {
    /// A backslash in a quoted text is a backslash.
    pub(in crate::tap) fn conforming(&self) -> bool {
        self.parameters.get("standard_conforming_strings").is_some_and(|v| v == "on")
    }

    /// Whether something succeeded since the last call, and whether a write did.
    pub(in crate::tap) fn take_fresh(&mut self) -> Option<bool> {
        self.fresh.take()
    }

    /// Bytes of a request leave.
    pub(in crate::tap) fn sending(&mut self, effects: Effects) {
        self.partial = Some(match self.partial {
            None => effects,
            Some(before) => before.then(effects),
        });
    }

    /// Bytes leave that somebody waits to be answered.
    pub(in crate::tap) fn asking(&mut self, effects: Effects) {
        self.asked = true;
        self.sending(effects);
    }

    /// A request's end has left: its ReadyForQuery is owed.
    pub(in crate::tap) fn sent(&mut self, synced: bool, now: Moment) {
        let effects = self.partial.take().unwrap_or_default();
        let number = self.copying.take().unwrap_or_else(|| {
            self.next_number += 1;
            self.next_number
        });
        let asked = std::mem::take(&mut self.asked);
        // A statement that is closed behind a COMMIT must not hide what the COMMIT was answered.
        if asked {
            self.tag.clear();
            self.sync_rep = false;
        }
        let full = self.out.len() >= REQUESTS;
        match self.out.back_mut() {
            Some(last) if full => {
                last.effects = last.effects.then(effects);
                last.asked |= asked;
                self.folded += 1;
            }
            _ => self.out.push_back(Request { number, effects, since: now, synced, asked }),
        }
    }

    /// The server takes COPY data now. It ignores the Sync that stood behind the Execute (`copyfromparse.c`), so that
    /// request goes on until the Sync behind the data's end.
    pub(in crate::tap) fn copy_begins(&mut self) {
        if self.folded > 0 || self.out.front().is_none_or(|r| !r.synced) {
            return;
        }
        let Some(copy) = self.out.pop_front() else { return };
        match self.out.front_mut() {
            // Somebody sent on without waiting: then it is that Sync.
            Some(next) => {
                next.effects = copy.effects.then(next.effects);
                next.asked = true;
            }
            None => {
                self.partial = Some(copy.effects.then(self.partial.unwrap_or_default()));
                self.copying = Some(copy.number);
                self.asked = true;
            }
        }
    }

    /// ReadyForQuery came.
    pub(in crate::tap) fn ready(&mut self, status: u8, now: Moment) {
        let done = if self.folded > 0 && self.out.len() == 1 {
            self.folded -= 1;
            self.out.front().copied()
        } else {
            self.out.pop_front()
        };
        if let Some(next) = self.out.front_mut() {
            // Its own wait begins now.
            next.since = next.since.max(now);
        }
        // The session goes on, whatever a notice had announced.
        self.fatal = None;
        let effects = done.map(|r| r.effects).unwrap_or_default();
        let before = std::mem::replace(
            &mut self.status,
            match status {
                b'T' => TxStatus::InTransaction,
                b'E' => TxStatus::Failed,
                _ => TxStatus::Idle,
            },
        );
        let was_open = before != TxStatus::Idle;
        if let Some(r) = done.filter(|r| r.asked && self.error.is_none()) {
            let lasting = self.status == TxStatus::Idle && effects.works && !self.read_only_block;
            let write = lasting && done::is_write(&self.tag);
            self.done.count(write, now - r.since);
            self.fresh = Some(write || self.fresh == Some(true));
        }
        // The close of a statement changes nothing about the answer before it.
        if done.is_some_and(|r| r.asked) {
            self.called = commits_inside(before, effects);
            self.last = effects;
        }
        self.read_only_block = match (self.status, effects.read_only) {
            (TxStatus::Idle, _) | (_, Some(false)) => false,
            // A BEGIN inside a block can be undone with a savepoint: only the one that opened it is believed.
            (_, Some(true)) => !was_open || self.read_only_block,
            (_, None) => was_open && self.read_only_block,
        };
        let error = self.error.take();
        match self.status {
            TxStatus::Failed if before != TxStatus::Failed => self.block_error = error,
            TxStatus::InTransaction if !was_open => self.block_error = None,
            _ => {}
        }
    }

    pub(in crate::tap) fn completed(&mut self, tag: &[u8]) {
        // Into the same memory each time: this runs for every statement.
        self.tag.clear();
        self.tag.extend_from_slice(tag);
        let ends = match tag {
            b"COMMIT" | b"PREPARE TRANSACTION" => true,
            // ROLLBACK TO has the same tag.
            b"ROLLBACK" => self.out.front().is_none_or(|r| r.effects.ends),
            _ => false,
        };
        self.ends += u64::from(ends);
        self.reset |= match tag {
            b"RESET" => self.out.front().is_some_and(|r| r.effects.resets),
            tag => tag == b"DISCARD ALL",
        };
    }

    /// An error or notice passed after the login. `true` where there is news.
    pub(in crate::tap) fn reported(&mut self, r: &crate::tap::report::Report, is_error: bool) -> bool {
        let code = r.sqlstate;
        let dying = matches!(r.severity.as_str(), "FATAL" | "PANIC");
        // A crash or an immediate shutdown can arrive as a mere notice.
        if dying || (!is_error && matches!(code.as_str(), "57P01" | "57P02" | "57P03")) {
            self.fatal = Some(Fatal { sqlstate: code, message: r.message.clone() });
        }
        if !is_error {
            let local_commit = r.routine == "SyncRepWaitForLSN";
            self.sync_rep |= local_commit;
            self.local_commits += u64::from(local_commit);
            self.news.local_commits += u32::from(local_commit);
            return local_commit;
        }
        self.error = Some(code);
        self.stale |= crate::tap::report::is_stale_statement(code.as_str(), Some(&r.routine));
        if code.as_str() != "25006" {
            return false;
        }
        self.news.read_only_refusals += 1;
        self.news.in_read_only_block =
            self.read_only_block || self.out.front().is_some_and(|r| r.effects.read_only == Some(true));
        true
    }

    /// A parameter was reported; `value` is `None` if it is too long to be kept. `true` where there is news.
    pub(in crate::tap) fn parameter(&mut self, name: &str, value: Option<&str>) -> bool {
        let Some(value) = value.filter(|v| v.len() <= VALUE) else {
            // Better none than an old one.
            self.parameters.remove(name);
            return false;
        };
        let full = self.parameters.len() >= PARAMETERS;
        match self.parameters.get_mut(name) {
            Some(old) if old == value => return false,
            Some(old) => value.clone_into(old),
            None if full => return false,
            None => {
                self.parameters.insert(name.to_owned(), value.to_owned());
            }
        }
        match name {
            "in_hot_standby" => self.news.in_hot_standby = on_off(value),
            "default_transaction_read_only" => self.news.default_read_only = on_off(value),
            _ => return false,
        }
        true
    }
}
