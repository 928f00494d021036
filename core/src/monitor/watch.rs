//! The monitor's one task: timers, samples of the sessions' taps, look-ups.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Monitor;
use crate::clock::{self, Moment};
use crate::decide::topology::{Input, MemberId};
use crate::lock;

/// Between two looks at the calls in flight. A call counts as blocked after `suspect_after` (500 ms): a fifth of that
/// is exact enough.
const SAMPLE: Duration = Duration::from_millis(100);

/// Runs the watch task for as long as the monitor has another owner, and starts it anew should it panic.
pub(super) async fn supervise(monitor: Weak<Monitor>) {
    while monitor.upgrade().is_some_and(|m| !m.is_closed()) {
        let task = tokio::spawn(watch(Weak::clone(&monitor)));
        if let Err(e) = task.await
            && e.is_panic()
        {
            tracing::error!(target: "pgfollow", "the monitor's task died and is started anew");
            // One that dies at once each time must not take a processor for itself.
            clock::sleep_until(clock::now() + SAMPLE).await;
        }
    }
}

async fn watch(monitor: Weak<Monitor>) {
    let mut sample_due = clock::now();
    let mut calls_told = 0;
    loop {
        let Some(m) = monitor.upgrade() else { return };
        let names_due = m.look_up.refresh(&m);
        let timer = lock(&m.topology).next_timer().min(names_due);
        let sampling = !lock(&m.members).is_empty() || !lock(&m.guards).is_empty();
        let due = if sampling { timer.min(sample_due) } else { timer };
        // The task holds no strong reference while it sleeps, or a connector would never end.
        let wake = Arc::clone(&m.wake);
        drop(m);
        tokio::select! {
            biased;
            () = clock::sleep_until(due.min(clock::now() + Duration::from_secs(1))) => {}
            () = wake.notified() => {}
        }
        let Some(m) = monitor.upgrade() else { return };
        if m.is_closed() {
            return;
        }
        let now = clock::now();
        m.last_run.store(now.as_micros(), Ordering::Relaxed);
        // `due` can lie in the past when work was added; only a sleep that ended late is a stall.
        if sampling && now - sample_due > m.config.tuning.stall && sample_due > Moment::ZERO {
            m.feed(Input::RuntimeStalled { lasted: now - sample_due });
        }
        if sampling && now >= sample_due {
            calls_told = sample(&m, now, calls_told);
        }
        m.timer();
        if now >= sample_due {
            sample_due = now + SAMPLE;
            m.reckon(now);
        }
    }
}

/// Reads every session's tap and every guarded socket: which host sent bytes, which call waits too long. Returns the
/// count of calls told.
fn sample(m: &Arc<Monitor>, now: Moment, calls_told: u32) -> u32 {
    let members: Vec<_> = lock(&m.members).values().cloned().collect();
    let mut seen = std::collections::BTreeMap::new();
    let mut calls = 0;
    for member in &members {
        let last = member.tap.last_in();
        let newest = seen.entry(member.host).or_insert(last);
        *newest = last.max(*newest);
        calls += u32::from(member.tap.busy());
    }
    let guards = m.look_at_guards(now);
    for (g, look) in &guards {
        if let Some(heard) = look.heard {
            let newest = seen.entry(g.host).or_insert(heard);
            *newest = heard.max(*newest);
        }
        calls += u32::from(look.call.is_some());
    }
    // Life first: a byte on any socket of the host speaks against the suspicion that a blocked call raises.
    for (host, at) in seen {
        if at != Moment::ZERO {
            m.feed(Input::ByteSeen { host, at });
        }
    }
    for member in &members {
        member.mind_limit(|| lock(&m.topology).answers(member.host, now), now);
    }
    for (g, _) in &guards {
        g.mind_limit(lock(&m.topology).answers(g.host, now), now);
    }
    if (calls == 0) != (calls_told == 0) {
        m.feed(Input::CallsInFlight { count: calls });
    }
    let natives = members.iter().filter_map(|m| m.tap.waiting().map(|w| (m.host, m.id, w.number, w.since)));
    let foreign = guards.iter().filter_map(|(g, look)| look.call.map(|c| (g.host, g.id, c.number, c.since)));
    for (host, id, call, since) in natives.chain(foreign) {
        if now - since >= m.config.suspect_after {
            m.feed(Input::CallBlocked { host, member: MemberId(id), call, since });
        }
    }
    calls
}
