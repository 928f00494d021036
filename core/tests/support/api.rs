//! The one place that touches the connector, so that a change of its API is a change here.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pgfollow::config::Tuning;
use pgfollow::net::{Answer, AnswerSource, BoxFuture, Family, Resolve, ResolveError};
use pgfollow::{Connector, Error, Session, clock};

/// Names with fixed addresses (of IPv4); every other name doesn't exist.
#[derive(Debug)]
pub(crate) struct Names(pub(crate) HashMap<String, Vec<IpAddr>>);

impl Resolve for Names {
    fn resolve<'a>(&'a self, name: &'a str, family: Family) -> BoxFuture<'a, Result<Answer, ResolveError>> {
        let found = self.0.get(name).map(|all| {
            all.iter().copied().filter(|a| a.is_ipv4() == (family == Family::V4)).collect::<Vec<_>>()
        });
        Box::pin(async move {
            match found {
                None => Err(ResolveError::NoSuchName),
                Some(addresses) if addresses.is_empty() => Err(ResolveError::NoData),
                Some(addresses) => Ok(Answer {
                    addresses,
                    ttl: None,
                    source: AnswerSource::Dns,
                    server: None,
                    at: clock::now(),
                }),
            }
        })
    }
}

/// How long a host that doesn't answer at once holds the next one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stagger {
    /// As by default.
    Default,
    /// Longer than any hiccup of a busy machine: for cases where the first host's answer must count.
    Long,
}

/// A connector over these names, without a monitor.
pub(crate) fn connector(
    conninfo: &str,
    names: &HashMap<String, Vec<IpAddr>>,
    stagger: Stagger,
) -> Result<Connector, Error> {
    let patient = |t: &mut Tuning| {
        if stagger == Stagger::Long {
            t.stagger = HANG;
        }
    };
    Connector::builder(&format!("{conninfo} monitor=off"))
        .config(|c| c.tuning(patient))
        .resolver(Arc::new(Names(names.clone())))
        .build()
}

/// How a connect went and how long it took, the making of the connector included.
pub(crate) struct Outcome {
    /// Unless the string was refused.
    pub(crate) connector: Option<Connector>,
    pub(crate) result: Result<Session, Error>,
    pub(crate) took: Duration,
}

/// Longer than any case may take: a hang is a failure of its own, not of the test's patience.
const HANG: Duration = Duration::from_secs(20);

/// One connect.
pub(crate) async fn connect(
    conninfo: &str,
    names: &HashMap<String, Vec<IpAddr>>,
    stagger: Stagger,
) -> Result<Outcome, String> {
    let began = clock::now();
    let connector = match connector(conninfo, names, stagger) {
        Ok(c) => c,
        Err(e) => return Ok(Outcome { connector: None, result: Err(e), took: clock::now() - began }),
    };
    let result = tokio::time::timeout(HANG, connector.connect()).await;
    let result = result.map_err(|_| format!("connect() hangs: still there after {HANG:?}"))?;
    Ok(Outcome { connector: Some(connector), result, took: clock::now() - began })
}
