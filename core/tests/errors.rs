#![expect(clippy::disallowed_methods, reason = "a test against a real server, and words for people")]
//! What a call's error says: whose fault it was, what had left, and whether it may have been done.

use std::time::Duration;

use pgfollow::{Class, Code, Connector, Error, Sent, Session, TxStatus};
use pgfollow_lab::{Cluster, ClusterOptions, servers};

async fn session() -> Option<(Cluster, Connector, Session)> {
    let mut options = ClusterOptions::new(servers()?);
    (options.nodes, options.sync) = (1, false);
    let cluster = Cluster::start(options).await.unwrap();
    let connector = Connector::new(&cluster.conninfo()).unwrap();
    let session = connector.connect_within(Duration::from_secs(10)).await.unwrap();
    Some((cluster, connector, session))
}

#[tokio::test]
async fn a_call_that_doesnt_fit_is_never_taken_for_a_lost_connection() {
    let Some((_cluster, _connector, s)) = session().await else { return };
    let wrong = [
        s.query_one("SELECT 1 WHERE false", &[]).await.unwrap_err(),
        s.query_one("SELECT $1::int4", &[&"text"]).await.unwrap_err(),
        s.query_one("SELECT 1", &[]).await.unwrap().try_get::<_, String>(0).unwrap_err(),
        s.query_one("SELECT 1", &[]).await.unwrap().try_get::<_, i32>("no such").unwrap_err(),
    ];
    for e in wrong {
        let told = Error::from(e);
        assert_eq!((told.code(), told.class()), (Code::WrongCall, Class::Permanent), "{told}");
    }
    let e = s.query_one("SELECT 1 WHERE false", &[]).await.unwrap_err();
    assert_eq!(s.why().diagnose(e).code(), Code::WrongCall);
    let told = Error::from(s.simple_query("SELEC 1").await.unwrap_err());
    assert!(told.message().contains("syntax error"), "{told}");
}

#[tokio::test]
async fn what_the_server_answered_had_left_and_fails_its_block() {
    let Some((_cluster, _connector, mut s)) = session().await else { return };
    s.batch_execute("CREATE TABLE t (n int PRIMARY KEY); INSERT INTO t VALUES (1)").await.unwrap();
    for _ in 0..50 {
        let e = s.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap_err();
        let e = s.why().diagnose(e);
        assert_eq!((e.class(), e.sent()), (Class::Permanent, Some(Sent::Complete)), "{e}");
        let tx = s.transaction().await.unwrap();
        let e = tx.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap_err();
        let e = tx.why().diagnose(e);
        assert_eq!((e.sent(), e.transaction()), (Some(Sent::Complete), Some(TxStatus::Failed)), "{e}");
    }
}

#[tokio::test]
async fn a_transaction_on_a_session_that_is_over_sends_nothing_and_says_so() {
    let Some((_cluster, connector, mut s)) = session().await else { return };
    let pid: i32 = s.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let other = connector.connect().await.unwrap();
    let (blocked, ended) = tokio::join!(s.execute("SELECT pg_sleep(60)", &[]), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        other.execute("SELECT pg_terminate_backend($1)", &[&pid]).await
    });
    ended.unwrap();
    let e = s.why().diagnose(blocked.unwrap_err());
    assert_eq!(e.class(), Class::UnknownOutcome, "{e}");
    let over = async {
        while s.is_usable() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), over).await.expect("its end is noticed");
    let e = s.transaction().await.err().expect("no transaction");
    assert_eq!((e.class(), e.sent()), (Class::Transient, Some(Sent::None)), "{e}");
    assert!(e.to_string().contains("over before this call"), "{e}");
}
