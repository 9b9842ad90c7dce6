//! The host itself: its Node, its heartbeats, its pods.

use super::{Fault, Host, RETRY, World, delete, digest, run, unless_gone};
use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, Error, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How often a kubelet renews its Lease.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// How often a host looks whether its Node is still there, if it does not put up with that.
const LOOK: Duration = Duration::from_millis(250);

/// Requests under way at once: a namespace of hundreds of hosts must not flood the API server with heartbeats.
const AT_ONCE: usize = 16;

pub(super) fn start(world: &Arc<World>, tasks: &mut JoinSet<()>) {
    let pods: Api<Pod> = Api::all(world.workload.clone());
    // A pod without a Node is the scheduler's.
    let controller = Controller::new(pods, watcher::Config::default().fields("spec.nodeName!="));
    run(tasks, world, controller, pod);

    let heart = Arc::clone(world);
    tasks.spawn(async move {
        let mut beats = tokio::time::interval(HEARTBEAT);
        loop {
            beats.tick().await;
            let nodes: Vec<String> = heart.hosts().keys().cloned().collect();
            // A beat that is missed is made up for by the next.
            stream::iter(nodes)
                .for_each_concurrent(AT_ONCE, async |node| drop(beat(&heart, &node).await))
                .await;
        }
    });
    let stubborn = Arc::clone(world);
    tasks.spawn(async move {
        let mut looks = tokio::time::interval(LOOK);
        loop {
            looks.tick().await;
            // What fails is tried again with the next look.
            drop(stay(&stubborn).await);
        }
    });
}

/// Registers the Node of a host, or says how it is if that changed. A kubelet that finds its Node there keeps it as
/// it is and refreshes its status.
pub(super) async fn join(world: &World, machine: &str) -> Result<(), Error> {
    let (name, is_ready) = (world.node_name(machine), !world.has(machine, Fault::NotReady));
    let known = world.hosts().get_mut(&name).map(|host| {
        host.is_orphan = false;
        host.is_ready
    });
    if known == Some(is_ready) || (known.is_none() && world.has(machine, Fault::NeverJoins)) {
        return Ok(());
    }
    register(world, machine, is_ready).await?;
    beat(world, &name).await?;
    let host = Host { machine: machine.to_owned(), is_ready, is_orphan: false };
    world.hosts().insert(name, host);
    Ok(())
}

/// The host ends: no heartbeats any more, and nobody looks after its pods. Its Node is Cluster API's to delete.
pub(super) async fn leave(world: &World, machine: &str) -> Result<(), Error> {
    let name = world.node_name(machine);
    if world.has(machine, Fault::NodeNeverGone) {
        if let Some(host) = world.hosts().get_mut(&name) {
            host.is_orphan = true;
        }
        return Ok(());
    }
    world.hosts().remove(&name);
    if world.has(machine, Fault::NodeGoneEarly) {
        remove(world, &name).await?;
    }
    Ok(())
}

/// The hosts that do not put up with the deletion of their Node.
async fn stay(world: &World) -> Result<(), Error> {
    let hosts: Vec<(String, Host)> =
        world.hosts().iter().map(|(node, host)| (node.clone(), host.clone())).collect();
    for (node, host) in hosts {
        if world.has(&host.machine, Fault::NodeNeverGone) {
            let nodes: Api<Node> = Api::all(world.workload.clone());
            if nodes.get_metadata_opt(&node).await?.is_none() {
                register(world, &host.machine, host.is_ready).await?;
                beat(world, &node).await?;
            }
        } else if host.is_orphan {
            world.hosts().remove(&node);
            remove(world, &node).await?;
        }
    }
    Ok(())
}

async fn remove(world: &World, node: &str) -> Result<(), Error> {
    let nodes: Api<Node> = Api::all(world.workload.clone());
    unless_gone(nodes.delete(node, &DeleteParams::default()).await.map(drop))
}

async fn register(world: &World, machine: &str, is_ready: bool) -> Result<(), Error> {
    let name = world.node_name(machine);
    let nodes: Api<Node> = Api::all(world.workload.clone());
    let status = status(world, machine, is_ready);
    let node = json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }},
        "spec": {"providerID": world.provider_id(machine)},
        "status": status,
    });
    let node: Node = serde_json::from_value(node).map_err(Error::SerdeError)?;
    match nodes.create(&PostParams::default(), &node).await {
        Err(Error::Api(answer)) if answer.code == 409 => {}
        outcome => return outcome.map(drop),
    }
    let patch = Patch::Merge(json!({"status": status}));
    nodes.patch_status(&name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn status(world: &World, machine: &str, is_ready: bool) -> Value {
    let now = Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string();
    let condition = |kind: &str, is_true: bool, reason: &str| {
        let status = if is_true { "True" } else { "False" };
        json!({"type": kind, "status": status, "reason": reason, "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    let reason = if is_ready { "KubeletReady" } else { "KubeletNotReady" };
    let room = json!({"cpu": "8", "memory": "32Gi", "pods": "110"});
    json!({
        "capacity": room,
        "allocatable": room,
        "addresses": [
            {"type": "InternalIP", "address": address(&world.provider_id(machine))},
            {"type": "Hostname", "address": world.node_name(machine)},
        ],
        "conditions": [
            condition("MemoryPressure", false, "KubeletHasSufficientMemory"),
            condition("DiskPressure", false, "KubeletHasNoDiskPressure"),
            condition("PIDPressure", false, "KubeletHasSufficientPID"),
            condition("Ready", is_ready, reason),
        ],
        "nodeInfo": {
            "machineID": world.machine_id(machine),
            "systemUUID": world.machine_id(machine),
            "bootID": world.machine_id(machine),
            "kernelVersion": "6.12.0",
            "osImage": "simulated",
            "containerRuntimeVersion": "containerd://2.1.0",
            "kubeletVersion": "v1.35.0",
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    })
}

/// An address that nobody answers, the same each time.
fn address(of: &str) -> String {
    let [first, second, third, ..] = digest(of);
    format!("10.{first}.{second}.{third}")
}

async fn beat(world: &World, node: &str) -> Result<(), Error> {
    let leases: Api<Lease> = Api::namespaced(world.workload.clone(), "kube-node-lease");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": MicroTime(Timestamp::now())},
    });
    leases.patch(node, &PatchParams::apply("kubelet").force(), &Patch::Apply(lease)).await?;
    Ok(())
}

/// Runs a pod, or ends it.
async fn pod(pod: Arc<Pod>, world: Arc<World>) -> Result<Action, Error> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if !node.strip_prefix(&world.namespace).is_some_and(|rest| rest.starts_with('-')) {
        return Ok(Action::await_change());
    }
    let Some(Host { machine, .. }) = world.hosts().get(node).cloned() else {
        // It may be bound to a Node of old, whose host comes later.
        return Ok(Action::requeue(RETRY));
    };
    let pods: Api<Pod> = Api::namespaced(world.workload.clone(), &pod.namespace().unwrap_or_default());
    if pod.metadata.deletion_timestamp.is_some() {
        if world.has(&machine, Fault::PodsNeverEnd) {
            return Ok(Action::await_change());
        }
        tokio::time::sleep(world.behaviour(&machine).termination).await;
        // Meanwhile the host may have changed its mind, or have gone.
        if world.has(&machine, Fault::PodsNeverEnd) || !world.hosts().contains_key(node) {
            return Ok(Action::requeue(RETRY));
        }
        let outcome = delete(&pods, &pod, DeleteParams::default().grace_period(0)).await;
        // 409: it is a new pod of the same name.
        return match outcome {
            Err(Error::Api(answer)) if answer.code == 409 => Ok(Action::await_change()),
            outcome => outcome.map(|()| Action::await_change()),
        };
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    if phase == "Pending" {
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.metadata.uid}, "status": running(&pod)}));
        let outcome = pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await;
        unless_gone(outcome.map(drop))?;
    }
    Ok(Action::await_change())
}

fn running(pod: &Pod) -> Value {
    let now = Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string();
    let conditions: Vec<Value> = ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"]
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": now}))
        .into();
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let statuses: Vec<Value> = containers
        .map(|container| {
            json!({
                "name": container.name,
                "image": container.image.as_deref().unwrap_or_default(),
                "imageID": "",
                "ready": true,
                "started": true,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            })
        })
        .collect();
    let ip = address(pod.metadata.uid.as_deref().unwrap_or_default());
    json!({
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": statuses,
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": now,
    })
}
