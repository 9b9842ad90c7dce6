//! The pods of reclaim agents in a workload cluster: one small watch, begun when a machine there wants an agent.

use crate::cache::{Cache, Item, Key, Source};
use crate::parts::{MetaOnly, key_of};
use crate::supervisor::Supervisor;
use fivespot_api::names;
use fivespot_core::observed::{AgentPod, AgentPodState, AgentSight};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long the first list is awaited, and how long it takes until a watch that has ended begins anew.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// How long a watch may be broken before what it has is not believed any more.
const STALE: Duration = Duration::from_secs(30);

/// What is kept of a pod.
#[derive(Debug, PartialEq)]
struct AgentPodItem {
    /// The Node that it is on; empty before it is scheduled.
    node: String,
    /// `None` for one that is being deleted: nobody may count on it.
    state: Option<AgentPodState>,
}

impl Item for AgentPodItem {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let MetaOnly { metadata } = serde_json::from_str(raw.get())?;
        let pod: Pod = serde_json::from_str(raw.get())?;
        let is_going = metadata.deletion_timestamp.is_some();
        let state = (!is_going).then(|| state(&pod));
        let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
        Ok((key_of(&metadata), Self { node, state }))
    }

    fn weight(&self) -> usize {
        let state = match &self.state {
            Some(AgentPodState::Waiting(why)) => why.len(),
            Some(AgentPodState::Running | AgentPodState::Ready) | None => 0,
        };
        size_of::<Self>() + self.node.len() + state
    }
}

fn state(pod: &Pod) -> AgentPodState {
    let Some(status) = &pod.status else { return AgentPodState::Waiting("Pending".to_owned()) };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True") {
        return AgentPodState::Ready;
    }
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let state_of = |container: &ContainerStatus| container.state.clone().unwrap_or_default();
    let why_not = |state: ContainerState| {
        let waiting = state.waiting.and_then(|waiting| waiting.reason);
        waiting.or(state.terminated.and_then(|terminated| terminated.reason))
    };
    if !containers.is_empty() && containers.iter().all(|it| state_of(it).running.is_some()) {
        return AgentPodState::Running;
    }
    let why = containers.iter().find_map(|container| why_not(state_of(container)));
    let phase = || status.phase.clone().unwrap_or("Pending".to_owned());
    AgentPodState::Waiting(why.unwrap_or_else(phase))
}

/// Path of the pods in our namespace.
pub(crate) fn agent_pods_path() -> String {
    format!("/api/v1/namespaces/{}/pods", names::SYSTEM_NAMESPACE)
}

/// The watch.
pub(crate) struct AgentPods {
    source: Source,
    cache: Cache<AgentPodItem>,
    changed: Arc<dyn Fn(&str) + Send + Sync>,
    supervisor: Arc<Supervisor>,
    task: OnceLock<JoinHandle<()>>,
}

async fn follow_pods(source: Source, cache: Cache<AgentPodItem>, changed: Arc<dyn Fn(&str) + Send + Sync>) {
    // A pod that is gone does not say where it was.
    let places: Mutex<HashMap<Key, String>> = Mutex::default();
    let hear = |key: &Key| {
        let now = cache.get(key).map(|pod| pod.node.clone());
        let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match &now {
            Some(node) => places.insert(key.clone(), node.clone()),
            None => places.remove(key),
        };
        drop(places);
        if let Some(node) = now.or(before) {
            changed(&node);
        }
    };
    loop {
        cache.follow(source.clone(), hear).await;
        tokio::time::sleep(FIRST_LIST).await;
    }
}

impl AgentPods {
    /// A watch that has not begun. `changed` hears the name of each Node on which something has changed.
    pub(crate) fn new(
        pods: Source,
        what: &str,
        changed: Arc<dyn Fn(&str) + Send + Sync>,
        supervisor: Arc<Supervisor>,
    ) -> Self {
        let labels = Some(format!("{}={}", names::APP_NAME_LABEL, names::AGENT));
        let source = Source { labels, ..pods };
        let cache = Cache::new(format!("pods of reclaim agents on {what}"));
        Self { source, cache, changed, supervisor, task: OnceLock::new() }
    }

    fn start(&self) {
        self.task.get_or_init(|| {
            let (source, cache, changed) =
                (self.source.clone(), self.cache.clone(), Arc::clone(&self.changed));
            self.supervisor.keep("agent_pods", cache.what().to_owned(), move || {
                follow_pods(source.clone(), cache.clone(), Arc::clone(&changed))
            })
        });
    }

    /// The agent's pod on a Node: the best of those that stay.
    pub(crate) async fn on(&self, node: &str) -> AgentSight {
        self.start();
        let _ = tokio::time::timeout(FIRST_LIST, self.cache.tried()).await;
        let health = self.cache.health();
        let failure = health.failure.filter(|failure| !health.synced || failure.since.elapsed() > STALE);
        if let Some(failure) = failure {
            return AgentSight::NotVisible(failure.message);
        }
        if !health.synced {
            return AgentSight::NotVisible("they were not listed in time".to_owned());
        }
        let pods = self.cache.all().into_iter().filter(|(_, pod)| pod.node == node);
        let best = pods.filter_map(|(key, pod)| Some((pod.state.clone()?, key.name))).max();
        AgentSight::Seen(best.map(|(state, name)| AgentPod { name, state }))
    }
}

impl Drop for AgentPods {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(status: &Value) -> Option<AgentPodState> {
        let pod = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {"nodeName": "n", "containers": []},
                         "status": status});
        let raw = serde_json::value::to_raw_value(&pod).unwrap();
        AgentPodItem::read(&raw).unwrap().1.state
    }

    #[test]
    fn a_pod_is_ready_or_runs_or_says_why_it_does_not() {
        let container = |state: Value| json!([{"name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
        let waiting = |why: &str| Some(AgentPodState::Waiting(why.to_owned()));
        let ready = json!([{"type": "Ready", "status": "True"}]);
        assert_eq!(read(&json!({})), waiting("Pending"));
        assert_eq!(read(&json!({"phase": "Running", "conditions": ready})), Some(AgentPodState::Ready));
        let runs = json!({"phase": "Running", "containerStatuses": container(json!({"running": {}}))});
        assert_eq!(read(&runs), Some(AgentPodState::Running));
        let crash = container(json!({"waiting": {"reason": "CrashLoopBackOff"}}));
        assert_eq!(
            read(&json!({"phase": "Running", "containerStatuses": crash})),
            waiting("CrashLoopBackOff")
        );
        // A kubelet that fell silent: the Node's controller takes the readiness away and nothing else.
        let silent = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]});
        assert_eq!(read(&silent), waiting("Running"));
    }

    #[test]
    fn a_pod_that_is_being_deleted_does_not_count() {
        let pod = json!({"metadata": {"name": "a", "namespace": "b", "deletionTimestamp": "2026-03-02T10:00:00Z"},
                         "spec": {"nodeName": "n", "containers": []},
                         "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let raw = serde_json::value::to_raw_value(&pod).unwrap();
        let (_, item) = AgentPodItem::read(&raw).unwrap();
        assert_eq!((item.node.as_str(), item.state), ("n", None));
    }
}
