//! What a newcomer sees first, on a real control plane with the real Cluster API. Only the host itself is played.
//!
//! Two acts: a machine that joins, takes a pod and leaves by the clock; and one whose owner comes back early ([`eject`]).

mod eject;

use crate::root;
use anyhow::{Context, Result, bail};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{
    Behaviour, Cluster, ControlPlane, Core, Hosts, SSH_KEY, build_programs, create_cluster, create_ssh_key,
    write_private,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is built for it, and can be called in it.
const PROGRAMS: [&str; 3] = ["5spot", "5spot-controller", "5spot-reclaim-agent"];
/// Where the demo happens.
const NAMESPACE: &str = "demo";
/// The machine that comes and goes.
const MACHINE: &str = "workstation-1";
/// The cluster it joins.
const CLUSTER: &str = "lab";
/// How often the world is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The first act takes a minute and a half, the second less.
const PATIENCE: Duration = Duration::from_mins(4);

/// Builds the programs and applies everything to the management cluster, saying what it does.
pub(crate) fn install(plane: &ControlPlane) -> Result<()> {
    println!("building {}", PROGRAMS.join(", "));
    let programs = build_programs(&root(), &PROGRAMS)?;
    let folder = folder(plane);
    for name in PROGRAMS {
        let (program, link) = (programs.join(name), folder.join("bin").join(name));
        symlink(program, link).with_context(|| format!("link {name}"))?;
    }

    println!("installing 5-Spot (deploy/)");
    let kubectl = |args: &[&str]| plane.kubectl(plane.management(), args, "");
    let path = |path: &str| root().join(path).to_string_lossy().into_owned();
    kubectl(&["apply", "--server-side", "-k", &path("deploy")])?;
    // There is no kubelet here that could run it: the controller is a process of this machine.
    kubectl(&["-n", "5spot-system", "scale", "deployment", "5spot-controller", "--replicas=0"])?;
    kubectl(&["apply", "-k", &path("deploy/workload")])?;
    plane.kubectl(plane.workload(), &["apply", "--server-side", "-k", &path("deploy/node-agent")], "")?;
    plane.until_established(plane.management())?;
    kubectl(&["create", "namespace", NAMESPACE])?;
    for namespace in ["default", NAMESPACE] {
        kubectl(&["apply", "-n", namespace, "-k", &path("deploy/tenant")])?;
    }

    println!("starting the controller");
    let token = kubectl(&["-n", "5spot-system", "create", "token", "5spot-controller", "--duration=24h"])?;
    let kubeconfig = kubeconfig(plane.management(), "controller", token.trim())?;
    let args = [
        "--kubeconfig".to_owned(),
        kubeconfig.to_string_lossy().into_owned(),
        "--listen-address=127.0.0.1".to_owned(),
        "--health-port=0".to_owned(),
        "--metrics-port=0".to_owned(),
    ];
    plane.run("controller", &program(plane, "5spot-controller"), &args)?;

    println!("applying examples/");
    print!("{}", kubectl(&["apply", "-f", &path("examples")])?);
    Ok(())
}

/// Writes the kubeconfig of somebody who has nothing but a token, beside that of the administrator.
fn kubeconfig(cluster: &Cluster, name: &str, token: &str) -> Result<PathBuf> {
    let admin = std::fs::read_to_string(cluster.kubeconfig_path()).context("read the kubeconfig")?;
    let mut config: Value = serde_saphyr::from_str(&admin).context("read the kubeconfig")?;
    config["users"][0]["user"] = json!({"token": token});
    let file = cluster.kubeconfig_path().with_file_name(format!("{name}.kubeconfig"));
    write_private(&file, &config.to_string()).with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

fn folder(plane: &ControlPlane) -> PathBuf {
    plane.management().kubeconfig_path().with_file_name("")
}

/// A program of ours.
fn program(plane: &ControlPlane, name: &str) -> PathBuf {
    folder(plane).join("bin").join(name)
}

/// Lends a machine for a minute and tells what happens to it; then its owner comes back early.
pub(crate) async fn show(plane: &ControlPlane) -> Result<()> {
    let management = plane.management().client().await?;
    let workload = plane.workload().client().await?;
    create_cluster(plane, NAMESPACE, CLUSTER).await?;
    create_ssh_key(plane, NAMESPACE).await?;
    let hosts = Hosts::start(plane, NAMESPACE, Core::Real, Behaviour::default()).await?;
    put_up_pod(plane).await?;
    let machines: Api<ScheduledMachine> = Api::namespaced(management.clone(), NAMESPACE);
    let teller = Teller::new(management, workload.clone());
    let mut stage = Stage { plane, hosts, machines, workload, teller };

    let window = Window::soon(Timestamp::now());
    println!("\n{MACHINE} is lent for one minute, {} to {}", clock(window.opens), clock(window.closes));
    println!("other terminal: 5spot get -n {NAMESPACE} --watch    5spot explain -n {NAMESPACE} {MACHINE}\n");
    let machine: ScheduledMachine = serde_json::from_value(scheduled_machine(&window))?;
    stage.machines.create(&PostParams::default(), &machine).await.context("create the machine")?;
    stage.until_phase("Active").await?;
    stage.until_phase("Inactive").await?;
    println!("\nthe machine is back with its owner");

    eject::show(&mut stage).await?;
    println!("\nthe cluster stays until Ctrl-C");
    // The hosts stay with it, for whoever changes the schedule.
    std::future::pending().await
}

/// Everything an act is played with.
struct Stage<'a> {
    plane: &'a ControlPlane,
    hosts: Hosts,
    machines: Api<ScheduledMachine>,
    workload: Client,
    teller: Teller,
}

impl Stage<'_> {
    /// Tells of everything until the machine is in a phase.
    async fn until_phase(&mut self, phase: &str) -> Result<()> {
        self.until(phase, async |stage| Ok(stage.teller.last.0 == phase)).await
    }

    /// Tells of everything until something holds.
    async fn until(&mut self, what: &str, mut holds: impl AsyncFnMut(&Self) -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        loop {
            self.plane.check_program("controller")?;
            self.teller.look().await?;
            if holds(self).await? {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                let logs = folder(self.plane).join("logs");
                bail!("still not {what}; see the logs in {}", logs.display());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
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

fn scheduled_machine(window: &Window) -> Value {
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
                "spec": {
                    "address": "192.0.2.17",
                    "user": "k0s",
                    "useSudo": true,
                    "sshKeyRef": {"name": SSH_KEY},
                },
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
    /// Phase and message.
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

    async fn look(&mut self) -> Result<()> {
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
        Ok(())
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
