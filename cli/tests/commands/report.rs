//! `pgfollow report` as a person sees it.

use std::process::Command;

fn pgfollow(args: &[&str]) -> (Option<i32>, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_pgfollow")).args(args).output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/report.example.json");

#[test]
fn the_page_is_one_file_that_loads_nothing() {
    let out = std::env::temp_dir().join(format!("pgfollow-report-{}.html", std::process::id()));
    let (code, stdout, stderr) = pgfollow(&["report", EXAMPLE, "--html", out.to_str().unwrap()]);
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    let html = std::fs::read_to_string(&out).unwrap();
    std::fs::remove_file(&out).unwrap();
    for foreign in ["<script", "src=", "href=", "url(", "@import", "http:", "https:"] {
        assert!(!html.contains(foreign), "{foreign} in the page");
    }
    // The verdict is the first thing in the body.
    let body = html.split("<body>").nth(1).unwrap();
    assert!(body.trim_start().starts_with("<header>\n<h1>The service was out for"), "{}", &body[..200]);
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("width=device-width"));
    for part in [
        "db-a",
        "db-b",
        "db-c",
        "dead_socket",
        "not_writable_yet",
        "acquire",
        "the rest as last seen, 6.05 s ago",
    ] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn the_text_begins_with_the_verdict_and_no_file_is_no_report() {
    let (code, stdout, _) = pgfollow(&["report", EXAMPLE]);
    assert_eq!(code, Some(0));
    assert!(stdout.starts_with("The service was out for"), "{stdout}");
    assert!(stdout.contains("db-a (10.0.0.11:5432): stale_primary; last seen 6.05 s ago: "), "{stdout}");
    assert!(stdout.contains("\n  callers got 4 errors, 4 of unknown outcome\n"), "{stdout}");
    for bad in ["/nonexistent/report.json", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
        let (code, stdout, stderr) = pgfollow(&["report", bad]);
        assert_eq!((code, stdout.as_str()), (Some(2), ""));
        assert!(stderr.contains("no report") != bad.starts_with("/nonexistent"), "{stderr}");
    }
}

#[test]
fn a_hostile_file_steers_no_terminal() {
    let example = std::fs::read_to_string(EXAMPLE).unwrap();
    assert!(example.contains("db-a"));
    let hostile = std::env::temp_dir().join(format!("pgfollow-hostile-{}.json", std::process::id()));
    std::fs::write(&hostile, example.replace("db-a", r"\u001b]0;x\u0007db-a")).unwrap();
    let (code, stdout, stderr) = pgfollow(&["report", hostile.to_str().unwrap()]);
    std::fs::remove_file(&hostile).unwrap();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("db-a") && !stdout.contains(['\u{1b}', '\u{7}']), "{stdout:?}");
}
