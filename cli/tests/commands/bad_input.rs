//! Mistakes at the command line: one error on standard error, its JSON on standard output, an exit code that tells
//! usage from trouble, and no password anywhere.

use std::process::Command;

use serde_json::Value;

const SECRET: &str = "s3cret";

/// Exit code, standard output, standard error.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgfollow"));
    command.env_clear().env("HOME", "/nonexistent").env("PGUSER", "app").env("PGPASSWORD", SECRET).args(args);
    let out = command.output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    let (stdout, stderr) = (text(out.stdout), text(out.stderr));
    assert!(
        !stdout.contains(SECRET) && !stderr.contains(SECRET),
        "{args:?}: a password in\n{stdout}\n{stderr}"
    );
    (out.status.code(), stdout, stderr)
}

#[test]
fn a_string_that_cannot_be_used_is_a_usage_error_of_one_line_in_every_command() {
    for (conninfo, says) in [
        ("host=a pasword=s3cret", "\"password\""),
        ("postgresql://u:s3cret@x@h/db", "%40"),
        ("host=a resolver=system dns_servers=10.0.0.1", "remove one"),
        ("host=a client_encoding=LATIN1", "client_encoding=LATIN1"),
    ] {
        for command in ["config", "connect", "probe"] {
            let (code, stdout, stderr) = run(&[command, conninfo]);
            assert_eq!(code, Some(2), "{command} {conninfo}: {stderr}");
            assert!(stdout.is_empty(), "{stdout}");
            assert!(stderr.contains(says) && stderr.trim_end().lines().count() == 1, "{stderr}");
        }
    }
    // A certificate is missing: the string itself is in order, so `config` prints it.
    let (code, _, stderr) = run(&["connect", "host=a sslmode=verify-full sslrootcert=/no/such.crt"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("sslrootcert") && stderr.contains("/no/such.crt"), "{stderr}");
}

/// libpq looks at a port when its host's turn comes: one of several that is wrong is that host's failure.
#[test]
fn a_port_that_is_none_is_a_usage_error_where_no_other_host_is_left() {
    for (conninfo, exit) in [
        ("host=127.0.0.1 port=99999", 2),
        ("host=127.0.0.1,127.0.0.2 port=99999,0", 2),
        ("host=127.0.0.1,/no/such/dir port=99999,5432 target_session_attrs=any", 3),
    ] {
        for command in ["connect", "probe"] {
            let (code, stdout, stderr) = run(&[command, conninfo]);
            assert_eq!(code, Some(exit), "{command} {conninfo}: {stdout}{stderr}");
            assert!(format!("{stdout}{stderr}").contains("99999"), "{stdout}{stderr}");
        }
    }
}

#[test]
fn a_failed_connect_lists_every_attempt_in_words_and_in_json() {
    let conninfo = "host=/no/such/dir,127.0.0.1 port=5432,70000 connect_timeout=2";
    let (code, stdout, stderr) = run(&["connect", "--json", conninfo]);
    assert_eq!(code, Some(3), "{stderr}");
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&json["ok"], &json["class"]), (&Value::Bool(false), &"transient".into()));
    assert_eq!(json["attempts"].as_array().unwrap().len(), 2, "{json}");
    assert!(json["message"].as_str().unwrap().contains("check host"), "{json}");
    for says in ["/no/such/dir", "70000", "1 to 65535"] {
        assert!(stderr.contains(says) && stdout.contains(says), "{says}: {stdout}\n{stderr}");
    }
}

#[test]
fn a_warning_about_a_string_is_said_once() {
    let (_, _, stderr) = run(&["connect", "host=/no/such/dir sslcompression=1"]);
    assert_eq!(stderr.matches("compression").count(), 2, "the value and the words, once each: {stderr}");
}

#[test]
fn several_hosts_of_any_role_are_warned_of_once_and_a_choice_is_not() {
    for command in ["config", "connect"] {
        let hosts = "host=/no/such/dir,/no/such/other";
        let (_, _, stderr) = run(&[command, hosts]);
        assert_eq!(stderr.matches("target_session_attrs isn't set").count(), 1, "{command}: {stderr}");
        let (_, _, stderr) = run(&[command, &format!("{hosts} target_session_attrs=any")]);
        assert!(!stderr.contains("target_session_attrs isn't set"), "{command}: {stderr}");
    }
    let (_, _, stderr) = run(&["config", "host=/no/such/dir"]);
    assert!(!stderr.contains("target_session_attrs"), "{stderr}");
    let (_, stdout, stderr) = run(&["probe", "host=/no/such/dir,/no/such/other"]);
    let both = format!("{stdout}{stderr}");
    assert_eq!(both.lines().filter(|l| l.contains("target_session_attrs")).count(), 1, "{both}");
}

#[test]
fn an_argument_that_makes_no_sense_is_named_with_what_to_write_instead() {
    for (args, code, says) in [
        (&["connect", "host=a", "--wait", "x"][..], 2, &["--wait", "such as 5"][..]),
        (&["connect", "host=a", "--wait", "0"], 2, &["--wait", "more than 0"]),
        (&["connect", "host=a", "--wait", "-1"], 2, &["--wait", "out of range"]),
        (&["lab", "--pg-bin", "/nope"], 1, &["--pg-bin /nope", "no folder", "leave --pg-bin out"]),
        (&["lab", "--pg-version", "9"], 1, &["--pg-version 9", "15 or newer"]),
    ] {
        let (found, _, stderr) = run(args);
        assert_eq!(found, Some(code), "{args:?}: {stderr}");
        let missing: Vec<_> = says.iter().filter(|s| !stderr.contains(**s)).collect();
        assert!(missing.is_empty(), "{args:?}: {missing:?} not in {stderr}");
        assert!(!stderr.contains("float"), "{stderr}");
    }
}

#[test]
fn every_command_tells_its_exit_codes() {
    for (command, codes) in [
        (&["--help"][..], &[0, 1, 2, 3, 4, 5, 6][..]),
        (&["config", "--help"], &[0, 1, 2]),
        (&["connect", "--help"], &[0, 1, 2, 3]),
        (&["probe", "--help"], &[0, 1, 2, 3, 4]),
        (&["lab", "--help"], &[0, 1, 2]),
        (&["drill", "--help"], &[0, 1, 2, 5, 6]),
    ] {
        let (_, stdout, _) = run(command);
        let table = stdout.split("Exit codes:\n").nth(1).unwrap_or_default();
        let told: Vec<i32> =
            table.lines().filter_map(|l| l.split_whitespace().next()?.parse().ok()).collect();
        assert_eq!(told, codes, "{stdout}");
    }
}

/// What only shows when a host's turn comes shows in `config` before anything is deployed.
#[test]
fn what_every_connect_would_refuse_is_warned_of_by_config() {
    for (conninfo, says) in [
        ("host=a sslmode=verify-full sslrootcert=/no/such.crt", "/no/such.crt"),
        ("host=a sslmode=require sslcert=/no/such.crt", "/no/such.crt"),
        ("host=a sslmode=disable channel_binding=require", "use sslmode=require"),
        ("host=a port=70000", "\"70000\""),
        ("hostaddr=db-a", "hostaddr=db-a is not an IP address"),
        ("host= user=app", "is the value of host empty?"),
    ] {
        let (code, stdout, stderr) = run(&["config", "--json", conninfo]);
        assert_eq!(code, Some(0), "{conninfo}: {stderr}");
        let warnings: Value = serde_json::from_str::<Value>(&stdout).unwrap()["warnings"].clone();
        assert_eq!(warnings.as_array().unwrap().len(), 1, "{conninfo}: {warnings}");
        assert!(warnings[0].as_str().unwrap().contains(says), "{conninfo}: {warnings}");
        assert!(stderr.contains("WARN") && stderr.trim_end().lines().count() == 1, "{conninfo}: {stderr}");
    }
    let (_, _, stderr) =
        run(&["config", "host=a,10.0.0.1,/run/x target_session_attrs=any channel_binding=require"]);
    assert!(stderr.is_empty(), "{stderr}");
}

/// A terminal breaks what is too long by itself, and puts the rest below the names of commands and keys.
#[test]
fn a_help_in_columns_fits_a_terminal_of_eighty() {
    for (command, from) in [("lab", "Commands (NODE"), ("classify", "Facts: {")] {
        let out = Command::new(env!("CARGO_BIN_EXE_pgfollow"))
            .args([command, "--help"])
            .env("COLUMNS", "1000")
            .output()
            .unwrap();
        let help = String::from_utf8(out.stdout).unwrap();
        let columns = help.split(from).nth(1).unwrap();
        let long: Vec<_> = columns.lines().filter(|l| l.chars().count() > 80).collect();
        assert!(long.is_empty(), "{command}: {long:#?}");
    }
}

#[test]
fn a_password_that_an_empty_value_swallowed_is_shown_nowhere() {
    for command in [&["config"][..], &["config", "--json"], &["connect"], &["probe"]] {
        run(&[command, &["host= password=s3cret resolver=dns dns_servers=127.0.0.1:1"]].concat());
    }
}
