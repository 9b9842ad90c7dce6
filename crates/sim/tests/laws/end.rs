//! Where a life ends, without the names and times that differ from run to run.

use fivespot_core::lifecycle::{Deletion, Patience, Phase};
use fivespot_core::observed::Machine;
use fivespot_core::reclaim::Stage;
use fivespot_sim::rules::owns_anything;
use fivespot_sim::world::{Provider, Tenant, Thing, World};

/// What two runs must agree on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct End {
    exists: bool,
    finalizer: bool,
    phase: Option<Phase>,
    exits: bool,
    scheduled: Option<String>,
    tainted: Option<String>,
    parts: [Option<bool>; 3],
    node: Option<(bool, bool, usize)>,
    pods: usize,
}

impl End {
    /// What even lives must agree on whose machine went and came at other times.
    pub(crate) fn essence(&self) -> (bool, Option<Phase>, bool, [Option<bool>; 3]) {
        (self.exists, self.phase, self.exits, self.parts)
    }
}

pub(crate) fn end_of(world: &World) -> End {
    let object = |it: &Option<Thing<_>>| it.as_ref().map(|it| it.ours);
    let machine = world.machine.as_ref().map(|it| it.ours);
    End {
        exists: world.exists,
        finalizer: world.finalizer,
        phase: world.memory.phase.filter(|_| world.exists),
        exits: world.memory.shutdown.is_some() && world.exists,
        scheduled: world.memory.scheduled.clone().filter(|_| world.exists),
        tainted: world.memory.tainted.clone().filter(|_| world.exists),
        parts: [object(&world.bootstrap), object(&world.infrastructure), machine],
        node: world
            .node
            .as_ref()
            .map(|node| (node.view.unschedulable, node.view.cordoned_by_us, node.view.taints.len())),
        pods: world.node.as_ref().map_or(0, |node| node.pods.len()),
    }
}

/// Whether a Machine was deleted that had no bootstrap data, which a stubborn provider waits for.
pub(crate) fn is_stuck(world: &World) -> bool {
    let never = |it: &Thing<Machine>| !it.view.bootstrapped && it.view.object.deleting_since.is_some();
    world.provider == Provider::Stubborn && world.machine.as_ref().is_some_and(never)
}

/// Whether a settled world is what spec and clock ask for, or says why it is not.
pub(crate) fn agrees(world: &World) -> Result<(), String> {
    let orders = &world.orders;
    let is = |phase| world.memory.phase == Some(phase);
    let says = |what: &str| Err(format!("{what}: {:?}, {:?}", world.memory.phase, end_of(world)));
    if !world.exists {
        let given_up = world.patience == Patience::Limited;
        return if owns_anything(world) && !given_up {
            says("something outlives its ScheduledMachine")
        } else {
            Ok(())
        };
    }
    if world.is_paused() {
        return Ok(());
    }
    // Only a Machine would help what hangs, and none can be made.
    let hangs = world.infrastructure.as_ref().is_some_and(|it| !it.view.has_machine_owner)
        && world.provider == Provider::Stubborn;
    let cluster = world.cluster.filter(|cluster| !cluster.deleting);
    if hangs && world.machine.is_none() && (world.in_window().is_none() || cluster.is_none()) {
        return Ok(());
    }
    if is_stuck(world) {
        return Ok(());
    }
    // Cluster API does nothing about a Machine without its Cluster.
    if world.cluster.is_none() && world.machine.is_some() {
        return Ok(());
    }
    if orders.deletion.is_none()
        && world.memory.reclaim.as_ref().is_some_and(|reclaim| reclaim.stage() == Stage::UnderWay)
    {
        return says("a reclaim does not end");
    }
    if matches!(orders.deletion, Some(Deletion::Whole { .. })) && world.finalizer {
        return says("the deletion does not end");
    }
    let held = world.memory.reclaim.as_ref().is_some_and(|reclaim| reclaim.stage() == Stage::Held);
    let told = orders.deletion.is_some() || orders.kill_switch || !orders.enabled || held;
    let leaves = told || world.in_window() == Some(false);
    if leaves && owns_anything(world) {
        return says("something of ours is left");
    }
    let watches = world.reachable && cluster.is_some();
    if leaves && world.has_returned() && watches && orders.deletion.is_none() {
        let must_go =
            |pod: &Tenant| !pod.view.of_daemon_set && !pod.view.mirror && pod.view.deletion.is_none();
        let emptied =
            world.node.as_ref().is_some_and(|node| node.view.unschedulable && !node.pods.iter().any(must_go));
        return if is(Phase::Error) && emptied { Ok(()) } else { says("a host that came back is in use") };
    }
    if leaves {
        let right = match orders {
            _ if orders.deletion.is_some() => true,
            _ if orders.kill_switch => is(Phase::Terminated),
            _ if held || !orders.enabled => is(Phase::Disabled),
            _ => is(Phase::Inactive),
        };
        return if right { Ok(()) } else { says("the phase is wrong") };
    }
    if world.in_window().is_none() {
        return if is(Phase::Error) || is(Phase::ShuttingDown) || is(Phase::EmergencyRemove) {
            Ok(())
        } else {
            says("an invalid spec is not shown")
        };
    }
    if cluster.is_none() {
        return if is(Phase::Pending) { Ok(()) } else { says("the missing Cluster is not shown") };
    }
    let foreign = world.machine.as_ref().is_some_and(|it| !it.ours);
    let lost = world.machine.is_some()
        && world.infrastructure.as_ref().is_none_or(|it| it.view.deleting_since.is_some());
    let other_host = world.machine.as_ref().is_some_and(|it| it.view.node_name.is_some())
        && world.node.is_some()
        && !world.same_host();
    if foreign || lost || (other_host && world.reachable) {
        return if is(Phase::Error) { Ok(()) } else { says("what a person must mend is not shown") };
    }
    if !world.reachable {
        return if is(Phase::Pending) { Ok(()) } else { says("what cannot be reached is not shown") };
    }
    let fit = world.node.as_ref().is_some_and(|node| {
        node.view.ready.status == Some(true) && !node.view.cordoned_by_us && !node.view.taints.is_empty()
    });
    if is(Phase::Active) && fit && world.memory.shutdown.is_none() { Ok(()) } else { says("not in use") }
}
