//! The drill's explanation of each fault: its causes add up to the outage that the callers saw, and the main one is the
//! true one. One fault in the usual run; `RUNS=n` plays all of them, n times, on every version (`make proof`).
#![expect(clippy::print_stderr, reason = "figures for people")]

use std::process::Command;

use pgfollow_lab::{Binaries, BinaryOptions, servers, skipped};
use serde_json::Value;

/// What the causes and the callers' own measure may differ by: the share of the outage.
const SHARE: f64 = 0.02;
/// Of a fleet on a slow node the two measures differ by more: what is a moment elsewhere takes a second there, and a
/// caller who begins to wait when the first of its process is back counts in one of them only.
const FLEET: f64 = 0.5;
/// And what the two measures of one moment always may, in ms, on a machine that does much else.
const GRAIN: f64 = 60.0;

/// How often the proof plays everything; `None` in the usual run.
fn runs() -> Option<u32> {
    std::env::var("RUNS").ok().map(|n| n.parse().expect("RUNS is a number"))
}

/// The versions to be had, of those the proof is for.
fn majors() -> Vec<u32> {
    let has = |major: &u32| {
        let wanted = BinaryOptions { major: Some(*major), ..BinaryOptions::default() };
        Binaries::find(&wanted, &mut |line| eprintln!("{line}")).map_err(skipped).is_ok()
    };
    [15, 18].into_iter().filter(has).collect()
}

fn drill(args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgfollow"));
    let out = command.args(["drill", "--json", "--no-plain"]).args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    // Over budget is no matter here.
    assert!(matches!(out.status.code(), Some(0 | 5)), "{args:?}: {stderr}");
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {stderr}"))
}

fn part(client: &Value, cause: &str) -> f64 {
    client["causes_ms"][cause].as_f64().unwrap_or_else(|| panic!("no {cause}: {client}"))
}

/// Checks the sum, and gives it.
fn adds_up(what: &str, json: &Value, share: f64) -> f64 {
    let client = &json["clients"][0];
    let sum: f64 = client["causes_ms"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
    let outage = client["outage_ms"].as_f64().unwrap();
    let off = (sum - outage).abs();
    eprintln!(
        "{what}, PostgreSQL {}: outage {outage:.0} ms, causes {sum:.0} ms ({:+.1} %), main {}: {}",
        json["server_version"],
        (sum - outage) / outage * 100.0,
        client["main_cause"],
        client["causes_ms"]
    );
    assert!(off <= (outage * share).max(GRAIN), "{what}: the causes are {off:.1} ms off: {json:#}");
    sum
}

fn explained(fault: &str, true_causes: &[&str], more: &[&str]) {
    let json = drill(&[&["--fault", fault], more].concat());
    let sum = adds_up(fault, &json, SHARE);
    let client = &json["clients"][0];
    let named: f64 = true_causes.iter().map(|c| part(client, c)).sum();
    // Being back takes its part: much of an outage that is over in a moment, or on a machine that does much else.
    assert!(
        sum - named <= (sum * 0.2).max(150.0),
        "{fault}: {true_causes:?} are {named:.0} of {sum:.0} ms: {json:#}"
    );
    let main = client["main_cause"].as_str().unwrap_or_default();
    assert!(true_causes.contains(&main), "{fault}: {main}: {json:#}");
}

#[test]
fn each_faults_outage_is_charged_to_its_true_cause_and_to_the_last_moment() {
    if servers().is_none() {
        return;
    }
    let Some(runs) = runs() else { return explained("freeze", &["dead_socket", "not_writable_yet"], &[]) };
    let both: &[&str] = &["dead_socket", "not_writable_yet"];
    for major in majors() {
        let major = major.to_string();
        for _ in 0..runs {
            for fault in ["kill", "freeze", "stop", "second-failover"] {
                explained(fault, both, &["--pg-version", &major]);
            }
            for fault in ["slow-promotion", "demote"] {
                explained(fault, &["not_writable_yet"], &["--pg-version", &major]);
            }
        }
    }
}

/// Eight processes at once on a server that hardly has time, without pace and with it.
#[test]
#[ignore = "takes minutes: make proof"]
fn a_fleet_without_pace_on_a_slow_node_is_its_own_storm_and_with_pace_it_is_not() {
    if servers().is_none() {
        return;
    }
    let runs = runs().unwrap_or(1);
    for major in majors() {
        let major = major.to_string();
        for _ in 0..runs {
            let storm = |what: &str, more: &[&str], share: f64| {
                let fleet = ["--instances", "8", "--workers", "16", "--slow-node", "1", "--rate", "5"];
                let json = drill(&[&fleet, more, &["--pg-version", &major]].concat());
                adds_up(what, &json, share);
                let peak = |of: &str| json["clients"][0][of].to_string();
                let (logins, sessions) = (peak("logins_per_second_peak"), peak("connections_peak"));
                eprintln!("  at most {logins} logins a second, {sessions} sessions");
                json
            };
            let without = storm("8 processes without pace", &["--no-pace"], FLEET);
            let with = storm("8 processes with pace", &[], FLEET);
            assert_eq!(without["clients"][0]["main_cause"], "own_storm", "{without:#}");
            let (a, b) = (part(&without["clients"][0], "own_storm"), part(&with["clients"][0], "own_storm"));
            assert!(b <= a / 2.0, "own storm: {a:.0} ms without pace, {b:.0} ms with it");
        }
    }
}
