//! `5spot resume`: a machine that its owner took back is lent again.

use super::table::span;
use super::{Report, ReportFormat, find, why};
use crate::output::{Lines, WARNED};
use anyhow::{Result, bail};
use fivespot_cluster::{Error, Watched};
use fivespot_core::intent::Intent;
use fivespot_core::lifecycle::{Orders, Patience};
use fivespot_core::reclaim::{RAPID_WITHIN, Reclaim, Stage};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::process::ExitCode;

/// How often a write is tried again that others came before.
const ATTEMPTS: usize = 10;

#[derive(clap::Args)]
pub(crate) struct ResumeArgs {
    /// Name of a ScheduledMachine
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    place: super::Place,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Text)]
    output: ReportFormat,
}

pub(super) async fn run(args: &ResumeArgs) -> Result<ExitCode> {
    let (shell, namespace) = args.place.open().await?;
    for _ in 0..ATTEMPTS {
        let watched = find(&shell, &namespace, &args.name).await?;
        let case = Case::of(&watched);
        let reclaim = match case.verdict() {
            Verdict::Not(outcome, lines) => {
                case.report(outcome, lines).print(args.output)?;
                return Ok(ExitCode::from(WARNED));
            }
            Verdict::Resume(reclaim) => reclaim,
        };
        match shell.resume(&watched, &reclaim.id).await {
            Err(Error::Changed { .. }) => {}
            outcome => {
                outcome?;
                let lines = case.told(reclaim, Timestamp::now());
                return case.report("Resumed", lines).print(args.output);
            }
        }
    }
    bail!("{namespace}/{} changes all the time: nothing was resumed, try again", args.name)
}

/// A machine, and what was its last reclaim.
struct Case<'a> {
    watched: &'a Watched,
    orders: Orders,
    reclaim: Option<Reclaim>,
}

/// Whether there is something to resume.
enum Verdict<'a> {
    /// This.
    Resume(&'a Reclaim),
    /// Nothing: a word for scripts, lines for people.
    Not(&'static str, Vec<String>),
}

impl<'a> Case<'a> {
    fn of(watched: &'a Watched) -> Self {
        let orders = watched.orders(Patience::Endless, &[]);
        Self { watched, orders, reclaim: watched.machine.memory().reclaim }
    }

    fn verdict(&self) -> Verdict<'_> {
        let key = self.watched.key();
        let Orders { deletion, enabled, reclaim: calls, .. } = &self.orders;
        if deletion.is_some() {
            let text = format!("{key} is being deleted: there is nothing to resume");
            return Verdict::Not("Deleting", vec![text]);
        }
        let stage = self.reclaim.as_ref().map_or(Stage::Over, Reclaim::stage);
        match (&self.reclaim, stage, &calls.request) {
            (Some(reclaim), Stage::Held, _) => Verdict::Resume(reclaim),
            (Some(Reclaim { id, reason, .. }), Stage::UnderWay, _) => {
                let text = format!(
                    "{key} is being taken back now: reclaim {id} ({}). Nothing was resumed: wait until it is \
                     Disabled, and resume it then",
                    why(reason)
                );
                Verdict::Not("UnderWay", vec![text])
            }
            (_, _, Some(request)) => {
                let text = format!(
                    "{key} was asked back ({}), and the controller has not taken that on yet. Nothing was resumed: wait \
                     until it is Disabled, and resume it then",
                    why(&request.reason)
                );
                Verdict::Not("UnderWay", vec![text])
            }
            (_, _, None) => {
                let because = if self.reclaim.is_some() {
                    "it was resumed after its owner had taken it back"
                } else {
                    "its owner has not taken it back"
                };
                let (end, disabled) = if *enabled {
                    ("", None)
                } else {
                    (
                        ".",
                        Some(
                            "  Somebody else set spec.schedule.enabled to false: set it to true to lend the machine",
                        ),
                    )
                };
                let first = format!("{key}: nothing to resume, {because}{end}");
                let lines = std::iter::once(first).chain(disabled.map(str::to_owned)).collect();
                Verdict::Not("NothingToResume", lines)
            }
        }
    }

    /// The whole story, for whoever has forgotten it.
    fn told(&self, reclaim: &Reclaim, now: Timestamp) -> Vec<String> {
        let mut lines = vec![
            format!("{}: lent again by its schedule", self.watched.key()),
            String::new(),
            format!("  taken back  {}", why(&reclaim.reason)),
        ];
        if let Some(at) = reclaim.accepted_at {
            lines.push(format!("  when        {at}, {} ago", span(now.as_second() - at.as_second())));
        }
        if let Some(node) = &reclaim.node {
            lines.push(format!("  node        {}", node.name));
        }
        if reclaim.is_rapid() {
            lines.push(format!(
                "  often       {} times within {} minutes: look for what starts the program",
                reclaim.recent.len(),
                RAPID_WITHIN.as_mins()
            ));
        }
        let commands = &self.orders.reclaim.commands;
        if !commands.is_empty() {
            lines.push(format!(
                "  programs    {}: whether one still runs is not known here: its agent looks when the machine has joined, \
                 and if so it is taken back again",
                commands.join(", ")
            ));
        }
        lines.push(format!("  next        {}", self.next(now)));
        lines
    }

    fn next(&self, now: Timestamp) -> String {
        if self.orders.kill_switch {
            return "spec.killSwitch is true: it stays out until that is false".to_owned();
        }
        if self.orders.paused {
            return "paused by annotation: nothing is created until that is removed".to_owned();
        }
        let intent = match Intent::try_from(&self.watched.machine) {
            Ok(intent) => intent,
            Err(invalid) => return format!("the spec cannot be read: {invalid}"),
        };
        let window = intent.schedule.at(now);
        match window.until {
            _ if window.active => "its window is open: it joins now".to_owned(),
            Some(until) => {
                let there = until.to_zoned(intent.schedule.zone().clone());
                let when = span(until.as_second() - now.as_second());
                format!("it joins when its window opens, in {when} ({})", there.strftime("%a %H:%M %Z"))
            }
            None => "its window never opens".to_owned(),
        }
    }

    fn report(&self, outcome: &str, lines: Vec<String>) -> Report {
        let reclaim = self.reclaim.as_ref().map(|reclaim| {
            json!({
                "id": reclaim.id,
                "reason": reclaim.reason,
                "requestedAt": reclaim.requested_at,
                "acceptedAt": reclaim.accepted_at.map(|at| at.to_string()),
                "node": reclaim.node.as_ref().map(|node| node.name.clone()),
            })
        });
        let value: Value = json!({
            "namespace": self.watched.key().namespace,
            "name": self.watched.key().name,
            "outcome": outcome,
            "message": lines.first(),
            "reclaim": reclaim,
            "programs": self.orders.reclaim.commands,
        });
        Report { text: Lines::from_iter(lines), value }
    }
}
