//! Simulated hosts: everything that a machine of a namespace needs and that does not run here.
//!
//! They play the provider (bootstrap and infrastructure objects of the kinds in the place of k0smotron's, as k0smotron
//! treats them), the host that joins as a Node, and its kubelet. They do what real ones do when all is well, fail where
//! the real provider fails (without a key, without a Cluster that is ready, on a host that was not cleaned), and
//! misbehave on demand ([`Fault`]). With [`Core::Played`] they play Cluster API itself as well, for tests of load,
//! where the real manager would be what is measured.
//!
//! A host is what answers at the address of a RemoteMachine ([`Inventory`]). Tests give each machine the address that
//! [`Hosts::address`] makes of its name, and all of them the key of [`create_ssh_key`].
//!
//! No healthy machine is polled: one watch for each kind, one task for the heartbeats of all Nodes.

mod core;
mod inventory;
mod kubelet;
mod provider;
mod remote_machine;
mod worker_config;
mod world;

pub(crate) use inventory::Inventory;

use crate::control_plane::{Cluster, ControlPlane};
use crate::error::Error;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use world::World;

/// Time that a pod gets to end, unless a test says otherwise.
const TERMINATION: Duration = Duration::from_millis(100);

/// RemoteMachines that the provider of a namespace works on at the same time. It is the number of k0smotron, which has
/// one provider for all namespaces.
pub const PROVIDER_WORKERS: usize = 5;

/// The Secret with the key that the provider needs to log in on the machines of tests.
pub const SSH_KEY: &str = "workstation-ssh-key";

/// Creates the Secret [`SSH_KEY`] in a namespace of the management cluster.
pub async fn create_ssh_key(plane: &ControlPlane, namespace: &str) -> Result<(), Error> {
    let secret = json!({"metadata": {"name": SSH_KEY}, "stringData": {"value": "a key"}});
    let secret: Secret = serde_json::from_value(secret).map_err(Error::api("describe a Secret"))?;
    Api::<Secret>::namespaced(plane.management().client().await?, namespace)
        .create(&PostParams::default(), &secret)
        .await
        .map_err(Error::api(format!("create the SSH key of {namespace}")))?;
    Ok(())
}

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
    /// The provider cannot clean the host up (its sshd is down at that moment, for example). As k0smotron does, it
    /// drops its finalizer all the same: Machine and Node go, and k0s is still installed. See [`Hosts::reboot`].
    CleanUpFails,
    /// Its sshd does not run: it can neither be provisioned nor cleaned up.
    ConnectionRefused,
    /// Its sshd does not take the key: it can neither be provisioned nor cleaned up.
    LoginRefused,
    /// It accepts connections and says nothing. The provider has no timeout: whatever it does with this host holds one
    /// of its [`PROVIDER_WORKERS`] until this fault ends.
    Silent,
    /// Without bootstrap data the provider does not let it leave, as k0smotron does, also if its bootstrap object
    /// does not exist and nobody will ever make any. (If it exists the provider always waits for the data.)
    HangsWithoutBootstrapObject,
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
        let world = Arc::new(World::new(plane, workload, namespace, behaviour).await?);
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
        self.world.set(machine, Some(behaviour.into()));
    }

    /// From now on all machines behave so that nothing else was said of.
    pub fn set_usual(&self, behaviour: impl Into<Behaviour>) {
        self.world.set_usual(behaviour.into());
    }

    /// From now on the machine behaves as all others do. (For the resets of its host see [`Hosts::resets`].)
    pub fn reset(&self, machine: &str) {
        self.world.set(machine, None);
    }

    /// From now on the machine whose infrastructure object has this name is a real one, whose kubelet registers this Node
    /// ([`RealNode`](crate::RealNode)). Only the provider is played for it: it gives the Node its providerID when it is
    /// there. Nothing is done to the machine when its infrastructure goes.
    pub fn set_real(&self, machine: &str, node: &str) {
        self.world.set_real(machine, node);
    }

    /// What failed last, for the message of a test that waits in vain. Everything that fails is tried again, and
    /// conflicts are part of daily life, so this says nothing about a test that passes.
    pub fn last_error(&self) -> Option<String> {
        self.world.last_error()
    }

    /// The Node that the machine whose infrastructure object has this name registers.
    pub fn node_name(&self, machine: &str) -> String {
        self.world.node_name(machine)
    }

    /// The address that a test gives to a machine of this name, unless it wants two machines to have one host.
    pub fn address(&self, machine: &str) -> String {
        self.world.usual_address(machine)
    }

    /// What the provider writes to the RemoteMachine and to the Node of this machine. Before the provider has seen its
    /// RemoteMachine, that of [`Hosts::address`].
    pub fn provider_id(&self, machine: &str) -> String {
        self.world.provider_id(machine)
    }

    /// What the host of this machine finds in its `/etc/machine-id`, and its Node says in
    /// `status.nodeInfo.machineID`. It belongs to the address, as `systemUUID` does.
    pub fn machine_id(&self, machine: &str) -> String {
        inventory::machine_id(&self.world.endpoint(machine).address)
    }

    /// When the host of this machine was reset (`k0s reset`), for whichever RemoteMachine, oldest first.
    pub fn resets(&self, machine: &str) -> Vec<Timestamp> {
        self.world.inventory.resets(&self.world.endpoint(machine).address)
    }

    /// Whether k0s is installed on the host of this machine, for whichever RemoteMachine.
    pub fn is_installed(&self, machine: &str) -> bool {
        self.world.inventory.installation(&self.world.endpoint(machine).address).is_some()
    }

    /// The host of this machine reboots, and returns whether a Node of it is there afterwards: if k0s is installed, its
    /// kubelet starts and finds its Node, or registers a new one, Ready and without anything that others wrote on the
    /// old one. It is the same host, by name, machineID and systemUUID.
    pub async fn reboot(&self, machine: &str) -> Result<bool, Error> {
        let outcome = kubelet::reboot(&self.world, machine).await;
        outcome.map_err(Error::api(format!("register the Node of {machine}")))
    }

    /// Somebody resets the host of this machine by hand, without the provider. Its Node stays.
    pub fn reset_by_hand(&self, machine: &str) {
        self.world.inventory.reset(&self.world.endpoint(machine).address);
    }
}

/// Sixteen bytes that only this text has.
fn digest(text: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Sha256::digest(text)[..16]);
    bytes
}
