//! A spec that cannot be read.

use crate::harness::{OPEN, World, is, message};
use crate::stage::{scenarios, world};
use kube::api::DeleteParams;
use serde_json::json;
use std::time::Duration;

scenarios![
    nothing_that_runs_is_touched_until_it_is_mended,
    an_exit_under_way_is_finished,
    it_can_be_disabled_all_the_same,
    it_can_be_deleted_all_the_same,
    nothing_is_made_from_it,
];

async fn set_zone(world: &World, name: &str, zone: &str) {
    world.patch(name, json!({"spec": {"schedule": {"timezone": zone}}})).await;
}

async fn nothing_that_runs_is_touched_until_it_is_mended() {
    let world = world().await;
    world.lend("broken", |_| {}).await;
    let uid = world.uid("broken").await;
    set_zone(world, "broken", "Mars/Olympus").await;
    let machine = world.until_phase("broken", "Error").await;
    assert!(is(&machine, "Ready", "False", "InvalidSpec") && is(&machine, "Stalled", "True", "InvalidSpec"));
    assert!(is(&machine, "Scheduled", "Unknown", "InvalidSpec"));
    let text = message(&machine);
    assert!(text.contains("spec.schedule.timezone") && text.contains("Mars/Olympus"), "{text}");
    let status = machine.status.unwrap();
    assert_eq!((status.in_schedule, status.next_transition), (None, None));
    assert!(status.machine_ref.is_some() && status.node_ref.is_some(), "it still runs");
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.is_untouched("broken", &uid).await;
    set_zone(world, "broken", "Europe/Zurich").await;
    let machine = world.until_phase("broken", "Active").await;
    assert!(is(&machine, "Ready", "True", "NodeReady"));
    world.is_untouched("broken", &uid).await;
}

/// A window that closed when it could be read has closed.
async fn an_exit_under_way_is_finished() {
    let world = world().await;
    world.lend("broken-leaving", |spec| spec["nodeDrainTimeout"] = json!("10s")).await;
    world.held_pod("broken-leaving", "broken-leaving-web").await;
    world.close("broken-leaving").await;
    world.until_blocked("broken-leaving").await;
    set_zone(world, "broken-leaving", "Mars/Olympus").await;
    world.nothing_is_left("broken-leaving").await;
    let machine = world.until_phase("broken-leaving", "Error").await;
    assert_eq!(machine.status.unwrap().shutdown, None);
    set_zone(world, "broken-leaving", "UTC").await;
    world.until_phase("broken-leaving", "Inactive").await;
}

async fn it_can_be_disabled_all_the_same() {
    let world = world().await;
    world.lend("broken-disabled", |_| {}).await;
    let schedule = json!({"timezone": "Mars/Olympus", "enabled": false});
    world.patch("broken-disabled", json!({"spec": {"schedule": schedule}})).await;
    let machine = world.until_phase("broken-disabled", "Disabled").await;
    assert!(is(&machine, "Ready", "True", "ScheduleDisabled"));
    world.nothing_is_left("broken-disabled").await;
}

async fn it_can_be_deleted_all_the_same() {
    let world = world().await;
    world.lend("broken-deleted", |_| {}).await;
    set_zone(world, "broken-deleted", "Mars/Olympus").await;
    world.until_phase("broken-deleted", "Error").await;
    world.delete("broken-deleted", &DeleteParams::default()).await;
    world.until_all_gone("broken-deleted").await;
}

async fn nothing_is_made_from_it() {
    let world = world().await;
    world.create("broken-new", OPEN, |spec| spec["schedule"]["timezone"] = json!("Mars/Olympus")).await;
    world.until_phase("broken-new", "Error").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for kind in ["Machine", "RemoteMachine", "K0sWorkerConfig"] {
        assert!(world.objects(kind).get_opt("broken-new").await.unwrap().is_none());
    }
    set_zone(world, "broken-new", "UTC").await;
    world.until_phase("broken-new", "Active").await;
}
