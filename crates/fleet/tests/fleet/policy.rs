//! What whoever runs the cluster, or owns a pod, may choose about a drain.

use crate::harness::shard::PlayedShard;
use crate::harness::yard::Yard;
use crate::harness::{Operator, from_root, plane};
use fivespot_fleet::wire::MachineState::Configured;
use fivespot_testenv::{ControlPlane, eventually};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;

/// A machine that is in use, and its operator with these flags.
async fn lent(
    plane: &ControlPlane,
    yard: &Yard,
    shard: &PlayedShard,
    name: &str,
    flags: &[&str],
) -> Operator {
    yard.node(name, |_| {}).await;
    let operator = Operator::start(plane, name, &shard.address, flags);
    shard.until("hello", PlayedShard::is_connected).await;
    shard.tell(name, Configured);
    yard.until_phase(name, "Ready").await;
    operator
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_wants_to_finish_is_waited_for() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "finish").await;
    let shard = PlayedShard::start().await;
    let _operator = lent(plane, &yard, &shard, "finish-0", &[]).await;
    yard.pod("finish-0", "job", |pod| {
        pod["metadata"]["labels"]["5spot.finos.org/fleet-drain"] = json!("wait");
    })
    .await;
    yard.pod("finish-0", "web", |_| {}).await;
    shard.instruct("finish", &["finish-0"], 60);
    eventually("the other is gone", async || yard.on("finish-0").await == ["job"]).await;
    let says = async || yard.annotation("finish-0", "5spot.finos.org/fleet-progress").await;
    eventually("the Node says why", async || {
        says().await.is_some_and(|text| text.contains("1 left to finish, by its label"))
    })
    .await;
    assert!(yard.pods().get("job").await.unwrap().metadata.deletion_timestamp.is_none());
    let done = Patch::Strategic(json!({"status": {"phase": "Succeeded"}}));
    yard.pods().patch_status("job", &PatchParams::default(), &done).await.unwrap();
    yard.until_phase("finish-0", "Drained").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_would_be_lost_can_be_left_to_a_person() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "lossy").await;
    let shard = PlayedShard::start().await;
    let _operator = lent(plane, &yard, &shard, "lossy-0", &["--lossy-pods=block"]).await;
    // Nobody makes another one.
    yard.pod("lossy-0", "bare", |_| {}).await;
    yard.pod("lossy-0", "web", |pod| {
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "0-1", "controller": true,
        }]);
    })
    .await;
    shard.instruct("lossy", &["lossy-0"], 6);
    let error = yard.until_phase("lossy-0", "Failed").await;
    println!("{error}");
    assert!(
        error.contains("1 not evicted, since something would be lost with it (--lossy-pods=block)"),
        "{error}"
    );
    assert_eq!(yard.on("lossy-0").await, ["bare"]);
    assert!(yard.pods().get("bare").await.unwrap().metadata.deletion_timestamp.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_can_be_given_no_more_time_than_its_drain() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "cap").await;
    yard.pods_end(false);
    let shard = PlayedShard::start().await;
    let _operator = lent(plane, &yard, &shard, "cap-0", &["--cap-pod-grace"]).await;
    for (name, grace) in [("slow", 600), ("quick", 3)] {
        yard.pod("cap-0", name, |pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(grace)).await;
    }
    let sent = shard.instruct("cap", &["cap-0"], 30);
    let end = async |name: &str| yard.pods().get(name).await.unwrap().metadata.deletion_timestamp;
    eventually("both are ending", async || end("slow").await.is_some() && end("quick").await.is_some()).await;
    let pod = yard.pods().get("slow").await.unwrap();
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap();
    assert!((20..=30).contains(&grace), "{grace}");
    let deadline = yard.record("cap-0").await.unwrap().deadline;
    assert!(end("slow").await.unwrap().0 <= deadline, "it ends before the drain must");
    let quick = yard.pods().get("quick").await.unwrap();
    assert_eq!(quick.metadata.deletion_grace_period_seconds, Some(3), "its own time is enough");
    yard.pods_end(true);
    yard.until_phase("cap-0", "Drained").await;
    assert!(Timestamp::now().duration_since(sent).as_secs() < 31);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_at_the_deadline_is_ended_only_if_that_was_chosen() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "force").await;
    let shard = PlayedShard::start().await;
    let file = from_root("deploy/fleet/force.yaml");
    let kubectl = |verb: &str| {
        plane.kubectl(plane.management(), &[verb, "-f", file.to_str().unwrap()], "").unwrap();
    };
    kubectl("apply");
    let operator = lent(plane, &yard, &shard, "force-0", &["--on-deadline=force"]).await;
    yard.pod("force-0", "held", |pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(600)).await;
    yard.budget("held").await;
    let sent = shard.instruct("force", &["force-0"], 5);
    eventually("it is held up", async || {
        yard.events("force-0").await.iter().any(|event| event.starts_with("DrainBlocked"))
    })
    .await;
    assert_eq!(yard.on("force-0").await, ["held"], "before the deadline its budget is kept");
    yard.until_phase("force-0", "Drained").await;
    let took = Timestamp::now().duration_since(sent).as_secs_f64();
    assert!((5.0..15.0).contains(&took), "{took}");
    assert!(yard.on("force-0").await.is_empty());
    let told = format!("1 ended at the deadline, whatever budgets said: {}/held", yard.namespace);
    let is_told = |event: &String| event.starts_with("Drained") && event.contains(&told);
    eventually("it is told", async || yard.events("force-0").await.iter().any(is_told)).await;
    drop(operator);
    kubectl("delete");
}
