#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test against real servers: real time, and words for people"
)]
//! A driver that isn't ours, sent to the right host by `locate` and watched by `guard`.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use pgfollow::{Address, Code, Connector, EndCause, Guard, SessionAttrs, SqlState, Target};
use pgfollow_lab::{Cluster, ClusterOptions, Prober, monotonic_ns, servers};
use tokio_postgres::{Client, NoTls};

const PATIENCE: Duration = Duration::from_secs(20);

/// A driver's own connection to that target; `fd` is told as drivers tell it.
async fn dial(target: &Target) -> (Client, i32) {
    let mut config = tokio_postgres::Config::new();
    let mut to = None;
    for (key, value) in target.keywords() {
        match key.as_str() {
            "user" => drop(config.user(&value)),
            "password" => drop(config.password(&value)),
            "dbname" => drop(config.dbname(&value)),
            "options" => drop(config.options(&value)),
            "hostaddr" => to = Some(value),
            _ => {}
        }
    }
    let to = to.expect("over TCP");
    assert_eq!(Some(&to), target.hostaddr().map(|a| a.to_string()).as_ref());
    let stream = tokio::net::TcpStream::connect((to.as_str(), target.port())).await.unwrap();
    let fd = stream.as_raw_fd();
    let (client, connection) = config.connect_raw(stream, NoTls).await.unwrap();
    tokio::spawn(connection);
    (client, fd)
}

async fn guarded(connector: &Connector) -> (Client, Guard, Target) {
    let target = connector.locate(PATIENCE).await.unwrap();
    let (client, fd) = dial(&target).await;
    (client, connector.guard(fd, &target).unwrap(), target)
}

fn reason(guard: &Guard) -> String {
    guard.reason().map_or_else(String::new, ToString::to_string)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_call_on_a_frozen_primary_ends_with_the_promotion_and_the_next_is_sent_to_the_new_one() {
    let Some(binaries) = servers() else { return };
    let cluster = Cluster::start(ClusterOptions::new(binaries)).await.unwrap();
    let connector = Connector::new(&cluster.conninfo()).unwrap();
    let (client, guard, target) = guarded(&connector).await;
    assert_eq!(target.port(), cluster.node(0).port());
    assert_eq!(target.timeline(), Some(1));
    client.batch_execute("CREATE TABLE t (n int)").await.unwrap();
    let (idle, idle_guard, _) = guarded(&connector).await;
    let (third, _, _) = guarded(&connector).await;
    let checks = third.query_one("SHOW client_connection_check_interval", &[]).await.unwrap();
    assert_eq!(checks.get::<_, &str>(0), "500ms", "a direct host: its sessions get startup options");
    drop(third);
    // No session of the service itself says anything here: the monitor, and the counters of foreign sockets, do.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let prober = Prober::start(&cluster, 1).await.unwrap();
    cluster.node(0).freeze().await.unwrap();
    let blocked =
        tokio::spawn(async move { (client.execute("INSERT INTO t VALUES (1)", &[]).await, monotonic_ns()) });
    let suspected = Instant::now();
    let host = connector.topology().cluster.incumbent.unwrap();
    while connector.topology().host(host).unwrap().state.to_string() == "primary" {
        assert!(
            suspected.elapsed() < Duration::from_secs(10),
            "a call without an answer makes its host suspect"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eprintln!("suspected after {:?}", suspected.elapsed());
    assert!(guard.is_usable() && !blocked.is_finished(), "silence alone ends no write");
    let waiting = tokio::spawn({
        let connector = connector.clone();
        async move { connector.locate(PATIENCE).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished(), "nobody takes writes");
    cluster.promote(1).await.unwrap();
    let ready = prober.ready(Duration::from_secs(10)).await.unwrap();
    let (result, at) = tokio::time::timeout(Duration::from_secs(5), blocked).await.unwrap().unwrap();
    result.unwrap_err();
    eprintln!("cut {} ms after ready: {}", (at as i64 - ready as i64) / 1_000_000, reason(&guard));
    assert!(matches!(guard.reason(), Some(EndCause::Verdict { code: Code::Superseded, .. })), "{guard:?}");
    assert!(!guard.is_usable() && !idle_guard.is_usable());
    assert!(idle.simple_query("SELECT 1").await.is_err());
    let target = waiting.await.unwrap().unwrap();
    assert_eq!(
        target.address().to_string(),
        format!("{}:{}", cluster.node(1).host(), cluster.node(1).port())
    );
    assert_eq!(target.timeline(), Some(2));
    let (client, _) = dial(&target).await;
    client.execute("INSERT INTO t VALUES (2)", &[]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_foreign_call_and_an_idle_session_are_left_alone() {
    let Some(binaries) = servers() else { return };
    let cluster = Cluster::start(ClusterOptions::new(binaries)).await.unwrap();
    let connector = Connector::new(&cluster.conninfo()).unwrap();
    let (client, guard, _) = guarded(&connector).await;
    let (other, other_guard, _) = guarded(&connector).await;
    let slow = client.simple_query("SELECT pg_sleep(4)");
    let killed = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let (third, third_guard, target) = guarded(&connector).await;
        // One of three sessions goes: no reason to touch the others.
        third.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
        let error = other.simple_query("SELECT 1").await.unwrap_err();
        let state = error.code().map_or("57P01", |c| c.code()).to_owned();
        connector.feed(&target, SqlState::new(&state).unwrap());
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(third_guard.is_usable(), "{third_guard:?}");
    };
    let (slow, ()) = tokio::join!(slow, killed);
    slow.unwrap();
    assert!(guard.is_usable(), "{guard:?}");
    assert_eq!(other_guard.reason(), None, "its server ended it, not we");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_descriptor_that_leads_elsewhere_is_refused_and_peers_are_found_without_one() {
    let Some(binaries) = servers() else { return };
    let cluster = Cluster::start(ClusterOptions::new(binaries)).await.unwrap();
    let connector = Connector::new(&cluster.conninfo()).unwrap();
    let target = connector.locate(PATIENCE).await.unwrap();
    let standby = connector.locate_as(SessionAttrs::Standby, PATIENCE).await.unwrap();
    assert_ne!(target.address(), standby.address());
    let (_client, fd) = dial(&standby).await;
    let e = connector.guard(fd, &target).unwrap_err();
    assert_eq!(e.code(), Code::WrongCall);
    assert!(e.message().contains(&target.address().to_string()), "{e}");
    let e = connector.guard(-1, &target).unwrap_err();
    assert!(e.message().contains("descriptor -1"), "{e}");
    assert!(connector.guard_of(fd).is_none());
    // The lab may have sessions there, too; other tests of this program have theirs at other addresses.
    assert!(connector.guard_peers().unwrap() > 0, "that of the driver");
    let ours = connector.connect_within(PATIENCE).await.unwrap();
    assert_eq!(connector.guard_peers().unwrap(), 0, "those are known, and none of our own is a stranger's");
    let found = connector.guard_of(fd).unwrap();
    assert_eq!(&found.candidate().address, standby.address());
    assert!(matches!(found.candidate().address, Address::Tcp(_)));
    assert!(ours.is_usable());
}

/// Two logins at once to one host: the third waits until a driver guards its socket, or never comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drivers_log_in_at_the_connectors_pace() {
    let Some(binaries) = servers() else { return };
    let cluster = Cluster::start(ClusterOptions::new(binaries)).await.unwrap();
    let connector = Connector::new(&format!("{}?connect_timeout=4", cluster.conninfo())).unwrap();
    // Those that are guarded have had their turns.
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(guarded(&connector).await);
    }
    let (first, second) =
        (connector.locate(PATIENCE).await.unwrap(), connector.locate(PATIENCE).await.unwrap());
    let e = connector.locate(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(e.code(), Code::DeadlinePassed, "{e}");
    drop(first);
    let third = connector.locate(PATIENCE).await.unwrap();
    // Nobody ever guards these: their turns end by themselves.
    let began = Instant::now();
    connector.locate(PATIENCE).await.unwrap();
    assert!(began.elapsed() > Duration::from_millis(500), "{:?}", began.elapsed());
    drop((second, third));
}
