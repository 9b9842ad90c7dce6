//! Several controllers share the machines, and are stopped, killed, cut off and restarted with another count. Each machine
//! has one owner at a time: the API servers' audit logs tell who wrote to what, and who held which slot meanwhile.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests: the line that fails is the message")]

#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/mod.rs"]
mod harness;
#[expect(dead_code, reason = "other tests read what is written")]
#[path = "../harness/proxy.rs"]
mod proxy;
#[path = "../harness/settled.rs"]
mod settled;
#[path = "../harness/wall_clock.rs"]
mod wall_clock;
#[path = "../harness/worlds.rs"]
mod worlds;

mod chaos;
mod faults;
mod timeline;
mod woken;

use fivespot_testenv::{ClusterApi, ControlPlane, Options, is_proof, share};
use harness::Controller;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};

/// The control plane, for one test at a time: controllers look after all namespaces.
async fn plane() -> (&'static ControlPlane, MutexGuard<'static, ()>) {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    (share(&PLANE, &Options { cluster_api: ClusterApi::Definitions, ..Options::default() }), turn)
}

/// How long Leases last, in seconds: until others respect them no more, until their holder believes in them no more, and
/// between renewals. As shipped, but for the last: it is how late others see the last renewal of one who dies.
const fn lease() -> [u64; 3] {
    [15, 10, 1]
}

/// The same, but everything sooner.
fn short_lease() -> [u64; 3] {
    if is_proof() { lease() } else { [6, 4, 1] }
}

/// Starts an instance. Its name tells its number.
fn start(
    plane: &ControlPlane,
    name: &str,
    own: u32,
    count: u32,
    [duration, deadline, retry]: [u64; 3],
    env: &[(&str, &str)],
) -> Controller {
    let args = [
        format!("--instance-id={own}"),
        format!("--instance-count={count}"),
        format!("--lease-duration-secs={duration}"),
        format!("--lease-renew-deadline-secs={deadline}"),
        format!("--lease-retry-period-secs={retry}"),
    ];
    Controller::start_with(plane, name, &args.each_ref().map(String::as_str), env)
}

/// Asks a controller to end, and waits until it has.
async fn end(controller: &Controller) {
    let began = Instant::now();
    controller.signal("-TERM");
    while controller.runs() {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not end:\n{}", controller.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
