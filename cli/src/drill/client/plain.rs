//! The workload as people have it today: tokio-postgres with a multi-host string behind deadpool, defaults otherwise.

use std::str::FromStr;

use deadpool_postgres::{Manager, Pool};
use futures_util::future::try_join_all;
use pgfollow::{Class, Error};
use tokio_postgres::NoTls;

use super::{INSERT, Scribe};

pub(super) async fn run(conninfo: &str, scribes: Vec<Scribe>) -> Result<(), String> {
    let config = tokio_postgres::Config::from_str(conninfo).map_err(|e| e.to_string())?;
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(scribes.len())
        .build()
        .map_err(|e| e.to_string())?;
    try_join_all(scribes.into_iter().map(|s| {
        let pool = pool.clone();
        async move { tokio::spawn(work(pool, s)).await.map_err(|e| e.to_string()) }
    }))
    .await?;
    Ok(())
}

async fn work(pool: Pool, mut scribe: Scribe) {
    loop {
        let (worker, seq) = scribe.next().await;
        let result = write(&pool, worker, seq).await;
        scribe.note(result).await;
    }
}

async fn write(pool: &Pool, worker: i32, seq: i64) -> Result<String, (Class, String)> {
    // Nothing has been sent before there is a connection and a statement.
    let client = pool.get().await.map_err(|e| (Class::Transient, e.to_string()))?;
    let statement = client.prepare_cached(INSERT).await.map_err(|e| (Class::Transient, e.to_string()))?;
    let row = client.query_one(&statement, &[&"plain", &worker, &seq]).await.map_err(|e| {
        let text = e.to_string();
        (Error::from(e).class(), text)
    })?;
    Ok(row.get(0))
}
