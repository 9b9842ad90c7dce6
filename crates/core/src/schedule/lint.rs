//! Schedules that are valid and probably not meant.

use super::{Days, Hours, Rule, Schedule, day_name};
use jiff::civil::{DateTime, Weekday};
use jiff::{Timestamp, ToSpan};
use std::fmt;

/// Something a reader of the schedule should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// No instant is inside.
    Never,
    /// Every instant is inside.
    Always,
    /// The hours run past midnight, the days do not.
    NightIsCut {
        /// The last day of a run of days.
        day: Weekday,
        /// The last of the hours after midnight that one might expect to follow it.
        until_hour: u32,
    },
    /// The clocks skip local time that is inside.
    Skipped {
        /// The first local time that does not exist.
        at: DateTime,
        /// The first that does again.
        to: DateTime,
    },
    /// The clocks repeat local time that is inside.
    Repeated {
        /// The first local time that comes twice.
        at: DateTime,
        /// The first that comes once again.
        to: DateTime,
    },
    /// An item adds nothing to the others.
    Redundant {
        /// `daysOfWeek` or `hoursOfDay`.
        field: &'static str,
        /// Its place in the list.
        index: usize,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => {
                write!(
                    f,
                    "the schedule is never active: no instant fits; set enabled to false if that is meant"
                )
            }
            Self::Always => write!(
                f,
                "the schedule is always active: the machine never leaves; a plain Machine does that, if it is meant"
            ),
            Self::NightIsCut { day, until_hour } => {
                let (day, next) = (day_name(*day), day_name(day.next()));
                let sample = until_hour.min(&2);
                write!(
                    f,
                    "the night after {day} ends at midnight: {next} 00:00 to {until_hour:02}:59 is outside, so at {next} \
                     {sample:02}:00 the machine is not lent; with {next} added it is, and so is the evening of {next}"
                )
            }
            Self::Skipped { at, to } => {
                let (at, to) = span(*at, *to);
                write!(f, "the clocks skip {at} to {to}: what of the window lies there does not happen")
            }
            Self::Repeated { at, to } => {
                let (at, to) = span(*at, *to);
                write!(f, "the clocks repeat {at} to {to}: what of the window lies there happens twice")
            }
            Self::Redundant { field, index } => {
                write!(f, "{field}[{index}] adds nothing to the other items: remove it")
            }
        }
    }
}

/// Two local times, the date of the second only if it is another one.
fn span(from: DateTime, to: DateTime) -> (String, String) {
    let second = if from.date() == to.date() { "%H:%M" } else { "%Y-%m-%d %H:%M" };
    (from.strftime("%Y-%m-%d %H:%M").to_string(), to.strftime(second).to_string())
}

/// What to look at in a schedule, as seen from `now`: changes of clocks are those of the year that follows.
pub fn lint(schedule: &Schedule, now: Timestamp) -> Vec<Finding> {
    match schedule.at(now) {
        super::Window { active: true, until: None } => return vec![Finding::Always],
        super::Window { active: false, until: None } => return vec![Finding::Never],
        super::Window { .. } => {}
    }
    let mut findings = match schedule.rule() {
        Rule::Calendar { days, hours } => cut_nights(*days, *hours),
        Rule::Cron(cron) => cron.weekly().map_or_else(Vec::new, |(days, hours)| cut_nights(days, hours)),
    };
    findings.extend(changes_of_clocks(schedule, now));
    findings
}

/// Items that add nothing to the others of their list.
pub fn redundant(days: &[Days], hours: &[Hours]) -> Vec<Finding> {
    let bits = |days: &Days| u64::from(days.0);
    let hour_bits = |hours: &Hours| u64::from(hours.0);
    let of = |field, sets: Vec<u64>| {
        let mut kept = sets.clone();
        let mut found = Vec::new();
        // From the end, so that of two equal items the later one is named.
        for index in (0..sets.len()).rev() {
            let others =
                kept.iter().enumerate().filter(|(i, _)| *i != index).fold(0, |all, (_, set)| all | set);
            if sets[index] & !others == 0 {
                kept[index] = 0;
                found.push(Finding::Redundant { field, index });
            }
        }
        found.reverse();
        found
    };
    let mut found = of("daysOfWeek", days.iter().map(bits).collect());
    found.extend(of("hoursOfDay", hours.iter().map(hour_bits).collect()));
    found
}

/// The last day of every run of days, if the hours run past midnight.
fn cut_nights(days: Days, hours: Hours) -> Vec<Finding> {
    let runs_past_midnight = hours != Hours::ALL && hours.contains(23) && hours.contains(0);
    let until_hour = hours.0.trailing_ones().saturating_sub(1);
    let week = Weekday::Monday.cycle_forward().take(7);
    week.filter(|day| runs_past_midnight && days.contains(*day) && !days.contains(day.next()))
        .map(|day| Finding::NightIsCut { day, until_hour })
        .collect()
}

/// The next change of clocks forward and the next one back that fall inside.
fn changes_of_clocks(schedule: &Schedule, now: Timestamp) -> Vec<Finding> {
    let zone = schedule.zone();
    let Ok(end) = now.checked_add((366 * 24).hours()) else { return Vec::new() };
    let (mut skipped, mut repeated) = (None, None);
    for change in zone.following(now).take_while(|change| change.timestamp() < end) {
        let at = change.timestamp();
        let Ok(before) = at.checked_sub(1.second()) else { continue };
        let (old, new) = (zone.to_offset(before), change.offset());
        let (from, to) = (old.to_datetime(at), new.to_datetime(at));
        let (first, last) = (from.min(to), from.max(to));
        let minutes = |local: &DateTime| local.checked_add(1.minute()).ok();
        let inside = std::iter::successors(Some(first), minutes).take_while(|local| *local < last);
        let touched =
            inside.into_iter().any(|local| schedule.rule().parts(local).iter().all(|part| part.holds));
        if touched && from < to {
            skipped = skipped.or(Some(Finding::Skipped { at: from, to }));
        } else if touched && to < from {
            repeated = repeated.or(Some(Finding::Repeated { at: to, to: from }));
        }
    }
    skipped.into_iter().chain(repeated).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Cron;
    use super::*;
    use crate::zone;
    use expect_test::{Expect, expect};

    fn check(rule: Rule, zone: &str, now: &str, expect: &Expect) {
        let schedule = Schedule::new(rule, zone::lookup(zone).unwrap());
        let found = lint(&schedule, now.parse().unwrap());
        expect.assert_eq(&found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    }

    fn lists(days: &str, hours: &str) -> Rule {
        Rule::Calendar { days: Days::parse(days).unwrap(), hours: Hours::parse(hours).unwrap() }
    }

    fn cron(text: &str) -> Rule {
        Rule::Cron(Cron::parse(text).unwrap())
    }

    #[test]
    fn every_night_that_is_cut_is_named() {
        let now = "2026-11-15T00:00:00Z";
        check(
            lists("mon,wed-thu", "22-6"),
            "UTC",
            now,
            &expect![[r#"
            the night after mon ends at midnight: tue 00:00 to 06:59 is outside, so at tue 02:00 the machine is not lent; with tue added it is, and so is the evening of tue
            the night after thu ends at midnight: fri 00:00 to 06:59 is outside, so at fri 02:00 the machine is not lent; with fri added it is, and so is the evening of fri"#]],
        );
        check(
            cron("* 22-23,0-6 * * mon-fri"),
            "UTC",
            now,
            &expect![
                "the night after fri ends at midnight: sat 00:00 to 06:59 is outside, so at sat 02:00 the machine is not lent; with sat added it is, and so is the evening of sat"
            ],
        );
        check(lists("mon-fri", "9-17"), "UTC", now, &expect![[""]]);
        check(cron("* 22-23,0-6 1 * *"), "UTC", now, &expect![[""]]);
    }

    #[test]
    fn clocks_that_touch_the_window_are_named() {
        let now = "2026-11-15T00:00:00Z";
        check(
            lists("sun", "1"),
            "America/New_York",
            now,
            &expect![
                "the clocks repeat 2027-11-07 01:00 to 02:00: what of the window lies there happens twice"
            ],
        );
        check(
            cron("30 2 * * *"),
            "America/New_York",
            now,
            &expect![
                "the clocks skip 2027-03-14 02:00 to 03:00: what of the window lies there does not happen"
            ],
        );
        check(lists("mon-fri", "9-17"), "America/New_York", now, &expect![[""]]);
        check(
            lists("fri", "12"),
            "Pacific/Apia",
            "2011-12-01T00:00:00Z",
            &expect![
                "the clocks skip 2011-12-30 00:00 to 2011-12-31 00:00: what of the window lies there does not happen"
            ],
        );
    }

    #[test]
    fn of_equal_items_the_later_is_redundant() {
        let days = ["mon-fri", "wed", "mon-fri"].map(|item| Days::parse(item).unwrap());
        let found = redundant(&days, &[]);
        let redundant = |index| Finding::Redundant { field: "daysOfWeek", index };
        assert_eq!(found, [redundant(1), redundant(2)]);
    }
}
