//! `host_walk=strict`: one dial after another, in libpq's order (`fe-connect.c`, PQconnectPoll, `keep_going`).
//!
//! Decides which host or address comes next and when the second pass of prefer-standby begins. A name is looked up
//! when its turn comes. Two things differ from libpq, neither in the result: the first family's answer is dialled
//! without waiting for the other's, and an address that the list names twice is dialled once a pass.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use rand::{Rng, RngExt};

use super::book::Book;
use super::lookup::LookUp;
use super::{DialId, Input};
use crate::clock::Moment;
use crate::config::SessionAttrs;
use crate::decide::place::Place;
use crate::decide::walk::{Next, TlsTry};
use crate::error::Stage;
use crate::failure::{Failed, Failure};
use crate::host::Address;
use crate::net::Family;

#[derive(Debug)]
pub(super) struct OneByOne {
    /// How many entries of the order have had their turn in this pass, the present one included.
    turn: usize,
    second_pass: bool,
    look_up: Option<LookUp>,
    addresses: VecDeque<Address>,
    dialled: Vec<Address>,
    current: Option<DialId>,
}

impl OneByOne {
    pub(super) fn new() -> Self {
        Self {
            turn: 0,
            second_pass: false,
            look_up: None,
            addresses: VecDeque::new(),
            dialled: Vec::new(),
            current: None,
        }
    }

    pub(super) fn start(&mut self, book: &mut Book, now: Moment) {
        self.next_host(book, now);
    }

    pub(super) fn step(&mut self, book: &mut Book, input: Input, now: Moment, rng: &mut dyn Rng) {
        match input {
            Input::Resolved { spec, family, addresses } if self.has_turn(book, spec) => {
                self.resolved(book, spec, family, addresses, now, rng);
            }
            Input::ResolveFailed { spec, family, error, resolved_before, .. }
                if self.has_turn(book, spec) =>
            {
                let Some(look_up) = &mut self.look_up else { return };
                if book.resolve_failed(spec, look_up, family, error, resolved_before, now) {
                    self.next_host(book, now);
                } else if self.current.is_none() {
                    // Perhaps the other family's addresses have all been tried.
                    self.next_address(book, now);
                }
            }
            Input::Failed { dial, failed, encrypted, healthy_lately } if self.current == Some(dial) => {
                let step = book.dial_failed(dial, &failed, encrypted, healthy_lately, now);
                match step.next {
                    Next::NextAddress => self.next_address(book, now),
                    Next::NextHost => self.next_host(book, now),
                    Next::PlainSameHost => self.current = Some(book.redial(dial, TlsTry::Plain, now)),
                    Next::TlsSameHost => self.current = Some(book.redial(dial, TlsTry::Tls, now)),
                    Next::Stop => book.fail(Some(step)),
                }
            }
            Input::Accepted { dial, .. } if self.current == Some(dial) => book.win(dial, false),
            Input::SecondChoice { dial } if self.current == Some(dial) => {
                if self.second_pass {
                    return book.win(dial, true);
                }
                // libpq closes it, goes on, and comes back to it in the second pass.
                book.abandon(dial);
                let wanted = SessionAttrs::PreferStandby;
                let failure = Failure::WrongRole { wanted, seen: "not in recovery" };
                book.dial_failed(dial, &Failed::new(Stage::Role, failure), true, false, now);
                self.next_host(book, now);
            }
            // A late word about a host that has had its turn, or about a dial that was given up.
            _ => {}
        }
    }

    fn has_turn(&self, book: &Book, spec: usize) -> bool {
        self.turn > 0 && book.order.get(self.turn - 1) == Some(&spec)
    }

    fn resolved(
        &mut self,
        book: &mut Book,
        spec: usize,
        family: Family,
        found: Vec<IpAddr>,
        now: Moment,
        rng: &mut dyn Rng,
    ) {
        if !self.look_up.as_mut().is_some_and(|l| l.resolved(family)) {
            return;
        }
        for ip in found {
            let address = Address::Tcp(SocketAddr::new(ip, book.port(spec)));
            let at =
                if book.random() { rng.random_range(0..=self.addresses.len()) } else { self.addresses.len() };
            self.addresses.insert(at, address);
        }
        if self.current.is_none() {
            self.next_address(book, now);
        }
    }

    /// To the next address of this host; past the last one, to the next host.
    fn next_address(&mut self, book: &mut Book, now: Moment) {
        self.current = None;
        while let Some(address) = self.addresses.pop_front() {
            if !self.dialled.contains(&address) {
                self.dialled.push(address.clone());
                let spec = book.order[self.turn - 1];
                let candidate = book.candidate(spec, address);
                self.current = Some(book.dial(candidate, now));
                return;
            }
        }
        if !self.look_up.as_ref().is_some_and(LookUp::pending) {
            self.next_host(book, now);
        }
    }

    fn next_host(&mut self, book: &mut Book, now: Moment) {
        self.current = None;
        loop {
            self.addresses.clear();
            self.look_up = None;
            if self.turn == book.order.len() {
                if book.options.attrs != SessionAttrs::PreferStandby || self.second_pass {
                    return book.fail(None);
                }
                self.second_pass = true;
                self.turn = 0;
                self.dialled.clear();
            }
            let Some(&spec) = book.order.get(self.turn) else { return book.fail(None) };
            self.turn += 1;
            match book.place(spec) {
                Place::Known(address) => {
                    self.addresses.push_back(address);
                    return self.next_address(book, now);
                }
                Place::Name(name, _) => {
                    self.look_up = Some(LookUp::new(now));
                    return book.resolve(spec, name);
                }
                Place::Bad(failure) => {
                    let step = book.spec_failed(spec, failure, false, now, now);
                    if step.next == Next::Stop {
                        return book.fail(Some(step));
                    }
                }
            }
        }
    }
}
