//! From a rule and a zone to instants: is the machine lent now, and until when.
//!
//! A zone is a sequence of segments with a constant offset. Inside a segment local time runs like UTC, so a
//! rule's next change is found in local time, by the rule alone, and carried back by the offset. If it lies
//! beyond the segment, the segment's end is looked at: there local time jumps, and the rule may hold on one
//! side of the jump and not on the other. Then the next segment is searched from its start. No case is
//! special: a skipped hour, a repeated hour, a skipped day and an offset of 45 minutes are all segments.

use super::Rule;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// How far ahead a change is looked for, in seconds: 400 years. The calendar repeats itself after them, and so do
/// the rules by which zones change, so what has not happened by then never does.
const HORIZON: i64 = 146_097 * 86_400;

/// A rule in a zone: everything that is needed to say when a machine is lent.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    rule: Rule,
    zone: TimeZone,
    /// What always holds, if the rule never changes its mind.
    constant: Option<bool>,
}

/// What holds at an instant, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Whether the machine is lent.
    pub active: bool,
    /// The first instant at which that is different, a whole second; `None` if it never is.
    pub until: Option<Timestamp>,
}

/// A change of what holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// The first instant at which the new state holds, a whole second.
    pub at: Timestamp,
    /// Whether the machine is lent from then on.
    pub active: bool,
}

impl Schedule {
    /// Reads `rule` on the clocks of `zone`.
    pub fn new(rule: Rule, zone: TimeZone) -> Self {
        let constant = rule.constant();
        Self { rule, zone, constant }
    }

    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The zone.
    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// Whether the machine is lent at `now`. Costs less than [`Schedule::at`], which also looks for the end.
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.constant.unwrap_or_else(|| self.rule.holds(self.local(now)))
    }

    /// What holds at `now`, and until when.
    pub fn at(&self, now: Timestamp) -> Window {
        if let Some(active) = self.constant {
            return Window { active, until: None };
        }
        let active = self.rule.holds(self.local(now));
        Window { active, until: self.change_after(now, active) }
    }

    /// The changes after `from`, in order. Ends where nothing changes any more.
    pub fn transitions(&self, from: Timestamp) -> impl Iterator<Item = Transition> + '_ {
        let mut window = self.at(from);
        std::iter::from_fn(move || {
            let at = window.until?;
            let active = !window.active;
            window = Window { active, until: self.change_after(at, active) };
            Some(Transition { at, active })
        })
    }

    /// Seconds of local time since local 1970 began, rounded down to the second.
    fn local(&self, instant: Timestamp) -> i64 {
        whole_second(instant) + i64::from(self.zone.to_offset(instant).seconds())
    }

    /// The first instant after `now` at which the rule's answer is not `active` any more.
    fn change_after(&self, now: Timestamp, active: bool) -> Option<Timestamp> {
        let last = whole_second(now).saturating_add(HORIZON);
        let mut from = now;
        while whole_second(from) <= last {
            let offset = i64::from(self.zone.to_offset(from).seconds());
            let segment_end = self.zone.following(from).next().map(|change| change.timestamp());
            let limit = segment_end.map_or(last, whole_second).min(last);
            if let Some(local) = self.rule.change_after(whole_second(from) + offset, active, limit + offset) {
                return Timestamp::from_second(local - offset).ok();
            }
            let end = segment_end?;
            if self.rule.holds(self.local(end)) != active {
                return Some(end);
            }
            from = end;
        }
        None
    }
}

/// The second an instant lies in. jiff counts towards zero, which before 1970 is the second after.
fn whole_second(instant: Timestamp) -> i64 {
    instant.as_second() - i64::from(instant.subsec_nanosecond() < 0)
}

#[cfg(test)]
mod tests {
    use super::super::{Cron, Days, Hours};
    use super::*;
    use crate::zone;
    use expect_test::{Expect, expect};

    fn lists(days: &str, hours: &str, zone: &str) -> Schedule {
        let days = if days.is_empty() { Days::ALL } else { Days::parse(days).unwrap() };
        let hours = if hours.is_empty() { Hours::ALL } else { Hours::parse(hours).unwrap() };
        Schedule::new(Rule::Calendar { days, hours }, zone::lookup(zone).unwrap())
    }

    fn cron(text: &str, zone: &str) -> Schedule {
        Schedule::new(Rule::Cron(Cron::parse(text).unwrap()), zone::lookup(zone).unwrap())
    }

    /// The next changes after an instant, with the local time of each.
    fn check(schedule: &Schedule, from: &str, count: usize, expect: &Expect) {
        let changes = schedule.transitions(from.parse().unwrap()).take(count).map(|change| {
            let word = if change.active { "on " } else { "off" };
            format!("{word} {} {}\n", change.at, change.at.to_zoned(schedule.zone().clone()).datetime())
        });
        expect.assert_eq(&changes.collect::<String>());
    }

    #[test]
    fn a_window_through_the_hour_that_new_york_skips_and_the_hour_it_repeats() {
        let nights = lists("", "1-2", "America/New_York");
        check(
            &nights,
            "2026-03-08T00:00:00Z",
            2,
            &expect![[r#"
            on  2026-03-08T06:00:00Z 2026-03-08T01:00:00
            off 2026-03-08T07:00:00Z 2026-03-08T03:00:00
        "#]],
        );
        check(
            &nights,
            "2026-11-01T04:30:00Z",
            2,
            &expect![[r#"
            on  2026-11-01T05:00:00Z 2026-11-01T01:00:00
            off 2026-11-01T08:00:00Z 2026-11-01T03:00:00
        "#]],
        );
    }

    #[test]
    fn a_window_inside_the_skipped_hour_does_not_happen() {
        let gap = cron("30 2 * * *", "America/New_York");
        check(
            &gap,
            "2026-03-07T12:00:00Z",
            2,
            &expect![[r#"
            on  2026-03-09T06:30:00Z 2026-03-09T02:30:00
            off 2026-03-09T06:31:00Z 2026-03-09T02:31:00
        "#]],
        );
        let only_there = cron("30 2 8-14 3 */7", "America/New_York");
        assert_eq!(
            only_there.at("2026-01-01T00:00:00Z".parse().unwrap()),
            Window { active: false, until: None }
        );
    }

    #[test]
    fn lord_howe_moves_its_clocks_by_half_an_hour() {
        let early = lists("", "2", "Australia/Lord_Howe");
        check(
            &early,
            "2026-10-03T00:00:00Z",
            2,
            &expect![[r#"
            on  2026-10-03T15:30:00Z 2026-10-04T02:30:00
            off 2026-10-03T16:00:00Z 2026-10-04T03:00:00
        "#]],
        );
        check(
            &early,
            "2026-04-04T00:00:00Z",
            2,
            &expect![[r#"
            on  2026-04-04T15:30:00Z 2026-04-05T02:00:00
            off 2026-04-04T16:30:00Z 2026-04-05T03:00:00
        "#]],
        );
    }

    #[test]
    fn samoa_had_no_friday_before_new_year_2012() {
        check(
            &lists("thu-fri", "", "Pacific/Apia"),
            "2011-12-28T00:00:00Z",
            2,
            &expect![[r#"
            on  2011-12-29T10:00:00Z 2011-12-29T00:00:00
            off 2011-12-30T10:00:00Z 2011-12-31T00:00:00
        "#]],
        );
    }

    #[test]
    fn offsets_of_45_minutes_and_of_odd_seconds_are_exact() {
        check(
            &lists("mon", "9", "Asia/Kathmandu"),
            "2026-11-15T00:00:00Z",
            2,
            &expect![[r#"
            on  2026-11-16T03:15:00Z 2026-11-16T09:00:00
            off 2026-11-16T04:15:00Z 2026-11-16T10:00:00
        "#]],
        );
        // Monrovia was 44 minutes and 30 seconds behind until January 1972.
        check(
            &lists("", "0", "Africa/Monrovia"),
            "1971-06-01T12:00:00Z",
            1,
            &expect![[r#"
            on  1971-06-02T00:44:30Z 1971-06-02T00:00:00
        "#]],
        );
    }

    #[test]
    fn a_fraction_of_a_second_belongs_to_its_second() {
        let nine = lists("", "9", "UTC");
        for (now, active) in [
            ("2026-11-15T08:59:59.999999999Z", false),
            ("2026-11-15T09:00:00Z", true),
            ("1969-12-31T09:59:59.5Z", true),
            ("1969-12-31T08:59:59.5Z", false),
        ] {
            let window = nine.at(now.parse().unwrap());
            assert_eq!(window.active, active, "{now}");
            assert!(window.until.unwrap() > now.parse().unwrap(), "{now}");
        }
    }

    #[test]
    fn always_and_never_have_no_end() {
        let now = "2026-11-15T12:00:00Z".parse().unwrap();
        assert_eq!(lists("mon-sun", "0-23", "Asia/Kolkata").at(now), Window { active: true, until: None });
        assert_eq!(cron("* * * * *", "UTC").at(now), Window { active: true, until: None });
        assert_eq!(cron("* * 30,31 feb *", "UTC").at(now), Window { active: false, until: None });
        assert_eq!(cron("* * 31 4,6,9,11 *", "UTC").at(now), Window { active: false, until: None });
    }

    #[test]
    fn what_is_rare_is_found() {
        // February 29 on a Sunday, after the years without one around 2100.
        check(
            &cron("0 0 29 2 */7", "UTC"),
            "2088-03-01T00:00:00Z",
            1,
            &expect![[r#"
            on  2128-02-29T00:00:00Z 2128-02-29T00:00:00
        "#]],
        );
    }

    #[test]
    fn a_compiled_schedule_is_small() {
        assert!(size_of::<Schedule>() <= 128, "{} bytes", size_of::<Schedule>());
    }
}
