//! `pgfollow drill --dsn … --trigger …` against real clusters that are not the drill's own.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use pgfollow_lab::{Cluster, ClusterOptions, servers, wait_for};
use serde_json::Value;
use tokio::process::Command;

async fn cluster(nodes: usize) -> Option<Cluster> {
    let mut options = ClusterOptions::new(servers()?);
    options.nodes = nodes;
    let cluster = Cluster::start(options).await.unwrap();
    // Only a session's own user can create the drill's table.
    let grant = format!("grant create on schema public to {}", cluster.user());
    cluster.node(0).session().await.unwrap().batch_execute(&grant).await.unwrap();
    Some(cluster)
}

fn drill(dsn: &str, trigger: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgfollow"));
    command.env_clear().env("HOME", "/nonexistent").env("PATH", std::env::var_os("PATH").unwrap());
    command.args(["drill", "--json", "--dsn", dsn, "--trigger", trigger]).args(more);
    command.args(["--workers", "2", "--plain-wait", "1"]).kill_on_drop(true);
    command
}

fn texts(out: &Output) -> (String, String) {
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (text(&out.stdout), text(&out.stderr))
}

/// Whether the drill's table is on that node.
async fn has_table(cluster: &Cluster, node: usize) -> bool {
    let session = cluster.node(node).session().await.unwrap();
    let row = session.query_one("select to_regclass('public.pgfollow_drill') is not null", &[]).await;
    row.unwrap().get(0)
}

/// A file that the trigger makes, and that is gone at the end.
struct Flag(PathBuf);

impl Flag {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("pgfollow-{}-{name}", std::process::id())))
    }
    fn trigger(&self) -> String {
        format!("touch '{}'", self.0.display())
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_by_the_users_own_command_is_measured_and_nothing_of_the_drill_stays_behind() {
    let Some(cluster) = cluster(3).await else { return };
    let flag = Flag::new("trigger");
    let child = drill(&cluster.conninfo(), &flag.trigger(), &["--yes", "--after", "1"]);
    let failover = async {
        wait_for("the trigger", Duration::from_secs(60), || flag.0.exists()).await.unwrap();
        assert!(has_table(&cluster, 0).await);
        cluster.node(0).kill().await.unwrap();
        cluster.promote(1).await.unwrap();
    };
    let (out, ()) = tokio::join!(async { { child }.output().await.unwrap() }, failover);
    let (stdout, stderr) = texts(&out);
    // Speed is not what this test is about: over the budget is fine on a busy machine.
    assert!(matches!(out.status.code(), Some(0 | 5)), "{:?}: {stdout}{stderr}", out.status);
    assert!(!stdout.contains(cluster.password()) && !stderr.contains(cluster.password()));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["fault"], "trigger");
    assert_eq!(json["sync"], true);
    assert!(json["ready_ms"].as_f64().unwrap() > 0.0, "{json}");
    let place = format!("{}:{}", cluster.node(1).host(), cluster.node(1).port());
    assert_eq!(json["promotions"][0]["node"], place);
    let clients = json["clients"].as_array().unwrap();
    assert_eq!(clients.len(), 2, "{json}");
    assert!(clients[0]["first_success_after_ready_ms"].is_number(), "{json}");
    assert!(clients[0]["acknowledged"].as_u64().unwrap() > 10, "{json}");
    for figure in ["lost", "doubled", "denied_but_done"] {
        assert_eq!(clients[0][figure], 0, "{figure}: {json}");
    }
    assert!(!has_table(&cluster, 1).await, "the table stayed behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_yes_with_a_strangers_table_or_a_failing_trigger_the_users_data_stays_as_it_was() {
    let Some(cluster) = cluster(2).await else { return };
    let flag = Flag::new("refused");
    // Nobody can say yes where there is no terminal.
    let out = drill(&cluster.conninfo(), &flag.trigger(), &[]).output().await.unwrap();
    let (_, stderr) = texts(&out);
    assert_eq!(out.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("real failover") && stderr.contains(&flag.trigger()), "{stderr}");
    assert!(!has_table(&cluster, 0).await && !flag.0.exists());

    // A trigger that fails ends the drill, and the table goes.
    let out = drill(&cluster.conninfo(), "exit 7", &["--yes", "--after", "1"]).output().await.unwrap();
    let (stdout, stderr) = texts(&out);
    assert_eq!((out.status.code(), stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("the trigger command failed: exit status: 7"), "{stderr}");
    assert!(!has_table(&cluster, 0).await);

    // A table of that name may be somebody's.
    let session = cluster.node(0).session().await.unwrap();
    session.batch_execute("create table pgfollow_drill (precious int)").await.unwrap();
    let out = drill(&cluster.conninfo(), &flag.trigger(), &["--yes", "--after", "1"]).output().await.unwrap();
    let (_, stderr) = texts(&out);
    assert_eq!(out.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("exists in database"), "{stderr}");
    assert!(has_table(&cluster, 0).await && !flag.0.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_the_drill_before_its_trigger_and_takes_the_table_along() {
    let Some(cluster) = cluster(2).await else { return };
    let flag = Flag::new("signal");
    let child = drill(&cluster.conninfo(), &flag.trigger(), &["--yes", "--after", "600"]);
    let mut child = { child }.spawn().unwrap();
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    let session = &cluster.node(0).session().await.unwrap();
    pgfollow_lab::wait_for_async("the drill's writes", Duration::from_secs(60), || async move {
        let row = session.query_one("select count(*) from pgfollow_drill", &[]).await;
        let n: i64 = row.map_err(|e| e.to_string())?.get(0);
        if n > 0 { Ok(()) } else { Err("none yet".to_owned()) }
    })
    .await
    .unwrap();
    pgfollow_lab::send_signal(pid, 15).unwrap();
    let status = tokio::time::timeout(Duration::from_secs(60), child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(128 + 15));
    assert!(!has_table(&cluster, 0).await && !flag.0.exists());
}
