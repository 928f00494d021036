//! `host_walk=follow`: a staggered race over every address of every host.
//!
//! Decides who starts when, who is left out (an address already tried in this connect), how long a session in hand
//! waits for a better one, and when everybody has had a turn. Never waits for a slow name server while there is
//! another host to dial, beyond the short time that keeps the order of the list.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rand::{Rng, RngExt};

use super::book::{Book, State};
use super::lookup::LookUp;
use super::{DialId, Input};
use crate::clock::Moment;
use crate::decide::place::Place;
use crate::decide::walk::{Next, TlsTry};
use crate::host::Address;

/// How long later entries of the list, and last good addresses, wait for a look-up: with all look-ups out at once the
/// faster answer would else change the order of the list by chance. RFC 8305, section 3, waits as long for a second
/// family.
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// Round trips that a whole login takes: TCP 1, TLS 2, SCRAM 3, set-up 1, and one to spare. The known primary is left
/// alone for that long, so that a healthy connect over a slow network dials nobody else.
const LOGIN_ROUND_TRIPS: u32 = 8;

/// The known primary is left alone for that many times what its last login took: under a whole fleet's logins it is slow,
/// not dead, and each dial to another host would be a login that the next callers' are put off for.
const SLOW_LOGINS: u32 = 2;

/// What a second choice waits for at most where `connect_timeout` sets no bound (pgfollow's default for it).
const SECOND_CHOICE_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Race {
    started: Moment,
    /// Whether the known primary is being dialled alone, and until when.
    alone_until: Option<Moment>,
    begun: bool,
    /// For each entry of the list: its look-up, and its addresses that wait.
    look_ups: Vec<Option<LookUp>>,
    waiting: Vec<Vec<Address>>,
    last_good: Vec<Vec<IpAddr>>,
    /// The next start, unless somebody fails before.
    next_start: Moment,
    /// Since when a second choice is in hand.
    second_since: Option<Moment>,
    timer: Moment,
}

impl Race {
    pub(super) fn new(specs: usize) -> Self {
        Self {
            started: Moment::ZERO,
            alone_until: None,
            begun: false,
            look_ups: (0..specs).map(|_| None).collect(),
            waiting: vec![Vec::new(); specs],
            last_good: vec![Vec::new(); specs],
            next_start: Moment::ZERO,
            second_since: None,
            timer: Moment::NEVER,
        }
    }

    pub(super) fn set_last_good(&mut self, mut last_good: Vec<Vec<IpAddr>>) {
        last_good.resize(self.waiting.len(), Vec::new());
        self.last_good = last_good;
    }

    pub(super) fn timer(&self) -> Moment {
        self.timer
    }

    pub(super) fn start(&mut self, book: &mut Book, now: Moment, rng: &mut dyn Rng) {
        self.started = now;
        self.next_start = now;
        match book.options.prefer.clone() {
            Some(known) if book.options.first_write.is_none() => {
                let login = book.options.fastest_rtt.map_or(Duration::ZERO, |rtt| rtt * LOGIN_ROUND_TRIPS);
                let suffers = book.options.slow_login * SLOW_LOGINS;
                let head_start = now + book.options.stagger.max(login).max(suffers);
                book.dial(known, now);
                self.alone_until = Some(head_start);
            }
            _ => self.begin(book, now),
        }
        self.advance(book, now, rng);
    }

    pub(super) fn step(&mut self, book: &mut Book, input: Input, now: Moment, rng: &mut dyn Rng) {
        match input {
            Input::Resolved { spec, family, addresses } => {
                let awaited = self.look_up(spec).is_some_and(|l| l.resolved(family));
                if awaited {
                    self.add(book, spec, addresses, rng);
                }
            }
            Input::ResolveFailed { spec, family, error, resolved_before, last_good } => {
                let Some(look_up) = self.look_up(spec) else { return };
                book.resolve_failed(spec, look_up, family, error, resolved_before, now);
                if !look_up.gave() {
                    self.add(book, spec, last_good, rng);
                }
            }
            Input::Failed { dial, failed, encrypted, healthy_lately } if book.awaited(dial) => {
                let step = book.dial_failed(dial, &failed, encrypted, healthy_lately, now);
                match step.next {
                    Next::NextAddress | Next::NextHost => {
                        self.next_start = now;
                        self.begin(book, now);
                    }
                    Next::PlainSameHost => {
                        book.redial(dial, TlsTry::Plain, now);
                    }
                    Next::TlsSameHost => {
                        book.redial(dial, TlsTry::Tls, now);
                    }
                    // A session in hand is worth more than the rule.
                    Next::Stop => match best(book) {
                        Some((dial, second_choice)) => return book.win(dial, second_choice),
                        None => return book.fail(Some(step)),
                    },
                }
            }
            Input::Accepted { dial, term } if book.awaited(dial) => book.set(dial, State::Winner { term }),
            Input::SecondChoice { dial } if book.awaited(dial) => {
                book.set(dial, State::Second);
                self.second_since.get_or_insert(now);
                self.next_start = now;
                self.begin(book, now);
            }
            // A late word about a dial that was given up, or a timer: time itself is looked at below.
            _ => {}
        }
        self.advance(book, now, rng);
    }

    fn look_up(&mut self, spec: usize) -> Option<&mut LookUp> {
        self.look_ups.get_mut(spec)?.as_mut()
    }

    /// Lets everybody in. The known primary, if one was dialled alone, stays in the race.
    fn begin(&mut self, book: &mut Book, now: Moment) {
        if self.begun {
            return;
        }
        self.begun = true;
        self.alone_until = None;
        for spec in book.order.clone() {
            match book.place(spec) {
                Place::Known(address) => self.waiting[spec] = vec![address],
                Place::Name(name, _) => {
                    self.look_ups[spec] = Some(LookUp::new(now));
                    book.resolve(spec, name);
                }
                Place::Bad(failure) => {
                    book.spec_failed(spec, failure, false, now, now);
                }
            }
        }
    }

    fn add(&mut self, book: &Book, spec: usize, found: Vec<IpAddr>, rng: &mut dyn Rng) {
        for ip in found {
            let address = Address::Tcp(SocketAddr::new(ip, book.port(spec)));
            let waiting = &mut self.waiting[spec];
            if !waiting.contains(&address) {
                let at = if book.random() { rng.random_range(0..=waiting.len()) } else { waiting.len() };
                waiting.insert(at, address);
            }
        }
    }

    /// Looks at the time: starts who may start, ends the connect if it is over, sets the timer.
    fn advance(&mut self, book: &mut Book, now: Moment, rng: &mut dyn Rng) {
        self.timer = Moment::NEVER;
        if self.alone_until.is_some_and(|t| t <= now) {
            self.begin(book, now);
        }
        if let Some(t) = self.alone_until {
            self.timer = t;
        }
        self.use_last_good(book, now, rng);
        let all_at_once = book.options.first_write.is_some();
        if winner(book).is_none() || all_at_once {
            while let Some((spec, index)) = self.next(book, now) {
                if !all_at_once && now < self.next_start {
                    self.timer = self.timer.min(self.next_start);
                    break;
                }
                let address = self.waiting[spec].remove(index);
                book.dial(book.candidate(spec, address), now);
                self.next_start = now + stagger(book);
            }
        }
        self.end(book, now);
    }

    /// A name server that is silent or slow doesn't keep us from addresses that were good.
    fn use_last_good(&mut self, book: &Book, now: Moment, rng: &mut dyn Rng) {
        for spec in 0..self.last_good.len() {
            let Some(l) = &self.look_ups[spec] else { continue };
            if l.gave() || self.last_good[spec].is_empty() {
                continue;
            }
            let due = l.started + RESOLUTION_DELAY;
            if now >= due || !l.pending() {
                let addresses = std::mem::take(&mut self.last_good[spec]);
                self.add(book, spec, addresses, rng);
            } else {
                self.timer = self.timer.min(due);
            }
        }
    }

    /// The next candidate that may start but for the stagger: its entry, and its index among those that wait there.
    fn next(&mut self, book: &Book, now: Moment) -> Option<(usize, usize)> {
        for &spec in &book.order {
            self.waiting[spec].retain(|address| standing(book, spec, address) != Standing::Tried);
            let mut free: Vec<usize> = (0..self.waiting[spec].len())
                .filter(|&i| standing(book, spec, &self.waiting[spec][i]) == Standing::Free)
                .collect();
            if !book.random() {
                // RFC 8305, section 4: the families take turns.
                let last = book.dials.iter().rev().find(|d| d.candidate.spec == spec);
                let last_v6 = last.map(|d| is_v6(&d.candidate.address));
                free.sort_by_key(|&i| last_v6 == Some(is_v6(&self.waiting[spec][i])));
            }
            if let Some(&i) = free.first() {
                return Some((spec, i));
            }
            if let Some(l) = &self.look_ups[spec]
                && l.pending()
                && !l.gave()
                && book.options.first_write.is_none()
                && !book.dials.iter().any(|d| d.candidate.spec == spec)
            {
                // Its answer may be a moment away: those behind it wait that moment.
                let until = l.started + RESOLUTION_DELAY;
                if now < until {
                    self.timer = self.timer.min(until);
                    return None;
                }
            }
        }
        None
    }

    /// Ends the connect if nothing better can come, or in time.
    fn end(&mut self, book: &mut Book, now: Moment) {
        // Whoever waits is dialled as soon as nobody is under way any more, so those need no look here.
        let busy = book.under_way() || !self.begun || self.look_ups.iter().flatten().any(LookUp::pending);
        let in_hand = best(book);
        let Some((dial, second_choice)) = in_hand else {
            if !busy {
                book.fail(None);
            }
            return;
        };
        let until = if second_choice {
            let wait = book.options.connect_timeout.unwrap_or(SECOND_CHOICE_WAIT);
            self.second_since.unwrap_or(now) + wait
        } else {
            book.options.first_write.map_or(now, |wait| self.started + wait)
        };
        if !busy || until <= now {
            book.win(dial, second_choice);
        } else {
            self.timer = self.timer.min(until);
        }
    }
}

/// How an address that waits stands to those that were dialled.
#[derive(PartialEq, Eq)]
enum Standing {
    Free,
    /// Somebody is there just now; what comes of it decides.
    Busy,
    /// Nobody is dialled again in one connect.
    Tried,
}

/// The same address under another name is only worth a dial where the certificate didn't fit the first name.
fn standing(book: &Book, spec: usize, address: &Address) -> Standing {
    let mut standing = Standing::Free;
    let name = book.specs[spec].label();
    for d in book.dials.iter().filter(|d| d.candidate.address == *address) {
        match d.state {
            State::UnderWay => standing = Standing::Busy,
            State::Failed { identity: true } if *d.candidate.name != *name => {}
            _ => return Standing::Tried,
        }
    }
    standing
}

fn is_v6(address: &Address) -> bool {
    matches!(address, Address::Tcp(SocketAddr::V6(_)))
}

fn stagger(book: &Book) -> Duration {
    let o = &book.options;
    o.fastest_rtt.map_or(o.stagger, |rtt| rtt * 2).max(o.stagger_min)
}

/// The best session of the wanted role in hand: the highest term, then the order of the list.
fn winner(book: &Book) -> Option<DialId> {
    let in_hand = book.dials.iter().enumerate().filter_map(|(n, d)| match d.state {
        State::Winner { term } => Some((std::cmp::Reverse(term), place(book, d.candidate.spec), n)),
        _ => None,
    });
    in_hand.min().map(|(_, _, n)| DialId(u32::try_from(n).unwrap_or(u32::MAX)))
}

/// The best session in hand, and whether it is only a second choice.
fn best(book: &Book) -> Option<(DialId, bool)> {
    if let Some(dial) = winner(book) {
        return Some((dial, false));
    }
    let in_hand = book.dials.iter().enumerate().filter(|(_, d)| d.state == State::Second);
    let first = in_hand.map(|(n, d)| (place(book, d.candidate.spec), n)).min()?;
    Some((DialId(u32::try_from(first.1).unwrap_or(u32::MAX)), true))
}

fn place(book: &Book, spec: usize) -> usize {
    book.order.iter().position(|&s| s == spec).unwrap_or(usize::MAX)
}
