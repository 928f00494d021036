//! The classify vectors: facts in, verdict out. Keys that a vector doesn't name are not judged.

use std::collections::BTreeSet;

use pgfollow::decide::classify::{Facts, classify};
use serde_json::Value;

fn vectors(file: &str) -> Vec<Value> {
    let path = format!("{}/../tests/vectors/classify/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn run(file: &str, at_least: usize) {
    let cases = vectors(file);
    assert!(cases.len() >= at_least, "{file} has only {} vectors", cases.len());
    let (mut ids, mut wrong) = (BTreeSet::new(), Vec::new());
    for case in &cases {
        let id = case["id"].as_str().unwrap();
        assert!(ids.insert(id), "{id} is there twice");
        let facts: Facts =
            serde_json::from_value(case["input"].clone()).unwrap_or_else(|e| panic!("{id}: {e}"));
        let got = serde_json::to_value(classify(&facts)).unwrap();
        let expected = case["expect"].as_object().unwrap();
        assert!(!expected.is_empty(), "{id} judges nothing");
        for (key, want) in expected {
            if got.get(key) != Some(want) {
                wrong.push(format!("{id} ({}): {key} is {:?}, not {want}", case["why"], got.get(key)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn cases_from_the_field_get_the_class_that_their_reporters_needed() {
    run("hand.jsonl", 42);
}

#[test]
fn no_doubt_is_ever_called_certain_and_no_hopeless_error_worth_a_retry() {
    run("own.jsonl", 100);
}

/// Whatever the server says last: a write that left and ended with its session is never called transient.
#[test]
fn no_last_word_makes_a_lost_autocommit_write_look_undone() {
    for &(key, _) in pgfollow::sqlstate::TABLE {
        let code = format!("{key:0<5}");
        for phase in ["statement", "commit"] {
            for sent in ["complete", "partial"] {
                let facts = serde_json::json!({
                    "phase": phase,
                    "signal": {"type": "sqlstate", "code": code, "severity": "FATAL", "as": "error", "then": "EOF"},
                    "request": {"effect": "write", "sent": sent, "in_transaction": phase == "commit"},
                });
                let verdict = classify(&serde_json::from_value(facts).unwrap());
                assert_eq!(verdict.class, pgfollow::Class::UnknownOutcome, "{code} at {phase}, {sent}");
                assert!(verdict.discard, "{code} at {phase}: the session is over");
            }
        }
    }
}

/// The written form of the facts is an interface: a misspelt value must not pass for a careful default.
#[test]
fn a_misspelt_fact_is_refused_instead_of_guessed() {
    for facts in [
        r#"{"phase": "comit", "signal": {"type": "io"}}"#,
        r#"{"phase": "commit", "signal": {"type": "i/o"}}"#,
        r#"{"phase": "commit", "signal": {"type": "sqlstate", "code": "4000"}}"#,
        r#"{"phase": "commit", "signal": {"type": "sqlstate", "code": "40001", "severity": "fatl"}}"#,
        r#"{"phase": "commit", "signal": {"type": "io"}, "request": {"sent": "some"}}"#,
    ] {
        assert!(serde_json::from_str::<Facts>(facts).is_err(), "{facts} was accepted");
    }
}
