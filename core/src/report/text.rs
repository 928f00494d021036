//! The report in words.

use std::fmt::Write;
use std::time::Duration;

use super::data::{HostReport, OutageReport, Report};
use super::hist::Quantiles;
use crate::decide::attribute::{Asked, Errors, OutageCause};

/// A duration as people say it: `850 ms`, `1.85 s`, `2 min 3 s`, `5 h 20 min`.
pub fn duration(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0 if d.as_micros() < 10_000 => format!("{:.1} ms", d.as_secs_f64() * 1e3),
        0 => format!("{} ms", d.as_millis()),
        1..60 => format!("{:.2} s", d.as_secs_f64()),
        60..3_600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3_600, s / 60 % 60),
    }
}

fn of_ms(ms: f64) -> String {
    // Whatever a file says: no longer than can be told.
    duration(Duration::from_secs_f64((ms / 1e3).clamp(0.0, 1e12)))
}

fn plural(n: u64, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

/// The one line after every outage.
pub(super) fn outage_line(o: &OutageReport) -> String {
    let part = |c: OutageCause| Some((c.name(), *o.causes_ms.get(c.name()).filter(|ms| **ms > 0.0)?));
    let parts = OutageCause::ALL.into_iter().filter_map(part);
    let parts: Vec<_> = parts.map(|(name, ms)| format!("{name} {}", of_ms(ms))).collect();
    let mut line = format!("outage of {}: {}", of_ms(o.whole_ms), parts.join(", "));
    if let Some(lost) = &o.lost_host {
        let _ = write!(line, "; lost {lost}");
    }
    if let Some(back) = &o.back_host {
        let _ = write!(line, "; back on {back}");
        if let Some(ready) = o.fault_to_ready_ms {
            let _ = write!(line, ", which took writes after {}", of_ms(ready));
        }
    }
    let _ = write!(line, "; {}", o.callers());
    line
}

/// What callers got, and what `run` kept from them.
fn errors(e: &Errors) -> String {
    let mut text = match (e.failed, e.other) {
        (0, 0) => "callers got no error".to_owned(),
        (failed, 0) => format!("callers got {}", plural(failed, "error", "errors")),
        (failed, other) => {
            format!(
                "callers got {} of the failover and {other} of other kinds",
                plural(failed, "error", "errors")
            )
        }
    };
    if e.unknown > 0 {
        let _ = write!(text, ", {} of unknown outcome", e.unknown);
    }
    if e.spared > 0 {
        let _ = write!(text, "; run kept {} from them", e.spared);
    }
    if let Some(asked) = asked(&e.asked) {
        let _ = write!(text, "; {asked}");
    }
    text
}

/// Outcomes that were asked for.
fn asked(a: &Asked) -> Option<String> {
    let all = a.all();
    let mut text =
        format!("{} asked for: {} committed", plural(all, "outcome was", "outcomes were"), a.committed);
    if a.not_committed > 0 {
        let _ = write!(text, ", {} not committed", a.not_committed);
    }
    if a.under_way > 0 {
        let _ = write!(text, ", {} without an answer yet", a.under_way);
    }
    let _ = write!(text, ", {} stayed unknown", a.unknown);
    (all > 0).then_some(text)
}

/// The whole in a sentence or two.
pub(super) fn verdict(r: &Report) -> String {
    let Some(last) = r.outages.last() else {
        return format!("No outage in {}.", of_ms(r.taken_ms));
    };
    let main = last.main_cause.map_or(String::new(), |c| {
        let part = last.causes_ms.get(c.name()).copied().unwrap_or_default();
        format!("; for {} of it {}", of_ms(part), c.words())
    });
    let mut text = if last.open {
        format!("An outage is going on: {} so far{main}.", of_ms(last.whole_ms))
    } else {
        format!("The service was out for {}{main}.", of_ms(last.whole_ms))
    };
    if let (Some(ready), Some(first)) = (last.fault_to_ready_ms, last.fault_to_first_success_ms) {
        let _ = write!(
            text,
            " The new primary was first seen to take writes after {}; the service's first write succeeded {} later.",
            of_ms(ready),
            of_ms(first - ready)
        );
    }
    if let Some(asked) = asked(&last.outcomes) {
        let _ = write!(text, " {asked}.");
    }
    match last.unknown.saturating_sub(last.outcomes.unknown) {
        0 => {}
        n => drop(write!(text, " {} unknown, and not asked for.", plural(n, "outcome is", "outcomes are"))),
    }
    let all = u64::try_from(r.outages.len()).unwrap_or(0) + r.outages_dropped;
    if all > 1 {
        let _ = write!(text, " It was the last of {all} outages in {}.", of_ms(r.taken_ms));
    }
    text
}

impl Report {
    /// The report for a terminal: the verdict first, then what it rests on.
    pub fn to_text(&self) -> String {
        let mut t = format!("{}\n", self.verdict);
        for o in &self.outages {
            t.push('\n');
            outage(&mut t, o);
        }
        t.push_str("\nhosts\n");
        for h in &self.hosts {
            host(&mut t, h);
        }
        for n in &self.names {
            let ttl = n.ttl_s.map_or(String::new(), |s| format!(", TTL {s} s"));
            let age =
                n.age_ms.map_or(String::new(), |ms| format!(", {} old", duration(Duration::from_millis(ms))));
            let stale = if n.stale { ", stale" } else { "" };
            let _ = writeln!(t, "  name {}: {}{ttl}{age}{stale}", n.name, n.addresses.join(", "));
        }
        self.waits(&mut t);
        self.counts(&mut t);
        t
    }

    fn waits(&self, t: &mut String) {
        let stages = self.stages.iter().map(|(name, q)| (name.as_str(), q));
        let all: Vec<_> = self.acquire.iter().map(|q| ("acquire", q)).chain(stages).collect();
        if all.is_empty() {
            return;
        }
        let _ = writeln!(
            t,
            "\n{:14}{:>9}{:>12}{:>12}{:>12}{:>12}",
            "waits", "count", "p50", "p90", "p99", "longest"
        );
        for (name, Quantiles { count, p50_ms, p90_ms, p99_ms, max_ms, .. }) in all {
            let [a, b, c, d] = [p50_ms, p90_ms, p99_ms, max_ms].map(|ms| of_ms(*ms));
            let _ = writeln!(t, "  {name:12}{count:>9}{a:>12}{b:>12}{c:>12}{d:>12}");
        }
    }

    fn counts(&self, t: &mut String) {
        let _ = writeln!(
            t,
            "\ncalls\n  {} and {} succeeded; {} refused at once, {} gave up waiting for a session",
            plural(self.calls.writes, "write", "writes"),
            plural(self.calls.others, "other request", "other requests"),
            plural(self.sheds, "caller was", "callers were"),
            self.timeouts
        );
        let mut under = |heading: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                let _ = writeln!(t, "{heading}\n  {}", lines.join("\n  "));
            }
        };
        let errors = self.errors.iter().map(|e| {
            let host = e.host.as_ref().map_or(String::new(), |h| format!(" on {h}"));
            let state = e.sqlstate.as_ref().map_or(String::new(), |s| format!(" {s}"));
            let kept = if e.spared > 0 {
                format!(", and {} that run kept from them", e.spared)
            } else {
                String::new()
            };
            format!("{} × {} ({}{state}){host}{kept}", e.count, e.class, e.code)
        });
        under("errors that callers got", errors.collect());
        let ended = self.evictions.iter().map(|e| format!("{} × {} at {}", e.count, e.cause, e.host));
        under("sessions ended, not by their owners", ended.collect());
        let dials = self.dials.iter().map(|d| {
            let by = match d.by.as_str() {
                "caller" => "for a caller",
                "monitor" => "by the monitor",
                "ahead" => "ahead of callers, for a pool's stock",
                other => other,
            };
            format!("{} × {} at {}, {by}", d.count, d.result, d.host)
        });
        under("logins tried", dials.collect());
        let outcomes = self.outcomes.iter().map(|o| format!("{} × {}, by {}", o.count, o.result, o.way));
        under("outcomes asked for, because the answer to a COMMIT was lost", outcomes.collect());
    }
}

impl OutageReport {
    /// Where it was lost and found again, in words, as far as is known: `lost db-a …, back on db-b …`.
    pub fn way(&self) -> Option<String> {
        let lost = self.lost_host.as_ref().map(|h| format!("lost {h}"));
        let back = self.back_host.as_ref().map(|h| format!("back on {h}"));
        let known: Vec<_> = lost.into_iter().chain(back).collect();
        (!known.is_empty()).then(|| known.join(", "))
    }

    /// What callers got of it, in words, and what [`crate::Connector::run`] and its kin kept from them.
    pub fn callers(&self) -> String {
        let Self { failed, other_errors: other, unknown, spared, outcomes: asked, .. } = *self;
        errors(&Errors { failed, other, unknown, spared, asked })
    }
}

/// An answer that is older than this is none of the present. The monitor asks every second, and on a busy machine late.
const PRESENT_MS: f64 = 5_000.0;

impl HostReport {
    /// How long ago it answered last, where what is told of it (its timeline, round trip and sessions) is of then and not
    /// of the present: it is down or doubted, or it hasn't answered for long.
    pub fn last_seen(&self) -> Option<Duration> {
        let silent = self.state == "down" || self.state == "unknown" || self.state.starts_with("suspect");
        let age = self.answer_age_ms.filter(|ms| silent || *ms > PRESENT_MS)?;
        Some(Duration::from_secs_f64((age / 1e3).clamp(0.0, 1e12)))
    }
}

fn host(t: &mut String, h: &HostReport) {
    let timeline = h.timeline.map(|n| format!("timeline {n}"));
    let rtt = h.rtt_ms.map(|ms| format!("round trip {}", of_ms(ms)));
    let sessions = h.sessions.map(|s| {
        let ours = plural(s.application.into(), "session", "sessions");
        format!(
            "{ours} of this service and {} of monitors (max_connections {})",
            s.monitors, s.max_connections
        )
    });
    let figures: Vec<_> = timeline.into_iter().chain(rtt).chain(sessions).collect();
    let when = h.last_seen().map_or(", ".to_owned(), |ago| format!("; last seen {} ago: ", duration(ago)));
    let figures = if figures.is_empty() { String::new() } else { when + &figures.join(", ") };
    let _ = writeln!(t, "  {} ({}): {}{figures}", h.name, h.address, h.state);
}

fn outage(t: &mut String, o: &OutageReport) {
    let open = if o.open { ", and goes on" } else { "" };
    let _ = writeln!(t, "outage of {}{open}, {} after the start", of_ms(o.whole_ms), of_ms(o.from_ms));
    for c in OutageCause::ALL {
        let part = o.causes_ms.get(c.name()).copied().unwrap_or_default();
        if part > 0.0 {
            let _ = writeln!(t, "  {:20}{:>10}  {:>3.0} %", c.name(), of_ms(part), 100.0 * part / o.whole_ms);
        }
    }
    if let Some(way) = o.way() {
        let _ = writeln!(t, "  {way}");
    }
    for (what, ms) in [
        ("the new primary was first seen to take writes", o.fault_to_ready_ms),
        ("first write of the service", o.fault_to_first_success_ms),
        ("nobody held up any more", o.fault_to_last_success_ms),
    ] {
        if let Some(ms) = ms {
            let _ = writeln!(t, "  {what} after {}", of_ms(ms));
        }
    }
    let _ = writeln!(t, "  {}", o.callers());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::SessionsSeen;

    fn example() -> Report {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/report.example.json");
        serde_json::from_str(&std::fs::read_to_string(path).expect("the example")).expect("a report")
    }

    #[test]
    fn what_is_told_of_a_silent_host_is_not_told_as_the_present() {
        let mut r = example();
        r.hosts[0].sessions = Some(SessionsSeen {
            application: 1,
            monitors: 2,
            max_connections: 100,
            ..SessionsSeen::default()
        });
        r.hosts[0].state = "down".to_owned();
        r.hosts[0].answer_age_ms = Some(1_200.0);
        let last_seen = "  db-a (10.0.0.11:5432): down; last seen 1.20 s ago: timeline 1, round trip 44 ms, \
                         1 session of this service and 2 of monitors (max_connections 100)\n";
        assert!(r.to_text().contains(last_seen), "{}", r.to_text());
        r.hosts[0].state = "primary".to_owned();
        assert!(r.to_text().contains("db-a (10.0.0.11:5432): primary, timeline 1"), "{}", r.to_text());
        r.hosts[0].answer_age_ms = Some(60_000.0);
        assert!(r.to_text().contains("primary; last seen 1 min 0 s ago: timeline 1"), "{}", r.to_text());
    }

    #[test]
    fn every_list_has_its_heading_and_nothing_is_told_of_what_is_not_known() {
        let mut r = example();
        r.dials[0].by = "ahead".to_owned();
        (r.calls.writes, r.outages[0].lost_host, r.outages[0].back_host) = (1, None, None);
        let text = r.to_text();
        for heading in
            ["calls", "errors that callers got", "sessions ended, not by their owners", "logins tried"]
        {
            assert!(text.contains(&format!("\n{heading}\n  ")), "{heading} of {text}");
        }
        assert!(
            text.contains("ahead of callers, for a pool's stock") && text.contains("\n  1 write and "),
            "{text}"
        );
        assert!(
            !text.contains("outcomes asked for") && !text.contains('–') && !text.contains("back on"),
            "{text}"
        );
    }

    #[test]
    fn a_duration_is_said_as_people_say_it() {
        let said = [5_u64, 1_500, 850_000, 1_850_000, 123_000_000, 19_200_000_000];
        let said = said.map(|us| duration(Duration::from_micros(us)));
        assert_eq!(said, ["0.0 ms", "1.5 ms", "850 ms", "1.85 s", "2 min 3 s", "5 h 20 min"]);
    }
}
