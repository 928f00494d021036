//! The monitor's own sessions: one task each for a dial and for a question, nothing more.
//!
//! Decides nothing: when to dial and ask, and what silence means, is [`crate::decide::topology`]'s.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::Monitor;
use crate::clock::{self, Deadline};
use crate::config::Endpoint;
use crate::decide::accept::Question;
use crate::decide::topology::{ConnectKind, EndCause, Input, TermRow};
use crate::decide::walk::{self, Next, TlsTry};
use crate::failure::{Failed, Failure};
use crate::host::{Candidate, HostId};
use crate::lock;
use crate::open::{Opened, Progress, Purpose};
use crate::role;
use crate::session::member::{EndCause as Ended, Member};

/// An open session and the last row that it gave.
struct Probe {
    opened: Opened,
    row: Mutex<TermRow>,
}

/// The probe sessions and dials under way, by host.
#[derive(Default)]
pub(super) struct Probes {
    sessions: BTreeMap<HostId, Arc<Probe>>,
    dials: BTreeMap<HostId, AbortHandle>,
}

/// Lets go of a session. One with a question out would live until it is answered, by a frozen server never; so it is
/// cut. Another one closes politely, by its client's end.
fn let_go(probe: &Arc<Probe>) {
    if Arc::strong_count(probe) > 1 {
        probe.opened.member.end(Ended::Closed);
    }
}

impl Probes {
    pub(super) fn close(&mut self, host: HostId) {
        if let Some(probe) = self.sessions.remove(&host) {
            let_go(&probe);
        }
        if let Some(dial) = self.dials.remove(&host) {
            dial.abort();
        }
    }

    pub(super) fn close_all(&mut self) {
        for probe in std::mem::take(&mut self.sessions).values() {
            let_go(probe);
        }
        for dial in std::mem::take(&mut self.dials).values() {
            dial.abort();
        }
    }

    fn is_current(&self, host: HostId, probe: &Arc<Probe>) -> bool {
        self.sessions.get(&host).is_some_and(|p| Arc::ptr_eq(p, probe))
    }

    /// Whether this member is the host's current probe session; it is forgotten if so.
    pub(super) fn ended(&mut self, host: HostId, member: u64) -> bool {
        let current = self.sessions.get(&host).is_some_and(|s| s.opened.member.id == member);
        if current {
            self.sessions.remove(&host);
        }
        current
    }
}

/// Opens a probe session and reads its first row.
pub(super) fn dial(monitor: &Arc<Monitor>, host: HostId, to: Candidate, connect: Duration, login: Duration) {
    let m = Arc::clone(monitor);
    let task = monitor.spawn(async move {
        match opened(&m, host, &to, connect, login).await {
            Ok((session, row, rtt)) => {
                let new = Arc::new(Probe { opened: session, row: Mutex::new(row) });
                {
                    let mut probes = lock(&m.probes);
                    probes.dials.remove(&host);
                    if let Some(before) = probes.sessions.insert(host, Arc::clone(&new)) {
                        let_go(&before);
                    }
                }
                m.untroubled(host);
                m.feed(Input::ProbeConnected { host, row, rtt });
                prove(&m, host, &new).await;
            }
            Err(failed) => {
                lock(&m.probes).dials.remove(&host);
                m.troubled(host, &failed);
                let kind = ConnectKind::of(&failed).unwrap_or(ConnectKind::Other);
                m.feed(Input::ProbeConnectFailed { host, kind });
            }
        }
    });
    let Some(task) = task else { return };
    if let Some(before) = lock(&monitor.probes).dials.insert(host, task.abort_handle()) {
        before.abort();
    }
    // The task may have been quicker than the line above.
    if task.is_finished() {
        lock(&monitor.probes).dials.remove(&host);
    }
}

async fn opened(
    m: &Arc<Monitor>,
    host: HostId,
    to: &Candidate,
    connect: Duration,
    login: Duration,
) -> Result<(Opened, TermRow, Duration), Failed> {
    let local = to.address.is_unix();
    let mut tls = TlsTry::first(m.config.tls.sslmode, local);
    // The socket and the whole have each their bound; a second try (prefer, allow) shares the second one.
    let until = Deadline::after(connect + login);
    loop {
        let progress = Progress::new();
        let place = (host, m.generation(host));
        let result = match until.bound(m.opener.open(to, place, tls, Purpose::Monitor, &progress)).await {
            Ok(r) => r,
            Err(_) => Err(Failed::new(progress.stage(), Failure::TimedOut)),
        };
        let failed = match result {
            Ok(session) => {
                let asked = clock::now();
                let row = until.bound(m.opener.ask_term(&session.client, &to.address, true)).await;
                return match row {
                    Ok(Some(row)) => Ok((session, row, clock::now() - asked)),
                    Ok(None) => {
                        Err(Failed::new(progress.stage(), Failure::Lost("no answer to the term row".into())))
                    }
                    Err(_) => Err(Failed::new(progress.stage(), Failure::TimedOut)),
                };
            }
            Err(failed) => failed,
        };
        let cx = walk::Context {
            walk: m.config.host_walk,
            sslmode: m.config.tls.sslmode,
            tried: tls,
            encrypted: progress.encrypted(),
            local,
            healthy_lately: false,
            resolved_before: true,
        };
        tls = match walk::step(&failed, &cx).next {
            Next::PlainSameHost => TlsTry::Plain,
            Next::TlsSameHost => TlsTry::Tls,
            Next::NextAddress | Next::NextHost | Next::Stop => return Err(failed),
        };
    }
}

/// Asks on the open probe session. The answer is fed whenever it comes.
pub(super) fn ask(monitor: &Arc<Monitor>, host: HostId) {
    let Some(probe) = lock(&monitor.probes).sessions.get(&host).cloned() else { return };
    let m = Arc::clone(monitor);
    monitor.spawn(async move {
        let asked = clock::now();
        match answer(&m, &probe).await {
            // Another session has taken its place: what that one said is newer.
            Some(_) if !lock(&m.probes).is_current(host, &probe) => {}
            Some(row) => {
                *lock(&probe.row) = row;
                m.feed(Input::ProbeAnswered { host, row, rtt: clock::now() - asked });
                count(&m, host, &probe).await;
            }
            // An ended session is told by its driver; one that answers nonsense is ended here.
            None if probe.opened.client.is_closed() => {}
            None => {
                if lock(&m.probes).ended(host, probe.opened.member.id) {
                    m.feed(Input::ProbeFailed { host, cause: EndCause::Fin });
                }
            }
        }
    });
}

/// Finds out, once for a host, whether drivers may be given startup options for it.
async fn prove(m: &Monitor, host: HostId, probe: &Probe) {
    if m.config.endpoint != Endpoint::Direct || m.proved_version(host).is_some() {
        return;
    }
    let Opened { client, member, .. } = &probe.opened;
    let version = member.tap.parameter("server_version").map_or(0, |v| role::major(&v));
    let Some((pid, _)) = member.tap.key() else { return };
    let Ok(answer) = client.simple_query(role::BACKEND_SQL).await else { return };
    // Not before that is known: behind a pooler the settings would stay on a connection that others use next.
    let settings = role::setup_sql(true, version).join("; ");
    if role::is_backend(&answer, pid) && client.simple_query(&settings).await.is_ok() {
        m.proved(host, version);
    }
}

/// Counts a host's sessions now and then: what the database's own team sees of this service.
async fn count(m: &Monitor, host: HostId, probe: &Probe) {
    if !m.recorder.count_due(host, clock::now()) {
        return;
    }
    let sql = role::sessions_sql(&m.config.application_name);
    match probe.opened.client.simple_query(&sql).await.map(|answer| role::sessions(&answer)) {
        Ok(Some(seen)) => m.recorder.counted(host, seen, clock::now()),
        Ok(None) | Err(_) => m.recorder.count_refused(host, clock::now()),
    }
}

impl Monitor {
    /// Whether the backend of that member can be looked at: it is the primary's own, and the monitor has a session there.
    pub(crate) fn can_look(&self, member: &Member) -> bool {
        let direct = self.config.endpoint == Endpoint::Direct
            && !self.snapshot().hosts.iter().any(|h| h.id == member.host && h.indirect);
        let at_primary = || {
            let address = &member.candidate.address;
            self.primary().is_some_and(|(c, fresh)| fresh && c.address == *address)
        };
        direct && at_primary() && lock(&self.probes).sessions.contains_key(&member.host)
    }

    /// Which of these backends of a host are at work, and which of them wait for a synchronous standby. A host that
    /// refuses the question tells of none; `None` if nobody can be asked.
    pub(crate) async fn backends(&self, host: HostId, pids: &[i32]) -> Option<Vec<(i32, bool)>> {
        let probe = lock(&self.probes).sessions.get(&host).cloned()?;
        match probe.opened.client.simple_query(&role::backends_sql(pids)).await {
            Ok(answer) => Some(role::backends(&answer)),
            Err(e) => e.as_db_error().map(|_| Vec::new()),
        }
    }
}

/// The host's row now. A search asks a standby dozens of times a second, each process of a fleet for itself: whether
/// it is still in recovery costs a quarter of the row, and while it is, the rest stands as it was (a backend never
/// outlives its server; only behind a pooler could it be another one, so there the whole row is asked).
async fn answer(m: &Monitor, probe: &Probe) -> Option<TermRow> {
    let Opened { client, member, .. } = &probe.opened;
    let last = *lock(&probe.row);
    let brief =
        m.searching.load(Ordering::Relaxed) && last.in_recovery && m.config.endpoint == Endpoint::Direct;
    if brief {
        let answer = client.simple_query(role::question_sql(Question::InRecovery)).await.ok()?;
        if role::question_answer(&answer)? {
            return Some(last);
        }
    }
    m.opener.ask_term(client, &member.candidate.address, false).await
}
