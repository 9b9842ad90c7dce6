//! Simulated hosts: everything that a machine of a namespace needs and that does not run here.
//!
//! They play the provider (bootstrap and infrastructure objects of the kinds in the place of k0smotron's, by Cluster
//! API's contract for providers), the host that joins as a Node, and its kubelet. They do what real ones do when all
//! is well, and misbehave on demand ([`Fault`]). With [`Core::Played`] they play Cluster API itself as well, for
//! tests of load, where the real manager would be what is measured.
//!
//! Nothing here polls per machine: one watch for each kind, one task for the heartbeats of all Nodes.

mod core;
mod kubelet;
mod provider;

use crate::control_plane::{Cluster, ControlPlane, chain};
use crate::error::Error;
use futures::stream::{self, Stream, StreamExt};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::utils::Backoff;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write as _};
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How soon something that failed is tried again: the world of a test is small, and its API server may have been
/// stopped on purpose.
const RETRY: Duration = Duration::from_millis(200);

/// Changes that come together are looked at once. It also gives the event of an own write time to arrive, so that
/// nothing is written twice.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// Time that a pod gets to end, unless a test says otherwise.
const TERMINATION: Duration = Duration::from_millis(100);

/// Who plays the core of Cluster API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Core {
    /// The real manager ([`ClusterApi::Manager`](crate::ClusterApi)).
    Real,
    /// The simulated hosts, on v1beta2 alone. They never drain.
    Played,
}

/// What can be wrong with a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Its Node is NotReady, from the start or from now on.
    NotReady,
    /// It is provisioned but never registers a Node.
    NeverJoins,
    /// Its infrastructure object keeps its finalizer.
    FinalizerStays,
    /// Its Node disappears as soon as its infrastructure begins to be deleted.
    NodeGoneEarly,
    /// Its kubelet registers its Node again whenever that was deleted, also when the infrastructure is gone. When
    /// this fault ends, a host without infrastructure ends too and its Node is removed.
    NodeNeverGone,
    /// Pods that are deleted never end.
    PodsNeverEnd,
    /// The provider ignores the deletion of infrastructure that never had a Machine, as k0smotron does: it has put
    /// its finalizer there and looks no further without an owner.
    IgnoresDeletionWithoutMachine,
}

/// How a machine behaves. The default is: at once, and well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behaviour {
    /// Time it takes before each step of the provider.
    pub delay: Duration,
    /// Time a deleted pod takes to end.
    pub termination: Duration,
    /// What is wrong with it.
    pub faults: BTreeSet<Fault>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { delay: Duration::ZERO, termination: TERMINATION, faults: BTreeSet::new() }
    }
}

impl Behaviour {
    /// Takes its time before each step.
    pub fn slow(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    /// Has these faults.
    pub fn faulty(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self { faults: faults.into_iter().collect(), ..Self::default() }
    }
}

impl From<Fault> for Behaviour {
    fn from(fault: Fault) -> Self {
        Self::faulty([fault])
    }
}

/// The simulated hosts of one namespace. They live in the runtime they were started in and end when this is dropped;
/// what they registered stays.
#[derive(Debug)]
pub struct Hosts {
    world: Arc<World>,
    _tasks: JoinSet<()>,
}

impl Hosts {
    /// Starts to look after the machines of a namespace of the management cluster, which all behave so unless
    /// [`Hosts::set`] says otherwise.
    pub async fn start(
        plane: &ControlPlane,
        namespace: &str,
        core: Core,
        behaviour: Behaviour,
    ) -> Result<Self, Error> {
        Self::start_in(plane, plane.workload(), namespace, core, behaviour).await
    }

    /// The same, with Nodes in this cluster.
    pub async fn start_in(
        plane: &ControlPlane,
        workload: &Cluster,
        namespace: &str,
        core: Core,
        behaviour: Behaviour,
    ) -> Result<Self, Error> {
        let world = Arc::new(World {
            namespace: namespace.to_owned(),
            management: plane.management().client().await?,
            workload: workload.client().await?,
            behaviours: Mutex::new(Behaviours { usual: behaviour, special: BTreeMap::new() }),
            changed: watch::Sender::new(()),
            hosts: Mutex::default(),
            last_error: Mutex::default(),
            written: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        provider::start(&world, &mut tasks);
        kubelet::start(&world, &mut tasks);
        match core {
            Core::Real => {}
            Core::Played => core::start(&world, &mut tasks),
        }
        Ok(Self { world, _tasks: tasks })
    }

    /// From now on the machine whose infrastructure object has this name behaves so.
    pub fn set(&self, machine: &str, behaviour: impl Into<Behaviour>) {
        lock(&self.world.behaviours).special.insert(machine.to_owned(), behaviour.into());
        self.world.changed.send_replace(());
    }

    /// From now on all machines behave so that nothing else was said of.
    pub fn set_usual(&self, behaviour: impl Into<Behaviour>) {
        lock(&self.world.behaviours).usual = behaviour.into();
        self.world.changed.send_replace(());
    }

    /// From now on the machine behaves as all others do.
    pub fn reset(&self, machine: &str) {
        lock(&self.world.behaviours).special.remove(machine);
        self.world.changed.send_replace(());
    }

    /// What failed last, for the message of a test that waits in vain. Everything that fails is tried again, and
    /// conflicts are part of daily life, so this says nothing about a test that passes.
    pub fn last_error(&self) -> Option<String> {
        lock(&self.world.last_error).clone()
    }

    /// The Node that the machine whose infrastructure object has this name registers.
    pub fn node_name(&self, machine: &str) -> String {
        self.world.node_name(machine)
    }

    /// What the machine finds in its `/etc/machine-id`, and its Node says in `status.nodeInfo.machineID`.
    pub fn machine_id(&self, machine: &str) -> String {
        self.world.machine_id(machine)
    }
}

/// What the tasks share.
struct World {
    namespace: String,
    management: Client,
    workload: Client,
    behaviours: Mutex<Behaviours>,
    changed: watch::Sender<()>,
    /// The hosts that run, by the names of their Nodes.
    hosts: Mutex<BTreeMap<String, Host>>,
    last_error: Mutex<Option<String>>,
    /// The versions of objects that were written here, by their uids.
    written: Mutex<BTreeMap<String, u64>>,
}

#[derive(Debug)]
struct Behaviours {
    usual: Behaviour,
    special: BTreeMap<String, Behaviour>,
}

/// A host that runs.
#[derive(Debug, Clone)]
struct Host {
    /// Name of its infrastructure object.
    machine: String,
    /// Whether it last said so of itself.
    is_ready: bool,
    /// Whether its infrastructure is gone, and it runs on by a fault.
    is_orphan: bool,
}

impl Debug for World {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("World").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl World {
    fn behaviour(&self, machine: &str) -> Behaviour {
        let behaviours = lock(&self.behaviours);
        behaviours.special.get(machine).unwrap_or(&behaviours.usual).clone()
    }

    fn has(&self, machine: &str, fault: Fault) -> bool {
        let behaviours = lock(&self.behaviours);
        behaviours.special.get(machine).unwrap_or(&behaviours.usual).faults.contains(&fault)
    }

    /// Takes the time a step takes, also if that changes meanwhile, and returns whether it took any.
    async fn pause(&self, machine: &str) -> bool {
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
    fn wrote(&self, object: &DynamicObject) {
        if let (Some(uid), Some(version)) = (object.uid(), version(object)) {
            let mut written = lock(&self.written);
            let known = written.entry(uid).or_default();
            *known = version.max(*known);
        }
    }

    /// Whether this is an object as it was before a write of ours, whose event is still to come: acting on it would
    /// write everything twice.
    fn is_stale(&self, object: &DynamicObject) -> bool {
        let known = object.uid().and_then(|uid| lock(&self.written).get(&uid).copied());
        known.zip(version(object)).is_some_and(|(known, version)| version < known)
    }

    async fn patch(&self, kind: &ApiResource, name: &str, patch: Value) -> Result<(), kube::Error> {
        let outcome = self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        unless_gone(outcome.map(|object| self.wrote(&object)))
    }

    async fn patch_status(&self, kind: &ApiResource, name: &str, status: Value) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({"status": status}));
        let outcome = self.api(kind).patch_status(name, &PatchParams::default(), &patch).await;
        unless_gone(outcome.map(|object| self.wrote(&object)))
    }

    fn remember<K: Resource>(&self, object: &K, error: &kube::Error) -> Action {
        let name = object.meta().name.as_deref().unwrap_or_default();
        *lock(&self.last_error) = Some(format!("{name}: {}", chain(error)));
        Action::requeue(RETRY)
    }

    fn hosts(&self) -> MutexGuard<'_, BTreeMap<String, Host>> {
        lock(&self.hosts)
    }

    fn node_name(&self, machine: &str) -> String {
        format!("{}-{machine}", self.namespace)
    }

    fn provider_id(&self, machine: &str) -> String {
        format!("remote-machine://{}/{machine}", self.namespace)
    }

    fn machine_id(&self, machine: &str) -> String {
        digest(&self.provider_id(machine)).iter().fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    fn machines(&self) -> Api<DynamicObject> {
        self.api(&machine_kind())
    }

    fn api(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.management.clone(), &self.namespace, kind)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sixteen bytes that only this text has.
fn digest(text: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Sha256::digest(text)[..16]);
    bytes
}

fn machine_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Machine"))
}

fn infrastructure_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "infrastructure.cluster.x-k8s.io",
        "v1beta2",
        "RemoteMachine",
    ))
}

fn bootstrap_kind() -> ApiResource {
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
fn run<K, F>(
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
fn owner_machine(object: &DynamicObject) -> Option<String> {
    object.owner_references().iter().find(|owner| owner.kind == "Machine").map(|owner| owner.name.clone())
}

/// Versions of one resource can be compared since Kubernetes 1.35, and always could in fact.
fn version(object: &DynamicObject) -> Option<u64> {
    object.metadata.resource_version.as_ref()?.parse().ok()
}

fn is_deleted(object: &DynamicObject) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

fn is_paused(object: &DynamicObject) -> bool {
    object.annotations().contains_key("cluster.x-k8s.io/paused")
}

/// Adds or removes a finalizer if the object does not have it so, and returns whether that took a write: then the
/// event of it leads back with the object as it is now. The patch is good for this version of the object alone: a
/// list is written whole.
async fn finalize(
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
async fn delete<K>(api: &Api<K>, object: &K, params: DeleteParams) -> Result<(), kube::Error>
where
    K: Resource + Clone + Debug + serde::de::DeserializeOwned,
{
    let uid = object.meta().uid.clone();
    let params = params.preconditions(Preconditions { uid, resource_version: None });
    let name = object.meta().name.clone().unwrap_or_default();
    unless_gone(api.delete(&name, &params).await.map(drop))
}

/// That something is gone already, or is another one by now, is no failure of taking it away.
fn unless_gone(outcome: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        outcome => outcome,
    }
}
