//! Puts a report together from what was recorded and what is known now.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::book::ErrorKind;
use super::data::{
    DialLine, ErrorLine, EventLine, EvictionLine, HostReport, NameLine, OutageReport, OutcomeLine, Report,
    SegmentLine, SessionsSeen, StateLine,
};
use super::text;
use crate::clock::{self, Moment};
use crate::decide::attribute::Outage;
use crate::decide::names::NameReport;
use crate::host::HostId;
use crate::monitor::Monitor;

/// The form's version.
const SCHEMA: u32 = 1;

/// Milliseconds with the digits of a microsecond.
pub(super) fn ms(d: Duration) -> f64 {
    (d.as_secs_f64() * 1e6).round() / 1e3
}

impl Report {
    pub(crate) fn compose(monitor: &Monitor, names: Vec<NameReport>) -> Self {
        let now = clock::now();
        monitor.reckon(now);
        let snapshot = monitor.snapshot_now();
        let recorder = &monitor.recorder;
        let at_once = recorder.at_once.load(std::sync::atomic::Ordering::Relaxed);
        let book = recorder.book();
        let since = |m: Moment| ms(m - recorder.born);
        let label = |h: HostId| book.label(h).to_string();

        let open = book.attribution.open(now);
        let outages: Vec<_> =
            book.outages.kept.iter().chain(open.as_ref()).map(|o| outage(o, &since, &label)).collect();
        let hosts = snapshot.hosts.iter().map(|h| {
            let kept = book.hosts.get(&h.id);
            HostReport {
                id: h.id.0,
                name: h.name.to_string(),
                address: h.address.to_string(),
                state: h.state.to_string(),
                timeline: h.timeline,
                #[expect(clippy::cast_precision_loss, reason = "an age")]
                answer_age_ms: h.answer_age_ms.map(|a| a as f64),
                rtt_ms: h.rtt_us.map(|us| ms(Duration::from_micros(us))),
                gone: h.gone,
                states: kept.map_or_else(Vec::new, |k| {
                    let line = |(at, state): &(Moment, _)| StateLine {
                        from_ms: since(*at),
                        state: format!("{state}"),
                    };
                    k.states.kept.iter().map(line).collect()
                }),
                sessions: kept.and_then(|k| k.sessions).map(|(at, seen)| {
                    let age_ms = u64::try_from((now - at).as_millis()).unwrap_or(u64::MAX);
                    SessionsSeen { age_ms, ..seen }
                }),
            }
        });
        // One that was told and counts no more (its outcome is asked for now, or its class is another) leaves a nought.
        let (got, spared) = (&book.errors.counts, &book.spared.counts);
        let kinds: BTreeSet<_> = got.keys().chain(spared.keys()).collect();
        let of = |counts: &BTreeMap<_, u64>, kind: &ErrorKind| counts.get(kind).copied().unwrap_or(0);
        let lines = kinds.into_iter().map(|k| ErrorLine {
            host: k.host.clone(),
            code: k.code().to_owned(),
            class: k.class(),
            sqlstate: k.sqlstate.map(|s| s.to_string()),
            count: of(got, k),
            spared: of(spared, k),
        });
        let mut errors: Vec<_> = lines.filter(|e| e.count + e.spared > 0).collect();
        errors.sort_by_key(|e| std::cmp::Reverse((e.count, e.spared)));
        let dials = book.dials.counts.iter().map(|((host, by, result), n)| DialLine {
            host: label(*host),
            by: by.name().to_owned(),
            result: (*result).to_owned(),
            count: *n,
        });
        let evictions = book.evictions.counts.iter().map(|((host, cause), n)| EvictionLine {
            host: label(*host),
            cause: cause.clone(),
            count: *n,
        });
        let outcomes = book.outcomes.counts.iter().map(|((way, result), n)| OutcomeLine {
            way: (*way).to_owned(),
            result: (*result).to_owned(),
            count: *n,
        });
        let stages = book.stages.iter().filter_map(|(s, h)| Some((s.to_string(), h.quantiles(0)?)));
        let mut report = Self {
            schema: SCHEMA,
            pgfollow: env!("CARGO_PKG_VERSION").to_owned(),
            application_name: monitor.config.application_name.clone(),
            taken_unix_ms: ms(clock::unix()),
            taken_ms: since(now),
            verdict: String::new(),
            outages,
            outages_dropped: book.outages.dropped,
            hosts: hosts.collect(),
            names: names.into_iter().map(name).collect(),
            acquire: book.acquire.quantiles(at_once),
            stages: stages.collect(),
            calls: book.calls,
            errors,
            dials: dials.collect(),
            evictions: evictions.collect(),
            outcomes: outcomes.collect(),
            sheds: book.sheds,
            timeouts: book.timeouts,
            events: book
                .events
                .kept
                .iter()
                .map(|(at, event, text)| EventLine {
                    at_ms: since(*at),
                    event: event.clone(),
                    text: text.clone(),
                })
                .collect(),
            events_dropped: book.events.dropped,
        };
        report.verdict = text::verdict(&report);
        report
    }
}

pub(super) fn outage(
    o: &Outage,
    since: &dyn Fn(Moment) -> f64,
    label: &dyn Fn(HostId) -> String,
) -> OutageReport {
    let after = |m: Moment| ms(m - o.from);
    OutageReport {
        from_ms: since(o.from),
        until_ms: since(o.until),
        open: o.open,
        whole_ms: ms(o.whole()),
        causes_ms: o.parts.iter().map(|(c, d)| (c.name().to_owned(), ms(d))).collect(),
        main_cause: o.parts.main(),
        segments: o
            .segments
            .iter()
            .map(|s| SegmentLine { from_ms: since(s.from), until_ms: since(s.until), cause: s.cause })
            .collect(),
        lost_host: o.lost.map(label),
        back_host: o.back.map(label),
        fault_to_ready_ms: o.ready.map(after),
        fault_to_first_success_ms: o.first_success.map(after),
        fault_to_last_success_ms: (!o.open && o.back.is_some()).then(|| after(o.until)),
        failed: o.errors.failed,
        other_errors: o.errors.other,
        unknown: o.errors.unknown,
        spared: o.errors.spared,
        outcomes: o.errors.asked,
    }
}

fn name(n: NameReport) -> NameLine {
    NameLine {
        name: n.name,
        addresses: n.addresses.iter().map(ToString::to_string).collect(),
        ttl_s: n.ttl_s,
        age_ms: n.age_ms,
        stale: n.stale,
        error: n.error,
    }
}
