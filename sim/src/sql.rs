//! The statements that the modelled servers understand: pgfollow's own questions and those of the workload.
//!
//! Not a parser of SQL. A list of expressions is cut at its commas, and each is answered by the function or setting that
//! it mentions; a statement that isn't known is a syntax error, so that a new question of the library's is noticed.

use pgfollow_lab::wire::cut;
use std::collections::{BTreeMap, VecDeque};

use crate::backend::marks;
use crate::node::Node;
use crate::world::Marks;

/// A statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sql {
    /// Nothing: a ping.
    Empty,
    Begin {
        read_only: bool,
    },
    Commit,
    Rollback,
    /// `INSERT INTO writes (id) VALUES (7)`; `None` where the id is bound.
    Insert(Option<i64>),
    /// `SELECT id FROM writes WHERE id = 7`.
    Look(i64),
    /// `SELECT fail('40001')`.
    Fail(String),
    /// `SELECT pg_sleep(0.3)`: microseconds.
    Sleep(u64),
    /// `INSERT INTO pgfollow.outcome …`: a token; `check`: with ON CONFLICT, as a check takes it.
    Token {
        token: String,
        state: char,
        check: bool,
    },
    /// `SELECT pg_logical_emit_message(true, …)`: a write without a row.
    Emit,
    /// Whether a backend of that number and start waits for a standby; `end`: if it doesn't, it is ended.
    Twin {
        pid: i32,
        start: i64,
        end: bool,
    },
    /// Which of these backends are at work, and whether they wait for a standby.
    AtWork(Vec<i32>),
    /// The library's own questions: expressions and the names of their columns.
    Ask(Vec<(Expr, String)>),
    Set,
    Unknown,
}

/// The library's own questions, read once: they are asked over and over.
#[derive(Default)]
pub(crate) struct Known(BTreeMap<String, Vec<Sql>>);

impl Known {
    /// The statements of a simple query.
    pub(crate) fn statements(&mut self, text: &str) -> VecDeque<Sql> {
        if !text.starts_with("SELECT pg_catalog") {
            return statements(text).into();
        }
        if let Some(known) = self.0.get(text) {
            return known.clone().into();
        }
        self.0.entry(text.to_owned()).or_insert_with(|| statements(text)).clone().into()
    }
}

/// The statements of a simple query; an empty text is one empty statement.
pub(crate) fn statements(text: &str) -> Vec<Sql> {
    let parts: Vec<Sql> =
        cut(text, ';').into_iter().filter(|s| !s.trim().is_empty()).map(Sql::read).collect();
    if parts.is_empty() { vec![Sql::Empty] } else { parts }
}

impl Sql {
    /// Reads one statement.
    pub(crate) fn read(text: &str) -> Self {
        let text = text.trim();
        let word = text.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default().to_uppercase();
        match word.as_str() {
            "" => Self::Empty,
            "BEGIN" | "START" => Self::Begin { read_only: text.contains("READ ONLY") },
            "COMMIT" => Self::Commit,
            "ROLLBACK" => Self::Rollback,
            "INSERT" if text.contains("pgfollow.outcome") => {
                let mut quoted = text.split('\'').skip(1).step_by(2);
                let token = quoted.next().unwrap_or_default().to_owned();
                let state = quoted.next().and_then(|s| s.chars().next()).unwrap_or('?');
                Self::Token { token, state, check: text.contains("ON CONFLICT") }
            }
            "INSERT" => Self::Insert(number(text)),
            "SET" => Self::Set,
            "SHOW" => Self::Ask(vec![named(&text[4..])]),
            "SELECT" if text.contains("wait_event IS NOT DISTINCT") => {
                let pid = text.split("WHERE pid = ").nth(1).and_then(|t| t.split(' ').next()?.parse().ok());
                let end = text.contains("pg_terminate_backend");
                pid.zip(number(text)).map_or(Self::Unknown, |(pid, start)| Self::Twin { pid, start, end })
            }
            "SELECT" if text.contains("state = 'active' AND pid IN (") => {
                let list = text.rsplit(['(', ')']).nth(1).unwrap_or_default();
                let pids: Result<_, _> = list.split(',').map(|pid| pid.trim().parse()).collect();
                pids.map_or(Self::Unknown, Self::AtWork)
            }
            "SELECT" if text.contains("pg_logical_emit_message(true") => Self::Emit,
            "SELECT" if text.contains("FROM writes") => number(text).map_or(Self::Unknown, Self::Look),
            "SELECT" if text.contains("fail(") => {
                text.split('\'').nth(1).map_or(Self::Unknown, |code| Self::Fail(code.to_owned()))
            }
            "SELECT" if text.contains("pg_sleep(") => {
                let seconds = text.split(['(', ')']).nth(1).and_then(|s| s.parse().ok()).unwrap_or(0.0);
                Self::Sleep(crate::world::micros(std::time::Duration::from_secs_f64(seconds)))
            }
            "SELECT" => Self::Ask(cut(&text[6..], ',').into_iter().map(named).collect()),
            _ => Self::Unknown,
        }
    }

    /// The columns of its rows.
    pub(crate) fn columns(&self) -> Vec<String> {
        let names: &[&str] = match self {
            Self::Ask(list) => return list.iter().map(|(_, name)| name.clone()).collect(),
            Self::Look(_) => &["id"],
            Self::Fail(_) | Self::Sleep(_) | Self::Emit => &["nothing"],
            Self::Token { check: true, .. } => &["state"],
            Self::AtWork(_) => &["pid", "waits"],
            Self::Twin { end: false, .. } => &["waits"],
            Self::Twin { end: true, .. } => &["waits", "ended"],
            _ => &[],
        };
        names.iter().map(|n| (*n).to_owned()).collect()
    }
}

/// An expression and its name.
fn named(e: &str) -> (Expr, String) {
    match e.trim().rsplit_once(" AS ") {
        Some((e, name)) if name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {
            (Expr::read(e), name.to_owned())
        }
        _ => (Expr::read(e.trim()), "column".to_owned()),
    }
}

/// The last number in a text that isn't a `$n`.
fn number(text: &str) -> Option<i64> {
    let end = text.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = text[..end].rfind(|c: char| !c.is_ascii_digit())? + 1;
    if text[..start].ends_with('$') { None } else { text[start..end].parse().ok() }
}

/// What an expression of a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expr {
    Null,
    Yes,
    No,
    Timeline,
    System,
    Start,
    Replay,
    MaxConnections,
    Monitors,
    DefaultReadOnly,
    ReadOnly,
    InRecovery,
    Database,
    Clock,
    Born,
    Pid,
    Sync,
    HasTable,
    HasNumbers,
    Xid,
    Insert,
    Status(u64),
    Unknown,
}

impl Expr {
    /// By the function or setting that it mentions; the narrower ones first.
    fn read(e: &str) -> Self {
        const MENTIONED: [(&str, Expr); 20] = [
            ("c.relname = 'outcome'", Expr::HasTable),
            ("bool_and(", Expr::HasNumbers),
            ("pg_logical_emit_message", Expr::HasNumbers),
            ("txid_current_if_assigned", Expr::Xid),
            ("pg_current_wal_insert_lsn", Expr::Insert),
            ("'synchronous_commit'", Expr::No),
            ("'synchronous_standby_names'", Expr::Sync),
            ("has_function_privilege", Expr::Yes),
            ("pg_database", Expr::Database),
            ("clock_timestamp", Expr::Clock),
            ("pg_stat_get_activity", Expr::Born),
            ("pg_backend_pid", Expr::Pid),
            ("pg_walfile_name", Expr::Timeline),
            ("system_identifier", Expr::System),
            ("pg_postmaster_start_time", Expr::Start),
            ("pg_last_wal_replay_lsn", Expr::Replay),
            ("max_connections", Expr::MaxConnections),
            ("pg_stat_activity", Expr::Monitors),
            ("default_transaction_read_only", Expr::DefaultReadOnly),
            ("transaction_read_only", Expr::ReadOnly),
        ];
        if e == "NULL" {
            return Self::Null;
        }
        let number = |rest: &str| rest.split(')').next()?.parse().ok();
        if let Some(xid) = e.split_once("txid_status(").and_then(|(_, rest)| number(rest)) {
            return Self::Status(xid);
        }
        let known = MENTIONED.iter().find(|(word, _)| e.contains(word)).map(|(_, known)| *known);
        let recovery = || if e.contains("pg_is_in_recovery") { Self::InRecovery } else { Self::Unknown };
        known.unwrap_or_else(recovery)
    }
}

/// What a question can be about beside the server itself.
pub(crate) struct Asked<'a> {
    pub(crate) node: &'a Node,
    pub(crate) max_connections: u32,
    pub(crate) monitors: usize,
    pub(crate) pid: i32,
    pub(crate) backend_start: i64,
    pub(crate) wall: i64,
    pub(crate) sync: bool,
    pub(crate) marks: Marks,
    /// Its transaction's number.
    pub(crate) xid: Option<u64>,
    /// Numbers of the transactions that are under way.
    pub(crate) running: &'a [u64],
}

fn lsn(entries: usize) -> String {
    format!("0/{:X}", 0x0300_0000 + 0x60 * entries)
}

/// What an expression gives; `Err` for one that isn't known.
pub(crate) fn value(e: Expr, asked: &Asked<'_>) -> Result<Option<String>, ()> {
    let node = asked.node;
    let on = |b: bool| Some(if b { "on" } else { "off" }.to_owned());
    let boolean = |b: bool| Some(if b { "t" } else { "f" }.to_owned());
    Ok(match e {
        Expr::Null => None,
        Expr::Yes => boolean(true),
        Expr::No => boolean(false),
        Expr::Timeline => (!node.in_recovery).then(|| format!("{:08X}", node.timeline)),
        Expr::System => Some("7400000000000000001".to_owned()),
        Expr::Start => Some(node.started.to_string()),
        Expr::Replay => {
            if node.in_recovery { Some(node.dropped + node.wal.len()) } else { node.replayed }.map(lsn)
        }
        Expr::Insert => Some(lsn(node.dropped + node.wal.len())),
        Expr::HasTable => (asked.marks == Marks::Table).then(|| "16390.16390".to_owned()),
        Expr::HasNumbers => boolean(asked.marks == Marks::Numbers),
        Expr::Xid => asked.xid.map(|x| x.to_string()),
        Expr::Status(xid) => Some(marks::status(node, xid, asked.running).ok_or(())?.to_owned()),
        Expr::MaxConnections => Some(asked.max_connections.to_string()),
        Expr::Monitors => Some(asked.monitors.to_string()),
        Expr::DefaultReadOnly => on(node.fenced),
        Expr::ReadOnly => on(node.fenced || node.in_recovery),
        Expr::InRecovery => boolean(node.in_recovery),
        Expr::Database => Some("16384".to_owned()),
        Expr::Clock => Some(asked.wall.to_string()),
        Expr::Born => Some(asked.backend_start.to_string()),
        Expr::Pid => Some(asked.pid.to_string()),
        Expr::Sync => boolean(asked.sync),
        Expr::Unknown => return Err(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_workload_says_is_understood() {
        assert_eq!(Sql::read("INSERT INTO writes (id) VALUES (70)"), Sql::Insert(Some(70)));
        assert_eq!(Sql::read("INSERT INTO writes (id) VALUES ($1)"), Sql::Insert(None));
        assert_eq!(Sql::read("SELECT id FROM writes WHERE id = 12"), Sql::Look(12));
        assert_eq!(Sql::read("SELECT pg_sleep(0.25)"), Sql::Sleep(250_000));
        assert_eq!(Sql::read("START TRANSACTION READ ONLY"), Sql::Begin { read_only: true });
        let looks = "SELECT pid, true FROM pg_stat_activity WHERE state = 'active' AND pid IN (7, 12)";
        assert_eq!(Sql::read(looks), Sql::AtWork(vec![7, 12]));
        assert_eq!(Sql::read("DROP TABLE writes"), Sql::Unknown);
        assert_eq!(statements(" ; "), [Sql::Empty]);
    }

    #[test]
    fn a_function_with_commas_and_semicolons_in_quotes_is_one_expression() {
        assert_eq!(statements("SELECT f(a, b), g(';'); SET x = 1").len(), 2);
        assert_eq!(Sql::read("SELECT f(a, b) AS x, g").columns(), ["x", "column"]);
    }
}
