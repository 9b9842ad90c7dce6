//! `make bench`: the schedule engine, in nanoseconds and, under callgrind, in instructions.
//!
//! Nanoseconds depend on the machine and on what else it does. Instructions do not, so `xtask bench` runs this
//! program under callgrind too: twice with different counts, so that the difference is the work alone.

use fivespot_core::schedule::{Cron, Days, Hours, Rule, Schedule};
use fivespot_core::zone;
use jiff::Timestamp;
use std::hint::black_box;
use std::time::Instant;

/// What is measured: a name and a piece of work on an instant.
struct Case {
    name: &'static str,
    work: Box<dyn Fn(Timestamp)>,
}

/// The first instant, and the step between instants: some three hours and an odd bit, so that every hour of every
/// day comes up.
const FIRST: i64 = 1_767_225_600;
const STEP: i64 = 11_117;
/// Instants wrap around after some eleven years.
const INSTANTS: i64 = 32_768;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "work", name, count] => {
            let cases = cases();
            let case = cases.iter().find(|case| case.name == name);
            run(case.unwrap_or_else(usage), count.parse().unwrap_or_else(|_| usage()));
        }
        [_, "names"] => cases().iter().for_each(|case| println!("{}", case.name)),
        [_, "size"] => println!("{}", size_of::<Schedule>()),
        [_, "time"] => time(),
        _ => usage(),
    }
}

fn usage<T>() -> T {
    eprintln!("usage: fivespot-bench names | size | time | work NAME COUNT");
    std::process::exit(2)
}

fn cases() -> Vec<Case> {
    let calendar = |days: &str, hours: &str| {
        let (days, hours) = (Days::parse(days), Hours::parse(hours));
        days.ok().zip(hours.ok()).map(|(days, hours)| Rule::Calendar { days, hours })
    };
    let cron = |text: &str| Cron::parse(text).ok().map(Rule::Cron);
    let schedule = |rule: Option<Rule>, name: &str| match (rule, zone::lookup(name)) {
        (Some(rule), Ok(zone)) => Schedule::new(rule, zone),
        _ => usage(),
    };
    let at = |name, schedule: Schedule| Case {
        name,
        work: Box::new(move |now| {
            black_box(schedule.at(now));
        }),
    };
    let next = |name, schedule: Schedule| Case {
        name,
        work: Box::new(move |now| {
            black_box(schedule.transitions(now).nth(1));
        }),
    };
    vec![
        at("at-days-hours-utc", schedule(calendar("mon-fri", "9-17"), "UTC")),
        at("at-days-hours-new-york", schedule(calendar("mon-fri", "22-6"), "America/New_York")),
        at("at-days-hours-kolkata", schedule(calendar("mon-fri", "22-6"), "Asia/Kolkata")),
        at("at-cron-new-york", schedule(cron("* 9-16 * * mon-fri"), "America/New_York")),
        next("second-transition-new-york", schedule(calendar("mon-fri", "22-6"), "America/New_York")),
        next("second-transition-cron-monthly", schedule(cron("0 3 1 * *"), "America/New_York")),
    ]
}

fn run(case: &Case, count: i64) {
    for i in 0..count {
        let second = FIRST + i % INSTANTS * STEP;
        if let Ok(now) = Timestamp::from_second(second) {
            (case.work)(black_box(now));
        }
    }
}

fn time() {
    for case in cases() {
        run(&case, 100_000);
        let count = 2_000_000;
        let began = Instant::now();
        run(&case, count);
        println!("{}\t{}", case.name, began.elapsed().as_nanos() / u128::from(count.unsigned_abs()));
    }
}
