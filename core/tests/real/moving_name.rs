//! One name that moves is all there is: the dns cases that speak of a service, by the whole connector, against real
//! clusters and a name server of our own. What a case calls a pool is five workers with a session each.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests against real servers: real time, and words for people"
)]

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pgfollow::dial::TcpDial;
use pgfollow::net::{BoxFuture, Dial, Socket, SocketOptions};
use pgfollow::{Address, Connector};
use pgfollow_lab::dns::{DnsServer, ZoneScript};
use pgfollow_lab::wire::BlackHole;
use pgfollow_lab::{Cluster, ClusterOptions, StopMode, servers, skipped};
use serde_json::Value;
use tokio::task::JoinSet;

/// How many sessions a case's pool has.
const WORKERS: usize = 5;
/// Between two writes of a worker.
const PACE: Duration = Duration::from_millis(100);
/// The workers write for so long before anything happens: what a case says of ten seconds needs no ten seconds, for
/// nothing here has a cache that could age.
const BEFORE: Duration = Duration::from_millis(1_500);
/// On top of a case's bound, for a machine that is busy.
const SLACK: Duration = Duration::from_secs(2);

fn case(id: &str) -> Value {
    let all = crate::support::vectors("dns/hand.jsonl");
    all.into_iter().find(|c| c["id"] == id).unwrap_or_else(|| panic!("no case {id}"))
}

fn seconds(v: &Value) -> Duration {
    Duration::from_secs_f64(v.as_f64().unwrap_or_else(|| panic!("no seconds: {v}")))
}

/// Sockets as ever, and a list of where to.
#[derive(Default)]
struct Dials(Mutex<Vec<(Instant, Address)>>);

impl Dials {
    fn since(&self, from: Instant, to: IpAddr) -> usize {
        let all = self.0.lock().expect("a list");
        all.iter().filter(|(at, a)| *at >= from && matches!(a, Address::Tcp(a) if a.ip() == to)).count()
    }
}

impl Dial for Dials {
    fn dial<'a>(
        &'a self,
        to: &'a Address,
        options: &'a SocketOptions,
    ) -> BoxFuture<'a, std::io::Result<Socket>> {
        self.0.lock().expect("a list").push((Instant::now(), to.clone()));
        TcpDial.dial(to, options)
    }
}

/// The case's cluster, its name server and its connector.
struct Scene {
    case: Value,
    cluster: Cluster,
    dns: DnsServer,
    script: ZoneScript,
    conninfo: String,
}

/// `None`: there is no server to be had, and the test counts as skipped.
async fn scene(id: &str, places: &[(&'static str, IpAddr)], nodes: usize) -> Option<Scene> {
    let mut options = ClusterOptions::new(servers()?);
    options.nodes = nodes;
    let cluster = Cluster::start(options).await.expect("a cluster");
    let admin = cluster.node(0).session().await.expect("the lab's session");
    admin.batch_execute("CREATE TABLE t (n int); GRANT ALL ON t TO app").await.expect("a table");
    let case = case(id);
    let dns = DnsServer::start((Ipv4Addr::LOCALHOST, 0).into()).await.expect("a name server");
    let places: HashMap<_, _> = places.iter().copied().collect();
    let script = ZoneScript::read(&case["input"]["zone"], &places).expect("a zone script");
    dns.apply(&script, Duration::ZERO);
    let conninfo = format!(
        "{} port={} user={} password={} dbname={} dns_servers={}",
        case["input"]["conninfo"].as_str().expect("a string"),
        cluster.node(0).port(),
        cluster.user(),
        cluster.password(),
        cluster.database(),
        dns.address(),
    );
    Some(Scene { case, cluster, dns, script, conninfo })
}

fn node_address(n: u8) -> IpAddr {
    // The lab's first node is 127.0.0.2.
    Ipv4Addr::new(127, 0, 0, n + 2).into()
}

/// One write of a worker.
struct Write {
    worker: usize,
    at: Instant,
    /// Where it was acknowledged, or the error.
    result: Result<IpAddr, pgfollow::Error>,
}

/// The workers of a case and what they wrote.
struct Service {
    writes: Arc<Mutex<Vec<Write>>>,
    dials: Arc<Dials>,
    _workers: JoinSet<()>,
}

impl Service {
    async fn start(conninfo: &str, from: IpAddr) -> Self {
        let dials = Arc::new(Dials::default());
        let connector = Connector::builder(conninfo).dial(dials.clone()).build().expect("a connector");
        let writes = Arc::new(Mutex::new(Vec::new()));
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            workers.spawn(work(connector.clone(), worker, Arc::clone(&writes)));
        }
        let service = Self { writes, dials, _workers: workers };
        let all = |w: &[Write]| {
            (0..WORKERS).all(|n| w.iter().any(|w| w.worker == n && w.result.as_ref().ok() == Some(&from)))
        };
        service.until("every worker to write at the start", Duration::from_secs(20), all).await;
        service
    }

    async fn until(&self, what: &str, bound: Duration, done: impl Fn(&[Write]) -> bool) {
        let end = Instant::now() + bound;
        while !done(&self.writes.lock().expect("a list")) {
            assert!(Instant::now() < end, "waited {bound:?} for {what}\n{}", self.told());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// When the first write was acknowledged there, if one was.
    fn first_on(&self, there: IpAddr, after: Instant) -> Option<Instant> {
        let writes = self.writes.lock().expect("a list");
        writes.iter().find(|w| w.at >= after && w.result.as_ref().ok() == Some(&there)).map(|w| w.at)
    }

    fn told(&self) -> String {
        let writes = self.writes.lock().expect("a list");
        let errors =
            writes.iter().filter_map(|w| Some(format!("{}: {}", w.worker, w.result.as_ref().err()?)));
        errors.collect::<Vec<_>>().join("\n")
    }
}

async fn work(connector: Connector, worker: usize, writes: Arc<Mutex<Vec<Write>>>) {
    let note = |result| {
        let write = Write { worker, at: Instant::now(), result };
        writes.lock().expect("a list").push(write);
    };
    loop {
        let session = match connector.connect_within(Duration::from_secs(10)).await {
            Ok(s) => s,
            Err(e) => {
                note(Err(e));
                tokio::time::sleep(PACE).await;
                continue;
            }
        };
        let Address::Tcp(at) = session.address() else { unreachable!("only TCP here") };
        let at = at.ip();
        while session.is_usable() {
            let write = session.execute("INSERT INTO t VALUES (1)", &[]).await;
            note(write.map(|_| at).map_err(|e| session.why().diagnose(e)));
            tokio::time::sleep(PACE).await;
        }
    }
}

/// What a case lets happen to A1 when its name moves.
async fn befalls(cluster: &Cluster, state: &Value) {
    let node = cluster.node(0);
    match state.as_str().expect("a state") {
        // As seen from outside: connections are taken by the kernel at most, and nobody answers.
        "drops packets" => node.freeze().await.expect("frozen"),
        "connection refused" => node.kill().await.expect("killed"),
        "standby" => node.stop(StopMode::Fast).await.expect("stopped"),
        other => panic!("an unknown state: {other}"),
    }
    cluster.promote(1).await.expect("promoted");
}

/// The part that the cases share: write on A1, let A1 meet its fate and the name move, and wait for A2. Returns when
/// the name moved and when the first write was acknowledged on A2.
async fn moved(scene: &Scene, service: &Service) -> (Instant, Instant) {
    tokio::time::sleep(BEFORE).await;
    let (a1, a2) = (node_address(0), node_address(1));
    befalls(&scene.cluster, &scene.case["input"]["hosts_state"][0]["A1"]).await;
    let mut change = Instant::now();
    let moments = scene.script.moments();
    scene.dns.apply(&scene.script, moments[1]);
    let expect = &scene.case["expect"];
    let bound = match expect.get("within_s_of_last_change") {
        Some(bound) => {
            tokio::time::sleep(moments[2] - moments[1]).await;
            scene.dns.apply(&scene.script, moments[2]);
            change = Instant::now();
            seconds(bound)
        }
        None => expect.get("within_s_of_change").map_or(Duration::from_secs(8), seconds),
    };
    let there = |w: &[Write]| w.iter().any(|w| w.result.as_ref().ok() == Some(&a2));
    service.until("a write on A2", bound + SLACK, there).await;
    let first = service.first_on(a2, change).expect("a write on A2");
    eprintln!("{}: first write on A2 {:?} after the change", scene.case["id"], first - change);
    // From then on everybody writes there, and nowhere else.
    let all = |w: &[Write]| {
        (0..WORKERS).all(|n| w.iter().any(|w| w.worker == n && w.result.as_ref().ok() == Some(&a2)))
    };
    service.until("every worker to write on A2", bound + SLACK, all).await;
    assert_eq!(service.first_on(a1, first), None, "a write on A1 after one on A2");
    (change, first)
}

fn two_places() -> [(&'static str, IpAddr); 2] {
    [("A1", node_address(0)), ("A2", node_address(1))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_host_whose_name_moved_holds_nobody_and_is_dialled_no_more() {
    let Some(scene) = scene("dn-h01", &two_places(), 2).await else { return };
    assert_eq!(scene.case["expect"]["then_no_dials_to"], "A1");
    let service = Service::start(&scene.conninfo, node_address(0)).await;
    let (_, first) = moved(&scene, &service).await;
    // An address that its name doesn't give is kept for ten seconds after another one became primary.
    let kept = first + Duration::from_secs(10) + SLACK;
    tokio::time::sleep_until((kept + Duration::from_secs(3)).into()).await;
    assert_eq!(service.dials.since(kept, node_address(0)), 0, "A1 is still dialled");
    assert!(service.dials.since(first - Duration::from_secs(8), node_address(1)) > 0, "dials are counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_says_it_lives_for_a_day_is_asked_again_after_a_refused_dial() {
    let Some(scene) = scene("dn-h02", &two_places(), 2).await else { return };
    let service = Service::start(&scene.conninfo, node_address(0)).await;
    moved(&scene, &service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_flickers_leaves_nobody_on_the_old_primary_and_no_write_is_refused() {
    let Some(scene) = scene("dn-h03", &two_places(), 2).await else { return };
    let (a1, a2) = (node_address(0), node_address(1));
    let service = Service::start(&scene.conninfo, a1).await;
    let (change, _) = moved(&scene, &service).await;
    // The old primary comes back as a standby while the name leads to it again.
    scene.cluster.restart_as_standby(0, 1).await.expect("a standby");
    let moments = scene.script.moments();
    for moment in &moments[2..] {
        tokio::time::sleep_until((change + (*moment - moments[1])).into()).await;
        scene.dns.apply(&scene.script, *moment);
        eprintln!("flick at {:?}", change.elapsed());
    }
    let end = seconds(&scene.case["expect"]["after_s"]);
    tokio::time::sleep_until((change + (end - moments[1])).into()).await;
    let writes = service.writes.lock().expect("a list");
    for worker in 0..WORKERS {
        let last = writes.iter().rfind(|w| w.worker == worker).map(|w| w.result.as_ref().ok());
        assert_eq!(last, Some(Some(&a2)), "worker {worker} at the end");
    }
    let refused =
        |w: &&Write| w.result.as_ref().is_err_and(|e| e.sqlstate().is_some_and(|s| s.as_str() == "25006"));
    let refused: Vec<_> = writes.iter().filter(refused).map(|w| w.result.as_ref().err()).collect();
    assert_eq!(scene.case["expect"]["writes_refused_25006_reaching_caller"], 0);
    assert!(refused.is_empty(), "{refused:?}");
    // Each worker lost one call at most: the one that A1's end cut off.
    let lost = writes.iter().filter(|w| w.result.is_err()).count();
    assert!(lost <= WORKERS, "{lost} errors");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_briefly_gone_is_asked_again_before_its_denial_runs_out() {
    let Some(scene) = scene("dn-h04", &two_places(), 2).await else { return };
    let service = Service::start(&scene.conninfo, node_address(0)).await;
    moved(&scene, &service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ipv6_address_that_swallows_everything_does_not_keep_the_ipv4_one_waiting() {
    let hole = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let places = [("A1", node_address(0)), ("black hole", hole)];
    let Some(scene) = scene("dn-h07", &places, 1).await else { return };
    let at = SocketAddr::new(hole, scene.cluster.node(0).port());
    let _hole = match BlackHole::open(at).await {
        Ok(h) => h,
        Err(e) => return skipped(format_args!("no black hole at {at}: {e}")),
    };
    let connector = Connector::new(&scene.conninfo).expect("a connector");
    let began = Instant::now();
    let session = connector.connect().await.expect("a session");
    let took = began.elapsed();
    assert!(took < seconds(&scene.case["expect"]["within_s"]) + SLACK, "{took:?}");
    assert!(matches!(session.address(), Address::Tcp(a) if a.ip() == node_address(0)));
    assert!(scene.dns.count("db.test", "AAAA") > 0, "nobody asked for the IPv6 address");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_names_addresses_the_primary_is_found_wherever_it_stands() {
    let nobody = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 99));
    // Node 0 is the primary.
    let places = [("A1", node_address(1)), ("A2", nobody), ("A3", node_address(0))];
    let Some(scene) = scene("dn-h09", &places, 2).await else { return };
    let bound = seconds(&scene.case["expect"]["within_s_each"]) + SLACK;
    let repeat = scene.case["input"]["repeat"].as_u64().expect("a count");
    for round in 0..repeat {
        let mut order = places.map(|p| p.1);
        order.rotate_left(usize::try_from(round % 3).expect("small"));
        scene.dns.set("db.test", pgfollow_lab::dns::Kind::A, pgfollow_lab::dns::Rule::addresses(order, 5));
        // Anew each time: one that has looked around knows the primary.
        let connector = Connector::new(&scene.conninfo).expect("a connector");
        for connect in ["first", "second"] {
            let began = Instant::now();
            let session = connector.connect().await.expect("a session");
            let took = began.elapsed();
            assert!(took < bound, "round {round}, {connect} connect: {took:?} {:?}", session.attempts());
            assert!(matches!(session.address(), Address::Tcp(a) if a.ip() == node_address(0)), "{session:?}");
        }
    }
}
