//! `pgfollow config` as a script sees it.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn pgfollow(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgfollow"));
    // Nothing of the caller's own settings may take part.
    command.env_clear().env("HOME", "/nonexistent").env("PGUSER", "app").args(args);
    command
}

fn run(args: &[&str]) -> (Output, String, String) {
    let out = pgfollow(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (out.clone(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn json_names_candidates_and_origins_and_never_the_password() {
    let (out, stdout, stderr) =
        run(&["config", "--json", "postgresql://u:s3cret@h1:5433,,%2Frun%2Fx:70000/db"]);
    assert!(out.status.success(), "{stderr}");
    assert!(!stdout.contains("s3cret") && !stderr.contains("s3cret"));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let kinds: Vec<_> = (0..3).map(|i| json["candidates"][i]["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["tcp", "default-local", "unix"]);
    assert_eq!(json["candidates"][0]["port"], 5433);
    assert_eq!(json["candidates"][2]["port"], "70000");
    assert_eq!(json["candidates"][0]["password_source"], "string");
    assert_eq!(json["options"]["dbname"]["origin"], "string");
    assert_eq!(json["options"]["connect_timeout"]["value"], "5");
    assert_eq!(json["options"]["password"]["value"], Value::Null);
}

#[test]
fn an_unusable_string_ends_with_2_and_says_why_on_standard_error() {
    let (out, stdout, stderr) = run(&["config", "--json", "host=h1,h2 port=1,2,3"]);
    assert_eq!((out.status.code(), stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("port has 3 entries and host has 2"), "{stderr}");
}

#[test]
fn the_plain_string_has_neither_password_nor_own_options() {
    let (_, stdout, _) = run(&["config", "--libpq", "host=h1 password=s3cret pool_max_conns=3"]);
    assert_eq!(
        stdout.trim_end(),
        "user=app connect_timeout=5 dbname=app host=h1 keepalives_idle=3 keepalives_interval=2 keepalives_count=3 tcp_user_timeout=9000"
    );
}

#[test]
fn a_set_password_does_not_look_like_an_unset_one() {
    let shown = |conninfo| {
        let (_, stdout, _) = run(&["config", conninfo]);
        assert!(!stdout.contains("s3cret"), "{stdout}");
        let row = stdout.lines().find(|l| l.starts_with("password ")).unwrap().to_owned();
        row.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(shown("host=h1 password=s3cret"), "***");
    assert_eq!(shown("host=h1"), "–");
    assert_eq!(shown("host=h1 password=''"), "–");
}

#[test]
fn a_table_into_a_pipe_has_no_colour() {
    let (_, stdout, _) = run(&["config", "host=h1"]);
    assert!(stdout.contains("h1") && !stdout.contains('\u{1b}'), "{stdout}");
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let mut child =
        pgfollow(&["config", "host=h1"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
}
