//! The controller is killed at random moments. What it leaves behind is what it would have left undisturbed.

use crate::harness::{Controller, World};
use crate::settled::{Dice, settle};
use crate::wall_clock::Clock;
use crate::{end, plane, worlds};
use fivespot_core::schedule::{Cron, Rule, Schedule};
use fivespot_testenv::is_proof;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Minutes in which a machine is lent; machines take them in turn.
const CRONS: [&str; 6] =
    ["*/2 * * * *", "1-59/2 * * * *", "*/3 * * * *", "1-59/3 * * * *", "2-59/3 * * * *", "* * * * *"];

/// How much there is of everything.
struct Size {
    machines: usize,
    kills: u32,
    during: Duration,
}

fn size() -> Size {
    if is_proof() {
        Size { machines: 100, kills: 50, during: Duration::from_mins(5) }
    } else {
        Size { machines: 20, kills: 5, during: Duration::from_secs(40) }
    }
}

fn name(number: usize) -> String {
    format!("m{number:02}")
}

fn schedule(number: usize) -> Schedule {
    Schedule::new(Rule::Cron(Cron::parse(CRONS[number % CRONS.len()]).unwrap()), jiff::tz::TimeZone::UTC)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_is_killed_again_and_again_leaves_what_it_should() {
    let (plane, _turn) = plane().await;
    let (size, mut dice) = (size(), Dice::new());
    let since = Timestamp::now();
    let world = worlds::own(plane, "chaos").await;
    for number in 0..size.machines {
        world.create(&name(number), CRONS[number % CRONS.len()], |_| {}).await;
    }
    // Windows open and close after half of the time, and every minute from then on.
    let clock = Clock::new(plane, "chaos");
    let now = Timestamp::now();
    let minute = now - SignedDuration::from_secs(now.as_second() % 60);
    let offset = clock.set(minute + SignedDuration::from_secs(40));
    let mut moments: Vec<Duration> = (0..size.kills).map(|_| dice.within(size.during)).collect();
    moments.sort_unstable();
    let began = Instant::now();
    let mut controller = Controller::start_with(plane, "chaos", &[], &clock.env());
    for moment in &moments {
        tokio::time::sleep(moment.saturating_sub(began.elapsed())).await;
        controller.signal("-KILL");
        // The same name, as a container has that is started again in its pod: the lease is its own.
        controller = Controller::start_with(plane, "chaos", &[], &clock.env());
    }
    tokio::time::sleep(size.during.saturating_sub(began.elapsed())).await;
    let open = |now| {
        let open = |number: &usize| schedule(*number).is_active(now);
        (0..size.machines).filter(open).map(name).collect()
    };
    let settled = settle(&world, offset, open, |_| "Inactive").await;
    println!("{} machines, {} kills, settled {settled:.1?} after the last", size.machines, moments.len());
    end(&controller);
    check_history(&world, &size, since, offset);
}

/// No Machine was made twice for one window, none outside of one, and none while there was another.
fn check_history(world: &World, size: &Size, since: Timestamp, offset: SignedDuration) {
    let mut history: BTreeMap<String, Vec<(Timestamp, String)>> = BTreeMap::new();
    for entry in world.plane.management().audit().unwrap() {
        // A delete of one who died before its answer may have gone through, whatever the server wrote down.
        let is_change = entry.verb == "create" && entry.code == 201
            || entry.verb == "delete" && !matches!(entry.code, 403 | 404 | 409);
        let is_machine = entry.group == "cluster.x-k8s.io" && entry.resource == "machines";
        if is_change && is_machine && entry.at >= since && entry.namespace == world.namespace {
            history.entry(entry.name).or_default().push((entry.at + offset, entry.verb));
        }
    }
    let mut made = 0;
    for number in 0..size.machines {
        let mut changes = history.remove(&name(number)).unwrap_or_default();
        changes.sort();
        let mut windows = BTreeSet::new();
        let mut exists = false;
        for (at, verb) in &changes {
            if verb == "delete" {
                exists = false;
                continue;
            }
            made += 1;
            assert!(!exists, "{} was made while it existed: {changes:#?}", name(number));
            exists = true;
            // A write that is under way when the window closes still arrives.
            let window = [SignedDuration::ZERO, SignedDuration::from_secs(2)]
                .into_iter()
                .map(|earlier| schedule(number).at(*at - earlier))
                .find(|window| window.active);
            let window =
                window.unwrap_or_else(|| panic!("{} was made at {at}, outside its window", name(number)));
            assert!(
                windows.insert(window.until),
                "{} was made twice in one window: {changes:#?}",
                name(number)
            );
        }
    }
    assert!(history.is_empty(), "Machines that nobody asked for: {history:#?}");
    assert!(made > size.machines / 2, "only {made} Machines were ever made");
    println!("{made} Machines made, each once for its window");
}
