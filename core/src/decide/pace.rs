//! How fast one process logs in: two handshakes at once to a host, a rate for all of them together, slower where the
//! servers suffer.
//!
//! Decides which of the waiting logins may begin, and when to look again. [`crate::pace`] keeps their callers waiting.
//! Rules: a token bucket (`max_connect_rate`, burst 2). A login that took over three times as long as that host's logins
//! do in health, a full server (53300) and one that starts or stops (57P03) halve the rate (at least 2/s stay); each
//! calm second adds one, and so does each login that was quick: those left over by a storm shall not wait for seconds at
//! a server that is well again. One that began before the last halving halves nothing: it stood in the queue of before. A
//! login that would outlast its caller's patience, by how long the last one took, isn't begun. The first login after a new
//! primary was found waits for nothing. Logins that a walk makes beside its first one are paid for afterwards: over any
//! time, logins ≤ rate × seconds + burst + one walk's hosts a failover.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rand::{Rng, RngExt};

use crate::clock::Moment;
use crate::host::HostId;

/// Logins at once to one host. A login costs the server CPU (SCRAM: 4 ms); done side by side by a whole process, all
/// would end late together, the first one too.
pub(crate) const HANDSHAKES: usize = 2;
/// Logins that may begin at once after a pause.
const BURST: f64 = 2.0;
/// The rate is never halved below this, in logins a second. Two at once to a host is the real brake on a server that
/// suffers: it slows us down just as much as it is slow. At one a second, 40 processes left a third of a cold node idle.
const FLOOR: f64 = 2.0;
/// A login this many times slower than in health shows a server that suffers.
const SLOW: u32 = 3;
/// Logins quicker than this are never called slow: nobody suffers, and a busy client machine looks the same.
const NOT_SLOW: Duration = Duration::from_millis(25);
/// Bad news within this of the last halving is the same news.
const SAME_NEWS: Duration = Duration::from_millis(500);
/// How long the last login took says something of the next one for so long.
const FRESH: Duration = Duration::from_secs(1);
/// Each calm one of these adds one login a second.
const CALM: Duration = Duration::from_secs(1);

/// A login that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What a login costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Price {
    /// It waits for a token.
    Token,
    /// It begins at once and its token is taken later: it belongs to a connect that has begun.
    Later,
    /// Its token was taken before ([`Price::Token`] without a host).
    Paid,
}

/// How a login ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It took that long, dial to role.
    LoggedIn(Duration),
    /// The server refused it because it is full, starting or stopping.
    Refused,
    /// In any other way, which says nothing of the server's strength.
    Otherwise,
    /// It was let begin, and never did.
    NotBegun,
}

#[derive(Debug)]
struct Asked {
    ticket: Ticket,
    host: Option<HostId>,
    price: Price,
}

#[derive(Debug, Default)]
struct Host {
    under_way: usize,
    healthy: Option<Duration>,
    /// How long the last login took, and when it ended.
    last: Option<(Duration, Moment)>,
}

/// The governor of one connector.
#[derive(Debug)]
pub struct Pace {
    most: f64,
    handshakes: usize,
    rate: f64,
    tokens: f64,
    filled: Moment,
    /// When the rate last changed, or would have.
    changed: Moment,
    jitter: f64,
    /// Share of an interval by which the next token is held back, drawn anew for each.
    lag: f64,
    /// The next login waits for no token: it is the first one to a new primary.
    pass: bool,
    next: u64,
    queue: VecDeque<Asked>,
    running: BTreeMap<Ticket, Option<HostId>>,
    granted: BTreeSet<Ticket>,
    hosts: BTreeMap<HostId, Host>,
}

impl Pace {
    /// `most`: logins a second; `jitter`: the share by which each token is held back at random.
    pub fn new(most: f64, jitter: f64, now: Moment) -> Self {
        Self {
            most,
            handshakes: HANDSHAKES,
            rate: most,
            tokens: BURST,
            filled: now,
            changed: now,
            jitter,
            lag: 0.0,
            pass: false,
            next: 0,
            queue: VecDeque::new(),
            running: BTreeMap::new(),
            granted: BTreeSet::new(),
            hosts: BTreeMap::new(),
        }
    }

    /// With that many logins at once to one host instead of two.
    #[must_use]
    pub fn handshakes(self, at_once: usize) -> Self {
        Self { handshakes: at_once.max(1), ..self }
    }

    /// A login to `host` wants to begin (without a host: a connect whose first host isn't known yet).
    pub fn ask(&mut self, host: Option<HostId>, price: Price) -> Ticket {
        self.next += 1;
        let ticket = Ticket(self.next);
        self.queue.push_back(Asked { ticket, host, price });
        ticket
    }

    /// The logins that may begin now.
    pub fn poll(&mut self, now: Moment, rng: &mut impl Rng) -> Vec<Ticket> {
        self.fill(now);
        let mut begin = Vec::new();
        let mut waiting = VecDeque::with_capacity(self.queue.len());
        // One that waits for a token holds back all behind it that want one; one whose host is busy holds back none.
        let mut dry = false;
        for asked in std::mem::take(&mut self.queue) {
            let Asked { ticket, host, price } = asked;
            let busy = host.is_some_and(|h| self.under_way(h) >= self.handshakes);
            let pays = price == Price::Token && !self.pass;
            if busy || (pays && (dry || !self.token_ready())) {
                dry |= pays && !busy;
                waiting.push_back(asked);
                continue;
            }
            if price != Price::Paid {
                self.tokens -= 1.0;
                self.lag = if self.tokens < 1.0 { rng.random_range(0.0..=self.jitter) } else { 0.0 };
            }
            if price == Price::Token {
                self.pass = false;
            }
            if let Some(h) = host {
                self.hosts.entry(h).or_default().under_way += 1;
            }
            self.running.insert(ticket, host);
            self.granted.insert(ticket);
            begin.push(ticket);
        }
        self.queue = waiting;
        begin
    }

    /// Whether this login may begin. Says yes once.
    pub fn taken(&mut self, ticket: Ticket) -> bool {
        self.granted.remove(&ticket)
    }

    /// The first one that waits for nothing but a token.
    pub fn first_in_line(&self) -> Option<Ticket> {
        let waits = |a: &&Asked| {
            a.price == Price::Token && a.host.is_none_or(|h| self.under_way(h) < self.handshakes)
        };
        self.queue.iter().find(waits).map(|a| a.ticket)
    }

    /// When [`Self::poll`] may have something new, unless a login ends before.
    pub fn next(&self) -> Moment {
        if self.first_in_line().is_none() {
            return Moment::NEVER;
        }
        let missing = (1.0 + self.lag - self.tokens).max(0.0) / self.rate;
        // A microsecond more, so that rounding never wakes too early for nothing.
        self.filled + Duration::from_secs_f64(missing) + Duration::from_micros(1)
    }

    /// How long a login that asked now would wait for its token.
    pub fn predicted(&self) -> Duration {
        let ahead = self.queue.iter().filter(|a| a.price == Price::Token).count();
        #[expect(clippy::cast_precision_loss, reason = "a count of waiting callers")]
        let missing = (ahead as f64 + 1.0 - self.tokens).max(0.0);
        if self.pass && ahead == 0 { Duration::ZERO } else { Duration::from_secs_f64(missing / self.rate) }
    }

    /// A login ended, or its caller gave up, waiting or not.
    pub fn ended(&mut self, ticket: Ticket, how: Ended, now: Moment) {
        self.granted.remove(&ticket);
        let Some(host) = self.running.remove(&ticket) else {
            self.queue.retain(|a| a.ticket != ticket);
            return;
        };
        if how == Ended::NotBegun {
            self.tokens = (self.tokens + 1.0).min(BURST);
        }
        let Some(host) = host else { return };
        let entry = self.hosts.entry(host).or_default();
        entry.under_way = entry.under_way.saturating_sub(1);
        match how {
            Ended::LoggedIn(took) => {
                entry.last = Some((took, now));
                let slow = entry.learn(took);
                if took <= NOT_SLOW {
                    self.fill(now);
                    self.rate = (self.rate + 1.0).min(self.most);
                }
                // It stood in the queue that was there when it began.
                if slow {
                    self.slow_down(took, now);
                }
            }
            Ended::Refused => self.slow_down(Duration::ZERO, now),
            Ended::Otherwise | Ended::NotBegun => {}
        }
    }

    /// How long a login that begins now would take, where the servers suffer and somebody has just found out. Who has less
    /// time left need not begin: given up half-way, it costs the server as much as any other, and serves nobody.
    pub fn takes(&self, host: HostId, now: Moment) -> Duration {
        let last = self.hosts.get(&host).and_then(|h| h.last);
        match last {
            Some((took, at)) if self.rate < self.most && now - at <= FRESH => took,
            _ => Duration::ZERO,
        }
    }

    /// Another host is primary now: its first login is delayed by nothing, and what slowed us down elsewhere says
    /// nothing of it.
    pub fn new_primary(&mut self, now: Moment) {
        self.fill(now);
        self.pass = true;
        self.rate = self.most;
    }

    /// The present rate, in logins a second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Logins that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    fn under_way(&self, host: HostId) -> usize {
        self.hosts.get(&host).map_or(0, |h| h.under_way)
    }

    fn token_ready(&self) -> bool {
        // The lag delays a token and takes none away, so the rate stays what it is.
        self.tokens >= 1.0 + self.lag
    }

    fn fill(&mut self, now: Moment) {
        let past = (now - self.filled).as_secs_f64();
        self.filled = self.filled.max(now);
        self.tokens = (self.tokens + past * self.rate).min(BURST);
        while self.rate < self.most && now - self.changed >= CALM {
            self.rate = (self.rate + 1.0).min(self.most);
            self.changed = self.changed + CALM;
        }
    }

    /// Bad news, of a login that began so long ago: if that was before the last halving, it is of what led to that.
    fn slow_down(&mut self, age: Duration, now: Moment) {
        self.fill(now);
        if self.rate < self.most && now - self.changed < SAME_NEWS.max(age) {
            return;
        }
        self.rate = (self.rate / 2.0).max(FLOOR.min(self.most));
        self.changed = now;
    }
}

impl Host {
    /// Learns how long a login takes in health. Whether this one shows a server that suffers.
    fn learn(&mut self, took: Duration) -> bool {
        let Some(mean) = self.healthy else {
            self.healthy = Some(took);
            return false;
        };
        let slow = took > NOT_SLOW && took > mean * SLOW;
        // A host that stays slower for good becomes the new measure, in the end.
        let share = if slow { 32 } else { 8 };
        self.healthy = Some(mean * (share - 1) / share + took / share);
        slow
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const H: Option<HostId> = Some(HostId(0));

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    fn pace() -> (Pace, StdRng) {
        (Pace::new(10.0, 0.2, at(0)), StdRng::seed_from_u64(1))
    }

    /// Everybody who may begins and is done after `login`; how many began by each moment in `0..until` ms.
    fn flood(p: &mut Pace, rng: &mut StdRng, callers: usize, login: u64, from: u64, until: u64) -> usize {
        for _ in 0..callers {
            p.ask(H, Price::Token);
        }
        let mut begun = 0;
        let mut under_way: Vec<(u64, Ticket)> = Vec::new();
        for ms in from..until {
            under_way.retain(|(end, t)| {
                let over = *end <= ms;
                if over {
                    p.ended(*t, Ended::LoggedIn(Duration::from_millis(login)), at(ms));
                }
                !over
            });
            for t in p.poll(at(ms), rng) {
                begun += 1;
                under_way.push((ms + login, t));
            }
        }
        begun
    }

    #[test]
    fn a_flood_of_callers_never_exceeds_rate_and_burst() {
        let (mut p, mut rng) = pace();
        let begun = flood(&mut p, &mut rng, 500, 5, 0, 10_000);
        assert!((90..=102).contains(&begun), "{begun} logins in 10 s at 10/s");
    }

    #[test]
    fn a_slow_host_never_has_more_than_two_handshakes() {
        let (mut p, mut rng) = pace();
        for _ in 0..10 {
            p.ask(H, Price::Later);
        }
        let first = p.poll(at(0), &mut rng);
        assert_eq!(first.len(), 2);
        assert_eq!(p.poll(at(5_000), &mut rng), []);
        p.ended(first[0], Ended::Otherwise, at(5_000));
        assert_eq!(p.poll(at(5_000), &mut rng).len(), 1);
    }

    #[test]
    fn without_the_bound_on_handshakes_all_who_want_to_begin_at_once() {
        let (p, mut rng) = pace();
        let mut p = p.handshakes(usize::MAX);
        for _ in 0..10 {
            p.ask(H, Price::Later);
        }
        assert_eq!(p.poll(at(0), &mut rng).len(), 10);
    }

    #[test]
    fn a_busy_host_holds_back_no_login_to_another() {
        let (mut p, mut rng) = pace();
        p.ask(H, Price::Later);
        p.ask(H, Price::Later);
        p.ask(H, Price::Token);
        let other = p.ask(Some(HostId(1)), Price::Token);
        p.poll(at(0), &mut rng);
        assert!(p.poll(at(1_000), &mut rng).contains(&other));
    }

    #[test]
    fn what_a_walk_spent_beside_its_first_login_is_paid_for_by_the_next() {
        let (mut p, mut rng) = pace();
        for host in 0..5 {
            p.ask(Some(HostId(host)), Price::Later);
        }
        assert_eq!(p.poll(at(0), &mut rng).len(), 5);
        let next = p.ask(H, Price::Token);
        assert_eq!(p.poll(at(390), &mut rng), []);
        assert!(p.next() > at(390) && p.next() < at(500), "{}", p.next());
        assert_eq!(p.poll(p.next(), &mut rng), [next]);
    }

    #[test]
    fn the_first_login_to_a_new_primary_waits_for_no_token() {
        let (mut p, mut rng) = pace();
        flood(&mut p, &mut rng, 50, 1, 0, 300);
        let waiting = p.waiting();
        assert!(waiting > 10);
        assert_eq!(p.poll(at(300), &mut rng), []);
        p.new_primary(at(300));
        assert_eq!(p.poll(at(300), &mut rng).len(), 1);
        assert_eq!(p.poll(at(300), &mut rng), []);
    }

    #[test]
    fn a_full_server_halves_the_rate_and_calm_seconds_give_it_back() {
        let (mut p, mut rng) = pace();
        let refuse = |p: &mut Pace, rng: &mut StdRng, now| {
            let t = p.ask(H, Price::Later);
            p.poll(now, rng);
            p.ended(t, Ended::Refused, now);
        };
        let rate = |p: &Pace| p.rate();
        refuse(&mut p, &mut rng, at(0));
        assert!((rate(&p) - 5.0).abs() < 1e-9);
        // The same news, told by several.
        refuse(&mut p, &mut rng, at(100));
        assert!((rate(&p) - 5.0).abs() < 1e-9);
        for i in 1..20 {
            refuse(&mut p, &mut rng, at(600 * i));
        }
        assert!((rate(&p) - 2.0).abs() < 1e-9, "{}", rate(&p));
        p.poll(at(600 * 19 + 3_000), &mut rng);
        assert!((rate(&p) - 5.0).abs() < 1e-9, "{}", rate(&p));
        p.poll(at(60_000), &mut rng);
        assert!((rate(&p) - 10.0).abs() < 1e-9, "{}", rate(&p));
    }

    #[test]
    fn a_server_that_suffers_is_told_by_its_logins() {
        let (mut p, mut rng) = pace();
        let log_in = |p: &mut Pace, rng: &mut StdRng, ms: u64, now| {
            let t = p.ask(H, Price::Later);
            p.poll(now, rng);
            p.ended(t, Ended::LoggedIn(Duration::from_millis(ms)), now);
        };
        for i in 0..10 {
            log_in(&mut p, &mut rng, 5, at(i * 1_000));
        }
        log_in(&mut p, &mut rng, 20, at(10_000));
        assert!((p.rate() - 10.0).abs() < 1e-9, "20 ms is nobody's suffering");
        log_in(&mut p, &mut rng, 200, at(11_000));
        assert!((p.rate() - 5.0).abs() < 1e-9);
    }

    /// Logs in on an idle governor.
    fn log_in(p: &mut Pace, rng: &mut StdRng, took: u64, ends: u64) {
        let t = p.ask(H, Price::Later);
        p.poll(at(ends - took), rng);
        p.ended(t, Ended::LoggedIn(Duration::from_millis(took)), at(ends));
    }

    #[test]
    fn logins_that_began_before_the_rate_was_halved_do_not_halve_it_again() {
        let (mut p, mut rng) = pace();
        log_in(&mut p, &mut rng, 5, 1_000);
        log_in(&mut p, &mut rng, 700, 2_000);
        assert!((p.rate() - 5.0).abs() < 1e-9);
        // Later than the same news, and as old.
        log_in(&mut p, &mut rng, 650, 2_600);
        assert!((p.rate() - 5.0).abs() < 1e-9);
        log_in(&mut p, &mut rng, 600, 2_700);
        assert!((p.rate() - 2.5).abs() < 1e-9, "{}", p.rate());
    }

    #[test]
    fn how_long_a_login_takes_is_told_of_a_server_that_suffers_and_while_it_is_news() {
        let (mut p, mut rng) = pace();
        log_in(&mut p, &mut rng, 5, 1_000);
        assert_eq!(p.takes(HostId(0), at(1_000)), Duration::ZERO);
        log_in(&mut p, &mut rng, 700, 2_000);
        assert_eq!(p.takes(HostId(0), at(2_900)), Duration::from_millis(700));
        assert_eq!(p.takes(HostId(1), at(2_900)), Duration::ZERO);
        assert_eq!(p.takes(HostId(0), at(3_100)), Duration::ZERO);
    }

    #[test]
    fn who_may_begin_and_does_not_leaves_its_token_to_the_next() {
        let (mut p, mut rng) = pace();
        let tickets: Vec<Ticket> = (0..3).map(|_| p.ask(None, Price::Token)).collect();
        assert_eq!(p.poll(at(0), &mut rng), tickets[..2]);
        p.ended(tickets[0], Ended::NotBegun, at(1));
        assert_eq!(p.poll(at(1), &mut rng), []);
        // What is left of its interval, chance included.
        assert_eq!(p.poll(at(20), &mut rng), tickets[2..]);
    }

    #[test]
    fn who_is_left_over_by_a_storm_gets_in_as_soon_as_the_server_is_well() {
        let (mut p, mut rng) = pace();
        for i in 0..8 {
            let t = p.ask(H, Price::Later);
            p.poll(at(600 * i), &mut rng);
            p.ended(t, Ended::Refused, at(600 * i));
        }
        assert!(p.rate() < 3.0, "{}", p.rate());
        // At two a second, and one more each second, the last of ten would begin after 2.5 s.
        assert_eq!(flood(&mut p, &mut rng, 10, 8, 4_300, 6_400), 10);
    }

    #[test]
    fn callers_who_give_up_leave_nothing_behind() {
        let (mut p, mut rng) = pace();
        for i in 0..1_000 {
            let t = p.ask(H, Price::Token);
            if i % 2 == 0 {
                p.poll(at(i), &mut rng);
            }
            p.ended(t, Ended::Otherwise, at(i));
        }
        assert_eq!((p.waiting(), p.running.len(), p.granted.len(), p.under_way(HostId(0))), (0, 0, 0, 0));
    }

    #[test]
    fn processes_that_start_together_drift_apart() {
        let moments = |seed| {
            let (mut p, mut rng) = (Pace::new(10.0, 0.2, at(0)), StdRng::seed_from_u64(seed));
            for _ in 0..20 {
                p.ask(None, Price::Token);
            }
            let mut now = at(0);
            let mut all = Vec::new();
            while p.waiting() > 0 {
                all.extend(p.poll(now, &mut rng).iter().map(|_| now));
                now = p.next();
            }
            all
        };
        assert_ne!(moments(1)[5..], moments(2)[5..]);
    }
}
