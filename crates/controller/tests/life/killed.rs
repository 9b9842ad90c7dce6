//! The kill switch, from every phase.

use crate::harness::{CLOSED, OPEN, World, is};
use crate::look::{CLUSTER_API, History, OURS};
use crate::stage::{scenarios, world};
use fivespot_testenv::Fault;
use serde_json::json;

scenarios![
    out_of_the_window_it_keeps_the_machine_out,
    a_machine_that_never_joined_goes,
    no_budget_holds_an_active_machine,
    a_drain_under_way_gets_urgent,
    a_disabled_machine_stays_disabled_afterwards,
    a_spec_that_cannot_be_read_does_not_stop_it,
];

async fn kill(world: &World, name: &str) {
    world.patch(name, json!({"spec": {"killSwitch": true}})).await;
    let machine = world.until_phase(name, "Terminated").await;
    assert!(is(&machine, "Ready", "True", "KillSwitchActivated"));
    assert!(is(&machine, "Scheduled", "False", "KillSwitchActivated"));
    world.nothing_is_left(name).await;
    let status = machine.status.unwrap();
    let next = (status.next_activation, status.next_cleanup, status.next_transition);
    assert_eq!(next, (None, None, None));
    assert_eq!((status.machine_ref, status.shutdown), (None, None));
    assert_eq!(world.count_events(name, "KillSwitchActivated").await, 1);
}

async fn revive(world: &World, name: &str, phase: &str) {
    world.patch(name, json!({"spec": {"killSwitch": false}})).await;
    world.until_phase(name, phase).await;
}

async fn out_of_the_window_it_keeps_the_machine_out() {
    let world = world().await;
    world.create("kill-inactive", CLOSED, |_| {}).await;
    world.until_phase("kill-inactive", "Inactive").await;
    kill(world, "kill-inactive").await;
    world.open("kill-inactive").await;
    let machine = world.until_phase("kill-inactive", "Terminated").await;
    assert_eq!(machine.status.unwrap().in_schedule, Some(true));
    world.nothing_is_left("kill-inactive").await;
    world.close("kill-inactive").await;
    revive(world, "kill-inactive", "Inactive").await;
}

async fn a_machine_that_never_joined_goes() {
    let world = world().await;
    world.hosts.set("kill-pending", Fault::NeverJoins);
    world.create("kill-pending", OPEN, |_| {}).await;
    world
        .until("kill-pending", "made", |it| it.status.as_ref().is_some_and(|it| it.machine_ref.is_some()))
        .await;
    kill(world, "kill-pending").await;
    world.hosts.reset("kill-pending");
    revive(world, "kill-pending", "Active").await;
}

async fn no_budget_holds_an_active_machine() {
    let world = world().await;
    world.lend("kill-active", |_| {}).await;
    world.held_pod("kill-active", "kill-active-web").await;
    let history = History::of(world, "kill-active").await;
    kill(world, "kill-active").await;
    let hurrying = history.in_phase("EmergencyRemove").await;
    assert!(hurrying.iter().any(|it| {
        let shutdown = it.status.as_ref().and_then(|status| status.shutdown.clone());
        shutdown.is_some_and(|shutdown| shutdown.cause.as_deref() == Some("KillSwitch"))
    }));
    let nobody: [u16; 0] = [];
    assert_eq!(world.evictions("kill-active-web", OURS), nobody, "nobody is asked");
    assert_eq!(world.evictions("kill-active-web", CLUSTER_API), nobody);
    assert_eq!(world.pod_deletions("kill-active-web", OURS), 1);
    let machine = world.machines().get("kill-active").await.unwrap();
    assert!(machine.spec.schedule.enabled, "it is not the switch's to change");
    revive(world, "kill-active", "Active").await;
}

async fn a_drain_under_way_gets_urgent() {
    let world = world().await;
    world.lend("kill-leaving", |_| {}).await;
    world.held_pod("kill-leaving", "kill-leaving-web").await;
    world.close("kill-leaving").await;
    world.until_blocked("kill-leaving").await;
    kill(world, "kill-leaving").await;
    assert_eq!(world.pod_deletions("kill-leaving-web", OURS), 1);
    revive(world, "kill-leaving", "Inactive").await;
}

async fn a_disabled_machine_stays_disabled_afterwards() {
    let world = world().await;
    world.create("kill-disabled", OPEN, |spec| spec["schedule"]["enabled"] = json!(false)).await;
    world.until_phase("kill-disabled", "Disabled").await;
    kill(world, "kill-disabled").await;
    revive(world, "kill-disabled", "Disabled").await;
    world.nothing_is_left("kill-disabled").await;
}

async fn a_spec_that_cannot_be_read_does_not_stop_it() {
    let world = world().await;
    world.lend("kill-error", |_| {}).await;
    world.patch("kill-error", json!({"spec": {"schedule": {"timezone": "Mars/Olympus"}}})).await;
    world.until_phase("kill-error", "Error").await;
    kill(world, "kill-error").await;
    revive(world, "kill-error", "Error").await;
    world.nothing_is_left("kill-error").await;
    world.patch("kill-error", json!({"spec": {"schedule": {"timezone": "UTC"}}})).await;
    world.until_phase("kill-error", "Active").await;
}
