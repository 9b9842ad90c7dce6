//! What is read of objects that the fleet operator looks at.

use crate::cache::{Item, Key};
use crate::node::PodItem;
use crate::parts::{MetaOnly, key_of};
use fivespot_api::fleet::{UpcomingNode, UpcomingNodeSpec, UpcomingNodeStatus, read_record};
use fivespot_api::names::{
    CORDONED_BY, FLEET, FLEET_DRAIN, FLEET_DRAIN_SKIP, FLEET_DRAIN_WAIT, FLEET_MACHINE, FLEET_PROGRESS,
    FLEET_RECLAIM, UPCOMING_PREFIX,
};
use fivespot_core::fleet::phase::Phase;
use fivespot_core::fleet::pods::{DrainLabel, PodFacts};
use fivespot_core::fleet::record::Record;
use fivespot_core::fleet::{
    MachineSpec, MachineTaint, Node, NodeFacts, NodeId, Upcoming, UpcomingFacts, UpcomingStatus,
};
use k8s_openapi::api::core::v1::{Node as NodeObject, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

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

/// What a Node says of being taken back.
#[derive(Debug, PartialEq)]
pub(super) struct TakenItem(pub(super) Option<Taken>);

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

impl Item for NodeFacts {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let NodeObject { metadata, spec, status } = serde_json::from_str(raw.get())?;
        let (labels, annotations) =
            (metadata.labels.unwrap_or_default(), metadata.annotations.unwrap_or_default());
        let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
        // A kubelet that says it is not ready lives, and ends its pods in its own time.
        let speaks = |it: &NodeCondition| it.type_ == "Ready" && it.status != "Unknown";
        let name = metadata.name.unwrap_or_default();
        let machine = labels.get(FLEET_MACHINE).or_else(|| annotations.get(FLEET_MACHINE));
        let record = annotations.get(FLEET_RECLAIM).and_then(|text| read_record(text));
        let facts = Self {
            id: NodeId { name: name.clone(), uid: metadata.uid.unwrap_or_default() },
            provider_id: spec.and_then(|spec| spec.provider_id).filter(|id| !id.is_empty()),
            machine: machine.cloned(),
            is_silent: !conditions.iter().any(speaks),
            drains_for: record.filter(Record::is_running).map(|record| record.machine),
        };
        Ok((Key::new("", name), facts))
    }
}

impl Item for UpcomingFacts {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let UpcomingNode { metadata, status, .. } = serde_json::from_str(raw.get())?;
        let (name, status) = (metadata.name.unwrap_or_default(), status.unwrap_or_default());
        let (node, node_uid) = status.node_ref.map(|it| (it.name, it.uid)).unwrap_or_default();
        let facts = Self {
            machine: name.strip_prefix(UPCOMING_PREFIX).unwrap_or(&name).to_owned(),
            uid: metadata.uid.unwrap_or_default(),
            node,
            node_uid,
            provider_id: status.provider_id,
            phase: Phase::read(&status.phase),
        };
        Ok((Key::new("", name), facts))
    }
}

/// A Node, as one request reads it.
#[derive(Deserialize)]
pub(super) struct RawNode {
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

impl From<RawNode> for Node {
    fn from(RawNode { metadata, spec }: RawNode) -> Self {
        let RawMeta { name, uid, resource_version, annotations } = metadata;
        Self {
            id: NodeId { name, uid },
            version: resource_version,
            is_cordoned: spec.unschedulable,
            is_cordoned_by_fleet: annotations.get(CORDONED_BY).is_some_and(|by| by == FLEET),
            record: annotations.get(FLEET_RECLAIM).and_then(|text| read_record(text)),
        }
    }
}

pub(super) fn read_upcoming(object: UpcomingNode) -> Upcoming {
    let UpcomingNode { metadata, spec, status } = object;
    let UpcomingNodeStatus { phase, node_ref, provider_id, provisioning_start_time, last_error } =
        status.unwrap_or_default();
    let node =
        node_ref.map(|it| NodeId { name: it.name.unwrap_or_default(), uid: it.uid.unwrap_or_default() });
    Upcoming {
        uid: metadata.uid.unwrap_or_default(),
        version: metadata.resource_version.unwrap_or_default(),
        spec: read_spec(spec),
        status: UpcomingStatus {
            phase: Phase::read(&phase),
            node,
            provider_id,
            last_error,
            started_at: provisioning_start_time.map(|time| time.0),
        },
    }
}

fn read_spec(spec: UpcomingNodeSpec) -> MachineSpec {
    let taint = |taint: Taint| MachineTaint {
        key: taint.key,
        value: taint.value.unwrap_or_default(),
        effect: taint.effect,
    };
    MachineSpec {
        labels: spec.labels,
        resources: spec.resources.into_iter().map(|(name, amount)| (name, amount.0)).collect(),
        taints: spec.taints.into_iter().map(taint).collect(),
    }
}

pub(super) fn write_spec(spec: &MachineSpec) -> UpcomingNodeSpec {
    let taint = |taint: &MachineTaint| Taint {
        key: taint.key.clone(),
        value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
        effect: taint.effect.clone(),
        time_added: None,
    };
    UpcomingNodeSpec {
        labels: spec.labels.clone(),
        resources: spec
            .resources
            .iter()
            .map(|(name, amount)| (name.clone(), Quantity(amount.clone())))
            .collect(),
        taints: spec.taints.iter().map(taint).collect(),
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

impl Item for PodFacts {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let (key, PodItem(mut pod)) = PodItem::read(raw)?;
        let RawPod { metadata, spec, status } = serde_json::from_str(raw.get())?;
        let controller = metadata.owner_references.into_iter().find(|owner| owner.controller);
        // What has finished is put back by nobody.
        let has_finished = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        pod.of_daemon_set &= !has_finished;
        let label = match metadata.labels.get(FLEET_DRAIN).map(String::as_str) {
            Some(FLEET_DRAIN_SKIP) => DrainLabel::Skip,
            Some(FLEET_DRAIN_WAIT) if !has_finished => DrainLabel::Wait,
            Some(_) | None => DrainLabel::Absent,
        };
        let facts = Self {
            daemon_set: controller.as_ref().filter(|_| pod.of_daemon_set).map(|owner| owner.name.clone()),
            is_lossy: !has_finished
                && (controller.is_none() || spec.volumes.iter().any(|volume| volume.empty_dir.is_some())),
            pod,
            priority: spec.priority,
            has_finalizer: !metadata.finalizers.is_empty(),
            // What is negative counts as one, as for a kubelet.
            grace: u32::try_from(spec.termination_grace_period_seconds.max(1)).unwrap_or(u32::MAX),
            label,
        };
        Ok((key, facts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(change: impl FnOnce(&mut Value)) -> PodFacts {
        let mut pod = json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"priority": 5},
            "status": {"phase": "Running"},
        });
        change(&mut pod);
        let raw: Box<RawValue> = serde_json::from_str(&pod.to_string()).unwrap();
        PodFacts::read(&raw).unwrap().1
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
        assert_eq!((scratch.label, scratch.grace, plain.label), (DrainLabel::Skip, 30, DrainLabel::Absent));
        let job = |phase: &str| {
            read(|pod| {
                pod["spec"]["terminationGracePeriodSeconds"] = json!(600);
                pod["metadata"]["labels"] = json!({"5spot.finos.org/fleet-drain": "wait"});
                pod["status"]["phase"] = json!(phase);
            })
        };
        assert_eq!((job("Running").label, job("Running").grace), (DrainLabel::Wait, 600));
        assert_eq!(job("Succeeded").label, DrainLabel::Absent, "it has finished");
    }
}
