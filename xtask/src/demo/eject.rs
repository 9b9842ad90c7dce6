//! The second act: the owner comes back early, starts a program, and the machine is his again.
//!
//! The program is real, and so is the agent that notices it, on the kernel of this very host. It has what kubelet would
//! mount into its pod: a token that is bound to the pod on the Node, and the machine-id of the host, which is played.

use super::{MACHINE, NAMESPACE, Stage, folder, kubeconfig, line, program};
use anyhow::{Context, Result, bail};
use fivespot_api::names::{AGENT, CONTROLLER, SYSTEM_NAMESPACE};
use fivespot_testenv::AuditEntry;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A name that no other program has, short enough for the kernel to keep it whole.
const PROGRAM: &str = "5spot-demo-ide";

/// How long the program would run if nobody ended it: it does no harm, and nobody has to look for it.
const SECONDS: &str = "120";

/// An agent that finds something at its start has asked for the machine by then.
const REST: Duration = Duration::from_secs(1);

pub(super) async fn show(stage: &mut Stage<'_>) -> Result<()> {
    println!(
        "\nit is lent again, day and night, and its owner has named a program: killIfCommands: [{PROGRAM}]\n"
    );
    let change = json!({"spec": {"schedule": {"cron": "* * * * *"}, "killIfCommands": [PROGRAM]}});
    stage
        .machines
        .patch(MACHINE, &PatchParams::default(), &Patch::Merge(change))
        .await
        .context("lend the machine again")?;
    stage.until_phase("Active").await?;
    start_agent(stage, "agent-1").await?;

    let mut owner = Owner::starts(&folder(stage.plane).join(PROGRAM))?;
    line("owner", &format!("starts {PROGRAM}, process {}", owner.child.id()));
    stage.until_phase("Disabled").await?;
    // Its pod went with the Node.
    stage.plane.stop("agent-1")?;
    println!("\nhow fast that was, by the clocks of the agent and of the API server:\n");
    for (what, at, text) in moments(stage, owner.since).await? {
        let after = at.duration_since(owner.since).as_secs_f64().max(0.0);
        println!("  {after:>7.3} s  {what:<18} {text}");
    }

    println!("\nthe owner is done, ends {PROGRAM}, and lends the machine again\n");
    owner.ends()?;
    println!("$ 5spot resume {MACHINE} -n {NAMESPACE}");
    print!("{}", resume(stage).await?);
    println!();
    stage.until_phase("Active").await?;
    start_agent(stage, "agent-2").await?;
    let began = Instant::now();
    stage.until("at rest", async |_| Ok(began.elapsed() > REST)).await?;
    if stage.teller.last.0 != "Active" {
        bail!("the machine was taken back again, and nobody has started {PROGRAM}");
    }
    println!("\nthe machine is lent again, and its agent finds no reason to take it back");
    Ok(())
}

/// The program of the owner. It ends with this value.
struct Owner {
    child: Child,
    /// No later than its exec.
    since: Timestamp,
}

impl Owner {
    /// Starts a copy of `sleep` under the name of the program.
    fn starts(copy: &Path) -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let sleep =
            std::env::split_paths(&path).map(|folder| folder.join("sleep")).find(|file| file.exists());
        std::fs::copy(sleep.context("find `sleep`")?, copy)
            .with_context(|| format!("write {}", copy.display()))?;
        let since = Timestamp::now();
        let child = Command::new(copy).arg(SECONDS).stdin(Stdio::null()).spawn();
        Ok(Self { child: child.with_context(|| format!("start {}", copy.display()))?, since })
    }

    fn ends(&mut self) -> Result<()> {
        self.child.kill().context("end the program")?;
        self.child.wait().context("end the program")?;
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.ends();
    }
}

/// Starts the agent in the place of its pod, which only a kubelet could start, and waits until it looks.
async fn start_agent(stage: &mut Stage<'_>, name: &str) -> Result<()> {
    let node = stage.hosts.node_name(MACHINE);
    stage
        .until("a pod of the agent on the Node", async |stage| Ok(agent_pod(stage, &node).await?.is_some()))
        .await?;
    let pod = agent_pod(stage, &node).await?.context("the pod of the agent is gone")?;
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": pod.name_any(), "uid": pod.uid()});
    let request: TokenRequest =
        serde_json::from_value(json!({"spec": {"audiences": [], "boundObjectRef": bound}}))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(stage.workload.clone(), SYSTEM_NAMESPACE);
    let answer = accounts.create_token_request(AGENT, &PostParams::default(), &request).await;
    let token = answer.context("get a token for the agent")?.status.context("no token for the agent")?.token;
    let machine_id = folder(stage.plane).join("machine-id");
    std::fs::write(&machine_id, stage.hosts.machine_id(MACHINE)).context("write the machine-id")?;
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let args = [
        "--node-name".to_owned(),
        node.clone(),
        "--kubeconfig".to_owned(),
        text(kubeconfig(stage.plane.workload(), name, &token)?),
        "--machine-id-path".to_owned(),
        text(machine_id),
        "--health-port=0".to_owned(),
    ];
    stage.plane.run(name, &program(stage.plane, AGENT), &args)?;
    let log = folder(stage.plane).join("logs").join(format!("{name}.log"));
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    stage
        .until("an agent that looks", async |stage| {
            stage.plane.check_program(name)?;
            Ok(read().contains("armed"))
        })
        .await?;
    let how = if read().contains("polling for processes") {
        "by polling, since this user may not hear of them from the kernel"
    } else {
        "by events of the kernel"
    };
    line("agent", &format!("runs on this host for Node {node} and notices processes {how}"));
    Ok(())
}

/// The pod that the DaemonSet has put on the Node.
async fn agent_pod(stage: &Stage<'_>, node: &str) -> Result<Option<Pod>> {
    let pods: Api<Pod> = Api::namespaced(stage.workload.clone(), SYSTEM_NAMESPACE);
    let on_node = ListParams::default()
        .labels(&format!("app.kubernetes.io/name={AGENT}"))
        .fields(&format!("spec.nodeName={node}"));
    let pods = pods.list(&on_node).await.context("list the pods of the agent")?;
    Ok(pods.items.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none()))
}

/// What happened when. The agent says when it saw the process; everything else is in the audit log.
async fn moments(stage: &Stage<'_>, since: Timestamp) -> Result<Vec<(&'static str, Timestamp, String)>> {
    let machine = stage.machines.get(MACHINE).await.context("read the machine")?;
    let reclaim = machine.status.and_then(|status| status.reclaim).context("nothing was taken back")?;
    let seen: Timestamp =
        reclaim.requested_at.unwrap_or_default().parse().context("read when it was seen")?;
    let mut audit = stage.plane.management().audit()?;
    if !std::ptr::eq(stage.plane.management(), stage.plane.workload()) {
        audit.extend(stage.plane.workload().audit()?);
    }
    audit.retain(|entry| entry.at >= since && entry.code < 300);
    audit.sort_by_key(|entry| entry.at);
    let find = |what: &'static str, holds: &dyn Fn(&AuditEntry) -> bool| {
        let found: Vec<Timestamp> = audit.iter().filter(|entry| holds(entry)).map(|entry| entry.at).collect();
        found.first().copied().zip(found.last().copied()).with_context(|| format!("no request: {what}"))
    };
    let of = |entry: &AuditEntry, who: &str, verb: &str, resource: &str, subresource: &str| {
        entry.user_agent.starts_with(who)
            && (&*entry.verb, &*entry.resource, &*entry.subresource) == (verb, resource, subresource)
    };
    let own = |entry: &AuditEntry| entry.namespace == NAMESPACE && entry.name == MACHINE;
    let annotated = find("annotated", &|it| of(it, AGENT, "patch", "nodes", ""))?.0;
    let status =
        find("accepted", &|it| of(it, CONTROLLER, "patch", "scheduledmachines", "status") && own(it))?;
    let in_namespace = |it: &AuditEntry| it.namespace == NAMESPACE;
    let pods = find("pods gone", &|it| of(it, CONTROLLER, "delete", "pods", "") && in_namespace(it))?.1;
    let deleted = find("Machine deleted", &|it| of(it, CONTROLLER, "delete", "machines", "") && own(it))?.0;
    let disabled = find("disabled", &|it| of(it, CONTROLLER, "patch", "scheduledmachines", "") && own(it))?.0;
    let node = reclaim.node_name.unwrap_or_default();
    Ok(vec![
        ("exec", since, format!("the owner starts {PROGRAM}")),
        ("seen", seen, "the agent notices it".to_owned()),
        ("annotated", annotated, format!("the agent asks for the machine on Node {node}")),
        ("accepted", status.0, "the controller remembers it: from here on it finishes".to_owned()),
        ("pods gone", pods, "the last one is ended, without grace".to_owned()),
        ("Machine deleted", deleted, "Cluster API takes the host out of the cluster".to_owned()),
        ("schedule disabled", disabled, "and a hold, so that no tool lends the machine again".to_owned()),
        ("Disabled", status.1, "nothing of it is left in the cluster".to_owned()),
    ])
}

/// What a person types.
async fn resume(stage: &Stage<'_>) -> Result<String> {
    let (program, kubeconfig) =
        (program(stage.plane, "5spot"), stage.plane.management().kubeconfig_path().to_owned());
    let run = move || {
        Command::new(program)
            .args(["resume", MACHINE, "-n", NAMESPACE])
            .env("KUBECONFIG", kubeconfig)
            .output()
    };
    let output = tokio::task::spawn_blocking(run).await?.context("run 5spot")?;
    if !output.status.success() {
        bail!("5spot resume failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
