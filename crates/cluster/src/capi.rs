//! Cluster API's Machine and Cluster, in the two versions that are in use.

use crate::cache::{Item, Key};
use crate::parts::{MetaOnly, foreign, is_owned, key_of, object_of};
use crate::watched::Watched;
use fivespot_api::names::{self, CLUSTER_LABEL, MACHINE_LABEL};
use fivespot_core::intent::{Intent, ObjectType};
use fivespot_core::name::object_name;
use fivespot_core::observed::{Cluster, Machine, Presence, Ready};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Group of Machine and Cluster.
pub(crate) const GROUP: &str = "cluster.x-k8s.io";

/// A version of Cluster API's own kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapiVersion {
    /// The newer: references by group, timeouts in seconds.
    V1Beta2,
    /// The older: references by version, timeouts as durations.
    V1Beta1,
}

impl CapiVersion {
    /// Both, the better one first.
    pub const ALL: [Self; 2] = [Self::V1Beta2, Self::V1Beta1];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Self::V1Beta2 => "v1beta2",
            Self::V1Beta1 => "v1beta1",
        }
    }

    /// Reads its name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.word() == word)
    }

    /// As objects spell it.
    pub(crate) fn api_version(self) -> String {
        format!("{GROUP}/{}", self.word())
    }
}

/// What is kept of a Machine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MachineItem {
    owners: Vec<OwnerReference>,
    view: Machine,
}

impl MachineItem {
    /// How it stands to the ScheduledMachine of this identity.
    pub(crate) fn presence(&self, uid: &str, name: &str) -> Presence<Machine> {
        if is_owned(&self.owners, uid) {
            return Presence::Ours(self.view.clone());
        }
        Presence::Foreign(foreign(&self.owners, &format!("Machine {name}")))
    }
}

#[derive(Deserialize)]
struct RawMachine {
    #[serde(default)]
    spec: RawMachineSpec,
    #[serde(default)]
    status: RawMachineStatus,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawMachineSpec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    bootstrap: RawBootstrap,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawBootstrap {
    data_secret_name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawMachineStatus {
    node_ref: Option<RawNodeRef>,
    conditions: Vec<RawCondition>,
    /// Where the older version of a Machine has the conditions of the newer one.
    v1beta2: RawConditions,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawConditions {
    conditions: Vec<RawCondition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawNodeRef {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct RawCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
}

/// The Ready condition among others.
pub(crate) fn ready(conditions: &[RawCondition]) -> Ready {
    find(conditions, "Ready")
}

fn find(conditions: &[RawCondition], kind: &str) -> Ready {
    let Some(condition) = conditions.iter().find(|condition| condition.kind == kind) else {
        return Ready::default();
    };
    let status = match condition.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    };
    Ready { status, reason: condition.reason.clone(), message: condition.message.clone() }
}

impl Item for MachineItem {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let MetaOnly { metadata } = serde_json::from_str(raw.get())?;
        let RawMachine { spec, status } = serde_json::from_str(raw.get())?;
        let owners = metadata.owner_references.clone().unwrap_or_default();
        let annotations = metadata.annotations.clone().unwrap_or_default();
        let is_hook = |key: &&String| names::HOOK_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        let deleting = deleting(&status);
        let view = Machine {
            object: object_of(&metadata, &owners),
            provider_id: spec.provider_id.filter(|id| !id.is_empty()),
            // A name that is not one names nothing, and must not become part of a path.
            node_name: status.node_ref.map(|node| node.name).filter(|name| object_name(name).is_ok()),
            bootstrapped: spec.bootstrap.data_secret_name.is_some(),
            ready: ready(&status.conditions),
            deleting,
            excludes_drain: annotations.contains_key(names::EXCLUDE_DRAIN),
            excludes_volumes: annotations.contains_key(names::EXCLUDE_VOLUMES),
            hooks: annotations.keys().filter(is_hook).cloned().collect(),
        };
        Ok((key_of(&metadata), Self { owners, view }))
    }
}

/// What the deletion waits for. While nothing is deleted the condition says just that.
fn deleting(status: &RawMachineStatus) -> Ready {
    let all = [&status.conditions, &status.v1beta2.conditions];
    let found = all.map(|conditions| find(conditions, "Deleting"));
    found.into_iter().find(|it| it.status == Some(true)).unwrap_or_default()
}

/// What is kept of a Cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClusterItem {
    paused: bool,
    deleting: bool,
}

impl ClusterItem {
    pub(crate) fn view(self) -> Cluster {
        Cluster::Present { paused: self.paused, deleting: self.deleting }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawCluster {
    spec: RawClusterSpec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawClusterSpec {
    paused: Option<bool>,
}

impl Item for ClusterItem {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let MetaOnly { metadata } = serde_json::from_str(raw.get())?;
        let RawCluster { spec } = serde_json::from_str(raw.get())?;
        let deleting = metadata.deletion_timestamp.is_some();
        Ok((key_of(&metadata), Self { paused: spec.paused == Some(true), deleting }))
    }
}

/// Labels of everything that is made for a ScheduledMachine.
pub(crate) fn labels(watched: &Watched) -> BTreeMap<String, String> {
    let spec = &watched.machine.spec;
    BTreeMap::from([
        (CLUSTER_LABEL.to_owned(), spec.cluster_name.clone()),
        (MACHINE_LABEL.to_owned(), names::part_name(&watched.machine).to_owned()),
    ])
}

/// The reference by which an object says that it is ours. `blockOwnerDeletion` is never set: it would let a foreground
/// deletion overtake the drain.
pub(crate) fn owner(watched: &Watched, controller: bool) -> Value {
    json!({
        "apiVersion": "5spot.finos.org/v1alpha1",
        "kind": "ScheduledMachine",
        "name": names::part_name(&watched.machine),
        "uid": watched.uid(),
        "controller": controller,
    })
}

/// The Machine of a ScheduledMachine.
pub(crate) fn machine(version: CapiVersion, watched: &Watched, intent: &Intent) -> Value {
    let name = names::part_name(&watched.machine);
    let namespace = watched.machine.metadata.namespace.as_deref().unwrap_or_default();
    let template = &watched.machine.spec.machine_template;
    let mut all_labels = template.labels.clone();
    all_labels.extend(labels(watched));
    let reference = |kind: &ObjectType| match version {
        CapiVersion::V1Beta2 => json!({"apiGroup": kind.group, "kind": kind.kind, "name": name}),
        CapiVersion::V1Beta1 => json!({
            "apiVersion": format!("{}/{}", kind.group, kind.version),
            "kind": kind.kind, "name": name, "namespace": namespace,
        }),
    };
    let mut spec = json!({
        "clusterName": intent.cluster_name,
        "bootstrap": {"configRef": reference(&intent.bootstrap)},
        "infrastructureRef": reference(&intent.infrastructure),
    });
    let drain = seconds(intent.node_drain_timeout.min(intent.graceful_shutdown_timeout));
    let volumes = seconds(intent.graceful_shutdown_timeout);
    match version {
        CapiVersion::V1Beta2 => {
            spec["deletion"] =
                json!({"nodeDrainTimeoutSeconds": drain, "nodeVolumeDetachTimeoutSeconds": volumes});
        }
        CapiVersion::V1Beta1 => {
            spec["nodeDrainTimeout"] = json!(format!("{drain}s"));
            spec["nodeVolumeDetachTimeout"] = json!(format!("{volumes}s"));
        }
    }
    json!({
        "apiVersion": version.api_version(),
        "kind": "Machine",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": all_labels,
            "annotations": template.annotations,
            "ownerReferences": [owner(watched, true)],
        },
        "spec": spec,
    })
}

/// For Cluster API no seconds mean no end: the least it can be told is one.
fn seconds(timeout: Duration) -> u64 {
    timeout.as_secs().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_no_node_by_a_name_that_is_none() {
        let node_name = |name: &str| {
            let machine = json!({"metadata": {"name": "a"}, "status": {"nodeRef": {"name": name}}});
            let raw = serde_json::value::to_raw_value(&machine).unwrap();
            MachineItem::read(&raw).unwrap().1.view.node_name
        };
        assert_eq!(node_name("desk-1.example").as_deref(), Some("desk-1.example"));
        for odd in ["", "../namespaces/kube-system", "a?force=true", "a\u{1b}[2J", "a\u{202e}b", "a\nb"] {
            assert_eq!(node_name(odd), None, "{odd:?}");
        }
    }
}
