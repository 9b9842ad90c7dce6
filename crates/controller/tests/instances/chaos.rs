//! Everything at once: kills, stops, ends, and counts that change, while windows open and close and owners want their
//! machines back.

use crate::harness::{CLOSED, Controller, OPEN};
use crate::settled::{Dice, settle};
use crate::timeline::Timeline;
use crate::wall_clock::Clock;
use crate::{end, lease, plane, start, worlds};
use fivespot_core::schedule::{Cron, Rule, Schedule};
use fivespot_testenv::{ControlPlane, is_proof};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const MACHINES: usize = 300;

/// When machines are lent; they take these in turn.
const CRONS: [&str; 10] = [
    CLOSED,
    OPEN,
    "*/2 * * * *",
    CLOSED,
    "1-59/2 * * * *",
    CLOSED,
    "*/3 * * * *",
    CLOSED,
    "1-59/3 * * * *",
    CLOSED,
];

/// How often the count changes, and to what.
const COUNTS: [u32; 3] = [3, 2, 4];

fn during() -> Duration {
    if is_proof() { Duration::from_mins(10) } else { Duration::from_mins(1) }
}

fn name(number: usize) -> String {
    format!("m{number:03}")
}

fn schedule(number: usize) -> Schedule {
    Schedule::new(Rule::Cron(Cron::parse(CRONS[number % CRONS.len()]).unwrap()), jiff::tz::TimeZone::UTC)
}

/// The instances that run, by the slot they prefer.
struct Fleet {
    plane: &'static ControlPlane,
    clock: Clock,
    count: u32,
    started: u32,
    running: Vec<(u32, Controller)>,
}

impl Fleet {
    fn start(&mut self, own: u32) {
        self.started += 1;
        let name = format!("i{own}-{}", self.started);
        let controller = start(self.plane, &name, own, self.count, lease(), &self.clock.env());
        self.running.push((own, controller));
    }

    /// One after another, as a StatefulSet does it; one that is stopped is killed in the end.
    async fn change_count(&mut self, count: u32) {
        println!("from {} slots to {count}", self.count);
        self.count = count;
        for (own, controller) in std::mem::take(&mut self.running) {
            controller.signal("-CONT");
            end(&controller).await;
            if own < count {
                self.start(own);
            }
        }
        for own in 0..count {
            if !self.running.iter().any(|(it, _)| *it == own) {
                self.start(own);
            }
        }
    }

    async fn disturb(&mut self, dice: &mut Dice) {
        let all = u64::try_from(self.running.len()).unwrap();
        let victim = usize::try_from(dice.within(Duration::from_millis(all)).as_millis()).unwrap();
        match dice.within(Duration::from_millis(3)).as_millis() {
            0 => {
                let (own, controller) = self.running.remove(victim);
                controller.signal("-KILL");
                tokio::time::sleep(dice.within(Duration::from_secs(4))).await;
                self.start(own);
            }
            1 => {
                let (_, controller) = &self.running[victim];
                controller.signal("-STOP");
                tokio::time::sleep(Duration::from_secs(2) + dice.within(Duration::from_secs(18))).await;
                controller.signal("-CONT");
            }
            _ => {
                let (own, controller) = self.running.remove(victim);
                end(&controller).await;
                self.start(own);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_machine_has_two_owners_or_none_for_long() {
    let (plane, _turn) = plane().await;
    let (since, mut dice) = (Timestamp::now(), Dice::new());
    let world = worlds::own(plane, "many").await;
    for number in 0..MACHINES {
        let cron = CRONS[number % CRONS.len()];
        let commands = if cron == OPEN { json!(["idea"]) } else { json!([]) };
        world.create(&name(number), cron, |spec| spec["killIfCommands"] = commands).await;
    }
    let clock = Clock::new(plane, "many");
    let now = Timestamp::now();
    let minute = now - SignedDuration::from_secs(now.as_second() % 60);
    let mut fleet = Fleet { plane, clock, count: COUNTS[0], started: 0, running: Vec::new() };
    let offset = fleet.clock.set(minute);
    (0..fleet.count).for_each(|own| fleet.start(own));
    let open = |now: Timestamp, reclaimed: &BTreeSet<String>| -> BTreeSet<String> {
        let open = (0..MACHINES).filter(|number| schedule(*number).is_active(now)).map(name);
        open.filter(|name| !reclaimed.contains(name)).collect()
    };
    let none = BTreeSet::new();
    let settled = settle(&world, offset, |now| open(now, &none), |_| "Inactive").await;
    println!("{MACHINES} machines, settled after {settled:.1?}");

    // A boundary comes half a minute later, and every minute from then on.
    let now = Timestamp::now() + offset;
    let half = SignedDuration::from_secs(30 - now.as_second() % 60);
    let offset = fleet.clock.set(now + half);
    let began = (Instant::now(), Timestamp::now());
    let mut counts = COUNTS[1..].iter();
    let always: Vec<String> =
        (0..MACHINES).filter(|number| CRONS[number % CRONS.len()] == OPEN).map(name).collect();
    for machine in &always {
        world.until_armed(machine).await;
    }
    let mut always = always.into_iter();
    let mut reclaimed = BTreeSet::new();
    while began.0.elapsed() < during() {
        fleet.disturb(&mut dice).await;
        let changes = COUNTS.len() - 1 - counts.len() + 1;
        let due = during() * u32::try_from(changes).unwrap() / u32::try_from(COUNTS.len()).unwrap();
        if began.0.elapsed() > due
            && let Some(count) = counts.next()
        {
            fleet.change_count(*count).await;
        }
        if let Some(machine) = always.next() {
            world.ask_back(&machine).await;
            reclaimed.insert(machine);
        }
    }
    let (faults, ended) = (fleet.started, Timestamp::now());
    let others = |name: &str| if reclaimed.contains(name) { "Disabled" } else { "Inactive" };
    let settled = settle(&world, offset, |now| open(now, &reclaimed), others).await;
    println!("{faults} processes, {} reclaims, settled {settled:.1?} after the last fault", reclaimed.len());
    for (_, controller) in &fleet.running {
        end(controller).await;
    }

    let timeline = Timeline::read(&world, since, lease());
    print!("{}", timeline.show());
    println!("{} writes, each by the holder of its slot", timeline.check());
    let latest = lateness(&timeline, offset, (began.1, ended), &reclaimed);
    let bound = Duration::from_secs(lease()[0] + 5);
    println!("the latest transition began {latest:.1?} after its boundary, {bound:?} are allowed");
    assert!(latest < bound);
}

/// How long after a boundary the first write to a machine came that it concerns, at the longest.
fn lateness(
    timeline: &Timeline,
    offset: SignedDuration,
    (from, to): (Timestamp, Timestamp),
    reclaimed: &BTreeSet<String>,
) -> Duration {
    let (mut latest, mut counted) = (SignedDuration::ZERO, 0);
    let first = from + offset;
    let mut boundary =
        first - SignedDuration::from_secs(first.as_second() % 60) + SignedDuration::from_mins(1);
    while boundary - offset < to {
        let at = boundary - offset;
        // Whole seconds: the machine's clock and ours differ by less.
        let before = boundary - SignedDuration::from_secs(1);
        let flips =
            |number: &usize| schedule(*number).is_active(before) != schedule(*number).is_active(boundary);
        for machine in (0..MACHINES).filter(flips).map(name).filter(|name| !reclaimed.contains(name)) {
            let written = |deed: &&crate::timeline::Deed| {
                deed.machine == machine
                    && deed.is_own
                    && deed.done
                    && deed.at >= at - SignedDuration::from_secs(1)
            };
            let Some(deed) = timeline.deeds.iter().find(written) else {
                panic!("{machine} was not written to after {at}");
            };
            latest = latest.max(deed.at.duration_since(at));
            counted += 1;
        }
        boundary += SignedDuration::from_mins(1);
    }
    println!("{counted} transitions");
    assert!(counted > 0);
    Duration::try_from(latest).unwrap_or_default()
}
