//! How a list of hosts is walked: `tests/vectors/walk/walk.jsonl`, each case by both walks, against scripted servers.
//!
//! `strict` must end where libpq 18 ends, in its time; `follow` goes on wherever another host may help.

use std::time::Duration;

use crate::support::api::{self, Outcome, Stagger};
use crate::support::hosts::{Hosts, Kind, Place};
use pgfollow::net::BoxFuture;
use pgfollow::{Class, Error};
use pgfollow_lab::wire::{Identity, Options, Own, Role, Script, canned};

/// Later than the time of a case is late. Several dozen cases run side by side on two cores.
const LATE: Duration = Duration::from_millis(700);
/// Timers round to milliseconds; the call's own time starts before the first dial.
const EARLY: Duration = Duration::from_millis(50);

/// What a case's `hosts` says of one host: the names of `conninfo`, each with its addresses.
struct Layout {
    conninfo: String,
    hosts: Vec<(String, Vec<Place>)>,
}

/// Splits at commas outside braces.
fn items(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in text.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("never empty").push(c),
        }
    }
    parts
}

/// The ways to play a host of this name; most have one.
fn plays(token: &str, tls: bool) -> Vec<Kind> {
    let one = |script: Script| vec![Kind::Scripts(vec![script])];
    let modern = |role| canned::server("15.18", role);
    if let Some((code, after_auth)) = sqlstate(token) {
        if tls {
            let mut script = canned::behind_tls();
            script.0.extend(canned::fatal(code, after_auth).0);
            // A second login on the same host may come in clear text.
            return vec![Kind::Scripts(vec![script, canned::fatal(code, after_auth)])];
        }
        return one(canned::fatal(code, after_auth));
    }
    match token {
        "P'" => one(canned::tls_server("15.18", Role::Primary)),
        "P" if tls => one(canned::tls_server("15.18", Role::Primary)),
        "P" | "P1" | "P2" | "trust" | "a" | "b" | "c" | "d" => one(modern(Role::Primary)),
        "S" => one(modern(Role::Standby)),
        "R" => one(modern(Role::ReadOnlyPrimary)),
        "oP" => one(canned::server("13.9", Role::Primary)),
        "oS" => one(canned::server("13.9", Role::Standby)),
        "REF" => vec![Kind::Refuses],
        "BH" => vec![Kind::BlackHole],
        "MUTE" => one(canned::mute()),
        "EOF at accept or after startup" => {
            let script = |after| Kind::Scripts(vec![canned::end_of_file(after)]);
            vec![script(false), script(true)]
        }
        "non-PostgreSQL answer" => one(canned::web_server()),
        "answers 'N'" => one(canned::no_tls()),
        "answers 'E' to SSLRequest" => one(canned::error_to_ssl_request()),
        _ => panic!("an unknown kind of host: {token}"),
    }
}

fn sqlstate(token: &str) -> Option<(&str, bool)> {
    let (code, rest) = token.split_at_checked(5)?;
    let is_code = code.starts_with(|c: char| c.is_ascii_digit()) && pgfollow::SqlState::new(code).is_some();
    is_code.then_some((code, rest.trim() == "after auth"))
}

/// The connection string of a case's `conninfo`, which lists only what matters.
fn options_of(text: &str) -> String {
    let mut out = vec!["user=u dbname=d".to_owned()];
    let mut sslmode = "sslmode=disable";
    for word in text.split([',', ' ']).filter(|w| !w.is_empty()) {
        match word {
            "any" | "read-write" | "read-only" | "primary" | "standby" | "prefer-standby" => {
                out.push(format!("target_session_attrs={word}"));
            }
            "no" | "TLS" | "on" => {} // of the server, not of the string
            _ if word.starts_with("t=") => out.push(format!("connect_timeout={}", &word[2..])),
            _ if word.starts_with("sslmode=") => sslmode = word,
            _ if word.starts_with("port=") => {}
            _ => out.push(word.to_owned()),
        }
    }
    out.push(sslmode.to_owned());
    out.join(" ")
}

/// Every layout of a case: one for each way to play its hosts and each of its strings.
fn layouts(case: &serde_json::Value) -> Vec<Layout> {
    let (conninfo, hosts) = (case["conninfo"].as_str().expect("text"), case["hosts"].as_str().expect("text"));
    let tls = conninfo.contains("TLS on");
    let mut strings: Vec<String> = conninfo.split(" / ").map(options_of).collect();
    let (hosts, lists) = match hosts {
        "3 hosts, 2 ports" => ("P,P,P", " host=h1,h2,h3 port=PORT,PORT"),
        "port=0,5432" => ("P,P", " host=h1,h2 port=0,PORT"),
        "NX,NX + hostaddr=REF,P" => ("REF,P", " host=nx1,nx2 hostaddr=ADDRESSES port=PORT"),
        other => (other, ""),
    };
    strings.iter_mut().for_each(|s| s.push_str(lists));
    let mut layouts = Vec::new();
    for conninfo in strings {
        let mut versions: Vec<Vec<(String, Vec<Place>)>> = vec![Vec::new()];
        for (i, item) in items(hosts).iter().enumerate() {
            let name = format!("h{}", i + 1);
            let addresses = items(item.trim_start_matches('{').trim_end_matches('}'));
            let mut next = Vec::new();
            for version in versions {
                for choice in 0..plays_of(&addresses, tls) {
                    let place = |(k, token): (usize, &String)| {
                        let label =
                            if addresses.len() > 1 { format!("{name}/{}", k + 1) } else { name.clone() };
                        let ways = plays(token, tls);
                        Place { label, kind: ways[choice.min(ways.len() - 1)].clone() }
                    };
                    let places = match addresses.as_slice() {
                        [one] if one == "NX" => Vec::new(),
                        all => all.iter().enumerate().map(place).collect(),
                    };
                    let mut version = version.clone();
                    version.push((name.clone(), places));
                    next.push(version);
                }
            }
            versions = next;
        }
        layouts.extend(versions.into_iter().map(|hosts| Layout { conninfo: conninfo.clone(), hosts }));
    }
    layouts
}

fn plays_of(addresses: &[String], tls: bool) -> usize {
    match addresses {
        [one] if one == "NX" => 1,
        all => all.iter().map(|t| plays(t, tls).len()).max().unwrap_or(1),
    }
}

/// Which of a case's hosts the expectation names: "P" is the first host that is one.
fn label_of_token(case: &serde_json::Value, token: &str) -> Result<String, String> {
    let hosts = case["hosts"].as_str().expect("text").replace("NX,NX + hostaddr=", "");
    let plain = |t: &str| t.trim_end_matches('\'').to_owned();
    for (i, item) in items(&hosts).iter().enumerate() {
        let addresses = items(item.trim_start_matches('{').trim_end_matches('}'));
        if let Some(k) = addresses.iter().position(|a| plain(a) == token) {
            let several = addresses.len() > 1;
            return Ok(if several { format!("h{}/{}", i + 1, k + 1) } else { format!("h{}", i + 1) });
        }
    }
    Err(format!("no host {token} in {hosts}"))
}

struct Run {
    outcome: Outcome,
    hosts: Hosts,
}

impl Run {
    fn taken(&self) -> Option<String> {
        self.outcome.result.as_ref().ok().map(|s| self.hosts.label_at(s.address()))
    }

    fn error(&self) -> Result<&Error, String> {
        self.outcome.result.as_ref().err().ok_or_else(|| format!("connected to {:?}", self.taken()))
    }

    fn must_be_at(&self, label: &str) -> Result<(), String> {
        match &self.outcome.result {
            Ok(_) if self.taken().as_deref() == Some(label) => Ok(()),
            Ok(_) => Err(format!("connected to {:?} instead of {label}", self.taken())),
            Err(e) => Err(format!("failed instead of connecting to {label}: {e}")),
        }
    }

    /// The hosts contacted, by number, as the servers saw it and as the attempts tell it.
    fn contacted(&self) -> Vec<String> {
        let mut all: Vec<String> = self.hosts.contacted();
        if let Err(e) = &self.outcome.result {
            for a in e.attempts() {
                all.extend(a.hostaddr.as_deref().and_then(|ip| self.hosts.label_of(ip)));
            }
        }
        all.sort();
        all.dedup();
        all
    }

    fn dials(&self, label: &str) -> usize {
        self.hosts.seen(label).len()
    }

    fn took(&self, seconds: f64, no_earlier: bool) -> Result<(), String> {
        let wanted = Duration::from_secs_f64(seconds);
        let took = self.outcome.took;
        let early = no_earlier && took + EARLY < wanted;
        if early || took > wanted + LATE { Err(format!("took {took:?}, wanted {wanted:?}")) } else { Ok(()) }
    }
}

async fn run(layout: &Layout, walk: &str, own: Own, tls: bool) -> Result<Run, String> {
    let identity =
        tls.then(|| Identity::self_signed(&["h1", "h2"])).transpose().map_err(|e| e.to_string())?;
    let options = Options { own, tls: identity, ..Options::default() };
    let hosts = Hosts::start(&layout.hosts, &options).await.map_err(|e| format!("no servers: {e}"))?;
    let names: Vec<&str> = layout.hosts.iter().map(|(n, _)| n.as_str()).collect();
    let mut conninfo = layout.conninfo.replace("PORT", &hosts.port.to_string());
    if !conninfo.contains("host=") {
        conninfo = format!("host={} port={} {conninfo}", names.join(","), hosts.port);
    }
    if conninfo.contains("ADDRESSES") {
        let addresses: Vec<String> = names.iter().map(|n| hosts.ip(n).to_string()).collect();
        conninfo = conninfo.replace("ADDRESSES", &addresses.join(","));
    }
    // Only a host that is silent on purpose may give the next one a start; a hiccup of the machine may not.
    let silent = |p: &Place| match &p.kind {
        Kind::BlackHole => true,
        Kind::Scripts(scripts) => scripts.contains(&canned::mute()),
        Kind::Refuses => false,
    };
    let stagger = match layout.hosts.iter().flat_map(|(_, places)| places).any(silent) {
        true => Stagger::Default,
        false => Stagger::Long,
    };
    let outcome = api::connect(&format!("{conninfo} host_walk={walk}"), &hosts.names, stagger).await?;
    Ok(Run { outcome, hosts })
}

/// One case by one walk.
async fn check(case: serde_json::Value, layout: Layout, walk: &'static str, own: Own) -> Result<(), String> {
    let strict = case["strict"].as_str().expect("text").to_owned();
    let follow = case["follow"].as_str().expect("text").to_owned();
    let conninfo = case["conninfo"].as_str().expect("text");
    let tls = conninfo.contains("TLS on") || case["hosts"].as_str().is_some_and(|h| h.contains("P'"));
    let run = run(&layout, walk, own, tls).await?;
    let is_strict = walk == "strict";
    let as_strict = is_strict || follow == "as strict";
    let result = if as_strict {
        expect_strict(&case, &strict, &run, is_strict)
    } else if follow.starts_with("moves on") {
        label_of_token(&case, "P").and_then(|label| run.must_be_at(&label))
    } else if follow.starts_with("stops there") {
        expect_stop(&case, &run)
    } else {
        Err(format!("an unknown expectation: {follow}"))
    };
    let result = result.and_then(|()| no_startup_without_tls(&run, conninfo));
    drop(run.outcome.result);
    run.hosts.stop().await;
    result
}

/// `sslmode=require`: a host without TLS never hears who we are.
fn no_startup_without_tls(run: &Run, conninfo: &str) -> Result<(), String> {
    let leaked = conninfo.contains("sslmode=require")
        && run.hosts.seen("h1").iter().any(|c| c.tls.is_none() && c.has("StartupMessage"));
    if leaked { Err("a startup packet in clear text under sslmode=require".to_owned()) } else { Ok(()) }
}

/// Failed at the first host, its reason kept, the second one never contacted.
fn expect_stop(case: &serde_json::Value, run: &Run) -> Result<(), String> {
    let e = run.error()?;
    if run.dials("h2") > 0 {
        return Err("went on to h2".to_owned());
    }
    if e.class() != Class::Permanent {
        return Err(format!("the class is {}: {e}", e.class()));
    }
    let wanted = sqlstate(case["hosts"].as_str().expect("text")).map(|(code, _)| code);
    match (wanted, e.sqlstate()) {
        (Some(code), Some(s)) if s.as_str() != code => Err(format!("SQLSTATE {s}")),
        (Some(code), None) => Err(format!("{code} is lost: {e}")),
        _ => Ok(()),
    }
}

fn expect_strict(case: &serde_json::Value, strict: &str, run: &Run, timed: bool) -> Result<(), String> {
    match strict {
        "E, no dial" => {
            let e = run.error()?;
            return if run.contacted().is_empty() { Ok(()) } else { Err(format!("dialled: {e}")) };
        }
        "E(S)" | "E" | "E(1)" | "E after 2 logins on 1" => {
            run.error()?;
            let first =
                if case["hosts"].as_str().is_some_and(|h| h.starts_with('{')) { "h1/1" } else { "h1" };
            let contacted = run.contacted();
            if contacted != [first] {
                return Err(format!("contacted {contacted:?}"));
            }
            // libpq's prefer: TLS first, then once more in clear text.
            let dials = run.dials("h1");
            let twice = strict == "E after 2 logins on 1";
            return if twice && dials != 2 { Err(format!("{dials} logins on h1")) } else { Ok(()) };
        }
        "E(1,2), both named" => {
            let text = run.error()?.to_string();
            let named = ["h1", "h2"].iter().all(|h| text.contains(h));
            let both = run.contacted() == ["h1", "h2"];
            return if named && both {
                Ok(())
            } else {
                Err(format!("contacted {:?}: {text}", run.contacted()))
            };
        }
        "host 2" => return run.must_be_at("h2"),
        "d ≈ 50 %" => return Ok(()), // counted by a test of its own
        _ => {}
    }
    let token: String = strict.chars().take_while(|c| c.is_alphanumeric()).collect();
    run.must_be_at(&label_of_token(case, &token)?)?;
    let rest = &strict[token.len()..];
    if let Some(at) = rest.strip_prefix(" at ") {
        let seconds: f64 = at.trim_end_matches(" s").parse().map_err(|e| format!("{strict}: {e}"))?;
        // prefer-standby: libpq walks the list twice. We keep the second choice in hand, so we may be earlier.
        let twice = case["conninfo"].as_str().is_some_and(|c| c.starts_with("prefer-standby"));
        return if timed { run.took(seconds, !twice) } else { run.took(seconds, false) };
    }
    match rest {
        "" | ", no limit" => Ok(()),
        ", 0 queries" => {
            let asked = run.hosts.seen("h1").iter().any(|c| c.has("Query") || c.has("Parse"));
            if asked { Err("the standby was asked something".to_owned()) } else { Ok(()) }
        }
        ", 1 query each" => {
            let asked = |c: &pgfollow_lab::wire::Seen| {
                c.texts().iter().filter(|t| **t == "SHOW transaction_read_only").count()
            };
            let counts: Vec<usize> =
                ["h1", "h2"].iter().map(|h| run.hosts.seen(h).iter().map(asked).sum()).collect();
            if counts == [1, 1] { Ok(()) } else { Err(format!("role questions: {counts:?}")) }
        }
        " (dials P1,P2,P1)" if !timed => Ok(()),
        // The second choice is kept, not dialled again: one dial less than libpq.
        " (dials P1,P2,P1)" => match (run.dials("h2"), run.dials("h3")) {
            (1 | 2, 1) => Ok(()),
            dials => Err(format!("dials of P1 and P2: {dials:?}")),
        },
        _ => Err(format!("an unknown expectation: {strict}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_list_of_hosts_ends_where_its_walk_says() {
    let mut runs: Vec<BoxFuture<'static, Result<(), String>>> = Vec::new();
    for case in crate::support::vectors("walk/walk.jsonl") {
        for walk in ["strict", "follow"] {
            for own in [Own::Sensible, Own::OneRow] {
                for layout in layouts(&case) {
                    let case = case.clone();
                    runs.push(Box::pin(async move {
                        let id = case["id"].as_str().unwrap_or("?").to_owned();
                        let what = format!("{id} {walk} {own:?}: {} | {}", case["conninfo"], case["hosts"]);
                        check(case, layout, walk, own).await.map_err(|e| format!("{what}\n      {e}"))
                    }));
                }
            }
        }
    }
    let count = crate::support::run_all(runs).await;
    assert!(count >= 39 * 4, "{count} runs: cases are missing");
}

#[tokio::test]
async fn a_random_start_takes_hosts_evenly_not_addresses() {
    const CONNECTS: usize = 200;
    let case = crate::support::vectors("walk/walk.jsonl")
        .into_iter()
        .find(|c| c["id"] == "walk-53")
        .expect("the case");
    let layout = layouts(&case).remove(0);
    for walk in ["strict", "follow"] {
        let hosts = Hosts::start(&layout.hosts, &Options::default()).await.expect("servers");
        let conninfo = format!("host=h1,h2 port={} {} host_walk={walk}", hosts.port, layout.conninfo);
        let mut at_d = 0;
        for _ in 0..CONNECTS {
            // A connector each: what one has learned of the hosts must not steer the next.
            let outcome = api::connect(&conninfo, &hosts.names, Stagger::Long).await.expect("no hang");
            let session = outcome.result.expect("four hosts accept");
            at_d += usize::from(hosts.label_at(session.address()) == "h2");
        }
        // Half of 200 with a standard deviation of 7: five of them are no chance.
        assert!((65..=135).contains(&at_d), "{walk}: d was taken {at_d} times of {CONNECTS}");
        hosts.stop().await;
    }
}
