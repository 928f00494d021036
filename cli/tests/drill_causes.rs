//! The drill's explanation of each fault: in each process its causes add up to the outage that its callers saw, and the
//! main one is the true one. One fault in the usual run; `RUNS=n` plays all of them, n times, on every
//! version (`make proof`).
#![expect(clippy::print_stderr, reason = "figures for people")]

use std::process::Command;

use pgfollow_lab::{Binaries, BinaryOptions, servers, skipped};
use serde_json::Value;

/// What the causes and the callers' own measure may differ by: the share of the outage.
const SHARE: f64 = 0.02;
/// And what the two measures of one moment always may, in ms, on a machine that does much else.
const GRAIN: f64 = 60.0;

/// The same of one process of a fleet: so long may a killed server's processes take to notice, beside all the others,
/// and a process's callers and its library date the beginning at different ones.
const DYING: f64 = 350.0;

/// Callers who met no error, and waited less than this each, felt no outage (ms).
const UNFELT: f64 = 500.0;

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

/// What the causes of a client or of one of its processes come to, and the outage as its callers saw it.
fn both(of: &Value) -> (f64, f64) {
    let causes = of["causes_ms"].as_object().unwrap_or_else(|| panic!("unexplained: {of}"));
    (causes.values().filter_map(Value::as_f64).sum(), of["outage_ms"].as_f64().unwrap())
}

/// Checks the sum, of each process by itself, and gives the mean of them all.
fn adds_up(what: &str, json: &Value) -> f64 {
    let client = &json["clients"][0];
    let processes = client["processes"].as_array().unwrap();
    let off = |of: &Value| {
        let (sum, outage) = both(of);
        (sum - outage) / outage.max(1.0) * 100.0
    };
    let worst = processes.iter().map(off).max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap();
    let (sum, outage) = both(client);
    eprintln!(
        "{what}, PostgreSQL {}: outage {outage:.0} ms, causes {sum:.0} ms ({:+.2} %, worst of {} processes {worst:+.2} %), \
         main {}: {}",
        json["server_version"],
        off(client),
        processes.len(),
        client["main_cause"],
        client["causes_ms"]
    );
    let each = if processes.len() > 1 { DYING } else { GRAIN };
    for (of, grain) in processes.iter().map(|p| (p, each)).chain([(client, GRAIN)]) {
        let (sum, outage) = both(of);
        // The library tells of what its callers never felt, too.
        let grain = if outage == 0.0 { UNFELT } else { grain };
        let off = (sum - outage).abs();
        assert!(off <= (outage * SHARE).max(grain), "{what}: the causes are {off:.1} ms off: {json:#}");
    }
    sum
}

fn explained(fault: &str, true_causes: &[&str], more: &[&str]) {
    let json = drill(&[&["--fault", fault], more].concat());
    let sum = adds_up(fault, &json);
    let client = &json["clients"][0];
    if sum == 0.0 && ["kill", "stop", "second-failover"].contains(&fault) {
        // Nobody failed, and nobody waited for half a second: a quick failover between two writes can be so.
        return;
    }
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

/// Eight processes at once on a server that has a tenth of its time. Without synchronous replication: a slow node's commits
/// wait for a standby as well, which is another cause, and a true one.
fn fleet(what: &str, more: &[&str]) -> Value {
    let fleet = ["--instances", "8", "--workers", "16", "--slow-node", "10", "--rate", "2", "--async"];
    let json = drill(&[&fleet, more].concat());
    adds_up(what, &json);
    let peak = |of: &str| json["clients"][0][of].to_string();
    let (logins, sessions) = (peak("logins_per_second_peak"), peak("connections_peak"));
    eprintln!("  at most {logins} logins a second, {sessions} sessions");
    json
}

fn storm(more: &[&str]) -> f64 {
    let json = fleet("8 processes without pace", &[&["--no-pace"], more].concat());
    let client = &json["clients"][0];
    assert_eq!(client["main_cause"], "own_storm", "{json:#}");
    part(client, "own_storm")
}

#[test]
#[ignore = "takes minutes, and a machine that does little else: make proof"]
fn a_fleet_without_pace_on_a_slow_node_is_its_own_storm_and_with_pace_it_is_not() {
    if servers().is_none() {
        return;
    }
    let runs = runs().unwrap_or(1);
    for major in majors() {
        let major = major.to_string();
        for _ in 0..runs {
            let without = storm(&["--pg-version", &major]);
            let json = fleet("8 processes with pace", &["--pg-version", &major]);
            let with = part(&json["clients"][0], "own_storm");
            assert!(with <= without / 2.0, "own storm: {without:.0} ms without pace, {with:.0} ms with it");
        }
    }
}
