//! Random lives: what users, actors, faults and the clock do, in any order.

use fivespot_core::lifecycle::{Budget, Patience};
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
pub(crate) const MENDED: [Event; 3] = [
    Event::User(User::Pause(false)),
    Event::User(User::PauseCluster(false)),
    Event::Fault(Fault::Reachable(true)),
];

/// The same event, in a life without crashes.
pub(crate) fn whole(event: Event) -> Event {
    if matches!(event, Event::Crash(_)) { Event::Pass } else { event }
}

/// Lives that once broke a law, by what they show.
pub(crate) fn known() -> Vec<(&'static str, Life)> {
    use Event::{Act, Boundary, Crash, Pass, Seconds, User as By};
    let life = |start, events: &[Event]| Life {
        start,
        patience: Patience::Endless,
        budget: BUDGET,
        events: events.to_vec(),
    };
    let limited = |life| Life { patience: Patience::Limited, ..life };
    let hangs = [Event::Fault(Fault::Stubborn), Boundary, Pass, Seconds(60)];
    let reopened = [&hangs[..], &[Boundary]].concat();
    let no_budget = Budget { drain: Duration::ZERO, ..BUDGET };
    let away = |on| Event::Fault(Fault::Reachable(on));
    let comes = |guarded| Event::Fault(Fault::PodComes { guarded });
    let strip = By(User::StripLabels { machine_only: true });
    vec![
        ("what hangs gets one Machine", life("provider objects only", &hangs)),
        ("what hangs when the window opens is helped", life("provider objects only", &reopened)),
        (
            "a Machine made for what hung goes, also if the window opens meanwhile",
            life(
                "provider objects only",
                &[Boundary, Pass, Seconds(30), Pass, Act(Actor::Provider), Boundary],
            ),
        ),
        (
            "no budget is no drain",
            Life { budget: no_budget, ..life("node with pods", &[By(User::Delete), Pass, Pass]) },
        ),
        (
            "pods that come before a late cordon are evicted",
            life("node ready", &[Boundary, Pass, Seconds(11), comes(true), Pass, Pass]),
        ),
        (
            "pods that come before an administrator's cordon are evicted",
            life("node ready", &[Boundary, Pass, Seconds(11), comes(true), By(User::Cordon), Pass, Pass]),
        ),
        (
            "pods that come while nobody can cordon are evicted",
            life(
                "node ready",
                &[Boundary, Pass, away(false), Pass, Seconds(60), comes(true), away(true), Pass],
            ),
        ),
        (
            "pods that come after an administrator opened the Node are evicted",
            life(
                "node with guarded pod",
                &[Boundary, Pass, Pass, Seconds(20), By(User::Uncordon), comes(true), Pass, Pass],
            ),
        ),
        (
            "a kill switch that is taken back leaves the exit urgent",
            life(
                "nothing",
                &[
                    Pass,
                    By(User::Enable(false)),
                    Pass,
                    Pass,
                    By(User::KillSwitch(true)),
                    Pass,
                    By(User::KillSwitch(false)),
                ],
            ),
        ),
        (
            "an exit that was called off lends no deadline to the next",
            life(
                "node with guarded pod",
                &[
                    By(User::Enable(false)),
                    Pass,
                    By(User::Enable(true)),
                    By(User::Cluster(false)),
                    Pass,
                    Seconds(600),
                    By(User::Enable(false)),
                    Pass,
                    Pass,
                ],
            ),
        ),
        (
            "a pause puts off giving up",
            limited(life(
                "machine, no node",
                &[By(User::Delete), Pass, Pass, By(User::PauseCluster(true)), Pass, Pass, Seconds(601), Pass],
            )),
        ),
        (
            "who gives up makes nothing new",
            limited(life(
                "nothing",
                &[Crash(3), Boundary, Act(Actor::Provider), Pass, Boundary, By(User::Delete), Pass],
            )),
        ),
        (
            "provider objects stay while their Machine may be there",
            life(
                "nothing",
                &[Boundary, Pass, Boundary, Crash(4), Act(Actor::Watch), strip, Boundary, Pass, Pass],
            ),
        ),
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
    let stale = |event: &Event| if matches!(event, Event::Crash(_)) { Event::Stale } else { *event };
    Life { events: life.events.iter().map(stale).collect(), ..life.clone() }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::Pass),
        3 => (0_u8..5).prop_map(Event::Crash),
        10 => proptest::sample::select(Actor::ALL.to_vec()).prop_map(Event::Act),
        4 => user().prop_map(Event::User),
        3 => fault().prop_map(Event::Fault),
        3 => prop_oneof![1_u16..40, 60_u16..700].prop_map(Event::Seconds),
        1 => Just(Event::Boundary),
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
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        1 => Just(Fault::NodeFails),
        2 => any::<bool>().prop_map(Fault::Reachable),
        3 => any::<bool>().prop_map(|guarded| Fault::PodComes { guarded }),
        1 => Just(Fault::BudgetsRelent),
        1 => Just(Fault::Stubborn),
    ]
}
