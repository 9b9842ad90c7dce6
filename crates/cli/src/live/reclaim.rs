//! `5spot reclaim`: the owner wants the machine back, and says so by hand.
//!
//! It writes one request on the ScheduledMachine. Everything that follows is the controller's work, the same as for a
//! request of the reclaim agent.

use super::follow::{self, Follow, Step};
use super::{Report, ReportFormat, find, why};
use crate::output::{Lines, WARNED};
use anyhow::{Result, bail};
use fivespot_cluster::{Shell, Watched};
use fivespot_core::drain::FORCED;
use fivespot_core::lifecycle::{Orders, Patience};
use fivespot_core::reclaim::{Reclaim, Request, Stage};
use fivespot_core::text::is_hidden;
use jiff::Timestamp;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What every reason begins with that a person gave, as the agent's begin with `process-match: `.
const BY_HAND: &str = "by-hand: ";

/// Longest text for a reason: with what stands before it, it fits into what is kept of one.
const REASON_CHARS: usize = 240;

#[derive(clap::Args)]
pub(crate) struct ReclaimArgs {
    /// Name of a ScheduledMachine
    #[arg(value_name = "NAME")]
    name: String,
    /// Why, in a few words: they are shown wherever the machine is, until it is lent again
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
    #[command(flatten)]
    place: super::Place,
    /// Stay until the machine is with its owner, and tell of each step when it is done
    #[arg(short, long)]
    wait: bool,
    /// How long to stay at most
    #[arg(long, value_name = "DURATION", default_value = "2m", requires = "wait",
          value_parser = fivespot_core::duration::parse)]
    timeout: Duration,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Text)]
    output: ReportFormat,
}

/// One line that can be shown anywhere.
fn reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.chars().count() {
        0 => Err("say why, in a few words".to_owned()),
        _ if text.contains(is_hidden) => Err("one line, without control or invisible characters".to_owned()),
        1..=REASON_CHARS => Ok(text.to_owned()),
        count => Err(format!("{count} characters are too many: at most {REASON_CHARS}")),
    }
}

/// What comes of the wish to have the machine.
struct Answer {
    /// One word, for scripts.
    outcome: &'static str,
    /// For people, line by line.
    lines: Vec<String>,
    /// Whether the machine is on its way to its owner.
    comes: bool,
}

pub(super) async fn run(args: &ReclaimArgs) -> Result<ExitCode> {
    let (shell, namespace) = args.place.open().await?;
    let watched = find(&shell, &namespace, &args.name).await?;
    let orders = watched.orders(Patience::Endless, &[]);
    let asked = Instant::now();
    let answer = match no_need(&watched, &orders) {
        Some(answer) => answer,
        None => ask(&shell, &watched, &orders, &args.reason).await?,
    };
    let follows = args.wait && answer.comes;
    let report =
        |steps: &[(Step, Duration)]| answer.report(&watched, follows.then_some(steps)).print(args.output);
    // People read along; scripts get everything at the end.
    if !follows || args.output == ReportFormat::Text {
        report(&[])?;
    }
    if follows {
        let steps = wait(&shell, &watched, args, asked).await?;
        if args.output != ReportFormat::Text {
            report(&steps)?;
        }
    }
    Ok(if answer.comes { ExitCode::SUCCESS } else { ExitCode::from(WARNED) })
}

/// Why there is nothing to ask for, if so.
fn no_need(watched: &Watched, orders: &Orders) -> Option<Answer> {
    let key = watched.key();
    if orders.deletion.is_some() {
        let text = format!("{key} is being deleted: the machine leaves anyway, and nothing was asked");
        return Some(Answer { outcome: "Deleting", lines: vec![text], comes: false });
    }
    let last = watched.machine.memory().reclaim;
    match last.as_ref().map(|last| (last.stage(), last)) {
        Some((Stage::Held, Reclaim { id, reason, .. })) if watched.machine.returned_node().is_some() => {
            let message = watched.machine.status.as_ref().and_then(|status| status.message.clone());
            let held = format!("{key} is held by reclaim {id} ({}), and nothing was asked.", why(reason));
            let lines = vec![held, format!("  {}", message.unwrap_or_default())];
            Some(Answer { outcome: "HostNotCleaned", lines, comes: false })
        }
        Some((Stage::Held, Reclaim { id, reason, .. })) => {
            let held = format!(
                "{key} is with its owner already: reclaim {id} ({}) holds it, and nothing was asked.",
                why(reason)
            );
            let lines = vec![held, format!("  To lend it again: {}", orders.reclaim.resume_command)];
            Some(Answer { outcome: "Held", lines, comes: false })
        }
        _ if orders.kill_switch => {
            let text = format!(
                "{key}: spec.killSwitch is true, so the machine leaves at once or has left, and nothing was asked"
            );
            Some(Answer { outcome: "KillSwitch", lines: vec![text], comes: false })
        }
        Some((Stage::UnderWay, Reclaim { id, reason, .. })) => {
            let text = format!("{key} is being taken back already: reclaim {id} ({})", why(reason));
            Some(Answer { outcome: "UnderWay", lines: vec![text], comes: true })
        }
        Some((Stage::Over, _)) | None => None,
    }
}

async fn ask(shell: &Shell, watched: &Watched, orders: &Orders, reason: &str) -> Result<Answer> {
    let requested_at = format!("{:.3}", Timestamp::now());
    let request = Request { reason: format!("{BY_HAND}{reason}"), requested_at };
    shell.ask_back(watched, &request).await?;
    Ok(Answer { outcome: "Asked", lines: what_follows(watched, orders, &request), comes: true })
}

fn what_follows(watched: &Watched, orders: &Orders, request: &Request) -> Vec<String> {
    let status = watched.machine.status.as_ref();
    let node = status.and_then(|status| status.node_ref.as_ref());
    let machine = status.and_then(|status| status.machine_ref.as_ref());
    let first = match (node, machine) {
        (Some(node), _) => format!(
            "Node {} is cordoned and its pods end without grace, within {} s; then its Machine is deleted",
            node.name,
            FORCED.as_secs()
        ),
        (None, Some(_)) => "it has no Node yet; its Machine is deleted".to_owned(),
        (None, None) => match watched.machine.returned_node() {
            Some(node) => format!(
                "Node {node} of its host is in the cluster without a Machine: it is cordoned and its pods end without \
                 grace, within {} s; then the host must be cleaned by hand",
                FORCED.as_secs()
            ),
            None => "it is not in the cluster now, and is kept out of it".to_owned(),
        },
    };
    let mut lines =
        vec![format!("{}: asked back at once ({})", watched.key(), request.reason), format!("  {first}")];
    if orders.paused {
        lines.push("  it is paused: all but the drain follows when the pause ends".to_owned());
    }
    lines.push(format!(
        "  spec.schedule.enabled becomes false, and it stays with its owner until: {}",
        orders.reclaim.resume_command
    ));
    lines
}

impl Answer {
    fn report(&self, watched: &Watched, steps: Option<&[(Step, Duration)]>) -> Report {
        let mut value = json!({
            "namespace": watched.key().namespace,
            "name": watched.key().name,
            "outcome": self.outcome,
            "message": self.lines.join("\n"),
        });
        if let Some(steps) = steps {
            let step = |(step, after): &(Step, Duration)| json!({"step": step.word(), "afterSeconds": after.as_secs_f64()});
            value["steps"] = steps.iter().map(step).collect();
        }
        Report { text: self.lines.iter().collect(), value }
    }
}

/// Tells of the steps as they are done, until the last.
async fn wait(
    shell: &Shell,
    watched: &Watched,
    args: &ReclaimArgs,
    since: Instant,
) -> Result<Vec<(Step, Duration)>> {
    let mut follow = Follow::new(watched);
    let mut done = Vec::new();
    let mut is_told = false;
    while since.elapsed() < args.timeout {
        let steps = follow.look(shell).await?;
        if follow.hides_pods() && !is_told && args.output == ReportFormat::Text {
            let line =
                "  (when its pods are gone is not shown: you have no right to read its Machine and its Node)";
            Lines::from_iter([line]).print()?;
            is_told = true;
        }
        for step in steps {
            let after = since.elapsed();
            if args.output == ReportFormat::Text {
                Lines::from_iter([format!("  {:>6.2} s  {step}", after.as_secs_f64())]).print()?;
            }
            done.push((step, after));
        }
        if follow.is_over() {
            return Ok(done);
        }
        if follow.needs_cleaning() {
            break;
        }
        tokio::time::sleep(follow::LOOK).await;
    }
    let key = watched.key();
    let state = follow.state();
    bail!("{key} is not with its owner after {} s: {state}", since.elapsed().as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_that_says_something() {
        assert_eq!(reason(" I need it "), Ok("I need it".to_owned()));
        for bad in ["", "  ", "a\nb", "\u{1b}[2J", "a\u{202e}b", "a\u{200b}b", &"x".repeat(REASON_CHARS + 1)]
        {
            assert!(reason(bad).is_err(), "{bad:?}");
        }
        assert!(reason(&"x".repeat(REASON_CHARS)).is_ok());
    }
}
