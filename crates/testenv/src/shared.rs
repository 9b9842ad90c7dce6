//! What tests of one binary share, and how they wait.

use crate::cluster_api::ClusterApi;
use crate::control_plane::{ControlPlane, Options, POLL, Topology};
use crate::error::Context;
use std::env;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The control plane that the tests of one binary share. It ends with the process.
///
/// # Panics
/// With the reason, if the control plane cannot be had: no test that asks for it can go on.
pub fn shared() -> &'static ControlPlane {
    static SHARED: OnceLock<ControlPlane> = OnceLock::new();
    share(&SHARED, &Options::default())
}

/// The management and workload cluster with the real manager of Cluster API that the tests of one binary share.
///
/// # Panics
/// As [`shared`] does.
pub fn shared_with_cluster_api() -> &'static ControlPlane {
    static SHARED: OnceLock<ControlPlane> = OnceLock::new();
    let cluster_api = ClusterApi::Manager;
    share(&SHARED, &Options { topology: Topology::Two, cluster_api, ..Options::default() })
}

/// The control plane that the tests of one binary share, of the kind they need.
///
/// # Panics
/// As [`shared`] does.
#[expect(clippy::panic, reason = "called by tests alone")]
pub fn share(cell: &'static OnceLock<ControlPlane>, options: &Options) -> &'static ControlPlane {
    cell.get_or_init(|| {
        // A thread of its own, since the caller is inside a runtime already.
        let options = options.clone();
        let start = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.context(|| "start a runtime".to_owned())?;
            runtime.block_on(ControlPlane::start(options))
        };
        match std::thread::spawn(start).join() {
            Ok(Ok(plane)) => plane,
            Ok(Err(error)) => panic!("{error}"),
            Err(panicked) => std::panic::resume_unwind(panicked),
        }
    })
}

/// Waits, in a test, for something that comes true a moment later.
///
/// # Panics
/// If it does not within a minute.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_mins(1), "still not true after a minute: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Whether the long forms of tests run at full length, as `make proof` asks.
pub fn is_proof() -> bool {
    env::var_os("FIVESPOT_PROOF").is_some()
}
