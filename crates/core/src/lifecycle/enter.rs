//! The window is open: what is missing is made, and a Node that is Ready is made fit for use.

use super::{Action, Decision, Given, News, NodeId, Note, Part, Phase, Taints, Waiting, leave};
use crate::claim;
use crate::host;
use crate::intent::Intent;
use crate::observed::{
    Cause, Certainty, Cluster, Foreign, Machine, Needs, Node, NodeOwner, Object, Presence, Served, Workload,
};
use crate::taint;
use std::time::Duration;

/// How often it is looked whether somebody has mended what no watch reports: an object that is not ours, a kind that
/// is not served.
const MENDED: Duration = Duration::from_mins(1);

pub(super) fn enter(given: Given<'_>, intent: &Intent) -> Decision {
    let observed = given.observed;
    if let Some(problem) = problem(given) {
        let mut decision = keep_exit(given, Decision { waiting: Some(problem), ..given.rest(Phase::Error) });
        decision.wake.poll = Some(MENDED);
        return decision;
    }
    match observed.cluster {
        Cluster::Absent(Certainty::Rumour) => return look_closer(given),
        Cluster::Absent(Certainty::Confirmed) => {
            let waiting = Some(Waiting::ClusterNotFound);
            return Decision { waiting, ..keep_exit(given, given.rest(Phase::Pending)) };
        }
        Cluster::Present { deleting: true, .. } => return with_the_cluster(given),
        Cluster::Present { deleting: false, .. } => {}
    }
    match observed.machine.ours() {
        Some(machine) if machine.object.deleting_since.is_some() => wait_for(given, "the old Machine"),
        // All is made anew.
        Some(machine) if is_of_no_use(given, machine) => leave::leave(given, Cause::WindowClosed),
        Some(machine) => join(given, intent, machine),
        None => create(given),
    }
}

/// Whether no Node will ever join through a Machine that has none: its infrastructure object is gone, or it was made
/// only to let that go, since it is younger than the end of it.
fn is_of_no_use(given: Given<'_>, machine: &Machine) -> bool {
    let is_of_no_use = match &given.observed.infrastructure {
        Presence::Absent(certainty) => *certainty == Certainty::Confirmed,
        Presence::Ours(object) => {
            object.deleting_since.is_some_and(|since| since < machine.object.created_at)
        }
        Presence::Foreign(_) | Presence::NotServed(_) | Presence::Unknown(_) => false,
    };
    is_of_no_use && machine.node_name.is_none()
}

/// Something only a person can mend.
fn problem(given: Given<'_>) -> Option<Waiting> {
    let observed = given.observed;
    if let Served::No(what) = &observed.cluster_api {
        return Some(Waiting::KindNotServed { what: what.clone() });
    }
    of_presence(&observed.machine)
        .or_else(|| of_presence(&observed.infrastructure))
        .or_else(|| of_presence(&observed.bootstrap))
}

fn of_presence<T>(presence: &Presence<T>) -> Option<Waiting> {
    match presence {
        Presence::Foreign(Foreign { what, owner }) => {
            Some(Waiting::NameTaken { what: what.clone(), owner: owner.clone() })
        }
        Presence::NotServed(what) => Some(Waiting::KindNotServed { what: what.clone() }),
        Presence::Absent(_) | Presence::Ours(_) | Presence::Unknown(_) => None,
    }
}

fn look_closer(given: Given<'_>) -> Decision {
    let phase = given.observed.memory.phase.unwrap_or(Phase::Pending);
    Decision { needs: Needs::OBJECTS, ..keep_exit(given, given.rest(phase)) }
}

/// The memory of an exit stays as long as it is not known to be over. A Machine that lives ends it: the exit is
/// called off, and the next one has a budget of its own.
fn keep_exit(given: Given<'_>, decision: Decision) -> Decision {
    let machine = given.observed.machine.ours();
    if machine.is_some_and(|machine| machine.object.deleting_since.is_none()) {
        return decision;
    }
    Decision { shutdown: given.observed.memory.shutdown.clone(), ..decision }
}

/// The Cluster goes, and everything in it with it.
fn with_the_cluster(given: Given<'_>) -> Decision {
    let decision = leave::leave(given, Cause::ClusterDeleting);
    let over =
        decision.shutdown.is_none() && decision.actions.is_empty() && decision.needs == Needs::default();
    if over && decision.waiting.is_none() {
        return Decision { waiting: Some(Waiting::ClusterDeleting), ..given.rest(Phase::Pending) };
    }
    decision
}

fn wait_for(given: Given<'_>, what: &str) -> Decision {
    let waiting = Some(Waiting::OldObjects { what: what.to_owned() });
    // Whoever deleted it: an exit of ours is still that exit.
    let exits = given.observed.memory.shutdown.is_some();
    let phase = if exits { leave::under_way(given) } else { Phase::Pending };
    let mut decision = keep_exit(given, Decision { waiting, ..given.rest(phase) });
    decision.wake.poll = Some(super::LOOK_AGAIN);
    decision
}

/// A rumour of absence is enough to create on where nothing was left: the server refuses a second object of the same
/// name, and whoever is refused looks again. Elsewhere there may be a Machine that the watch has not got: an old one takes
/// what is made beside it away again, and somebody else's would take it for its own.
fn create(given: Given<'_>) -> Decision {
    let observed = given.observed;
    let rumours = observed.machine.is_rumour() || observed.infrastructure.is_rumour();
    let settled = [Phase::Inactive, Phase::Disabled, Phase::Terminated];
    let nothing_was_left = observed.memory.phase.is_some_and(|phase| settled.contains(&phase));
    if (rumours || observed.bootstrap.is_rumour()) && !nothing_was_left {
        return look_closer(given);
    }
    if let Some(why) = leave::unknown_part(given) {
        let phase = if why.is_refused { Phase::Error } else { Phase::Pending };
        let waiting = Some(Waiting::ProviderUnreadable(why.clone()));
        let mut decision = keep_exit(given, Decision { waiting, ..given.rest(phase) });
        decision.wake.poll = Some(super::LOOK_AGAIN);
        return decision;
    }
    let is_going = |object: &Presence<Object>| object.ours().is_some_and(|it| it.deleting_since.is_some());
    if is_going(&observed.infrastructure) {
        if leave::hangs(given) {
            return leave::leave(given, Cause::WindowClosed);
        }
        return wait_for(given, "the old infrastructure object");
    }
    if is_going(&observed.bootstrap) {
        return wait_for(given, "the old bootstrap object");
    }
    if observed.infrastructure.ours().is_none()
        && let Some(rival) = claim::host_rival(observed, given.now)
    {
        let waiting = Some(Waiting::AddressInUse { other: rival.name.clone() });
        let mut decision = keep_exit(given, Decision { waiting, ..given.rest(Phase::Error) });
        decision.wake.poll = Some(MENDED);
        return decision;
    }
    let detail = "The Machine is being created".to_owned();
    let mut decision = given.rest(Phase::Pending);
    decision.waiting = Some(Waiting::Provisioning { detail });
    if !observed.finalizer {
        decision.actions.push(Action::AddFinalizer);
    }
    // Nothing is created for a machine whose second object the server would not take.
    let is_new = observed.bootstrap.ours().is_none() && observed.infrastructure.ours().is_none();
    if is_new && !given.is_accepted() {
        decision.actions.push(Action::Try(Part::Infrastructure));
    }
    if observed.bootstrap.ours().is_none() {
        decision.actions.push(Action::Create(Part::Bootstrap));
    }
    if observed.infrastructure.ours().is_none() {
        decision.actions.push(Action::Create(Part::Infrastructure));
    }
    decision.actions.push(Action::Create(Part::Machine));
    let text = "Created the Machine with its bootstrap and infrastructure objects".to_owned();
    decision.notes.push(Note { news: News::MachineCreated, text });
    decision
}

/// The Machine lives: its Node is awaited, cleaned and tainted.
fn join(given: Given<'_>, intent: &Intent, machine: &Machine) -> Decision {
    let observed = given.observed;
    let mut decision = given.rest(Phase::Pending);
    // An exit is called off only if the Machine really was not deleted: a watch may not have heard of it yet.
    decision.needs.certainty = observed.memory.shutdown.is_some();
    if !observed.finalizer {
        decision.actions.push(Action::AddFinalizer);
    }
    if observed.infrastructure.is_rumour() || observed.bootstrap.is_rumour() {
        return look_closer(given);
    }
    let infrastructure = observed.infrastructure.ours();
    let is_unknown = observed.infrastructure.unknown().is_some();
    if !is_unknown && infrastructure.is_none_or(|object| object.deleting_since.is_some()) {
        let waiting = Some(Waiting::InfrastructureGone);
        return Decision { phase: Phase::Error, waiting, ..decision };
    }
    if matches!(observed.bootstrap, Presence::Absent(_)) && !machine.bootstrapped {
        decision.actions.push(Action::Create(Part::Bootstrap));
    }
    let node = match seen_node(given, machine) {
        Ok(node) => node,
        Err(waiting) => {
            let is_slow = given.now.duration_since(machine.object.created_at) >= super::SLOW;
            let rival = claim::racing_rival(observed, is_slow).filter(|_| machine.node_name.is_none());
            let in_use = rival.map(|rival| Waiting::AddressInUse { other: rival.name.clone() });
            let waiting = in_use.unwrap_or(waiting);
            // What takes long is asked about: Cluster API does not pass on why a provider fails.
            given.ask_provider(&mut decision, machine.object.created_at);
            let is_error = matches!(
                waiting,
                Waiting::WrongNode { .. }
                    | Waiting::NodeClaimed { .. }
                    | Waiting::NodeOfOther { .. }
                    | Waiting::AddressInUse { .. }
            );
            let phase = if is_error { Phase::Error } else { Phase::Pending };
            return Decision { phase, waiting: Some(waiting), ..decision };
        }
    };
    if node.ready.status != Some(true) {
        let detail = node.ready.words("its kubelet has not reported");
        decision.taints = Taints::NodeNotReady;
        decision.waiting = Some(Waiting::NodeNotReady { node: node.name.clone(), detail });
        return decision;
    }
    let id = NodeId { name: node.name.clone(), uid: node.uid.clone() };
    if node.cordoned_by_us {
        // Of an exit that was called off, or of the day before: a kubelet registers an old Node as it was.
        decision.actions.push(Action::Uncordon(id.clone()));
    }
    let plan = taint::plan(&intent.node_taints, &node.taints, &node.record, &observed.memory.taints);
    if !plan.conflicts.is_empty() && observed.memory.tainted.as_deref() != Some("TaintOwnershipConflict") {
        let text = taint::describe(&plan.conflicts);
        decision.notes.push(Note { news: News::TaintOwnershipConflict, text });
    }
    if let Some(claims) = plan.claims {
        let detail = format!("The taints of Node {} are being applied", node.name);
        decision.taints = Taints::Claimed { claims, conflicts: plan.conflicts };
        // A machine that is lent already stays so.
        return match observed.memory.phase {
            Some(Phase::Active) => Decision { phase: Phase::Active, ..decision },
            _ => Decision { waiting: Some(Waiting::Provisioning { detail }), ..decision },
        };
    }
    if let Some(change) = plan.change {
        decision.actions.push(Action::SetTaints { node: id, change, record: plan.record.clone() });
    }
    decision.taints = Taints::Settled { record: plan.record, conflicts: plan.conflicts };
    let lent = host::lent_host(observed);
    if let Some(lent) = lent.filter(|lent| observed.memory.noted_host.as_ref() != Some(lent)) {
        decision.actions.push(Action::RememberHost(lent));
    }
    Decision { phase: Phase::Active, ..decision }
}

/// The Machine's own Node, or why it is not there.
fn seen_node<'a>(given: Given<'a>, machine: &Machine) -> Result<&'a Node, Waiting> {
    let workload = &given.observed.workload;
    let provisioning = |detail: String| Waiting::Provisioning { detail };
    let Some(name) = &machine.node_name else {
        let otherwise = "no Node has joined yet";
        let detail = match machine.ready.status {
            Some(true) => otherwise.to_owned(),
            Some(false) | None => machine.ready.words(otherwise),
        };
        let says = given.provider_says();
        return Err(provisioning(format!("The Machine is on its way: {detail}{says}")));
    };
    let node = match workload {
        Workload::NotAsked | Workload::Reachable(_, None) => {
            return Err(provisioning(format!("Waiting for Node {name} to register")));
        }
        Workload::Unreachable(why) => {
            return Err(Waiting::WorkloadUnreachable { detail: why.message.clone() });
        }
        Workload::Reachable(_, Some(node)) => node,
    };
    if let Some(other) = claim::node_rival(given.observed, node) {
        return Err(Waiting::NodeClaimed { node: name.clone(), other: other.name.clone() });
    }
    if let NodeOwner::Other(other) = &node.owner {
        return Err(Waiting::NodeOfOther { node: name.clone(), other: other.clone() });
    }
    match (&node.provider_id, &machine.provider_id) {
        (Some(on_node), Some(on_machine)) if on_node == on_machine => match node.owner {
            NodeOwner::ThisMachine => Ok(node),
            NodeOwner::Nobody | NodeOwner::Other(_) => Err(provisioning(format!(
                "Waiting until Cluster API marks Node {name} as that of its Machine"
            ))),
        },
        (Some(on_node), Some(on_machine)) => Err(Waiting::WrongNode {
            node: name.clone(),
            on_node: on_node.clone(),
            on_machine: on_machine.clone(),
        }),
        (None, _) | (_, None) => {
            Err(provisioning(format!("Waiting for the providerID of Node {name} and of its Machine")))
        }
    }
}
