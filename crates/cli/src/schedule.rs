//! `5spot schedule`: what a schedule means, before it is trusted with a machine.

mod explain;
mod ics;
mod lint;
mod preview;
mod source;
mod svg;
mod text;

use crate::output::{self, ERROR, Lines, print, say};
use anyhow::{Context, Result, bail};
use clap::{Subcommand, ValueEnum};
use fivespot_core::zone;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, Zoned};
use preview::Preview;
use source::Source;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Subcommand)]
#[command(about = "See what a schedule means before you trust it with a machine")]
pub(crate) enum Command {
    /// Show when a machine is lent: a week at a glance and the list of changes
    Preview(PreviewArgs),
    /// Say whether a machine is lent at an instant, and why
    Explain(ExplainArgs),
    /// Find schedules that are valid but probably not meant, and embedded specs that k0smotron could not use
    ///
    /// Exit codes: 0 nothing found, 1 something to look at, 2 a file that cannot be read or would be refused.
    Lint(LintArgs),
}

#[derive(clap::Args)]
pub(crate) struct PreviewArgs {
    #[command(flatten)]
    source: Source,
    /// Where to begin: an instant (2026-11-16T03:00:00Z), or a local date or time in the schedule's zone
    /// [default: now]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// How many weeks to show
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=104))]
    weeks: u8,
    /// Your own time zone, shown beside the schedule's [default: this computer's]
    #[arg(long, value_name = "ZONE")]
    viewer: Option<String>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A picture in the terminal
    Text,
    /// For scripts
    Json,
    /// A picture as a file
    Svg,
    /// For a calendar program
    Ics,
}

#[derive(clap::Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    source: Source,
    /// When: an instant (2026-11-16T03:00:00Z), or a local date or time in the schedule's zone [default: now]
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
}

#[derive(clap::Args)]
pub(crate) struct LintArgs {
    /// Files or folders with ScheduledMachines; - is standard input
    #[arg(short, long = "filename", value_name = "FILE", num_args = 1.., required = true)]
    files: Vec<PathBuf>,
    /// The year whose changes of clocks are looked at begins here [default: now]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = lint::Format::Text)]
    output: lint::Format,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Preview(args) => preview(args),
        Command::Explain(args) => explain(args),
        Command::Lint(args) => lint::run(args),
    }
}

fn preview(args: &PreviewArgs) -> Result<ExitCode> {
    let viewer = match &args.viewer {
        Some(name) => zone::lookup(name).context("--viewer")?,
        None => TimeZone::system(),
    };
    let mut previews = Vec::new();
    for named in match args.source.read()? {
        Ok(named) => named,
        Err(refusal) => return Ok(refuse(&refusal)),
    } {
        let from = instant(args.from.as_deref(), named.schedule.zone())?;
        previews.push(Preview::new(named, from, args.weeks)?);
    }
    let only = || match &previews[..] {
        [one] => Ok(one),
        many => bail!("{} schedules: this format shows one; name a file that holds one", many.len()),
    };
    print(&match args.output {
        Format::Text => {
            let mut all = Lines::default();
            for (i, preview) in previews.iter().enumerate() {
                separate(&mut all, i);
                text::draw(&mut all, preview, &viewer)?;
            }
            return all.print();
        }
        Format::Json => json(&previews)?,
        Format::Svg => svg::render(only()?),
        Format::Ics if previews.iter().all(|preview| preview.windows().is_empty()) => {
            bail!("nothing is lent in these weeks: there is no event to write")
        }
        Format::Ics => ics::render(&previews),
    })
}

/// One schedule is an object, several are a list of them.
fn json(previews: &[Preview]) -> Result<String> {
    let values: Vec<_> = previews.iter().map(Preview::to_json).collect();
    match &values[..] {
        [one] => output::json(one),
        many => output::json(&many),
    }
}

/// An empty line before all but the first of several.
fn separate(lines: &mut Lines, i: usize) {
    if i > 0 {
        lines.line("");
    }
}

fn explain(args: &ExplainArgs) -> Result<ExitCode> {
    let mut all = Lines::default();
    let schedules = match args.source.read()? {
        Ok(named) => named,
        Err(refusal) => return Ok(refuse(&refusal)),
    };
    for (i, named) in schedules.iter().enumerate() {
        let at = instant(args.at.as_deref(), named.schedule.zone())?;
        separate(&mut all, i);
        explain::draw(&mut all, named, at)?;
    }
    all.print()
}

fn refuse(lines: &[String]) -> ExitCode {
    for line in lines {
        say(line);
    }
    ExitCode::from(ERROR)
}

/// Reads an instant, or a date or time on the clocks of `zone`; of a time that comes twice the first is meant.
fn instant(text: Option<&str>, zone: &TimeZone) -> Result<Timestamp> {
    let Some(text) = text else {
        let now = Timestamp::now();
        return Ok(Timestamp::from_second(now.as_second()).unwrap_or(now));
    };
    if let Ok(zoned) = text.parse::<Zoned>() {
        return Ok(zoned.timestamp());
    }
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Ok(instant);
    }
    let local = text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(DateTime::from)).ok();
    let Some(local) = local else {
        bail!(
            "\"{text}\" is not a time: write 2026-11-16T03:00:00Z, or 2026-11-16T03:00 or 2026-11-16 on local clocks"
        )
    };
    let ambiguous = zone.to_ambiguous_zoned(local);
    if let AmbiguousOffset::Gap { .. } = ambiguous.offset() {
        let name = zone.iana_name().unwrap_or_default();
        say(&format!(
            "5spot: {local} does not exist in {name}, where the clocks skip it: reading the time after the jump"
        ));
    }
    Ok(ambiguous.compatible()?.timestamp())
}
