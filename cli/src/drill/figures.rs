//! From what was seen to figures. Pure: no clock, no server.

use std::collections::{BTreeMap, HashMap};

use pgfollow::Class;
use pgfollow::decide::attribute::OutageCause;

use super::fault::{Fault, Promotion};
use super::logins::Peak;
use super::outage::outages;
use super::record::{Call, CallError, CallResult, Explained};
use super::scene::{ClientSeen, Plan, Seen};

/// The figures of one client. Times in ms.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// First write acknowledged by the last promoted node, since that was ready. A client may be quicker than the
    /// prober, which looks every 2 ms: then it is a little below zero.
    pub(crate) first_success: Option<f64>,
    /// The same for each promotion, in order.
    pub(crate) first_successes: Vec<Option<f64>>,
    /// Until the last of the workers had one.
    pub(crate) all_workers: Option<f64>,
    /// The longest call that ended after the fault; one that never ended counts until the end.
    pub(crate) longest_call: f64,
    pub(crate) errors: BTreeMap<String, u64>,
    /// Distinct errors, most frequent first.
    pub(crate) messages: Vec<(CallError, u64)>,
    pub(crate) acknowledged: u64,
    /// Acknowledged and not in the final primary's table.
    pub(crate) lost: u64,
    /// Of the lost ones: those that no client could have saved (asynchronous replication, or acknowledged by the old
    /// primary after another promotion was asked for).
    pub(crate) lost_by_servers: u64,
    /// Of those: acknowledged by a superseded primary when its successor was ready already.
    pub(crate) lost_after_ready: u64,
    pub(crate) doubled: u64,
    /// Last write acknowledged by another node after the last promoted one was ready; 0 without any.
    pub(crate) stale_acked: f64,
    pub(crate) stale_count: u64,
    /// Writes whose outcome the client said to be unknown, and how many of them were done.
    pub(crate) unknown: u64,
    pub(crate) unknown_done: u64,
    /// Writes that the client said to be certainly not done, and that were done.
    pub(crate) denied_but_done: u64,
    /// Calls still waiting at the end.
    pub(crate) waiting: u64,
    pub(crate) peak: Option<Peak>,
    /// Each process by itself: it has callers, a connector and a report of its own.
    pub(crate) processes: Vec<Process>,
}

/// How one process came through: what its callers saw, and what its library says of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Process {
    /// How long its callers were held up, by their calls, in ms.
    pub(crate) outage: f64,
    /// What each cause has of that as the library explains it, in ms; `None` where it explains nothing.
    pub(crate) causes: Option<BTreeMap<String, f64>>,
}

impl Figures {
    /// How long the callers were held up, in ms; the mean of the processes.
    pub(crate) fn outage(&self) -> f64 {
        self.processes.iter().map(|p| p.outage).sum::<f64>() / self.processes.len().max(1) as f64
    }

    /// What each cause has of that; the mean of the processes. `None` unless all of them explain it.
    pub(crate) fn causes(&self) -> Option<BTreeMap<String, f64>> {
        let mut mean: BTreeMap<String, f64> = BTreeMap::new();
        for p in &self.processes {
            for (cause, ms) in p.causes.as_ref()? {
                *mean.entry(cause.clone()).or_default() += ms / self.processes.len() as f64;
            }
        }
        (!mean.is_empty()).then_some(mean)
    }

    /// The cause with the largest part.
    pub(crate) fn main_cause(&self) -> Option<String> {
        let parts = self.causes()?.into_iter().filter(|(_, ms)| *ms > 0.0);
        parts.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(cause, _)| cause)
    }
}

const fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The time from `from` to `to`, below zero if `to` was first.
pub(crate) fn between(from: u64, to: u64) -> f64 {
    if to >= from { ms(to - from) } else { -ms(from - to) }
}

/// When each worker first had a write acknowledged by that node.
fn first_by(calls: &[Call], node: &str, from: u64) -> HashMap<i32, u64> {
    let mut first = HashMap::new();
    for c in calls.iter().filter(|c| c.end >= from) {
        if matches!(&c.result, CallResult::Ok { node: by } if by == node) {
            let at = first.entry(c.worker).or_insert(c.end);
            *at = c.end.min(*at);
        }
    }
    first
}

/// What each cause has of a process's outages. One that was over before the first fault was none of the failover's: a
/// fleet that starts on a busy machine.
fn causes(outages: &[Explained], promotions: &[Promotion]) -> BTreeMap<String, f64> {
    let fault = promotions.first().map_or(0, |p| p.fault);
    let mut sum: BTreeMap<String, f64> = OutageCause::ALL.map(|c| (c.name().to_owned(), 0.0)).into();
    for (cause, ms) in outages.iter().filter(|o| o.until > fault).flat_map(|o| &o.causes_ms) {
        *sum.entry(cause.clone()).or_default() += ms;
    }
    sum
}

/// Each process by itself.
fn processes(client: &ClientSeen, plan: &Plan, promotions: &[Promotion]) -> Vec<Process> {
    let failovers: Vec<(u64, u64)> = promotions.iter().map(|p| (p.fault, p.ready)).collect();
    let process = |c: &Call| c.worker / i32::from(plan.workers);
    let of = |n: u16| {
        let own: Vec<&Call> = client.calls.iter().filter(|c| process(c) == i32::from(n)).collect();
        let explained = client.explained.get(usize::from(n)).and_then(Option::as_ref);
        let causes = explained.map(|outages| causes(outages, promotions));
        let lasted = outages(&own, &failovers).into_iter().map(|(began, end)| end - began).sum();
        Process { outage: ms(lasted), causes }
    };
    (0..plan.instances).map(of).collect()
}

/// The figures of one client in a drill.
pub(crate) fn figures(seen: &Seen, client: &ClientSeen, plan: &Plan) -> Figures {
    let workers = plan.all_workers();
    let mut f = Figures { peak: client.peak, ..Figures::default() };
    let (Some(first), Some(last)) = (seen.promotions.first(), seen.promotions.last()) else { return f };
    f.processes = processes(client, plan, &seen.promotions);
    for p in &seen.promotions {
        let back = first_by(&client.calls, &seen.nodes[p.node], p.asked);
        f.first_successes.push(back.values().min().map(|at| between(p.ready, *at)));
    }
    let back = first_by(&client.calls, &seen.nodes[last.node], last.asked);
    f.first_success = back.values().min().map(|at| between(last.ready, *at));
    f.all_workers =
        (back.len() == workers).then(|| back.values().max().map(|at| between(last.ready, *at))).flatten();
    let mut messages: HashMap<&CallError, u64> = HashMap::new();
    for c in &client.calls {
        if c.end >= first.fault {
            f.longest_call = f.longest_call.max(ms(c.end.saturating_sub(c.start)));
        }
        let times = client.present.get(&(c.worker, c.seq)).copied().unwrap_or(0);
        match &c.result {
            CallResult::Ok { node } => acknowledged(&mut f, seen, last, c, node, times),
            CallResult::Failed(e) => {
                *f.errors.entry(e.class.to_string()).or_default() += 1;
                *messages.entry(e).or_default() += 1;
                match e.class {
                    Class::UnknownOutcome => {
                        f.unknown += 1;
                        f.unknown_done += u64::from(times > 0);
                    }
                    _ => f.denied_but_done += u64::from(times > 0),
                }
            }
            CallResult::Waiting => f.waiting += 1,
        }
    }
    f.doubled = client.present.values().filter(|n| **n > 1).count() as u64;
    f.messages = messages.into_iter().map(|(e, n)| (e.clone(), n)).collect();
    f.messages.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.message.cmp(&b.0.message)));
    f
}

fn acknowledged(f: &mut Figures, seen: &Seen, last: &Promotion, c: &Call, by: &str, times: i64) {
    f.acknowledged += 1;
    let final_node = &seen.nodes[last.node];
    if by != final_node && c.end > last.ready {
        f.stale_count += 1;
        f.stale_acked = f.stale_acked.max(ms(c.end - last.ready));
    }
    if times == 0 {
        f.lost += 1;
        // A primary that lives on beside its successor may acknowledge what the successor never sees.
        let wrote = seen.promotions.iter().rposition(|p| seen.nodes[p.node] == by);
        let later = &seen.promotions[wrote.map_or(0, |n| n + 1)..];
        let may_split = matches!(seen.fault, Fault::SplitBrain | Fault::Trigger);
        let split = may_split && later.iter().any(|p| c.end > p.asked);
        if by != final_node && (!seen.sync || split) {
            f.lost_by_servers += 1;
            f.lost_after_ready += u64::from(later.first().is_some_and(|p| c.end > p.ready));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::drill::client::Kind;

    const MS: u64 = 1_000_000;

    fn call(worker: i32, seq: i64, start: u64, end: u64, result: CallResult) -> Call {
        Call { worker, seq, start: start * MS, had: Some(start * MS), end: end * MS, result }
    }
    fn ok(node: &str) -> CallResult {
        CallResult::Ok { node: node.to_owned() }
    }
    fn failed(class: Class) -> CallResult {
        CallResult::Failed(CallError { class, code: "x".to_owned(), message: "x".to_owned() })
    }
    /// Two workers; the fault at 1000 ms, the promotion asked for at 1010, ready at 1100.
    fn seen(fault: Fault, sync: bool, calls: Vec<Call>, present: &[(i32, i64, i64)]) -> (Seen, ClientSeen) {
        let promotion = Promotion { node: 1, fault: 1000 * MS, asked: 1010 * MS, ready: 1100 * MS };
        let seen = Seen {
            fault,
            server_version: String::new(),
            sync,
            nodes: vec!["a".to_owned(), "b".to_owned()],
            promotions: vec![promotion],
            notes: Vec::new(),
            clients: Vec::new(),
        };
        let present = present.iter().map(|(w, s, n)| ((*w, *s), *n)).collect();
        (seen, ClientSeen { kind: Kind::Pgfollow, calls, explained: Vec::new(), present, peak: None })
    }
    /// Two workers in all.
    fn plan(fault: Fault, instances: u16) -> Plan {
        Plan {
            fault,
            after: Duration::ZERO,
            workers: 2 / instances,
            rate: 20,
            plain: false,
            plain_wait: Duration::ZERO,
            instances,
            slow_node: None,
            pace: true,
        }
    }
    fn of(fault: Fault, sync: bool, calls: Vec<Call>, present: &[(i32, i64, i64)]) -> Figures {
        let (seen, client) = seen(fault, sync, calls, present);
        figures(&seen, &client, &plan(fault, 1))
    }

    #[test]
    fn of_several_processes_outages_and_causes_are_the_mean_and_the_last_worker_of_all_decides() {
        let calls = vec![
            call(0, 0, 1000, 1010, failed(Class::Transient)),
            call(0, 1, 1020, 1200, ok("b")),
            call(1, 0, 1000, 1010, failed(Class::Transient)),
            call(1, 1, 1020, 1600, ok("b")),
        ];
        let (seen, mut client) = seen(Fault::Kill, true, calls, &[(0, 1, 1), (1, 1, 1)]);
        let explained = |until: u64, storm, dead| {
            let causes_ms = [("own_storm".to_owned(), storm), ("dead_socket".to_owned(), dead)].into();
            Explained { until: until * MS, causes_ms }
        };
        // The first process was long in starting; that was before the fault.
        client.explained = vec![
            Some(vec![explained(900, 70.0, 0.0), explained(1_200, 190.0, 10.0)]),
            Some(vec![explained(1_600, 0.0, 600.0)]),
        ];
        let f = figures(&seen, &client, &plan(Fault::Kill, 2));
        assert_eq!((f.first_success, f.all_workers), (Some(100.0), Some(500.0)));
        let mean = f.causes().unwrap();
        assert_eq!((f.outage(), mean["own_storm"], mean["dead_socket"]), (400.0, 95.0, 305.0));
        assert_eq!(f.main_cause().as_deref(), Some("dead_socket"));
        // Each process is held against its own callers.
        assert_eq!(f.processes.iter().map(|p| p.outage).collect::<Vec<_>>(), [200.0, 600.0]);
        assert_eq!(f.processes[1].causes.as_ref().unwrap()["dead_socket"], 600.0);
        assert_eq!(figures(&seen, &client, &plan(Fault::Kill, 1)).outage(), 200.0);
        // A mean of some would be held against the outage of all.
        client.explained[1] = None;
        assert_eq!(figures(&seen, &client, &plan(Fault::Kill, 2)).causes(), None);
    }

    #[test]
    fn success_is_counted_from_the_new_primary_only_and_the_slowest_worker_decides() {
        let calls = vec![
            call(0, 0, 900, 905, ok("a")),
            call(0, 1, 1000, 1120, ok("a")),
            call(0, 2, 1120, 1130, ok("b")),
            call(1, 0, 990, 1400, ok("b")),
        ];
        let f = of(Fault::Kill, true, calls, &[(0, 0, 1), (0, 1, 1), (0, 2, 1), (1, 0, 1)]);
        assert_eq!((f.first_success, f.all_workers, f.longest_call), (Some(30.0), Some(300.0), 410.0));
        assert_eq!((f.stale_acked, f.stale_count, f.lost, f.acknowledged), (20.0, 1, 0, 4));
    }

    #[test]
    fn a_worker_that_never_came_back_leaves_no_figure_and_its_call_still_counts() {
        let calls = vec![call(0, 0, 1100, 1110, ok("b")), call(1, 0, 990, 9000, CallResult::Waiting)];
        let f = of(Fault::Freeze, true, calls, &[(0, 0, 1)]);
        assert_eq!((f.first_success, f.all_workers), (Some(10.0), None));
        assert_eq!((f.waiting, f.longest_call, f.unknown), (1, 8010.0, 0));
    }

    #[test]
    fn lost_doubled_unknown_and_wrongly_denied_writes_are_told_apart() {
        let calls = vec![
            call(0, 0, 900, 905, ok("a")),
            call(0, 1, 910, 915, ok("a")),
            call(0, 2, 990, 1001, failed(Class::UnknownOutcome)),
            call(0, 3, 1001, 1002, failed(Class::UnknownOutcome)),
            call(1, 0, 1000, 1003, failed(Class::Transient)),
            call(1, 1, 1003, 1004, failed(Class::Transient)),
        ];
        let f = of(Fault::Kill, true, calls, &[(0, 1, 2), (0, 2, 1), (1, 0, 1)]);
        assert_eq!((f.lost, f.lost_by_servers, f.doubled), (1, 0, 1));
        assert_eq!((f.unknown, f.unknown_done, f.denied_but_done), (2, 1, 1));
        assert_eq!(
            f.errors,
            BTreeMap::from([("transient".to_owned(), 2), ("unknown-outcome".to_owned(), 2)])
        );
    }

    #[test]
    fn losses_are_the_servers_only_where_no_client_could_have_saved_them() {
        let late = || vec![call(0, 0, 1000, 1050, ok("a"))];
        let early = || vec![call(0, 0, 900, 905, ok("a"))];
        let on_new = || vec![call(0, 0, 1200, 1205, ok("b"))];
        assert_eq!(of(Fault::Kill, true, late(), &[]).lost_by_servers, 0);
        assert_eq!(of(Fault::SplitBrain, true, late(), &[]).lost_by_servers, 1);
        assert_eq!(of(Fault::SplitBrain, true, early(), &[]).lost_by_servers, 0);
        assert_eq!(of(Fault::Kill, false, early(), &[]).lost_by_servers, 1);
        let beside = || {
            let calls = [(0, 1050), (1, 1150), (2, 1160)];
            calls.map(|(seq, end)| call(0, seq, 1000, end, ok("a"))).to_vec()
        };
        for sync in [true, false] {
            let f = of(Fault::SplitBrain, sync, beside(), &[]);
            assert_eq!((f.lost, f.lost_by_servers, f.lost_after_ready), (3, 3, 2), "sync {sync}");
        }
        let f = of(Fault::Kill, false, on_new(), &[]);
        assert_eq!((f.lost, f.lost_by_servers), (1, 0));
    }
}
