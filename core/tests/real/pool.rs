#![expect(clippy::disallowed_methods, reason = "a test against real servers: real time")]
//! The pool on real servers: what it lends lives, is where it should be, and is outside every transaction.

use std::collections::HashSet;
use std::time::Duration;

use pgfollow::{Class, Code, Connector, Pool, PoolOptions, tokio_postgres};
use pgfollow_lab::{Cluster, ClusterOptions, servers};

const SECOND: Duration = Duration::from_secs(1);
const ENOUGH: Duration = Duration::from_secs(20);

async fn cluster(standbys: usize) -> Option<Cluster> {
    let mut options = ClusterOptions::new(servers()?);
    options.nodes = standbys + 1;
    Some(Cluster::start(options).await.expect("a cluster"))
}

fn connector(cluster: &Cluster, extra: &str) -> Connector {
    Connector::new(&format!("{}?target_session_attrs=read-write&{extra}", cluster.conninfo())).expect("valid")
}

fn pool(cluster: &Cluster, size: usize) -> Pool {
    connector(cluster, "").pool_with(|o| o.max_conns(size)).expect("valid")
}

async fn pid(s: &tokio_postgres::Client) -> i32 {
    s.query_one("SELECT pg_backend_pid()", &[]).await.expect("answered").get(0)
}

/// All sessions of a full pool at once.
async fn fill(pool: &Pool, size: usize) -> Vec<pgfollow::PoolSession> {
    let mut all = Vec::new();
    for _ in 0..size {
        all.push(pool.acquire_within(ENOUGH).await.expect("a session"));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_came_back_is_lent_again_and_nobody_gets_one_twice() {
    let Some(cluster) = cluster(0).await else { return };
    let pool = pool(&cluster, 3);
    let mut pids = HashSet::new();
    for s in fill(&pool, 3).await {
        assert!(pids.insert(pid(&s).await));
    }
    for _ in 0..50 {
        let s = pool.acquire().await.unwrap();
        assert!(pids.contains(&pid(&s).await), "another session was opened");
    }
    let (a, b) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    assert_ne!(pid(&a).await, pid(&b).await);
    assert_eq!(pool.stats().opened, 3);
}

/// po-h03 and its kin: what a dropped call leaves must not meet the next caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_never_lands_in_what_another_one_dropped() {
    let Some(cluster) = cluster(0).await else { return };
    let pool = pool(&cluster, 1);
    for round in 0..60 {
        let mut s = pool.acquire_within(ENOUGH).await.unwrap();
        match round % 4 {
            // BEGIN is asked for, and the caller is gone before the driver has seen it.
            0 => drop(futures_util::poll!(std::pin::pin!(
                s.simple_query("BEGIN ISOLATION LEVEL SERIALIZABLE")
            ))),
            1 => {
                let call = s.batch_execute("BEGIN; SELECT pg_sleep(0.2)");
                let _ = tokio::time::timeout(Duration::from_millis(20), call).await;
            }
            // A transaction that is dropped rolls back by a message of its own.
            2 => drop(s.transaction().await.unwrap()),
            _ => s.batch_execute("BEGIN").await.unwrap(),
        }
        drop(s);
        let s = pool.acquire_within(ENOUGH).await.unwrap();
        let question = "SELECT now() = statement_timestamp(), current_setting('transaction_isolation')";
        let answer = s.simple_query(question).await.expect("no error for a stranger's block");
        let row = answer.iter().find_map(|m| match m {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some((row.get(0), row.get(1))),
            _ => None,
        });
        assert_eq!(
            row,
            Some((Some("t"), Some("read committed"))),
            "round {round}: inside a stranger's transaction"
        );
    }
}

/// What another thread's drop of a statement sends at the same time must not hide a dropped call from the pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dropped_begin_is_settled_also_while_another_thread_drops_statements() {
    let Some(cluster) = cluster(0).await else { return };
    let pool = pool(&cluster, 1);
    for round in 0..1_500 {
        let s = pool.acquire_within(ENOUGH).await.unwrap();
        let statement = s.prepare("SELECT 1").await.unwrap();
        let other = tokio::spawn(async move { drop(statement) });
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        drop(futures_util::poll!(std::pin::pin!(s.simple_query("BEGIN ISOLATION LEVEL SERIALIZABLE"))));
        drop(s);
        let s = pool.acquire_within(ENOUGH).await.unwrap();
        let level = s.query_one("SELECT current_setting('transaction_isolation')", &[]).await.unwrap();
        assert_eq!(
            level.get::<_, &str>(0),
            "read committed",
            "round {round}: inside a stranger's transaction"
        );
        other.await.unwrap();
    }
}

/// po-h04: permits and sockets are lost where a time-out and a success meet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_impatient_callers_cost_no_place_and_no_session() {
    let Some(cluster) = cluster(0).await else { return };
    let pool = pool(&cluster, 3);
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..1_000_u64 {
        let pool = pool.clone();
        callers.spawn(async move {
            let patience = Duration::from_millis(1 + n % 5);
            let acquire = pool.acquire_within(patience);
            if n % 2 == 0 {
                // Dropped from outside, at any moment.
                let _ = tokio::time::timeout(patience / 2, acquire).await;
            } else {
                let _ = acquire.await;
            }
        });
        if n % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    callers.join_all().await;
    let all = fill(&pool, 3).await;
    let stats = pool.stats();
    assert_eq!((stats.now.lent, stats.now.waiting, stats.now.idle), (3, 0, 0), "{stats:?}");
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgfollow'";
    let sockets: i64 = all[0].query_one(ours, &[]).await.unwrap().get(0);
    assert_eq!(sockets, 3);
}

/// po-h09 and po-h01: idle sessions die while nobody looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_were_killed_while_idle_reach_no_caller() {
    let Some(cluster) = cluster(0).await else { return };
    let pool = pool(&cluster, 5);
    drop(fill(&pool, 5).await);
    let admin = connector(&cluster, "application_name=admin").connect_within(ENOUGH).await.unwrap();
    let kill =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pgfollow'";
    assert_eq!(admin.query_one(kill, &[]).await.unwrap().get::<_, i64>(0), 5);
    // The promise is for those that are dead for longer than pool_validate_after.
    tokio::time::sleep(SECOND).await;
    for _ in 0..20 {
        let s = pool.acquire().await.expect("a session");
        s.execute("SELECT 1", &[]).await.expect("it lives");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_costs_an_idle_pool_one_ping_and_the_new_primary_serves() {
    let Some(cluster) = cluster(1).await else { return };
    let pool = pool(&cluster, 8);
    drop(fill(&pool, 8).await);
    tokio::time::sleep(2 * SECOND).await;
    cluster.node(0).freeze().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    let caller = tokio::spawn({
        let pool = pool.clone();
        async move { pool.acquire_within(ENOUGH).await }
    });
    tokio::time::sleep(SECOND).await;
    cluster.promote(1).await.unwrap();
    let s = tokio::time::timeout(ENOUGH, caller).await.unwrap().unwrap().expect("a session");
    s.batch_execute("CREATE TABLE t ()").await.expect("it takes writes");
    cluster.node(0).thaw().await.unwrap();
}

/// The figures of the first issue hold for callers of a pool: here only that every one of them is served again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_survive_a_kill_and_write_nothing_twice() {
    let Some(cluster) = cluster(2).await else { return };
    let pool = pool(&cluster, 8);
    let s = pool.acquire_within(ENOUGH).await.unwrap();
    s.batch_execute("CREATE TABLE t (worker int, n int, PRIMARY KEY (worker, n))").await.unwrap();
    drop(s);
    let mut workers = tokio::task::JoinSet::new();
    let until = tokio::time::Instant::now() + 6 * SECOND;
    for worker in 0..8_i32 {
        let pool = pool.clone();
        workers.spawn(async move {
            let (mut done, mut unsure, mut n) = (Vec::new(), HashSet::new(), 0_i32);
            while tokio::time::Instant::now() < until {
                let s = match pool.acquire_within(ENOUGH).await {
                    Ok(s) => s,
                    Err(e) => panic!("no session: {e}"),
                };
                let why = s.why();
                let insert = s.execute("INSERT INTO t VALUES ($1, $2)", &[&worker, &n]).await;
                match insert.map_err(|e| why.diagnose(e)) {
                    Ok(_) => done.push(n),
                    Err(e) if e.class() == Class::Transient => continue,
                    Err(e) => {
                        assert_eq!(e.class(), Class::UnknownOutcome, "{e}");
                        unsure.insert(n);
                    }
                }
                n += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            (worker, done, unsure)
        });
    }
    tokio::time::sleep(2 * SECOND).await;
    cluster.node(0).kill().await.unwrap();
    cluster.promote(1).await.unwrap();
    let results = workers.join_all().await;
    let s = pool.acquire_within(ENOUGH).await.unwrap();
    assert!(s.candidate().to_string().contains(&cluster.node(1).host().to_string()), "{:?}", s.candidate());
    for (worker, done, unsure) in results {
        let rows = s.query("SELECT n FROM t WHERE worker = $1", &[&worker]).await.unwrap();
        let there: HashSet<i32> = rows.iter().map(|r| r.get(0)).collect();
        assert!(done.iter().all(|n| there.contains(n)), "worker {worker} lost an acknowledged write");
        let extra: Vec<_> = there.iter().filter(|n| !done.contains(n) && !unsure.contains(n)).collect();
        assert!(extra.is_empty(), "worker {worker}: {extra:?} were called not done");
        assert!(done.iter().any(|n| *n > 60), "worker {worker} was not served after the failover");
    }
}

/// po-h10: a validation by SELECT 1 passes on a read-only node for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_demoted_in_place_is_out_of_the_pool_after_one_refusal() {
    let Some(cluster) = cluster(1).await else { return };
    let pool = pool(&cluster, 5);
    let s = pool.acquire_within(ENOUGH).await.unwrap();
    s.batch_execute("CREATE TABLE t (n int)").await.unwrap();
    drop(s);
    drop(fill(&pool, 5).await);
    tokio::time::sleep(SECOND).await;
    cluster.node(0).demote().await.unwrap();
    cluster.promote(1).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    for _ in 0..20 {
        let s = pool.acquire_within(ENOUGH).await.unwrap();
        s.execute("INSERT INTO t VALUES (1)", &[]).await.expect("it takes writes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_beyond_what_the_pool_can_serve_are_refused_at_once_and_told_when_to_come_back() {
    let Some(cluster) = cluster(0).await else { return };
    let pool = pool(&cluster, 1);
    let held = pool.acquire_within(ENOUGH).await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let pool = pool.clone();
        waiting.spawn(async move { pool.acquire_within(ENOUGH).await.map(drop) });
    }
    while pool.stats().now.waiting < 10 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused =
        tokio::time::timeout(SECOND, pool.acquire_within(ENOUGH)).await.expect("at once").unwrap_err();
    assert_eq!((refused.code(), refused.class()), (Code::Overloaded, Class::Transient), "{refused}");
    assert!(refused.retry_after().is_some());
    let late = pool.stats().now.waiting;
    drop(held);
    for served in waiting.join_all().await {
        served.expect("those who waited are served");
    }
    assert_eq!(late, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_who_gives_up_while_a_primary_is_sought_is_told_to_come_back() {
    let Some(cluster) = cluster(0).await else { return };
    let pool = pool(&cluster, 2);
    let kept = pool.acquire_within(ENOUGH).await.unwrap();
    let all = [pool.acquire_within(ENOUGH).await.unwrap(), kept];
    // A pool that is merely small has nothing to say: whoever holds its sessions knows when they come back.
    let late = pool.acquire_within(Duration::from_millis(100)).await.unwrap_err();
    assert_eq!((late.code(), late.retry_after()), (Code::DeadlinePassed, None), "{late}");
    drop(all);
    cluster.node(0).kill().await.unwrap();
    let patience = Duration::from_millis(1_500);
    let late = [
        pool.acquire_within(patience).await.unwrap_err(),
        pool.connector().connect_within(patience).await.unwrap_err(),
    ];
    for e in late {
        assert_eq!((e.class(), e.retry_after()), (Class::Transient, Some(SECOND)), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_reaches_every_waiting_caller_at_once() {
    let Some(cluster) = cluster(0).await else { return };
    let connector = Connector::builder(&cluster.conninfo()).set("password", "wrong").build().unwrap();
    let pool = connector.pool();
    let (a, b) = tokio::join!(pool.acquire_within(ENOUGH), pool.acquire_within(ENOUGH));
    for e in [a.unwrap_err(), b.unwrap_err()] {
        assert_eq!(e.class(), Class::Permanent, "{e}");
        assert!(!e.to_string().contains("wrong"), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_whose_time_is_over_hears_why_no_session_could_be_opened() {
    for patience in [Duration::from_millis(300), Duration::from_secs(2)] {
        let pool = Pool::connect("host=127.0.0.1 port=1 user=u").unwrap();
        let e = pool.acquire_within(patience).await.unwrap_err();
        assert_eq!(e.code(), Code::DeadlinePassed, "{e}");
        assert!(e.to_string().contains("refused") && !e.attempts().is_empty(), "{patience:?}: {e}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_pool_refuses_waits_for_what_is_lent_and_leaves_nothing() {
    let Some(cluster) = cluster(0).await else { return };
    let pool = pool(&cluster, 3);
    let mut all = fill(&pool, 3).await;
    let lent = all.pop().unwrap();
    drop(all);
    assert!(!pool.close(Duration::from_millis(50)).await, "one is still lent");
    assert_eq!(pool.acquire().await.unwrap_err().code(), Code::Closed);
    let closing = tokio::spawn({
        let pool = pool.clone();
        async move { pool.close(ENOUGH).await }
    });
    lent.execute("SELECT 1", &[]).await.expect("a lent session works on");
    drop(lent);
    assert!(tokio::time::timeout(ENOUGH, closing).await.unwrap().unwrap());
    let admin = connector(&cluster, "application_name=admin").connect_within(ENOUGH).await.unwrap();
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgfollow'";
    let gone = async {
        while admin.query_one(ours, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(ENOUGH, gone).await.expect("all sessions are closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_fills_itself_again_without_a_caller() {
    let Some(cluster) = cluster(0).await else { return };
    let pool = connector(&cluster, "").pool_with(|o: PoolOptions| o.max_conns(4).min_conns(2)).unwrap();
    drop(pool.acquire_within(ENOUGH).await.unwrap());
    let full = || async {
        while pool.stats().now.idle < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(ENOUGH, full()).await.expect("two are kept open");
    cluster.node(0).kill().await.unwrap();
    while pool.stats().now.idle > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(7 * SECOND).await;
    cluster.node(0).start().await.unwrap();
    tokio::time::timeout(ENOUGH, full()).await.expect("two are open again");
}
