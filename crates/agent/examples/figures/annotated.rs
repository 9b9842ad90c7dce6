//! From the start of a program to the request on the Node, through the agent itself and a real API server.

use super::{LIFE, NAME, STARTS};
use anyhow::Context;
use fivespot_agent::source::Kind;
use fivespot_api::AgentConfig;
use fivespot_api::names::{
    AGENT_CONFIG_KEY, RECLAIM_REASON, RECLAIM_REQUESTED, RECLAIM_REQUESTED_AT, SYSTEM_NAMESPACE,
    agent_config_map,
};
use fivespot_testenv::{ControlPlane, Options};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The Node that this machine is here, and its id.
const NODE: &str = "figures";
const MACHINE: &str = "0123456789abcdef0123456789abcdef";

/// How long a request may take to be seen or taken off.
const PATIENCE: Duration = Duration::from_secs(10);

/// A cluster with one Node, which an agent looks after.
pub(crate) struct Cluster {
    runtime: Runtime,
    client: Client,
    kubeconfig: PathBuf,
    machine_id: PathBuf,
    /// Hears whether the Node bears a request, whenever that changes.
    requests: Receiver<(bool, Instant)>,
    _plane: ControlPlane,
}

impl Cluster {
    pub(crate) fn start(folder: &Path) -> anyhow::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().context("a runtime")?;
        let plane = runtime.block_on(ControlPlane::start(Options::default())).context("start a cluster")?;
        let client = runtime.block_on(plane.management().client()).context("a client")?;
        let machine_id = folder.join("machine-id");
        std::fs::write(&machine_id, MACHINE).context("write a machine-id")?;
        let kubeconfig = plane.management().kubeconfig_path().to_owned();
        let version = runtime.block_on(register(&client))?;
        let (tell, requests) = channel();
        let nodes: Api<Node> = Api::all(client.clone());
        runtime.spawn(async move {
            let mut last = false;
            let params = WatchParams::default().fields(&format!("metadata.name={NODE}"));
            let Ok(changes) = nodes.watch(&params, &version).await else { return };
            let mut changes = pin!(changes.into_stream());
            while let Some(Ok(change)) = changes.next().await {
                let WatchEvent::Modified(node) = change else { continue };
                let asks = node.annotations().contains_key(RECLAIM_REQUESTED);
                if std::mem::replace(&mut last, asks) != asks && tell.send((asks, Instant::now())).is_err() {
                    return;
                }
            }
        });
        Ok(Self { runtime, client, kubeconfig, machine_id, requests, _plane: plane })
    }

    /// Starts of the program, each until its request stands; a start whose request does not come is `None`.
    pub(crate) fn turn(&self, kind: Kind, program: &Path) -> anyhow::Result<Vec<Option<Duration>>> {
        let mut agent = self.agent(kind)?;
        // Its watches and its first scan.
        std::thread::sleep(Duration::from_secs(2));
        let outcome = (0..STARTS).map(|number| self.start_one(number, program)).collect();
        agent.kill().context("end the agent")?;
        agent.wait().context("end the agent")?;
        outcome
    }

    fn agent(&self, kind: Kind) -> anyhow::Result<Child> {
        let example = std::env::current_exe().context("find this program")?;
        let folder = example.parent().and_then(Path::parent).context("find the folder of programs")?;
        let mut agent = Command::new(folder.join("5spot-reclaim-agent"));
        agent.args(["--node-name", NODE, "--detector", kind.word(), "--health-port=0"]);
        agent.arg("--kubeconfig").arg(&self.kubeconfig).arg("--machine-id-path").arg(&self.machine_id);
        agent.stdin(Stdio::null()).stderr(Stdio::null()).spawn().context("start the agent: build it first")
    }

    fn start_one(&self, number: u64, program: &Path) -> anyhow::Result<Option<Duration>> {
        std::thread::sleep(Duration::from_millis(30 + number * 37 % 250));
        let began = Instant::now();
        let mut child =
            Command::new(program).arg("60").stdin(Stdio::null()).spawn().context("start the program")?;
        let seen = self.requests.recv_timeout(LIFE);
        child.kill().context("end the program")?;
        child.wait().context("end the program")?;
        // One that comes late would be taken for the next.
        if seen.is_err() && self.requests.recv_timeout(Duration::from_secs(1)).is_err() {
            return Ok(None);
        }
        self.clear()?;
        Ok(seen.ok().map(|(_, at)| at.saturating_duration_since(began)))
    }

    fn clear(&self) -> anyhow::Result<()> {
        let annotations = json!({RECLAIM_REQUESTED: null, RECLAIM_REASON: null, RECLAIM_REQUESTED_AT: null});
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let nodes: Api<Node> = Api::all(self.client.clone());
        self.runtime.block_on(nodes.patch(NODE, &PatchParams::default(), &patch)).context("take it off")?;
        let (asks, _) = self.requests.recv_timeout(PATIENCE).context("wait until it is off")?;
        anyhow::ensure!(!asks, "a request came that nobody made");
        Ok(())
    }
}

/// The Node and what its agent is told; returns the version from which on changes are heard.
async fn register(client: &Client) -> anyhow::Result<String> {
    let apply = PatchParams::apply("figures").force();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}});
    namespaces.patch(SYSTEM_NAMESPACE, &apply, &Patch::Apply(namespace)).await.context("a namespace")?;
    let config = AgentConfig::for_commands(&[NAME.to_owned()]).to_toml();
    let name = agent_config_map(NODE);
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}, "data": {AGENT_CONFIG_KEY: config},
    });
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    maps.patch(&name, &apply, &Patch::Apply(map)).await.context("a ConfigMap")?;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": NODE}})).context("a Node")?;
    nodes.create(&PostParams::default(), &node).await.context("a Node")?;
    let info = json!({
        "machineID": MACHINE, "systemUUID": MACHINE, "bootID": MACHINE, "kernelVersion": "", "osImage": "",
        "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "linux",
        "architecture": "amd64",
    });
    let status = Patch::Merge(json!({"status": {"nodeInfo": info}}));
    let node = nodes.patch_status(NODE, &PatchParams::default(), &status).await.context("its status")?;
    node.resource_version().context("its version")
}
