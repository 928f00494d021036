//! The drill's report, as text and as JSON.

use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use pgfollow_lab::Cluster;
use serde_json::{Value, json};

use super::client::Kind;
use super::faults::{Fault, Phase};
use super::tally::Tally;

/// Over the budget.
const OVER_BUDGET: u8 = 5;
/// Lost or doubled writes.
const WRONG: u8 = 6;

pub(super) struct Report {
    fault: String,
    version: String,
    asynchronous: bool,
    budget: u64,
    ready: Vec<f64>,
    clients: Vec<Tally>,
}

impl Report {
    pub(super) fn new(
        fault: Fault,
        cluster: &Cluster,
        asynchronous: bool,
        budget: u64,
        phases: &[Phase],
        clients: Vec<Tally>,
    ) -> Self {
        Self {
            fault: fault.name(),
            version: cluster.server_version().to_owned(),
            asynchronous,
            budget,
            ready: phases.iter().map(|p| (p.ready as f64 - p.fault as f64) / 1e6).collect(),
            clients,
        }
    }

    fn ours(&self) -> Option<&Tally> {
        self.clients.iter().find(|t| t.kind == Kind::Pgfollow)
    }

    /// The slowest return of pgfollow's service after any failover of the drill; `None` if it didn't return.
    fn return_ms(&self) -> Option<f64> {
        self.ours()?.first_success.iter().copied().try_fold(0.0, |worst: f64, ms| Some(worst.max(ms?)))
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        let Some(ours) = self.ours() else { return ExitCode::FAILURE };
        // With asynchronous replication the failover itself loses what the standby had not got: the database's share.
        if ours.doubled > 0 || (ours.lost > 0 && !self.asynchronous) {
            return ExitCode::from(WRONG);
        }
        #[expect(clippy::cast_precision_loss, reason = "a budget of milliseconds")]
        match self.return_ms() {
            Some(ms) if ms <= self.budget as f64 => ExitCode::SUCCESS,
            _ => ExitCode::from(OVER_BUDGET),
        }
    }

    pub(super) fn json(&self) -> Value {
        let client = |t: &Tally| {
            json!({
                "name": t.kind.name(),
                "first_success_after_ready_ms": t.first_success.last().copied().flatten(),
                "first_success_of_each_failover_ms": t.first_success,
                "all_workers_after_ready_ms": t.all_workers,
                "longest_call_ms": t.longest_call,
                "errors": t.errors,
                "acknowledged": t.acknowledged,
                "lost": t.lost,
                "doubled": t.doubled,
                "stale_acked": t.stale_acked,
                "unknown": t.unknown,
                "connections_first_second": t.connections,
            })
        };
        json!({
            "fault": self.fault,
            "server_version": self.version,
            "replication": if self.asynchronous { "asynchronous" } else { "synchronous" },
            "ready_ms": self.ready.last(),
            "ready_of_each_failover_ms": self.ready,
            "budget_ms": self.budget,
            "clients": self.clients.iter().map(client).collect::<Vec<_>>(),
        })
    }

    pub(super) fn text(&self) -> String {
        let back = |ms: Option<f64>| ms.map_or("not while we watched".to_owned(), |ms| format!("{ms:.0} ms"));
        let mut verdict = match self.return_ms() {
            Some(ms) => format!("pgfollow's service wrote again {ms:.0} ms after the database did"),
            None => "pgfollow's service did not write again while we watched".to_owned(),
        };
        if let Some(plain) = self.clients.iter().find(|t| t.kind == Kind::Plain) {
            let ms = plain.first_success.last().copied().flatten();
            verdict.push_str(&format!("; the plain pool: {}", back(ms)));
        }
        let mut table = Table::new();
        table.load_preset(UTF8_HORIZONTAL_ONLY);
        let head = |t: &Tally| match t.kind {
            Kind::Pgfollow => "pgfollow".to_owned(),
            Kind::Plain => "plain (tokio-postgres + deadpool)".to_owned(),
        };
        let mut row = |name: &str, f: &dyn Fn(&Tally) -> String| {
            let mut cells = vec![name.to_owned()];
            cells.extend(self.clients.iter().map(f));
            table.add_row(cells);
        };
        row("", &head);
        row("first write after the database was ready", &|t| back(t.first_success.last().copied().flatten()));
        row("all workers back", &|t| back(t.all_workers));
        row("longest call", &|t| format!("{:.0} ms", t.longest_call));
        row("errors", &|t| {
            let each: Vec<_> = t.errors.iter().map(|(c, n)| format!("{n} {c}")).collect();
            if each.is_empty() { "none".to_owned() } else { each.join(", ") }
        });
        row("writes acknowledged", &|t| t.acknowledged.to_string());
        row("lost / doubled", &|t| format!("{} / {}", t.lost, t.doubled));
        row("last write on the old primary after ready", &|t| format!("{:.0} ms", t.stale_acked));
        row("connections at the new primary after 1 s", &|t| t.connections.to_string());
        let ready: Vec<_> = self.ready.iter().map(|ms| format!("{ms:.0} ms")).collect();
        let mut out = format!(
            "{verdict}.\n\nPostgreSQL {}, fault {}: the database took writes again {} after the fault.\n{table}\n",
            self.version,
            self.fault,
            ready.join(", then ")
        );
        for t in &self.clients {
            out.push_str(&format!("\nErrors seen through {}:\n", head(t)));
            let mut samples: Vec<_> = t.samples.iter().collect();
            samples.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
            for (text, n) in samples.into_iter().take(6) {
                out.push_str(&format!("  {n} × {}\n", text.lines().next().unwrap_or_default()));
            }
        }
        if self.asynchronous {
            out.push_str("\nReplication was asynchronous: lost writes are those that the standby had not got.\n");
        }
        out
    }
}
