//! The conninfo vectors through the ABI, each in a process of its own with the case's environment.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Map, Value};

use crate::build::{COMPILERS, compile, folder, has, in_package, run};

fn object(v: &Value) -> Map<String, Value> {
    v.as_object().cloned().unwrap_or_default()
}

fn texts(v: &Value) -> Vec<&str> {
    v.as_array().map(|a| a.iter().map(|t| t.as_str().unwrap()).collect()).unwrap_or_default()
}

/// The system's user, for whom the vectors write osuser.
fn user() -> String {
    let named = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(named.stdout).unwrap().trim().to_owned()
}

/// What is wrong with the case; `None` where the process's own surroundings can't be what the case wants.
fn judge(case: &Value, program: &Path, user: &str) -> Option<Vec<String>> {
    let id = case["id"].as_str().unwrap();
    // The compiled-in folder of sockets can't be set from outside.
    if case.to_string().contains("/run/default") {
        return None;
    }
    let home = folder("conninfo").join(id);
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&home).unwrap();
    for (name, file) in object(&case["input"]["files"]) {
        let path = home.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, file["text"].as_str().unwrap()).unwrap();
        let mode = u32::from_str_radix(file["mode"].as_str().unwrap_or("0600"), 8).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let filled = |text: &str| text.replace("$HOME", home.to_str().unwrap());
    let mut command = Command::new(program);
    command.env_clear().env("LD_LIBRARY_PATH", crate::build::libraries()).env("HOME", &home);
    command.env("PGSYSCONFDIR", home.join("no-such-folder"));
    for (name, value) in object(&case["input"]["env"]) {
        command.env(name, filled(value.as_str().unwrap()));
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let text = filled(case["input"]["conninfo"].as_str().unwrap());
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let seen: Value = serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{id}: {e}: {printed}"));
    let expect = &case["expect"];
    let mut problems = Vec::new();
    let mut check = |what: &str, ok: bool| {
        if !ok {
            problems.push(format!("{id}: {what}: {printed}"));
        }
    };
    for secret in texts(&expect["secrets"]) {
        check("keeps the secret", !printed.contains(secret));
    }
    match (expect["ok"].as_bool().unwrap(), output.status.code()) {
        // A connector reads the files that the string names; `targets` are judged before that.
        (true, Some(2)) => check("only a file may be missing", seen["code"] == "UnusableFile"),
        (true, Some(0)) => {
            for (n, want) in expect["targets"].as_array().into_iter().flatten().enumerate() {
                let got = &seen["candidates"][n];
                let same = ["kind", "host", "hostaddr", "dir", "port"].iter().all(|k| got[*k] == want[*k]);
                check("targets", same);
            }
            for (key, part) in [("effective", "value"), ("origins", "origin")] {
                for (name, want) in object(&expect[key]) {
                    let want = if want == "osuser" { Value::from(user) } else { want };
                    check(&format!("{part} of {name}"), seen["options"][&name][part] == want);
                }
            }
        }
        (false, Some(0)) => {
            check("only a connect may find it", expect["no_later_than"] == "connect");
            check("warned of", seen["warnings"].as_array().is_some_and(|w| !w.is_empty()));
        }
        (false, Some(2)) => {
            let any = texts(&expect["mentions_any"]);
            let message = seen["message"].as_str().unwrap();
            check("mentions", any.is_empty() || any.iter().any(|m| message.contains(m)));
            check("class", seen["class"] == "permanent" && seen["ok"] == false);
        }
        (_, code) => check(&format!("exit code {code:?}"), false),
    }
    Some(problems)
}

#[test]
fn every_conninfo_vector_holds_through_the_abi() {
    let Some(compiler) = COMPILERS.into_iter().find(|c| has(c.0)) else { return };
    let (program, user) = (compile("config", compiler, &[]), user());
    let (mut judged, mut problems) = (0, Vec::new());
    for file in fs::read_dir(in_package("../tests/vectors/conninfo")).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_none_or(|e| e != "jsonl") {
            continue;
        }
        for line in fs::read_to_string(file).unwrap().lines().filter(|l| !l.is_empty()) {
            if let Some(found) = judge(&serde_json::from_str(line).unwrap(), &program, &user) {
                judged += 1;
                problems.extend(found);
            }
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    assert!(judged >= 140, "only {judged} cases were judged");
}

#[test]
fn the_command_line_prints_the_same_of_a_string() {
    let Some(compiler) = COMPILERS.into_iter().find(|c| has(c.0)) else { return };
    let conninfo = "host=db-a,db-b port=70000 user=app password=hunter2";
    let mut command = run(&compile("config", compiler, &[]));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(conninfo.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let ours: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut config = pgfollow::Config::parse(conninfo).unwrap();
    let doubts = config.doubts();
    assert!(!doubts.is_empty());
    config.warnings.extend(doubts);
    assert_eq!(ours, config.to_json());
}
