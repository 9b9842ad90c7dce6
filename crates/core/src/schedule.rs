//! When a machine is lent: days, hours and cron expressions, read into sets.
//!
//! Both notations describe a *set* of local civil times, not events. `mon-fri` with `22-6` is every instant
//! whose local weekday is Monday to Friday and whose local hour is 22 to 6; `* 9-16 * * mon-fri` is every
//! matching minute. A [`Rule`] knows neither zone nor instant; a [`Schedule`] reads it on the clocks of a zone and says
//! what holds [at](Schedule::at) an instant, and until when.

mod cron;
mod engine;
mod lint;
mod ranges;
mod reason;

pub use cron::Cron;
pub use engine::{Schedule, Transition, Window};
pub use lint::{Finding, lint, redundant};
pub use ranges::SyntaxError;
pub use reason::Part;

use jiff::civil::Weekday;
use ranges::{Domain, parse_list, write_list};
use std::fmt;

/// Days of the week. Bit 0 is Monday.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Days(u8);

/// Hours of the day. Bit 0 is the hour from 00:00 to 00:59.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hours(u32);

/// When a machine is lent, without the zone in which it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Every instant on one of these days and in one of these hours.
    Calendar {
        /// The days.
        days: Days,
        /// The hours of each of these days.
        hours: Hours,
    },
    /// Every minute that matches.
    Cron(Cron),
}

/// The name of a day as the API spells it.
pub fn day_name(day: Weekday) -> &'static str {
    usize::try_from(day.to_monday_zero_offset()).ok().and_then(|day| DAY.names.get(day)).unwrap_or(&"")
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calendar { days: Days::ALL, hours } => write!(f, "every day, hours {hours}"),
            Self::Calendar { days, hours: Hours::ALL } => write!(f, "{days}, all day"),
            Self::Calendar { days, hours } => write!(f, "{days}, hours {hours}"),
            Self::Cron(cron) => write!(f, "cron {cron}"),
        }
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write_list(self.0.into(), &DAY))
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write_list(self.0.into(), &HOUR))
    }
}

/// Seconds of a day of local time. Days with a skipped or a repeated hour are two pieces of such days.
const DAY_SECONDS: i64 = 86_400;
const HOUR_SECONDS: i64 = 3600;

/// Local time is counted in seconds since local 1970 began, as if no clock had ever been changed.
impl Rule {
    /// Whether the machine is lent at this local time.
    fn holds(&self, local: i64) -> bool {
        match self {
            Self::Calendar { days, hours } => {
                let (day, hour) =
                    (local.div_euclid(DAY_SECONDS), local.rem_euclid(DAY_SECONDS) / HOUR_SECONDS);
                hours_on(*days, *hours, day) >> hour & 1 != 0
            }
            Self::Cron(cron) => cron.holds(local),
        }
    }

    /// The first local time after `local` and before `limit` at which the answer is not `active`.
    fn change_after(&self, local: i64, active: bool, limit: i64) -> Option<i64> {
        match self {
            Self::Calendar { days, hours } => {
                let mut from = local.div_euclid(HOUR_SECONDS) + 1;
                while from * HOUR_SECONDS < limit {
                    let (day, hour) = (from.div_euclid(24), from.rem_euclid(24));
                    let held = hours_on(*days, *hours, day);
                    let changed = (if active { !held & Hours::ALL.0 } else { held }) >> hour;
                    if changed != 0 {
                        let at = (from + i64::from(changed.trailing_zeros())) * HOUR_SECONDS;
                        return (at < limit).then_some(at);
                    }
                    from = (day + 1) * 24;
                }
                None
            }
            Self::Cron(cron) => cron.change_after(local, active, limit),
        }
    }

    /// What always holds, if the answer is the same at every local time.
    fn constant(&self) -> Option<bool> {
        match self {
            Self::Calendar { days, hours } => match (*days, *hours) {
                (Days::ALL, Hours::ALL) => Some(true),
                (Days(0), _) | (_, Hours(0)) => Some(false),
                _ => None,
            },
            Self::Cron(cron) => cron.constant(),
        }
    }
}

/// The hours that are lent on a day, counted from 1970-01-01, which was a Thursday.
fn hours_on(days: Days, hours: Hours, day: i64) -> u32 {
    if days.0 >> (day + 3).rem_euclid(7) & 1 == 0 { 0 } else { hours.0 }
}

const DAY: Domain = Domain {
    what: "a day",
    expected: "mon, tue, wed, thu, fri, sat or sun",
    names: &["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
    first: 0,
    last: 6,
    numbers: false,
    wraps: true,
};

const HOUR: Domain = Domain {
    what: "an hour",
    expected: "0 to 23",
    names: &[],
    first: 0,
    last: 23,
    numbers: true,
    wraps: true,
};

impl Days {
    /// Every day.
    pub const ALL: Self = Self(0x7f);

    /// Reads one item of `daysOfWeek`: days, ranges that may wrap around the week, comma lists of both.
    /// Upper and lower case are the same.
    pub fn parse(item: &str) -> Result<Self, SyntaxError> {
        let bits = parse_list(item, &DAY)?;
        Ok(Self(u8::try_from(bits & u64::from(Self::ALL.0)).unwrap_or(Self::ALL.0)))
    }

    /// Whether the day is in the set.
    pub fn contains(self, day: Weekday) -> bool {
        self.0 >> day.to_monday_zero_offset() & 1 != 0
    }

    /// Days in either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Hours {
    /// Every hour.
    pub const ALL: Self = Self(0x00ff_ffff);

    /// Reads one item of `hoursOfDay`: hours, ranges with both ends inclusive that may wrap around
    /// midnight, comma lists of both.
    pub fn parse(item: &str) -> Result<Self, SyntaxError> {
        let bits = parse_list(item, &HOUR)?;
        Ok(Self(u32::try_from(bits & u64::from(Self::ALL.0)).unwrap_or(Self::ALL.0)))
    }

    /// Whether the hour from `hour`:00 to `hour`:59 is in the set.
    pub fn contains(self, hour: i8) -> bool {
        (0..24).contains(&hour) && self.0 >> hour & 1 != 0
    }

    /// Hours in either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn days(item: &str) -> String {
        let set = Days::parse(item).unwrap();
        let week = Weekday::Monday.cycle_forward().take(7).zip(DAY.names);
        week.filter(|(day, _)| set.contains(*day)).map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
    }

    fn hours(item: &str) -> Vec<i8> {
        let set = Hours::parse(item).unwrap();
        (0..24).filter(|&h| set.contains(h)).collect()
    }

    fn check_error<T: fmt::Debug>(result: Result<T, SyntaxError>, expect: &Expect) {
        expect.assert_eq(&result.unwrap_err().to_string());
    }

    #[test]
    fn days_read_single_ranges_lists_and_wrap() {
        assert_eq!(days("wed"), "wed");
        assert_eq!(days("mon-fri"), "mon tue wed thu fri");
        assert_eq!(days("mon-fri,sun"), "mon tue wed thu fri sun");
        assert_eq!(days("fri-mon"), "mon fri sat sun");
        assert_eq!(days("Sat-SUN"), "sat sun");
        assert_eq!(days("mon-mon"), "mon");
    }

    #[test]
    fn hours_include_both_ends_and_wrap_around_midnight() {
        assert_eq!(hours("9"), [9]);
        assert_eq!(hours("09"), [9]);
        assert_eq!(hours("9-11"), [9, 10, 11]);
        assert_eq!(hours("22-1"), [0, 1, 22, 23]);
        assert_eq!(hours("0-1,23"), [0, 1, 23]);
    }

    #[test]
    fn errors_say_where_and_what_was_meant() {
        check_error(
            Days::parse("mno-fri"),
            &expect![[
                r#""mno" at character 1 is not a day: expected mon, tue, wed, thu, fri, sat or sun; did you mean mon?"#
            ]],
        );
        check_error(
            Days::parse("mon-friday"),
            &expect![[
                r#""friday" at character 5 is not a day: expected mon, tue, wed, thu, fri, sat or sun; did you mean fri?"#
            ]],
        );
        check_error(
            Days::parse("Mon–Fri"),
            &expect![[r#""–" at character 4 is a typographic dash: write "-""#]],
        );
        check_error(
            Days::parse("mon, wed"),
            &expect!["a space at character 5: write the list without spaces"],
        );
        check_error(
            Days::parse("1-5"),
            &expect![[r#""1" at character 1 is not a day: expected mon, tue, wed, thu, fri, sat or sun"#]],
        );
        check_error(
            Days::parse(""),
            &expect![
                "is empty: expected mon, tue, wed, thu, fri, sat or sun, a range such as a-b, or a comma list"
            ],
        );
        check_error(
            Days::parse("mon,,fri"),
            &expect!["a day is missing at character 5: expected mon, tue, wed, thu, fri, sat or sun"],
        );
        check_error(Hours::parse("9-"), &expect!["an hour is missing at character 3: expected 0 to 23"]);
        check_error(
            Hours::parse("24"),
            &expect![[r#""24" at character 1 is not an hour: expected 0 to 23; midnight is 0"#]],
        );
        check_error(
            Hours::parse("9am"),
            &expect![[r#""9am" at character 1 is not an hour: expected 0 to 23; did you mean 9?"#]],
        );
        check_error(
            Hours::parse("9-5pm"),
            &expect![[r#""5pm" at character 3 is not an hour: expected 0 to 23; did you mean 17?"#]],
        );
        check_error(
            Hours::parse("09:30"),
            &expect![[
                r#""09:30" at character 1 is not an hour: expected 0 to 23; a window begins on the hour: did you mean 9?"#
            ]],
        );
        check_error(
            Hours::parse("009"),
            &expect![[r#""009" at character 1 is not an hour: expected 0 to 23; did you mean 9?"#]],
        );
        check_error(
            Hours::parse("1-2-3"),
            &expect![[r#""1-2-3" at character 1 is not a range: write two ends with one "-" between them"#]],
        );
        check_error(
            Hours::parse("*"),
            &expect![[
                r#""*" at character 1 is not an hour: expected 0 to 23; leave the list empty for all"#
            ]],
        );
    }

    #[test]
    fn a_wrapped_range_is_the_union_of_its_two_parts() {
        for (a, b) in (0..24).flat_map(|a| (0..a).map(move |b| (a, b))) {
            assert_eq!(Hours::parse(&format!("{a}-{b}")), Hours::parse(&format!("{a}-23,0-{b}")), "{a}-{b}");
        }
        for (a, b) in (0..7).flat_map(|a| (0..a).map(move |b| (DAY.names[a], DAY.names[b]))) {
            assert_eq!(Days::parse(&format!("{a}-{b}")), Days::parse(&format!("{a}-sun,mon-{b}")), "{a}-{b}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_the_same(days in 1_u8..0x80, hours in 1_u32..0x0100_0000) {
            prop_assert_eq!(Days::parse(&Days(days).to_string()), Ok(Days(days)));
            prop_assert_eq!(Hours::parse(&Hours(hours).to_string()), Ok(Hours(hours)));
        }

        #[test]
        fn a_schedule_and_its_complement_are_always(
            days in 1_u8..0x7f,
            hours in 1_u32..0x00ff_ffff,
            at in -2_000_000_000_i64..4_000_000_000,
        ) {
            let rule = Rule::Calendar { days: Days(days), hours: Hours(hours) };
            let other_days = Rule::Calendar { days: Days(!days & 0x7f), hours: Hours::ALL };
            let other_hours = Rule::Calendar { days: Days(days), hours: Hours(!hours & Hours::ALL.0) };
            let zone = zone::lookup("America/New_York").unwrap();
            let now = jiff::Timestamp::from_second(at).unwrap();
            let windows = [rule, other_days, other_hours].map(|rule| Schedule::new(rule, zone.clone()).at(now));
            prop_assert_eq!(windows.iter().filter(|window| window.active).count(), 1);
            // One goes exactly when another comes.
            let ends = windows.iter().filter(|window| window.active).find_map(|window| window.until);
            let begins = windows.iter().filter(|window| !window.active).filter_map(|window| window.until).min();
            prop_assert_eq!(ends, begins);
        }

        #[test]
        fn no_input_panics(text in "\\PC{0,40}") {
            let _ = (Days::parse(&text), Hours::parse(&text), Cron::parse(&text));
        }
    }
}
