//! The real manager of Cluster API between two real clusters.

use fivespot_testenv::{create_cluster, shared_with_cluster_api};

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_connects_to_a_cluster() {
    let plane = shared_with_cluster_api();
    let client = plane.management().client().await.unwrap();
    let namespace = plane.management().fresh_namespace(&client, "capi").await.unwrap();
    create_cluster(plane, &namespace, "one").await.unwrap();
}
