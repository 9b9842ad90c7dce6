//! The host itself: its Node, its heartbeats, its pods.

use super::inventory::{Installation, boot_id, machine_id, system_uuid};
use super::world::{RETRY, World, delete, run, unless_gone};
use super::{Fault, digest};
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
            let hosts = heart.inventory.registered(&heart.namespace);
            // A beat that is missed is made up for by the next.
            stream::iter(hosts)
                .for_each_concurrent(AT_ONCE, async |(_, host)| drop(beat(&heart, &host.node).await))
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

/// Registers the Node of a machine, or says how it is if that changed. Nothing happens if the host was reset meanwhile,
/// for another RemoteMachine of its address.
pub(super) async fn join(world: &World, machine: &str, uid: &str) -> Result<(), Error> {
    let address = world.endpoint(machine).address;
    let host = world.inventory.installation(&address).filter(|host| host.uid == uid);
    let Some(host) = host else { return Ok(()) };
    let is_ready = !world.has(machine, Fault::NotReady);
    if host.is_ready == Some(is_ready) || (host.is_ready.is_none() && world.has(machine, Fault::NeverJoins)) {
        return Ok(());
    }
    register(world, &address, &host, is_ready).await
}

/// The host of a machine boots, with what is installed on it. Returns whether that is anything.
pub(super) async fn reboot(world: &World, machine: &str) -> Result<bool, Error> {
    let address = world.endpoint(machine).address;
    let Some(host) = world.inventory.boot(&address) else { return Ok(false) };
    register(world, &address, &host, !world.has(machine, Fault::NotReady)).await?;
    // If a RemoteMachine still has this host, the provider has to write to its Node again.
    world.look_again();
    Ok(true)
}

/// The hosts that do not put up with the deletion of their Node.
async fn stay(world: &World) -> Result<(), Error> {
    for (address, host) in world.inventory.registered(&world.namespace) {
        if world.has(&host.machine, Fault::NodeNeverGone) {
            let nodes: Api<Node> = Api::all(world.workload.clone());
            if nodes.get_metadata_opt(&host.node).await?.is_none() {
                register(world, &address, &host, host.is_ready == Some(true)).await?;
            }
        } else if host.is_orphan {
            world.inventory.reset(&address);
            remove(world, &host.node).await?;
        }
    }
    Ok(())
}

pub(super) async fn remove(world: &World, node: &str) -> Result<(), Error> {
    let nodes: Api<Node> = Api::all(world.workload.clone());
    unless_gone(nodes.delete(node, &DeleteParams::default()).await.map(drop))
}

/// A kubelet that finds its Node there keeps it as it is and refreshes its status. It does not know its providerID.
async fn register(world: &World, address: &str, host: &Installation, is_ready: bool) -> Result<(), Error> {
    let name = &host.node;
    let nodes: Api<Node> = Api::all(world.workload.clone());
    let status = status(name, address, world.inventory.boots(address), is_ready);
    let node = json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }},
        "status": status,
    });
    let node: Node = serde_json::from_value(node).map_err(Error::SerdeError)?;
    let is_new = match nodes.create(&PostParams::default(), &node).await {
        Err(Error::Api(answer)) if answer.code == 409 => {
            let patch = Patch::Merge(json!({"status": status}));
            nodes.patch_status(name, &PatchParams::default(), &patch).await?;
            false
        }
        outcome => outcome.map(|_| true)?,
    };
    beat(world, name).await?;
    world.inventory.update(address, &host.uid, |host| {
        host.is_ready = Some(is_ready);
        host.has_provider_id &= !is_new;
    });
    Ok(())
}

fn status(node: &str, address: &str, boots: usize, is_ready: bool) -> Value {
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
            {"type": "InternalIP", "address": ip_address(address)},
            {"type": "Hostname", "address": node},
        ],
        "conditions": [
            condition("MemoryPressure", false, "KubeletHasSufficientMemory"),
            condition("DiskPressure", false, "KubeletHasNoDiskPressure"),
            condition("PIDPressure", false, "KubeletHasSufficientPID"),
            condition("Ready", is_ready, reason),
        ],
        "nodeInfo": {
            "machineID": machine_id(address),
            "systemUUID": system_uuid(address),
            "bootID": boot_id(address, boots),
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
fn ip_address(of: &str) -> String {
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
    let Some(machine) = world.inventory.machine_of(&world.namespace, node) else {
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
        if world.has(&machine, Fault::PodsNeverEnd)
            || world.inventory.machine_of(&world.namespace, node).is_none()
        {
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
    let ip = ip_address(pod.metadata.uid.as_deref().unwrap_or_default());
    json!({
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": statuses,
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": now,
    })
}
