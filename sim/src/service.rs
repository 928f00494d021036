//! Clients on a pool: sessions that are lent, and work that the library itself repeats and settles.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pgfollow::net::BoxFuture;
use pgfollow::retry::{RunOptions, give_up};
use pgfollow::{Code, Connector, Deadline, Error, Pool, Transaction, tokio_postgres};

use crate::workload::{Hand, INSERT, Job, Kind, Service, Told, insert, perform};
use crate::world::World;

/// How long a caller of a pool waits: the library's own default.
pub const ACQUIRE: Duration = Duration::from_secs(5);
/// How long everything of a run may take: the library's own default.
const RUN: Duration = Duration::from_secs(30);
/// Callers in a pool's queue for each of its connections, and those that have a session and see it proved.
const CALLERS_PER_CONNECTION: usize = 11;
/// Simulated time goes in milliseconds.
const TICK: Duration = Duration::from_millis(10);

/// A caller's wait for a session.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// The process.
    pub process: usize,
    /// Its begin and end, since the run began.
    pub from: Duration,
    /// …
    pub until: Duration,
    /// The longest that it may take.
    pub bound: Duration,
    /// The most callers of that process who may wait at the same time.
    pub crowd: usize,
}

/// Waits for a session of a pool of that size, and writes down for the checker how long it took.
pub async fn waiting<T>(world: &World, process: usize, size: usize, acquire: impl Future<Output = T>) -> T {
    let from = world.elapsed();
    let result = acquire.await;
    let until = world.elapsed();
    let crowd = size * CALLERS_PER_CONNECTION;
    world.waited(Wait { process, from, until, bound: ACQUIRE + TICK, crowd });
    result
}

/// Does the work, or leaves it where its owner loses interest.
pub async fn until_abandoned(job: &Job, work: impl Future<Output = Result<Told, Error>>) -> Told {
    if job.kind != Kind::Abandoned {
        return work.await.unwrap_or_else(Told::Error);
    }
    let left = Deadline::after(job.pause).bound(work).await;
    left.map_or(Told::Nothing, |told| told.unwrap_or_else(Told::Error))
}

/// Workers who borrow a session for each job.
pub struct Pooled {
    /// Where they borrow.
    pub pool: Pool,
    /// Who writes down how long they waited.
    pub world: Arc<World>,
    /// The process.
    pub process: usize,
}

impl Pooled {
    async fn attempt(&self, job: &Job) -> Result<Told, Error> {
        let size = self.pool.stats().max_conns;
        let acquire = self.pool.acquire_within(ACQUIRE);
        let mut session = waiting(&self.world, self.process, size, acquire).await?;
        perform(&mut session, job).await
    }
}

impl Service for Pooled {
    fn work<'a>(&'a self, _: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        Box::pin(until_abandoned(job, self.attempt(job)))
    }

    fn sessions(&self) -> Option<usize> {
        Some(self.pool.stats().max_conns)
    }

    fn close(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(close(&self.pool))
    }
}

/// Workers who hand their work to `run` or `run_once`.
pub struct Runs {
    /// On whose sessions.
    pub pool: Pool,
    /// `run_once`.
    pub once: bool,
}

impl Runs {
    async fn attempt(&self, job: &Job) -> Result<Told, Error> {
        let attempts = AtomicU32::new(0);
        let work = async |tx: &mut Transaction<'_>| {
            let again = attempts.fetch_add(1, Ordering::Relaxed) > 0;
            body(tx, job, again).await
        };
        let options = options(job);
        let done = if self.once {
            self.pool.run_once(&options, work).await
        } else {
            self.pool.run_with(&options, work).await
        };
        match done {
            Err(e) if e.code() == Code::GaveUp => Ok(Told::Undone),
            done => done.map(|()| Told::Acknowledged),
        }
    }
}

fn options(job: &Job) -> RunOptions {
    match job.kind {
        Kind::ReadOnly | Kind::Forbidden => RunOptions::new().read_only(true),
        Kind::Bounded => RunOptions::new().deadline(job.pause),
        _ => RunOptions::new(),
    }
}

/// The work. A repeat writes the same rows again: they must be there once.
async fn body(tx: &mut Transaction<'_>, job: &Job, again: bool) -> Result<(), Error> {
    if job.kind == Kind::ReadOnly {
        tx.simple_query("SELECT id FROM writes WHERE id = 0").await?;
    }
    for row in &job.rows {
        if matches!(job.kind, Kind::Prepared | Kind::AutoPrepared) {
            tx.execute(INSERT, &[row]).await?;
        } else {
            tx.batch_execute(&insert(*row)).await?;
        }
    }
    match job.kind {
        Kind::Slow => tx.batch_execute(&format!("SELECT pg_sleep({})", job.pause.as_secs_f64())).await?,
        Kind::Sloppy if !again => {
            // Overlooked: the commit must say it.
            let _: Result<(), tokio_postgres::Error> = tx.batch_execute("SELECT fail('40001')").await;
        }
        Kind::Undone => return Err(give_up("its owner doesn't want it any more")),
        _ => {}
    }
    Ok(())
}

impl Service for Runs {
    fn work<'a>(&'a self, _: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        Box::pin(until_abandoned(job, self.attempt(job)))
    }

    fn repeats(&self) -> bool {
        true
    }

    fn longest(&self, job: &Job) -> Option<Duration> {
        Some(TICK + if job.kind == Kind::Bounded { job.pause } else { RUN })
    }

    fn sessions(&self) -> Option<usize> {
        Some(self.pool.stats().max_conns)
    }

    fn close(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(close(&self.pool))
    }
}

/// Closes a pool; what is left then.
async fn close(pool: &Pool) -> Vec<String> {
    let all_back = pool.close(ACQUIRE * 2).await;
    let now = pool.stats().now;
    let left = now.idle + now.lent + now.opening + now.settling + now.waiting;
    if all_back && left == 0 { Vec::new() } else { vec![format!("in a closed pool: {now:?}")] }
}

fn pool(connector: &Connector, max: usize) -> Pool {
    connector.pool_with(|o| o.max_conns(max)).expect("one at least")
}

fn size(world: &Arc<World>) -> usize {
    world.with(|w| usize::try_from(w.draw((1, 3))).unwrap_or(1))
}

/// [`Pooled`], with a pool of one to three.
pub fn pooled(connector: Connector, world: &Arc<World>, process: usize) -> Arc<dyn Service> {
    Arc::new(Pooled { pool: pool(&connector, size(world)), world: Arc::clone(world), process })
}

/// [`Runs`] with `run`.
pub fn runs(connector: Connector, world: &Arc<World>, _: usize) -> Arc<dyn Service> {
    Arc::new(Runs { pool: pool(&connector, size(world)), once: false })
}

/// [`Runs`] with `run_once`.
pub fn runs_once(connector: Connector, world: &Arc<World>, _: usize) -> Arc<dyn Service> {
    Arc::new(Runs { pool: pool(&connector, size(world)), once: true })
}
