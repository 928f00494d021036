//! What a host says of itself: its role and its term, in one row.
//!
//! Composes the statement and reads its answer; decides nothing. [`crate::open`] asks it of a new session (together
//! with the set-up, one round trip) and the monitor of its probe sessions. An answer that makes no sense means
//! *unknown*, never a failure.

use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

use crate::decide::accept::Question;
use crate::decide::topology::TermRow;

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

    /// The term row for what may be read.
    pub(crate) fn term_query(self) -> String {
        let part = |allowed: bool, sql: &str| if allowed { sql.to_owned() } else { "NULL".to_owned() };
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
            "current_setting('max_connections')".to_owned(),
            format!(
                "(SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE application_name = '{MONITOR_NAME}')"
            ),
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
/// seconds. Each is set only where the server has it.
pub(crate) fn setup_sql(direct: bool) -> Option<String> {
    if !direct {
        // Behind a pooler the settings would stay on a server connection that others use next.
        return None;
    }
    let set = |name: &str, value: &str| {
        format!(
            "SELECT pg_catalog.set_config('{name}', '{value}', false) WHERE current_setting('{name}', true) IS NOT NULL"
        )
    };
    Some(
        [
            set("tcp_keepalives_idle", "3"),
            set("tcp_keepalives_interval", "2"),
            set("tcp_keepalives_count", "3"),
            set("tcp_user_timeout", "9000"),
            // Last: a platform that lacks it (no POLLRDHUP) refuses any value but 0.
            set("client_connection_check_interval", "500"),
        ]
        .join("; "),
    )
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

fn lsn(t: &str) -> Option<u64> {
    let (high, low) = t.split_once('/')?;
    Some((u64::from_str_radix(high, 16).ok()? << 32) | u64::from_str_radix(low, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_function_does_not_stand_in_the_statement() {
        let sql = Readable::NOTHING.term_query();
        for f in
            ["pg_walfile_name", "pg_control_system", "pg_postmaster_start_time", "pg_last_wal_replay_lsn"]
        {
            assert!(!sql.contains(f), "{f} in {sql}");
            assert!(Readable::ALL.term_query().contains(f));
        }
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
