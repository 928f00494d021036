//! Cached statements on a real server: prepared once, bounded, and prepared anew when they went stale.

use pgfollow::tokio_postgres::SimpleQueryMessage;
use pgfollow::{Connector, Session};
use pgfollow_lab::{Cluster, ClusterOptions, servers};

async fn session(cluster: &Cluster) -> Session {
    let connector = Connector::new(&cluster.conninfo()).unwrap();
    connector.connect().await.unwrap()
}

async fn prepared(session: &Session) -> i64 {
    let sql = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%cached%'";
    session.simple_query(sql).await.unwrap().iter().find_map(count).unwrap()
}

fn count(m: &SimpleQueryMessage) -> Option<i64> {
    let SimpleQueryMessage::Row(row) = m else { return None };
    row.get(0)?.parse().ok()
}

async fn state(session: &Session, sql: &str) -> Option<String> {
    let statement = session.prepare_cached(sql).await.unwrap();
    let e = session.query(&statement, &[]).await.err()?;
    session.why().diagnose(e).sqlstate().map(|s| s.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_is_prepared_once_and_again_when_the_server_calls_it_stale() {
    let Some(binaries) = servers() else { return };
    let mut options = ClusterOptions::new(binaries);
    (options.nodes, options.sync) = (1, false);
    let cluster = Cluster::start(options).await.unwrap();
    let mut session = session(&cluster).await;
    session.batch_execute("CREATE TABLE t (n int)").await.unwrap();
    let sql = "SELECT * /* cached */ FROM t";
    for _ in 0..3 {
        assert_eq!(state(&session, sql).await, None);
        let tx = session.transaction().await.unwrap();
        let statement = tx.prepare_cached(sql).await.unwrap();
        tx.query(&statement, &[]).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(prepared(&session).await, 1);

    for (breaks, expected) in [("DEALLOCATE ALL", "26000"), ("ALTER TABLE t ADD m text", "0A000")] {
        session.batch_execute(breaks).await.unwrap();
        assert_eq!(state(&session, sql).await.as_deref(), Some(expected));
        session.forget_cached(sql);
        assert_eq!(state(&session, sql).await, None, "after {breaks}");
    }

    for n in 0..600 {
        session.prepare_cached(&format!("SELECT {n} /* cached */")).await.unwrap();
    }
    // The last one that was evicted may still be on its way to being closed.
    session.simple_query("").await.unwrap();
    assert_eq!(prepared(&session).await, 256);
    assert!(session.prepare_cached("SELEKT").await.unwrap_err().sqlstate().is_some());
}
