//! The others: whoever changes the world beside the controller.

use crate::world::{ClusterThing, HOST, PROGRAM, Provider, Sight, Spec, World, admin_taint, evict};
use fivespot_core::lifecycle::{Deletion, Part, Patience};
use fivespot_core::observed::{AgentConfig, NodeOwner};
use fivespot_core::reclaim::Request;
use jiff::{SignedDuration, Timestamp};

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The controller makes a pass.
    Pass,
    /// The controller makes a pass with the ScheduledMachine as it was before the pass before.
    Stale,
    /// The controller dies after so many writes of a pass.
    Crash(u8),
    /// An actor does what is its to do.
    Act(Actor),
    /// A user does something.
    User(User),
    /// Something breaks, or is mended.
    Fault(Fault),
    /// Seconds go by.
    Seconds(u16),
    /// The clock goes on to the end of this window, or to the start of the next.
    Boundary,
}

/// Somebody who works by himself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    /// Watches deliver.
    Watch,
    /// Cluster API.
    ClusterApi,
    /// The providers of bootstrap and infrastructure.
    Provider,
    /// The kubelet of the host.
    Kubelet,
    /// The garbage collector.
    Collector,
    /// The reclaim agent on the host.
    Agent,
}

impl Actor {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Watch, Self::ClusterApi, Self::Provider, Self::Kubelet, Self::Collector, Self::Agent];
}

/// What a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// `spec.schedule.enabled`.
    Enable(bool),
    /// `spec.killSwitch`.
    KillSwitch(bool),
    /// The annotation on the object.
    Pause(bool),
    /// `Cluster.spec.paused`.
    PauseCluster(bool),
    /// Deletes the ScheduledMachine.
    Delete,
    /// Deletes it with `--cascade=orphan`.
    DeleteOrphaning,
    /// Writes a spec that can, or cannot, be read.
    Spec(bool),
    /// `kubectl cordon`.
    Cordon,
    /// `kubectl uncordon`.
    Uncordon,
    /// Puts a taint of his own on the Node.
    Taint,
    /// Deletes the Machine by hand.
    DeleteMachine,
    /// Strips the label by which the watch finds the Machine, or all three.
    StripLabels {
        /// Of the Machine only.
        machine_only: bool,
    },
    /// Deletes the Cluster.
    DeleteCluster,
    /// The Cluster is there, or is not: a backup is restored in the wrong order.
    Cluster(bool),
    /// The owner starts the program, or ends it.
    Program(bool),
    /// `5spot reclaim`.
    Reclaim,
    /// `5spot resume`.
    Resume,
    /// A tool puts `spec.schedule.enabled` back to true.
    Tool,
    /// `spec.killIfCommands` names the program, or nothing.
    Commands(bool),
    /// Somebody takes the request off the Node.
    ClearRequest,
    /// Somebody cleans a host that came back, and deletes its Node.
    CleanHost,
}

/// What may break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The kubelet falls silent.
    NodeFails,
    /// The workload cluster answers, or not.
    Reachable(bool),
    /// A pod comes, if the Node lets it.
    PodComes {
        /// Whether a disruption budget guards it.
        guarded: bool,
    },
    /// The disruption budgets allow everything.
    BudgetsRelent,
    /// The provider behaves as k0smotron does from now on.
    Stubborn,
    /// The provider's clean-up fails from now on, or not.
    CleanUpFails(bool),
    /// A host that was not cleaned up boots, and its kubelet registers a Node.
    HostBoots,
    /// The provider's webhooks are down, or not.
    ProviderDown(bool),
    /// Cluster API's webhooks are down, or not.
    CapiDown(bool),
    /// A policy forbids to disable the schedule, or does not.
    PolicyForbids(bool),
    /// Somebody takes Cluster API's annotations off the Node.
    MarkLost,
}

impl World {
    /// Something happens that is not the controller's doing.
    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Pass | Event::Stale | Event::Crash(_) => {}
            Event::Act(actor) => self.act(actor),
            Event::User(user) => self.user(user),
            Event::Fault(fault) => self.fault(fault),
            Event::Seconds(seconds) => {
                self.now = self.after(SignedDuration::from_secs(seconds.into()));
            }
            Event::Boundary => self.now = self.boundary(),
        }
    }

    /// When the window next opens or closes; some hours on if nobody can say.
    fn boundary(&self) -> Timestamp {
        let window = self.wish.as_ref().as_ref().ok().map(|intent| intent.schedule.at(self.now));
        window.and_then(|window| window.until).unwrap_or_else(|| self.after(SignedDuration::from_hours(8)))
    }

    fn after(&self, by: SignedDuration) -> Timestamp {
        self.now.saturating_add(by).unwrap_or(Timestamp::MAX)
    }

    /// An actor does what is its to do, once.
    pub fn act(&mut self, actor: Actor) {
        match actor {
            Actor::Watch => self.watch(),
            Actor::ClusterApi => self.cluster_api(),
            Actor::Provider => self.provider(),
            Actor::Kubelet => self.kubelet(),
            Actor::Collector => self.collect(),
            Actor::Agent => self.agent(),
        }
    }

    /// When the next pod ends, or Cluster API loses its patience.
    pub fn next_timer(&self) -> Option<Timestamp> {
        let pods = self.node.iter().flat_map(|node| &node.pods).filter_map(|pod| pod.view.deletion);
        let drain = self.machine.as_ref().and_then(|machine| machine.view.object.deleting_since);
        let drain = drain.and_then(|since| since.checked_add(self.orders.budget.drain).ok());
        pods.chain(drain).filter(|at| *at > self.now).min()
    }

    fn user(&mut self, user: User) {
        match user {
            User::Enable(enabled) => {
                // Who writes what stands there already writes nothing that anybody could see.
                self.orders.reclaim.enabled_by_person |= self.orders.enabled != enabled;
                self.orders.enabled = enabled;
            }
            User::Tool => {
                self.orders.reclaim.enabled_by_person &= self.orders.enabled;
                self.orders.enabled = true;
            }
            User::Program(runs) => self.program_runs = runs,
            User::Reclaim => {
                self.orders.reclaim.request = Some(self.request("by hand"));
            }
            User::Resume => {
                self.orders.reclaim.resume = self.memory.reclaim.as_ref().map(|reclaim| reclaim.id.clone());
                self.orders.reclaim.request = None;
                self.user(User::Enable(true));
            }
            User::Commands(some) => {
                self.orders.reclaim.commands = some.then(|| PROGRAM.to_owned()).into_iter().collect();
            }
            User::ClearRequest => {
                if let Some(node) = &mut self.node {
                    node.view.request = None;
                }
            }
            User::CleanHost => {
                self.host_is_dirty = false;
                if self.has_returned() {
                    self.node = None;
                }
            }
            User::KillSwitch(on) => self.orders.kill_switch = on,
            User::Pause(on) => self.orders.paused = on,
            User::PauseCluster(on) => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.paused = on;
                }
            }
            User::Delete => self.delete_object(Deletion::Whole { patience: self.patience }),
            User::DeleteOrphaning => self.delete_object(Deletion::Orphaning),
            User::Spec(valid) => self.write_spec(if valid { Spec::Valid } else { Spec::Invalid }),
            User::Cordon => {
                // Who cordons what we cordoned and somebody opened looks like us: see the annotation.
                if let Some(node) = self.node.as_mut().filter(|node| !node.view.cordoned_by_us) {
                    node.view.unschedulable = true;
                }
            }
            User::Uncordon => {
                if let Some(node) = &mut self.node {
                    node.view.unschedulable = false;
                }
            }
            User::Taint => {
                if let Some(node) =
                    self.node.as_mut().filter(|node| !node.view.taints.contains(&admin_taint()))
                {
                    node.view.taints.push(admin_taint());
                }
            }
            User::DeleteMachine => {
                if self.machine.as_ref().is_some_and(|machine| machine.ours) {
                    let _ = self.delete(Part::Machine, None);
                }
            }
            User::StripLabels { machine_only } => {
                if let Some(it) = &mut self.machine {
                    it.sight = Sight::Unlabelled;
                }
                for it in [&mut self.bootstrap, &mut self.infrastructure].into_iter().flatten() {
                    if !machine_only {
                        it.sight = Sight::Unlabelled;
                    }
                }
            }
            User::DeleteCluster => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.deleting = true;
                }
            }
            User::Cluster(there) => {
                let fresh = ClusterThing { paused: false, deleting: false };
                self.cluster = there.then(|| self.cluster.unwrap_or(fresh));
            }
        }
    }

    fn delete_object(&mut self, how: Deletion) {
        self.orders.deletion = self.orders.deletion.or(Some(how));
        if how != Deletion::Orphaning && !self.finalizer {
            self.exists = false;
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::NodeFails => {
                if let Some(node) = &mut self.node {
                    node.view.ready.status = None;
                }
            }
            Fault::Reachable(on) => self.reachable = on,
            Fault::PodComes { guarded } => {
                let pod = self.new_pod(guarded);
                if let Some(node) = self.node.as_mut().filter(|node| !node.view.unschedulable) {
                    node.pods.push(pod);
                }
            }
            Fault::BudgetsRelent => {
                for pod in self.node.iter_mut().flat_map(|node| &mut node.pods) {
                    pod.guarded = false;
                }
            }
            Fault::Stubborn => self.provider = Provider::Stubborn,
            Fault::CleanUpFails(on) => self.clean_up_fails = on,
            Fault::HostBoots => self.boot(),
            Fault::ProviderDown(on) => self.provider_down = on,
            Fault::CapiDown(on) => self.capi_down = on,
            Fault::PolicyForbids(on) => self.refuses_disable = on,
            Fault::MarkLost => {
                if let Some(node) = &mut self.node {
                    node.view.owner = NodeOwner::Nobody;
                }
            }
        }
    }

    /// Without a providerID: the provider writes that, and its object is gone.
    fn boot(&mut self) {
        if !self.host_is_dirty || self.node.is_some() {
            return;
        }
        let mut node = self.new_node();
        (node.view.provider_id, node.view.ready.status) = (None, Some(true));
        self.node = Some(node);
    }

    fn watch(&mut self) {
        let see = |sight: &mut Sight| {
            if *sight == Sight::Behind {
                *sight = Sight::Watched;
            }
        };
        if let Some(it) = &mut self.machine {
            see(&mut it.sight);
        }
        for it in [&mut self.bootstrap, &mut self.infrastructure].into_iter().flatten() {
            see(&mut it.sight);
        }
    }

    /// One reconcile of the Machine.
    fn cluster_api(&mut self) {
        if self.cluster.is_none_or(|cluster| cluster.paused) || self.capi_down {
            return;
        }
        let host = self.infrastructure.as_ref().filter(|it| it.done).map(|_| HOST.to_owned());
        let joined = self.node.as_ref().filter(|node| node.view.provider_id == host && host.is_some());
        let joined = joined.map(|node| node.view.name.clone());
        let Some(machine) = &mut self.machine else { return };
        machine.finalizer = true;
        if machine.view.object.deleting_since.is_some() {
            return self.tear_down();
        }
        for it in [&mut self.bootstrap, &mut self.infrastructure].into_iter().flatten() {
            it.view.has_machine_owner = true;
        }
        machine.view.bootstrapped |= self.bootstrap.as_ref().is_some_and(|it| it.done);
        machine.view.provider_id = machine.view.provider_id.take().or(host);
        machine.view.node_name = machine.view.node_name.take().or(joined.clone());
        if let Some(node) = self.node.as_mut().filter(|node| joined.as_ref() == Some(&node.view.name)) {
            node.view.owner = NodeOwner::ThisMachine;
        }
    }

    /// Cluster API deletes a Machine: drain, infrastructure, bootstrap, Node, in this order.
    fn tear_down(&mut self) {
        let Some(machine) = &self.machine else { return };
        let since = machine.view.object.deleting_since.unwrap_or(self.now);
        let late = since.checked_add(self.orders.budget.drain).is_ok_and(|end| end <= self.now);
        let cluster_goes = self.cluster.is_some_and(|cluster| cluster.deleting);
        let drains =
            !machine.view.excludes_drain && !late && !cluster_goes && machine.view.node_name.is_some();
        if drains && self.reachable {
            let pods: Vec<_> =
                self.node.iter().flat_map(|node| &node.pods).map(|pod| pod.view.id.clone()).collect();
            let _ = self.ask_to_end(&pods, evict);
            if self.node.as_ref().is_some_and(|node| !node.pods.is_empty()) {
                return;
            }
        }
        // Without the provider's webhooks Cluster API can neither read nor delete its objects.
        if self.provider_down {
            return;
        }
        if self.infrastructure.is_some() {
            let _ = self.delete(Part::Infrastructure, None);
            return;
        }
        if self.bootstrap.is_some() {
            let _ = self.delete(Part::Bootstrap, None);
            return;
        }
        let named = self.machine.as_ref().and_then(|machine| machine.view.node_name.clone());
        if self.node.as_ref().is_some_and(|node| Some(&node.view.name) == named.as_ref()) {
            self.node = None;
        }
        self.vanish(Part::Machine);
    }

    fn provider(&mut self) {
        if self.provider_down {
            return;
        }
        if let Some(it) = &mut self.bootstrap {
            it.done |= it.view.has_machine_owner && it.view.deleting_since.is_none();
        }
        let data = self.bootstrap.as_ref().is_some_and(|it| it.done);
        let bootstrapped = self.machine.as_ref().is_some_and(|it| it.view.bootstrapped);
        let Some(it) = &mut self.infrastructure else { return };
        if it.view.deleting_since.is_none() {
            it.finalizer = true;
            it.done |= it.view.has_machine_owner && data;
        } else if (it.view.has_machine_owner && bootstrapped) || self.provider == Provider::Plain {
            self.host_is_dirty = self.clean_up_fails && (it.done || self.host_is_dirty);
            self.vanish(Part::Infrastructure);
        }
    }

    fn kubelet(&mut self) {
        let lent = self.infrastructure.as_ref().is_some_and(|it| it.done);
        let now = self.now;
        if lent {
            // The provider installs the host anew, and writes its identifier to the Node.
            self.host_is_dirty = false;
            if let Some(node) = &mut self.node {
                node.view.provider_id = Some(HOST.to_owned());
            }
        }
        if !lent && !self.host_is_dirty {
            if let Some(node) = &mut self.node {
                node.view.ready.status = None;
            }
            return;
        }
        match &mut self.node {
            None if !lent => {}
            None => self.node = Some(self.new_node()),
            Some(node) => {
                node.view.ready.status = Some(true);
                node.pods.retain(|pod| pod.view.deletion.is_none_or(|end| end > now));
            }
        }
    }

    fn request(&self, reason: &str) -> Request {
        Request { reason: reason.to_owned(), requested_at: self.now.to_string() }
    }

    /// The agent runs where the label is, and knows what its ConfigMap says.
    fn agent(&mut self) {
        let request = self.request("process-match: idea");
        let told = |node: &str| {
            let commands = |config: &AgentConfig| config.commands.clone().unwrap_or_default();
            let of_node = self.agent_configs.iter().filter(|config| config.node == node);
            of_node.flat_map(commands).any(|command| command == PROGRAM)
        };
        let is_told = self.node.as_ref().is_some_and(|node| told(&node.view.name));
        let runs = self.reachable && self.program_runs && is_told && !self.agent_is_dead;
        if let Some(node) = self.node.as_mut().filter(|node| runs && node.view.labelled) {
            node.view.request.get_or_insert(request);
        }
    }

    fn collect(&mut self) {
        if self.orders.deletion == Some(Deletion::Orphaning) {
            if let Some(it) = &mut self.machine {
                it.ours = false;
            }
            for it in [&mut self.bootstrap, &mut self.infrastructure].into_iter().flatten() {
                it.ours = false;
            }
            self.orders.deletion = Some(Deletion::Whole { patience: self.patience });
            self.exists = self.finalizer;
        }
        if self.exists {
            return;
        }
        let ours = |part: Part, world: &Self| match part {
            Part::Bootstrap => world.bootstrap.as_ref().is_some_and(|it| it.ours),
            Part::Infrastructure => world.infrastructure.as_ref().is_some_and(|it| it.ours),
            Part::Machine => world.machine.as_ref().is_some_and(|it| it.ours),
        };
        for part in [Part::Machine, Part::Infrastructure, Part::Bootstrap] {
            if ours(part, self) {
                let _ = self.delete(part, None);
            }
        }
    }

    /// The operator's choice for deletions.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }
}
