//! What a host says of itself: its role and its term, in one row.
//!
//! Composes the statement and reads its answer; decides nothing. [`crate::open`] asks it of a new session (together
//! with the set-up, one round trip) and the monitor of its probe sessions. An answer that makes no sense means
//! *unknown*, never a failure.

use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

use crate::decide::accept::Question;
use crate::decide::topology::TermRow;
use crate::report::SessionsSeen;

/// The application name of every monitor session.
pub(crate) const MONITOR_NAME: &str = "pgfollow monitor";

/// Which parts of the row a login may ask of a host. Privileges on functions are checked before anything runs, so a
/// forbidden function must not stand in the statement at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readable {
    wal_file: bool,
    system: bool,
    start: bool,
    replay: bool,
}

impl Readable {
    /// Everything: what a stock server lets PUBLIC do.
    pub(crate) const ALL: Self = Self { wal_file: true, system: true, start: true, replay: true };
    /// Nothing beyond role and settings.
    pub(crate) const NOTHING: Self = Self { wal_file: false, system: false, start: false, replay: false };

    /// The question that tells what may be asked; to be read with [`Self::from_answer`].
    pub(crate) const QUESTION: &'static str = "SELECT \
        coalesce(has_function_privilege(to_regprocedure('pg_catalog.pg_walfile_name(pg_lsn)'), 'EXECUTE'), false), \
        coalesce(has_function_privilege(to_regprocedure('pg_catalog.pg_control_system()'), 'EXECUTE'), false), \
        coalesce(has_function_privilege(to_regprocedure('pg_catalog.pg_postmaster_start_time()'), 'EXECUTE'), false), \
        coalesce(has_function_privilege(to_regprocedure('pg_catalog.pg_last_wal_replay_lsn()'), 'EXECUTE'), false)";

    pub(crate) fn from_answer(messages: &[SimpleQueryMessage]) -> Self {
        let Some(row) = first_row(messages) else { return Self::NOTHING };
        let yes = |i: usize| row.try_get(i).ok().flatten() == Some("t");
        Self { wal_file: yes(0), system: yes(1), start: yes(2), replay: yes(3) }
    }

    /// The term row for what may be read. `count` adds how many sessions the monitors of all processes hold: reading
    /// pg_stat_activity costs a new backend more than all the rest together (4 ms of 6), so only a monitor's login asks.
    pub(crate) fn term_query(self, count: bool) -> String {
        let part = |allowed: bool, sql: &str| if allowed { sql.to_owned() } else { "NULL".to_owned() };
        let activity = format!(
            "(SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE application_name = '{MONITOR_NAME}')"
        );
        [
            "SELECT pg_catalog.pg_is_in_recovery()".to_owned(),
            "current_setting('default_transaction_read_only')".to_owned(),
            part(
                self.wal_file,
                "CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL \
                 ELSE substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) END",
            ),
            part(self.system, "(SELECT system_identifier FROM pg_catalog.pg_control_system())"),
            part(
                self.start,
                "(extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::pg_catalog.int8",
            ),
            part(self.replay, "pg_catalog.pg_last_wal_replay_lsn()"),
            part(count, "current_setting('max_connections')"),
            part(count, &activity),
        ]
        .join(", ")
    }
}

/// Reads the answer to [`Readable::term_query`]. Columns that make no sense are unknown; without a role the whole
/// row is.
pub(crate) fn term_row(messages: &[SimpleQueryMessage]) -> Option<TermRow> {
    let row = first_row(messages).filter(|r| r.len() == 8)?;
    let text = |i: usize| row.try_get(i).ok().flatten();
    Some(TermRow {
        in_recovery: text(0).and_then(boolean)?,
        read_only: text(1).and_then(boolean)?,
        timeline: text(2).and_then(|t| u32::from_str_radix(t, 16).ok()),
        system_identifier: text(3).and_then(|t| t.parse().ok()),
        start_time: text(4).and_then(|t| t.parse().ok()),
        replay_lsn: text(5).and_then(lsn),
        max_connections: text(6).and_then(|t| t.parse().ok()),
        own_sessions: text(7).and_then(|t| t.parse().ok()),
    })
}

/// How many sessions a service and all monitors have there, and how many commits of the service wait for a synchronous
/// standby. `application_name` and (for sessions of one's own role) `wait_event` are shown to everybody.
pub(crate) fn sessions_sql(application_name: &str) -> String {
    let name = application_name.replace('\\', "\\\\").replace('\'', "''");
    format!(
        "SELECT count(*) FILTER (WHERE application_name = E'{name}'), \
         count(*) FILTER (WHERE application_name = E'{name}' AND wait_event = 'SyncRep'), \
         count(*) FILTER (WHERE application_name = '{MONITOR_NAME}'), \
         current_setting('max_connections') FROM pg_catalog.pg_stat_activity"
    )
}

/// Reads the answer to [`sessions_sql`].
pub(crate) fn sessions(messages: &[SimpleQueryMessage]) -> Option<SessionsSeen> {
    let row = first_row(messages).filter(|r| r.len() == 4)?;
    let number = |i: usize| row.try_get(i).ok().flatten().and_then(|t| t.parse().ok());
    Some(SessionsSeen {
        age_ms: 0,
        application: number(0)?,
        waiting_for_standby: number(1)?,
        monitors: number(2)?,
        max_connections: number(3)?,
    })
}

/// Which of these backends are at work, and whether they wait for a synchronous standby. What it asks for is shown to
/// the sessions of one's own role.
pub(crate) fn backends_sql(pids: &[i32]) -> String {
    let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
    format!(
        "SELECT pid, coalesce(wait_event = 'SyncRep', false) FROM pg_catalog.pg_stat_activity \
         WHERE state = 'active' AND pid IN ({})",
        pids.join(", ")
    )
}

/// Reads the answer to [`backends_sql`].
pub(crate) fn backends(messages: &[SimpleQueryMessage]) -> Vec<(i32, bool)> {
    let of = |m: &SimpleQueryMessage| {
        let SimpleQueryMessage::Row(row) = m else { return None };
        let text = |i| row.try_get(i).ok().flatten();
        Some((text(0)?.parse().ok()?, text(1).and_then(boolean)?))
    };
    messages.iter().filter_map(of).collect()
}

/// The statement for a question that [`crate::decide::accept`] needs answered (libpq's own, `fe-connect.c`).
pub(crate) const fn question_sql(q: Question) -> &'static str {
    match q {
        Question::TransactionReadOnly => "SHOW transaction_read_only",
        Question::InRecovery => "SELECT pg_catalog.pg_is_in_recovery()",
    }
}

/// The answer to such a question: `None` when it is no boolean.
pub(crate) fn question_answer(messages: &[SimpleQueryMessage]) -> Option<bool> {
    first_row(messages)?.try_get(0).ok().flatten().and_then(boolean)
}

/// Session settings by which the server itself finds out that we are gone: it drops an orphaned backend within
/// seconds. One statement each, of those that this server has (by the version it reported; 0 where that makes no
/// sense). A server that refuses one all the same is set up one by one.
///
/// Behind a pooler there are none: they would stay on a server connection that others use next.
pub(crate) fn setup_sql(direct: bool, server_version: u32) -> Vec<&'static str> {
    const SETTINGS: [(u32, &str); 5] = [
        (0, "SET tcp_keepalives_idle = 3"),
        (0, "SET tcp_keepalives_interval = 2"),
        (0, "SET tcp_keepalives_count = 3"),
        (12, "SET tcp_user_timeout = 9000"),
        // A platform that lacks it (no POLLRDHUP) refuses any value but 0.
        (14, "SET client_connection_check_interval = 500"),
    ];
    SETTINGS.iter().filter(|(since, _)| direct && *since <= server_version).map(|(_, sql)| *sql).collect()
}

/// The same as startup options (`-c name=value`), for a driver whose session isn't ours to ask. A pooler refuses a login
/// with options that it doesn't know, and so does a server: only for hosts where a monitor's session could set them.
pub(crate) fn startup_options(server_version: u32) -> String {
    let option = |sql: &str| sql.strip_prefix("SET ").map(|s| format!("-c {}", s.replace(" = ", "=")));
    setup_sql(true, server_version).into_iter().filter_map(option).collect::<Vec<_>>().join(" ")
}

/// Asks which backend answers: a pooler's clients are told another number at login.
pub(crate) const BACKEND_SQL: &str = "SELECT pg_catalog.pg_backend_pid()";

/// Reads the answer to [`BACKEND_SQL`].
pub(crate) fn is_backend(messages: &[SimpleQueryMessage], pid: i32) -> bool {
    let told = first_row(messages).and_then(|row| row.try_get(0).ok().flatten()?.parse().ok());
    told == Some(pid)
}

/// The major version in a `server_version` such as `15.18 (Debian 15.18-0)` or `18beta1`; 0 where there is none.
pub(crate) fn major(server_version: &str) -> u32 {
    let end = server_version.find(|c: char| !c.is_ascii_digit()).unwrap_or(server_version.len());
    server_version[..end].parse().unwrap_or(0)
}

fn first_row(messages: &[SimpleQueryMessage]) -> Option<&SimpleQueryRow> {
    messages.iter().find_map(|m| match m {
        SimpleQueryMessage::Row(r) => Some(r),
        _ => None,
    })
}

fn boolean(t: &str) -> Option<bool> {
    match t {
        "on" | "t" | "true" => Some(true),
        "off" | "f" | "false" => Some(false),
        _ => None,
    }
}

pub(crate) fn lsn(t: &str) -> Option<u64> {
    let (high, low) = t.split_once('/')?;
    Some((u64::from_str_radix(high, 16).ok()? << 32) | u64::from_str_radix(low, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_function_does_not_stand_in_the_statement() {
        let sql = Readable::NOTHING.term_query(false);
        for f in
            ["pg_walfile_name", "pg_control_system", "pg_postmaster_start_time", "pg_last_wal_replay_lsn"]
        {
            assert!(!sql.contains(f), "{f} in {sql}");
            assert!(Readable::ALL.term_query(false).contains(f));
        }
    }

    #[test]
    fn a_name_with_a_quote_does_not_leave_its_quotes() {
        let sql = sessions_sql(r"o'brien\");
        assert!(sql.contains(r"E'o''brien\\'"), "{sql}");
    }

    #[test]
    fn an_old_server_is_asked_for_no_setting_that_it_lacks() {
        assert_eq!(setup_sql(true, major("11.22")).len(), 3);
        assert_eq!(setup_sql(true, major("13.4")).len(), 4);
        assert_eq!(setup_sql(true, major("18beta1")).len(), 5);
        assert_eq!(setup_sql(true, major("CockroachDB")).len(), 3);
        assert!(setup_sql(false, 18).is_empty());
    }

    #[test]
    fn nonsense_in_a_column_is_unknown() {
        assert_eq!(boolean("maybe"), None);
        assert_eq!(lsn("0/3000060"), Some(0x0300_0060));
        assert_eq!(lsn("1/0"), Some(1 << 32));
        assert_eq!(lsn("junk"), None);
        assert_eq!(term_row(&[]), None);
    }
}
