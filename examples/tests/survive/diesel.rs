//! The diesel-async example in a failover.

use super::common::{Fault, WRITE, start, survives};
use diesel::QueryableByName;
use diesel::sql_types::Text;
use diesel_async::RunQueryDsl;

#[derive(QueryableByName)]
struct Landed {
    #[diesel(sql_type = Text)]
    host: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_diesel_pool_goes_on_at_the_promoted_host() {
    let Some((cluster, connector)) = start().await else { return };
    let pool = pgfollow_examples::diesel::pool(&connector).await.expect("a pool");
    survives(&cluster, Fault::Freeze, move || {
        let pool = pool.clone();
        async move {
            let mut connection = pool.get().await.map_err(|e| e.to_string())?;
            let landed: Result<Landed, _> = diesel::sql_query(WRITE).get_result(&mut connection).await;
            Ok(landed.map_err(|e| e.to_string())?.host)
        }
    })
    .await;
}
