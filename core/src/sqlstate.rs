//! SQLSTATE → what follows from it, as one table for connects and for statements.
//!
//! Decides only what the code alone tells; the circumstances (had a write left, was it a COMMIT, was the transaction
//! READ ONLY) are added by [`crate::decide::walk`] and [`crate::decide::classify`], which read this table next. An
//! unknown code is denied: permanent. Codes and their meaning: PostgreSQL's `errcodes.txt`.

use crate::error::{Class, SqlState};

/// Whom an error concerns besides the request that met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The request alone.
    Request,
    /// This session: it doesn't go on, the others of its host are well.
    Session,
    /// The host: its other sessions must be checked before anyone relies on them.
    Host,
}

/// What a code tells by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// The class when a login is answered with it.
    pub at_connect: Class,
    /// Whether it ends the walk through the hosts, because no other host can help
    /// (`host_walk=follow`; libpq's own rule is in [`crate::decide::walk`]).
    pub stops_walk: bool,
    /// The class when a statement is answered with it and the session goes on. [`Class::UnknownOutcome`] only for the
    /// codes that say so themselves.
    pub at_statement: Class,
    /// Whether the session is over, whatever the severity says: a crash may be announced in a notice.
    pub ends_session: bool,
    /// Whom it concerns.
    pub scope: Scope,
    /// Whether another try must wait: the server is short of something or not ready yet.
    pub backoff: bool,
}

impl Meaning {
    /// What holds for a code that the table doesn't have.
    const DENIED: Self = Self {
        at_connect: Class::Permanent,
        stops_walk: false,
        at_statement: Class::Permanent,
        ends_session: false,
        scope: Scope::Request,
        backoff: false,
    };

    const fn connect(mut self, class: Class) -> Self {
        self.at_connect = class;
        self
    }

    const fn stops(mut self) -> Self {
        self.stops_walk = true;
        self
    }

    const fn statement(mut self, class: Class) -> Self {
        self.at_statement = class;
        self
    }

    const fn ends(mut self, scope: Scope) -> Self {
        self.ends_session = true;
        self.scope = scope;
        self
    }

    const fn backoff(mut self) -> Self {
        self.backoff = true;
        self
    }
}

const DENIED: Meaning = Meaning::DENIED;
/// Certainly not done, and worth another try, in both contexts.
const AGAIN: Meaning = DENIED.connect(Class::Transient).statement(Class::Transient);
/// The host can't take this login; it says nothing about a statement.
const NOT_HERE: Meaning = DENIED.connect(Class::Transient);
/// Wrong on every host alike.
const HOPELESS: Meaning = DENIED.stops();

/// Codes and, with two characters, whole classes; the longer entry wins.
pub const TABLE: &[(&str, Meaning)] = &[
    // A pooler or a foreign server lost or refused *its* connection. In a block the statement was undone; one that
    // commits by itself may be done over there (decide::classify). 08007 says that nobody knows. PgBouncer reports
    // nearly all of its own troubles as 08P01.
    ("08", NOT_HERE.backoff()),
    ("08000", AGAIN.backoff()),
    ("08001", AGAIN.backoff()),
    ("08003", AGAIN.backoff()),
    ("08006", AGAIN.backoff()),
    ("08007", NOT_HERE.statement(Class::UnknownOutcome)),
    // Startup parameters that are wrong are so on the next host as well.
    ("22", HOPELESS),
    // "Cannot execute … in a read-only transaction": not done. Why, only the session knows: decide::classify.
    ("25006", AGAIN),
    // The block failed earlier: roll back first, repeating this statement can only repeat the error.
    ("25P02", DENIED),
    // Idle in a transaction, or a transaction, for too long: this session alone.
    ("25P03", AGAIN.ends(Scope::Session)),
    ("25P04", AGAIN.ends(Scope::Session)),
    // The prepared statement is gone (pooler, other server): nothing ran, prepare again.
    ("26000", AGAIN),
    // The same credentials are not replayed along the list: that locks accounts. (In a fresh outage decide::walk
    // takes 28000 for transient.)
    ("28", HOPELESS),
    ("3D000", HOPELESS),
    // Rolled back for certain. (40002 is a violated constraint: denied by default.)
    ("40000", AGAIN),
    ("40001", AGAIN),
    ("40P01", AGAIN),
    ("40003", NOT_HERE.statement(Class::UnknownOutcome)),
    // No CONNECT privilege, an unknown startup option: wrong everywhere.
    ("42", HOPELESS),
    // Short of something; the host and its other sessions are alive.
    ("53", AGAIN.backoff()),
    // Someone else holds the lock, and this caller didn't want to wait for it.
    ("55P03", AGAIN.backoff()),
    // Cancelled on somebody's purpose (statement_timeout, a cancel request); at login: authentication_timeout.
    ("57014", NOT_HERE),
    ("57P01", AGAIN.ends(Scope::Host)),
    ("57P02", AGAIN.ends(Scope::Host)),
    // Starting up, shutting down, in recovery.
    ("57P03", AGAIN.backoff()),
    ("57P04", HOPELESS.ends(Scope::Host)),
    ("57P05", AGAIN.ends(Scope::Session)),
    // That host's disk or files: another host has its own.
    ("58", NOT_HERE),
    ("58000", AGAIN.backoff()),
    ("58030", AGAIN.backoff()),
];

/// What a code tells.
///
/// ```
/// use pgfollow::sqlstate::meaning;
/// use pgfollow::{Class, SqlState};
/// let m = |s| meaning(SqlState::new(s).unwrap());
/// assert_eq!(m("57P03").at_connect, Class::Transient);
/// assert!(m("28P01").stops_walk);
/// assert_eq!(m("ZZ999").at_statement, Class::Permanent); // unknown: denied
/// ```
pub fn meaning(state: SqlState) -> Meaning {
    let text = state.as_str();
    let find = |key: &str| TABLE.iter().find(|row| row.0 == key).map(|row| row.1);
    find(text).or_else(|| find(&text[..2])).unwrap_or(DENIED)
}
