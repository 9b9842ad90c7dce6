//! What the tasks of the simulated hosts share, and how they read and write objects.

use super::{Behaviour, Fault, Inventory, PROVIDER_WORKERS};
use crate::control_plane::{Cluster, ControlPlane, chain};
use crate::error::Error;
use futures::stream::{self, Stream, StreamExt};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::utils::Backoff;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// How soon something that failed is tried again: the world of a test is small, and its API server may have been
/// stopped on purpose.
pub(super) const RETRY: Duration = Duration::from_millis(200);

/// Changes that come together are looked at once. It also gives the event of an own write time to arrive, so that
/// nothing is written twice.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// What the tasks share.
pub(super) struct World {
    pub(super) namespace: String,
    pub(super) management: Client,
    pub(super) workload: Client,
    pub(super) inventory: Arc<Inventory>,
    /// Those that look after RemoteMachines.
    pub(super) workers: Semaphore,
    /// RemoteMachines whose hosts were cleaned up, or not if that failed, by their uids: it is tried once.
    pub(super) cleaned: Mutex<BTreeSet<String>>,
    behaviours: Mutex<Behaviours>,
    changed: watch::Sender<()>,
    /// Where the provider last saw each machine.
    endpoints: Mutex<BTreeMap<String, Endpoint>>,
    /// The names of the Nodes of machines that are real.
    real: Mutex<BTreeMap<String, String>>,
    last_error: Mutex<Option<String>>,
    /// The versions of objects that were written here, by their uids.
    written: Mutex<BTreeMap<String, u64>>,
}

/// Where an sshd listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) address: String,
    pub(super) port: i64,
}

impl Endpoint {
    pub(super) fn provider_id(&self) -> String {
        format!("remote-machine://{}:{}", self.address, self.port)
    }
}

#[derive(Debug)]
struct Behaviours {
    usual: Behaviour,
    special: BTreeMap<String, Behaviour>,
}

impl Debug for World {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("World").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl World {
    pub(super) async fn new(
        plane: &ControlPlane,
        workload: &Cluster,
        namespace: &str,
        usual: Behaviour,
    ) -> Result<Self, Error> {
        Ok(Self {
            namespace: namespace.to_owned(),
            management: plane.management().client().await?,
            workload: workload.client().await?,
            inventory: Arc::clone(plane.inventory()),
            workers: Semaphore::new(PROVIDER_WORKERS),
            cleaned: Mutex::default(),
            behaviours: Mutex::new(Behaviours { usual, special: BTreeMap::new() }),
            changed: watch::Sender::new(()),
            endpoints: Mutex::default(),
            real: Mutex::default(),
            last_error: Mutex::default(),
            written: Mutex::default(),
        })
    }

    /// Changes the behaviour of a machine; without one it is the usual one.
    pub(super) fn set(&self, machine: &str, behaviour: Option<Behaviour>) {
        let mut behaviours = lock(&self.behaviours);
        match behaviour {
            Some(behaviour) => behaviours.special.insert(machine.to_owned(), behaviour),
            None => behaviours.special.remove(machine),
        };
        drop(behaviours);
        self.look_again();
    }

    pub(super) fn set_usual(&self, behaviour: Behaviour) {
        lock(&self.behaviours).usual = behaviour;
        self.look_again();
    }

    pub(super) fn set_real(&self, machine: &str, node: &str) {
        lock(&self.real).insert(machine.to_owned(), node.to_owned());
        self.look_again();
    }

    pub(super) fn is_real(&self, machine: &str) -> bool {
        lock(&self.real).contains_key(machine)
    }

    /// Every object is looked at again.
    pub(super) fn look_again(&self) {
        self.changed.send_replace(());
    }

    pub(super) fn last_error(&self) -> Option<String> {
        lock(&self.last_error).clone()
    }

    pub(super) fn behaviour(&self, machine: &str) -> Behaviour {
        let behaviours = lock(&self.behaviours);
        behaviours.special.get(machine).unwrap_or(&behaviours.usual).clone()
    }

    pub(super) fn has(&self, machine: &str, fault: Fault) -> bool {
        let behaviours = lock(&self.behaviours);
        behaviours.special.get(machine).unwrap_or(&behaviours.usual).faults.contains(&fault)
    }

    /// Takes the time a step takes, also if that changes meanwhile, and returns whether it took any.
    pub(super) async fn pause(&self, machine: &str) -> bool {
        let mut changed = self.changed.subscribe();
        let (began, mut has_waited) = (Instant::now(), false);
        loop {
            let left = self.behaviour(machine).delay.saturating_sub(began.elapsed());
            if left.is_zero() {
                return has_waited;
            }
            has_waited = true;
            // The sender lives as long as this world does.
            let _ = tokio::time::timeout(left, changed.changed()).await;
        }
    }

    /// Every change of a behaviour from now on.
    fn changes(&self) -> impl Stream<Item = ()> + Send + 'static {
        stream::unfold(self.changed.subscribe(), |mut changed| async move {
            changed.changed().await.ok()?;
            Some(((), changed))
        })
    }

    /// Keeps in mind what a write made of an object.
    pub(super) fn wrote(&self, object: &DynamicObject) {
        if let (Some(uid), Some(version)) = (object.uid(), version(object)) {
            let mut written = lock(&self.written);
            let known = written.entry(uid).or_default();
            *known = version.max(*known);
        }
    }

    /// Whether this is an object as it was before a write of ours, whose event is still to come: acting on it would
    /// write everything twice.
    pub(super) fn is_stale(&self, object: &DynamicObject) -> bool {
        let known = object.uid().and_then(|uid| lock(&self.written).get(&uid).copied());
        known.zip(version(object)).is_some_and(|(known, version)| version < known)
    }

    pub(super) async fn patch(
        &self,
        kind: &ApiResource,
        name: &str,
        patch: Value,
    ) -> Result<(), kube::Error> {
        let outcome = self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        unless_gone(outcome.map(|object| self.wrote(&object)))
    }

    pub(super) async fn patch_status(
        &self,
        kind: &ApiResource,
        name: &str,
        status: Value,
    ) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({"status": status}));
        let outcome = self.api(kind).patch_status(name, &PatchParams::default(), &patch).await;
        unless_gone(outcome.map(|object| self.wrote(&object)))
    }

    fn remember<K: Resource>(&self, object: &K, error: &kube::Error) -> Action {
        let name = object.meta().name.as_deref().unwrap_or_default();
        *lock(&self.last_error) = Some(format!("{name}: {}", chain(error)));
        Action::requeue(RETRY)
    }

    pub(super) fn node_name(&self, machine: &str) -> String {
        let real = lock(&self.real).get(machine).cloned();
        real.unwrap_or_else(|| format!("{}-{machine}", self.namespace))
    }

    pub(super) fn usual_address(&self, machine: &str) -> String {
        format!("{machine}.{}.example", self.namespace)
    }

    /// Where a machine is; before its RemoteMachine was seen, where tests put it.
    pub(super) fn endpoint(&self, machine: &str) -> Endpoint {
        let known = lock(&self.endpoints).get(machine).cloned();
        known.unwrap_or_else(|| Endpoint { address: self.usual_address(machine), port: 22 })
    }

    pub(super) fn saw(&self, machine: &str, endpoint: Endpoint) {
        lock(&self.endpoints).insert(machine.to_owned(), endpoint);
    }

    pub(super) fn provider_id(&self, machine: &str) -> String {
        self.endpoint(machine).provider_id()
    }

    /// Waits until a machine has this fault no more.
    pub(super) async fn until_without(&self, machine: &str, fault: Fault) {
        let mut changed = self.changed.subscribe();
        while self.has(machine, fault) {
            // The sender lives as long as this world does.
            let _ = changed.changed().await;
        }
    }

    pub(super) fn machines(&self) -> Api<DynamicObject> {
        self.api(&machine_kind())
    }

    pub(super) fn api(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.management.clone(), &self.namespace, kind)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn machine_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Machine"))
}

pub(super) fn infrastructure_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "infrastructure.cluster.x-k8s.io",
        "v1beta2",
        "RemoteMachine",
    ))
}

pub(super) fn cluster_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Cluster"))
}

pub(super) fn pool_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "infrastructure.cluster.x-k8s.io",
        "v1beta2",
        "PooledRemoteMachine",
    ))
}

pub(super) fn bootstrap_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("bootstrap.cluster.x-k8s.io", "v1beta2", "K0sWorkerConfig"))
}

/// Tries again after the same time, however often: kube's own way waits for half a minute in the end.
struct Steady;

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(RETRY)
    }
}

impl Backoff for Steady {
    fn reset(&mut self) {}
}

/// Runs a controller until its task is ended. Whatever fails is tried again.
pub(super) fn run<K, F>(
    tasks: &mut JoinSet<()>,
    world: &Arc<World>,
    controller: Controller<K>,
    reconcile: impl Fn(Arc<K>, Arc<World>) -> F + Send + 'static,
) where
    K: Resource + Clone + Debug + Send + Sync + serde::de::DeserializeOwned + 'static,
    K::DynamicType: Eq + Hash + Clone + Debug + Unpin + Send + Sync,
    F: Future<Output = Result<Action, kube::Error>> + Send + 'static,
{
    let (world, changes) = (Arc::clone(world), world.changes());
    tasks.spawn(async move {
        controller
            .trigger_backoff(Steady)
            .with_config(Config::default().debounce(DEBOUNCE))
            .reconcile_all_on(changes)
            .run(reconcile, |object, error, world| world.remember(&*object, error), world)
            .for_each(|_| std::future::ready(()))
            .await;
    });
}

/// The Machine that owns an object, if there is one.
pub(super) fn owner_machine(object: &DynamicObject) -> Option<String> {
    object.owner_references().iter().find(|owner| owner.kind == "Machine").map(|owner| owner.name.clone())
}

/// Versions of one resource can be compared since Kubernetes 1.35, and always could in fact.
fn version(object: &DynamicObject) -> Option<u64> {
    object.metadata.resource_version.as_ref()?.parse().ok()
}

pub(super) fn is_deleted(object: &DynamicObject) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

pub(super) fn is_paused(object: &DynamicObject) -> bool {
    object.annotations().contains_key("cluster.x-k8s.io/paused")
}

/// Whether a condition of an object is true.
pub(super) fn is_true(object: &DynamicObject, condition: &str) -> bool {
    let conditions = object.data["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|it| it["type"] == condition && it["status"] == "True")
}

/// Adds or removes a finalizer if the object does not have it so, and returns whether that took a write: then the
/// event of it leads back with the object as it is now. The patch is good for this version of the object alone: a
/// list is written whole.
pub(super) async fn finalize(
    world: &World,
    kind: &ApiResource,
    object: &DynamicObject,
    finalizer: &str,
    wanted: bool,
) -> Result<bool, kube::Error> {
    let mut finalizers = object.finalizers().to_vec();
    if finalizers.iter().any(|present| present == finalizer) == wanted {
        return Ok(false);
    }
    finalizers.retain(|present| present != finalizer);
    if wanted {
        finalizers.push(finalizer.to_owned());
    }
    let version = &object.metadata.resource_version;
    let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
    world.patch(kind, &object.name_any(), patch).await.map(|()| true)
}

/// Deletes an object of this very identity, if it is still there.
pub(super) async fn delete<K>(api: &Api<K>, object: &K, params: DeleteParams) -> Result<(), kube::Error>
where
    K: Resource + Clone + Debug + serde::de::DeserializeOwned,
{
    let uid = object.meta().uid.clone();
    let params = params.preconditions(Preconditions { uid, resource_version: None });
    let name = object.meta().name.clone().unwrap_or_default();
    unless_gone(api.delete(&name, &params).await.map(drop))
}

/// That something is gone already, or is another one by now, is no failure of taking it away.
pub(super) fn unless_gone(outcome: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        outcome => outcome,
    }
}
