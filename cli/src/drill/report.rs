//! The report of a drill: verdict, JSON, text.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, TableComponent, presets};
use pgfollow::decide::attribute::OutageCause;
use serde_json::{Map, Value, json};

use super::client::Kind;
use super::fault::Fault;
use super::figures::{Figures, between};
use super::legend;
use super::logins::Peak;
use super::scene::{Plan, Seen};
use crate::units::round_ms as round;

/// How many distinct errors of a client are shown.
const MESSAGES: usize = 5;

/// How the drill went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Within the budget.
    Good,
    /// The service was back too late, not at all, or a stale primary was written to for too long.
    OverBudget,
    /// Acknowledged writes are missing or doubled, or a write called "not done" was done.
    WrongWrites,
}

impl Verdict {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Good => "within_budget",
            Self::OverBudget => "over_budget",
            Self::WrongWrites => "wrong_writes",
        }
    }
}

/// A drill's results, ready to be told.
pub(crate) struct Report<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) seen: &'a Seen,
    pub(crate) budget: Duration,
    /// One for each client of `seen`; our own is the first.
    pub(crate) figures: Vec<Figures>,
}

impl Report<'_> {
    fn ours(&self) -> &Figures {
        &self.figures[0]
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let f = self.ours();
        let budget = self.budget.as_secs_f64() * 1e3;
        if f.lost > f.lost_by_servers || f.doubled > 0 || f.denied_but_done > 0 {
            Verdict::WrongWrites
        } else if f.first_success.is_some_and(|ms| ms <= budget) && f.stale_acked <= budget {
            Verdict::Good
        } else {
            Verdict::OverBudget
        }
    }

    fn ready_ms(&self) -> f64 {
        match (self.seen.promotions.first(), self.seen.promotions.last()) {
            (Some(first), Some(last)) => between(first.fault, last.ready),
            _ => 0.0,
        }
    }

    pub(crate) fn json(&self) -> Value {
        let first = self.seen.promotions.first().map_or(0, |p| p.fault);
        let promotions = self.seen.promotions.iter().enumerate().map(|(n, p)| {
            let firsts = self.seen.clients.iter().zip(&self.figures).map(|(c, f)| {
                (c.kind.name().to_owned(), json!(f.first_successes.get(n).copied().flatten().map(round)))
            });
            json!({
                "node": self.seen.nodes[p.node].split('@').next(),
                "fault_ms": round(between(first, p.fault)),
                "ready_ms": round(between(first, p.ready)),
                "first_success_after_ready_ms": Value::Object(firsts.collect()),
            })
        });
        let promotions: Vec<Value> = promotions.collect();
        let clients = self.seen.clients.iter().zip(&self.figures);
        json!({
            "fault": self.seen.fault.to_string(),
            "server_version": self.seen.server_version,
            "sync": self.seen.sync,
            "instances": self.plan.instances,
            "slow_node": self.plan.slow_node,
            "pace": self.plan.pace,
            "ready_ms": round(self.ready_ms()),
            "budget_ms": round(self.budget.as_secs_f64() * 1e3),
            "verdict": self.verdict().name(),
            "clients": clients.map(|(c, f)| client_json(c.kind.name(), f)).collect::<Vec<_>>(),
            "promotions": promotions,
            "notes": self.notes(),
        })
    }

    pub(crate) fn text(&self) -> String {
        let plain = self.figures.len() > 1;
        let mut text = vec![self.sentence(), String::new(), self.situation()];
        if plain {
            text.push(legend::PLAIN_POOL.to_owned());
        }
        text.push(self.table());
        for (c, f) in self.seen.clients.iter().zip(&self.figures) {
            if f.messages.is_empty() {
                continue;
            }
            text.push(format!("Errors seen by {}:", c.kind.name()));
            for (e, n) in f.messages.iter().take(MESSAGES) {
                text.push(format!("  {n} × {} ({}): {}", e.class, e.code, e.message));
            }
            if f.messages.len() > MESSAGES {
                text.push(format!("  and {} other kinds", f.messages.len() - MESSAGES));
            }
        }
        text.extend(self.notes());
        text.extend(legend::rows(plain));
        if plain {
            text.extend(legend::hint(self.seen.fault).map(str::to_owned));
        }
        text.join("\n")
    }

    /// The verdict, in one sentence.
    fn sentence(&self) -> String {
        let f = self.ours();
        let budget = span(self.budget.as_secs_f64() * 1e3);
        let ours = match (self.verdict(), f.first_success) {
            (Verdict::WrongWrites, _) => format!(
                "Failed: pgfollow's client has {} lost, {} doubled and {} wrongly denied writes",
                f.lost - f.lost_by_servers,
                f.doubled,
                f.denied_but_done
            ),
            (Verdict::Good, Some(ms)) => {
                format!("With pgfollow the service was back {} (budget {budget})", after(ms))
            }
            (_, Some(ms)) if f.stale_acked > self.budget.as_secs_f64() * 1e3 => format!(
                "Over budget ({budget}): with pgfollow the service was back {}, but the old primary took writes for {}",
                after(ms),
                span(f.stale_acked)
            ),
            (_, Some(ms)) => {
                format!("Over budget ({budget}): with pgfollow the service was back {}", after(ms))
            }
            (_, None) => format!("Over budget ({budget}): with pgfollow the service didn't come back"),
        };
        match self.figures.get(1).map(|p| p.first_success) {
            None => format!("{ours}."),
            Some(Some(ms)) => format!("{ours}; with the plain pool, {}.", after(ms)),
            Some(None) => format!("{ours}; with the plain pool, {}.", self.not_back()),
        }
    }

    fn not_back(&self) -> String {
        let wait = self.plan.plain_wait.max(self.plan.fault.watch());
        format!("not back after {} s", wait.as_secs())
    }

    fn situation(&self) -> String {
        let s = self.seen;
        let mode = if s.sync { "synchronous" } else { "asynchronous" };
        let whose = match s.fault {
            Fault::Trigger => "your cluster".to_owned(),
            _ => format!("{} nodes", s.nodes.len()),
        };
        let mut line = format!(
            "PostgreSQL {}, {whose}, {mode}; fault: {}. {}{} workers × {} writes a second for each client.\n\
             The new primary accepted its first write {} after the fault.",
            s.server_version,
            s.fault.told(),
            if self.plan.instances > 1 {
                format!("{} processes × ", self.plan.instances)
            } else {
                String::new()
            },
            self.plan.workers,
            self.plan.rate,
            span(self.ready_ms())
        );
        if let Some(percent) = self.plan.slow_node {
            line.push_str(&format!(" From its promotion on it ran for {percent} % of the time only."));
        }
        if !self.plan.pace {
            line.push_str(" pgfollow's client logged in without pace and pool.");
        }
        if s.promotions.len() > 1 {
            line.push_str(" Figures are of the last promotion.");
        }
        line
    }

    fn table(&self) -> String {
        let mut table = Table::new();
        // A line under the head and nothing else.
        table.load_preset(presets::NOTHING).set_style(TableComponent::HeaderLines, '─');
        let mut head = vec![String::new()];
        head.extend(self.seen.clients.iter().map(|c| title(c.kind).to_owned()));
        table.set_header(head);
        let mut row = |name: &str, cell: &dyn Fn(&Figures) -> String| {
            let mut cells = vec![name.to_owned()];
            cells.extend(self.figures.iter().map(cell));
            table.add_row(cells);
        };
        for n in 0..self.seen.promotions.len().saturating_sub(1) {
            row(&format!("promotion {}: first success after ready", n + 1), &|f| {
                f.first_successes.get(n).copied().flatten().map_or_else(|| "never".to_owned(), span)
            });
        }
        let not_back = |ours: bool| if ours { "never".to_owned() } else { self.not_back() };
        let is_ours = |f: &Figures| std::ptr::eq(f, self.ours());
        row("first success after ready", &|f| f.first_success.map_or_else(|| not_back(is_ours(f)), span));
        row("all workers after ready", &|f| f.all_workers.map_or_else(|| not_back(is_ours(f)), span));
        row("longest call", &|f| {
            let open = if f.waiting > 0 { format!(" ({} still waiting)", f.waiting) } else { String::new() };
            format!("{}{open}", span(f.longest_call))
        });
        row("writes acknowledged", &|f| f.acknowledged.to_string());
        for class in ["transient", "unknown-outcome", "permanent"] {
            row(&format!("errors, {class}"), &|f| f.errors.get(class).copied().unwrap_or(0).to_string());
        }
        row("lost writes", &|f| match f.lost_by_servers {
            0 => f.lost.to_string(),
            n => format!("{} ({n} by the servers)", f.lost),
        });
        row("doubled writes", &|f| f.doubled.to_string());
        row("unknown outcomes (of them done)", &|f| format!("{} ({})", f.unknown, f.unknown_done));
        row("called not done, but done", &|f| f.denied_but_done.to_string());
        row("last write acknowledged by the old primary", &|f| match f.stale_count {
            0 => "none after ready".to_owned(),
            n => format!("{} after ready ({n} writes)", span(f.stale_acked)),
        });
        let peak = |f: &Figures, of: fn(&Peak) -> u64| {
            f.peak.as_ref().map_or_else(|| "–".to_owned(), |p| of(p).to_string())
        };
        row("sessions at the new primary after 1 s", &|f| peak(f, |p| p.first_second));
        row("most sessions at the new primary", &|f| peak(f, |p| p.sessions));
        row("most logins there in a second", &|f| peak(f, |p| p.logins_per_second));
        let of_each = if self.plan.instances > 1 { ", mean of the processes" } else { "" };
        row(&format!("outage as the callers saw it{of_each}"), &|f| span(f.outage()));
        for c in OutageCause::ALL {
            let part = |f: &Figures| f.causes()?.get(c.name()).copied();
            if self.figures.iter().filter_map(part).any(|ms| ms > 0.0) {
                row(&format!("of the outage: {}", c.words()), &|f| {
                    part(f).map_or_else(|| "–".to_owned(), span)
                });
            }
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.seen.notes.clone();
        let (mut beside, mut before) = (false, false);
        for (c, f) in self.seen.clients.iter().zip(&self.figures).filter(|(_, f)| f.lost_by_servers > 0) {
            let early = f.lost_by_servers - f.lost_after_ready;
            (beside, before) = (beside || f.lost_after_ready > 0, before || early > 0);
            notes.push(format!(
                "Lost by the servers, {}: {} writes. The old primary acknowledged {} of them after the new one was \
                 ready, {early} before.",
                title(c.kind),
                f.lost_by_servers,
                f.lost_after_ready,
            ));
        }
        if beside {
            notes.push(
                "Those after it: the superseded primary went on beside its successor, and only the successor's \
                 writes stay. A client can only leave the old one soon."
                    .to_owned(),
            );
        }
        if before {
            notes.push(if self.seen.sync {
                "Those before it: the old primary acknowledged them while its successor was being promoted."
            } else {
                "Those before it: with asynchronous replication the servers lose what a standby had not received yet, \
                 and no client can save it."
            }.to_owned());
        }
        notes
    }
}

/// What people call a client.
const fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Pgfollow => "pgfollow",
        Kind::Plain => "plain pool",
    }
}

fn client_json(name: &str, f: &Figures) -> Value {
    let messages: Vec<Value> = f
        .messages
        .iter()
        .take(MESSAGES)
        .map(|(e, n)| json!({"class": e.class, "code": e.code, "message": e.message, "count": n}))
        .collect();
    let errors: Map<String, Value> = f.errors.iter().map(|(c, n)| (c.clone(), json!(n))).collect();
    json!({
        "name": name,
        "first_success_after_ready_ms": f.first_success.map(round),
        "all_workers_after_ready_ms": f.all_workers.map(round),
        "longest_call_ms": round(f.longest_call),
        "errors": errors,
        "error_messages": messages,
        "acknowledged": f.acknowledged,
        "lost": f.lost,
        "lost_by_servers": f.lost_by_servers,
        "lost_after_ready": f.lost_after_ready,
        "doubled": f.doubled,
        "stale_acked": round(f.stale_acked),
        "stale_acked_writes": f.stale_count,
        "unknown": f.unknown,
        "unknown_done": f.unknown_done,
        "denied_but_done": f.denied_but_done,
        "waiting_at_end": f.waiting,
        "connections_first_second": f.peak.map(|p| p.first_second),
        "connections_peak": f.peak.map(|p| p.sessions),
        "logins_per_second_peak": f.peak.map(|p| p.logins_per_second),
        "outage_ms": round(f.outage()),
        "main_cause": f.main_cause(),
        "causes_ms": causes_json(f.causes().as_ref()),
        "processes": f.processes.iter().map(|p| json!({
            "outage_ms": round(p.outage),
            "causes_ms": causes_json(p.causes.as_ref()),
        })).collect::<Vec<_>>(),
    })
}

fn causes_json(causes: Option<&BTreeMap<String, f64>>) -> Option<Map<String, Value>> {
    Some(causes?.iter().map(|(cause, ms)| (cause.clone(), json!(round(*ms)))).collect())
}

fn span(ms: f64) -> String {
    match ms.abs() {
        a if a >= 10_000.0 => format!("{:.1} s", ms / 1e3),
        a if a >= 100.0 => format!("{ms:.0} ms"),
        _ => format!("{ms:.1} ms"),
    }
}

/// Within the prober's own pace "after" would be a pretence.
fn after(ms: f64) -> String {
    if ms < 0.0 {
        return "as soon as the new primary accepted writes".to_owned();
    }
    format!("{} after the new primary accepted its first write", span(ms))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use pgfollow::Class;

    use super::super::fault::Promotion;
    use super::super::figures::Process;
    use super::super::record::CallError;
    use super::super::scene::ClientSeen;
    use super::*;

    /// A drill of both clients in which everything that has a key took place.
    fn drill(fault: Fault, plain: bool) -> (Plan, Seen, Vec<Figures>) {
        let plan = Plan {
            fault,
            after: Duration::from_secs(3),
            workers: 8,
            rate: 20,
            plain,
            plain_wait: Duration::from_secs(20),
            instances: 8,
            slow_node: Some(5),
            pace: false,
        };
        let kinds = if plain { &[Kind::Pgfollow, Kind::Plain][..] } else { &[Kind::Pgfollow] };
        let clients = kinds.iter().map(|&kind| ClientSeen {
            explained: Vec::new(),
            kind,
            calls: Vec::new(),
            present: HashMap::new(),
            peak: None,
        });
        let seen = Seen {
            fault,
            server_version: "15.1".to_owned(),
            sync: false,
            nodes: vec!["a:1@1".to_owned(), "b:1@1".to_owned()],
            promotions: vec![Promotion { node: 1, fault: 1_000_000, asked: 2_000_000, ready: 9_000_000 }],
            clients: clients.collect(),
            notes: vec!["a note".to_owned()],
        };
        let error = CallError { class: Class::Transient, code: "x".to_owned(), message: "x".to_owned() };
        let classes = ["transient", "permanent", "unknown-outcome"];
        let figures = Figures {
            errors: classes.map(|c| (c.to_owned(), 1)).into(),
            messages: vec![(error, 1)],
            lost: 7,
            lost_by_servers: 7,
            lost_after_ready: 5,
            processes: vec![Process {
                outage: 12.0,
                causes: Some([("dead_socket".to_owned(), 12.0)].into()),
            }],
            ..Figures::default()
        };
        let figures = vec![figures; seen.clients.len()];
        (plan, seen, figures)
    }

    fn report<T>(fault: Fault, plain: bool, read: impl FnOnce(&Report<'_>) -> T) -> T {
        let (plan, seen, figures) = drill(fault, plain);
        read(&Report { plan: &plan, seen: &seen, budget: Duration::from_millis(250), figures })
    }

    fn keys(json: &Value, into: &mut BTreeSet<String>) {
        match json {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| {
                into.insert(key.clone());
                keys(value, into);
            }),
            Value::Array(items) => items.iter().for_each(|v| keys(v, into)),
            _ => {}
        }
    }

    #[test]
    fn every_key_and_verdict_is_described_in_the_docs() {
        let page = include_str!("../../../docs/drill.md");
        let mut words = BTreeSet::new();
        keys(&report(Fault::Kill, true, |r| r.json()), &mut words);
        assert!(words.contains("first_success_after_ready_ms") && words.contains("count"), "{words:?}");
        let verdicts = [Verdict::Good, Verdict::OverBudget, Verdict::WrongWrites];
        words.extend(verdicts.map(|v| v.name().to_owned()));
        let missing: Vec<_> = words.iter().filter(|w| !page.contains(&format!("`{w}`"))).collect();
        assert!(missing.is_empty(), "not in docs/drill.md: {missing:?}");
    }

    #[test]
    fn losses_beside_a_successor_are_told_from_those_of_asynchronous_replication() {
        let notes = report(Fault::SplitBrain, false, |r| r.notes()).join("\n");
        assert!(notes.contains("servers, pgfollow: 7 writes"), "{notes}");
        assert!(notes.contains("acknowledged 5 of them after the new one was ready, 2 before"), "{notes}");
        assert!(notes.contains("superseded primary") && notes.contains("asynchronous"), "{notes}");
    }

    #[test]
    fn a_kind_fault_is_called_one_and_a_plain_pool_is_spoken_of_only_where_there_is_one() {
        for (fault, plain, hint) in
            [(Fault::Kill, true, true), (Fault::Freeze, true, false), (Fault::Kill, false, false)]
        {
            let text = report(fault, plain, |r| r.text());
            assert_eq!(text.contains("--fault freeze"), hint, "{text}");
            assert_eq!(text.contains("deadpool"), plain, "{text}");
            assert_eq!(text.contains("plain pool"), plain, "{text}");
        }
    }
}
