//! bb8's pool over a connector: its sessions are ours.

use bb8::ManageConnection;
use pgfollow::{Connector, Error, Session};

/// Makes sessions for bb8.
pub struct Manager(pub Connector);

impl ManageConnection for Manager {
    type Connection = Session;
    type Error = Error;

    async fn connect(&self) -> Result<Session, Error> {
        // Waits for a primary through a failover; bb8's own connection_timeout is what its callers wait at most.
        self.0.connect_within(self.0.config().pool_acquire_timeout).await
    }

    /// On every borrow: free, unless a sibling's end makes this one doubtful.
    async fn is_valid(&self, session: &mut Session) -> Result<(), Error> {
        if session.is_doubted() {
            session.within(std::time::Duration::from_secs(1), session.simple_query("")).await?;
        }
        Ok(())
    }

    /// On every borrow and return: closed, superseded, or no longer writable.
    fn has_broken(&self, session: &mut Session) -> bool {
        !session.is_usable()
    }
}

/// bb8's pool, configured as the connection string says.
///
/// # Errors
/// None: it fills in the background.
pub async fn pool(connector: &Connector) -> Result<bb8::Pool<Manager>, Error> {
    let config = connector.config();
    bb8::Pool::builder()
        .max_size(config.pool_max_conns.try_into().unwrap_or(u32::MAX))
        .connection_timeout(config.pool_acquire_timeout)
        // A dead session was found by the free look above; bb8 tests before every borrow.
        .test_on_check_out(true)
        .build(Manager(connector.clone()))
        .await
}
