//! What is written for one machine: from what was read to a plan of writes, and what follows when they are done.

use super::phase::{Phase, Seen, Step, decide};
use super::record::{Accepted, Order, Outcome, Record, accept};
use super::{
    Action, Ended, Facts, MachineUpdate, Node, NodeId, Notice, Position, Report, Rule, Said, StatusPatch,
    Subject, Upcoming, UpcomingStatus, is_name,
};
use crate::text::{MESSAGE_BYTES, printable};
use jiff::Timestamp;
use std::collections::VecDeque;
use std::time::Duration;

/// A machine, as far as this process knows it.
#[derive(Debug, Default)]
pub(super) struct Machine {
    /// What the shard has said of it.
    pub(super) said: Said,
    /// Entries of instructions that are not carried out yet. They have one deadline, the earliest: a second instruction can
    /// only bring it forward.
    pub(super) requests: Vec<Request>,
    /// What is to be done, in the order in which it came.
    pub(super) queue: VecDeque<Queued>,
    /// What could not be done and is tried again.
    pub(super) later: Vec<(Duration, Queued)>,
    /// What is being done.
    pub(super) work: Option<Work>,
    /// How much the shard had said when the reclaim that stands on its Node was asked for; absent if an earlier process did.
    pub(super) taken: Option<Position>,
    /// Why its reclaim was given up. Its UpcomingNode says so too, as soon as that can be written.
    pub(super) failure: Option<Failure>,
    /// Why its Node is not cordoned yet, and how often that was tried.
    pub(super) obstacle: Obstacle,
}

/// An entry of an instruction that is not carried out yet.
#[derive(Debug, Clone)]
pub(super) struct Request {
    /// The instruction.
    pub(super) instruction: String,
    /// What the instruction calls it.
    pub(super) entry: String,
    /// How much the shard had said before.
    pub(super) came: Position,
    /// What it does to a Node.
    pub(super) order: Order,
    /// Whether it is known already that no Node is found for it.
    pub(super) is_unresolved: bool,
}

/// Why a Node is not cordoned yet.
#[derive(Debug, Default)]
pub(super) struct Obstacle {
    pub(super) tries: u32,
    pub(super) text: String,
}

/// A reclaim that was given up at its deadline.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// How much the shard had said when the instruction came.
    pub(super) came: Position,
    /// Why, for people.
    pub(super) text: String,
}

/// Something to be done, and how often it failed.
#[derive(Debug, Clone)]
pub(super) struct Queued {
    pub(super) job: Job,
    pub(super) tries: u32,
    /// How often in a row somebody else had written to the object meanwhile.
    pub(super) races: u32,
}

/// Something to be done for a machine.
#[derive(Debug, Clone)]
pub(super) enum Job {
    /// The shard wants its Node back.
    Reclaim,
    /// Its reclaim was given up, which its UpcomingNode does not say yet.
    Fail,
    /// The shard tells its state.
    Update {
        /// How much the shard had said then.
        number: u64,
        update: MachineUpdate,
    },
    /// The drain of its Node, which another process began, goes on.
    Resume { node: String },
    /// The drain of its Node has ended.
    End(Ended),
    /// A Node has appeared that may be it.
    FindNode,
    /// The shard does not know it any more.
    Forget,
}

/// What is being done.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) queued: Queued,
    /// Whether it is one of those of which only some are done at a time.
    pub(super) is_limited: bool,
    /// What follows when the writes are done; absent while it is read.
    pub(super) after: Option<Vec<After>>,
}

/// Writes, in order, and what follows.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) stops_drain_of: Option<String>,
    pub(super) writes: Vec<super::Write>,
    pub(super) after: Vec<After>,
}

/// What follows when writes are done.
#[derive(Debug)]
pub(super) enum After {
    /// These requests are carried out: their Node is cordoned.
    CarriedOut(Vec<(String, String)>),
    /// A reclaim stands on the Node since the shard had said so much.
    Taken(Position),
    /// The Node is drained.
    Drain { node: NodeId, record: Record },
    /// The Node is drained, if it is not already.
    KeepDraining { node: NodeId, record: Record },
    /// The end of a drain is written down.
    DrainIsOver(NodeId),
    /// Somebody may want to know.
    Notify(Notice),
    /// It is logged and counted.
    Report(Report),
}

impl Job {
    pub(super) fn queued(self) -> Queued {
        Queued { job: self, tries: 0, races: 0 }
    }

    /// Whether an ack or pods wait for it, and not only people who look.
    pub(super) fn is_urgent(&self) -> bool {
        match self {
            Self::Reclaim | Self::Fail | Self::Resume { .. } | Self::End(_) => true,
            Self::Update { update, .. } => update.state == super::MachineState::Draining,
            Self::FindNode | Self::Forget => false,
        }
    }
}

impl Request {
    /// When its Node must have been drained.
    pub(super) fn deadline(&self) -> Timestamp {
        self.order.received_at.checked_add(self.order.grace).unwrap_or(Timestamp::MAX)
    }
}

impl Machine {
    /// When the requests must have been carried out.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.requests.iter().map(Request::deadline).min()
    }

    pub(super) fn has_urgent_job(&self) -> bool {
        self.queue.iter().any(|queued| queued.job.is_urgent())
    }

    /// Whether nothing is left to be done.
    pub(super) fn is_at_rest(&self) -> bool {
        self.queue.is_empty() && self.later.is_empty() && self.work.is_none() && self.requests.is_empty()
    }
}

impl Plan {
    /// A write without which nothing follows.
    fn write(&mut self, action: Action) {
        self.writes.push(super::Write { action, is_required: true });
    }

    /// A write that only tells people: nothing waits for it.
    fn tell(&mut self, action: Action) {
        self.writes.push(super::Write { action, is_required: false });
    }
}

/// The requests for a Node that was read, all at once.
pub(super) fn plan_reclaim(machine: &str, requests: &[(Request, Rule)], node: &Node, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let (mut record, mut is_new) = (node.record.clone(), false);
    for (request, rule) in requests {
        plan.after.push(After::Report(Report::Found {
            instruction: request.instruction.clone(),
            entry: request.entry.clone(),
            node: node.id.name.clone(),
            rule: *rule,
        }));
        match accept(record.as_ref(), &request.order, node.is_cordoned, now) {
            Accepted::Known(known) => record = Some(known),
            Accepted::New(new) => (record, is_new) = (Some(new), true),
        }
    }
    // There is a request, and each of them leaves a record.
    let Some(record) = record else { return plan };
    let instructions: Vec<String> = requests.iter().map(|(request, _)| request.instruction.clone()).collect();
    if is_new {
        plan.write(Action::Cordon { node: node.clone(), record: record.clone() });
        if is_name(machine) {
            plan.tell(Action::PatchUpcoming(draining(&node.id)));
        }
        plan.after.push(After::Report(Report::Cordoned {
            instructions: instructions.clone(),
            machine: machine.to_owned(),
            node: node.id.name.clone(),
            deadline: record.deadline,
            by_us: record.cordoned_by_us,
        }));
    } else {
        plan.after.push(After::Report(Report::KnownAlready {
            instructions: instructions.clone(),
            node: node.id.name.clone(),
        }));
    }
    let last = requests.iter().map(|(request, _)| request.came).max_by_key(|came| came.count);
    plan.after.extend(last.map(After::Taken));
    let carried_out =
        requests.iter().map(|(request, _)| (request.instruction.clone(), request.entry.clone())).collect();
    plan.after.push(After::CarriedOut(carried_out));
    if record.outcome.is_none() {
        plan.after.push(After::Drain { node: node.id.clone(), record });
    }
    plan
}

/// What this process knows of the reclaim of a machine, beside the record on its Node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reclaim {
    /// Whether it was given up.
    pub(super) is_given_up: bool,
    /// Whether an instruction for it is being tried: the machine does not drain without one.
    pub(super) is_asked_for: bool,
    /// Whether the machine may be in use again though nobody has said that it was told to join.
    pub(super) may_be_reused: bool,
}

/// What is known when a state is planned for.
pub(super) struct Situation<'a> {
    pub(super) now: Timestamp,
    pub(super) machine: &'a str,
    /// The Node of the machine, and why it is the one; not one whose record is another machine's.
    pub(super) node: Option<(&'a Node, Rule)>,
    pub(super) upcoming: Option<&'a Upcoming>,
    /// What this process knows of its reclaim.
    pub(super) reclaim: Reclaim,
    /// Whether nothing is cordoned and nothing evicted.
    pub(super) observe_only: bool,
    /// How long the drain may take whose instruction was lost.
    pub(super) default_grace: jiff::SignedDuration,
    /// How much the shard had said.
    pub(super) position: Position,
}

impl Situation<'_> {
    fn record(&self) -> Option<&Record> {
        self.node.and_then(|(node, _)| node.record.as_ref())
    }

    /// What a state of the shard leads to.
    pub(super) fn plan_update(&self, update: &MachineUpdate) -> Plan {
        use super::MachineState::{Configured, Configuring};
        let mut plan = Plan::default();
        if let (Configuring | Configured, Some((node, _)), None) = (update.state, self.node, self.record()) {
            // What was called off may have been begun again from an older read.
            plan.stops_drain_of = Some(node.id.name.clone());
        }
        let phase = self.upcoming.and_then(|it| it.status.phase);
        let seen = Seen {
            exists: self.upcoming.is_some(),
            phase: if self.reclaim.is_given_up { Some(Phase::Failed) } else { phase },
            record: self.record(),
            may_be_reused: self.reclaim.may_be_reused,
        };
        for step in decide(update.state, seen) {
            match step {
                Step::Put(phase) => self.put(update, phase, &mut plan),
                Step::Remove { after_failure } => self.remove(after_failure, &mut plan),
                Step::Drain => self.drain_unasked(&mut plan),
                Step::GoOn => {
                    if let (Some((node, _)), Some(record)) = (self.node, self.record()) {
                        let (node, record) = (node.id.clone(), record.clone());
                        plan.after.push(After::KeepDraining { node, record });
                    }
                }
                Step::CallOff => self.call_off(&mut plan),
            }
        }
        plan
    }

    /// Makes or changes the UpcomingNode.
    fn put(&self, update: &MachineUpdate, phase: Option<Phase>, plan: &mut Plan) {
        let was = match self.upcoming {
            None => {
                plan.write(Action::CreateUpcoming(update.spec.clone()));
                UpcomingStatus::default()
            }
            Some(upcoming) => {
                if upcoming.spec != update.spec {
                    let version = upcoming.version.clone();
                    plan.write(Action::ReplaceUpcoming { version, spec: update.spec.clone() });
                }
                upcoming.status.clone()
            }
        };
        let first = if self.reclaim.is_given_up { Phase::Failed } else { Phase::Provisioning };
        let phase_now = phase.or(was.phase).unwrap_or(first);
        let mut patch = StatusPatch {
            phase: Some(phase_now).filter(|phase| was.phase != Some(*phase)),
            started_at: was.started_at.is_none().then_some(self.now),
            ..StatusPatch::default()
        };
        let provider_id = shown(&update.provider_id);
        if !provider_id.is_empty() && was.provider_id.as_ref() != Some(&provider_id) {
            patch.provider_id = Some(provider_id);
        }
        let last_error = shown(&update.last_error);
        if !last_error.is_empty() {
            if was.last_error.as_ref() != Some(&last_error) {
                patch.last_error = Some(Some(last_error));
            }
        } else if matches!(phase, Some(Phase::Registered | Phase::Ready)) && was.last_error.is_some() {
            patch.last_error = Some(None);
        }
        let has_joined = matches!(phase_now, Phase::Registered | Phase::Ready | Phase::Draining);
        if let Some((node, _)) =
            self.node.filter(|(node, _)| has_joined && was.node.as_ref() != Some(&node.id))
        {
            patch.node = Some(node.id.clone());
        }
        if !patch.is_empty() {
            plan.write(Action::PatchUpcoming(patch));
        }
    }

    fn remove(&self, after_failure: bool, plan: &mut Plan) {
        let Some(upcoming) = self.upcoming else { return };
        if after_failure {
            let last = upcoming.status.last_error.clone().unwrap_or_default();
            plan.after.push(After::Notify(Notice {
                subject: self.subject(upcoming),
                reason: "FailedMachineLeft",
                text: format!("the machine left the cluster; it had failed: {last}"),
                is_warning: true,
                key: upcoming.uid.clone(),
            }));
        }
        plan.write(Action::RemoveUpcoming { uid: upcoming.uid.clone() });
    }

    /// The machine drains, and no instruction has come: it was lost, or came when nobody was there.
    pub(super) fn drain_unasked(&self, plan: &mut Plan) {
        if self.reclaim.is_asked_for {
            return;
        }
        let machine = self.machine.to_owned();
        let Some((node, rule)) = self.node else {
            plan.after.push(After::Report(Report::NoNodeToDrain { machine }));
            return;
        };
        if self.observe_only {
            plan.after.push(After::Report(Report::WouldDrain { machine, node: node.id.name.clone() }));
            return;
        }
        let order = Order {
            instruction: None,
            machine: machine.clone(),
            received_at: self.now,
            grace: self.default_grace,
            preemptor_priority: 0,
        };
        let accepted = accept(node.record.as_ref(), &order, node.is_cordoned, self.now);
        let Accepted::New(record) = accepted else { return };
        plan.write(Action::Cordon { node: node.clone(), record: record.clone() });
        plan.tell(Action::PatchUpcoming(draining(&node.id)));
        plan.after.push(After::Taken(self.position));
        plan.after.push(After::Report(Report::CordonedUnasked {
            machine,
            node: node.id.name.clone(),
            rule,
            deadline: record.deadline,
        }));
        plan.after.push(After::Drain { node: node.id.clone(), record });
    }

    /// The machine is used again.
    fn call_off(&self, plan: &mut Plan) {
        let Some((node, _)) = self.node else { return };
        let name = node.id.name.clone();
        if self.observe_only {
            plan.after.push(After::Report(Report::WouldCallOff { node: name }));
            return;
        }
        plan.stops_drain_of = Some(name.clone());
        let uncordon = node.is_cordoned_by_fleet && self.record().is_some_and(|record| record.cordoned_by_us);
        plan.write(Action::CallOff { node: node.clone(), uncordon });
        plan.after.push(After::Report(Report::CalledOff { node: name, uncordoned: uncordon }));
        plan.after.push(After::Notify(Notice {
            subject: Subject::Node(node.id.clone()),
            reason: "ReclaimCalledOff",
            text: "the fleet uses the machine for this cluster again".to_owned(),
            is_warning: false,
            key: node.version.clone(),
        }));
    }

    /// The Node of a machine has appeared after its UpcomingNode.
    pub(super) fn plan_found(&self, id: &NodeId) -> Plan {
        let mut plan = Plan::default();
        if self.upcoming.is_none() {
            return plan;
        }
        let patch = StatusPatch { node: Some(id.clone()), ..StatusPatch::default() };
        plan.write(Action::PatchUpcoming(patch));
        // It was read only if it came too late for the word that the machine drains. What the UpcomingNode says does not
        // count: that the machine is used again may not be written yet.
        if self.node.is_some() {
            self.drain_unasked(&mut plan);
        }
        plan
    }

    fn subject(&self, upcoming: &Upcoming) -> Subject {
        Subject::Upcoming { machine: self.machine.to_owned(), uid: upcoming.uid.clone() }
    }
}

/// A drain that another process began, on a Node that was read.
pub(super) fn plan_resumption(machine: &str, facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let Some(node) = &facts.node else { return plan };
    let Some(record) = node.record.clone().filter(|record| record.outcome.is_none()) else { return plan };
    let phase = facts.upcoming.as_ref().map(|upcoming| upcoming.status.phase);
    if phase.is_some_and(|phase| phase != Some(Phase::Draining)) {
        plan.write(Action::PatchUpcoming(draining(&node.id)));
    }
    plan.after.push(After::Report(Report::Resumed {
        machine: machine.to_owned(),
        node: node.id.name.clone(),
        deadline: record.deadline,
    }));
    plan.after.push(After::KeepDraining { node: node.id.clone(), record });
    plan
}

/// The end of a drain: first what people read, then the record, so that a process that dies in between does it again.
pub(super) fn plan_end(machine: &str, ended: &Ended, facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let Ended { node: id, record, outcome, text } = ended;
    let node = facts.node.as_ref().filter(|node| node.id == *id);
    let standing = node.and_then(|node| node.record.as_ref());
    match standing {
        // Another instruction came at the last moment: its drain is not this one, and may have ended too.
        Some(standing)
            if (&standing.instructions, standing.accepted_at)
                != (&record.instructions, record.accepted_at) =>
        {
            plan.after.push(if standing.outcome.is_none() {
                After::Drain { node: id.clone(), record: standing.clone() }
            } else {
                After::DrainIsOver(id.clone())
            });
            return plan;
        }
        // The machine is in use again.
        None if node.is_some() => {
            plan.after.push(After::DrainIsOver(id.clone()));
            return plan;
        }
        Some(_) | None => {}
    }
    let (reason, is_warning) = match outcome {
        Outcome::Drained => ("Drained", false),
        Outcome::Failed => ("DrainFailed", true),
    };
    let words = match (outcome, text.as_str()) {
        (Outcome::Drained, "") => "every pod that had to go is gone".to_owned(),
        (Outcome::Drained, left) => format!("every pod that could go is gone; {left}"),
        (Outcome::Failed, why) => format!(
            "{why}. The Node stays cordoned: mend what holds the pods, or delete them; the fleet decides what is next"
        ),
    };
    let notice = |subject| Notice {
        subject,
        reason,
        text: words.clone(),
        is_warning,
        key: record.deadline.to_string(),
    };
    if let Some(upcoming) = facts.upcoming.as_ref().filter(|_| is_name(machine)) {
        let phase = upcoming.status.phase;
        let patch = match outcome {
            // It left, and may be on its way back with another Node.
            Outcome::Drained | Outcome::Failed if node.is_none() && phase != Some(Phase::Draining) => None,
            Outcome::Failed => Some(failed(text)),
            // The shard has said why the machine failed, which its pods do not change.
            Outcome::Drained if phase == Some(Phase::Failed) => None,
            Outcome::Drained => Some(StatusPatch { phase: Some(Phase::Drained), ..StatusPatch::default() }),
        };
        if let Some(patch) = patch {
            plan.write(Action::PatchUpcoming(patch));
        }
        let subject = Subject::Upcoming { machine: machine.to_owned(), uid: upcoming.uid.clone() };
        plan.after.push(After::Notify(notice(subject)));
    }
    if let (Some(node), Some(standing)) = (node, standing) {
        let record = Record { outcome: Some(*outcome), ..standing.clone() };
        let progress = Some(shown(text)).filter(|_| *outcome == Outcome::Failed);
        plan.write(Action::EndReclaim { node: node.clone(), record, progress });
        plan.after.push(After::Notify(notice(Subject::Node(id.clone()))));
    }
    plan.after.push(After::DrainIsOver(id.clone()));
    plan
}

/// What an UpcomingNode says of a reclaim that failed.
pub(super) fn failed(text: &str) -> StatusPatch {
    StatusPatch { phase: Some(Phase::Failed), last_error: Some(Some(shown(text))), ..StatusPatch::default() }
}

fn draining(node: &NodeId) -> StatusPatch {
    StatusPatch {
        phase: Some(Phase::Draining),
        last_error: Some(None),
        node: Some(node.clone()),
        ..StatusPatch::default()
    }
}

/// A text with words of the shard or of a server in it, as objects show it.
fn shown(text: &str) -> String {
    printable(text, MESSAGE_BYTES).into_owned()
}
