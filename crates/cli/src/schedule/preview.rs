//! What every form of a preview shows: days with their hours, and changes.

use super::source::Named;
use anyhow::{Context, Result};
use fivespot_core::schedule::{Schedule, Transition};
use fivespot_core::zone;
use jiff::civil::Date;
use jiff::{Timestamp, ToSpan, Zoned};
use serde_json::{Value, json};

/// Some weeks of a schedule.
pub(crate) struct Preview {
    pub(crate) name: String,
    pub(crate) schedule: Schedule,
    pub(crate) identity: String,
    pub(crate) held_by: Option<&'static str>,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    pub(crate) days: Vec<Day>,
}

/// A date on the schedule's calendar.
pub(crate) struct Day {
    pub(crate) date: Date,
    pub(crate) hours: [Hour; 24],
    /// What is unusual about it.
    pub(crate) note: Option<String>,
}

/// An hour of such a date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hour {
    On,
    Off,
    Partly,
    /// The clocks skip it.
    Skipped,
}

impl Preview {
    pub(crate) fn new(named: Named, from: Timestamp, weeks: u8) -> Result<Self> {
        let Named { name, schedule, identity, held_by } = named;
        let first = from.to_zoned(schedule.zone().clone());
        let to = first
            .checked_add(i64::from(weeks).weeks())
            .context("--weeks goes beyond the calendar")?
            .timestamp();
        // Every date that has an instant of the preview in it.
        let last = to.checked_sub(1.second())?.to_zoned(schedule.zone().clone()).date();
        let mut days = Vec::new();
        let mut date = first.date();
        while date <= last {
            days.push(Day::new(&schedule, date)?);
            date = date.tomorrow()?;
        }
        Ok(Self { name, schedule, identity, held_by, from, to, days })
    }

    /// The changes that are shown.
    pub(crate) fn transitions(&self) -> impl Iterator<Item = Transition> + '_ {
        self.schedule.transitions(self.from).take_while(|change| change.at < self.to)
    }

    /// The windows that are shown, from their very beginning to their very end.
    pub(crate) fn windows(&self) -> Vec<(Timestamp, Timestamp)> {
        let mut windows = Vec::new();
        let mut began = self.schedule.is_active(self.from).then(|| self.began());
        // One change beyond the preview ends a window that is open there.
        let beyond = self.schedule.transitions(self.from).find(|change| change.at >= self.to);
        for change in self.transitions().chain(beyond) {
            match (began.take(), change.active) {
                (Some(start), false) => windows.push((start, change.at)),
                (None, true) if change.at < self.to => began = Some(change.at),
                _ => {}
            }
        }
        windows.extend(began.map(|start| (start, self.to)));
        windows
    }

    /// When the window that is open at `from` began; a window that has been open for a month is shown from there.
    fn began(&self) -> Timestamp {
        let month_before = self.from.checked_sub((31 * 24).hours()).unwrap_or(self.from);
        let before = self.schedule.transitions(month_before).take_while(|change| change.at <= self.from);
        before.last().map_or(month_before, |change| change.at)
    }

    /// Whether the clocks change on the date of an instant.
    pub(crate) fn is_dst_night(&self, at: &Zoned) -> bool {
        self.days.iter().any(|day| day.date == at.date() && day.note.is_some())
    }

    pub(crate) fn to_json(&self) -> Value {
        let transitions: Vec<Value> = self
            .transitions()
            .map(|change| {
                let local = change.at.to_zoned(self.schedule.zone().clone());
                json!({"at": change.at.to_string(), "active": change.active, "local": local.to_string()})
            })
            .collect();
        json!({
            "name": self.name,
            "rule": self.schedule.rule().to_string(),
            "timezone": self.schedule.zone().iana_name(),
            "tzdata": zone::database_version(),
            "from": self.from.to_string(),
            "to": self.to.to_string(),
            "active": self.schedule.is_active(self.from),
            "heldBy": self.held_by,
            "transitions": transitions,
        })
    }
}

impl Day {
    fn new(schedule: &Schedule, date: Date) -> Result<Self> {
        let zone = schedule.zone();
        let start = date.to_zoned(zone.clone())?;
        if start.date() != date {
            let note = Some("this day does not exist here".to_owned());
            return Ok(Self { date, hours: [Hour::Skipped; 24], note });
        }
        let end = date.tomorrow()?.to_zoned(zone.clone())?.timestamp();
        let mut seen = [(0, 0); 24];
        let mut minute = start.timestamp();
        while minute < end {
            let local = zone.to_datetime(minute);
            // Clocks that go back at midnight show the end of the day before once more.
            if local.date() == date {
                let hour = usize::try_from(local.hour()).unwrap_or(0);
                seen[hour].0 += 1;
                seen[hour].1 += usize::from(schedule.is_active(minute));
            }
            minute = minute.checked_add(1.minute())?;
        }
        let hours = seen.map(|(total, active)| match (total, active) {
            (0, _) => Hour::Skipped,
            (_, 0) => Hour::Off,
            (total, active) if total == active => Hour::On,
            _ => Hour::Partly,
        });
        Ok(Self { date, hours, note: change_of_clocks(schedule, &start, end)? })
    }
}

fn change_of_clocks(schedule: &Schedule, start: &Zoned, end: Timestamp) -> Result<Option<String>> {
    let zone = schedule.zone();
    // A change at the very first instant of the day belongs to it.
    let Some(change) = zone.following(start.timestamp().checked_sub(1.second())?).next() else {
        return Ok(None);
    };
    let at = change.timestamp();
    let old = zone.to_offset(at.checked_sub(1.second())?);
    let moved = change.offset().seconds() - old.seconds();
    if at >= end || moved == 0 {
        return Ok(None);
    }
    let (direction, minutes) = if moved > 0 { ("forward", moved / 60) } else { ("back", -moved / 60) };
    let amount = if minutes % 60 == 0 { format!("{} h", minutes / 60) } else { format!("{minutes} min") };
    let time = old.to_datetime(at).time();
    Ok(Some(format!("clocks go {direction} {amount} at {:02}:{:02}", time.hour(), time.minute())))
}
