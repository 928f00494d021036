//! The bb8 example in a failover.

use super::common::{Fault, bb8_survives, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bb8_pool_goes_on_at_the_promoted_host() {
    let Some((cluster, connector)) = start().await else { return };
    let pool = pgfollow_examples::bb8::pool(&connector).await.expect("a pool");
    bb8_survives(&cluster, Fault::Freeze, pool).await;
}
