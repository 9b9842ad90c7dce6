//! The process by itself: its rights, its end, its clock. Cluster API is played by the simulated hosts.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests: the line that fails is the message")]

#[path = "../harness/audit.rs"]
mod audit;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/mod.rs"]
mod harness;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/proxy.rs"]
mod proxy;
#[path = "../harness/settled.rs"]
mod settled;
#[path = "../harness/wall_clock.rs"]
mod wall_clock;
#[path = "../harness/worlds.rs"]
mod worlds;

mod chaos;
mod clock;
mod ejected;
mod flooded;
mod forged;
mod hostile;
mod one_node;
mod process;
mod refused;
mod rights;
mod scraped;
mod webhooks;

use fivespot_testenv::{ClusterApi, ControlPlane, Options, share};
use harness::Controller;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};

/// The control plane, for one test at a time: each starts controllers of its own, which look after all namespaces.
async fn plane() -> (&'static ControlPlane, MutexGuard<'static, ()>) {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    (share(&PLANE, &Options { cluster_api: ClusterApi::Definitions, ..Options::default() }), turn)
}

/// Asks a controller to end, and waits until it has: the next one finds the lease free.
fn end(controller: &Controller) -> Duration {
    let began = Instant::now();
    controller.signal("-TERM");
    while controller.runs() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not end:\n{}", controller.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    began.elapsed()
}
