//! What scenarios do and look at beside the harness.

use crate::harness::{OPEN, World, condition};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{AuditEntry, cluster_api, eventually};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How the two programs that may drain begin their names.
pub(crate) const OURS: &str = "5spot-controller/";
pub(crate) const CLUSTER_API: &str = "cluster-api-manager/";

/// The annotation of a Node that we cordoned.
pub(crate) const CORDONED_BY: &str = "5spot.finos.org/cordoned-by";

/// A hook by which somebody else holds the deletion of a Machine.
pub(crate) const HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/test";

impl World {
    /// A machine in its window, with its Node.
    pub(crate) async fn lend(&self, name: &str, change: impl FnOnce(&mut Value)) -> ScheduledMachine {
        self.create(name, OPEN, change).await;
        self.until_phase(name, "Active").await
    }

    /// Machines in the version that the controller speaks.
    pub(crate) fn capi_machines(&self) -> Api<DynamicObject> {
        cluster_api(&self.management, &self.namespace, crate::VERSION, "Machine")
    }

    pub(crate) async fn capi_machine(&self, name: &str) -> DynamicObject {
        self.capi_machines().get(name).await.unwrap()
    }

    /// Identity of the Machine.
    pub(crate) async fn uid(&self, name: &str) -> String {
        self.capi_machine(name).await.metadata.uid.unwrap()
    }

    /// Waits until somebody asked for the deletion of the Machine.
    pub(crate) async fn until_deleting(&self, name: &str) {
        eventually("the Machine is being deleted", async || {
            self.capi_machine(name).await.metadata.deletion_timestamp.is_some()
        })
        .await;
    }

    /// The Machine is the one it was, and nobody has asked it to go.
    pub(crate) async fn is_untouched(&self, name: &str, uid: &str) {
        let machine = self.capi_machine(name).await;
        assert_eq!(machine.metadata.uid.as_deref(), Some(uid));
        assert_eq!(machine.metadata.deletion_timestamp, None);
        assert!(!self.is_cordoned(name).await);
    }

    pub(crate) async fn annotate_machine(&self, name: &str, annotations: Value) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.capi_machines().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn is_cordoned(&self, name: &str) -> bool {
        self.node(name).await.spec.unwrap().unschedulable == Some(true)
    }

    pub(crate) async fn node_annotation(&self, name: &str, annotation: &str) -> Option<String> {
        self.node(name).await.metadata.annotations.unwrap_or_default().get(annotation).cloned()
    }

    /// The taints of a Node that are not Kubernetes' own, as `key=value:effect`.
    pub(crate) async fn taints(&self, name: &str) -> Vec<String> {
        let taints = self.node(name).await.spec.unwrap().taints.unwrap_or_default();
        let text = |taint: &Taint| {
            let value = taint.value.as_deref().filter(|value| !value.is_empty());
            format!("{}{}:{}", taint.key, value.map(|it| format!("={it}")).unwrap_or_default(), taint.effect)
        };
        let others = taints.iter().filter(|taint| !taint.key.starts_with("node.kubernetes.io/"));
        let mut taints: Vec<String> = others.map(text).collect();
        taints.sort();
        taints
    }

    /// A pod whose disruption budget never lets it go.
    pub(crate) async fn held_pod(&self, machine: &str, pod: &str) {
        self.pod(machine, pod, |_| {}).await;
        self.budget(pod, 1).await;
    }

    pub(crate) async fn remove_budget(&self, pod: &str) {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.workload.clone(), &self.namespace);
        budgets.delete(&format!("{pod}-budget"), &DeleteParams::default()).await.unwrap();
    }

    /// Waits until the Ready condition has this reason, for this generation.
    pub(crate) async fn until_reason(&self, name: &str, reason: &str) -> ScheduledMachine {
        let holds = |machine: &ScheduledMachine| {
            let generation = machine.status.as_ref().and_then(|status| status.observed_generation);
            generation == machine.metadata.generation
                && condition(machine, "Ready").is_some_and(|(_, found)| found == reason)
        };
        self.until(name, reason, holds).await
    }

    /// Waits until a drain is held by a budget.
    pub(crate) async fn until_blocked(&self, name: &str) -> ScheduledMachine {
        self.until_reason(name, "DrainBlocked").await
    }

    /// How often each event was sent, with these reasons.
    pub(crate) async fn count_events(&self, name: &str, reason: &str) -> usize {
        let prefix = format!("{reason}: ");
        self.events(name).await.iter().filter(|event| event.starts_with(&prefix)).count()
    }

    /// Requests about the pods of this world in the workload cluster.
    pub(crate) fn pod_requests(&self, pod: &str) -> Vec<AuditEntry> {
        let mut entries = self.plane.workload().audit().unwrap();
        entries.retain(|it| it.resource == "pods" && it.namespace == self.namespace && it.name == pod);
        entries
    }

    /// Answers to evictions of a pod by a program.
    pub(crate) fn evictions(&self, pod: &str, program: &str) -> Vec<u16> {
        let requests = self.pod_requests(pod);
        let by = |it: &&AuditEntry| it.subresource == "eviction" && it.user_agent.starts_with(program);
        requests.iter().filter(by).map(|it| it.code).collect()
    }

    /// Plain deletions of a pod by a program.
    pub(crate) fn pod_deletions(&self, pod: &str, program: &str) -> usize {
        let requests = self.pod_requests(pod);
        let by = |it: &&AuditEntry| it.verb == "delete" && it.user_agent.starts_with(program);
        requests.iter().filter(by).count()
    }

    /// Runs kubectl on the management cluster, in this namespace, without holding up other scenarios.
    pub(crate) async fn kubectl(&self, args: &[&str], input: &str) -> Result<String, String> {
        let mut all = vec!["-n".to_owned(), self.namespace.clone()];
        all.extend(args.iter().map(|&arg| arg.to_owned()));
        let (plane, input) = (self.plane, input.to_owned());
        let run = move || {
            let args: Vec<&str> = all.iter().map(String::as_str).collect();
            plane.kubectl(plane.management(), &args, &input).map_err(|error| error.to_string())
        };
        tokio::task::spawn_blocking(run).await.unwrap()
    }

    /// Waits until the ScheduledMachine itself is gone and has left nothing.
    pub(crate) async fn until_all_gone(&self, name: &str) {
        self.until_gone(&self.machines(), name).await;
        self.nothing_is_left(name).await;
    }
}

/// What kstatus and everything that is built on it relies on, for every version of an object.
pub(crate) fn can_be_waited_for(machine: &ScheduledMachine) {
    let status = machine.status.clone().unwrap();
    let phase = status.phase.clone().unwrap();
    let is_under_way = ["Pending", "ShuttingDown", "EmergencyRemove"].contains(&phase.as_str());
    let is_error = phase == "Error";
    let shown = |kind: &str| condition(machine, kind).map(|(status, _)| status);
    let expected = |is_there: bool| is_there.then(|| "True".to_owned());
    assert_eq!(shown("Reconciling"), expected(is_under_way), "{phase}: {status:?}");
    assert_eq!(shown("Stalled"), expected(is_error), "{phase}: {status:?}");
    let ready = if is_under_way || is_error { "False" } else { "True" };
    assert_eq!(shown("Ready").as_deref(), Some(ready), "{phase}: {status:?}");
    for condition in &status.conditions {
        // Of a workload cluster that nobody looks at any more, the last word stands.
        if condition.type_ != "WorkloadReachable" {
            assert_eq!(condition.observed_generation, status.observed_generation, "{condition:?}");
        }
    }
}

/// Every version of a ScheduledMachine from now on, as its watchers see it.
pub(crate) struct History {
    seen: Arc<Mutex<Vec<ScheduledMachine>>>,
    task: JoinHandle<()>,
}

impl History {
    pub(crate) async fn of(world: &World, name: &str) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let version = world.machines().get(name).await.unwrap().metadata.resource_version.unwrap();
        let (api, name, mine) = (world.machines(), name.to_owned(), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            let params = WatchParams::default().fields(&format!("metadata.name={name}"));
            let changes = api.watch(&params, &version).await.unwrap();
            let mut changes = pin!(changes.into_stream());
            while let Some(Ok(change)) = changes.next().await {
                if let WatchEvent::Added(machine) | WatchEvent::Modified(machine) = change {
                    mine.lock().unwrap_or_else(PoisonError::into_inner).push(machine);
                }
            }
        });
        Self { seen, task }
    }

    /// The versions in a phase that came so far, after a moment in which the last arrive.
    pub(crate) async fn in_phase(&self, phase: &str) -> Vec<ScheduledMachine> {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_in = |it: &ScheduledMachine| {
            it.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
        };
        seen.into_iter().filter(is_in).collect()
    }

    /// All versions that came so far.
    pub(crate) fn all(&self) -> Vec<ScheduledMachine> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.task.abort();
    }
}
