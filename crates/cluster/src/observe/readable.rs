//! What the caller may read around a ScheduledMachine, for a person with fewer rights than the controller.
//!
//! Each thing is read by itself, so that one which may not be read hides no other. Nothing is decided on it: a decision
//! needs everything.

use super::{Look, provider_type};
use crate::cache::{Cache, Item, Key};
use crate::capi::{ClusterItem, MachineItem};
use crate::error::{Error, call};
use crate::kinds::Place;
use crate::parts::{PartItem, absent};
use crate::perform::own_path;
use crate::shell::{Capi, Shell};
use crate::watched::Watched;
use fivespot_core::lifecycle::Part;
use fivespot_core::name::object_name;
use fivespot_core::observed::{
    Certainty, Cluster, Machine, Needs, Object, Presence, Unreachable, UnreachableReason, Workload,
};
use kube::api::GetParams;
use kube::core::Request;
use serde_json::value::RawValue;
use std::sync::Arc;

/// An object as the server has it, whole or its metadata alone.
const WHOLE: Look = Look { certain: true, whole: true };
const METADATA: Look = Look { certain: true, whole: false };

/// One thing around a ScheduledMachine, as far as the caller may read it.
#[derive(Debug, Clone, PartialEq)]
pub enum Readable<T> {
    /// It was read.
    Read(T),
    /// The caller has not the right that is named, such as `get machines.cluster.x-k8s.io`.
    Forbidden(String),
    /// It could not be read for another reason.
    Failed(String),
}

/// Everything that the controller looks at, each by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Surroundings {
    /// The Cluster that the machine joins.
    pub cluster: Readable<Cluster>,
    /// The bootstrap object.
    pub bootstrap: Readable<Presence<Object>>,
    /// The infrastructure object.
    pub infrastructure: Readable<Presence<Object>>,
    /// The Machine.
    pub machine: Readable<Presence<Machine>>,
    /// The workload cluster and the Node in it, which the Machine leads to, or the memory of the host.
    pub workload: Readable<Workload>,
}

impl Surroundings {
    /// Whether the caller may not read all of it.
    pub fn is_partly_forbidden(&self) -> bool {
        let Self { cluster, bootstrap, infrastructure, machine, workload } = self;
        cluster.is_forbidden()
            || bootstrap.is_forbidden()
            || infrastructure.is_forbidden()
            || machine.is_forbidden()
            || workload.is_forbidden()
    }
}

impl<T> Readable<T> {
    fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden(_))
    }

    fn map<U>(self, change: impl FnOnce(T) -> U) -> Readable<U> {
        match self {
            Self::Read(it) => Readable::Read(change(it)),
            Self::Forbidden(right) => Readable::Forbidden(right),
            Self::Failed(why) => Readable::Failed(why),
        }
    }
}

impl Shell {
    /// Reads everything around a ScheduledMachine that the caller may read, from the server itself.
    pub async fn surroundings(&self, watched: &Watched) -> Surroundings {
        let key = watched.key();
        let (cluster, machine) = match self.capi() {
            Capi::Served(_, places) => {
                let cluster = Key::new(key.namespace.clone(), &watched.machine.spec.cluster_name);
                let cluster = self.readable::<ClusterItem>(&cluster, &places.clusters, WHOLE).await;
                let machine = self.readable::<MachineItem>(&key, &places.machines, WHOLE).await;
                (cluster, machine)
            }
            Capi::Unknown | Capi::Missing | Capi::OtherVersion => {
                let why = "Cluster API is not served here in a version that is known".to_owned();
                (Readable::Failed(why.clone()), Readable::Failed(why))
            }
        };
        let machine = machine.map(|it| it.map_or(absent(true), |it| it.presence(watched.uid(), &key.name)));
        Surroundings {
            cluster: cluster
                .map(|it| it.map_or(Cluster::Absent(Certainty::Confirmed), |it| ClusterItem::view(*it))),
            bootstrap: self.readable_part(watched, Part::Bootstrap).await,
            infrastructure: self.readable_part(watched, Part::Infrastructure).await,
            workload: self.readable_workload(watched, &machine).await,
            machine,
        }
    }

    async fn readable_part(&self, watched: &Watched, part: Part) -> Readable<Presence<Object>> {
        let Some(kind) = provider_type(watched, part) else { return Readable::Read(absent(true)) };
        let places = match self.kinds.find_all(&self.client, &kind).await {
            Ok(places) => places,
            Err(error) => return Readable::Failed(error.to_string()),
        };
        if places.is_empty() {
            let what = format!("{} {}/{}", kind.kind, kind.group, kind.version);
            return Readable::Read(Presence::NotServed(what));
        }
        let key = watched.key();
        let found = self.readable::<PartItem>(&key, &places, METADATA).await;
        let what = format!("{} {}", kind.kind, key.name);
        found.map(|item| item.map_or(absent(true), |item| item.presence(watched.uid(), &what)))
    }

    async fn readable_workload(
        &self,
        watched: &Watched,
        machine: &Readable<Presence<Machine>>,
    ) -> Readable<Workload> {
        let joined = match machine {
            Readable::Read(machine) => machine.ours().and_then(|machine| machine.node_name.clone()),
            Readable::Forbidden(right) => return Readable::Forbidden(right.clone()),
            Readable::Failed(why) => return Readable::Failed(why.clone()),
        };
        // A host that was handed back may be in the cluster again.
        let node = joined.or_else(|| watched.machine.memory().host.map(|host| host.node));
        let Some(node) = node else { return Readable::Read(Workload::NotAsked) };
        match self.workload(watched, &node, Needs::OBJECTS).await {
            Workload::Unreachable(Unreachable { reason: UnreachableReason::SecretForbidden, .. }) => {
                Readable::Forbidden(format!("list Secret {}", self.wanted(watched).secret.name))
            }
            seen => Readable::Read(seen),
        }
    }

    async fn readable<T: Item>(&self, key: &Key, places: &[Place], look: Look) -> Readable<Option<Arc<T>>> {
        let resource = places.first().map(Place::resource).unwrap_or_default();
        match self.look(&Cache::<T>::new(resource.clone()), key, places, look).await {
            Ok(found) => Readable::Read(found),
            Err(error) if error.is_forbidden() => Readable::Forbidden(format!("get {resource}")),
            Err(error) => Readable::Failed(error.to_string()),
        }
    }

    /// A ScheduledMachine as the server has it now. Needs no right but to get this one.
    pub async fn read_machine(&self, namespace: &str, name: &str) -> Result<Option<Watched>, Error> {
        // A name that is not one names nothing, and must not become part of a path.
        if object_name(name).is_err() || object_name(namespace).is_err() {
            return Ok(None);
        }
        let key = Key::new(namespace, name);
        let what = format!("read ScheduledMachine {key}");
        let request = Request::new(own_path(&key)).get(name, &GetParams::default());
        let request = request.map_err(|error| Error::api(&what, kube::Error::BuildRequest(error)))?;
        let raw = match call(&what, self.client.request::<Box<RawValue>>(request)).await {
            Err(error) if error.is_absent() => return Ok(None),
            answer => answer?,
        };
        let unreadable = |error: serde_json::Error| Error::Unreadable { what, why: error.to_string() };
        Watched::read(&raw).map(|(_, watched)| Some(watched)).map_err(unreadable)
    }
}
