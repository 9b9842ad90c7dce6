//! Logs on standard error.
//!
//! A field may hold what a server or a shard said. In text logs each event stays one line of visible characters
//! whatever its fields hold: tracing-subscriber escapes terminal commands in the message alone, and a line break
//! nowhere. In JSON a field is data, and JSON itself has no raw line breaks.

use fivespot_core::text::printable;
use jiff::Timestamp;
use std::fmt;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::util::SubscriberInitExt;

/// Bytes of one field in a text log: container runtimes break lines at 16 KiB.
const FIELD_BYTES: usize = 8 << 10;

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// Begins to log what `RUST_LOG` asks for; without it, what people need to know.
pub fn init(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    match format {
        Format::Text => {
            let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
            for_people(filter, std::io::stderr, ansi).init();
        }
        Format::Json => {
            let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
            builder.with_timer(Now).with_target(false).json().flatten_event(true).init();
        }
    }
}

/// Lines of text, with colours or without.
fn for_people<W>(filter: EnvFilter, writer: W, ansi: bool) -> impl SubscriberInitExt
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    let builder = builder.with_timer(Now).with_target(false).with_ansi(ansi);
    builder.fmt_fields(debug_fn(write_field).delimited(" ")).finish()
}

/// Writes one field so that it cannot end the line, move the cursor or turn the text around.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = format!("{value:?}");
    let value = printable(&text, FIELD_BYTES);
    match field.name().trim_start_matches("r#") {
        "message" => write!(writer, "{value}"),
        // Italic and dimmed, as tracing-subscriber has them.
        name if writer.has_ansi_escapes() => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}"),
        name => write!(writer, "{name}={value}"),
    }
}

/// The time of a line, in UTC and to the millisecond.
struct Now;

impl FormatTime for Now {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:.3}", Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fivespot_core::text::is_hidden;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    /// What was logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(ansi: bool, events: impl FnOnce()) -> String {
        let log = Log::default();
        let writer = log.clone();
        let dispatch = for_people(EnvFilter::new("info"), move || writer.clone(), ansi).into();
        tracing::dispatcher::with_default(&dispatch, events);
        let bytes = log.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// What a hostile server would answer.
    const HOSTILE: &str =
        "no\r\n2026-01-01T00:00:00.000Z  INFO ready\u{1b}[2K\u{9b}1A\u{202e}\u{2028}\u{200b}x";

    const SHOWN: &str =
        r"no\r\n2026-01-01T00:00:00.000Z  INFO ready\u{1b}[2K\u{9b}1A\u{202e}\u{2028}\u{200b}x";

    fn log_everywhere() {
        let error = std::io::Error::other(HOSTILE);
        let source: &(dyn std::error::Error + 'static) = &error;
        tracing::warn!(node = HOSTILE, why = %HOSTILE, debugged = ?HOSTILE, source, "failed: {HOSTILE}");
        tracing::info!(count = 3, is_ready = true, "an event like any other");
    }

    #[test]
    fn an_event_is_one_line_whatever_its_fields_hold() {
        let text = logged(false, log_everywhere);
        let lines: Vec<&str> =
            text.lines().map(|line| line.split_once("Z ").unwrap().1.trim_start()).collect();
        assert_eq!(
            lines,
            [
                format!(
                    "WARN failed: {SHOWN} node=\"{SHOWN}\" why={SHOWN} debugged=\"{SHOWN}\" source={SHOWN}"
                ),
                "INFO an event like any other count=3 is_ready=true".to_owned(),
            ]
        );
        assert!(!text.contains(|c| c != '\n' && is_hidden(c)), "{text:?}");
    }

    #[test]
    fn colours_are_ours_alone() {
        let text = logged(true, log_everywhere);
        assert_eq!(text.lines().count(), 2, "{text:?}");
        // Without the colours nothing is left that a terminal would obey.
        let plain = text.split('\u{1b}').map(|part| {
            let (colour, rest) =
                part.strip_prefix('[').and_then(|part| part.split_once('m')).unwrap_or(("", part));
            assert!(colour.chars().all(|c| c.is_ascii_digit() || c == ';'), "{colour:?} in {text:?}");
            rest
        });
        let plain: String = plain.collect();
        assert!(plain.contains(SHOWN) && !plain.contains(|c| c != '\n' && is_hidden(c)), "{plain:?}");
    }
}
