//! The clients: workers that write rows of their own, and say of each try what they were told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgfollow::clock;
use pgfollow::net::BoxFuture;
use pgfollow::{Class, Connector, Deadline, Error, Outcome, Session};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::world::World;

/// What one job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block, with simple statements.
    Block,
    /// A block, with prepared statements.
    Prepared,
    /// One statement outside any block.
    Auto,
    /// The same, prepared.
    AutoPrepared,
    /// A block with a statement that takes its time.
    Slow,
    /// A block that its owner rolls back.
    Undone,
    /// A block in which a statement fails, which its owner overlooks.
    Sloppy,
    /// A block that only reads.
    ReadOnly,
    /// A block that was to read only, and writes.
    Forbidden,
    /// One statement under the caller's own deadline.
    Bounded,
    /// A block whose owner loses interest.
    Abandoned,
}

/// A unit of work: either all of its rows are to be there, or none.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it does.
    pub kind: Kind,
    /// The rows that it writes: unique for each try.
    pub rows: Vec<i64>,
    /// How long slow things take, and how long patience lasts.
    pub pause: Duration,
}

/// What a client was told of a job.
#[derive(Debug)]
pub enum Told {
    /// Done.
    Acknowledged,
    /// Not done, because its owner didn't want it any more.
    Undone,
    /// An error.
    Error(Error),
    /// The owner left before there was an answer.
    Nothing,
}

/// What a worker holds between its jobs.
#[derive(Default)]
pub struct Hand {
    /// Its session, where it has one of its own.
    pub session: Option<Session>,
}

/// How a service does its work: with sessions of its own, or through a pool.
pub trait Service: Send + Sync {
    /// Does one job.
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told>;

    /// Whether a client with this answer does the same again: a right one only if it was certainly not done.
    fn again(&self, told: &Told) -> bool {
        matches!(told, Told::Error(e) if e.class() == Class::Transient)
    }

    /// Whether it does a job again by itself, with the same rows.
    fn repeats(&self) -> bool {
        false
    }

    /// The longest that it says a job can take.
    fn longest(&self, _: &Job) -> Option<Duration> {
        None
    }

    /// How many sessions it keeps at most, where it keeps any.
    fn sessions(&self) -> Option<usize> {
        None
    }

    /// Ends it. What is left then.
    fn close(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async { Vec::new() })
    }
}

/// Each worker keeps a session for as long as it may be used.
pub struct Sessions {
    /// Where sessions come from.
    pub connector: Connector,
    /// How long a worker waits for one.
    pub patience: Duration,
}

impl Sessions {
    async fn session<'a>(&self, hand: &'a mut Hand) -> Result<&'a mut Session, Error> {
        if let Some(s) = &hand.session {
            let doubted = s.is_doubted() && {
                let ping = s.within(Duration::from_secs(1), s.simple_query(""));
                ping.await.is_err()
            };
            if doubted || !s.is_usable() {
                hand.session = None;
            }
        }
        match &mut hand.session {
            Some(s) => Ok(s),
            none => Ok(none.insert(self.connector.connect_within(self.patience).await?)),
        }
    }

    async fn attempt(&self, hand: &mut Hand, job: &Job) -> Result<Told, Error> {
        let session = self.session(hand).await?;
        perform(session, job).await
    }
}

/// Does a job on a session.
pub(crate) async fn perform(session: &mut Session, job: &Job) -> Result<Told, Error> {
    let why = session.why();
    match job.kind {
        Kind::Auto => {
            let sql = insert(job.rows[0]);
            session.batch_execute(&sql).await.map_err(|e| why.diagnose(e))?;
        }
        Kind::AutoPrepared => {
            session.execute(INSERT, &[&job.rows[0]]).await.map_err(|e| why.diagnose(e))?;
        }
        Kind::Bounded => {
            let sql = insert(job.rows[0]);
            session.within(job.pause, session.batch_execute(&sql)).await?;
        }
        Kind::ReadOnly => {
            let tx = session.build_transaction().read_only(true).start().await?;
            tx.simple_query("SELECT id FROM writes WHERE id = 0").await.map_err(|e| why.diagnose(e))?;
            tx.commit().await?;
        }
        _ => {
            let tx = session.build_transaction().read_only(job.kind == Kind::Forbidden).start().await?;
            for row in &job.rows {
                if job.kind == Kind::Prepared {
                    tx.execute(INSERT, &[row]).await.map_err(|e| why.diagnose(e))?;
                } else {
                    tx.batch_execute(&insert(*row)).await.map_err(|e| why.diagnose(e))?;
                }
            }
            match job.kind {
                Kind::Slow => {
                    let sql = format!("SELECT pg_sleep({})", job.pause.as_secs_f64());
                    tx.batch_execute(&sql).await.map_err(|e| why.diagnose(e))?;
                }
                Kind::Sloppy => {
                    // Overlooked: the commit must say it.
                    let _ = tx.batch_execute("SELECT fail('40001')").await;
                }
                Kind::Undone => {
                    tx.rollback().await?;
                    return Ok(Told::Undone);
                }
                _ => {}
            }
            tx.commit().await?;
        }
    }
    Ok(Told::Acknowledged)
}

pub(crate) const INSERT: &str = "INSERT INTO writes (id) VALUES ($1)";

pub(crate) fn insert(row: i64) -> String {
    format!("INSERT INTO writes (id) VALUES ({row})")
}

impl Service for Sessions {
    fn work<'a>(&'a self, hand: &'a mut Hand, job: &'a Job) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            let attempt = self.attempt(hand, job);
            if job.kind != Kind::Abandoned {
                return attempt.await.unwrap_or_else(Told::Error);
            }
            match Deadline::after(job.pause).bound(attempt).await {
                Ok(told) => told.unwrap_or_else(Told::Error),
                Err(_) => {
                    hand.session = None;
                    Told::Nothing
                }
            }
        })
    }
}

/// One try of one piece of work.
#[derive(Debug)]
pub struct Try {
    /// The process.
    pub process: usize,
    /// The worker, across all processes.
    pub worker: usize,
    /// The piece of work: the same for all of its tries.
    pub op: i64,
    /// What was tried.
    pub job: Job,
    /// Begin, since the run began.
    pub began: Duration,
    /// End; `None` while it lasts.
    pub ended: Option<Duration>,
    /// What the client was told.
    pub told: Option<Told>,
    /// Its service does work again by itself.
    pub repeats: bool,
    /// How many sessions its service keeps, where it says so.
    pub sessions: Option<usize>,
    /// Its process has fewer sessions than workers.
    pub scarce: bool,
    /// The longest that its service says this can take.
    pub longest: Option<Duration>,
    /// What outcome checks said afterwards, where it stayed unknown.
    pub asked: Vec<Outcome>,
}

/// All tries of a run.
pub type Ledger = Arc<Mutex<Vec<Try>>>;

/// A worker and its chances.
pub(crate) struct Worker {
    pub(crate) world: Arc<World>,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) process: usize,
    pub(crate) worker: usize,
    pub(crate) rng: StdRng,
    pub(crate) scarce: bool,
    pub(crate) think_ms: (u64, u64),
    pub(crate) ledger: Ledger,
}

impl Worker {
    /// Works until told to stop.
    pub(crate) async fn run(mut self, stop: Arc<std::sync::atomic::AtomicBool>) {
        let mut hand = Hand::default();
        let mut op = 0;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            op += 1;
            let op = i64::try_from(self.worker).unwrap_or(0) * 1_000_000 + op;
            self.one(&mut hand, op, &stop).await;
            let (least, most) = self.think_ms;
            self.rest(least, most).await;
        }
    }

    async fn rest(&mut self, least_ms: u64, most_ms: u64) {
        let ms = self.rng.random_range(least_ms..=most_ms);
        clock::sleep_until(clock::now() + Duration::from_millis(ms)).await;
    }

    /// One piece of work, tried as often as its service says.
    async fn one(&mut self, hand: &mut Hand, op: i64, stop: &std::sync::atomic::AtomicBool) {
        let (mut kind, count, pause) = self.draw();
        for attempt in 0..99 {
            let rows = (0..count).map(|k| (op * 100 + attempt) * 10 + k).collect();
            let job = Job { kind, rows, pause };
            let number = {
                let mut ledger = self.ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                ledger.push(Try {
                    process: self.process,
                    worker: self.worker,
                    op,
                    job: job.clone(),
                    began: self.world.elapsed(),
                    ended: None,
                    told: None,
                    repeats: self.service.repeats(),
                    sessions: self.service.sessions(),
                    scarce: self.scarce,
                    longest: self.service.longest(&job),
                    asked: Vec::new(),
                });
                ledger.len() - 1
            };
            let told = self.service.work(hand, &job).await;
            let words = match &told {
                Told::Error(e) => format!("{}, {}: {}", e.class(), e.code().name(), e.message()),
                other => format!("{other:?}"),
            };
            self.world.note(format_args!("w{} {kind:?} {:?}: {words}", self.worker, job.rows));
            let again = self.service.again(&told);
            {
                let mut ledger = self.ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                ledger[number].ended = Some(self.world.elapsed());
                ledger[number].told = Some(told);
            }
            if !again || stop.load(std::sync::atomic::Ordering::Relaxed) {
                return;
            }
            // Whoever does it again looks better, and has more patience: a deadline that is shorter than the work is no outage.
            if matches!(kind, Kind::Sloppy | Kind::Bounded) {
                kind = Kind::Block;
            }
            self.rest(20, 200).await;
        }
    }

    fn draw(&mut self) -> (Kind, i64, Duration) {
        let kind = match self.rng.random_range(0..100) {
            0..30 => Kind::Block,
            30..45 => Kind::Prepared,
            45..65 => Kind::Auto,
            65..72 => Kind::AutoPrepared,
            72..76 => Kind::Slow,
            76..80 => Kind::Undone,
            80..84 => Kind::Sloppy,
            84..88 => Kind::ReadOnly,
            88..90 => Kind::Forbidden,
            90..95 => Kind::Bounded,
            _ => Kind::Abandoned,
        };
        let count = match kind {
            Kind::ReadOnly => 0,
            Kind::Auto | Kind::AutoPrepared | Kind::Bounded | Kind::Forbidden => 1,
            _ => self.rng.random_range(1..=2),
        };
        let most = if kind == Kind::Slow { 2_500 } else { 600 };
        (kind, count, Duration::from_millis(self.rng.random_range(1..=most)))
    }
}
