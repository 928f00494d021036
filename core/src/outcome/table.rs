//! The token table: made once per database, and rid of its old rows now and then.

use std::time::Duration;

use crate::clock::{self, Deadline};
use crate::config::SessionAttrs;
use crate::connector::Connector;
use crate::decide::outcome::PURGE_HORIZON;
use crate::error::{Class, Code, Error};
use crate::session::Session;

/// As it is made. Logged (an unlogged one would be empty after a crash, and "not committed" a lie), without another index
/// than the key: every transaction writes here.
const CREATE: &str = "CREATE SCHEMA IF NOT EXISTS pgfollow; \
    CREATE TABLE pgfollow.outcome (token uuid PRIMARY KEY, state \"char\" NOT NULL, \
        made_at timestamptz NOT NULL DEFAULT clock_timestamp()); \
    COMMENT ON TABLE pgfollow.outcome IS \
        'pgfollow: one row for each transaction that can be asked for (d done, v void). Purge with: pgfollow outcome purge'; \
    COMMENT ON SCHEMA pgfollow IS 'pgfollow'";

/// What stands there: its kind, and whether it has the columns and the key (anything else would be found out by the first
/// check, long after).
const LOOK: &str = "SELECT c.relpersistence::text, c.relkind::text, \
    (SELECT count(*) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped \
        AND a.atttypid = CASE a.attname WHEN 'token' THEN 'uuid'::pg_catalog.regtype \
            WHEN 'state' THEN '\"char\"'::pg_catalog.regtype WHEN 'made_at' THEN 'timestamptz'::pg_catalog.regtype END) = 3 \
    AND EXISTS (SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a \
        ON a.attrelid = c.oid AND a.attnum = i.indkey[0] AND a.attname = 'token' \
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indnatts = 1 AND i.indpred IS NULL) FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = 'pgfollow' AND c.relname = 'outcome'";

/// Whether [`install`] had anything to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The table is new.
    New,
    /// It was there.
    Before,
}

/// Makes the table `pgfollow.outcome` in the connector's database, on the primary, and lets these roles use it. Doing it
/// again changes nothing. The role of the connection owns what it makes, and needs no grant.
///
/// # Errors
/// What the server refuses (the role must be allowed to create a schema), or no primary in time.
pub async fn install(
    connector: &Connector,
    roles: &[String],
    patience: Duration,
) -> Result<Installed, Error> {
    let (session, deadline) = primary(connector, patience).await?;
    let found = found(&session, deadline).await?;
    let mut sql = String::from("BEGIN READ WRITE; ");
    if found == Installed::New {
        sql.push_str(CREATE);
    }
    for role in roles {
        let role = quoted(role);
        sql.push_str(&format!(
            "; GRANT USAGE ON SCHEMA pgfollow TO {role}; GRANT SELECT, INSERT, UPDATE ON pgfollow.outcome TO {role}"
        ));
    }
    sql.push_str("; COMMIT");
    run(&session, deadline, session.batch_execute(&sql)).await?;
    Ok(found)
}

/// Removes the rows that no token can ask for any more (older than [`PURGE_HORIZON`]; a check believes a token for half
/// of that). Returns how many there were.
///
/// # Errors
/// What the server refuses (the role must own the table or may delete there), or no primary in time.
pub async fn purge(connector: &Connector, patience: Duration) -> Result<u64, Error> {
    let (session, deadline) = primary(connector, patience).await?;
    if found(&session, deadline).await? == Installed::New {
        let message = "there is no table pgfollow.outcome in this database: run `pgfollow outcome install`";
        return Err(Error::new(Code::Server, Class::Permanent, message));
    }
    let sql = format!(
        "DELETE FROM pgfollow.outcome WHERE made_at < clock_timestamp() - make_interval(secs => {})",
        PURGE_HORIZON.as_secs()
    );
    run(&session, deadline, session.execute(&sql, &[])).await
}

/// Whether the table is to be made; an error where something else is in its place.
async fn found(session: &Session, deadline: Deadline) -> Result<Installed, Error> {
    let row = run(session, deadline, session.query_opt(LOOK, &[])).await?;
    let Some(row) = row else { return Ok(Installed::New) };
    match (row.get(0), row.get(1), row.get(2)) {
        ("p", "r", true) => Ok(Installed::Before),
        ("p", "r", false) => Err(Error::new(
            Code::Server,
            Class::Permanent,
            "pgfollow.outcome is another table than ours (token uuid primary key, state \"char\", made_at timestamptz): \
             drop it or rename it, then install again",
        )),
        ("u", "r", _) => Err(Error::new(
            Code::Server,
            Class::Permanent,
            "pgfollow.outcome is an unlogged table, which a crash empties: ALTER TABLE pgfollow.outcome SET LOGGED",
        )),
        _ => Err(Error::new(
            Code::Server,
            Class::Permanent,
            "pgfollow.outcome is no ordinary table: drop it or rename it, then install again",
        )),
    }
}

async fn primary(connector: &Connector, patience: Duration) -> Result<(Session, Deadline), Error> {
    let deadline = Deadline::after(patience);
    Ok((connector.connect_as(SessionAttrs::ReadWrite, patience).await?, deadline))
}

async fn run<T>(
    session: &Session,
    deadline: Deadline,
    call: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    session.within(deadline.left(clock::now()).unwrap_or(Duration::MAX), call).await
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_quote_in_a_role_s_name_does_not_end_the_name() {
        assert_eq!(super::quoted("a\"; DROP"), "\"a\"\"; DROP\"");
    }
}
