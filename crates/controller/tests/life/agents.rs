//! Whether a reclaim agent looks at a Node that is lent.

use crate::agent::install_agent;
use crate::harness::{World, is};
use crate::stage::{own_world, scenarios, world};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::eventually;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::time::Duration;

scenarios![an_agent_that_dies_is_shown_and_told_once, a_machine_whose_owner_named_no_programs_needs_no_agent,];

fn pods(world: &World) -> Api<Pod> {
    Api::namespaced(world.workload.clone(), "5spot-system")
}

/// The pod that the DaemonSet controller put on the Node, other than `old`.
async fn pod_on(world: &World, machine: &str, old: Option<&str>) -> String {
    let node = world.hosts.node_name(machine);
    let mut found = None;
    eventually("the agent's pod is on the Node", async || {
        let all = pods(world).list(&ListParams::default()).await.unwrap().items;
        let is_there = |pod: &&Pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node.as_str())
                && Some(pod.name_any().as_str()) != old
        };
        found = all.iter().find(is_there).map(ResourceExt::name_any);
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// Writes the status of a pod as its kubelet would.
async fn report(world: &World, pod: &str, is_ready: bool, state: Value) {
    let ready = if is_ready { "True" } else { "False" };
    let patch = json!({"status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": Timestamp::now().to_string()}],
        "containerStatuses": [{
            "name": "agent", "image": "agent", "imageID": "agent", "ready": is_ready, "restartCount": 0, "state": state,
        }],
    }});
    pods(world).patch_status(pod, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn agent_is(status: &'static str, reason: &'static str) -> impl Fn(&ScheduledMachine) -> bool {
    move |machine| is(machine, "ReclaimAgent", status, reason)
}

fn text_of(machine: &ScheduledMachine) -> String {
    let conditions = machine.status.iter().flat_map(|status| &status.conditions);
    let agent = conditions.into_iter().find(|condition| condition.type_ == "ReclaimAgent");
    agent.map(|condition| condition.message.clone()).unwrap_or_default()
}

async fn an_agent_that_dies_is_shown_and_told_once() {
    let world = own_world("agents").await;
    tokio::task::block_in_place(|| install_agent(&world));
    let name = "watched";
    world.lend(name, |spec| spec["killIfCommands"] = json!(["idea"])).await;
    world.until_armed(name).await;
    world.until(name, "watched over", agent_is("True", "Ready")).await;

    // A pod that is replaced is no news.
    let old = pod_on(&world, name, None).await;
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods(&world).delete(&old, &at_once).await.unwrap();
    let pod = pod_on(&world, name, Some(&old)).await;
    let by_the_new =
        |machine: &ScheduledMachine| agent_is("True", "Ready")(machine) && text_of(machine).contains(&pod);
    world.until(name, "watched over by the new pod", by_the_new).await;

    report(&world, &pod, false, json!({"waiting": {"reason": "CrashLoopBackOff"}})).await;
    world.until(name, "without an agent for a moment", agent_is("False", "Starting")).await;
    assert!(!world.has_event(name, "ReclaimAgentMissing").await);
    // The grace of a minute is as long as the harness waits for anything.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let machine = world.until(name, "without an agent", agent_is("False", "Missing")).await;
    assert!(text_of(&machine).contains(&format!("pod {pod} on Node")), "{}", text_of(&machine));
    assert!(text_of(&machine).contains("CrashLoopBackOff"), "{}", text_of(&machine));
    assert_eq!(machine.status.as_ref().unwrap().phase.as_deref(), Some("Active"));
    assert!(is(&machine, "Ready", "True", "NodeReady"));
    eventually("told", async || world.has_event(name, "ReclaimAgentMissing").await).await;

    // One that runs and says that it is not ready sees less than it should.
    report(&world, &pod, false, json!({"running": {}})).await;
    world.until(name, "with an agent that is not ready", agent_is("False", "Degraded")).await;
    eventually("told", async || world.has_event(name, "ReclaimAgentDegraded").await).await;
    report(&world, &pod, true, json!({"running": {}})).await;
    world.until(name, "watched over again", agent_is("True", "Ready")).await;
    for reason in ["ReclaimAgentMissing", "ReclaimAgentDegraded"] {
        assert_eq!(world.count_events(name, reason).await, 1, "{reason}");
    }

    world.patch(name, json!({"spec": {"killIfCommands": null}})).await;
    world.until(name, "without programs", agent_is("Unknown", "NotWanted")).await;
}

async fn a_machine_whose_owner_named_no_programs_needs_no_agent() {
    let world = world().await;
    let name = "unwatched";
    world.lend(name, |_| {}).await;
    let machine = world.until(name, "lent", agent_is("Unknown", "NotWanted")).await;
    assert!(is(&machine, "Ready", "True", "NodeReady"));
    world.close(name).await;
    let machine = world.until_phase(name, "Inactive").await;
    assert!(is(&machine, "ReclaimAgent", "Unknown", "NotWanted"));
}
