//! The bb8 example in a failover.

mod common;

use common::{WRITE, start, survives_a_kill};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bb8_pool_goes_on_at_the_promoted_host() {
    let Some((cluster, connector)) = start().await else { return };
    let pool = pgfollow_examples::bb8::pool(&connector).await.expect("a pool");
    survives_a_kill(&cluster, move || {
        let pool = pool.clone();
        async move {
            let session = pool.get().await.map_err(|e| e.to_string())?;
            let row = session.query_one(WRITE, &[]).await;
            Ok(row.map_err(|e| session.why().diagnose(e).to_string())?.get(0))
        }
    })
    .await;
}
