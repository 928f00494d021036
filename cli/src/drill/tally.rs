//! What the clients saw, and what the database kept.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use pgfollow::Class;
use pgfollow_lab::{Cluster, LabError, monotonic_ns};
use tokio_postgres::Client;

use super::client::{Kind, Write};
use super::faults::Phase;

/// Every write of one client, in the order in which they ended.
#[derive(Default)]
pub(super) struct Log {
    writes: Vec<Write>,
}

impl Log {
    pub(super) fn add(&mut self, w: Write) {
        self.writes.push(w);
    }

    /// How many workers had a write acknowledged, by that node, after that time.
    pub(super) fn workers_on(&self, node: Option<&str>, after: u64) -> usize {
        let mut seen: Vec<i32> = self
            .writes
            .iter()
            .filter(|w| w.end > after && w.node.is_some() && (node.is_none() || w.node.as_deref() == node))
            .map(|w| w.worker)
            .collect();
        seen.sort_unstable();
        seen.dedup();
        seen.len()
    }
}

fn lab(e: &tokio_postgres::Error) -> LabError {
    super::failed("the drill's own query", e)
}

/// Makes the table: no unique index, or a doubled write would not show.
pub(super) async fn make_table(db: &Client, user: &str) -> Result<(), LabError> {
    db.batch_execute(&format!(
        "CREATE TABLE drill (client text, worker int, seq bigint); GRANT INSERT, SELECT ON drill TO {user}"
    ))
    .await
    .map_err(|e| lab(&e))
}

/// How often each write is there.
pub(super) async fn stored(db: &Client, client: &str) -> Result<HashMap<(i32, i64), i64>, LabError> {
    let sql = "SELECT worker, seq, count(*) FROM drill WHERE client = $1 GROUP BY worker, seq";
    let rows = db.query(sql, &[&client]).await.map_err(|e| lab(&e))?;
    Ok(rows.iter().map(|r| ((r.get(0), r.get(1)), r.get(2))).collect())
}

/// Connections of each client at the new primary, one second after it was ready.
pub(super) struct Connections(HashMap<String, i64>);

impl Connections {
    pub(super) fn of(&self, kind: Kind) -> i64 {
        self.0.get(&format!("drill-{}", kind.name())).copied().unwrap_or(0)
    }
}

pub(super) async fn connections_first_second(cluster: &Cluster, phase: &Phase) -> Result<Connections, LabError> {
    let due = phase.ready + 1_000_000_000;
    tokio::time::sleep(Duration::from_nanos(due.saturating_sub(monotonic_ns()))).await;
    let db = cluster.node(phase.node).session().await?;
    let sql = "SELECT application_name, count(*) FROM pg_stat_activity WHERE application_name LIKE 'drill-%' GROUP BY 1";
    let rows = db.query(sql, &[]).await.map_err(|e| lab(&e))?;
    Ok(Connections(rows.iter().map(|r| (r.get(0), r.get(1))).collect()))
}

/// One client's figures.
pub(super) struct Tally {
    pub(super) kind: Kind,
    /// For each failover: its first write acknowledged by the new primary, after that was ready.
    pub(super) first_success: Vec<Option<f64>>,
    pub(super) all_workers: Option<f64>,
    pub(super) longest_call: f64,
    pub(super) errors: BTreeMap<String, usize>,
    /// One error of each wording, for people.
    pub(super) samples: BTreeMap<String, usize>,
    pub(super) acknowledged: usize,
    pub(super) lost: usize,
    pub(super) doubled: usize,
    /// The last write that the old primary acknowledged after the new one was ready, in ms after that; 0 if none.
    pub(super) stale_acked: f64,
    pub(super) unknown: usize,
    pub(super) connections: i64,
}

impl Tally {
    pub(super) fn new(
        kind: Kind,
        log: &Log,
        stored: &HashMap<(i32, i64), i64>,
        phases: &[Phase],
        workers: usize,
        connections: i64,
    ) -> Self {
        let ms = |from: u64, to: u64| (to as f64 - from as f64) / 1e6;
        let acknowledged: Vec<&Write> = log.writes.iter().filter(|w| w.node.is_some()).collect();
        let on = |w: &&&Write, p: &Phase| w.node.as_deref() == Some(&p.address) && w.end > p.fault;
        let first = |p: &Phase| {
            let end = acknowledged.iter().filter(|w| on(w, p)).map(|w| w.end).min();
            end.map(|e| ms(p.ready, e).max(0.0))
        };
        let last = phases.last();
        let all_workers = last.and_then(|p| {
            let mut by_worker: HashMap<i32, u64> = HashMap::new();
            for w in acknowledged.iter().filter(|w| on(w, p)) {
                let e = by_worker.entry(w.worker).or_insert(w.end);
                *e = w.end.min(*e);
            }
            let latest = by_worker.values().max().copied()?;
            (by_worker.len() == workers).then(|| ms(p.ready, latest).max(0.0))
        });
        let stale = phases.iter().filter_map(|p| {
            let old = |w: &&&Write| w.node.as_deref() == Some(&p.old_address) && w.end > p.ready;
            acknowledged.iter().filter(old).map(|w| ms(p.ready, w.end)).reduce(f64::max)
        });
        let mut errors = BTreeMap::new();
        let mut samples = BTreeMap::new();
        for (class, text) in log.writes.iter().filter_map(|w| w.error.as_ref()) {
            *errors.entry(class.to_string()).or_insert(0) += 1;
            *samples.entry(text.clone()).or_insert(0) += 1;
        }
        let unknown = |w: &&Write| matches!(w.error, Some((Class::UnknownOutcome, _)));
        Self {
            kind,
            first_success: phases.iter().map(first).collect(),
            all_workers,
            longest_call: log.writes.iter().map(|w| ms(w.start, w.end)).fold(0.0, f64::max),
            lost: acknowledged.iter().filter(|w| !stored.contains_key(&(w.worker, w.seq))).count(),
            doubled: stored.values().filter(|n| **n > 1).count(),
            stale_acked: stale.reduce(f64::max).unwrap_or(0.0),
            unknown: log.writes.iter().filter(unknown).count(),
            acknowledged: acknowledged.len(),
            errors,
            samples,
            connections,
        }
    }
}
