//! Disabled and paused.

use crate::harness::{CLOSED, World, is, message};
use crate::look::OURS;
use crate::stage::{own_world, scenarios, world};
use fivespot_testenv::cluster_api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;

scenarios![
    a_paused_cluster_holds_its_machines,
    a_paused_object_is_left_as_it_is,
    a_disabled_machine_leaves_gracefully_and_comes_back,
];

async fn a_disabled_machine_leaves_gracefully_and_comes_back() {
    let world = world().await;
    world.lend("disabled", |_| {}).await;
    world.pod("disabled", "disabled-web", |_| {}).await;
    world.patch("disabled", json!({"spec": {"schedule": {"enabled": false}}})).await;
    let machine = world.until_phase("disabled", "Disabled").await;
    assert!(is(&machine, "Ready", "True", "ScheduleDisabled"));
    assert!(is(&machine, "Scheduled", "False", "ScheduleDisabled"));
    world.nothing_is_left("disabled").await;
    assert_eq!(world.evictions("disabled-web", OURS), [201]);
    let status = machine.status.unwrap();
    assert_eq!(status.in_schedule, Some(true), "the window is open, enabled or not");
    let next = (status.next_activation, status.next_cleanup, status.next_transition);
    assert_eq!(next, (None, None, None));
    assert_eq!(world.count_events("disabled", "ScheduleDisabled").await, 1);
    world.patch("disabled", json!({"spec": {"schedule": {"enabled": true}}})).await;
    world.until_phase("disabled", "Active").await;
}

/// While `pause` holds, neither an open window makes a machine nor a closed one takes it away.
async fn holds(world: &World, name: &str, pause: impl AsyncFn(bool)) {
    world.create(name, CLOSED, |_| {}).await;
    world.until_phase(name, "Inactive").await;
    pause(true).await;
    world.open(name).await;
    let machine = world.until_reason(name, "Paused").await;
    assert!(message(&machine).contains("paused"), "{}", message(&machine));
    tokio::time::sleep(Duration::from_secs(2)).await;
    for kind in ["Machine", "RemoteMachine", "K0sWorkerConfig"] {
        assert!(world.objects(kind).get_opt(name).await.unwrap().is_none(), "{kind} was made");
    }
    pause(false).await;
    world.until_phase(name, "Active").await;

    let uid = world.uid(name).await;
    world.pod(name, &format!("{name}-web"), |_| {}).await;
    pause(true).await;
    world.close(name).await;
    let machine = world.until_reason(name, "Paused").await;
    assert_eq!(machine.status.unwrap().shutdown, None, "the budget of the exit begins when the pause ends");
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.is_untouched(name, &uid).await;
    let nobody: [u16; 0] = [];
    assert_eq!(world.evictions(&format!("{name}-web"), ""), nobody);
    pause(false).await;
    world.until_phase(name, "Inactive").await;
    world.nothing_is_left(name).await;
}

async fn a_paused_object_is_left_as_it_is() {
    let world = world().await;
    holds(world, "paused", async |paused| {
        let value = if paused { json!("") } else { Value::Null };
        let annotations = json!({"cluster.x-k8s.io/paused": value});
        world.patch("paused", json!({"metadata": {"annotations": annotations}})).await;
    })
    .await;
}

async fn a_paused_cluster_holds_its_machines() {
    let world = own_world("paused").await;
    let clusters = cluster_api(&world.management, &world.namespace, crate::VERSION, "Cluster");
    holds(&world, "m", async |paused| {
        let patch = Patch::Merge(json!({"spec": {"paused": paused}}));
        clusters.patch("lab", &PatchParams::default(), &patch).await.unwrap();
    })
    .await;
}
