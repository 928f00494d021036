//! `pgfollow outcome install|purge` against a real server, and what it says where there is none.

use std::process::Command;

use pgfollow_lab::{Cluster, ClusterOptions, servers};
use serde_json::{Value, json};

/// Exit code, the JSON on standard output, standard error.
fn run(args: &[&str]) -> (Option<i32>, Value, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgfollow"));
    command.env_clear().env("HOME", "/nonexistent").arg("outcome").args(args).arg("--json");
    let out = command.output().expect("the command starts");
    let stdout = String::from_utf8(out.stdout).expect("text");
    let stderr = String::from_utf8(out.stderr).expect("text");
    assert!(!stdout.contains("s3cret") && !stderr.contains("s3cret"), "{stdout}{stderr}");
    let json = if stdout.is_empty() { Value::Null } else { serde_json::from_str(&stdout).expect("JSON") };
    (out.status.code(), json, stderr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_is_made_once_on_the_primary_and_rid_only_of_rows_that_nobody_can_ask_for() {
    let Some(binaries) = servers() else { return };
    let mut options = ClusterOptions::new(binaries);
    (options.nodes, options.sync) = (2, false);
    let cluster = Cluster::start(options).await.expect("a cluster");
    let session = cluster.node(0).session().await.expect("a session of the lab");
    session.batch_execute("CREATE ROLE \"odd \"\"one\"").await.expect("a role");
    // The standby comes first: a string without target_session_attrs must not end there.
    let at = |n: usize| format!("{}:{}", cluster.node(n).host(), cluster.node(n).port());
    let uri = cluster.conninfo_to(&format!("{},{}", at(1), at(0)));

    let (code, json, stderr) = run(&["purge", &uri]);
    assert_eq!((code, &json["class"]), (Some(1), &json!("permanent")), "{stderr}");
    assert!(stderr.contains("outcome install"), "{stderr}");

    session
        .batch_execute("CREATE SCHEMA pgfollow; CREATE TABLE pgfollow.outcome (x int)")
        .await
        .expect("theirs");
    let (code, _, stderr) = run(&["install", &uri]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("another table than ours"), "{stderr}");
    session.batch_execute("DROP SCHEMA pgfollow CASCADE").await.expect("gone");

    for new in [true, false] {
        let (code, json, stderr) = run(&["install", &uri, "--grant", "odd \"one"]);
        assert_eq!(
            (code, json),
            (Some(0), json!({"ok": true, "new": new, "granted": ["odd \"one"]})),
            "{stderr}"
        );
    }
    let may = "SELECT has_table_privilege('odd \"one', 'pgfollow.outcome', 'SELECT') \
               AND has_table_privilege('odd \"one', 'pgfollow.outcome', 'INSERT') \
               AND NOT has_table_privilege('odd \"one', 'pgfollow.outcome', 'DELETE') \
               AND NOT has_table_privilege('public', 'pgfollow.outcome', 'SELECT')";
    assert!(session.query_one(may, &[]).await.expect("an answer").get::<_, bool>(0));

    let rows = "INSERT INTO pgfollow.outcome (token, state, made_at) \
                SELECT gen_random_uuid(), 'd', now() - make_interval(days => d) FROM generate_series(0, 9) AS d";
    session.batch_execute(rows).await.expect("rows");
    let (code, json, stderr) = run(&["purge", &uri]);
    assert_eq!((code, json), (Some(0), json!({"ok": true, "removed": 3})), "{stderr}");

    let (code, _, stderr) = run(&["install", &uri, "--grant", "nobody"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("\"nobody\" does not exist"), "{stderr}");
}

#[test]
fn without_a_primary_the_error_names_every_host_and_a_bad_wait_is_usage() {
    let (code, json, stderr) =
        run(&["install", "postgresql://u:s3cret@127.0.0.1:1/db?connect_timeout=2", "--wait", "1"]);
    assert_eq!((code, &json["ok"]), (Some(3), &json!(false)), "{stderr}");
    assert_eq!(json["attempts"][0]["port"], 1, "{json}");
    for wait in ["0", "-1", "inf"] {
        let (code, _, stderr) = run(&["purge", "host=a", "--wait", wait]);
        assert_eq!(code, Some(2), "{stderr}");
    }
    assert_eq!(run(&["purge", "host=a pasword=s3cret"]).0, Some(2));
}
