//! A reclaim from end to end, with real containers: from the owner's program to the last process of a guest.
//!
//! Only the provider is played. API servers, Cluster API, kubelet, container runtime, controller and agent are real.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests: the line that fails is the message"
)]

#[path = "../harness/mod.rs"]
#[expect(dead_code, reason = "other test binaries use the rest of it")]
mod harness;

#[path = "../harness/agent.rs"]
mod agent;

use agent::{AGENT, install_agent, start, start_agent};
use fivespot_api::names::RECLAIM_REQUESTED_AT;
use fivespot_testenv::{AuditEntry, Core, Error, RealNode, eventually, shared_with_cluster_api, skipped};
use futures::{StreamExt, TryStreamExt};
use harness::{Controller, OPEN, World};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::{WatchEvent, WatchParams};
use serde_json::json;
use std::fs;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// The name of the machine.
const DESK: &str = "desk";

/// How the controller begins its name.
const CONTROLLER: &str = "5spot-controller/";

/// The time the kubelet gives a container whose pod was deleted without grace, between SIGTERM and SIGKILL.
const KUBELET_GRACE: SignedDuration = SignedDuration::from_secs(2);

/// How long the processes of a pod may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// What one pod does when it is asked to end.
const OBEYS: &str = "trap 'exit 0' TERM; sleep 1000 & wait";
const IGNORES: &str = "trap '' TERM; while true; do sleep 1; done";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_owner_gets_a_real_machine_back() {
    let plane = shared_with_cluster_api();
    let world = World::new(plane, Core::Real, "node").await;
    // Unlike those of played hosts it does not begin with the namespace: nobody plays its kubelet.
    let node_name = format!("real-{}", world.namespace);
    world.hosts.set_real(DESK, &node_name);
    let node = match RealNode::start(plane.workload(), &node_name).await {
        Err(Error::NodeUnavailable { why }) => {
            return skipped(env!("CARGO_TARGET_TMPDIR"), "the_owner_gets_a_real_machine_back", &why);
        }
        outcome => Arc::new(outcome.unwrap()),
    };
    tokio::task::block_in_place(|| install_agent(&world));
    let controller = tokio::task::block_in_place(|| Controller::start(plane, "node", &[]));
    // No other process of this machine has such a name.
    let program = format!("idea{}", std::process::id());
    world.create(DESK, OPEN, |spec| spec["killIfCommands"] = json!([program])).await;
    world.until_phase(DESK, "Active").await;
    world.until_armed(DESK).await;

    let pods = world.pods();
    world.workload_namespace().await;
    let obeys = node.run(&pods, node.pod("obeys", OBEYS)).await.unwrap().uid().unwrap();
    let ignores = node.run(&pods, node.pod("ignores", IGNORES)).await.unwrap().uid().unwrap();
    let folder = plane.management().kubeconfig_path().with_file_name("agent");
    fs::create_dir_all(&folder).unwrap();
    let _agent = start_agent(&world, DESK, node.machine_id(), "netlink", &folder).await;
    let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
    eventually("the agent is armed", async || log().contains("armed")).await;
    let seen = seen_at(&world).await;

    let executed = Timestamp::now();
    let _owner = start(&folder, &program);
    let [obeying, ignoring] = [obeys, ignores].map(|uid| {
        let node = Arc::clone(&node);
        tokio::task::spawn_blocking(move || gone_at(&node, &uid))
    });
    world.until_phase(DESK, "Disabled").await;
    let disabled = Timestamp::now();
    let (obeying, ignoring) = (obeying.await.unwrap(), ignoring.await.unwrap());
    world.nothing_is_left(DESK).await;

    let steps = Steps::read(&world, &node_name, executed);
    let seen = seen.await.unwrap();
    let shown = [
        ("the agent has seen it", seen),
        ("annotated on the Node", steps.annotated),
        ("accepted by the controller", steps.accepted),
        ("the last pod deleted in the API", steps.last_pod_deleted),
        ("the Machine deleted in the API", steps.machine_deleted),
        ("the schedule disabled", steps.schedule_disabled),
        ("the last process of a pod that obeys SIGTERM is gone", obeying),
        ("the last process of a pod that ignores SIGTERM is gone", ignoring),
        ("phase Disabled: nothing of it is left in the cluster", disabled),
    ];
    for (step, at) in shown {
        println!("{:>6} ms after exec: {step}", at.duration_since(executed).as_millis());
    }
    let order = [seen, steps.annotated, steps.accepted, steps.last_pod_deleted, steps.machine_deleted];
    assert!(order.is_sorted(), "{order:?}");
    assert!(steps.machine_deleted <= steps.schedule_disabled);
    // What the pages say: a deletion without grace is not SIGKILL.
    assert!(obeying < steps.last_pod_deleted + KUBELET_GRACE, "an app that obeys is gone sooner");
    assert!(
        ignoring >= steps.last_pod_deleted + SignedDuration::from_millis(1500),
        "an app that ignores SIGTERM gets its time: {ignoring}"
    );
    drop(controller);
    Arc::into_inner(node).unwrap().stop().unwrap();
}

/// When the last process of a pod is gone.
fn gone_at(node: &RealNode, uid: &str) -> Timestamp {
    let began = Instant::now();
    while !node.pod_processes(uid).is_empty() {
        assert!(began.elapsed() < PATIENCE, "a pod does not end:\n{}", node.logs());
        std::thread::sleep(Duration::from_millis(1));
    }
    Timestamp::now()
}

/// The moment that the agent writes on the Node: when it saw the program.
async fn seen_at(world: &World) -> JoinHandle<Timestamp> {
    let (nodes, name) = (world.nodes(), world.hosts.node_name(DESK));
    let version = nodes.get(&name).await.unwrap().resource_version().unwrap();
    tokio::spawn(async move {
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut changes = pin!(nodes.watch(&params, &version).await.unwrap().into_stream());
        while let Some(change) = changes.next().await {
            let (WatchEvent::Added(node) | WatchEvent::Modified(node)) = change.unwrap() else { continue };
            if let Some(at) = node.annotations().get(RECLAIM_REQUESTED_AT) {
                return at.parse().unwrap();
            }
        }
        panic!("the Node was never asked for");
    })
}

/// The steps of a reclaim, by the clocks of the API servers.
struct Steps {
    annotated: Timestamp,
    accepted: Timestamp,
    last_pod_deleted: Timestamp,
    machine_deleted: Timestamp,
    schedule_disabled: Timestamp,
}

impl Steps {
    fn read(world: &World, node: &str, since: Timestamp) -> Self {
        let mut all = world.plane.management().audit().unwrap();
        all.extend(world.plane.workload().audit().unwrap());
        all.retain(|it| it.at >= since && it.code < 300);
        all.sort_by_key(|it| it.at);
        let of = |program: &'static str, verb: &'static str, resource: &'static str| {
            move |it: &&AuditEntry| {
                it.user_agent.starts_with(program) && it.verb == verb && it.resource == resource
            }
        };
        let first = |what: &str, mut found: Vec<&AuditEntry>| -> Timestamp {
            assert!(!found.is_empty(), "nobody has {what}");
            found.remove(0).at
        };
        let here = |it: &&AuditEntry| it.namespace == world.namespace;
        let is_status = |it: &&AuditEntry| it.subresource == "status";
        let asked = all.iter().filter(of(AGENT, "patch", "nodes")).filter(|it| it.name == node);
        let patched = || all.iter().filter(of(CONTROLLER, "patch", "scheduledmachines")).filter(here);
        let pods = all.iter().filter(of(CONTROLLER, "delete", "pods")).filter(here);
        Self {
            annotated: first("asked for the machine", asked.collect()),
            accepted: first("accepted the request", patched().filter(is_status).collect()),
            last_pod_deleted: first("deleted a pod", pods.rev().collect()),
            machine_deleted: first(
                "deleted the Machine",
                all.iter().filter(of(CONTROLLER, "delete", "machines")).filter(here).collect(),
            ),
            schedule_disabled: first(
                "disabled the schedule",
                patched().filter(|it| it.subresource.is_empty()).collect(),
            ),
        }
    }
}
