//! The book of names: when each is asked for, what its addresses are, and which of them are stale.
//!
//! Decides when a look-up is due, which addresses are candidates, and when one stops being a candidate. It doesn't
//! decide what follows from a changed answer: a moved name is only an opinion (evidence E0 in the topology), so the
//! caller probes. Nor does it look anything up: [`crate::resolve::Resolver`] answers the questions it hands out.
//!
//! Rules: at most one question out for a name and family. A failure never takes an address away: the last good
//! answer stays, marked stale. An address that its name no longer gives stays too, until another address has been
//! primary for `KEEP`. The time to live is reported, never obeyed: no cache, so no negative cache either.

use std::net::IpAddr;
use std::time::Duration;

use rand::{Rng, RngExt};
use serde::Serialize;

use crate::clock::Moment;
use crate::net::{Answer, AnswerSource, Family, ResolveError};

/// First gap between two look-ups of a search.
const SEARCH_FIRST: Duration = Duration::from_millis(100);
/// Longest gap between two look-ups of a search.
const SEARCH_MAX: Duration = Duration::from_millis(500);
/// Growth of the gap.
const GROWTH: f64 = 1.6;
/// Gap between two look-ups in quiet.
const QUIET: Duration = Duration::from_secs(30);
/// Share by which each gap is lengthened or shortened, so that processes don't march in step.
const JITTER: f64 = 0.2;
/// How long an address that its name no longer gives stays a candidate after another one became primary: a name
/// that flickers between old and new (20 to 30 s were reported) must not make us forget either.
const KEEP: Duration = Duration::from_secs(10);
/// A question out for longer than this is lost (its task died): twice the look-up's own deadline.
const LOST: Duration = Duration::from_secs(4);
/// Addresses kept for a name that gives others each time (round robin over a large set).
const ADDRESSES: usize = 32;

/// One question to be asked now.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Question {
    /// The name as configured.
    pub name: String,
    /// The family.
    pub family: Family,
}

/// What is known of one name, for the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NameReport {
    /// The name as configured.
    pub name: String,
    /// Its candidates, those of the last answers first.
    pub addresses: Vec<IpAddr>,
    /// Shortest time to live of the last answers, in seconds, where a name server gave one.
    pub ttl_s: Option<u64>,
    /// Time since the older of the last good answers, in milliseconds.
    pub age_ms: Option<u64>,
    /// Where the newest good answer came from.
    pub source: Option<AnswerSource>,
    /// No family's last look-up succeeded (and there was one).
    pub stale: bool,
    /// What the last look-up of a family failed with; "no address of this kind" is no failure where the other
    /// family has some.
    pub error: Option<String>,
}

/// The book of all names of a connector.
#[derive(Debug)]
pub struct Names {
    entries: Vec<Entry>,
    /// The gap that follows the next round while a search is on.
    search: Option<Duration>,
    primary: Option<(IpAddr, Moment)>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    due: Moment,
    v4: Side,
    v6: Side,
    /// In the order in which they were first given.
    addresses: Vec<IpAddr>,
}

/// One family of a name.
#[derive(Debug, Default)]
struct Side {
    out_since: Option<Moment>,
    good: Option<Answer>,
    last: Option<Result<(), ResolveError>>,
}

impl Side {
    fn fresh(&self) -> bool {
        matches!(self.last, Some(Ok(())))
    }

    fn gives(&self, address: &IpAddr) -> bool {
        self.good.as_ref().is_some_and(|g| g.addresses.contains(address))
    }

    fn out(&self, now: Moment) -> bool {
        self.out_since.is_some_and(|since| now < since + LOST)
    }
}

impl Entry {
    fn new(name: String, now: Moment) -> Self {
        Self { name, due: now, v4: Side::default(), v6: Side::default(), addresses: Vec::new() }
    }

    fn side(&mut self, family: Family) -> &mut Side {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// This address's family, and the other one.
    fn sides(&self, address: &IpAddr) -> (&Side, &Side) {
        if address.is_ipv4() { (&self.v4, &self.v6) } else { (&self.v6, &self.v4) }
    }

    /// In the last answer, and that was the last thing heard.
    fn fresh(&self, address: &IpAddr) -> bool {
        let (own, _) = self.sides(address);
        own.fresh() && own.gives(address)
    }

    /// The name said clearly that this address isn't its own any more. A failure or NXDOMAIN says nothing; "no
    /// data" does only where the other family has an answer.
    fn withdrawn(&self, address: &IpAddr) -> bool {
        let (own, other) = self.sides(address);
        match own.last {
            Some(Ok(())) => !own.gives(address),
            Some(Err(ResolveError::NoData)) => other.fresh(),
            _ => !own.gives(address),
        }
    }

    fn take(&mut self, family: Family, now: Moment) -> Option<Question> {
        let name = self.name.clone();
        let side = self.side(family);
        if side.out(now) {
            return None;
        }
        side.out_since = Some(now);
        Some(Question { name, family })
    }
}

impl Names {
    /// A book of these names, each due at once. Address literals are dialled, not looked up: leave them out.
    pub fn new(names: impl IntoIterator<Item = String>, now: Moment) -> Self {
        let mut entries: Vec<Entry> = Vec::new();
        for name in names {
            if entries.iter().all(|e| e.name != name) {
                entries.push(Entry::new(name, now));
            }
        }
        Self { entries, search: None, primary: None }
    }

    /// The questions that are due by the schedule. Each is out from now on, until it is answered or has failed.
    pub fn due(&mut self, now: Moment, rng: &mut dyn Rng) -> Vec<Question> {
        let mut questions = Vec::new();
        let gap = self.search.unwrap_or(QUIET);
        let mut asked = false;
        for entry in self.entries.iter_mut().filter(|e| e.due <= now) {
            entry.due = now + jittered(gap, rng);
            let before = questions.len();
            questions.extend(entry.take(Family::V6, now));
            questions.extend(entry.take(Family::V4, now));
            asked |= questions.len() > before;
        }
        if asked && let Some(gap) = &mut self.search {
            *gap = gap.mul_f64(GROWTH).min(SEARCH_MAX);
        }
        questions
    }

    /// When to call [`Self::due`] next; never without names.
    pub fn next_due(&self) -> Moment {
        self.entries.iter().map(|e| e.due).min().unwrap_or(Moment::NEVER)
    }

    /// The questions for a connect that isn't sent to a known primary: none where one is out already.
    pub fn for_connect(&mut self, name: &str, now: Moment) -> Vec<Question> {
        let Some(entry) = self.entry(name) else { return Vec::new() };
        [Family::V6, Family::V4].into_iter().filter_map(|f| entry.take(f, now)).collect()
    }

    /// A question was answered.
    pub fn answered(&mut self, name: &str, family: Family, answer: Answer, now: Moment) {
        let primary = self.primary.map(|p| p.0);
        let Some(entry) = self.entry(name) else { return };
        for address in &answer.addresses {
            if !entry.addresses.contains(address) {
                entry.addresses.push(*address);
            }
        }
        let side = entry.side(family);
        side.out_since = None;
        side.last = Some(Ok(()));
        side.good = Some(answer);
        while entry.addresses.len() > ADDRESSES {
            // The oldest that its name no longer gives, else the oldest; the primary last of all.
            let pick = |e: &Entry, any: bool| {
                e.addresses.iter().position(|a| Some(*a) != primary && (any || e.withdrawn(a)))
            };
            let Some(i) = pick(entry, false).or_else(|| pick(entry, true)) else { break };
            entry.addresses.remove(i);
        }
        self.tidy(now);
    }

    /// A question failed.
    pub fn failed(&mut self, name: &str, family: Family, error: ResolveError, now: Moment) {
        if let Some(entry) = self.entry(name) {
            let side = entry.side(family);
            side.out_since = None;
            side.last = Some(Err(error));
        }
        self.tidy(now);
    }

    /// The addresses of a name, in dialling order, and whether each is fresh (in the newest answer). IPv6 comes
    /// first (RFC 6724), then IPv4, each as the server ordered them; stale ones come last.
    pub fn candidates(&self, name: &str) -> Vec<(IpAddr, bool)> {
        let Some(entry) = self.entries.iter().find(|e| e.name == name) else { return Vec::new() };
        let given = [&entry.v6, &entry.v4].into_iter().filter(|s| s.fresh()).filter_map(|s| s.good.as_ref());
        let mut all: Vec<_> = given
            .flat_map(|g| &g.addresses)
            .filter(|a| entry.addresses.contains(a))
            .map(|a| (*a, true))
            .collect();
        all.extend(entry.addresses.iter().filter(|a| !entry.fresh(a)).map(|a| (*a, false)));
        all
    }

    /// Whether this process has resolved the name before: then NXDOMAIN is transient.
    pub fn known_before(&self, name: &str) -> bool {
        self.entries.iter().any(|e| e.name == name && (e.v4.good.is_some() || e.v6.good.is_some()))
    }

    /// A search for the primary began: all names are due at once.
    pub fn search_started(&mut self, now: Moment) {
        if self.search.is_none() {
            self.search = Some(SEARCH_FIRST);
            for entry in &mut self.entries {
                entry.due = now;
            }
        }
    }

    /// The search is over.
    pub fn search_ended(&mut self, now: Moment, rng: &mut dyn Rng) {
        if self.search.take().is_some() {
            for entry in &mut self.entries {
                entry.due = now + jittered(QUIET, rng);
            }
        }
    }

    /// This address is the primary (told at each verdict; only a change counts).
    pub fn primary_is(&mut self, address: IpAddr, now: Moment) {
        if self.primary.is_none_or(|p| p.0 != address) {
            self.primary = Some((address, now));
        }
        self.tidy(now);
    }

    /// Drops the addresses whose time is over. Each input does this too; time alone can end an address, so whoever
    /// reads the candidates of a quiet book calls it first.
    pub fn tidy(&mut self, now: Moment) {
        let Some((primary, since)) = self.primary else { return };
        if now < since + KEEP {
            return;
        }
        for entry in &mut self.entries {
            let (addresses, e) = (std::mem::take(&mut entry.addresses), &*entry);
            let kept = addresses.into_iter().filter(|a| *a == primary || !e.withdrawn(a)).collect();
            entry.addresses = kept;
        }
    }

    /// What is known of each name at `now`.
    pub fn report(&self, now: Moment) -> Vec<NameReport> {
        self.entries.iter().map(|e| report(e, self.candidates(&e.name), now)).collect()
    }

    fn entry(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.name == name)
    }
}

fn report(entry: &Entry, candidates: Vec<(IpAddr, bool)>, now: Moment) -> NameReport {
    let sides = [&entry.v4, &entry.v6];
    let good = || sides.iter().filter_map(|s| s.good.as_ref());
    let any_fresh = sides.iter().any(|s| s.fresh());
    let error = sides.iter().find_map(|s| match &s.last {
        Some(Err(ResolveError::NoData)) if any_fresh => None,
        Some(Err(e)) => Some(e.to_string()),
        _ => None,
    });
    let in_force = sides.iter().filter(|s| s.fresh() || !any_fresh).filter_map(|s| s.good.as_ref());
    NameReport {
        name: entry.name.clone(),
        addresses: candidates.into_iter().map(|c| c.0).collect(),
        ttl_s: in_force.filter_map(|g| g.ttl).min().map(|t| t.as_secs()),
        age_ms: good()
            .map(|g| g.at)
            .min()
            .map(|at| u64::try_from((now - at).as_millis()).unwrap_or(u64::MAX)),
        source: good().max_by_key(|g| g.at).map(|g| g.source.clone()),
        stale: !any_fresh && good().next().is_some(),
        error,
    }
}

fn jittered(gap: Duration, rng: &mut dyn Rng) -> Duration {
    gap.mul_f64(rng.random_range(1.0 - JITTER..=1.0 + JITTER))
}

#[cfg(test)]
mod tests;
