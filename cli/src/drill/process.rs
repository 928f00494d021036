//! The drill's side of a client process: starts it, keeps what it tells, ends it.

use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pgfollow_lab::LabError;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;

use super::client::Kind;
use super::record::{CONNINFO, Call, CallResult, Explained, Told};
use super::scene::Plan;

/// How long a client may take to end once it was asked to.
const END: Duration = Duration::from_secs(20);

/// A running client. Dropping it kills it.
pub(crate) struct Client {
    pub(crate) kind: Kind,
    first_worker: i32,
    workers: usize,
    child: Child,
    /// Closed to end it.
    stdin: Option<ChildStdin>,
    calls: Arc<Mutex<Vec<Call>>>,
    explained: Arc<OnceLock<Vec<Explained>>>,
    reader: JoinHandle<()>,
}

impl Client {
    /// `instance`: which of its kind, from 0. `surroundings`: whether the caller's PG variables take part.
    pub(crate) fn start(
        kind: Kind,
        instance: u16,
        conninfo: &str,
        plan: &Plan,
        surroundings: bool,
    ) -> Result<Self, LabError> {
        let Plan { workers, rate, .. } = *plan;
        let failed = |e: std::io::Error| LabError::State(format!("starting the {} client: {e}", kind.name()));
        let mut command = Command::new("/proc/self/exe");
        command.args(["drill-client", "--client", kind.name()]);
        command.args(["--workers", &workers.to_string(), "--rate", &rate.to_string()]);
        let first_worker = i32::from(instance) * i32::from(workers);
        command.args(["--first-worker", &first_worker.to_string()]);
        if !plan.pace {
            command.arg("--no-pace");
        }
        for (name, _) in std::env::vars_os() {
            if !surroundings && name.to_str().is_some_and(|n| n.starts_with("PG")) {
                command.env_remove(name);
            }
        }
        if std::env::var_os("RUST_LOG").is_none() {
            // Both clients' libraries warn of each lost connection: the report counts them.
            command.env("RUST_LOG", "error");
        }
        command.env(CONNINFO, conninfo).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let explained = Arc::new(OnceLock::new());
        let (kept, learned) = (Arc::clone(&calls), Arc::clone(&explained));
        let reader = tokio::spawn(async move {
            let Some(stdout) = stdout else { return };
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(Told::Call(call)) => lock(&kept).push(call),
                    Ok(Told::Outages { outages }) => drop(learned.set(outages)),
                    Err(e) => tracing::warn!(%e, "a client's line can't be read"),
                }
            }
        });
        Ok(Self { kind, first_worker, workers: usize::from(workers), child, stdin, calls, explained, reader })
    }

    /// How many calls were acknowledged and how many failed so far.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let calls = lock(&self.calls);
        let ok = calls.iter().filter(|c| matches!(c.result, CallResult::Ok { .. })).count();
        (ok, calls.len() - ok)
    }

    /// Whether every worker had a write acknowledged by that node (by any, without one).
    pub(crate) fn all_wrote(&self, node: Option<&str>) -> bool {
        let mut wrote = vec![false; self.workers];
        for c in lock(&self.calls).iter().rev() {
            if let CallResult::Ok { node: by } = &c.result
                && node.is_none_or(|n| n == by)
                && let Some(w) =
                    usize::try_from(c.worker - self.first_worker).ok().and_then(|w| wrote.get_mut(w))
            {
                *w = true;
            }
        }
        wrote.iter().all(|w| *w)
    }

    /// Fails if the process has ended by itself.
    pub(crate) fn check(&mut self) -> Result<(), LabError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                Err(LabError::State(format!("the {} client ended by itself: {status}", self.kind.name())))
            }
            Err(e) => Err(LabError::State(format!("watching the {} client: {e}", self.kind.name()))),
        }
    }

    /// Asks it to end.
    pub(crate) fn ask_to_end(&mut self) {
        drop(self.stdin.take());
    }

    /// Ends it and returns everything that it told: its calls, and the outages as it explains them, if it does.
    pub(crate) async fn finish(mut self) -> Result<(Vec<Call>, Option<Vec<Explained>>), LabError> {
        self.ask_to_end();
        let ended = tokio::time::timeout(END, async {
            // The reader first: only then all lines are here.
            let _ = (&mut self.reader).await;
            self.child.wait().await
        });
        if ended.await.is_err() {
            // What it told so far counts; a client that can't end is no reason to lose the report.
            tracing::warn!(client = self.kind.name(), "had to be killed");
            self.child.kill().await.map_err(|e| LabError::State(format!("killing a client: {e}")))?;
        }
        let calls = std::mem::take(&mut *lock(&self.calls));
        Ok((calls, self.explained.get().cloned()))
    }
}

fn lock(calls: &Mutex<Vec<Call>>) -> MutexGuard<'_, Vec<Call>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}
