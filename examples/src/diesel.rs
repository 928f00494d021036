//! diesel-async's pool (on bb8) over a connector. No libpq: diesel-async speaks through tokio-postgres.

use diesel::{ConnectionError, ConnectionResult};
use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::bb8::Pool;
use diesel_async::pooled_connection::{
    AsyncDieselConnectionManager, ManagerConfig, PoolError, RecyclingMethod,
};
use pgfollow::Connector;

/// A connection of diesel's on the host of the wanted role.
///
/// # Errors
/// The connect's, in words: diesel keeps no cause.
pub async fn connection(connector: &Connector) -> ConnectionResult<AsyncPgConnection> {
    let session = connector.connect_within(connector.config().pool_acquire_timeout).await;
    let session = session.map_err(|e| ConnectionError::BadConnection(e.to_string()))?;
    let (client, ending) = session.into_parts();
    let connector = connector.clone();
    // Diesel looks only whether a client is closed, so somebody must close what isn't to be used again.
    tokio::spawn(async move { ending.tend(&connector).await });
    AsyncPgConnection::try_from(client).await
}

/// diesel-async's pool, configured as the connection string says.
///
/// # Errors
/// None: it fills in the background.
pub async fn pool(connector: &Connector) -> Result<Pool<AsyncPgConnection>, PoolError> {
    let config = connector.config();
    let (size, patience) = (config.pool_max_conns, config.pool_acquire_timeout);
    let connector = connector.clone();
    let mut manager = ManagerConfig::default();
    // What is dead is closed, so no round trip is needed to find out.
    manager.recycling_method = RecyclingMethod::Fast;
    manager.custom_setup = Box::new(move |_| {
        let connector = connector.clone();
        Box::pin(async move { connection(&connector).await })
    });
    Pool::builder()
        .max_size(size.try_into().unwrap_or(u32::MAX))
        .connection_timeout(patience)
        .build(AsyncDieselConnectionManager::new_with_config("", manager))
        .await
}
