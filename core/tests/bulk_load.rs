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
use pgfollow::Connector;
use pgfollow::dial::TcpDial;
use pgfollow::host::Address;
use pgfollow::net::{BoxFuture, Dial, Socket, SocketControl, SocketOptions};
use pgfollow_lab::{Binaries, BinaryOptions, Cluster, ClusterOptions};

/// How long the lock is held: longer than any limit below.
const LOCKED: Duration = Duration::from_secs(15);

fn binaries() -> Option<Binaries> {
    match Binaries::find(&BinaryOptions::default(), &mut |line| eprintln!("{line}")) {
        Ok(b) => Some(b),
        Err(e) => {
            eprintln!("SKIPPED: {e}");
            None
        }
    }
}

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

impl Load {
    async fn run(self, cluster: &Cluster) {
        let Self { table, options, limit, rows, locked_row } = self;
        let blocker = cluster.node(0).session().await.unwrap();
        let create = format!(
            "CREATE TABLE {table} (id int PRIMARY KEY, filling text); GRANT ALL ON {table} TO PUBLIC"
        );
        blocker.batch_execute(&create).await.unwrap();
        let lock = format!("BEGIN; INSERT INTO {table} VALUES ({locked_row}, '')");
        blocker.batch_execute(&lock).await.unwrap();

        let sockets = Arc::new(Remembering::default());
        let conninfo = format!("{}?target_session_attrs=read-write{options}", cluster.conninfo());
        let dial: Arc<dyn Dial> = Arc::<Remembering>::clone(&sockets);
        let connector = Connector::builder(&conninfo).dial(dial).build().unwrap();
        let session = connector.connect_within(Duration::from_secs(20)).await.unwrap();
        let socket = sockets.control(session.socket().local);
        assert_eq!(socket.user_timeout().unwrap(), Some(limit), "{table}");

        let began = Instant::now();
        let unlock = async {
            tokio::time::sleep(LOCKED).await;
            let lifted = socket.user_timeout();
            blocker.batch_execute("ROLLBACK").await.unwrap();
            lifted
        };
        let load = async {
            let sink = session.copy_in(&format!("COPY {table} FROM STDIN")).await.unwrap();
            let mut sink = pin!(sink);
            for row in 0..rows {
                let line = format!("{row}\t{:01$}\n", 0, 1_000);
                sink.send(Bytes::from(line)).await?;
            }
            sink.finish().await
        };
        let (lifted, loaded) = tokio::join!(unlock, load);
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
    let Some(binaries) = binaries() else { return };
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
