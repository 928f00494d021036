//! A small cluster, a connector that has looked around, and calls in flight.

use std::time::{Duration, Instant};

use pgfollow::decide::topology::{ProbeState, TopologyEvent};
use pgfollow::{Connector, Error, EventKind, Session};
use pgfollow_lab::{Cluster, ClusterOptions, servers, wait_for_async};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Bench {
    pub(crate) cluster: Cluster,
    pub(crate) connector: Connector,
}

impl Bench {
    /// A primary and a standby that nobody waits for; `None` (said aloud) without servers on this machine.
    pub(crate) async fn start() -> Option<Self> {
        let cluster = cluster().await?;
        let uri = cluster.conninfo();
        Some(Self::over(cluster, &uri, "").await)
    }

    /// By a connection string of one's own and further parameters.
    pub(crate) async fn over(cluster: Cluster, uri: &str, more: &str) -> Self {
        let connector = Connector::new(&format!("{uri}?target_session_attrs=read-write{more}"));
        let bench = Self { cluster, connector: connector.expect("a connector") };
        let session = bench.session().await;
        session.batch_execute("CREATE TABLE t (n bigint)").await.expect("a table");
        bench.watched().await;
        bench
    }

    pub(crate) async fn session(&self) -> Session {
        self.connector.connect_within(PATIENCE).await.expect("a session")
    }

    /// Waits until the monitor has its session to every host: from then on silence could count.
    async fn watched(&self) {
        let open = |p: ProbeState| matches!(p, ProbeState::Open | ProbeState::Asked);
        let nodes = self.cluster.nodes().len();
        wait_for_async("a monitor session to every host", PATIENCE, || {
            let s = self.connector.topology();
            let all = s.hosts.len() == nodes && s.hosts.iter().all(|h| open(h.probe));
            let seen = if all && s.cluster.incumbent.is_some() { Ok(()) } else { Err(format!("{s:?}")) };
            std::future::ready(seen)
        })
        .await
        .expect("watched");
    }

    /// Puts two calls in flight that take so long; returns when the server is at work on both.
    pub(crate) async fn calls(&self, takes: Duration) -> Calls {
        let (writer, reader) = (self.session().await, self.session().await);
        let seconds = takes.as_secs_f64();
        let began = Instant::now();
        let write = tokio::spawn(async move {
            let sql = "INSERT INTO t SELECT 1 FROM pg_sleep($1)";
            let done = writer.execute(sql, &[&seconds]).await.map_err(|e| writer.why().diagnose(e));
            (writer, done)
        });
        // Silence may end a harmless call long before one that may write.
        let read = tokio::spawn(async move {
            reader.declare_read_only(true);
            let done = reader.query_one("SELECT 42 FROM pg_sleep($1)", &[&seconds]).await;
            let done = done.map(|row| row.get(0)).map_err(|e| reader.why().diagnose(e));
            (reader, done)
        });
        let watcher = &self.cluster.node(0).session().await.expect("a session of the lab");
        wait_for_async("both calls to be at work", PATIENCE, || async move {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
            let row = watcher.query_one(sql, &[]).await.map_err(|e| e.to_string())?;
            if row.get::<_, i64>(0) == 2 { Ok(()) } else { Err(String::new()) }
        })
        .await
        .expect("both calls at work");
        Calls { write, read, began, takes }
    }

    /// One connect, which must fail within a few seconds.
    pub(crate) async fn refused(&self) -> Error {
        let error = self.connector.connect().await.err();
        error.expect("the disturbance didn't keep a new session out, so this test proves nothing")
    }
}

/// Starts a primary and a standby; `None` (said aloud) without servers on this machine.
pub(crate) async fn cluster() -> Option<Cluster> {
    let mut options = ClusterOptions::new(servers()?);
    options.nodes = 2;
    options.sync = false;
    Some(Cluster::start(options).await.expect("a cluster"))
}

/// Two calls in flight: one that may write, one declared to read only.
pub(crate) struct Calls {
    write: JoinHandle<(Session, Result<u64, Error>)>,
    read: JoinHandle<(Session, Result<i32, Error>)>,
    began: Instant,
    takes: Duration,
}

impl Calls {
    /// Waits for both: they must succeed with the right result, and not sooner than they can have. Returns the sessions.
    pub(crate) async fn succeed(self) -> [Session; 2] {
        let (writer, wrote) = self.write.await.expect("the writer's task");
        let (reader, read) = self.read.await.expect("the reader's task");
        assert_eq!(wrote.expect("the INSERT in flight"), 1);
        assert_eq!(read.expect("the SELECT in flight"), 42);
        assert!(self.began.elapsed() >= self.takes);
        reader.declare_read_only(false);
        [writer, reader]
    }
}

/// A session goes on working.
pub(crate) async fn works(session: &Session) {
    assert!(session.is_usable(), "{:?}", session.ended());
    let done = session.execute("INSERT INTO t VALUES (2)", &[]).await;
    assert_eq!(done.map_err(|e| session.why().diagnose(e)).expect("a later call"), 1);
}

/// The clears so far; panics at an event that was missed.
pub(crate) fn clears(events: &mut broadcast::Receiver<pgfollow::Event>) -> Vec<TopologyEvent> {
    let mut found = Vec::new();
    loop {
        match events.try_recv() {
            Ok(e) => {
                if let EventKind::Topology(e @ TopologyEvent::Cleared { .. }) = e.kind {
                    found.push(e);
                }
            }
            Err(broadcast::error::TryRecvError::Empty) => return found,
            Err(e) => panic!("{e}"),
        }
    }
}
