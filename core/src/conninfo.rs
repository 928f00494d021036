//! From text to settings: libpq's two string forms, the service file, the environment and the password file.
//!
//! Decides which layer a value comes from, and nothing about its meaning: [`crate::config`] checks values and makes
//! the [`Config`](crate::Config). The rules are libpq 18's (`fe-connect.c`); where pgfollow is stricter than libpq,
//! the place says so. No message shows a piece of text that could be part of a password.

mod environment;
pub(crate) mod files;
pub(crate) mod keyword_value;
mod uri;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

pub use environment::Environment;

use crate::config::{OPTIONS, find, remedy, suggest};
use crate::error::{Class, Code, Error, Stage};

/// Where a value came from, highest rank first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Set by code, through the builder.
    Code,
    /// The connection string.
    Conninfo,
    /// The service file.
    ServiceFile,
    /// That environment variable.
    Environment(String),
    /// The password file.
    PasswordFile,
    /// Nobody gave one.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code => f.write_str("code"),
            Self::Conninfo => f.write_str("string"),
            Self::ServiceFile => f.write_str("service file"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::PasswordFile => f.write_str("password file"),
            Self::Default => f.write_str("default"),
        }
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// Keyword and value of everything that the string itself says: no defaults, no environment, no files; what libpq's
/// `PQconninfoParse` returns. A repeated keyword stands once, with its last value. Values are as given: a password
/// is among them.
///
/// # Errors
/// [`Code::InvalidConninfo`] where the text breaks the rules of its form or has an unknown keyword.
pub fn parse(text: &str) -> Result<Vec<(&'static str, String)>, Error> {
    if text.contains('\0') {
        return Err(invalid("the connection string contains a zero byte"));
    }
    let mut pairs = Pairs { list: Vec::new(), last: None };
    match uri::strip_scheme(text) {
        Some(rest) => uri::parse(rest, &mut pairs)?,
        None if text.split(['=', ' ', '\'']).next().is_some_and(|head| head.contains("://")) => {
            return Err(invalid(
                "the string is a URI of an unknown scheme: write postgresql:// or postgres://",
            ));
        }
        None => keyword_value::parse(text, &mut pairs)?,
    }
    Ok(pairs.list)
}

/// Pairs while a string is read.
struct Pairs {
    list: Vec<(&'static str, String)>,
    last: Option<&'static str>,
}

impl Pairs {
    /// Adds a pair; the last one of a keyword wins. `at` is its place in a keyword/value string (0 in a URI).
    fn put(&mut self, keyword: &str, value: String, at: usize) -> Result<(), Error> {
        let (keyword, value) = match keyword {
            // Kept by libpq from before sslmode existed.
            "requiressl" => ("sslmode", if value.starts_with('1') { "require" } else { "prefer" }.to_owned()),
            k => (k, value),
        };
        let Some(row) = find(keyword) else {
            let place = if at == 0 { String::new() } else { format!(" at byte {at}") };
            return Err(invalid(match shown_keyword(keyword, self.last_is_secret()) {
                Some(shown) => {
                    format!("unknown keyword {shown}{place}: {}", remedy(keyword))
                }
                None => format!(
                    "unknown keyword{place}, not shown because it may be a piece of a password: quote a value with \
                     blanks ('…'), or percent-encode it in a URI (& is %26)"
                ),
            }));
        };
        self.last = Some(row.name);
        match self.list.iter_mut().find(|p| p.0 == row.name) {
            Some(pair) => pair.1 = value,
            None => self.list.push((row.name, value)),
        }
        Ok(())
    }

    fn last(&self) -> Option<&'static str> {
        self.last
    }

    fn last_is_secret(&self) -> bool {
        self.last.and_then(find).is_some_and(|r| r.is_secret())
    }
}

/// A wrong keyword for a message; `None` where it could be a piece of a password.
fn shown_keyword(keyword: &str, behind_secret: bool) -> Option<String> {
    let word = keyword.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && keyword.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && keyword.len() <= 40;
    (word && (!behind_secret || suggest::is_like_a_keyword(keyword))).then(|| format!("{keyword:?}"))
}

struct Setting {
    value: String,
    origin: Origin,
}

/// The values of all layers, each with its origin.
#[derive(Default)]
pub(crate) struct Settings(BTreeMap<&'static str, Setting>);

impl Clone for Settings {
    fn clone(&self) -> Self {
        let copy = |s: &Setting| Setting { value: s.value.clone(), origin: s.origin.clone() };
        Self(self.0.iter().map(|(k, s)| (*k, copy(s))).collect())
    }
}

/// Names and origins only: values may be secret.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(k, s)| (k, &s.origin))).finish()
    }
}

impl Settings {
    /// The value, where somebody gave one.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|s| s.value.as_str())
    }

    /// The value if it isn't empty: for the many options to which libpq takes an empty one as none.
    pub(crate) fn non_empty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|v| !v.is_empty())
    }

    /// Where the value came from.
    pub(crate) fn origin(&self, name: &str) -> Origin {
        self.0.get(name).map_or(Origin::Default, |s| s.origin.clone())
    }

    /// Sets a value over whatever was there.
    pub(crate) fn put(&mut self, name: &'static str, value: impl Into<String>, origin: Origin) {
        self.0.insert(name, Setting { value: value.into(), origin });
    }

    fn add_below(&mut self, name: &'static str, value: &str, origin: Origin) {
        self.0.entry(name).or_insert_with(|| Setting { value: value.to_owned(), origin });
    }

    /// Lays the layers below what is there: service file, `PGFOLLOW_HOSTS`, environment.
    pub(crate) fn add_layers(&mut self, env: &Environment, warnings: &mut Vec<String>) -> Result<(), Error> {
        files::add_service(self, env)?;
        self.replace_candidates(env)?;
        for row in OPTIONS {
            let Some(variable) = row.variable else { continue };
            if let Some(value) =
                env.variable(variable).map_err(invalid)?.filter(|v| !row.own || !v.is_empty())
            {
                self.add_below(row.name, value, Origin::Environment(variable.to_owned()));
            }
        }
        if env.variable("PGREQUIRESSL").map_err(invalid)?.is_some_and(|v| v.starts_with('1')) {
            self.add_below("sslmode", "require", Origin::Environment("PGREQUIRESSL".to_owned()));
        }
        // Kubernetes injects variables named after services, so an unknown one is no error.
        for name in env.names("PGFOLLOW_") {
            // What `pgfollow lab` tells the programs it runs.
            let lab = name == "PGFOLLOW_LAB" || name.starts_with("PGFOLLOW_LAB_");
            if !lab && name != HOSTS && !OPTIONS.iter().any(|r| r.variable == Some(name)) {
                let meant = suggest::variable(name, HOSTS)
                    .map_or(String::new(), |v| format!(": the nearest known one is {v}"));
                warnings.push(format!("the environment variable {name} is unknown and ignored{meant}"));
            }
        }
        Ok(())
    }

    fn replace_candidates(&mut self, env: &Environment) -> Result<(), Error> {
        let Some(text) = env.variable(HOSTS).map_err(invalid)?.filter(|t| !t.is_empty()) else {
            return Ok(());
        };
        let place = |e: Error| invalid(format!("{HOSTS}: {}", e.message()));
        let list = uri::hosts(text).map_err(place)?;
        if !list.rest.is_empty() {
            return Err(invalid(format!(
                "{HOSTS} is a list host[:port],… and nothing else: a slash in a socket directory is %2F"
            )));
        }
        let origin = Origin::Environment(HOSTS.to_owned());
        self.put("host", uri::decode(&list.hosts, "the host list").map_err(place)?, origin.clone());
        // Empty, not absent: nothing of a lower layer may come back to the new hosts.
        self.put("hostaddr", "", origin.clone());
        self.0.remove("port");
        if !list.ports.is_empty() {
            self.put("port", uri::decode(&list.ports, "the ports").map_err(place)?, origin);
        }
        Ok(())
    }
}

/// Replaces the candidates of any string.
const HOSTS: &str = "PGFOLLOW_HOSTS";

/// A configuration error: permanent, and before anything was sent.
pub(crate) fn failed(code: Code, message: impl Into<String>) -> Error {
    Error::new(code, Class::Permanent, message).at_stage(Stage::Configure)
}

fn invalid(message: impl Into<String>) -> Error {
    failed(Code::InvalidConninfo, message)
}
