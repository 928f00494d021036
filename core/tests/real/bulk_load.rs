#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test against real servers: real time, and words for people"
)]
//! A bulk load whose receiver waits for a lock: the server's process reads nothing, its kernel answers all the while.
//! TCP_USER_TIMEOUT alone would end it.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt;
use pgfollow::dial::TcpDial;
use pgfollow::host::Address;
use pgfollow::net::{BoxFuture, Dial, Socket, SocketControl, SocketOptions};
use pgfollow::{Connector, Session};
use pgfollow_lab::{Cluster, ClusterOptions, netns, servers};

/// How long the lock is held: longer than any limit below.
const LOCKED: Duration = Duration::from_secs(15);

/// Dials as ever, and remembers how to ask each socket for its options.
#[derive(Default)]
struct Remembering(Mutex<Vec<(SocketAddr, Arc<dyn SocketControl>)>>);

impl Dial for Remembering {
    fn dial<'a>(&'a self, to: &'a Address, options: &'a SocketOptions) -> BoxFuture<'a, io::Result<Socket>> {
        Box::pin(async move {
            let socket = TcpDial.dial(to, options).await?;
            if let (Some(local), Some(control)) = (socket.report.local, &socket.control) {
                self.0.lock().unwrap().push((local, Arc::clone(control)));
            }
            Ok(socket)
        })
    }
}

impl Remembering {
    fn control(&self, local: Option<SocketAddr>) -> Arc<dyn SocketControl> {
        let all = self.0.lock().unwrap();
        let found = all.iter().find(|(l, _)| Some(*l) == local);
        Arc::clone(&found.expect("the session's socket was dialled here").1)
    }
}

struct Load {
    table: &'static str,
    options: &'static str,
    limit: Duration,
    /// Of a kilobyte each.
    rows: usize,
    /// The row whose key another transaction holds.
    locked_row: usize,
}

/// Every row a kilobyte; the server's answer, or why there is none.
async fn copy(session: &Session, table: &str, rows: usize) -> Result<u64, tokio_postgres::Error> {
    let mut sink = pin!(session.copy_in(&format!("COPY {table} FROM STDIN")).await?);
    for row in 0..rows {
        let line = format!("{row}\t{:01$}\n", 0, 1_000);
        sink.send(Bytes::from(line)).await?;
    }
    sink.finish().await
}

/// Makes a table, and holds the key of one row to be.
async fn hold_row(cluster: &Cluster, table: &str, row: usize) -> tokio_postgres::Client {
    let blocker = cluster.node(0).session().await.unwrap();
    let create =
        format!("CREATE TABLE {table} (id int PRIMARY KEY, filling text); GRANT ALL ON {table} TO PUBLIC");
    blocker.batch_execute(&create).await.unwrap();
    blocker.batch_execute(&format!("BEGIN; INSERT INTO {table} VALUES ({row}, '')")).await.unwrap();
    blocker
}

/// A session, and a hold on its socket.
async fn connect(cluster: &Cluster, options: &str) -> (Connector, Session, Arc<dyn SocketControl>) {
    let sockets = Arc::new(Remembering::default());
    let conninfo = format!("{}?target_session_attrs=read-write{options}", cluster.conninfo());
    let dial: Arc<dyn Dial> = Arc::<Remembering>::clone(&sockets);
    let connector = Connector::builder(&conninfo).dial(dial).build().unwrap();
    let session = connector.connect_within(Duration::from_secs(20)).await.unwrap();
    let socket = sockets.control(session.socket().local);
    (connector, session, socket)
}

impl Load {
    async fn run(self, cluster: &Cluster) {
        let Self { table, options, limit, rows, locked_row } = self;
        let blocker = hold_row(cluster, table, locked_row).await;
        let (_connector, session, socket) = connect(cluster, options).await;
        assert_eq!(socket.user_timeout().unwrap(), Some(limit), "{table}");

        let began = Instant::now();
        let unlock = async {
            tokio::time::sleep(LOCKED).await;
            let lifted = socket.user_timeout();
            blocker.batch_execute("ROLLBACK").await.unwrap();
            lifted
        };
        let (lifted, loaded) = tokio::join!(unlock, copy(&session, table, rows));
        let loaded = loaded.unwrap_or_else(|e| panic!("{table}: {e}; {:?}", session.ended()));
        assert_eq!(loaded, u64::try_from(rows).unwrap(), "{table}");
        assert!(began.elapsed() >= LOCKED, "{table}: the lock held nobody up");
        assert_eq!(lifted.unwrap(), None, "{table}: the limit stood while a live server read nothing");
        for _ in 0..100 {
            if socket.user_timeout().unwrap() == Some(limit) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(socket.user_timeout().unwrap(), Some(limit), "{table}: it is back afterwards");
        // The session is as good as before.
        let n: i64 = session.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0);
        assert_eq!(n, i64::try_from(rows).unwrap(), "{table}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_load_behind_a_lock_outlives_tcp_user_timeout_and_gets_it_back() {
    let Some(binaries) = servers() else { return };
    let mut options = ClusterOptions::new(binaries);
    options.nodes = 1;
    let cluster = Cluster::start(options).await.unwrap();
    let default = Duration::from_secs(9);
    let short = Duration::from_secs(3);
    tokio::join!(
        Load { table: "by_default", options: "", limit: default, rows: 16_000, locked_row: 500 }
            .run(&cluster),
        Load {
            table: "short_limit",
            options: "&tcp_user_timeout=3000",
            limit: short,
            rows: 16_000,
            locked_row: 500
        }
        .run(&cluster),
        // The kernel takes all of it, so that no write of ours ever waits; yet the server's window is shut.
        Load {
            table: "fits_the_buffer",
            options: "&tcp_user_timeout=3000",
            limit: short,
            rows: 700,
            locked_row: 0
        }
        .run(&cluster),
    );
}

/// The limit rests when the path goes: neither the kernel nor a cached "it lives" may keep the caller then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_load_whose_host_vanishes_while_it_waits_for_a_lock_ends() {
    // Found outside: inside there is no network to fetch them from.
    let Some(binaries) = servers() else { return };
    if !netns::alone(a_bulk_load_whose_host_vanishes_while_it_waits_for_a_lock_ends).await {
        return;
    }
    let mut options = ClusterOptions::new(binaries);
    options.nodes = 2;
    let cluster = Cluster::start(options).await.unwrap();
    let _blocker = hold_row(&cluster, "vanishes", 500).await;
    let (_connector, session, socket) = connect(&cluster, "&tcp_user_timeout=3000").await;
    let cut = async {
        while socket.user_timeout().unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.cut(0).unwrap();
        Instant::now()
    };
    let both = async { tokio::join!(cut, copy(&session, "vanishes", 16_000)) };
    let (cut_at, loaded) = tokio::time::timeout(Duration::from_secs(60), both).await.expect("it never ends");
    let took = cut_at.elapsed();
    loaded.expect_err("nobody was there");
    eprintln!("ended {took:?} after the cut: {:?}", session.ended());
}

/// The server answers a COPY once, though tokio-postgres sends two Syncs for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_has_copied_and_idles_makes_nobody_suspect_its_host() {
    let Some(binaries) = servers() else { return };
    let mut options = ClusterOptions::new(binaries);
    options.nodes = 1;
    let cluster = Cluster::start(options).await.expect("a cluster");
    let connector = Connector::new(&cluster.conninfo()).expect("a connector");
    let session = connector.connect_within(Duration::from_secs(20)).await.expect("a session");
    session.batch_execute("CREATE TABLE copied (id int, filler text)").await.expect("a table");
    assert_eq!(copy(&session, "copied", 10).await.expect("a COPY"), 10);
    // One that is given up, and one that the server refuses.
    drop(session.copy_in::<_, Bytes>("COPY copied FROM STDIN").await.expect("another COPY"));
    assert!(copy(&session, "copied (id)", 10).await.is_err());
    session.batch_execute("SELECT 1").await.expect("it works on");
    let mut events = connector.events();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut told = Vec::new();
    while let Ok(e) = events.try_recv() {
        told.push(format!("{:?}", e.kind));
    }
    assert!(!told.iter().any(|t| t.contains("CallBlocked") || t.contains("SearchStarted")), "{told:?}");
}
