//! Goals, worlds and memories by name: every cell of the table of decisions.

use crate::world::{
    BUDGET, ClusterThing, EVENING, HOST, MORNING, NODE, PROGRAM, Provider, Sight, Spec, World,
};
use fivespot_core::drain::FORCED;
use fivespot_core::host::LentHost;
use fivespot_core::lifecycle::{Deletion, Part, Phase};
use fivespot_core::observed::{AgentConfig, Cause, NodeOwner, Shutdown};
use fivespot_core::reclaim::{Reclaim, Request, accept};
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// A name and what it does to a world.
pub type Named = (&'static str, fn(&mut World));

/// What the user and the clock want.
pub const GOALS: [Named; 14] = [
    ("in window", |_| {}),
    ("in window, paused", |world| world.orders.paused = true),
    ("out of window", |world| world.now = EVENING),
    ("out of window, paused", |world| (world.now, world.orders.paused) = (EVENING, true)),
    ("disabled", |world| world.orders.enabled = false),
    ("killed", |world| world.orders.kill_switch = true),
    ("killed, paused", |world| (world.orders.kill_switch, world.orders.paused) = (true, true)),
    ("deleted", |world| world.orders.deletion = Some(Deletion::Whole { patience: world.patience })),
    ("deleted, paused", |world| {
        world.orders.deletion = Some(Deletion::Whole { patience: world.patience });
        world.orders.paused = true;
    }),
    ("deleted and killed", |world| {
        world.orders.deletion = Some(Deletion::Whole { patience: world.patience });
        world.orders.kill_switch = true;
    }),
    ("deleted, orphaning", |world| world.orders.deletion = Some(Deletion::Orphaning)),
    ("invalid spec", |world| world.write_spec(Spec::Invalid)),
    ("asked back by hand", |world| {
        world.orders.reclaim.request = Some(request("by hand"));
    }),
    ("resumed", |world| world.orders.reclaim.resume = Some(RECLAIM.to_owned())),
];

/// What there is.
pub const WORLDS: [Named; 28] = [
    ("nothing", |_| {}),
    ("no cluster", |world| world.cluster = None),
    ("cluster deleting", |world| {
        node_ready(world);
        world.cluster = Some(ClusterThing { paused: false, deleting: true });
    }),
    ("provider objects only", provider_objects),
    ("machine, no node", machine),
    ("node not ready", node),
    ("node ready", node_ready),
    ("node ready, no agent", |world| {
        node_ready(world);
        world.agent_is_dead = true;
    }),
    ("node ready, our cordon", |world| {
        node_ready(world);
        cordon(world, true);
    }),
    ("node ready, admin cordon", |world| {
        node_ready(world);
        cordon(world, false);
    }),
    ("node with pods", |world| {
        node_ready(world);
        pods(world, false);
    }),
    ("node with guarded pod", |world| {
        node_ready(world);
        pods(world, true);
    }),
    ("node with a request", |world| {
        node_ready(world);
        pods(world, true);
        ask(world);
    }),
    ("node with a request, no programs", |world| {
        node_ready(world);
        ask(world);
        world.orders.reclaim.commands.clear();
    }),
    ("node with a request of another day", |world| {
        node_ready(world);
        ask(world);
        if let Some(node) = &mut world.node {
            node.view.armed_for = Some("uid-of-another-day".to_owned());
        }
    }),
    ("node of another host", |world| {
        node_ready(world);
        if let Some(node) = &mut world.node {
            node.view.provider_id = Some("host://2".to_owned());
        }
    }),
    ("node not marked", |world| {
        node_ready(world);
        pods(world, true);
        ask(world);
        own(world, NodeOwner::Nobody);
    }),
    ("node of another machine", |world| {
        node_ready(world);
        pods(world, true);
        ask(world);
        own(world, NodeOwner::Other("Machine lab/other of Cluster lab".to_owned()));
    }),
    ("unreachable", |world| {
        node_ready(world);
        world.reachable = false;
    }),
    ("machine deleting", |world| {
        node_ready(world);
        let _ = world.delete(Part::Machine, None);
    }),
    ("machine deleting for long", |world| {
        node_ready(world);
        let _ = world.delete(Part::Machine, None);
        let long_ago = world.second().checked_sub(SignedDuration::from_mins(6)).ok();
        if let Some(it) = &mut world.machine {
            it.view.object.deleting_since = long_ago;
        }
    }),
    ("infrastructure deleting", |world| {
        provider_objects(world);
        let _ = world.delete(Part::Infrastructure, None);
    }),
    ("infrastructure hanging", |world| {
        provider_objects(world);
        let _ = world.delete(Part::Infrastructure, None);
        let long_ago = world.second().checked_sub(SignedDuration::from_mins(1));
        if let (Some(it), Ok(long_ago)) = (&mut world.infrastructure, long_ago) {
            it.view.deleting_since = Some(long_ago);
        }
        world.provider = Provider::Stubborn;
    }),
    ("infrastructure lost", |world| {
        node_ready(world);
        world.infrastructure = None;
    }),
    ("host came back", |world| {
        came_back(world);
        pods(world, true);
    }),
    ("host came back, emptied", |world| {
        came_back(world);
        cordon(world, true);
    }),
    ("other host of its name", |world| {
        came_back(world);
        if let Some(node) = &mut world.node {
            "m2".clone_into(&mut node.view.host.machine_id);
        }
    }),
    ("foreign machine", |world| {
        machine(world);
        if let Some(it) = &mut world.machine {
            it.ours = false;
            it.sight = Sight::Unlabelled;
        }
        (world.bootstrap, world.infrastructure) = (None, None);
    }),
];

/// What status says of an exit.
pub const MEMORIES: [Named; 7] = [
    ("none", |_| {}),
    ("graceful", |world| remember(world, Phase::ShuttingDown, Cause::WindowClosed, 3)),
    ("late", |world| remember(world, Phase::ShuttingDown, Cause::WindowClosed, 200)),
    ("emergency", |world| remember(world, Phase::EmergencyRemove, Cause::KillSwitch, 3)),
    ("taken back", |world| {
        remember(world, Phase::EmergencyRemove, Cause::Reclaim, 3);
        reclaimed(world, |_| {});
    }),
    ("held", |world| {
        remember(world, Phase::EmergencyRemove, Cause::Reclaim, 3);
        reclaimed(world, |reclaim| {
            (reclaim.machine_deleted, reclaim.disabled, reclaim.hold) = (true, true, true);
        });
        (world.orders.enabled, world.orders.reclaim.disabled_for) = (false, Some(RECLAIM.to_owned()));
    }),
    ("held, enabled by a tool", |world| {
        remember(world, Phase::EmergencyRemove, Cause::Reclaim, 3);
        reclaimed(world, |reclaim| {
            (reclaim.machine_deleted, reclaim.disabled, reclaim.hold) = (true, true, true);
        });
        world.orders.reclaim.disabled_for = Some(RECLAIM.to_owned());
    }),
];

/// Identity of the reclaim that is remembered.
const RECLAIM: &str = "20260302T100000Z-uid-4";

fn request(reason: &str) -> Request {
    Request { reason: reason.to_owned(), requested_at: "2026-03-02T09:59:00Z".to_owned() }
}

fn ask(world: &mut World) {
    if let Some(node) = &mut world.node {
        node.view.request = Some(request("process-match: idea"));
    }
}

fn reclaimed(world: &mut World, change: fn(&mut Reclaim)) {
    let node = world.node.as_ref().map(|node| &node.view);
    let mut reclaim = accept(world.second(), &request("process-match: idea"), node, None);
    reclaim.drain_deadline = world.memory.shutdown.as_ref().map(|shutdown| shutdown.drain_deadline);
    RECLAIM.clone_into(&mut reclaim.id);
    change(&mut reclaim);
    world.memory.reclaim = Some(reclaim);
}

/// A cell: the world, in which somebody wants something and remembers something.
pub fn cell(goal: Named, made: Named, memory: Named) -> World {
    let mut world = World::new(MORNING);
    // The clock first, since objects are made at a time.
    goal.1(&mut world);
    made.1(&mut world);
    memory.1(&mut world);
    world
}

fn provider_objects(world: &mut World) {
    world.finalizer = true;
    for part in [Part::Bootstrap, Part::Infrastructure] {
        let object = world.make();
        let mut thing = World::thing(object);
        thing.sight = Sight::Watched;
        thing.finalizer = part == Part::Infrastructure;
        match part {
            Part::Bootstrap => world.bootstrap = Some(thing),
            Part::Infrastructure | Part::Machine => world.infrastructure = Some(thing),
        }
    }
}

fn machine(world: &mut World) {
    provider_objects(world);
    for it in [&mut world.bootstrap, &mut world.infrastructure].into_iter().flatten() {
        it.view.has_machine_owner = true;
    }
    let object = world.make();
    let mut thing = World::thing(World::new_machine(object));
    (thing.sight, thing.finalizer) = (Sight::Watched, true);
    world.machine = Some(thing);
}

fn node(world: &mut World) {
    machine(world);
    world.node = Some(world.new_node());
    if let Some(it) = &mut world.machine {
        it.view.bootstrapped = true;
        it.view.provider_id = Some(HOST.to_owned());
        it.view.node_name = Some(NODE.to_owned());
    }
    for it in [&mut world.bootstrap, &mut world.infrastructure].into_iter().flatten() {
        it.done = true;
    }
    let (machine, uid) = (world.machine.as_ref().map(|it| it.view.object.uid.clone()), world.make().uid);
    if let Some(node) = &mut world.node {
        (node.view.labelled, node.view.armed_for) = (true, machine);
    }
    own(world, NodeOwner::ThisMachine);
    let commands = Some(vec![PROGRAM.to_owned()]);
    world.agent_configs = vec![AgentConfig { node: NODE.to_owned(), uid, commands }];
}

fn node_ready(world: &mut World) {
    node(world);
    if let Some(node) = &mut world.node {
        node.view.ready.status = Some(true);
    }
}

/// The provider did not clean the host that was lent, and it has booted since.
fn came_back(world: &mut World) {
    let mut node = world.new_node();
    (node.view.provider_id, node.view.ready.status) = (None, Some(true));
    let host = LentHost { node: node.view.name.clone(), id: node.view.host.clone() };
    (world.memory.host, world.memory.noted_host) = (Some(host.clone()), Some(host));
    (world.node, world.finalizer, world.host_is_dirty) = (Some(node), true, true);
}

fn own(world: &mut World, owner: NodeOwner) {
    if let Some(node) = &mut world.node {
        node.view.owner = owner;
    }
}

fn cordon(world: &mut World, by_us: bool) {
    if let Some(node) = &mut world.node {
        (node.view.unschedulable, node.view.cordoned_by_us) = (true, by_us);
    }
}

/// A pod that leaves when asked, or does not, and one of a DaemonSet.
fn pods(world: &mut World, guarded: bool) {
    let old = world.second().checked_sub(SignedDuration::from_hours(1)).unwrap_or(world.now);
    let mut tenant = world.new_pod(guarded);
    let mut daemon = world.new_pod(false);
    tenant.view.created_at = old;
    daemon.view.created_at = old;
    daemon.view.of_daemon_set = true;
    if let Some(node) = &mut world.node {
        node.pods = vec![tenant, daemon];
    }
}

fn remember(world: &mut World, phase: Phase, cause: Cause, ago: u64) {
    let before = |by: Duration| world.second().checked_sub(by).unwrap_or(Timestamp::MIN);
    let started_at = before(Duration::from_secs(ago));
    let budget = if cause.is_emergency() { FORCED } else { BUDGET.drain };
    let drain_deadline = started_at.checked_add(budget).unwrap_or(Timestamp::MAX);
    world.leaves_since = Some(started_at);
    world.memory.phase = Some(phase);
    world.memory.shutdown = Some(Shutdown { started_at, drain_deadline, cause, machine: None });
}
