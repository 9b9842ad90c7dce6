//! The Node that this machine is, as far as the agent looks at it.

use fivespot_api::names::RECLAIM_REQUESTED;
use fivespot_cluster::{Item, Key};
use k8s_openapi::api::core::v1::Node;
use serde_json::value::RawValue;

/// What is kept of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Its identity: a Node that was made anew is another one.
    pub uid: String,
    /// The machine-id it reports; empty until its kubelet has.
    pub machine_id: String,
    /// Whether a request stands on it.
    pub requested: bool,
}

impl From<Node> for NodeView {
    fn from(node: Node) -> Self {
        let annotations = node.metadata.annotations.unwrap_or_default();
        let info = node.status.and_then(|status| status.node_info);
        Self {
            uid: node.metadata.uid.unwrap_or_default(),
            machine_id: info.map(|info| info.machine_id).unwrap_or_default(),
            requested: annotations.get(RECLAIM_REQUESTED).is_some_and(|value| value == "true"),
        }
    }
}

impl Item for NodeView {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let node: Node = serde_json::from_str(raw.get())?;
        let key = Key::new("", node.metadata.name.clone().unwrap_or_default());
        Ok((key, node.into()))
    }
}
