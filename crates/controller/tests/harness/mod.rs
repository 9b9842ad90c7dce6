//! The real controller on a real control plane, and what a test does with them.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests: the line that fails is the message"
)]

use fivespot_api::{ScheduledMachine, ScheduledMachineStatus, names};
use fivespot_testenv::{
    Behaviour, ControlPlane, Core, Daemon, Hosts, SSH_KEY, anonymous_kubeconfig, create_cluster,
    create_ssh_key, write_private,
};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

/// The Cluster that every test of a namespace uses.
pub(crate) const CLUSTER: &str = "lab";

/// A schedule that is always open, and one that opens on the next 29th of February.
pub(crate) const OPEN: &str = "* * * * *";
pub(crate) const CLOSED: &str = "59 23 29 2 *";

/// How long anything may take that should happen soon.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) fn from_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Installs `deploy/` on the management cluster, once for each process.
pub(crate) fn install(plane: &ControlPlane) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let kubectl = |args: &[&str]| plane.kubectl(plane.management(), args, "").unwrap();
        kubectl(&["apply", "--server-side", "-k", from_root("deploy").to_str().unwrap()]);
        kubectl(&["apply", "-k", from_root("deploy/workload").to_str().unwrap()]);
        plane
            .kubectl(
                plane.workload(),
                &["apply", "-f", from_root("deploy/namespace.yaml").to_str().unwrap()],
                "",
            )
            .unwrap();
        // The controller of these tests is a process of this machine.
        kubectl(&["-n", "5spot-system", "scale", "deployment", "5spot-controller", "--replicas=0"]);
        plane.until_established(plane.management()).unwrap();
    });
}

/// A controller process.
pub(crate) struct Controller(Daemon);

impl Deref for Controller {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.0
    }
}

impl Controller {
    /// Starts it under the ServiceAccount that is shipped with it.
    pub(crate) fn start(plane: &ControlPlane, name: &str, args: &[&str]) -> Self {
        Self::start_with(plane, name, args, &[])
    }

    /// The same with environment variables.
    pub(crate) fn start_with(plane: &ControlPlane, name: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        install(plane);
        Self::launch(plane, name, &service_account_kubeconfig(plane), &pod(name), args, env)
    }

    /// Starts it on a server that asks nobody who he is.
    pub(crate) fn start_through(plane: &ControlPlane, name: &str, url: &str, args: &[&str]) -> Self {
        Self::launch(plane, name, &anonymous_kubeconfig(url), &pod(name), args, &[])
    }

    /// Starts it under its ServiceAccount, with another port of this machine as its only way to the server.
    pub(crate) fn start_behind(plane: &ControlPlane, name: &str, port: u16, args: &[&str]) -> Self {
        install(plane);
        let mut config: Value = serde_json::from_str(&service_account_kubeconfig(plane)).unwrap();
        config["clusters"][0]["cluster"]["server"] = json!(format!("https://127.0.0.1:{port}"));
        Self::launch(plane, name, &config.to_string(), &pod(name), args, &[])
    }

    /// Starts it without any flag that tells who it is: only its environment does.
    pub(crate) fn start_nameless(plane: &ControlPlane, folder: &str, env: &[(&str, &str)]) -> Self {
        install(plane);
        Self::launch(plane, folder, &service_account_kubeconfig(plane), &[], &[], env)
    }

    fn launch(
        plane: &ControlPlane,
        name: &str,
        config: &str,
        identity: &[&str],
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        let folder = plane.management().kubeconfig_path().with_file_name(format!("controller-{name}"));
        fs::create_dir_all(&folder).unwrap();
        let kubeconfig = folder.join("kubeconfig");
        write_private(&kubeconfig, config).unwrap();
        Self(Daemon::start(&folder, |command| {
            command
                .arg(env!("CARGO_BIN_EXE_5spot-controller"))
                .args(["--listen-address=127.0.0.1", "--health-port=0", "--metrics-port=0"])
                .arg("--kubeconfig")
                .arg(&kubeconfig)
                .args(identity)
                .args(args)
                .env_remove("POD_NAME")
                .env_remove("POD_UID")
                // Most worlds of these tests are in one cluster. A test of the flag gives the flag, which wins.
                .env("MANAGEMENT_CLUSTER_NAMESPACES", "*")
                .envs(env.iter().copied());
        }))
    }

    /// What an HTTP path answers: status and text.
    pub(crate) fn http(&self, path: &str) -> (u16, String) {
        let field = if path == "/metrics" { "metrics_port" } else { "health_port" };
        self.0.http(field, path)
    }
}

/// A pod of this name: whoever is started again with it is a container that is started again.
fn pod(name: &str) -> [&str; 4] {
    ["--pod-name", name, "--pod-uid", name]
}

/// A kubeconfig with a token of the controller's own account.
pub(crate) fn service_account_kubeconfig(plane: &ControlPlane) -> String {
    plane.account_kubeconfig("5spot-controller").unwrap()
}

/// A namespace with a Cluster, its hosts, and access to everything.
pub(crate) struct World {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) management: Client,
    pub(crate) workload: Client,
    pub(crate) namespace: String,
    pub(crate) hosts: Hosts,
}

impl World {
    pub(crate) async fn new(plane: &'static ControlPlane, core: Core, stem: &str) -> Self {
        install(plane);
        let management = plane.management().client().await.unwrap();
        let workload = plane.workload().client().await.unwrap();
        let namespace = plane.management().fresh_namespace(&management, stem).await.unwrap();
        let tenant = from_root("deploy/tenant");
        let kubectl = ["apply", "-n", &namespace, "-k", tenant.to_str().unwrap()];
        plane.kubectl(plane.management(), &kubectl, "").unwrap();
        create_cluster(plane, &namespace, CLUSTER).await.unwrap();
        create_ssh_key(plane, &namespace).await.unwrap();
        let hosts = Hosts::start(plane, &namespace, core, Behaviour::default()).await.unwrap();
        Self { plane, management, workload, namespace, hosts }
    }

    pub(crate) fn machines(&self) -> Api<ScheduledMachine> {
        Api::namespaced(self.management.clone(), &self.namespace)
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.workload.clone())
    }

    /// Machines, bootstrap and infrastructure objects.
    pub(crate) fn objects(&self, kind: &str) -> Api<DynamicObject> {
        let group = match kind {
            "K0sWorkerConfig" => "bootstrap.cluster.x-k8s.io",
            "RemoteMachine" => "infrastructure.cluster.x-k8s.io",
            _ => "cluster.x-k8s.io",
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind));
        Api::namespaced_with(self.management.clone(), &self.namespace, &resource)
    }

    /// A ScheduledMachine with this schedule.
    pub(crate) fn machine(&self, name: &str, cron: &str) -> Value {
        json!({
            "apiVersion": "5spot.finos.org/v1alpha1",
            "kind": "ScheduledMachine",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "schedule": {"cron": cron},
                "clusterName": CLUSTER,
                "bootstrapSpec": {
                    "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
                    "kind": "K0sWorkerConfig",
                    "spec": {"version": "v1.34.1+k0s.0"},
                },
                "infrastructureSpec": {
                    "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
                    "kind": "RemoteMachine",
                    "spec": self.remote_machine(name),
                },
            },
        })
    }

    /// What the provider needs to know of a machine: a host of its own, and the key of all.
    pub(crate) fn remote_machine(&self, name: &str) -> Value {
        json!({"address": self.hosts.address(name), "user": "k0s", "sshKeyRef": {"name": SSH_KEY}})
    }

    /// Creates a ScheduledMachine with this schedule, changed by `change`.
    pub(crate) async fn create(&self, name: &str, cron: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.machine(name, cron);
        change(&mut object["spec"]);
        let object = serde_json::from_value(object).unwrap();
        self.machines().create(&PostParams::default(), &object).await.unwrap();
    }

    pub(crate) async fn patch(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.machines().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn open(&self, name: &str) {
        self.patch(name, json!({"spec": {"schedule": {"cron": OPEN}}})).await;
    }

    pub(crate) async fn close(&self, name: &str) {
        self.patch(name, json!({"spec": {"schedule": {"cron": CLOSED}}})).await;
    }

    pub(crate) async fn status(&self, name: &str) -> ScheduledMachineStatus {
        self.machines().get(name).await.unwrap().status.unwrap_or_default()
    }

    /// Waits until a ScheduledMachine is as wanted.
    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&ScheduledMachine) -> bool,
    ) -> ScheduledMachine {
        let began = Instant::now();
        loop {
            let machine = self.machines().get(name).await.unwrap();
            if holds(&machine) {
                return machine;
            }
            if began.elapsed() > PATIENCE {
                let status = serde_json::to_string_pretty(&machine.status).unwrap();
                let hosts = self.hosts.last_error();
                panic!(
                    "{}/{name} is not {what} after {PATIENCE:?}: {status}\nhosts: {hosts:?}",
                    self.namespace
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a ScheduledMachine is in a phase, and its status speaks of its spec.
    pub(crate) async fn until_phase(&self, name: &str, phase: &str) -> ScheduledMachine {
        let there = |machine: &ScheduledMachine| {
            let status = machine.status.clone().unwrap_or_default();
            status.phase.as_deref() == Some(phase)
                && status.observed_generation == machine.metadata.generation
        };
        self.until(name, phase, there).await
    }

    pub(crate) async fn until_gone<K>(&self, api: &Api<K>, name: &str)
    where
        K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let began = Instant::now();
        while let Some(object) = api.get_opt(name).await.unwrap() {
            assert!(began.elapsed() < PATIENCE, "{name} is still there: {:?}", object.meta());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn node(&self, name: &str) -> Node {
        self.nodes().get(&self.hosts.node_name(name)).await.unwrap()
    }

    /// Waits until the reclaim agent may ask for a machine.
    pub(crate) async fn until_armed(&self, name: &str) {
        let began = Instant::now();
        let uid = self.objects("Machine").get(name).await.unwrap().metadata.uid;
        let armed = |node: &Node| {
            node.metadata.annotations.as_ref().and_then(|all| all.get(names::ARMED_FOR)) == uid.as_ref()
        };
        while !armed(&self.node(name).await) {
            assert!(began.elapsed() < PATIENCE, "{name} is not armed");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks for a machine as its reclaim agent does.
    pub(crate) async fn ask_back(&self, name: &str) {
        let annotations = json!({
            names::RECLAIM_REQUESTED: "true",
            names::RECLAIM_REASON: "process-match: idea",
            names::RECLAIM_REQUESTED_AT: jiff::Timestamp::now().to_string(),
        });
        self.patch_node(name, json!({"metadata": {"annotations": annotations}})).await;
    }

    pub(crate) async fn patch_node(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.nodes().patch(&self.hosts.node_name(name), &PatchParams::default(), &patch).await.unwrap();
    }

    /// Events about a ScheduledMachine, as `reason: note`, oldest first.
    pub(crate) async fn events(&self, name: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.management.clone(), &self.namespace);
        let params = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let mut events = events.list(&params).await.unwrap().items;
        events.sort_by_key(|event| event.event_time.clone());
        let text = |event: Event| {
            format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())
        };
        events.into_iter().map(text).collect()
    }

    /// Whether an event with this reason was sent.
    pub(crate) async fn has_event(&self, name: &str, reason: &str) -> bool {
        self.events(name).await.iter().any(|event| event.starts_with(&format!("{reason}: ")))
    }

    /// A pod on the Node of a machine, in the namespace of the same name of the workload cluster.
    pub(crate) async fn pod(&self, machine: &str, pod: &str, change: impl FnOnce(&mut Value)) {
        self.workload_namespace().await;
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod, "labels": {"app": pod}},
            "spec": {
                "nodeName": self.hosts.node_name(machine),
                "containers": [{"name": "main", "image": "none"}],
                "tolerations": [{"operator": "Exists"}],
            },
        });
        change(&mut object);
        let object = serde_json::from_value(object).unwrap();
        self.pods().create(&PostParams::default(), &object).await.unwrap();
        let began = Instant::now();
        loop {
            let pod = self.pods().get(pod).await.unwrap();
            if pod.status.and_then(|status| status.phase).as_deref() == Some("Running") {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "the pod does not run: {:?}", self.hosts.last_error());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.workload.clone(), &self.namespace)
    }

    /// A namespace of the same name in the workload cluster, with its default account.
    pub(crate) async fn workload_namespace(&self) {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        let namespace = serde_json::from_value(namespace).unwrap();
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.workload.clone());
        let _ = namespaces.create(&PostParams::default(), &namespace).await;
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(self.workload.clone(), &self.namespace);
        let began = Instant::now();
        while accounts.get_opt("default").await.unwrap().is_none() {
            assert!(began.elapsed() < PATIENCE, "no default account");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A disruption budget for the pods of this label, after it has been seen by its controller.
    pub(crate) async fn budget(&self, pod: &str, min_available: u32) {
        self.workload_namespace().await;
        let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> =
            Api::namespaced(self.workload.clone(), &self.namespace);
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": format!("{pod}-budget")},
            "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": pod}}},
        });
        let budget = serde_json::from_value(budget).unwrap();
        budgets.create(&PostParams::default(), &budget).await.unwrap();
        let began = Instant::now();
        loop {
            let budget = budgets.get(&format!("{pod}-budget")).await.unwrap();
            if budget.status.and_then(|status| status.observed_generation).is_some() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "the budget is not seen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn delete(&self, name: &str, params: &DeleteParams) {
        self.machines().delete(name, params).await.unwrap();
    }

    /// Nothing of a machine is left: neither its three objects nor its Node.
    pub(crate) async fn nothing_is_left(&self, name: &str) {
        for kind in ["Machine", "RemoteMachine", "K0sWorkerConfig"] {
            self.until_gone(&self.objects(kind), name).await;
        }
        self.until_gone(&self.nodes(), &self.hosts.node_name(name)).await;
    }
}

/// Status and reason of a condition.
pub(crate) fn condition(machine: &ScheduledMachine, kind: &str) -> Option<(String, String)> {
    let conditions = &machine.status.as_ref()?.conditions;
    let condition = conditions.iter().find(|condition| condition.type_ == kind)?;
    Some((condition.status.clone(), condition.reason.clone()))
}

/// Whether a condition has this status and reason.
pub(crate) fn is(machine: &ScheduledMachine, kind: &str, status: &str, reason: &str) -> bool {
    condition(machine, kind) == Some((status.to_owned(), reason.to_owned()))
}

pub(crate) fn message(machine: &ScheduledMachine) -> String {
    machine.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default()
}
