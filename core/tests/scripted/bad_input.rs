//! What people get wrong: each mistake gives one error, within its time, that names the parameter, lists every attempt,
//! says what to do, and has no password in it.
#![expect(clippy::disallowed_methods, reason = "tests against real servers: real time, and words for people")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use crate::support::TempFile;
use pgfollow::{Class, Code, Connector, Environment, Error};
use pgfollow_lab::dns::{DnsServer, Kind, Reply};
use pgfollow_lab::wire::{BlackHole, Options, WireServer, canned, closed_port};
use pgfollow_lab::{Cluster, ClusterOptions, servers, skipped};

const SECRET: &str = "s3cret";
/// On top of a bound, for a machine that is busy.
const SLACK: Duration = Duration::from_secs(3);

/// None of the machine's own variables and files.
fn surroundings() -> Environment {
    Environment::empty().with_user("somebody")
}

fn connector(conninfo: &str) -> Result<Connector, Error> {
    Connector::builder(conninfo).config(|c| c.environment(surroundings())).build()
}

/// What must hold of every error. `names` are pieces of text that its message or its attempts must have.
#[track_caller]
fn sound(e: &Error, code: Code, class: Class, names: &[&str]) {
    let json = serde_json::to_string(e.attempts()).expect("JSON");
    let shown = e.to_string();
    for text in [&shown, &format!("{e:?}"), &json, &e.message().to_owned()] {
        assert!(!text.contains(SECRET), "a password in {text}");
    }
    assert_eq!((e.code(), e.class()), (code, class), "{shown}");
    let missing: Vec<_> = names.iter().filter(|n| !shown.contains(**n)).collect();
    assert!(missing.is_empty(), "{missing:?} not in {shown}");
    assert!(!e.message().contains('\n') && e.message().len() < 500, "no plain sentence: {shown}");
}

#[test]
fn a_string_that_can_never_work_is_refused_before_anything_is_dialled() {
    use Code::{InvalidConninfo, InvalidOption, UnsupportedOption, UnusableFile};
    let here = TempFile::new("no-certificate", "nothing");
    let here = here.path();
    let cases: &[(String, Code, &[&str])] = &[
        // The form.
        ("host='a password=s3cret".into(), InvalidConninfo, &["quoted value", "\\'"]),
        ("host=a password='s3cret".into(), InvalidConninfo, &["quoted value"]),
        ("host=a pasword=s3cret".into(), InvalidConninfo, &["\"pasword\"", "\"password\""]),
        ("host=a nonsense=s3cret".into(), InvalidConninfo, &["\"nonsense\"", "no known one is like it"]),
        ("mysql://u:s3cret@h/db".into(), InvalidConninfo, &["postgresql://"]),
        ("postgresql://u:s3cret%zz@h/db".into(), InvalidConninfo, &["password", "%25"]),
        ("postgresql://u:s3cret@x@h/db".into(), InvalidConninfo, &["%40"]),
        ("postgresql://u:s3cret@h/db?sslmode".into(), InvalidConninfo, &["keyword=value"]),
        ("service=none password=s3cret".into(), InvalidOption, &["service=none", "PGSERVICEFILE"]),
        // One value.
        ("host=a sslmode=maybe password=s3cret".into(), InvalidOption, &["sslmode=maybe", "verify-full"]),
        (
            "host=a connect_timeout=5s password=s3cret".into(),
            InvalidOption,
            &["connect_timeout=5s", "seconds"],
        ),
        ("host=a probe_interval=5 password=s3cret".into(), InvalidOption, &["probe_interval=5", "250ms"]),
        (
            "host=a target_session_attrs=master".into(),
            InvalidOption,
            &["target_session_attrs=master", "read-write"],
        ),
        (
            "host=a dns_servers=ns.example".into(),
            InvalidOption,
            &["dns_servers=ns.example", "address[:port]"],
        ),
        ("host=a require_auth=scram,!md5".into(), InvalidOption, &["require_auth=", "scram-sha-256"]),
        // Values that contradict each other.
        ("host=a,b hostaddr=127.0.0.1".into(), InvalidOption, &["host has 2", "hostaddr has 1"]),
        ("host=a,b port=1,2,3".into(), InvalidOption, &["port has 3", "host has 2"]),
        (
            "host=a resolver=system dns_servers=10.0.0.1".into(),
            InvalidOption,
            &["dns_servers=10.0.0.1", "resolver=system", "remove one"],
        ),
        (
            "host=a sslnegotiation=direct sslmode=prefer".into(),
            InvalidOption,
            &["sslnegotiation=direct", "sslmode=prefer", "use sslmode=require"],
        ),
        (
            "host=a sslrootcert=system sslmode=require".into(),
            InvalidOption,
            &["sslrootcert=system", "sslmode=require", "verify-full"],
        ),
        (
            "host=a pool_min_conns=5 pool_max_conns=3".into(),
            InvalidOption,
            &["pool_min_conns=5", "pool_max_conns=3"],
        ),
        (
            "host=a ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2".into(),
            InvalidOption,
            &["ssl_min_protocol_version", "ssl_max_protocol_version"],
        ),
        // What can't be honoured.
        ("host=a client_encoding=LATIN1".into(), UnsupportedOption, &["client_encoding=LATIN1", "UTF8"]),
        (
            "host=a options='-c geqo=off -c client_encoding=latin1'".into(),
            UnsupportedOption,
            &["options=", "client_encoding", "UTF8"],
        ),
        (
            "host=a options='--client-encoding=sjis'".into(),
            UnsupportedOption,
            &["options=", "client_encoding"],
        ),
        ("host=a gssencmode=require".into(), UnsupportedOption, &["gssencmode=require", "sslmode"]),
        ("host=a require_auth=gss".into(), UnsupportedOption, &["require_auth=gss", "scram-sha-256"]),
        ("host=a replication=database".into(), UnsupportedOption, &["replication=database", "remove it"]),
        ("host=a sslkeylogfile=/tmp/keys".into(), UnsupportedOption, &["sslkeylogfile", "remove it"]),
        ("host=a min_protocol_version=3.2".into(), UnsupportedOption, &["min_protocol_version=3.2", "3.0"]),
        (
            "host=a oauth_client_secret=s3cret".into(),
            UnsupportedOption,
            &["oauth_client_secret", "remove it"],
        ),
        ("host=a scram_client_key=s3cret".into(), UnsupportedOption, &["scram_client_key", "remove it"]),
        // Files.
        (
            "host=a sslmode=verify-full sslrootcert=/no/such.crt password=s3cret".into(),
            UnusableFile,
            &["sslrootcert", "/no/such.crt", "provide it"],
        ),
        ("host=a sslmode=verify-ca".into(), UnusableFile, &["sslrootcert", "root.crt", "provide it"]),
        (
            format!("host=a sslmode=verify-full sslrootcert={here} password=s3cret"),
            UnusableFile,
            &["sslrootcert", &here],
        ),
        // It tells no length, and never ends.
        (
            "host=a sslmode=verify-full sslrootcert=/dev/zero".into(),
            UnusableFile,
            &["sslrootcert", "/dev/zero", "larger than 16 MB"],
        ),
        (
            "host=a sslmode=require sslcert=/no/such.crt sslpassword=s3cret".into(),
            UnusableFile,
            &["sslcert", "/no/such.crt", "sslcertmode=disable"],
        ),
        ("host=a sslmode=require sslcertmode=require".into(), UnusableFile, &["sslcert", "provide it"]),
    ];
    for (conninfo, code, names) in cases {
        match connector(conninfo) {
            Err(e) => sound(&e, *code, Class::Permanent, names),
            Ok(_) => panic!("taken: {conninfo}"),
        }
    }
}

#[test]
fn utf8_in_any_spelling_is_no_other_encoding() {
    for fine in ["UTF8", "utf-8", "UNICODE", "auto", "''"] {
        connector(&format!("host=a client_encoding={fine}")).unwrap_or_else(|e| panic!("{fine}: {e}"));
    }
    connector("host=a options='-c client_encoding=UTF8 -c geqo=off'").expect("that is what is spoken");
    let set = surroundings().with("PGCLIENTENCODING", "LATIN1");
    let made = Connector::builder("host=a").config(|c| c.environment(set)).build();
    let e = made.err().expect("refused");
    sound(&e, Code::UnsupportedOption, Class::Permanent, &["client_encoding=LATIN1", "PGCLIENTENCODING"]);
}

/// One plain connect that must fail.
async fn refused(conninfo: &str, within: Duration) -> Error {
    let connector = connector(&format!("{conninfo} user=app password={SECRET}")).expect("a valid string");
    let began = Instant::now();
    let e = connector.connect().await.expect_err("no session");
    assert!(began.elapsed() < within + SLACK, "{:?}: {e}", began.elapsed());
    e
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_cannot_be_dialled_are_each_told_with_the_remedy() {
    let at_once = Duration::ZERO;
    let e = refused("host=127.0.0.1,127.0.0.9 port=0,70000", at_once).await;
    sound(&e, Code::InvalidOption, Class::Permanent, &["port number \"0\"", "\"70000\"", "1 to 65535"]);
    assert_eq!(e.attempts().len(), 2, "{e}");
    let e = refused("host=127.0.0.1 port=abc", at_once).await;
    sound(&e, Code::InvalidOption, Class::Permanent, &["port number \"abc\"", "1 to 65535"]);
    let e = refused("hostaddr=nonsense", at_once).await;
    sound(&e, Code::InvalidOption, Class::Permanent, &["hostaddr=nonsense", "put a name into host"]);
    let e = refused("host=/no/such/dir port=5433", at_once).await;
    let names = ["/no/such/dir/.s.PGSQL.5433", "No such file", "check host (the socket directory) and port"];
    sound(&e, Code::DialFailed, Class::Transient, &names);
    let long = format!("/{}", "x".repeat(120));
    let e = refused(&format!("host={long}"), at_once).await;
    sound(&e, Code::InvalidOption, Class::Permanent, &["longer than", "shorter directory in host"]);

    let (a, b) = (Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 9));
    let port = |ip: Ipv4Addr| closed_port(IpAddr::V4(ip)).expect("a port").port();
    let (p, q) = (port(a), port(b));
    let e = refused(&format!("host={a},{b} port={p},{q}"), at_once).await;
    let names = [&*format!("{a} port {p}"), &format!("{b} port {q}"), "refused", "check host and port"];
    sound(&e, Code::DialFailed, Class::Transient, &names);
    assert_eq!(e.attempts().len(), 2, "{e}");
    // Of several kinds: every remedy once.
    let e = refused(&format!("host={a},/no/such/dir,{b} port={p},1,0"), at_once).await;
    sound(&e, Code::NoHostFits, Class::Transient, &["no host of the list", "socket directory", "1 to 65535"]);
    assert_eq!(e.attempts().len(), 3, "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_swallows_everything_ends_with_its_time() {
    let hole = |last| BlackHole::open((Ipv4Addr::new(127, 0, 0, last), 0).into());
    let (one, two) = match (hole(41).await, hole(42).await) {
        (Ok(a), Ok(b)) => (a.address(), (b.address(), a, b)),
        (a, b) => return skipped(format_args!("no black hole: {:?} {:?}", a.err(), b.err())),
    };
    let (two, _a, _b) = two;
    let list = format!("host={},{} port={},{}", one.ip(), two.ip(), one.port(), two.port());
    let e = refused(&format!("{list} connect_timeout=1"), Duration::from_millis(1_250)).await;
    let names = [&*one.ip().to_string(), &two.ip().to_string(), "connect_timeout", "firewalls"];
    sound(&e, Code::ConnectTimedOut, Class::Transient, &names);
    assert_eq!(e.attempts().len(), 2, "{e}");
    // The caller's own deadline is the shorter one.
    let c = connector(&format!("{list} user=app password={SECRET} connect_timeout=60")).expect("a connector");
    let began = Instant::now();
    let e = c.connect_within(Duration::from_secs(1)).await.expect_err("no session");
    assert!(began.elapsed() < Duration::from_secs(1) + SLACK, "{:?}", began.elapsed());
    sound(
        &e,
        Code::DeadlinePassed,
        Class::Transient,
        &[&one.ip().to_string(), &two.ip().to_string(), "deadline"],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_gives_nothing_is_told_with_where_it_was_asked() {
    let dns = DnsServer::start((Ipv4Addr::LOCALHOST, 0).into()).await.expect("a name server");
    dns.set("broken.test", Kind::Any, Reply::ServFail);
    dns.set("silent.test", Kind::Any, Reply::Silence);
    let ask = |name: &str| format!("host={name} dns_servers={} resolver=dns", dns.address());
    let e = refused(&ask("nowhere.test"), Duration::ZERO).await;
    let names = ["nowhere.test", "doesn't exist", "check the spelling in host", "dns_servers"];
    sound(&e, Code::NoSuchName, Class::Permanent, &names);
    assert!(e.message().contains("nowhere.test"), "{}", e.message());
    // An empty value takes the next pair for its own.
    let e = refused(&format!("host= {}", ask("").replace("host=", "user=other")), Duration::ZERO).await;
    sound(&e, Code::NoSuchName, Class::Permanent, &["host \"user=other\"", "is the value of host empty?"]);
    let e = refused(&ask("broken.test"), Duration::ZERO).await;
    sound(&e, Code::ResolveFailed, Class::Transient, &["broken.test", "failed", "check the name servers"]);
    let e = refused(&ask("silent.test"), Duration::from_secs(2)).await;
    sound(&e, Code::ResolveFailed, Class::Transient, &["silent.test", "no name server answered"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_listens_there_and_is_no_postgresql_is_told_so() {
    let at = (Ipv4Addr::LOCALHOST, 0).into();
    for (script, options, code, class, names) in [
        (canned::web_server(), "", Code::ProtocolViolation, Class::Permanent, &["is it PostgreSQL"][..]),
        (canned::no_tls(), "sslmode=require", Code::TlsRefused, Class::Permanent, &["sslmode", "enable ssl"]),
        (canned::mute(), "connect_timeout=1", Code::ConnectTimedOut, Class::Transient, &["connect_timeout"]),
        (canned::fatal("53300", false), "", Code::Server, Class::Transient, &["53300", "max_connections"]),
        (
            canned::fatal("57P03", false),
            "",
            Code::Server,
            Class::Transient,
            &["57P03", "wait for the server"],
        ),
        (canned::fatal("28000", false), "", Code::Server, Class::Permanent, &["28000", "pg_hba.conf"]),
    ] {
        let server = WireServer::start(at, script, Options::default()).await.expect("a server");
        let (ip, port) = (server.address().ip(), server.address().port());
        let e = refused(&format!("host={ip} port={port} {options}"), Duration::from_secs(1)).await;
        sound(&e, code, class, names);
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_real_server_refuses_is_told_with_the_parameter_and_the_remedy() {
    let Some(binaries) = servers() else { return };
    let mut options = ClusterOptions::new(binaries);
    options.nodes = 2;
    let cluster = Cluster::start(options).await.expect("a cluster");
    let (primary, standby) = (cluster.node(0), cluster.node(1));
    let one = format!("host={} port={}", primary.host(), primary.port());
    let wait = Duration::from_secs(5);

    let e = refused(&format!("{one} dbname=app"), wait).await;
    let names = ["28P01", "check user and password", "PGPASSWORD", &primary.host().to_string()];
    sound(&e, Code::Server, Class::Permanent, &names);
    let without = connector(&format!("{one} user=app dbname=app")).expect("a connector");
    let e = without.connect().await.expect_err("no password");
    sound(&e, Code::AuthenticationMethod, Class::Permanent, &["set password", "password file"]);
    let e = refused(&format!("{one} dbname=app sslmode=require"), wait).await;
    sound(&e, Code::TlsRefused, Class::Permanent, &["sslmode requires it", "enable ssl", "change sslmode"]);
    let two = format!("host={},{} port={}", primary.host(), standby.host(), primary.port());
    let e = refused(&format!("{two} dbname=app sslmode=require"), wait).await;
    assert!(e.attempts().len() == 2 && e.message().contains("change sslmode"), "{e}");
    let e = refused(&format!("{one} dbname=app require_auth=md5"), wait).await;
    sound(
        &e,
        Code::AuthenticationMethod,
        Class::Permanent,
        &["require_auth permits only md5", "pg_hba.conf"],
    );
    let e = refused(&format!("{one} dbname=app channel_binding=require"), wait).await;
    sound(&e, Code::AuthenticationMethod, Class::Permanent, &["channel_binding=require", "sslmode=require"]);

    let right = |extra: &str| {
        let (user, password) = (cluster.user(), cluster.password());
        connector(&format!("{extra} user={user} password={password} connect_timeout=5")).expect("a connector")
    };
    let there = format!("host={} port={} dbname=app", standby.host(), standby.port());
    let mut session = right(&there).connect().await.expect("a session on the standby");
    let why = session.why();
    let e = why.diagnose(session.batch_execute("create table t (i int)").await.expect_err("read-only"));
    let told = ["read-only", "[host", "SQLSTATE 25006]", "target_session_attrs=read-write finds the primary"];
    sound(&e, Code::Server, Class::Transient, &told);
    // Who asks for a read-only block means it.
    let tx = session.build_transaction().read_only(true).start().await.expect("a block");
    let e = why.diagnose(tx.batch_execute("create table t (i int)").await.expect_err("read-only"));
    assert!(e.message().ends_with("in a read-only transaction"), "{e}");
    drop(tx);

    let e = right(&format!("{one} dbname=nowhere")).connect().await.expect_err("no database");
    sound(&e, Code::Server, Class::Permanent, &["3D000", "check dbname"]);
    let e =
        right(&format!("{one} dbname=app options='-c nonsense=1'")).connect().await.expect_err("no setting");
    sound(&e, Code::Server, Class::Permanent, &["nonsense", "settings in options"]);

    // No host takes writes: the one is fenced, the other a standby.
    primary.demote().await.expect("fenced");
    let both = format!("host={},{} port={} dbname=app", primary.host(), standby.host(), primary.port());
    let wanted = right(&format!("{both} target_session_attrs=read-write"));
    let both = [primary.host().to_string(), standby.host().to_string()];
    let names = [&*both[0], &*both[1], "target_session_attrs=read-write", "change target_session_attrs"];
    let e = wanted.connect().await.expect_err("nobody takes writes");
    sound(&e, Code::WrongRole, Class::Transient, &names);
    assert!(!e.to_string().contains(cluster.password()), "the password is in {e}");
    let began = Instant::now();
    let e = wanted.connect_within(Duration::from_secs(2)).await.expect_err("nobody takes writes");
    assert!(began.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", began.elapsed());
    sound(&e, Code::DeadlinePassed, Class::Transient, &names);
}
