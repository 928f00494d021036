#![expect(clippy::print_stderr, reason = "words for people")]
//! `pgfollow lab` as a program that drives it sees it, and `pgfollow probe` on what it makes. Real servers.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use pgfollow_lab::{Cluster, ClusterOptions, servers};
use serde_json::Value;

fn pgfollow(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgfollow"));
    command.env_clear().env("HOME", "/nonexistent").env("PATH", std::env::var_os("PATH").unwrap()).args(args);
    command
}

fn texts(out: &Output) -> (String, String) {
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (text(&out.stdout), text(&out.stderr))
}

/// What a lab of two nodes says to each of the lines, after its description.
fn told(more: &[&str], lines: &[&str]) -> (String, Vec<String>) {
    let mut child = pgfollow(&[&["lab", "--nodes=2", "--async"], more].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(format!("{}\n", lines.join("\n")).as_bytes()).unwrap();
    let (stdout, _) = texts(&child.wait_with_output().unwrap());
    let all: Vec<String> = stdout.lines().map(str::to_owned).collect();
    let (about, replies) = all.split_at(all.len() - lines.len());
    (about.join("\n"), replies.to_vec())
}

#[test]
fn commands_that_make_no_sense_now_are_refused_at_once_with_the_reason() {
    if servers().is_none() {
        return;
    }
    let script = [
        ("start n1", "n1 is running already"),
        ("thaw n1", "n1 isn't frozen"),
        ("freeze n1", ""),
        ("start n1", "n1 is running already (frozen)"),
        ("stop n1", "n1 is frozen: thaw it first"),
        ("thaw n1", ""),
        ("kill n2", ""),
        ("kill n2", "n2 isn't running"),
        ("start n2", ""),
        ("restart n1", ""),
        ("kill", "kill needs a NODE: n1, n2 or primary"),
        ("kill n1 n2", "too many words for kill: write kill NODE"),
    ];
    let (about, replies) = told(&["--json"], &script.map(|s| s.0));
    let about: Value = serde_json::from_str(&about).unwrap();
    assert!(about["conninfo"].as_str().unwrap().ends_with("/app?target_session_attrs=read-write"), "{about}");
    for ((command, error), reply) in script.iter().zip(&replies) {
        let reply: Value = serde_json::from_str(reply).unwrap();
        assert_eq!(reply["error"].as_str().unwrap_or_default(), *error, "{command}: {reply}");
    }
}

#[test]
fn demoted_primary_is_told_from_a_standby_and_from_a_writable_one() {
    if servers().is_none() {
        return;
    }
    let (_, replies) = told(&[], &["status n1", "demote n1", "status n2", "undemote n1"]);
    let expected = [
        "ok n1: running primary",
        "ok n1: running primary, read-only",
        "ok n2: running standby",
        "ok n1: running primary",
    ];
    assert_eq!(replies, expected);
}

#[test]
fn an_old_primary_that_comes_back_beside_the_new_one_is_warned_of_and_a_restart_makes_it_a_standby() {
    if servers().is_none() {
        return;
    }
    let script = ["kill n1", "promote n2", "start n1", "restart n1", "status n1", "cut n1"];
    let (_, replies) = told(&[], &script);
    assert_eq!(replies[1], "ok n2: running primary");
    assert!(
        replies[2].starts_with("ok n1: running primary (warning: n1 is a stale primary"),
        "{}",
        replies[2]
    );
    assert!(replies[2].contains("split brain") && replies[2].contains("`restart n1`"), "{}", replies[2]);
    assert_eq!(replies[3..5], ["ok n1: running standby"; 2]);
    assert!(replies[5].starts_with("error: ") && replies[5].contains("--exec"), "{}", replies[5]);
}

#[test]
fn program_under_exec_may_follow_a_double_dash_and_hears_no_warning_of_the_labs_variables() {
    if servers().is_none() {
        return;
    }
    let script = r#""$0" probe --json "$PGFOLLOW_LAB_CONNINFO""#;
    let program = env!("CARGO_BIN_EXE_pgfollow");
    let out = pgfollow(&["lab", "--nodes=2", "--exec", "--", "sh", "-c", script, program]).output().unwrap();
    let (stdout, stderr) = texts(&out);
    if stderr.contains("entering a private network namespace") {
        eprintln!("SKIPPED: {stderr}");
        return;
    }
    assert_eq!(out.status.code(), Some(0), "{stderr}");
    let probe: Value = serde_json::from_str(&stdout).unwrap();
    let hazards = probe["hazards"].to_string();
    assert!(!hazards.contains("PGFOLLOW_LAB") && !stderr.contains("PGFOLLOW_LAB"), "{hazards}\n{stderr}");
    assert_eq!(probe["writable"].as_array().map(Vec::len), Some(1), "{probe}");
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_that_finds_only_a_replaced_primary_writable_is_no_success() {
    let Some(binaries) = servers() else { return };
    let mut options = ClusterOptions::new(binaries);
    (options.nodes, options.sync) = (2, false);
    let cluster = Cluster::start(options).await.unwrap();
    let probe = || {
        let out = pgfollow(&["probe", &cluster.conninfo()]).output().unwrap();
        (out.status.code(), texts(&out).0)
    };
    let (code, stdout) = probe();
    assert_eq!(code, Some(0), "{stdout}");
    // Who reads an error here has options, not calls.
    let nowhere = cluster.conninfo().replace(&cluster.node(1).host().to_string(), "127.9.9.9");
    let standby = format!("{nowhere}?target_session_attrs=standby&monitor=off");
    let (stdout, stderr) = texts(&pgfollow(&["connect", "--json", &standby]).output().unwrap());
    for text in [stdout, stderr] {
        assert!(text.contains("wait for a host of that role (--wait)"), "{text}");
    }
    cluster.promote_alone(1).await.unwrap();
    cluster.node(1).demote().await.unwrap();
    let (code, stdout) = probe();
    assert_eq!(code, Some(4), "{stdout}");
    assert!(stdout.contains("is writable on timeline 1, but timeline 2 exists elsewhere"), "{stdout}");
}
