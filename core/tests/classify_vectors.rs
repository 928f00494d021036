//! Every case of tests/vectors/classify: facts in, verdict out.

use pgfollow::{Facts, classify};
use serde_json::Value;

#[test]
fn every_error_means_what_its_case_says() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/classify");
    let mut wrong = Vec::new();
    let mut cases = 0;
    for file in ["hand.jsonl", "own.jsonl"] {
        let text = std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
        for line in text.lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let facts: Facts = serde_json::from_value(case["input"].clone()).unwrap();
            let verdict = serde_json::to_value(classify(&facts)).unwrap();
            cases += 1;
            for (key, wanted) in case["expect"].as_object().unwrap() {
                let got = &verdict[key];
                let same = match (key.as_str(), wanted.as_str()) {
                    ("backoff", Some("required")) => got == &Value::Bool(true),
                    _ => got == wanted,
                };
                if !same {
                    wrong.push(format!("{}: {key} is {got}, not {wanted}", case["id"]));
                }
            }
        }
    }
    assert!(cases >= 62, "only {cases} cases were read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
