//! The real operator on a real control plane, and what a test does with them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests: the line that fails is the message"
)]

pub(crate) mod front;
pub(crate) mod road;
pub(crate) mod shard;
pub(crate) mod yard;

use fivespot_testenv::{
    AuditEntry, ControlPlane, Daemon, Options, anonymous_kubeconfig, eventually, share, write_private,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// How long anything may take that should happen soon.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// How the operator presents itself.
const AGENT: &str = "5spot-fleet-operator/";

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
        plane.until_established(plane.management()).unwrap();
    });
    (plane, turn)
}

/// Requests of operators since then.
pub(crate) fn requests(plane: &ControlPlane, since: Timestamp) -> Vec<AuditEntry> {
    let ours = |entry: &AuditEntry| entry.user_agent.starts_with(AGENT) && entry.at >= since;
    plane.management().audit().unwrap().into_iter().filter(ours).collect()
}

/// An operator process.
pub(crate) struct Operator(Daemon);

impl Deref for Operator {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.0
    }
}

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
        Self::launch(plane, name, &anonymous_kubeconfig(url), shard, args)
    }

    fn launch(plane: &ControlPlane, name: &str, config: &str, shard: &str, args: &[&str]) -> Self {
        let folder = plane.management().kubeconfig_path().with_file_name(format!("operator-{name}"));
        fs::create_dir_all(&folder).unwrap();
        let kubeconfig = folder.join("kubeconfig");
        write_private(&kubeconfig, config).unwrap();
        Self(Daemon::start(&folder, |command| {
            command
                .arg(env!("CARGO_BIN_EXE_5spot-fleet-operator"))
                .args(["--metrics-addr=127.0.0.1:0", "--cluster-id", CLUSTER, "--shard-addr", shard])
                .args(["--pod-name", name, "--pod-uid", name, "--kubeconfig"])
                .arg(&kubeconfig)
                .args(args);
            if !args.iter().any(|arg| arg.starts_with("--rollup-interval")) {
                command.arg("--rollup-interval=1s");
            }
            command.env("RUST_LOG", "info,fivespot_fleet=debug");
        }))
    }

    /// What an HTTP path answers: status and text.
    pub(crate) fn http(&self, path: &str) -> (u16, String) {
        self.0.http("port", path)
    }
}

/// The operator's right to something, taken away until it is given back.
pub(crate) struct Forbidden<'a> {
    plane: &'a ControlPlane,
    whole: Value,
}

impl<'a> Forbidden<'a> {
    /// Takes the rules away that name this resource.
    pub(crate) async fn take(plane: &'a ControlPlane, resource: &str) -> Self {
        let get = ["get", "clusterrole", AGENT.trim_end_matches('/'), "-o", "json"];
        let whole = plane.kubectl(plane.management(), &get, "").unwrap();
        let mut whole: Value = serde_json::from_str(&whole).unwrap();
        whole["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let forbidden = Self { plane, whole: whole.clone() };
        let named = |rule: &Value| rule["resources"].as_array().unwrap().contains(&json!(resource));
        whole["rules"].as_array_mut().unwrap().retain(|rule| !named(rule));
        assert_ne!(whole, forbidden.whole, "there is no such rule");
        forbidden.write(&whole);
        // The server takes a moment to take note of it. kubectl ends with an error when the answer is no.
        let account = "--as=system:serviceaccount:5spot-system:5spot-fleet-operator";
        let group = if resource == "nodes" { "" } else { ".bigfleet.lucy.sh" };
        let (kind, sub) = resource.split_once('/').unwrap_or((resource, ""));
        let (kind, sub) = (format!("{kind}{group}"), format!("--subresource={sub}"));
        let can = ["auth", "can-i", "patch", &kind, &sub, "-A", account];
        let can_list = ["auth", "can-i", "list", &kind, &sub, "-A", account];
        eventually("the server has taken note of it", async || {
            [can, can_list].iter().all(|can| plane.kubectl(plane.management(), can, "").is_err())
        })
        .await;
        forbidden
    }

    fn write(&self, role: &Value) {
        self.plane.kubectl(self.plane.management(), &["replace", "-f", "-"], &role.to_string()).unwrap();
    }
}

impl Drop for Forbidden<'_> {
    fn drop(&mut self) {
        self.write(&self.whole);
    }
}

/// A kubeconfig with a token of the operator's own account.
fn service_account_kubeconfig(plane: &ControlPlane) -> String {
    static CONFIG: OnceLock<String> = OnceLock::new();
    CONFIG.get_or_init(|| plane.account_kubeconfig("5spot-fleet-operator").unwrap()).clone()
}
