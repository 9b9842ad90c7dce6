//! What the watches of the operator keep, beside Nodes and UpcomingNodes.

use fivespot_api::fleet::{CapacityRequest, CapacityRequestSpec};
use fivespot_cluster::{Item, Key};
use serde_json::value::RawValue;

/// Where Nodes are.
pub const NODES: &str = "/api/v1/nodes";

/// Where UpcomingNodes are.
pub const UPCOMING: &str = "/apis/bigfleet.lucy.sh/v1alpha1/upcomingnodes";

/// Where CapacityRequests are.
pub const REQUESTS: &str = "/apis/bigfleet.lucy.sh/v1alpha1/capacityrequests";

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
