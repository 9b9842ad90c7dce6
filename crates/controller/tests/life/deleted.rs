//! Deletion of a ScheduledMachine, in every phase and in every way, and of what belongs to it.

use crate::harness::{CLOSED, OPEN, World, is};
use crate::look::{CLUSTER_API, HOOK, History, OURS};
use crate::stage::{garbage_is_collected, own_world, scenarios, world};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{AuditEntry, Fault, cluster_api, eventually};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, PostParams, PropagationPolicy};
use serde_json::{Value, json};
use std::time::Duration;

scenarios![
    in_the_foreground_it_is_refused_and_in_the_background_the_host_is_reset_after_the_drain,
    an_owner_that_is_deleted_in_the_foreground_waits_for_its_machine,
    a_cluster_that_goes_takes_its_machines_along_without_a_drain,
    orphans_live_on_without_us,
    an_active_machine_is_drained_first,
    the_object_stays_until_its_machine_is_gone,
    while_it_is_leaving_it_goes_on_leaving,
    before_it_has_joined_nothing_is_left,
    in_an_emergency_it_stays_one,
    where_nothing_exists_it_goes_at_once,
    a_machine_that_was_deleted_by_hand_is_made_again,
];

async fn delete(world: &World, name: &str) {
    world.delete(name, &DeleteParams::default()).await;
}

/// When somebody first asked for the deletion of an infrastructure object: from then on its provider resets the host.
fn host_reset_at(world: &World, name: &str) -> Timestamp {
    let is_it = |it: &AuditEntry| {
        it.verb == "delete"
            && it.resource == "remotemachines"
            && it.code == 200
            && (it.namespace.as_str(), it.name.as_str()) == (world.namespace.as_str(), name)
    };
    world.plane.management().audit().unwrap().into_iter().find(is_it).unwrap().at
}

/// Neither the ScheduledMachine nor anything it made is being deleted, and its Node takes pods.
async fn is_still_lent(world: &World, name: &str, machine_uid: &str) {
    world.is_untouched(name, machine_uid).await;
    for kind in ["RemoteMachine", "K0sWorkerConfig"] {
        let object = world.objects(kind).get(name).await.unwrap();
        assert_eq!(object.metadata.deletion_timestamp, None, "{kind}");
    }
    let machine = world.machines().get(name).await.unwrap();
    assert_eq!(machine.metadata.deletion_timestamp, None);
    assert_eq!(machine.status.unwrap().phase.as_deref(), Some("Active"));
}

async fn in_the_foreground_it_is_refused_and_in_the_background_the_host_is_reset_after_the_drain() {
    let world = world().await;
    let drain = |timeout: &'static str| move |spec: &mut Value| spec["nodeDrainTimeout"] = json!(timeout);
    tokio::join!(world.lend("late", drain("8s")), world.lend("drained", drain("1m")));
    tokio::join!(world.held_pod("late", "late-web"), world.held_pod("drained", "drained-web"));
    garbage_is_collected().await;
    let uids = [world.uid("late").await, world.uid("drained").await];
    for name in ["late", "drained"] {
        let delete = ["delete", "sm", name, "--cascade=foreground", "--wait=false"];
        let refused = world.kubectl(&delete, "").await.unwrap_err();
        for says in ["its host would be reset", "--cascade=background", "PrunePropagationPolicy=background"] {
            assert!(refused.contains(says), "{says}: {refused}");
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    is_still_lent(world, "late", &uids[0]).await;
    is_still_lent(world, "drained", &uids[1]).await;

    for name in ["late", "drained"] {
        world.kubectl(&["delete", "sm", name, "--wait=false"], "").await.unwrap();
    }
    let late = world.until_blocked("late").await.status.unwrap().shutdown.unwrap();
    world.until_blocked("drained").await;
    world.remove_budget("drained-web").await;
    world.until_all_gone("drained").await;
    world.until_all_gone("late").await;

    let (reset, deadline) = (host_reset_at(world, "late"), late.drain_deadline.unwrap().0);
    assert!(reset >= deadline, "the host was reset at {reset}, before the deadline of its drain, {deadline}");
    let is_deleted = |it: &&AuditEntry| it.verb == "delete" && it.code == 200;
    let pod_gone = world.pod_requests("drained-web").iter().rfind(is_deleted).unwrap().at;
    let reset = host_reset_at(world, "drained");
    assert!(reset >= pod_gone, "the host was reset at {reset}, before its pod was gone at {pod_gone}");
}

async fn an_owner_that_is_deleted_in_the_foreground_waits_for_its_machine() {
    let world = world().await;
    world.lend("owned", |_| {}).await;
    let owners: Api<ConfigMap> = Api::namespaced(world.management.clone(), &world.namespace);
    let owner = serde_json::from_value(json!({"metadata": {"name": "owner"}})).unwrap();
    let owner = owners.create(&PostParams::default(), &owner).await.unwrap();
    let reference = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid,
        "blockOwnerDeletion": true,
    });
    world.patch("owned", json!({"metadata": {"ownerReferences": [reference]}})).await;
    garbage_is_collected().await;
    let uid = world.uid("owned").await;
    owners.delete("owner", &DeleteParams::foreground()).await.unwrap();
    eventually("the garbage collector is refused", async || {
        let is_it = |it: &AuditEntry| {
            it.verb == "delete"
                && it.resource == "scheduledmachines"
                && it.code == 403
                && it.name == "owned"
                && it.user.ends_with(":generic-garbage-collector")
        };
        world.plane.management().audit().unwrap().iter().any(is_it)
    })
    .await;
    is_still_lent(world, "owned", &uid).await;
    assert!(owners.get_opt("owner").await.unwrap().is_some());
    delete(world, "owned").await;
    world.until_all_gone("owned").await;
    world.until_gone(&owners, "owner").await;
}

async fn a_cluster_that_goes_takes_its_machines_along_without_a_drain() {
    let world = own_world("doomed").await;
    tokio::join!(world.lend("m", |_| {}), world.lend("n", |_| {}));
    world.held_pod("m", "web").await;
    let clusters = cluster_api(&world.management, &world.namespace, crate::VERSION, "Cluster");
    clusters.delete("lab", &DeleteParams::default()).await.unwrap();
    // Cluster API leaves the Nodes of a Cluster that goes to whoever has that.
    for kind in ["Machine", "RemoteMachine", "K0sWorkerConfig"] {
        world.until_gone(&world.objects(kind), "m").await;
    }
    let nobody: [u16; 0] = [];
    assert_eq!(world.evictions("web", ""), nobody);
    world.until_gone(&clusters, "lab").await;
    let machine = world.until_reason("m", "ClusterNotFound").await;
    assert!(is(&machine, "Scheduled", "True", "InWindow"));
    assert_eq!(machine.status.unwrap().phase.as_deref(), Some("Pending"));
    delete(&world, "m").await;
    world.until_gone(&world.machines(), "m").await;
    world.close("n").await;
    world.until_phase("n", "Inactive").await;
}

async fn orphans_live_on_without_us() {
    let world = world().await;
    world.lend("orphan", |_| {}).await;
    world.pod("orphan", "orphan-web", |_| {}).await;
    garbage_is_collected().await;
    let history = History::of(world, "orphan").await;
    let (uid, node) = (world.uid("orphan").await, world.node("orphan").await.metadata.uid);
    let params =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    world.delete("orphan", &params).await;
    world.until_gone(&world.machines(), "orphan").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.is_untouched("orphan", &uid).await;
    let leaves = |it: &ScheduledMachine| it.status.as_ref().is_some_and(|it| it.shutdown.is_some());
    assert!(!history.all().iter().any(leaves), "an exit began");
    assert_eq!(world.node("orphan").await.metadata.uid, node);
    assert_eq!(world.pods().get("orphan-web").await.unwrap().metadata.deletion_timestamp, None);
    for kind in ["Machine", "RemoteMachine", "K0sWorkerConfig"] {
        let object = world.objects(kind).get("orphan").await.unwrap();
        assert_eq!(object.metadata.deletion_timestamp, None);
        let owners = object.metadata.owner_references.unwrap_or_default();
        assert!(owners.iter().all(|owner| owner.kind != "ScheduledMachine"), "{kind}: {owners:?}");
    }
    world.capi_machines().delete("orphan", &DeleteParams::default()).await.unwrap();
}

async fn an_active_machine_is_drained_first() {
    let world = world().await;
    world.lend("delete-active", |_| {}).await;
    world.pod("delete-active", "delete-active-web", |_| {}).await;
    delete(world, "delete-active").await;
    let leaving = |it: &ScheduledMachine| {
        let shutdown = it.status.as_ref().and_then(|status| status.shutdown.clone());
        shutdown.is_some_and(|shutdown| shutdown.cause.as_deref() == Some("Deleted"))
    };
    let machine = world.until("delete-active", "leaving", leaving).await;
    assert!(is(&machine, "Scheduled", "False", "Deleting"));
    world.until_all_gone("delete-active").await;
    assert_eq!(world.evictions("delete-active-web", OURS), [201]);
    let nobody: [u16; 0] = [];
    assert_eq!(world.evictions("delete-active-web", CLUSTER_API), nobody);
}

async fn the_object_stays_until_its_machine_is_gone() {
    let world = world().await;
    world.lend("delete-held", |_| {}).await;
    world.hosts.set("delete-held", Fault::FinalizerStays);
    delete(world, "delete-held").await;
    world.until_deleting("delete-held").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let machine = world.machines().get("delete-held").await.unwrap();
    assert_eq!(machine.metadata.finalizers.unwrap_or_default(), ["5spot.finos.org/scheduledmachine"]);
    assert_eq!(machine.status.unwrap().phase.as_deref(), Some("ShuttingDown"));
    world.hosts.reset("delete-held");
    world.until_all_gone("delete-held").await;
}

async fn while_it_is_leaving_it_goes_on_leaving() {
    let world = world().await;
    world.lend("delete-leaving", |spec| spec["nodeDrainTimeout"] = json!("8s")).await;
    world.held_pod("delete-leaving", "delete-leaving-web").await;
    world.close("delete-leaving").await;
    let before = world.until_blocked("delete-leaving").await.status.unwrap().shutdown;
    delete(world, "delete-leaving").await;
    let is_heard = |it: &ScheduledMachine| is(it, "Scheduled", "False", "Deleting");
    let machine = world.until("delete-leaving", "heard", is_heard).await;
    assert_eq!(machine.status.unwrap().shutdown, before, "the deadline stays what it was");
    world.until_all_gone("delete-leaving").await;
    let tried = world.evictions("delete-leaving-web", OURS);
    assert!(tried.iter().all(|&code| code == 429), "{tried:?}");
}

async fn before_it_has_joined_nothing_is_left() {
    let world = world().await;
    world.hosts.set("delete-pending", Fault::NeverJoins);
    world.create("delete-pending", OPEN, |_| {}).await;
    eventually("the Machine is there", async || {
        world.capi_machines().get_opt("delete-pending").await.unwrap().is_some()
    })
    .await;
    delete(world, "delete-pending").await;
    world.until_all_gone("delete-pending").await;
}

async fn in_an_emergency_it_stays_one() {
    let world = world().await;
    world.lend("delete-urgent", |_| {}).await;
    world.held_pod("delete-urgent", "delete-urgent-web").await;
    world.annotate_machine("delete-urgent", json!({HOOK: "somebody"})).await;
    world.patch("delete-urgent", json!({"spec": {"killSwitch": true}})).await;
    world.until_reason("delete-urgent", "HeldByHooks").await;
    delete(world, "delete-urgent").await;
    let is_heard = |it: &ScheduledMachine| is(it, "Scheduled", "False", "Deleting");
    let machine = world.until("delete-urgent", "heard", is_heard).await;
    assert_eq!(machine.status.unwrap().phase.as_deref(), Some("EmergencyRemove"));
    world.annotate_machine("delete-urgent", json!({HOOK: null})).await;
    world.until_all_gone("delete-urgent").await;
    let nobody: [u16; 0] = [];
    assert_eq!(world.evictions("delete-urgent-web", ""), nobody);
}

async fn where_nothing_exists_it_goes_at_once() {
    let world = world().await;
    let disable = |spec: &mut Value| spec["schedule"]["enabled"] = json!(false);
    let kill = |spec: &mut Value| spec["killSwitch"] = json!(true);
    let break_it = |spec: &mut Value| spec["schedule"]["timezone"] = json!("Mars/Olympus");
    world.create("delete-inactive", CLOSED, |_| {}).await;
    world.create("delete-disabled", OPEN, disable).await;
    world.create("delete-terminated", OPEN, kill).await;
    world.create("delete-error", OPEN, break_it).await;
    for (name, phase) in [
        ("delete-inactive", "Inactive"),
        ("delete-disabled", "Disabled"),
        ("delete-terminated", "Terminated"),
        ("delete-error", "Error"),
    ] {
        world.until_phase(name, phase).await;
        delete(world, name).await;
        world.until_all_gone(name).await;
    }
}

async fn a_machine_that_was_deleted_by_hand_is_made_again() {
    let world = world().await;
    world.lend("lost", |_| {}).await;
    let uid = world.uid("lost").await;
    world.capi_machines().delete("lost", &DeleteParams::default()).await.unwrap();
    let waiting = world.until_reason("lost", "WaitingForDeletion").await;
    assert_eq!(waiting.status.unwrap().phase.as_deref(), Some("Pending"));
    world.until_phase("lost", "Active").await;
    assert_ne!(world.uid("lost").await, uid);
    assert_eq!(world.count_events("lost", "MachineCreated").await, 2);
}
