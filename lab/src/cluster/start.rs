//! Starting a cluster fast: one fresh data directory, copies of it, all servers at once.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::conf::{Changing, Fixed};
use super::home::Home;
use super::network::link_address;
use super::{APP_DATABASE, APP_USER, Cluster, ClusterOptions, Node, PROBE_TABLE, Secrets, template};
use crate::process::RunAs;
use crate::wait::wait_for_async;
use crate::{LabError, sys};

const DEFAULT_HBA: &str =
    "host all all 127.0.0.0/8 scram-sha-256\nhost replication all 127.0.0.0/8 scram-sha-256\n";

pub(super) async fn start(options: ClusterOptions) -> Result<Cluster, LabError> {
    if !(1..=9).contains(&options.nodes) {
        return Err(LabError::State(format!("a cluster has 1 to 9 nodes, not {}", options.nodes)));
    }
    if options.tls.is_some() && !options.binaries.has_tls() {
        let dir = options.binaries.dir().display();
        return Err(LabError::State(format!(
            "TLS is wanted, but the servers in {dir} were built without it"
        )));
    }
    let addresses = addresses(&options)?;
    let port = match options.port {
        Some(p) => p,
        None => free_port(&addresses, options.nodes)?,
    };
    let secrets = Secrets { superuser: template::superuser_password()?, app: random_hex()? };
    let home = Home::create(RunAs::choose()?)?;
    let nodes: Vec<Arc<Node>> = (1..)
        .zip(&addresses)
        .map(|(i, address)| {
            let fixed = Fixed {
                name: format!("n{i}"),
                number: i,
                listen: listen_addresses(i, *address, options.nodes),
                port,
                tls: options.tls.is_some(),
                client_ca: options.tls.as_ref().is_some_and(|t| t.client_ca.is_some()),
                settings: options.settings.clone(),
            };
            Arc::new(Node::new(fixed, *address, &home, options.binaries.clone(), secrets.clone()))
        })
        .collect();
    let cluster = Cluster {
        home,
        nodes,
        sync: options.sync,
        primary: AtomicUsize::new(0),
        binaries: options.binaries.clone(),
        secrets,
        after_promotion: Mutex::default(),
        rejoin: Arc::default(),
        cut: Mutex::new(BTreeSet::new()),
    };
    cluster.make_data(&options).await?;
    cluster.start_all().await?;
    Ok(cluster)
}

impl Cluster {
    /// A fresh directory for the first node, copies for the others.
    async fn make_data(&self, options: &ClusterOptions) -> Result<(), LabError> {
        let run_as = self.home.run_as();
        let first = &self.nodes[0].data;
        template::make_data(&self.binaries, &self.home, first).await?;
        let write = |name: &str, text: &str| Home::write(run_as, &first.join(name), text, 0o600);
        write("postgresql.conf", "include 'lab.conf'\n")?;
        write("pg_hba.conf", options.hba.as_deref().unwrap_or(DEFAULT_HBA))?;
        if let Some(tls) = &options.tls {
            write("server.crt", &tls.certificate)?;
            write("server.key", &tls.key)?;
            if let Some(ca) = &tls.client_ca {
                write("root.crt", ca)?;
            }
        }
        let copies = self.nodes[1..].iter().map(|node| template::copy(run_as, first, &node.data));
        futures_util::future::try_join_all(copies).await.map(|_| ())
    }

    async fn start_all(&self) -> Result<(), LabError> {
        let primary = &self.nodes[0];
        for (i, node) in self.nodes.iter().enumerate() {
            let follow = (i > 0).then(|| node.follow_string(primary));
            let sync_names = if i == 0 { self.sync_names(0) } else { String::new() };
            node.mark_standby(i > 0)?;
            node.configure(|c| *c = Changing { follow, sync_names, read_only: false })?;
            node.launch()?;
        }
        primary.wait_ready().await?;
        let others = async {
            for node in &self.nodes[1..] {
                node.wait_ready().await?;
            }
            Ok(())
        };
        tokio::try_join!(self.set_up(), others)?;
        self.wait_caught_up(0).await
    }

    /// The service's user and database, and the prober's table.
    async fn set_up(&self) -> Result<(), LabError> {
        let primary = &self.nodes[0];
        let options = "-c synchronous_commit=local";
        let fail = || LabError::pg("setting the cluster up");
        let s = primary.session_in("template1", options).await?;
        // initdb's empty database renamed: copying a template takes longer than all the rest of the set-up.
        // The password is hex digits: nothing to quote.
        let password = &self.secrets.app;
        let sql = format!(
            "create role {APP_USER} login password '{password}'; \
             alter database postgres rename to {APP_DATABASE}; \
             alter database {APP_DATABASE} owner to {APP_USER}"
        );
        s.batch_execute(&sql).await.map_err(fail())?;
        let s = primary.session_with(options).await?;
        let table = format!("create table {PROBE_TABLE} (at timestamptz not null default clock_timestamp())");
        s.batch_execute(&table).await.map_err(fail())
    }

    /// Waits until all standbys stream from that node and have replayed what it has written so far; in a
    /// synchronous cluster also until one of them counts as synchronous.
    pub(super) async fn wait_caught_up(&self, primary: usize) -> Result<(), LabError> {
        let want = i64::try_from(self.nodes.len() - 1).unwrap_or(i64::MAX);
        let session = &self.nodes[primary].session().await?;
        let row = session
            .query_one("select pg_current_wal_lsn()::text", &[])
            .await
            .map_err(LabError::pg("asking for the log's end"))?;
        let target = &row.get::<_, String>(0);
        let sql = "select count(*) filter (where state = 'streaming' and replay_lsn >= $1::text::pg_lsn), \
                   count(*) filter (where sync_state = 'sync') from pg_stat_replication";
        wait_for_async("the standbys to stream", Duration::from_secs(20), || async move {
            let row = session.query_one(sql, &[target]).await.map_err(|e| e.to_string())?;
            let (ready, in_sync): (i64, i64) = (row.get(0), row.get(1));
            if ready == want && (in_sync > 0 || !self.sync || want == 0) {
                return Ok(());
            }
            Err(format!("{ready} of {want} ready, {in_sync} synchronous"))
        })
        .await
    }
}

fn addresses(options: &ClusterOptions) -> Result<Vec<Ipv4Addr>, LabError> {
    let first = u32::from(options.first_address);
    let all: Vec<Ipv4Addr> = (first..).take(options.nodes).map(Ipv4Addr::from).collect();
    if all.len() == options.nodes && all.iter().all(Ipv4Addr::is_loopback) {
        return Ok(all);
    }
    Err(LabError::State(format!("{} nodes from {} leave 127.0.0.0/8", options.nodes, options.first_address)))
}

/// A node's own address, and one for each node that may follow it.
fn listen_addresses(node: usize, own: Ipv4Addr, nodes: usize) -> Vec<Ipv4Addr> {
    let links = (1..=nodes).filter(|f| *f != node).map(|f| link_address(node, f));
    std::iter::once(own).chain(links).collect()
}

/// A port that is free on all the addresses.
fn free_port(own: &[Ipv4Addr], nodes: usize) -> Result<u16, LabError> {
    let addresses: Vec<Ipv4Addr> = (1..).zip(own).flat_map(|(i, a)| listen_addresses(i, *a, nodes)).collect();
    let fail = || LabError::io("looking for a free port");
    for _ in 0..50 {
        // Held until all are bound: the kernel names one port, the other addresses must have it free too.
        let first = TcpListener::bind((addresses[0], 0)).map_err(fail())?;
        let port = first.local_addr().map_err(fail())?.port();
        let rest: Result<Vec<_>, _> = addresses[1..].iter().map(|a| TcpListener::bind((*a, port))).collect();
        if rest.is_ok() {
            return Ok(port);
        }
    }
    Err(LabError::State("no port is free on all the addresses".into()))
}

pub(super) fn random_hex() -> Result<String, LabError> {
    let bytes = sys::random_bytes().map_err(LabError::io("drawing a password"))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
