//! A cluster of Cluster API with hosts, and what tests do with its machines.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

use fivespot_testenv::{
    AuditEntry, Behaviour, ControlPlane, Core, Hosts, SSH_KEY, cluster_api, create_cluster, create_ssh_key,
    eventually, shared_with_cluster_api,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A cluster of Cluster API in a namespace of its own, with hosts.
pub(crate) struct World {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) namespace: String,
    pub(crate) hosts: Hosts,
    pub(crate) machines: Api<DynamicObject>,
    pub(crate) infrastructure: Api<DynamicObject>,
    pub(crate) bootstrap: Api<DynamicObject>,
    pub(crate) nodes: Api<Node>,
    pub(crate) workload: Client,
}

pub(crate) fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

impl World {
    pub(crate) async fn new(behaviour: impl Into<Behaviour>) -> Self {
        Self::on(shared_with_cluster_api(), Core::Real, "v1beta2", behaviour).await
    }

    pub(crate) async fn on(
        plane: &'static ControlPlane,
        core: Core,
        version: &str,
        behaviour: impl Into<Behaviour>,
    ) -> Self {
        let client = plane.management().client().await.unwrap();
        let workload = plane.workload().client().await.unwrap();
        let namespace = plane.management().fresh_namespace(&client, "capi").await.unwrap();
        create_cluster(plane, &namespace, "one").await.unwrap();
        create_ssh_key(plane, &namespace).await.unwrap();
        let hosts = Hosts::start(plane, &namespace, core, behaviour.into()).await.unwrap();
        let provider = |group: &str, kind: &str| -> Api<DynamicObject> {
            let gvk = GroupVersionKind::gvk(&format!("{group}.cluster.x-k8s.io"), "v1beta2", kind);
            Api::namespaced_with(client.clone(), &namespace, &ApiResource::from_gvk(&gvk))
        };
        Self {
            plane,
            hosts,
            machines: cluster_api(&client, &namespace, version, "Machine"),
            infrastructure: provider("infrastructure", "RemoteMachine"),
            bootstrap: provider("bootstrap", "K0sWorkerConfig"),
            nodes: Api::all(workload.clone()),
            workload,
            namespace,
        }
    }

    /// Creates the two objects of the provider, and then the Machine that names them.
    pub(crate) async fn create(&self, name: &str) {
        self.create_parts(name).await;
        self.create_machine(name, "v1beta2").await;
    }

    pub(crate) async fn create_parts(&self, name: &str) {
        self.create_parts_with(name, |_| {}).await;
    }

    /// The two objects of the provider, of which the RemoteMachine is changed so.
    pub(crate) async fn create_parts_with(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.create_bootstrap(name).await;
        let mut machine = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
            "kind": "RemoteMachine",
            "metadata": {"name": name},
            "spec": {"address": self.hosts.address(name), "sshKeyRef": {"name": SSH_KEY}},
        });
        change(&mut machine);
        self.infrastructure.create(&PostParams::default(), &read(machine)).await.unwrap();
    }

    pub(crate) async fn create_bootstrap(&self, name: &str) {
        let config = json!({
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
            "kind": "K0sWorkerConfig",
            "metadata": {"name": name},
            "spec": {},
        });
        self.bootstrap.create(&PostParams::default(), &read(config)).await.unwrap();
    }

    /// A machine whose RemoteMachine is changed so.
    pub(crate) async fn create_with(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.create_parts_with(name, change).await;
        self.create_machine(name, "v1beta2").await;
    }

    pub(crate) async fn create_machine(&self, name: &str, version: &str) {
        self.create_machine_in(name, version, "one").await;
    }

    /// A Machine of another Cluster.
    pub(crate) async fn create_machine_of(&self, name: &str, cluster: &str) {
        self.create_machine_in(name, "v1beta2", cluster).await;
    }

    async fn create_machine_in(&self, name: &str, version: &str, cluster: &str) {
        let reference = |group: &str, kind: &str| match version {
            "v1beta1" => {
                json!({"apiVersion": format!("{group}.cluster.x-k8s.io/v1beta2"), "kind": kind, "name": name})
            }
            _ => json!({"apiGroup": format!("{group}.cluster.x-k8s.io"), "kind": kind, "name": name}),
        };
        let machine = read(json!({
            "apiVersion": format!("cluster.x-k8s.io/{version}"),
            "kind": "Machine",
            "metadata": {"name": name},
            "spec": {
                "clusterName": cluster,
                "bootstrap": {"configRef": reference("bootstrap", "K0sWorkerConfig")},
                "infrastructureRef": reference("infrastructure", "RemoteMachine"),
            },
        }));
        self.machines.create(&PostParams::default(), &machine).await.unwrap();
    }

    pub(crate) async fn created_and_running(&self, name: &str) {
        self.create(name).await;
        eventually("the Machine runs", async || self.phase(name).await == "Running").await;
    }

    pub(crate) async fn phase(&self, name: &str) -> String {
        let machine = self.machines.get_opt(name).await.unwrap();
        machine.map_or("gone".into(), |it| it.data["status"]["phase"].as_str().unwrap_or_default().to_owned())
    }

    pub(crate) async fn node(&self, name: &str) -> Option<Node> {
        self.nodes.get_opt(&self.hosts.node_name(name)).await.unwrap()
    }

    pub(crate) async fn is_node_ready(&self, name: &str) -> bool {
        let node = self.node(name).await;
        let conditions = node.and_then(|node| node.status?.conditions).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.machines.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn is_gone(&self, name: &str) -> bool {
        self.machines.get_opt(name).await.unwrap().is_none()
            && self.infrastructure.get_opt(name).await.unwrap().is_none()
            && self.bootstrap.get_opt(name).await.unwrap().is_none()
    }

    pub(crate) async fn is_gone_with_node(&self, name: &str) -> bool {
        self.is_gone(name).await && self.node(name).await.is_none()
    }

    /// A pod that the scheduler puts on the machine's Node.
    pub(crate) async fn run_pod(&self, machine: &str, pod: &str) -> Api<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.workload.clone(), "default");
        let pod: Pod = read(json!({
            "metadata": {"name": pod, "labels": {"app": pod}},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self.hosts.node_name(machine)},
                "containers": [{"name": "main", "image": "example.com/pause"}],
            },
        }));
        let name = pod.metadata.name.clone().unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        eventually("the pod runs", async || {
            let pod = pods.get_opt(&name).await.unwrap();
            pod.is_some_and(|pod| pod.status.is_some_and(|it| it.phase.as_deref() == Some("Running")))
        })
        .await;
        pods
    }

    pub(crate) fn pod_name(&self, stem: &str) -> String {
        format!("{}-{stem}", self.namespace)
    }

    /// RemoteMachines in a version of the provider.
    pub(crate) async fn infrastructure_in(&self, version: &str) -> Api<DynamicObject> {
        let client = self.plane.management().client().await.unwrap();
        let gvk = GroupVersionKind::gvk("infrastructure.cluster.x-k8s.io", version, "RemoteMachine");
        Api::namespaced_with(client, &self.namespace, &ApiResource::from_gvk(&gvk))
    }

    /// When something was deleted first, by an audit log.
    pub(crate) fn deleted_at(&self, entries: &[AuditEntry], resource: &str, name: &str) -> jiff::Timestamp {
        let is_it = |it: &&AuditEntry| {
            it.verb == "delete"
                && it.resource == resource
                && it.name == name
                && (it.namespace.is_empty() || it.namespace == self.namespace)
        };
        entries.iter().find(is_it).unwrap().at
    }
}
