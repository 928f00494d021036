//! The exact moment at which a promoted node accepts its first write.
//!
//! A prober holds a session on the node and tries an INSERT every 2 ms, on a thread of its own, so a busy
//! runtime doesn't delay it. It commits locally: synchronous replication doesn't hold it up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::cluster::PROBE_TABLE;
use crate::{Cluster, LabError, Node, monotonic_ns};

const EVERY: Duration = Duration::from_millis(2);
/// How long one try may hang before the session is given up for a new one.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running prober. Dropping it ends its session.
#[derive(Debug)]
pub struct Prober {
    ready: watch::Receiver<Option<u64>>,
    /// Dropped to stop the thread in the middle of whatever it waits for.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    node: String,
}

impl Prober {
    /// Opens the session to a node; returns when the first try was made.
    pub async fn start(cluster: &Cluster, node: usize) -> Result<Self, LabError> {
        let node = Arc::clone(&cluster.nodes()[node]);
        let name = node.name().to_owned();
        let (tell, ready) = watch::channel(None);
        let (tell_started, started) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(LabError::io("building the prober's runtime"))?;
        let thread = std::thread::Builder::new()
            .name("lab-prober".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = probe(&node, &tell, tell_started) => {}
                        _ = stopped => {}
                    }
                });
            })
            .map_err(LabError::io("starting the prober's thread"))?;
        // Made before the wait: if that fails, Drop ends the thread.
        let prober = Self { ready, stop: Some(stop), thread: Some(thread), node: name };
        match started.await {
            Ok(Ok(())) => Ok(prober),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(LabError::State("the prober's thread died".into())),
        }
    }

    /// CLOCK_MONOTONIC (ns) of the first acknowledged INSERT, if there was one yet.
    pub fn ready_now(&self) -> Option<u64> {
        *self.ready.borrow()
    }

    /// Waits for the first acknowledged INSERT: its CLOCK_MONOTONIC time in ns.
    pub async fn ready(&self, bound: Duration) -> Result<u64, LabError> {
        let mut ready = self.ready.clone();
        let waited = tokio::time::timeout(bound, ready.wait_for(Option::is_some)).await;
        waited.ok().and_then(Result::ok).and_then(|at| *at).ok_or_else(|| LabError::Timeout {
            what: format!("{} to accept a write", self.node),
            after: bound,
            last: None,
        })
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the prober is no reason for another one here.
            let _ = thread.join();
        }
    }
}

async fn probe(
    node: &Node,
    ready: &watch::Sender<Option<u64>>,
    started: oneshot::Sender<Result<(), LabError>>,
) {
    let mut started = Some(started);
    let insert = format!("insert into {PROBE_TABLE} default values");
    // The refusals on a standby would fill the server's log: 500 a second.
    let quiet = "set log_min_messages = panic; set log_min_error_statement = panic";
    'session: loop {
        let session = async {
            let s = node.session().await?;
            s.batch_execute(quiet).await.map_err(LabError::pg("silencing the prober's session"))?;
            let statement =
                s.prepare(&insert).await.map_err(LabError::pg("preparing the prober's insert"))?;
            Ok((s, statement))
        };
        let (session, statement) = match session.await {
            Ok(s) => s,
            Err(e) => {
                if let Some(tell) = started.take() {
                    let _ = tell.send(Err(e));
                    return;
                }
                tokio::time::sleep(EVERY).await;
                continue;
            }
        };
        let mut pace = tokio::time::interval(EVERY);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            match tokio::time::timeout(PATIENCE, session.execute(&statement, &[])).await {
                Ok(Ok(_)) => {
                    let at = monotonic_ns();
                    ready.send_replace(Some(at));
                    if let Some(tell) = started.take() {
                        let _ = tell.send(Ok(()));
                    }
                    return;
                }
                // A standby says 25006; anything without a code is the session's end.
                Ok(Err(e)) if e.code().is_some() && !session.is_closed() => {}
                _ => continue 'session,
            }
            if let Some(tell) = started.take() {
                let _ = tell.send(Ok(()));
            }
        }
    }
}
