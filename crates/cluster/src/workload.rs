//! Workload clusters: one client and one watch of Nodes for each, shared by all machines of that cluster.
//!
//! A cluster is reached through the kubeconfig in a Secret. The Secret is watched; a new kubeconfig makes a new client
//! and a new watch, without a restart. A cluster that does not answer holds up nobody but its own machines.

use crate::agent_pods::{AgentPods, agent_pods_path};
use crate::bounds::Budget;
use crate::cache::{Cache, Health, Item, Key, Source};
use crate::client::{Caller, connect_within};
use crate::error::Error;
use crate::gate::Gate;
use crate::node::NodeItem;
use crate::parts::{MetaOnly, key_of};
use crate::reclaim::{ConfigItem, config_maps, node_of};
use crate::supervisor::Supervisor;
use crate::watched::Watched;
use fivespot_api::names::kubeconfig_secret;
use fivespot_api::{DEFAULT_KUBECONFIG_KEY, KubeconfigSecretRef};
use fivespot_core::observed::{Access, AgentConfig, Unreachable, UnreachableReason};
use fivespot_core::servers::AllowedServers;
use k8s_openapi::ByteString;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long an answer about a Secret that nobody asked for yet is awaited.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// A watch that breaks off is back in a moment, nearly always. Only what lasts longer makes a cluster unreachable.
const BLINK: Duration = Duration::from_secs(8);

fn is_well(health: &Health) -> bool {
    health.synced && health.failure.as_ref().is_none_or(|failure| failure.since.elapsed() < BLINK)
}

/// Where the kubeconfig of a cluster is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SecretId {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) key: String,
}

/// A cluster: the management cluster itself, or the one behind a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ClusterId {
    Management,
    Secret(SecretId),
}

/// How a ScheduledMachine wants its workload cluster to be found.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) secret: SecretId,
    pub(crate) without_secret: WithoutSecret,
}

/// What a Secret that does not exist means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WithoutSecret {
    /// The management cluster is the workload cluster.
    ManagementCluster,
    /// It might be, but no administrator has said so of this namespace.
    NotListed,
    /// The Secret was there before.
    Gone,
    /// The spec names a Secret that is not there.
    NotYet,
}

impl WithoutSecret {
    /// Whether a Secret was seen before, or is named: then the management cluster never takes its place.
    fn is_bound(self) -> bool {
        match self {
            Self::ManagementCluster | Self::NotListed => false,
            Self::Gone | Self::NotYet => true,
        }
    }
}

/// Namespaces whose machines may join the management cluster itself, where their Cluster has no kubeconfig Secret.
#[derive(Debug, Clone)]
pub enum ManagementNamespaces {
    /// These; `*` is every namespace.
    Listed(Vec<String>),
    /// Those in which the controller does so, as status says: for a program that only looks.
    AsShown,
}

impl ManagementNamespaces {
    fn contain(&self, watched: &Watched) -> bool {
        match self {
            Self::Listed(names) => {
                let own = watched.machine.metadata.namespace.as_deref();
                names.iter().any(|name| name == "*" || Some(name.as_str()) == own)
            }
            Self::AsShown => watched.machine.is_in_management_cluster(),
        }
    }
}

/// How the workload cluster of a ScheduledMachine is found.
pub(crate) fn wanted(watched: &Watched, namespaces: &ManagementNamespaces) -> Wanted {
    let spec = &watched.machine.spec;
    let namespace = watched.machine.metadata.namespace.clone().unwrap_or_default();
    if let Some(KubeconfigSecretRef { name, key }) = spec.kubeconfig_secret_ref.clone() {
        return Wanted { secret: SecretId { namespace, name, key }, without_secret: WithoutSecret::NotYet };
    }
    let (name, key) = (kubeconfig_secret(&spec.cluster_name), DEFAULT_KUBECONFIG_KEY.to_owned());
    let without_secret = match (watched.machine.has_seen_secret(), namespaces.contain(watched)) {
        (true, _) => WithoutSecret::Gone,
        (false, true) => WithoutSecret::ManagementCluster,
        (false, false) => WithoutSecret::NotListed,
    };
    Wanted { secret: SecretId { namespace, name, key }, without_secret }
}

/// A cluster that can be reached.
#[derive(Clone)]
pub(crate) struct Reached {
    pub(crate) id: ClusterId,
    pub(crate) access: Access,
    pub(crate) client: Client,
    pub(crate) nodes: Cache<NodeItem>,
    configs: Arc<Configs>,
    /// The pods of reclaim agents in it.
    pub(crate) agent_pods: Arc<AgentPods>,
    /// Bounds the calls to this cluster, and orders them.
    pub(crate) gate: Arc<Gate>,
    /// Where its API server is, unless it is our own.
    address: Option<String>,
}

/// Hears of a Node, and whether it asks for its machine back.
type NodeChanged = Arc<dyn Fn(&ClusterId, &str, bool) + Send + Sync>;
type ClusterChanged = Arc<dyn Fn(&ClusterId) + Send + Sync>;

/// What all workload clusters have in common.
struct Common {
    caller: Caller,
    allowed: AllowedServers,
    /// What the answers of all clusters behind Secrets may hold together.
    budget: Arc<Budget>,
    supervisor: Arc<Supervisor>,
    node_changed: NodeChanged,
    cluster_changed: ClusterChanged,
}

/// All workload clusters in use.
pub(crate) struct Workloads {
    management: Client,
    /// Of the management cluster: where that is the workload cluster too, all calls to it stand in one line.
    gate: Arc<Gate>,
    common: Arc<Common>,
    own: Mutex<Option<Arc<Link>>>,
    links: Mutex<HashMap<SecretId, Arc<SecretLink>>>,
}

/// One Secret and what it leads to.
struct SecretLink {
    secret: Cache<SecretItem>,
    state: watch::Receiver<State>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for SecretLink {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// What reclaim agents are told, watched from the moment somebody asks: most clusters have no agents.
pub(crate) struct Configs {
    source: Source,
    cache: Cache<ConfigItem>,
    changed: Arc<dyn Fn(&str) + Send + Sync>,
    supervisor: Arc<Supervisor>,
    task: OnceLock<JoinHandle<()>>,
}

impl Configs {
    fn start(&self) {
        self.task.get_or_init(|| {
            let (source, cache, changed) =
                (self.source.clone(), self.cache.clone(), Arc::clone(&self.changed));
            self.supervisor.keep("agent_configs", cache.what().to_owned(), move || {
                let (source, cache, changed) = (source.clone(), cache.clone(), Arc::clone(&changed));
                async move {
                    loop {
                        cache.follow(source.clone(), |key| changed(node_of(&key.name))).await;
                        tokio::time::sleep(FIRST_LOOK).await;
                    }
                }
            })
        });
    }
}

impl Drop for Configs {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// A failure to reach a server, with its address.
fn at_address(address: Option<&str>, why: &str) -> String {
    address.map_or(why.to_owned(), |address| format!("its API server at {address}: {why}"))
}

/// A collection of a workload cluster. Whoever may write the Secret chooses the server, so that its lists are bounded.
fn source_in(id: &ClusterId, client: &Client, path: impl Into<String>) -> Source {
    let source = Source::of(client.clone(), path);
    match id {
        ClusterId::Management => source,
        ClusterId::Secret(_) => source.bounded(),
    }
}

impl Reached {
    /// A collection of this cluster.
    pub(crate) fn source(&self, path: &str) -> Source {
        source_in(&self.id, &self.client, path)
    }

    /// Why it cannot be reached, in words that say which server it is.
    pub(crate) fn lost(&self, why: &str) -> String {
        at_address(self.address.as_deref(), why)
    }

    /// What reclaim agents in this cluster are told on behalf of the ScheduledMachine of this identity; nothing while it
    /// is not known.
    pub(crate) async fn agent_configs(&self, owner: &str) -> Vec<AgentConfig> {
        self.configs.start();
        let _ = tokio::time::timeout(FIRST_LOOK, self.configs.cache.tried()).await;
        let all = self.configs.cache.all();
        let is_theirs = |item: &ConfigItem| item.owner.as_deref() == Some(owner);
        let mut configs: Vec<AgentConfig> =
            all.into_iter().filter(|(_, item)| is_theirs(item)).map(|(_, item)| item.view.clone()).collect();
        configs.sort_by(|a, b| a.node.cmp(&b.node));
        configs
    }
}

/// One client and its watch of Nodes.
struct Link {
    address: Option<String>,
    client: Client,
    nodes: Cache<NodeItem>,
    configs: Arc<Configs>,
    agent_pods: Arc<AgentPods>,
    gate: Arc<Gate>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
enum State {
    /// Nobody knows yet.
    Unknown,
    /// There is no such Secret.
    Absent,
    /// It does not hold a kubeconfig.
    Invalid(String),
    /// It does.
    Linked(Arc<Link>),
}

impl Workloads {
    pub(crate) fn new(
        management: Client,
        gate: Arc<Gate>,
        (caller, allowed): (Caller, AllowedServers),
        supervisor: Arc<Supervisor>,
        (node_changed, cluster_changed): (NodeChanged, ClusterChanged),
    ) -> Self {
        let budget = Arc::default();
        let common = Common { caller, allowed, budget, supervisor, node_changed, cluster_changed };
        let (common, own, links) = (Arc::new(common), Mutex::default(), Mutex::default());
        Self { management, gate, common, own, links }
    }

    /// Reaches a cluster, or says why that cannot be done. Waits a moment for a cluster that is asked for the first
    /// time, and never afterwards.
    pub(crate) async fn reach(&self, wanted: &Wanted) -> Result<Reached, Unreachable> {
        let access = self.access(&wanted.secret);
        let mut state = access.state.clone();
        let known = |state: &State| !matches!(state, State::Unknown);
        let first = async {
            tokio::select! {
                _ = state.wait_for(known) => {}
                () = access.secret.tried() => {}
            }
        };
        let _ = tokio::time::timeout(FIRST_LOOK, first).await;
        let SecretId { namespace, name, key } = &wanted.secret;
        let by_secret = wanted.without_secret.is_bound();
        let failed = |reason, message: String| Err(Unreachable { by_secret, reason, message });
        let state = access.state.borrow().clone();
        match (state, wanted.without_secret) {
            (State::Linked(link), _) => {
                self.linked(ClusterId::Secret(wanted.secret.clone()), Access::Secret, &link).await
            }
            (State::Absent, WithoutSecret::ManagementCluster) => {
                let link = self.own_link();
                self.linked(ClusterId::Management, Access::Management, &link).await
            }
            (State::Absent, without) => {
                let message = format!("Secret {namespace}/{name}, which holds its kubeconfig, is not there");
                match without {
                    WithoutSecret::NotYet => failed(UnreachableReason::NamedSecretNotFound, message),
                    WithoutSecret::NotListed => failed(
                        UnreachableReason::NoSecret,
                        format!(
                            "{message}. If the management cluster is the workload cluster too, an administrator must \
                             add namespace {namespace} to --management-cluster-namespaces of the controller"
                        ),
                    ),
                    WithoutSecret::Gone | WithoutSecret::ManagementCluster => {
                        failed(UnreachableReason::SecretNotFound, message)
                    }
                }
            }
            (State::Invalid(why), _) => Err(Unreachable {
                by_secret: true,
                reason: UnreachableReason::SecretInvalid,
                message: format!(
                    "key {key} of Secret {namespace}/{name} cannot be used as a kubeconfig: {why}"
                ),
            }),
            (State::Unknown, _) => match access.secret.health().failure {
                Some(failure) if failure.code == Some(403) => failed(
                    UnreachableReason::SecretForbidden,
                    format!("Secret {namespace}/{name} may not be read: {}", failure.message),
                ),
                Some(failure) => failed(
                    UnreachableReason::ConnectionFailed,
                    format!("Secret {namespace}/{name} cannot be read: {}", failure.message),
                ),
                None => failed(
                    UnreachableReason::ConnectionFailed,
                    format!("Secret {namespace}/{name} was not read in time"),
                ),
            },
        }
    }

    async fn linked(&self, id: ClusterId, access: Access, link: &Link) -> Result<Reached, Unreachable> {
        let _ = tokio::time::timeout(FIRST_LOOK, link.nodes.tried()).await;
        let health = link.nodes.health();
        if is_well(&health) {
            let (client, nodes) = (link.client.clone(), link.nodes.clone());
            let (configs, gate) = (Arc::clone(&link.configs), Arc::clone(&link.gate));
            let address = link.address.clone();
            let agent_pods = Arc::clone(&link.agent_pods);
            return Ok(Reached { id, access, client, nodes, configs, agent_pods, gate, address });
        }
        let reason = match &health.failure {
            Some(failure) if failure.is_limit => UnreachableReason::LimitExceeded,
            Some(_) | None => UnreachableReason::ConnectionFailed,
        };
        let why = health.failure.map_or("its Nodes were not listed in time".to_owned(), |it| it.message);
        let why = at_address(link.address.as_deref(), &why);
        let by_secret = access == Access::Secret;
        Err(Unreachable { by_secret, reason, message: why })
    }

    /// Watches a cluster without being asked for anything yet.
    pub(crate) fn watch(&self, id: &SecretId) {
        self.access(id);
    }

    /// Forgets clusters that nobody uses any more.
    pub(crate) fn keep_only(&self, used: impl Fn(&SecretId) -> bool) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| used(id));
    }

    fn own_link(&self) -> Arc<Link> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let (client, gate) = (self.management.clone(), Arc::clone(&self.gate));
            let server = Server { address: None, client, gate };
            Arc::new(link(&ClusterId::Management, server, &self.common))
        };
        Arc::clone(own.get_or_insert_with(make))
    }

    fn access(&self, id: &SecretId) -> Arc<SecretLink> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let access = links.entry(id.clone()).or_insert_with(|| Arc::new(self.open(id)));
        Arc::clone(access)
    }

    /// Begins to watch a Secret and to follow where it leads.
    fn open(&self, id: &SecretId) -> SecretLink {
        let secret = Cache::<SecretItem>::new(format!("secret {}/{}", id.namespace, id.name));
        let source = Source {
            fields: Some(format!("metadata.name={}", id.name)),
            ..Source::of(self.management.clone(), format!("/api/v1/namespaces/{}/secrets", id.namespace))
        };
        let (signal, changes) = watch::channel(());
        let follow = {
            let secret = secret.clone();
            self.common.supervisor.keep("secret", secret.what().to_owned(), move || {
                let (secret, source, signal) = (secret.clone(), source.clone(), signal.clone());
                async move {
                    loop {
                        secret.follow(source.clone(), |_| signal.send_replace(())).await;
                        tokio::time::sleep(FIRST_LOOK).await;
                    }
                }
            })
        };
        let (sender, state) = watch::channel(State::Unknown);
        let lead = {
            let (secret, id, common) = (secret.clone(), id.clone(), Arc::clone(&self.common));
            let object = secret.what().to_owned();
            self.common.supervisor.keep("workload_client", object, move || {
                follow_secret(
                    secret.clone(),
                    id.clone(),
                    Arc::clone(&common),
                    sender.clone(),
                    changes.clone(),
                )
            })
        };
        SecretLink { secret, state, tasks: vec![follow, lead] }
    }
}

/// Leads to the cluster of a Secret, and to another one when the Secret changes.
async fn follow_secret(
    secret: Cache<SecretItem>,
    id: SecretId,
    common: Arc<Common>,
    sender: watch::Sender<State>,
    mut changes: watch::Receiver<()>,
) {
    secret.synced().await;
    let mut last = None;
    loop {
        let item = secret.get(&Key::new(&id.namespace, &id.name));
        let text = item.as_ref().map(|item| item.data.get(&id.key).cloned());
        if last.as_ref() != Some(&text) {
            sender.send_replace(lead_to(text.as_ref(), &id, &common).await);
            last = Some(text);
            (common.cluster_changed)(&ClusterId::Secret(id.clone()));
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Where the text of a Secret leads.
async fn lead_to(text: Option<&Option<ByteString>>, id: &SecretId, common: &Common) -> State {
    match text {
        None => State::Absent,
        Some(None) => State::Invalid("there is no such key".to_owned()),
        Some(Some(ByteString(bytes))) => match client_of(bytes, common).await {
            Ok(server) => State::Linked(Arc::new(link(&ClusterId::Secret(id.clone()), server, common))),
            Err(why) => State::Invalid(why),
        },
    }
}

/// Why a kubeconfig that can be read is of no use. Nothing of what stands in it is shown: it is a Secret.
const UNUSABLE: &str =
    "its current-context names no context with a cluster and a user, or a certificate or key cannot be used";

/// A kubeconfig from a Secret must carry all it needs. One that names a program or a file of ours is refused: whoever
/// may write the Secret could otherwise have anything run or read in our place.
async fn client_of(kubeconfig: &[u8], common: &Common) -> Result<Server, String> {
    let text = std::str::from_utf8(kubeconfig).map_err(|_| "it is not text".to_owned())?;
    let kubeconfig: Kubeconfig = serde_saphyr::from_str(text).map_err(|_| "it cannot be read".to_owned())?;
    for user in kubeconfig.auth_infos.iter().filter_map(|user| user.auth_info.as_ref()) {
        let files = [&user.client_certificate, &user.client_key, &user.token_file];
        if user.exec.is_some() || user.auth_provider.is_some() || files.into_iter().any(Option::is_some) {
            return Err("it names a program or a file; write the credentials into it".to_owned());
        }
    }
    for cluster in kubeconfig.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref()) {
        if cluster.certificate_authority.is_some() {
            return Err("it names a file; write the certificate into it".to_owned());
        }
        if cluster.proxy_url.is_some() {
            return Err("it names a proxy, which is not supported".to_owned());
        }
        if !cluster.server.as_ref().is_some_and(|server| server.starts_with("https://")) {
            return Err("its server is not an https address".to_owned());
        }
    }
    let options = KubeConfigOptions::default();
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|_| UNUSABLE.to_owned())?;
    // Where this process runs says nothing about the way to another cluster.
    config.proxy_url = None;
    let url = &config.cluster_url;
    let (host, port) = (url.host().unwrap_or_default(), url.port_u16().unwrap_or(443));
    // Scheme, host and port alone: whatever else stands in the address is nobody's business.
    let address = format!("{}://{host}:{port}", url.scheme_str().unwrap_or("https"));
    if !common.allowed.allow(host, port) {
        return Err(format!("its server {address} is not one of --workload-api-servers of the controller"));
    }
    let meter = Some(common.budget.meter());
    let client = connect_within(&config, &common.caller, meter).map_err(|error| match error {
        Error::Unreadable { why, .. } => why,
        Error::Api { .. } | Error::Timeout { .. } | Error::Changed { .. } | Error::NotHolder { .. } => {
            UNUSABLE.to_owned()
        }
    })?;
    Ok(Server { address: Some(address), client, gate: Arc::default() })
}

/// An API server and how it is spoken to.
struct Server {
    /// Unless it is our own.
    address: Option<String>,
    client: Client,
    gate: Arc<Gate>,
}

fn link(id: &ClusterId, Server { address, client, gate }: Server, common: &Common) -> Link {
    let Common { supervisor, node_changed, cluster_changed, .. } = common;
    let what = match id {
        ClusterId::Management => "nodes of the management cluster".to_owned(),
        ClusterId::Secret(secret) => format!("nodes behind secret {}/{}", secret.namespace, secret.name),
    };
    let nodes = Cache::<NodeItem>::new(what.clone());
    let configs = {
        let source = source_in(id, &client, config_maps());
        let (id, node_changed) = (id.clone(), Arc::clone(node_changed));
        let cache = Cache::new(format!("what reclaim agents are told on {what}"));
        let changed = Arc::new(move |node: &str| node_changed(&id, node, false));
        let supervisor = Arc::clone(supervisor);
        Arc::new(Configs { source, cache, changed, supervisor, task: OnceLock::new() })
    };
    let agent_pods = {
        let source = source_in(id, &client, agent_pods_path());
        let (id, node_changed) = (id.clone(), Arc::clone(node_changed));
        let changed = Arc::new(move |node: &str| node_changed(&id, node, false));
        Arc::new(AgentPods::new(source, &what, changed, Arc::clone(supervisor)))
    };
    let source = source_in(id, &client, "/api/v1/nodes");
    let task = {
        let (nodes, id) = (nodes.clone(), id.clone());
        let (node_changed, cluster_changed) = (Arc::clone(node_changed), Arc::clone(cluster_changed));
        supervisor.keep("nodes", what, move || {
            let (nodes, source, id) = (nodes.clone(), source.clone(), id.clone());
            let (node_changed, cluster_changed) = (Arc::clone(&node_changed), Arc::clone(&cluster_changed));
            async move {
                let follow = async {
                    loop {
                        let changed = |key: &Key| {
                            let asks = nodes.get(key).is_some_and(|node| node.view.request.is_some());
                            node_changed(&id, &key.name, asks);
                        };
                        nodes.follow(source.clone(), changed).await;
                        tokio::time::sleep(FIRST_LOOK).await;
                    }
                };
                tokio::join!(follow, tell_of_losses(&nodes, || cluster_changed(&id)));
            }
        })
    };
    Link { address, client, nodes, configs, agent_pods, gate, task }
}

/// That a cluster is lost or found again is news for every machine in it.
async fn tell_of_losses(nodes: &Cache<NodeItem>, tell: impl Fn()) {
    let mut health = nodes.subscribe();
    let mut was_well = false;
    loop {
        let now = health.borrow_and_update().clone();
        if is_well(&now) != was_well {
            was_well = !was_well;
            tell();
        }
        // A failure becomes a loss by lasting.
        let lasts = now.failure.filter(|_| was_well).map(|failure| failure.since + BLINK);
        let lasts = async {
            match lasts {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = health.changed() => if changed.is_err() { return },
            () = lasts => {}
        }
    }
}

/// What is kept of a Secret.
#[derive(PartialEq)]
struct SecretItem {
    data: BTreeMap<String, ByteString>,
}

#[derive(Deserialize)]
struct RawSecret {
    #[serde(default)]
    data: Option<BTreeMap<String, ByteString>>,
}

impl Item for SecretItem {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let MetaOnly { metadata } = serde_json::from_str(raw.get())?;
        let RawSecret { data } = serde_json::from_str(raw.get())?;
        Ok((key_of(&metadata), Self { data: data.unwrap_or_default() }))
    }
}
