//! Random lives of the fleet operator: what a shard, a cluster, faults and the clock do, in any order. The rules are in
//! [`fivespot_sim::fleet`].

use fivespot_core::fleet::MachineState;
use fivespot_sim::fleet::{Event, Of, World};
use proptest::prelude::*;
use std::cell::Cell;

/// Lives in `make test`.
const LIVES: u32 = 20_000;

/// The rules that a life breaks, with everything that happened; nothing if it breaks none.
fn broken(events: &[Event]) -> Option<String> {
    let mut world = World::default();
    world.live(events);
    world.settle();
    (!world.broken.is_empty()).then(|| format!("{}\n{}", world.broken.join("\n"), world.log.join("\n")))
}

fn any_state() -> impl Strategy<Value = MachineState> {
    use MachineState::{Configured, Configuring, Creating, Draining, Failed, Idle};
    prop_oneof![
        3 => Just(Configured), 3 => Just(Draining), 3 => Just(Idle), 2 => Just(Configuring), 1 => Just(Creating),
        1 => Just(Failed),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    let machine = || 0_usize..2;
    let of = prop_oneof![4 => machine().prop_map(Of::One), 1 => Just(Of::Both)];
    let grace = prop_oneof![Just(1_u16), Just(5), Just(20), Just(60), Just(100)];
    let instruct = (0_u8..6, of, prop::bool::weighted(0.2), grace)
        .prop_map(|(number, machines, by_node, grace)| Event::Instruct { number, machines, by_node, grace });
    prop_oneof![
        6 => instruct,
        6 => (machine(), any_state()).prop_map(|(machine, state)| Event::Tell(machine, state)),
        1 => Just(Event::SessionLost),
        2 => Just(Event::SessionBegins),
        2 => (0_usize..3).prop_map(Event::Crash),
        2 => machine().prop_map(Event::NodeJoins),
        1 => machine().prop_map(Event::NodeGoes),
        1 => machine().prop_map(Event::NodeReplaced),
        1 => machine().prop_map(Event::AdminCordons),
        3 => (machine(), any::<bool>()).prop_map(|(machine, is_guarded)| Event::PodComes(machine, is_guarded)),
        1 => Just(Event::BudgetsOpen),
        2 => (0_u8..4).prop_map(Event::CallsFail),
        1 => Just(Event::WriteLost),
        1 => Just(Event::OthersWrite),
        2 => any::<bool>().prop_map(Event::NodesRefused),
        2 => any::<bool>().prop_map(Event::Slow),
        4 => Just(Event::Answer),
        5 => prop_oneof![Just(1_u16), Just(3), Just(12), Just(70)].prop_map(Event::Seconds),
    ]
}

#[test]
fn no_life_breaks_a_rule() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(LIVES);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let lived = Cell::new(0_u32);
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let life = prop::collection::vec(any_event(), 1..30);
    let outcome = runner.run(&life, |events| {
        lived.set(lived.get() + 1);
        let broken = broken(&events);
        prop_assert!(broken.is_none(), "{}", broken.unwrap_or_default());
        Ok(())
    });
    println!("{} lives", lived.get());
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn instruct(number: u8, machines: Of, grace: u16) -> Event {
    Event::Instruct { number, machines, by_node: false, grace }
}

/// Lives that once broke a rule, by what they show.
fn known() -> Vec<(&'static str, Vec<Event>)> {
    use Event::{
        CallsFail, Crash, NodeReplaced, NodesRefused, PodComes, Seconds, SessionBegins, SessionLost, Slow,
        Tell,
    };
    use MachineState::{Configured, Configuring, Creating, Draining, Idle};
    use Of::{Both, One};
    vec![
        ("a session that begins in the moment of a reclaim is younger", vec![instruct(0, One(0), 1)]),
        (
            "a machine in use is not drained because its UpcomingNode still says Draining",
            vec![
                CallsFail(2),
                PodComes(1, false),
                Crash(0),
                SessionBegins,
                instruct(0, One(1), 1),
                Event::WriteLost,
            ],
        ),
        (
            "a machine drains without an instruction only if none is being tried",
            vec![
                NodesRefused(true),
                instruct(0, Both, 1),
                NodesRefused(false),
                PodComes(0, true),
                Tell(0, Draining),
                instruct(1, One(0), 1),
            ],
        ),
        (
            "a record whose answer was lost is drained though its instruction was given up",
            vec![Tell(0, Idle), Event::WriteLost, instruct(0, One(0), 1), Event::AdminCordons(0)],
        ),
        (
            "a drain that is gone on with waits for the ack too",
            vec![Event::WriteLost, PodComes(0, false), instruct(0, One(0), 1), Tell(0, Draining)],
        ),
        (
            "how the drain of a Node ended that is gone is not written over a machine in use",
            vec![PodComes(1, true), instruct(0, One(1), 1), NodesRefused(true), Seconds(1), NodeReplaced(1)],
        ),
        (
            "a machine whose reclaim was given up has failed, also if its UpcomingNode was gone",
            vec![
                Slow(true),
                SessionBegins,
                Tell(1, Idle),
                instruct(0, One(1), 1),
                SessionLost,
                Tell(1, Draining),
                Seconds(1),
            ],
        ),
        (
            "a drain that was called off in vain goes on when the machine is idle after all",
            vec![
                PodComes(0, false),
                instruct(0, One(0), 1),
                NodesRefused(true),
                SessionBegins,
                Tell(0, Idle),
            ],
        ),
        (
            "a machine that is made anew may be drained again",
            vec![NodesRefused(true), instruct(0, Both, 1), Seconds(1), Tell(1, Creating), Tell(1, Draining)],
        ),
        (
            "a machine that joins again is opened",
            vec![instruct(0, One(0), 5), Tell(0, Draining), Tell(0, Configuring), Tell(0, Configured)],
        ),
    ]
}

#[test]
fn no_known_life_breaks_a_rule_again() {
    for (name, events) in known() {
        let broken = broken(&events);
        assert!(broken.is_none(), "{name}: {}", broken.unwrap_or_default());
    }
}

#[test]
fn an_instruction_for_a_node_that_cannot_be_cordoned_fails_at_the_earliest_deadline() {
    let mut world = World::default();
    world.live(&[
        Event::NodesRefused(true),
        instruct(0, Of::One(0), 300),
        Event::Seconds(3),
        instruct(1, Of::One(0), 5),
        Event::Seconds(6),
    ]);
    let log = world.log.join("\n");
    for id in ["i0", "i1"] {
        assert!(log.contains(&format!("Acked {{ instruction: \"{id}\", nodes_started: 0 }}")), "{log}");
    }
    world.live(&[Event::NodesRefused(false), Event::Seconds(2)]);
    assert!(!world.log.join("\n").contains("Cordon {"), "its time is over");
}
