//! `cargo run -p pgfollow-sim --example fleet_svg -- docs`: writes `fleet-40x20.svg` into that folder. A fleet of 40 × 20
//! sessions fails over onto a cold node, with the library, with it but no pace, and with the driver alone: logins that the node finished and
//! writes that were acknowledged, second by second. `-- docs 500 20` draws another fleet.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use pgfollow_sim::fleet::{Curve, Fleet, Pace, fail_over};

/// Seconds that are drawn.
const SECONDS: usize = 20;
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 60.0;
/// Vertical distance between two panels.
const PANEL: f64 = 215.0;

/// Sums of one second each.
fn seconds(curve: &Curve, of: fn(&pgfollow_sim::fleet::Tenth) -> u32) -> Vec<u32> {
    curve.tenths.chunks(10).take(SECONDS).map(|ten| ten.iter().map(of).sum()).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a picture")]
fn line(values: &[u32], top: f64, most: u32, class: &str) -> String {
    let mut points = String::new();
    for (i, v) in values.iter().enumerate() {
        let x = LEFT + WIDTH * (i as f64 + 0.5) / SECONDS as f64;
        let y = top + HEIGHT * (1.0 - f64::from(*v) / f64::from(most.max(1)));
        // Writing to a String can't fail.
        let _ = write!(points, "{x:.1},{y:.1} ");
    }
    format!("<polyline class=\"{class}\" points=\"{}\"/>\n", points.trim_end())
}

#[expect(clippy::cast_precision_loss, reason = "a picture")]
fn panel(curve: &Curve, number: usize, name: &str, most: u32) -> String {
    let top = 50.0 + PANEL * number as f64;
    let (left, right, bottom) = (LEFT, LEFT + WIDTH, top + HEIGHT);
    let x = |seconds: f64| left + WIDTH * seconds / SECONDS as f64;
    let back = curve
        .back
        .map_or("never all back".to_owned(), |b| format!("all back after {:.1} s", b.as_secs_f64()));
    let mut svg = format!(
        "<text x=\"{left}\" y=\"{:.0}\">{name}: {back}, {} relapses</text>\n\
         <path class=\"axis\" d=\"M{left},{top} V{bottom} H{right}\"/>\n\
         <text class=\"small\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{most}/s</text>\n",
        top - 12.0,
        curve.relapses,
        left - 6.0,
        top + 5.0,
    );
    for s in (0..=SECONDS).step_by(5) {
        let _ = writeln!(
            svg,
            "<text class=\"small\" x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{s} s</text>",
            x(s as f64),
            bottom + 16.0
        );
    }
    let ideal = x(curve.ideal.as_secs_f64());
    let _ = writeln!(svg, "<path class=\"ideal\" d=\"M{ideal:.1},{top} V{bottom}\"/>");
    svg += &line(&seconds(curve, |t| t.logins), top, most, "logins");
    svg += &line(&seconds(curve, |t| t.successes), top, most, "writes");
    svg += &line(&seconds(curve, |t| t.failures), top, most, "failures");
    svg
}

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| words.get(i).and_then(|w| w.parse().ok()).unwrap_or(default);
    let (instances, sessions) = (number(1, 40), number(2, 20));
    let names = [
        (Pace::On, "pgfollow"),
        (Pace::Off, "pgfollow without pace and jitter"),
        (Pace::Plain, "the driver alone"),
    ];
    let curves = names.map(|(pace, name)| (fail_over(&Fleet::new(instances, sessions, pace, 1)), name));
    let most = u32::try_from(instances * sessions).unwrap_or(u32::MAX);
    let height = 50.0 + 3.0 * PANEL;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 {height}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <style>text{{fill:#333}}.small{{font-size:11px}}polyline{{fill:none;stroke-width:2}}\
         .axis{{fill:none;stroke:#888}}.ideal{{stroke:#888;stroke-dasharray:4 4}}.logins{{stroke:#2a6fdb}}\
         .writes{{stroke:#1a8f4c}}.failures{{stroke:#c8372d}}\
         @media(prefers-color-scheme:dark){{text{{fill:#ddd}}}}</style>\n\
         <text class=\"small\" x=\"{LEFT}\" y=\"16\">{instances} x {sessions} sessions. \
         Each second: logins (blue), writes (green), failures (red); dashed: the node alone would be through</text>\n"
    );
    for (i, (curve, name)) in curves.iter().enumerate() {
        svg += &panel(curve, i, name, most);
        writeln!(
            std::io::stderr(),
            "{name}: back {:?}, alone {:?}, {} relapses",
            curve.back,
            curve.ideal,
            curve.relapses
        )?;
    }
    svg += "</svg>\n";
    let folder = words.first().map_or("docs", String::as_str);
    std::fs::write(Path::new(folder).join(format!("fleet-{instances}x{sessions}.svg")), svg)
}
