//! A real node: a kubelet with a container runtime, in namespaces of this machine.
//!
//! It joins a cluster of a [`ControlPlane`](crate::ControlPlane) like any other machine, and its pods are containers. It has
//! a process, a mount and a network namespace of its own, writes to memory alone, and belongs to a supervisor that ends it
//! with the process of the test. The processes of its pods are processes of this machine too: whoever looks at the
//! host's `/proc` sees the kubelet, its helpers and the containers with the names and control groups that they have on a
//! real host. That is what the reclaim agent is tested on.
//!
//! Not every machine can do it. [`Error::NodeUnavailable`] says why, and a test that gets it is counted as skipped.

mod config;
mod groups;
mod image;
mod network;
mod parts;

pub use image::GUEST_IMAGE;

use crate::build::Progress;
use crate::control_plane::{Cluster, POLL, chain, choose_folder};
use crate::error::{Context, Error};
use crate::kubeconfig::kubeconfig;
use crate::supervisor::Supervisor;
use groups::Groups;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use network::{Forwarder, Link};
use parts::Parts;
use rustix::process::geteuid;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The process of the supervisor that everything else ends with.
const HOLDER: &str = "node";

const SCRIPT: &str = include_str!("node.sh");

/// How long a node may take to get ready. Warm it takes four seconds.
const START: Duration = Duration::from_secs(90);

/// How long the kernel may take to remove what a node has left.
const END: Duration = Duration::from_secs(10);

/// What a node does to its namespaces, tried before anything is started.
const TRIAL: &str = "mount -t tmpfs trial /run && mkdir /run/a /run/b && \
                     mount -t overlay -o lowerdir=/etc,upperdir=/run/a,workdir=/run/b trial /etc && \
                     ip link add name trial0 type veth peer name trial1 && ip link add name trial2 type bridge";

/// The namespaces of a node: its processes, its mounts, its network. Its end is that of all processes in them.
const NAMESPACES: [&str; 6] = ["--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--mount"];

/// A machine with a kubelet, which has joined a cluster. It ends when it is dropped, or its process ends in whatever way;
/// its Node stays in the cluster.
#[derive(Debug)]
pub struct RealNode {
    name: String,
    machine_id: String,
    folder: PathBuf,
    /// The first process of its namespaces, as the host counts.
    holder: u32,
    groups: Groups,
    link: Link,
    supervisor: Option<Supervisor>,
    forwarder: Option<Forwarder>,
}

impl RealNode {
    /// Builds the kubelet and unpacks the container runtime into the cache, once for a machine.
    pub fn build(progress: &mut dyn Progress) -> Result<(), Error> {
        Parts::build(progress)
    }

    /// Lets a machine of this name join a cluster, and returns when its Node is Ready.
    pub async fn start(cluster: &Cluster, name: &str) -> Result<Self, Error> {
        check_machine()?;
        let parts = Parts::find()?;
        let folder = choose_folder(None)?;
        let groups = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let supervisor = Supervisor::start_with(&folder, Some((groups::REMOVE, &groups)))?;
        let tree = Groups::make(&groups)?;
        let script = folder.join("node.sh");
        fs::write(&script, SCRIPT).context(|| format!("write {}", script.display()))?;

        let text = |path: &Path| path.to_string_lossy().into_owned();
        let words = [text(&script), text(&folder), text(&parts.packages()), text(&parts.kubelet())];
        let words = NAMESPACES.map(str::to_owned).into_iter().chain(["sh".to_owned()]).chain(words);
        let words: Vec<String> = words.chain([text(&parts.image())]).collect();
        supervisor.spawn(HOLDER, Path::new("unshare"), &words)?;
        let holder = first_process(&supervisor)?;
        let link = Link::connect(holder, std::process::id())?;
        let forwarder = Forwarder::start(holder, cluster.port())?;

        let machine_id = machine_id(&groups);
        let kubeconfig = kubeconfig(
            &cluster.endpoint(),
            &cluster.authority().client(&format!("system:node:{name}"), Some("system:nodes"))?,
        );
        let node = config::Node {
            name,
            folder: &folder,
            address: link.address,
            machine_id: &machine_id,
            groups: &groups,
            authority: cluster.authority().certificate(),
            kubeconfig: &kubeconfig,
        };
        config::write(&node, &parts)?;
        // The first process has waited for this: only now is the node's address known.
        let connected = folder.join("connected");
        fs::write(&connected, "").context(|| format!("write {}", connected.display()))?;

        let node = Self {
            name: name.to_owned(),
            machine_id,
            folder,
            holder,
            groups: tree,
            link,
            supervisor: Some(supervisor),
            forwarder: Some(forwarder),
        };
        node.until_ready(cluster).await?;
        Ok(node)
    }

    /// Its name, and its Node's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its Node says in `status.nodeInfo.machineID`. It is not that of the host: several nodes may run on one.
    pub fn machine_id(&self) -> &str {
        &self.machine_id
    }

    /// A file with its machine-id.
    pub fn machine_id_path(&self) -> PathBuf {
        self.folder.join("config/machine-id")
    }

    /// A pod on this node with one container, which runs a shell script.
    pub fn pod(&self, name: &str, script: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": self.name,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": GUEST_IMAGE, "command": ["sh", "-c", script]}],
            },
        })
    }

    /// Creates a pod and waits until it is Ready.
    pub async fn run(&self, pods: &Api<Pod>, pod: Value) -> Result<Pod, Error> {
        let pod: Pod = serde_json::from_value(pod).map_err(Error::api("read a pod"))?;
        let began = Instant::now();
        let created = loop {
            match pods.create(&PostParams::default(), &pod).await {
                // The account of a new namespace comes a moment after it.
                Err(kube::Error::Api(answer)) if answer.code == 403 && began.elapsed() < END => {
                    tokio::time::sleep(POLL).await;
                }
                outcome => break outcome.map_err(Error::api("create a pod"))?,
            }
        };
        let name = created.name_any();
        loop {
            let pod = pods.get(&name).await.map_err(Error::api("look at a pod"))?;
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            if conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True") {
                return Ok(pod);
            }
            let waited = began.elapsed();
            if waited > START {
                let answer = not_running(&pod);
                return Err(Error::NotReady { server: name, waited, answer, log: self.logs() });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The processes of the pod with this uid, its sandbox included, by their numbers on the host.
    pub fn pod_processes(&self, uid: &str) -> Vec<u32> {
        self.groups.processes(Some(uid))
    }

    /// The processes of all its pods, by their numbers on the host.
    pub fn processes(&self) -> Vec<u32> {
        self.groups.processes(None)
    }

    /// A command that runs inside the node beside the kubelet, as somebody does who has logged in there.
    pub fn enter(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--net", "--pid", "--target", &self.holder.to_string(), program]);
        command
    }

    /// Its root folder, as seen from the host.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.holder))
    }

    /// The ends of the logs of the kubelet and the container runtime.
    pub fn logs(&self) -> String {
        let supervisor = self.supervisor.as_ref();
        let log = |name: &str| supervisor.map(|it| it.log(name)).unwrap_or_default();
        format!("{}\n--- containerd:\n{}\n--- kubelet:\n{}", log(HOLDER), log("containerd"), log("kubelet"))
    }

    /// Ends it, as pulling its plug would, and returns when nothing of it is left on this machine.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        drop(self.supervisor.take());
        // Its sockets keep the network namespace alive.
        drop(self.forwarder.take());
        let began = Instant::now();
        // The kernel removes the devices of a network namespace at its leisure.
        while self.groups.exists() || self.link.exists() || self.folder.exists() {
            if began.elapsed() > END {
                let what = format!("remove the node {}", self.name);
                return Err(Error::Io { what, source: std::io::Error::other("something of it is left") });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    async fn until_ready(&self, cluster: &Cluster) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(cluster.client().await?);
        let began = Instant::now();
        loop {
            if let Some(supervisor) = &self.supervisor {
                supervisor.check(HOLDER).map_err(|error| match error {
                    Error::ServerEnded { server, .. } => Error::ServerEnded { server, log: self.logs() },
                    error => error,
                })?;
            }
            let answer = match nodes.get_opt(&self.name).await {
                Ok(Some(node)) if is_ready(&node) => return Ok(()),
                Ok(Some(node)) => format!("{:?}", node.status.and_then(|status| status.conditions)),
                Ok(None) => "there is no Node".to_owned(),
                Err(error) => chain(&error),
            };
            let waited = began.elapsed();
            if waited > START {
                return Err(Error::NotReady { server: self.name.clone(), waited, answer, log: self.logs() });
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        // Nothing useful can be done about an error here; the supervisor works on without us.
        let _ = self.end();
    }
}

/// Whether this machine lets itself be used so.
fn check_machine() -> Result<(), Error> {
    if !geteuid().is_root() {
        return Err(Error::NodeUnavailable { why: "needs root".to_owned() });
    }
    Groups::check()?;
    let trial =
        Command::new("unshare").args(NAMESPACES).args(["sh", "-c", TRIAL]).stdin(Stdio::null()).output();
    match trial {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::NodeUnavailable { why: format!("its namespaces cannot be had: {said}") })
        }
        Err(error) => Err(Error::NodeUnavailable { why: format!("`unshare` cannot be run: {error}") }),
    }
}

/// The first process of the namespaces that the holder has made: its only child.
fn first_process(supervisor: &Supervisor) -> Result<u32, Error> {
    let began = Instant::now();
    while began.elapsed() < START {
        supervisor.check(HOLDER)?;
        let parent = supervisor.pid(HOLDER).unwrap_or_default();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_child = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| line.strip_prefix("PPid:").map(str::trim) == Some(&parent.to_string()))
        };
        if let Some(pid) = pids.into_iter().find(is_child) {
            return Ok(pid);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(Error::SupervisorSilent { waited: began.elapsed() })
}

/// An id of the form that systemd gives a machine, which no other node has.
fn machine_id(of: &str) -> String {
    Sha256::digest(format!("{of} {:?}", std::time::SystemTime::now())).iter().take(16).fold(
        String::new(),
        |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        },
    )
}

/// What the containers of a pod say that do not run.
fn not_running(pod: &Pod) -> String {
    let containers = pod.status.iter().flat_map(|status| {
        [&status.init_container_statuses, &status.container_statuses].into_iter().flatten().flatten()
    });
    let reasons = containers.filter_map(|container| {
        let state = container.state.as_ref().filter(|state| state.running.is_none())?;
        Some(format!("{}: {}", container.name, json!([state, container.last_state])))
    });
    reasons.collect::<Vec<_>>().join("\n")
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
