//! `pgfollow classify` as a script sees it.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

fn classify(facts: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pgfollow"))
        .args(["classify", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that complains at once may not read it all.
    let _ = child.stdin.take().unwrap().write_all(facts.as_bytes());
    let out = child.wait_with_output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

#[test]
fn every_case_from_the_field_gets_its_verdict_through_the_command() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/classify/hand.jsonl");
    let (mut count, mut wrong) = (0, Vec::new());
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let (code, stdout, stderr) = classify(&case["input"].to_string());
        assert_eq!(code, Some(0), "{}: {stderr}", case["id"]);
        let got: Value = serde_json::from_str(&stdout).unwrap();
        for key in ["class", "retry_unit", "discard", "siblings", "next_host"] {
            assert!(!got[key].is_null(), "{}: no {key} in {stdout}", case["id"]);
        }
        for (key, want) in case["expect"].as_object().unwrap() {
            if got.get(key) != Some(want) {
                wrong.push(format!(
                    "{} ({}): {key} is {:?}, not {want}",
                    case["id"],
                    case["why"],
                    got.get(key)
                ));
            }
        }
        count += 1;
    }
    assert!(wrong.is_empty() && count >= 42, "{count} cases; {}", wrong.join("\n"));
}

/// A key that nobody reads would count as the careful answer, and a driver's author would never hear of it.
#[test]
fn a_misspelt_key_is_named_with_the_one_that_was_meant() {
    for (facts, says) in [
        (
            r#"{"phase": "commit", "signal": {"type": "io"}, "requst": {}}"#,
            r#""requst": the nearest known one is "request""#,
        ),
        (r#"{"pase": "commit", "signal": {"type": "io"}}"#, r#""pase": the nearest known one is "phase""#),
        (
            r#"{"phase": "commit", "signal": {"type": "io"}, "request": {"in_transacton": true}}"#,
            r#""in_transacton" in request: the nearest known one is "in_transaction""#,
        ),
        (
            r#"{"phase": "commit", "signal": {"type": "sqlstate", "code": "40001", "Severity": "FATAL"}}"#,
            r#""Severity" in signal: the nearest known one is "severity""#,
        ),
        // A word of another signal, and one that resembles none.
        (
            r#"{"phase": "commit", "signal": {"type": "io", "code": "40001"}}"#,
            r#""code" in signal: known are type"#,
        ),
        (
            r#"{"phase": "idle", "signal": {"type": "io"}, "session": {"tls": true}}"#,
            r#""tls" in session: known are application_opened, healthy_lately"#,
        ),
    ] {
        let (code, stdout, stderr) = classify(facts);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{facts}: {stderr}");
        assert!(stderr.contains(says) && stderr.trim_end().lines().count() == 1, "{facts}: {stderr}");
    }
}

#[test]
fn misspelt_facts_end_with_2_and_no_verdict() {
    for facts in ["", "{}", r#"{"phase": "comit", "signal": {"type": "io"}}"#] {
        let (code, stdout, stderr) = classify(facts);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{facts}");
        assert!(stderr.contains("error:"), "{stderr}");
    }
}

fn verdict(facts: &str) -> Value {
    let (code, stdout, stderr) = classify(facts);
    assert_eq!(code, Some(0), "{facts}: {stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// Alone on a new connection, a statement that was part of a lost transaction would be half of it.
#[test]
fn a_transaction_that_nobody_spoke_of_is_repeated_as_a_whole_and_may_have_been_committed() {
    for (signal, request, class, unit) in [
        (r#"{"type": "sqlstate", "code": "40001"}"#, "{}", "transient", "transaction"),
        (r#"{"type": "io"}"#, r#"{"sent": "none"}"#, "transient", "transaction"),
        (r#"{"type": "io"}"#, r#"{"effect": "read"}"#, "transient", "transaction"),
        (r#"{"type": "io"}"#, "{}", "unknown-outcome", "outcome-check"),
        (r#"{"type": "sqlstate", "code": "08006"}"#, "{}", "unknown-outcome", "outcome-check"),
        (
            r#"{"type": "sqlstate", "code": "40001"}"#,
            r#"{"in_transaction": false}"#,
            "transient",
            "statement",
        ),
    ] {
        let facts = format!(r#"{{"phase": "statement", "signal": {signal}, "request": {request}}}"#);
        let got = verdict(&facts);
        assert_eq!((&got["class"], &got["retry_unit"]), (&class.into(), &unit.into()), "{facts}");
    }
}

#[test]
fn a_value_that_means_nothing_is_refused_with_the_known_ones() {
    let word = |more| {
        format!(r#"{{"phase": "statement", "signal": {{"type": "sqlstate", "code": "40001", {more}}}}}"#)
    };
    for (facts, says) in [
        (word(r#""then": "banana""#), r#""banana" of then: known is "EOF""#),
        (word(r#""as": "banana""#), "`error` or `notice`"),
        (word(r#""severity": "fatal""#), "`FATAL`"),
        (
            r#"{"phase": "acquire", "signal": {"type": "pool", "event": "full"}}"#.to_owned(),
            "`acquire-timeout`",
        ),
    ] {
        let (code, stdout, stderr) = classify(&facts);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{facts}: {stderr}");
        assert!(stderr.contains(says), "{facts}: {stderr}");
    }
    assert_eq!(verdict(&word(r#""then": "EOF""#))["discard"], true);
    assert_eq!(verdict(&word(r#""after": "login""#))["discard"], false);
}

/// Who writes facts has nothing but the help.
#[test]
fn the_help_tells_every_key_and_value_of_facts_and_verdict() {
    let out = Command::new(env!("CARGO_BIN_EXE_pgfollow")).args(["classify", "--help"]).output().unwrap();
    let help = String::from_utf8(out.stdout).unwrap();
    let verdict = verdict(r#"{"phase": "handshake", "signal": {"type": "sqlstate", "code": "57P03"}}"#);
    let mut words: Vec<&str> = verdict.as_object().unwrap().keys().map(String::as_str).collect();
    words.extend(["PANIC", "DEBUG", "acquire-timeout", "overloaded", "pool-closed", "EOF", "SQLSTATE"]);
    words.extend([
        "outcome-check",
        "recheck",
        "leave",
        "required",
        "unknown-outcome",
        "Within signal, request",
    ]);
    let missing: Vec<_> = words.into_iter().filter(|w| !help.contains(w)).collect();
    assert!(missing.is_empty(), "{missing:?} not in {help}");
}
