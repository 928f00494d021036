//! The service as people write it today: tokio-postgres and deadpool, all hosts in the string,
//! target_session_attrs=read-write, default settings otherwise.

use deadpool_postgres::{Manager, ManagerConfig, Pool};
use pgfollow::{Class, SqlState, sqlstate};
use tokio_postgres::NoTls;

use super::client::{INSERT, Writer};
use super::record::CallError;

#[derive(Clone)]
pub(crate) struct Plain {
    pool: Pool,
}

impl Plain {
    pub(crate) fn new(conninfo: &str, size: usize) -> Result<Self, String> {
        let config: tokio_postgres::Config = conninfo.parse().map_err(|e| format!("{e}"))?;
        let manager = Manager::from_config(config, NoTls, ManagerConfig::default());
        let pool = Pool::builder(manager).max_size(size).build().map_err(|e| e.to_string())?;
        Ok(Self { pool })
    }
}

impl Writer for Plain {
    async fn write(&mut self, client: &str, worker: i32, seq: i64) -> Result<String, CallError> {
        let pooled = self.pool.get().await.map_err(|e| match e {
            deadpool_postgres::PoolError::Backend(e) => told(&e, false),
            e => CallError { class: Class::Transient, code: "pool".to_owned(), message: e.to_string() },
        })?;
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
    let message = match (e.as_db_error(), std::error::Error::source(e)) {
        (Some(db), _) => db.message().to_owned(),
        (None, Some(source)) => format!("{e}: {source}"),
        (None, None) => e.to_string(),
    };
    CallError { class, code, message }
}
