//! What a session can do for an outcome check: read once per session, in one row, and never a reason for an error in a
//! caller's transaction.
//!
//! Everything that could be refused is looked up in the catalogues first: a privilege that is missing in a transaction
//! would abort it.

use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

use super::token::{Token, Twin, WARNINGS};
use crate::clock::{self, Moment};
use crate::decide::outcome::{self, Given, Here, Mark, Table};
use crate::error::SqlState;
use crate::role;
use crate::session::Session;

/// The question. `pg_stat_get_activity` of one backend, for the view costs a new backend milliseconds; `to_regclass`
/// would be an error where the schema is closed to the role.
const QUESTION: &str = "SELECT \
    (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) AS database, \
    (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::pg_catalog.int8 AS now, \
    pg_catalog.pg_backend_pid() AS pid, \
    (SELECT (extract(epoch FROM backend_start) * 1000000)::pg_catalog.int8 \
        FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())) AS backend_start, \
    current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') AS waits_less, \
    current_setting('synchronous_standby_names') <> '' AS has_standbys, \
    pg_catalog.pg_is_in_recovery() AS standby, \
    (SELECT c.oid::pg_catalog.text || '.' || c.relfilenode FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname = 'pgfollow' AND c.relname = 'outcome' AND c.relkind = 'r' AND c.relpersistence = 'p' \
        AND NOT c.relrowsecurity AND has_schema_privilege(n.oid, 'USAGE') \
        AND (SELECT count(*) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped \
            AND a.attname IN ('token', 'state') AND has_column_privilege(c.oid, a.attnum, 'SELECT') \
            AND has_column_privilege(c.oid, a.attnum, 'INSERT') \
            AND (a.attname = 'state' OR has_column_privilege(c.oid, a.attnum, 'UPDATE'))) = 2) AS outcome_table, \
    (SELECT bool_and(coalesce(has_function_privilege(to_regprocedure(f), 'EXECUTE'), false)) FROM (VALUES \
        ('pg_catalog.txid_current_if_assigned()'), ('pg_catalog.txid_status(bigint)'), \
        ('pg_catalog.pg_current_wal_insert_lsn()'), ('pg_catalog.pg_current_wal_lsn()'), \
        ('pg_catalog.pg_walfile_name(pg_lsn)'), ('pg_catalog.pg_postmaster_start_time()'), \
        ('pg_catalog.pg_last_wal_replay_lsn()')) AS v (f)) AS numbers, \
    EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.proname = 'pg_logical_emit_message' \
        AND p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace AND p.proargtypes[2] = 'text'::pg_catalog.regtype \
        AND has_function_privilege(p.oid, 'EXECUTE')) AS emits";

/// The server's marks, as far as they prove that no recovery lay between (the names of PostgreSQL 10 to 12 for what later
/// versions call pg_xact_…: all have them).
pub(super) const MARKS: &str = "pg_catalog.txid_current_if_assigned() AS xid, \
    pg_catalog.pg_current_wal_insert_lsn() AS lsn, \
    substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) AS timeline, \
    (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::pg_catalog.int8 AS start, \
    pg_catalog.pg_last_wal_replay_lsn() AS replay";

/// How a session's transactions can be marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a row of the token table.
    Row(Table),
    /// By their number.
    Number,
}

/// What a session can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ability {
    system: Option<u64>,
    timeline: Option<u32>,
    database: u32,
    /// The server's time, and ours when it was read.
    server_time: i64,
    read: Moment,
    /// The session's own backend; `None` where somebody stands between.
    pub(super) twin: Option<Twin>,
    /// `synchronous_commit` is less than `on`.
    pub(super) waits_less: bool,
    /// The primary waits for standbys.
    pub(super) has_standbys: bool,
    table: Option<Table>,
    /// Nothing is written here.
    standby: bool,
    numbers: bool,
    /// A check can write something to the log without a table.
    pub(super) emits: bool,
}

/// The marks, as read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub(super) xid: Option<u64>,
    pub(super) lsn: Option<u64>,
    pub(super) timeline: Option<u32>,
    pub(super) start: Option<i64>,
    pub(super) replay: Option<u64>,
}

/// The first row that has this column.
pub(super) fn row_with<'a>(answer: &'a [SimpleQueryMessage], column: &str) -> Option<&'a SimpleQueryRow> {
    answer.iter().find_map(|m| match m {
        SimpleQueryMessage::Row(r) if r.columns().iter().any(|c| c.name() == column) => Some(r),
        _ => None,
    })
}

pub(super) fn text<'a>(row: &'a SimpleQueryRow, column: &str) -> Option<&'a str> {
    row.try_get(column).ok().flatten()
}

pub(super) fn yes(row: &SimpleQueryRow, column: &str) -> bool {
    text(row, column) == Some("t")
}

fn number<T: std::str::FromStr>(row: &SimpleQueryRow, column: &str) -> Option<T> {
    text(row, column)?.parse().ok()
}

/// Whether asking again would be answered alike: not where the server lacked memory, or time.
fn is_lasting(sqlstate: &str) -> bool {
    SqlState::new(sqlstate).is_some_and(outcome::is_lasting)
}

fn table(text: &str) -> Option<Table> {
    let (oid, file) = text.split_once('.')?;
    Some(Table { oid: oid.parse().ok()?, file: file.parse().ok()? })
}

impl Marks {
    pub(super) fn of(row: &SimpleQueryRow) -> Self {
        Self {
            xid: number(row, "xid"),
            lsn: text(row, "lsn").and_then(role::lsn),
            timeline: text(row, "timeline").and_then(|t| u32::from_str_radix(t, 16).ok()),
            start: number(row, "start"),
            replay: text(row, "replay").and_then(role::lsn),
        }
    }
}

impl Ability {
    /// Asks the session. `None` where the server gives no such row: then its transactions stay unmarked.
    ///
    /// # Errors
    /// The loss of the connection, and what the server says at this moment only.
    pub(crate) async fn read(session: &Session) -> Result<Option<Self>, tokio_postgres::Error> {
        let answer = match session.simple_query(QUESTION).await {
            Ok(answer) => answer,
            Err(e) if e.as_db_error().is_some_and(|db| is_lasting(db.code().code())) => {
                tracing::warn!(target: "pgfollow", host = %session.candidate(), error = %e,
                    "transactions can't be marked for an outcome check");
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        Ok(row_with(&answer, "outcome_table").and_then(|row| Self::of(session, row)))
    }

    fn of(session: &Session, row: &SimpleQueryRow) -> Option<Self> {
        let pid: Option<i32> = number(row, "pid");
        // A pooler gives a key of its own, and lends the backend to others in between.
        let own = pid.filter(|pid| session.member().tap.key().is_some_and(|(told, _)| told == *pid));
        let twin = own.zip(number(row, "backend_start")).map(|(pid, start)| Twin { pid, start });
        let term = session.term();
        Some(Self {
            system: term.and_then(|t| t.system_identifier),
            timeline: term.and_then(|t| t.timeline),
            database: number(row, "database")?,
            server_time: number(row, "now")?,
            read: clock::now(),
            twin,
            waits_less: yes(row, "waits_less"),
            has_standbys: yes(row, "has_standbys"),
            table: text(row, "outcome_table").and_then(table),
            standby: yes(row, "standby"),
            numbers: yes(row, "numbers"),
            emits: yes(row, "emits"),
        })
    }

    /// How this session's transactions are marked, if at all. `row: false`: the table has just refused one.
    pub(crate) fn way(&self, row: bool) -> Option<Way> {
        // Without it no check would ever believe the token.
        self.system?;
        match self.table.filter(|_| row) {
            _ if self.standby => None,
            Some(table) => Some(Way::Row(table)),
            None => self.numbers.then_some(Way::Number),
        }
    }

    /// Whether the login finds no token table, where one would be used.
    pub(crate) fn lacks_table(&self) -> bool {
        self.table.is_none() && !self.standby
    }

    pub(super) fn here(&self) -> Here {
        Here {
            system: self.system,
            database: self.database,
            server_time: self.server_time,
            timeline: self.timeline,
            table: self.table,
            numbers: self.numbers,
        }
    }

    fn given(&self, mark: Mark) -> Option<Given> {
        let since = i64::try_from((clock::now() - self.read).as_micros()).unwrap_or(i64::MAX);
        Some(Given {
            system: self.system?,
            database: self.database,
            made_at: self.server_time.saturating_add(since),
            timeline: self.timeline,
            mark,
        })
    }

    /// A token for a transaction whose last act will be its row.
    pub(crate) fn token(&self, table: Table, id: u128) -> Option<Token> {
        Some(Token { id, given: self.given(Mark::Row { table })?, twin: self.twin })
    }

    /// The question for [`Self::token_by_number`], to be asked just before COMMIT.
    pub(crate) fn marks() -> String {
        format!("{WARNINGS}; SELECT {MARKS}")
    }

    /// A token for the transaction that gave this answer. `None` where it has no number: it has written nothing yet.
    pub(crate) fn token_by_number(&self, answer: &[SimpleQueryMessage], id: u128) -> Option<Token> {
        let marks = row_with(answer, "xid").map(Marks::of)?;
        let mark =
            Mark::Number { xid: marks.xid?, lsn: marks.lsn?, start: marks.start?, replay: marks.replay };
        let given = Given { timeline: Some(marks.timeline?), ..self.given(mark)? };
        Some(Token { id, given, twin: self.twin })
    }
}
