//! The page: places in the picture are worked out here, the rest is the template (which escapes all that it is given).

use std::time::Duration;

use minijinja::{AutoEscape, Environment, context};
use pgfollow::Report;
use pgfollow::decide::attribute::OutageCause;
use pgfollow::report::{OutageReport, Quantiles, duration};
use serde::Serialize;

/// A stretch of a lane. Places are percents of the width.
#[derive(Serialize)]
struct Bar {
    x: f64,
    width: f64,
    /// A class of the style sheet.
    kind: String,
    text: String,
    title: String,
}

/// A host's states over time.
#[derive(Serialize)]
struct Lane {
    name: String,
    y: usize,
    bars: Vec<Bar>,
}

#[derive(Serialize)]
struct Tick {
    x: f64,
    text: String,
}

/// A moment worth a line in the picture.
#[derive(Serialize)]
struct Mark {
    x: f64,
    number: usize,
    text: String,
}

#[derive(Serialize)]
struct Part {
    kind: &'static str,
    words: &'static str,
    time: String,
    percent: f64,
}

#[derive(Serialize)]
struct Picture {
    title: String,
    at: String,
    lanes: Vec<Lane>,
    band: Vec<Bar>,
    band_y: usize,
    height: usize,
    ticks: Vec<Tick>,
    marks: Vec<Mark>,
    parts: Vec<Part>,
    facts: Vec<String>,
}

/// One row of the waits.
#[derive(Serialize)]
struct Wait {
    name: String,
    count: u64,
    cells: Vec<WaitCell>,
}

#[derive(Serialize)]
struct WaitCell {
    text: String,
    /// Length of its bar, on a logarithmic scale, in percent.
    bar: f64,
}

/// Height of a lane: a line of text and a bar.
const LANE: usize = 40;

fn of_ms(ms: f64) -> String {
    // Whatever a file says: no longer than can be told.
    duration(Duration::from_secs_f64((ms / 1e3).clamp(0.0, 1e12)))
}

/// A moment of the report by the wall clock.
fn utc(report: &Report, at_ms: f64) -> String {
    let unix = report.taken_unix_ms - report.taken_ms + at_ms;
    // No report is older than 1970 or younger than the year 10000.
    #[expect(clippy::cast_possible_truncation, reason = "bounded here")]
    let ms = unix.clamp(0.0, 253_402_300_799_000.0) as i64;
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    // Days to a date of the Gregorian calendar, counted from a first of March.
    let from_march = days + 719_468;
    let (era, day) = (from_march / 146_097, from_march % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (month, day) = (if month < 10 { month + 3 } else { month - 9 }, day - (153 * month + 2) / 5 + 1);
    let year = year + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02} UTC")
}

/// The time that a picture shows, and where a moment lies in it.
struct Scale {
    from: f64,
    until: f64,
}

impl Scale {
    fn new(o: &OutageReport) -> Self {
        let around = (o.whole_ms * 0.12).max(1.0);
        Self { from: o.from_ms - around, until: o.until_ms + around }
    }

    fn x(&self, at: f64) -> f64 {
        let x = 100.0 * (at - self.from) / (self.until - self.from);
        (x.clamp(0.0, 100.0) * 1e3).round() / 1e3
    }

    fn bar(&self, (from, until): (f64, f64), kind: &str, text: &str, title: String) -> Option<Bar> {
        let (x, end) = (self.x(from), self.x(until));
        (end > x).then(|| Bar { x, width: end - x, kind: kind.to_owned(), text: text.to_owned(), title })
    }

    /// A handful of round times since the outage's beginning.
    fn ticks(&self, o: &OutageReport) -> Vec<Tick> {
        let span = self.until - self.from;
        let steps = [1.0, 2.0, 5.0].into_iter().cycle().zip((0..30).map(|n| 10_f64.powi(n / 3)));
        let step = steps.map(|(a, b)| a * b).find(|s| span / s <= 6.0).unwrap_or(span);
        let mut ticks = Vec::new();
        let mut at = 0.0;
        while o.from_ms + at <= self.until && ticks.len() < 10 {
            let text = if at == 0.0 { "0".to_owned() } else { of_ms(at) };
            ticks.push(Tick { x: self.x(o.from_ms + at), text });
            at += step;
        }
        ticks
    }
}

/// `suspect(2)` and `suspect(3)` look alike.
fn state_kind(state: &str) -> &str {
    state.split('(').next().unwrap_or(state)
}

/// With a capital and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

fn picture(report: &Report, o: &OutageReport) -> Picture {
    let scale = Scale::new(o);
    let lanes: Vec<Lane> = report
        .hosts
        .iter()
        .enumerate()
        .map(|(n, h)| {
            let ends = h.states.iter().skip(1).map(|s| s.from_ms).chain([report.taken_ms]);
            let bars = h.states.iter().zip(ends).filter_map(|(s, end)| {
                let title = format!("{}: {} for {}", h.name, s.state, of_ms(end - s.from_ms));
                let kind = state_kind(&s.state);
                scale.bar((s.from_ms, end), kind, kind, title)
            });
            let name = if h.address.starts_with(&h.name) {
                h.address.clone()
            } else {
                format!("{} ({})", h.name, h.address)
            };
            Lane { name, y: n * LANE, bars: bars.collect() }
        })
        .collect();
    let band = o.segments.iter().filter_map(|s| {
        let title = format!("{}: {}", s.cause.words(), of_ms(s.until_ms - s.from_ms));
        scale.bar((s.from_ms, s.until_ms), s.cause.name(), s.cause.name(), title)
    });
    let times = [
        (o.fault_to_ready_ms, "the new primary was first seen to take writes"),
        (o.fault_to_first_success_ms, "the service's first write succeeded"),
        (o.fault_to_last_success_ms, "nobody was held up any more"),
    ];
    let marks = times.into_iter().filter_map(|(ms, text)| Some((ms?, text))).enumerate();
    let marks = marks.map(|(n, (ms, text))| Mark {
        x: scale.x(o.from_ms + ms),
        number: n + 1,
        text: format!("{text} after {}", of_ms(ms)),
    });
    let parts = OutageCause::ALL.into_iter().filter_map(|c| {
        let ms = o.causes_ms.get(c.name()).copied().filter(|ms| *ms > 0.0)?;
        let percent = (1e3 * ms / o.whole_ms).round() / 10.0;
        Some(Part { kind: c.name(), words: c.words(), time: of_ms(ms), percent })
    });
    let open = if o.open { ", and it goes on" } else { "" };
    let band_y = lanes.len() * LANE;
    Picture {
        title: format!("Outage of {}{open}", of_ms(o.whole_ms)),
        at: utc(report, o.from_ms),
        band_y,
        height: band_y + LANE + 24,
        lanes,
        band: band.collect(),
        ticks: scale.ticks(o),
        marks: marks.collect(),
        parts: parts.collect(),
        facts: o.way().into_iter().chain([o.callers()]).map(|f| sentence(&f)).collect(),
    }
}

fn waits(report: &Report) -> Vec<Wait> {
    let order = ["queue", "pace", "resolve", "dial", "secure", "authenticate", "role", "blocked", "work"];
    let stages = order.iter().filter_map(|name| Some((*name, report.stages.get(*name)?)));
    let all: Vec<(&str, &Quantiles)> = report.acquire.iter().map(|q| ("acquire", q)).chain(stages).collect();
    let longest = all.iter().map(|(_, q)| q.max_ms).fold(1.0, f64::max);
    // A hundredth of a millisecond has no length; the longest has all.
    let bar = |ms: f64| (100.0 * (ms.max(0.01) / 0.01).log10() / (longest / 0.01).log10()).clamp(0.0, 100.0);
    let row = |(name, q): (&str, &Quantiles)| Wait {
        name: name.to_owned(),
        count: q.count,
        cells: [q.p50_ms, q.p90_ms, q.p99_ms, q.p999_ms, q.max_ms]
            .into_iter()
            .map(|ms| WaitCell { text: of_ms(ms), bar: (bar(ms) * 10.0).round() / 10.0 })
            .collect(),
    };
    all.into_iter().map(row).collect()
}

/// The page of a report.
pub(super) fn render(report: &Report) -> Result<String, minijinja::Error> {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| AutoEscape::Html);
    env.add_template("page", include_str!("page.html.j2"))?;
    // The last one first: it is what people come for.
    let pictures: Vec<_> = report.outages.iter().rev().map(|o| picture(report, o)).collect();
    let events: Vec<_> =
        report.events.iter().map(|e| (utc(report, e.at_ms), of_ms(e.at_ms), &e.text)).collect();
    let seen: Vec<_> = report.hosts.iter().map(|h| h.last_seen().map(duration)).collect();
    env.get_template("page")?.render(context! {
        report,
        seen,
        taken => utc(report, report.taken_ms),
        lasted => of_ms(report.taken_ms),
        pictures,
        waits => waits(report),
        events,
        lane => LANE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Report {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/report.example.json");
        serde_json::from_str(&std::fs::read_to_string(path).expect("the example")).expect("a report")
    }

    #[test]
    fn a_date_is_the_calendars() {
        let mut r = example();
        (r.taken_ms, r.taken_unix_ms) = (1_000.0, 1_000.0);
        assert_eq!(utc(&r, 0.0), "1970-01-01 00:00:00 UTC");
        r.taken_unix_ms = 951_782_400_000.0 + 1_000.0;
        assert_eq!(utc(&r, 0.0), "2000-02-29 00:00:00 UTC");
        r.taken_unix_ms = 1_798_761_599_000.0;
        assert_eq!(utc(&r, 1_000.0), "2026-12-31 23:59:59 UTC");
    }

    #[test]
    fn the_band_is_as_long_as_the_outage_and_nothing_leaves_the_picture() {
        let r = example();
        let p = picture(&r, &r.outages[0]);
        let (first, last) = (p.band.first().expect("a band"), p.band.last().expect("a band"));
        let whole: f64 = p.band.iter().map(|b| b.width).sum();
        assert!((last.x + last.width - first.x - whole).abs() < 0.01, "gaps in the band");
        let inside = |b: &Bar| b.x >= 0.0 && b.x + b.width <= 100.01;
        assert!(p.band.iter().chain(p.lanes.iter().flat_map(|l| &l.bars)).all(inside));
        assert_eq!(p.lanes.len(), 3);
        assert!((2..=10).contains(&p.ticks.len()), "{} ticks", p.ticks.len());
        assert_eq!(p.marks.len(), 3);
    }

    #[test]
    fn a_servers_text_can_not_become_markup() {
        let mut r = example();
        let evil = "<script>alert(1)</script>\"'&";
        r.verdict = evil.to_owned();
        r.application_name = evil.to_owned();
        r.events[0].text = evil.to_owned();
        r.hosts[0].name = evil.to_owned();
        r.hosts[0].states[0].state = evil.to_owned();
        r.outages[0].lost_host = Some(evil.to_owned());
        let html = render(&r).expect("a page");
        assert!(!html.contains("<script") && html.contains("&lt;script&gt;"));
    }

    #[test]
    fn impossible_times_are_no_reason_to_fall_over() {
        let mut r = example();
        (r.taken_ms, r.outages[0].whole_ms, r.outages[0].until_ms) = (1e300, -1e300, 1e300);
        r.outages[0].segments[0].until_ms = -5.0;
        r.hosts[0].states[0].from_ms = 1e300;
        assert!(render(&r).is_ok_and(|html| html.contains("</html>")));
        assert!(r.to_text().contains("hosts"));
    }

    #[test]
    fn a_report_without_outages_is_a_page_too() {
        let mut r = example();
        r.outages.clear();
        r.acquire = None;
        r.stages.clear();
        let html = render(&r).expect("a page");
        assert!(!html.contains("<svg") && html.contains("No outage"), "{html}");
    }
}
