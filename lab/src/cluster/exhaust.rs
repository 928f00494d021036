//! Taking all of a server's connections.

use futures_util::future::join_all;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, NoTls};

use super::{Cluster, Node};
use crate::LabError;

/// Logins at once: enough to be quick, few enough not to trip over connect timeouts.
const AT_ONCE: usize = 8;
/// More than any server of the lab takes; a server that still accepts then is not to be exhausted.
const MOST: usize = 2_000;

/// Sessions that take all connections of a server open to the service. Dropping it frees them.
#[derive(Debug)]
pub struct Exhausted {
    sessions: Vec<Client>,
}

impl Exhausted {
    /// How many sessions are held.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }
}

impl Cluster {
    /// Opens idle sessions as the service's user until the server refuses (53300). Connections that others give
    /// up later are free for whoever comes first.
    pub async fn exhaust_connections(&self, index: usize) -> Result<Exhausted, LabError> {
        let node = &self.nodes[index];
        let mut sessions = Vec::new();
        let (mut at_once, mut refusals) = (AT_ONCE, 0);
        while sessions.len() < MOST {
            for login in join_all((0..at_once).map(|_| self.login(node))).await {
                match login {
                    Ok(session) => sessions.push(session),
                    Err(e) if e.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) => refusals += 1,
                    Err(e) => return Err(LabError::pg(format!("filling {} with sessions", node.name()))(e)),
                }
            }
            // A refused login holds its place for a moment and may have turned another away.
            match (refusals, at_once) {
                (0, _) => {}
                (1.., AT_ONCE) => (at_once, refusals) = (1, 0),
                (3.., _) => return Ok(Exhausted { sessions }),
                _ => {}
            }
        }
        Err(LabError::State(format!("{} still accepts after {MOST} sessions", node.name())))
    }

    async fn login(&self, node: &Node) -> Result<Client, Error> {
        let mut config = tokio_postgres::Config::new();
        config.host(node.host().to_string()).port(node.port()).dbname(self.database());
        config.user(self.user()).password(self.password()).application_name("pgfollow-lab exhaust");
        config.connect_timeout(std::time::Duration::from_secs(5));
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}
