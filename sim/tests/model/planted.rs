//! Clients with a bug, to show that the checker finds it: each does what services really do.
//!
//! Here: a retry after an unknown outcome, a lost acknowledgement, an outcome that isn't flagged, COMMIT answered ROLLBACK,
//! half a transaction, a connection kept to an old primary. [`outcome`]: a fence read as a commit, a repeat with the same
//! token, a token undone by the work, a number taken anew after a crash, a cancel during a commit's wait. [`pool`]: stale
//! reuse, no pace, no jitter, a queue without a limit, a flush for the 25006 of a READ ONLY block, abandoned commits that fill
//! the server.
//!
//! Two can only be shown to the pure machine, by an input of its vectors (`core/tests/pure/topology_vectors.rs`): two primaries
//! of an equal timeline and an equal switch point (`conflict-07`, with `conflict-03` to `-05`), and a name server on this
//! very machine that must not prove the network (`veto-d-02`).

mod outcome;
mod pool;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use pgfollow::net::BoxFuture;
use pgfollow::tokio_postgres;
use pgfollow::{Class, Connector};
use pgfollow_sim::net::SimDial;
use pgfollow_sim::workload::{Hand, Job, Kind, Service, Sessions, Told};
use pgfollow_sim::{Broken, MakeService, Marks, Options, PATIENCE, Story, World, run};

/// Seeds within which the bug must show.
const SEEDS: u64 = 150;

/// Runs seeds with a client that has a bug, until the checker complains as it should.
fn must_be_found(service: MakeService, stories: &[Story], is: fn(&Broken) -> bool) {
    find(&Options { service: Some(service), stories: stories.to_vec(), ..marked() }, is);
}

/// With the token table.
fn marked() -> Options {
    Options { marks: Some(Marks::Table), ..Options::default() }
}

fn find(options: &Options, is: fn(&Broken) -> bool) {
    let mut others = Vec::new();
    for seed in 0..SEEDS {
        let report = run(seed, options);
        if report.broken.iter().any(is) {
            return;
        }
        others.extend(report.broken);
    }
    panic!("{SEEDS} seeds, and the bug was not found; other complaints: {others:?}");
}

fn inner(connector: Connector) -> Sessions {
    Sessions { connector, patience: PATIENCE }
}

fn unknown(told: &Told) -> bool {
    matches!(told, Told::Error(e) if e.class() == Class::UnknownOutcome)
}

/// Takes every lost connection for a failure, and does it again.
struct RetriesUnknown(Sessions);

impl Service for RetriesUnknown {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        self.0.work(hand, job)
    }
    fn again(&self, told: &Told) -> bool {
        self.0.again(told) || unknown(told)
    }
}

#[test]
fn a_retry_after_an_unknown_outcome_does_work_twice() {
    must_be_found(
        |c, _, _| Arc::new(RetriesUnknown(inner(c))),
        &[Story::LostReply],
        |b| matches!(b, Broken::Doubled(_)),
    );
}

/// Tells its user that it is done though it doesn't know.
struct Optimist(Sessions);

impl Service for Optimist {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        self.0.work(hand, job).map(|told| if unknown(&told) { Told::Acknowledged } else { told }).boxed()
    }
}

#[test]
fn an_acknowledgement_without_a_commit_is_a_lost_write() {
    must_be_found(
        |c, _, _| Arc::new(Optimist(inner(c))),
        &[Story::Kill, Story::Blackhole],
        |b| matches!(b, Broken::Lost(_)),
    );
}

/// Takes the other error class for "not done".
struct Pessimist(Sessions);

impl Service for Pessimist {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        self.0.work(hand, job).map(|told| if unknown(&told) { Told::Undone } else { told }).boxed()
    }
}

#[test]
fn an_unknown_outcome_that_is_not_flagged_is_found_where_it_was_done() {
    must_be_found(
        |c, _, _| Arc::new(Pessimist(inner(c))),
        &[Story::LostReply],
        |b| matches!(b, Broken::DoneAfterAll(_)),
    );
}

/// Uses the driver's own transaction, whose commit doesn't look at the tag.
struct BareCommit(Sessions);

impl BareCommit {
    async fn bare(&self, job: &Job) -> Result<(), tokio_postgres::Error> {
        let Ok(mut session) = self.0.connector.connect_within(PATIENCE).await else { return Ok(()) };
        let tx = session.client_mut().transaction().await?;
        for row in &job.rows {
            tx.batch_execute(&format!("INSERT INTO writes (id) VALUES ({row})")).await?;
        }
        // Overlooked, as in a handler that logs and goes on.
        let _ = tx.batch_execute("SELECT fail('40001')").await;
        tx.commit().await
    }
}

impl Service for BareCommit {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        if job.kind != Kind::Sloppy {
            return self.0.work(hand, job);
        }
        Box::pin(async move {
            match self.bare(job).await {
                Ok(()) => Told::Acknowledged,
                Err(_) => Told::Nothing,
            }
        })
    }
}

#[test]
fn a_commit_answered_rollback_and_taken_for_success_is_a_lost_write() {
    must_be_found(|c, _, _| Arc::new(BareCommit(inner(c))), &[Story::Calm], |b| matches!(b, Broken::Lost(_)));
}

/// Two statements without a transaction around them.
struct NoBlock(Sessions);

impl Service for NoBlock {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            for row in &job.rows {
                let single = Job { kind: Kind::Auto, rows: vec![*row], pause: job.pause };
                let told = self.0.work(hand, &single).await;
                if !matches!(told, Told::Acknowledged) {
                    return told;
                }
            }
            Told::Acknowledged
        })
    }
}

#[test]
fn half_a_transaction_is_found() {
    must_be_found(
        |c, _, _| Arc::new(NoBlock(inner(c))),
        &[Story::AnyFrame, Story::Kill],
        |b| matches!(b, Broken::Torn(_) | Broken::DoneAfterAll(_)),
    );
}

/// Holds a connection of its own to the first primary, and uses it for as long as it answers.
struct KeepsIts {
    library: Sessions,
    world: Arc<World>,
    process: usize,
    own: tokio::sync::Mutex<Option<tokio_postgres::Client>>,
}

impl Service for KeepsIts {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            if job.kind != Kind::Auto {
                return self.library.work(hand, job).await;
            }
            let mut own = self.own.lock().await;
            if own.is_none() {
                *own = SimDial::new(&self.world, self.process).bare_client(0).await;
            }
            let Some(client) = &*own else { return Told::Nothing };
            let sql = format!("INSERT INTO writes (id) VALUES ({})", job.rows[0]);
            let call = tokio::time::timeout(Duration::from_secs(1), client.batch_execute(&sql));
            match call.await {
                Ok(Ok(())) => Told::Acknowledged,
                _ => Told::Nothing,
            }
        })
    }
}

#[test]
fn a_connection_kept_to_the_old_primary_is_found_by_its_first_write() {
    must_be_found(
        |c, world, process| {
            let (world, own) = (Arc::clone(world), tokio::sync::Mutex::default());
            Arc::new(KeepsIts { library: inner(c), world, process, own })
        },
        &[Story::SplitBrain],
        |b| matches!(b, Broken::Stale(_)),
    );
}
