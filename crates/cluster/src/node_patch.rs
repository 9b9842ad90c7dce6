//! Writes to a Node: JSON patches, each of which names the very Node and what must still be true of it.

use crate::cache::Key;
use crate::error::Error;
use crate::node::{NodeItem, RawTaint, write_record};
use crate::perform::{Answer, Pass};
use crate::shell::Shell;
use fivespot_api::names::{self, CONTROLLER};
use fivespot_core::intent::{Effect, Taint};
use fivespot_core::lifecycle::NodeId;
use fivespot_core::taint::TaintChange;
use serde_json::{Value, json};
use std::sync::Arc;

/// A JSON patch of the Node of this name.
pub(crate) struct NodePatch(Vec<Value>, String);

impl NodePatch {
    /// Of this very Node, not of one that has its name now.
    pub(crate) fn of(node: &NodeId) -> Self {
        let mut patch = Self(Vec::new(), node.name.clone());
        patch.test("/metadata/uid", &json!(node.uid));
        patch
    }

    fn test(&mut self, path: &str, value: &Value) {
        self.0.push(json!({"op": "test", "path": path, "value": value}));
    }

    fn add(&mut self, path: &str, value: &Value) {
        self.0.push(json!({"op": "add", "path": path, "value": value}));
    }

    /// Sets or removes an annotation that must still be what it was.
    pub(crate) fn annotate(
        &mut self,
        node: &NodeItem,
        name: &str,
        before: Option<&str>,
        after: Option<&str>,
    ) {
        self.set("/metadata/annotations", node.annotated, name, (before, after));
    }

    /// Sets or removes the label by which the reclaim agent finds its Nodes.
    pub(crate) fn label(&mut self, node: &NodeItem, after: Option<&str>) {
        let before = node.agent_label.as_deref();
        self.set("/metadata/labels", node.labelled, names::AGENT_LABEL, (before, after));
    }

    /// Sets or removes one entry of a map, which may not be there at all.
    fn set(&mut self, map: &str, exists: bool, name: &str, (before, after): (Option<&str>, Option<&str>)) {
        let path = format!("{map}/{}", name.replace('~', "~0").replace('/', "~1"));
        match (exists, after) {
            (false, None) => {}
            (false, Some(after)) => {
                self.test(map, &Value::Null);
                self.add(map, &json!({name: after}));
            }
            (true, after) => {
                self.test(&path, &before.map_or(Value::Null, |before| json!(before)));
                match after {
                    Some(after) => self.add(&path, &json!(after)),
                    None if before.is_some() => self.0.push(json!({"op": "remove", "path": path})),
                    None => {}
                }
            }
        }
    }
}

impl Shell {
    pub(crate) async fn cordon(&self, pass: &mut Pass<'_>, node: &NodeId) -> Result<(), Error> {
        let mut patch = NodePatch::of(node);
        // Only a Node that nobody has cordoned meanwhile: what another cordoned is not ours to take back.
        patch.test("/spec/unschedulable", &Value::Null);
        patch.add("/spec/unschedulable", &json!(true));
        self.patch_node(pass, "cordon the Node", patch, |node, patch| {
            patch.annotate(node, names::CORDONED_BY, node.cordoned_by.as_deref(), Some(CONTROLLER));
        })
        .await
    }

    pub(crate) async fn uncordon(&self, pass: &mut Pass<'_>, node: &NodeId) -> Result<(), Error> {
        self.patch_node(pass, "uncordon the Node", NodePatch::of(node), |node, patch| {
            patch.annotate(node, names::CORDONED_BY, Some(CONTROLLER), None);
            if node.view.unschedulable {
                patch.0.push(json!({"op": "remove", "path": "/spec/unschedulable"}));
            }
        })
        .await
    }

    pub(crate) async fn set_taints(
        &self,
        pass: &mut Pass<'_>,
        node: &NodeId,
        change: &TaintChange,
        record: &[Taint<Effect>],
    ) -> Result<(), Error> {
        let taints = |taints: &[fivespot_core::observed::NodeTaint]| {
            let taints: Vec<RawTaint> = taints.iter().map(RawTaint::from).collect();
            if taints.is_empty() { Value::Null } else { json!(taints) }
        };
        let mut patch = NodePatch::of(node);
        let (before, after) = (taints(&change.before), taints(&change.after));
        patch.test("/spec/taints", &before);
        if after != before {
            if after.is_null() {
                patch.0.push(json!({"op": "remove", "path": "/spec/taints"}));
            } else {
                patch.add("/spec/taints", &after);
            }
        }
        let record = (!record.is_empty()).then(|| write_record(record));
        self.patch_node(pass, "taint the Node", patch, |node, patch| {
            let before = change.record_before.as_deref();
            patch.annotate(node, names::APPLIED_TAINTS, before, record.as_deref());
        })
        .await
    }

    pub(crate) async fn patch_node(
        &self,
        pass: &mut Pass<'_>,
        what: &str,
        mut patch: NodePatch,
        complete: impl FnOnce(&NodeItem, &mut NodePatch),
    ) -> Result<(), Error> {
        let changed = || Error::Changed { what: what.to_owned() };
        let reached = self.reach(pass.watched).await?;
        let _permit = reached.gate.enter(pass.admission()).await;
        let node: Arc<NodeItem> = reached.nodes.get(&Key::new("", &patch.1)).ok_or_else(changed)?;
        complete(&node, &mut patch);
        let NodePatch(operations, name) = patch;
        let request = http::Request::patch(format!("/api/v1/nodes/{name}?fieldManager={CONTROLLER}"))
            .header(http::header::CONTENT_TYPE, "application/json-patch+json")
            .body(Value::Array(operations).to_string().into_bytes())
            .map_err(|error| Error::api(what, kube::Error::HttpError(error)))?;
        match self.write(pass, what, reached.client.request::<Answer>(request)).await {
            // A test in the patch failed: somebody wrote meanwhile.
            Err(error) if error.is_race() => Err(changed()),
            answer => answer.map(|_| ()),
        }
    }
}
