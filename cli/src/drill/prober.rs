//! When a cluster of the user's own takes writes again: a session to every candidate, asked each 5 ms.
//!
//! It asks before it writes: a refused write would be an error in the server's log, 200 times a second.

use std::time::Duration;

use pgfollow::config::{Config, MonitorMode};
use pgfollow::{Address, Connector, HostSpec, SessionAttrs};
use pgfollow_lab::monotonic_ns;
use tokio::task::JoinSet;

use super::record::{TABLE, identity};

const EVERY: Duration = Duration::from_millis(5);
/// How long one question may hang before the session is given up for a new one.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause before another try to connect.
const AGAIN: Duration = Duration::from_millis(50);
/// A session through a name is left after that long: the name may have moved.
const THROUGH_NAME: Duration = Duration::from_millis(200);

/// Running probers; they end when this is dropped.
pub(crate) struct Probers(JoinSet<(u64, String)>);

impl Probers {
    /// To every address that the connector knows, and through the name if there is only one host. A write by `old`
    /// doesn't count.
    pub(crate) fn start(connector: &Connector, old: &str) -> Self {
        let mut probers = JoinSet::new();
        let config = connector.config();
        for host in &connector.topology().hosts {
            let Some(spec) = config.hosts.get(host.spec) else { continue };
            let pinned = match (&host.address, spec) {
                (Address::Tcp(a), HostSpec::Tcp { host, port, .. }) => HostSpec::Tcp {
                    host: host.clone(),
                    hostaddr: Some(a.ip().to_string()),
                    port: port.clone(),
                },
                _ => spec.clone(),
            };
            if let Some(c) = only(config, host.spec, pinned) {
                probers.spawn(probe(c, old.to_owned(), None));
            }
        }
        if let [name @ HostSpec::Tcp { hostaddr: None, .. }] = &config.hosts[..]
            && let Some(c) = only(config, 0, name.clone())
        {
            probers.spawn(probe(c, old.to_owned(), Some(THROUGH_NAME)));
        }
        Self(probers)
    }

    /// CLOCK_MONOTONIC (ns) of the first write that another server than the old one acknowledged, and what that server
    /// calls itself.
    pub(crate) async fn first_write(&mut self) -> (u64, String) {
        loop {
            match self.0.join_next().await {
                Some(Ok(first)) => return first,
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

/// A connector to one host alone that takes whatever role it finds.
fn only(config: &Config, spec: usize, host: HostSpec) -> Option<Connector> {
    let mut config = config.clone();
    config.passwords = vec![config.passwords.get(spec).cloned().flatten()];
    config.hosts = vec![host];
    config.monitor = MonitorMode::Off;
    config.target_session_attrs = Some(SessionAttrs::Any);
    "drill-prober".clone_into(&mut config.application_name);
    Connector::from_config(config).ok()
}

async fn probe(connector: Connector, old: String, leave_after: Option<Duration>) -> (u64, String) {
    let ask = concat!("select ", identity!(), ", pg_is_in_recovery()");
    let insert = format!("insert into {TABLE} (client, worker, seq) values ('prober', 0, 0)");
    loop {
        let Ok(session) = connector.connect().await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let opened = tokio::time::Instant::now();
        // The prober asks whether the server takes writes, not whether its standbys do.
        let local = session.batch_execute("set synchronous_commit = local");
        let prepared = async {
            local.await?;
            session.prepare(ask).await
        };
        let Ok(Ok(ask)) = tokio::time::timeout(PATIENCE, prepared).await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let mut pace = tokio::time::interval(EVERY);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while leave_after.is_none_or(|d| opened.elapsed() < d) {
            pace.tick().await;
            let Ok(Ok(row)) = tokio::time::timeout(PATIENCE, session.query_one(&ask, &[])).await else {
                break;
            };
            let (identity, in_recovery): (String, bool) = (row.get(0), row.get(1));
            if in_recovery || identity == old {
                continue;
            }
            match tokio::time::timeout(PATIENCE, session.execute(&insert, &[])).await {
                Ok(Ok(_)) => return (monotonic_ns(), identity),
                // Read-only by setting, or the table isn't there (another cluster): not what is looked for.
                Ok(Err(e)) if e.code().is_some() && !session.is_closed() => {}
                _ => break,
            }
        }
    }
}
