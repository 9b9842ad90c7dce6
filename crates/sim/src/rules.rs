//! What must never be written, judged by the truth and not by what the controller saw.

use crate::world::{Tenant, World, admin_taint};
use fivespot_core::lifecycle::{Action, Deletion, GIVE_UP, Part, Patience, Phase};
use fivespot_core::observed::{Memory, Shutdown};
use fivespot_core::reclaim::{Reclaim, Stage};
use jiff::Timestamp;

/// Judges an action that is about to be performed. The answer says what rule it breaks.
pub fn judge(world: &World, action: &Action) -> Option<&'static str> {
    if !world.exists {
        return Some("something is written for a ScheduledMachine that is gone");
    }
    match action {
        Action::AddFinalizer => {
            rule(world.orders.deletion.is_some(), "a finalizer is added to what is being deleted")
        }
        Action::RemoveFinalizer => finalizer(world),
        Action::Try(_) => rule(world.is_paused(), "something is tried while paused"),
        Action::Create(part) => create(world, *part),
        Action::Delete { part: Part::Machine, .. } => delete_machine(world),
        Action::Delete { part: part @ (Part::Bootstrap | Part::Infrastructure), .. } => {
            let part = if *part == Part::Bootstrap { &world.bootstrap } else { &world.infrastructure };
            rule(world.is_paused(), "a provider object is deleted while paused")
                .or_else(|| rule(part.as_ref().is_some_and(|it| !it.ours), "a foreign object is deleted"))
                .or_else(|| rule(owns_machine(world), "a provider object is deleted under a Machine"))
        }
        Action::ExcludeDrain { .. } => rule(!owns_machine(world), "a foreign Machine is written")
            .or_else(|| rule(world.is_paused(), "a Machine is written while paused")),
        Action::Cordon(_) => {
            let budget = world.orders.budget.graceful.min(world.orders.budget.drain);
            node(world).or_else(|| rule(!may_leave(world), "a Node is cordoned that may stay")).or_else(
                || {
                    let is_unwanted = budget.is_zero() && !is_emergency(world) && !world.has_returned();
                    rule(is_unwanted, "a drain without a budget")
                },
            )
        }
        Action::Uncordon(_) => node(world).or_else(|| {
            let by_us = world.node.as_ref().is_some_and(|node| node.view.cordoned_by_us);
            rule(!by_us, "an administrator's cordon is undone")
        }),
        Action::SetTaints { change, .. } => node(world).or_else(|| {
            let stood = world.node.as_ref().is_some_and(|node| node.view.taints.contains(&admin_taint()));
            rule(stood && !change.after.contains(&admin_taint()), "an administrator's taint is removed")
        }),
        Action::Evict(_) => node(world).or_else(|| rule(world.is_paused(), "pods are evicted while paused")),
        Action::ForceDelete(_) => node(world).or_else(|| {
            let is_late = world.memory.shutdown.as_ref().is_some_and(|it| it.drain_deadline <= world.now);
            let ends = is_emergency(world) || (world.has_returned() && is_late);
            rule(!ends, "pods are killed on a graceful exit")
        }),
        Action::Disable { reclaim } => disable(world, reclaim),
        Action::ClearRequest { .. } => node(world).or_else(|| clear(world)),
        Action::RememberHost(_) => rule(!world.same_host(), "a host is remembered that is not the Machine's"),
        Action::ClearOwnRequest => {
            rule(stage(world) == Stage::UnderWay, "a request is taken off before the schedule is disabled")
        }
        Action::WriteAgentConfig { .. } | Action::Arm { .. } => node(world)
            .or_else(|| rule(world.orders.reclaim.commands.is_empty(), "an agent is armed with nothing"))
            .or_else(|| {
                rule(stage(world) != Stage::Over, "an agent is armed while the owner has the machine")
            }),
        Action::Disarm(_) | Action::DeleteAgentConfig { .. } => {
            let goes_on = stage(world) == Stage::UnderWay && world.orders.deletion.is_none();
            rule(goes_on, "an agent is disarmed before the schedule is disabled")
        }
    }
}

/// How far a reclaim is that is remembered.
fn stage(world: &World) -> Stage {
    world.memory.reclaim.as_ref().map_or(Stage::Over, Reclaim::stage)
}

fn disable(world: &World, reclaim: &str) -> Option<&'static str> {
    let machine = world.machine.as_ref().filter(|it| it.ours);
    let lives = machine.is_some_and(|it| it.view.object.deleting_since.is_none());
    let again = world.orders.reclaim.disabled_for.as_deref() == Some(reclaim);
    rule(stage(world) != Stage::UnderWay, "the schedule is disabled without a reclaim")
        .or_else(|| rule(lives, "the schedule is disabled before the Machine is deleted"))
        .or_else(|| rule(again, "the schedule is disabled twice for one reclaim"))
        .or_else(|| rule(world.is_paused(), "the spec is written while paused"))
}

/// A request is taken off only when it was acted on, or must not be.
fn clear(world: &World) -> Option<&'static str> {
    let orders = &world.orders;
    let node = world.node.as_ref().map(|node| &node.view)?;
    let request = node.request.as_ref()?;
    let is_handled = world.memory.reclaim.as_ref().is_some_and(|it| {
        it.requested_at == request.requested_at && it.node.as_ref().is_some_and(|it| it.uid == node.uid)
    });
    let machine = world.machine.as_ref().map(|it| it.view.object.uid.as_str());
    let counts = node.armed_for.as_deref() == machine && !orders.reclaim.commands.is_empty() && !is_handled;
    let ends_anyway = orders.deletion.is_some() || orders.kill_switch;
    rule(stage(world) == Stage::UnderWay, "a request is taken off before the schedule is disabled")
        .or_else(|| rule(counts && stage(world) == Stage::Over && !ends_anyway, "a request is thrown away"))
}

/// Judges a status that is about to be written over another.
pub fn judge_memory(world: &World, after: &Memory) -> Option<&'static str> {
    let before = &world.memory;
    let after_stage = after.reclaim.as_ref().map_or(Stage::Over, Reclaim::stage);
    let lost = stage(world) == Stage::UnderWay && after_stage == Stage::Over;
    let released = before.reclaim.as_ref().is_none_or(|reclaim| {
        fivespot_core::reclaim::is_released(reclaim, &world.orders.reclaim, world.orders.enabled)
    });
    if lost {
        return Some("a reclaim that was written down is lost");
    }
    if stage(world) == Stage::Held && after_stage != Stage::Held && !released {
        return Some("a hold is released by nobody");
    }
    // Each Machine has an exit of its own.
    let is_same = |old: &Shutdown, new: &Shutdown| old.machine.is_none() || old.machine == new.machine;
    let (Some(old), Some(new)) = (&before.shutdown, &after.shutdown) else {
        return None;
    };
    if !is_same(old, new) {
        return None;
    }
    let lowered = old.cause.is_emergency() && !new.cause.is_emergency();
    let phase = before.phase == Some(Phase::EmergencyRemove) && after.phase == Some(Phase::ShuttingDown);
    let begins = stage(world) == Stage::Over && after_stage == Stage::UnderWay;
    let escalates = begins || (!old.cause.is_emergency() && new.cause.is_emergency());
    // A host that came back, and that somebody opened again, is drained anew.
    let anew = world.has_returned();
    let extended = new.drain_deadline > old.drain_deadline && !escalates && !anew;
    rule(lowered || phase, "an exit became less urgent")
        .or_else(|| rule(extended, "the deadline of an exit was put off"))
}

fn rule(broken: bool, what: &'static str) -> Option<&'static str> {
    broken.then_some(what)
}

fn owns_machine(world: &World) -> bool {
    world.machine.as_ref().is_some_and(|it| it.ours)
}

/// Whether anything of ours exists.
pub fn owns_anything(world: &World) -> bool {
    let objects = [&world.bootstrap, &world.infrastructure];
    owns_machine(world) || objects.into_iter().flatten().any(|it| it.ours)
}

fn is_emergency(world: &World) -> bool {
    let remembered = world.memory.shutdown.as_ref().is_some_and(|it| it.cause.is_emergency());
    world.orders.kill_switch || remembered || stage(world) != Stage::Over
}

/// Whether the spec, the clock or the Cluster says that the machine leaves, or did when it could be read.
pub(crate) fn may_leave(world: &World) -> bool {
    let orders = &world.orders;
    let told = orders.deletion.is_some() || orders.kill_switch || !orders.enabled;
    let told = told || stage(world) != Stage::Over;
    let cluster_goes = world.cluster.is_some_and(|cluster| cluster.deleting);
    told || cluster_goes
        || world.in_window() == Some(false)
        || (world.in_window().is_none() && world.memory.shutdown.is_some())
}

fn node(world: &World) -> Option<&'static str> {
    let is_ours = (world.same_host() && world.is_marked()) || world.has_returned();
    rule(!is_ours, "a Node is written that is not the Machine's")
}

fn create(world: &World, part: Part) -> Option<&'static str> {
    let cluster = world.cluster.filter(|cluster| !cluster.deleting);
    // A provider that ignores the deletion of what never had a Machine gets one, at any time.
    let infrastructure = world.infrastructure.as_ref().map(|it| &it.view);
    let hangs = infrastructure.is_some_and(|it| it.deleting_since.is_some() && !it.has_machine_owner);
    let rescue = part == Part::Machine && hangs;
    rule(world.is_paused(), "something is created while paused")
        .or_else(|| rule(cluster.is_none(), "something is created without a Cluster"))
        .or_else(|| rule(!world.finalizer, "something is created without a finalizer"))
        .or_else(|| rule(may_leave(world) && !rescue, "something is created that must leave"))
        .or_else(|| rule(world.in_window().is_none(), "something is created from a spec that cannot be read"))
}

fn finalizer(world: &World) -> Option<&'static str> {
    let Some(deletion) = world.orders.deletion else {
        return Some("a finalizer is removed from what is not being deleted");
    };
    let machine = world.machine.as_ref().map(|it| &it.view.object);
    let first = machine.or(world.infrastructure.as_ref().map(|it| &it.view));
    let first = first.or(world.bootstrap.as_ref().map(|it| &it.view));
    let since = first.and_then(|it| it.deleting_since);
    let patient = |since: Timestamp| since.checked_add(GIVE_UP).is_ok_and(|end| end > world.now);
    let given_up = deletion == Deletion::Whole { patience: Patience::Limited } && !since.is_none_or(patient);
    rule(owns_anything(world) && !given_up, "the finalizer is removed while something of ours exists")
}

fn delete_machine(world: &World) -> Option<&'static str> {
    let Some(machine) = world.machine.as_ref().filter(|it| it.ours) else {
        return Some("a foreign Machine is deleted");
    };
    // It was made only to let an infrastructure object go.
    let broken = world.infrastructure.as_ref().is_none_or(|it| it.view.deleting_since.is_some());
    let remembered = world.memory.shutdown.is_some();
    rule(!remembered, "a Machine is deleted before its exit is remembered")
        .or_else(|| rule(world.is_paused(), "a Machine is deleted while paused"))
        .or_else(|| rule(!may_leave(world) && !broken, "a Machine is deleted that may stay"))
        .or_else(|| {
            // A Node that is not marked as the Machine's is left to Cluster API.
            let again = !machine.view.excludes_drain && !world.capi_down && world.is_marked();
            rule(again, "a Machine is deleted and Cluster API drains it again")
        })
        .or_else(|| {
            rule(!is_emergency(world) && !is_emptied(world), "a Machine is deleted that is not empty")
        })
}

/// Whether a graceful exit may take the Machine now.
fn is_emptied(world: &World) -> bool {
    let budget = world.orders.budget.graceful.min(world.orders.budget.drain);
    let end = world.leaves_since.and_then(|since| since.checked_add(budget).ok());
    let over = end.is_some_and(|end| end <= world.now);
    let cluster_goes = world.cluster.is_some_and(|cluster| cluster.deleting);
    let Some(node) = &world.node else { return true };
    let joined = world.machine.as_ref().is_some_and(|it| it.view.node_name.is_some());
    let left_to_cluster_api = !world.is_marked();
    if over || cluster_goes || !joined || !world.same_host() || left_to_cluster_api {
        return true;
    }
    let stays = |pod: &Tenant| {
        let lost = node.view.is_silent() && pod.view.deletion.is_some_and(|end| end < world.now);
        !lost && !pod.view.of_daemon_set && !pod.view.mirror
    };
    node.view.unschedulable && !node.pods.iter().any(stays)
}
