//! A preview for the terminal.

use super::preview::{Hour, Preview};
use fivespot_core::zone;
use jiff::tz::TimeZone;
use std::fmt::Write;

/// Changes that are listed. A cron expression that names single minutes has thousands a week.
const LISTED: usize = 60;

/// Width of the column of dates.
const MARGIN: usize = 16;

pub(crate) fn render(preview: &Preview, viewer: &TimeZone) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = draw(&mut out, preview, viewer);
    out
}

fn draw(out: &mut String, preview: &Preview, viewer: &TimeZone) -> std::fmt::Result {
    let zone = preview.schedule.zone();
    let (zone_name, viewer_name) = (name(zone), name(viewer));
    let state = if preview.schedule.at(preview.from).active { "lent" } else { "not lent" };
    writeln!(out, "{}: {}", preview.name, preview.schedule.rule())?;
    writeln!(out, "read in {zone_name} (tzdata {}); {state} at {}", zone::database_version(), preview.from)?;
    writeln!(out)?;
    if let Some(held_by) = preview.held_by {
        writeln!(out, "{held_by}: the machine is not lent, whatever is shown here\n")?;
    }
    writeln!(out, "{}  {zone_name}", hours_line(0))?;
    if viewer_name != zone_name
        && let Some(noon) =
            preview.days.first().and_then(|day| day.date.at(12, 0, 0, 0).to_zoned(zone.clone()).ok())
    {
        let ahead = viewer.to_offset(noon.timestamp()).seconds() - noon.offset().seconds();
        writeln!(out, "{}  {viewer_name}", hours_line(ahead / 60))?;
    }
    for day in &preview.days {
        let cells: String = day.hours.iter().map(|hour| cell(*hour)).collect();
        let weekday = day.date.strftime("%a %Y-%m-%d").to_string();
        let note = day.note.as_deref().map(|note| format!("  {note}")).unwrap_or_default();
        writeln!(out, "{weekday:<MARGIN$}{cells}{note}")?;
    }
    writeln!(out)?;
    draw_changes(out, preview, viewer)
}

fn draw_changes(out: &mut String, preview: &Preview, viewer: &TimeZone) -> std::fmt::Result {
    let zone = preview.schedule.zone();
    let total = preview.transitions().count();
    if total == 0 {
        return writeln!(out, "no change until {}", preview.to);
    }
    let (zone_name, viewer_name) = (name(zone), name(viewer));
    writeln!(out, "     {zone_name:<27}{viewer_name:<27}UTC")?;
    for change in preview.transitions().take(LISTED) {
        let word = if change.active { "on " } else { "off" };
        let format = "%a %Y-%m-%d %H:%M %Z";
        let there = change.at.to_zoned(zone.clone());
        let here = change.at.to_zoned(viewer.clone());
        let mark = if preview.is_dst_night(&there) { "  clocks change this day" } else { "" };
        let (there, here) = (there.strftime(format).to_string(), here.strftime(format).to_string());
        writeln!(out, "{word}  {there:<27}{here:<27}{}{mark}", change.at)?;
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
    zone.iana_name().unwrap_or("local time").to_owned()
}
