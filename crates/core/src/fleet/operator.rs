//! The whole state of the fleet operator: one input at a time, and what follows from it.
//!
//! What is said of one machine is done in the order in which it was said. What cannot be done is tried again and holds up
//! nothing else about the machine. At most one thing is done for a machine at a time, so that each plan is made from what
//! was read after the writes of the one before.

mod drains;
mod reclaim;
mod work;

use super::instructions::{ACK_PATIENCE, Instructions, Known};
use super::machine::{Job, Machine, Obstacle, Queued, Request};
use super::record::{Order, read_grace};
use super::{Effect, Index, Input, Instruction, MachineState, MachineUpdate, Position, Report, is_name};
use drains::{Drain, ORPHAN_AFTER, Stage};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Nodes of one instruction; a shard that names more is broken, and only the first are given back.
const ENTRIES: usize = 1000;

/// What does not change while the process runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Grace of a drain whose instruction was lost.
    pub default_grace: SignedDuration,
    /// Whether nothing is cordoned and nothing evicted.
    pub observe_only: bool,
}

/// Now, by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// What deadlines are compared with.
    pub time: Timestamp,
    /// Since the process began, by a clock that nobody sets.
    pub uptime: Duration,
}

/// Something that is looked at again when its time comes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A machine with something to be tried again, or a deadline.
    Machine(String),
    /// The patience of an instruction with its last Nodes.
    AckPatience(String),
    /// An ack that is not sent yet.
    AckAssumed(String),
    /// The drain of a Node that waits for acks.
    Drain(String),
    /// A Node with the record of a drain that nobody may be at.
    Orphan(String),
}

/// The fleet operator.
#[derive(Debug)]
pub struct Operator {
    settings: Settings,
    now: Now,
    /// Whether this process speaks for the cluster.
    leads: bool,
    position: Position,
    index: Index,
    instructions: Instructions,
    machines: HashMap<String, Machine>,
    /// By the name of the Node.
    drains: BTreeMap<String, Drain>,
    last_drain: u64,
    timers: BTreeSet<(Duration, Timer)>,
    /// Machines that wait for others to be done.
    waiting: VecDeque<String>,
    /// How many of those are being done of which only some are at a time.
    limited: usize,
    effects: Vec<Effect>,
}

impl Operator {
    /// A process that has just begun.
    pub fn new(settings: Settings, now: Now) -> Self {
        Self {
            settings,
            now,
            leads: false,
            position: Position::default(),
            index: Index::default(),
            instructions: Instructions::default(),
            machines: HashMap::new(),
            drains: BTreeMap::new(),
            last_drain: 0,
            timers: BTreeSet::new(),
            waiting: VecDeque::new(),
            limited: 0,
            effects: Vec::new(),
        }
    }

    /// Takes an input, and says what is to be done.
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.now = now;
        match input {
            Input::SessionBegan => self.position.session += 1,
            Input::Instruction(instruction) => self.instruct(instruction),
            Input::Update(update) => self.update(update),
            Input::NodeChanged(name, facts) => {
                let drains = facts.as_ref().is_some_and(|facts| facts.drains_for.is_some());
                if self.index.put_node(&name, facts) {
                    self.look_for_nodes();
                }
                if drains && self.leads && !self.is_drained(&name) {
                    self.timers.insert((now.uptime + ORPHAN_AFTER, Timer::Orphan(name)));
                }
            }
            Input::UpcomingChanged(machine, facts) => self.index.put_upcoming(&machine, facts),
            Input::Leads(records) => {
                self.leads = true;
                self.look_for_nodes();
                for (node, record) in records {
                    if record.is_running() {
                        self.push(&record.machine, Job::Resume { node });
                    }
                }
            }
            Input::Read(machine, facts) => self.read(&machine, facts),
            Input::Written(machine, written) => self.written(&machine, written),
            Input::AckSent(id) => self.ack_sent(&id, true),
            Input::DrainEnded(number, end) => self.drain_ended(number, end),
            Input::Sweep => self.sweep(),
            Input::Time => {}
        }
        self.run_timers();
        std::mem::take(&mut self.effects)
    }

    /// How long until something is to be looked at without any other input.
    pub fn due_in(&self, now: Now) -> Option<Duration> {
        self.timers.first().map(|(due, _)| due.saturating_sub(now.uptime))
    }

    /// Whether no instruction waits for its ack.
    pub fn is_settled(&self) -> bool {
        self.instructions.are_acked()
    }

    /// How many drains are under way.
    pub fn drains(&self) -> usize {
        self.drains.len()
    }

    /// When the drain that has the least time must have ended.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.drains.values().map(|drain| drain.record.deadline).min()
    }

    /// What the index shows.
    pub fn index(&self) -> &Index {
        &self.index
    }

    fn machine(&mut self, name: &str) -> &mut Machine {
        self.machines.entry(name.to_owned()).or_default()
    }

    fn report(&mut self, report: Report) {
        self.effects.push(Effect::Report(report));
    }

    /// Whether the shard speaks of a machine of this name, or did.
    fn is_machine(&self, name: &str) -> bool {
        self.is_mentioned(name) || self.index.upcoming(name).is_some()
    }

    fn is_mentioned(&self, name: &str) -> bool {
        self.machines.get(name).is_some_and(|it| it.said.is_mentioned_in(self.position.session))
    }

    fn instruct(&mut self, instruction: Instruction) {
        let Instruction { id, entries, grace_seconds, preemptor_priority } = instruction;
        if id.is_empty() {
            return self.report(Report::Refused { entries });
        }
        let entries: BTreeSet<String> = entries.into_iter().filter(|entry| !entry.is_empty()).collect();
        let count = entries.len();
        let entries: Vec<String> = entries.into_iter().take(ENTRIES).collect();
        match self.instructions.begin(&id, entries.iter().cloned(), self.now.uptime) {
            Known::Acked(nodes_started) => {
                self.report(Report::Repeated { instruction: id.clone(), acked: Some(nodes_started) });
                self.effects.push(Effect::Ack { instruction: id, nodes_started });
                return;
            }
            Known::InProgress => return self.report(Report::Repeated { instruction: id, acked: None }),
            Known::New => {}
        }
        let grace = read_grace(grace_seconds);
        self.report(Report::Instructed {
            instruction: id.clone(),
            entries: entries.iter().take(10).cloned().collect(),
            count,
            grace,
            preemptor_priority,
        });
        if count > ENTRIES {
            self.report(Report::TooManyEntries { instruction: id.clone(), count, limit: ENTRIES });
        }
        if entries.is_empty() {
            let due = self.instructions.ack_late(&id);
            return self.ack(&id, due);
        }
        for entry in entries {
            let machine = self.index.machine_of(&entry, self.is_mentioned(&entry));
            let order = Order {
                instruction: Some(id.clone()),
                machine: machine.clone(),
                received_at: self.now.time,
                grace,
                preemptor_priority,
            };
            let request =
                Request { instruction: id.clone(), entry, came: self.position, order, is_unresolved: false };
            let it = self.machine(&machine);
            it.requests.push(request);
            // What was asked for before is tried again with it, at once.
            it.obstacle = Obstacle::default();
            it.later.retain(|(_, queued)| !matches!(queued.job, Job::Reclaim));
            if !it.queue.iter().any(|queued| matches!(queued.job, Job::Reclaim)) {
                self.push(&machine, Job::Reclaim);
            }
        }
        self.timers.insert((self.now.uptime + ACK_PATIENCE, Timer::AckPatience(id)));
    }

    fn update(&mut self, update: MachineUpdate) {
        let machine = update.machine.clone();
        if !is_name(&machine) {
            return self.report(Report::NotAName { machine: machine.chars().take(80).collect() });
        }
        self.position.count += 1;
        let position = self.position;
        self.index.put_provider_id(&machine, &update.provider_id);
        let it = self.machine(&machine);
        it.said.hear(position, update.state);
        match update.state {
            // Another life of it begins, or has.
            MachineState::Speculative
            | MachineState::Creating
            | MachineState::Idle
            | MachineState::Configuring
            | MachineState::Configured => it.failure = None,
            MachineState::Unspecified
            | MachineState::Draining
            | MachineState::Deleting
            | MachineState::Failed => {}
        }
        // Of the same state said twice only the last counts.
        if let Some(Queued { job: Job::Update { update: last, .. }, .. }) = it.queue.back()
            && last.state == update.state
        {
            it.queue.pop_back();
        }
        self.push(&machine, Job::Update { number: position.count, update });
    }

    /// UpcomingNodes that do not name their Node, and machines whose instruction waits for one, look for it.
    fn look_for_nodes(&mut self) {
        if !self.leads {
            return;
        }
        for machine in self.index.found_at_last() {
            let it = self.machine(&machine);
            if !matches!(it.queue.back(), Some(Queued { job: Job::FindNode, .. })) {
                self.push(&machine, Job::FindNode);
            }
        }
    }

    fn sweep(&mut self) {
        let gone: Vec<String> =
            self.index.machines().filter(|machine| self.is_gone(machine)).cloned().collect();
        for machine in gone {
            self.push(&machine, Job::Forget);
        }
        let index = &self.index;
        let is_there = |machine: &str| index.upcoming(machine).is_some() || index.find(machine).is_some();
        let session = self.position.session;
        self.machines.retain(|name, machine| {
            is_there(name) || machine.said.is_mentioned_in(session) || !machine.is_at_rest()
        });
        let told: Vec<String> = self.index.told_machines().cloned().collect();
        for machine in told.iter().filter(|machine| !self.machines.contains_key(*machine)) {
            self.index.forget_provider_id(machine);
        }
    }

    /// Whether the shard does not know a machine any more. One that has a Node is believed to be there: a shard that was
    /// started again knows no machine before it has asked its provider.
    fn is_gone(&self, machine: &str) -> bool {
        !self.is_mentioned(machine) && self.index.find(machine).is_none()
    }

    fn run_timers(&mut self) {
        while let Some((due, _)) = self.timers.first()
            && *due <= self.now.uptime
            && let Some((_, timer)) = self.timers.pop_first()
        {
            match timer {
                Timer::Machine(machine) => self.try_again(&machine),
                Timer::AckPatience(id) => {
                    let due = self.instructions.ack_late(&id);
                    self.ack(&id, due);
                }
                Timer::AckAssumed(id) => self.ack_sent(&id, false),
                Timer::Orphan(node) => self.adopt(&node),
                Timer::Drain(node) => {
                    let uptime = self.now.uptime;
                    let is_due =
                        |drain: &Drain| matches!(drain.stage, Stage::Waits { until, .. } if until <= uptime);
                    if self.drains.get(&node).is_some_and(is_due) {
                        self.run_drain(&node);
                    }
                }
            }
        }
    }

    /// What could not be done is tried again, unless something newer was said: of states only the last counts.
    fn try_again(&mut self, machine: &str) {
        let uptime = self.now.uptime;
        let Some(it) = self.machines.get_mut(machine) else { return };
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut it.later).into_iter().partition(|(due, _)| *due <= uptime);
        it.later = later;
        let last = it.said.last();
        let is_current =
            |queued: &Queued| !matches!(queued.job, Job::Update { number, .. } if number != last);
        it.queue.extend(due.into_iter().map(|(_, queued)| queued).filter(is_current));
        self.advance(machine);
    }
}
