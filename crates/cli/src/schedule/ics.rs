//! A preview as an iCalendar file (RFC 5545): one event for each window.

use super::preview::Preview;
use jiff::Timestamp;

/// Octets of a line before it must be folded.
const LINE: usize = 75;

pub(crate) fn render(previews: &[Preview]) -> String {
    let mut lines = vec![
        "BEGIN:VCALENDAR".to_owned(),
        "VERSION:2.0".to_owned(),
        "PRODID:-//5-Spot//5spot//EN".to_owned(),
    ];
    for preview in previews {
        let name = escape(&preview.name);
        let (state, status) = match preview.held_by {
            None => ("is lent".to_owned(), "CONFIRMED"),
            Some(reason) => (format!("would be lent, but {}", escape(reason)), "CANCELLED"),
        };
        for (start, end) in preview.windows() {
            lines.extend([
                "BEGIN:VEVENT".to_owned(),
                // Made of nothing but the machine and the moment: importing a newer preview updates the events.
                format!("UID:{}-{}@5spot.finos.org", stamp(start), preview.identity),
                format!("DTSTAMP:{}", stamp(preview.from)),
                format!("DTSTART:{}", stamp(start)),
                format!("DTEND:{}", stamp(end)),
                format!("SUMMARY:{name} {state}"),
                format!("STATUS:{status}"),
                format!("DESCRIPTION:{}", escape(&preview.schedule.rule().to_string())),
                "TRANSP:TRANSPARENT".to_owned(),
                "END:VEVENT".to_owned(),
            ]);
        }
    }
    lines.push("END:VCALENDAR".to_owned());
    lines.iter().map(|line| fold(line)).collect()
}

fn stamp(instant: Timestamp) -> String {
    instant.strftime("%Y%m%dT%H%M%SZ").to_string()
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace(';', "\\;").replace(',', "\\,").replace('\n', "\\n")
}

/// Lines end with CRLF; a longer line goes on in the next one, behind a space.
fn fold(line: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for c in line.chars() {
        if width + c.len_utf8() > LINE {
            out.push_str("\r\n ");
            width = 1;
        }
        out.push(c);
        width += c.len_utf8();
    }
    out + "\r\n"
}
