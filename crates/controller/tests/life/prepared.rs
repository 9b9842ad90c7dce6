//! What is found out before a window opens.

use crate::harness::{CLOSED, OPEN, is, message};
use crate::stage::{own_world, scenarios, world};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::create_cluster_without_secret;
use kube::api::PostParams;
use serde_json::json;

scenarios![
    a_field_that_the_server_would_drop_is_shown_before_the_window_opens,
    nothing_is_created_for_a_machine_whose_fields_the_server_would_drop,
    a_cluster_and_a_kind_that_are_missing_are_shown_before_the_window_opens,
    a_machine_that_could_be_lent_is_asked_about_once,
];

async fn a_field_that_the_server_would_drop_is_shown_before_the_window_opens() {
    let world = world().await;
    let name = "misspelt";
    world
        .create(name, CLOSED, |spec| spec["infrastructureSpec"]["spec"]["adress"] = json!("192.0.2.9"))
        .await;
    let refused = |machine: &ScheduledMachine| is(machine, "Prepared", "False", "SpecRefused");
    let machine = world.until(name, "found not prepared", refused).await;
    let conditions = &machine.status.as_ref().unwrap().conditions;
    let text = &conditions.iter().find(|it| it.type_ == "Prepared").unwrap().message;
    assert!(text.contains("adress") && text.contains("infrastructure object"), "{text}");
    assert_eq!(machine.status.as_ref().unwrap().phase.as_deref(), Some("Inactive"));
    assert!(is(&machine, "Ready", "True", "OutsideWindow"));
    assert!(world.has_event(name, "NotPrepared").await, "{:?}", world.events(name).await);
    let patch = json!({"spec": {"infrastructureSpec": {"spec": {"adress": null}}}});
    world.patch(name, patch).await;
    world.until(name, "prepared", |machine| is(machine, "Prepared", "True", "Checked")).await;
}

async fn nothing_is_created_for_a_machine_whose_fields_the_server_would_drop() {
    let world = world().await;
    let name = "misspelt-and-open";
    world.create(name, OPEN, |spec| spec["infrastructureSpec"]["spec"]["adress"] = json!("192.0.2.9")).await;
    let machine = world.until_phase(name, "Error").await;
    assert!(message(&machine).contains("adress"), "{}", message(&machine));
    assert!(is(&machine, "Prepared", "False", "SpecRefused"));
    for kind in ["K0sWorkerConfig", "RemoteMachine", "Machine"] {
        assert!(world.objects(kind).get_opt(name).await.unwrap().is_none(), "{kind} exists");
    }
    world.patch(name, json!({"spec": {"infrastructureSpec": {"spec": {"adress": null}}}})).await;
    world.until_phase(name, "Active").await;
    let made = world.objects("RemoteMachine").get(name).await.unwrap();
    let annotations = made.metadata.annotations.unwrap_or_default();
    assert_eq!(annotations["5spot.finos.org/created-by"], "5spot-controller");
}

async fn a_cluster_and_a_kind_that_are_missing_are_shown_before_the_window_opens() {
    let world = own_world("unprepared").await;
    world.create("lost", CLOSED, |spec| spec["clusterName"] = json!("nowhere")).await;
    let missing = |machine: &ScheduledMachine| is(machine, "Prepared", "False", "ClusterNotFound");
    world.until("lost", "without a Cluster", missing).await;
    assert!(world.has_event("lost", "NotPrepared").await);
    create_cluster_without_secret(world.plane, &world.namespace, "nowhere").await.unwrap();
    world.until("lost", "prepared", |machine| is(machine, "Prepared", "True", "Checked")).await;
    let mut odd = world.machine("odd", CLOSED);
    odd["spec"]["infrastructureSpec"]["apiVersion"] = json!("infrastructure.cluster.x-k8s.io/v9");
    world.machines().create(&PostParams::default(), &serde_json::from_value(odd).unwrap()).await.unwrap();
    let refused = |machine: &ScheduledMachine| is(machine, "Prepared", "False", "SpecRefused");
    world.until("odd", "of a version that is not served", refused).await;
}

async fn a_machine_that_could_be_lent_is_asked_about_once() {
    let world = own_world("asked").await;
    let name = "asked-once";
    world.create(name, CLOSED, |_| {}).await;
    world.until(name, "prepared", |machine| is(machine, "Prepared", "True", "Checked")).await;
    world.patch(name, json!({"spec": {"priority": 51}})).await;
    world.open(name).await;
    world.until_phase(name, "Active").await;
    let audit = world.plane.management().audit().unwrap();
    let dry_runs =
        audit.iter().filter(|entry| entry.uri.contains("dryRun=All") && entry.namespace == world.namespace);
    let tried: Vec<&str> = dry_runs.map(|entry| entry.resource.as_str()).collect();
    assert_eq!(tried, ["k0sworkerconfigs", "remotemachines"], "once each, before the window");
}
