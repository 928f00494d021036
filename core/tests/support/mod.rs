//! What the tests against scripted servers share: hosts made of scripts, names that resolve to them, and one connect
//! through the public API.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod api;
pub(crate) mod hosts;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pgfollow::net::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The lines of a file of vectors, parsed.
pub(crate) fn vectors(file: &str) -> Vec<serde_json::Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{file}: {e} in {l}"))).collect()
}

/// So many cases run at once: enough that waiting costs little, few enough that a busy machine doesn't delay a server's
/// answer beyond the bounds of its case.
const SIDE_BY_SIDE: usize = 12;

/// Runs cases side by side; panics with all failures if there are any. Returns how many ran.
pub(crate) async fn run_all(cases: Vec<BoxFuture<'static, Result<(), String>>>) -> usize {
    let count = cases.len();
    let permits = Arc::new(Semaphore::new(SIDE_BY_SIDE));
    let mut running = JoinSet::new();
    for case in cases {
        let permits = Arc::clone(&permits);
        running.spawn(async move {
            let _permit = permits.acquire_owned().await.map_err(|e| e.to_string())?;
            case.await
        });
    }
    let mut failures = Vec::new();
    while let Some(done) = running.join_next().await {
        failures.extend(done.expect("a case doesn't panic").err());
    }
    failures.sort();
    assert!(failures.is_empty(), "{} of {count} runs failed:\n{}", failures.len(), failures.join("\n"));
    count
}

/// A file that is gone when this is dropped.
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    pub(crate) fn new(name: &str, content: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pgfollow-{}-{n}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self(path)
    }

    pub(crate) fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // What can't be removed stays in the temporary folder; no test depends on it.
        let _ = std::fs::remove_file(&self.0);
    }
}
