//! The commands for a live cluster, on a real API server. Whole lives are told by the tests of the controller.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

mod fleet;
mod hostile;
mod looked;
mod owner;
mod stuck;
mod taken_back;

use expect_test::Expect;
use fivespot_testenv::{ClusterApi, ControlPlane, Options, SSH_KEY};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn from_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A control plane that knows our kind and Cluster API's.
async fn start() -> ControlPlane {
    let cluster_api = ClusterApi::Definitions;
    let plane = ControlPlane::start(Options { cluster_api, ..Options::default() }).await.unwrap();
    let kubectl = |args: &[&str]| plane.kubectl(plane.management(), args, "").unwrap();
    kubectl(&["apply", "--server-side", "-f", from_root("deploy/crds").to_str().unwrap()]);
    plane.until_established(plane.management()).unwrap();
    plane
}

fn run(plane: &ControlPlane, args: &[&str]) -> Output {
    run_with(plane.management().kubeconfig_path(), args)
}

/// Runs it as the user of a kubeconfig.
fn run_with(kubeconfig: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_5spot")).args(args).env("KUBECONFIG", kubeconfig).output().unwrap()
}

/// Exit code and what was printed, with everything that depends on the moment taken out.
fn check(plane: &ControlPlane, args: &[&str], expect: &Expect) {
    compare(&run(plane, args), expect);
}

/// The same of a command that was run.
fn compare(output: &Output, expect: &Expect) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let printed =
        format!("{}{}exit {}\n", text(&output.stdout), text(&output.stderr), output.status.code().unwrap());
    expect.assert_eq(&timeless(&printed));
}

/// Spans of time, instants and what is made of them, replaced by a word; blanks that line columns up, by one.
fn timeless(text: &str) -> String {
    let is_span = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.ends_with(['d', 'h', 'm', 's'])
            && word.chars().all(|c| c.is_ascii_digit() || "dhms".contains(c))
    };
    let word = |word: &str| {
        let bare = word.trim_matches(['(', ')', ',', ';', ':']);
        let bare = bare.rsplit('=').next().unwrap_or_default();
        let is_instant = bare.len() > 4 && bare.ends_with('Z') && bare.contains('T');
        let is_id = bare.len() > 16 && bare.as_bytes()[8] == b'T' && bare.contains("Z-");
        let is_seconds = bare.contains('.') && bare.parse::<f64>().is_ok();
        let is_time = is_span(bare) || is_instant || is_seconds;
        match (is_time, is_id) {
            (true, _) => word.replace(bare, "TIME"),
            (false, true) => word.replace(bare, "ID"),
            (false, false) => word.to_owned(),
        }
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

fn machine(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut machine = json!({
        "apiVersion": "5spot.finos.org/v1alpha1",
        "kind": "ScheduledMachine",
        "metadata": {"name": name},
        "spec": {
            "schedule": {"cron": "59 23 29 2 *", "timezone": "Europe/Zurich"},
            "clusterName": "lab",
            "bootstrapSpec": {
                "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
                "kind": "K0sWorkerConfig",
                "spec": {"version": "v1.34.1+k0s.0"},
            },
            "infrastructureSpec": {
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
                "kind": "RemoteMachine",
                "spec": {"address": format!("{name}.example"), "sshKeyRef": {"name": SSH_KEY}},
            },
        },
    });
    change(&mut machine["spec"]);
    machine
}
