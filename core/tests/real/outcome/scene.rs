//! A cluster with a relay before its first node, and a connector that knows that node by the relay alone.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pgfollow::outcome::{Token, install};
use pgfollow::retry::RunOptions;
use pgfollow::{Connector, Error};
use pgfollow_lab::{Cluster, ClusterOptions, servers};

use super::PATIENCE;
use super::relay::Relay;

pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    pub(crate) relay: Relay,
    pub(crate) connector: Connector,
}

impl Scene {
    /// `None` without server binaries. With the token table or without; the table `w` of the work is there.
    pub(crate) async fn start(nodes: usize, sync: bool, token_table: bool) -> Option<Self> {
        let mut options = ClusterOptions::new(servers()?);
        (options.nodes, options.sync) = (nodes, sync);
        let cluster = Cluster::start(options).await.expect("a cluster");
        let at = |n: usize| SocketAddr::from((cluster.node(n).host(), cluster.node(n).port()));
        let relay = Relay::start(at(0)).await.expect("a relay");
        let others = (1..nodes).map(|n| format!(",{}", at(n)));
        let hosts = format!("{}{}", relay.address, others.collect::<String>());
        let uri = format!("{}?target_session_attrs=read-write&sslmode=disable", cluster.conninfo_to(&hosts));
        let connector = Connector::new(&uri).expect("a connector");
        if token_table {
            install(&connector, &[], PATIENCE).await.expect("the table is made");
        }
        let session = connector.connect_within(PATIENCE).await.expect("a session");
        session.batch_execute("CREATE TABLE w (id bigint)").await.expect("a table");
        // The monitor looks around before anything breaks.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Some(Self { cluster, relay, connector })
    }

    /// Writes one row, once.
    pub(crate) async fn write_once(&self, id: i64, options: &RunOptions) -> Result<(), Error> {
        self.connector.run_once(options, async |tx| insert(tx, id).await).await
    }

    /// How often the row is there.
    pub(crate) async fn rows(&self, node: usize, id: i64) -> i64 {
        let session = self.cluster.node(node).session().await.expect("a session of the lab");
        session.query_one("SELECT count(*) FROM w WHERE id = $1", &[&id]).await.expect("a count").get(0)
    }

    /// What a node says of a transaction's number, when so many other transactions have committed there.
    pub(crate) async fn number_status(&self, node: usize, xid: i64, others: usize) -> Option<String> {
        let session = self.cluster.node(node).session().await.expect("a session of the lab");
        for _ in 0..others {
            session.batch_execute("INSERT INTO w VALUES (-1)").await.expect("a stranger commits");
        }
        session.query_one("SELECT txid_status($1)", &[&xid]).await.expect("a status").get(0)
    }
}

pub(crate) async fn insert(tx: &mut pgfollow::Transaction<'_>, id: i64) -> Result<(), Error> {
    tx.execute("INSERT INTO w VALUES ($1)", &[&id]).await?;
    Ok(())
}

/// Short enough for a test, with three seconds for the check.
pub(crate) fn brief() -> RunOptions {
    RunOptions::new().deadline(Duration::from_secs(12))
}

/// A token of this cluster that nobody's transaction carries, and its row's key.
pub(crate) async fn foreign_token(scene: &Scene) -> (Token, &'static str) {
    let session = scene.connector.connect_within(PATIENCE).await.expect("a session");
    let system = session.term().and_then(|t| t.system_identifier).expect("a system identifier");
    let sql = "SELECT oid FROM pg_database WHERE datname = current_database()";
    let database: u32 = session.query_one(sql, &[]).await.expect("a database").get(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
    let sql = "SELECT oid, relfilenode FROM pg_class WHERE relname = 'outcome' AND relkind = 'r'";
    // Where there is no table, none that there could be.
    let table = session.query_opt(sql, &[]).await.expect("the catalogue");
    let (oid, file): (u32, u32) = table.map_or((1, 1), |t| (t.get(0), t.get(1)));
    let token = format!("1.0123456789abcdef0123456789abcdef.{system}.{database}.{now}.-.-.-.{oid}.{file}");
    (token.parse().expect("a token"), "01234567-89ab-4def-8123-456789abcdef")
}

/// The transaction number in a token that was made without the table.
pub(crate) fn number_in(token: &Token) -> i64 {
    field(token, 8).parse().expect("a number")
}

/// The process id of the backend that ran the transaction.
pub(crate) fn backend_in(token: &Token) -> i32 {
    field(token, 6).parse().expect("a process id")
}

fn field(token: &Token, n: usize) -> String {
    let text = token.to_string();
    text.split('.').nth(n).unwrap_or_else(|| panic!("{text} has no field {n}")).to_owned()
}
