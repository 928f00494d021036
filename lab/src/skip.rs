//! A test that lacks something says so, and is counted: the harness knows only passed and failed.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};

use crate::binaries::{Binaries, BinaryOptions};

/// Names the file that gathers what was skipped; `tests/run.sh` sets it, and prints the file when all is done.
const FILE: &str = "LAB_SKIPPED_TESTS";

/// Chooses the major version for all tests; without it they take the newest installed one.
const MAJOR: &str = "LAB_PG_MAJOR";

/// PostgreSQL's binaries for the calling test; `None` where there are none, and then the test counts as skipped.
///
/// # Panics
/// If `LAB_PG_MAJOR` is set and no number.
pub fn servers() -> Option<Binaries> {
    let major =
        std::env::var(MAJOR).ok().map(|m| m.parse().unwrap_or_else(|_| panic!("{MAJOR}={m} is no number")));
    let wanted = BinaryOptions { major, ..BinaryOptions::default() };
    Binaries::find(&wanted, &mut |line| drop(writeln!(io::stderr(), "{line}"))).map_err(skipped).ok()
}

/// Says that the calling test is skipped, and why. Call it on the test's own thread and return.
///
/// # Panics
/// If the file that gathers such words can't be written: a skipped test must not pass unseen.
pub fn skipped(reason: impl Display) {
    let program = std::env::current_exe().ok().and_then(|p| Some(p.file_stem()?.to_str()?.to_owned()));
    let program = program.unwrap_or_default();
    // Cargo puts a hash behind the name of the test file.
    let file = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let reason = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("{file} {test}: {reason}\n");
    // To the real standard error: the harness hides what a passing test prints.
    let _ = write!(io::stderr(), "SKIPPED {line}");
    if let Some(path) = std::env::var_os(FILE) {
        // One write of one line: tests of several programs append side by side.
        let added = OpenOptions::new().append(true).create(true).open(&path);
        let added = added.and_then(|mut f| f.write_all(line.as_bytes()));
        added.unwrap_or_else(|e| panic!("{}: {e}, so the skipped test would pass unseen", path.display()));
    }
}
