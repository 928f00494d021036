//! `tests/vectors/outcome`: what a check saw, and what follows.

use pgfollow::decide::outcome::{Ended, Given, Here, NumberSeen, Promotion, Step, by_number, fence, first};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The common case under what a case says.
fn filled<T: DeserializeOwned>(mut common: Value, case: &Value, key: &str) -> T {
    for (k, v) in case[key].as_object().into_iter().flatten() {
        common[k] = v.clone();
    }
    serde_json::from_value(common).unwrap_or_else(|e| panic!("{case}: {e}"))
}

fn given(case: &Value) -> Given {
    let number = json!({"number": {"xid": 812, "lsn": 500, "start": 1000}});
    let mut case = case.clone();
    if case["given"]["mark"] == "number" {
        case["given"]["mark"] = number.clone();
    }
    let mark = if case.get("here").is_some() {
        json!({"row": {"table": {"oid": 16390, "file": 16390}}})
    } else {
        number
    };
    let common = json!({"system": 7, "database": 16384, "made_at": 60_000_000, "timeline": 1, "mark": mark});
    filled(common, &case, "given")
}

fn check(file: &str, answer: impl Fn(&Value) -> Step) {
    let cases = crate::support::vectors(&format!("outcome/{file}"));
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let got = serde_json::to_value(answer(case)).expect("a step");
            (got != case["expect"]).then(|| format!("{}: {got}, not {}", case["id"], case["expect"]))
        })
        .collect();
    assert!(!cases.is_empty() && wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_token_is_taken_nowhere_but_where_its_transaction_could_have_taken_it() {
    check("first.jsonl", |case| {
        let common = json!({"system": 7, "database": 16384, "server_time": 120_000_000, "timeline": 1,
            "table": {"oid": 16390, "file": 16390}, "numbers": true});
        first(&given(case), &filled::<Here>(common, case, "here"))
    });
}

#[test]
fn a_fence_is_an_answer_only_once_it_is_committed_like_the_original() {
    check("fence.jsonl", |case| {
        let state = case["state"].as_str().and_then(|s| s.chars().next());
        fence(state, filled::<Ended>(json!({}), case, "ended"))
    });
}

#[test]
fn a_transaction_number_is_believed_only_where_it_can_not_be_a_strangers() {
    check("number.jsonl", |case| {
        let common = json!({"timeline": 1, "start": 1000, "replay": null, "waited": true});
        let seen = case.get("seen").map(|_| filled::<NumberSeen>(common, case, "seen"));
        let committed = json!({"committed": case.get("ended").is_none()});
        let ended: Ended = filled(committed, case, "ended");
        let promotions: Vec<Promotion> = case
            .get("promotions")
            .map(|p| serde_json::from_value(p.clone()).expect("promotions"))
            .unwrap_or_default();
        by_number(&given(case), seen.as_ref(), ended, &promotions)
    });
}
