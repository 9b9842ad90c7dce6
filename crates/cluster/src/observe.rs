//! From watches and answers to the small views that decisions look at.

mod readable;

pub use readable::{Readable, Surroundings};

use crate::cache::{Cache, Item, Key, Source, list_all};
use crate::capi::{CapiVersion, ClusterItem, MachineItem};
use crate::drain;
use crate::error::{Error, Retry, call};
use crate::gate::{Admission, Rank};
use crate::kinds::Place;
use crate::node::NodeItem;
use crate::parts::{PartItem, ProviderWords, absent};
use crate::perform::priority;
use crate::rivals;
use crate::shell::{Capi, Shell};
use crate::watched::Watched;
use crate::workload::Reached;
use fivespot_api::names::{CONTROLLER, RECLAIM_REQUESTED, SYSTEM_NAMESPACE};
use fivespot_api::{Lease, leases_path};
use fivespot_core::intent::ObjectType;
use fivespot_core::lifecycle::{Part, Phase};
use fivespot_core::limits::{BOOTSTRAP_GROUPS, INFRASTRUCTURE_GROUPS};
use fivespot_core::observed::{
    Access, AgentConfig, AgentSight, Certainty, Cluster, Machine, Needs, Object, Observed, Pods, Presence,
    Served, Unknown, Unreachable, UnreachableReason, Workload,
};
use fivespot_core::slots::Record;
use kube::api::GetParams;
use kube::core::Request;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Shell {
    /// A ScheduledMachine as the server has it now, or all of a namespace, or all there are.
    pub async fn read(&self, namespace: Option<&str>, name: Option<&str>) -> Result<Vec<Watched>, Error> {
        let base = "/apis/5spot.finos.org/v1alpha1";
        let path = match namespace {
            Some(namespace) => format!("{base}/namespaces/{namespace}/scheduledmachines"),
            None => format!("{base}/scheduledmachines"),
        };
        let fields = name.map(|name| format!("metadata.name={name}"));
        let source = Source { fields, ..Source::of(self.client.clone(), path) };
        list_all("read ScheduledMachines", &source).await
    }

    /// What the Leases say by which the controller's instances share the machines.
    pub async fn slots(&self) -> Result<BTreeMap<u32, Record>, Error> {
        #[derive(Deserialize)]
        struct Leases {
            items: Vec<Lease>,
        }
        let what = "read the leases of the controller";
        let request = http::Request::get(leases_path(SYSTEM_NAMESPACE)).body(Vec::new());
        let request = request.map_err(|error| Error::api(what, kube::Error::HttpError(error)))?;
        let leases = call(what, self.client.request::<Leases>(request)).await?.items.into_iter();
        Ok(leases.filter_map(|lease| Some((lease.slot(CONTROLLER)?, lease.found().record))).collect())
    }

    /// The world around a ScheduledMachine, as closely as `needs` asks.
    pub async fn observe(&self, watched: &Watched, needs: Needs) -> Result<Observed, Error> {
        let (cluster_api, cluster, machine) = match self.capi() {
            Capi::Unknown => {
                let why = "the server has not answered yet".to_owned();
                return Err(Error::Unreadable { what: "tell whether Cluster API is served".to_owned(), why });
            }
            Capi::OtherVersion => {
                // Machines may be there that we cannot see: nothing may be done as if they were not.
                let what = "read Machines and Clusters".to_owned();
                let why =
                    "Cluster API is served here, but in no version that this controller speaks".to_owned();
                return Err(Error::Unreadable { what, why });
            }
            Capi::Missing => {
                let versions = self.settings.capi_version.map_or("v1beta2 or v1beta1", CapiVersion::word);
                let what = format!("Machine and Cluster of cluster.x-k8s.io in {versions}");
                let cluster = Cluster::Absent(Certainty::Confirmed);
                (Served::No(what.clone()), cluster, Presence::NotServed(what))
            }
            Capi::Served(_, places) => {
                let cluster = self.cluster(watched, &places.clusters, needs);
                let machine = self.machine(watched, &places.machines, needs);
                let (cluster, machine) = futures::future::join(cluster, machine).await;
                (Served::Yes, cluster, machine?)
            }
        };
        let (bootstrap, infrastructure) = futures::future::join(
            self.part(watched, Part::Bootstrap, needs),
            self.part(watched, Part::Infrastructure, needs),
        )
        .await;
        let (bootstrap, infrastructure) = (bootstrap?, infrastructure?);
        let (finalizer, memory) = (watched.machine.has_finalizer(), watched.machine.memory());
        let joined = machine.ours().and_then(|machine| machine.node_name.clone());
        let workload = match (joined, memory.host.as_ref()) {
            (Some(node), _) => self.workload(watched, &node, needs).await,
            // A host that was handed back may be in the cluster again. That its Node is there is not believed of a watch
            // that may not have heard of its end.
            (None, Some(host)) => {
                let is_certain = needs.certainty && machine.ours().is_none();
                self.returned_host(watched, &host.node, needs, is_certain).await
            }
            (None, None) => Workload::NotAsked,
        };
        let agent_configs = self.agent_configs(watched, &workload, memory.phase).await;
        let agent = self.agent(watched, &workload, memory.phase).await;
        let provider_says = if needs.words { self.provider_says(watched).await } else { None };
        Ok(Observed {
            provider_says,
            claim: rivals::claim(watched),
            rivals: self.rivals(watched),
            cluster_api,
            cluster,
            bootstrap,
            infrastructure,
            machine,
            workload,
            agent_configs,
            agent,
            finalizer,
            spec_id: watched.spec_id().to_owned(),
            memory,
        })
    }

    /// What reclaim agents are told, if there ever was a reason to tell them anything.
    async fn agent_configs(
        &self,
        watched: &Watched,
        workload: &Workload,
        phase: Option<Phase>,
    ) -> Vec<AgentConfig> {
        let commands = watched.machine.spec.kill_if_commands.as_ref();
        let reclaimed = watched.machine.status.as_ref().is_some_and(|status| status.reclaim.is_some());
        let armed = workload.node().is_some_and(|node| node.labelled || node.armed_for.is_some());
        let leaves = matches!(phase, Some(Phase::ShuttingDown | Phase::EmergencyRemove));
        let is_asked = matches!(workload, Workload::Reachable(..)) || leaves;
        if !is_asked || !(reclaimed || armed || commands.is_some_and(|all| !all.is_empty())) {
            return Vec::new();
        }
        match self.workloads.reach(&self.wanted(watched)).await {
            Ok(reached) => reached.agent_configs(watched.uid()).await,
            // Who cannot be reached cannot be told.
            Err(_) => Vec::new(),
        }
    }

    /// The pod of the reclaim agent on the Node of a machine that is lent. Nothing is asked while somebody wants the machine
    /// back: the first answer may take seconds.
    async fn agent(&self, watched: &Watched, workload: &Workload, phase: Option<Phase>) -> AgentSight {
        let is_wanted = watched.machine.spec.kill_if_commands.as_ref().is_some_and(|all| !all.is_empty());
        let annotations = watched.machine.metadata.annotations.as_ref();
        let asks = annotations.is_some_and(|all| all.contains_key(RECLAIM_REQUESTED));
        let is_urgent = watched.machine.spec.kill_switch || asks;
        let node = workload.node().filter(|node| node.request.is_none());
        let Some(node) = node.filter(|_| is_wanted && !is_urgent && phase == Some(Phase::Active)) else {
            return AgentSight::NotAsked;
        };
        match self.workloads.reach(&self.wanted(watched)).await {
            Ok(reached) => reached.agent_pods.on(&node.name).await,
            Err(why) => AgentSight::NotVisible(why.message),
        }
    }

    async fn cluster(&self, watched: &Watched, places: &[Place], needs: Needs) -> Cluster {
        let key = Key::new(watched.key().namespace, &watched.machine.spec.cluster_name);
        // A name that is not one names nothing.
        if key.name.is_empty() {
            return Cluster::Absent(Certainty::Confirmed);
        }
        let look = Look { certain: needs.certainty, whole: true };
        match self.look(&self.clusters, &key, places, look).await {
            Ok(Some(item)) => ClusterItem::view(*item),
            Ok(None) if needs.certainty => Cluster::Absent(Certainty::Confirmed),
            // A server that cannot say keeps no machine in the cluster: what the watch knows must do.
            Ok(None) | Err(_) => {
                let known = self.clusters.get(&key).map(|item| ClusterItem::view(*item));
                known.unwrap_or(Cluster::Absent(Certainty::Rumour))
            }
        }
    }

    async fn machine(
        &self,
        watched: &Watched,
        places: &[Place],
        needs: Needs,
    ) -> Result<Presence<Machine>, Error> {
        let key = watched.key();
        let look = Look { certain: needs.certainty, whole: true };
        let found: Option<Arc<MachineItem>> = match self.look(&self.machines, &key, places, look).await {
            // Whatever is done to it names its identity, so the watch's copy is safe to act on.
            Err(error) if error.is_breakdown() => Some(self.machines.get(&key).ok_or(error)?),
            answer => answer?,
        };
        Ok(found.map_or(absent(needs.certainty), |item| item.presence(watched.uid(), &key.name)))
    }

    async fn part(&self, watched: &Watched, part: Part, needs: Needs) -> Result<Presence<Object>, Error> {
        let Some(kind) = provider_type(watched, part) else {
            // Of a kind we never make there is nothing of ours.
            return Ok(absent(true));
        };
        let what = format!("{} {}/{}", kind.kind, kind.group, kind.version);
        let places = match self.kinds.find_all(&self.client, &kind).await {
            Ok(places) if places.is_empty() => return Ok(Presence::NotServed(what)),
            Ok(places) => places,
            Err(error) => return Ok(unknown(&error)),
        };
        let key = watched.key();
        let cache = self.provider(&kind, &places).await;
        let look = Look { certain: needs.parts, whole: false };
        let found: Option<Arc<PartItem>> = match self.look(&cache, &key, &places, look).await {
            Err(error @ Error::Changed { .. }) => return Err(error),
            Err(error) => return Ok(unknown(&error)),
            Ok(found) => found,
        };
        Ok(match found {
            Some(item) => item.presence(watched.uid(), &format!("{} {}", kind.kind, key.name)),
            None if !needs.parts => absent(false),
            None if !places.iter().any(|place| place.version == kind.version) => Presence::NotServed(what),
            None => absent(true),
        })
    }

    /// Why the infrastructure provider fails, in its own words. Who does not answer has said nothing.
    async fn provider_says(&self, watched: &Watched) -> Option<String> {
        let kind = provider_type(watched, Part::Infrastructure)?;
        let places = self.kinds.find_all(&self.client, &kind).await.ok()?;
        let key = watched.key();
        let look = Look { certain: true, whole: true };
        let cache = Cache::<ProviderWords>::new(kind.kind);
        let found = self.look(&cache, &key, &places, look).await.ok()??;
        found.0.clone()
    }

    /// What a watch has, or, if that is not enough, what the server answers through the first version that works: a
    /// watch may be behind.
    async fn look<T: Item>(
        &self,
        cache: &Cache<T>,
        key: &Key,
        places: &[Place],
        look: Look,
    ) -> Result<Option<Arc<T>>, Error> {
        if !look.certain {
            return Ok(cache.get(key));
        }
        let what = format!("read {} {key}", cache.what());
        let mut broken = Error::Changed { what: what.clone() };
        for place in places {
            match self.read_one(&what, key, place, look).await {
                Err(error) if error.is_breakdown() => broken = error,
                answer => return answer,
            }
        }
        Err(broken)
    }

    async fn read_one<T: Item>(
        &self,
        what: &str,
        key: &Key,
        place: &Place,
        look: Look,
    ) -> Result<Option<Arc<T>>, Error> {
        let request = Request::new(place.path(Some(&key.namespace)));
        let params = GetParams::default();
        let request = if look.whole {
            request.get(&key.name, &params)
        } else {
            request.get_metadata(&key.name, &params)
        };
        let request = request.map_err(|error| Error::api(what, kube::Error::BuildRequest(error)))?;
        let raw = match call(what, self.client.request::<Box<RawValue>>(request)).await {
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) if error.code() == Some(404) => {
                // Not the object is missing but its kind, or the version of it: that is no word on the object.
                self.kinds.forget(&place.group);
                return Err(Error::Changed { what: what.to_owned() });
            }
            answer => answer?,
        };
        let unreadable =
            |error: serde_json::Error| Error::Unreadable { what: what.to_owned(), why: error.to_string() };
        T::read(&raw).map(|(_, item)| Some(Arc::new(item))).map_err(unreadable)
    }

    /// The Node that has the name of the host that was lent last, if there is one.
    async fn returned_host(&self, watched: &Watched, name: &str, needs: Needs, is_certain: bool) -> Workload {
        let reached = match self.workloads.reach(&self.wanted(watched)).await {
            Ok(reached) => reached,
            Err(why) => return Workload::Unreachable(why),
        };
        self.care_for(&reached.id, name, &watched.key());
        if reached.nodes.get(&Key::new("", name)).is_none() {
            return Workload::Reachable(reached.access, None);
        }
        if is_certain && matches!(read_node(&reached, name).await, Ok(None)) {
            return Workload::Reachable(reached.access, None);
        }
        self.workload(watched, name, needs).await
    }

    async fn workload(&self, watched: &Watched, name: &str, needs: Needs) -> Workload {
        let reached = match self.workloads.reach(&self.wanted(watched)).await {
            Ok(reached) => reached,
            Err(why) => return Workload::Unreachable(why),
        };
        // First the interest, then the look: a change between the two is heard.
        self.care_for(&reached.id, name, &watched.key());
        let lost = |error: &Error| {
            if error.is_silence() {
                reached.nodes.doubt();
            }
            Workload::Unreachable(Unreachable {
                by_secret: reached.access == Access::Secret,
                reason: UnreachableReason::ConnectionFailed,
                message: reached.lost(&error.to_string()),
            })
        };
        let node = Key::new("", name);
        // Who asked last got no answer: nobody else need wait for none.
        if reached.nodes.health().doubted && (needs.pods || reached.nodes.get(&node).is_none()) {
            let what = format!("look at Node {name}");
            return lost(&Error::Unreadable {
                what,
                why: "the server did not answer the last call".to_owned(),
            });
        }
        // A Node that the Machine speaks of and the watch has not got: it may be behind, so the server is asked.
        let item = match reached.nodes.get(&node) {
            Some(item) => item,
            None => match read_node(&reached, name).await {
                Ok(Some(item)) => item,
                Ok(None) => return Workload::Reachable(reached.access, None),
                Err(error) => return lost(&error),
            },
        };
        let mut node = item.view.clone();
        node.owner = item.owner(&watched.key(), &watched.machine.spec.cluster_name);
        node.rivals = self.node_rivals(watched, &node.uid);
        if needs.pods {
            // The kill switch waits for nobody.
            let is_urgent = watched.machine.spec.kill_switch;
            let step = self.steps(&watched.key()).saturating_add(1);
            let admission = if is_urgent {
                Admission::Urgent(watched.key().namespace)
            } else {
                Admission::Ranked(Rank { step, priority: priority(watched) })
            };
            let _permit = reached.gate.enter(admission).await;
            match drain::pods(&reached, name).await {
                Ok(pods) => node.pods = Pods::Listed(pods),
                Err(error) => return lost(&error),
            }
        }
        Workload::Reachable(reached.access, Some(Box::new(node)))
    }
}

async fn read_node(reached: &Reached, name: &str) -> Result<Option<Arc<NodeItem>>, Error> {
    let what = format!("read Node {name}");
    let request = Request::new("/api/v1/nodes").get(name, &GetParams::default());
    let request = request.map_err(|error| Error::api(&what, kube::Error::BuildRequest(error)))?;
    let raw = match call(&what, reached.client.request::<Box<RawValue>>(request)).await {
        Err(error) if error.code() == Some(404) => return Ok(None),
        answer => answer?,
    };
    let unreadable = |error: serde_json::Error| Error::Unreadable { what, why: error.to_string() };
    NodeItem::read(&raw).map(|(_, item)| Some(Arc::new(item))).map_err(unreadable)
}

/// What is known of an object that could not be read.
fn unknown<T>(error: &Error) -> Presence<T> {
    Presence::Unknown(Unknown { why: error.to_string(), is_refused: error.retry() == Retry::Refused })
}

/// How closely to look for an object.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// Whether the server itself is asked.
    certain: bool,
    /// Whether more than metadata is needed.
    whole: bool,
}

/// Group, version and kind of a provider object, if it is one that we would make.
pub(crate) fn provider_type(watched: &Watched, part: Part) -> Option<ObjectType> {
    let (api_version, kind) = watched.machine.provider_type(part)?;
    let groups: &[&str] = match part {
        Part::Bootstrap => &BOOTSTRAP_GROUPS,
        Part::Infrastructure => &INFRASTRUCTURE_GROUPS,
        Part::Machine => &[],
    };
    let (group, version) = api_version.split_once('/')?;
    let is_ours = groups.contains(&group) && !version.is_empty() && !kind.is_empty();
    is_ours.then(|| ObjectType {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
    })
}
