//! The real operator on a real control plane, and what a test does with them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests: the line that fails is the message"
)]

pub(crate) mod road;
pub(crate) mod shard;
pub(crate) mod yard;

use fivespot_testenv::{ControlPlane, Options, share};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};

/// How long anything may take that should happen soon.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// How the operator presents itself.
pub(crate) const AGENT: &str = "5spot-fleet-operator/";

/// The cluster of these tests.
pub(crate) const CLUSTER: &str = "kwok-cluster-0";

pub(crate) fn from_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The control plane with `deploy/fleet` installed, for one test at a time: each starts operators of its own, which look
/// after all Nodes.
pub(crate) async fn plane() -> (&'static ControlPlane, MutexGuard<'static, ()>) {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::const_new(());
    static INSTALLED: Once = Once::new();
    let turn = TURN.lock().await;
    let plane = share(&PLANE, &Options::default());
    INSTALLED.call_once(|| {
        let kubectl = |args: &[&str]| plane.kubectl(plane.management(), args, "").unwrap();
        kubectl(&["create", "namespace", "5spot-system"]);
        kubectl(&["apply", "--server-side", "-k", from_root("deploy/fleet").to_str().unwrap()]);
        // The operator of these tests is a process of this machine.
        kubectl(&["-n", "5spot-system", "scale", "deployment", "5spot-fleet-operator", "--replicas=0"]);
        kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]);
    });
    (plane, turn)
}

/// An operator process. It ends with this value, and with the process of the test in any case.
pub(crate) struct Operator {
    wrapper: Child,
    folder: PathBuf,
}

/// Ends the operator when nobody holds the other end of its input any more.
const WRAPPER: &str = r#"folder=$1; shift
"$@" </dev/null 2>>"$folder/log" & echo $! >"$folder/pid.tmp"; mv "$folder/pid.tmp" "$folder/pid"
cat >/dev/null; kill -9 "$!" 2>/dev/null; wait"#;

impl Operator {
    /// Starts it under the ServiceAccount that is shipped with it, and waits until it listens.
    pub(crate) fn start(plane: &ControlPlane, name: &str, shard: &str, args: &[&str]) -> Self {
        Self::launch(plane, name, &service_account_kubeconfig(plane), shard, args)
    }

    /// Starts it on a server that asks nobody who he is.
    pub(crate) fn start_through(
        plane: &ControlPlane,
        name: &str,
        url: &str,
        shard: &str,
        args: &[&str],
    ) -> Self {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": url}}],
            "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        });
        Self::launch(plane, name, &kubeconfig.to_string(), shard, args)
    }

    fn launch(plane: &ControlPlane, name: &str, config: &str, shard: &str, args: &[&str]) -> Self {
        let folder = plane.management().kubeconfig_path().with_file_name(format!("operator-{name}"));
        fs::create_dir_all(&folder).unwrap();
        let _ = fs::remove_file(folder.join("pid"));
        let _ = fs::remove_file(folder.join("log"));
        let kubeconfig = folder.join("kubeconfig");
        fs::write(&kubeconfig, config).unwrap();
        let wrapper = Command::new("sh")
            .args(["-c", WRAPPER, "operator"])
            .arg(&folder)
            .arg(env!("CARGO_BIN_EXE_5spot-fleet-operator"))
            .args(["--metrics-addr=127.0.0.1:0", "--rollup-interval=1s"])
            .args([
                "--cluster-id",
                CLUSTER,
                "--shard-addr",
                shard,
                "--pod-name",
                name,
                "--pod-uid",
                name,
                "--kubeconfig",
            ])
            .arg(&kubeconfig)
            .args(args)
            .env("RUST_LOG", "info,fivespot_fleet=debug")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let operator = Self { wrapper, folder };
        let began = Instant::now();
        while !operator.log().contains("listening") || !operator.folder.join("pid").is_file() {
            assert!(began.elapsed() < PATIENCE, "the operator does not start:\n{}", operator.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        operator
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> i32 {
        fs::read_to_string(self.folder.join("pid")).unwrap().trim().parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Whether the process still runs.
    pub(crate) fn runs(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
        !matches!(state, None | Some('Z' | 'X'))
    }

    /// Resident memory, in KiB, at its highest.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).unwrap_or_default()
    }

    /// What an HTTP path answers: status and text.
    pub(crate) fn http(&self, path: &str) -> (u16, String) {
        use std::io::{Read, Write};
        let log = self.log();
        let port = log.split("port=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
        let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split_whitespace().nth(1).unwrap().parse().unwrap();
        (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        drop(self.wrapper.stdin.take());
        let _ = self.wrapper.wait();
        if std::thread::panicking() {
            eprintln!("--- the operator said:\n{}", self.log());
        }
    }
}

/// A kubeconfig with a token of the operator's own account.
fn service_account_kubeconfig(plane: &ControlPlane) -> String {
    static CONFIG: OnceLock<String> = OnceLock::new();
    let make = || {
        let kubectl = |args: &[&str]| plane.kubectl(plane.management(), args, "").unwrap();
        let token =
            kubectl(&["-n", "5spot-system", "create", "token", "5spot-fleet-operator", "--duration=24h"]);
        let admin = kubectl(&["config", "view", "--raw", "-o", "json"]);
        let mut config: Value = serde_json::from_str(&admin).unwrap();
        config["users"][0]["user"] = json!({"token": token.trim()});
        config.to_string()
    };
    CONFIG.get_or_init(make).clone()
}
