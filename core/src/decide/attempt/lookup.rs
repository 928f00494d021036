//! One name being looked up: two questions (A and AAAA), each answered once.
//!
//! Decides when the name has failed and for which of two reasons. Both walks use it; what an address is good for is
//! theirs to decide.

use crate::clock::Moment;
use crate::net::{Family, ResolveError};

#[derive(Debug)]
pub(super) struct LookUp {
    pub(super) started: Moment,
    v4: bool,
    v6: bool,
    gave: bool,
    error: Option<ResolveError>,
    resolved_before: bool,
}

/// Both questions failed.
pub(super) struct NameFailed {
    pub(super) error: ResolveError,
    pub(super) resolved_before: bool,
}

impl LookUp {
    pub(super) fn new(now: Moment) -> Self {
        Self { started: now, v4: true, v6: true, gave: false, error: None, resolved_before: false }
    }

    /// Whether an answer is still to come.
    pub(super) fn pending(&self) -> bool {
        self.v4 || self.v6
    }

    /// Whether a fresh address came.
    pub(super) fn gave(&self) -> bool {
        self.gave
    }

    fn answered(&mut self, family: Family) {
        match family {
            Family::V4 => self.v4 = false,
            Family::V6 => self.v6 = false,
        }
    }

    /// Addresses came. False if this question had been answered already.
    pub(super) fn resolved(&mut self, family: Family) -> bool {
        let awaited = match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        };
        self.answered(family);
        self.gave |= awaited;
        awaited
    }

    /// A question failed; the failure of the name, if that was the last hope.
    pub(super) fn failed(
        &mut self,
        family: Family,
        error: ResolveError,
        resolved_before: bool,
    ) -> Option<NameFailed> {
        if !self.pending() {
            return None;
        }
        self.answered(family);
        self.resolved_before |= resolved_before;
        // Of two reasons the less final one counts: there are name servers that answer NXDOMAIN to AAAA of a name
        // that has an A record.
        self.error = Some(match self.error.take() {
            Some(old) if finality(&old) <= finality(&error) => old,
            _ => error,
        });
        if self.pending() || self.gave {
            return None;
        }
        Some(NameFailed { error: self.error.clone()?, resolved_before: self.resolved_before })
    }
}

fn finality(error: &ResolveError) -> u8 {
    match error {
        ResolveError::ServerFailure(_) => 0,
        ResolveError::TimedOut => 1,
        ResolveError::NoData => 2,
        ResolveError::NoSuchName => 3,
    }
}
