//! Nodes that come back as they were, and Nodes that are not Ready.

use crate::harness::{CLOSED, is};
use crate::look::CORDONED_BY;
use crate::stage::{scenarios, world};
use fivespot_testenv::Fault;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::time::Duration;

scenarios![
    what_we_left_on_a_node_is_gone_before_it_counts_as_active,
    what_an_administrator_left_on_a_node_stays,
    a_node_that_is_not_ready_is_waited_for_and_never_replaced,
];

/// The Node of a machine, as a kubelet finds it that was away for a day.
async fn leave_node(machine: &str, annotations: Value, taints: Value) {
    let world = world().await;
    let id = world.hosts.provider_id(machine);
    let node = json!({
        "metadata": {"name": world.hosts.node_name(machine), "annotations": annotations},
        "spec": {"providerID": id, "unschedulable": true, "taints": taints},
    });
    world.nodes().create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
}

async fn what_we_left_on_a_node_is_gone_before_it_counts_as_active() {
    let world = world().await;
    let record = r#"[{"key":"old","effect":"NoSchedule","value":"1"},{"key":"kept","effect":"NoSchedule"}]"#;
    let annotations =
        json!({CORDONED_BY: "5spot-controller", "5spot.finos.org/applied-taints": record, "note": "left"});
    let taints = json!([
        {"key": "old", "value": "1", "effect": "NoSchedule"},
        {"key": "kept", "effect": "NoSchedule"},
        {"key": "admin", "effect": "NoSchedule"},
    ]);
    leave_node("returning", annotations, taints).await;
    let wanted = json!([{"key": "kept", "effect": "NoSchedule"}]);
    world.create("returning", CLOSED, |spec| spec["nodeTaints"] = wanted).await;
    world.until_phase("returning", "Inactive").await;
    // What status remembers of that day: without it, nobody could tell our taints from those that a kubelet names.
    let remembered = json!([
        {"key": "old", "value": "1", "effect": "NoSchedule"}, {"key": "kept", "effect": "NoSchedule"},
    ]);
    let host = json!({
        "nodeName": world.hosts.node_name("returning"), "machineID": "of-that-day", "systemUUID": "",
    });
    let status = Patch::Merge(json!({"status": {"appliedNodeTaints": remembered, "host": host}}));
    world.machines().patch_status("returning", &PatchParams::default(), &status).await.unwrap();
    world.open("returning").await;
    let machine = world.until_phase("returning", "Active").await;
    let node = world.node("returning").await;
    assert_ne!(node.spec.unwrap().unschedulable, Some(true));
    let annotations = node.metadata.annotations.unwrap();
    assert!(!annotations.contains_key(CORDONED_BY));
    assert_eq!(annotations["note"], "left");
    assert_eq!(annotations["5spot.finos.org/applied-taints"], r#"[{"key":"kept","effect":"NoSchedule"}]"#);
    assert_eq!(world.taints("returning").await, ["admin:NoSchedule", "kept:NoSchedule"]);
    let applied = machine.status.unwrap().applied_node_taints;
    assert_eq!(applied.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["kept"]);
}

async fn what_an_administrator_left_on_a_node_stays() {
    let world = world().await;
    let taints = json!([{"key": "admin", "effect": "NoSchedule"}]);
    leave_node("repaired", json!({"note": "under repair"}), taints).await;
    world.lend("repaired", |_| {}).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(world.is_cordoned("repaired").await);
    assert_eq!(world.taints("repaired").await, ["admin:NoSchedule"]);
}

async fn a_node_that_is_not_ready_is_waited_for_and_never_replaced() {
    let world = world().await;
    world.hosts.set("sick", Fault::NotReady);
    let taints = json!([{"key": "sick", "effect": "NoSchedule"}]);
    world.create("sick", crate::harness::OPEN, |spec| spec["nodeTaints"] = taints).await;
    let machine = world.until_reason("sick", "NodeNotReady").await;
    assert_eq!(machine.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
    assert!(is(&machine, "NodeTainted", "False", "NodeNotReady"));
    assert_eq!(world.taints("sick").await, [""; 0], "taints are applied when it is Ready");
    let uid = world.uid("sick").await;
    world.hosts.reset("sick");
    let machine = world.until_phase("sick", "Active").await;
    assert!(is(&machine, "NodeTainted", "True", "Applied"));
    assert_eq!(world.taints("sick").await, ["sick:NoSchedule"]);
    world.hosts.set("sick", Fault::NotReady);
    let machine = world.until_reason("sick", "NodeNotReady").await;
    assert_eq!(machine.status.unwrap().phase.as_deref(), Some("Pending"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.is_untouched("sick", &uid).await;
}
