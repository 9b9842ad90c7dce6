//! What is read can be printed and read again, and the engine finds its way through it.
#![no_main]

use fivespot_core::schedule::{Cron, Rule, Schedule};
use fivespot_core::zone;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(cron) = Cron::parse(text) else { return };
    assert_eq!(Cron::parse(&cron.to_string()), Ok(cron));
    let schedule = Schedule::new(Rule::Cron(cron), zone::lookup("America/New_York").unwrap());
    let now = "2026-11-15T12:00:00Z".parse().unwrap();
    for change in schedule.transitions(now).take(3) {
        assert_eq!(schedule.at(change.at).active, change.active);
    }
});
