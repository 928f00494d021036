//! What the rest of the library holds while something lasts, to tell the recorder of its end: a wait, an attempt, a session.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::book::By;
use super::record::Recorder;
use super::words::kind_name;
use crate::clock::{self, Moment};
use crate::decide::attribute::Fact;
use crate::decide::topology::ConnectKind;
use crate::error::Stage;
use crate::failure::{Failed, Failure};
use crate::host::HostId;
use crate::open::Progress;

/// A caller that waits for a session, until this is dropped.
pub(crate) struct Waiting {
    recorder: Arc<Recorder>,
    id: u64,
    since: Moment,
}

impl Waiting {
    pub(super) fn new(recorder: &Arc<Recorder>, id: u64, since: Moment) -> Self {
        Self { recorder: Arc::clone(recorder), id, since }
    }

    /// How long it has waited.
    pub(crate) fn so_far(&self) -> Duration {
        clock::now() - self.since
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let r = &self.recorder;
        r.take(&mut r.book(), Fact::WaitEnded { id: self.id }, clock::now());
    }
}

/// An attempt at an address, until it is over or dropped.
pub(crate) struct Attempt {
    recorder: Arc<Recorder>,
    host: HostId,
    by: By,
    over: bool,
}

impl Attempt {
    pub(super) fn new(recorder: &Arc<Recorder>, host: HostId, by: By) -> Self {
        Self { recorder: Arc::clone(recorder), host, by, over: false }
    }

    /// It is over: how, and how long each stage lasted.
    pub(crate) fn over<T>(mut self, result: &Result<T, Failed>, progress: &Progress) {
        self.over = true;
        let name = match result {
            Ok(_) => "connected",
            Err(failed) => match (&failed.failure, ConnectKind::of(failed)) {
                (_, Some(kind)) => kind_name(kind),
                (Failure::WrongRole { .. }, _) => "wrong_role",
                (Failure::RoleUnknown(_), _) => "role_unknown",
                _ => "not_tried",
            },
        };
        let mut whole = Duration::ZERO;
        for (stage, took) in progress.stages(clock::now()) {
            self.recorder.stage(stage, took);
            if stage != Stage::Pace {
                whole += took;
            }
        }
        self.recorder.dialled(self.host, self.by, name, whole);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.over {
            self.recorder.dialled(self.host, self.by, "abandoned", Duration::ZERO);
        }
        if self.by == By::Caller {
            let r = &self.recorder;
            r.take(&mut r.book(), Fact::Attempt { host: self.host, begins: false }, clock::now());
        }
    }
}

/// What a session's tap holds to tell of successes, while they are of interest.
#[derive(Debug)]
pub(crate) struct Ear {
    armed: Arc<AtomicBool>,
    recorder: Weak<Recorder>,
    host: HostId,
}

impl Ear {
    pub(crate) fn new(recorder: &Arc<Recorder>, host: HostId) -> Self {
        Self { armed: Arc::clone(&recorder.armed), recorder: Arc::downgrade(recorder), host }
    }

    /// A request succeeded. Costs a load while nothing is wrong.
    pub(crate) fn done(&self, write: bool, now: Moment) {
        if self.armed.load(Ordering::Relaxed)
            && let Some(r) = self.recorder.upgrade()
        {
            r.done(self.host, write, now);
        }
    }
}
