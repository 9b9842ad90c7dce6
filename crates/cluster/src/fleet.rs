//! What the fleet operator asks of an API server, and writes to it.
//!
//! One function for each request. Every write to an object that others write too names what it was decided on.

mod view;

use crate::cache::{Item, Key, Source, list_all};
use crate::drain::{read_answer, request};
use crate::error::{CALL, Error, call, describe};
use fivespot_api::fleet::{AvailableCapacitySpec, UpcomingNode, record_text};
use fivespot_api::names::{CORDONED_BY, FLEET, FLEET_PROGRESS, FLEET_RECLAIM, upcoming_node};
use fivespot_core::drain::{Outcome, PodId, Way};
use fivespot_core::fleet::pods::PodFacts;
use fivespot_core::fleet::{Action, MachineSpec, Node, NodeId, Notice, StatusPatch, Subject, Upcoming};
use fivespot_core::text::printable;
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, Error as KubeError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;
use view::{RawNode, TakenItem, read_upcoming, write_spec};

pub use view::Taken;

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

/// What came of asking a pod to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eviction {
    /// The server has answered.
    Answered(Outcome),
    /// The server is busy with others and wants to be left alone for so long.
    Busy(Duration),
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
    pub async fn node(&self, name: &str) -> Result<Option<Node>, Error> {
        let found: Option<RawNode> =
            self.read(&format!("read Node {name}"), &format!("{NODES}/{name}")).await?;
        Ok(found.map(Node::from))
    }

    /// All Nodes that the fleet takes back.
    pub async fn taken(&self) -> Result<Vec<Taken>, Error> {
        let nodes: Vec<TakenItem> = self.list("list all Nodes", NODES).await?;
        Ok(nodes.into_iter().filter_map(|TakenItem(taken)| taken).collect())
    }

    /// Does what was decided for a machine.
    pub async fn perform(&self, machine: &str, action: &Action) -> Result<(), Error> {
        match action {
            Action::Cordon { node, record } => {
                let mut annotations =
                    BTreeMap::from([(FLEET_RECLAIM, Some(record_text(record))), (FLEET_PROGRESS, None)]);
                if record.cordoned_by_us {
                    annotations.insert(CORDONED_BY, Some(FLEET.to_owned()));
                }
                self.patch_node(node, &annotations, Some(true)).await
            }
            Action::EndReclaim { node, record, progress } => {
                let annotations = BTreeMap::from([
                    (FLEET_RECLAIM, Some(record_text(record))),
                    (FLEET_PROGRESS, progress.clone()),
                ]);
                self.patch_node(node, &annotations, None).await
            }
            Action::CallOff { node, uncordon } => {
                let mut annotations = BTreeMap::from([(FLEET_RECLAIM, None), (FLEET_PROGRESS, None)]);
                if *uncordon {
                    annotations.insert(CORDONED_BY, None);
                }
                self.patch_node(node, &annotations, uncordon.then_some(false)).await
            }
            Action::CreateUpcoming(spec) => self.create_upcoming(machine, spec).await,
            Action::ReplaceUpcoming { version, spec } => self.replace_upcoming(machine, version, spec).await,
            Action::PatchUpcoming(patch) => self.patch_upcoming(machine, patch).await,
            Action::RemoveUpcoming { uid } => self.remove_upcoming(machine, uid).await,
        }
    }

    /// Writes on a Node what is in the way of its drain, if it is still what it was.
    pub async fn show_progress(&self, node: &Node, text: Option<&str>) -> Result<(), Error> {
        let annotations = BTreeMap::from([(FLEET_PROGRESS, text.map(str::to_owned))]);
        self.patch_node(node, &annotations, None).await
    }

    /// Changes a Node if it is still what it was. `cordoned` says whether pods are kept away from it from now on; without
    /// it that stays as it is.
    async fn patch_node(
        &self,
        node: &Node,
        annotations: &BTreeMap<&str, Option<String>>,
        cordoned: Option<bool>,
    ) -> Result<(), Error> {
        let NodeId { name, uid } = &node.id;
        let mut change = json!({"metadata": {
            "uid": uid, "resourceVersion": node.version, "annotations": annotations,
        }});
        if let Some(cordoned) = cordoned {
            change["spec"] = json!({"unschedulable": if cordoned { json!(true) } else { Value::Null }});
        }
        let (what, path) = (format!("patch Node {name}"), format!("{NODES}/{name}"));
        let write = Write { what, method: Method::PATCH, path, kind: MERGE, body: &change };
        self.write::<Unread>(write).await.map(drop)
    }

    /// The pods of a Node.
    pub async fn pods(&self, node: &str) -> Result<Vec<PodFacts>, Error> {
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

    /// The UpcomingNode of a machine.
    pub async fn upcoming(&self, machine: &str) -> Result<Option<Upcoming>, Error> {
        let (what, path) = of_upcoming("read", machine);
        let found: Option<UpcomingNode> = self.read(&what, &path).await?;
        Ok(found.map(read_upcoming))
    }

    async fn create_upcoming(&self, machine: &str, spec: &MachineSpec) -> Result<(), Error> {
        let body = &json!({
            "apiVersion": "bigfleet.lucy.sh/v1alpha1", "kind": "UpcomingNode",
            "metadata": {"name": upcoming_node(machine)}, "spec": write_spec(spec),
        });
        let (what, _) = of_upcoming("create", machine);
        let path = format!("{GROUP}/upcomingnodes");
        self.write::<Unread>(Write { what, method: Method::POST, path, kind: JSON, body }).await.map(drop)
    }

    /// Gives an UpcomingNode another spec, if it is still what it was. The rest of it stays as it is.
    async fn replace_upcoming(&self, machine: &str, version: &str, spec: &MachineSpec) -> Result<(), Error> {
        let (what, path) = of_upcoming("update", machine);
        let found: Option<UpcomingNode> = self.read(&what, &path).await?;
        let is_it = |it: &UpcomingNode| it.metadata.resource_version.as_deref() == Some(version);
        let Some(old) = found.filter(is_it) else { return Err(Error::Changed { what }) };
        let body = &json!(UpcomingNode { spec: write_spec(spec), ..old });
        self.write::<Unread>(Write { what, method: Method::PUT, path, kind: JSON, body }).await.map(drop)
    }

    /// Changes the status of an UpcomingNode, if there is one. Only the operator writes it, and what it writes holds
    /// whatever was written before.
    async fn patch_upcoming(&self, machine: &str, change: &StatusPatch) -> Result<(), Error> {
        let mut status = serde_json::Map::new();
        if let Some(phase) = change.phase {
            status.insert("phase".to_owned(), json!(phase.as_str()));
        }
        if let Some(NodeId { name, uid }) = &change.node {
            status.insert("nodeRef".to_owned(), json!({"kind": "Node", "name": name, "uid": uid}));
        }
        if let Some(id) = &change.provider_id {
            status.insert("providerID".to_owned(), json!(id));
        }
        if let Some(error) = &change.last_error {
            status.insert("lastError".to_owned(), json!(error));
        }
        if let Some(time) = change.started_at {
            status.insert("provisioningStartTime".to_owned(), json!(Time(time)));
        }
        let (what, path) = of_upcoming("patch the status of", machine);
        let (path, body) = (format!("{path}/status"), &json!({"status": status}));
        let write = Write { what, method: Method::PATCH, path, kind: MERGE, body };
        found(self.send::<Unread>(write).await).map(drop)
    }

    /// Deletes an UpcomingNode, if it is still that one.
    async fn remove_upcoming(&self, machine: &str, uid: &str) -> Result<(), Error> {
        let (what, path) = of_upcoming("delete", machine);
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

    /// Sends an event. Its name is made of what it is about: whoever sends it again does not send it twice.
    pub async fn notify(&self, notice: &Notice, now: Timestamp) -> Result<(), Error> {
        let Notice { subject, reason, text, is_warning, key } = notice;
        let (api_version, kind, name, uid) = match subject {
            Subject::Node(NodeId { name, uid }) => ("v1", "Node", name.clone(), uid),
            Subject::Upcoming { machine, uid } => {
                ("bigfleet.lucy.sh/v1alpha1", "UpcomingNode", upcoming_node(machine), uid)
            }
            Subject::Pod(pod) => ("v1", "Pod", pod.name.clone(), &pod.uid),
        };
        let mut regarding = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid});
        let namespace = match subject {
            Subject::Node(_) | Subject::Upcoming { .. } => EVENTS,
            Subject::Pod(pod) => {
                regarding["namespace"] = json!(pod.namespace);
                &pod.namespace
            }
        };
        let mut hash = Sha256::new();
        for part in [uid.as_str(), reason, key] {
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
            "reason": reason,
            "note": printable(text, NOTE_BYTES),
            "type": if *is_warning { "Warning" } else { "Normal" },
            "regarding": regarding,
        });
        let what = format!("send the event {reason}");
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

/// What is done about the UpcomingNode of a machine, in words, and its path.
fn of_upcoming(verb: &str, machine: &str) -> (String, String) {
    let name = upcoming_node(machine);
    (format!("{verb} UpcomingNode {name}"), format!("{GROUP}/upcomingnodes/{name}"))
}

/// Whether there was anything to write to.
fn found<T>(answer: Result<T, Error>) -> Result<bool, Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.is_absent() || error.code() == Some(409) => Ok(false),
        Err(error) => Err(error),
    }
}
