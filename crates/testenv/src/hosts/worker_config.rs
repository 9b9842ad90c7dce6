//! K0sWorkerConfigs: the data that hosts boot with.

use super::provider::{Condition, Owners, after_pause, owners, with_conditions};
use super::world::{RETRY, World, bootstrap_kind, is_deleted, is_true, owner_machine, run};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, Error, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinSet;

const WAITING: [Condition; 2] = waiting(["DataSecretAvailable", "Ready"]);

const fn waiting(kinds: [&'static str; 2]) -> [Condition; 2] {
    let condition = Condition {
        kind: kinds[0],
        status: "False",
        reason: "WaitingForControlPlaneInitialization",
        message: "Control plane is not ready yet",
    };
    [condition, Condition { kind: kinds[1], ..condition }]
}

const AVAILABLE: [Condition; 2] = [
    Condition {
        kind: "DataSecretAvailable",
        status: "True",
        reason: "ConfigSecretAvailable",
        message: "Bootstrap secret created",
    },
    Condition { kind: "Ready", status: "True", reason: "Ready", message: "" },
];

pub(super) fn start(world: &Arc<World>, tasks: &mut JoinSet<()>) {
    let kind = bootstrap_kind();
    let controller = Controller::new_with(world.api(&kind), watcher::Config::default(), kind);
    run(tasks, world, controller, reconcile);
}

/// Like k0smotron's, it has no finalizer: nothing is left to do when it is deleted.
async fn reconcile(object: Arc<DynamicObject>, world: Arc<World>) -> Result<Action, Error> {
    let (kind, name) = (bootstrap_kind(), object.name_any());
    let Some(object) = after_pause(&world, &kind, &object).await? else { return Ok(Action::await_change()) };
    let is_done = object.data["status"]["initialization"]["dataSecretCreated"] == true;
    if is_done || is_deleted(&object) || owner_machine(&object).is_none() {
        return Ok(Action::await_change());
    }
    let Some(Owners { cluster, .. }) = owners(&world, &object).await? else {
        return Ok(Action::requeue(RETRY));
    };
    let has_endpoint = cluster.data["spec"]["controlPlaneEndpoint"]["host"].is_string();
    if !has_endpoint || !is_true(&cluster, "ControlPlaneInitialized") {
        let conditions = with_conditions(&object, &WAITING);
        if conditions != object.data["status"]["conditions"] {
            world.patch_status(&kind, &name, json!({"conditions": conditions})).await?;
        }
        return Ok(Action::requeue(RETRY));
    }
    let secrets = Api::<Secret>::namespaced(world.management.clone(), &world.namespace);
    let manager = PatchParams::apply("k0smotron").force();
    secrets.patch(&name, &manager, &Patch::Apply(secret(&object))).await?;
    let status = json!({
        "dataSecretName": name,
        "initialization": {"dataSecretCreated": true},
        "conditions": with_conditions(&object, &AVAILABLE),
    });
    world.patch_status(&kind, &name, status).await?;
    Ok(Action::await_change())
}

fn secret(object: &DynamicObject) -> Value {
    let owner = json!({
        "apiVersion": object.types.as_ref().map(|types| &types.api_version),
        "kind": object.types.as_ref().map(|types| &types.kind),
        "name": object.name_any(),
        "uid": object.metadata.uid,
        "controller": true,
    });
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": object.name_any(),
            "labels": {"cluster.x-k8s.io/cluster-name": object.labels().get("cluster.x-k8s.io/cluster-name")},
            "ownerReferences": [owner],
        },
        "type": "cluster.x-k8s.io/secret",
        "stringData": {"value": "#!/bin/sh\n", "format": "cloud-config"},
    })
}
