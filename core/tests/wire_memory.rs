//! A server that sends tens of megabytes where a login needs hundreds of bytes (`wi-h18`): memory stays bounded. In a
//! process of its own, for the peak is the whole process's.

mod support;

use pgfollow_lab::wire::{Options, Role, Script, canned};
use support::api::{self, Stagger};
use support::hosts::{Hosts, Kind, Place};

/// The process's peak memory in KiB; `None` where the system doesn't tell.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[tokio::test]
async fn a_huge_error_during_login_is_not_kept() {
    let case =
        support::vectors("wire/hand.jsonl").into_iter().find(|c| c["id"] == "wi-h18").expect("the case");
    let most = case["expect"]["rss_growth_max_mib"].as_u64().expect("a bound") * 1_024;
    let big = Script::from_json(&case["input"]["servers"]["h1"]).expect("a script");
    let connect = async |h1: Script| {
        let place = |label: &str, script| {
            (label.to_owned(), vec![Place { label: label.to_owned(), kind: Kind::Scripts(vec![script]) }])
        };
        let servers = [place("h1", h1), place("h2", canned::server("15.18", Role::Primary))];
        let hosts = Hosts::start(&servers, &Options::default()).await.expect("servers");
        let conninfo =
            format!("host=h1,h2 port={} user=u dbname=d sslmode=disable connect_timeout=3", hosts.port);
        let outcome = api::connect(&conninfo, &hosts.names, Stagger::Default).await.expect("no hang");
        let at = outcome.result.ok().map(|s| hosts.label_at(s.address()));
        let sent = hosts.seen("h1").iter().any(|c| c.has("StartupMessage"));
        assert!(sent, "h1 was asked");
        hosts.stop().await;
        at
    };
    // What a connect needs once (roots, tables, buffers) is not what is measured.
    assert_eq!(connect(canned::fatal("53300", false)).await.as_deref(), Some("h2"));
    let Some(before) = peak_kib() else {
        pgfollow_lab::skipped("/proc/self/status doesn't tell the peak memory");
        return;
    };
    assert_eq!(connect(big).await.as_deref(), Some("h2"));
    let grown = peak_kib().expect("it told before") - before;
    assert!(grown <= most, "{grown} KiB for one error");
}
