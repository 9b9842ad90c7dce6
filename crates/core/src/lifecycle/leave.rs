//! The machine leaves: the Node is emptied, then the Machine goes, then what is left.
//!
//! Cluster API removes infrastructure, bootstrap and Node itself when the Machine is deleted, in this order. The two
//! provider objects are deleted from here only if there is no Machine that would do it.

use super::waiting::not_cleaned;
use super::{
    Action, Decision, Deletion, GIVE_UP, Given, LOOK_AGAIN, News, NodeId, Note, Part, Patience, Phase,
    STALLS, Waiting,
};
use crate::drain::{self, Drain, Setting};
use crate::host::{self, Returned};
use crate::observed::{
    Cause, Certainty, Cluster, Machine, Needs, Node, Object, Observed, Pods, Presence, Shutdown, Unknown,
    Workload,
};
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// k0smotron ignores the deletion of a RemoteMachine that never had a Machine. An infrastructure object that does
/// not go for this long gets one.
const ORPHAN_HANGS: Duration = Duration::from_secs(30);

/// How long a new Machine that must go already is left alone for its bootstrap data, which comes a second after the
/// Machine if it comes at all.
const BOOTSTRAP_WITHIN: Duration = Duration::from_secs(10);

/// Longest time from the start of a drain to the cordon. By its start a drain tells pods that were there from pods that
/// come back in spite of the cordon, so the two must not be far apart.
const CORDON_WITHIN: SignedDuration = SignedDuration::from_secs(5);

pub(super) fn leave(given: Given<'_>, cause: Cause) -> Decision {
    let observed = given.observed;
    if given.orders.deletion == Some(Deletion::Orphaning) {
        return Decision { waiting: Some(Waiting::Orphaning), ..given.rest(under_way(given)) };
    }
    // What was looked at closely once, in the phase where it ended, need not be looked at again while nothing shows.
    let ends = !matches!(cause, Cause::Deleted | Cause::ClusterDeleting);
    let provider_objects = [&observed.infrastructure, &observed.bootstrap];
    let shows = observed.machine.ours().is_some() || provider_objects.iter().any(|it| it.ours().is_some());
    let is_settled = ends && !shows && observed.memory.phase == Some(settled(cause));
    // A Machine that is there leaves by itself: of its provider objects nothing need be known, but for whose exit it is
    // that status remembers.
    let is_there = observed.machine.ours().is_some();
    let needs_parts = !is_there || given.remembers_earlier_machine();
    let rumour_of_part = provider_objects.iter().any(|it| it.is_rumour()) && needs_parts;
    if (observed.machine.is_rumour() || rumour_of_part) && !is_settled {
        let needs = Needs::OBJECTS;
        let phase = observed.memory.phase.unwrap_or(Phase::Pending);
        return Decision { needs, shutdown: observed.memory.shutdown.clone(), ..given.rest(phase) };
    }
    let decision = match observed.machine.ours() {
        Some(machine) => match machine.object.deleting_since {
            Some(since) => machine_goes(given, machine, since),
            None => machine_lives(given, cause, machine),
        },
        None if is_settled => finished(given, cause),
        None => without_machine(given, cause),
    };
    let mut decision = given.give_up(decision);
    // Of what was left behind as orphans, a watch may not have heard yet that it is not ours any more.
    decision.needs.certainty |= cause == Cause::Deleted;
    decision.needs.parts |= cause == Cause::Deleted && !is_there;
    decision
}

/// The phase in which an exit for this cause ends.
fn settled(cause: Cause) -> Phase {
    match cause {
        Cause::WindowClosed => Phase::Inactive,
        Cause::ScheduleDisabled | Cause::Reclaim => Phase::Disabled,
        Cause::KillSwitch => Phase::Terminated,
        // The object itself goes, so nobody sees it.
        Cause::Deleted => Phase::ShuttingDown,
        Cause::ClusterDeleting => Phase::Pending,
    }
}

pub(super) fn under_way(given: Given<'_>) -> Phase {
    if given.is_emergency() { Phase::EmergencyRemove } else { Phase::ShuttingDown }
}

/// Nothing is deleted before the exit and its deadline are remembered.
fn machine_lives(given: Given<'_>, cause: Cause, machine: &Machine) -> Decision {
    let Some(shutdown) = current(given) else {
        let shutdown = Some(begin(given, cause));
        return Decision { shutdown, waiting: Some(Waiting::Leaving), ..given.rest(under_way(given)) };
    };
    let rest = Decision { shutdown: Some(shutdown.clone()), ..given.rest(under_way(given)) };
    let step = empty_node(given, machine, shutdown);
    // A Node that is not marked as ours is drained by Cluster API, within the bounds of the Machine.
    let excludes = !matches!(step, Step::NotOurs) || given.is_emergency();
    let (news, text) = match step {
        Step::Look => return Decision { needs: Needs { pods: true, ..Needs::default() }, ..rest },
        Step::Restart => {
            let shutdown = Some(restarted(given, shutdown));
            return Decision { shutdown, waiting: Some(Waiting::Leaving), ..rest };
        }
        Step::Continue { actions, waiting } => {
            let mut decision = Decision { actions, waiting: Some(waiting), ..rest };
            let cordons = decision.actions.iter().any(|action| matches!(action, Action::Cordon(_)));
            if cordons {
                let text = format!("Draining the Node until {}", shutdown.drain_deadline);
                decision.notes.push(Note { news: News::NodeDraining, text });
            }
            decision.wake.poll = Some(given.retry(&decision.actions));
            decision.wake.at = Some(shutdown.drain_deadline);
            return decision;
        }
        Step::Emptied => {
            (Some(News::NodeDrained), "Every pod that had to leave the Node has left".to_owned())
        }
        Step::Abandoned(why) => (Some(News::NodeDrainFailed), why),
        Step::Nothing | Step::NotOurs => (None, String::new()),
    };
    if let Some(at) = of_use_until(given, machine).filter(|at| *at > given.now) {
        let mut decision = Decision { waiting: Some(Waiting::BootstrapData { until: at }), ..rest };
        (decision.wake.at, decision.wake.poll) = (Some(at), Some(LOOK_AGAIN));
        return decision;
    }
    let mut decision =
        Decision { waiting: Some(Waiting::MachineDeleting { hooks: machine.hooks.clone() }), ..rest };
    // A watch may not have heard yet that it was done before, and people would be told twice.
    decision.needs.certainty = true;
    decision.actions.extend(exclude(given, machine).filter(|_| excludes));
    decision.actions.push(given.delete(Part::Machine, &machine.object));
    decision.notes.extend(news.map(|news| Note { news, text }));
    decision.notes.push(Note { news: News::MachineDeleted, text: "Deleted the Machine".to_owned() });
    decision.wake.poll = Some(LOOK_AGAIN);
    decision
}

/// The exit under way, unless it must become more urgent than it is.
fn current(given: Given<'_>) -> Option<&Shutdown> {
    let shutdown = given.shutdown()?;
    (!given.is_emergency() || shutdown.cause.is_emergency()).then_some(shutdown)
}

pub(super) fn begin(given: Given<'_>, cause: Cause) -> Shutdown {
    let (budget, cause) = if given.orders.kill_switch {
        (drain::FORCED, Cause::KillSwitch)
    } else if given.is_emergency() {
        (drain::FORCED, Cause::Reclaim)
    } else {
        (given.orders.budget.graceful.min(given.orders.budget.drain), cause)
    };
    let started_at = whole_second(given.now);
    // No budget is no drain, and not one of the rest of a second.
    let drain_deadline = if budget.is_zero() { started_at } else { later(given.now, budget) };
    Shutdown { started_at, drain_deadline, cause, machine: machine_uid(given) }
}

fn machine_uid(given: Given<'_>) -> Option<String> {
    given.observed.machine.ours().map(|machine| machine.object.uid.clone())
}

/// The same exit with the same deadline, whose drain begins now: the workload cluster was out of reach, nobody was
/// there to cordon the Node, or somebody opened it again. Pods that came meanwhile came by the scheduler's hand.
fn restarted(given: Given<'_>, shutdown: &Shutdown) -> Shutdown {
    Shutdown { started_at: whole_second(given.now), ..shutdown.clone() }
}

/// Status has whole seconds, and a deadline must not come earlier for having been written down.
fn later(now: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    let up = if now.subsec_nanosecond() == 0 { SignedDuration::ZERO } else { SignedDuration::from_secs(1) };
    whole_second(now).saturating_add(by.saturating_add(up)).unwrap_or(Timestamp::MAX)
}

fn whole_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// One look at the Node that is to be emptied.
enum Step {
    /// The pods must be known first.
    Look,
    /// The cordon comes late, and it must be remembered first that it does.
    Restart,
    /// Not done yet.
    Continue { actions: Vec<Action>, waiting: Waiting },
    /// Done.
    Emptied,
    /// Not done, and there is no time left.
    Abandoned(String),
    /// There is nothing to empty, or no reason to.
    Nothing,
    /// The Machine names a Node with its providerID that Cluster API has not marked as that of this Machine.
    NotOurs,
}

fn empty_node(given: Given<'_>, machine: &Machine, shutdown: &Shutdown) -> Step {
    let observed = given.observed;
    let deadline = shutdown.drain_deadline;
    let is_late = given.now >= deadline;
    // A Cluster that is being deleted takes every Node with it; a budget of nothing asks for no drain.
    let cluster_goes = matches!(observed.cluster, Cluster::Present { deleting: true, .. });
    let Some(name) = machine.node_name.as_ref().filter(|_| !cluster_goes) else { return Step::Nothing };
    if deadline <= shutdown.started_at {
        return Step::Nothing;
    }
    let node = match &observed.workload {
        Workload::Reachable(_, Some(node)) if host::is_machines(observed, machine, node) => node,
        Workload::Reachable(_, Some(node)) if host::has_same_id(machine, node) => return Step::NotOurs,
        Workload::NotAsked | Workload::Reachable(..) => return Step::Nothing,
        Workload::Unreachable(why) if is_late || given.is_emergency() => {
            return Step::Abandoned(format!("Node {name} was not drained: {}", why.message));
        }
        Workload::Unreachable(why) => {
            let waiting = Waiting::DrainUnreachable { detail: why.message.clone(), deadline };
            return Step::Continue { actions: Vec::new(), waiting };
        }
    };
    let Pods::Listed(pods) = &node.pods else { return Step::Look };
    let setting = Setting {
        now: given.now,
        // Since when another's cordon stands is not known, so no pod is known to have come in spite of it.
        started_at: if node.cordoned_by_us { shutdown.started_at } else { given.now },
        is_silent: node.is_silent(),
        forced: given.is_emergency(),
    };
    let drain = Drain::plan(pods, setting);
    // Pods may still arrive until the Node is cordoned: only what is seen afterwards counts, while there is time. On an
    // emergency exit that time is short: a webhook that keeps the Node from being written must not hold the machine.
    let is_uncordoned_for_long = given.now.duration_since(shutdown.started_at) > CORDON_WITHIN;
    let is_closed = node.unschedulable || is_late || (setting.forced && is_uncordoned_for_long);
    if drain.is_complete() && is_closed {
        return Step::Emptied;
    }
    if is_late {
        let held = held_by(given, name, deadline, &drain.summary());
        return Step::Abandoned(format!(
            "The drain of Node {name} ended before it was complete: {}{held}",
            drain.summary()
        ));
    }
    let mut actions = Vec::new();
    if !node.unschedulable && is_uncordoned_for_long && !setting.forced {
        return Step::Restart;
    }
    if !node.unschedulable {
        actions.push(Action::Cordon(NodeId { name: name.clone(), uid: node.uid.clone() }));
    }
    let pods = drain.to_evict();
    if !pods.is_empty() {
        actions.push(if setting.forced { Action::ForceDelete(pods) } else { Action::Evict(pods) });
    }
    let (node, left, blocked) = (name.clone(), drain.summary(), String::new());
    Step::Continue { actions, waiting: Waiting::Draining { node, left, blocked, deadline } }
}

/// Who was in the way when evictions were last tried, as status has it: at the deadline nobody is asked again.
fn held_by(given: Given<'_>, node: &str, deadline: Timestamp, left: &str) -> String {
    let (node, left, blocked) = (node.to_owned(), left.to_owned(), String::new());
    let before = Waiting::Draining { node, left, blocked, deadline }.to_string();
    let said = given.observed.memory.ready.as_ref().and_then(|(_, message)| message.strip_prefix(&before));
    said.unwrap_or_default().to_owned()
}

/// Our drain was the drain: Cluster API must not begin another.
fn exclude(given: Given<'_>, machine: &Machine) -> Option<Action> {
    let volumes = given.is_emergency();
    let done = machine.excludes_drain && (machine.excludes_volumes || !volumes);
    let (uid, version) = (machine.object.uid.clone(), given.decided_on(&machine.object));
    (!done).then_some(Action::ExcludeDrain { uid, version, volumes })
}

/// The Machine is on its way out, by our hand or another's. An emergency hurries it.
fn machine_goes(given: Given<'_>, machine: &Machine, since: Timestamp) -> Decision {
    let mut decision = given.rest(under_way(given));
    decision.shutdown = Some(match current(given) {
        Some(shutdown) => shutdown.clone(),
        // Somebody else deleted it, and Cluster API drains it: nothing is left for a budget of ours.
        None if !given.is_emergency() => {
            let at = whole_second(since);
            Shutdown {
                started_at: at,
                drain_deadline: at,
                cause: cause_of(given),
                machine: machine_uid(given),
            }
        }
        None => begin(given, cause_of(given)),
    });
    decision.waiting = Some(match given.observed.cluster {
        Cluster::Absent(Certainty::Confirmed) => Waiting::MachineWithoutCluster,
        Cluster::Absent(Certainty::Rumour) | Cluster::Present { .. } => going(given, machine, since),
    });
    decision.wake.poll = Some(LOOK_AGAIN);
    given.ask_provider(&mut decision, since);
    if let Some(at) = since.checked_add(STALLS).ok().filter(|at| *at > given.now) {
        decision.wake.at = Some(decision.wake.at.map_or(at, |other| other.min(at)));
    }
    if let Cluster::Absent(Certainty::Rumour) = given.observed.cluster {
        decision.needs.certainty = true;
    }
    if given.is_emergency() {
        decision.actions.extend(exclude(given, machine));
        if let Some(shutdown) = current(given) {
            match empty_node(given, machine, shutdown) {
                Step::Look => decision.needs.pods = true,
                Step::Restart => decision.shutdown = Some(restarted(given, shutdown)),
                Step::Continue { actions, .. } => {
                    decision.wake.poll = Some(given.retry(&actions));
                    decision.actions.extend(actions);
                }
                Step::Emptied | Step::Abandoned(_) | Step::Nothing | Step::NotOurs => {}
            }
        }
    }
    decision
}

/// What a Machine that is being deleted waits for, in the words of Cluster API and of the provider.
fn going(given: Given<'_>, machine: &Machine, since: Timestamp) -> Waiting {
    if !machine.hooks.is_empty() {
        return Waiting::MachineDeleting { hooks: machine.hooks.clone() };
    }
    let stalls = since.checked_add(STALLS).is_ok_and(|at| at <= given.now);
    let says = machine.deleting.words("");
    let detail = match (says.as_str(), given.provider_says()) {
        ("", provider) => provider.trim_start_matches("; ").to_owned(),
        (says, provider) => format!("{says}{provider}"),
    };
    if stalls {
        return Waiting::MachineStalls { since, detail };
    }
    if detail.is_empty() {
        return Waiting::MachineDeleting { hooks: Vec::new() };
    }
    Waiting::MachineGoing { detail }
}

fn cause_of(given: Given<'_>) -> Cause {
    match given.goal() {
        super::Goal::Leave(cause) => cause,
        super::Goal::Lend(_) => Cause::ClusterDeleting,
        super::Goal::Unclear(_) => Cause::WindowClosed,
    }
}

/// There is no Machine: what is left goes by our hand, infrastructure first, as Cluster API does it.
fn without_machine(given: Given<'_>, cause: Cause) -> Decision {
    let observed = given.observed;
    let mut decision = given.rest(under_way(given));
    decision.shutdown.clone_from(&observed.memory.shutdown);
    if given.is_emergency() && current(given).is_none() {
        decision.shutdown = Some(begin(given, cause));
    }
    decision.wake.poll = Some(LOOK_AGAIN);
    if let Some(object) = observed.infrastructure.ours() {
        remove(given, &mut decision, Part::Infrastructure, object);
        if let Some(at) = hangs_at(given, object) {
            if at <= given.now {
                // The provider looks at a Machine only once that has bootstrap data.
                if matches!(observed.bootstrap, Presence::Absent(_)) {
                    decision.actions.push(Action::Create(Part::Bootstrap));
                }
                decision.actions.push(Action::Create(Part::Machine));
            } else {
                decision.wake.at = Some(at);
            }
        }
        return decision;
    }
    if let Some(object) = observed.bootstrap.ours() {
        remove(given, &mut decision, Part::Bootstrap, object);
        return decision;
    }
    if let Some(why) = unknown_part(given) {
        decision.waiting = Some(Waiting::ProviderUnreadable(why.clone()));
        return decision;
    }
    finished(given, cause)
}

/// Why it is not known whether a provider object exists, if it is not.
pub(super) fn unknown_part(given: Given<'_>) -> Option<&Unknown> {
    let Observed { infrastructure, bootstrap, .. } = given.observed;
    infrastructure.unknown().or_else(|| bootstrap.unknown())
}

fn remove(given: Given<'_>, decision: &mut Decision, part: Part, object: &Object) {
    decision.waiting = Some(Waiting::ObjectsDeleting { what: format!("the {part}") });
    if object.deleting_since.is_none() {
        decision.actions.push(given.delete(part, object));
    }
}

/// When an infrastructure object that is going counts as hanging, if a Machine could help it.
fn hangs_at(given: Given<'_>, object: &Object) -> Option<Timestamp> {
    let since = object.deleting_since.filter(|_| !object.has_machine_owner)?;
    let may_create = given.wish.is_ok() && given.observed.finalizer;
    let cluster_stays = matches!(given.observed.cluster, Cluster::Present { deleting: false, .. });
    (may_create && cluster_stays).then(|| later(since, ORPHAN_HANGS))
}

/// Whether only a Machine can help the infrastructure object, which is going.
pub(super) fn hangs(given: Given<'_>) -> bool {
    let object = given.observed.infrastructure.ours();
    object.and_then(|object| hangs_at(given, object)).is_some_and(|at| at <= given.now)
}

/// Until when a Machine is kept that must go, since without it the infrastructure object would hang: k0smotron does
/// not look at the deletion of a RemoteMachine before its Machine has bootstrap data, and a Machine that is being
/// deleted gets none any more.
fn of_use_until(given: Given<'_>, machine: &Machine) -> Option<Timestamp> {
    let infrastructure = &given.observed.infrastructure;
    let object = infrastructure.ours();
    if infrastructure.unknown().is_none() && !infrastructure.is_rumour() && object.is_none() {
        return None;
    }
    let is_rescue = object.and_then(|it| it.deleting_since).is_some_and(|at| at <= machine.object.created_at);
    let is_taken_up = machine.bootstrapped && object.is_none_or(|object| object.has_machine_owner);
    let within = if is_rescue { ORPHAN_HANGS } else { BOOTSTRAP_WITHIN };
    (!is_taken_up).then(|| later(machine.object.created_at, within))
}

fn finished(given: Given<'_>, cause: Cause) -> Decision {
    if let Some((node, Returned::SameHost)) = host::returned(given.observed) {
        let decision = empty_returned(given, cause, node);
        // What is deleted for good waits for the pods, and for nobody who would clean the host.
        if cause != Cause::Deleted || decision.phase != Phase::Error {
            return decision;
        }
    }
    let mut decision = given.rest(settled(cause));
    if cause == Cause::Deleted && given.observed.finalizer {
        decision.actions.push(Action::RemoveFinalizer);
    }
    decision
}

/// The host was handed back and its Node is in the cluster all the same: it is cordoned and emptied, as urgently as the
/// goal demands, and shown until somebody has cleaned the host. No Machine is there whose deletion would end what does
/// not end in time, so after the deadline it ends without grace.
fn empty_returned(given: Given<'_>, cause: Cause, node: &Node) -> Decision {
    // That no Machine is there for this Node must be the server's own word.
    let mut rest = Decision { needs: Needs::OBJECTS, ..given.rest(under_way(given)) };
    if !given.observed.memory.told_of_return {
        rest.notes.push(Note { news: News::HostNotCleaned, text: not_cleaned(&node.name) });
    }
    let waiting = |left: String| {
        Some(Waiting::HostNotCleaned { node: node.name.clone(), left, blocked: String::new() })
    };
    let is_closed_late = |shutdown: &Shutdown| {
        !node.unschedulable && given.now.duration_since(shutdown.started_at) > CORDON_WITHIN
    };
    let Some(shutdown) = current(given).filter(|shutdown| !is_closed_late(shutdown)) else {
        let shutdown = Some(begin(given, cause));
        return Decision { shutdown, waiting: waiting("It is drained now".to_owned()), ..rest };
    };
    let rest = Decision { shutdown: Some(shutdown.clone()), ..rest };
    let Pods::Listed(pods) = &node.pods else {
        return Decision { needs: Needs { pods: true, ..Needs::OBJECTS }, ..rest };
    };
    let is_late = given.now >= shutdown.drain_deadline;
    let setting = Setting {
        now: given.now,
        started_at: if node.cordoned_by_us { shutdown.started_at } else { given.now },
        is_silent: node.is_silent(),
        forced: given.is_emergency() || is_late,
    };
    let drain = Drain::plan(pods, setting);
    if drain.is_complete() && node.unschedulable {
        return Decision { phase: Phase::Error, waiting: waiting(drain.summary()), ..rest };
    }
    let mut actions = Vec::new();
    if !node.unschedulable {
        actions.push(Action::Cordon(NodeId { name: node.name.clone(), uid: node.uid.clone() }));
    }
    let pods = drain.to_evict();
    if !pods.is_empty() {
        actions.push(if setting.forced { Action::ForceDelete(pods) } else { Action::Evict(pods) });
    }
    let mut decision = Decision { actions, waiting: waiting(drain.summary()), ..rest };
    // What was ended and is not gone in time will not be gone in the next second either.
    let is_slow = is_late && decision.actions.is_empty();
    decision.wake.poll = Some(if is_slow { LOOK_AGAIN } else { given.retry(&decision.actions) });
    decision.wake.at = (!is_late).then_some(shutdown.drain_deadline);
    decision
}

impl Given<'_> {
    /// How soon a drain is looked at again. What ends without grace has ended when the server has answered.
    fn retry(&self, actions: &[Action]) -> Duration {
        match self.is_emergency() {
            true if actions.is_empty() => drain::FORCED_RETRY,
            true => drain::FORCED_ENDS,
            false => drain::RETRY,
        }
    }

    /// An operator may prefer a lost Machine to a ScheduledMachine that cannot be deleted.
    fn give_up(&self, mut decision: Decision) -> Decision {
        let observed = self.observed;
        let limited = Deletion::Whole { patience: Patience::Limited };
        let wished = self.orders.deletion == Some(limited) && observed.finalizer && self.paused().is_none();
        let machine = observed.machine.ours().map(|machine| &machine.object);
        let object = machine.or(observed.infrastructure.ours()).or(observed.bootstrap.ours());
        let Some(since) = object.filter(|_| wished).and_then(|object| object.deleting_since) else {
            return decision;
        };
        let at = later(since, GIVE_UP);
        if at > self.now {
            decision.wake.at = Some(decision.wake.at.map_or(at, |other| other.min(at)));
            return decision;
        }
        let text = format!(
            "Gave up after {} minutes: what is left of the machine must be removed by hand",
            GIVE_UP.as_secs() / 60
        );
        decision.notes.push(Note { news: News::FinalizerCleanupTimedOut, text });
        // Nothing new is made by somebody who walks away.
        decision.actions.retain(|action| !matches!(action, Action::Create(_)));
        decision.actions.push(Action::RemoveFinalizer);
        decision
    }
}
