//! Durations on the command line: a number and its unit, as in the library's own options.

use std::time::Duration;

/// What is no duration to wait for.
const RANGE: &str = "out of range: 0s to a day (1440min)";

/// `250ms`, `1.5s`, `2min`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse(text, false)
}

/// The same; a bare number means seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    parse(text, true)
}

fn parse(text: &str, bare_is_seconds: bool) -> Result<Duration, String> {
    if text.starts_with('-') && text[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(RANGE.to_owned());
    }
    let wrong = || {
        let how = if bare_is_seconds {
            "write seconds, or a number and its unit, such as 5, 250ms or 2min"
        } else {
            "write a number and its unit, such as 250ms, 5s or 2min"
        };
        format!("{text:?} is no duration: {how}")
    };
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit = match unit.trim() {
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "" if bare_is_seconds => 1.0,
        _ => return Err(wrong()),
    };
    // A day is more than any command waits for; it also keeps the sum with a clock's time in range.
    Some(number * unit)
        .filter(|s| *s <= 86_400.0)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| RANGE.to_owned())
}

/// The same, and more than none.
pub(crate) fn some_seconds(text: &str) -> Result<Duration, String> {
    match seconds(text) {
        Ok(Duration::ZERO) => Err("it must be more than 0".to_owned()),
        other => other,
    }
}

/// Milliseconds as JSON shows them: microseconds are enough for a person and for a script.
pub(crate) fn round_ms(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_reject_nonsense() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2 min"), Ok(Duration::from_secs(120)));
        for bad in ["250", "", "s", "-1s", "1h", "1e9s", "99999999999999min", "1.2.3s", "infs"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(seconds("3"), Ok(Duration::from_secs(3)));
        assert_eq!(seconds("300ms"), Ok(Duration::from_millis(300)));
        assert!(seconds("soon").unwrap_err().contains("such as 5, 250ms"));
        assert!(some_seconds("0").is_err() && some_seconds("0ms").is_err());
        assert_eq!(some_seconds("0.5"), Ok(Duration::from_millis(500)));
        for beyond in ["-1", "-0.5s", "-250ms", "86401"] {
            assert_eq!(seconds(beyond), Err(RANGE.to_owned()), "{beyond}");
        }
    }
}
