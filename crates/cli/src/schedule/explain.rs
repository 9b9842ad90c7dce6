//! Why a machine is lent or not.

use super::source::Named;
use crate::output::Lines;
use fivespot_core::schedule::{Schedule, Window};
use jiff::Timestamp;

/// Changes of clocks that are shown; a change of the schedule can be decades away.
const SHOWN: usize = 2;

pub(crate) fn draw(out: &mut Lines, named: &Named, at: Timestamp) -> std::fmt::Result {
    let Named { name, schedule, held_by, .. } = named;
    let zone = schedule.zone();
    let local = at.to_zoned(zone.clone());
    let zone_name = zone.iana_name().unwrap_or("UTC");
    let Window { active, until } = schedule.at(at);
    let state = match (held_by, active) {
        (Some(_), _) => "held back",
        (None, true) => "lent",
        (None, false) => "not lent",
    };
    writeln!(out, "{name}: {state} at {at}")?;
    writeln!(out, "  rule     {}", schedule.rule())?;
    writeln!(out, "  local    {} in {zone_name}", local.strftime("%a %Y-%m-%d %H:%M:%S %Z (UTC%:z)"))?;
    for part in schedule.rule().parts(local.datetime()) {
        let verdict = if part.holds { "is in" } else { "is not in" };
        writeln!(out, "  {:<8} {} {verdict} {}", part.what, part.value, part.wanted)?;
    }
    if let Some(held_by) = held_by {
        writeln!(out, "  held     {held_by}: the machine is not lent, whatever the schedule says")?;
    }
    match until {
        None => writeln!(out, "  next     nothing changes any more"),
        Some(until) => {
            let word = if active { "leaves" } else { "is lent" };
            let there = until.to_zoned(zone.clone());
            let day = there.strftime("%a %Y-%m-%d %H:%M:%S %Z");
            writeln!(out, "  next     {word} {day} ({until})")?;
            draw_clocks(out, schedule, at, until)
        }
    }
}

/// Changes of clocks between now and the next change, which make a window longer or shorter than it looks.
fn draw_clocks(out: &mut Lines, schedule: &Schedule, at: Timestamp, until: Timestamp) -> std::fmt::Result {
    let zone = schedule.zone();
    for change in zone.following(at).take_while(|change| change.timestamp() <= until).take(SHOWN) {
        let instant = change.timestamp();
        let before =
            Timestamp::from_second(instant.as_second() - 1).map_or(change.offset(), |t| zone.to_offset(t));
        let (from, to) = (before.to_datetime(instant), change.offset().to_datetime(instant));
        if from != to {
            writeln!(out, "  clocks   go from {from} to {to} on the way ({instant})")?;
        }
    }
    Ok(())
}
