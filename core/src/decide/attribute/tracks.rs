//! What was true when: a bounded log of intervals, from which an outage is judged in hindsight.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;
use crate::host::HostId;

/// What a host says about writes, as the topology sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Says {
    /// Nothing is known.
    #[default]
    Unknown,
    /// It is the primary and takes writes.
    Accepts,
    /// It answers and takes none: in recovery, read-only, starting up.
    Refuses,
    /// It is late with its answers: slow, or going.
    Silent,
    /// It is silent for long, or nobody listens.
    Gone,
    /// It is not the right one: an older primary, another cluster.
    Superseded,
}

impl Says {
    /// It can't have taken a write then, as far as it or others say.
    pub(super) fn takes_none(self) -> bool {
        matches!(self, Self::Refuses | Self::Silent | Self::Gone | Self::Superseded)
    }
}

/// Whether a host goes, from one word to the next. A standby refuses writes all the time, and goes on answering.
fn goes(before: Says, now: Says) -> bool {
    match now {
        Says::Silent | Says::Gone | Says::Superseded => true,
        Says::Refuses => before == Says::Accepts,
        Says::Accepts | Says::Unknown => false,
    }
}

/// From then until then; [`Moment::NEVER`] while it lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) from: Moment,
    pub(super) until: Moment,
}

impl Span {
    pub(super) fn holds(&self, t: Moment) -> bool {
        self.from <= t && t < self.until
    }
}

/// Something that is or isn't: the spans in which it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(pub(super) Vec<Span>);

impl Spans {
    pub(super) fn set(&mut self, on: bool, at: Moment) {
        match self.0.last_mut() {
            Some(last) if !on && last.until == Moment::NEVER => last.until = at.max(last.from),
            // On already, or begun again at once: the same span.
            Some(last) if on && last.until >= at => last.until = Moment::NEVER,
            _ if on => self.0.push(Span { from: at, until: Moment::NEVER }),
            _ => {}
        }
    }

    pub(super) fn at(&self, t: Moment) -> bool {
        self.0.iter().any(|s| s.holds(t))
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.last().is_some_and(|s| s.until == Moment::NEVER)
    }

    fn prune(&mut self, before: Moment) {
        self.0.retain(|s| s.until > before);
    }
}

/// A host's word, from then on, and the last sign of life while it stood.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) from: Moment,
    pub(super) says: Says,
    pub(super) heard: Moment,
}

impl Word {
    /// It takes writes, or may: it is only late.
    fn holds_on(&self) -> bool {
        matches!(self.says, Says::Accepts | Says::Silent)
    }
}

#[derive(Clone, Debug)]
pub(super) struct HostTrack {
    /// Since when its address is known.
    pub(super) known: Moment,
    /// A name gave it.
    pub(super) named: bool,
    pub(super) words: Vec<Word>,
    /// Commits wait there for a synchronous standby.
    pub(super) sync: Spans,
    /// Callers' attempts are under way there.
    pub(super) attempts: Spans,
    pub(super) under_way: u32,
    pub(super) heard: Moment,
}

impl HostTrack {
    fn new(at: Moment) -> Self {
        Self {
            known: at,
            named: true,
            words: Vec::new(),
            sync: Spans::default(),
            attempts: Spans::default(),
            under_way: 0,
            heard: Moment::ZERO,
        }
    }

    /// Whether the host went with this word.
    pub(super) fn says(&mut self, says: Says, at: Moment) -> bool {
        let before = self.now();
        if before == says {
            return false;
        }
        self.words.push(Word { from: at, says, heard: at });
        goes(before, says)
    }

    pub(super) fn heard(&mut self, at: Moment) {
        self.heard = self.heard.max(at);
        if let Some(w) = self.words.last_mut() {
            w.heard = w.heard.max(at);
        }
    }

    pub(super) fn now(&self) -> Says {
        self.words.last().map_or(Says::Unknown, |w| w.says)
    }

    /// The end of a word: the next one's beginning.
    fn end(&self, i: usize) -> Moment {
        self.words.get(i + 1).map_or(Moment::NEVER, |w| w.from)
    }

    /// Whether it took writes then. A word holds only until the host's last sign of life: a frozen host goes on being
    /// "primary" for a while. One that was merely late, and then is what it was before, was so all along.
    pub(super) fn accepts(&self, t: Moment, now: Moment, trust: Duration) -> bool {
        let Some(i) = self.words.iter().rposition(|w| w.from <= t) else { return false };
        let last = self.words.len() - 1;
        // It took writes by then, and gave a sign of life later, before it said anything else.
        let took = self.words[self.run(i)..=i].iter().any(|w| w.says == Says::Accepts);
        let mut later = (i..=last).take_while(|k| self.words[*k].holds_on());
        let alive = later.any(|k| {
            let w = &self.words[k];
            w.says == Says::Accepts && (t < w.heard || (k == last && now - w.heard <= trust))
        });
        took && self.words[i].holds_on() && alive
    }

    /// The first word of those that the one at `i` goes on: taking writes, late, taking writes again.
    fn run(&self, i: usize) -> usize {
        let mut first = i;
        while first > 0 && self.words[first].holds_on() && self.words[first - 1].holds_on() {
            first -= 1;
        }
        first
    }

    /// When it first said, at or after then, that it takes writes; and whether it was met before and took none.
    pub(super) fn accepted_after(&self, t: Moment) -> Option<(Moment, bool)> {
        let i = self.words.iter().position(|w| w.says == Says::Accepts && w.from >= t)?;
        let refused = (0..i).any(|k| self.words[k].says.takes_none() && self.end(k) > t);
        Some((self.words[i].from, refused))
    }

    /// Since when it takes writes, as it stood then.
    pub(super) fn accepting_since(&self, t: Moment) -> Option<Moment> {
        let i = self.words.iter().rposition(|w| w.says == Says::Accepts && w.from <= t)?;
        self.words[self.run(i)..=i].iter().find(|w| w.says == Says::Accepts).map(|w| w.from)
    }

    /// Whether it went at or after then: a call that got no answer since was on a dead socket.
    fn went(&self, since: Moment) -> bool {
        self.words.iter().enumerate().any(|(i, w)| {
            let before = i.checked_sub(1).map_or(Says::Unknown, |k| self.words[k].says);
            goes(before, w.says) && w.from >= since
        })
    }

    fn prune(&mut self, before: Moment) {
        // The last word before then still holds.
        let keep = self.words.iter().rposition(|w| w.from <= before).unwrap_or(0);
        self.words.drain(..keep);
        self.sync.prune(before);
        self.attempts.prune(before);
    }

    fn len(&self) -> usize {
        self.words.len() + self.sync.0.len() + self.attempts.0.len()
    }
}

/// How a call ended that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    Open,
    /// Its session ended under it.
    Lost,
    /// Its caller gave it up.
    GivenUp,
}

/// A call that waited for a byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) member: u64,
    pub(super) number: u64,
    pub(super) host: HostId,
    /// When it was sent, or its session's last byte came.
    pub(super) since: Moment,
    /// From then it can be held against its host: no byte came from there on any socket.
    pub(super) from: Moment,
    pub(super) until: Moment,
    pub(super) end: CallEnd,
}

/// The log.
#[derive(Clone, Debug, Default)]
pub(super) struct Tracks {
    pub(super) hosts: BTreeMap<HostId, HostTrack>,
    pub(super) calls: Vec<Call>,
    /// Somebody waits for a session.
    pub(super) waiting: Spans,
    pub(super) search: Spans,
}

impl Tracks {
    pub(super) fn host(&mut self, id: HostId, at: Moment) -> &mut HostTrack {
        self.hosts.entry(id).or_insert_with(|| HostTrack::new(at))
    }

    pub(super) fn accepting(&self, t: Moment, now: Moment, trust: Duration) -> Option<HostId> {
        self.hosts.iter().find(|(_, h)| h.accepts(t, now, trust)).map(|(id, _)| *id)
    }

    /// Whether a call was on a dead socket, as far as is known by now.
    pub(super) fn is_dead(&self, c: &Call) -> bool {
        match c.end {
            CallEnd::Lost => true,
            CallEnd::Open | CallEnd::GivenUp => self.hosts.get(&c.host).is_some_and(|h| h.went(c.since)),
        }
    }

    /// How many intervals are kept.
    pub(super) fn len(&self) -> usize {
        let hosts: usize = self.hosts.values().map(HostTrack::len).sum();
        hosts + self.calls.len() + self.waiting.0.len() + self.search.0.len()
    }

    /// Forgets what was over by then.
    pub(super) fn prune(&mut self, before: Moment) {
        for h in self.hosts.values_mut() {
            h.prune(before);
        }
        self.calls.retain(|c| c.end == CallEnd::Open || c.until > before);
        self.waiting.prune(before);
        self.search.prune(before);
    }

    /// Every moment at which something changes.
    pub(super) fn edges(&self) -> Vec<Moment> {
        let mut all = Vec::new();
        for h in self.hosts.values() {
            all.push(h.known);
            for w in &h.words {
                all.extend([w.from, w.heard]);
            }
            for s in h.sync.0.iter().chain(&h.attempts.0) {
                all.extend([s.from, s.until]);
            }
        }
        for c in &self.calls {
            all.extend([c.from, c.until]);
        }
        for s in self.waiting.0.iter().chain(&self.search.0) {
            all.extend([s.from, s.until]);
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}
