//! A real node: how it joins, what runs on it, and that nothing of it is left, however its process ends.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

use fivespot_testenv::{ControlPlane, Error, Options, RealNode, skipped};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Time in which everything must be gone after the end of the process that held it.
const CLEAN_UP: Duration = Duration::from_secs(20);

/// One node at a time: the devices of two cannot be told apart.
static ALONE: Mutex<()> = Mutex::const_new(());

/// The node, or nothing if this machine cannot run one.
async fn start(plane: &ControlPlane, test: &str) -> Option<RealNode> {
    match RealNode::start(plane.management(), "desk").await {
        Err(Error::NodeUnavailable { why }) => {
            skipped(env!("CARGO_TARGET_TMPDIR"), test, &why);
            None
        }
        outcome => Some(outcome.unwrap()),
    }
}

/// What there is on this machine of nodes: folders, control groups, network devices.
fn traces() -> Vec<PathBuf> {
    let list = |folder: &str| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let hierarchies = list("/sys/fs/cgroup");
    let all = hierarchies.flat_map(|path| list(path.to_str().unwrap()).collect::<Vec<_>>());
    let all = all.chain(list("/sys/class/net")).chain(list(std::env::temp_dir().to_str().unwrap()));
    let is_ours = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("5spot");
    let mut found: Vec<PathBuf> = all.filter(is_ours).collect();
    found.sort();
    found
}

/// The traces of the node whose supervisor has made this folder, and that of its devices.
fn traces_of(folder: &Path) -> Vec<PathBuf> {
    let mut found = traces();
    found.retain(|path| path.file_name() == folder.file_name());
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_runs_pods_and_leaves_nothing() {
    let _alone = ALONE.lock().await;
    let plane = ControlPlane::start(Options::default()).await.unwrap();
    let began = Instant::now();
    let Some(node) = start(&plane, "a_node_runs_pods_and_leaves_nothing").await else { return };
    println!("a node was ready after {:.1?}", began.elapsed());
    let client = plane.management().client().await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let info = nodes.get(node.name()).await.unwrap().status.unwrap().node_info.unwrap();
    assert_eq!(info.machine_id, node.machine_id());
    assert_eq!(fs::read_to_string(node.machine_id_path()).unwrap().trim(), node.machine_id());

    let pods: Api<Pod> = Api::namespaced(client, "default");
    let began = Instant::now();
    let pod = node.run(&pods, node.pod("guest", "sleep 1000")).await.unwrap();
    println!("a pod was ready after {:.1?}", began.elapsed());
    let processes = node.pod_processes(&pod.metadata.uid.unwrap());
    assert_eq!(processes.len(), 2, "a sandbox and a container");
    let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim().to_owned();
    assert_eq!(processes.iter().map(name).collect::<Vec<_>>(), ["sleep", "sleep"]);
    let said = plane.kubectl(plane.management(), &["exec", "guest", "--", "echo", "hello"], "").unwrap();
    assert_eq!(said, "hello\n");
    // Whoever logs in to the node sees its processes and its name, and not the host's.
    let inside = node.enter("cat").arg("/etc/machine-id").output().unwrap();
    assert_eq!(String::from_utf8(inside.stdout).unwrap().trim(), node.machine_id());

    let folder = node.machine_id_path().parent().unwrap().parent().unwrap().to_owned();
    assert!(!traces_of(&folder).is_empty());
    node.stop().unwrap();
    assert_eq!(traces_of(&folder), Vec::<PathBuf>::new());
    let left: Vec<&u32> =
        processes.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn nothing_of_a_node_is_left_when_the_process_that_held_it_is_killed() {
    let _alone = ALONE.blocking_lock();
    let test = "nothing_of_a_node_is_left_when_the_process_that_held_it_is_killed";
    let example = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join("hold");
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(example);
    command.arg(folder.path().join("plane")).arg("desk").env("TMPDIR", folder.path());
    let mut held =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(held.stdout.take().unwrap()).read_line(&mut said).unwrap();
    if said != "ready\n" {
        let said = std::io::read_to_string(held.stderr.take().unwrap()).unwrap();
        held.wait().unwrap();
        assert!(said.contains("cannot run on this machine"), "{said}");
        return skipped(env!("CARGO_TARGET_TMPDIR"), test, said.trim());
    }
    let node = folder.path().join(format!("5spot-{}-0", held.id()));
    assert!(traces_of(&node).len() > 1, "{:?}", traces());
    let devices = || traces().into_iter().filter(|path| path.starts_with("/sys/class/net")).count();
    let before = devices();
    held.kill().unwrap();
    held.wait().unwrap();
    let began = Instant::now();
    let left = || traces_of(&node).len() + usize::from(node.exists()) + usize::from(devices() >= before);
    while left() > 0 {
        assert!(began.elapsed() < CLEAN_UP, "still there: {:?}", traces());
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("nothing was left {:.1?} after the process was killed", began.elapsed());
}
