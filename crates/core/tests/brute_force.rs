//! The engine against a person with a calendar: every minute is looked up on its own, by code that shares
//! nothing with the engine but the zone database.
//!
//! Every zone of the bundled database, every change of its clocks from 2000 to 2037, and random instants. A case
//! is one schedule at one instant in one zone: its state then, and each of the minutes of the 26 hours after it.
//! `make proof` runs all of them, `make test` a seeded tenth.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]
#![expect(clippy::disallowed_macros, reason = "a proof says how many cases it ran")]
#![expect(
    clippy::disallowed_methods,
    reason = "how long to test is asked of the environment; core itself is not"
)]

use fivespot_core::schedule::{Cron, Days, Hours, Rule, Schedule};
use jiff::civil::{DateTime, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};

/// A schedule, and the same said in plain code.
struct Sample {
    name: &'static str,
    rule: Rule,
    is_active: fn(DateTime) -> bool,
}

fn weekday(at: DateTime) -> bool {
    !matches!(at.weekday(), Weekday::Saturday | Weekday::Sunday)
}

fn samples() -> Vec<Sample> {
    let lists = |days: &str, hours: &str| Rule::Calendar {
        days: if days.is_empty() { Days::ALL } else { Days::parse(days).unwrap() },
        hours: if hours.is_empty() { Hours::ALL } else { Hours::parse(hours).unwrap() },
    };
    let cron = |text: &str| Rule::Cron(Cron::parse(text).unwrap());
    let sample = |name, rule, is_active| Sample { name, rule, is_active };
    vec![
        sample("mon-fri 9-17", lists("mon-fri", "9-17"), |at| weekday(at) && (9..18).contains(&at.hour())),
        sample("mon-fri 22-6", lists("mon-fri", "22-6"), |at| {
            weekday(at) && (at.hour() >= 22 || at.hour() < 7)
        }),
        sample("sat-sun", lists("sat-sun", ""), |at| !weekday(at)),
        sample("every day 2", lists("", "2"), |at| at.hour() == 2),
        sample("fri-mon 0-5,12", lists("fri-mon", "0-5,12"), |at| {
            let midweek = matches!(at.weekday(), Weekday::Tuesday | Weekday::Wednesday | Weekday::Thursday);
            !midweek && (at.hour() < 6 || at.hour() == 12)
        }),
        sample("30 2 * * *", cron("30 2 * * *"), |at| at.hour() == 2 && at.minute() == 30),
        sample("*/15 1-3 * * sun", cron("*/15 1-3 * * sun"), |at| {
            at.weekday() == Weekday::Sunday && (1..4).contains(&at.hour()) && at.minute() % 15 == 0
        }),
        sample("15-44 * 1,15,29-31 3-11 fri", cron("15-44 * 1,15,29-31 3-11 fri"), |at| {
            let date = matches!(at.day(), 1 | 15 | 29..=31) || at.weekday() == Weekday::Friday;
            date && (3..12).contains(&at.month()) && (15..45).contains(&at.minute())
        }),
    ]
}

fn zones() -> Vec<TimeZone> {
    let database = TimeZoneDatabase::bundled();
    let names: Vec<String> = database.available().map(|name| name.as_str().to_owned()).collect();
    assert!(names.len() > 500, "{} zones", names.len());
    names.iter().map(|name| database.get(name).unwrap()).collect()
}

/// A small generator with a seed, so that a failure can be run again (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

/// The 26 hours after an instant: longer than a day by more than any change of clocks.
const SCANNED_MINUTES: i64 = 26 * 60;

/// Compares the engine with the scan, and `at` with the iterator (law 4).
fn check(sample: &Sample, zone: &TimeZone, from: Timestamp, local: &[DateTime]) {
    let schedule = Schedule::new(sample.rule, zone.clone());
    let mut window = schedule.at(from);
    let until = window.until.unwrap();
    let plainly = |at: Timestamp| (sample.is_active)(zone.to_datetime(at));
    let place = || format!("{} in {:?} from {from} until {until}", sample.name, zone.iana_name());
    // Also where the end lies beyond the scan: it is a change, and nothing changes right before it.
    assert!(plainly(until) != window.active && plainly(until - 1.second()) == window.active, "{}", place());
    assert_eq!(
        (schedule.is_active(from), schedule.is_active(until)),
        (window.active, !window.active),
        "{}",
        place()
    );
    let mut transitions = schedule.transitions(from);
    for (minute, local) in local.iter().enumerate() {
        let now = from + i64::try_from(minute).unwrap().minutes();
        if window.until == Some(now) {
            let told = transitions.next();
            window = schedule.at(now);
            assert_eq!(told.map(|t| (t.at, t.active)), Some((now, window.active)), "{}", sample.name);
        }
        assert!(
            window.active == (sample.is_active)(*local) && window.until.is_none_or(|until| until > now),
            "{} in {:?} at {now} ({local} there): the engine says {window:?}",
            sample.name,
            zone.iana_name(),
        );
    }
}

/// Ends that lie weeks away, found by a scan of every minute until then.
#[test]
fn far_ends_are_the_first_changes() {
    let mut random = Random(0x5_5908);
    let samples = samples();
    let zones = zones();
    for _ in 0..400 {
        let zone = &zones[usize::try_from(random.below(u64::try_from(zones.len()).unwrap())).unwrap()];
        let sample = &samples[usize::try_from(random.below(8)).unwrap()];
        let from = Timestamp::from_second(
            946_684_800 + i64::try_from(random.below(1_199_000_000) / 60 * 60).unwrap(),
        );
        let from = from.unwrap();
        let active = (sample.is_active)(zone.to_datetime(from));
        let minutes = (1_i64..200_000).map(|minute| from + minute.minutes());
        let first = minutes.into_iter().find(|at| (sample.is_active)(zone.to_datetime(*at)) != active);
        let schedule = Schedule::new(sample.rule, zone.clone());
        assert_eq!(schedule.at(from).until, first, "{} in {:?} from {from}", sample.name, zone.iana_name());
    }
}

#[test]
fn the_engine_agrees_with_a_scan_of_every_minute() {
    let full = std::env::var_os("FIVESPOT_PROOF").is_some();
    let every = if full { 1 } else { 10 };
    let samples = samples();
    let first: Timestamp = "2000-01-01T00:00:00Z".parse().unwrap();
    let last: Timestamp = "2037-12-31T23:59:00Z".parse().unwrap();
    let minutes = u64::try_from((last.as_second() - first.as_second()) / 60).unwrap();
    let mut random = Random(0x5_5907);
    let mut cases = 0_usize;
    let mut changes = 0_usize;
    for zone in zones() {
        let around_changes = zone
            .following(first)
            .map(|change| change.timestamp())
            .take_while(|at| *at < last)
            .map(|at| at - 13.hours())
            .collect::<Vec<_>>();
        changes += around_changes.len();
        let somewhere: Vec<Timestamp> =
            (0..200).map(|_| first + i64::try_from(random.below(minutes)).unwrap().minutes()).collect();
        for from in around_changes.into_iter().chain(somewhere) {
            if random.below(every) != 0 {
                continue;
            }
            let local: Vec<DateTime> =
                (0..SCANNED_MINUTES).map(|minute| zone.to_datetime(from + minute.minutes())).collect();
            for sample in &samples {
                check(sample, &zone, from, &local);
                cases += 1;
            }
        }
    }
    println!("{cases} cases around {changes} changes of clocks and at random: 0 mismatches");
    assert!(cases >= if full { 1_000_000 } else { 100_000 }, "only {cases} cases");
}
