//! The window opens again while the machine is leaving.

use crate::harness::{is, message};
use crate::look::{CORDONED_BY, HOOK};
use crate::stage::{scenarios, world};
use fivespot_testenv::Fault;
use serde_json::json;
use std::time::Duration;

scenarios![
    before_the_machine_was_deleted_it_stays,
    after_the_machine_was_deleted_a_new_one_is_made,
    a_hook_of_others_is_shown_and_never_removed,
    the_cordon_of_an_administrator_is_never_undone,
];

async fn before_the_machine_was_deleted_it_stays() {
    let world = world().await;
    world.lend("back", |_| {}).await;
    let uid = world.uid("back").await;
    world.held_pod("back", "back-web").await;
    let pod = world.pods().get("back-web").await.unwrap().metadata.uid;
    world.close("back").await;
    world.until_blocked("back").await;
    assert!(world.is_cordoned("back").await);
    assert_eq!(world.node_annotation("back", CORDONED_BY).await.as_deref(), Some("5spot-controller"));

    world.open("back").await;
    let machine = world.until_phase("back", "Active").await;
    assert!(is(&machine, "Ready", "True", "NodeReady"));
    assert_eq!(machine.status.unwrap().shutdown, None);
    world.is_untouched("back", &uid).await;
    assert_eq!(world.node_annotation("back", CORDONED_BY).await, None);
    assert_eq!(world.pods().get("back-web").await.unwrap().metadata.uid, pod);
    let annotations = world.capi_machine("back").await.metadata.annotations.unwrap_or_default();
    assert!(!annotations.contains_key("machine.cluster.x-k8s.io/exclude-node-draining"));
    assert_eq!(world.count_events("back", "MachineCreated").await, 1);
}

async fn after_the_machine_was_deleted_a_new_one_is_made() {
    let world = world().await;
    world.lend("anew", |_| {}).await;
    let (uid, node) = (world.uid("anew").await, world.node("anew").await.metadata.uid);
    world.hosts.set("anew", Fault::FinalizerStays);
    world.close("anew").await;
    world.until_deleting("anew").await;
    world.open("anew").await;
    let waiting = world.until_reason("anew", "WaitingForDeletion").await;
    assert_eq!(waiting.status.unwrap().phase.as_deref(), Some("ShuttingDown"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.uid("anew").await, uid, "the old one is still there");
    world.hosts.reset("anew");
    let machine = world.until_phase("anew", "Active").await;
    assert_ne!(world.uid("anew").await, uid);
    assert_ne!(world.node("anew").await.metadata.uid, node);
    assert_eq!(machine.status.unwrap().shutdown, None);
    assert_eq!(world.count_events("anew", "MachineCreated").await, 2);
    world.close("anew").await;
    world.until_phase("anew", "Inactive").await;
    world.nothing_is_left("anew").await;
}

async fn a_hook_of_others_is_shown_and_never_removed() {
    let world = world().await;
    world.lend("hooked", |_| {}).await;
    let uid = world.uid("hooked").await;
    world.annotate_machine("hooked", json!({HOOK: "somebody"})).await;
    world.close("hooked").await;
    let held = world.until_reason("hooked", "HeldByHooks").await;
    assert!(message(&held).contains(HOOK), "{}", message(&held));
    // Also no emergency removes it.
    world.patch("hooked", json!({"spec": {"killSwitch": true}})).await;
    let held = world
        .until("hooked", "held in an emergency", |it| {
            is(it, "Ready", "False", "HeldByHooks") && is(it, "Scheduled", "False", "KillSwitchActivated")
        })
        .await;
    assert_eq!(held.status.unwrap().phase.as_deref(), Some("EmergencyRemove"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let machine = world.capi_machine("hooked").await;
    assert_eq!(machine.metadata.uid.as_ref(), Some(&uid));
    assert_eq!(machine.metadata.annotations.unwrap()[HOOK], "somebody");
    world.annotate_machine("hooked", json!({HOOK: null})).await;
    world.until_phase("hooked", "Terminated").await;
    world.nothing_is_left("hooked").await;
}

async fn the_cordon_of_an_administrator_is_never_undone() {
    let world = world().await;
    world.lend("admins", |_| {}).await;
    world.held_pod("admins", "admins-web").await;
    world.patch_node("admins", json!({"spec": {"unschedulable": true}})).await;
    world.close("admins").await;
    world.until_blocked("admins").await;
    assert_eq!(world.node_annotation("admins", CORDONED_BY).await, None, "it is not ours");
    world.open("admins").await;
    world.until_phase("admins", "Active").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(world.is_cordoned("admins").await);
}
