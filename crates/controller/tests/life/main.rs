//! The life of machines under the real Cluster API manager.

#[path = "../harness/mod.rs"]
mod harness;

mod cycle;

use fivespot_testenv::{Core, shared_with_cluster_api};
use harness::{Controller, World};
use std::sync::OnceLock;

/// A world of one's own under the controller that all tests share.
async fn world(stem: &str) -> World {
    static CONTROLLER: OnceLock<Controller> = OnceLock::new();
    let plane = shared_with_cluster_api();
    let version = "v1beta2";
    CONTROLLER.get_or_init(|| Controller::start(plane, "life", &["--capi-version", version]));
    World::new(plane, Core::Real, stem).await
}
