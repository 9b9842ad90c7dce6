//! What others put in the way: objects of our names, providers that ignore us, specs that are too deep.

use crate::harness::{OPEN, World, is, message};
use crate::stage::{own_world, scenarios, world};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{Fault, eventually};
use kube::api::{DeleteParams, DynamicObject, PostParams};
use serde_json::json;
use std::time::{Duration, Instant};

scenarios![
    infrastructure_that_never_had_a_machine_goes_in_the_end,
    a_machine_of_our_name_that_is_not_ours_is_left_alone,
    deletion_leaves_a_machine_alone_that_is_not_ours,
    infrastructure_that_vanishes_is_shown_and_made_anew,
    infrastructure_that_vanishes_before_anything_joined_needs_nobody,
    a_deep_spec_is_handled_and_blinds_nobody,
];

/// k0smotron waits for the Machine that owns a RemoteMachine, also when it is being deleted.
async fn infrastructure_that_never_had_a_machine_goes_in_the_end() {
    let world = world().await;
    let machine = world.lend("blind", |_| {}).await;
    world.close("blind").await;
    world.until_phase("blind", "Inactive").await;
    world.nothing_is_left("blind").await;
    // As if we had been ended between the creation of this and of the Machine.
    world.hosts.set("blind", Fault::IgnoresDeletionWithoutMachine);
    let owner = json!({
        "apiVersion": "5spot.finos.org/v1alpha1", "kind": "ScheduledMachine", "name": "blind",
        "uid": machine.metadata.uid, "controller": false,
    });
    let object = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "RemoteMachine",
        "metadata": {
            "name": "blind",
            "labels": {"cluster.x-k8s.io/cluster-name": "lab", "5spot.finos.org/scheduled-machine": "blind"},
            "ownerReferences": [owner],
            "finalizers": ["remotemachine.k0smotron.io/finalizer"],
        },
        "spec": world.remote_machine("blind"),
    });
    let object = serde_json::from_value(object).unwrap();
    let began = Instant::now();
    world.objects("RemoteMachine").create(&PostParams::default(), &object).await.unwrap();
    let machine = world.until_reason("blind", "ObjectsDeleting").await;
    assert_eq!(machine.status.unwrap().phase.as_deref(), Some("ShuttingDown"));
    world.until_gone(&world.objects("RemoteMachine"), "blind").await;
    assert!(began.elapsed() > Duration::from_secs(25), "it was not blind");
    world.until_phase("blind", "Inactive").await;
    world.nothing_is_left("blind").await;
}

/// A Machine that somebody made by hand.
async fn foreign_machine(world: &World, name: &str) -> DynamicObject {
    let machine = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Machine",
        "metadata": {"name": name, "annotations": {"cluster.x-k8s.io/paused": ""}},
        "spec": {
            "clusterName": "lab",
            "bootstrap": {"dataSecretName": "none"},
            "infrastructureRef": {
                "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "RemoteMachine", "name": "none",
            },
        },
    });
    let machine = serde_json::from_value(machine).unwrap();
    world.objects("Machine").create(&PostParams::default(), &machine).await.unwrap()
}

/// It is what it was: nothing of ours is on it.
async fn is_as_it_was(world: &World, before: &DynamicObject) {
    let now = world.objects("Machine").get(before.metadata.name.as_ref().unwrap()).await.unwrap();
    assert_eq!((&now.metadata.uid, &now.metadata.deletion_timestamp), (&before.metadata.uid, &None));
    let labels = now.metadata.labels.unwrap_or_default();
    assert!(labels.keys().all(|key| !key.starts_with("5spot.finos.org/")), "{labels:?}");
    let owners = now.metadata.owner_references.unwrap_or_default();
    assert!(owners.iter().all(|owner| owner.kind != "ScheduledMachine"), "{owners:?}");
}

async fn a_machine_of_our_name_that_is_not_ours_is_left_alone() {
    let world = world().await;
    let foreign = foreign_machine(world, "taken").await;
    world.create("taken", OPEN, |_| {}).await;
    let machine = world.until_phase("taken", "Error").await;
    assert!(is(&machine, "Ready", "False", "NameTaken") && is(&machine, "Stalled", "True", "NameTaken"));
    assert!(message(&machine).contains("Machine taken"), "{}", message(&machine));
    tokio::time::sleep(Duration::from_secs(1)).await;
    is_as_it_was(world, &foreign).await;
    for kind in ["RemoteMachine", "K0sWorkerConfig"] {
        assert!(world.objects(kind).get_opt("taken").await.unwrap().is_none(), "{kind} was made");
    }
    // Neither a closed window nor the kill switch makes it ours.
    world.patch("taken", json!({"spec": {"killSwitch": true}})).await;
    world.until_phase("taken", "Terminated").await;
    is_as_it_was(world, &foreign).await;
    world.patch("taken", json!({"spec": {"killSwitch": false}})).await;
    world.until_phase("taken", "Error").await;
    release(world, "taken").await;
    world.until_phase("taken", "Active").await;
    assert_ne!(world.capi_machine("taken").await.metadata.uid, foreign.metadata.uid);
}

/// Whoever made the Machine takes it away again.
async fn release(world: &World, name: &str) {
    world.annotate_machine(name, json!({"cluster.x-k8s.io/paused": null})).await;
    world.capi_machines().delete(name, &DeleteParams::default()).await.unwrap();
}

async fn deletion_leaves_a_machine_alone_that_is_not_ours() {
    let world = world().await;
    let foreign = foreign_machine(world, "foreign").await;
    world.create("foreign", OPEN, |_| {}).await;
    world.until_phase("foreign", "Error").await;
    world.delete("foreign", &DeleteParams::default()).await;
    world.until_gone(&world.machines(), "foreign").await;
    is_as_it_was(world, &foreign).await;
    release(world, "foreign").await;
}

async fn infrastructure_that_vanishes_is_shown_and_made_anew() {
    let world = world().await;
    world.lend("hollow", |_| {}).await;
    let uid = world.uid("hollow").await;
    world.objects("RemoteMachine").delete("hollow", &DeleteParams::default()).await.unwrap();
    let machine = world.until_phase("hollow", "Error").await;
    assert!(is(&machine, "Ready", "False", "InfrastructureGone"));
    assert!(message(&machine).contains("delete the Machine"), "{}", message(&machine));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let machine = world.capi_machine("hollow").await;
    assert_eq!((machine.metadata.uid, machine.metadata.deletion_timestamp), (Some(uid.clone()), None));
    world.capi_machines().delete("hollow", &DeleteParams::default()).await.unwrap();
    world.until_phase("hollow", "Active").await;
    assert_ne!(world.uid("hollow").await, uid);
}

async fn infrastructure_that_vanishes_before_anything_joined_needs_nobody() {
    let world = world().await;
    world.hosts.set("empty", Fault::NeverJoins);
    world.create("empty", OPEN, |_| {}).await;
    let is_made = |it: &ScheduledMachine| it.status.as_ref().is_some_and(|it| it.machine_ref.is_some());
    world.until("empty", "made", is_made).await;
    let uid = world.uid("empty").await;
    world.objects("RemoteMachine").delete("empty", &DeleteParams::default()).await.unwrap();
    world.hosts.reset("empty");
    world.until_phase("empty", "Active").await;
    assert_ne!(world.uid("empty").await, uid);
}

/// Readers of JSON give up at a depth of 128, and a watch that gives up shows nobody any more. The simulated hosts of
/// the namespace are such readers, so this machine never joins.
async fn a_deep_spec_is_handled_and_blinds_nobody() {
    let world = own_world("deep").await;
    let mut manifest = world.machine("deep", OPEN);
    manifest["spec"]["infrastructureSpec"]["spec"]["provisionJob"] = json!("HERE");
    let deep = format!("{}1{}", r#"{"a":"#.repeat(150), "}".repeat(150));
    let manifest = manifest.to_string().replace(r#""HERE""#, &deep);
    world.kubectl(&["create", "-f", "-"], &manifest).await.unwrap();
    let machine = async || {
        let path = "jsonpath={.status.phase}/{.status.machineRef.name}";
        world.kubectl(&["get", "sm", "deep", "-o", path], "").await.unwrap()
    };
    eventually("it is on its way", async || machine().await == "Pending/deep").await;
    let path = "jsonpath={.spec.provisionJob}";
    let passed_on = world.kubectl(&["get", "remotemachine", "deep", "-o", path], "").await.unwrap();
    assert_eq!(passed_on, deep, "it is passed on as it is");

    let others = crate::stage::world().await;
    others.lend("shallow", |_| {}).await;
    others.close("shallow").await;
    others.until_phase("shallow", "Inactive").await;

    let disabled = r#"{"spec":{"schedule":{"enabled":false}}}"#;
    world.kubectl(&["patch", "sm", "deep", "--type=merge", "-p", disabled], "").await.unwrap();
    eventually("it is Disabled", async || machine().await == "Disabled/").await;
    world.nothing_is_left("deep").await;
    world.kubectl(&["delete", "sm", "deep", "--timeout=30s"], "").await.unwrap();
}
