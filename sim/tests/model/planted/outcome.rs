//! Mistakes in settling an outcome, and in what a commit's answer means.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pgfollow::net::BoxFuture;
use pgfollow::tokio_postgres::SimpleQueryMessage;
use pgfollow::{Connector, Error, Session, clock};
use pgfollow_sim::workload::{Hand, Job, Kind, Service, Sessions, Told};
use pgfollow_sim::{Broken, Marks, Options, PATIENCE, Story};

use super::{find, inner, must_be_found};

/// The kinds of work that these clients do in their own way.
const OWN: [Kind; 4] = [Kind::Block, Kind::Prepared, Kind::Auto, Kind::AutoPrepared];

async fn session(connector: &Connector) -> Option<Session> {
    connector.connect_within(PATIENCE).await.ok()
}

async fn pause(d: Duration) {
    clock::sleep_until(clock::now() + d).await;
}

fn column(answer: &[SimpleQueryMessage], name: &str) -> Option<String> {
    answer.iter().find_map(|m| match m {
        SimpleQueryMessage::Row(r) => r.try_get(name).ok().flatten().map(str::to_owned),
        _ => None,
    })
}

fn inserts(job: &Job) -> String {
    job.rows.iter().map(|row| format!("INSERT INTO writes (id) VALUES ({row}); ")).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// A row of the token is there, so it is done: but the check itself has put it there.
    FenceIsCommit,
    /// Not done, says the check; the repeat has the same token, and is refused as the original would be.
    SameToken,
    /// The work itself rolls back what the token was written in.
    Undone,
}

/// Marks its work by tokens of its own.
struct OwnToken {
    inner: Sessions,
    mistake: Mistake,
    process: usize,
    next: AtomicU64,
}

impl OwnToken {
    fn new(connector: Connector, process: usize, mistake: Mistake) -> Arc<Self> {
        Arc::new(Self { inner: inner(connector), mistake, process, next: AtomicU64::new(0) })
    }

    async fn attempt(&self, job: &Job, token: &str) -> Option<Result<(), Error>> {
        let session = session(&self.inner.connector).await?;
        let mark = format!("INSERT INTO pgfollow.outcome (token, state) VALUES ('{token}', 'd'); ");
        let work = inserts(job);
        let sql = match self.mistake {
            Mistake::Undone => format!("BEGIN; {mark}ROLLBACK; BEGIN; {work}COMMIT"),
            _ => format!("BEGIN; {work}{mark}COMMIT"),
        };
        Some(session.within(Duration::from_secs(2), session.batch_execute(&sql)).await)
    }

    async fn check(&self, token: &str) -> Option<String> {
        let session = session(&self.inner.connector).await?;
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '1s'; \
             INSERT INTO pgfollow.outcome AS o (token, state) VALUES ('{token}', 'v') \
             ON CONFLICT (token) DO UPDATE SET token = excluded.token RETURNING o.state; COMMIT"
        );
        column(&session.simple_query(&sql).await.ok()?, "state")
    }

    async fn one(&self, job: &Job) -> Told {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let token = format!("own-{}-{number}", self.process);
        match self.attempt(job, &token).await {
            None => return Told::Nothing,
            Some(Ok(())) => return Told::Acknowledged,
            Some(Err(_)) => {}
        }
        let Some(state) = self.check(&token).await else { return Told::Nothing };
        match (self.mistake, state.as_str()) {
            (_, "d") | (Mistake::FenceIsCommit, _) => Told::Acknowledged,
            (Mistake::Undone, _) => Told::Undone,
            (Mistake::SameToken, _) => match self.attempt(job, &token).await {
                // Somebody has done it already.
                Some(Err(e)) if e.sqlstate().is_some_and(|s| s.as_str() == "23505") => Told::Acknowledged,
                Some(Ok(())) => Told::Acknowledged,
                _ => Told::Nothing,
            },
        }
    }
}

impl Service for OwnToken {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        if OWN.contains(&job.kind) { Box::pin(self.one(job)) } else { self.inner.work(hand, job) }
    }
}

#[test]
fn a_check_that_reads_its_own_fence_as_a_commit_acknowledges_what_was_never_done() {
    must_be_found(
        |c, _, p| OwnToken::new(c, p, Mistake::FenceIsCommit),
        &[Story::AnyFrame, Story::Kill],
        |b| matches!(b, Broken::Lost(_)),
    );
}

#[test]
fn a_repeat_with_the_same_token_that_was_fenced_is_taken_for_done() {
    must_be_found(
        |c, _, p| OwnToken::new(c, p, Mistake::SameToken),
        &[Story::AnyFrame, Story::Kill],
        |b| matches!(b, Broken::Lost(_)),
    );
}

#[test]
fn a_token_that_the_work_itself_undid_lets_a_check_deny_what_was_done() {
    must_be_found(
        |c, _, p| OwnToken::new(c, p, Mistake::Undone),
        &[Story::LostReply],
        |b| matches!(b, Broken::DoneAfterAll(_)),
    );
}

/// Takes a transaction's number for its own whatever lay between.
struct BelievesNumbers(Sessions);

impl BelievesNumbers {
    async fn one(&self, job: &Job) -> Told {
        let Some(at_work) = session(&self.0.connector).await else { return Told::Nothing };
        let sql = format!("BEGIN; {}SELECT pg_catalog.txid_current_if_assigned() AS xid", inserts(job));
        let Ok(answer) = at_work.simple_query(&sql).await else { return Told::Nothing };
        let Some(xid) = column(&answer, "xid") else { return Told::Nothing };
        if at_work.batch_execute("COMMIT").await.is_ok() {
            return Told::Acknowledged;
        }
        // Some time later, by another part of the service.
        pause(Duration::from_secs(2)).await;
        let Some(asking) = session(&self.0.connector).await else { return Told::Nothing };
        let sql = format!("SELECT pg_catalog.txid_status({xid}) AS status");
        let answer = asking.simple_query(&sql).await.unwrap_or_default();
        match column(&answer, "status").as_deref() {
            Some("committed") => Told::Acknowledged,
            _ => Told::Nothing,
        }
    }
}

impl Service for BelievesNumbers {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        if OWN.contains(&job.kind) { Box::pin(self.one(job)) } else { self.0.work(hand, job) }
    }
}

#[test]
fn a_number_that_a_stranger_took_after_a_crash_is_taken_for_a_commit() {
    find(
        &Options {
            service: Some(|c, _, _| Arc::new(BelievesNumbers(inner(c)))),
            marks: Some(Marks::Numbers),
            stories: vec![Story::AnyFrame, Story::Crash],
            workers: 4,
            ..Options::default()
        },
        |b| matches!(b, Broken::Lost(_)),
    );
}

/// Loses patience with a COMMIT, cancels it, and takes its answer for what it says.
struct CancelsCommit(Sessions);

impl CancelsCommit {
    async fn one(&self, job: &Job) -> Told {
        let Some(session) = session(&self.0.connector).await else { return Told::Nothing };
        if session.batch_execute(&format!("BEGIN; {}", inserts(job))).await.is_err() {
            return Told::Nothing;
        }
        let mut commit = std::pin::pin!(session.batch_execute("COMMIT"));
        let done = match tokio::time::timeout(Duration::from_secs(1), &mut commit).await {
            Ok(done) => done,
            Err(_) => {
                let _ = session.cancel().await;
                commit.await
            }
        };
        done.map_or(Told::Nothing, |()| Told::Acknowledged)
    }
}

impl Service for CancelsCommit {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        if OWN.contains(&job.kind) { Box::pin(self.one(job)) } else { self.0.work(hand, job) }
    }
}

#[test]
fn a_commit_cancelled_while_it_waits_for_a_standby_is_taken_for_durable() {
    find(
        &Options {
            service: Some(|c, _, _| Arc::new(CancelsCommit(inner(c)))),
            sync: Some(true),
            stories: vec![Story::Isolated],
            ..Options::default()
        },
        |b| matches!(b, Broken::Lost(_)),
    );
}
