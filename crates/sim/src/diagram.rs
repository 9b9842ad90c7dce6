//! The phases, drawn from what can happen.
//!
//! From a new object on, one thing happens, then the controller makes one pass; from every world that comes of it one
//! more thing happens, until no new world comes. Each change of phase is an edge, named after what happened. Nobody
//! draws an edge by hand, so the picture shows what the code does.

use crate::actors::{Actor, Event, Fault, User};
use crate::controller::{Controller, look};
use crate::world::{EVENING, MORNING, Thing, World};
use fivespot_core::lifecycle::Phase;
use fivespot_core::observed::Object;
use fivespot_core::reclaim::{Reclaim, Stage};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

/// What may happen between two passes.
const EVENTS: [Event; 18] = [
    Event::Pass,
    Event::Act(Actor::ClusterApi),
    Event::Act(Actor::Provider),
    Event::Act(Actor::Kubelet),
    Event::Seconds(130),
    Event::Boundary,
    Event::User(User::Enable(false)),
    Event::User(User::Enable(true)),
    Event::User(User::KillSwitch(true)),
    Event::User(User::KillSwitch(false)),
    Event::User(User::Spec(false)),
    Event::User(User::Spec(true)),
    Event::User(User::Delete),
    Event::User(User::DeleteMachine),
    Event::User(User::DeleteCluster),
    Event::User(User::Reclaim),
    Event::User(User::Resume),
    Event::Fault(Fault::NodeFails),
];

/// A phase, or `None` where a life begins and ends.
type Place = Option<Phase>;

/// Every change of phase, with what leads to it.
pub fn transitions() -> BTreeMap<(Place, Place), BTreeSet<&'static str>> {
    let mut edges: BTreeMap<(Place, Place), BTreeSet<&'static str>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut open = VecDeque::new();
    for now in [MORNING, EVENING] {
        let mut world = World::new(now);
        Controller::default().pass(&mut world);
        let cause = if now == MORNING { "made in the window" } else { "made outside it" };
        edges.entry((None, place(&world))).or_default().insert(cause);
        open.push_back(world);
    }
    while let Some(world) = open.pop_front() {
        if !world.exists || !seen.insert(kind(&world)) {
            continue;
        }
        let without = after(&world, Event::Pass);
        for event in EVENTS {
            let next = after(&world, event);
            if orders(&next) > 1 {
                continue;
            }
            let (from, to) = (place(&world), place(&next));
            // What would have come by itself is not the event's doing.
            let event = if to == place(&without) { Event::Pass } else { event };
            if from != to {
                let cause = exit(&world, &next).unwrap_or_else(|| cause(event, &next));
                edges.entry((from, to)).or_default().insert(cause);
            }
            open.push_back(next);
        }
    }
    edges
}

/// The world after an event and a pass.
fn after(world: &World, event: Event) -> World {
    let mut next = world.clone();
    next.happen(event);
    next.act(Actor::Watch);
    let was_held = stage(&next) == Stage::Held;
    Controller::default().pass(&mut next);
    // That a hold is released is remembered first, and shows in the pass after it.
    if was_held && stage(&next) == Stage::Over {
        Controller::default().pass(&mut next);
    }
    next
}

fn stage(world: &World) -> Stage {
    world.memory.reclaim.as_ref().map_or(Stage::Over, Reclaim::stage)
}

/// How much stands against the schedule, beside a deletion. Which of several wins is in the table, not in the picture.
fn orders(world: &World) -> usize {
    let orders = &world.orders;
    let cluster_goes = world.cluster.is_none_or(|cluster| cluster.deleting);
    let invalid = world.in_window().is_none();
    let asked = orders.reclaim.request.is_some();
    let reclaimed = asked || stage(world) != Stage::Over;
    // A reclaim disables the schedule itself.
    let all = [!orders.enabled && !reclaimed, orders.kill_switch, cluster_goes, invalid, reclaimed];
    all.into_iter().filter(|order| *order).count()
}

/// The transitions as a mermaid diagram.
pub fn mermaid() -> String {
    let mut text = "stateDiagram-v2\n".to_owned();
    for ((from, to), causes) in transitions() {
        let causes: Vec<&str> = causes.into_iter().collect();
        let _ = writeln!(text, "    {} --> {}: {}", word(from), word(to), causes.join(" / "));
    }
    text
}

fn word(place: Place) -> &'static str {
    place.map_or("[*]", Phase::word)
}

fn place(world: &World) -> Place {
    world.memory.phase.filter(|_| world.exists)
}

/// How an exit ends, whatever happens in the moment in which it does.
fn exit(world: &World, next: &World) -> Option<&'static str> {
    let leaves = matches!(place(world), Some(Phase::ShuttingDown | Phase::EmergencyRemove));
    match place(next).filter(|_| leaves) {
        None => leaves.then_some("all gone"),
        Some(Phase::Inactive | Phase::Disabled | Phase::Terminated) => Some("all gone"),
        Some(Phase::Pending) if !has_machine(world) => Some("all gone"),
        Some(Phase::Pending | Phase::Active) => Some("called off"),
        Some(Phase::Error) => Some("spec invalid"),
        Some(Phase::ShuttingDown | Phase::EmergencyRemove) => None,
    }
}

fn has_machine(world: &World) -> bool {
    world.machine.as_ref().is_some_and(|it| it.view.object.deleting_since.is_none())
}

/// What an event is called that changes a phase.
fn cause(event: Event, next: &World) -> &'static str {
    match event {
        Event::Boundary if next.in_window() == Some(true) => "window opens",
        Event::Boundary => "window closes",
        Event::User(User::Enable(true)) => "enabled",
        Event::User(User::Enable(false)) => "disabled",
        Event::User(User::KillSwitch(true)) => "kill switch",
        Event::User(User::KillSwitch(false)) => "kill switch off",
        Event::User(User::Spec(true)) => "spec mended",
        Event::User(User::Spec(false)) => "spec invalid",
        Event::User(User::Delete) => "deleted",
        Event::User(User::DeleteMachine) => "Machine lost",
        Event::User(User::DeleteCluster) => "Cluster deleted",
        Event::Fault(Fault::NodeFails) => "Node not Ready",
        Event::Fault(
            Fault::Reachable(_)
            | Fault::PodComes { .. }
            | Fault::BudgetsRelent
            | Fault::Stubborn
            | Fault::CleanUpFails(_)
            | Fault::HostBoots
            | Fault::ProviderDown(_)
            | Fault::CapiDown(_)
            | Fault::PolicyForbids(_)
            | Fault::MarkLost,
        ) => "a fault",
        Event::User(User::Reclaim | User::Program(_)) => "reclaimed",
        Event::User(User::Resume) => "resumed",
        Event::User(User::Tool) => "enabled by a tool",
        Event::User(User::Cluster(_)) => "Cluster came or went",
        Event::User(User::Pause(_) | User::PauseCluster(_)) => "paused or not",
        Event::User(
            User::DeleteOrphaning
            | User::Cordon
            | User::Uncordon
            | User::Taint
            | User::StripLabels { .. }
            | User::Commands(_)
            | User::ClearRequest
            | User::CleanHost,
        ) => "by hand",
        Event::Pass | Event::Stale | Event::Crash(_) | Event::Act(_) | Event::Seconds(_) => match place(next)
        {
            Some(Phase::Active) => "Node Ready",
            None | Some(Phase::Inactive | Phase::Disabled | Phase::Terminated) => "all gone",
            Some(_) => look(next).1.waiting.map_or("", |waiting| waiting.reason()),
        },
    }
}

/// What tells two worlds apart here: not names, not times.
fn kind(world: &World) -> String {
    let object = |thing: &Option<Thing<Object>>| {
        let view =
            |it: &Thing<Object>| (it.view.deleting_since.is_some(), it.view.has_machine_owner, it.done);
        thing.as_ref().map(view)
    };
    let machine = world.machine.as_ref().map(|it| {
        let view = &it.view;
        (view.object.deleting_since.is_some(), view.node_name.is_some(), view.bootstrapped, it.finalizer)
    });
    let node = world.node.as_ref().map(|node| (node.view.ready.status, node.view.unschedulable));
    let exit = world.memory.shutdown.as_ref().map(|it| (it.cause, it.drain_deadline <= world.now));
    let reclaim = format!("{:?}", stage(world));
    let requested = world.orders.reclaim.request.is_some();
    let orders = (world.orders.enabled, world.orders.kill_switch, world.orders.deletion.is_some());
    let orders = (orders, reclaim, requested);
    let cluster = world.cluster;
    let parts = (object(&world.bootstrap), object(&world.infrastructure), machine, node, cluster);
    format!("{:?}", (orders, world.in_window(), world.memory.phase, exit, parts))
}
