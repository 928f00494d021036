//! The plan of one connect: which address is dialled when, and when the connect is over.
//!
//! Decides the order of hosts and addresses, the stagger of the race, the cool-down (nobody is dialled again and
//! again), what a second choice waits for, and when to stop. What one failure means is [`crate::decide::walk`]'s.
//! Bounds no time itself: the shell ends each dial at the deadline that [`Action::Dial`] carries and reports
//! [`crate::failure::Failure::TimedOut`]. `connect.rs` calls [`Attempt::start`], carries the actions out, and feeds what happens to
//! [`Attempt::step`], until [`Action::Finish`].

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rand::Rng;

use crate::clock::Moment;
use crate::config::{HostWalk, LoadBalanceHosts, SessionAttrs, SslMode};
use crate::decide::walk::{Step, TlsTry};
use crate::error::{Attempt as Record, Class, Code};
use crate::failure::Failed;
use crate::host::{Candidate, HostSpec};
use crate::net::{Family, ResolveError};

mod book;
mod lookup;
mod race;
mod strict;

use book::Book;
use race::Race;
use strict::OneByOne;

/// What shapes a connect.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whose rules.
    pub walk: HostWalk,
    /// sslmode.
    pub sslmode: SslMode,
    /// The wanted role.
    pub attrs: SessionAttrs,
    /// Whether the list is shuffled.
    pub load_balance: LoadBalanceHosts,
    /// Bounds one address from dial to role; `None`: no bound.
    pub connect_timeout: Option<Duration>,
    /// Head start of one candidate over the next while nothing is known of the network (`Tuning::stagger`).
    pub stagger: Duration,
    /// The least head start (`Tuning::stagger_min`).
    pub stagger_min: Duration,
    /// The round trip of the fastest known host.
    pub fastest_rtt: Option<Duration>,
    /// The known primary, while the topology is fresh: it is dialled alone, and the race starts when that fails or is
    /// slow. Ignored by `strict`.
    pub prefer: Option<Candidate>,
    /// How long the last login to `prefer` took, where that server suffers under logins just now; zero else.
    pub slow_login: Duration,
    /// The process's first write session: all candidates at once, and the winner is handed out when each has
    /// answered or failed, after this long at most (`Tuning::first_write_wait`). Ignored by `strict`.
    pub first_write: Option<Duration>,
    /// The directory of the platform's default socket, for an empty host.
    pub local_dir: PathBuf,
}

/// One dial of one connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DialId(pub u32);

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// A name gave addresses of one family (each look-up is answered once: with this or with `ResolveFailed`).
    Resolved {
        /// Index into the host list.
        spec: usize,
        /// Which look-up.
        family: Family,
        /// In the order given; empty is the same as [`ResolveError::NoData`].
        addresses: Vec<IpAddr>,
    },
    /// A look-up gave none.
    ResolveFailed {
        /// Index into the host list.
        spec: usize,
        /// Which look-up.
        family: Family,
        /// Why.
        error: ResolveError,
        /// Whether this process has resolved the name before.
        resolved_before: bool,
        /// The last good answer, which stays a candidate (`follow` only; empty where there is none).
        last_good: Vec<IpAddr>,
    },
    /// A dial failed; its socket is gone.
    Failed {
        /// Which.
        dial: DialId,
        /// How.
        failed: Failed,
        /// Whether the login ran inside TLS (true as well where it never came to the login).
        encrypted: bool,
        /// Whether that address was healthy within the last 60 s.
        healthy_lately: bool,
    },
    /// A dial gave a session of the wanted role ([`crate::decide::accept::Accept::Take`]).
    Accepted {
        /// Which.
        dial: DialId,
        /// Its term (timeline); 0 where it isn't known. Among several winners of a first write the highest wins,
        /// then the order of the list.
        term: u64,
    },
    /// A dial gave a session that will do if nothing better comes.
    SecondChoice {
        /// Which.
        dial: DialId,
    },
    /// [`Attempt::poll_timeout`] has passed.
    Timer,
}

/// What the shell must do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Look the name of this entry up, A and AAAA apart; each answer is fed as it comes. Once per entry and pass.
    Resolve {
        /// Index into the host list.
        spec: usize,
        /// The name.
        name: String,
    },
    /// Open a session: dial, TLS, login, role.
    Dial {
        /// Its number from now on.
        dial: DialId,
        /// Where.
        candidate: Candidate,
        /// How.
        tls: TlsTry,
        /// Everything up to the role must be done by then ([`Moment::NEVER`] without `connect_timeout`).
        deadline: Moment,
    },
    /// End this dial: close its socket, or its session politely. Nothing about it is fed any more.
    Abandon {
        /// Which.
        dial: DialId,
    },
    /// The connect is over; every other dial was abandoned before.
    Finish(Finish),
}

/// How a connect ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// With this dial's session.
    Winner {
        /// Which.
        dial: DialId,
        /// Whether it is only the second choice.
        second_choice: bool,
    },
    /// Without one. The attempts say why.
    Failed {
        /// The whole's number.
        code: Code,
        /// The whole's class.
        class: Class,
    },
}

/// The state of one connect.
#[derive(Debug)]
pub struct Attempt {
    book: Book,
    plan: Plan,
}

#[derive(Debug)]
enum Plan {
    Race(Race),
    OneByOne(OneByOne),
}

impl Attempt {
    /// A connect over this host list.
    pub fn new(specs: &[HostSpec], options: Options) -> Self {
        let plan = match options.walk {
            HostWalk::Follow => Plan::Race(Race::new(specs.len())),
            HostWalk::Strict => Plan::OneByOne(OneByOne::new()),
        };
        Self { book: Book::new(specs, options), plan }
    }

    /// Adds, for each entry of the host list, the addresses that its name gave last. `follow` dials them when the
    /// name servers are slow or fail; `strict` doesn't look at them.
    #[must_use]
    pub fn with_last_good(mut self, last_good: Vec<Vec<IpAddr>>) -> Self {
        if let Plan::Race(race) = &mut self.plan {
            race.set_last_good(last_good);
        }
        self
    }

    /// The first actions.
    pub fn start(&mut self, now: Moment, rng: &mut dyn Rng) -> Vec<Action> {
        self.book.shuffle(rng);
        match &mut self.plan {
            Plan::Race(race) => race.start(&mut self.book, now, rng),
            Plan::OneByOne(walk) => walk.start(&mut self.book, now),
        }
        self.book.take_actions()
    }

    /// Takes what happened and gives the next actions. After [`Action::Finish`] it gives none.
    pub fn step(&mut self, input: Input, now: Moment, rng: &mut dyn Rng) -> Vec<Action> {
        let input = match input {
            Input::Resolved { spec, family, addresses } if addresses.is_empty() => Input::ResolveFailed {
                spec,
                family,
                error: ResolveError::NoData,
                resolved_before: false,
                last_good: Vec::new(),
            },
            other => other,
        };
        if !self.book.finished() {
            match &mut self.plan {
                Plan::Race(race) => race.step(&mut self.book, input, now, rng),
                Plan::OneByOne(walk) => walk.step(&mut self.book, input, now, rng),
            }
        }
        self.book.take_actions()
    }

    /// When [`Input::Timer`] is due; [`Moment::NEVER`] if only something else can move the connect.
    pub fn poll_timeout(&self) -> Moment {
        match &self.plan {
            Plan::Race(race) if !self.book.finished() => race.timer(),
            _ => Moment::NEVER,
        }
    }

    /// Every attempt that has ended in failure, in the order in which they ended.
    pub fn attempts(&self) -> &[Record] {
        self.book.records()
    }

    /// What each of [`Self::attempts`] meant.
    pub fn steps(&self) -> &[Step] {
        self.book.steps()
    }
}
