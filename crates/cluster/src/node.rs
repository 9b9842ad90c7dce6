//! A Node, trimmed to what a decision looks at, and the text of our record on it.

use crate::cache::{Item, Key};
use crate::capi::{RawCondition, ready};
use crate::parts::{MetaOnly, key_of};
use fivespot_api::names;
use fivespot_core::drain::{Pod, PodId};
use fivespot_core::host::HostId;
use fivespot_core::intent::{Effect, Taint};
use fivespot_core::observed::{Node, NodeOwner, NodeTaint, Pods, Record};
use fivespot_core::reclaim::Request;
use fivespot_core::text::printable;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What is kept of a Node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NodeItem {
    pub(crate) view: Node,
    /// Whether it has annotations at all: a patch must know.
    pub(crate) annotated: bool,
    /// Whether it has labels at all.
    pub(crate) labelled: bool,
    /// What the label of the reclaim agent says.
    pub(crate) agent_label: Option<String>,
    /// The Machine that Cluster API says it belongs to.
    pub(crate) machine: Option<MachineName>,
    /// Whether it runs a control plane: such a Node is never lent, and nothing is written to it.
    pub(crate) is_control_plane: bool,
    /// What `cordoned-by` says.
    pub(crate) cordoned_by: Option<String>,
    /// What the annotations of [`REQUEST`] say.
    pub(crate) request: [Option<String>; 3],
}

/// The Machine of a Node, as Cluster API's annotations on the Node name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MachineName {
    pub(crate) key: Key,
    pub(crate) cluster: String,
}

impl NodeItem {
    /// Whose it is, for the ScheduledMachine of this name and its Cluster.
    pub(crate) fn owner(&self, key: &Key, cluster: &str) -> NodeOwner {
        if self.is_control_plane {
            return NodeOwner::Other("the control plane".to_owned());
        }
        match &self.machine {
            None => NodeOwner::Nobody,
            Some(machine) if machine.key == *key && machine.cluster == cluster => NodeOwner::ThisMachine,
            Some(machine) => {
                NodeOwner::Other(format!("Machine {} of Cluster {}", machine.key, machine.cluster))
            }
        }
    }
}

/// The annotations that make a request to give the machine back.
pub(crate) const REQUEST: [&str; 3] =
    [names::RECLAIM_REQUESTED, names::RECLAIM_REASON, names::RECLAIM_REQUESTED_AT];

/// Bytes of an identity that are kept; a UUID has 36, and firmware writes what it likes.
const IDENTITY_BYTES: usize = 256;

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawNode {
    spec: RawNodeSpec,
    status: RawNodeStatus,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawNodeSpec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    unschedulable: bool,
    taints: Option<Vec<RawTaint>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawNodeStatus {
    conditions: Vec<RawCondition>,
    #[serde(rename = "nodeInfo")]
    node_info: RawNodeInfo,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawNodeInfo {
    #[serde(rename = "machineID")]
    machine_id: String,
    #[serde(rename = "systemUUID")]
    system_uuid: String,
}

/// A taint as a Node has it.
#[derive(Serialize, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawTaint {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_added: Option<String>,
}

impl From<&NodeTaint> for RawTaint {
    fn from(taint: &NodeTaint) -> Self {
        let NodeTaint { key, value, effect, time_added } = taint.clone();
        Self { key, value, effect, time_added }
    }
}

impl Item for NodeItem {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let MetaOnly { metadata } = serde_json::from_str(raw.get())?;
        let RawNode { spec, status } = serde_json::from_str(raw.get())?;
        let key = key_of(&metadata);
        let annotation = |name: &str| metadata.annotations.as_ref().and_then(|all| all.get(name)).cloned();
        let cordoned_by = annotation(names::CORDONED_BY);
        let request = REQUEST.map(annotation);
        let agent_label = metadata.labels.as_ref().and_then(|all| all.get(names::AGENT_LABEL)).cloned();
        let mut ready = ready(&status.conditions);
        // Its message may tell the time of the last heartbeat, its reason says enough.
        if ready.status == Some(true) {
            ready.message.clear();
        }
        let taints = spec.taints.unwrap_or_default().into_iter().map(|taint| {
            let RawTaint { key, value, effect, time_added } = taint;
            NodeTaint { key, value, effect, time_added }
        });
        // Identities are kept in status, where every text is printable, and compared with the Node later.
        let identity = |text: &str| printable(text, IDENTITY_BYTES).into_owned();
        let view = Node {
            name: key.name.clone(),
            uid: identity(metadata.uid.as_deref().unwrap_or_default()),
            provider_id: spec.provider_id.filter(|id| !id.is_empty()),
            ready,
            unschedulable: spec.unschedulable,
            cordoned_by_us: cordoned_by.as_deref() == Some(names::CONTROLLER),
            taints: taints.collect(),
            record: annotation(names::APPLIED_TAINTS).map_or(Record::None, |text| read_record(&text)),
            armed_for: annotation(names::ARMED_FOR),
            labelled: agent_label.as_deref() == Some(names::AGENT_ENABLED),
            host: HostId {
                machine_id: identity(&status.node_info.machine_id),
                system_uuid: identity(&status.node_info.system_uuid),
            },
            owner: NodeOwner::Nobody,
            rivals: Vec::new(),
            request: Request::read(request[0].as_deref(), request[1].as_deref(), request[2].as_deref()),
            pods: Pods::NotAsked,
        };
        let machine = annotation(names::NODE_MACHINE).filter(|name| !name.is_empty());
        let machine = machine.map(|name| MachineName {
            key: Key::new(annotation(names::NODE_CLUSTER_NAMESPACE).unwrap_or_default(), name),
            cluster: annotation(names::NODE_CLUSTER).unwrap_or_default(),
        });
        let has_label = |label: &&str| metadata.labels.as_ref().is_some_and(|all| all.contains_key(*label));
        let is_control_plane = names::CONTROL_PLANE_LABELS.iter().any(has_label);
        let (annotated, labelled) = (metadata.annotations.is_some(), metadata.labels.is_some());
        Ok((
            key,
            Self { view, annotated, labelled, agent_label, machine, is_control_plane, cordoned_by, request },
        ))
    }

    fn weight(&self) -> usize {
        let Node { name, uid, provider_id, ready, taints, record, armed_for, host, request, .. } = &self.view;
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let taint = |taint: &NodeTaint| {
            let NodeTaint { key, value, effect, time_added } = taint;
            size_of::<NodeTaint>() + key.len() + text(value) + effect.len() + text(time_added)
        };
        // What is read from a text holds some three times as much as the text.
        let record = match record {
            Record::None => 0,
            Record::Read(_, text) => 4 * text.len(),
            Record::Unreadable(text) => text.len(),
        };
        let request = request.as_ref().map_or(0, |it| it.reason.len() + it.requested_at.len());
        let machine = self
            .machine
            .as_ref()
            .map_or(0, |MachineName { key, cluster }| key.namespace.len() + key.name.len() + cluster.len());
        let texts = [name, uid, &ready.reason, &ready.message, &host.machine_id, &host.system_uuid];
        let options = [provider_id, armed_for, &self.agent_label, &self.cordoned_by];
        size_of::<Self>()
            + texts.into_iter().map(String::len).sum::<usize>()
            + options.into_iter().chain(&self.request).map(text).sum::<usize>()
            + taints.iter().map(taint).sum::<usize>()
            + record
            + request
            + machine
    }
}

/// One entry of our record.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: String,
    effect: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    value: String,
}

fn read_record(text: &str) -> Record {
    let read = || -> Option<Vec<Taint<Effect>>> {
        let entries: Vec<Entry> = serde_json::from_str(text).ok()?;
        let taint =
            |Entry { key, effect, value }| Some(Taint { key, value, effect: Effect::parse(&effect)? });
        entries.into_iter().map(taint).collect()
    };
    match read() {
        Some(taints) => Record::Read(taints, text.to_owned()),
        None => Record::Unreadable(text.to_owned()),
    }
}

/// The text of a record.
pub(crate) fn write_record(taints: &[Taint<Effect>]) -> String {
    let entry = |taint: &Taint<Effect>| Entry {
        key: taint.key.clone(),
        effect: taint.effect.word().to_owned(),
        value: taint.value.clone(),
    };
    let entries: Vec<Entry> = taints.iter().map(entry).collect();
    // Entries are plain texts: writing them cannot fail.
    serde_json::to_string(&entries).unwrap_or_default()
}

/// What is read of a Pod.
#[derive(Debug, PartialEq)]
pub(crate) struct PodItem(pub(crate) Pod);

/// The annotation of a pod that mirrors a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

impl Item for PodItem {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let MetaOnly { metadata } = serde_json::from_str(raw.get())?;
        let key = key_of(&metadata);
        let owners = metadata.owner_references.unwrap_or_default();
        let pod = Pod {
            id: PodId {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                uid: metadata.uid.unwrap_or_default(),
            },
            created_at: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deletion: metadata.deletion_timestamp.map(|time| time.0),
            of_daemon_set: owners
                .iter()
                .any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet"),
            mirror: metadata.annotations.is_some_and(|all| all.contains_key(MIRROR)),
        };
        Ok((key, Self(pod)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_it_was_written_and_nothing_else_does() {
        let taints = vec![
            Taint { key: "a.example/b".into(), value: String::new(), effect: Effect::NoExecute },
            Taint { key: "c".into(), value: "1".into(), effect: Effect::NoSchedule },
        ];
        let text = write_record(&taints);
        assert_eq!(
            text,
            r#"[{"key":"a.example/b","effect":"NoExecute"},{"key":"c","effect":"NoSchedule","value":"1"}]"#
        );
        assert_eq!(read_record(&text), Record::Read(taints, text.clone()));
        for odd in [
            "",
            "{}",
            "[1]",
            r#"[{"key":"a","effect":"Never"}]"#,
            r#"[{"key":"a","effect":"NoExecute","x":1}]"#,
        ] {
            assert_eq!(read_record(odd), Record::Unreadable(odd.to_owned()));
        }
    }
}
