//! What somebody meant who wrote a keyword that isn't one.
//!
//! Decides from the word alone: it never sees a value. The messages are made where the word was read.

use super::table::{OPTIONS, find};

/// What users of other pools write, in lower case and without underscores.
const OTHER_POOLS: &[(&str, &str)] = &[
    ("maxconnections", "pool_max_conns"),
    ("maximumpoolsize", "pool_max_conns"),
    ("maxopenconns", "pool_max_conns"),
    ("maxpoolsize", "pool_max_conns"),
    ("maxsize", "pool_max_conns"),
    ("poolmax", "pool_max_conns"),
    ("poolmaxsize", "pool_max_conns"),
    ("poolsize", "pool_max_conns"),
    ("minconnections", "pool_min_conns"),
    ("minidle", "pool_min_conns"),
    ("minimumidle", "pool_min_conns"),
    ("minpoolsize", "pool_min_conns"),
    ("minsize", "pool_min_conns"),
    ("poolmin", "pool_min_conns"),
    ("poolminsize", "pool_min_conns"),
    ("checkouttimeout", "pool_acquire_timeout"),
    ("pooltimeout", "pool_acquire_timeout"),
    ("connmaxlifetime", "pool_max_conn_lifetime"),
    ("maxlifetime", "pool_max_conn_lifetime"),
    ("poolrecycle", "pool_max_conn_lifetime"),
];

/// Settings of the server that people look for among a client's options.
const SERVER_SETTINGS: &[&str] = &[
    "default_transaction_isolation",
    "default_transaction_read_only",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "lock_timeout",
    "search_path",
    "statement_timeout",
    "synchronous_commit",
    "timezone",
    "transaction_timeout",
    "work_mem",
];

/// What was meant.
enum Meant {
    /// That option of ours.
    Option(&'static str),
    /// That setting of the server.
    Setting(&'static str),
}

/// The known keyword that is nearest to a wrong one, and how many edits away it is. A swap of neighbours is one: `hots` is
/// one from `host`.
fn nearest(wrong: &str) -> (&'static str, usize) {
    let distances = OPTIONS.iter().map(|r| (r.name, strsim::osa_distance(wrong, r.name)));
    distances.min_by_key(|d| d.1).unwrap_or(("host", usize::MAX))
}

/// A word of that length of which more would have to change was hardly meant to be another.
fn bearable(wrong: &str) -> usize {
    (wrong.len() / 3).max(1)
}

/// What is meant for certain, whatever it looks like.
fn by_name(wrong: &str) -> Option<Meant> {
    if let Some(row) = find(&format!("pool_{wrong}")) {
        return Some(Meant::Option(row.name));
    }
    let bare = wrong.replace('_', "");
    if let Some((_, name)) = OTHER_POOLS.iter().find(|(theirs, _)| *theirs == bare) {
        return Some(Meant::Option(name));
    }
    // Closer than for our own: what is only a little like a setting may be anything.
    let setting = SERVER_SETTINGS.iter().find(|name| strsim::osa_distance(wrong, name) <= 2);
    setting.map(|name| Meant::Setting(name))
}

fn meant(wrong: &str) -> Option<Meant> {
    by_name(wrong).or_else(|| match nearest(wrong) {
        (name, edits) if edits <= bearable(wrong) => Some(Meant::Option(name)),
        _ => None,
    })
}

/// Whether a wrong keyword is so much like a known one that it can't be a piece of a password.
pub(crate) fn is_like_a_keyword(wrong: &str) -> bool {
    let wrong = wrong.to_ascii_lowercase();
    wrong.len() >= 4 && (nearest(&wrong).1 <= 2 || by_name(&wrong).is_some())
}

/// What a message about a wrong keyword adds: the one that was probably meant, or where all are.
pub(crate) fn remedy(wrong: &str) -> String {
    match meant(&wrong.to_ascii_lowercase()) {
        Some(Meant::Option(name)) => format!("the nearest known one is {name:?}"),
        Some(Meant::Setting(name)) => format!(
            "{name} is a setting of the server: write options='-c {name}=…' (in a URI options=-c%20{name}%3D…)"
        ),
        None => "no known one is like it (docs/options.md lists all)".to_owned(),
    }
}

/// The variable of ours that an unknown `PGFOLLOW_*` was probably meant to be.
pub(crate) fn variable(wrong: &str, hosts: &'static str) -> Option<&'static str> {
    // Of our own: no other begins so. Kubernetes injects such names too, and those resemble libpq's.
    let own = || OPTIONS.iter().filter(|r| r.own).filter_map(|r| r.variable).chain([hosts]);
    let known = wrong.strip_prefix("PGFOLLOW_").and_then(|word| by_name(&word.to_ascii_lowercase()));
    if let Some(Meant::Option(name)) = known {
        return find(name)?.variable;
    }
    let edits = |name: &&str| strsim::osa_distance(wrong, name);
    own().min_by_key(edits).filter(|name| edits(name) <= 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_keyword_finds_its_neighbour() {
        assert_eq!(nearest("hots"), ("host", 1));
        assert_eq!(nearest("pool_max_con"), ("pool_max_conns", 2));
        for (wrong, meant) in [
            ("hots", "host"),
            ("prot", "port"),
            ("pasword", "password"),
            ("SSLMODE", "sslmode"),
            ("target_sesion_atrs", "target_session_attrs"),
        ] {
            assert!(remedy(wrong).ends_with(&format!("{meant:?}")), "{wrong}: {}", remedy(wrong));
        }
    }

    #[test]
    fn a_word_of_another_pool_finds_ours_and_not_one_that_looks_like_it() {
        for (wrong, meant) in [
            ("acquire_timeout", "pool_acquire_timeout"),
            ("max_conns", "pool_max_conns"),
            ("max_connections", "pool_max_conns"),
            ("maximumPoolSize", "pool_max_conns"),
            ("pool_size", "pool_max_conns"),
            ("max_lifetime", "pool_max_conn_lifetime"),
        ] {
            assert!(remedy(wrong).ends_with(&format!("{meant:?}")), "{wrong}: {}", remedy(wrong));
        }
        for (theirs, ours) in OTHER_POOLS {
            assert!(find(ours).is_some_and(|r| r.own), "{theirs}: {ours}");
        }
    }

    #[test]
    fn a_setting_of_the_server_is_sent_to_options() {
        for wrong in ["statement_timeout", "STATEMENT_TIMEOUT", "statement_timeoutt"] {
            assert!(remedy(wrong).contains("options='-c statement_timeout=…'"), "{}", remedy(wrong));
        }
        assert!(SERVER_SETTINGS.iter().all(|name| find(name).is_none()));
        assert!(!remedy("tcp_timeout").contains("lock_timeout"), "{}", remedy("tcp_timeout"));
    }

    #[test]
    fn a_word_like_no_keyword_sends_nobody_to_a_wrong_one() {
        for wrong in ["foo", "x", "nonsense", "retries"] {
            assert!(remedy(wrong).starts_with("no known one"), "{wrong}: {}", remedy(wrong));
        }
    }

    #[test]
    fn an_unknown_variable_finds_ours_and_one_of_kubernetes_does_not() {
        let found = |name| variable(name, "PGFOLLOW_HOSTS");
        assert_eq!(found("PGFOLLOW_POOL_MAX"), Some("PGFOLLOW_POOL_MAX_CONNS"));
        assert_eq!(found("PGFOLLOW_ACQUIRE_TIMEOUT"), Some("PGFOLLOW_POOL_ACQUIRE_TIMEOUT"));
        assert_eq!(found("PGFOLLOW_HOST"), Some("PGFOLLOW_HOSTS"));
        assert_eq!(found("PGFOLLOW_MONITR"), Some("PGFOLLOW_MONITOR"));
        for injected in ["PGFOLLOW_PORT", "PGFOLLOW_PORT_5432_TCP", "PGFOLLOW_SERVICE_HOST"] {
            assert_eq!(found(injected), None, "{injected}");
        }
    }
}
