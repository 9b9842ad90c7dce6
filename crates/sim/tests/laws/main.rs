//! The laws of `ARCHITECTURE.md`, over the table of all cells and over random lives.

mod end;
mod lives;
mod table;

use end::{End, agrees, end_of, is_stuck};
use fivespot_core::lifecycle::{Decision, Patience, Phase, decide};
use fivespot_core::observed::{Machine, Needs};
use fivespot_core::reclaim::Stage;
use fivespot_sim::actors::{Event, User};
use fivespot_sim::cells::{GOALS, MEMORIES, WORLDS, cell};
use fivespot_sim::controller::{Controller, look_from};
use fivespot_sim::world::{MORNING, Thing, World};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

/// Every cell by its name.
fn cells() -> impl Iterator<Item = (String, World)> {
    let names = GOALS.into_iter().flat_map(|goal| WORLDS.into_iter().map(move |world| (goal, world)));
    let cells = names.flat_map(|(goal, world)| MEMORIES.into_iter().map(move |memory| (goal, world, memory)));
    cells.map(|(goal, world, memory)| {
        (format!("{} | {} | {}", goal.0, world.0, memory.0), cell(goal, world, memory))
    })
}

/// Settles a world, and tells where it ended and how many writes it took.
fn settled(mut world: World, dies_after: Option<usize>) -> Result<(End, usize), String> {
    let mut controller = Controller { dies_after, ..Controller::default() };
    controller.settle(&mut world)?;
    match controller.broken.first() {
        Some(broken) => Err(broken.clone()),
        None => Ok((end_of(&world), controller.writes)),
    }
}

/// Fails with every problem at once.
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn law_1_every_cell_has_one_decision_and_all_are_in_the_table() {
    expect_test::expect_file!["../table.txt"].assert_eq(&table::table());
}

#[test]
fn law_2_a_quiet_world_comes_to_rest_and_in_the_end_matches_the_goal() {
    let mut problems = Vec::new();
    for (name, mut world) in cells() {
        let mut controller = Controller::default();
        if let Err(problem) = controller.settle(&mut world) {
            problems.push(format!("{name}: {problem}"));
            continue;
        }
        problems.extend(controller.broken.iter().map(|broken| format!("{name}: {broken}")));
        problems.extend(agrees(&world).err().map(|why| format!("{name}: in the end {why}")));
    }
    none(&problems);
}

#[test]
fn law_3_a_crash_before_any_write_does_not_change_the_end() {
    let mut problems = Vec::new();
    let mut runs = 0;
    // All of them take minutes.
    let every = if std::env::var_os("FIVESPOT_PROOF").is_some() { 1 } else { 5 };
    for (name, world) in cells().step_by(every) {
        let Ok((end, writes)) = settled(world.clone(), None) else { continue };
        for dies_after in 0..writes {
            runs += 1;
            match settled(world.clone(), Some(dies_after)) {
                Ok((other, _)) if other == end => {}
                Ok((other, _)) => {
                    problems
                        .push(format!("{name}: dead after {dies_after} writes: {other:?} and not {end:?}"));
                }
                Err(problem) => problems.push(format!("{name}: dead after {dies_after} writes: {problem}")),
            }
        }
    }
    println!("{runs} crashes");
    none(&problems);
}

#[test]
fn law_4_a_decision_holds_until_its_wake_and_not_longer() {
    let mut problems = Vec::new();
    let mut looks = 0;
    for (name, mut world) in cells() {
        let outcome = Controller::default().settle_and(&mut world, |world, decision| {
            looks += 1;
            exact_wake(world, decision)
        });
        problems.extend(outcome.err().map(|problem| format!("{name}: {problem}")));
    }
    println!("{looks} looks");
    none(&problems);
}

/// Whatever webhooks are down, a machine that must leave is deleted, and an owner who asked for it has the hold.
#[test]
fn no_webhook_keeps_a_machine_from_leaving() {
    let downs: [fn(&mut World); 3] = [
        |it| it.provider_down = true,
        |it| it.capi_down = true,
        |it| (it.provider_down, it.capi_down) = (true, true),
    ];
    let mut problems = Vec::new();
    for (name, world) in cells().filter(|(name, _)| name.contains("node with")) {
        for (n, down) in downs.iter().enumerate() {
            let mut world = world.clone();
            down(&mut world);
            // What is paused, orphaned or cannot be read may stay, and so may what is lent.
            let settled = Controller::default().settle(&mut world);
            let mends = world.is_paused() || name.contains("orphaning") || name.contains("invalid");
            let held = world.memory.reclaim.as_ref().is_some_and(|it| it.stage() != Stage::Over);
            let orders = &world.orders;
            let told = orders.deletion.is_some() || orders.kill_switch || !orders.enabled || held;
            let leaves = !mends && (told || world.in_window() == Some(false));
            let lives = |it: &Thing<Machine>| it.view.object.deleting_since.is_none();
            if leaves && world.machine.as_ref().is_some_and(lives) {
                problems.push(format!("{name}, down {n}: the Machine is not deleted"));
            }
            let under_way = world.memory.reclaim.as_ref().is_some_and(|it| it.stage() == Stage::UnderWay);
            if !mends && under_way && world.orders.deletion.is_none() {
                problems.push(format!("{name}, down {n}: the owner has no hold"));
            }
            problems.extend(settled.err().map(|problem| format!("{name}, down {n}: {problem}")));
        }
    }
    none(&problems);
}

/// Tells what a life broke, or where it ended.
fn lived(life: &lives::Life) -> Result<World, String> {
    let mut world = World::new(MORNING);
    for (_, make) in WORLDS.into_iter().filter(|(name, _)| *name == life.start) {
        make(&mut world);
    }
    world.patience = life.patience;
    world.orders.budget = life.budget;
    let mut controller = Controller::default();
    for event in &life.events {
        let before = (*event == Event::Pass).then(|| world.clone());
        let decision = controller.live(&mut world, *event);
        if let Some(decision) = decision.filter(|_| before.as_ref() == Some(&world)) {
            exact_wake(&world, &decision)?;
        }
    }
    // In the end nothing is broken any more, but for what only a person can mend.
    for event in lives::MENDED {
        controller.live(&mut world, event);
    }
    controller.settle_and(&mut world, exact_wake)?;
    if let Some(broken) = controller.broken.first() {
        return Err(broken.clone());
    }
    agrees(&world)?;
    // Nothing that happens in a life needs a person but a spec that cannot be read, and a host that was not cleaned.
    let is_error = world.exists && world.memory.phase == Some(Phase::Error);
    if is_error && world.in_window().is_some() && !world.has_returned() {
        return Err(format!("an error that nobody caused: {:?}", end_of(&world)));
    }
    Ok(world)
}

/// Lives that once broke a law.
#[test]
fn lives_that_went_wrong_once_go_well() {
    let problem = |(name, life): (&str, lives::Life)| {
        let broken = lived(&life).err()?;
        Some(format!("{name}: {broken}"))
    };
    none(&lives::known().into_iter().filter_map(problem).collect::<Vec<_>>());
}

proptest! {
    // A life that fails is printed whole, and goes to `lives::known` once it is understood.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_life_breaks_a_rule_and_each_ends_as_it_should(life in lives::life()) {
        lived(&life).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn a_life_in_which_the_cache_is_behind_ends_as_it_should(life in lives::life()) {
        lived(&lives::stale(&life)).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn law_3_a_life_with_crashes_ends_as_the_same_life_without(life in lives::life()) {
        let whole = lives::Life { events: life.events.iter().map(|it| lives::whole(*it)).collect(), ..life };
        let world = lived(&life).map_err(TestCaseError::fail)?;
        let other = lived(&whole).map_err(TestCaseError::fail)?;
        // What runs while a spec cannot be read or a Cluster is missing or going, what is given up and what is let go
        // of: all this depends on what ran before.
        let stands = world.in_window().is_some() && world.cluster.is_some_and(|it| !it.deleting);
        let orphaned = whole.events.contains(&Event::User(User::DeleteOrphaning));
        // And whether a hold was there already when somebody released it.
        let reclaimed = [&world, &other].iter().any(|world| world.memory.reclaim.is_some());
        let is_stuck = is_stuck(&world) || is_stuck(&other);
        let clear = stands && !orphaned && !reclaimed && !is_stuck && life.patience == Patience::Endless;
        if clear {
            prop_assert_eq!(end_of(&world).essence(), end_of(&other).essence());
        }
    }
}

/// With nothing changed, the decision is the same on [now, wake) and another one at wake.
fn exact_wake(world: &World, decision: &Decision) -> Result<(), String> {
    if decision.wake.poll.is_some() {
        return Ok(());
    }
    // As closely as the controller looked when it decided.
    let looks = [Needs::default(), Needs::OBJECTS].map(|needs| look_from(world, needs));
    let Some((observed, _)) = looks.into_iter().find(|(_, it)| it == decision) else { return Ok(()) };
    let again = |now: Timestamp| decide(now, &world.orders, world.wish.as_ref().as_ref(), &observed);
    let year = SignedDuration::from_hours(24 * 365);
    let end = decision.wake.at.unwrap_or(world.now + year);
    let span = end.duration_since(world.now);
    let samples =
        [1, 2, 5, 10, 100, 1000].map(|part| world.now + span / part - SignedDuration::from_nanos(1));
    let steps = [1, 31, 121, 601].map(|seconds| world.now + SignedDuration::from_secs(seconds));
    for at in samples.into_iter().chain(steps).filter(|at| *at >= world.now && *at < end) {
        if again(at) != *decision {
            return Err(format!("{}: another decision at {at}, before its wake at {end}", world.now));
        }
    }
    match decision.wake.at {
        Some(at) if again(at) == *decision => Err(format!("{}: wakes for nothing at {at}", world.now)),
        Some(_) | None => Ok(()),
    }
}
