//! A whole fleet fails over onto a node with cold caches: what it does to the node, as a curve.
//!
//! Each instance is a process with a connector of its own and so many workers, each of which wants a session and writes
//! one row a second under a deadline of its own. The node's capacity is the model's: logins and statements take their
//! turns on its processors, more slowly while it is cold, and a login that nobody waits for any more costs all the same.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgfollow::net::BoxFuture;
use pgfollow::tokio_postgres::{self, Client};
use pgfollow::{Connector, clock};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::net::SimDial;
use crate::node::{Node, Power};
use crate::run::{builder, in_simulated_time};
use crate::workload::insert;
use crate::world::{Model, World};

/// How the instances connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Through the library, with its defaults.
    On,
    /// Through the library, with no limit to the connect rate nor to logins at once, and without jitter.
    Off,
    /// Without any pace or jitter, through the driver alone: the hosts in turn, five seconds each, again after 100 ms.
    Plain,
}

/// The size of a fleet, and of the node that it falls upon.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// Processes.
    pub instances: usize,
    /// Sessions of each.
    pub sessions: usize,
    /// How they connect.
    pub pace: Pace,
    /// Everything that is left to chance.
    pub seed: u64,
    /// The servers.
    pub model: Model,
    /// A worker's patience with one statement.
    pub statement: Duration,
    /// How long the run lasts after the failover.
    pub lasts: Duration,
}

impl Fleet {
    /// A fleet that falls upon cold processors: one for each 400 sessions, two at least.
    pub fn new(instances: usize, sessions: usize, pace: Pace, seed: u64) -> Self {
        let model = Model {
            processes: instances,
            sync: false,
            cores: (instances * sessions / 400).max(2),
            cold_factor: 4,
            cold_us: 20_000_000,
            max_connections: 1_000_000,
            ..Model::default()
        };
        let (statement, lasts) = (Duration::from_secs(1), Duration::from_secs(60));
        Self { instances, sessions, pace, seed, model, statement, lasts }
    }
}

/// What happened in a tenth of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenth {
    /// Logins that the new primary finished, refused ones too.
    pub logins: u32,
    /// Writes that were acknowledged.
    pub successes: u32,
    /// Calls and connects that failed.
    pub failures: u32,
}

/// A fleet's failover.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Each tenth of a second from the promotion.
    pub tenths: Vec<Tenth>,
    /// From the promotion until every worker has written; `None` if some never did.
    pub back: Option<Duration>,
    /// What the node needs if one session comes behind the other, each to write once a second from then on.
    pub ideal: Duration,
    /// How often a worker that was back lost its session again.
    pub relapses: u32,
}

impl Curve {
    /// As lines: milliseconds, logins, successes, failures.
    pub fn csv(&self) -> String {
        let line =
            |(i, t): (usize, &Tenth)| format!("{},{},{},{}\n", i * 100, t.logins, t.successes, t.failures);
        let head = "ms,logins,successes,failures\n".to_owned();
        self.tenths.iter().enumerate().map(line).fold(head, |all, l| all + &l)
    }
}

#[derive(Default)]
struct Seen {
    /// When, and whether it was a success.
    calls: Vec<(Duration, bool)>,
    /// First success after the promotion, by worker.
    back: Vec<Option<Duration>>,
    relapses: u32,
    promoted: Option<Duration>,
}

/// Runs a fleet's failover.
///
/// # Panics
/// If the runtime can't be made.
pub fn fail_over(fleet: &Fleet) -> Curve {
    in_simulated_time(live(fleet))
}

async fn live(fleet: &Fleet) -> Curve {
    tokio::time::advance(Duration::from_secs(10)).await;
    let mut rng = StdRng::seed_from_u64(fleet.seed);
    let world = World::new(fleet.model.clone(), rng.random(), false);
    tokio::spawn(Arc::clone(&world).drive());
    let seen = Arc::new(Mutex::new(Seen::default()));
    for process in 0..fleet.instances {
        let door: Arc<dyn Door> = match fleet.pace {
            Pace::Plain => Arc::new(Plain { world: Arc::clone(&world), process }),
            pace => Arc::new(library(&world, process, pace, &mut rng)),
        };
        for _ in 0..fleet.sessions {
            let number = {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.back.push(None);
                seen.back.len() - 1
            };
            let worker = Worker {
                door: Arc::clone(&door),
                world: Arc::clone(&world),
                seen: Arc::clone(&seen),
                number,
                statement: fleet.statement,
                rng: StdRng::seed_from_u64(rng.random()),
            };
            tokio::spawn(worker.run());
        }
    }
    // Everybody is in, however long that takes a warm server.
    pause(Duration::from_secs(30)).await;
    world.with(|w| w.kill(0));
    pause(Duration::from_secs(1)).await;
    // Nobody waits there already logged in: all come at once.
    world.with(|w| w.promote_by_restart(1, 2_000_000));
    pause(Duration::from_millis(2_001)).await;
    let promoted = world.elapsed();
    seen.lock().unwrap_or_else(PoisonError::into_inner).promoted = Some(promoted);
    world.with(|w| w.follow(2, 1));
    pause(fleet.lasts).await;
    world.end();
    curve(fleet, &world, &seen.lock().unwrap_or_else(PoisonError::into_inner), promoted)
}

async fn pause(d: Duration) {
    clock::sleep_until(clock::now() + d).await;
}

fn curve(fleet: &Fleet, world: &World, seen: &Seen, promoted: Duration) -> Curve {
    let count = usize::try_from(fleet.lasts.as_millis() / 100).unwrap_or(0);
    let mut tenths = vec![Tenth::default(); count];
    let slot = |at: Duration| {
        let ms = at.checked_sub(promoted)?.as_millis();
        usize::try_from(ms / 100).ok().filter(|i| *i < count)
    };
    for (at, good) in &seen.calls {
        if let Some(i) = slot(*at) {
            if *good { tenths[i].successes += 1 } else { tenths[i].failures += 1 }
        }
    }
    world.with(|w| {
        for (at, node, _) in w.processes.iter().flat_map(|p| &p.logins) {
            if let (1, Some(i)) = (*node, slot(Duration::from_micros(*at))) {
                tenths[i].logins += 1;
            }
        }
    });
    let back: Option<Vec<Duration>> = seen.back.iter().copied().collect();
    let back = back.and_then(|all| all.into_iter().max()).map(|at| at - promoted);
    Curve { tenths, back, ideal: ideal(fleet), relapses: seen.relapses }
}

/// The sessions one behind the other, as the processors come free: a login, its set-up, and a write a second from then on.
fn ideal(fleet: &Fleet) -> Duration {
    let model = &fleet.model;
    let mut node = Node::new(1, model);
    node.power = Power::Up;
    node.cools(0);
    let mut writes: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut last = 0;
    for session in 0..fleet.instances * fleet.sessions {
        let mut now = node.free_at();
        while let Some((due, who)) = writes.pop_first() {
            if due > now {
                writes.insert((due, who));
                break;
            }
            let done = node.work(model.statement_us, now, model);
            writes.insert((done + 1_000_000, who));
            now = node.free_at();
        }
        let done = node.work(model.login_us + 2 * model.statement_us, now, model);
        writes.insert((done + 1_000_000, session));
        last = last.max(done);
    }
    Duration::from_micros(last)
}

/// How a worker comes by a session.
trait Door: Send + Sync {
    fn open(&self) -> BoxFuture<'_, Option<Held>>;
}

/// A session of the library's, or of the driver alone.
enum Held {
    Session(Box<pgfollow::Session>),
    Client(Client),
}

impl Held {
    fn client(&self) -> &Client {
        match self {
            Self::Session(s) => s,
            Self::Client(c) => c,
        }
    }

    fn usable(&self) -> bool {
        match self {
            Self::Session(s) => s.is_usable(),
            Self::Client(c) => !c.is_closed(),
        }
    }
}

fn library(world: &Arc<World>, process: usize, pace: Pace, rng: &mut StdRng) -> Connector {
    let mut builder = builder("db-0,db-1,db-2", world, process, rng);
    if pace == Pace::Off {
        let all_at_once = |t: &mut pgfollow::config::Tuning| (t.jitter, t.handshakes) = (0.0, usize::MAX);
        builder = builder.set("max_connect_rate", "100000").config(|c| c.tuning(all_at_once));
    }
    builder.build().expect("the configuration is right")
}

impl Door for Connector {
    fn open(&self) -> BoxFuture<'_, Option<Held>> {
        Box::pin(async move {
            let session = self.connect_within(Duration::from_secs(5)).await.ok()?;
            Some(Held::Session(Box::new(session)))
        })
    }
}

/// The hosts in turn, as libpq would.
struct Plain {
    world: Arc<World>,
    process: usize,
}

impl Plain {
    async fn one(&self, node: u8) -> Option<Client> {
        let client = SimDial::new(&self.world, self.process).bare_client(node).await?;
        let answer = client.simple_query("SHOW transaction_read_only").await.ok()?;
        let writable = answer.iter().any(|m| match m {
            tokio_postgres::SimpleQueryMessage::Row(r) => r.get(0) == Some("off"),
            _ => false,
        });
        writable.then_some(client)
    }
}

impl Door for Plain {
    fn open(&self) -> BoxFuture<'_, Option<Held>> {
        Box::pin(async move {
            for node in 0..3 {
                if let Ok(Some(client)) = tokio::time::timeout(Duration::from_secs(5), self.one(node)).await {
                    return Some(Held::Client(client));
                }
            }
            None
        })
    }
}

struct Worker {
    door: Arc<dyn Door>,
    world: Arc<World>,
    seen: Arc<Mutex<Seen>>,
    number: usize,
    statement: Duration,
    rng: StdRng,
}

impl Worker {
    async fn run(mut self) {
        let mut held: Option<Held> = None;
        let mut row = i64::try_from(self.number).unwrap_or(0) * 1_000_000;
        // They don't start in step; an outage brings them into it.
        pause(Duration::from_micros(self.rng.random_range(0..1_000_000))).await;
        loop {
            if held.as_ref().is_none_or(|h| !h.usable()) {
                held = self.door.open().await;
            }
            let Some(h) = &held else {
                self.note(false);
                pause(Duration::from_millis(100)).await;
                continue;
            };
            row += 1;
            let sql = insert(row);
            let call = tokio::time::timeout(self.statement, h.client().batch_execute(&sql));
            let good = matches!(call.await, Ok(Ok(())));
            self.note(good);
            if good {
                pause(Duration::from_secs(1)).await;
            } else {
                held = None;
            }
        }
    }

    fn note(&self, good: bool) {
        let at = self.world.elapsed();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.calls.push((at, good));
        if seen.promoted.is_none() {
            return;
        }
        match (good, seen.back[self.number]) {
            (true, None) => seen.back[self.number] = Some(at),
            (false, Some(_)) => seen.relapses += 1,
            _ => {}
        }
    }
}
