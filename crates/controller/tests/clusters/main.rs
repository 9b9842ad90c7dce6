//! Several workload clusters, some of which do not answer. Cluster API is played by the simulated hosts.

#![expect(clippy::unwrap_used, reason = "tests: the line that fails is the message")]

#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../harness/worlds.rs"]
mod worlds;

mod outage;
mod secret;

use fivespot_testenv::{ClusterApi, ControlPlane, Options, Topology, share};
use harness::Controller;
use std::sync::OnceLock;
use tokio::sync::{Mutex, MutexGuard};

/// Both clusters and the controller that all tests share, for one test at a time: each takes the workload cluster away
/// from the others.
async fn plane() -> (&'static ControlPlane, MutexGuard<'static, ()>) {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    static CONTROLLER: OnceLock<Controller> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let cluster_api = ClusterApi::Definitions;
    let plane = share(&PLANE, &Options { topology: Topology::Two, cluster_api, ..Options::default() });
    CONTROLLER.get_or_init(|| {
        Controller::start(plane, "clusters", &["--workload-api-servers=127.0.0.0/8,localhost"])
    });
    (plane, turn)
}
