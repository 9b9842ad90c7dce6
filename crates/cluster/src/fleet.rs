//! What the fleet operator asks of an API server, and writes to it.
//!
//! One function for each request. Every write to an object that others write too names what it was decided on.

use crate::cache::{Item, Key, Source, list_all};
use crate::drain::{read_answer, request};
use crate::error::{CALL, Error, call, describe};
use crate::node::PodItem;
use crate::parts::{MetaOnly, key_of};
use fivespot_api::fleet::{AvailableCapacitySpec, UpcomingNode, UpcomingNodeSpec};
use fivespot_api::names::{
    FLEET, FLEET_DRAIN, FLEET_DRAIN_SKIP, FLEET_DRAIN_WAIT, FLEET_PROGRESS, FLEET_RECLAIM,
};
use fivespot_core::drain::{Outcome, Pod, PodId};
use fivespot_core::text::printable;
use http::Method;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, Error as KubeError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

pub use crate::drain::Way;

/// Bytes of a note that the server accepts.
const NOTE_BYTES: usize = 1024;

/// Namespace of events about what has none.
const EVENTS: &str = "default";

/// How long a server that is busy is left alone if it does not say.
const BUSY: Duration = Duration::from_secs(1);

const NODES: &str = "/api/v1/nodes";
const GROUP: &str = "/apis/bigfleet.lucy.sh/v1alpha1";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";

/// The API server of a cluster that belongs to a fleet.
#[derive(Clone)]
pub struct Fleet {
    client: Client,
    instance: String,
}

/// A Node as the server has it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNow {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// Its version.
    pub version: String,
    /// Whether pods are kept away from it.
    pub unschedulable: bool,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// A pod of a Node that is being emptied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// The pod, as a drain looks at it.
    pub pod: Pod,
    /// Its priority; 0 if it has none.
    pub priority: i32,
    /// The DaemonSet that controls it.
    pub daemon_set: Option<String>,
    /// Whether something is lost when it goes: nobody makes another one, or it has a volume that goes with it.
    pub is_lossy: bool,
    /// Whether somebody must agree before it goes.
    pub has_finalizer: bool,
    /// Seconds that it may take to end.
    pub grace: u32,
    /// What its owner wants.
    pub wish: Wish,
}

/// What the owner of a pod wants of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Nothing in particular.
    Usual,
    /// To be left alone.
    Skip,
    /// To be waited for until it has finished.
    Wait,
}

/// A Node that its fleet takes back, or has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Its name.
    pub node: String,
    /// Its identity.
    pub uid: String,
    /// The record on it, as it is written.
    pub record: String,
    /// What holds the drain up, in words; empty if nothing does.
    pub progress: String,
}

/// What came of asking a pod to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eviction {
    /// The server has answered.
    Answered(Outcome),
    /// The server is busy with others and wants to be left alone for so long.
    Busy(Duration),
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// A Node, by name and identity.
    Node(String, String),
    /// An UpcomingNode, by name and identity.
    Upcoming(String, String),
    /// A pod.
    Pod(PodId),
}

/// Something that a person may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// In a word.
    pub reason: &'static str,
    /// In a sentence.
    pub text: String,
    /// Whether somebody should look.
    pub is_warning: bool,
    /// What makes it one and the same event, however often it is told.
    pub key: String,
}

#[derive(Deserialize)]
struct RawNode {
    metadata: RawMeta,
    #[serde(default)]
    spec: RawSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMeta {
    name: String,
    uid: String,
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawSpec {
    unschedulable: bool,
}

/// What a Node says of being taken back.
#[derive(Debug, PartialEq)]
struct TakenItem(Option<Taken>);

impl Item for TakenItem {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let MetaOnly { metadata } = serde_json::from_str(raw.get())?;
        let (key, mut annotations) = (key_of(&metadata), metadata.annotations.unwrap_or_default());
        let taken = annotations.remove(FLEET_RECLAIM).map(|record| Taken {
            node: key.name.clone(),
            uid: metadata.uid.unwrap_or_default(),
            record,
            progress: annotations.remove(FLEET_PROGRESS).unwrap_or_default(),
        });
        Ok((key, Self(taken)))
    }
}

/// A request that writes.
struct Write<'a> {
    /// What it does, in words.
    what: String,
    method: Method,
    path: String,
    /// What the body is.
    kind: &'static str,
    body: &'a Value,
}

/// An answer of which nothing is read.
#[derive(Deserialize)]
struct Unread {}

impl Fleet {
    /// The cluster of a client. `instance` is the name of this process among others.
    pub fn new(client: Client, instance: impl Into<String>) -> Self {
        Self { client, instance: instance.into() }
    }

    /// All objects of a path, to be watched.
    pub fn source(&self, path: &str) -> Source {
        Source::of(self.client.clone(), path)
    }

    /// All objects of a path, as the server has them now. One that cannot be read is an error.
    pub async fn list<T: Item>(&self, what: &str, path: &str) -> Result<Vec<T>, Error> {
        list_all(what, &self.source(path)).await
    }

    /// A Node.
    pub async fn node(&self, name: &str) -> Result<Option<NodeNow>, Error> {
        let found: Option<RawNode> =
            self.read(&format!("read Node {name}"), &format!("{NODES}/{name}")).await?;
        Ok(found.map(|RawNode { metadata, spec }| NodeNow {
            name: metadata.name,
            uid: metadata.uid,
            version: metadata.resource_version,
            unschedulable: spec.unschedulable,
            annotations: metadata.annotations,
        }))
    }

    /// All Nodes that the fleet takes back.
    pub async fn taken(&self) -> Result<Vec<Taken>, Error> {
        let nodes: Vec<TakenItem> = self.list("list all Nodes", NODES).await?;
        Ok(nodes.into_iter().filter_map(|TakenItem(taken)| taken).collect())
    }

    /// Changes a Node if it is still what it was. `closed` says whether pods are kept away from it from now on; without
    /// it that stays as it is.
    pub async fn patch_node(
        &self,
        node: &NodeNow,
        annotations: &BTreeMap<&str, Option<String>>,
        closed: Option<bool>,
    ) -> Result<(), Error> {
        let mut change = json!({"metadata": {
            "uid": node.uid, "resourceVersion": node.version, "annotations": annotations,
        }});
        if let Some(closed) = closed {
            change["spec"] = json!({"unschedulable": if closed { json!(true) } else { Value::Null }});
        }
        let (what, path) = (format!("patch Node {}", node.name), format!("{NODES}/{}", node.name));
        let write = Write { what, method: Method::PATCH, path, kind: MERGE, body: &change };
        self.write::<Unread>(write).await.map(drop)
    }

    /// The pods of a Node.
    pub async fn guests(&self, node: &str) -> Result<Vec<Guest>, Error> {
        let source = Source { fields: Some(format!("spec.nodeName={node}")), ..self.source("/api/v1/pods") };
        list_all(&format!("list the pods of Node {node}"), &source).await
    }

    /// Whether a DaemonSet is there.
    pub async fn has_daemon_set(&self, namespace: &str, name: &str) -> Result<bool, Error> {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
        Ok(self.read::<Unread>(&format!("read DaemonSet {namespace}/{name}"), &path).await?.is_some())
    }

    /// Asks a pod to go.
    pub async fn ask(&self, pod: &PodId, way: Way) -> Eviction {
        let refused = |why: String| Eviction::Answered(Outcome::Refused(why));
        let request = match request(pod, way) {
            Ok(request) => request,
            Err(error) => return refused(error.to_string()),
        };
        match tokio::time::timeout(CALL, self.client.request::<Value>(request)).await {
            Ok(Ok(_)) => Eviction::Answered(Outcome::Accepted),
            Ok(Err(KubeError::Api(status))) => {
                let details = status.details.as_ref();
                let by_budget = details
                    .is_some_and(|details| details.causes.iter().any(|it| it.reason == "DisruptionBudget"));
                if status.code == 429 && !by_budget {
                    let seconds = details.map_or(0, |details| details.retry_after_seconds);
                    let wait = Duration::from_secs(seconds.into());
                    return Eviction::Busy(wait.max(BUSY));
                }
                Eviction::Answered(read_answer(&status))
            }
            Ok(Err(error)) => refused(describe(&error)),
            Err(_) => refused(format!("no answer within {} s", CALL.as_secs())),
        }
    }

    /// An UpcomingNode.
    pub async fn upcoming(&self, name: &str) -> Result<Option<UpcomingNode>, Error> {
        self.read(&format!("read UpcomingNode {name}"), &format!("{GROUP}/upcomingnodes/{name}")).await
    }

    /// Makes an UpcomingNode, and returns it as it is then.
    pub async fn create_upcoming(&self, name: &str, spec: &UpcomingNodeSpec) -> Result<UpcomingNode, Error> {
        let body = &json!({
            "apiVersion": "bigfleet.lucy.sh/v1alpha1", "kind": "UpcomingNode",
            "metadata": {"name": name}, "spec": spec,
        });
        let (what, path) = (format!("create UpcomingNode {name}"), format!("{GROUP}/upcomingnodes"));
        self.write(Write { what, method: Method::POST, path, kind: JSON, body }).await
    }

    /// Gives an UpcomingNode another spec, if it is still what it was.
    pub async fn replace_upcoming(&self, old: &UpcomingNode, spec: &UpcomingNodeSpec) -> Result<(), Error> {
        let name = old.metadata.name.as_deref().unwrap_or_default();
        let body = &json!(UpcomingNode { spec: spec.clone(), ..old.clone() });
        let (what, path) = (format!("update UpcomingNode {name}"), format!("{GROUP}/upcomingnodes/{name}"));
        self.write::<Unread>(Write { what, method: Method::PUT, path, kind: JSON, body }).await.map(drop)
    }

    /// Changes the status of an UpcomingNode; whether there is one.
    pub async fn patch_upcoming(&self, name: &str, status: &Value) -> Result<bool, Error> {
        let what = format!("patch the status of UpcomingNode {name}");
        let path = format!("{GROUP}/upcomingnodes/{name}/status");
        let body = &json!({"status": status});
        found(self.send::<Unread>(Write { what, method: Method::PATCH, path, kind: MERGE, body }).await)
    }

    /// Deletes an UpcomingNode, if it is still that one.
    pub async fn delete_upcoming(&self, name: &str, uid: &str) -> Result<(), Error> {
        let what = format!("delete UpcomingNode {name}");
        let path = format!("{GROUP}/upcomingnodes/{name}");
        let body = &json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
        let write = Write { what, method: Method::DELETE, path, kind: JSON, body };
        found(self.send::<Unread>(write).await).map(drop)
    }

    /// Writes what could be had from the fleet.
    pub async fn apply_available(&self, name: &str, spec: &AvailableCapacitySpec) -> Result<(), Error> {
        let body = json!({
            "apiVersion": "bigfleet.lucy.sh/v1alpha1", "kind": "AvailableCapacity",
            "metadata": {"name": name}, "spec": spec,
        });
        let path = format!("{GROUP}/availablecapacities/{name}?force=true");
        let what = format!("apply AvailableCapacity {name}");
        let write = Write { what, method: Method::PATCH, path, kind: APPLY, body: &body };
        self.write::<Unread>(write).await.map(drop)
    }

    /// Says on a CapacityRequest that the fleet has heard of it.
    pub async fn acknowledge(&self, request: &Key, at: Timestamp) -> Result<(), Error> {
        let Key { namespace, name } = request;
        let path = format!("{GROUP}/namespaces/{namespace}/capacityrequests/{name}/status");
        let body = &json!({"status": {"phase": "Acknowledged", "acknowledgedAt": format!("{at:.0}")}});
        let what = format!("patch the status of CapacityRequest {request}");
        let write = Write { what, method: Method::PATCH, path, kind: MERGE, body };
        found(self.send::<Unread>(write).await).map(drop)
    }

    /// Sends an event. Its name is made of what it is about: whoever tells it again does not tell it twice.
    pub async fn tell(&self, about: &About, told: &Told, now: Timestamp) -> Result<(), Error> {
        let (api_version, kind, name, uid) = match about {
            About::Node(name, uid) => ("v1", "Node", name, uid),
            About::Upcoming(name, uid) => ("bigfleet.lucy.sh/v1alpha1", "UpcomingNode", name, uid),
            About::Pod(pod) => ("v1", "Pod", &pod.name, &pod.uid),
        };
        let mut regarding = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid});
        let namespace = match about {
            About::Node(..) | About::Upcoming(..) => EVENTS,
            About::Pod(pod) => {
                regarding["namespace"] = json!(pod.namespace);
                &pod.namespace
            }
        };
        let mut hash = Sha256::new();
        for part in [uid.as_str(), told.reason, &told.key] {
            hash.update(part);
            hash.update([0]);
        }
        let mut id = name.chars().take(200).collect::<String>() + ".";
        for byte in hash.finalize().iter().take(8) {
            // Writing to a String cannot fail.
            let _ = write!(id, "{byte:02x}");
        }
        let body = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": id, "namespace": namespace},
            "eventTime": format!("{now:.6}"),
            "reportingController": FLEET,
            "reportingInstance": self.instance,
            "action": "Reclaim",
            "reason": told.reason,
            "note": printable(&told.text, NOTE_BYTES),
            "type": if told.is_warning { "Warning" } else { "Normal" },
            "regarding": regarding,
        });
        let what = format!("send the event {}", told.reason);
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        match self.send::<Unread>(Write { what, method: Method::POST, path, kind: JSON, body: &body }).await {
            Err(error) if error.code() == Some(409) => Ok(()),
            answer => answer.map(drop),
        }
    }

    async fn read<T: DeserializeOwned>(&self, what: &str, path: &str) -> Result<Option<T>, Error> {
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(|error| Error::api(what, KubeError::HttpError(error)))?;
        match call(what, self.client.request::<T>(request)).await {
            Err(error) if error.is_absent() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// A write; that what it named is not true any more is an error of its own.
    async fn write<T: DeserializeOwned>(&self, write: Write<'_>) -> Result<T, Error> {
        let what = write.what.clone();
        let answer = self.send(write).await;
        answer.map_err(|error| if error.is_race() { Error::Changed { what } } else { error })
    }

    async fn send<T: DeserializeOwned>(&self, write: Write<'_>) -> Result<T, Error> {
        let Write { what, method, path, kind, body } = write;
        let path = match method {
            // Whoever deletes owns no field.
            Method::DELETE => path,
            _ => format!("{path}{}fieldManager={FLEET}", if path.contains('?') { '&' } else { '?' }),
        };
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header(http::header::CONTENT_TYPE, kind).body(body.to_string().into_bytes());
        let request = request.map_err(|error| Error::api(&what, KubeError::HttpError(error)))?;
        call(&what, self.client.request::<T>(request)).await
    }
}

/// Whether there was anything to write to.
fn found<T>(answer: Result<T, Error>) -> Result<bool, Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.is_absent() || error.code() == Some(409) => Ok(false),
        Err(error) => Err(error),
    }
}

#[derive(Deserialize)]
struct RawPod {
    metadata: PodMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMeta {
    #[serde(default)]
    finalizers: Vec<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<Owner>,
}

#[derive(Deserialize)]
struct Owner {
    name: String,
    #[serde(default)]
    controller: bool,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    priority: i32,
    termination_grace_period_seconds: i64,
    volumes: Vec<Volume>,
}

impl Default for PodSpec {
    fn default() -> Self {
        // The server fills it in; this is what it fills in.
        Self { priority: 0, termination_grace_period_seconds: 30, volumes: Vec::new() }
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    empty_dir: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

impl Item for Guest {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let (key, PodItem(mut pod)) = PodItem::read(raw)?;
        let RawPod { metadata, spec, status } = serde_json::from_str(raw.get())?;
        let controller = metadata.owner_references.into_iter().find(|owner| owner.controller);
        // What has finished is put back by nobody.
        let has_finished = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        pod.of_daemon_set &= !has_finished;
        let wish = match metadata.labels.get(FLEET_DRAIN).map(String::as_str) {
            Some(FLEET_DRAIN_SKIP) => Wish::Skip,
            Some(FLEET_DRAIN_WAIT) if !has_finished => Wish::Wait,
            Some(_) | None => Wish::Usual,
        };
        let guest = Self {
            daemon_set: controller.as_ref().filter(|_| pod.of_daemon_set).map(|owner| owner.name.clone()),
            is_lossy: !has_finished
                && (controller.is_none() || spec.volumes.iter().any(|volume| volume.empty_dir.is_some())),
            pod,
            priority: spec.priority,
            has_finalizer: !metadata.finalizers.is_empty(),
            // What is negative counts as one, as for a kubelet.
            grace: u32::try_from(spec.termination_grace_period_seconds.max(1)).unwrap_or(u32::MAX),
            wish,
        };
        Ok((key, guest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(change: impl FnOnce(&mut Value)) -> Guest {
        let mut pod = json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"priority": 5},
            "status": {"phase": "Running"},
        });
        change(&mut pod);
        let raw: Box<RawValue> = serde_json::from_str(&pod.to_string()).unwrap();
        Guest::read(&raw).unwrap().1
    }

    #[test]
    fn a_pod_is_read_as_a_drain_needs_it() {
        let plain = read(|_| {});
        assert_eq!((plain.priority, plain.is_lossy), (5, true), "nobody makes another one");
        let daemon = |phase: &str| {
            read(|pod| {
                pod["metadata"]["ownerReferences"] = json!([
                    {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "logs", "uid": "d", "controller": true},
                ]);
                pod["status"]["phase"] = json!(phase);
            })
        };
        assert_eq!(daemon("Running").daemon_set.as_deref(), Some("logs"));
        assert!(!daemon("Running").is_lossy);
        assert!(daemon("Running").pod.of_daemon_set);
        assert!(!daemon("Failed").pod.of_daemon_set, "what has finished does not come back");
        let scratch = read(|pod| {
            pod["spec"]["volumes"] = json!([{"name": "a", "emptyDir": {}}]);
            pod["metadata"]["finalizers"] = json!(["x/y"]);
            pod["metadata"]["labels"] = json!({"5spot.finos.org/fleet-drain": "skip"});
        });
        assert!(scratch.is_lossy && scratch.has_finalizer);
        assert_eq!((scratch.wish, scratch.grace, plain.wish), (Wish::Skip, 30, Wish::Usual));
        let job = |phase: &str| {
            read(|pod| {
                pod["spec"]["terminationGracePeriodSeconds"] = json!(600);
                pod["metadata"]["labels"] = json!({"5spot.finos.org/fleet-drain": "wait"});
                pod["status"]["phase"] = json!(phase);
            })
        };
        assert_eq!((job("Running").wish, job("Running").grace), (Wish::Wait, 600));
        assert_eq!(job("Succeeded").wish, Wish::Usual, "it has finished");
    }
}
