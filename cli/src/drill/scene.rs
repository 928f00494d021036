//! One drill from start to end: cluster, clients, fault, watching, and the count of what the table holds. The parts that
//! need no cluster of our own serve [`super::yours`] too.

use std::collections::HashMap;
use std::time::Duration;

use pgfollow_lab::{Cluster, ClusterOptions, LabError, wait_for, wait_for_async};
use tokio_postgres::Client as Sql;

use super::client::Kind;
use super::fault::{self, Fault, Promotion};
use super::logins::{self, Peak};
use super::process::Client;
use super::progress::Progress;
use super::record::{Call, Explained, TABLE, identity};

/// The longest that the clients may take until every worker has written.
const STEADY: Duration = Duration::from_secs(40);
/// More for each process of a kind.
const MORE: Duration = Duration::from_secs(1);
/// How long to watch for our own client, at most.
const OURS: Duration = Duration::from_secs(40);
/// The longest that a server may take for one session more, when its clients are gone.
const SESSION: Duration = Duration::from_secs(30);
/// How long everything goes on after all are back.
const TAIL: Duration = Duration::from_secs(1);

/// What to do.
pub(crate) struct Plan {
    pub(crate) fault: Fault,
    pub(crate) after: Duration,
    pub(crate) workers: u16,
    pub(crate) rate: u16,
    pub(crate) plain: bool,
    pub(crate) plain_wait: Duration,
    /// Processes of each kind.
    pub(crate) instances: u16,
    /// For what percentage of the time the new primary may run.
    pub(crate) slow_node: Option<u8>,
    /// Whether pgfollow's client keeps its pace.
    pub(crate) pace: bool,
}

impl Plan {
    /// Workers of all processes of a kind.
    pub(crate) fn all_workers(&self) -> usize {
        usize::from(self.instances) * usize::from(self.workers)
    }
}

/// What was seen.
pub(crate) struct Seen {
    pub(crate) fault: Fault,
    pub(crate) server_version: String,
    pub(crate) sync: bool,
    /// What each node calls itself ([`identity`]).
    pub(crate) nodes: Vec<String>,
    pub(crate) promotions: Vec<Promotion>,
    pub(crate) clients: Vec<ClientSeen>,
    /// What a reader of the figures must know.
    pub(crate) notes: Vec<String>,
}

/// What was seen of one client: of all its processes together.
pub(crate) struct ClientSeen {
    pub(crate) kind: Kind,
    /// Workers are numbered on through all processes.
    pub(crate) calls: Vec<Call>,
    /// The outages as each process explains them, in the processes' order; `None` for one that told nothing, as the
    /// plain pool's.
    pub(crate) explained: Vec<Option<Vec<Explained>>>,
    /// How often each write (worker, number) is in the table of the final primary.
    pub(crate) present: HashMap<(i32, i64), i64>,
    /// What they asked of the new primary from its promotion on.
    pub(crate) peak: Option<Peak>,
}

/// Runs it. Everything is gone again when this returns or is dropped.
pub(crate) async fn play(
    options: ClusterOptions,
    plan: &Plan,
    progress: &Progress,
) -> Result<Seen, LabError> {
    progress.stage("starting the servers");
    let cluster = Cluster::start(options).await?;
    let mut nodes = Vec::new();
    for node in cluster.nodes() {
        nodes.push(ask_identity(&node.session().await?).await?);
    }
    create_table(&cluster.node(0).session().await?, Some(cluster.user())).await?;
    // Default settings: nothing of the caller's surroundings takes part.
    let clients = start_clients(&cluster.conninfo(), plan, false, progress).await?;

    progress.stage(plan.fault.told());
    let injected = fault::inject(plan.fault, &cluster, plan.slow_node, &mut nodes);
    let (promotions, slowed) = progress.count_while(&clients, injected).await?;
    let last = promotions.last().cloned().ok_or_else(|| LabError::State("nothing was promoted".into()))?;

    // From here until it is slow no more, nothing is asked of a slow node but by the clients.
    progress.stage("watching the clients come back");
    progress.count_while(&clients, watch(&clients, plan, &nodes[last.node], &last)).await;
    drop(slowed);

    progress.stage("counting the writes");
    let node = cluster.node(last.node);
    let mut seen = end(clients).await?;
    let session = wait_for_async("a session to count the writes by", SESSION, || async {
        node.session().await.map_err(|e| e.to_string())
    });
    count_writes(&mut seen, &session.await?).await?;
    let logins = logins::read(&node.log());
    for c in &mut seen {
        c.peak = Some(logins::peak(&logins, c.kind, last.asked, last.ready));
    }
    Ok(Seen {
        fault: plan.fault,
        server_version: cluster.server_version().to_owned(),
        sync: cluster.is_sync(),
        nodes,
        promotions,
        clients: seen,
        notes: Vec::new(),
    })
}

/// Starts the clients and lets them write for a while, every worker at least once.
pub(crate) async fn start_clients(
    conninfo: &str,
    plan: &Plan,
    surroundings: bool,
    progress: &Progress,
) -> Result<Vec<Client>, LabError> {
    let kinds = if plan.plain { vec![Kind::Pgfollow, Kind::Plain] } else { vec![Kind::Pgfollow] };
    let each = kinds.into_iter().flat_map(|kind| (0..plan.instances).map(move |n| (kind, n)));
    let start = |(kind, instance)| Client::start(kind, instance, conninfo, plan, surroundings);
    let mut clients = each.map(start).collect::<Result<Vec<_>, _>>()?;
    progress.stage("waiting for every worker's first write");
    let mut early_end = Ok(());
    wait_for("every worker's first write", STEADY + MORE * u32::from(plan.instances), || {
        early_end = clients.iter_mut().try_for_each(Client::check);
        early_end.is_err() || clients.iter().all(|c| c.all_wrote(None))
    })
    .await?;
    early_end?;
    progress.stage(format!("the workload runs; after {:?} of it: {}", plan.after, plan.fault.told()));
    progress.count_while(&clients, tokio::time::sleep(plan.after)).await;
    Ok(clients)
}

/// Ends the clients: what they told.
pub(crate) async fn end(mut clients: Vec<Client>) -> Result<Vec<ClientSeen>, LabError> {
    let mut seen: Vec<ClientSeen> = Vec::new();
    clients.iter_mut().for_each(Client::ask_to_end);
    for client in clients {
        let kind = client.kind;
        let (calls, explained) = client.finish().await?;
        match seen.iter_mut().find(|c| c.kind == kind) {
            Some(all) => {
                all.calls.extend(calls);
                all.explained.push(explained);
            }
            None => seen.push(ClientSeen {
                kind,
                calls,
                explained: vec![explained],
                present: HashMap::new(),
                peak: None,
            }),
        }
    }
    Ok(seen)
}

/// Counts what the final primary holds of their writes.
pub(crate) async fn count_writes(clients: &mut [ClientSeen], session: &Sql) -> Result<(), LabError> {
    for client in clients {
        client.present = count(session, client.kind).await?;
    }
    Ok(())
}

/// What the server behind a session calls itself.
pub(crate) async fn ask_identity(session: &Sql) -> Result<String, LabError> {
    let row = session.query_one(concat!("select ", identity!()), &[]).await;
    row.map(|r| r.get(0)).map_err(sql_failed("asking a server for its name"))
}

pub(crate) fn sql_failed(what: &'static str) -> impl FnOnce(tokio_postgres::Error) -> LabError {
    move |source| LabError::Postgres { what: what.to_owned(), source }
}

/// Creates the table; `writer` may write to it besides the session's own user.
pub(crate) async fn create_table(session: &Sql, writer: Option<&str>) -> Result<(), LabError> {
    let grant = writer.map_or(String::new(), |user| format!("; grant insert on {TABLE} to {user}"));
    let sql = format!(
        "create table {TABLE} (client text not null, worker int not null, seq bigint not null, \
         at timestamptz not null default clock_timestamp()){grant}"
    );
    session.batch_execute(&sql).await.map_err(sql_failed("creating the drill's table"))
}

/// Waits until the clients are back, each within its bound, and a little longer.
pub(crate) async fn watch(clients: &[Client], plan: &Plan, node: &str, last: &Promotion) {
    let back = |kind: Kind| clients.iter().filter(|c| c.kind == kind).all(|c| c.all_wrote(Some(node)));
    // Not back within the bound is a finding, not a failure: the report says it.
    let _ = wait_for("our client", OURS, || back(Kind::Pgfollow)).await;
    let _ = wait_for("the plain client", plan.plain_wait, || back(Kind::Plain)).await;
    tokio::time::sleep(TAIL).await;
    fault::sleep_until(last.ready, plan.fault.watch()).await;
}

/// What a server holds of a client's writes.
async fn count(session: &Sql, kind: Kind) -> Result<HashMap<(i32, i64), i64>, LabError> {
    let sql = format!("select worker, seq, count(*) from {TABLE} where client = $1 group by worker, seq");
    let rows = session.query(&sql, &[&kind.name()]).await.map_err(sql_failed("counting the writes"))?;
    Ok(rows.iter().map(|r| ((r.get(0), r.get(1)), r.get(2))).collect())
}
