//! Cases of the pool from public reports (`tests/vectors/pool/hand.jsonl`) whose times are too long for real servers.

use std::time::Duration;

use pgfollow_sim::downtime::{Away, Downtime, run};
use serde_json::Value;

fn case(id: &str) -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/pool/hand.jsonl");
    let text = std::fs::read_to_string(file).expect("the vectors");
    let mut cases = text.lines().map(|l| serde_json::from_str::<Value>(l).expect("JSON"));
    cases.find(|c| c["id"] == id).unwrap_or_else(|| panic!("no {id}"))
}

fn count(v: &Value) -> usize {
    usize::try_from(v.as_u64().expect("a count")).expect("small")
}

/// The number before that unit in a sentence.
fn seconds(sentence: &str, before: &str) -> Duration {
    let words: Vec<&str> = sentence.split(before).next().expect("split").split(' ').collect();
    Duration::from_secs(words.last().expect("a word").parse().expect("a number"))
}

#[test]
fn po_h05_a_pool_that_nobody_asks_does_not_give_up_its_server_however_long_it_is_away() {
    let case = case("po-h05");
    let (input, expect) = (&case["input"], &case["expect"]);
    let event = input["event"].as_str().expect("what happens");
    let within = Duration::from_secs(expect["borrow_ok_within_s_of_return"].as_u64().expect("a bound"));
    let lasts = seconds(event, " s with reconnect_timeout");
    let patience = seconds(event.split("reconnect_timeout").nth(1).expect("its timeout"), " s");
    assert_eq!((lasts.as_secs(), patience.as_secs()), (90, 5));
    for away in [Away::Silent, Away::Refusing, Away::Starting] {
        let (size, min) = (count(&input["size"]), count(&input["min_idle"]));
        let seen = run(&Downtime { size, min, patience, lasts, away }, within);
        assert_eq!(seen.left, 0, "{away:?}");
        assert!(seen.borrowed.is_some(), "{away:?}: nobody could borrow: {seen:?}");
        let refilled = seen.refilled.is_some();
        assert_eq!(Value::from(refilled), expect["background_reconnect_still_running"], "{away:?}: {seen:?}");
    }
}
