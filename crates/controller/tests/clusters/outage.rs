//! A workload cluster that does not answer holds up nobody but its own machines, and these no longer than they said.

use crate::harness::{CLOSED, OPEN, World, condition, is, message};
use crate::{plane, worlds};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::ControlPlane;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use std::time::{Duration, Instant};

/// How a workload cluster stops to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outage {
    /// Nobody is at its port.
    Stopped,
    /// It accepts connections and never answers.
    Frozen,
}

impl Outage {
    fn begin(self, plane: &ControlPlane) {
        match self {
            Self::Stopped => plane.stop_api_server(plane.workload()).unwrap(),
            Self::Frozen => plane.freeze_api_server(plane.workload()).unwrap(),
        }
    }

    async fn end(self, plane: &ControlPlane) {
        match self {
            Self::Stopped => plane.start_api_server(plane.workload()).await.unwrap(),
            Self::Frozen => plane.thaw_api_server(plane.workload()).unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_cluster_holds_up_only_its_own() {
    Box::pin(outage(Outage::Stopped)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_cluster_holds_up_only_its_own() {
    Box::pin(outage(Outage::Frozen)).await;
}

async fn outage(outage: Outage) {
    let (plane, _turn) = plane().await;
    let lost = worlds::linked(plane, "lost").await;
    let well = worlds::own(plane, "well").await;
    for machine in ["stays", "leaves", "killed"] {
        lost.create(machine, OPEN, |spec| spec["nodeDrainTimeout"] = json!("8s")).await;
    }
    well.create("m", CLOSED, |_| {}).await;
    for machine in ["stays", "leaves", "killed"] {
        let machine = lost.until_phase(machine, "Active").await;
        assert!(is(&machine, "WorkloadReachable", "True", "KubeconfigSecret"));
        lost.pod(
            machine.metadata.name.as_deref().unwrap(),
            machine.metadata.name.as_deref().unwrap(),
            |_| {},
        )
        .await;
    }
    let machine = well.until_phase("m", "Inactive").await;
    assert_eq!(condition(&machine, "WorkloadReachable"), None);
    let baseline = cycle(&well).await;

    outage.begin(plane);
    let began = Instant::now();
    // A watch that is merely silent tells nothing: the first who needs an answer finds out.
    lost.patch("leaves", json!({"spec": {"schedule": {"cron": CLOSED}}})).await;
    let during = cycle(&well).await;
    let bound = baseline * 2 + Duration::from_secs(2);
    assert!(during < bound, "{outage:?}: in and out took {during:?}, before {baseline:?}");

    let unreachable = |it: &ScheduledMachine| is(it, "WorkloadReachable", "False", "ConnectionFailed");
    let machine = lost.until("leaves", "unreachable", unreachable).await;
    let shutdown = machine.status.clone().unwrap().shutdown.unwrap();
    let waits = is(&machine, "Ready", "False", "WorkloadUnreachable");
    assert!(waits || outage == Outage::Frozen, "{}", message(&machine));
    let machine = lost.until("stays", "unreachable", unreachable).await;
    assert!(is(&machine, "Ready", "False", "WorkloadUnreachable"), "{}", message(&machine));
    assert_eq!(machine.status.unwrap().phase.as_deref(), Some("Pending"));
    let told = began.elapsed();

    // The kill switch waits for nobody.
    let switched = Instant::now();
    lost.patch("killed", json!({"spec": {"killSwitch": true}})).await;
    deleted(&lost, "killed").await;
    let after = switched.elapsed();
    assert!(after < Duration::from_secs(5), "{outage:?}: the kill switch took {after:?}");

    // A graceful exit waits for its drain until the deadline, and no longer.
    let at = deleted(&lost, "leaves").await;
    let deadline = shutdown.drain_deadline.unwrap().0;
    // The stamp of the server has whole seconds.
    let late = at.duration_since(deadline) + SignedDuration::from_secs(1);
    assert!(!late.is_negative(), "{outage:?}: deleted at {at}, before its deadline {deadline}");
    assert!(late < SignedDuration::from_secs(15), "{outage:?}: deleted at {at}, long after {deadline}");

    outage.end(plane).await;
    let back = Instant::now();
    lost.until_phase("stays", "Active").await;
    lost.until_phase("killed", "Terminated").await;
    lost.until_phase("leaves", "Inactive").await;
    let machine = lost.until_phase("stays", "Active").await;
    assert!(is(&machine, "WorkloadReachable", "True", "KubeconfigSecret"));
    lost.close("stays").await;
    lost.until_phase("stays", "Inactive").await;
    for machine in ["stays", "killed", "leaves"] {
        lost.nothing_is_left(machine).await;
    }
    println!(
        "{outage:?}: the other cluster took {during:.1?} in and out, before {baseline:.1?}; told after {told:.1?}; \
         kill switch {after:.1?}; deleted {late:.1?} after the deadline; well again {:.1?} after its return",
        back.elapsed(),
    );
}

/// One time in and out.
async fn cycle(world: &World) -> Duration {
    let began = Instant::now();
    world.open("m").await;
    world.until_phase("m", "Active").await;
    world.close("m").await;
    world.until_phase("m", "Inactive").await;
    began.elapsed()
}

/// Waits until the deletion of a Machine was asked for, and returns when that was. The Machine itself cannot go while
/// its Node cannot.
async fn deleted(world: &World, name: &str) -> Timestamp {
    let began = Instant::now();
    loop {
        let machine = world.objects("Machine").get_opt(name).await.unwrap();
        let Some(machine) = machine else { return Timestamp::now() };
        if let Some(time) = machine.metadata.deletion_timestamp {
            return time.0;
        }
        let status = world.status(name).await;
        assert!(began.elapsed() < Duration::from_mins(1), "{name} is not deleted: {status:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
