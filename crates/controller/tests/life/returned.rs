//! Hosts that were handed back and are in the cluster all the same.

use crate::harness::{is, message};
use crate::look::CORDONED_BY;
use crate::stage::{scenarios, world};
use fivespot_testenv::{Fault, eventually};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use std::time::Duration;

scenarios![
    a_host_whose_clean_up_failed_is_noticed_when_it_boots,
    a_host_that_was_not_cleaned_is_emptied_and_shown_until_it_is,
    a_host_that_comes_back_to_its_owner_is_emptied_at_once,
    a_node_that_only_has_the_name_is_shown_and_not_touched,
];

/// The day that this product exists for: sshd is down when the window closes, and the host boots in the morning.
async fn a_host_whose_clean_up_failed_is_noticed_when_it_boots() {
    let world = world().await;
    let name = "rebooted";
    world.lend(name, |_| {}).await;
    world.hosts.set(name, Fault::CleanUpFails);
    world.close(name).await;
    world.until_phase(name, "Inactive").await;
    world.nothing_is_left(name).await;
    assert!(world.hosts.is_installed(name));
    world.hosts.reset(name);
    assert!(world.hosts.reboot(name).await.unwrap(), "its Node is back");
    let machine = world.until_phase(name, "Error").await;
    assert!(is(&machine, "HostNotCleaned", "True", "NodeWithoutMachine"), "{:?}", machine.status);
    assert!(world.is_cordoned(name).await);
    assert!(world.has_event(name, "HostNotCleaned").await);
    // The next window is not held up: the provider says what is wrong, and the host is lent once it is clean.
    world.open(name).await;
    world.until_phase(name, "Pending").await;
    world.hosts.reset_by_hand(name);
    world.nodes().delete(&world.hosts.node_name(name), &DeleteParams::default()).await.unwrap();
    world.until_phase(name, "Active").await;
    assert!(!world.is_cordoned(name).await);
}

async fn a_host_that_was_not_cleaned_is_emptied_and_shown_until_it_is() {
    let world = world().await;
    let name = "dirty";
    world.lend(name, |_| {}).await;
    let host = world.status(name).await.host.unwrap();
    assert_eq!(host.node_name, world.hosts.node_name(name));
    assert_eq!(host.machine_id, world.hosts.machine_id(name));
    world.hosts.set(name, Fault::NodeNeverGone);
    world.close(name).await;
    let machine = world.until_phase(name, "Error").await;
    assert!(is(&machine, "HostNotCleaned", "True", "NodeWithoutMachine"), "{:?}", machine.status);
    assert!(is(&machine, "Ready", "False", "HostNotCleaned"), "{:?}", machine.status);
    assert!(is(&machine, "Stalled", "True", "HostNotCleaned"));
    let text = message(&machine);
    assert!(text.contains("not with its owner") && text.contains("kubectl delete node"), "{text}");
    assert!(world.has_event(name, "HostNotCleaned").await);
    assert!(world.is_cordoned(name).await);
    assert_eq!(world.node_annotation(name, CORDONED_BY).await.as_deref(), Some("5spot-controller"));
    // Somebody opens it: it is closed again.
    world.patch_node(name, json!({"spec": {"unschedulable": false}})).await;
    eventually("the Node is cordoned again", async || world.is_cordoned(name).await).await;
    world.until_phase(name, "Error").await;
    // Status is lost, as after a move: the annotation still knows the host.
    let patch = Patch::Merge(json!({"status": null}));
    world.machines().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    let machine = world.until_phase(name, "Error").await;
    assert!(is(&machine, "HostNotCleaned", "True", "NodeWithoutMachine"));
    // Somebody cleans it: now it is with its owner.
    world.hosts.reset(name);
    let machine = world.until_phase(name, "Inactive").await;
    assert_eq!(crate::harness::condition(&machine, "HostNotCleaned"), None);
    assert!(is(&machine, "Ready", "True", "OutsideWindow"));
    world.open(name).await;
    world.until_phase(name, "Active").await;
    world.close(name).await;
    world.until_phase(name, "Inactive").await;
    world.nothing_is_left(name).await;
}

async fn a_host_that_comes_back_to_its_owner_is_emptied_at_once() {
    let world = world().await;
    let name = "unwelcome";
    world.lend(name, |_| {}).await;
    world.hosts.set(name, Fault::NodeNeverGone);
    world
        .patch(name, json!({"metadata": {"annotations": {"5spot.finos.org/reclaim-requested": "true"}}}))
        .await;
    let machine = world.until_phase(name, "Error").await;
    assert!(is(&machine, "Scheduled", "False", "EmergencyReclaimDisabledSchedule"));
    assert!(is(&machine, "HostNotCleaned", "True", "NodeWithoutMachine"));
    world.budget("unwelcome", 1).await;
    world.pod(name, "unwelcome", |_| {}).await;
    // Whoever is on it when it is open goes without grace, whatever its budget says.
    world.patch_node(name, json!({"spec": {"unschedulable": false}})).await;
    eventually("the Node is closed and its pod is gone", async || {
        let pod = world.pods().get_opt("unwelcome").await.unwrap();
        pod.is_none() && world.is_cordoned(name).await
    })
    .await;
    world.hosts.reset(name);
    world.until_phase(name, "Disabled").await;
}

async fn a_node_that_only_has_the_name_is_shown_and_not_touched() {
    let world = world().await;
    let name = "namesake";
    world.lend(name, |_| {}).await;
    world.close(name).await;
    world.until_phase(name, "Inactive").await;
    let node = world.hosts.node_name(name);
    let other = json!({
        "metadata": {"name": node},
        "status": {"nodeInfo": {
            "machineID": "another", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
            "operatingSystem": "linux", "architecture": "amd64",
        }},
    });
    let nodes = world.nodes();
    nodes.create(&PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
    let shown =
        |machine: &fivespot_api::ScheduledMachine| is(machine, "HostNotCleaned", "Unknown", "SameNameOnly");
    let machine = world.until(name, "shown as a namesake", shown).await;
    assert_eq!(machine.status.as_ref().unwrap().phase.as_deref(), Some("Inactive"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!world.is_cordoned(name).await);
    assert_eq!(world.node_annotation(name, CORDONED_BY).await, None);
    nodes.delete(&node, &DeleteParams::default()).await.unwrap();
    let calm = |machine: &fivespot_api::ScheduledMachine| {
        crate::harness::condition(machine, "HostNotCleaned").is_none()
    };
    world.until(name, "calm", calm).await;
}
