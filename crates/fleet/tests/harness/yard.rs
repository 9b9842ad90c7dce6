//! Nodes without machines: registered, heartbeats and all, and a kubelet that ends pods.

use super::PATIENCE;
use fivespot_api::fleet::read_record;
use fivespot_api::fleet::{CapacityRequest, UpcomingNode};
use fivespot_core::fleet::record::Record;
use fivespot_testenv::ControlPlane;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Requests under way at once.
const AT_ONCE: usize = 16;

/// The Nodes of one test, in a namespace of its own.
pub(crate) struct Yard {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    nodes: Arc<Mutex<BTreeSet<String>>>,
    /// Whether the kubelets end pods.
    ends: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Yard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Yard {
    /// An empty one: what other tests left behind is taken away.
    pub(crate) async fn new(plane: &ControlPlane, stem: &str) -> Self {
        // An operator that was killed still holds it.
        let lease = ["-n", "5spot-system", "delete", "lease", "--all"];
        plane.kubectl(plane.management(), &lease, "").unwrap();
        for kind in ["nodes", "upcomingnodes", "capacityrequests"] {
            let all = if kind == "capacityrequests" { "-A" } else { "--wait=true" };
            plane.kubectl(plane.management(), &["delete", kind, "--all", all], "").unwrap();
        }
        let client = plane.management().client().await.unwrap();
        let namespace = plane.management().fresh_namespace(&client, stem).await.unwrap();
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(client.clone(), &namespace);
        // Pods need it, and whoever makes it may not have noticed yet that a server is back.
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        let _ = accounts.create(&PostParams::default(), &account).await;
        let (nodes, ends) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicBool::new(true)));
        let task =
            tokio::spawn(kubelets(client.clone(), namespace.clone(), Arc::clone(&nodes), Arc::clone(&ends)));
        Self { client, namespace, nodes, ends, task }
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn upcoming(&self) -> Api<UpcomingNode> {
        Api::all(self.client.clone())
    }

    pub(crate) fn requests(&self) -> Api<CapacityRequest> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Whether pods that are asked to end do.
    pub(crate) fn pods_end(&self, ends: bool) {
        self.ends.store(ends, Ordering::Relaxed);
    }

    /// Registers a Node.
    pub(crate) async fn node(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let now = Timestamp::now().to_string();
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "yard": self.namespace}},
            "spec": {},
            "status": {
                "capacity": {"cpu": "64", "memory": "256Gi", "pods": "110"},
                "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"},
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "KubeletReady",
                    "lastHeartbeatTime": now, "lastTransitionTime": now,
                }],
            },
        });
        change(&mut node);
        let node: Node = serde_json::from_value(node).unwrap();
        beat(&self.client, name).await;
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
        self.nodes.lock().unwrap().insert(name.to_owned());
    }

    /// A pod that runs on a Node.
    pub(crate) async fn pod(&self, node: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "image": "none"}],
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 5,
            },
        });
        change(&mut pod);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap();
        let now = Timestamp::now().to_string();
        let status = json!({"status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
        }});
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    }

    /// A DaemonSet that wants a pod on a Node, and has it.
    pub(crate) async fn daemon_set(&self, plane: &ControlPlane, node: &str, name: &str) {
        let set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {
                        "containers": [{"name": "main", "image": "none"}],
                        "nodeSelector": {"kubernetes.io/hostname": node},
                    },
                },
            },
        });
        let apply = ["-n", &self.namespace, "apply", "-f", "-"];
        plane.kubectl(plane.management(), &apply, &set.to_string()).unwrap();
        let began = Instant::now();
        while !self.on(node).await.iter().any(|pod| pod.starts_with(name)) {
            assert!(began.elapsed() < PATIENCE, "the DaemonSet has no pod");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A disruption budget that lets no pod with this label go, after its controller has seen it.
    pub(crate) async fn budget(&self, app: &str) {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = format!("{app}-pdb");
        let budget = json!({
            "metadata": {"name": name},
            "spec": {"minAvailable": 1000, "selector": {"matchLabels": {"app": app}}},
        });
        let budget = serde_json::from_value(budget).unwrap();
        budgets.create(&PostParams::default(), &budget).await.unwrap();
        let began = Instant::now();
        loop {
            let status = budgets.get(&name).await.unwrap().status.unwrap_or_default();
            if status.observed_generation.is_some() && status.expected_pods > 0 {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "the budget is not seen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn drop_budget(&self, app: &str) {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &self.namespace);
        budgets.delete(&format!("{app}-pdb"), &DeleteParams::default()).await.unwrap();
    }

    /// A demand for so many GPUs.
    pub(crate) async fn request(&self, name: &str, gpus: u32) {
        let request = json!({
            "apiVersion": "bigfleet.lucy.sh/v1alpha1", "kind": "CapacityRequest",
            "metadata": {"name": name},
            "spec": {
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["a3-highgpu-8g"]},
                ],
                "resources": {"nvidia.com/gpu": gpus.to_string()},
                "priority": 1000,
            },
        });
        let request = serde_json::from_value(request).unwrap();
        self.requests().create(&PostParams::default(), &request).await.unwrap();
    }

    pub(crate) async fn is_cordoned(&self, node: &str) -> bool {
        let spec = self.nodes().get(node).await.unwrap().spec.unwrap_or_default();
        spec.unschedulable == Some(true)
    }

    pub(crate) async fn annotation(&self, node: &str, key: &str) -> Option<String> {
        self.nodes().get(node).await.unwrap().annotations().get(key).cloned()
    }

    pub(crate) async fn record(&self, node: &str) -> Option<Record> {
        let text = self.annotation(node, "5spot.finos.org/fleet-reclaim").await?;
        Some(read_record(&text).unwrap())
    }

    /// Phase of the UpcomingNode of a machine, and its last error.
    pub(crate) async fn phase(&self, machine: &str) -> Option<(String, String)> {
        let found = self.upcoming().get_opt(&format!("un-{machine}")).await.unwrap()?;
        let status = found.status.unwrap_or_default();
        Some((status.phase, status.last_error.unwrap_or_default()))
    }

    pub(crate) async fn until_phase(&self, machine: &str, phase: &str) -> String {
        let began = Instant::now();
        loop {
            let now = self.phase(machine).await;
            if let Some((_, error)) = now.clone().filter(|(now, _)| now == phase) {
                return error;
            }
            assert!(began.elapsed() < PATIENCE, "{machine} is not {phase} but {now:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Names of the pods that are on a Node.
    pub(crate) async fn on(&self, node: &str) -> Vec<String> {
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = self.pods().list(&params).await.unwrap();
        pods.iter().map(ResourceExt::name_any).collect()
    }

    pub(crate) async fn until_empty(&self, node: &str) {
        let began = Instant::now();
        loop {
            let left = self.on(node).await;
            if left.is_empty() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "still on {node}: {left:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Events about an object without a namespace, as `reason: note`.
    pub(crate) async fn events(&self, name: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let params = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let events = events.list(&params).await.unwrap().items;
        let text = |event: Event| {
            format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())
        };
        events.into_iter().map(text).collect()
    }
}

async fn beat(client: &Client, node: &str) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": MicroTime(Timestamp::now())},
    });
    // A beat that is missed is made up for by the next.
    let _ = leases.patch(node, &PatchParams::apply("kubelet").force(), &Patch::Apply(lease)).await;
}

/// Ends pods that were asked to, and beats for all Nodes.
async fn kubelets(
    client: Client,
    namespace: String,
    nodes: Arc<Mutex<BTreeSet<String>>>,
    ends: Arc<AtomicBool>,
) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if last.elapsed() > Duration::from_secs(10) {
            last = Instant::now();
            let all: Vec<String> = nodes.lock().unwrap().iter().cloned().collect();
            futures::stream::iter(all)
                .for_each_concurrent(AT_ONCE, async |node| beat(&client, &node).await)
                .await;
        }
        if !ends.load(Ordering::Relaxed) {
            continue;
        }
        // The server may have been stopped on purpose.
        let Ok(found) = pods.list(&ListParams::default().match_any()).await else { continue };
        let ending = found.into_iter().filter(|pod| {
            pod.metadata.deletion_timestamp.is_some()
                && pod.metadata.finalizers.as_ref().is_none_or(Vec::is_empty)
        });
        let end = async |pod: Pod| {
            let mut params = DeleteParams::default().grace_period(0);
            params.preconditions =
                Some(kube::api::Preconditions { uid: pod.metadata.uid.clone(), ..Default::default() });
            let _ = pods.delete(&pod.name_any(), &params).await;
        };
        futures::stream::iter(ending).for_each_concurrent(AT_ONCE, end).await;
    }
}
