//! RemoteMachines: hosts are provisioned and cleaned up over SSH.
//!
//! It goes through the same steps as k0smotron, and stops where k0smotron stops: whatever a step needs and does not
//! have holds a deletion as well as a creation. A clean-up that fails holds nothing.

use super::inventory::Installation;
use super::provider::{Condition, Owners, after_pause, owners, with_conditions};
use super::world::{
    Endpoint, RETRY, World, bootstrap_kind, finalize, infrastructure_kind, is_deleted, is_true, lock,
    machine_kind, owner_machine, pool_kind, run,
};
use super::{Fault, kubelet};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Error, ResourceExt};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tokio::task::JoinSet;

/// As in k0smotron.
const FINALIZER: &str = "remotemachine.k0smotron.io/finalizer";

/// As in k0smotron: the name of the Machine, on its Node.
const MACHINE_NAME_LABEL: &str = "k0smotron.io/machine-name";

const SUCCEEDED: [Condition; 2] = [
    Condition {
        kind: "BootstrapExecSucceeded",
        status: "True",
        reason: "BootstrapExecSucceeded",
        message: "",
    },
    Condition { kind: "Ready", status: "True", reason: "Ready", message: "" },
];

/// The conditions do not say why.
const NOT_SUCCEEDED: [Condition; 2] = [
    Condition {
        kind: "BootstrapExecSucceeded",
        status: "False",
        reason: "InternalError",
        message: "Check the bootstrap logs for more details",
    },
    Condition {
        kind: "Ready",
        status: "False",
        reason: "InternalError",
        message: "* BootstrapExecSucceeded: Check the bootstrap logs for more details",
    },
];

/// Nothing was run on the host yet.
const NOT_TRIED: [Condition; 1] = [Condition {
    kind: "Ready",
    status: "Unknown",
    reason: "NotYetReported",
    message: "* BootstrapExecSucceeded: Condition BootstrapExecSucceeded not yet reported",
}];

pub(super) fn start(world: &Arc<World>, tasks: &mut JoinSet<()>) {
    let kind = infrastructure_kind();
    let namespace = world.namespace.clone();
    let controller = Controller::new_with(world.api(&kind), watcher::Config::default(), kind.clone())
        // A host waits for the data it boots with, which the Machine names.
        .watches_with(world.machines(), machine_kind(), watcher::Config::default(), move |machine| {
            let name = machine.data["spec"]["infrastructureRef"]["name"].as_str().map(str::to_owned);
            name.map(|name| ObjectRef::new_with(&name, kind.clone()).within(&namespace))
        });
    run(tasks, world, controller, reconcile);
}

/// Why nothing more can be done for now.
enum Stop {
    /// The provider looks again, and says nothing.
    Wait,
    /// The provider looks again, and tells why.
    Failure {
        message: String,
        conditions: &'static [Condition],
    },
    Api(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Api(error)
    }
}

impl Stop {
    /// Something that was needed before anything could be run on the host.
    fn before_ssh(message: impl Into<String>) -> Self {
        Self::Failure { message: message.into(), conditions: &NOT_TRIED }
    }

    fn on_host(message: &str) -> Self {
        let message = format!("failed to provision RemoteMachine: {message}");
        Self::Failure { message, conditions: &NOT_SUCCEEDED }
    }
}

async fn reconcile(object: Arc<DynamicObject>, world: Arc<World>) -> Result<Action, Error> {
    let kind = infrastructure_kind();
    let Some(mut object) = after_pause(&world, &kind, &object).await? else {
        return Ok(Action::await_change());
    };
    let mut worker = world.workers.try_acquire().ok();
    if worker.is_none() {
        worker = world.workers.acquire().await.ok();
        // It may be another one by now.
        let Some(now) = world.api(&kind).get_opt(&object.name_any()).await? else {
            return Ok(Action::await_change());
        };
        object = now;
    }
    let outcome = look_after(&world, &object).await;
    drop(worker);
    match outcome {
        Ok(()) => Ok(Action::await_change()),
        Err(Stop::Wait) => Ok(Action::requeue(RETRY)),
        Err(Stop::Failure { message, conditions }) => {
            let failure = json!({"v1beta1": {"failureReason": "ProvisionFailed", "failureMessage": message}});
            let conditions = with_conditions(&object, conditions);
            let status = &object.data["status"];
            if status["deprecated"] != failure || status["conditions"] != conditions {
                let status = json!({"deprecated": failure, "conditions": conditions});
                world.patch_status(&kind, &object.name_any(), status).await?;
            }
            Ok(Action::requeue(RETRY))
        }
        Err(Stop::Api(error)) => Err(error),
    }
}

/// Provisions a host and lets it join; cleans it up when it is not wanted any more.
async fn look_after(world: &World, object: &DynamicObject) -> Result<(), Stop> {
    let (kind, name) = (infrastructure_kind(), object.name_any());
    if owner_machine(object).is_none() {
        let is_blind = world.has(&name, Fault::IgnoresDeletionWithoutMachine);
        if is_blind != is_deleted(object) {
            finalize(world, &kind, object, FINALIZER, is_blind).await?;
        }
        return Ok(());
    }
    if !is_deleted(object) && finalize(world, &kind, object, FINALIZER, true).await? {
        return Ok(());
    }
    let is_provisioned = object.data["status"]["initialization"]["provisioned"] == true;
    if is_provisioned && !is_deleted(object) {
        return join(world, object).await;
    }
    let Some(owners) = owners(world, object).await? else { return Err(Stop::Wait) };
    let is_ready = is_true(&owners.cluster, "InfrastructureReady");
    if !is_ready || !has_bootstrap_data(world, object, &owners).await? {
        return Err(Stop::Wait);
    }
    let spec = spec(world, object).await?;
    let endpoint = Endpoint {
        address: spec["address"].as_str().unwrap_or_default().to_owned(),
        port: spec["port"].as_i64().unwrap_or_default(),
    };
    let has_job = spec["provisionJob"].is_object();
    if !has_job {
        check_key(world, &spec).await?;
    }
    world.saw(&name, endpoint.clone());
    if is_deleted(object) {
        return clean_up(world, object, &owners, &endpoint).await;
    }
    // k0smotron has a message for this, and clears it before it writes the status.
    if !has_job && endpoint.address.is_empty() {
        return Err(Stop::Wait);
    }
    provision(world, object, &owners, &endpoint).await
}

async fn has_bootstrap_data(world: &World, object: &DynamicObject, owners: &Owners) -> Result<bool, Error> {
    let bootstrap = &owners.machine.data["spec"]["bootstrap"];
    if bootstrap["dataSecretName"].is_string() {
        return Ok(true);
    }
    if !is_deleted(object) || world.has(&object.name_any(), Fault::HangsWithoutBootstrapObject) {
        return Ok(false);
    }
    let config = bootstrap["configRef"]["name"].as_str().unwrap_or_default();
    Ok(world.api(&bootstrap_kind()).get_opt(config).await?.is_none())
}

/// What to do with a RemoteMachine: what it says, or what the machine of its pool says that is reserved for it.
async fn spec(world: &World, object: &DynamicObject) -> Result<Value, Stop> {
    let own = object.data["spec"].clone();
    let Some(pool) = own["pool"].as_str().filter(|pool| !pool.is_empty() && !is_deleted(object)) else {
        return Ok(own);
    };
    // k0smotron panics here, and tells nobody.
    if object.annotations().is_empty() {
        return Err(Stop::Wait);
    }
    let name = object.name_any();
    let api = world.api(&pool_kind());
    let mut all = api.list(&ListParams::default()).await?.items;
    all.retain(|it| it.data["spec"]["pool"] == pool);
    all.sort_by_key(ResourceExt::name_any);
    let is_reserved = |it: &&DynamicObject| it.data["status"]["reserved"] == true;
    let is_ours = |it: &&DynamicObject| is_reserved(it) && it.data["status"]["machineRef"]["name"] == name;
    let found = all.iter().find(is_ours).or_else(|| all.iter().find(|it| !is_reserved(it)));
    let Some(found) = found else { return Err(Stop::before_ssh("free pooled machine not found")) };
    reserve(world, found, Some(&name)).await?;
    let mut spec = found.data["spec"]["machine"].clone();
    spec["pool"] = json!(pool);
    let metadata = json!({"labels": found.labels(), "annotations": found.annotations()});
    world.patch(&infrastructure_kind(), &name, json!({"metadata": metadata, "spec": spec})).await?;
    Ok(spec)
}

/// Reserves a machine of a pool, or returns it.
async fn reserve(world: &World, pooled: &DynamicObject, machine: Option<&str>) -> Result<(), Error> {
    let namespace = machine.map(|_| world.namespace.as_str()).unwrap_or_default();
    let reference = json!({"name": machine.unwrap_or_default(), "namespace": namespace});
    let status = json!({"reserved": machine.is_some(), "machineRef": reference});
    if pooled.data["status"] == status {
        return Ok(());
    }
    world.patch_status(&pool_kind(), &pooled.name_any(), status).await
}

async fn check_key(world: &World, spec: &Value) -> Result<(), Stop> {
    let key = spec["sshKeyRef"]["name"].as_str().unwrap_or_default();
    if key.is_empty() {
        return Err(Stop::before_ssh("resource name may not be empty"));
    }
    let secrets = Api::<Secret>::namespaced(world.management.clone(), &world.namespace);
    match secrets.get_metadata_opt(key).await? {
        Some(_) => Ok(()),
        None => Err(Stop::before_ssh(format!("secrets \"{key}\" not found"))),
    }
}

/// Why nobody can log in on a host, in the words of the SSH client. It returns only when the host has answered.
async fn login(world: &World, machine: &str, endpoint: &Endpoint) -> Result<(), String> {
    world.until_without(machine, Fault::Silent).await;
    let Endpoint { address, port } = endpoint;
    if world.has(machine, Fault::ConnectionRefused) {
        return Err(format!(
            "failed to connect to host: dial tcp {address}:{port}: connect: connection refused"
        ));
    }
    if world.has(machine, Fault::LoginRefused) {
        let why = "ssh: handshake failed: ssh: unable to authenticate, attempted methods [none publickey]";
        return Err(format!("failed to connect to host: {why}, no supported methods remain"));
    }
    Ok(())
}

async fn provision(
    world: &World,
    object: &DynamicObject,
    owners: &Owners,
    endpoint: &Endpoint,
) -> Result<(), Stop> {
    let (kind, name) = (infrastructure_kind(), object.name_any());
    login(world, &name, endpoint).await.map_err(|why| Stop::on_host(&why))?;
    let installation = Installation {
        namespace: world.namespace.clone(),
        node: world.node_name(&name),
        machine: name.clone(),
        uid: object.uid().unwrap_or_default(),
        is_ready: None,
        has_provider_id: false,
        is_orphan: false,
    };
    if !world.inventory.install(&endpoint.address, installation) {
        return Err(Stop::on_host(
            "failed to run command: command failed: client exec: Process exited with status 1",
        ));
    }
    pass_on_metadata(world, object, &owners.machine).await?;
    world.patch(&kind, &name, json!({"spec": {"providerID": endpoint.provider_id()}})).await?;
    let status = json!({
        "initialization": {"provisioned": true},
        "addresses": [{"type": "ExternalIP", "address": endpoint.address}],
        "conditions": with_conditions(object, &SUCCEEDED),
        "deprecated": null,
    });
    // The host joins with the event of this change, after another pause.
    Ok(world.patch_status(&kind, &name, status).await?)
}

/// Labels and annotations of the RemoteMachine that the Machine does not have.
async fn pass_on_metadata(
    world: &World,
    object: &DynamicObject,
    machine: &DynamicObject,
) -> Result<(), Error> {
    let mut metadata = Map::new();
    let pairs = [
        ("labels", object.labels(), machine.labels()),
        ("annotations", object.annotations(), machine.annotations()),
    ];
    for (what, ours, theirs) in pairs {
        let missing: Map<String, Value> = ours
            .iter()
            .filter(|(key, _)| !theirs.contains_key(*key))
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        if !missing.is_empty() {
            metadata.insert(what.to_owned(), Value::Object(missing));
        }
    }
    if metadata.is_empty() {
        return Ok(());
    }
    world.patch(&machine_kind(), &machine.name_any(), json!({"metadata": metadata})).await
}

/// The kubelet registers, and then the provider says on the Node which machine it is.
async fn join(world: &World, object: &DynamicObject) -> Result<(), Stop> {
    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
    if world.is_real(&name) {
        return identify(world, object, &world.node_name(&name)).await;
    }
    kubelet::join(world, &name, &uid).await?;
    let address = world.endpoint(&name).address;
    let host = world.inventory.installation(&address).filter(|host| host.uid == uid);
    let Some(host) = host.filter(|host| host.is_ready.is_some() && !host.has_provider_id) else {
        return Ok(());
    };
    identify(world, object, &host.node).await?;
    world.inventory.update(&address, &uid, |host| host.has_provider_id = true);
    Ok(())
}

/// Writes to a Node which machine it is, if the Node is there and does not say so.
async fn identify(world: &World, object: &DynamicObject, name: &str) -> Result<(), Stop> {
    let nodes: Api<Node> = Api::all(world.workload.clone());
    let Some(node) = nodes.get_opt(name).await? else { return Err(Stop::Wait) };
    if node.spec.and_then(|spec| spec.provider_id).unwrap_or_default().is_empty() {
        let label = json!({MACHINE_NAME_LABEL: owner_machine(object)});
        let id = object.data["spec"]["providerID"].clone();
        let patch = json!({"metadata": {"labels": label}, "spec": {"providerID": id}});
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    Ok(())
}

/// Resets the host, whoever uses it and whether or not it was ever provisioned, and lets the RemoteMachine go. A host
/// that could not be reset is no reason to keep it.
async fn clean_up(
    world: &World,
    object: &DynamicObject,
    owners: &Owners,
    endpoint: &Endpoint,
) -> Result<(), Stop> {
    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
    let is_k0s = owners.machine.data["spec"]["bootstrap"]["configRef"]["kind"] == "K0sWorkerConfig";
    let is_first = !lock(&world.cleaned).contains(&uid);
    if world.has(&name, Fault::NodeNeverGone) {
        world.inventory.update(&endpoint.address, &uid, |host| host.is_orphan = true);
    } else if is_first && is_k0s {
        let is_reached = login(world, &name, endpoint).await.is_ok();
        if is_reached && !world.has(&name, Fault::CleanUpFails) {
            world.inventory.reset(&endpoint.address);
        }
        lock(&world.cleaned).insert(uid);
        if world.has(&name, Fault::NodeGoneEarly) {
            kubelet::remove(world, &world.node_name(&name)).await?;
        }
    }
    if world.has(&name, Fault::FinalizerStays) {
        return Ok(());
    }
    if object.data["spec"]["pool"].is_string() {
        let all = world.api(&pool_kind()).list(&ListParams::default()).await?;
        let is_ours = |it: &&DynamicObject| it.data["status"]["machineRef"]["name"] == name;
        if let Some(pooled) = all.items.iter().find(is_ours) {
            reserve(world, pooled, None).await?;
        }
    }
    finalize(world, &infrastructure_kind(), object, FINALIZER, false).await?;
    Ok(())
}
