//! The programs that need no server, as C11 and as C++17, by gcc and by clang.

use std::fmt::Write;
use std::fs;

use serde_json::Value;

use crate::build::{COMPILERS, compile, folder, has, in_package, ran, run};

fn with_every_compiler(program: &str) {
    for compiler in COMPILERS {
        if has(compiler.0) {
            ran(compiler.0, &run(&compile(program, compiler, &[])).output().unwrap());
        }
    }
}

#[test]
fn misuse_from_c_is_an_error_and_never_a_crash() {
    with_every_compiler("misuse");
}

fn constant(prefix: &str, text: &str) -> String {
    format!("PGF_{prefix}_{}", text.to_uppercase().replace('-', "_"))
}

/// The vector's facts as assignments, in C.
fn facts(input: &Value) -> String {
    let mut c = String::from("memset(&f, 0, sizeof f);");
    let mut number = |field: &str, value: String| write!(c, " f.{field} = {value};").unwrap();
    let flag = |v: &Value| v.as_bool().is_some_and(|b| b);
    let signal = &input["signal"];
    number("phase", constant("PHASE", input["phase"].as_str().unwrap()));
    let kind = if signal["type"] == "pool" { &signal["event"] } else { &signal["type"] };
    number("signal", constant("SIGNAL", kind.as_str().unwrap()).replace("SIGNAL_POOL_POOL", "SIGNAL_POOL"));
    let request = &input["request"];
    for (field, prefix) in [("effect", "EFFECT"), ("sent", "SENT")] {
        if let Some(text) = request[field].as_str() {
            number(field, constant(prefix, text));
        }
    }
    match request["in_transaction"].as_bool() {
        Some(true) => number("in_transaction", "PGF_YES".to_owned()),
        Some(false) => number("in_transaction", "PGF_NO".to_owned()),
        None => {}
    }
    let flags = [
        ("may_commit_inside", flag(&request["may_commit_inside"])),
        ("healthy_lately", flag(&input["session"]["healthy_lately"])),
        ("resolved_before", flag(&signal["resolved_before"])),
        ("is_notice", signal["as"] == "notice"),
        ("ended", !signal["then"].is_null()),
    ];
    for (field, _) in flags.iter().filter(|f| f.1) {
        number(field, "1".to_owned());
    }
    let texts = [
        ("rcode", &signal["rcode"]),
        ("sqlstate", if signal["type"] == "rolled-back" { &signal["cause"] } else { &signal["code"] }),
        ("severity", &signal["severity"]),
        ("routine", &signal["routine"]),
        ("application_opened", &input["session"]["application_opened"]),
    ];
    for (field, value) in texts {
        if let Some(text) = value.as_str() {
            write!(c, " f.{field} = {text:?}; f.{field}_len = {};", text.len()).unwrap();
        }
    }
    c
}

/// What the vector expects as assignments, in C; −1 for what it doesn't judge.
fn expected(want: &Value) -> String {
    let mut c = String::new();
    let mut field = |name: &str, value: Option<String>| {
        write!(c, " e.{name} = {};", value.unwrap_or_else(|| "-1".to_owned())).unwrap();
    };
    let flag = |v: &Value| v.as_bool().map(|b| i32::from(b).to_string());
    field("error_class", want["class"].as_str().map(|t| constant("CLASS", t)));
    field("retry_unit", want["retry_unit"].as_str().map(|t| constant("RETRY", t)));
    field("discard", flag(&want["discard"]));
    field("recheck_siblings", want["siblings"].as_str().map(|t| i32::from(t == "recheck").to_string()));
    field("next_host", flag(&want["next_host"]));
    field("backoff", want["backoff"].as_str().map(|_| "1".to_owned()));
    field("shown_to_caller", flag(&want["shown_to_caller"]));
    c
}

#[test]
fn every_classify_vector_holds_through_the_abi() {
    let mut lines = String::new();
    for file in ["hand.jsonl", "own.jsonl"] {
        let path = in_package("../tests/vectors/classify").join(file);
        for line in fs::read_to_string(path).unwrap().lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let (facts, expected) = (facts(&case["input"]), expected(&case["expect"]));
            writeln!(lines, "{facts}{expected} judge({}, f, e);", case["id"]).unwrap();
        }
    }
    assert!(lines.lines().count() >= 140, "too few vectors");
    fs::write(folder("generated").join("classify_cases.h"), lines).unwrap();
    with_every_compiler("classify");
}
