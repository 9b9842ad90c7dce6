//! What the API servers hold, what they show, and how they obey.
//!
//! The world knows the truth; [`World::observe`] shows as much of it as a controller gets to see. A write is refused
//! if what it names is not so any more.

use fivespot_core::claim::Claim;
use fivespot_core::drain::{Attempt, Attempts, Outcome, Pod, PodId};
use fivespot_core::field::Invalid;
use fivespot_core::host::HostId;
use fivespot_core::intent::{Draft, DraftObject, DraftSchedule, Effect, Intent, Taint};
use fivespot_core::lifecycle::{Action, Budget, NodeId, Orders, Part, Patience};
use fivespot_core::observed::{
    Access, AgentConfig, AgentPod, AgentPodState, AgentSight, Certainty, Cluster, Foreign, Machine, Memory,
    Needs, Node, NodeOwner, NodeTaint, Object, Observed, Pods, Presence, Ready, Record, Served, Unknown,
    Unreachable, UnreachableReason, Version, Workload,
};
use fivespot_core::reclaim::Calls;
use fivespot_core::status::{ConditionKind, Report};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Monday, in the window of [`HOURS`], and not on a whole second: clocks never are.
pub const MORNING: Timestamp = Timestamp::constant(1_772_445_600, 250_000_000);

/// The same day, when the window is closed.
pub const EVENING: Timestamp = Timestamp::constant(1_772_445_600 + 10 * 3600, 250_000_000);

/// The window, every day in UTC.
const HOURS: &str = "9-16";

/// How long a pod takes to end if it is asked to.
const POD_GRACE: SignedDuration = SignedDuration::from_secs(20);

/// How long a graceful exit may take here.
pub const BUDGET: Budget = Budget { graceful: Duration::from_mins(5), drain: Duration::from_mins(2) };

/// The one host there is.
pub const HOST: &str = "host://1";

/// The program whose start asks for the machine.
pub const PROGRAM: &str = "idea";

/// Name of its Node.
pub const NODE: &str = "node-1";

/// Whether an owner's other objects see it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// The watch has it.
    Watched,
    /// The watch is behind: it will have it.
    Behind,
    /// Its label was stripped: no watch will ever have it.
    Unlabelled,
}

/// An object under the name of the ScheduledMachine.
#[derive(Debug, Clone, PartialEq)]
pub struct Thing<T> {
    /// What a decision sees of it.
    pub view: T,
    /// Whether it names the ScheduledMachine as its owner.
    pub ours: bool,
    /// Whether the watch has it.
    pub sight: Sight,
    /// Whether its own controller holds it.
    pub finalizer: bool,
    /// Whether its own controller has done its work.
    pub done: bool,
}

/// A Node.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// What a decision sees of it, but for its pods.
    pub view: Node,
    /// Its pods.
    pub pods: Vec<Tenant>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// What a decision sees of it.
    pub view: Pod,
    /// Whether a disruption budget forbids its eviction.
    pub guarded: bool,
}

/// Everything there is.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a thing of its own that may be so or not")]
pub struct World {
    /// The time.
    pub now: Timestamp,
    /// Whether the ScheduledMachine exists.
    pub exists: bool,
    /// Its orders.
    pub orders: Orders,
    /// The rest of its spec, read.
    pub wish: Rc<Result<Intent, Invalid>>,
    /// What the operator set for deletions.
    pub patience: Patience,
    /// Whether our finalizer stands on it.
    pub finalizer: bool,
    /// Its status, as far as it is a memory.
    pub memory: Memory,
    /// The Cluster; what is known of its absence is not decided here.
    pub cluster: Option<ClusterThing>,
    /// The bootstrap object.
    pub bootstrap: Option<Thing<Object>>,
    /// The infrastructure object.
    pub infrastructure: Option<Thing<Object>>,
    /// The Machine.
    pub machine: Option<Thing<Machine>>,
    /// The Node.
    pub node: Option<Host>,
    /// What reclaim agents are told.
    pub agent_configs: Vec<AgentConfig>,
    /// Whether the reclaim agent is dead: its pod is not on the Node although that is labelled.
    pub agent_is_dead: bool,
    /// Whether the owner's program runs.
    pub program_runs: bool,
    /// Whether a policy keeps the schedule from being disabled.
    pub refuses_disable: bool,
    /// Whether the workload cluster answers.
    pub reachable: bool,
    /// Whether the provider's clean-up fails, unnoticed by everybody.
    pub clean_up_fails: bool,
    /// Whether the kubelet is still installed on a host that was handed back.
    pub host_is_dirty: bool,
    /// Whether the provider's webhooks are down, so that no version of its kinds answers.
    pub provider_down: bool,
    /// Whether Cluster API's webhooks are down: Machines can be read and deleted, and not written.
    pub capi_down: bool,
    /// How the infrastructure provider behaves.
    pub provider: Provider,
    /// Since when the controller could know that the machine must leave.
    pub leaves_since: Option<Timestamp>,
    /// How many objects were ever made.
    pub made: u32,
}

/// How an infrastructure provider behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// It deletes what it is told to.
    Plain,
    /// It ignores the deletion of an object that has no Machine with bootstrap data, as k0smotron does.
    Stubborn,
}

/// A Cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterThing {
    /// `spec.paused`.
    pub paused: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// Why a write was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// What it names is not so any more, or a policy forbids it.
    Refused(String),
    /// A webhook that the server must ask is down.
    Broken,
}

/// What a spec says beside its orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spec {
    /// Valid, with one taint.
    Valid,
    /// Its zone does not exist.
    Invalid,
}

impl Spec {
    fn read(self) -> Result<Intent, Invalid> {
        let none = BTreeMap::new();
        let hours = [HOURS.to_owned()];
        let taints =
            [Taint { key: "example.com/lent".into(), value: "yes".into(), effect: "NoSchedule".into() }];
        let timezone = match self {
            Self::Valid => "UTC",
            Self::Invalid => "Mars/Base",
        };
        Intent::read(&Draft {
            name: "box",
            namespace: "default",
            schedule: DraftSchedule { days_of_week: &[], hours_of_day: &hours, cron: None, timezone },
            cluster_name: "edge",
            bootstrap: DraftObject {
                api_version: "bootstrap.cluster.x-k8s.io/v1beta1",
                kind: "Config",
                namespace: None,
            },
            infrastructure: DraftObject {
                api_version: "infrastructure.cluster.x-k8s.io/v1beta1",
                kind: "RemoteMachine",
                namespace: None,
            },
            labels: &none,
            annotations: &none,
            priority: 50,
            graceful_shutdown_timeout: "5m",
            node_drain_timeout: "2m",
            kill_if_commands: &[],
            node_taints: &taints,
            kubeconfig_secret: None,
        })
    }
}

impl World {
    /// A Cluster, and a ScheduledMachine that nobody has looked at yet.
    pub fn new(now: Timestamp) -> Self {
        let orders = Orders {
            deletion: None,
            kill_switch: false,
            enabled: true,
            paused: false,
            reclaim: Calls { commands: vec![PROGRAM.to_owned()], ..Calls::default() },
            budget: BUDGET,
        };
        Self {
            now,
            exists: true,
            orders,
            wish: Rc::new(Spec::Valid.read()),
            patience: Patience::Endless,
            finalizer: false,
            memory: Memory::default(),
            cluster: Some(ClusterThing { paused: false, deleting: false }),
            bootstrap: None,
            infrastructure: None,
            machine: None,
            node: None,
            agent_configs: Vec::new(),
            agent_is_dead: false,
            program_runs: false,
            refuses_disable: false,
            reachable: true,
            clean_up_fails: false,
            host_is_dirty: false,
            provider_down: false,
            capi_down: false,
            provider: Provider::Plain,
            leaves_since: None,
            made: 0,
        }
    }

    /// The user writes another spec.
    pub fn write_spec(&mut self, spec: Spec) {
        self.wish = Rc::new(spec.read());
    }

    /// Whether the window is open, if the schedule can be read.
    pub fn in_window(&self) -> Option<bool> {
        self.wish.as_ref().as_ref().ok().map(|intent| intent.schedule.is_active(self.now))
    }

    /// Whether somebody paused it.
    pub fn is_paused(&self) -> bool {
        self.orders.paused || self.cluster.is_some_and(|cluster| cluster.paused)
    }

    /// Whether the Node is the Machine's.
    pub fn same_host(&self) -> bool {
        let machine = self.machine.as_ref().and_then(|machine| machine.view.provider_id.as_ref());
        let node = self.node.as_ref().and_then(|node| node.view.provider_id.as_ref());
        machine.is_some() && machine == node
    }

    /// Whether Cluster API has marked the Node as that of the Machine.
    pub fn is_marked(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.view.owner == NodeOwner::ThisMachine)
    }

    /// Whether the Node is that of the host that was lent, in the cluster again without a Machine.
    pub fn has_returned(&self) -> bool {
        let Some(node) = &self.node else { return false };
        let lent = self.memory.host.as_ref().is_some_and(|host| host.id.is_same(&node.view.host));
        lent && self.machine.is_none()
    }

    /// The time as the API server writes it.
    pub fn second(&self) -> Timestamp {
        whole_second(self.now)
    }

    /// A new object, as the server makes it.
    pub fn make(&mut self) -> Object {
        self.made += 1;
        Object {
            uid: format!("uid-{}", self.made),
            version: Version::default(),
            created_at: self.second(),
            deleting_since: None,
            has_machine_owner: false,
        }
    }

    /// A new object of ours, which the watch does not have yet.
    pub fn thing<T>(view: T) -> Thing<T> {
        Thing { view, ours: true, sight: Sight::Behind, finalizer: false, done: false }
    }

    /// A Machine of that identity.
    pub fn new_machine(object: Object) -> Machine {
        Machine {
            object,
            provider_id: None,
            node_name: None,
            bootstrapped: false,
            ready: Ready::default(),
            deleting: Ready::default(),
            excludes_drain: false,
            excludes_volumes: false,
            hooks: Vec::new(),
        }
    }

    /// What a controller sees that asked for `needs`.
    pub fn observe(&self, needs: Needs) -> Observed {
        let absent = if needs.certainty { Certainty::Confirmed } else { Certainty::Rumour };
        let machine = presence(self.machine.as_ref(), "Machine", needs.certainty);
        let part = |thing: Option<&Thing<Object>>, kind| {
            if needs.parts && self.provider_down {
                return Presence::Unknown(Unknown { why: "no answer".to_owned(), is_refused: false });
            }
            presence(thing, kind, needs.parts)
        };
        Observed {
            cluster_api: Served::Yes,
            cluster: match self.cluster {
                None => Cluster::Absent(absent),
                Some(ClusterThing { paused, deleting }) => Cluster::Present { paused, deleting },
            },
            bootstrap: part(self.bootstrap.as_ref(), "Config"),
            infrastructure: part(self.infrastructure.as_ref(), "RemoteMachine"),
            workload: self.workload(self.node_wanted(machine.ours()), needs),
            machine,
            agent: self.agent_pod(),
            agent_configs: if self.reachable { self.agent_configs.clone() } else { Vec::new() },
            finalizer: self.finalizer,
            provider_says: None,
            claim: Claim::default(),
            rivals: Vec::new(),
            spec_id: "spec".to_owned(),
            memory: self.memory.clone(),
        }
    }

    /// The pod that the DaemonSet puts on a Node that is labelled.
    fn agent_pod(&self) -> AgentSight {
        if !self.reachable {
            return AgentSight::NotAsked;
        }
        let runs = !self.agent_is_dead && self.node.as_ref().is_some_and(|node| node.view.labelled);
        let pod = AgentPod { name: "agent-1".to_owned(), state: AgentPodState::Ready };
        AgentSight::Seen(runs.then_some(pod))
    }

    /// Since when the condition ReclaimAgent is False, as the server keeps it.
    fn without_agent_since(&self, report: &Report) -> Option<Timestamp> {
        let agent = report.conditions.iter().find(|it| it.kind == ConditionKind::ReclaimAgent)?;
        let since = self.memory.without_agent_since.unwrap_or(self.second());
        (agent.status == Some(false)).then_some(since)
    }

    /// The Node that is looked for: of the Machine, or of the host that was lent last.
    fn node_wanted(&self, machine: Option<&Machine>) -> Option<String> {
        let joined = machine.and_then(|machine| machine.node_name.clone());
        joined.or_else(|| self.memory.host.as_ref().map(|host| host.node.clone()))
    }

    fn workload(&self, name: Option<String>, needs: Needs) -> Workload {
        let Some(name) = name else { return Workload::NotAsked };
        if !self.reachable {
            let (reason, message) = (UnreachableReason::ConnectionFailed, "connection refused".to_owned());
            return Workload::Unreachable(Unreachable { by_secret: true, reason, message });
        }
        let node = self.node.as_ref().filter(|node| node.view.name == name);
        let node = node.map(|node| {
            let pods = || Pods::Listed(node.pods.iter().map(|pod| pod.view.clone()).collect());
            let pods = if needs.pods { pods() } else { Pods::NotAsked };
            Box::new(Node { pods, ..node.view.clone() })
        });
        Workload::Reachable(Access::Secret, node)
    }

    /// Performs one action, unless what it names is not so any more.
    pub fn perform(&mut self, action: &Action) -> Result<Attempts, Refused> {
        let done = || Ok(Attempts::default());
        match action {
            Action::AddFinalizer => {
                refuse(self.orders.deletion.is_some(), "a finalizer on an object that is being deleted")?;
                self.finalizer = true;
                done()
            }
            Action::RemoveFinalizer => {
                self.finalizer = false;
                self.exists = self.orders.deletion.is_none();
                done()
            }
            Action::Try(_) if self.provider_down => Err(Refused::Broken),
            Action::Try(_) => done(),
            Action::Create(part) => self.create(*part).and_then(|()| done()),
            Action::Delete { part, uid, .. } => self.delete(*part, Some(uid)).and_then(|()| done()),
            Action::ExcludeDrain { uid, volumes, .. } => {
                let machine = self.machine.as_mut().filter(|machine| machine.view.object.uid == *uid);
                let machine = machine.ok_or_else(|| Refused::Refused("no such Machine".to_owned()))?;
                if self.capi_down {
                    return Err(Refused::Broken);
                }
                machine.view.excludes_drain = true;
                machine.view.excludes_volumes |= volumes;
                done()
            }
            Action::Cordon(id) => {
                let node = self.node_of(id)?;
                (node.view.unschedulable, node.view.cordoned_by_us) = (true, true);
                done()
            }
            Action::Uncordon(id) => {
                let node = self.node_of(id)?;
                (node.view.unschedulable, node.view.cordoned_by_us) = (false, false);
                done()
            }
            Action::SetTaints { node, change, record } => {
                let node = self.node_of(node)?;
                let text = match &node.view.record {
                    Record::None => None,
                    Record::Read(_, text) | Record::Unreadable(text) => Some(text.clone()),
                };
                let changed = node.view.taints != change.before || text != change.record_before;
                refuse(changed, "the taints changed")?;
                node.view.taints.clone_from(&change.after);
                node.view.record = Record::Read(record.clone(), format!("{record:?}"));
                done()
            }
            Action::Evict(pods) => self.ask_to_end(pods, evict),
            Action::ForceDelete(pods) => self.ask_to_end(pods, |_, _| None),
            Action::Disable { reclaim } => {
                refuse(self.refuses_disable, "a policy forbids it")?;
                self.orders.enabled = false;
                self.orders.reclaim.disabled_for = Some(reclaim.clone());
                self.orders.reclaim.enabled_by_person = false;
                done()
            }
            Action::ClearRequest { node, requested_at } => {
                let node = self.node_of(node)?;
                let is_newer = node.view.request.as_ref().is_some_and(|it| it.requested_at != *requested_at);
                refuse(is_newer, "there is a newer request")?;
                node.view.request = None;
                done()
            }
            Action::ClearOwnRequest => {
                self.orders.reclaim.request = None;
                done()
            }
            Action::RememberHost(host) => {
                self.memory.noted_host = Some(host.clone());
                done()
            }
            Action::WriteAgentConfig { node, commands } => {
                refuse(!self.reachable, "the workload cluster does not answer")?;
                let uid = self.make().uid;
                self.agent_configs.retain(|config| config.node != *node);
                self.agent_configs.push(AgentConfig {
                    node: node.clone(),
                    uid,
                    commands: Some(commands.clone()),
                });
                done()
            }
            Action::DeleteAgentConfig { node, uid } => {
                refuse(!self.reachable, "the workload cluster does not answer")?;
                self.agent_configs.retain(|config| config.node != *node || config.uid != *uid);
                done()
            }
            Action::Arm { node, machine } => {
                let node = self.node_of(node)?;
                (node.view.labelled, node.view.armed_for) = (true, Some(machine.clone()));
                done()
            }
            Action::Disarm(node) => {
                let node = self.node_of(node)?;
                (node.view.labelled, node.view.armed_for) = (false, None);
                done()
            }
        }
    }

    fn create(&mut self, part: Part) -> Result<(), Refused> {
        let taken = match part {
            Part::Bootstrap => self.bootstrap.is_some(),
            Part::Infrastructure => self.infrastructure.is_some(),
            Part::Machine => self.machine.is_some(),
        };
        let is_down = if part == Part::Machine { self.capi_down } else { self.provider_down };
        if is_down {
            return Err(Refused::Broken);
        }
        refuse(taken, "it exists already")?;
        let object = self.make();
        match part {
            Part::Bootstrap => self.bootstrap = Some(Self::thing(object)),
            Part::Infrastructure => self.infrastructure = Some(Self::thing(object)),
            Part::Machine => self.machine = Some(Self::thing(Self::new_machine(object))),
        }
        Ok(())
    }

    /// Deletes a part: it goes when nobody holds it any more.
    pub fn delete(&mut self, part: Part, uid: Option<&str>) -> Result<(), Refused> {
        let now = self.second();
        let object = match part {
            Part::Bootstrap => self.bootstrap.as_mut().map(|it| (&mut it.view, it.finalizer)),
            Part::Infrastructure => self.infrastructure.as_mut().map(|it| (&mut it.view, it.finalizer)),
            Part::Machine => self.machine.as_mut().map(|it| (&mut it.view.object, it.finalizer)),
        };
        let object = object.filter(|(object, _)| uid.is_none_or(|uid| object.uid == uid));
        let (object, held) = object.ok_or_else(|| Refused::Refused(format!("no such {part:?}")))?;
        if self.provider_down && part != Part::Machine {
            return Err(Refused::Broken);
        }
        object.deleting_since = object.deleting_since.or(Some(now));
        if !held {
            self.vanish(part);
        }
        Ok(())
    }

    /// A part is gone.
    pub fn vanish(&mut self, part: Part) {
        match part {
            Part::Bootstrap => self.bootstrap = None,
            Part::Infrastructure => self.infrastructure = None,
            Part::Machine => self.machine = None,
        }
    }

    fn node_of(&mut self, id: &NodeId) -> Result<&mut Host, Refused> {
        refuse(!self.reachable, "the workload cluster does not answer")?;
        let node = self.node.as_mut().filter(|node| node.view.uid == id.uid && node.view.name == id.name);
        node.ok_or_else(|| Refused::Refused("no such Node".to_owned()))
    }

    /// Asks pods to end; `ask` says what becomes of one.
    pub fn ask_to_end(
        &mut self,
        ids: &[PodId],
        ask: fn(Tenant, Timestamp) -> Option<Tenant>,
    ) -> Result<Attempts, Refused> {
        refuse(!self.reachable, "the workload cluster does not answer")?;
        let now = self.now;
        let Some(node) = &mut self.node else { return Ok(Attempts::default()) };
        let mut attempts = Vec::new();
        let pods = std::mem::take(&mut node.pods);
        node.pods = pods
            .into_iter()
            .filter_map(|pod| {
                let id = pod.view.id.clone();
                if !ids.contains(&id) {
                    return Some(pod);
                }
                let pod = ask(pod, now);
                let stays = pod.as_ref().is_some_and(|pod| pod.view.deletion.is_none());
                let outcome =
                    if stays { Outcome::Blocked("no disruption allowed".into()) } else { Outcome::Accepted };
                attempts.push(Attempt { pod: id, outcome });
                pod
            })
            .collect();
        Ok(Attempts(attempts))
    }

    /// Writes status, as far as it is a memory. Tells whether anything changed.
    pub fn remember(&mut self, report: &Report) -> bool {
        let reason = |kind| {
            let condition = report.conditions.iter().find(|condition| condition.kind == kind);
            condition.map(|condition| condition.reason.to_owned())
        };
        let mut shutdown = report.shutdown.clone();
        if let Some(shutdown) = &mut shutdown {
            shutdown.started_at = whole_second(shutdown.started_at);
            shutdown.drain_deadline = whole_second(shutdown.drain_deadline);
        }
        let memory = Memory {
            phase: Some(report.phase),
            shutdown,
            scheduled: reason(ConditionKind::Scheduled),
            tainted: reason(ConditionKind::NodeTainted),
            taints: report.taints.clone(),
            last_scheduled: report.last_scheduled,
            reclaim: report.reclaim.clone(),
            host: report.host.clone(),
            noted_host: self.memory.noted_host.clone(),
            checked: report.checked.clone(),
            prepared: reason(ConditionKind::Prepared),
            ready: report.conditions.first().map(|it| (it.reason.to_owned(), it.message.clone())),
            was_unreachable: report
                .conditions
                .iter()
                .any(|it| it.kind == ConditionKind::WorkloadReachable && it.status == Some(false)),
            agent: reason(ConditionKind::ReclaimAgent),
            without_agent_since: self.without_agent_since(report),
            told_of_return: report.conditions.iter().any(|condition| {
                condition.kind == ConditionKind::HostNotCleaned && condition.status == Some(true)
            }),
        };
        let changed = memory != self.memory;
        self.memory = memory;
        changed
    }

    /// A Node that has just registered.
    pub fn new_node(&mut self) -> Host {
        let Object { uid, .. } = self.make();
        let view = Node {
            name: NODE.to_owned(),
            uid,
            provider_id: Some(HOST.to_owned()),
            ready: Ready::default(),
            unschedulable: false,
            cordoned_by_us: false,
            taints: Vec::new(),
            record: Record::None,
            armed_for: None,
            labelled: false,
            host: HostId { machine_id: "m1".into(), system_uuid: "s1".into() },
            owner: NodeOwner::Nobody,
            rivals: Vec::new(),
            request: None,
            pods: Pods::NotAsked,
        };
        Host { view, pods: Vec::new() }
    }

    /// A pod that has just been put on the Node.
    pub fn new_pod(&mut self, guarded: bool) -> Tenant {
        let Object { uid, created_at, .. } = self.make();
        let id = PodId { namespace: "default".into(), name: format!("pod-{}", self.made), uid };
        let view = Pod { id, created_at, deletion: None, of_daemon_set: false, mirror: false };
        Tenant { view, guarded }
    }
}

/// An eviction: a guarded pod stays.
pub fn evict(mut pod: Tenant, now: Timestamp) -> Option<Tenant> {
    if !pod.guarded && pod.view.deletion.is_none() {
        pod.view.deletion = Some(whole_second(now).saturating_add(POD_GRACE).unwrap_or(Timestamp::MAX));
    }
    Some(pod)
}

/// A taint that an administrator put there.
pub fn admin_taint() -> NodeTaint {
    NodeTaint {
        key: "example.com/repair".into(),
        value: Some("x".into()),
        effect: Effect::NoExecute.word().into(),
        time_added: Some("2026-03-02T08:00:00Z".into()),
    }
}

fn refuse(when: bool, why: &str) -> Result<(), Refused> {
    if when { Err(Refused::Refused(why.to_owned())) } else { Ok(()) }
}

fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn presence<T: Clone>(thing: Option<&Thing<T>>, kind: &str, is_certain: bool) -> Presence<T> {
    let absent = if is_certain { Certainty::Confirmed } else { Certainty::Rumour };
    match thing.filter(|thing| is_certain || thing.sight == Sight::Watched) {
        None => Presence::Absent(absent),
        Some(thing) if thing.ours => Presence::Ours(thing.view.clone()),
        Some(_) => Presence::Foreign(Foreign { what: format!("{kind} box"), owner: None }),
    }
}
