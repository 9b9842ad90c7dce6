//! A deterministic world around the fleet operator: a shard, an API server, Nodes with pods, and a process that may die.
//!
//! The operator is the real one ([`fivespot_core::fleet`]); what it asks for is done here as the shell does it, at once or
//! later, or not, or done and not answered. What happens is a list of [`Event`]s, so a failing list is replayed as it is
//! printed. Every write that breaks a rule is noted in [`World::broken`]; [`World::settle`] lets the world come to rest, and
//! notes what is wrong then.

mod rules;
mod server;

use fivespot_core::drain::{Pod, PodId};
use fivespot_core::fleet::drain::FleetDrain;
use fivespot_core::fleet::pods::{DrainLabel, PodFacts};
use fivespot_core::fleet::record::Record;
use fivespot_core::fleet::{
    Effect, Input, Instruction, MachineSpec, MachineState, MachineUpdate, Node, NodeFacts, NodeId, Now,
    Operator, Settings, Upcoming, UpcomingFacts, UpcomingStatus,
};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Machines of the shard.
pub const MACHINES: [&str; 2] = ["m0", "m1"];

/// The Node that a machine becomes.
fn node_of(machine: &str) -> String {
    machine.replace('m', "n")
}

/// Grace of a drain whose instruction was lost.
const DEFAULT_GRACE: SignedDuration = SignedDuration::from_secs(60);

/// Longer than any drain of a life takes.
const LONG: u32 = 200;

/// How much later than its deadline an ack may come: the longest wait before a cordon is tried again, and some.
const ACK_SLACK: SignedDuration = SignedDuration::from_secs(4);

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The shard has a machine in a new state, and says so if there is a session.
    Tell(usize, MachineState),
    /// The shard wants machines back, if there is a session: an instruction of this number, for these machines, by the name
    /// of the Node if so, with so many seconds.
    Instruct {
        /// Its number.
        number: u8,
        /// For these machines.
        machines: Of,
        /// Whether it calls them by their Nodes.
        by_node: bool,
        /// Seconds that the drain may take.
        grace: u16,
    },
    /// The session ends.
    SessionLost,
    /// A session begins, with the states of all machines that belong to the cluster.
    SessionBegins,
    /// The process dies. Of the writes that are under way so many are done. Another one starts, with a session.
    Crash(usize),
    /// The Node of a machine joins, if it is not there.
    NodeJoins(usize),
    /// The Node of a machine goes.
    NodeGoes(usize),
    /// Another Node gets the name.
    NodeReplaced(usize),
    /// An administrator cordons the Node.
    AdminCordons(usize),
    /// A pod is on the Node; a budget may hold it.
    PodComes(usize, bool),
    /// No budget holds a pod any more.
    BudgetsOpen,
    /// So many of the next calls fail.
    CallsFail(u8),
    /// The next write is done and not answered.
    WriteLost,
    /// Somebody else writes to every Node.
    OthersWrite,
    /// Whether the server refuses every write to Nodes.
    NodesRefused(bool),
    /// Whether answers and watches wait for [`Event::Answer`].
    Slow(bool),
    /// What has waited longest is answered.
    Answer,
    /// Time passes.
    Seconds(u16),
}

/// Which machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// One.
    One(usize),
    /// Both.
    Both,
}

impl Of {
    fn list(self) -> Vec<usize> {
        match self {
            Self::One(machine) => vec![machine],
            Self::Both => vec![0, 1],
        }
    }
}

/// A Node, as the server has it.
#[derive(Debug, Clone)]
struct NodeObject {
    node: Node,
    /// Whether an administrator had cordoned it before the fleet did.
    is_admins: bool,
    pods: Vec<(PodFacts, bool)>,
}

/// A drain, as the shell has it.
struct Drain {
    state: FleetDrain,
    node: NodeId,
    record: Record,
    /// The instruction that it was begun for.
    begun_for: Option<String>,
}

/// An instruction, as the process that was told has it.
#[derive(Debug, Clone)]
struct Told {
    machines: Vec<usize>,
    at: Timestamp,
    deadline: Timestamp,
    acked: Option<i32>,
    /// When the ack was decided.
    decided_at: Option<Timestamp>,
    is_sent: bool,
    /// Whether nothing went wrong since, for each machine.
    is_clean: [bool; 2],
}

/// What goes wrong at the moment.
#[derive(Debug, Default)]
struct Faults {
    calls_fail: u8,
    write_lost: bool,
    nodes_refused: bool,
    slow: bool,
}

/// The world.
pub struct World {
    now: Timestamp,
    uptime: Duration,
    operator: Operator,
    has_session: bool,
    states: [Option<MachineState>; 2],
    /// Whether a machine was in use again, as the operator was told, since the last instruction for it.
    is_reused: [bool; 2],
    is_idle: [bool; 2],
    nodes: BTreeMap<String, NodeObject>,
    upcoming: BTreeMap<String, Upcoming>,
    version: u64,
    told: BTreeMap<String, Told>,
    /// What the instructions of each number say: an id is not used twice.
    contents: BTreeMap<u8, (Of, bool, u16)>,
    drains: BTreeMap<u64, Drain>,
    pending: VecDeque<Effect>,
    watched: VecDeque<Input>,
    faults: Faults,
    /// Rules that were broken.
    pub broken: Vec<String>,
    /// What happened, in order.
    pub log: Vec<String>,
}

fn settings() -> Settings {
    Settings { default_grace: DEFAULT_GRACE, observe_only: false }
}

impl Default for World {
    fn default() -> Self {
        let now = Timestamp::from_second(1_800_000_000).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut world = Self {
            now,
            uptime: Duration::ZERO,
            operator: Operator::new(settings(), Now { time: now, uptime: Duration::ZERO }),
            has_session: false,
            states: [None, None],
            is_reused: [false, false],
            is_idle: [false, false],
            nodes: BTreeMap::new(),
            upcoming: BTreeMap::new(),
            version: 0,
            told: BTreeMap::new(),
            contents: BTreeMap::new(),
            drains: BTreeMap::new(),
            pending: VecDeque::new(),
            watched: VecDeque::new(),
            faults: Faults::default(),
            broken: Vec::new(),
            log: Vec::new(),
        };
        world.hear(Input::Leads(Vec::new()));
        for event in [
            Event::SessionBegins,
            Event::Tell(0, MachineState::Configured),
            Event::Tell(1, MachineState::Configured),
            Event::NodeJoins(0),
            Event::NodeJoins(1),
        ] {
            world.happen(event);
        }
        world.log.clear();
        world
    }
}

impl World {
    /// Lets events happen, one after the other.
    pub fn live(&mut self, events: &[Event]) {
        for event in events {
            self.happen(*event);
        }
    }

    /// Lets one event happen, and everything that follows from it at once.
    pub fn happen(&mut self, event: Event) {
        self.note(&format!("{event:?}"));
        match event {
            Event::Tell(machine, state) => {
                self.states[machine] = Some(state);
                self.tell(machine);
            }
            Event::Instruct { number, machines, by_node, grace } => {
                self.instruct(number, machines, by_node, grace);
            }
            Event::SessionLost => self.has_session = false,
            Event::SessionBegins => self.begin_session(),
            Event::Crash(done) => self.crash(done),
            Event::NodeJoins(machine) => self.join(machine),
            Event::NodeGoes(machine) => self.go(machine),
            Event::NodeReplaced(machine) => {
                self.go(machine);
                self.join(machine);
            }
            Event::AdminCordons(machine) => {
                if let Some(object) = self.nodes.get_mut(&node_of(MACHINES[machine]))
                    && !object.node.is_cordoned
                {
                    (object.node.is_cordoned, object.is_admins) = (true, true);
                }
                self.touch(machine);
            }
            Event::PodComes(machine, is_guarded) => self.pod(machine, is_guarded),
            Event::BudgetsOpen => {
                for (_, is_guarded) in self.nodes.values_mut().flat_map(|object| &mut object.pods) {
                    *is_guarded = false;
                }
            }
            Event::CallsFail(calls) => self.faults.calls_fail = calls,
            Event::WriteLost => self.faults.write_lost = true,
            Event::OthersWrite => (0..MACHINES.len()).for_each(|machine| self.touch(machine)),
            Event::NodesRefused(is_refused) => {
                self.faults.nodes_refused = is_refused;
                self.dirty(&[0, 1]);
            }
            Event::Slow(slow) => self.faults.slow = slow,
            Event::Answer => self.answer_oldest(),
            Event::Seconds(seconds) => (0..seconds).for_each(|_| self.second()),
        }
        if !matches!(event, Event::Answer) && self.faults.slow {
            return;
        }
        self.run();
    }

    /// Everything works, and time passes until every drain has ended.
    pub fn settle(&mut self) {
        for event in
            [Event::Slow(false), Event::CallsFail(0), Event::NodesRefused(false), Event::SessionBegins]
        {
            self.happen(event);
        }
        self.faults.write_lost = false;
        self.note("settle");
        for _ in 0..LONG {
            self.second();
            self.run();
        }
        self.check_end();
    }

    fn note(&mut self, text: &str) {
        self.log.push(format!("{} {text}", self.now));
    }

    fn break_rule(&mut self, text: String) {
        self.note(&format!("BROKEN: {text}"));
        self.broken.push(text);
    }

    fn clock(&self) -> Now {
        Now { time: self.now, uptime: self.uptime }
    }

    fn second(&mut self) {
        // Finer steps, so that what is due between two seconds is not late.
        for _ in 0..4 {
            self.uptime += Duration::from_millis(250);
            self.now = self.now.checked_add(SignedDuration::from_millis(250)).unwrap_or(self.now);
            if self.operator.due_in(self.clock()).is_some_and(|due| due.is_zero()) {
                self.hear(Input::Time);
            }
            if !self.faults.slow {
                self.run();
            }
        }
        self.drain_all();
        self.check_acks();
    }

    fn hear(&mut self, input: Input) {
        let effects = self.operator.handle(self.clock(), input);
        for effect in &effects {
            if let Effect::Ack { instruction, .. } = effect
                && let Some(told) = self.told.get_mut(instruction)
            {
                told.decided_at.get_or_insert(self.now);
            }
        }
        self.pending.extend(effects);
    }

    /// Nothing that happens to these machines from now on is what an instruction for them relies on.
    fn dirty(&mut self, machines: &[usize]) {
        for told in self.told.values_mut() {
            for machine in machines {
                told.is_clean[*machine] = false;
            }
        }
    }

    // The shard.

    fn tell(&mut self, machine: usize) {
        let Some(state) = self.states[machine].filter(|_| self.has_session) else { return };
        let is_back = state == MachineState::Configuring
            || (state == MachineState::Configured && self.is_idle[machine]);
        if is_back {
            self.is_reused[machine] = true;
            self.dirty(&[machine]);
        }
        match state {
            MachineState::Idle => self.is_idle[machine] = true,
            MachineState::Configuring | MachineState::Configured => self.is_idle[machine] = false,
            MachineState::Unspecified
            | MachineState::Speculative
            | MachineState::Creating
            | MachineState::Draining
            | MachineState::Deleting
            | MachineState::Failed => {}
        }
        self.hear(Input::Update(MachineUpdate {
            machine: MACHINES[machine].to_owned(),
            state,
            provider_id: String::new(),
            last_error: String::new(),
            spec: MachineSpec::default(),
        }));
    }

    fn instruct(&mut self, number: u8, of: Of, by_node: bool, grace: u16) {
        if !self.has_session {
            return;
        }
        let (of, by_node, grace) = *self.contents.entry(number).or_insert((of, by_node, grace));
        let id = format!("i{number}");
        let machines = of.list();
        let entry = |machine: &usize| {
            let name = MACHINES[*machine];
            if by_node { node_of(name) } else { name.to_owned() }
        };
        let entries: Vec<String> = machines.iter().map(entry).collect();
        let deadline = self.now.checked_add(SignedDuration::from_secs(grace.into())).unwrap_or(self.now);
        if !self.told.contains_key(&id) {
            // A record of an earlier process may know it.
            let is_known = self.nodes.values().any(|object| {
                object.node.record.as_ref().is_some_and(|record| record.instructions.contains(&id))
            });
            let is_clean = std::array::from_fn(|machine| {
                !is_known
                    && !by_node
                    && !self.faults.nodes_refused
                    && self.nodes.contains_key(&node_of(MACHINES[machine]))
            });
            for machine in &machines {
                self.is_reused[*machine] = false;
            }
            let (at, acked, decided_at) = (self.now, None, None);
            let told = Told { machines, at, deadline, acked, decided_at, is_sent: false, is_clean };
            self.told.insert(id.clone(), told);
        }
        let instruction = Instruction { id, entries, grace_seconds: grace.into(), preemptor_priority: 0 };
        self.hear(Input::Instruction(instruction));
    }

    fn begin_session(&mut self) {
        self.has_session = true;
        self.is_idle = [false, false];
        self.hear(Input::SessionBegan);
        for machine in 0..MACHINES.len() {
            let is_ours = self.states[machine].is_some_and(|state| {
                !matches!(state, MachineState::Idle | MachineState::Speculative | MachineState::Unspecified)
            });
            if is_ours {
                // An instruction of an earlier session does not apply to a machine that is in use now.
                if matches!(self.states[machine], Some(MachineState::Configuring | MachineState::Configured))
                {
                    self.dirty(&[machine]);
                    self.is_reused[machine] = true;
                }
                self.tell(machine);
            } else {
                self.dirty(&[machine]);
            }
        }
        let unsent: Vec<String> = self
            .told
            .iter()
            .filter(|(_, told)| told.acked.is_some() && !told.is_sent)
            .map(|(id, _)| id.clone())
            .collect();
        for id in unsent {
            self.send_ack(&id);
        }
    }

    fn send_ack(&mut self, id: &str) {
        if let Some(told) = self.told.get_mut(id) {
            told.is_sent = true;
        }
        self.hear(Input::AckSent(id.to_owned()));
    }

    fn crash(&mut self, done: usize) {
        for effect in std::mem::take(&mut self.pending).into_iter().take(done) {
            if let Effect::Write { machine, writes } = effect {
                let _ = self.write_all(&machine, &writes);
            }
        }
        self.uptime = Duration::ZERO;
        self.operator = Operator::new(settings(), self.clock());
        self.drains.clear();
        self.told.clear();
        self.watched.clear();
        for (name, object) in self.nodes.clone() {
            self.hear(Input::NodeChanged(name, Some(facts_of(&object.node))));
        }
        for machine in self.upcoming.keys().cloned().collect::<Vec<_>>() {
            let facts = self.upcoming_facts(&machine);
            self.hear(Input::UpcomingChanged(machine, facts));
        }
        let records = self
            .nodes
            .values()
            .filter_map(|object| Some((object.node.id.name.clone(), object.node.record.clone()?)));
        let records = records.collect();
        self.hear(Input::Leads(records));
        self.begin_session();
    }

    // The cluster.

    fn join(&mut self, machine: usize) {
        let name = node_of(MACHINES[machine]);
        if self.nodes.contains_key(&name) {
            return;
        }
        self.version += 1;
        let node = Node {
            id: NodeId { name: name.clone(), uid: format!("u{}", self.version) },
            version: self.version.to_string(),
            is_cordoned: false,
            is_cordoned_by_fleet: false,
            record: None,
        };
        self.nodes.insert(name.clone(), NodeObject { node, is_admins: false, pods: Vec::new() });
        self.node_changed(&name);
    }

    fn go(&mut self, machine: usize) {
        self.dirty(&[machine]);
        let name = node_of(MACHINES[machine]);
        self.nodes.remove(&name);
        self.node_changed(&name);
    }

    fn touch(&mut self, machine: usize) {
        let name = node_of(MACHINES[machine]);
        self.version += 1;
        if let Some(object) = self.nodes.get_mut(&name) {
            object.node.version = self.version.to_string();
        }
    }

    fn pod(&mut self, machine: usize, is_guarded: bool) {
        self.version += 1;
        let name = format!("p{}", self.version);
        let now = self.now;
        let Some(object) = self.nodes.get_mut(&node_of(MACHINES[machine])) else { return };
        if object.node.is_cordoned {
            return;
        }
        let id = PodId { namespace: "default".to_owned(), uid: name.clone(), name };
        let pod = Pod { id, created_at: now, deletion: None, of_daemon_set: false, mirror: false };
        let facts = PodFacts {
            pod,
            priority: 0,
            daemon_set: None,
            is_lossy: false,
            has_finalizer: false,
            grace: 0,
            label: DrainLabel::Absent,
        };
        object.pods.push((facts, is_guarded));
    }

    fn node_changed(&mut self, name: &str) {
        let facts = self.nodes.get(name).map(|object| facts_of(&object.node));
        self.watched.push_back(Input::NodeChanged(name.to_owned(), facts));
    }

    fn upcoming_facts(&self, machine: &str) -> Option<UpcomingFacts> {
        let upcoming = self.upcoming.get(machine)?;
        let UpcomingStatus { phase, node, provider_id, .. } = upcoming.status.clone();
        let (node, node_uid) = node.map(|id| (id.name, id.uid)).unzip();
        Some(UpcomingFacts {
            machine: machine.to_owned(),
            uid: upcoming.uid.clone(),
            node,
            node_uid,
            provider_id,
            phase,
        })
    }
}

fn facts_of(node: &Node) -> NodeFacts {
    let machine = node.id.name.replace('n', "m");
    let running = node.record.as_ref().filter(|record| record.is_running());
    NodeFacts {
        id: node.id.clone(),
        provider_id: None,
        machine: Some(machine),
        is_silent: false,
        drains_for: running.map(|record| record.machine.clone()),
    }
}
