//! Mistakes of pools: in what they lend, in how they connect, and in whom they let wait.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgfollow::net::BoxFuture;
use pgfollow::tokio_postgres::{Client, SimpleQueryMessage};
use pgfollow::{Connector, Pool, clock};
use pgfollow_sim::net::SimDial;
use pgfollow_sim::service::{Pooled, waiting};
use pgfollow_sim::workload::{Hand, Job, Kind, Service, Sessions, Told};
use pgfollow_sim::{Broken, MakeService, Options, Story, World, run, sessions};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{find, inner, marked};

/// A pool as one writes it in an afternoon.
struct Naive {
    library: Sessions,
    world: Arc<World>,
    process: usize,
    size: usize,
    permits: Semaphore,
    idle: Mutex<Vec<Client>>,
}

impl Naive {
    fn new(connector: Connector, world: &Arc<World>, process: usize, size: usize) -> Arc<Self> {
        let (world, permits) = (Arc::clone(world), Semaphore::new(size));
        Arc::new(Self { library: inner(connector), world, process, size, permits, idle: Mutex::default() })
    }

    async fn dial(&self, node: u8) -> Option<Client> {
        let client = SimDial::new(&self.world, self.process).bare_client(node).await?;
        let answer = client.simple_query("SHOW transaction_read_only").await.ok()?;
        let off = |m: &SimpleQueryMessage| matches!(m, SimpleQueryMessage::Row(r) if r.get(0) == Some("off"));
        answer.iter().any(off).then_some(client)
    }

    /// Whoever comes waits for as long as it takes, and dials as often as it likes.
    async fn acquire(&self) -> (SemaphorePermit<'_>, Client) {
        let permit = self.permits.acquire().await.expect("never closed");
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if let Some(client) = kept.filter(|c| !c.is_closed()) {
                return (permit, client);
            }
            for node in 0..3 {
                let dial = tokio::time::timeout(Duration::from_secs(1), self.dial(node));
                if let Ok(Some(client)) = dial.await {
                    return (permit, client);
                }
            }
            clock::sleep_until(clock::now() + Duration::from_millis(50)).await;
        }
    }

    async fn one(&self, job: &Job) -> Told {
        let (_permit, client) = waiting(&self.world, self.process, self.size, self.acquire()).await;
        let inserts: String =
            job.rows.iter().map(|row| format!("INSERT INTO writes (id) VALUES ({row}); ")).collect();
        let sql = format!("BEGIN; {inserts}COMMIT");
        let call = tokio::time::timeout(Duration::from_secs(1), client.batch_execute(&sql));
        let Ok(Ok(())) = call.await else { return Told::Nothing };
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        Told::Acknowledged
    }
}

impl Service for Naive {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        match job.kind {
            Kind::Block | Kind::Prepared | Kind::Auto => Box::pin(self.one(job)),
            _ => self.library.work(hand, job),
        }
    }
}

#[test]
fn a_pool_that_lends_what_still_answers_writes_to_an_older_primary() {
    find(
        &Options {
            service: Some(|c, world, p| Naive::new(c, world, p, 2)),
            stories: vec![Story::SplitBrain],
            ..Options::default()
        },
        |b| matches!(b, Broken::Stale(_)),
    );
}

#[test]
fn a_pool_without_pace_logs_in_as_fast_as_it_fails() {
    find(
        &Options {
            service: Some(|c, world, p| Naive::new(c, world, p, 16)),
            stories: vec![Story::Kill],
            workers: 16,
            ..Options::default()
        },
        |b| matches!(b, Broken::TooMany(s) if s.contains("callers: ")),
    );
}

#[test]
fn a_queue_without_a_limit_grows_and_lets_callers_wait_for_ever() {
    for is in [
        (|b| matches!(b, Broken::TooMany(s) if s.contains("callers wait"))) as fn(&Broken) -> bool,
        |b| matches!(b, Broken::TooLong(s) if s.contains("for a session")),
    ] {
        let service: MakeService = |c, world, p| Naive::new(c, world, p, 1);
        let stories = vec![Story::SlowPromotion];
        find(&Options { service: Some(service), stories, workers: 24, ..Options::default() }, is);
    }
}

/// The library itself, with its timers in step.
#[test]
fn logins_without_jitter_come_like_a_clock() {
    let is = |b: &Broken| matches!(b, Broken::InStep(_));
    let stories = vec![Story::Kill];
    let jittered = Options { service: Some(sessions), stories, workers: 16, ..Options::default() };
    find(&Options { tuning: |t| t.jitter = 0.0, ..jittered.clone() }, is);
    for seed in 0..5 {
        assert!(!run(seed, &jittered).broken.iter().any(is), "SEED={seed}");
    }
}

/// Takes every "read-only" for a demotion, and throws its connections away.
struct Flushes {
    connector: Connector,
    world: Arc<World>,
    process: usize,
    pool: Mutex<Pool>,
}

impl Flushes {
    async fn one(&self, hand: &mut Hand, job: &Job) -> Told {
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (world, process) = (Arc::clone(&self.world), self.process);
        let pooled = Pooled { pool, world, process };
        let told = pooled.work(hand, job).await;
        if matches!(&told, Told::Error(e) if e.sqlstate().is_some_and(|s| s.as_str() == "25006")) {
            *self.pool.lock().unwrap_or_else(PoisonError::into_inner) = self.connector.pool();
            pooled.pool.close(Duration::from_secs(1)).await;
        }
        told
    }
}

impl Service for Flushes {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        Box::pin(self.one(hand, job))
    }

    fn sessions(&self) -> Option<usize> {
        Some(2)
    }
}

#[test]
fn a_write_in_a_read_only_block_flushes_no_pool() {
    find(
        &Options {
            service: Some(|connector, world, process| {
                let pool = Mutex::new(connector.pool());
                Arc::new(Flushes { connector, world: Arc::clone(world), process, pool })
            }),
            stories: vec![Story::Calm],
            ..Options::default()
        },
        |b| matches!(b, Broken::TooMany(s) if s.contains("without a cause")),
    );
}

/// Callers who wait 300 ms for anything, and leave.
struct Impatient<S> {
    inner: S,
    sessions: usize,
}

impl<S: Service> Service for Impatient<S> {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            let work = tokio::time::timeout(Duration::from_millis(300), self.inner.work(hand, job)).await;
            work.unwrap_or_else(|_| {
                hand.session = None;
                Told::Nothing
            })
        })
    }

    fn sessions(&self) -> Option<usize> {
        Some(self.sessions)
    }

    fn close(&self) -> BoxFuture<'_, Vec<String>> {
        self.inner.close()
    }
}

/// The most backends beyond its pool's size that any process had while commits waited for a standby.
fn surplus(service: MakeService) -> usize {
    let stories = vec![Story::NoStandby, Story::Isolated];
    let options = Options { service: Some(service), stories, sync: Some(true), workers: 4, ..marked() };
    (0..30).map(|seed| run(seed, &options).counts.surplus).max().unwrap_or(0)
}

#[test]
fn commits_that_callers_gave_up_fill_the_server_unless_their_places_are_kept() {
    let kept = surplus(|connector, world, process| {
        let pool = connector.pool_with(|o| o.max_conns(3)).expect("valid");
        let inner = Pooled { pool, world: Arc::clone(world), process };
        Arc::new(Impatient { inner, sessions: 3 })
    });
    // Two were seen; twenty where the look tells of nobody.
    assert!(kept <= 3, "{kept} more than the pool's three");
    let unkept = surplus(|connector, _, _| Arc::new(Impatient { inner: inner(connector), sessions: 3 }));
    assert!(unkept >= 10, "{unkept}: the model shows no abandoned commits");
}
