//! The owner starts a program, on a real kernel: the agent is a process of this machine, and sees what runs here.

use crate::agent::{ARGUMENT, install_agent, start, start_agent};
use crate::harness::{World, is};
use crate::look::CLUSTER_API;
use crate::reclaimed::step;
use crate::stage::{own_world, scenarios};
use fivespot_testenv::{AuditEntry, eventually};
use jiff::Timestamp;
use serde_json::json;
use std::fs;
use std::time::Duration;

scenarios![
    a_program_that_the_kernel_tells_of_takes_the_machine_back,
    a_program_that_a_poll_finds_takes_it_back
];

async fn takes_it_back(detector: &str, program: &str) {
    let world = own_world(detector).await;
    tokio::task::block_in_place(|| install_agent(&world));
    let folder = world.plane.management().kubeconfig_path().with_file_name(format!("agent-{detector}"));
    fs::create_dir_all(&folder).unwrap();
    world.lend("desk", |spec| spec["killIfCommands"] = json!([program])).await;
    world.until_armed("desk").await;
    for number in 0..20 {
        let pod = format!("desk-{number}");
        if number % 5 == 0 {
            world.held_pod("desk", &pod).await;
        } else {
            world.pod("desk", &pod, |_| {}).await;
        }
    }
    let machine_id = world.hosts.machine_id("desk");
    let agent = start_agent(&world, "desk", &machine_id, detector, &folder).await;
    let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
    eventually("the agent is armed", async || log().contains("armed")).await;

    let executed = Timestamp::now();
    let owner = start(&folder, program);
    let machine = world.until_taken_back("desk").await;
    assert!(is(&machine, "Scheduled", "False", "EmergencyReclaimDisabledSchedule"));
    for reason in ["EmergencyReclaim", "EmergencyReclaimDisabledSchedule"] {
        assert_eq!(world.count_events("desk", reason).await, 1, "{reason}");
    }
    in_order(&world, detector, executed);
    assert!(!log().contains(ARGUMENT), "a command line never leaves the host: {}", log());

    // He is not done yet: lent again, it is taken back again. The agent's Pod is another one, with another token.
    resume(&world).await;
    drop(agent);
    world
        .until("desk", "lent", |it| it.status.as_ref().is_some_and(|status| status.node_ref.is_some()))
        .await;
    let agent = start_agent(&world, "desk", &machine_id, detector, &folder).await;
    let again = |it: &fivespot_api::ScheduledMachine| {
        let reclaim = it.status.as_ref().and_then(|status| status.reclaim.clone());
        reclaim.is_some_and(|reclaim| reclaim.recent.len() == 2 && reclaim.hold)
    };
    world.until("desk", "taken back again", again).await;
    world.until_taken_back("desk").await;

    // Now he is.
    drop((owner, agent));
    resume(&world).await;
    world.until_phase("desk", "Active").await;
    world.until_armed("desk").await;
    let _agent = start_agent(&world, "desk", &machine_id, detector, &folder).await;
    eventually("the agent is armed", async || log().contains("armed")).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let status = world.status("desk").await;
    assert_eq!(status.phase.as_deref(), Some("Active"), "{status:?}");
}

async fn resume(world: &World) {
    let id = world.status("desk").await.reclaim.unwrap().id.unwrap();
    let annotations = json!({"5spot.finos.org/resume": id});
    let patch = json!({"metadata": {"annotations": annotations}, "spec": {"schedule": {"enabled": true}}});
    world.patch("desk", patch).await;
}

/// The audit logs of both clusters, from the agent's word to the last of ours.
fn in_order(world: &World, detector: &str, since: Timestamp) {
    let mut writes = world.writes("desk", since);
    let node = world.hosts.node_name("desk");
    let mut asked = world.plane.workload().audit().unwrap();
    asked.retain(|it| {
        it.at >= since
            && it.name == node
            && it.user_agent.starts_with(crate::agent::AGENT)
            && it.verb == "patch"
    });
    assert_eq!(asked.len(), 1, "it asks once: {asked:#?}");
    let after = |it: &AuditEntry| it.at.duration_since(since).as_millis();
    println!("{detector}: exec -> annotated {} ms", after(&asked[0]));
    writes.insert(0, asked.remove(0));
    for it in &writes {
        println!("{detector}: {:>6} ms {} {}", after(it), step(it), it.name);
    }
    let place = |wanted: &str| writes.iter().position(|it| step(it) == wanted);
    let steps = [
        Some(0),
        place("patch scheduledmachines/status"),
        place("delete pods"),
        place("delete machines"),
        place("patch scheduledmachines"),
        place("delete configmaps"),
    ];
    assert!(steps.iter().all(Option::is_some) && steps.is_sorted(), "{steps:?}");
    let by_cluster_api =
        |it: &AuditEntry| it.subresource == "eviction" && it.user_agent.starts_with(CLUSTER_API);
    assert!(
        !world.pod_requests("desk-1").iter().any(by_cluster_api),
        "Cluster API begins no drain of its own"
    );
    assert_eq!(writes.iter().filter(|it| step(it) == "delete pods").count(), 20);
}

async fn a_program_that_the_kernel_tells_of_takes_the_machine_back() {
    takes_it_back("netlink", "5spot-net-idea").await;
}

async fn a_program_that_a_poll_finds_takes_it_back() {
    takes_it_back("poll", "5spot-poll-idea").await;
}
