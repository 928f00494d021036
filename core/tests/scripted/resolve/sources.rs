//! Where an answer comes from: literals, localhost, the hosts file, the search list, the system.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pgfollow::config::ResolverKind;
use pgfollow::net::{AnswerSource, Resolve, ResolveError};
use pgfollow_lab::dns::{Kind, Reply, Rule};

use super::bench::{Bench, TIMEOUT, error, ip, ok, server};
use super::{V4, V6, a};

#[tokio::test]
async fn a_literal_and_localhost_need_nobody() {
    let s = server().await;
    let b = Bench::with_servers(&[&s]);
    let answer = ok(b.ask("127.9.0.1", V4).await);
    assert_eq!((answer.addresses, answer.ttl), (vec![ip("127.9.0.1")], None));
    assert_eq!(answer.source, AnswerSource::Literal);
    assert_eq!(error(b.ask("127.9.0.1", V6).await), ResolveError::NoData);
    assert_eq!(ok(b.ask("fd00::1", V6).await).addresses, [ip("fd00::1")]);
    for name in ["localhost", "LocalHost.", "db.localhost"] {
        assert_eq!(ok(b.ask(name, V4).await).addresses, [ip("127.0.0.1")]);
        assert_eq!(ok(b.ask(name, V6).await).addresses, [ip("::1")]);
    }
    b.write("hosts", "10.6.6.6 localhost\n127.0.0.1 localhost\n");
    assert_eq!(ok(b.ask("localhost", V4).await).addresses, [ip("127.0.0.1")], "never led outside");
    assert_eq!(error(b.ask("localhost", V6).await), ResolveError::NoData, "the file has no IPv6 for it");
    assert!(s.asked().is_empty());
}

#[tokio::test]
async fn a_pinned_name_is_not_asked_for_and_a_change_of_the_file_counts_at_once() {
    let s = server().await;
    s.set("db.test", Kind::A, a("127.9.0.2"));
    s.set("db.test", Kind::Aaaa, Rule::addresses([ip("fd00::2")], 5));
    let b = Bench::with_servers(&[&s]);
    let resolver = b.resolver(TIMEOUT);
    b.write("hosts", "127.9.0.1 db.test\n");
    let answer = ok(resolver.resolve("DB.test.", V4).await);
    assert_eq!((answer.addresses, answer.source), (vec![ip("127.9.0.1")], AnswerSource::HostsFile));
    assert_eq!(error(resolver.resolve("db.test", V6).await), ResolveError::NoData, "pinned is pinned");
    assert!(s.asked().is_empty());
    b.write("hosts", "127.9.0.3 db.test\n");
    assert_eq!(ok(resolver.resolve("db.test", V4).await).addresses, [ip("127.9.0.3")]);
    b.write("hosts", "");
    assert_eq!(ok(resolver.resolve("db.test", V4).await).addresses, [ip("127.9.0.2")]);
}

#[tokio::test]
async fn the_search_list_is_walked_as_the_c_library_walks_it() {
    let s = server().await;
    let b = Bench::with_resolv_conf(
        "nameserver 127.0.0.1\nsearch one.test two.test\noptions ndots:2\n",
        s.address().port(),
    );
    s.set("db.two.test", Kind::A, a("127.9.0.2"));
    let answer = ok(b.ask("db", V4).await);
    assert_eq!(answer.addresses, [ip("127.9.0.2")]);
    let order: Vec<_> = s.asked().into_iter().map(|q| q.name).collect();
    assert_eq!(order, ["db.one.test", "db.two.test"]);
    // A failure goes on, and is told if nothing comes of it; a final dot ends the search.
    s.set("db.one.test", Kind::Any, Reply::ServFail);
    assert_eq!(ok(b.ask("db", V4).await).addresses, [ip("127.9.0.2")]);
    s.remove("db.two.test");
    assert!(matches!(error(b.ask("db", V4).await), ResolveError::ServerFailure(_)));
    s.set("db", Kind::A, a("127.9.0.9"));
    s.forget_asked();
    assert_eq!(ok(b.ask("db.", V4).await).addresses, [ip("127.9.0.9")]);
    assert_eq!(s.asked().len(), 1);
}

#[tokio::test]
async fn a_silent_server_does_not_send_a_name_on_to_another_host_of_the_search_list() {
    let s = server().await;
    let port = s.address().port();
    let b = Bench::with_resolv_conf("nameserver 127.0.0.1\nsearch one.test two.test\n", port);
    s.set("db.one.test", Kind::Any, Reply::Silence);
    s.set("db.two.test", Kind::A, a("127.9.0.2"));
    assert_eq!(error(b.ask_within("db", V4, super::MS(300)).await), ResolveError::TimedOut);
    // Nor does a name with addresses of the other family only.
    s.remove("db.one.test");
    s.set("db.one.test", Kind::A, a("127.9.0.1"));
    s.set("db.two.test", Kind::Aaaa, Rule::addresses([ip("fd00::2")], 5));
    assert_eq!(error(b.ask("db", V6).await), ResolveError::NoData);
    // A name without any address isn't the one that was meant.
    s.set("db.one.test", Kind::A, Reply::NoData);
    assert_eq!(ok(b.ask("db", V6).await).addresses, [ip("fd00::2")]);
}

#[tokio::test]
async fn explicit_servers_replace_those_of_resolv_conf_but_not_its_search_list() {
    let (s, other) = (server().await, server().await);
    s.set("db.one.test", Kind::A, a("127.9.0.1"));
    let mut b = Bench::with_resolv_conf("nameserver 127.0.0.1\nsearch one.test\n", other.address().port());
    b.servers = vec![s.address()];
    assert_eq!(ok(b.ask("db", V4).await).addresses, [ip("127.9.0.1")]);
    assert!(other.asked().is_empty());
}

/// A system that knows one name, and how often it was asked.
fn system(b: &mut Bench) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    b.system = Some(Arc::new(move |name: &str| {
        count.fetch_add(1, Ordering::SeqCst);
        match name {
            "mdns.local" => Ok(vec![ip("fd00::9"), ip("127.9.0.9"), ip("127.9.0.9")]),
            _ => Err(io::Error::other("failed to lookup address information: Name or service not known")),
        }
    }));
    calls
}

#[tokio::test]
async fn auto_asks_the_system_for_what_the_name_servers_do_not_know_and_for_nothing_else() {
    let s = server().await;
    s.set("db.test", Kind::A, a("127.9.0.1"));
    s.set("broken.test", Kind::Any, Reply::ServFail);
    let mut b = Bench::with_resolv_conf("nameserver 127.0.0.1\nsearch .\n", s.address().port());
    let calls = system(&mut b);
    let answer = ok(b.ask("mdns.local", V4).await);
    assert_eq!((answer.addresses, answer.ttl), (vec![ip("127.9.0.9")], None));
    assert_eq!(answer.source, AnswerSource::System);
    assert_eq!(ok(b.ask("mdns.local", V6).await).addresses, [ip("fd00::9")]);
    assert_eq!(error(b.ask("nowhere.test", V4).await), ResolveError::NoSuchName);
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    ok(b.ask("db.test", V4).await);
    error(b.ask("db.test", V6).await);
    error(b.ask("broken.test", V4).await);
    assert_eq!(calls.load(Ordering::SeqCst), 3, "an answer, no data and a failure are the servers' word");
}

#[tokio::test]
async fn who_names_the_servers_is_not_answered_by_another() {
    let s = server().await;
    let mut b = Bench::with_servers(&[&s]);
    let calls = system(&mut b);
    assert_eq!(error(b.ask("mdns.local", V4).await), ResolveError::NoSuchName);
    b.kind = ResolverKind::Dns;
    assert_eq!(error(b.ask("mdns.local", V4).await), ResolveError::NoSuchName);
    // Without any server `dns` says what to do, and `auto` asks the system.
    b.servers.clear();
    for text in [None, Some("# nothing\n")] {
        if let Some(text) = text {
            b.write("resolv.conf", text);
        }
        b.kind = ResolverKind::Dns;
        let e = error(b.ask("mdns.local", V4).await).to_string();
        assert!(e.contains("resolv.conf") && e.contains("dns_servers"), "{e}");
        b.kind = ResolverKind::Auto;
        let before = calls.load(Ordering::SeqCst);
        assert_eq!(ok(b.ask("mdns.local", V4).await).addresses, [ip("127.9.0.9")]);
        assert_eq!(calls.load(Ordering::SeqCst), before + 1);
    }
}

#[tokio::test]
async fn the_system_alone_is_asked_where_that_is_wanted_and_bounded() {
    let s = server().await;
    s.set("mdns.local", Kind::A, a("127.9.0.1"));
    let mut b = Bench::with_resolv_conf("nameserver 127.0.0.1\n", s.address().port());
    system(&mut b);
    b.kind = ResolverKind::System;
    assert_eq!(ok(b.ask("mdns.local", V4).await).addresses, [ip("127.9.0.9")]);
    assert!(s.asked().is_empty());
    let (_hold, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    b.system = Some(Arc::new(move |_| {
        let _ = gate.lock().expect("not poisoned").recv();
        Ok(vec![])
    }));
    assert_eq!(error(b.ask_within("slow.test", V4, super::MS(100)).await), ResolveError::TimedOut);
}

#[tokio::test]
async fn the_real_system_knows_its_own_loopback_literal() {
    // The only name that every machine's getaddrinfo must know without a network: an address in short form.
    let b = Bench::with_servers(&[]);
    let r = pgfollow::Resolver::new(ResolverKind::System, vec![], TIMEOUT);
    assert_eq!(ok(r.resolve("127.1", V4).await).addresses, [ip("127.0.0.1")]);
    drop(b);
}

#[tokio::test]
async fn handing_over_to_the_system_is_said_once_for_each_reason() {
    let s = server().await;
    let mut b = Bench::with_resolv_conf("nameserver 127.0.0.1\nsearch .\n", s.address().port());
    system(&mut b);
    let resolver = b.resolver(TIMEOUT);
    let said = Arc::new(AtomicUsize::new(0));
    let _guard = tracing::subscriber::set_default(Said(Arc::clone(&said)));
    for _ in 0..3 {
        ok(resolver.resolve("mdns.local", V4).await);
    }
    assert_eq!(said.load(Ordering::SeqCst), 1);
    b.write("resolv.conf", "");
    for _ in 0..3 {
        ok(resolver.resolve("mdns.local", V4).await);
    }
    assert_eq!(said.load(Ordering::SeqCst), 2);
}

/// Counts the resolver's messages at INFO.
struct Said(Arc<AtomicUsize>);

impl tracing::Subscriber for Said {
    fn enabled(&self, m: &tracing::Metadata<'_>) -> bool {
        *m.level() <= tracing::Level::INFO && m.target().starts_with("pgfollow::resolve")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
