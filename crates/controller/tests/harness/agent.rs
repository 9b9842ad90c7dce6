//! The reclaim agent as a process of this machine, and programs for it to find.

use crate::harness::{World, from_root};
use fivespot_testenv::{build_programs, eventually, write_private};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// How the agent begins its name.
pub(crate) const AGENT: &str = "5spot-reclaim-agent/";

/// Installs the agent's DaemonSet and its rights on the workload cluster.
pub(crate) fn install_agent(world: &World) {
    let agent = from_root("deploy/node-agent");
    let args = ["apply", "--server-side", "--force-conflicts", "-k", agent.to_str().unwrap()];
    world.plane.kubectl(world.plane.workload(), &args, "").unwrap();
}

/// A process that ends with this value.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The agent's binary, built if need be: it belongs to another package.
fn agent_binary() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| build_programs(&from_root(""), &["5spot-reclaim-agent"]).unwrap());
    folder.join("5spot-reclaim-agent")
}

/// What a program of the owner is started with: for `sleep` a number of seconds, and a text that stands in no time, port
/// or count of a log.
pub(crate) const ARGUMENT: &str = "86399.271828";

/// A copy of `sleep` under another name.
pub(crate) fn start(folder: &Path, name: &str) -> Running {
    let program = folder.join(name);
    if !program.exists() {
        fs::copy("/bin/sleep", &program).unwrap();
    }
    loop {
        match Command::new(&program).arg(ARGUMENT).stdin(Stdio::null()).spawn() {
            // Another thread of the test has forked while the program was written, and its child holds the file.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(2));
            }
            started => return Running(started.unwrap()),
        }
    }
}

/// Waits for the Pod that the DaemonSet puts on a Node, and gives a kubeconfig with a token that is bound to it.
async fn bound_kubeconfig(world: &World, node: &str) -> Value {
    let pods: Api<Pod> = Api::namespaced(world.workload.clone(), "5spot-system");
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let mut pod = None;
    eventually("the agent's Pod is on the Node", async || {
        pod = pods.list(&of_node).await.unwrap().items.first().map(ResourceExt::name_any);
        pod.is_some()
    })
    .await;
    let (plane, pod) = (world.plane, pod.unwrap());
    let ask = move || {
        let kubectl = |args: &[&str]| plane.kubectl(plane.workload(), args, "").unwrap();
        let bound = ["--bound-object-kind=Pod", "--bound-object-name"];
        let mut args = vec!["-n", "5spot-system", "create", "token", "5spot-reclaim-agent"];
        args.extend(bound);
        args.push(&pod);
        let token = kubectl(&args);
        let mut config: Value =
            serde_json::from_str(&kubectl(&["config", "view", "--raw", "-o", "json"])).unwrap();
        config["users"][0]["user"] = json!({"token": token.trim()});
        config
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// Starts the agent of a machine, with the rights that are shipped with it. Its log is in `folder`.
pub(crate) async fn start_agent(
    world: &World,
    machine: &str,
    machine_id: &str,
    detector: &str,
    folder: &Path,
) -> Running {
    let node = world.hosts.node_name(machine);
    let (kubeconfig, id) = (folder.join("kubeconfig"), folder.join("machine-id"));
    write_private(&kubeconfig, &bound_kubeconfig(world, &node).await.to_string()).unwrap();
    fs::write(&id, format!("{machine_id}\n")).unwrap();
    let log = fs::File::create(folder.join("log")).unwrap();
    let mut agent = Command::new(agent_binary());
    agent.args([
        "--node-name",
        &node,
        "--detector",
        detector,
        "--listen-address=127.0.0.1",
        "--health-port=0",
    ]);
    agent.arg("--kubeconfig").arg(kubeconfig).arg("--machine-id-path").arg(id);
    Running(agent.stdin(Stdio::null()).stderr(log).spawn().unwrap())
}
