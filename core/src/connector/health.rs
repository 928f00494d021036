//! Whether writing works now, for those who ask how it goes.

use super::Connector;

/// Whether writing works now: of the database, not of the process that asks. [`Connector::health`] has what a readiness
/// probe makes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// A primary is known and answers.
    Ready,
    /// None is, or not lately; the reason, for people. It may name hosts.
    Degraded(String),
}

impl Connector {
    /// Whether writing works now, by what the monitor knows: it asks nobody, so a probe may call it as often as it likes.
    ///
    /// Don't answer a load balancer's readiness probe by it alone. In a failover every instance of a service is degraded at
    /// the same moment: if all called themselves unready, the load balancer would have nobody left, and would take its time
    /// to bring them back when the new primary is there. Readiness is about the process: it stays true once a primary was
    /// seen (the configuration works), and each request that can't be served meanwhile is refused by itself: 503 with
    /// [`crate::Error::retry_after`]. `examples/src/axum.rs` is a service that does so.
    ///
    /// ```
    /// use pgfollow::{Connector, Health};
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// /// Status and body for `/ready`. `started` is false when the process begins, and kept.
    /// fn ready(connector: &Connector, started: &AtomicBool) -> (u16, String) {
    ///     match connector.health() {
    ///         Health::Ready => {
    ///             started.store(true, Ordering::Relaxed);
    ///             (200, "ready".to_owned())
    ///         }
    ///         Health::Degraded(why) if started.load(Ordering::Relaxed) => (200, format!("degraded: {why}")),
    ///         Health::Degraded(why) => (503, why),
    ///     }
    /// }
    /// # let connector = Connector::new("host=db-a,db-b user=app target_session_attrs=read-write")?;
    /// # assert_eq!(ready(&connector, &AtomicBool::new(false)).0, 503);
    /// # assert_eq!(ready(&connector, &AtomicBool::new(true)).0, 200);
    /// # Ok::<(), pgfollow::Error>(())
    /// ```
    pub fn health(&self) -> Health {
        self.start();
        match self.inner.monitor.primary() {
            Some((_, true)) => Health::Ready,
            // Until all hosts have been looked at, nothing is called fresh; but this one has answered a moment ago.
            Some(_) if !self.inner.monitor.settled() => Health::Ready,
            Some((c, false)) => Health::Degraded(format!("{c} was primary, but has not answered lately")),
            None => {
                let trouble = self.inner.monitor.trouble().or_else(|| {
                    self.names().into_iter().find_map(|n| Some(format!("{}: {}", n.name, n.error?)))
                });
                Health::Degraded(match (self.inner.monitor.knows_none(), trouble) {
                    (true, None) => "no host has answered yet".to_owned(),
                    (true, Some(cause)) => format!("no host could be asked: {cause}"),
                    (false, None) => "no host is known to be primary".to_owned(),
                    (false, Some(cause)) => format!("no host is known to be primary; {cause}"),
                })
            }
        }
    }
}
