//! What a newcomer sees first: a machine that joins, takes a pod and leaves by the clock, on a real control plane with
//! the real Cluster API. Only the host itself is played.

use crate::root;
use anyhow::{Context, Result, bail};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{Behaviour, ControlPlane, Core, Hosts, create_cluster};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Where the demo happens.
const NAMESPACE: &str = "demo";
/// The machine that comes and goes.
const MACHINE: &str = "workstation-1";
/// The cluster it joins.
const CLUSTER: &str = "lab";
/// How often the world is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A whole life takes a minute and a half.
const PATIENCE: Duration = Duration::from_mins(4);

/// Builds the programs and applies everything to the management cluster, saying what it does.
pub(crate) fn install(plane: &ControlPlane) -> Result<()> {
    println!("building 5spot and 5spot-controller");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let built = Command::new(cargo)
        .args([
            "build",
            "--locked",
            "--quiet",
            "--package",
            "fivespot-cli",
            "--package",
            "fivespot-controller",
        ])
        .current_dir(root())
        .status()
        .context("run cargo")?;
    if !built.success() {
        bail!("the programs could not be built");
    }
    let folder = folder(plane);
    for name in ["5spot", "5spot-controller"] {
        symlink(program(name)?, folder.join("bin").join(name)).with_context(|| format!("link {name}"))?;
    }

    println!("installing 5-Spot (deploy/)");
    let kubectl = |args: &[&str]| plane.kubectl(plane.management(), args, "");
    let path = |path: &str| root().join(path).to_string_lossy().into_owned();
    kubectl(&["apply", "--server-side", "-k", &path("deploy")])?;
    // There is no kubelet here that could run it: the controller is a process of this machine.
    kubectl(&["-n", "5spot-system", "scale", "deployment", "5spot-controller", "--replicas=0"])?;
    kubectl(&["apply", "-k", &path("deploy/workload")])?;
    kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"])?;
    kubectl(&["create", "namespace", NAMESPACE])?;
    for namespace in ["default", NAMESPACE] {
        kubectl(&["apply", "-n", namespace, "-k", &path("deploy/tenant")])?;
    }

    println!("starting the controller");
    let token = kubectl(&["-n", "5spot-system", "create", "token", "5spot-controller", "--duration=24h"])?;
    let mut config: serde_json::Value =
        serde_json::from_str(&kubectl(&["config", "view", "--raw", "-o", "json"])?)?;
    config["users"][0]["user"] = json!({"token": token.trim()});
    let kubeconfig = folder.join("controller.kubeconfig");
    std::fs::write(&kubeconfig, config.to_string()).context("write the controller's kubeconfig")?;
    let args = [
        "--kubeconfig".to_owned(),
        kubeconfig.to_string_lossy().into_owned(),
        "--listen-address=127.0.0.1".to_owned(),
        "--health-port=0".to_owned(),
        "--metrics-port=0".to_owned(),
    ];
    plane.run("controller", &program("5spot-controller")?, &args)?;

    println!("applying examples/");
    print!("{}", kubectl(&["apply", "-f", &path("examples")])?);
    Ok(())
}

fn folder(plane: &ControlPlane) -> PathBuf {
    plane.management().kubeconfig_path().with_file_name("")
}

/// A program of ours, which stands beside this one.
fn program(name: &str) -> Result<PathBuf> {
    Ok(std::env::current_exe().context("find this program")?.with_file_name(name))
}

/// Lends a machine for a minute and tells what happens to it.
pub(crate) async fn show(plane: &ControlPlane) -> Result<()> {
    let management = plane.management().client().await?;
    create_cluster(plane, NAMESPACE, CLUSTER).await?;
    let _hosts = Hosts::start(plane, NAMESPACE, Core::Real, Behaviour::default()).await?;
    put_up_pod(plane).await?;

    let window = Window::soon(Timestamp::now());
    println!("\n{MACHINE} is lent for one minute, {} to {}", clock(window.opens), clock(window.closes));
    println!("other terminal: 5spot get -n {NAMESPACE} --watch    5spot explain -n {NAMESPACE} {MACHINE}\n");
    let machines: Api<ScheduledMachine> = Api::namespaced(management.clone(), NAMESPACE);
    let machine: ScheduledMachine = serde_json::from_value(scheduled_machine(&window))?;
    machines.create(&kube::api::PostParams::default(), &machine).await.context("create the machine")?;

    let mut teller = Teller::new(management, plane.workload().client().await?);
    let began = Instant::now();
    let mut was_active = false;
    loop {
        plane.check_program("controller")?;
        let phase = teller.look().await?;
        was_active |= phase == "Active";
        if was_active && phase == "Inactive" {
            break;
        }
        if began.elapsed() > PATIENCE {
            bail!("the machine has not come back; see the logs in {}", folder(plane).join("logs").display());
        }
        tokio::time::sleep(LOOK).await;
    }
    println!("\nthe machine is back with its owner; the cluster stays until Ctrl-C");
    // The hosts stay with it, for whoever opens the window again.
    std::future::pending().await
}

/// One minute, as cron says it.
struct Window {
    opens: Timestamp,
    closes: Timestamp,
    cron: String,
}

impl Window {
    /// This minute if enough of it is left to see something, else the next.
    fn soon(now: Timestamp) -> Self {
        let minute = Timestamp::from_second(now.as_second() / 60 * 60).unwrap_or(now);
        let opens = if now.as_second() % 60 <= 30 { minute } else { minute + SignedDuration::from_mins(1) };
        let utc = opens.to_zoned(jiff::tz::TimeZone::UTC);
        let cron = format!("{} {} * * *", utc.minute(), utc.hour());
        Self { opens, closes: opens + SignedDuration::from_mins(1), cron }
    }
}

fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%S UTC").to_string()
}

fn scheduled_machine(window: &Window) -> serde_json::Value {
    json!({
        "apiVersion": "5spot.finos.org/v1alpha1",
        "kind": "ScheduledMachine",
        "metadata": {"name": MACHINE, "namespace": NAMESPACE},
        "spec": {
            "schedule": {"cron": window.cron},
            "clusterName": CLUSTER,
            "nodeTaints": [{"key": "lent", "value": "by-the-clock", "effect": "PreferNoSchedule"}],
            "bootstrapSpec": {
                "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
                "kind": "K0sWorkerConfig",
                "spec": {"version": "v1.34.1+k0s.0"},
            },
            "infrastructureSpec": {
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
                "kind": "RemoteMachine",
                "spec": {"address": "192.0.2.17", "user": "k0s", "useSudo": true},
            },
        },
    })
}

/// Something that wants to run wherever there is room.
async fn put_up_pod(plane: &ControlPlane) -> Result<()> {
    let client = plane.workload().client().await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "render", "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "render"}},
            "template": {
                "metadata": {"labels": {"app": "render"}},
                "spec": {"containers": [{"name": "render", "image": "render"}]},
            },
        },
    });
    let apply = PatchParams::apply("demo");
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    namespaces.patch(NAMESPACE, &apply, &Patch::Apply(&namespace)).await.context("create a namespace")?;
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> = Api::namespaced(client, NAMESPACE);
    deployments.patch("render", &apply, &Patch::Apply(&deployment)).await.context("create a deployment")?;
    Ok(())
}

/// Tells of everything that is new.
struct Teller {
    machines: Api<ScheduledMachine>,
    events: Api<Event>,
    pods: Api<Pod>,
    told: BTreeSet<String>,
    last: (String, String),
}

impl Teller {
    fn new(management: Client, workload: Client) -> Self {
        Self {
            machines: Api::namespaced(management.clone(), NAMESPACE),
            events: Api::namespaced(management, NAMESPACE),
            pods: Api::namespaced(workload, NAMESPACE),
            told: BTreeSet::new(),
            last: <(String, String)>::default(),
        }
    }

    /// One look; returns the phase.
    async fn look(&mut self) -> Result<String> {
        let ours = ListParams::default()
            .fields(&format!("involvedObject.kind=ScheduledMachine,involvedObject.name={MACHINE}"));
        let mut events = self.events.list(&ours).await.context("list events")?.items;
        events.sort_by_key(|event| event.event_time.clone());
        for event in events {
            let text = event.message.clone().unwrap_or_default();
            let reason = event.reason.clone().unwrap_or_default();
            self.tell_once(&event.name_any(), "event", &format!("{reason}: {text}"));
        }
        for pod in self.pods.list(&ListParams::default()).await.context("list pods")?.items {
            let on = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            let name = pod.name_any();
            let what = match (pod.metadata.deletion_timestamp.is_some(), on.as_str()) {
                (true, _) => format!("{name} is ending"),
                (false, "") => format!("{name} waits for a Node"),
                (false, on) => format!("{name} is {phase} on Node {on}"),
            };
            self.tell_once(&what.clone(), "pod", &what);
        }
        let machine = self.machines.get(MACHINE).await.context("read the machine")?;
        let status = machine.status.unwrap_or_default();
        let now = (status.phase.unwrap_or_default(), status.message.unwrap_or_default());
        if now != self.last && !now.0.is_empty() {
            line(&now.0, &now.1);
        }
        self.last = now;
        Ok(self.last.0.clone())
    }

    fn tell_once(&mut self, id: &str, what: &str, text: &str) {
        if self.told.insert(id.to_owned()) {
            line(what, text);
        }
    }
}

fn line(what: &str, text: &str) {
    println!("{}  {what:<16} {text}", Timestamp::now().strftime("%H:%M:%S%.3f"));
}
