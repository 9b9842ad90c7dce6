//! The provider: bootstrap and infrastructure objects, by Cluster API's contract for providers.

use super::{
    Fault, World, bootstrap_kind, finalize, infrastructure_kind, is_deleted, is_paused, kubelet,
    machine_kind, owner_machine, run,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Error, ResourceExt};
use serde_json::json;
use std::sync::Arc;
use tokio::task::JoinSet;

/// As in k0smotron.
const INFRASTRUCTURE_FINALIZER: &str = "remotemachine.k0smotron.io/finalizer";

/// k0smotron has none. Ours makes the order visible in which Cluster API deletes.
const BOOTSTRAP_FINALIZER: &str = "k0sworkerconfig.k0smotron.io/finalizer";

pub(super) fn start(world: &Arc<World>, tasks: &mut JoinSet<()>) {
    let kind = bootstrap_kind();
    let controller = Controller::new_with(world.api(&kind), watcher::Config::default(), kind);
    run(tasks, world, controller, bootstrap);

    let kind = infrastructure_kind();
    let namespace = world.namespace.clone();
    let controller = Controller::new_with(world.api(&kind), watcher::Config::default(), kind.clone())
        // A host waits for the data it boots with, which the Machine names.
        .watches_with(world.machines(), machine_kind(), watcher::Config::default(), move |machine| {
            let name = machine.data["spec"]["infrastructureRef"]["name"].as_str().map(str::to_owned);
            name.map(|name| ObjectRef::new_with(&name, kind.clone()).within(&namespace))
        });
    run(tasks, world, controller, infrastructure);
}

/// Makes the data that a host boots with.
async fn bootstrap(object: Arc<DynamicObject>, world: Arc<World>) -> Result<Action, Error> {
    let (kind, name) = (bootstrap_kind(), object.name_any());
    let Some(object) = after_pause(&world, &kind, &object).await? else { return Ok(Action::await_change()) };
    if is_deleted(&object) {
        finalize(&world, &kind, &object, BOOTSTRAP_FINALIZER, false).await?;
        return Ok(Action::await_change());
    }
    if owner_machine(&object).is_none() || is_paused(&object) {
        return Ok(Action::await_change());
    }
    if finalize(&world, &kind, &object, BOOTSTRAP_FINALIZER, true).await? {
        return Ok(Action::await_change());
    }
    if object.data["status"]["initialization"]["dataSecretCreated"] != true {
        let owner = json!({
            "apiVersion": object.types.as_ref().map(|types| &types.api_version),
            "kind": object.types.as_ref().map(|types| &types.kind),
            "name": name,
            "uid": object.metadata.uid,
            "controller": true,
        });
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "labels": {"cluster.x-k8s.io/cluster-name": object.labels().get("cluster.x-k8s.io/cluster-name")},
                "ownerReferences": [owner],
            },
            "type": "cluster.x-k8s.io/secret",
            "stringData": {"value": "#!/bin/sh\n", "format": "cloud-config"},
        });
        let secrets = Api::<Secret>::namespaced(world.management.clone(), &world.namespace);
        let manager = PatchParams::apply("k0smotron").force();
        secrets.patch(&name, &manager, &Patch::Apply(secret)).await?;
        let status = json!({
            "ready": true,
            "dataSecretName": name,
            "initialization": {"dataSecretCreated": true},
        });
        world.patch_status(&kind, &name, status).await?;
    }
    Ok(Action::await_change())
}

/// Prepares a host and lets it join; lets it leave when it is not wanted any more.
async fn infrastructure(object: Arc<DynamicObject>, world: Arc<World>) -> Result<Action, Error> {
    let (kind, name) = (infrastructure_kind(), object.name_any());
    let Some(object) = after_pause(&world, &kind, &object).await? else { return Ok(Action::await_change()) };
    let Some(machine) = owner_machine(&object) else {
        let is_blind = world.has(&name, Fault::IgnoresDeletionWithoutMachine);
        if is_blind != is_deleted(&object) {
            finalize(&world, &kind, &object, INFRASTRUCTURE_FINALIZER, is_blind).await?;
        }
        return Ok(Action::await_change());
    };
    if is_deleted(&object) {
        kubelet::leave(&world, &name).await?;
        if !world.has(&name, Fault::FinalizerStays) {
            finalize(&world, &kind, &object, INFRASTRUCTURE_FINALIZER, false).await?;
        }
        return Ok(Action::await_change());
    }
    if is_paused(&object) {
        return Ok(Action::await_change());
    }
    if finalize(&world, &kind, &object, INFRASTRUCTURE_FINALIZER, true).await? {
        return Ok(Action::await_change());
    }
    if object.data["status"]["initialization"]["provisioned"] != true {
        let machine = world.machines().get_opt(&machine).await?;
        let has_data =
            machine.is_some_and(|machine| machine.data["spec"]["bootstrap"]["dataSecretName"].is_string());
        if !has_data {
            return Ok(Action::await_change());
        }
        world.patch(&kind, &name, json!({"spec": {"providerID": world.provider_id(&name)}})).await?;
        let status = json!({"ready": true, "initialization": {"provisioned": true}});
        world.patch_status(&kind, &name, status).await?;
        // The host joins with the event of this change, after another pause.
        return Ok(Action::await_change());
    }
    kubelet::join(&world, &name).await?;
    Ok(Action::await_change())
}

/// Takes the time of a step, and returns the object as it is afterwards, if there is anything to do about it.
async fn after_pause(
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
