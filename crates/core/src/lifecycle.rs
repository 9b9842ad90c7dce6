//! What to do about one ScheduledMachine, now.
//!
//! [`decide`] is a total function of the time, the orders, the wish and the observed world. It returns everything
//! that follows: the phase, the reason why nothing more happens, the actions that leave no choice to whoever
//! performs them, and the moment at which the answer changes if nothing else does. Status, events, log lines and
//! metrics are rendered from the [`Decision`] and from nowhere else.
//!
//! **Orders** are read before the wish and cannot fail to parse: an invalid wish blocks none of them and touches
//! nothing that runs. *Precedence* picks where it ends (deletion, kill switch, `enabled: false`, schedule);
//! *urgency* picks how, and only rises.
//!
//! Long work is one bounded step per pass. Its start and its deadline are in [`Memory`](crate::observed::Memory),
//! which is read from status, so that the next process goes on where the last one stopped.

mod action;
mod agent;
mod eject;
mod enter;
mod leave;
mod news;
mod prepare;
mod waiting;

pub use action::{Action, NodeId, Part};
pub use agent::{Absence, GRACE as AGENT_GRACE, ReclaimAgent};
pub use news::{News, Note};
pub use prepare::{Checked, Prepared};
use waiting::BLOCKED;
pub(crate) use waiting::not_cleaned;
pub use waiting::{PausedBy, Waiting};

use eject::{Turn, Verdict};

use crate::drain::Attempts;
use crate::field::Invalid;
use crate::intent::{Effect, Intent, Taint};
use crate::observed::{
    Cause, Cluster, Memory, Needs, Object, Observed, Presence, Shutdown, Version, Workload,
};
use crate::reclaim::{Calls, Reclaim, Stage};
use crate::schedule::Window;
use crate::taint::{Claims, Conflict};
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// Where a ScheduledMachine stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// In the window, being created or not joined.
    Pending,
    /// In the window, with a Node that is Ready.
    Active,
    /// Leaving gracefully.
    ShuttingDown,
    /// Outside the window, and nothing exists.
    Inactive,
    /// `spec.schedule.enabled` is false, and nothing exists.
    Disabled,
    /// The kill switch is set, and nothing exists.
    Terminated,
    /// Leaving at once.
    EmergencyRemove,
    /// A person must do something; the message says what.
    Error,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Active,
        Self::ShuttingDown,
        Self::Inactive,
        Self::Disabled,
        Self::Terminated,
        Self::EmergencyRemove,
        Self::Error,
    ];

    /// The word in status.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Active => "Active",
            Self::ShuttingDown => "ShuttingDown",
            Self::Inactive => "Inactive",
            Self::Disabled => "Disabled",
            Self::Terminated => "Terminated",
            Self::EmergencyRemove => "EmergencyRemove",
            Self::Error => "Error",
        }
    }

    /// Reads the word in status.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.word() == word)
    }
}

/// What a ScheduledMachine is told to do, whatever the rest of its spec says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orders {
    /// Whether it is being deleted, and how.
    pub deletion: Option<Deletion>,
    /// `spec.killSwitch`.
    pub kill_switch: bool,
    /// `spec.schedule.enabled`.
    pub enabled: bool,
    /// Whether the object itself is paused.
    pub paused: bool,
    /// What it says about being taken back by its owner.
    pub reclaim: Calls,
    /// How long an exit may take: each part as far as it can be read, else its default.
    pub budget: Budget,
}

/// How a ScheduledMachine is being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// With everything that belongs to it.
    Whole {
        /// What happens to a Machine that will not go.
        patience: Patience,
    },
    /// With `--cascade=orphan`, and the garbage collector is still taking our name off the others.
    Orphaning,
}

/// How long a deletion waits for a Machine that will not go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// As long as it takes.
    Endless,
    /// For [`GIVE_UP`].
    Limited,
}

/// How long a graceful exit may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// `spec.gracefulShutdownTimeout`.
    pub graceful: Duration,
    /// `spec.nodeDrainTimeout`.
    pub drain: Duration,
}

/// How long after its deletion was asked for a Machine is given up, if that is wished at all.
pub const GIVE_UP: Duration = Duration::from_mins(10);

/// How often something is looked at that no watch reports.
pub const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How long a machine may take to join or to leave until its provider is asked what is wrong: longer than k0smotron takes
/// for either when all is well (15 s).
const SLOW: SignedDuration = SignedDuration::from_secs(20);

/// How often a provider is asked what is wrong.
const ASK_PROVIDER: Duration = Duration::from_secs(30);

/// How long a Machine may take to be deleted until a person should look: ten times what it takes when all is well.
const STALLS: SignedDuration = SignedDuration::from_mins(5);

/// When to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wake {
    /// The instant at which the decision is another one if nothing changes.
    pub at: Option<Timestamp>,
    /// How soon to look at what no watch reports.
    pub poll: Option<Duration>,
}

/// How the taints of the Node stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taints {
    /// There is no Node, or it is not ours.
    NoNode,
    /// The Node is not Ready.
    NodeNotReady,
    /// The server refused the change; the text says why.
    PatchFailed(String),
    /// They are written down in status, and applied afterwards.
    Claimed {
        /// What is ours, or is about to be.
        claims: Claims,
        /// What will not be as declared.
        conflicts: Vec<Conflict>,
    },
    /// They are as declared, but for the conflicts.
    Settled {
        /// What is ours.
        record: Vec<Taint<Effect>>,
        /// What is not as declared.
        conflicts: Vec<Conflict>,
    },
}

/// Whether the machine may be lent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduled {
    /// The window is open and nothing stands against it.
    InWindow,
    /// The window is closed.
    OutsideWindow,
    /// The schedule is disabled.
    ScheduleDisabled,
    /// The kill switch is set.
    KillSwitchActivated,
    /// The object is being deleted.
    Deleting,
    /// The owner is taking the machine back.
    EmergencyReclaim,
    /// The owner took the machine back, and the schedule was disabled.
    EmergencyReclaimDisabledSchedule,
    /// The owner took the machine back, and the schedule is enabled again: it is held all the same.
    ReclaimHold,
    /// The spec cannot be read.
    InvalidSpec,
}

impl Scheduled {
    /// The reason of the condition.
    pub fn word(self) -> &'static str {
        match self {
            Self::InWindow => "InWindow",
            Self::OutsideWindow => "OutsideWindow",
            Self::ScheduleDisabled => "ScheduleDisabled",
            Self::KillSwitchActivated => "KillSwitchActivated",
            Self::Deleting => "Deleting",
            Self::EmergencyReclaim => "EmergencyReclaim",
            Self::EmergencyReclaimDisabledSchedule => "EmergencyReclaimDisabledSchedule",
            Self::ReclaimHold => "ReclaimHold",
            Self::InvalidSpec => "InvalidSpec",
        }
    }
}

/// What follows from all that is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The phase, once the actions are done.
    pub phase: Phase,
    /// Why nothing more happens.
    pub waiting: Option<Waiting>,
    /// What to do, in this order; at the first failure the rest is left undone.
    pub actions: Vec<Action>,
    /// The exit under way, to be remembered.
    pub shutdown: Option<Shutdown>,
    /// The last reclaim, to be remembered.
    pub reclaim: Option<Reclaim>,
    /// What must be known before any of this may be acted on.
    pub needs: Needs,
    /// When to look again.
    pub wake: Wake,
    /// What people are told.
    pub notes: Vec<Note>,
    /// Whether the machine may be lent.
    pub scheduled: Scheduled,
    /// Whether the window is open and until when; `None` if the schedule cannot be read.
    pub window: Option<Window>,
    /// The next time a window opens.
    pub next_activation: Option<Timestamp>,
    /// How the Node's taints stand after the actions.
    pub taints: Taints,
    /// What a person types to lend the machine again, while a hold stands.
    pub resume_command: Option<String>,
    /// Whether the machine could be lent.
    pub prepared: Prepared,
    /// Whether a reclaim agent looks at the Node.
    pub agent: ReclaimAgent,
    /// What the server said when it was asked so, to be remembered.
    pub checked: Option<Checked>,
}

/// Everything a step looks at.
#[derive(Clone, Copy)]
struct Given<'a> {
    now: Timestamp,
    orders: &'a Orders,
    wish: Result<&'a Intent, &'a Invalid>,
    observed: &'a Observed,
    /// The reclaim as it stands after what was judged in this pass.
    reclaim: Option<&'a Reclaim>,
}

/// Where it is to end.
enum Goal<'a> {
    Lend(&'a Intent),
    Leave(Cause),
    Unclear(&'a Invalid),
}

/// Decides. Never panics, never waits, and gives equal answers to equal questions.
pub fn decide(
    now: Timestamp,
    orders: &Orders,
    wish: Result<&Intent, &Invalid>,
    observed: &Observed,
) -> Decision {
    let Verdict { reclaim, turn, clears, notes } = eject::judge(now, orders, observed);
    let given = Given { now, orders, wish, observed, reclaim: reclaim.as_ref() };
    let mut decision = match (turn, given.reclaim) {
        (Turn::Begins, Some(reclaim)) => eject::begin(given, reclaim),
        (Turn::Released, _) => eject::release(given, clears),
        (Turn::Begins | Turn::None, _) => given.go_on(clears, notes),
    };
    given.tell_of_schedule(&mut decision);
    given.tell_of_trouble(&mut decision);
    given.prepare(&mut decision);
    given.check_agent(&mut decision);
    if let Some(until) = decision.window.and_then(|window| window.until) {
        decision.wake.at = Some(decision.wake.at.map_or(until, |at| at.min(until)));
    }
    decision
}

impl<'a> Given<'a> {
    /// What follows if nothing turns.
    fn go_on(&self, clears: Vec<Action>, notes: Vec<Note>) -> Decision {
        let mut decision = match self.goal() {
            Goal::Lend(intent) => enter::enter(*self, intent),
            Goal::Leave(cause) => leave::leave(*self, cause),
            Goal::Unclear(invalid) => self.unclear(invalid),
        };
        eject::disable(*self, &mut decision);
        eject::tend_agent(*self, &mut decision);
        // The agent is armed on a Node that is clean. One that is disarmed must not write again what is taken off.
        let place = if self.is_reclaimed() { decision.actions.len() } else { 0 };
        decision.actions.splice(place..place, clears);
        decision.notes.extend(notes);
        self.hold_if_paused(&mut decision);
        decision
    }

    /// Asks the provider what takes so long, if it does.
    fn ask_provider(&self, decision: &mut Decision, since: Timestamp) {
        let at = since.saturating_add(SLOW).unwrap_or(Timestamp::MAX);
        if at > self.now {
            decision.wake.at = Some(decision.wake.at.map_or(at, |other| other.min(at)));
            return;
        }
        decision.needs.words = true;
        decision.wake.poll = Some(decision.wake.poll.map_or(ASK_PROVIDER, |poll| poll.min(ASK_PROVIDER)));
    }

    /// What the provider says is wrong, to be put behind a sentence.
    fn provider_says(&self) -> String {
        self.observed.provider_says.as_ref().map_or(String::new(), |it| format!("; the provider says: {it}"))
    }

    fn goal(&self) -> Goal<'a> {
        let Orders { deletion, kill_switch, enabled, .. } = *self.orders;
        match self.wish {
            _ if deletion.is_some() => Goal::Leave(Cause::Deleted),
            _ if kill_switch => Goal::Leave(Cause::KillSwitch),
            _ if self.is_reclaimed() => Goal::Leave(Cause::Reclaim),
            _ if !enabled => Goal::Leave(Cause::ScheduleDisabled),
            Err(invalid) => Goal::Unclear(invalid),
            Ok(intent) if intent.schedule.is_active(self.now) => Goal::Lend(intent),
            Ok(_) => Goal::Leave(Cause::WindowClosed),
        }
    }

    /// Whether the owner has the machine, or is getting it.
    fn is_reclaimed(&self) -> bool {
        self.reclaim.is_some_and(|reclaim| reclaim.stage() != Stage::Over)
    }

    fn scheduled(&self) -> Scheduled {
        let held = self.reclaim.is_some_and(|reclaim| reclaim.stage() == Stage::Held);
        match self.goal() {
            Goal::Leave(Cause::Reclaim) if !held => Scheduled::EmergencyReclaim,
            Goal::Leave(Cause::Reclaim) if self.orders.enabled => Scheduled::ReclaimHold,
            Goal::Leave(Cause::Reclaim) => Scheduled::EmergencyReclaimDisabledSchedule,
            Goal::Lend(_) => Scheduled::InWindow,
            Goal::Leave(Cause::Deleted) => Scheduled::Deleting,
            Goal::Leave(Cause::KillSwitch) => Scheduled::KillSwitchActivated,
            Goal::Leave(Cause::ScheduleDisabled) => Scheduled::ScheduleDisabled,
            Goal::Leave(Cause::WindowClosed | Cause::ClusterDeleting) => Scheduled::OutsideWindow,
            Goal::Unclear(_) => Scheduled::InvalidSpec,
        }
    }

    /// A decision that does nothing.
    fn rest(&self, phase: Phase) -> Decision {
        let window = self.wish.ok().map(|intent| intent.schedule.at(self.now));
        let next_activation = match (window, self.wish) {
            (Some(Window { active: false, until }), _) => until,
            (Some(Window { active: true, .. }), Ok(intent)) => {
                intent.schedule.transitions(self.now).find(|change| change.active).map(|change| change.at)
            }
            _ => None,
        };
        Decision {
            phase,
            waiting: None,
            actions: Vec::new(),
            shutdown: None,
            needs: Needs::default(),
            wake: Wake::default(),
            notes: Vec::new(),
            scheduled: self.scheduled(),
            window,
            next_activation,
            taints: Taints::NoNode,
            reclaim: self.reclaim.cloned(),
            resume_command: self.is_reclaimed().then(|| self.orders.reclaim.resume_command.clone()),
            prepared: Prepared::NotChecked,
            agent: ReclaimAgent::NotWanted,
            checked: None,
        }
    }

    /// The spec cannot be read. An exit that was begun when it could is finished; nothing else is touched.
    fn unclear(&self, invalid: &Invalid) -> Decision {
        if let Some(shutdown) = self.shutdown() {
            let decision = leave::leave(*self, shutdown.cause);
            if decision.shutdown.is_some() || !decision.needs.within(Needs::default()) {
                return decision;
            }
        }
        let waiting = Some(Waiting::InvalidSpec { problems: invalid.to_string() });
        Decision { waiting, ..self.rest(Phase::Error) }
    }

    fn paused(&self) -> Option<PausedBy> {
        if self.orders.paused {
            return Some(PausedBy::Object);
        }
        matches!(self.observed.cluster, Cluster::Present { paused: true, .. }).then_some(PausedBy::Cluster)
    }

    /// While paused, no Machine is made or deleted and no spec is written. What is urgent still empties the Node.
    fn hold_if_paused(&self, decision: &mut Decision) {
        let Some(by) = self.paused() else { return };
        let may = |action: &Action| match action {
            Action::RemoveFinalizer | Action::ForceDelete(_) => true,
            Action::Cordon(_) => self.is_emergency(),
            Action::AddFinalizer
            | Action::Try(_)
            | Action::Create(_)
            | Action::Delete { .. }
            | Action::ExcludeDrain { .. }
            | Action::Uncordon(_)
            | Action::SetTaints { .. }
            | Action::Evict(_)
            | Action::Disable { .. }
            | Action::ClearRequest { .. }
            | Action::ClearOwnRequest
            | Action::RememberHost(_)
            | Action::WriteAgentConfig { .. }
            | Action::DeleteAgentConfig { .. }
            | Action::Arm { .. }
            | Action::Disarm(_) => false,
        };
        let leaves = !matches!(self.goal(), Goal::Lend(_));
        let holds_back = !decision.actions.iter().all(may) || (leaves && decision.shutdown.is_some());
        // What is true while nothing is held back is still true; that it will stay so is shown.
        if decision.waiting.is_none() || holds_back {
            decision.waiting = Some(Waiting::Paused { by });
        }
        if !holds_back {
            return;
        }
        decision.actions.retain(may);
        decision.notes.clear();
        // What was not done is not claimed.
        decision.reclaim = self.reclaim.cloned();
        if !self.is_emergency() && leaves {
            // The budget of a graceful exit begins when the pause ends.
            decision.shutdown = None;
            decision.wake = Wake::default();
            decision.needs.words = false;
            decision.phase = self.observed.memory.phase.unwrap_or(decision.phase);
        }
    }

    /// Whether the exit is without grace. Urgency only rises: it is remembered in the cause.
    fn is_emergency(&self) -> bool {
        self.orders.kill_switch
            || self.is_reclaimed()
            || self.shutdown().is_some_and(|it| it.cause.is_emergency())
    }

    /// The exit that status remembers. That of an earlier Machine is over, whatever status says of it: its deadline has
    /// passed, and the pods of this Machine would get no time at all. A Machine that was made only to let an
    /// infrastructure object go belongs to the exit of the one before.
    fn shutdown(&self) -> Option<&'a Shutdown> {
        let Observed { infrastructure, memory, .. } = self.observed;
        let goes = infrastructure.ours().is_some_and(|object| object.deleting_since.is_some());
        let is_rescue = goes || matches!(infrastructure, Presence::Absent(_));
        memory.shutdown.as_ref().filter(|_| is_rescue || !self.remembers_earlier_machine())
    }

    /// Whether the exit that status remembers began for another Machine than the one that is there.
    fn remembers_earlier_machine(&self) -> bool {
        let Observed { machine, memory, .. } = self.observed;
        let old = memory.shutdown.as_ref().and_then(|shutdown| shutdown.machine.as_ref());
        let new = machine.ours().map(|machine| &machine.object.uid);
        old.zip(new).is_some_and(|(old, new)| old != new)
    }

    /// The version that something is decided on. An emergency is not taken back, and must not lose a race against
    /// somebody who writes all the time.
    fn decided_on(&self, object: &Object) -> Option<Version> {
        (!self.is_emergency()).then(|| object.version.clone())
    }

    fn delete(&self, part: Part, object: &Object) -> Action {
        Action::Delete { part, uid: object.uid.clone(), version: self.decided_on(object) }
    }

    /// What only a person can mend, and a cluster that cannot be reached, are told once.
    fn tell_of_trouble(&self, decision: &mut Decision) {
        let Memory { phase, was_unreachable, .. } = &self.observed.memory;
        let told = |decision: &Decision| decision.notes.iter().any(|note| note.news == News::HostNotCleaned);
        if decision.phase == Phase::Error && *phase != Some(Phase::Error) && !told(decision) {
            let text = decision.waiting.as_ref().map(ToString::to_string).unwrap_or_default();
            decision.notes.push(Note { news: News::NeedsAttention, text });
        }
        if let Workload::Unreachable(why) = &self.observed.workload
            && !was_unreachable
        {
            decision.notes.push(Note { news: News::WorkloadUnreachable, text: why.message.clone() });
        }
    }

    fn tell_of_schedule(&self, decision: &mut Decision) {
        let before = self.observed.memory.scheduled.as_deref();
        if before == Some(decision.scheduled.word()) {
            return;
        }
        let (news, text) = match decision.scheduled {
            Scheduled::InWindow => (News::ScheduleActive, "The time window is open"),
            Scheduled::ScheduleDisabled => (News::ScheduleDisabled, "spec.schedule.enabled is false"),
            Scheduled::KillSwitchActivated => (News::KillSwitchActivated, "spec.killSwitch is true"),
            // That a new object is outside its window, or cannot be read, is no news of its schedule.
            Scheduled::OutsideWindow if before.is_some() => {
                (News::ScheduleInactive, "The time window is closed")
            }
            Scheduled::OutsideWindow
            | Scheduled::Deleting
            | Scheduled::InvalidSpec
            // These are told of by the steps of the reclaim itself.
            | Scheduled::EmergencyReclaim
            | Scheduled::EmergencyReclaimDisabledSchedule
            | Scheduled::ReclaimHold => return,
        };
        decision.notes.insert(0, Note { news, text: text.to_owned() });
    }
}

impl Decision {
    /// Whether the actions after this one are done even if it fails, other than by a race. A webhook that is down
    /// must not keep a machine from leaving: without the annotations Cluster API drains within its own bounds, and a
    /// Node that cannot be written is taken away with its Machine.
    pub fn goes_on_without(&self, action: &Action) -> bool {
        let is_urgent = matches!(self.phase, Phase::EmergencyRemove | Phase::Disabled | Phase::Terminated);
        match action {
            Action::ExcludeDrain { .. } | Action::RememberHost(_) => true,
            Action::Try(_) => self.phase != Phase::Pending,
            Action::Cordon(_)
            | Action::ClearRequest { .. }
            | Action::DeleteAgentConfig { .. }
            | Action::Disarm(_) => is_urgent,
            Action::AddFinalizer
            | Action::RemoveFinalizer
            | Action::Create(_)
            | Action::Delete { .. }
            | Action::Uncordon(_)
            | Action::SetTaints { .. }
            | Action::Evict(_)
            | Action::ForceDelete(_)
            | Action::Disable { .. }
            | Action::ClearOwnRequest
            | Action::WriteAgentConfig { .. }
            | Action::Arm { .. } => false,
        }
    }

    /// The decision after the server refused to disable the schedule: the hold stands in its place, and says why.
    #[must_use]
    pub fn not_disabled(mut self, refusal: String) -> Self {
        for note in &mut self.notes {
            if note.news == News::EmergencyReclaimDisabledSchedule {
                note.text = format!(
                    "spec.schedule.enabled could not be set to false: {refusal}. The machine is held all the same. To lend \
                     it again: {}",
                    self.resume_command.as_deref().unwrap_or_default()
                );
            }
        }
        if let Some(reclaim) = &mut self.reclaim {
            (reclaim.disabled, reclaim.refused) = (false, Some(refusal));
        }
        self
    }

    /// The decision after its evictions were tried: it says who is in the way, and tells people when somebody begins
    /// to be.
    #[must_use]
    pub fn after(mut self, attempts: &Attempts, observed: &Observed) -> Self {
        let found = attempts.summary();
        let Some(Waiting::Draining { blocked, .. } | Waiting::HostNotCleaned { blocked, .. }) =
            &mut self.waiting
        else {
            return self;
        };
        blocked.clone_from(&found);
        let was_blocked = observed.memory.ready.as_ref().is_some_and(|(reason, _)| reason == BLOCKED);
        if !found.is_empty() && !was_blocked {
            self.notes.push(Note { news: News::NodeDrainBlocked, text: found });
        }
        self
    }

    /// The decision in the words of who carried out the one before it: one who only looks tries no eviction, and says who
    /// was in the way when that was last tried.
    #[must_use]
    pub fn as_last_tried(mut self, observed: &Observed) -> Self {
        let before = self.waiting.as_ref().map(ToString::to_string).unwrap_or_default();
        let said = observed.memory.ready.as_ref().and_then(|(_, message)| message.strip_prefix(&before));
        let said = said.and_then(|said| said.strip_prefix("; "));
        if let (Some(Waiting::Draining { blocked, .. }), Some(said)) = (&mut self.waiting, said) {
            said.clone_into(blocked);
        }
        self
    }

    /// The decision after one of its actions failed: nothing of it may be claimed, and the failure is shown.
    #[must_use]
    pub fn failed(mut self, observed: &Observed, failure: Failure) -> Self {
        let Failure { action, text, is_final } = failure;
        if matches!(action, Action::SetTaints { .. }) {
            // The machine serves all the same.
            self.taints = Taints::PatchFailed(text.clone());
        } else {
            self.phase = match self.phase {
                _ if is_final => Phase::Error,
                Phase::Pending | Phase::ShuttingDown | Phase::EmergencyRemove | Phase::Error => self.phase,
                // What it would have been with the actions done must not be claimed.
                Phase::Active => Phase::Pending,
                Phase::Inactive | Phase::Disabled | Phase::Terminated => Phase::ShuttingDown,
            };
        }
        self.waiting = Some(Waiting::Failed { text });
        self.shutdown.clone_from(&observed.memory.shutdown);
        self.reclaim.clone_from(&observed.memory.reclaim);
        self
    }
}

/// An action that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub action: Action,
    /// In words.
    pub text: String,
    /// Whether the server refused it for what it is, so that a person must do something.
    pub is_final: bool,
}
