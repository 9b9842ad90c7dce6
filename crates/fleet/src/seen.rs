//! What the watches of the operator keep.

use crate::record::Record;
use crate::resolve::{NodeView, UpcomingView};
use fivespot_api::fleet::{CapacityRequest, CapacityRequestSpec, UpcomingNode};
use fivespot_api::names::{FLEET_MACHINE, FLEET_RECLAIM, UPCOMING_PREFIX};
use fivespot_cluster::{Item, Key};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use serde_json::value::RawValue;

/// Where Nodes are.
pub const NODES: &str = "/api/v1/nodes";

/// Where UpcomingNodes are.
pub const UPCOMING: &str = "/apis/bigfleet.lucy.sh/v1alpha1/upcomingnodes";

/// Where CapacityRequests are.
pub const REQUESTS: &str = "/apis/bigfleet.lucy.sh/v1alpha1/capacityrequests";

impl Item for NodeView {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let Node { metadata, spec, status } = serde_json::from_str(raw.get())?;
        let (labels, annotations) =
            (metadata.labels.unwrap_or_default(), metadata.annotations.unwrap_or_default());
        let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
        // A kubelet that says it is not ready lives, and ends its pods in its own time.
        let speaks = |it: &NodeCondition| it.type_ == "Ready" && it.status != "Unknown";
        let name = metadata.name.unwrap_or_default();
        let machine = labels.get(FLEET_MACHINE).or_else(|| annotations.get(FLEET_MACHINE));
        let view = Self {
            name: name.clone(),
            uid: metadata.uid.unwrap_or_default(),
            provider_id: spec.and_then(|spec| spec.provider_id).filter(|id| !id.is_empty()),
            machine: machine.cloned(),
            is_silent: !conditions.iter().any(speaks),
            record: annotations.get(FLEET_RECLAIM).and_then(|text| Record::read(text)),
        };
        Ok((Key::new("", name), view))
    }
}

impl Item for UpcomingView {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let UpcomingNode { metadata, status, .. } = serde_json::from_str(raw.get())?;
        let (name, status) = (metadata.name.unwrap_or_default(), status.unwrap_or_default());
        let (node, node_uid) = status.node_ref.map(|it| (it.name, it.uid)).unwrap_or_default();
        let view = Self {
            machine: name.strip_prefix(UPCOMING_PREFIX).unwrap_or(&name).to_owned(),
            node,
            node_uid,
            provider_id: status.provider_id,
            phase: status.phase,
        };
        Ok((Key::new("", name), view))
    }
}

/// A demand for capacity.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestView {
    /// What is wanted.
    pub spec: CapacityRequestSpec,
    /// Whether the fleet has heard of it, as far as the object says.
    pub is_acknowledged: bool,
}

impl Item for RequestView {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let CapacityRequest { metadata, spec, status } = serde_json::from_str(raw.get())?;
        let key = Key::new(metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
        let is_acknowledged = status.is_some_and(|status| status.phase == "Acknowledged");
        Ok((key, Self { spec, is_acknowledged }))
    }
}
