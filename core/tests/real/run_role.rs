//! Which host a run takes where the string doesn't say; and what is told, and logged, of one that has no host at all.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgfollow::retry::RunOptions;
use pgfollow::{Code, Connector, Error, Health, Pool, Transaction};
use pgfollow_lab::{Cluster, ClusterOptions, servers, wait_for};

use super::outcome::scene::{Scene, brief};

const PATIENCE: Duration = Duration::from_secs(30);

/// A primary and a standby, and where the one and the other is.
async fn pair() -> Option<(Cluster, String, String)> {
    let mut options = ClusterOptions::new(servers()?);
    (options.nodes, options.sync) = (2, false);
    let cluster = Cluster::start(options).await.expect("a cluster");
    let at = |n: usize| format!("{}:{}", cluster.node(n).host(), cluster.node(n).port());
    let (primary, standby) = (at(0), at(1));
    Some((cluster, primary, standby))
}

async fn is_standby(tx: &mut Transaction<'_>) -> Result<bool, Error> {
    Ok(tx.query_one("SELECT pg_is_in_recovery()", &[]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_is_not_stuck_on_the_first_host_when_that_is_a_standby_and_nobody_said_read_write() {
    let Some((cluster, primary, standby)) = pair().await else { return };
    let uri = cluster.conninfo_to(&format!("{standby},{primary}"));
    let connector = Connector::new(&uri).expect("a connector");
    for n in 0..5 {
        let found = if n % 2 == 0 {
            connector.run(is_standby).await
        } else {
            connector.run_once(&RunOptions::new(), is_standby).await
        };
        assert!(!found.expect("the primary is there"), "call {n} ran on the standby");
    }
    // Two hosts, and neither is primary.
    let uri = cluster.conninfo_to(&format!("{standby},{standby}"));
    let none = Connector::new(&uri).expect("a connector");
    let brief = RunOptions::new().deadline(Duration::from_secs(2));
    let error = none.run_with(&brief, is_standby).await.expect_err("no primary is there");
    assert_eq!(error.code(), Code::DeadlinePassed, "{error}");
    let reading = none.run_with(&RunOptions::new().read_only(true), is_standby).await;
    assert!(reading.expect("who only reads takes any host"));
    let any = Connector::new(&format!("{uri}?target_session_attrs=any")).expect("a connector");
    assert!(any.run(is_standby).await.expect("what the string says holds"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_time_is_over_names_its_own_deadline_and_the_cause_once() {
    let string = "host=127.0.0.1,127.0.0.9 port=1 user=u target_session_attrs=read-write";
    let pool = Pool::connect(&format!("{string} pool_acquire_timeout=1s")).expect("a pool");
    let connector = Connector::new(string).expect("a connector");
    let brief = RunOptions::new().deadline(Duration::from_secs(3));
    for error in [
        pool.run_with(&brief, is_standby).await.expect_err("nobody is there"),
        connector.run_with(&brief, is_standby).await.expect_err("nobody is there"),
    ] {
        let text = error.message();
        for (says, times) in [
            ("no session within", 1),
            ("could not connect", 1),
            ("(what was left of the run's deadline)", 1),
            ("the run's deadline of 3 s leaves no time for attempt 2", 1),
            ("pool_acquire_timeout", 0),
            ("999", 0),
        ] {
            assert_eq!(text.matches(says).count(), times, "{says}: {text}");
        }
    }
    let error = pool.acquire().await.expect_err("nobody is there");
    assert!(error.message().contains("no session within 1 s (pool_acquire_timeout)"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_tells_the_wrong_password_and_not_that_nobody_answered() {
    let Some((cluster, primary, standby)) = pair().await else { return };
    let uri = cluster.conninfo_to(&format!("{primary},{standby}"));
    let connector = Connector::builder(&uri).set("password", "wr0ng").build().expect("a connector");
    if connector.connect().await.is_ok() {
        pgfollow_lab::skipped("these servers ask for no password");
        return;
    }
    wait_for("the cause in health()", PATIENCE, || match connector.health() {
        Health::Degraded(why) => {
            assert!(!why.contains("wr0ng"), "{why}");
            why.starts_with("no host could be asked: ") && why.contains("password authentication failed")
        }
        Health::Ready => false,
    })
    .await
    .unwrap_or_else(|e| panic!("{e:?}: {:?}", connector.health()));
}

#[tokio::test]
async fn a_token_table_that_is_missing_is_told_once() {
    let Some(scene) = Scene::start(1, false, false).await else { return };
    let said = Said::default();
    let _here = tracing::subscriber::set_default(said.clone());
    for n in 0..3 {
        scene.write_once(n, &brief()).await.expect("a row");
    }
    assert_eq!(said.warnings("there is no table pgfollow.outcome"), 1);
}

#[tokio::test]
async fn a_pool_of_its_own_is_not_warned_of_what_a_plain_connect_would_take() {
    let said = Said::default();
    let _here = tracing::subscriber::set_default(said.clone());
    let string = "host=db-a,db-b user=u";
    let pool = Pool::connect(string).expect("a pool");
    assert_eq!(said.warnings("target_session_attrs isn't set"), 0);
    assert!(format!("{pool:?}").contains("ReadWrite"), "{pool:?}");
    Connector::new(string).expect("a connector");
    assert_eq!(said.warnings("target_session_attrs isn't set"), 1, "nothing is heard here");
}

/// Hears the warnings of this thread.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn warnings(&self, that: &str) -> usize {
        self.0.lock().expect("words").iter().filter(|w| w.contains(that)).count()
    }
}

struct Words(String);

impl tracing::field::Visit for Words {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl tracing::Subscriber for Said {
    fn enabled(&self, m: &tracing::Metadata<'_>) -> bool {
        *m.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut words = Words(String::new());
        event.record(&mut words);
        self.0.lock().expect("words").push(words.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
