//! Everything at once: kills, stops, ends, and counts that change, while windows open and close and owners want their
//! machines back.

use crate::harness::{CLOSED, Controller, OPEN, World};
use crate::settled::{Dice, settle};
use crate::timeline::{Deed, Timeline};
use crate::wall_clock::Clock;
use crate::{end, lease, plane, start, worlds};
use fivespot_core::schedule::{Cron, Rule, Schedule};
use fivespot_testenv::{ControlPlane, eventually, is_proof};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

const MACHINES: usize = 300;

/// When machines are lent; they take these in turn.
const CRONS: [&str; 10] = [
    CLOSED,
    OPEN,
    "* */2 * * *",
    CLOSED,
    "* 1-23/2 * * *",
    CLOSED,
    "* */3 * * *",
    CLOSED,
    "* 1-23/3 * * *",
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
    env: [(String, String); 2],
    count: u32,
    started: u32,
    running: Vec<(u32, Controller)>,
}

impl Fleet {
    fn start(&mut self, own: u32) {
        self.started += 1;
        let name = format!("i{own}-{}", self.started);
        let env = self.env.each_ref().map(|(name, value)| (name.as_str(), value.as_str()));
        let controller = start(self.plane, &name, own, self.count, lease(), &env);
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

    /// Waits until each instance holds the slot that it prefers, and what was left undone is begun: nobody can help a
    /// machine whose owner is killed as soon as it has taken over from one that was killed.
    async fn rest(&self, is_begun: impl AsyncFn() -> bool) {
        let is_at_home = |(own, controller): &(u32, Controller)| {
            let text = controller.http("/metrics").1;
            let held = text.lines().filter(|line| line.starts_with("fivespot_slot_held"));
            let held: Vec<&str> = held.filter(|line| line.ends_with(" 1")).collect();
            held == [format!("fivespot_slot_held{{slot=\"{own}\"}} 1")]
        };
        eventually("each holds its own slot", async || self.running.iter().all(is_at_home)).await;
        let began = Instant::now();
        while !is_begun().await {
            assert!(
                began.elapsed() < Duration::from_mins(1),
                "not every machine does what the last hour told it"
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn disturb(&mut self, dice: &mut Dice) {
        let all = u64::try_from(self.running.len()).unwrap();
        let victim = usize::try_from(dice.within(Duration::from_millis(all)).as_millis()).unwrap();
        match dice.within(Duration::from_millis(3)).as_millis() {
            0 => {
                let (own, controller) = self.running.remove(victim);
                println!("{} who prefers slot {own} is killed", Timestamp::now());
                controller.signal("-KILL");
                tokio::time::sleep(dice.within(Duration::from_secs(4))).await;
                self.start(own);
            }
            1 => {
                let (own, controller) = &self.running[victim];
                let time = Duration::from_secs(2) + dice.within(Duration::from_secs(18));
                println!("{} who prefers slot {own} is stopped for {time:.1?}", Timestamp::now());
                controller.signal("-STOP");
                tokio::time::sleep(time).await;
                controller.signal("-CONT");
            }
            _ => {
                let (own, controller) = self.running.remove(victim);
                println!("{} who prefers slot {own} is asked to end", Timestamp::now());
                end(&controller).await;
                self.start(own);
            }
        }
    }
}

/// The clock of all instances. Windows open and close on the hour, and the clock is set so that an hour comes when it is
/// wanted; when none is, machines come to rest.
struct Hours {
    plane: &'static ControlPlane,
    clock: Clock,
    offset: SignedDuration,
    /// Hours that came, by that clock and by ours.
    struck: Vec<(Timestamp, Timestamp)>,
}

impl Hours {
    fn new(plane: &'static ControlPlane) -> Self {
        let clock = Clock::new(plane, "many");
        let offset = clock.set(Self::hour(Timestamp::now()));
        Self { plane, clock, offset, struck: Vec::new() }
    }

    /// The beginning of an hour.
    fn hour(now: Timestamp) -> Timestamp {
        now - SignedDuration::from_secs(now.as_second().rem_euclid(3600))
            - SignedDuration::from_nanos(now.subsec_nanosecond().into())
    }

    /// The next hour strikes in half a minute, if the last did half a minute ago.
    fn strike(&mut self) {
        let half = SignedDuration::from_secs(30);
        if self.struck.last().is_some_and(|(_, at)| Timestamp::now() < *at + half) {
            return;
        }
        let next = Self::hour(Timestamp::now() + self.offset) + SignedDuration::from_hours(1);
        self.offset = self.clock.set(next - half);
        self.struck.push((next, next - self.offset));
    }

    /// Whether something was done about every machine that the last hour concerns, and that nobody has taken back.
    fn are_begun(&self, world: &World, since: Timestamp, reclaimed: &BTreeSet<String>) -> bool {
        let Some((hour, at)) = self.struck.last().filter(|(_, at)| *at <= Timestamp::now()) else {
            return true;
        };
        let timeline = Timeline::read(world, since, lease());
        concerned(*hour, reclaimed).all(|machine| first_deed(&timeline, &machine, *at).is_some())
    }

    /// Returns when the last hour has struck.
    async fn rest(&self) {
        let wait = self.struck.last().map(|(_, at)| at.duration_since(Timestamp::now()));
        tokio::time::sleep(wait.and_then(|wait| Duration::try_from(wait).ok()).unwrap_or_default()).await;
    }
}

fn open(now: Timestamp, reclaimed: &BTreeSet<String>) -> BTreeSet<String> {
    let open = (0..MACHINES).filter(|number| schedule(*number).is_active(now)).map(name);
    open.filter(|name| !reclaimed.contains(name)).collect()
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
    let mut hours = Hours::new(plane);
    let env = hours.clock.env().map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut fleet = Fleet { plane, env, count: COUNTS[0], started: 0, running: Vec::new() };
    (0..fleet.count).for_each(|own| fleet.start(own));
    let mut reclaimed = BTreeSet::new();
    let settled = settle(&world, hours.offset, |now| open(now, &reclaimed), |_| "Inactive").await;
    println!("{MACHINES} machines, settled after {settled:.1?}");
    let always: Vec<String> =
        (0..MACHINES).filter(|number| CRONS[number % CRONS.len()] == OPEN).map(name).collect();
    for machine in &always {
        world.until_armed(machine).await;
    }

    let began = Instant::now();
    let (mut counts, mut always) = (COUNTS[1..].iter(), always.into_iter());
    while began.elapsed() < during() {
        hours.strike();
        fleet.disturb(&mut dice).await;
        fleet.rest(async || hours.are_begun(&world, since, &reclaimed)).await;
        let changes = u32::try_from(COUNTS.len() - counts.len()).unwrap();
        if began.elapsed() > during() * changes / u32::try_from(COUNTS.len()).unwrap()
            && let Some(count) = counts.next()
        {
            fleet.change_count(*count).await;
            fleet.rest(async || hours.are_begun(&world, since, &reclaimed)).await;
        }
        if let Some(machine) = always.next() {
            world.ask_back(&machine).await;
            reclaimed.insert(machine);
        }
    }
    hours.rest().await;
    let others = |name: &str| if reclaimed.contains(name) { "Disabled" } else { "Inactive" };
    let settled = settle(&world, hours.offset, |now| open(now, &reclaimed), others).await;
    let (processes, reclaims) = (fleet.started, reclaimed.len());
    println!("{processes} processes, {reclaims} reclaims, settled {settled:.1?} after the last fault");
    for (_, controller) in &fleet.running {
        end(controller).await;
    }

    let timeline = Timeline::read(&world, since, lease());
    print!("{}", timeline.show());
    println!("{} writes, each by the holder of its slot", timeline.check());
    let Lateness { latest, usual } = lateness(&timeline, &hours, &reclaimed);
    // An owner that is gone costs a lease, and the next one a moment.
    let bound = Duration::from_secs(lease()[0] + 5);
    println!(
        "transitions began {usual:.1?} after their boundary, the latest {latest:.1?}; {bound:.1?} are allowed"
    );
    assert!(latest < bound);
}

/// What all instances said of a machine.
fn told_of(plane: &ControlPlane, machine: &str) -> Vec<String> {
    let folder = plane.management().kubeconfig_path().parent().unwrap();
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = name.strip_prefix("controller-") else { continue };
        let log = fs::read_to_string(entry.path().join("log")).unwrap_or_default();
        let about = log.lines().filter(|line| line.contains(&format!("/{machine} ")));
        lines.extend(about.map(|line| format!("{line} [{name}]")));
    }
    lines.sort();
    lines
}

/// Machines whose window opens or closes at an hour, but for those that were taken back.
fn concerned(hour: Timestamp, reclaimed: &BTreeSet<String>) -> impl Iterator<Item = String> {
    let before = hour - SignedDuration::from_secs(1);
    let flips =
        move |number: &usize| schedule(*number).is_active(before) != schedule(*number).is_active(hour);
    (0..MACHINES).filter(flips).map(name).filter(|name| !reclaimed.contains(name))
}

/// The first thing that was done about a machine after a boundary. Its clock and ours differ by less than a second.
fn first_deed<'a>(timeline: &'a Timeline, machine: &str, at: Timestamp) -> Option<&'a Deed> {
    let since = at - SignedDuration::from_secs(1);
    timeline.deeds.iter().find(|deed| deed.machine == machine && deed.moves && deed.done && deed.at >= since)
}

/// How long after a boundary the first write for a machine came.
struct Lateness {
    latest: Duration,
    /// Of half of the transitions.
    usual: Duration,
}

/// How long after a boundary the first thing was done about a machine that it concerns, at the longest: something was
/// made, the Node cordoned or opened, or the Machine told. What is only written down does not count.
fn lateness(timeline: &Timeline, hours: &Hours, reclaimed: &BTreeSet<String>) -> Lateness {
    let (mut latest, mut all) = ((SignedDuration::ZERO, String::new(), Timestamp::MIN), Vec::new());
    for (hour, at) in &hours.struck {
        for machine in concerned(*hour, reclaimed) {
            let Some(deed) = first_deed(timeline, &machine, *at) else {
                panic!("nothing was done about {machine} after {at}");
            };
            latest = latest.max((deed.at.duration_since(*at), machine.clone(), *at));
            all.push(deed.at.duration_since(*at));
        }
    }
    let (late, machine, at) = latest;
    let counted = all.len();
    println!("{counted} transitions at {} boundaries; the latest was that of {machine}:", hours.struck.len());
    let around = SignedDuration::from_secs(30);
    let deeds = timeline.deeds.iter().filter(|deed| deed.machine == machine && deed.at >= at - around);
    for deed in deeds.take_while(|deed| deed.at <= at + late + around) {
        println!("{:>6.1} s {deed:?}", deed.at.duration_since(at).as_secs_f64());
    }
    for line in told_of(hours.plane, &machine) {
        println!("{line}");
    }
    all.sort_unstable();
    let usual = *all.get(counted / 2).unwrap();
    let duration = |it: SignedDuration| Duration::try_from(it).unwrap_or_default();
    Lateness { latest: duration(late), usual: duration(usual) }
}
