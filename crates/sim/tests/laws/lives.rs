//! Random lives: what users, actors, faults and the clock do, in any order.

use fivespot_core::lifecycle::{Budget, Patience};
use fivespot_sim::actors::Event::{Act, Boundary, Crash, Pass, Seconds, User as By};
use fivespot_sim::actors::{Actor, Event, Fault, User};
use fivespot_sim::world::BUDGET;
use proptest::prelude::*;
use std::time::Duration;

/// A life, printed as it is if it fails.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    /// One of [`START`].
    pub(crate) start: &'static str,
    pub(crate) patience: Patience,
    pub(crate) budget: Budget,
    pub(crate) events: Vec<Event>,
}

/// The worlds in which lives begin; the others are made by what happens.
const START: [&str; 5] =
    ["nothing", "provider objects only", "machine, no node", "node ready", "node with guarded pod"];

/// How a life ends: nothing is paused, and everything answers.
pub(crate) const MENDED: [Event; 5] = [
    By(User::Pause(false)),
    By(User::PauseCluster(false)),
    Event::Fault(Fault::Reachable(true)),
    Event::Fault(Fault::ProviderDown(false)),
    Event::Fault(Fault::CapiDown(false)),
];

/// The same event, in a life without crashes.
pub(crate) fn whole(event: Event) -> Event {
    if matches!(event, Crash(_)) { Pass } else { event }
}

/// Lives that once broke a law, by what they show.
pub(crate) fn known() -> Vec<(&'static str, Life)> {
    [known_drains(), known_ends()].concat()
}

fn simple(start: &'static str, events: &[Event]) -> Life {
    Life { start, patience: Patience::Endless, budget: BUDGET, events: events.to_vec() }
}

fn limited(life: Life) -> Life {
    Life { patience: Patience::Limited, ..life }
}

const OFF: Event = By(User::Enable(false));
const ON: Event = By(User::Enable(true));
const KILL: Event = By(User::KillSwitch(true));
const SPARE: Event = By(User::KillSwitch(false));
const COMES: Event = Event::Fault(Fault::PodComes { guarded: true });

/// Of a Node that must be emptied.
fn known_drains() -> Vec<(&'static str, Life)> {
    let no_budget = Budget { drain: Duration::ZERO, ..BUDGET };
    let away = |on| Event::Fault(Fault::Reachable(on));
    let by_admin = [Boundary, Pass, Seconds(11), COMES, By(User::Cordon), Pass, Pass];
    let unreachable = [Boundary, Pass, away(false), Pass, Seconds(60), COMES, away(true), Pass];
    let opened = [Boundary, Pass, Pass, Seconds(20), By(User::Uncordon), COMES, Pass, Pass];
    let no_cluster = [OFF, Pass, ON, By(User::Cluster(false)), Pass, Seconds(600), OFF, Pass, Pass];
    vec![
        (
            "no budget is no drain",
            Life { budget: no_budget, ..simple("node with pods", &[By(User::Delete), Pass, Pass]) },
        ),
        (
            "pods that come before a late cordon are evicted",
            simple("node ready", &[Boundary, Pass, Seconds(11), COMES, Pass, Pass]),
        ),
        ("pods that come before an administrator's cordon are evicted", simple("node ready", &by_admin)),
        ("pods that come while nobody can cordon are evicted", simple("node ready", &unreachable)),
        (
            "pods that come after an administrator opened the Node are evicted",
            simple("node with guarded pod", &opened),
        ),
        (
            "an exit that was called off lends no deadline to the next",
            simple("node with guarded pod", &no_cluster),
        ),
    ]
}

/// Of what is left in the end.
fn known_ends() -> Vec<(&'static str, Life)> {
    let (deleted, paused) = (By(User::Delete), By(User::PauseCluster(true)));
    let strip = By(User::StripLabels { machine_only: true });
    let strip_all = By(User::StripLabels { machine_only: false });
    let (watch, provider) = (Act(Actor::Watch), Act(Actor::Provider));
    let hangs = [Event::Fault(Fault::Stubborn), Boundary, Pass, Seconds(60)];
    let reopened = [&hangs[..], &[Boundary]].concat();
    let slow = [Boundary, Pass, Seconds(30), Pass, provider, Boundary];
    let patient = [deleted, Pass, Pass, paused, Pass, Pass, Seconds(601), Pass];
    let walks_away = [Crash(3), Boundary, provider, Pass, Boundary, deleted, Pass];
    let rumour = [Boundary, Pass, Boundary, Crash(4), watch, strip, Boundary, Pass, Pass];
    let gone = By(User::Cluster(false));
    let forgotten = [By(User::DeleteMachine), Pass, Seconds(60), Pass, provider, Boundary, gone, Pass];
    let forgotten = [&[Pass, provider, Boundary], &forgotten[..], &[By(User::Cluster(true))]].concat();
    let capi = Act(Actor::ClusterApi);
    let leaves = [Pass, Boundary, capi, Pass, Pass, capi, Pass, Boundary, Pass, capi];
    let next = [&leaves[..], &[OFF, capi, Event::Stale]].concat();
    let unseen = [Pass, Act(Actor::ClusterApi), Boundary, Pass, Pass, Boundary, strip_all];
    vec![
        ("nothing is made beside an old Machine that no watch has", simple("nothing", &unseen)),
        (
            "who enables a schedule releases its hold once",
            simple("nothing", &[By(User::Reclaim), Pass, Pass, ON]),
        ),
        ("what hangs gets one Machine", simple("provider objects only", &hangs)),
        ("what hangs when the window opens is helped", simple("provider objects only", &reopened)),
        (
            "a Machine made for what hung goes, also if the window opens meanwhile",
            simple("provider objects only", &slow),
        ),
        ("the same, also if its exit is forgotten while the Cluster is away", simple("nothing", &forgotten)),
        (
            "a kill switch that is taken back leaves the exit urgent",
            simple("nothing", &[Pass, OFF, Pass, Pass, KILL, Pass, SPARE]),
        ),
        ("a pause puts off giving up", limited(simple("machine, no node", &patient))),
        ("who gives up makes nothing new", limited(simple("nothing", &walks_away))),
        ("provider objects stay while their Machine may be there", simple("nothing", &rumour)),
        ("the exit of one Machine is not that of the next", simple("nothing", &next)),
    ]
}

pub(crate) fn life() -> impl Strategy<Value = Life> {
    let patience = prop_oneof![Just(Patience::Endless), Just(Patience::Limited)];
    let zero = Budget { drain: Duration::ZERO, ..BUDGET };
    let budget = prop_oneof![4 => Just(BUDGET), 1 => Just(zero)];
    let start = proptest::sample::select(&START[..]);
    let events = proptest::collection::vec(event(), 0..60);
    let life = (start, patience, budget, events);
    life.prop_map(|(start, patience, budget, events)| Life { start, patience, budget, events })
}

/// The same life with a stale pass in the place of every crash.
pub(crate) fn stale(life: &Life) -> Life {
    let stale = |event: &Event| if matches!(event, Crash(_)) { Event::Stale } else { *event };
    Life { events: life.events.iter().map(stale).collect(), ..life.clone() }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Pass),
        3 => (0_u8..5).prop_map(Crash),
        10 => proptest::sample::select(Actor::ALL.to_vec()).prop_map(Act),
        4 => user().prop_map(By),
        3 => fault().prop_map(Event::Fault),
        3 => prop_oneof![1_u16..40, 60_u16..700].prop_map(Seconds),
        1 => Just(Boundary),
    ]
}

fn user() -> impl Strategy<Value = User> {
    prop_oneof![
        2 => any::<bool>().prop_map(User::Enable),
        2 => any::<bool>().prop_map(User::KillSwitch),
        1 => any::<bool>().prop_map(User::Pause),
        1 => any::<bool>().prop_map(User::PauseCluster),
        1 => Just(User::Delete),
        1 => Just(User::DeleteOrphaning),
        1 => any::<bool>().prop_map(User::Spec),
        1 => Just(User::Cordon),
        1 => Just(User::Uncordon),
        1 => Just(User::Taint),
        1 => Just(User::DeleteMachine),
        1 => any::<bool>().prop_map(|machine_only| User::StripLabels { machine_only }),
        1 => Just(User::DeleteCluster),
        1 => any::<bool>().prop_map(User::Cluster),
        3 => any::<bool>().prop_map(User::Program),
        1 => Just(User::Reclaim),
        2 => Just(User::Resume),
        1 => Just(User::Tool),
        1 => any::<bool>().prop_map(User::Commands),
        1 => Just(User::ClearRequest),
        1 => Just(User::CleanHost),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        1 => Just(Fault::NodeFails),
        2 => any::<bool>().prop_map(Fault::Reachable),
        3 => any::<bool>().prop_map(|guarded| Fault::PodComes { guarded }),
        1 => Just(Fault::BudgetsRelent),
        1 => Just(Fault::Stubborn),
        1 => any::<bool>().prop_map(Fault::CleanUpFails),
        2 => Just(Fault::HostBoots),
        1 => any::<bool>().prop_map(Fault::ProviderDown),
        1 => any::<bool>().prop_map(Fault::CapiDown),
        1 => any::<bool>().prop_map(Fault::PolicyForbids),
        1 => Just(Fault::MarkLost),
    ]
}
