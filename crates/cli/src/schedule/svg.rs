//! A preview as a picture: a row for each day, its hours from left to right.

use super::preview::{Hour, Preview};
use fivespot_core::zone;
use std::fmt::Write;

const LEFT: usize = 130;
const TOP: usize = 64;
const CELL_WIDTH: usize = 24;
const CELL_HEIGHT: usize = 20;
const ROW: usize = 24;
const RIGHT: usize = 210;

pub(crate) fn render(preview: &Preview) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = draw(&mut out, preview);
    out
}

fn draw(out: &mut String, preview: &Preview) -> std::fmt::Result {
    let width = LEFT + 24 * CELL_WIDTH + RIGHT;
    let height = TOP + preview.days.len() * ROW + 44;
    let zone = preview.schedule.zone().iana_name().unwrap_or("UTC");
    let held = preview.held_by.map(|reason| format!(" ({reason}: not lent)")).unwrap_or_default();
    let title = escape(&format!("{}: {} in {zone}{held}", preview.name, preview.schedule.rule()));
    // A long rule is squeezed rather than cut.
    let squeeze =
        if title.chars().count() > 100 { format!(r#" textLength="{}""#, width - 32) } else { String::new() };
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{title}">"#
    )?;
    writeln!(out, "{STYLE}")?;
    writeln!(out, r#"<rect class="page" width="{width}" height="{height}"/>"#)?;
    writeln!(out, r#"<text class="title" x="16" y="28"{squeeze}>{title}</text>"#)?;
    for hour in (0..=24).step_by(3) {
        let x = LEFT + hour * CELL_WIDTH;
        writeln!(out, r#"<text class="hint middle" x="{x}" y="50">{hour:02}:00</text>"#)?;
    }
    for (row, day) in preview.days.iter().enumerate() {
        let y = TOP + row * ROW;
        let base = y + 15;
        let date = day.date.strftime("%a %Y-%m-%d");
        writeln!(out, r#"<text class="day" x="16" y="{base}">{date}</text>"#)?;
        for (hour, state) in day.hours.iter().enumerate() {
            let x = LEFT + hour * CELL_WIDTH;
            let class = match state {
                Hour::On => "on",
                Hour::Off => "off",
                Hour::Partly => "partly",
                Hour::Skipped => "skipped",
            };
            let w = CELL_WIDTH - 2;
            writeln!(
                out,
                r#"<rect class="{class}" x="{x}" y="{y}" width="{w}" height="{CELL_HEIGHT}" rx="3"/>"#
            )?;
        }
        if let Some(note) = &day.note {
            let x = LEFT + 24 * CELL_WIDTH + 8;
            writeln!(out, r#"<text class="note" x="{x}" y="{base}">{}</text>"#, escape(note))?;
        }
    }
    draw_legend(out, TOP + preview.days.len() * ROW + 12)?;
    let version = zone::database_version();
    let (x, y) = (width - 16, height - 16);
    writeln!(out, r#"<text class="hint end" x="{x}" y="{y}">tzdata {version}</text>"#)?;
    writeln!(out, "</svg>")
}

fn draw_legend(out: &mut String, y: usize) -> std::fmt::Result {
    let entries =
        [("on", "lent"), ("partly", "partly lent"), ("off", "not lent"), ("skipped", "does not exist")];
    for (i, (class, label)) in entries.iter().enumerate() {
        let x = LEFT + i * 130;
        writeln!(out, r#"<rect class="{class}" x="{x}" y="{y}" width="16" height="14" rx="3"/>"#)?;
        writeln!(out, r#"<text class="hint" x="{}" y="{}">{label}</text>"#, x + 22, y + 12)?;
    }
    Ok(())
}

/// Colours that can be told apart without colour vision, on light and on dark pages.
const STYLE: &str = "<style>
  text { font: 13px system-ui, sans-serif; fill: #1f2933; }
  .page { fill: #ffffff; }
  .title { font-size: 16px; font-weight: 600; }
  .hint { fill: #52606d; font-size: 12px; }
  .note { fill: #b44d12; font-size: 12px; }
  .middle { text-anchor: middle; }
  .end { text-anchor: end; }
  .on { fill: #0b7285; }
  .partly { fill: #66b2c0; }
  .off { fill: #e4e7eb; }
  .skipped { fill: none; stroke: #b44d12; stroke-dasharray: 3 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb; }
    .page { fill: #1f2933; }
    .hint { fill: #9aa5b1; }
    .note { fill: #ffb088; }
    .on { fill: #3bc9db; }
    .partly { fill: #1f7f8f; }
    .off { fill: #323f4b; }
    .skipped { stroke: #ffb088; }
  }
</style>";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
