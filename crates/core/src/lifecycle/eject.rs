//! The owner takes the machine back: seven steps, each of which finds out from the world whether it was done.
//!
//! 1. The agent, or a person, writes the request.
//! 2. It is written down in status, and nothing else: from here on it cannot be lost.
//! 3. and 4. The exit without grace, as for the kill switch: [`super::leave`].
//! 5. `spec.schedule.enabled` becomes false, once, and a hold is written down.
//! 6. The agent is disarmed, and the request is taken off.
//! 7. Nothing is left: Disabled.
//!
//! Step 5 comes before step 6, always: whoever dies between the two finds the request and the record, and goes on.

use super::{Action, Decision, Deletion, Given, News, NodeId, Note, Part, Phase, Waiting, leave};
use crate::host;
use crate::observed::{Cause, Machine, Node, NodeOwner, Observed, Presence};
use crate::reclaim::{self, Reclaim, Stage, Worth};
use jiff::Timestamp;

/// What the requests that stand mean.
pub(super) struct Verdict {
    /// What is to be remembered.
    pub(super) reclaim: Option<Reclaim>,
    /// What to do now but remember.
    pub(super) turn: Turn,
    /// Requests that are not acted on are taken off.
    pub(super) clears: Vec<Action>,
    /// What people are told.
    pub(super) notes: Vec<Note>,
}

/// Whether anything turns in this pass. What turns is remembered before anything follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing does.
    None,
    /// A reclaim begins.
    Begins,
    /// A hold is released.
    Released,
}

/// Judges requests and releases, before anything else is decided.
pub(super) fn judge(now: Timestamp, orders: &super::Orders, observed: &Observed) -> Verdict {
    let calls = &orders.reclaim;
    let mut last = observed.memory.reclaim.clone();
    if let Some(held) = last.as_mut().filter(|last| reclaim::is_released(last, calls, orders.enabled)) {
        *held = reclaim::over(held);
        // One that still stands was answered, and must not begin the next eject. One on a Node is known by its time.
        let clears = calls.request.iter().map(|_| Action::ClearOwnRequest).collect();
        return Verdict { reclaim: last, turn: Turn::Released, clears, notes: Vec::new() };
    }
    let stage = last.as_ref().map_or(Stage::Over, Reclaim::stage);
    let mut verdict = Verdict { reclaim: last, turn: Turn::None, clears: Vec::new(), notes: Vec::new() };
    // What ends for good needs no hold; and while a reclaim is under way, its request stays where it is.
    if orders.deletion.is_some() || stage == Stage::UnderWay {
        return verdict;
    }
    let own = own_node(observed);
    if let Some((machine, node)) = own
        && let Some(request) = &node.request
    {
        match reclaim::worth(request, node, machine, calls, verdict.reclaim.as_ref()) {
            Worth::Counts if stage == Stage::Over && !orders.kill_switch => {
                verdict.reclaim = Some(reclaim::accept(now, request, Some(node), verdict.reclaim.as_ref()));
                verdict.turn = Turn::Begins;
                return verdict;
            }
            Worth::Counts | Worth::Stale => {}
            Worth::Unwanted => {
                let text = format!(
                    "Node {} asks for the machine ({}), but spec.killIfCommands is empty: ignored",
                    node.name, request.reason
                );
                verdict.notes.push(Note { news: News::ReclaimRequestIgnored, text });
            }
        }
        let requested_at = request.requested_at.clone();
        verdict.clears.push(Action::ClearRequest { node: id(node), requested_at });
    }
    if let Some(request) = &calls.request {
        if stage == Stage::Over && !orders.kill_switch {
            let node = own.map(|(_, node)| node);
            verdict.reclaim = Some(reclaim::accept(now, request, node, verdict.reclaim.as_ref()));
            (verdict.turn, verdict.clears) = (Turn::Begins, Vec::new());
        } else {
            verdict.clears.push(Action::ClearOwnRequest);
        }
    }
    verdict
}

fn id(node: &Node) -> NodeId {
    NodeId { name: node.name.clone(), uid: node.uid.clone() }
}

/// The Machine and its own Node, if both are seen and are the same host.
fn own_node(observed: &Observed) -> Option<(&Machine, &Node)> {
    let machine = observed.machine.ours()?;
    let node = observed.workload.node().filter(|node| host::is_machines(observed, machine, node))?;
    Some((machine, node))
}

/// Step 2. Nothing is done before it is remembered that it will be.
pub(super) fn begin(given: Given<'_>, reclaim: &Reclaim) -> Decision {
    let shutdown = leave::begin(given, Cause::Reclaim);
    let reclaim = Reclaim { drain_deadline: Some(shutdown.drain_deadline), ..reclaim.clone() };
    let text = format!("The owner takes the machine back at once: {}", reason(&reclaim));
    let mut notes = vec![Note { news: News::EmergencyReclaim, text }];
    if reclaim.is_rapid() {
        let text = format!(
            "Taken back {} times within {} minutes: look for what starts the program, or clear spec.killIfCommands",
            reclaim.recent.len(),
            reclaim::RAPID_WITHIN.as_mins(),
        );
        notes.push(Note { news: News::RapidReReclaim, text });
    }
    Decision {
        shutdown: Some(shutdown),
        waiting: Some(Waiting::Leaving),
        notes,
        reclaim: Some(reclaim),
        ..given.rest(Phase::EmergencyRemove)
    }
}

/// The hold is released. What follows from it follows in the next pass.
pub(super) fn release(given: Given<'_>, clears: Vec<Action>) -> Decision {
    let memory = &given.observed.memory;
    let rest = given.rest(memory.phase.unwrap_or(Phase::Disabled));
    Decision { shutdown: memory.shutdown.clone(), actions: clears, ..rest }
}

/// The words of the request, or that it has none.
fn reason(reclaim: &Reclaim) -> &str {
    if reclaim.reason.is_empty() { "no reason was given" } else { &reclaim.reason }
}

/// Step 5, as soon as the Machine is deleted or on its way.
pub(super) fn disable(given: Given<'_>, decision: &mut Decision) {
    // What ends for good needs no hold.
    let under_way = given.reclaim.filter(|it| it.stage() == Stage::UnderWay);
    let Some(reclaim) = under_way.filter(|_| given.orders.deletion.is_none()) else { return };
    let observed = given.observed;
    if observed.machine.is_rumour() {
        decision.needs.certainty = true;
        return;
    }
    let deletes = |action: &Action| matches!(action, Action::Delete { part: Part::Machine, .. });
    let makes = |action: &Action| *action == Action::Create(Part::Machine);
    let goes = match &observed.machine {
        Presence::Ours(machine) => {
            machine.object.deleting_since.is_some() || decision.actions.iter().any(deletes)
        }
        // One may be made only to let an infrastructure object go.
        Presence::Absent(_) | Presence::Foreign(_) | Presence::NotServed(_) => {
            !decision.actions.iter().any(makes)
        }
        Presence::Unknown(_) => false,
    };
    if !goes {
        return;
    }
    if given.orders.reclaim.disabled_for.as_deref() != Some(reclaim.id.as_str()) {
        decision.actions.push(Action::Disable { reclaim: reclaim.id.clone() });
    }
    let text = format!(
        "spec.schedule.enabled is false now, so that the machine stays with its owner ({}). To lend it again: {}",
        reason(reclaim),
        given.orders.reclaim.resume_command
    );
    decision.notes.push(Note { news: News::EmergencyReclaimDisabledSchedule, text });
    decision.reclaim = Some(Reclaim { machine_deleted: true, disabled: true, hold: true, ..reclaim.clone() });
    // The next step follows at once.
    if decision.phase == Phase::Disabled {
        decision.phase = Phase::EmergencyRemove;
    }
}

/// The agent is where it is wanted and nowhere else: on the Node of a Machine that stays, while there are programs to
/// look for.
pub(super) fn tend_agent(given: Given<'_>, decision: &mut Decision) {
    let observed = given.observed;
    let stage = given.reclaim.map_or(Stage::Over, Reclaim::stage);
    if stage == Stage::UnderWay && given.orders.deletion.is_none() {
        return;
    }
    let lends = matches!(given.goal(), super::Goal::Lend(_));
    // Cluster API puts a mark back that is lost: nothing is taken from the agent of a Node that is lent for that.
    let is_unmarked = |(machine, node): (&Machine, &Node)| {
        node.owner == NodeOwner::Nobody && host::has_same_id(machine, node)
    };
    if lends && observed.machine.ours().zip(observed.workload.node()).is_some_and(is_unmarked) {
        return;
    }
    let is_let_go = stage == Stage::Held || given.orders.deletion == Some(Deletion::Orphaning);
    let mut actions = Vec::new();
    let deletes = |action: &Action| matches!(action, Action::Delete { part: Part::Machine, .. });
    let own = own_node(observed).filter(|(machine, _)| {
        machine.object.deleting_since.is_none() && !decision.actions.iter().any(deletes) && !is_let_go
    });
    let commands = &given.orders.reclaim.commands;
    let wanted = own.filter(|_| !commands.is_empty());
    for config in &observed.agent_configs {
        if wanted.is_none_or(|(_, node)| node.name != config.node) {
            actions.push(Action::DeleteAgentConfig { node: config.node.clone(), uid: config.uid.clone() });
        }
    }
    if let Some((machine, node)) = wanted {
        let is_armed = node.armed_for.as_deref() == Some(machine.object.uid.as_str()) && node.labelled;
        let is_told = observed.agent_configs.iter().any(|config| {
            config.node == node.name && config.commands.as_deref() == Some(commands.as_slice())
        });
        // One that leaves is not armed any more, but stays armed: its owner may be in a hurry.
        if (lends || is_armed) && !is_told {
            actions.push(Action::WriteAgentConfig { node: node.name.clone(), commands: commands.clone() });
        }
        if lends && !is_armed {
            actions.push(Action::Arm { node: id(node), machine: machine.object.uid.clone() });
        }
    } else if let Some((_, node)) =
        own_node(observed).filter(|(_, node)| node.labelled || node.armed_for.is_some())
    {
        actions.push(Action::Disarm(id(node)));
    }
    // The finalizer goes last.
    let end = decision.actions.iter().position(|action| *action == Action::RemoveFinalizer);
    let end = end.unwrap_or(decision.actions.len());
    decision.actions.splice(end..end, actions);
}
