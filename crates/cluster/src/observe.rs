//! From watches and answers to the small views that decisions look at.

use crate::cache::{Cache, Item, Key, Source, list_all};
use crate::capi::{CapiVersion, ClusterItem, MachineItem};
use crate::drain;
use crate::error::{Error, call};
use crate::gate::Rank;
use crate::kinds::Place;
use crate::node::NodeItem;
use crate::parts::{PartItem, absent};
use crate::perform::priority;
use crate::shell::{Capi, Shell, wanted};
use crate::watched::Watched;
use crate::workload::Reached;
use fivespot_api::names::{CONTROLLER, SYSTEM_NAMESPACE};
use fivespot_api::{Lease, leases_path};
use fivespot_core::intent::ObjectType;
use fivespot_core::lifecycle::{Part, Phase};
use fivespot_core::limits::{BOOTSTRAP_GROUPS, INFRASTRUCTURE_GROUPS};
use fivespot_core::observed::{
    Access, AgentConfig, Certainty, Cluster, Machine, Needs, Object, Observed, Pods, Presence, Served,
    Unreachable, UnreachableReason, Workload,
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
        let source = Source { client: self.client.clone(), path, fields, metadata_only: false };
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
            Capi::Served(_, machines, clusters) => (
                Served::Yes,
                self.cluster(watched, &clusters, needs).await?,
                self.machine(watched, &machines, needs).await?,
            ),
        };
        let bootstrap = self.part(watched, Part::Bootstrap, needs).await?;
        let infrastructure = self.part(watched, Part::Infrastructure, needs).await?;
        let workload = match machine.ours() {
            Some(machine) => self.workload(watched, machine, needs).await,
            None => Workload::NotAsked,
        };
        let (finalizer, memory) = (watched.machine.has_finalizer(), watched.machine.memory());
        let agent_configs = self.agent_configs(watched, &workload, memory.phase).await;
        Ok(Observed {
            cluster_api,
            cluster,
            bootstrap,
            infrastructure,
            machine,
            workload,
            agent_configs,
            finalizer,
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
        match self.workloads.reach(&wanted(watched)).await {
            Ok(reached) => reached.agent_configs(watched.uid()).await,
            // Who cannot be reached cannot be told.
            Err(_) => Vec::new(),
        }
    }

    async fn cluster(&self, watched: &Watched, place: &Place, needs: Needs) -> Result<Cluster, Error> {
        let key = Key::new(watched.key().namespace, &watched.machine.spec.cluster_name);
        // A name that is not one names nothing.
        if key.name.is_empty() {
            return Ok(Cluster::Absent(Certainty::Confirmed));
        }
        let found =
            self.look(&self.clusters, &key, place, Look { certain: needs.certainty, whole: true }).await?;
        Ok(match found {
            Some(item) => ClusterItem::view(*item),
            None if needs.certainty => Cluster::Absent(Certainty::Confirmed),
            None => Cluster::Absent(Certainty::Rumour),
        })
    }

    async fn machine(
        &self,
        watched: &Watched,
        place: &Place,
        needs: Needs,
    ) -> Result<Presence<Machine>, Error> {
        let key = watched.key();
        let look = Look { certain: needs.certainty, whole: true };
        let found: Option<Arc<MachineItem>> = self.look(&self.machines, &key, place, look).await?;
        Ok(found.map_or(absent(needs.certainty), |item| item.presence(watched.uid(), &key.name)))
    }

    async fn part(&self, watched: &Watched, part: Part, needs: Needs) -> Result<Presence<Object>, Error> {
        let Some(kind) = provider_type(watched, part) else {
            // Of a kind we never make there is nothing of ours.
            return Ok(absent(true));
        };
        let what = format!("{} {}/{}", kind.kind, kind.group, kind.version);
        let Some(place) = self.kinds.find(&self.client, &kind).await? else {
            return Ok(Presence::NotServed(what));
        };
        let key = watched.key();
        let cache = self.provider(&kind, &place).await;
        let look = Look { certain: needs.certainty, whole: false };
        let found: Option<Arc<PartItem>> = self.look(&cache, &key, &place, look).await?;
        Ok(match found {
            Some(item) => item.presence(watched.uid(), &format!("{} {}", kind.kind, key.name)),
            None if !needs.certainty => absent(false),
            None if place.version != kind.version => Presence::NotServed(what),
            None => absent(true),
        })
    }

    /// What a watch has, or, if that is not enough, what the server answers: a watch may be behind.
    async fn look<T: Item>(
        &self,
        cache: &Cache<T>,
        key: &Key,
        place: &Place,
        look: Look,
    ) -> Result<Option<Arc<T>>, Error> {
        if !look.certain {
            return Ok(cache.get(key));
        }
        let what = format!("read {} {key}", cache.what());
        let request = Request::new(place.path(Some(&key.namespace)));
        let params = GetParams::default();
        let request = if look.whole {
            request.get(&key.name, &params)
        } else {
            request.get_metadata(&key.name, &params)
        };
        let request = request.map_err(|error| Error::api(&what, kube::Error::BuildRequest(error)))?;
        let raw = match call(&what, self.client.request::<Box<RawValue>>(request)).await {
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) if error.code() == Some(404) => {
                // Not the object is missing but its kind, or the version of it: that is no word on the object.
                self.kinds.forget(&place.group);
                return Err(Error::Changed { what });
            }
            answer => answer?,
        };
        let unreadable = |error: serde_json::Error| Error::Unreadable { what, why: error.to_string() };
        T::read(&raw).map(|(_, item)| Some(Arc::new(item))).map_err(unreadable)
    }

    async fn workload(&self, watched: &Watched, machine: &Machine, needs: Needs) -> Workload {
        let Some(name) = &machine.node_name else { return Workload::NotAsked };
        let reached = match self.workloads.reach(&wanted(watched)).await {
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
                message: error.to_string(),
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
        if needs.pods {
            // The kill switch waits for nobody.
            let is_urgent = watched.machine.spec.kill_switch;
            let step = self.steps(&watched.key()).saturating_add(1);
            let rank = (!is_urgent).then(|| Rank { step, priority: priority(watched) });
            let _permit = reached.gate.enter(rank).await;
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
