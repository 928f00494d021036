//! One run: a world, its clients, its stories, and the verdict.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use pgfollow::config::Tuning;
use pgfollow::{Class, Connector, ConnectorBuilder, Environment, Token, clock};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::sync::broadcast::error::RecvError;

use crate::check::{self, Bounds, Broken, Counts};
use crate::net::{SimDial, SimResolve};
use crate::script::{Story, Teller};
use crate::service;
use crate::workload::{Ledger, Service, Sessions, Told, Try, Worker};
use crate::world::{Marks, Model, World};

/// How a process's clients work: given its connector, how long they wait, the world, and the process's number.
pub type MakeService = fn(Connector, &Arc<World>, usize) -> Arc<dyn Service>;

/// How a run is made.
#[derive(Clone)]
pub struct Options {
    /// Keeps the log's lines (its checksum is always there).
    pub keep_log: bool,
    /// Only these stories.
    pub stories: Vec<Story>,
    /// How clients work; drawn where `None`.
    pub service: Option<MakeService>,
    /// What outcome checks can go by; drawn where `None`.
    pub marks: Option<Marks>,
    /// Changes the library's constants.
    pub tuning: fn(&mut Tuning),
    /// Synchronous replication; drawn where `None`.
    pub sync: Option<bool>,
    /// What is allowed.
    pub bounds: Bounds,
    /// Workers of each process.
    pub workers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keep_log: false,
            stories: Story::ALL.to_vec(),
            service: None,
            marks: None,
            tuning: |_| {},
            sync: None,
            bounds: Bounds::default(),
            workers: 2,
        }
    }
}

/// How long a client waits for a session.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Each worker with a session of its own.
pub fn sessions(connector: Connector, _: &Arc<World>, _: usize) -> Arc<dyn Service> {
    Arc::new(Sessions { connector, patience: PATIENCE })
}

/// How the clients of a run work.
#[derive(Clone, Copy)]
pub struct Drawn {
    /// Its name.
    pub name: &'static str,
    make: MakeService,
    /// What their outcome checks can go by.
    pub marks: Marks,
}

impl Drawn {
    /// Draws what isn't given.
    fn from(options: &Options, rng: &mut StdRng) -> Self {
        let (name, make): (_, MakeService) = match rng.random_range(0..10) {
            0..3 => ("sessions", sessions),
            3..6 => ("pool", service::pooled),
            6..9 => ("run", service::runs),
            _ => ("run_once", service::runs_once),
        };
        let marks = match rng.random_range(0..10) {
            0..7 => Marks::Table,
            7..9 => Marks::Numbers,
            _ => Marks::Neither,
        };
        let (name, make) = options.service.map_or((name, make), |given| ("given", given));
        Self { name, make, marks: options.marks.unwrap_or(marks) }
    }
}

impl fmt::Debug for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.name, self.marks)
    }
}

/// A run's end.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed that gives it again.
    pub seed: u64,
    /// How its clients worked.
    pub drawn: Drawn,
    /// What went wrong in it.
    pub stories: Vec<Story>,
    /// The rules that were broken.
    pub broken: Vec<Broken>,
    /// What was seen.
    pub counts: Counts,
    /// A checksum of everything that happened, in order.
    pub sum: u64,
    /// What happened, where it was to be kept.
    pub log: Vec<String>,
    /// How long it lasted in simulated time.
    pub lasted: Duration,
}

/// Runs one seed.
///
/// # Panics
/// If the runtime can't be made.
pub fn run(seed: u64, options: &Options) -> Report {
    in_simulated_time(live(seed, options))
}

/// Runs a future on paused time, which moves on to the next timer whenever nothing else can.
///
/// # Panics
/// If the runtime can't be made.
pub fn in_simulated_time<T>(future: impl Future<Output = T>) -> T {
    // The library counts from the first look at the clock, which must lie before the run's own beginning.
    clock::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}

async fn live(seed: u64, options: &Options) -> Report {
    // No run begins at the zero of the clock, as no process does for long.
    tokio::time::advance(Duration::from_secs(10)).await;
    let mut rng = StdRng::seed_from_u64(seed);
    // Of its own, so that a seed keeps its world and its stories.
    let drawn = Drawn::from(options, &mut StdRng::seed_from_u64(seed ^ 0x5e41_1ce5));
    let model = Model {
        marks: drawn.marks,
        processes: rng.random_range(1..=2),
        sync: options.sync.unwrap_or_else(|| rng.random_bool(0.7)),
        ..Model::default()
    };
    let processes = model.processes;
    let world = World::new(model, rng.random(), options.keep_log);
    tokio::spawn(Arc::clone(&world).drive());

    let stop = Arc::new(AtomicBool::new(false));
    let ledger = Ledger::default();
    let mut workers = Vec::new();
    let (mut services, mut connectors) = (Vec::new(), Vec::new());
    for process in 0..processes {
        let connector = connector(&world, process, options.tuning, &mut rng);
        watch(&world, process, &connector);
        connectors.push(connector.clone());
        let service = (drawn.make)(connector, &world, process);
        let scarce = service.sessions().is_some_and(|n| n < options.workers);
        services.push(Arc::clone(&service));
        for k in 0..options.workers {
            let worker = Worker {
                world: Arc::clone(&world),
                service: Arc::clone(&service),
                process,
                worker: process * options.workers + k,
                rng: StdRng::seed_from_u64(rng.random()),
                scarce,
                think_ms: (50, 400),
                ledger: Arc::clone(&ledger),
            };
            workers.push(tokio::spawn(worker.run(Arc::clone(&stop))));
        }
    }

    let mut teller = Teller { world: &world, rng: StdRng::seed_from_u64(rng.random()) };
    teller.pause(500, 2_500).await;
    let mut stories = Vec::new();
    for _ in 0..rng.random_range(1..=3) {
        let story = *options.stories.choose(&mut rng).unwrap_or(&Story::Calm);
        stories.push(story);
        teller.tell(story).await;
        teller.pause(0, 3_000).await;
    }
    teller.heal();
    let healed = world.elapsed();
    // Flows that were lost alone are given up by the kernels after 9 s.
    teller.pause(13_000, 13_000).await;
    stop.store(true, Ordering::Relaxed);
    let calm = stories.iter().all(|s| *s == Story::Calm);

    let mut broken = Vec::new();
    for w in workers {
        if tokio::time::timeout(options.bounds.job, w).await.is_err() {
            broken.push(Broken::Left("a worker that doesn't end".to_owned()));
        }
    }
    let asked = world.with(|w| w.truth.asked.len());
    ask_again(&connectors, &ledger).await;
    for service in services {
        broken.extend(service.close().await.into_iter().map(Broken::Left));
    }
    drop(connectors);
    // Everything was let go of: what the library still does it must bring to an end by itself.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let pipes = world.with(|w| w.open_pipes());
    if pipes > 0 {
        broken.push(Broken::Left(format!("{pipes} connections")));
    }
    // The world's own task lives on.
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks() - 1;
    if tasks > 0 {
        broken.push(Broken::Left(format!("{tasks} tasks")));
    }
    let lasted = world.elapsed();
    let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    let (more, mut counts) = check::judge(&world, &ledger, healed, calm, &options.bounds);
    broken.extend(more);
    counts.asked = asked;
    world.end();
    let (sum, log) = world.with(|w| (w.log.sum, std::mem::take(&mut w.log.lines)));
    Report { seed, drawn, stories, broken, counts, sum, log, lasted }
}

/// Asks what became of every transaction that stayed unknown, from each process.
async fn ask_again(connectors: &[Connector], ledger: &Ledger) {
    let open: Vec<(usize, Token)> = {
        let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let token = |t: &Try| match &t.told {
            Some(Told::Error(e)) if e.class() == Class::UnknownOutcome => e.token().copied(),
            _ => None,
        };
        ledger.iter().enumerate().filter_map(|(i, t)| Some((i, token(t)?))).collect()
    };
    for (number, token) in open {
        for connector in connectors {
            let Ok(outcome) = connector.check_outcome(&token, PATIENCE).await else { continue };
            ledger.lock().unwrap_or_else(PoisonError::into_inner)[number].asked.push(outcome);
        }
    }
}

/// A connector of a process to those hosts.
pub(crate) fn builder(hosts: &str, world: &Arc<World>, process: usize, rng: &mut StdRng) -> ConnectorBuilder {
    let text = format!("postgresql://app@{hosts}/orders?target_session_attrs=read-write&sslmode=disable");
    Connector::builder(&text)
        .config(|c| c.environment(Environment::empty()))
        .resolver(Arc::new(SimResolve(Arc::clone(world))))
        .dial(Arc::new(SimDial::new(world, process)))
        .seed(rng.random())
}

pub(crate) fn connector(
    world: &Arc<World>,
    process: usize,
    tuning: fn(&mut Tuning),
    rng: &mut StdRng,
) -> Connector {
    let repeatable = |t: &mut Tuning| {
        t.seeded_tokens = true;
        tuning(t);
    };
    let builder = builder("db-0,db-1,db-2", world, process, rng);
    builder.config(|c| c.tuning(repeatable)).build().expect("the configuration is right")
}

/// Writes what the library says of itself into the log.
fn watch(world: &Arc<World>, process: usize, connector: &Connector) {
    let (world, mut events) = (Arc::clone(world), connector.events());
    tokio::spawn(async move {
        loop {
            match events.recv().await {
                Ok(event) => world.note(format_args!("p{process}: {}", told(&event.kind))),
                Err(RecvError::Lagged(n)) => world.note(format_args!("p{process}: {n} events missed")),
                Err(RecvError::Closed) => return,
            }
        }
    });
}

/// An event without what differs from run to run: sessions are numbered through the whole process, and moments count
/// from its first look at the clock.
fn told(kind: &pgfollow::EventKind) -> String {
    match kind {
        // Moments count from the start of the process: they differ from run to run.
        pgfollow::EventKind::OutageEnded { lasted_us, main_cause, unknown, .. } => {
            format!("an outage of {lasted_us} us is over: {main_cause:?}, {unknown} unknown outcomes")
        }
        pgfollow::EventKind::SessionEnded { host, cause, .. } => {
            format!("session on {host:?} ended: {cause}")
        }
        other => format!("{other:?}"),
    }
}
