//! Exact bytes: `tests/vectors/wire`, each case against scripted servers. `hand.jsonl` comes from public reports and
//! measurements, `ours.jsonl` has the silences and the hostile servers; the latter run by both walks.
//!
//! Each case runs three times: pgfollow's own questions answered sensibly, by a row that makes no sense, and by an
//! error. None of the three may make a difference.

use std::time::Duration;

use crate::support::api::{self, Stagger};
use crate::support::hosts::{Hosts, Kind, Place};
use pgfollow::net::BoxFuture;
use pgfollow::{Class, Connector, EndCause, Error, Session, clock};
use pgfollow_lab::wire::{Identity, Options, Own, Received, Role, Script, Seen, canned};
use serde_json::{Value, json};

/// Bounds of the cases are tight for an idle machine; several dozen run side by side here.
const SLACK: Duration = Duration::from_millis(400);

/// Checked by `wire_memory.rs`, in a process of its own.
const MEMORY: &str = "rss_growth_max_mib";

fn script_of(v: &Value) -> Result<Kind, String> {
    let one = |script| Kind::Scripts(vec![script]);
    Ok(match v.as_str() {
        None => one(Script::from_json(v).map_err(|e| e.to_string())?),
        Some("refuses") => Kind::Refuses,
        Some("primary") => one(canned::server("15.18", Role::Primary)),
        Some("primary-13") => one(canned::server("13.9", Role::Primary)),
        Some("primary-tls") => one(canned::tls_server("15.18", Role::Primary)),
        Some(other) => return Err(format!("an unknown kind of server: {other}")),
    })
}

/// Whether the case's caller lends a session that has been idle.
fn borrows(case: &Value) -> bool {
    case["input"]["client"].as_array().is_some_and(|steps| steps.iter().any(|s| s[0] == "borrow"))
}

fn shutting_down() -> Value {
    let error = json!(["error", "FATAL", "57P03", "the database system is shutting down"]);
    json!([["startup"], ["send", [error]], ["fin"]])
}

/// The case's hosts, in the order of their names' first places.
fn hosts_of(case: &Value) -> Result<Vec<(String, Vec<Place>)>, String> {
    let mut hosts: Vec<(String, Vec<Place>)> = Vec::new();
    for (label, script) in case["input"]["servers"].as_object().ok_or("no servers")? {
        let name = label.split('/').next().unwrap_or(label).to_owned();
        let mut kind = script_of(script)?;
        if let Kind::Scripts(scripts) = &mut kind
            && script.to_string().contains("57P01")
            && borrows(case)
        {
            // A server that ended its sessions like this takes no new ones.
            scripts.push(Script::from_json(&shutting_down()).map_err(|e| e.to_string())?);
        }
        let place = Place { label: label.clone(), kind };
        match hosts.iter_mut().find(|(n, _)| *n == name) {
            Some((_, places)) => places.push(place),
            None => hosts.push((name, vec![place])),
        }
    }
    Ok(hosts)
}

/// A certificate for the names that the case's `tls` tells.
fn identity_of(case: &Value) -> Result<Option<Identity>, String> {
    let Some(text) = case["input"]["tls"].as_str() else { return Ok(None) };
    let rest =
        text.split("certificate for ").nth(1).ok_or_else(|| format!("an unknown certificate: {text}"))?;
    let name = rest.split([' ', ',']).next().unwrap_or(rest);
    Identity::self_signed(&[name]).map(Some).map_err(|e| e.to_string())
}

/// What a case's calls came to.
struct Done {
    result: Result<(), Error>,
    took: Duration,
}

struct Run<'a> {
    case: &'a Value,
    hosts: Hosts,
    connector: Option<Connector>,
    session: Result<Session, Error>,
    took: Duration,
}

impl Run<'_> {
    fn taken(&self) -> Option<String> {
        self.session.as_ref().ok().map(|s| self.hosts.label_at(s.address()))
    }

    fn connected_to_any(&self, labels: &[&str]) -> Result<(), String> {
        match (&self.session, self.taken()) {
            (Ok(_), Some(at)) if labels.contains(&at.as_str()) => Ok(()),
            (Ok(_), at) => Err(format!("connected to {at:?} instead of {labels:?}")),
            (Err(e), _) => Err(format!("failed instead of connecting to {labels:?}: {e}")),
        }
    }

    fn connect_error(&self) -> Result<&Error, String> {
        self.session.as_ref().err().ok_or_else(|| format!("connected to {:?}", self.taken()))
    }

    /// Every connection to a label, or to any host.
    fn seen(&self, label: &str) -> Vec<Seen> {
        self.hosts.seen(label)
    }

    fn all_attempts(&self) -> &[pgfollow::Attempt] {
        match &self.session {
            Ok(s) => s.attempts(),
            Err(e) => e.attempts(),
        }
    }
}

async fn run_case(case: Value, walk: &str, own: Own, expect: Value) -> Result<(), String> {
    let identity = identity_of(&case)?;
    let root = identity.as_ref().map(|i| crate::support::TempFile::new("root.pem", &i.certificate_pem));
    let options = Options { own, tls: identity, ..Options::default() };
    let hosts = Hosts::start(&hosts_of(&case)?, &options).await.map_err(|e| format!("no servers: {e}"))?;
    let mut conninfo = case["input"]["conninfo"].as_str().ok_or("no conninfo")?.to_owned();
    if let Some(root) = &root {
        conninfo = conninfo.replace("ROOT", &root.path());
    }
    if conninfo.contains("ADDR1") {
        conninfo = conninfo.replace("ADDR1", &hosts.ip("ADDR1").to_string());
    }
    let conninfo = format!("{conninfo} port={} host_walk={walk}", hosts.port);
    // Where the first host's word must count, a hiccup of the machine must not give the second a start.
    let first_counts = expect["to"] == "h1"
        || borrows(&case)
        || ["not_tried", "reconnects"].iter().any(|k| expect.get(k).is_some());
    let stagger = if first_counts { Stagger::Long } else { Stagger::Default };
    let outcome = api::connect(&conninfo, &hosts.names, stagger).await?;
    let api::Outcome { connector, result: session, took } = outcome;
    let mut run = Run { case: &case, hosts, connector, session, took };
    let result = check(&mut run, &expect).await;
    let Run { hosts, session, .. } = run;
    drop(session);
    hosts.stop().await;
    result
}

async fn check(run: &mut Run<'_>, expect: &Value) -> Result<(), String> {
    let expect = expect.as_object().ok_or("no expectation")?;
    let text = |key: &str| expect.get(key).and_then(Value::as_str);
    let result = text("result").ok_or("no result expected")?;
    // The calls come first: what they did is judged below.
    let done = match run.case["input"]["client"].is_array() {
        true => Some(calls(run).await?),
        false => None,
    };
    match (result, &done) {
        ("connected", _) => {
            let any = expect.get("to_any").and_then(Value::as_array);
            let one = text("to").into_iter();
            let all: Vec<&str> = any.into_iter().flatten().filter_map(Value::as_str).chain(one).collect();
            run.connected_to_any(&all)?;
        }
        ("error", None) => drop(run.connect_error()?),
        ("either: error, or connected to h2", _) => {
            if run.session.is_ok() {
                run.connected_to_any(&["h2"])?;
            }
        }
        ("error" | "call fails", Some(done)) => {
            if done.result.is_ok() {
                return Err("the call succeeded".to_owned());
            }
        }
        ("commit reported as NOT committed", Some(done)) => match &done.result {
            Err(e) if e.class() != Class::UnknownOutcome => {}
            other => return Err(format!("the commit: {other:?}")),
        },
        ("the session's role reads 'primary' after the second query", Some(done)) => {
            done.result.as_ref().map_err(|e| format!("a query failed: {e}"))?;
            let role = run.session.as_ref().map_err(ToString::to_string)?.role();
            if role.in_hot_standby != Some(false) {
                return Err(format!("the role still reads {role:?}"));
            }
        }
        ("the session ends by itself", Some(done)) => {
            done.result.as_ref().map_err(|e| format!("{e}"))?;
        }
        ("borrow after 1 s gets h2", Some(_)) => run.connected_to_any(&["h2"])?,
        (other, _) => return Err(format!("an unknown result: {other}")),
    }
    let error = match &done {
        Some(done) => done.result.as_ref().err(),
        None => run.session.as_ref().err(),
    };
    let took = done.as_ref().map_or(run.took, |d| d.took);
    for (key, value) in expect {
        check_one(run, error, took, key, value).map_err(|e| format!("{key}: {e}"))?;
    }
    Ok(())
}

fn check_one(
    run: &Run<'_>,
    error: Option<&Error>,
    took: Duration,
    key: &str,
    value: &Value,
) -> Result<(), String> {
    let words = || value.as_array().into_iter().flatten().filter_map(Value::as_str);
    let fail = |what: String| Err(what);
    let error_text = || error.map(ToString::to_string).unwrap_or_default();
    match key {
        "result" | "to" | "to_any" | MEMORY => Ok(()),
        "within_ms" | "not_before_ms" => {
            let wanted = Duration::from_millis(value.as_u64().ok_or("not a number")?);
            let fits = if key == "within_ms" { took <= wanted + SLACK } else { took >= wanted };
            if fits { Ok(()) } else { fail(format!("took {took:?}")) }
        }
        "class" => match error {
            Some(e) if Some(e.class().to_string().as_str()) == value.as_str() => Ok(()),
            other => fail(format!("{:?}: {}", other.map(Error::class), error_text())),
        },
        "code" => match error {
            Some(e) if e.attempts().iter().any(|a| a.code.map(|c| c.name()) == value.as_str()) => Ok(()),
            _ => fail(error_text()),
        },
        "sqlstate" => match error.and_then(Error::sqlstate) {
            Some(s) if Some(s.as_str()) == value.as_str() => Ok(()),
            other => fail(format!("{other:?}: {}", error_text())),
        },
        "failed_stage" => {
            let first = run.all_attempts().first().map(|a| a.stage.to_string());
            if first.as_deref() == value.as_str() { Ok(()) } else { fail(format!("{first:?}")) }
        }
        "error_lists_hosts" => {
            let text = error_text();
            if words().all(|h| text.contains(h)) { Ok(()) } else { fail(text) }
        }
        "error_must_not_contain" => {
            let text = format!("{} {:?}", error_text(), error);
            // Debug escapes control characters, so they are looked for in what is displayed.
            let bad = words().find(|w| error_text().contains(w) || (w.len() > 1 && text.contains(w)));
            bad.map_or(Ok(()), |w| fail(format!("{w:?} in {text}")))
        }
        "error_text_max_bytes" => {
            let most = usize::try_from(value.as_u64().unwrap_or(0)).unwrap_or(0);
            let texts = run.all_attempts().iter().map(|a| a.message.len()).chain([error_text().len()]);
            let longest = texts.max().unwrap_or(0);
            if longest <= most { Ok(()) } else { fail(format!("{longest} bytes")) }
        }
        "attempts_per_host_max" => {
            let most = value.as_u64().unwrap_or(0);
            let counts = ["h1", "h2"].map(|h| run.seen(h).len() as u64);
            if counts.iter().all(|n| (1..=most).contains(n)) { Ok(()) } else { fail(format!("{counts:?}")) }
        }
        "not_tried" => match words().find(|h| !run.seen(h).is_empty()) {
            Some(h) => fail(format!("{h} was dialled")),
            None => Ok(()),
        },
        "h1_must_not_receive" => {
            let kinds: Vec<_> = run.seen("h1").iter().flat_map(Seen::kinds).collect();
            // Password is the name of every answer to an authentication request, SASL messages included.
            if words().any(|k| kinds.contains(&k)) { fail(format!("h1 received {kinds:?}")) } else { Ok(()) }
        }
        "startup_must_not_have" => {
            let seen = run.seen("h1");
            let names: Vec<&str> =
                seen.iter().filter_map(Seen::startup).flatten().map(|(n, _)| n.as_str()).collect();
            if words().any(|w| names.contains(&w)) { fail(format!("{names:?}")) } else { Ok(()) }
        }
        "sni" | "alpn" => {
            let label = run.taken().ok_or("not connected")?;
            let seen = run.seen(&label);
            let tls = seen.last().and_then(|s| s.tls.as_ref()).ok_or("no TLS")?;
            let got = if key == "sni" { &tls.sni } else { &tls.alpn };
            if got.as_deref() == value.as_str() { Ok(()) } else { fail(format!("{got:?}")) }
        }
        "caller_sees_error" => match error {
            Some(e) if value == false => fail(e.to_string()),
            _ => Ok(()),
        },
        "ended_by" => {
            let ended = run.session.as_ref().ok().and_then(Session::ended).ok_or("it lives")?;
            let by = match &ended {
                EndCause::Server { sqlstate, .. } => sqlstate.as_str(),
                EndCause::Lost { reset: true, .. } => "reset",
                EndCause::Lost { .. } | EndCause::Closed => "end of file",
                _ => "something else",
            };
            if Some(by) == value.as_str() { Ok(()) } else { fail(format!("{by}: {ended}")) }
        }
        "reconnects" => {
            let n = run.seen("h1").len() + run.seen("h2").len();
            if n as u64 == 1 + value.as_u64().unwrap_or(0) {
                Ok(())
            } else {
                fail(format!("{n} connections"))
            }
        }
        "must_not" => words().try_for_each(|w| must_not(run, w)),
        _ => fail("an unknown expectation".to_owned()),
    }
}

/// The prohibitions that the hand file words freely.
fn must_not(run: &Run<'_>, what: &str) -> Result<(), String> {
    let everything = |r: &Run<'_>| {
        let attempts: String = r.all_attempts().iter().map(|a| a.to_string() + "\n").collect();
        let error = r.session.as_ref().err().map(|e| format!("{e} {e:?}")).unwrap_or_default();
        attempts + &error
    };
    let first =
        run.case["input"]["servers"].as_object().and_then(|s| s.keys().next()).cloned().unwrap_or_default();
    let kinds: Vec<_> = run.seen(&first).iter().flat_map(Seen::kinds).collect();
    let bad = match what {
        "plaintext session with h1 after the error" | "StartupMessage sent" => {
            kinds.contains(&"StartupMessage")
        }
        "server text of the unencrypted error shown or logged raw" => {
            let text = everything(run);
            text.contains('\u{1b}') || text.contains('\u{7}') || text.contains("owned")
        }
        "stray bytes read as part of the session" => {
            let text = everything(run);
            text.contains("stray") || kinds.iter().any(|k| ["Query", "Parse", "Password"].contains(k))
        }
        _ => return Err(format!("an unknown prohibition: {what}")),
    };
    if bad { Err(format!("{what}: {kinds:?} {}", everything(run))) } else { Ok(()) }
}

/// Carries out the case's calls on its session.
async fn calls(run: &mut Run<'_>) -> Result<Done, String> {
    let steps = run.case["input"]["client"].as_array().cloned().ok_or("no calls")?;
    if borrows(run.case) {
        return borrow(run, &steps).await;
    }
    let session = run.session.as_mut().map_err(|e| format!("no session: {e}"))?;
    let began = clock::now();
    let limit = steps.iter().find(|s| s[0] == "within").and_then(|s| s[1].as_f64());
    let limit = Duration::from_secs_f64(limit.unwrap_or(10.0));
    let in_block = steps.iter().any(|s| s[0] == "begin");
    let result = if in_block {
        block(session, &steps, limit).await
    } else {
        let mut result = Ok(());
        for step in &steps {
            let text = step[1].as_str().unwrap_or_default();
            result = match step[0].as_str() {
                Some("within") => Ok(()),
                Some("wait") => {
                    // For the session's own end, nobody having touched it.
                    let until = clock::now() + Duration::from_secs_f64(step[1].as_f64().unwrap_or(1.0));
                    while session.ended().is_none() && clock::now() < until {
                        clock::sleep_until(clock::now() + Duration::from_millis(5)).await;
                    }
                    Ok(())
                }
                Some("query") => session.within(limit, session.simple_query(text)).await.map(drop),
                Some("execute-extended") => {
                    session.within(limit, session.execute_typed(&insert(text), &[])).await.map(drop)
                }
                _ => return Err(format!("an unknown call: {step}")),
            };
            if result.is_err() {
                break;
            }
        }
        result
    };
    Ok(Done { result, took: clock::now() - began })
}

/// A caller who keeps its session while it says that it is usable, and else asks for another: it has to know by itself
/// that it died, nobody having touched it.
async fn borrow(run: &mut Run<'_>, steps: &[Value]) -> Result<Done, String> {
    run.connected_to_any(&["h1"])?;
    let connector = run.connector.clone().ok_or("no connector")?;
    let mut result = Ok(());
    for step in steps {
        let session = run.session.as_ref().map_err(|e| format!("no session: {e}"))?;
        match step[0].as_str() {
            Some("pool-fill") => {}
            Some("sleep") => {
                let pause = Duration::from_secs_f64(step[1].as_f64().unwrap_or(1.0));
                clock::sleep_until(clock::now() + pause).await;
            }
            Some("borrow") if session.is_usable() => {}
            Some("borrow") => run.session = connector.connect().await,
            Some("query") => {
                let text = step[1].as_str().unwrap_or_default();
                result = session.within(Duration::from_secs(10), session.simple_query(text)).await.map(drop);
            }
            _ => return Err(format!("an unknown call: {step}")),
        }
    }
    Ok(Done { result, took: Duration::ZERO })
}

fn insert(text: &str) -> String {
    if text == "INSERT" { "INSERT INTO t VALUES (1)".to_owned() } else { text.to_owned() }
}

/// One transaction: its calls, then the commit, each under the deadline.
async fn block(session: &mut Session, steps: &[Value], limit: Duration) -> Result<(), Error> {
    let why = session.why();
    let tx = session.transaction().await?;
    for step in steps.iter().filter(|s| s[0] == "query") {
        why.within(limit, tx.simple_query(step[1].as_str().unwrap_or_default())).await?;
    }
    // `within` wants the driver's error; the commit has its own already. A commit that isn't answered leaves an
    // unknown outcome, which is what a caller's own deadline around it must say too.
    match clock::Deadline::after(limit).bound(tx.commit()).await {
        Ok(result) => result,
        Err(clock::Elapsed) => {
            why.within(Duration::ZERO, std::future::pending::<Result<(), tokio_postgres::Error>>()).await
        }
    }
}

async fn run_all(cases: Vec<(Value, &'static str, Value)>) {
    let mut runs: Vec<BoxFuture<'static, Result<(), String>>> = Vec::new();
    for (case, walk, expect) in cases {
        for own in [Own::Sensible, Own::OneRow, Own::Refused] {
            let (case, expect) = (case.clone(), expect.clone());
            runs.push(Box::pin(async move {
                let what = format!("{} {walk} {own:?}: {}", case["id"], case["why"]);
                run_case(case, walk, own, expect).await.map_err(|e| format!("{what}\n      {e}"))
            }));
        }
    }
    crate::support::run_all(runs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_as_reported_from_the_field_meet_what_is_expected() {
    let cases = crate::support::vectors("wire/hand.jsonl");
    assert_eq!(cases.len(), 25);
    run_all(cases.into_iter().map(|c| (c.clone(), "follow", c["expect"].clone())).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_and_hostile_servers_cost_no_more_than_their_bound() {
    let cases = crate::support::vectors("wire/ours.jsonl");
    assert!(cases.len() >= 50);
    let mut runs = Vec::new();
    for case in cases {
        runs.push((case.clone(), "follow", case["expect"].clone()));
        if case["expect_strict"].is_object() {
            runs.push((case.clone(), "strict", case["expect_strict"].clone()));
        }
    }
    run_all(runs).await;
}

/// A cancel goes to the address where the session is, not to the name's first, and not in clear text where the session
/// has TLS.
#[tokio::test]
async fn a_cancel_goes_to_the_sessions_own_address_and_under_its_tls() {
    let identity = Identity::self_signed(&["multi"]).expect("a certificate");
    let place = |label: &str, role| Place {
        label: label.to_owned(),
        kind: Kind::Scripts(vec![canned::tls_server("15.18", role)]),
    };
    let places = vec![place("multi/1", Role::Standby), place("multi/2", Role::Primary)];
    let options = Options { tls: Some(identity), ..Options::default() };
    let hosts = Hosts::start(&[("multi".to_owned(), places)], &options).await.expect("servers");
    let conninfo = format!(
        "host=multi port={} user=u dbname=d sslmode=require target_session_attrs=read-write connect_timeout=5",
        hosts.port
    );
    let session = api::connect(&conninfo, &hosts.names, Stagger::Default)
        .await
        .expect("no hang")
        .result
        .expect("a primary");
    assert_eq!(hosts.label_at(session.address()), "multi/2");
    session.cancel().await.expect("sent");
    let (first, second) = (hosts.seen("multi/1"), hosts.seen("multi/2"));
    assert!(first.iter().all(|c| !c.has("CancelRequest")), "the cancel went to another address");
    let cancel = second.iter().find(|c| c.has("CancelRequest")).expect("a cancel at the session's address");
    assert!(
        cancel.tls.is_some() && cancel.kinds() == ["SSLRequest", "CancelRequest"],
        "{:?}",
        cancel.kinds()
    );
    let key = Received::CancelRequest { pid: 4242, secret: 99 };
    assert_eq!(cancel.received.last().map(|(_, r)| r), Some(&key));
    drop(session);
    hosts.stop().await;
}
