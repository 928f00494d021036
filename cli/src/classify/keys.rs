//! The keys that facts may have. A misspelt one would count as the careful answer, and nobody would hear of it.

use serde_json::Value;

const FACTS: &[&str] = &["phase", "signal", "request", "session"];
const REQUEST: &[&str] = &["effect", "sent", "in_transaction", "may_commit_inside"];
const SESSION: &[&str] = &["application_opened", "healthy_lately"];
/// Of each type of signal, besides `type`. A type that isn't here is refused for itself.
const SIGNAL: &[(&str, &[&str])] = &[
    ("io", &[]),
    ("tls", &[]),
    ("deadline", &[]),
    ("role-mismatch", &[]),
    ("dns", &["rcode", "resolved_before"]),
    ("pool", &["event"]),
    ("sqlstate", &["code", "severity", "as", "then", "routine"]),
    ("rolled-back", &["cause"]),
];
/// What drivers know besides and nothing depends on: it may be told, in any of the parts.
pub(super) const NOTES: &[&str] = &[
    "after",
    "all_hosts",
    "default_transaction_read_only",
    "error",
    "got",
    "in_hot_standby",
    "message",
    "protocol",
    "source",
    "wanted",
    "which",
];

/// The first key that nobody knows, and what may have been meant.
pub(super) fn unknown(facts: &Value) -> Option<String> {
    let signal = &facts["signal"];
    let own = SIGNAL.iter().find(|(name, _)| signal["type"] == **name).map(|(_, keys)| *keys);
    let part = |of: &Value, place: &str, keys: &[&str]| {
        let known: Vec<&str> = keys.iter().chain(NOTES).copied().collect();
        let wrong = of.as_object()?.keys().find(|key| !known.contains(&key.as_str()))?;
        Some(format!("unknown key {wrong:?} in {place}: {}", remedy(wrong, &known, keys)))
    };
    let whole = facts.as_object()?.keys().find(|key| !FACTS.contains(&key.as_str()));
    let whole = whole.map(|wrong| format!("unknown key {wrong:?}: {}", remedy(wrong, FACTS, FACTS)));
    whole
        .or_else(|| part(signal, "signal", &[&["type"], own?].concat()))
        .or_else(|| part(&facts["request"], "request", REQUEST))
        .or_else(|| part(&facts["session"], "session", SESSION))
}

/// The known key that is nearest; all that mean something, where none is near.
fn remedy(wrong: &str, known: &[&str], telling: &[&str]) -> String {
    let distance = |key: &&&str| strsim::osa_distance(&wrong.to_ascii_lowercase(), key);
    match known.iter().min_by_key(distance) {
        Some(near) if distance(&near) <= (wrong.len() / 3).max(1) => {
            format!("the nearest known one is {near:?}")
        }
        _ => format!("known are {}", telling.join(", ")),
    }
}
