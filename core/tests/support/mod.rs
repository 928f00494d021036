//! What the tests against scripted servers share: hosts made of scripts, names that resolve to them, and one connect
//! through the public API.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod api;
pub(crate) mod hosts;

use std::path::PathBuf;

/// The lines of a file of vectors, parsed.
pub(crate) fn vectors(file: &str) -> Vec<serde_json::Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{file}: {e} in {l}"))).collect()
}
