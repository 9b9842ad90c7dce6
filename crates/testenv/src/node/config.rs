//! What the kubelet and the container runtime of a node are told.

use super::image::GUEST_IMAGE;
use super::network::PODS;
use super::parts::Parts;
use crate::error::{Context, Error};
use crate::plan::args;
use crate::private_file::write_private;
use serde_json::{Value, json};
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

/// What is particular to one node.
pub(super) struct Node<'a> {
    pub(super) name: &'a str,
    pub(super) folder: &'a Path,
    pub(super) address: Ipv4Addr,
    pub(super) machine_id: &'a str,
    /// The tree of its control groups.
    pub(super) groups: &'a str,
    /// Certificate of the authority that signs the clients of the kubelet.
    pub(super) authority: &'a str,
    pub(super) kubeconfig: &'a Value,
}

/// Writes everything into `config` of the node's folder.
pub(super) fn write(node: &Node<'_>, parts: &Parts) -> Result<(), Error> {
    let config = node.folder.join("config");
    let cni = config.join("cni");
    for folder in [&cni, &node.folder.join("node")] {
        fs::create_dir_all(folder).context(|| format!("create {}", folder.display()))?;
    }
    let hosts = format!("127.0.0.1 localhost\n{} {}\n", node.address, node.name);
    for (name, text) in [
        ("hosts", hosts),
        ("machine-id", format!("{}\n", node.machine_id)),
        ("authority.crt", node.authority.to_owned()),
        ("kubelet-flags", flags(node)),
        ("kubelet.json", kubelet(node).to_string()),
        ("containerd.toml", containerd(node.folder, parts)),
        ("cni/pods.conflist", network().to_string()),
    ] {
        let file = config.join(name);
        fs::write(&file, text).context(|| format!("write {}", file.display()))?;
    }
    let kubeconfig = config.join("kubeconfig");
    write_private(&kubeconfig, &node.kubeconfig.to_string())
        .context(|| format!("write {}", kubeconfig.display()))?;
    Ok(())
}

/// The kubelet's flags, one on each line.
fn flags(node: &Node<'_>) -> String {
    let path = |name: &str| node.folder.join(name).to_string_lossy().into_owned();
    let flags = args(&[
        ("config", &path("config/kubelet.json")),
        ("kubeconfig", &path("config/kubeconfig")),
        ("root-dir", &path("node/kubelet")),
        ("cert-dir", &path("node/kubelet/pki")),
        ("hostname-override", node.name),
        ("node-ip", &node.address.to_string()),
    ]);
    // The last line ends too: a shell does not read one that does not.
    flags.join("\n") + "\n"
}

fn kubelet(node: &Node<'_>) -> Value {
    let path = |name: &str| node.folder.join(name).to_string_lossy().into_owned();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": 10250,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": false},
            "x509": {"clientCAFile": path("config/authority.crt")},
        },
        // Of those whom the authority has signed: only the API server has a way to the kubelet.
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", node.groups),
        "failCgroupV1": false,
        "failSwapOn": false,
        // The host's disk and memory are not the node's to judge.
        "evictionHard": {
            "memory.available": "1Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "localStorageCapacityIsolation": false,
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": path("node/logs"),
        "volumePluginDir": path("node/plugins"),
        // Only kube-proxy needs its chains, and there is none.
        "makeIPTablesUtilChains": false,
        "resolvConf": "",
        "registerWithTaints": [],
    })
}

fn containerd(folder: &Path, parts: &Parts) -> String {
    let (folder, packages) = (folder.display(), parts.packages());
    let packages = packages.display();
    let cri = r#"plugins."io.containerd.grpc.v1.cri""#;
    format!(
        r#"version = 2
root = "{folder}/node/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper"]

[{cri}]
sandbox_image = "{GUEST_IMAGE}"
# Without CAP_SYS_RESOURCE no process may be made less likely to be killed for memory; runc would not start it.
restrict_oom_score_adj = true

[{cri}.cni]
bin_dir = "{packages}/usr/lib/cni"
conf_dir = "{folder}/config/cni"

[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
"#
    )
}

fn network() -> Value {
    let addresses = json!({"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": PODS}]]});
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": true, "ipam": addresses}],
    })
}
