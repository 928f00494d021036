//! What became of a transaction whose COMMIT was never answered: from what a check saw to an answer.
//!
//! Two ways. With the table (`pgfollow.outcome`) the transaction's last act was a row of its own token; the check tries to
//! take that token itself, and whoever has it has decided: [`fence`]. Without the table only the transaction's number is
//! known, and numbers are used anew after a recovery: [`by_number`] believes the server only where none lay between, or
//! exactly one whose switch point is known to lie behind the number. Asks nothing and waits for nothing:
//! [`crate::outcome`] does, and repeats what [`Step::Again`] says until the caller's deadline.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::decide::topology::TermRow;
use crate::error::{Class, SqlState};
use crate::host::HostId;
use crate::sqlstate;

/// Rows of the token table older than this may be purged.
pub const PURGE_HORIZON: Duration = Duration::from_secs(7 * 86_400);
/// Promotions that are remembered; only the last of them can settle anything.
const PROMOTIONS: usize = 16;

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It committed, and the answer is as durable as the cluster makes a commit.
    Committed,
    /// It didn't, and it never can any more.
    NotCommitted,
    /// Nobody can tell, or not yet.
    Unknown(Unsettled),
}

/// Why nobody can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsettled {
    /// No primary answered in time.
    NoPrimary,
    /// A commit waits for a synchronous standby.
    WaitingForStandby,
    /// The transaction itself is still under way.
    StillRunning,
    /// The primary is of another cluster, or its system identifier can't be read.
    OtherSystem,
    /// The database is another one.
    OtherDatabase,
    /// The token is so old that its row may have been purged, or the server forgot the transaction.
    TooOld,
    /// The table is gone, not logged, or closed to this role.
    TableUnusable,
    /// The table was emptied, rewritten or made anew since: a row that isn't there proves nothing.
    OtherTable,
    /// A crash or a failover lay between, and the transaction's number may be a stranger's now.
    Recovered,
    /// The session had no means to mark its transaction.
    NoToken,
}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPrimary => "no primary answered in time",
            Self::WaitingForStandby => "waiting for a synchronous standby",
            Self::StillRunning => "the transaction itself is still under way",
            Self::OtherSystem => "the primary is of another cluster, or its system identifier can't be read",
            Self::OtherDatabase => "the database is another one",
            Self::TooOld => "the transaction lies too far back",
            Self::TableUnusable => {
                "the table pgfollow.outcome is missing, not logged or closed to this role: run `pgfollow outcome install`"
            }
            Self::OtherTable => {
                "the table pgfollow.outcome was emptied, rewritten or made anew since (old rows go by `pgfollow outcome \
                 purge`, never by TRUNCATE)"
            }
            Self::Recovered => {
                "a crash or a failover lay between, and without the table pgfollow.outcome transaction numbers prove \
                 nothing then: run `pgfollow outcome install`"
            }
            Self::NoToken => {
                "the session could not mark its transaction: run `pgfollow outcome install`, and let the role read \
                 pg_control_system()"
            }
        })
    }
}

/// What a token says of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub struct Given {
    /// The cluster's system identifier.
    pub system: u64,
    /// The database's OID.
    pub database: u32,
    /// The server's time when the token was made, in microseconds since 1970.
    pub made_at: i64,
    /// The timeline on which the transaction ran.
    pub timeline: Option<u32>,
    /// The mark that it left.
    pub mark: Mark,
}

/// The token table as it was: emptied (TRUNCATE), dropped and made anew, or restored, it is another one, and that a row
/// isn't in it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub struct Table {
    /// `pg_class.oid`.
    pub oid: u32,
    /// `pg_class.relfilenode`.
    pub file: u32,
}

/// What a transaction leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// A row in the token table, by its last act.
    Row {
        /// Which table.
        table: Table,
    },
    /// Its number alone, and the server's marks just before COMMIT.
    Number {
        /// The transaction's number, epoch included.
        xid: u64,
        /// Where the log stood: the number is in the log before this.
        lsn: u64,
        /// When the server was started, in microseconds since 1970.
        start: i64,
        /// The last position replayed by the server's last recovery; NULL counts as a value.
        #[serde(default)]
        replay: Option<u64>,
    },
}

/// What the check's own session is and may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Here {
    /// The cluster's system identifier, where it may be read.
    pub system: Option<u64>,
    /// The database's OID.
    pub database: u32,
    /// The server's time, in microseconds since 1970.
    pub server_time: i64,
    /// The primary's timeline.
    pub timeline: Option<u32>,
    /// The token table, where it can be used.
    #[serde(default)]
    pub table: Option<Table>,
    /// Whether transaction numbers and marks may be read.
    pub numbers: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Try to take the token.
    Fence,
    /// Ask for the transaction's number.
    AskNumber,
    /// End the original's own backend (never while it waits for a standby), then try again.
    EndTwin,
    /// Try again; the reason stands if the time runs out.
    Again(Unsettled),
    /// That is the answer.
    Done(Outcome),
}

const fn unknown(why: Unsettled) -> Step {
    Step::Done(Outcome::Unknown(why))
}

/// Whether this session may check that token, and how. Nothing has been written yet, and nothing may be where the answer
/// is unknown: a token that is taken in the wrong place would prove the contrary of the truth.
pub fn first(given: &Given, here: &Here) -> Step {
    if here.system != Some(given.system) {
        return unknown(Unsettled::OtherSystem);
    }
    if here.database != given.database {
        return unknown(Unsettled::OtherDatabase);
    }
    // The clocks of two servers: whichever way they differ.
    let age = Duration::from_micros(here.server_time.abs_diff(given.made_at));
    if age > PURGE_HORIZON / 2 {
        return unknown(Unsettled::TooOld);
    }
    // A primary of the past: the one of the transaction's own term is not found yet.
    if given.timeline.zip(here.timeline).is_some_and(|(then, now)| now < then) {
        return Step::Again(Unsettled::NoPrimary);
    }
    match given.mark {
        Mark::Row { table } => match here.table {
            Some(found) if found == table => Step::Fence,
            Some(_) => unknown(Unsettled::OtherTable),
            None => unknown(Unsettled::TableUnusable),
        },
        Mark::Number { .. } if here.numbers => Step::AskNumber,
        Mark::Number { .. } => unknown(Unsettled::NoToken),
    }
}

/// How a statement of the check ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Ended {
    /// Its COMMIT was answered with the tag COMMIT.
    pub committed: bool,
    /// A notice said that this commit is known to this host alone.
    pub local_only: bool,
    /// The server refused it.
    pub error: Option<SqlState>,
}

impl Ended {
    /// What follows where no answer counts: `None` if it does.
    fn unsettled(self) -> Option<Step> {
        match self.error {
            Some(e) if e.as_str() == "55P03" => Some(Step::EndTwin),
            Some(e) if is_lasting(e) => Some(unknown(Unsettled::TableUnusable)),
            Some(_) => Some(Step::Again(Unsettled::NoPrimary)),
            None if self.local_only => Some(Step::Again(Unsettled::WaitingForStandby)),
            None if !self.committed => Some(Step::Again(Unsettled::NoPrimary)),
            None => None,
        }
    }
}

/// The server refused the statement, and always will.
pub fn is_lasting(e: SqlState) -> bool {
    let m = sqlstate::meaning(e);
    // A cancel or a statement_timeout is of the moment.
    m.at_statement == Class::Permanent && !m.ends_session && !e.as_str().starts_with("57")
}

/// What the attempt to take the token says: `state` is whose it is now (`d` the transaction's, `v` a check's). It counts
/// only once the attempt is itself committed, behind whatever the original waits for; until then anyone may repeat it.
pub fn fence(state: Option<char>, ended: Ended) -> Step {
    match (ended.unsettled(), state) {
        (Some(step), _) => step,
        (None, Some('d')) => Step::Done(Outcome::Committed),
        (None, Some('v')) => Step::Done(Outcome::NotCommitted),
        // Somebody else's table.
        (None, _) => unknown(Unsettled::TableUnusable),
    }
}

/// What the server says of a transaction's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct NumberSeen {
    /// `None`: it has forgotten.
    #[serde(default)]
    pub status: Option<Status>,
    /// Its timeline.
    #[serde(default)]
    pub timeline: Option<u32>,
    /// When it was started.
    #[serde(default)]
    pub start: Option<i64>,
    /// The last position replayed by its last recovery.
    #[serde(default)]
    pub replay: Option<u64>,
    /// The check wrote something of its own to the log, so that its commit waited for whoever the original's waits for,
    /// or nobody is waited for.
    #[serde(default)]
    pub waited: bool,
}

/// `txid_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Done.
    Committed,
    /// Rolled back, or cut off by a crash.
    Aborted,
    /// Not over; also while it waits for a standby.
    InProgress,
}

/// What a transaction's number proves.
pub fn by_number(given: &Given, seen: Option<&NumberSeen>, ended: Ended, promotions: &[Promotion]) -> Step {
    let Mark::Number { lsn, start, replay, .. } = given.mark else { return unknown(Unsettled::NoToken) };
    // "In the future": this server never heard of it.
    if ended.error.is_some_and(|e| e.as_str() == "22023") {
        return unknown(Unsettled::Recovered);
    }
    if ended.error.is_some_and(is_lasting) {
        return unknown(Unsettled::NoToken);
    }
    if let Some(step) = ended.unsettled() {
        return step;
    }
    let Some(seen) = seen else { return Step::Again(Unsettled::NoPrimary) };
    let untouched = seen.timeline.is_some()
        && seen.timeline == given.timeline
        && seen.start == Some(start)
        && seen.replay == replay;
    let next = given.timeline.and_then(|t| t.checked_add(1));
    // The number stood in the log before the point at which the new timeline began, so it can't be given out again. Two
    // servers can have begun timelines of the same number: the new one must continue that of the transaction's server.
    let inherited = promotions.iter().any(|p| {
        Some(p.timeline) == next
            && p.from == Some(start)
            && seen.timeline == next
            && seen.start == Some(p.start)
            && seen.replay == Some(p.replay)
            && lsn <= p.replay
    });
    if !untouched && !inherited {
        return unknown(Unsettled::Recovered);
    }
    match seen.status {
        Some(Status::Committed) if seen.waited => Step::Done(Outcome::Committed),
        // Committed here; whether a standby has it, nothing tells.
        Some(Status::Committed) => unknown(Unsettled::WaitingForStandby),
        Some(Status::Aborted) => Step::Done(Outcome::NotCommitted),
        Some(Status::InProgress) => Step::EndTwin,
        None => unknown(Unsettled::TooOld),
    }
}

/// A promotion that was watched from before to after: one server life, in recovery first and then not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Promotion {
    /// The timeline that it began.
    pub timeline: u32,
    /// When the promoted server was started.
    pub start: i64,
    /// What it had replayed: where the new timeline begins.
    pub replay: u64,
    /// When the primary of the timeline before was started. `None` where none was seen, or several: the number of a
    /// timeline that another server had begun unseen is taken again.
    #[serde(default)]
    pub from: Option<i64>,
}

/// The promotions that were watched.
#[derive(Debug, Default)]
pub struct Promotions {
    /// Servers in recovery, by the start of their life.
    standbys: HashMap<HostId, i64>,
    /// Each host's last life as a primary: its timeline, and its start.
    primaries: HashMap<HostId, (u32, i64)>,
    seen: Vec<Promotion>,
}

impl Promotions {
    /// A host answered. Its replay position is where its timeline begins only if it has not crashed since the promotion:
    /// so it must be in the very life in which it was seen in recovery.
    pub fn note(&mut self, host: HostId, row: &TermRow) {
        let Some(start) = row.start_time else { return };
        if row.in_recovery {
            self.standbys.insert(host, start);
            return;
        }
        self.primary(host, row);
        if self.standbys.remove(&host) != Some(start) {
            return;
        }
        if let (Some(timeline), Some(replay)) = (row.timeline, row.replay_lsn) {
            if self.seen.len() == PROMOTIONS {
                self.seen.remove(0);
            }
            self.seen.push(Promotion { timeline, start, replay, from: self.only_primary(timeline) });
        }
    }

    /// A caller's session tells of its host: of a primary only, for it may tell what was true a while ago.
    pub fn primary(&mut self, host: HostId, row: &TermRow) {
        if let (false, Some(timeline), Some(start)) = (row.in_recovery, row.timeline, row.start_time) {
            self.primaries.insert(host, (timeline, start));
        }
    }

    /// The start of the one server that was seen as the primary of the timeline before that one.
    fn only_primary(&self, next: u32) -> Option<i64> {
        let mut starts =
            self.primaries.values().filter(|(t, _)| t.checked_add(1) == Some(next)).map(|(_, s)| *s);
        let one = starts.next()?;
        starts.all(|other| other == one).then_some(one)
    }

    /// The last ones, oldest first.
    pub fn seen(&self) -> &[Promotion] {
        &self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(in_recovery: bool, start: i64, replay: u64) -> TermRow {
        TermRow {
            in_recovery,
            start_time: Some(start),
            replay_lsn: Some(replay),
            timeline: (!in_recovery).then_some(2),
            ..TermRow::default()
        }
    }

    #[test]
    fn the_replay_position_of_a_server_that_crashed_after_its_promotion_is_not_taken_for_the_switch_point() {
        let mut p = Promotions::default();
        p.note(HostId(1), &row(true, 10, 100));
        // Promoted and crashed before anybody looked: another life.
        p.note(HostId(1), &row(false, 11, 900));
        assert_eq!(p.seen(), []);
        // A primary from the first sight on.
        p.note(HostId(2), &row(false, 10, 900));
        assert_eq!(p.seen(), []);
        p.note(HostId(3), &row(true, 12, 100));
        p.note(HostId(3), &row(false, 12, 150));
        assert_eq!(p.seen(), [Promotion { timeline: 2, start: 12, replay: 150, from: None }]);
        // Seen again later: nothing new.
        p.note(HostId(3), &row(false, 12, 150));
        assert_eq!(p.seen().len(), 1);
    }

    #[test]
    fn a_promotion_continues_the_timeline_of_the_only_primary_that_was_seen_on_it() {
        let first = |start| TermRow { timeline: Some(1), ..row(false, start, 0) };
        let promoted = |primaries: &[(u32, i64)]| {
            let mut p = Promotions::default();
            for (host, start) in primaries {
                p.primary(HostId(*host), &first(*start));
            }
            p.note(HostId(9), &row(true, 12, 100));
            p.note(HostId(9), &row(false, 12, 150));
            p.seen()[0].from
        };
        assert_eq!(promoted(&[]), None);
        assert_eq!(promoted(&[(1, 10)]), Some(10));
        // By another address of it; restarted in place.
        assert_eq!(promoted(&[(1, 10), (2, 10)]), Some(10));
        assert_eq!(promoted(&[(1, 10), (1, 11)]), Some(11));
        // Each has begun the timeline by itself.
        assert_eq!(promoted(&[(1, 10), (2, 11)]), None);
    }

    #[test]
    fn remembered_promotions_are_bounded() {
        let mut p = Promotions::default();
        for n in 0..100 {
            p.note(HostId(1), &row(true, n, 1));
            p.note(HostId(1), &row(false, n, 1));
        }
        assert_eq!(p.seen().len(), PROMOTIONS);
        assert_eq!(p.seen().last().map(|p| p.start), Some(99));
    }
}
