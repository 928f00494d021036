//! Recognises the questions that pgfollow asks by itself and answers them from the role that is played.
//!
//! Not a parser of SQL: a list of expressions is cut at its commas, and each is answered by the function or setting
//! that it mentions. What isn't recognised is NULL, which every reader of a term must take for "unknown".

use std::net::{IpAddr, SocketAddr};

use super::message::{Message, Row, Type};
use super::script::Role;

/// What a server would say of itself.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    in_recovery: Option<bool>,
    read_only: bool,
    version: String,
    pid: i32,
    /// Start time in microseconds: what tells one server at two addresses from two servers.
    started: i64,
}

impl Default for Facts {
    fn default() -> Self {
        let version = "15.18".to_owned();
        Self { in_recovery: None, read_only: false, version, pid: 0, started: 1_767_225_600_000_000 }
    }
}

const ROLE: [&str; 3] = ["pg_is_in_recovery", "transaction_read_only", "in_hot_standby"];
const TERM_AND_SETUP: [&str; 12] = [
    "has_function_privilege",
    "pg_walfile_name",
    "pg_settings",
    "set_config",
    "client_connection_check_interval",
    "tcp_keepalives",
    "tcp_user_timeout",
    "system_identifier",
    "pg_control_",
    "timeline",
    "pg_postmaster_start_time",
    "pg_stat_wal_receiver",
];

/// Whether a query is one that pgfollow asks by itself: role, term, set-up, or the ping (an empty query).
pub fn is_ours(text: &str) -> bool {
    let text = text.to_lowercase();
    words(&text).next().is_none() || ROLE.iter().chain(&TERM_AND_SETUP).any(|w| text.contains(w))
}

/// Whether a query asks for the role and nothing else.
pub(super) fn asks_role(text: &str) -> bool {
    let text = text.to_lowercase();
    ROLE.iter().any(|w| text.contains(w)) && !TERM_AND_SETUP.iter().any(|w| text.contains(w))
}

/// Whether two texts are the same query but for spaces around, case and a semicolon at the end.
pub(super) fn same(a: &str, b: &str) -> bool {
    let bare = |s: &str| s.trim().trim_end_matches(';').trim_end().to_lowercase();
    bare(a) == bare(b)
}

/// The words of a text, in capitals.
pub(super) fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).map(str::to_uppercase)
}

/// The first word.
pub(super) fn verb(text: &str) -> String {
    words(text).next().unwrap_or_default()
}

/// The highest `$n`.
pub(super) fn parameters(text: &str) -> i16 {
    let numbers = text.split('$').skip(1).map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    });
    numbers.max().unwrap_or(0)
}

/// The statements of a simple query; an empty text is one empty statement.
pub(super) fn statements(text: &str) -> Vec<&str> {
    let parts: Vec<&str> = cut(text, ';').into_iter().filter(|s| !s.trim().is_empty()).collect();
    if parts.is_empty() { vec![""] } else { parts }
}

/// Cuts a statement, or a list in one, at a separator outside quotes and brackets.
pub fn cut(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quoted) = (Vec::new(), 0, 0_i32, false);
    for (i, c) in text.char_indices() {
        match c {
            '\'' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ if c == separator && depth == 0 => {
                parts.push(&text[start..i]);
                start = i + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

impl Facts {
    /// Learns from what the script sends.
    pub(super) fn note(&mut self, m: &Message) {
        match m {
            Message::Param { name, value } => match name.as_str() {
                "in_hot_standby" => self.in_recovery = Some(value == "on"),
                "default_transaction_read_only" => self.read_only = value == "on",
                "server_version" => self.version = value.clone(),
                _ => {}
            },
            Message::Key { pid, .. } => self.pid = *pid,
            _ => {}
        }
    }

    /// Takes the address for a server of its own.
    pub(super) fn live_at(&mut self, address: SocketAddr) {
        let ip = match address.ip() {
            IpAddr::V4(ip) => i64::from(u32::from(ip)),
            IpAddr::V6(ip) => i64::from(ip.to_bits() as u32),
        };
        self.started += ip * 65_536 + i64::from(address.port());
    }

    pub(super) fn play(&mut self, role: Role) {
        self.in_recovery = Some(role == Role::Standby);
        self.read_only = role == Role::ReadOnlyPrimary;
    }

    /// Whether the role is known at all.
    pub(super) fn known(&self) -> bool {
        self.in_recovery.is_some()
    }

    /// The row that answers a SELECT or SHOW of ours.
    pub(super) fn evaluate(&self, text: &str) -> (Row, Vec<Option<String>>) {
        let text = text.trim();
        let list = match verb(text).as_str() {
            "SHOW" => text[4..].trim(),
            "SELECT" => select_list(text[6..].trim()),
            _ => text,
        };
        let columns = cut(list, ',').into_iter().map(|e| (name_of(e), self.value(&e.to_lowercase())));
        let (shape, values): (Vec<_>, Vec<_>) = columns.map(|(name, (kind, v))| ((name, kind), v)).unzip();
        (Row(shape), values)
    }

    fn value(&self, expression: &str) -> (Type, Option<String>) {
        let e = expression.trim();
        let recovery = self.in_recovery.unwrap_or(false);
        let on = |b: bool| Some(if b { "on" } else { "off" }.to_owned());
        let boolean = |b: bool| (Type::Bool, Some(if b { "t" } else { "f" }.to_owned()));
        let major: i32 = self.version.split('.').next().and_then(|v| v.parse().ok()).unwrap_or(15);
        let text = |v: &str| (Type::Text, Some(v.to_owned()));
        if e.contains("has_function_privilege") {
            boolean(true)
        } else if e.contains("pg_walfile_name") {
            // The name's first eight digits are the timeline; a standby can't tell.
            (Type::Text, Some("00000001".to_owned()).filter(|_| !recovery))
        } else if e.contains("replay_lsn") {
            (Type::Text, Some("0/3000060".to_owned()).filter(|_| recovery))
        } else if e.contains("timeline") {
            text("1")
        } else if e.contains("system_identifier") {
            text("7400000000000000001")
        } else if let Some(call) = e.split("set_config(").nth(1) {
            text(call.split(',').nth(1).unwrap_or_default().trim().trim_matches('\''))
        } else if e.contains("max_connections") {
            text("100")
        } else if e.starts_with("(select count(*)") {
            text("1")
        } else if e.starts_with("not") && e.contains("pg_is_in_recovery") {
            boolean(!recovery)
        } else if e.contains("pg_is_in_recovery") {
            boolean(recovery)
        } else if e.contains("default_transaction_read_only") {
            (Type::Text, on(self.read_only))
        } else if e.contains("transaction_read_only") {
            (Type::Text, on(recovery || self.read_only))
        } else if e.contains("in_hot_standby") {
            (Type::Text, on(recovery).filter(|_| major >= 14))
        } else if e.contains("server_version_num") {
            (Type::Text, Some(format!("{major}0000")))
        } else if e.contains("server_version") {
            (Type::Text, Some(self.version.clone()))
        } else if e.contains("pg_postmaster_start_time") {
            text(&self.started.to_string())
        } else if e.contains("pg_backend_pid") {
            (Type::Int4, Some(self.pid.to_string()))
        } else if let Ok(n) = e.parse::<i32>() {
            (Type::Int4, Some(n.to_string()))
        } else {
            (Type::Text, None)
        }
    }
}

/// The list of a SELECT: up to FROM or WHERE outside brackets.
fn select_list(rest: &str) -> &str {
    let mut at = 0;
    for word in cut(rest, ' ') {
        let bare = word.trim().to_uppercase();
        if bare == "FROM" || bare == "WHERE" || bare.starts_with("FROM\n") {
            return &rest[..at];
        }
        at = (at + word.len() + 1).min(rest.len());
    }
    rest
}

/// A column's name: what stands behind AS, else the function or setting.
fn name_of(expression: &str) -> String {
    let e = expression.trim();
    let mut tail = e.rsplitn(2, char::is_whitespace);
    match (tail.next(), tail.next().map(|head| head.to_lowercase().trim_end().ends_with(" as"))) {
        (Some(alias), Some(true)) => alias.trim_matches('"').to_owned(),
        _ => e.split('(').next().unwrap_or(e).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(facts: &Facts, text: &str) -> Vec<(String, Option<String>)> {
        let (row, values) = facts.evaluate(text);
        row.0.into_iter().map(|(name, _)| name).zip(values).collect()
    }

    #[test]
    fn a_mixed_role_and_term_row_is_answered_column_by_column() {
        let mut facts = Facts::default();
        facts.play(Role::Standby);
        let text = "SELECT pg_is_in_recovery() AS r, current_setting('transaction_read_only', true) AS ro, \
                    (SELECT system_identifier FROM pg_control_system())::text AS sysid, 7 AS n FROM pg_settings";
        let some = |v: &str| Some(v.to_owned());
        assert_eq!(
            row(&facts, text),
            vec![
                ("r".to_owned(), some("t")),
                ("ro".to_owned(), some("on")),
                ("sysid".to_owned(), some("7400000000000000001")),
                ("n".to_owned(), None),
            ]
        );
        assert_eq!(
            row(&facts, "SHOW transaction_read_only"),
            [("transaction_read_only".to_owned(), some("on"))]
        );
    }

    #[test]
    fn the_callers_queries_are_not_taken_for_ours() {
        assert!(!is_ours("SELECT 1") && !is_ours("INSERT INTO t VALUES (1)") && !is_ours("COMMIT"));
        assert!(is_ours("") && is_ours(" ; ") && is_ours("select pg_is_in_recovery()"));
    }

    #[test]
    fn a_semicolon_in_quotes_does_not_end_a_statement() {
        assert_eq!(statements("BEGIN; SELECT ';' ; "), ["BEGIN", " SELECT ';' "]);
        assert_eq!(statements(""), [""]);
    }
}
