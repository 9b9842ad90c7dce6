//! A preview for the terminal.

use super::preview::{Hour, Preview};
use crate::output::Lines;
use fivespot_core::zone;
use jiff::tz::TimeZone;

/// Changes that are listed. A cron expression that names single minutes has thousands a week.
const LISTED: usize = 60;

/// Width of the column of dates.
const MARGIN: usize = 16;

pub(crate) fn draw(out: &mut Lines, preview: &Preview, viewer: &TimeZone) -> std::fmt::Result {
    let zone = preview.schedule.zone();
    let (zone_name, viewer_name) = (name(zone), name(viewer));
    let state = if preview.schedule.is_active(preview.from) { "lent" } else { "not lent" };
    writeln!(out, "{}: {}", preview.name, preview.schedule.rule())?;
    writeln!(out, "read in {zone_name} (tzdata {}); {state} at {}", zone::database_version(), preview.from)?;
    writeln!(out)?;
    if let Some(held_by) = preview.held_by {
        writeln!(out, "{held_by}: the machine is not lent, whatever is shown here")?;
        writeln!(out)?;
    }
    writeln!(out, "{}  {zone_name}", hours_line(0))?;
    let mut ahead = None;
    for day in &preview.days {
        // The viewer's hours, again when the two clocks have moved against each other.
        let noon = day
            .date
            .at(12, 0, 0, 0)
            .to_zoned(zone.clone())
            .map(|noon| (viewer.to_offset(noon.timestamp()).seconds() - noon.offset().seconds()) / 60);
        if let (Ok(now_ahead), true) = (noon, viewer_name != zone_name)
            && ahead.replace(now_ahead) != Some(now_ahead)
        {
            writeln!(out, "{}  {viewer_name}", hours_line(now_ahead))?;
        }
        let cells: String = day.hours.iter().map(|hour| cell(*hour)).collect();
        let weekday = day.date.strftime("%a %Y-%m-%d").to_string();
        let note = day.note.as_deref().map(|note| format!("  {note}")).unwrap_or_default();
        writeln!(out, "{weekday:<MARGIN$}{cells}{note}")?;
    }
    writeln!(out)?;
    draw_changes(out, preview, viewer)
}

fn draw_changes(out: &mut Lines, preview: &Preview, viewer: &TimeZone) -> std::fmt::Result {
    let zone = preview.schedule.zone();
    let total = preview.transitions().count();
    if total == 0 {
        return writeln!(out, "no change until {}", preview.to);
    }
    // A column for each clock, the same clock once.
    let mut clocks = vec![zone.clone(), viewer.clone()];
    clocks.dedup_by_key(|clock| name(clock));
    let width = clocks.iter().map(|clock| name(clock).len()).max().unwrap_or(0).max(25) + 2;
    let row =
        |cells: Vec<String>| cells.iter().map(|cell| format!("{cell:<width$}")).collect::<Vec<_>>().concat();
    writeln!(out, "     {}UTC", row(clocks.iter().map(name).collect()))?;
    for change in preview.transitions().take(LISTED) {
        let word = if change.active { "on " } else { "off" };
        let time =
            |clock: &TimeZone| change.at.to_zoned(clock.clone()).strftime("%a %Y-%m-%d %H:%M %Z").to_string();
        let times = row(clocks.iter().map(time).collect());
        let is_marked = preview.is_dst_night(&change.at.to_zoned(zone.clone()));
        let mark = if is_marked { "  clocks change this day" } else { "" };
        writeln!(out, "{word}  {times}{}{mark}", change.at)?;
    }
    if total > LISTED {
        writeln!(out, "... and {} more; -o json lists them all", total - LISTED)?;
    }
    Ok(())
}

/// Every third hour above its column, on clocks that are some minutes ahead; a column is two characters wide.
fn hours_line(minutes_ahead: i32) -> String {
    let marks = (0..24).step_by(3).map(|hour| {
        let minute = (hour * 60 + minutes_ahead).rem_euclid(24 * 60);
        match (minute / 60, minute % 60) {
            (hour, 0) => format!("{hour:02}    "),
            (hour, minute) => format!("{hour:02}:{minute:02} "),
        }
    });
    format!("{:MARGIN$}{}", "", marks.collect::<String>())
}

fn cell(hour: Hour) -> &'static str {
    match hour {
        Hour::On => "██",
        Hour::Off => "··",
        Hour::Partly => "▒▒",
        Hour::Skipped => "  ",
    }
}

fn name(zone: &TimeZone) -> String {
    zone.iana_name().unwrap_or("UTC").to_owned()
}
