//! The connector's names: who is asked when, and what the answers were.
//!
//! The shell around [`crate::decide::names`] (the book) and a [`Resolve`] (the asking). Connects ask for themselves
//! ([`LookUp::now`]); the monitor's task keeps the book fresh ([`LookUp::refresh`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::clock::{self, Moment};
use crate::config::Config;
use crate::decide::names::{NameReport, Names};
use crate::decide::place::{self, Place};
use crate::decide::topology::Input;
use crate::host::{Address, Candidate};
use crate::lock;
use crate::monitor::Monitor;
use crate::net::{Family, Resolve, ResolveError};
use crate::resolve::numbered;

/// The names of one connector.
pub(crate) struct LookUp {
    resolver: Arc<dyn Resolve>,
    book: Mutex<(Names, StdRng)>,
    /// Every entry of the host list that has a name to look up: index, name, port.
    named: Vec<(usize, String, u16)>,
}

impl LookUp {
    pub(crate) fn new(config: &Config, resolver: Arc<dyn Resolve>, seed: u64) -> Self {
        let named = places(config).filter_map(|(spec, place)| match place {
            Place::Name(name, port) => Some((spec, name, port)),
            Place::Known(_) | Place::Bad(_) => None,
        });
        let named: Vec<_> = named.collect();
        let names = Names::new(named.iter().map(|(_, n, _)| n.clone()), clock::now());
        Self { resolver, book: Mutex::new((names, StdRng::seed_from_u64(seed))), named }
    }

    /// Looks a name up now and notes the answer.
    pub(crate) async fn now(&self, name: &str, family: Family) -> Result<Vec<IpAddr>, ResolveError> {
        let answer = self.resolver.resolve(name, family).await;
        let now = clock::now();
        let (names, _) = &mut *lock(&self.book);
        match answer {
            Ok(a) => {
                let addresses = a.addresses.clone();
                names.answered(name, family, a, now);
                Ok(addresses)
            }
            Err(e) => {
                names.failed(name, family, e.clone(), now);
                Err(e)
            }
        }
    }

    /// Whether this process has resolved the name before.
    pub(crate) fn known_before(&self, name: &str) -> bool {
        lock(&self.book).0.known_before(name)
    }

    /// The addresses that a name gave last, whatever it says now.
    pub(crate) fn last_good(&self, name: &str, family: Family) -> Vec<IpAddr> {
        let of = |a: &IpAddr| a.is_ipv4() == (family == Family::V4);
        lock(&self.book).0.candidates(name).into_iter().map(|(a, _)| a).filter(of).collect()
    }

    /// A search for the primary began or ended.
    pub(crate) fn search(&self, running: bool, now: Moment) {
        let (names, rng) = &mut *lock(&self.book);
        if running { names.search_started(now) } else { names.search_ended(now, rng) }
    }

    /// Asks what is due, in the background, and says when to come again.
    pub(crate) fn refresh(self: &Arc<Self>, monitor: &Arc<Monitor>) -> Moment {
        let now = clock::now();
        // Before the book is locked: the monitor calls `search` while it holds its own lock.
        let primary = monitor.primary();
        let (due, next) = {
            let (names, rng) = &mut *lock(&self.book);
            if let Some((Candidate { address: Address::Tcp(a), .. }, true)) = primary {
                names.primary_is(a.ip(), now);
            }
            names.tidy(now);
            let due = names.due(now, rng);
            (due, names.next_due())
        };
        for question in due {
            let (me, monitor) = (Arc::clone(self), Arc::clone(monitor));
            tokio::spawn(async move {
                let answer = me.resolver.resolve(&question.name, question.family).await;
                let now = clock::now();
                let server = answer.as_ref().ok().and_then(|a| a.server);
                {
                    let (names, _) = &mut *lock(&me.book);
                    match answer {
                        Ok(a) => names.answered(&question.name, question.family, a, now),
                        Err(e) => names.failed(&question.name, question.family, e, now),
                    }
                }
                if let Some(server) = server {
                    monitor.feed(Input::NameServerAnswered { local: server.ip().is_loopback() });
                }
                me.tell(&question.name, &monitor);
            });
        }
        next
    }

    /// Tells the monitor what a name's addresses are.
    fn tell(&self, name: &str, monitor: &Arc<Monitor>) {
        let addresses = lock(&self.book).0.candidates(name);
        for (spec, n, port) in self.named.iter().filter(|(_, n, _)| n == name) {
            for (ip, fresh) in &addresses {
                let to = Candidate {
                    spec: *spec,
                    name: n.as_str().into(),
                    address: Address::Tcp(SocketAddr::new(*ip, *port)),
                };
                if *fresh {
                    monitor.known(&to);
                } else {
                    let (host, _) = monitor.place(&to);
                    monitor.feed(Input::AddressGone { host });
                }
            }
        }
    }

    /// What is known of each name.
    pub(crate) fn report(&self) -> Vec<NameReport> {
        lock(&self.book).0.report(clock::now())
    }
}

/// Where each entry of the host list leads.
fn places(config: &Config) -> impl Iterator<Item = (usize, Place)> {
    config.hosts.iter().map(|h| place::of(&numbered(h), &config.local_socket_dir)).enumerate()
}

/// The entries that need no look-up.
pub(crate) fn fixed(config: &Config) -> Vec<Candidate> {
    let known = places(config).filter_map(|(spec, place)| match place {
        Place::Known(address) => Some(Candidate { spec, name: config.hosts[spec].label().into(), address }),
        Place::Name(..) | Place::Bad(_) => None,
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::TcpDial;
    use crate::net::{Answer, BoxFuture};
    use crate::open::Opener;
    use std::time::Duration;

    struct Nobody;

    impl Resolve for Nobody {
        fn resolve<'a>(&'a self, _: &'a str, _: Family) -> BoxFuture<'a, Result<Answer, ResolveError>> {
            Box::pin(async { Err(ResolveError::NoSuchName) })
        }
    }

    /// The search begins and ends under the topology's lock and moves the names' times; the names' round asks who is
    /// primary.
    #[test]
    fn a_search_that_begins_during_a_round_of_look_ups_blocks_nobody_for_ever() {
        let config = Arc::new(Config::parse("host=a,b user=u dbname=d").expect("a configuration"));
        let opener = Arc::new(Opener::new(Arc::clone(&config), Arc::new(TcpDial)).expect("an opener"));
        let look_up = Arc::new(LookUp::new(&config, Arc::new(Nobody), 1));
        let monitor = Monitor::new(Arc::clone(&config), opener, Arc::clone(&look_up), 1);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (done, both) = std::sync::mpsc::channel();
        let loops: [Box<dyn Fn(u32) + Send>; 2] = [
            Box::new({
                let m = Arc::clone(&monitor);
                move |i| m.feed(Input::SessionWanted { callers: i % 2 })
            }),
            Box::new({
                let m = Arc::clone(&monitor);
                move |_| assert!(look_up.refresh(&m) > Moment::ZERO)
            }),
        ];
        {
            let _in = runtime.enter();
            let address = Address::Tcp(([127, 0, 0, 1], 1).into());
            monitor.known(&Candidate { spec: 0, name: "a".into(), address });
        }
        for turn in loops {
            let (done, handle) = (done.clone(), runtime.handle().clone());
            std::thread::spawn(move || {
                let _in = handle.enter();
                (0..100_000).for_each(turn);
                // Nobody listens once the test has failed.
                let _ = done.send(());
            });
        }
        for _ in 0..2 {
            let end = both.recv_timeout(Duration::from_secs(60));
            if end.is_err() {
                // Its threads wait for each other: it could not be dropped.
                std::mem::forget(runtime);
                panic!("the topology and the names wait for each other");
            }
        }
    }
}
