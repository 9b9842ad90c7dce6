//! What both halves of the provider, bootstrap and infrastructure, have in common.

use super::world::{World, cluster_kind, is_paused, owner_machine};
use super::{remote_machine, worker_config};
use jiff::Timestamp;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::{Error, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinSet;

pub(super) fn start(world: &Arc<World>, tasks: &mut JoinSet<()>) {
    worker_config::start(world, tasks);
    remote_machine::start(world, tasks);
}

/// Whom an object of the provider belongs to.
pub(super) struct Owners {
    pub(super) machine: DynamicObject,
    pub(super) cluster: DynamicObject,
}

/// The Machine and the Cluster of an object. Without one of them, or while somebody has paused the object or the
/// Cluster, the provider does nothing, not even on a deletion.
pub(super) async fn owners(world: &World, object: &DynamicObject) -> Result<Option<Owners>, Error> {
    let Some(machine) = owner_machine(object) else { return Ok(None) };
    let Some(machine) = world.machines().get_opt(&machine).await? else { return Ok(None) };
    let name = machine.data["spec"]["clusterName"].as_str().unwrap_or_default();
    let Some(cluster) = world.api(&cluster_kind()).get_opt(name).await? else { return Ok(None) };
    let is_paused = cluster.data["spec"]["paused"] == true || is_paused(object);
    Ok((!is_paused).then_some(Owners { machine, cluster }))
}

/// Takes the time of a step, and returns the object as it is afterwards, if there is anything to do about it.
pub(super) async fn after_pause(
    world: &World,
    kind: &ApiResource,
    object: &DynamicObject,
) -> Result<Option<DynamicObject>, Error> {
    let name = object.name_any();
    if world.pause(&name).await {
        return world.api(kind).get_opt(&name).await;
    }
    Ok((!world.is_stale(object)).then(|| object.clone()))
}

/// What a condition says.
#[derive(Clone, Copy)]
pub(super) struct Condition {
    pub(super) kind: &'static str,
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: &'static str,
}

/// The conditions of an object when these are set. The time of one that says nothing new stays.
pub(super) fn with_conditions(object: &DynamicObject, wanted: &[Condition]) -> Value {
    let mut all = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let now = Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string();
    for Condition { kind, status, reason, message } in wanted {
        let new = json!({
            "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
        });
        match all.iter_mut().find(|it| it["type"] == *kind) {
            Some(old) if old["status"] == *status => {
                let since = old["lastTransitionTime"].clone();
                *old = new;
                old["lastTransitionTime"] = since;
            }
            Some(old) => *old = new,
            None => all.push(new),
        }
    }
    Value::Array(all)
}
