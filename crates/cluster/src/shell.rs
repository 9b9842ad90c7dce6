//! What the controller holds of the world: the watches, the clients, and who must hear of what.

use crate::cache::{Cache, Health, Key, Source};
use crate::capi::{CapiVersion, ClusterItem, GROUP, MachineItem};
use crate::client::Caller;
use crate::gate::Gate;
use crate::kinds::{Kinds, Place};
use crate::parts::PartItem;
use crate::rivals::{self, Share, Shares};
use crate::supervisor::Supervisor;
use crate::watched::Watched;
use crate::workload::{ClusterId, ManagementNamespaces, SecretId, Wanted, WithoutSecret, Workloads, wanted};
use fivespot_api::names::{self, CONTROLLER};
use fivespot_core::claim::{Claim, Rival};
use fivespot_core::intent::ObjectType;
use fivespot_core::lifecycle::{Patience, Phase};
use fivespot_core::servers::AllowedServers;
use kube::Client;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often it is asked whether Cluster API is served, while it is not.
const CAPI_MISSING: Duration = Duration::from_secs(15);

/// How long the first list of a kind is awaited before the server is asked for each object.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// How long the event of a write of ours is awaited.
const OWN_WRITE: Duration = Duration::from_secs(5);

/// Which machines this process looks after.
pub trait Right: Send + Sync {
    /// The slot that a ScheduledMachine is in.
    fn slot(&self, key: &Key) -> u32;

    /// For how long this process may write on its behalf, if it may. Asked before every single write.
    fn remaining(&self, key: &Key) -> Option<Duration>;

    /// Whether another write may be begun. One that is under way may end also when it may not.
    fn may_begin(&self, key: &Key) -> bool;
}

/// The right of one who only looks.
struct NoRight;

impl Right for NoRight {
    fn slot(&self, _: &Key) -> u32 {
        0
    }

    fn remaining(&self, _: &Key) -> Option<Duration> {
        None
    }

    fn may_begin(&self, _: &Key) -> bool {
        false
    }
}

/// How the shell behaves.
#[derive(Clone)]
pub struct Settings {
    /// The version of Cluster API to speak; without one, the best that is served.
    pub capi_version: Option<CapiVersion>,
    /// How long deletions wait.
    pub patience: Patience,
    /// Whose machines may be in the management cluster itself.
    pub management_namespaces: ManagementNamespaces,
    /// The servers that kubeconfig Secrets may lead to.
    pub allowed_servers: AllowedServers,
    /// Name of this instance; events and requests carry it.
    pub instance: String,
    /// Which machines it looks after.
    pub right: Arc<dyn Right>,
}

/// Who looks, and how.
struct Eyes {
    /// How it presents itself to servers.
    caller: Caller,
    /// Whether it watches, or asks the server for every single thing.
    watches: bool,
}

/// Why a ScheduledMachine should be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Something around it changed.
    World,
    /// The object shows what we wrote ourselves.
    Own,
    /// Somebody wants his machine back, and nobody knows it yet: whatever is being done about it can wait.
    Urgent,
}

type Notify = Arc<dyn Fn(&Key, Change) + Send + Sync>;

/// Everything between decisions and API servers.
pub struct Shell {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) gate: Arc<Gate>,
    pub(crate) kinds: Arc<Kinds>,
    supervisor: Arc<Supervisor>,
    pub(crate) workloads: Workloads,
    pub(crate) machines: Cache<MachineItem>,
    pub(crate) clusters: Cache<ClusterItem>,
    objects: Cache<Watched>,
    capi: watch::Sender<Capi>,
    providers: Mutex<HashMap<(String, String), Provider>>,
    interest: Mutex<Interest>,
    written: Mutex<HashMap<Key, Written>>,
    shares: Mutex<Shares>,
    steps: Mutex<HashMap<Key, u16>>,
    notify: Notify,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Whether it watches, or asks the server for every single thing.
    watches: bool,
}

/// What we wrote last of an object.
struct Written {
    version: String,
    at: Instant,
}

/// Which machines must hear of which Node. Two may lend the same host by turns.
#[derive(Default)]
struct Interest {
    of_node: HashMap<(ClusterId, String), BTreeSet<Key>>,
    of_machine: HashMap<Key, (ClusterId, String)>,
}

impl Interest {
    fn set(&mut self, key: &Key, node: (ClusterId, String)) {
        if self.of_machine.get(key) == Some(&node) {
            return;
        }
        self.forget(key);
        self.of_node.entry(node.clone()).or_default().insert(key.clone());
        self.of_machine.insert(key.clone(), node);
    }

    fn forget(&mut self, key: &Key) {
        let Some(node) = self.of_machine.remove(key) else { return };
        if let Some(keys) = self.of_node.get_mut(&node) {
            keys.remove(key);
            if keys.is_empty() {
                self.of_node.remove(&node);
            }
        }
    }
}

/// Whether Cluster API is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Capi {
    /// Nobody has answered yet.
    Unknown,
    /// It is not, in any version.
    Missing,
    /// It is, and not in a version that we speak, or may speak. What runs must be left alone.
    OtherVersion,
    /// It is, in this version.
    Served(CapiVersion, CapiPlaces),
}

/// Where Machines and Clusters are had: the version that is spoken first, then the others that are served, through
/// which all but creating is done while the first does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CapiPlaces {
    pub(crate) machines: Vec<Place>,
    pub(crate) clusters: Vec<Place>,
}

/// The watch of one kind of provider objects.
struct Provider {
    cache: Cache<PartItem>,
    task: JoinHandle<()>,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(JoinHandle::abort);
        let providers = self.providers.get_mut().unwrap_or_else(PoisonError::into_inner);
        for provider in providers.values() {
            provider.task.abort();
        }
    }
}

impl Shell {
    /// Begins to watch. `notify` hears of every ScheduledMachine that should be looked at.
    pub fn start(
        client: Client,
        settings: Settings,
        notify: impl Fn(&Key, Change) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let caller = Caller { program: CONTROLLER, instance: Some(settings.instance.clone()) };
        let eyes = Eyes { caller, watches: true };
        let shell = Self::new(client, settings, Arc::new(notify), eyes);
        let follow_objects = {
            let (weak, client, objects) =
                (Arc::downgrade(&shell), shell.client.clone(), shell.objects.clone());
            move || follow_objects(Weak::clone(&weak), client.clone(), objects.clone())
        };
        let weak = Arc::downgrade(&shell);
        let tasks = vec![
            shell.supervisor.keep("scheduledmachines", String::new(), follow_objects),
            shell.supervisor.keep("cluster_api", String::new(), move || follow_capi(Weak::clone(&weak))),
        ];
        *shell.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
        shell
    }

    /// One that watches nothing and never writes: for a single look at a single machine.
    pub async fn glance(client: Client, program: &'static str) -> Result<Arc<Self>, crate::Error> {
        let settings = Settings {
            capi_version: None,
            patience: Patience::Endless,
            management_namespaces: ManagementNamespaces::AsShown,
            allowed_servers: AllowedServers::default(),
            instance: String::new(),
            right: Arc::new(NoRight),
        };
        let shell =
            Self::new(client, settings, Arc::new(|_, _| {}), Eyes { caller: program.into(), watches: false });
        shell.capi.send_replace(find_capi(&shell).await?);
        Ok(shell)
    }

    fn new(client: Client, settings: Settings, notify: Notify, eyes: Eyes) -> Arc<Self> {
        let Eyes { caller, watches } = eyes;
        Arc::new_cyclic(|shell: &Weak<Self>| {
            let (of_node, of_cluster) = (Weak::clone(shell), Weak::clone(shell));
            let node_changed = move |cluster: &ClusterId, node: &str, asks: bool| {
                if let Some(shell) = of_node.upgrade() {
                    shell.node_changed(cluster, node, asks);
                }
            };
            let cluster_changed = move |cluster: &ClusterId| {
                if let Some(shell) = of_cluster.upgrade() {
                    shell.workload_changed(cluster);
                }
            };
            let (gate, supervisor) = (Arc::<Gate>::default(), Arc::<Supervisor>::default());
            let workloads = Workloads::new(
                client.clone(),
                Arc::clone(&gate),
                (caller, settings.allowed_servers.clone()),
                Arc::clone(&supervisor),
                (Arc::new(node_changed), Arc::new(cluster_changed)),
            );
            Self {
                client,
                settings,
                gate,
                kinds: Arc::default(),
                supervisor,
                workloads,
                machines: Cache::new("machines"),
                clusters: Cache::new("clusters"),
                objects: Cache::new("scheduledmachines"),
                capi: watch::Sender::new(Capi::Unknown),
                providers: Mutex::default(),
                interest: Mutex::default(),
                written: Mutex::default(),
                shares: Mutex::default(),
                steps: Mutex::default(),
                notify,
                tasks: Mutex::default(),
                watches,
            }
        })
    }

    /// How often background tasks panicked and were started again, by what they do.
    pub fn restarts(&self) -> BTreeMap<&'static str, u64> {
        self.supervisor.restarts()
    }

    /// A ScheduledMachine.
    pub fn get(&self, key: &Key) -> Option<Arc<Watched>> {
        self.objects.get(key)
    }

    /// All ScheduledMachines.
    pub fn all(&self) -> Vec<(Key, Arc<Watched>)> {
        self.objects.all()
    }

    /// Returns when enough is known to decide anything.
    pub async fn ready(&self) {
        self.objects.synced().await;
        let mut capi = self.capi.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let known = capi.wait_for(|capi| *capi != Capi::Unknown).await.map(|capi| capi.clone());
        if let Ok(Capi::Served(..)) = known {
            self.machines.synced().await;
            self.clusters.synced().await;
        }
    }

    /// How the watches are doing that every decision rests on.
    pub fn health(&self) -> Vec<(String, Health)> {
        let mut all = vec![(self.objects.what().to_owned(), self.objects.health())];
        if let Capi::Served(..) = self.capi() {
            all.push((self.machines.what().to_owned(), self.machines.health()));
            all.push((self.clusters.what().to_owned(), self.clusters.health()));
        }
        all
    }

    /// How the workload cluster of a ScheduledMachine is found.
    pub(crate) fn wanted(&self, watched: &Watched) -> Wanted {
        wanted(watched, &self.settings.management_namespaces)
    }

    pub(crate) fn capi(&self) -> Capi {
        self.capi.borrow().clone()
    }

    /// Remembers what we wrote, to know our own hand when it comes back by the watch.
    pub(crate) fn wrote(&self, key: &Key, version: &str) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(key.clone(), Written { version: version.to_owned(), at: Instant::now() });
    }

    /// Whether this is an object as it was before a write of ours, whose event is still to come: whatever is decided
    /// on it was decided before, and people would be told twice. Not for long, since a server that was restored from
    /// a backup counts from a lower number.
    pub fn is_behind(&self, watched: &Watched) -> bool {
        let number = |version: &str| version.parse::<u64>().ok();
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(written) = written.get(&watched.key()).filter(|it| it.at.elapsed() < OWN_WRITE) else {
            return false;
        };
        let seen = watched.machine.metadata.resource_version.as_deref().and_then(number);
        seen.zip(number(&written.version)).is_some_and(|(seen, written)| seen < written)
    }

    /// How many writes a machine has had since it last came to rest.
    pub(crate) fn steps(&self, key: &Key) -> u16 {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().unwrap_or(0)
    }

    /// Keeps that in mind; `None` if it rests.
    pub(crate) fn set_steps(&self, key: &Key, steps: Option<u16>) {
        let mut all = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        match steps {
            Some(steps) => all.insert(key.clone(), steps),
            None => all.remove(key),
        };
    }

    fn object_changed(&self, key: &Key) {
        let watched = self.objects.get(key);
        // Whoever shares a host with it may have to give way, or need not any more.
        let others = self.shares.lock().unwrap_or_else(PoisonError::into_inner).set(key, watched.as_deref());
        for other in &others {
            (self.notify)(other, Change::World);
        }
        let Some(watched) = watched else {
            self.written.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
            self.set_steps(key, None);
            self.interest.lock().unwrap_or_else(PoisonError::into_inner).forget(key);
            (self.notify)(key, Change::World);
            return;
        };
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let version = watched.machine.metadata.resource_version.as_ref();
        let is_own = written.get(key).is_some_and(|written| Some(&written.version) == version);
        drop(written);
        let annotations = watched.machine.metadata.annotations.as_ref();
        let asks =
            annotations.is_some_and(|all| all.get(names::RECLAIM_REQUESTED).is_some_and(|it| it == "true"));
        let change = match is_own {
            true => Change::Own,
            false if (asks || watched.machine.spec.kill_switch) && !is_hurrying(&watched) => Change::Urgent,
            false => Change::World,
        };
        (self.notify)(key, change);
    }

    /// Lets go of workload clusters of which no ScheduledMachine is left, and watches those in which one has a Node, even
    /// if another instance looks after it: whoever takes over knows the Nodes already. To be called now and then.
    pub fn tidy(&self) {
        let all = self.objects.all();
        let used: HashSet<SecretId> = all.iter().map(|(_, watched)| self.wanted(watched).secret).collect();
        self.workloads.keep_only(|id| used.contains(id));
        // Of a host that was lent and handed back it must be noticed if it comes back.
        let has_node = |watched: &Watched| {
            let status = watched.machine.status.as_ref();
            status.is_some_and(|status| status.node_ref.is_some() || status.host.is_some())
        };
        let lent = all.iter().filter(|(_, watched)| has_node(watched));
        let lent: HashSet<SecretId> = lent.map(|(_, watched)| self.wanted(watched).secret).collect();
        for id in &lent {
            self.workloads.watch(id);
        }
    }

    fn cluster_changed(&self, cluster: &Key) {
        let in_it = |key: &Key, watched: &Watched| {
            key.namespace == cluster.namespace && watched.machine.spec.cluster_name == cluster.name
        };
        self.objects.keys(in_it).iter().for_each(|key| (self.notify)(key, Change::World));
    }

    fn node_changed(&self, cluster: &ClusterId, node: &str, asks: bool) {
        let interest = self.interest.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = interest.of_node.get(&(cluster.clone(), node.to_owned())).cloned().unwrap_or_default();
        drop(interest);
        for key in keys {
            let is_news = asks && self.objects.get(&key).is_some_and(|watched| !is_hurrying(&watched));
            (self.notify)(&key, if is_news { Change::Urgent } else { Change::World });
        }
    }

    fn workload_changed(&self, cluster: &ClusterId) {
        let in_it = |_: &Key, watched: &Watched| match cluster {
            ClusterId::Management => self.wanted(watched).without_secret == WithoutSecret::ManagementCluster,
            ClusterId::Secret(secret) => self.wanted(watched).secret == *secret,
        };
        self.objects.keys(in_it).iter().for_each(|key| (self.notify)(key, Change::World));
    }

    /// For one that watches nothing: reads the other machines, as far as that is allowed, since one of them may have the
    /// same host.
    pub async fn read_rivals(&self, namespace: &str) {
        let all = match self.read(None, None).await {
            Err(_) => self.read(Some(namespace), None).await.unwrap_or_default(),
            Ok(all) => all,
        };
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        for watched in all {
            shares.set(&watched.key(), Some(&watched));
            self.objects.put(watched.key(), watched);
        }
    }

    /// The other ScheduledMachines that give this address to their provider.
    pub(crate) fn rivals(&self, watched: &Watched) -> Vec<Rival> {
        let Some(address) = rivals::address(watched) else { return Vec::new() };
        self.sharers(watched, &address).iter().map(|other| rivals::rival(other)).collect()
    }

    /// The other ScheduledMachines that ended up on this Node.
    pub(crate) fn node_rivals(&self, watched: &Watched, node: &str) -> Vec<Claim> {
        let share = Share::Node(node.to_owned());
        self.sharers(watched, &share).iter().map(|other| rivals::claim(other)).collect()
    }

    fn sharers(&self, watched: &Watched, share: &Share) -> Vec<Arc<Watched>> {
        let others = self.shares.lock().unwrap_or_else(PoisonError::into_inner).with(share, &watched.key());
        others.iter().filter_map(|other| self.objects.get(other)).collect()
    }

    /// A change of this Node is a change for this ScheduledMachine.
    pub(crate) fn care_for(&self, cluster: &ClusterId, node: &str, key: &Key) {
        let node = (cluster.clone(), node.to_owned());
        self.interest.lock().unwrap_or_else(PoisonError::into_inner).set(key, node);
    }

    /// The watch of a kind of provider objects, whole if possible; begun when the kind is first asked for.
    pub(crate) async fn provider(&self, kind: &ObjectType, places: &[Place]) -> Cache<PartItem> {
        if !self.watches {
            return Cache::new(format!("{}.{}", kind.kind, kind.group));
        }
        let cache = self.watch_provider(kind, places);
        let _ = tokio::time::timeout(FIRST_LIST, cache.tried()).await;
        cache
    }

    /// All objects of a kind, in any version that answers.
    fn source(&self, places: &[Place]) -> Source {
        let paths = places.iter().map(|place| place.path(None)).collect();
        Source { paths, ..Source::of(self.client.clone(), "") }
    }

    fn watch_provider(&self, kind: &ObjectType, places: &[Place]) -> Cache<PartItem> {
        let mut providers = self.providers.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (kind.group.clone(), kind.kind.clone());
        if let Some(provider) = providers.get(&id).filter(|provider| !provider.task.is_finished()) {
            return provider.cache.clone();
        }
        let cache = Cache::new(format!("{}.{}", kind.kind, kind.group));
        let source = Source { metadata_only: true, ..self.source(places) };
        let task = {
            let (cache, notify) = (cache.clone(), Arc::clone(&self.notify));
            let (kinds, group) = (Arc::clone(&self.kinds), kind.group.clone());
            self.supervisor.keep("provider", cache.what().to_owned(), move || {
                let (cache, notify, source) = (cache.clone(), Arc::clone(&notify), source.clone());
                let (kinds, group) = (Arc::clone(&kinds), group.clone());
                async move {
                    cache.follow(source, |key| notify(key, Change::World)).await;
                    kinds.forget(&group);
                }
            })
        };
        providers.insert(id, Provider { cache: cache.clone(), task });
        cache
    }
}

async fn follow_objects(shell: Weak<Shell>, client: Client, objects: Cache<Watched>) {
    let source = Source::of(client, "/apis/5spot.finos.org/v1alpha1/scheduledmachines");
    let changed = |key: &Key| {
        if let Some(shell) = shell.upgrade() {
            shell.object_changed(key);
        }
    };
    loop {
        objects.follow(source.clone(), changed).await;
        // Our own kind is not served: the CRD is not installed yet.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Finds out which version of Cluster API is served and watches it, until it is not served any more.
async fn follow_capi(weak: Weak<Shell>) {
    loop {
        let Some(shell) = weak.upgrade() else { return };
        let found = find_capi(&shell).await;
        match &found {
            Ok(capi) => {
                let changed = shell.capi.send_replace(capi.clone()) != *capi;
                if changed {
                    let notify = |(key, _): &(Key, Arc<Watched>)| (shell.notify)(key, Change::World);
                    shell.all().iter().for_each(notify);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot tell which version of Cluster API is served"),
        }
        let Ok(Capi::Served(version, CapiPlaces { machines, clusters })) = found else {
            drop(shell);
            tokio::time::sleep(CAPI_MISSING).await;
            continue;
        };
        tracing::info!(version = version.word(), "watching Cluster API");
        // All Machines, not only those with our label: one that is not ours may have a name we need.
        let (of_machines, of_clusters) = (shell.source(&machines), shell.source(&clusters));
        let (machines, clusters) = (shell.machines.clone(), shell.clusters.clone());
        let notify = Arc::clone(&shell.notify);
        drop(shell);
        let cluster_changed = |key: &Key| {
            if let Some(shell) = weak.upgrade() {
                shell.cluster_changed(key);
            }
        };
        tokio::select! {
            () = machines.follow(of_machines, |key| notify(key, Change::World)) => {}
            () = clusters.follow(of_clusters, cluster_changed) => {}
        }
        tracing::warn!(version = version.word(), "Cluster API is not served in this version any more");
        if let Some(shell) = weak.upgrade() {
            shell.kinds.forget(GROUP);
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

async fn find_capi(shell: &Shell) -> Result<Capi, crate::Error> {
    let versions = match shell.settings.capi_version {
        Some(version) => vec![version],
        None => CapiVersion::ALL.to_vec(),
    };
    let mut other = false;
    for version in versions {
        let kind = |kind: &str| ObjectType {
            group: GROUP.to_owned(),
            version: version.word().to_owned(),
            kind: kind.to_owned(),
        };
        let mut machines = shell.kinds.find_all(&shell.client, &kind("Machine")).await?;
        let mut clusters = shell.kinds.find_all(&shell.client, &kind("Cluster")).await?;
        other |= !machines.is_empty();
        let is_spoken = |place: &Place| place.version == version.word();
        if machines.iter().any(is_spoken) && clusters.iter().any(is_spoken) {
            machines.sort_by_key(|place| !is_spoken(place));
            clusters.sort_by_key(|place| !is_spoken(place));
            return Ok(Capi::Served(version, CapiPlaces { machines, clusters }));
        }
    }
    Ok(if other { Capi::OtherVersion } else { Capi::Missing })
}

/// Whether a machine is leaving at once, or is out and stays out.
fn is_hurrying(watched: &Watched) -> bool {
    let settled = [Phase::EmergencyRemove, Phase::Disabled, Phase::Terminated];
    watched.machine.memory().phase.is_some_and(|phase| settled.contains(&phase))
}
