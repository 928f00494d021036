//! The recorder without servers: what is told is found again in the report.

use std::sync::Arc;
use std::time::Duration;

use super::{By, Report};
use crate::clock;
use crate::config::{Config, SessionAttrs};
use crate::decide::attribute::Fate;
use crate::decide::outcome::{Outcome, Unsettled};
use crate::decide::topology::{ConnectKind, EndCause, Input, TermRow};
use crate::dial::TcpDial;
use crate::error::{Class, Code, Error, SqlState, Stage};
use crate::failure::{Failed, Failure};
use crate::host::{Address, Candidate, HostId};
use crate::lookup::LookUp;
use crate::monitor::Monitor;
use crate::net::{Answer, BoxFuture, Family, Resolve, ResolveError};
use crate::open::{Opener, Progress};

struct Nobody;

impl Resolve for Nobody {
    fn resolve<'a>(&'a self, _: &'a str, _: Family) -> BoxFuture<'a, Result<Answer, ResolveError>> {
        Box::pin(async { Err(ResolveError::NoSuchName) })
    }
}

/// A monitor that watches nothing and knows two addresses.
fn monitor() -> Arc<Monitor> {
    let config = Arc::new(Config::parse("host=a,b user=u dbname=d monitor=off").expect("a configuration"));
    let opener = Arc::new(Opener::new(Arc::clone(&config), Arc::new(TcpDial)).expect("an opener"));
    let look_up = Arc::new(LookUp::new(&config, Arc::new(Nobody), 1));
    let monitor = Monitor::new(config, opener, look_up, 1);
    for (spec, name) in ["a", "b"].into_iter().enumerate() {
        let last = u8::try_from(spec).expect("few") + 1;
        let address = Address::Tcp(([10, 0, 0, last], 5432).into());
        monitor.known(&Candidate { spec, name: name.into(), address });
    }
    monitor
}

fn report(monitor: &Monitor) -> Report {
    Report::compose(monitor, Vec::new())
}

async fn pass(ms: u64) {
    clock::sleep_until(clock::now() + Duration::from_millis(ms)).await;
}

fn row(timeline: u32, in_recovery: bool) -> TermRow {
    TermRow { in_recovery, timeline: (!in_recovery).then_some(timeline), ..TermRow::default() }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_found_again_with_its_parts_and_hosts_by_name() {
    let m = monitor();
    let (a, b) = (HostId(0), HostId(1));
    let rtt = Duration::from_millis(1);
    m.feed(Input::ProbeConnected { host: a, row: row(1, false), rtt });
    m.feed(Input::ProbeConnected { host: b, row: row(1, true), rtt });
    pass(1_000).await;
    let mut error =
        Error::new(Code::ConnectionLost, Class::UnknownOutcome, "gone").on_host("a (10.0.0.1:5432)".into());
    m.feed(Input::ProbeFailed { host: a, cause: EndCause::Reset });
    m.feed(Input::ProbeConnectFailed { host: a, kind: ConnectKind::Refused });
    m.recorder.failed(&mut error, Some(a));
    let waiting = m.recorder.wait();
    pass(2_000).await;
    m.feed(Input::ProbeAnswered { host: b, row: row(2, false), rtt });
    m.recorder.acquired(waiting.so_far());
    drop(waiting);
    super::Ear::new(&m.recorder, b).done(true, clock::now());
    let open = report(&m);
    assert!(open.outages[0].open && open.verdict.contains("going on"), "{}", open.verdict);
    pass(3_500).await;
    let r = report(&m);
    let o = &r.outages[0];
    assert_eq!((r.outages.len(), o.open, o.whole_ms, o.unknown), (1, false, 2_000.0, 1));
    assert!((o.causes_ms.values().sum::<f64>() - o.whole_ms).abs() < 1e-6);
    assert_eq!(o.causes_ms["not_writable_yet"], 2_000.0);
    assert_eq!(o.lost_host.as_deref(), Some("a (10.0.0.1:5432)"));
    assert_eq!(o.back_host.as_deref(), Some("b (10.0.0.2:5432)"));
    assert_eq!((o.fault_to_ready_ms, o.fault_to_first_success_ms), (Some(2_000.0), Some(2_000.0)));
    assert_eq!(r.causes_ms()["not_writable_yet"], 2_000.0);
    assert!(
        r.events.iter().any(|e| e.text.contains("b (10.0.0.2:5432) is primary on timeline 2")),
        "{:#?}",
        r.events
    );
    assert!(r.verdict.contains("1 outcome is unknown"), "{}", r.verdict);
    assert!(r.to_text().contains("not_writable_yet"), "{}", r.to_text());
    let again: Report = serde_json::from_str(&serde_json::to_string(&r).expect("JSON")).expect("a report");
    assert_eq!(again, r);
}

#[tokio::test(start_paused = true)]
async fn what_run_repeated_or_settled_is_not_told_as_what_callers_got() {
    let m = monitor();
    let (a, b) = (HostId(0), HostId(1));
    let rtt = Duration::from_millis(1);
    m.feed(Input::ProbeConnected { host: a, row: row(1, false), rtt });
    m.feed(Input::ProbeConnected { host: b, row: row(1, true), rtt });
    m.feed(Input::ProbeFailed { host: a, cause: EndCause::Reset });
    let met = |class| {
        let mut e = Error::new(Code::ConnectionLost, class, "gone").on_host("a (10.0.0.1:5432)".into());
        m.recorder.failed(&mut e, Some(a));
        e
    };
    met(Class::Transient).fate(Fate::Repeated);
    let mut in_doubt = [Class::UnknownOutcome; 4].map(met);
    in_doubt.iter_mut().for_each(|e| e.fate(Fate::Asked));
    pass(1_000).await;
    let early = report(&m);
    assert!(early.errors.iter().all(|e| (e.count, e.spared) == (0, 1)), "{:?}", early.errors);
    assert!(early.verdict.contains("4 outcomes were asked for: 0 committed, 4 without an answer yet"));
    let [committed, repeated, returned, late] = &mut in_doubt;
    committed.fate(Fate::Committed);
    repeated.fate(Fate::NotCommitted);
    repeated.fate(Fate::Repeated);
    returned.fate(Fate::NotCommitted);
    m.feed(Input::ProbeAnswered { host: b, row: row(2, false), rtt });
    super::Ear::new(&m.recorder, b).done(true, clock::now());
    pass(3_500).await;
    let r = report(&m);
    let o = &r.outages[0];
    assert_eq!((o.open, o.failed, o.unknown, o.spared, o.outcomes.under_way), (false, 1, 0, 3, 1));
    let line = super::text::outage_line(o);
    let want = "; callers got 1 error; run kept 3 from them; 4 outcomes were asked for: 1 committed, 2 not committed, \
                1 without an answer yet, 0 stayed unknown";
    assert!(line.ends_with(want), "{line}");
    // The answer comes when the outage is over.
    late.fate(Fate::Unanswered);
    let r = report(&m);
    let o = &r.outages[0];
    assert_eq!((o.failed, o.unknown, o.spared, o.outcomes.under_way, o.outcomes.unknown), (2, 1, 3, 0, 1));
    assert!(r.verdict.ends_with("1 committed, 2 not committed, 1 stayed unknown."), "{}", r.verdict);
    let errors: Vec<_> = r.errors.iter().map(|e| (e.class, e.count, e.spared)).collect();
    assert_eq!(errors, [(Class::UnknownOutcome, 1, 2), (Class::Transient, 1, 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_error_counts_as_what_its_caller_gets_though_more_was_known_of_it_later() {
    let m = monitor();
    let mut e = Error::new(Code::ConnectionLost, Class::UnknownOutcome, "gone");
    m.recorder.failed(&mut e, Some(HostId(0)));
    let e = e.with_class(Class::Transient);
    let told = || report(&m).errors.iter().map(|e| (e.class, e.count)).collect::<Vec<_>>();
    assert_eq!((told(), report(&m).outages[0].unknown), (vec![(Class::Transient, 1)], 0));
    drop(e.with_class(Class::UnknownOutcome));
    assert_eq!((told(), report(&m).outages[0].unknown), (vec![(Class::UnknownOutcome, 1)], 1));
}

/// The primary is gone, a caller waits.
fn lost(m: &Arc<Monitor>) -> super::held::Waiting {
    let rtt = Duration::from_millis(1);
    m.feed(Input::ProbeConnected { host: HostId(0), row: row(1, false), rtt });
    m.feed(Input::ProbeConnected { host: HostId(1), row: row(1, true), rtt });
    m.feed(Input::ProbeFailed { host: HostId(0), cause: EndCause::Reset });
    m.feed(Input::ProbeConnectFailed { host: HostId(0), kind: ConnectKind::Refused });
    m.recorder.failed(&mut Error::new(Code::ConnectionLost, Class::Transient, "gone"), Some(HostId(0)));
    m.recorder.wait()
}

#[tokio::test(start_paused = true)]
async fn a_new_primary_without_a_free_slot_is_a_storm_of_our_own_and_no_lack_of_a_primary() {
    let m = monitor();
    let waiting = lost(&m);
    let b = HostId(1);
    m.feed(Input::ConnectFailed { host: b, kind: ConnectKind::Full });
    for _ in 0..5 {
        m.feed(Input::ProbeAnswered { host: b, row: row(2, false), rtt: Duration::from_millis(1) });
        pass(400).await;
    }
    drop(waiting);
    super::Ear::new(&m.recorder, b).done(true, clock::now());
    pass(3_500).await;
    let o = &report(&m).outages[0];
    assert!(o.causes_ms["own_storm"] > 1_900.0, "{:?}", o.causes_ms);
}

#[tokio::test(start_paused = true)]
async fn without_a_task_that_keeps_time_an_outage_ends_all_the_same() {
    let m = monitor();
    drop(lost(&m));
    let ear = super::Ear::new(&m.recorder, HostId(1));
    for _ in 0..40 {
        pass(100).await;
        ear.done(true, clock::now());
    }
    let book = m.recorder.book();
    assert_eq!((book.outages.kept.len(), book.attribution.is_watching()), (1, false));
}

#[tokio::test(start_paused = true)]
async fn whatever_is_counted_is_counted_once_and_under_its_name() {
    let m = monitor();
    let r = &m.recorder;
    r.acquired_at_once();
    r.acquired(Duration::from_millis(20));
    r.used(Duration::from_millis(5));
    let counts = crate::decide::pool::Counts { idle: 1, lent: 2, waiting: 3, ..Default::default() };
    r.pool("p", counts);
    r.shed();
    r.acquire_failed(&mut Error::new(Code::DeadlinePassed, Class::Transient, "late").at_stage(Stage::Queue));
    let violation = Error::new(Code::Server, Class::Permanent, "twice");
    let mut violation = violation.with_sqlstate(SqlState::new("23505").expect("a state"));
    r.failed(&mut violation, Some(HostId(0)));
    r.failed(&mut violation, Some(HostId(0)));
    let refused = Failure::Dial { os: Some(libc::ECONNREFUSED), message: String::new() };
    r.attempt(HostId(0), By::Caller).over::<()>(&Err(Failed::new(Stage::Dial, refused)), &Progress::new());
    drop(r.attempt(HostId(1), By::Ahead));
    for outcome in [Some(Outcome::Committed), None, Some(Outcome::Unknown(Unsettled::TooOld))] {
        r.asked_outcome("table", outcome);
    }
    let got = report(&m);
    assert_eq!(got.acquire.map(|q| (q.count, q.p50_ms)), Some((2, 0.0)));
    assert_eq!((got.sheds, got.timeouts, got.outages.len()), (1, 1, 0));
    let errors: Vec<_> =
        got.errors.iter().map(|e| (e.code.as_str(), e.sqlstate.as_deref(), e.count)).collect();
    assert_eq!(errors, [("Server", Some("23505"), 2), ("DeadlinePassed", None, 1)]);
    assert_eq!(got.errors[0].host.as_deref(), Some("a (10.0.0.1:5432)"));
    let dials: Vec<_> = got.dials.iter().map(|d| (d.by.as_str(), d.result.as_str(), d.count)).collect();
    assert_eq!(dials, [("caller", "refused", 1), ("ahead", "abandoned", 1)]);
    let outcomes: Vec<_> =
        got.outcomes.iter().map(|o| (o.way.as_str(), o.result.as_str(), o.count)).collect();
    assert_eq!(outcomes, [("table", "committed", 1), ("table", "unknown", 2)]);
    assert!(got.to_text().contains("\n  2 × unknown, by table\n"), "{}", got.to_text());
    assert_eq!(got.verdict, "No outage in 0.0 ms.");
}

/// What spans say, as `name{field=value,…}` piece by piece.
#[derive(Clone, Default)]
struct Said(Arc<std::sync::Mutex<String>>);

impl tracing::field::Visit for Said {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().expect("words").push_str(&format!("{field}={value:?};"));
    }
}

impl tracing::Subscriber for Said {
    fn enabled(&self, m: &tracing::Metadata<'_>) -> bool {
        m.is_span() && m.target() == "pgfollow"
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        self.0.lock().expect("words").push_str(&format!("{}:", span.metadata().name()));
        span.record(&mut self.clone());
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut self.clone());
    }
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Traces are searched by these names: none may change unseen.
#[tokio::test(start_paused = true)]
async fn a_trace_shows_who_waited_for_which_session_how_long_and_what_came_of_it() {
    let (m, said) = (monitor(), Said::default());
    let _here = tracing::subscriber::set_default(said.clone());
    let session = async {
        pass(250).await;
        Err::<(), _>(Error::new(Code::Overloaded, Class::Transient, "full"))
    };
    assert!(m.recorder.waited(SessionAttrs::ReadWrite, session).await.is_err());
    m.recorder.waited(SessionAttrs::Any, async { Ok(()) }).await.expect("had at once");
    let said = said.0.lock().expect("words").replace('"', "");
    assert_eq!(
        said,
        "pgfollow.acquire:attrs=read-write;outcome=Overloaded;waited_ms=250.0;\
         pgfollow.acquire:attrs=any;outcome=acquired;waited_ms=0.0;"
    );
}

/// The published form and the real one: every key of each is a key of the other.
#[tokio::test(start_paused = true)]
async fn the_published_schema_is_not_stale() {
    let path = format!("{}/../docs/report.schema.json", env!("CARGO_MANIFEST_DIR"));
    let schema: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).expect("the schema")).expect("JSON");
    let example = format!("{}/../docs/report.example.json", env!("CARGO_MANIFEST_DIR"));
    let example = std::fs::read_to_string(&example).expect("the example");
    let value: serde_json::Value = serde_json::from_str(&example).expect("JSON");
    let read: Report = serde_json::from_str(&example).expect("the example is a report");
    assert_eq!(serde_json::to_value(&read).expect("JSON"), value, "the example has keys that no report has");
    assert_eq!(read.verdict, super::text::verdict(&read));
    let line = super::text::outage_line(&read.outages[0]);
    let page = std::fs::read_to_string(format!("{}/../docs/report.md", env!("CARGO_MANIFEST_DIR")));
    let words = page.expect("the page").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&line), "docs/report.md has another line than the example's: {line}");
    for now in [value, serde_json::to_value(report(&monitor())).expect("JSON")] {
        fits(&now, &schema, &schema, "report");
    }
}

/// As much of JSON Schema as the file uses.
fn fits(v: &serde_json::Value, s: &serde_json::Value, root: &serde_json::Value, at: &str) {
    use serde_json::Value;
    if let Some(name) = s["$ref"].as_str() {
        let target =
            root.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("{name} is nowhere"));
        return fits(v, target, root, at);
    }
    if let Some(any) = s["anyOf"].as_array() {
        let chosen = any.iter().find(|c| (c["type"] == "null") == v.is_null());
        return fits(v, chosen.unwrap_or_else(|| panic!("{at}: no form fits")), root, at);
    }
    let kinds: Vec<_> = match &s["type"] {
        Value::Array(a) => a.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    let kind = match v {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::Number(n) if !n.is_f64() && kinds.contains(&"integer") => "integer",
        Value::Number(_) => "number",
    };
    assert!(kinds.contains(&kind), "{at} is a {kind}, the schema says {kinds:?}");
    if let Some(allowed) = s["enum"].as_array().filter(|_| !v.is_null()) {
        assert!(allowed.contains(v), "{at}: {v} is none of {allowed:?}");
    }
    if let Value::Array(items) = v {
        items.iter().for_each(|i| fits(i, &s["items"], root, at));
    }
    let (Value::Object(map), Some(known)) = (v, s["properties"].as_object()) else {
        if let (Value::Object(map), more @ Value::Object(_)) = (v, &s["additionalProperties"]) {
            map.values().for_each(|i| fits(i, more, root, at));
        }
        return;
    };
    let required: Vec<_> = s["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for key in &required {
        assert!(map.contains_key(*key), "{at} lacks {key}");
    }
    assert_eq!(required.len(), known.len(), "{at}: every key is always there");
    for (key, value) in map {
        let s = known.get(key).unwrap_or_else(|| panic!("{at}.{key} isn't in docs/report.schema.json"));
        assert!(s["description"].is_string() || s["$ref"].is_string(), "{at}.{key} isn't explained");
        fits(value, s, root, &format!("{at}.{key}"));
    }
}
