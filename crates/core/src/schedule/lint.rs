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
                     {sample:02}:00 the machine is not lent; add {next} if it should be"
                )
            }
            Self::Skipped { at, to } => write!(
                f,
                "on {} the clocks skip {} to {}, which is inside the window: it is that much shorter",
                at.date(),
                at.time(),
                to.time()
            ),
            Self::Repeated { at, to } => write!(
                f,
                "on {} the clocks repeat {} to {}, which is inside the window: it is that much longer",
                at.date(),
                at.time(),
                to.time()
            ),
            Self::Redundant { field, index } => {
                write!(f, "{field}[{index}] adds nothing to the other items: remove it")
            }
        }
    }
}

/// What to look at in a schedule, as seen from `now`: changes of clocks are those of the year that follows.
pub fn lint(schedule: &Schedule, now: Timestamp) -> Vec<Finding> {
    match schedule.at(now) {
        super::Window { active: true, until: None } => return vec![Finding::Always],
        super::Window { active: false, until: None } => return vec![Finding::Never],
        super::Window { .. } => {}
    }
    let mut findings = Vec::new();
    if let Rule::Calendar { days, hours } = schedule.rule() {
        findings.extend(cut_nights(*days, *hours));
    }
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

fn cut_nights(days: Days, hours: Hours) -> Option<Finding> {
    let runs_past_midnight = hours != Hours::ALL && hours.contains(23) && hours.contains(0);
    let last = Weekday::Monday
        .cycle_forward()
        .take(7)
        .find(|day| days.contains(*day) && !days.contains(day.next()))?;
    let until_hour = hours.0.trailing_ones().saturating_sub(1);
    runs_past_midnight.then_some(Finding::NightIsCut { day: last, until_hour })
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
