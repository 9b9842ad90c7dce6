//! What is said of a machine to somebody who may not read everything that the controller looks at, such as its owner.
//!
//! A decision on half of the facts would be wrong, so none is made here: what status says is shown as what it is, with
//! every part that may be read, and for each other part the right that is missing.

use super::super::ExplainFormat;
use super::super::table::span;
use super::{of_machine, of_part, without_node};
use crate::output::{self, Lines, WARNED, print};
use anyhow::Result;
use fivespot_api::ScheduledMachineStatus;
use fivespot_cluster::{Readable, Surroundings, Watched};
use fivespot_core::field::Invalid;
use fivespot_core::intent::Intent;
use fivespot_core::lifecycle::{Orders, Phase};
use fivespot_core::observed::{Certainty, Cluster, Object, Presence, Workload};
use jiff::Timestamp;
use serde_json::json;
use std::process::ExitCode;

/// What may be said about one machine.
pub(super) struct Page<'a> {
    pub(super) watched: &'a Watched,
    pub(super) now: Timestamp,
    pub(super) orders: Orders,
    pub(super) wish: Result<&'a Intent, &'a Invalid>,
    pub(super) surroundings: &'a Surroundings,
}

/// One part of the world around a machine, in words.
struct Line {
    part: &'static str,
    text: String,
    /// The right without which it is not shown.
    missing_right: Option<String>,
}

impl Page<'_> {
    pub(super) fn print(&self, format: ExplainFormat) -> Result<ExitCode> {
        match format {
            ExplainFormat::Text => self.text().print()?,
            ExplainFormat::Json => print(&output::json(&self.json())?)?,
        };
        let needs_a_person = self.watched.machine.memory().phase == Some(Phase::Error);
        Ok(if needs_a_person { ExitCode::from(WARNED) } else { ExitCode::SUCCESS })
    }

    fn status(&self) -> ScheduledMachineStatus {
        self.watched.machine.status.clone().unwrap_or_default()
    }

    fn text(&self) -> Lines {
        let mut out = Lines::default();
        // Writing to memory cannot fail.
        let _ = self.draw(&mut out);
        out
    }

    fn draw(&self, out: &mut Lines) -> std::fmt::Result {
        let status = self.status();
        let phase = status.phase.as_deref().unwrap_or("not looked at by the controller yet");
        writeln!(out, "{}: {phase}", self.watched.key())?;
        if let Some(message) = &status.message {
            writeln!(out, "  {message}")?;
        }
        writeln!(
            out,
            "  (as the controller last wrote it: what it would do now is not worked out, since you may not read all that \
             it looks at)"
        )?;
        writeln!(out)?;
        writeln!(out, "  window      {}", super::Page::window(self.wish, self.now))?;
        for order in self.orders() {
            writeln!(out, "  order       {order}")?;
        }
        for Line { part, text, .. } in self.parts() {
            writeln!(out, "  {part:<11} {text}")?;
        }
        for condition in &status.conditions {
            let word = format!("{}={} {}", condition.type_, condition.status, condition.reason);
            // What stands above already is not said again.
            let is_said = Some(&condition.message) == status.message.as_ref();
            if is_said || condition.message.is_empty() {
                writeln!(out, "  condition   {word}")?;
            } else {
                writeln!(out, "  condition   {word}: {}", condition.message)?;
            }
        }
        if let Some(next) = &status.next_transition {
            let left = span(next.0.as_second() - self.now.as_second());
            writeln!(out, "  changes     {}, in {left}, if nothing else happens", next.0)?;
        }
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        let status = self.status();
        let hidden = |line: Line| Some(json!({"part": line.part, "right": line.missing_right?}));
        json!({
            "namespace": self.watched.key().namespace,
            "name": self.watched.key().name,
            "at": self.now.to_string(),
            "phase": null,
            "phaseInStatus": status.phase,
            "message": status.message,
            "orders": self.orders(),
            "windowOpen": self.wish.ok().map(|intent| intent.schedule.at(self.now).active),
            "changesAt": status.next_transition.map(|next| next.0.to_string()),
            "notReadable": self.parts().into_iter().filter_map(hidden).collect::<Vec<_>>(),
            "conditions": status.conditions.iter().map(|it| json!({
                "type": it.type_, "status": it.status, "reason": it.reason, "message": it.message,
            })).collect::<Vec<_>>(),
        })
    }

    fn orders(&self) -> Vec<String> {
        super::Page::orders_in_words(&self.orders, self.watched.machine.memory().reclaim.as_ref())
    }

    fn parts(&self) -> [Line; 5] {
        let Surroundings { cluster, bootstrap, infrastructure, machine, workload } = self.surroundings;
        let name = &self.watched.machine.spec.cluster_name;
        let part = |part: &Presence<Object>| of_part(part, self.now);
        let mut cluster = line("cluster", cluster, |cluster| match cluster {
            Cluster::Absent(_) => "not found".to_owned(),
            Cluster::Present { deleting: true, .. } => "is being deleted".to_owned(),
            Cluster::Present { paused: true, .. } => "is paused".to_owned(),
            Cluster::Present { .. } => "is there".to_owned(),
        });
        cluster.text = format!("{name}: {}", cluster.text);
        // Where the Machine is not shown, its Node is not either.
        let no_machine = Presence::Absent(Certainty::Confirmed);
        let seen_machine = if let Readable::Read(machine) = machine { machine } else { &no_machine };
        let mut node = line("node", workload, |workload| match workload {
            Workload::Unreachable(why) => {
                format!("not known, the workload cluster cannot be reached: {}", why.message)
            }
            Workload::NotAsked | Workload::Reachable(_, None) => without_node(seen_machine).to_owned(),
            Workload::Reachable(_, Some(node)) => node.name.clone(),
        });
        if let (Some(_), Some(known)) = (&node.missing_right, self.status().node_ref) {
            node.text = format!("{}, as status says; {}", known.name, node.text);
        }
        [
            cluster,
            line("bootstrap", bootstrap, part),
            line("infra", infrastructure, part),
            line("machine", machine, |machine| of_machine(machine, self.now)),
            node,
        ]
    }
}

fn line<T>(part: &'static str, readable: &Readable<T>, words: impl FnOnce(&T) -> String) -> Line {
    match readable {
        Readable::Read(it) => Line { part, text: words(it), missing_right: None },
        Readable::Forbidden(right) => Line {
            part,
            text: format!("not shown: you have no right to {right}"),
            missing_right: Some(right.clone()),
        },
        Readable::Failed(why) => Line { part, text: format!("not known: {why}"), missing_right: None },
    }
}
