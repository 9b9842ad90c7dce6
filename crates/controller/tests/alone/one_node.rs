//! Two ScheduledMachines whose Machines ended up on one Node.

use crate::audit::requests;
use crate::harness::{Controller, OPEN, is, message};
use crate::{end, plane, worlds};
use fivespot_testenv::{Fault, eventually};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_them_has_the_node_and_the_other_writes_nothing_to_it() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "one-node").await;
    let controller = Controller::start(plane, "one-node", &[]);
    let taints = |key: &str| json!([{"key": key, "effect": "NoSchedule"}]);
    world.create("first", OPEN, |spec| spec["nodeTaints"] = taints("first")).await;
    world.until_phase("first", "Active").await;
    world.hosts.set("second", Fault::NeverJoins);
    world.create("second", OPEN, |spec| spec["nodeTaints"] = taints("second")).await;
    let machines = world.objects("Machine");
    eventually("the second Machine has a providerID", async || {
        machines.get_opt("second").await.unwrap().is_some_and(|it| it.data["spec"]["providerID"].is_string())
    })
    .await;
    let since = Timestamp::now();
    let id = json!({"spec": {"providerID": world.hosts.provider_id("first")}});
    machines.patch("second", &PatchParams::default(), &Patch::Merge(id)).await.unwrap();
    let node = json!({"status": {"nodeRef": {"name": world.hosts.node_name("first")}}});
    machines.patch_status("second", &PatchParams::default(), &Patch::Merge(node)).await.unwrap();
    let machine = world.until_phase("second", "Error").await;
    assert!(is(&machine, "Ready", "False", "NodeClaimed"), "{:?}", machine.status);
    assert!(message(&machine).contains(&format!("{}/first", world.namespace)), "{}", message(&machine));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let patches = requests(plane.workload(), since);
    let patches = patches.iter().filter(|it| it.resource == "nodes" && it.verb == "patch").count();
    assert_eq!(patches, 0, "the two fight over the Node");
    // The second leaves without a word to the Node of the first.
    world.close("second").await;
    eventually("the second Machine is deleted", async || {
        let machine = machines.get_opt("second").await.unwrap();
        machine.is_none_or(|it| it.metadata.deletion_timestamp.is_some())
    })
    .await;
    let cordoned = world.node("first").await.spec.unwrap().unschedulable == Some(true);
    assert!(!cordoned, "the Node of the first was cordoned");
    end(&controller);
}
