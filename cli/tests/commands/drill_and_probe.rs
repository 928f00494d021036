//! `pgfollow probe` and `pgfollow drill` where no server is needed: usage, dead hosts, secrets.

use std::net::TcpListener;
use std::process::{Command, Output};

use serde_json::Value;

fn run(args: &[&str]) -> (Output, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgfollow"));
    command.env_clear().env("HOME", "/nonexistent").env("PGUSER", "app").args(args);
    let out = command.output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (out.clone(), text(&out.stdout), text(&out.stderr))
}

/// A port that nobody listens on: bound a moment ago, and given back.
fn dead_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn probe_of_dead_hosts_names_each_stage_and_exits_3_without_the_password() {
    let url = format!("postgresql://u:s3cret@127.0.0.1:{},127.0.0.1:70000/db", dead_port());
    let (out, stdout, stderr) = run(&["probe", "--json", &url]);
    assert_eq!(out.status.code(), Some(3), "{stderr}");
    assert!(!stdout.contains("s3cret") && !stderr.contains("s3cret"));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["writable"], serde_json::json!([]));
    assert_eq!(json["hazards"][0], "no host could be asked: whether one is writable is not known");
    let candidates = json["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2);
    assert_eq!(candidates[0]["stage"], "dial");
    assert_eq!(candidates[0]["code"], "DialFailed");
    assert!(candidates.iter().all(|c| c["ok"] == false && !c["message"].as_str().unwrap().is_empty()));
}

#[test]
fn an_attempts_port_is_a_number_in_json_and_what_is_no_port_stays_as_written() {
    let port = dead_port();
    let (out, stdout, stderr) =
        run(&["connect", "--json", &format!("postgresql://127.0.0.1:{port},127.0.0.1:70000/db")]);
    assert_eq!(out.status.code(), Some(3), "{stderr}");
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let ports: Vec<&Value> = json["attempts"].as_array().unwrap().iter().map(|a| &a["port"]).collect();
    assert!(ports.contains(&&Value::from(port)) && ports.contains(&&Value::from("70000")), "{json}");
}

#[test]
fn probe_warns_of_a_single_host_and_of_a_password_that_tls_need_not_protect() {
    let url = format!("postgresql://u:s3cret@127.0.0.1:{}/db?sslmode=prefer", dead_port());
    let (_, stdout, _) = run(&["probe", &url]);
    assert!(stdout.contains("! one host only"), "{stdout}");
    assert!(stdout.contains("! sslmode=prefer with a password"), "{stdout}");
}

#[test]
fn unusable_strings_and_impossible_drills_are_usage_errors() {
    assert_eq!(run(&["probe", "host=a nonsense=1"]).0.status.code(), Some(2));
    for bad in [
        ["drill", "--fault", "second-failover", "--nodes=2"],
        ["drill", "--budget", "250", "--json"],
        ["drill", "--fault", "flood", "--json"],
        ["drill", "--dsn", "host=a", "--json"],
        ["drill", "--dsn=host=a", "--trigger=true", "--fault=kill"],
        ["drill", "--dsn=host=a nonsense=1", "--trigger=true", "--yes"],
    ] {
        let (out, _, stderr) = run(&bad);
        assert_eq!(out.status.code(), Some(2), "{bad:?}: {stderr}");
    }
    for (bad, told) in [
        (["drill", "--instances=64", "--workers=40"], "fewer"),
        (["drill", "--instances=0", "--json"], "1..=64"),
        (["drill", "--slow-node=0", "--json"], "1..=100"),
    ] {
        let (out, _, stderr) = run(&bad);
        assert_eq!(out.status.code(), Some(2), "{bad:?}: {stderr}");
        assert!(stderr.contains(told), "{bad:?}: {stderr}");
    }
    for bad in [["drill", "--after", "-1"], ["drill", "--budget", "-5ms"], ["drill", "--workers", "-1"]] {
        let (out, _, stderr) = run(&bad);
        assert_eq!(out.status.code(), Some(2), "{bad:?}: {stderr}");
        assert!(stderr.contains("range") || stderr.contains("is not in 1..=40"), "{bad:?}: {stderr}");
    }
    // A part of the drill, not a command: without its string it says so.
    let (out, _, stderr) = run(&["drill-client", "--client", "plain", "--workers", "1", "--rate", "1"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(stderr.contains("DRILL_CONNINFO"), "{stderr}");
}
