//! An error that was told as a caller's, and what became of it: `run` keeps some from its callers.

use std::sync::{Arc, Weak};

use super::book::ErrorKind;
use super::export;
use super::record::Recorder;
use crate::clock;
use crate::decide::attribute::{Fact, Fate, Origin};
use crate::error::{Class, Error};
use crate::host::HostId;

/// What an error carries of having been told: to whom, and as what.
#[derive(Clone)]
pub(crate) struct Told {
    recorder: Weak<Recorder>,
    /// As it was met.
    kind: ErrorKind,
    /// Its class by now.
    class: Class,
    origin: Origin,
    /// The outage in which it counts.
    outage: Option<u64>,
}

impl Told {
    /// It became that.
    pub(crate) fn fate(&mut self, fate: Fate) {
        if let Some(r) = self.recorder.upgrade() {
            r.fate(self, fate);
        }
    }

    /// Its class isn't what it was told to be.
    pub(crate) fn is(&mut self, class: Class) {
        let (before, now) = (self.class == Class::UnknownOutcome, class == Class::UnknownOutcome);
        if before != now {
            self.fate(if now { Fate::Doubted } else { Fate::Certain });
        }
    }
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Told").finish_non_exhaustive()
    }
}

impl Recorder {
    /// A caller gets an error, as far as is known now. Once for each.
    pub(crate) fn failed(self: &Arc<Self>, e: &mut Error, host: Option<HostId>) {
        let now = clock::now();
        let mut book = self.book();
        let label = host.map(|h| book.label(h).to_string()).or_else(|| e.host().map(str::to_owned));
        let kind = ErrorKind::new(label, e.code(), e.class(), e.sqlstate());
        let own = book.errors.add(kind.clone());
        let origin = Origin::of(e.code(), e.class(), e.sqlstate());
        let unknown = e.class() == Class::UnknownOutcome;
        self.take(&mut book, Fact::Failed { host, origin, unknown }, now);
        let outage = book.attribution.number();
        export::error(e, own);
        drop(book);
        let recorder = Arc::downgrade(self);
        e.was_told(Told { recorder, kind, class: e.class(), origin, outage });
    }

    fn fate(&self, told: &mut Told, fate: Fate) {
        let mut book = self.book();
        let (unknown, origin) = (told.class == Class::UnknownOutcome, told.origin);
        let before = told.kind.as_class(told.class);
        told.class = match fate {
            Fate::NotCommitted | Fate::Certain => Class::Transient,
            Fate::Doubted => Class::UnknownOutcome,
            _ => told.class,
        };
        if matches!(fate, Fate::Repeated | Fate::Asked | Fate::Doubted | Fate::Certain) {
            book.errors.take(&before);
        }
        match fate {
            Fate::Repeated | Fate::Committed => {
                book.spared.add(told.kind.clone());
                export::spared();
            }
            Fate::Asked => {}
            Fate::NotCommitted | Fate::Unanswered | Fate::Doubted | Fate::Certain => {
                book.errors.add(told.kind.as_class(told.class));
            }
        }
        let Some(outage) = told.outage else { return };
        if book.attribution.number() == Some(outage) {
            self.take(&mut book, Fact::Fate { outage, origin, unknown, fate }, clock::now());
        } else if let Some(over) = book.outages.kept.iter_mut().find(|o| o.number == outage) {
            over.errors.fate(origin, unknown, fate);
            export::unknown_outcomes(u64::from(fate == Fate::Unanswered));
        }
    }
}
