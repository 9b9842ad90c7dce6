//! Cluster API's part, played: what its manager does to a Machine, as far as 5-Spot can see it, and nothing of what
//! it does in between.

use super::world::{
    World, bootstrap_kind, delete, finalize, infrastructure_kind, is_deleted, machine_kind, owner_machine,
    run, unless_gone,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Error, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinSet;

const FINALIZER: &str = "machine.cluster.x-k8s.io";

/// Whoever has put one of these on a Machine is waited for.
const HOOKS: [&str; 2] =
    ["pre-drain.delete.hook.machine.cluster.x-k8s.io", "pre-terminate.delete.hook.machine.cluster.x-k8s.io"];

pub(super) fn start(world: &Arc<World>, tasks: &mut JoinSet<()>) {
    let config = watcher::Config::default;
    let kind = machine_kind();
    let mut controller = Controller::new_with(world.machines(), config(), kind.clone());
    for owned in [bootstrap_kind(), infrastructure_kind()] {
        let (kind, namespace) = (kind.clone(), world.namespace.clone());
        controller = controller.watches_with(world.api(&owned), owned, config(), move |object| {
            owner_machine(&object).map(|name| ObjectRef::new_with(&name, kind.clone()).within(&namespace))
        });
    }
    let (store, namespace) = (controller.store(), world.namespace.clone());
    let nodes: Api<Node> = Api::all(world.workload.clone());
    controller = controller.watches(nodes, config(), move |node: Node| {
        let node = node.name_any();
        let host = node.strip_prefix(&namespace).and_then(|rest| rest.strip_prefix('-')).unwrap_or_default();
        let machine = store.find(|machine| machine.data["spec"]["infrastructureRef"]["name"] == host);
        machine.map(|machine| ObjectRef::from_obj_with(&*machine, kind.clone()))
    });
    run(tasks, world, controller, machine);
}

async fn machine(machine: Arc<DynamicObject>, world: Arc<World>) -> Result<Action, Error> {
    if world.is_stale(&machine) {
        return Ok(Action::await_change());
    }
    if is_deleted(&machine) {
        take_down(&machine, &world).await?;
    } else {
        bring_up(&machine, &world).await?;
    }
    Ok(Action::await_change())
}

async fn bring_up(machine: &DynamicObject, world: &World) -> Result<(), Error> {
    if finalize(world, &machine_kind(), machine, FINALIZER, true).await? {
        return Ok(());
    }
    let spec = &machine.data["spec"];
    // What the Machine says already need not be asked for again: of hundreds of machines that would be most requests.
    let mut wanted = json!({});
    if spec["bootstrap"]["dataSecretName"].is_null() {
        let bootstrap = adopt(machine, &spec["bootstrap"]["configRef"], &bootstrap_kind(), world).await?;
        if let Some(data) = status_of(bootstrap.as_ref())["dataSecretName"].as_str() {
            wanted["bootstrap"] = json!({"dataSecretName": data});
        }
    }
    if spec["providerID"].is_null() {
        let infrastructure =
            adopt(machine, &spec["infrastructureRef"], &infrastructure_kind(), world).await?;
        let is_provisioned = status_of(infrastructure.as_ref())["initialization"]["provisioned"] == true;
        if let Some(object) = infrastructure.filter(|_| is_provisioned) {
            wanted["providerID"] = object.data["spec"]["providerID"].clone();
        }
    }
    if wanted != json!({}) {
        return world.patch(&machine_kind(), &machine.name_any(), json!({"spec": wanted})).await;
    }

    let data = spec["bootstrap"]["dataSecretName"].as_str();
    let provider_id = spec["providerID"].as_str();
    let node = match (provider_id, spec["infrastructureRef"]["name"].as_str()) {
        (Some(id), Some(host)) => {
            let nodes: Api<Node> = Api::all(world.workload.clone());
            let node = nodes.get_opt(&world.node_name(host)).await?;
            node.filter(|node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(id))
        }
        _ => None,
    };
    let is_ready = node.as_ref().is_some_and(is_ready);
    let phase = match (data, provider_id, &node) {
        (None, ..) => "Pending",
        (Some(_), None, _) => "Provisioning",
        (Some(_), Some(_), None) => "Provisioned",
        (Some(_), Some(_), Some(_)) => "Running",
    };
    let conditions = [
        ("BootstrapConfigReady", data.is_some()),
        ("InfrastructureReady", provider_id.is_some()),
        ("NodeReady", is_ready),
        ("NodeHealthy", is_ready),
        ("Ready", is_ready),
        ("Available", is_ready),
        ("Deleting", false),
    ];
    let mut status = json!({
        "phase": phase,
        "initialization": {
            "bootstrapDataSecretCreated": data.is_some(),
            "infrastructureProvisioned": provider_id.is_some(),
        },
    });
    let Some(node) = &node else { return tell(machine, status, &conditions, world).await };
    // As the real one: it patches the Node first, and the Machine at the end of its reconcile.
    mark(machine, node, world).await?;
    status["nodeRef"] = json!({"name": node.name_any()});
    tell(machine, status, &conditions, world).await
}

/// Says on the Node whose it is.
async fn mark(machine: &DynamicObject, node: &Node, world: &World) -> Result<(), Error> {
    let wanted = [
        ("cluster.x-k8s.io/cluster-name", machine.data["spec"]["clusterName"].as_str().unwrap_or_default()),
        ("cluster.x-k8s.io/cluster-namespace", machine.metadata.namespace.as_deref().unwrap_or_default()),
        ("cluster.x-k8s.io/machine", machine.metadata.name.as_deref().unwrap_or_default()),
    ];
    let annotations = node.annotations();
    if wanted.iter().all(|(key, value)| annotations.get(*key).is_some_and(|it| it == value)) {
        return Ok(());
    }
    let annotations: serde_json::Map<String, Value> =
        wanted.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    let nodes: Api<Node> = Api::all(world.workload.clone());
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    unless_gone(nodes.patch(&node.name_any(), &PatchParams::default(), &patch).await.map(drop))
}

/// In the order of the real one: infrastructure, bootstrap, Node.
async fn take_down(machine: &DynamicObject, world: &World) -> Result<(), Error> {
    tell(machine, json!({"phase": "Deleting"}), &[("Ready", false), ("Deleting", true)], world).await?;
    let is_hooked = machine.annotations().keys().any(|key| HOOKS.iter().any(|hook| key.starts_with(hook)));
    if is_hooked {
        return Ok(());
    }
    let spec = &machine.data["spec"];
    // Also on its way out: a provider may let nothing go whose bootstrap data it does not have.
    if spec["bootstrap"]["dataSecretName"].is_null() {
        let bootstrap = adopt(machine, &spec["bootstrap"]["configRef"], &bootstrap_kind(), world).await?;
        if let Some(data) = status_of(bootstrap.as_ref())["dataSecretName"].as_str() {
            let patch = json!({"spec": {"bootstrap": {"dataSecretName": data}}});
            return world.patch(&machine_kind(), &machine.name_any(), patch).await;
        }
    }
    let refs = [
        (&spec["infrastructureRef"], infrastructure_kind()),
        (&spec["bootstrap"]["configRef"], bootstrap_kind()),
    ];
    for (reference, kind) in refs {
        // It must be its own before it may go: a provider may look at nothing that has no owner.
        if let Some(object) = adopt(machine, reference, &kind, world).await? {
            if !is_deleted(&object) {
                delete(&world.api(&kind), &object, DeleteParams::default()).await?;
            }
            // The event of its end leads here again.
            return Ok(());
        }
    }
    if let Some(node) = machine.data["status"]["nodeRef"]["name"].as_str() {
        let nodes: Api<Node> = Api::all(world.workload.clone());
        unless_gone(nodes.delete(node, &DeleteParams::default()).await.map(drop))?;
    }
    finalize(world, &machine_kind(), machine, FINALIZER, false).await?;
    Ok(())
}

/// Makes the Machine the controller of an object it names, and returns the object as it is in the API.
async fn adopt(
    machine: &DynamicObject,
    reference: &Value,
    kind: &ApiResource,
    world: &World,
) -> Result<Option<DynamicObject>, Error> {
    let Some(name) = reference["name"].as_str().filter(|_| reference["kind"] == kind.kind) else {
        return Ok(None);
    };
    let api = world.api(kind);
    let Some(object) = api.get_opt(name).await? else { return Ok(None) };
    let mut owners = object.owner_references().to_vec();
    if owners.iter().any(|owner| Some(&owner.uid) == machine.metadata.uid.as_ref()) {
        return Ok(Some(object));
    }
    let owner = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Machine",
        "name": machine.name_any(),
        "uid": machine.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    });
    owners.push(serde_json::from_value(owner).map_err(Error::SerdeError)?);
    let cluster = &machine.data["spec"]["clusterName"];
    let patch = Patch::Merge(json!({"metadata": {
        "labels": {"cluster.x-k8s.io/cluster-name": cluster},
        "ownerReferences": owners,
        "resourceVersion": object.metadata.resource_version,
    }}));
    api.patch(name, &PatchParams::default(), &patch).await.map(Some)
}

/// Writes the status if it says anything new.
async fn tell(
    machine: &DynamicObject,
    mut status: Value,
    conditions: &[(&str, bool)],
    world: &World,
) -> Result<(), Error> {
    let old = &machine.data["status"];
    let mut all = old["conditions"].as_array().cloned().unwrap_or_default();
    let now = Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string();
    for &(kind, is_true) in conditions {
        let wanted = if is_true { "True" } else { "False" };
        let known = all.iter().position(|condition| condition["type"] == kind);
        if known.is_some_and(|known| all[known]["status"] == wanted) {
            continue;
        }
        // The real one has a name for each reason; nobody may rely on those.
        let reason = format!("{}{kind}", if is_true { "" } else { "Not" });
        let condition = json!({
            "type": kind, "status": wanted, "reason": reason, "message": "", "lastTransitionTime": now,
        });
        match known {
            Some(known) => all[known] = condition,
            None => all.push(condition),
        }
    }
    status["conditions"] = Value::Array(all);
    let is_old =
        status.as_object().is_some_and(|fields| fields.iter().all(|(key, value)| old[key] == *value));
    if is_old {
        return Ok(());
    }
    world.patch_status(&machine_kind(), &machine.name_any(), status).await
}

fn status_of(object: Option<&DynamicObject>) -> &Value {
    object.map_or(&Value::Null, |object| &object.data["status"])
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
