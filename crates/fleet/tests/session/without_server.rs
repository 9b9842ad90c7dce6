//! The API server is away. Its controllers take a minute to notice that it is back, so that no test comes after this.

use crate::harness::shard::PlayedShard;
use crate::harness::yard::Yard;
use crate::harness::{Operator, plane};
use fivespot_testenv::eventually;
use std::time::Duration;

/// Who cannot renew his lease ends, and the next waits for the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_makes_no_empty_demand() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "away").await;
    yard.request("one", 8).await;
    let shard = PlayedShard::start().await;
    let operator = Operator::start(plane, "away", &shard.address, &[]);
    shard.until("the demand", |shard| shard.gpus() == Some(8)).await;
    plane.stop_api_server(plane.management()).unwrap();
    eventually("it has ended", async || !operator.runs()).await;
    assert!(operator.log().contains("the lease is lost"), "{}", operator.log());
    let before = shard.rollups().len();
    let operator = Operator::start(plane, "away", &shard.address, &[]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(shard.rollups().len(), before, "{}", operator.log());
    plane.start_api_server(plane.management()).await.unwrap();
    shard.until("the demand again", |shard| shard.rollups().len() > before).await;
    assert!(shard.rollups().iter().all(|needs| *needs == 1), "{:?}", shard.rollups());
}
