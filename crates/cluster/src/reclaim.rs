//! What an eject writes, and what the reclaim agent is told.

use crate::cache::{Item, Key};
use crate::error::{Error, Retry};
use crate::node::REQUEST;
use crate::node_patch::NodePatch;
use crate::parts::{MetaOnly, key_of};
use crate::perform::{Answer, Pass, own_path, patch_params};
use crate::shell::Shell;
use crate::workload::Reached;
use fivespot_api::names::{self, CONTROLLER};
use fivespot_api::{AgentConfig, HostStatus};
use fivespot_core::host::LentHost;
use fivespot_core::lifecycle::NodeId;
use fivespot_core::observed;
use fivespot_core::reclaim::Request as ReclaimRequest;
use kube::api::{DeleteParams, Patch, PostParams, Preconditions};
use kube::core::Request;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What is kept of a ConfigMap in our namespace of a workload cluster.
#[derive(Debug, PartialEq)]
pub(crate) struct ConfigItem {
    /// The ScheduledMachine on whose behalf it is there.
    pub(crate) owner: Option<String>,
    /// What it says.
    pub(crate) view: observed::AgentConfig,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawConfig {
    data: BTreeMap<String, String>,
}

/// The Node whose agent reads a ConfigMap of this name.
pub(crate) fn node_of(config_map: &str) -> &str {
    config_map.strip_prefix(names::AGENT_CONFIG_PREFIX).unwrap_or_default()
}

impl Item for ConfigItem {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let MetaOnly { metadata } = serde_json::from_str(raw.get())?;
        let RawConfig { data } = serde_json::from_str(raw.get())?;
        let key = key_of(&metadata);
        let as_written = |text: &String| {
            let config = AgentConfig::parse(text).ok()?;
            (*text == config.to_toml()).then_some(config.match_commands)
        };
        let view = observed::AgentConfig {
            node: node_of(&key.name).to_owned(),
            uid: metadata.uid.unwrap_or_default(),
            commands: data.get(names::AGENT_CONFIG_KEY).and_then(as_written),
        };
        let owner = metadata.labels.and_then(|mut all| all.remove(names::MACHINE_UID_LABEL));
        Ok((key, Self { owner, view }))
    }

    fn weight(&self) -> usize {
        let observed::AgentConfig { node, uid, commands } = &self.view;
        let commands = commands.iter().flatten().map(|it| size_of::<String>() + it.len()).sum::<usize>();
        let owner = self.owner.as_ref().map_or(0, String::len);
        size_of::<Self>() + node.len() + uid.len() + owner + commands
    }
}

impl Shell {
    /// Step 5: once for each reclaim, since what tells that it was done is written in the same request.
    pub(crate) async fn disable(&self, pass: &mut Pass<'_>, reclaim: &str) -> Result<(), Error> {
        let what = "set spec.schedule.enabled to false";
        let body = json!({
            "metadata": {
                "uid": pass.watched.uid(),
                "resourceVersion": pass.version,
                "annotations": {names::DISABLED_FOR: reclaim},
            },
            "spec": {"schedule": {"enabled": false}},
        });
        match self.patch_own(pass, what, &body).await {
            // A policy that will not have it must not keep the owner from his machine: the hold does what this would.
            Err(error) if error.retry() == Retry::Refused => {
                tracing::warn!(object = %pass.watched.key(), %error, "the schedule could not be disabled");
                pass.refused = Some(error.to_string());
                Ok(())
            }
            answer => answer,
        }
    }

    pub(crate) async fn clear_own_request(&self, pass: &mut Pass<'_>) -> Result<(), Error> {
        let annotations: BTreeMap<&str, Value> =
            REQUEST.into_iter().map(|name| (name, Value::Null)).collect();
        let body = json!({"metadata": {
            "uid": pass.watched.uid(),
            "resourceVersion": pass.version,
            "annotations": annotations,
        }});
        self.patch_own(pass, "take the request off the ScheduledMachine", &body).await
    }

    /// Writes down which host is lent, where it survives a move of the object and a restore without status.
    pub(crate) async fn remember_host(&self, pass: &mut Pass<'_>, host: &LentHost) -> Result<(), Error> {
        // Three texts: writing them cannot fail.
        let text = serde_json::to_string(&HostStatus::from(host)).unwrap_or_default();
        let body = json!({"metadata": {
            "uid": pass.watched.uid(),
            "resourceVersion": pass.version,
            "annotations": {names::LENT_HOST: text},
        }});
        self.patch_own(pass, "write down which host is lent", &body).await
    }

    async fn patch_own(&self, pass: &mut Pass<'_>, what: &str, body: &Value) -> Result<(), Error> {
        let key = pass.watched.key();
        let request = Request::new(own_path(&key)).patch(&key.name, &patch_params(), &Patch::Merge(body));
        match self.send(pass, what, request).await {
            Err(error) if matches!(error.code(), Some(404 | 409)) => {
                Err(Error::Changed { what: what.to_owned() })
            }
            answer => {
                self.wrote_version(pass, &answer?);
                Ok(())
            }
        }
    }

    /// Takes a request off a Node, unless there is a newer one. A Node that is gone took its request with it.
    pub(crate) async fn clear_request(
        &self,
        pass: &mut Pass<'_>,
        node: &NodeId,
        requested_at: &str,
    ) -> Result<(), Error> {
        self.patch_node(pass, "take the request off the Node", NodePatch::of(node), |node, patch| {
            for (name, before) in REQUEST.into_iter().zip(&node.request) {
                let before = before.as_deref();
                let is_newer = |before: &str| {
                    name == names::RECLAIM_REQUESTED_AT && ReclaimRequest::time(before) != requested_at
                };
                // The test in the patch fails for a newer one.
                let before = if before.is_some_and(is_newer) { Some(requested_at) } else { before };
                patch.annotate(node, name, before, None);
            }
        })
        .await
    }

    /// Lets the reclaim agent run on a Node for a Machine, or no more. A Node that is gone has no agent.
    pub(crate) async fn arm(
        &self,
        pass: &mut Pass<'_>,
        node: &NodeId,
        machine: Option<&String>,
    ) -> Result<(), Error> {
        let what = if machine.is_some() { "arm the reclaim agent" } else { "disarm the reclaim agent" };
        self.patch_node(pass, what, NodePatch::of(node), |node, patch| {
            patch.label(node, machine.map(|_| names::AGENT_ENABLED));
            let before = node.view.armed_for.as_deref();
            patch.annotate(node, names::ARMED_FOR, before, machine.map(String::as_str));
        })
        .await
    }

    pub(crate) async fn write_agent_config(
        &self,
        pass: &mut Pass<'_>,
        node: &str,
        commands: &[String],
    ) -> Result<(), Error> {
        let what = "tell the reclaim agent what to look for";
        let name = names::agent_config_map(node);
        let metadata = &pass.watched.machine.metadata;
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": names::SYSTEM_NAMESPACE,
                "labels": {
                    names::MACHINE_LABEL: metadata.name,
                    names::MACHINE_UID_LABEL: metadata.uid,
                },
            },
            "data": {names::AGENT_CONFIG_KEY: AgentConfig::for_commands(commands).to_toml()},
        });
        let params = PostParams { field_manager: Some(CONTROLLER.to_owned()), ..PostParams::default() };
        let request = Request::new(config_maps()).create(&params, body.to_string().into_bytes());
        match self.send_to_workload(pass, what, request).await {
            Err(error) if error.code() == Some(409) => {}
            answer => return answer.map(|_| ()),
        }
        // Whoever wrote it before: this Node is lent on behalf of this ScheduledMachine.
        let path = format!("{}/{name}?fieldManager={CONTROLLER}&force=true", config_maps());
        let request = http::Request::patch(path)
            .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
            .body(body.to_string().into_bytes())
            .map_err(kube::core::request::Error::BuildRequest);
        self.send_to_workload(pass, what, request).await.map(|_| ())
    }

    pub(crate) async fn delete_agent_config(
        &self,
        pass: &mut Pass<'_>,
        node: &str,
        uid: &str,
    ) -> Result<(), Error> {
        let what = "tell the reclaim agent nothing any more";
        let only_this = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
        let params = DeleteParams::default().preconditions(only_this);
        let request = Request::new(config_maps()).delete(&names::agent_config_map(node), &params);
        match self.send_to_workload(pass, what, request).await {
            Err(error) if error.code() == Some(404) => Ok(()),
            Err(error) if error.is_race() => Err(Error::Changed { what: what.to_owned() }),
            answer => answer.map(|_| ()),
        }
    }

    async fn send_to_workload(
        &self,
        pass: &mut Pass<'_>,
        what: &str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Answer, Error> {
        let request = request.map_err(|error| Error::api(what, kube::Error::BuildRequest(error)))?;
        let reached: Reached = self.reach(pass.watched).await?;
        let _permit = reached.gate.enter(pass.admission()).await;
        self.write(pass, what, reached.client.request::<Answer>(request)).await
    }
}

/// Path of the ConfigMaps in our namespace.
pub(crate) fn config_maps() -> String {
    format!("/api/v1/namespaces/{}/configmaps", names::SYSTEM_NAMESPACE)
}
