//! The service as people write it today: tokio-postgres and deadpool, all hosts in the string,
//! target_session_attrs=read-write, default settings otherwise.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool};
use pgfollow::{Class, SqlState, sqlstate};
use pgfollow_lab::monotonic_ns;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Config, NoTls};

use super::client::{INSERT, Kind, Writer};
use super::record::CallError;

/// How long the plain pool's first session may take.
const TRY_OUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct Plain {
    pool: Pool,
}

/// What tokio-postgres makes of a string, with what it doesn't look for filled in: user, password and database from the
/// environment and the password file.
fn config(conninfo: &str) -> Result<Config, String> {
    let mut config: Config = conninfo.parse().map_err(|e| in_full(&e))?;
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    config.application_name(Kind::Plain.application());
    let known = pgfollow::Config::builder().conninfo(conninfo).set("target_session_attrs", "read-write");
    let known = known.build().map_err(|e| e.to_string())?;
    if config.get_user().is_none() {
        config.user(&known.user);
    }
    if config.get_dbname().is_none() {
        config.dbname(&known.dbname);
    }
    if let (None, Some(Some(password))) = (config.get_password(), known.passwords.first()) {
        config.password(password.reveal());
    }
    Ok(config)
}

/// Whether the plain pool could work with a string at all: why not, if it can't.
pub(crate) async fn try_out(conninfo: &str) -> Result<(), String> {
    let config = config(conninfo)?;
    match tokio::time::timeout(TRY_OUT, config.connect(NoTls)).await {
        // Nobody drives the connection: it closes here.
        Ok(Ok(_)) => Ok(()),
        Ok(Err(e)) => Err(in_full(&e)),
        Err(_) => Err(format!("no session within {} s", TRY_OUT.as_secs())),
    }
}

impl Plain {
    pub(crate) fn new(conninfo: &str, size: usize) -> Result<Self, String> {
        let config = config(conninfo)?;
        let manager = Manager::from_config(config, NoTls, ManagerConfig::default());
        let pool = Pool::builder(manager).max_size(size).build().map_err(|e| e.to_string())?;
        Ok(Self { pool })
    }
}

impl Writer for Plain {
    async fn write(
        &mut self,
        client: &str,
        worker: i32,
        seq: i64,
        had: &mut Option<u64>,
    ) -> Result<String, CallError> {
        let pooled = self.pool.get().await.map_err(|e| match e {
            deadpool_postgres::PoolError::Backend(e) => told(&e, false),
            e => CallError { class: Class::Transient, code: "pool".to_owned(), message: e.to_string() },
        })?;
        *had = Some(monotonic_ns());
        let insert = pooled.prepare_cached(INSERT).await.map_err(|e| told(&e, false))?;
        pooled
            .query_one(&insert, &[&client, &worker, &seq])
            .await
            .map(|row| row.get(0))
            .map_err(|e| told(&e, true))
    }
}

/// The class that a careful reader of the driver's error would give it.
fn told(e: &tokio_postgres::Error, write_sent: bool) -> CallError {
    let state = e.code().and_then(|c| SqlState::new(c.code()));
    let class = match state.map(sqlstate::meaning) {
        _ if !write_sent => Class::Transient,
        Some(m) if !m.ends_session => m.at_statement,
        // The connection went, and whether the write was done is unknown.
        _ => Class::UnknownOutcome,
    };
    let code = state.map_or_else(|| "connection".to_owned(), |s| s.to_string());
    CallError { class, code, message: in_full(e) }
}

fn in_full(e: &tokio_postgres::Error) -> String {
    match (e.as_db_error(), std::error::Error::source(e)) {
        (Some(db), _) => db.message().to_owned(),
        (None, Some(source)) => format!("{e}: {source}"),
        (None, None) => e.to_string(),
    }
}
