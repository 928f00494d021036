//! The zone script of a dns case (`"zone": [{"at_s": 0, "db.test": {"A": ["A1"], "ttl": 5}}, …]`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use super::zone::{Kind, Reply, Rule, Zone};

/// Steps by time.
#[derive(Clone, Debug)]
pub struct ZoneScript {
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    at: Duration,
    name: String,
    rules: Vec<(Kind, Rule)>,
}

impl ZoneScript {
    /// Reads the `zone` of a case. `places` says what the case's words (`A1`, `black hole`) stand for; addresses
    /// may also be written out.
    ///
    /// # Errors
    /// What could not be read, in words.
    pub fn read(zone: &Value, places: &HashMap<&str, IpAddr>) -> Result<Self, String> {
        let mut steps = Vec::new();
        for step in zone.as_array().ok_or("the zone is no list")? {
            let step = step.as_object().ok_or("a step is no object")?;
            let at = step.get("at_s").and_then(Value::as_f64).ok_or("a step has no at_s")?;
            let at = Duration::try_from_secs_f64(at).map_err(|e| e.to_string())?;
            for (name, what) in step.iter().filter(|(k, _)| *k != "at_s") {
                steps.push(Step { at, name: name.clone(), rules: rules(what, places)? });
            }
        }
        steps.sort_by_key(|s| s.at);
        Ok(Self { steps })
    }

    /// The times at which something changes, in order.
    pub fn moments(&self) -> Vec<Duration> {
        let mut all: Vec<_> = self.steps.iter().map(|s| s.at).collect();
        all.dedup();
        all
    }

    pub(super) fn apply(&self, zone: &mut Zone, until: Duration) {
        for step in self.steps.iter().take_while(|s| s.at <= until) {
            zone.remove(&step.name);
            for (kind, rule) in &step.rules {
                zone.set(&step.name, *kind, rule.clone());
            }
        }
    }
}

fn rules(what: &Value, places: &HashMap<&str, IpAddr>) -> Result<Vec<(Kind, Rule)>, String> {
    if let Some(text) = what.as_str() {
        return Ok(vec![(Kind::Any, word(text)?.into())]);
    }
    let fields = what.as_object().ok_or_else(|| format!("{what} is no answer"))?;
    let ttl = fields.get("ttl").and_then(Value::as_u64).unwrap_or(0);
    let ttl = u32::try_from(ttl).map_err(|e| e.to_string())?;
    let mut rules = Vec::new();
    for (key, value) in fields.iter().filter(|(k, _)| *k != "ttl") {
        let kind = match key.as_str() {
            "A" => Kind::A,
            "AAAA" => Kind::Aaaa,
            other => return Err(format!("{other} is no record type of a zone script")),
        };
        let reply = match value {
            Value::String(text) => word(text)?,
            Value::Array(all) => {
                let place = |v: &Value| {
                    let text = v.as_str().ok_or_else(|| format!("{v} is no address"))?;
                    let known = places.get(text).copied().or_else(|| text.parse().ok());
                    known.ok_or_else(|| format!("nobody said where {text} is"))
                };
                Reply::Addresses(all.iter().map(place).collect::<Result<_, _>>()?, ttl)
            }
            other => return Err(format!("{other} is no answer")),
        };
        rules.push((kind, reply.into()));
    }
    Ok(rules)
}

/// `NXDOMAIN (SOA minimum 300)`, `SERVFAIL`, `query never answered`.
fn word(text: &str) -> Result<Reply, String> {
    let first = text.split_whitespace().next().unwrap_or_default();
    match first {
        "NXDOMAIN" => {
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            Ok(Reply::NxDomain(digits.parse().unwrap_or(0)))
        }
        "SERVFAIL" => Ok(Reply::ServFail),
        "REFUSED" => Ok(Reply::Refused),
        "query" | "silent" => Ok(Reply::Silence),
        _ => Err(format!("{text:?} is no answer of a zone script")),
    }
}
