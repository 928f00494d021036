//! Places whose session is gone while a commit of it may still wait for a synchronous standby.
//!
//! Such a backend stays at the server until the standby is back, whatever became of its client. Were its place free at
//! once, everybody who gives a commit up would cost the server one slot more, until it has none left. So the place stays
//! taken for as long as the backend is seen to wait. Before the first look it is in doubt, for a moment only: a call that
//! was slow for another reason is soon gone from the server. Nothing is kept on old evidence, and nothing for ever.

use std::time::Duration;

use super::SlotId;
use crate::clock::Moment;

/// Between two looks while a place is in doubt.
const LOOK_OFTEN: Duration = Duration::from_millis(100);
/// Between two looks at backends that are known to wait.
const LOOK: Duration = Duration::from_millis(500);
/// A look that has no answer by then has none.
const LOOK_LOST: Duration = Duration::from_secs(2);
/// A place is in doubt this long: a commit on its way to its wait has arrived there by then.
const DOUBT: Duration = Duration::from_secs(1);
/// A backend that was last seen to wait this long ago may be gone.
const OLD: Duration = Duration::from_secs(10);
/// Longest that a place is kept, whatever is seen.
const MOST: Duration = Duration::from_secs(3_600);

/// What a look saw of the backend of a session that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It waits for a synchronous standby.
    Waits,
    /// It is at work on something else.
    Runs,
    /// It isn't there any more, or does nothing, or can't be looked at.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    slot: SlotId,
    closed: Moment,
    /// When it was last seen to wait.
    waited: Option<Moment>,
}

/// The places that are kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    places: Vec<Place>,
    /// When the last look began.
    looked: Moment,
    looking: bool,
}

impl Kept {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn has(&self, slot: SlotId) -> bool {
        self.places.iter().any(|p| p.slot == slot)
    }

    /// How many are known to wait for a standby.
    pub(super) fn waiting(&self) -> usize {
        self.places.iter().filter(|p| p.waited.is_some()).count()
    }

    pub(super) fn add(&mut self, slot: SlotId, closed: Moment) {
        self.places.push(Place { slot, closed, waited: None });
    }

    /// The places to be looked at now, if a look is due.
    pub(super) fn look(&mut self, now: Moment) -> Vec<SlotId> {
        if self.look_due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        (self.looked, self.looking) = (now, true);
        self.places.iter().map(|p| p.slot).collect()
    }

    fn look_due(&self) -> Option<Moment> {
        let due = |p: &Place| match p.waited {
            _ if self.looking => self.looked + LOOK_LOST,
            Some(_) => self.looked + LOOK,
            None if p.closed > self.looked => p.closed,
            None => self.looked + LOOK_OFTEN,
        };
        self.places.iter().map(due).min()
    }

    /// When [`Self::look`] or [`Self::overdue`] may have something to do.
    pub(super) fn next(&self) -> Option<Moment> {
        self.places.iter().map(Place::ends).chain(self.look_due()).min()
    }

    /// What the last look saw. Gives the places that are free.
    pub(super) fn looked(&mut self, seen: impl Fn(SlotId) -> Option<Seen>, now: Moment) -> Vec<SlotId> {
        self.looking = false;
        let began = self.looked;
        // What was closed since then is another backend's place.
        let seen = |p: &Place| if p.closed <= began { seen(p.slot) } else { None };
        let free = self.free(|p| match seen(p) {
            Some(Seen::Gone) => true,
            // Its wait is over; it ends by itself.
            Some(Seen::Runs) => p.waited.is_some(),
            Some(Seen::Waits) | None => false,
        });
        for p in self.places.iter_mut().filter(|p| seen(p) == Some(Seen::Waits)) {
            p.waited = Some(now);
        }
        free
    }

    /// Gives the places that have been kept for as long as may be.
    pub(super) fn overdue(&mut self, now: Moment) -> Vec<SlotId> {
        self.free(|p| p.ends() <= now)
    }

    /// Gives up the places that are among these.
    pub(super) fn forget(&mut self, slots: &[SlotId]) -> Vec<SlotId> {
        self.free(|p| slots.contains(&p.slot))
    }

    pub(super) fn forget_all(&mut self) -> Vec<SlotId> {
        self.free(|_| true)
    }

    fn free(&mut self, over: impl Fn(&Place) -> bool) -> Vec<SlotId> {
        let free = self.places.iter().filter(|p| over(p)).map(|p| p.slot).collect();
        self.places.retain(|p| !over(p));
        free
    }
}

impl Place {
    fn ends(&self) -> Moment {
        self.waited.map_or(self.closed + DOUBT, |at| at + OLD).min(self.closed + MOST)
    }
}
