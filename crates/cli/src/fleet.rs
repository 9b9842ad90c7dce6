//! `5spot fleet`: what the fleet takes back.

use crate::live::table::{span, table};
use crate::live::{Access, Report, ReportFormat, runtime};
use crate::output::{Lines, WARNED};
use anyhow::Result;
use clap::Subcommand;
use fivespot_api::names::CLI;
use fivespot_cluster::connect;
use fivespot_cluster::fleet::{Fleet, Taken};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Seconds after its deadline in which somebody may still be at a drain: what is ended by force has a minute, and the end
/// is to be written down.
const LATE: i64 = 75;

/// Look at what the fleet takes back
#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the Nodes that the fleet takes back: until when they are drained, and what holds them
    ///
    /// Exit codes: 0 all drains go well or are done, 1 one is held up or has failed, 2 an error.
    Status(StatusArgs),
}

#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    access: Access,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Text)]
    output: ReportFormat,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Status(args) => runtime()?.block_on(status(args)),
    }
}

async fn status(args: &StatusArgs) -> Result<ExitCode> {
    let config = args.access.config().await?;
    let fleet = Fleet::new(connect(&config, &CLI.into())?, CLI);
    let mut taken = fleet.taken().await?;
    taken.sort_by(|a, b| a.node.cmp(&b.node));
    let now = Timestamp::now();
    let drains: Vec<Drain> = taken.iter().map(|it| Drain::read(it, now)).collect();
    let report =
        Report { text: text(&drains), value: json!(drains.iter().map(Drain::value).collect::<Vec<_>>()) };
    report.print(args.output)?;
    let is_bad = drains.iter().any(|drain| drain.state == "failed" || !drain.held.is_empty());
    Ok(if is_bad { ExitCode::from(WARNED) } else { ExitCode::SUCCESS })
}

/// One Node that the fleet takes back, as its record says.
struct Drain {
    node: String,
    machine: String,
    state: &'static str,
    ends: String,
    deadline: String,
    instruction: String,
    held: String,
}

impl Drain {
    fn read(taken: &Taken, now: Timestamp) -> Self {
        let record: Value = serde_json::from_str(&taken.record).unwrap_or_default();
        let word = |field: &str| record[field].as_str().unwrap_or_default().to_owned();
        let deadline = word("deadline");
        let left = deadline.parse::<Timestamp>().ok().map(|it| it.as_second() - now.as_second());
        let (state, ends) = match (record["outcome"].as_str(), left) {
            (Some("Drained"), _) => ("drained", "-".to_owned()),
            (Some("Failed"), _) => ("failed", "-".to_owned()),
            (_, Some(left)) if left >= 0 => ("draining", format!("in {}", span(left))),
            (_, Some(left)) => ("overdue", format!("{} ago", span(left))),
            (_, None) => ("unreadable", "-".to_owned()),
        };
        let held = match state {
            "drained" => String::new(),
            "overdue" if left.is_some_and(|left| left >= -LATE) => taken.progress.clone(),
            "overdue" => {
                let last = Some(&taken.progress).filter(|text| !text.is_empty());
                let last = last.map_or(String::new(), |text| format!(" The last word was: {text}"));
                format!("nobody goes on with it: is the fleet operator running?{last}")
            }
            "unreadable" => "the annotation 5spot.finos.org/fleet-reclaim cannot be read".to_owned(),
            _ => taken.progress.clone(),
        };
        let instructions = record["instructions"].as_array().cloned().unwrap_or_default();
        let instruction = instructions.last().and_then(Value::as_str).unwrap_or("-").to_owned();
        Self { node: taken.node.clone(), machine: word("machine"), state, ends, deadline, instruction, held }
    }

    fn value(&self) -> Value {
        json!({
            "node": self.node, "machine": self.machine, "state": self.state, "deadline": self.deadline,
            "instruction": self.instruction, "heldBy": self.held,
        })
    }
}

fn text(drains: &[Drain]) -> Lines {
    if drains.is_empty() {
        return Lines::from_iter(["the fleet takes no Node back"]);
    }
    let head = ["NODE", "MACHINE", "STATE", "ENDS", "INSTRUCTION", "HELD BY"].map(str::to_owned).to_vec();
    let row = |it: &Drain| {
        let words = if it.held.is_empty() { "-" } else { &it.held };
        [&it.node, &it.machine, it.state, &it.ends, &it.instruction, words].map(str::to_owned).to_vec()
    };
    let rows: Vec<_> = std::iter::once(head).chain(drains.iter().map(row)).collect();
    table(&rows).into_iter().collect()
}
