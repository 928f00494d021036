//! Workers that write rows with ids of their own, and the log of every wait.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use pgfollow::{Address, Class, Connector, Error, Session};
use pgfollow_lab::Cluster;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::PATIENCE;

/// One call or connect, from its beginning to its result.
pub(crate) struct Wait {
    pub(crate) worker: usize,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// Where a write was acknowledged; `None` for a connect.
    pub(crate) on: Option<Ipv4Addr>,
    pub(crate) id: i64,
    pub(crate) result: Result<(), Error>,
}

pub(crate) struct Workload {
    workers: JoinSet<Vec<Wait>>,
    stop: watch::Sender<bool>,
}

impl Workload {
    /// So many workers with a session each. What is certainly not done is done again on another session, with the same
    /// id; what may have been done is left alone.
    pub(crate) async fn start(connector: &Connector, workers: usize, pace: Duration) -> Self {
        let session = connector.connect_within(PATIENCE).await.expect("a session");
        session.batch_execute("CREATE TABLE w (id bigint)").await.expect("a table");
        let (stop, stopped) = watch::channel(false);
        let next = Arc::new(AtomicI64::new(1));
        let mut all = JoinSet::new();
        for n in 0..workers {
            let session = connector.connect_within(PATIENCE).await.expect("a session");
            all.spawn(worker(n, connector.clone(), session, pace, Arc::clone(&next), stopped.clone()));
        }
        Self { workers: all, stop }
    }

    /// Ends the workers after their present call.
    pub(crate) async fn stop(self) -> Log {
        let _ = self.stop.send(true);
        let waits = tokio::time::timeout(PATIENCE, self.workers.join_all()).await.expect("no worker hangs");
        Log(waits.into_iter().flatten().collect())
    }
}

fn host_of(session: &Session) -> Option<Ipv4Addr> {
    match session.address() {
        Address::Tcp(a) => a.ip().to_string().parse().ok(),
        Address::Unix(_) => None,
    }
}

async fn worker(
    worker: usize,
    connector: Connector,
    first: Session,
    pace: Duration,
    next: Arc<AtomicI64>,
    stopped: watch::Receiver<bool>,
) -> Vec<Wait> {
    let (mut log, mut session, mut again) = (Vec::new(), Some(first), None);
    while !*stopped.borrow() {
        let began = Instant::now();
        let Some(s) = session.take().filter(Session::is_usable) else {
            let result = connector.connect_within(PATIENCE).await.map(|s| session = Some(s));
            log.push(Wait { worker, began, ended: Instant::now(), on: None, id: 0, result });
            continue;
        };
        let id = again.take().unwrap_or_else(|| next.fetch_add(1, Ordering::Relaxed));
        let done = s.simple_query(&format!("INSERT INTO w VALUES ({id})")).await;
        let result = done.map(|_| ()).map_err(|e| s.why().diagnose(e));
        if result.as_ref().is_err_and(|e| e.class() == Class::Transient) {
            again = Some(id);
        }
        log.push(Wait { worker, began, ended: Instant::now(), on: host_of(&s), id, result });
        session = Some(s);
        tokio::time::sleep(pace).await;
    }
    log
}

/// What all workers saw.
pub(crate) struct Log(pub(crate) Vec<Wait>);

impl Log {
    pub(crate) fn errors(&self) -> impl Iterator<Item = (&Wait, &Error)> {
        self.0.iter().filter_map(|w| w.result.as_ref().err().map(|e| (w, e)))
    }

    /// The longest wait for anything.
    pub(crate) fn longest(&self) -> Duration {
        self.0.iter().map(|w| w.ended - w.began).max().unwrap_or_default()
    }

    /// From then to the first write that this host acknowledged.
    pub(crate) fn first_write_on(&self, host: Ipv4Addr, since: Instant) -> Duration {
        let there = self.0.iter().filter(|w| w.on == Some(host) && w.result.is_ok());
        there.map(|w| w.ended - since).min().expect("a write on the new primary")
    }

    /// On that node: every acknowledged row is there, and none twice.
    pub(crate) async fn check_rows(&self, cluster: &Cluster, node: usize) {
        let session = cluster.node(node).session().await.expect("a session of the lab");
        let rows = session.query("SELECT id FROM w ORDER BY id", &[]).await.expect("the rows");
        let ids: Vec<i64> = rows.iter().map(|r| r.get(0)).collect();
        let twice: Vec<_> = ids.windows(2).filter(|w| w[0] == w[1]).map(|w| w[0]).collect();
        assert!(twice.is_empty(), "doubled: {twice:?}");
        let acknowledged = self.0.iter().filter(|w| w.on.is_some() && w.result.is_ok());
        let lost: Vec<_> = acknowledged.map(|w| w.id).filter(|id| ids.binary_search(id).is_err()).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
    }

    /// One line of what happened.
    pub(crate) fn summary(&self) -> String {
        let of = |class| self.errors().filter(|(_, e)| e.class() == class).count();
        format!(
            "{} waits, longest {:?}; {} transient, {} unknown, {} permanent",
            self.0.len(),
            self.longest(),
            of(Class::Transient),
            of(Class::UnknownOutcome),
            of(Class::Permanent)
        )
    }
}
