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

/// From now on a commit is done, and then waits for a standby that never comes.
async fn without_standby(admin: &tokio_postgres::Client) {
    admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", &[]).await.unwrap();
    admin.execute("SELECT pg_reload_conf()", &[]).await.unwrap();
}

/// Ends the session that waits so.
async fn cut_what_waits_for_a_standby(admin: &tokio_postgres::Client) {
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    for _ in 0..1_000 {
        let n: i64 = admin.query_one(sql, &[]).await.unwrap().get(0);
        if n > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody waits for the standby");
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
    for e in [true, false] {
        let wrong = s.query_one("SELECT $1::int8", &[&7_i32]).await.unwrap_err();
        let told = if e { s.why().diagnose(wrong) } else { Error::from(wrong) };
        assert!(told.to_string().contains("`i32`") && told.to_string().contains("`int8`"), "{told}");
        assert!(told.sent().is_none_or(|sent| sent == Sent::None), "{told:?}");
    }
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

/// A command that commits in its middle leaves something behind when it fails, and a repeat meets that.
#[tokio::test]
async fn what_runs_concurrently_and_fails_halfway_is_never_called_undone() {
    let Some((_cluster, connector, s)) = session().await else { return };
    s.batch_execute(
        "CREATE TABLE t (n int); CREATE TABLE p (n int) PARTITION BY LIST (n); \
         CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); SET lock_timeout = '300ms'",
    )
    .await
    .unwrap();
    let mut other = connector.connect().await.unwrap();
    let holder = other.transaction().await.unwrap();
    holder.batch_execute("INSERT INTO t VALUES (1); SELECT * FROM p").await.unwrap();
    for (text, left) in [
        ("CREATE INDEX CONCURRENTLY i ON t (n)", "SELECT count(*) FROM pg_index WHERE NOT indisvalid"),
        (
            "ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY",
            "SELECT count(*) FROM pg_inherits WHERE inhdetachpending",
        ),
    ] {
        for e in [s.batch_execute(text).await.unwrap_err(), s.execute(text, &[]).await.unwrap_err()] {
            let e = s.why().diagnose(e);
            if e.sqlstate().is_some_and(|c| c.as_str() == "55P03") {
                assert_eq!(e.class(), Class::UnknownOutcome, "{text}: {e}");
            }
        }
        let n: i64 = s.query_one(left, &[]).await.unwrap().get(0);
        assert_eq!(n, 1, "{text} left nothing, so this proves nothing");
    }
}

/// The statement's commit goes to another server, which does it and loses the connection before it can say so.
#[tokio::test]
async fn a_write_whose_foreign_server_is_lost_at_its_commit_is_unknown() {
    let Some((cluster, _connector, s)) = session().await else { return };
    s.batch_execute("CREATE TABLE t (n int)").await.unwrap();
    let admin = cluster.node(0).session().await.unwrap();
    let install = format!(
        "CREATE EXTENSION postgres_fdw; GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO {}",
        cluster.user()
    );
    if let Err(e) = admin.batch_execute(&install).await {
        pgfollow_lab::skipped(format!("no postgres_fdw: {e:?}"));
        return;
    }
    let (node, password) = (cluster.node(0), cluster.password());
    s.batch_execute(&format!(
        "CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{}', port '{}', dbname '{}'); \
         CREATE USER MAPPING FOR CURRENT_USER SERVER far OPTIONS (user '{}', password '{password}'); \
         CREATE FOREIGN TABLE f (n int) SERVER far OPTIONS (table_name 't')",
        node.host(),
        node.port(),
        cluster.database(),
        cluster.user(),
    ))
    .await
    .unwrap();
    s.batch_execute("SET synchronous_commit = local").await.unwrap();
    without_standby(&admin).await;
    let cut = cut_what_waits_for_a_standby(&admin);
    let (written, ()) = tokio::join!(s.execute("INSERT INTO f VALUES (1)", &[]), cut);
    let e = s.why().diagnose(written.unwrap_err());
    let n: i64 = admin.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get(0);
    assert_eq!(n, 1, "it was not done, so this proves nothing: {e}");
    assert_eq!(e.class(), Class::UnknownOutcome, "{e} {:?}", e.sqlstate());
}

/// What a constraint's message quotes are values of the caller's.
#[tokio::test]
async fn an_error_that_is_printed_for_debugging_shows_no_values() {
    let Some((_cluster, _connector, s)) = session().await else { return };
    s.batch_execute("CREATE TABLE u (mail text PRIMARY KEY)").await.unwrap();
    let insert = || s.execute("INSERT INTO u VALUES ($1)", &[&"s3cret@example.com"]);
    insert().await.unwrap();
    let explained = s.why().diagnose(insert().await.unwrap_err());
    let bare = Error::from(insert().await.unwrap_err());
    for e in [explained, bare] {
        assert!(!format!("{e} {e:?} {e:#?}").contains("s3cret"), "{e:?}");
    }
}
