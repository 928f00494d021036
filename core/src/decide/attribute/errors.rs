//! The errors of an outage: what callers got of them, and what `run` dealt with.

use serde::{Deserialize, Serialize};

use super::Origin;

/// What became of an error that was told as a caller's. Only `run` and its kin keep errors from their callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The work is done again: its caller doesn't get it.
    Repeated,
    /// It is asked what became of the transaction. One of the next three follows.
    Asked,
    /// Committed: its caller got success.
    Committed,
    /// Not committed: its caller gets it, and not as an unknown outcome (or [`Self::Repeated`] follows).
    NotCommitted,
    /// There was no answer: its caller gets it.
    Unanswered,
    /// Its caller gets it as an unknown outcome, and it had not been one.
    Doubted,
    /// The other way round.
    Certain,
}

/// Outcomes that were asked for, by their answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Committed: the caller got success.
    pub committed: u64,
    /// Not committed: the work was done again, or the caller was told so.
    pub not_committed: u64,
    /// It stayed unknown.
    pub unknown: u64,
    /// No answer yet.
    pub under_way: u64,
}

impl Asked {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.committed + self.not_committed + self.unknown + self.under_way
    }
}

/// How many errors of which kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Errors of failover origin that callers got.
    pub failed: u64,
    /// Other errors that callers got.
    pub other: u64,
    /// Of all these, unknown outcomes.
    pub unknown: u64,
    /// Errors that no caller got, because `run` repeated the work or found it committed.
    pub spared: u64,
    /// Outcomes that `run` asked for.
    pub asked: Asked,
}

impl Errors {
    fn got(&mut self, origin: Origin) -> &mut u64 {
        if origin == Origin::Application { &mut self.other } else { &mut self.failed }
    }

    /// A caller gets an error.
    pub(super) fn met(&mut self, origin: Origin, unknown: bool) {
        *self.got(origin) += 1;
        self.unknown += u64::from(unknown);
    }

    /// What became of one of them. `unknown`: it counted as an unknown outcome until now.
    pub(crate) fn fate(&mut self, origin: Origin, unknown: bool, fate: Fate) {
        // A machine that is told nonsense counts nonsense, and doesn't fall over.
        let one_less = |n: &mut u64| *n = n.saturating_sub(1);
        match fate {
            Fate::Repeated | Fate::Asked => {
                one_less(self.got(origin));
                if unknown {
                    one_less(&mut self.unknown);
                }
                *if fate == Fate::Asked { &mut self.asked.under_way } else { &mut self.spared } += 1;
            }
            Fate::Committed | Fate::NotCommitted | Fate::Unanswered => {
                one_less(&mut self.asked.under_way);
                match fate {
                    Fate::Committed => self.asked.committed += 1,
                    Fate::NotCommitted => self.asked.not_committed += 1,
                    _ => self.asked.unknown += 1,
                }
                *if fate == Fate::Committed { &mut self.spared } else { self.got(origin) } += 1;
                self.unknown += u64::from(fate == Fate::Unanswered);
            }
            Fate::Doubted => self.unknown += 1,
            Fate::Certain => one_less(&mut self.unknown),
        }
    }
}
