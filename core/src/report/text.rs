//! The report in words.

use std::fmt::Write;
use std::time::Duration;

use super::data::{OutageReport, Report};
use super::hist::Quantiles;
use crate::decide::attribute::{Outage, OutageCause};
use crate::host::HostId;

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
pub(super) fn outage_line(o: &Outage, label: &dyn Fn(HostId) -> String) -> String {
    let parts = o.parts.iter().filter(|(_, d)| !d.is_zero());
    let parts: Vec<_> = parts.map(|(c, d)| format!("{} {}", c.name(), duration(d))).collect();
    let mut line = format!("outage of {}: {}", duration(o.whole()), parts.join(", "));
    if let Some(lost) = o.lost {
        let _ = write!(line, "; lost {}", label(lost));
    }
    if let Some(back) = o.back {
        let _ = write!(line, "; back on {}", label(back));
        if let Some(ready) = o.ready {
            let _ = write!(line, ", which took writes after {}", duration(ready - o.from));
        }
    }
    let _ = write!(line, "; {}, {} of unknown outcome", plural(o.failed, "error", "errors"), o.unknown);
    line
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
    match last.unknown {
        0 => {}
        n => drop(write!(text, " {} unknown.", plural(n, "outcome is", "outcomes are"))),
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
            let line = h.timeline.map_or(String::new(), |n| format!(", timeline {n}"));
            let rtt = h.rtt_ms.map_or(String::new(), |ms| format!(", round trip {}", of_ms(ms)));
            let sessions = h.sessions.map_or(String::new(), |s| {
                let (ours, monitors, max) = (s.application, s.monitors, s.max_connections);
                format!(", {ours} sessions of this service and {monitors} of monitors, of {max}")
            });
            let _ = writeln!(t, "  {} ({}): {}{line}{rtt}{sessions}", h.name, h.address, h.state);
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
            "\ncalls: {} writes and {} others succeeded; {} shed, {} gave up waiting for a session",
            self.calls.writes, self.calls.others, self.sheds, self.timeouts
        );
        for e in &self.errors {
            let host = e.host.as_ref().map_or(String::new(), |h| format!(" on {h}"));
            let state = e.sqlstate.as_ref().map_or(String::new(), |s| format!(" {s}"));
            let _ = writeln!(t, "  {} × {} ({}{state}){host}", e.count, e.class, e.code);
        }
        for d in &self.dials {
            let _ = writeln!(t, "  {} × {} by {} at {}", d.count, d.result, d.by, d.host);
        }
        for e in &self.evictions {
            let _ = writeln!(t, "  {} × session ended at {}: {}", e.count, e.host, e.cause);
        }
        for o in &self.outcomes {
            let _ = writeln!(t, "  {} × outcome asked for by {}: {}", o.count, o.way, o.result);
        }
    }
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
    let host = |h: &Option<String>| h.clone().unwrap_or_else(|| "–".to_owned());
    let _ = writeln!(t, "  lost {}, back on {}", host(&o.lost_host), host(&o.back_host));
    for (what, ms) in [
        ("the new primary was first seen to take writes", o.fault_to_ready_ms),
        ("first write of the service", o.fault_to_first_success_ms),
        ("nobody held up any more", o.fault_to_last_success_ms),
    ] {
        if let Some(ms) = ms {
            let _ = writeln!(t, "  {what} after {}", of_ms(ms));
        }
    }
    let _ = writeln!(t, "  {} errors, {} of unknown outcome; {} others", o.failed, o.unknown, o.other_errors);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_said_as_people_say_it() {
        let said = [5_u64, 1_500, 850_000, 1_850_000, 123_000_000, 19_200_000_000];
        let said = said.map(|us| duration(Duration::from_micros(us)));
        assert_eq!(said, ["0.0 ms", "1.5 ms", "850 ms", "1.85 s", "2 min 3 s", "5 h 20 min"]);
    }
}
