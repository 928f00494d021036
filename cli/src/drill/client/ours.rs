//! The workload through pgfollow: a session for each worker, a new one when it ends.

use std::time::Duration;

use futures_util::future::try_join_all;
use pgfollow::{Connector, Error};

use super::{INSERT, Scribe};

/// How long a worker waits for a session.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(conninfo: &str, scribes: Vec<Scribe>) -> Result<(), String> {
    let connector = Connector::new(conninfo).map_err(|e| e.to_string())?;
    try_join_all(scribes.into_iter().map(|s| {
        let connector = connector.clone();
        async move { tokio::spawn(work(connector, s)).await.map_err(|e| e.to_string()) }
    }))
    .await?;
    Ok(())
}

async fn work(connector: Connector, mut scribe: Scribe) {
    loop {
        let (worker, mut seq) = scribe.next().await;
        let session = match connector.connect_within(PATIENCE).await {
            Ok(s) => s,
            Err(e) => {
                scribe.note(Err(told(&e))).await;
                continue;
            }
        };
        let why = session.why();
        let statement = match session.prepare(INSERT).await {
            Ok(s) => s,
            Err(e) => {
                scribe.note(Err(told(&why.diagnose(e)))).await;
                continue;
            }
        };
        loop {
            let row = session.query_one(&statement, &[&"pgfollow", &worker, &seq]).await;
            let result = row.map(|r| r.get(0)).map_err(|e| told(&why.diagnose(e)));
            let failed = result.is_err();
            scribe.note(result).await;
            if failed || !session.is_usable() {
                break;
            }
            (_, seq) = scribe.next().await;
        }
    }
}

fn told(e: &Error) -> (pgfollow::Class, String) {
    (e.class(), format!("{}: {}", e.code().name(), e.message()))
}
