//! Sessions opened ahead: while callers wait for a primary, one on each standby that may be promoted.
//!
//! A promoted server is at its busiest in its first moments, when everybody logs in at once. A session that was opened
//! before stands behind nobody: its caller goes on as soon as the promotion is seen. One login for each standby and
//! search, never repeated, given back as soon as the search is over. Decides nothing else; [`crate::connector`] starts
//! it when a caller begins to wait, and takes from it before it dials.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use crate::alone::Alone;
use crate::clock::{self, Deadline};
use crate::config::{Endpoint, SessionAttrs};
use crate::decide::pace::Price;
use crate::decide::topology::State;
use crate::decide::walk::TlsTry;
use crate::host::HostId;
use crate::lock;
use crate::monitor::Monitor;
use crate::open::{Opened, Opener, Progress, Purpose};
use crate::report::By;

/// What a spare waits for its caller once the search is over.
const LEFT_OVER: Duration = Duration::from_millis(500);
/// Between two looks while no news comes.
const LOOK: Duration = Duration::from_secs(1);
/// Bounds one login where `connect_timeout` doesn't (pgfollow's default for it).
const LOGIN: Duration = Duration::from_secs(5);
/// A spare that doesn't say what it is within this is none: dialling anew is as quick.
const ANSWER: Duration = Duration::from_millis(250);

/// The sessions in hand, by host.
#[derive(Default)]
pub(crate) struct Spares {
    held: Mutex<BTreeMap<HostId, Opened>>,
    task: Alone,
}

impl Spares {
    /// A caller begins to wait for a primary.
    pub(crate) fn start(self: &Arc<Self>, monitor: &Arc<Monitor>) {
        if monitor.config.endpoint == Endpoint::Direct {
            self.task.start(|| keep(Arc::downgrade(self), Arc::downgrade(monitor)));
        }
    }

    /// The session held on that host, if it is still good and of the wanted role now.
    pub(crate) async fn take(
        &self,
        host: HostId,
        wanted: SessionAttrs,
        monitor: &Arc<Monitor>,
        deadline: Deadline,
    ) -> Option<Opened> {
        let mut spare = lock(&self.held).remove(&host)?;
        if spare.member.generation() < monitor.generation(host) {
            return None;
        }
        let until = Deadline::after(ANSWER).min(deadline);
        until.bound(monitor.opener.renew(&mut spare, wanted)).await.ok()?.ok()?;
        Some(spare)
    }
}

/// Opens spares for as long as the search runs.
async fn keep(spares: Weak<Spares>, monitor: Weak<Monitor>) {
    let mut tried: Vec<HostId> = Vec::new();
    loop {
        let Some(m) = monitor.upgrade() else { return };
        let searching = m.snapshot().cluster.search_since.is_some();
        if searching {
            let new: Vec<HostId> = candidates(&m).into_iter().filter(|h| !tried.contains(h)).collect();
            tried.extend(&new);
            join_all(new.into_iter().map(|host| open(&m, host, &spares))).await;
        }
        let mut changes = m.changes();
        drop(m);
        if searching {
            // Neither an error (the monitor is gone) nor the time passing needs another answer than another look.
            let _ = Deadline::after(LOOK).bound(changes.changed()).await;
            continue;
        }
        clock::sleep_until(clock::now() + LEFT_OVER).await;
        let Some(s) = spares.upgrade() else { return };
        lock(&s.held).clear();
        return;
    }
}

/// Standbys that the monitor talks to, each server once.
fn candidates(monitor: &Monitor) -> Vec<HostId> {
    let snapshot = monitor.snapshot();
    let standbys = snapshot.hosts.iter().filter(|h| h.state == State::Standby);
    standbys.filter(|h| h.same_as.is_none() && !h.indirect && !h.gone).map(|h| h.id).collect()
}

/// One login. Why it failed is of no interest: the caller's own connect will say.
async fn open(monitor: &Arc<Monitor>, host: HostId, spares: &Weak<Spares>) {
    let Some(to) = monitor.candidate(host) else { return };
    let opener: &Opener = &monitor.opener;
    let tls = TlsTry::first(opener.sslmode(), to.address.is_unix());
    let place = (host, monitor.generation(host));
    let pace = &monitor.pace;
    let seen = monitor.recorder.attempt(host, By::Ahead);
    let progress = Progress::new();
    let login = async {
        let _turn = pace.turn(Some(host), Price::Later).await;
        let result = opener.open(&to, place, tls, Purpose::Caller(SessionAttrs::Any), &progress).await;
        seen.over(&result, &progress);
        result
    };
    let until = Deadline::after(monitor.config.connect_timeout.unwrap_or(LOGIN));
    if let Ok(Ok(opened)) = until.bound(login).await
        && let Some(s) = spares.upgrade()
    {
        lock(&s.held).insert(host, opened);
    }
}
