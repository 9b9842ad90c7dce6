//! Logs and counts what was decided.

use crate::metrics::{By, Metrics, count};
use fivespot_core::fleet::Report;
use fivespot_core::fleet::record::Outcome;

/// Logs and counts.
pub(crate) fn report(metrics: &Metrics, report: &Report) {
    match report {
        Report::Refused { entries } => {
            count(&metrics.instructions, "refused");
            tracing::error!(?entries, "an instruction without an id cannot be acked and is not carried out");
        }
        Report::Repeated { instruction, acked } => {
            count(&metrics.instructions, "repeated");
            tracing::info!(instruction, nodes_started = *acked, "known already: nothing else is done");
        }
        Report::Instructed { instruction, entries, count, grace, preemptor_priority } => {
            let grace_seconds = grace.as_secs();
            tracing::info!(
                instruction,
                ?entries,
                count,
                grace_seconds,
                preemptor_priority,
                "the shard wants Nodes back"
            );
        }
        Report::TooManyEntries { instruction, count, limit } => {
            tracing::error!(
                instruction,
                count,
                limit,
                "the instruction names too many Nodes: only the first are given back"
            );
        }
        Report::NotAName { machine } => tracing::error!(machine, "not the name of a machine"),
        Report::WouldGiveBack { instruction, entry, node } => {
            tracing::info!(instruction, entry, node, "would be given back");
        }
        Report::WouldDrain { machine, node } => tracing::info!(machine, node, "would be drained"),
        Report::WouldCallOff { node } => tracing::info!(node, "its reclaim would be called off"),
        Report::Found { instruction, entry, node, rule } => {
            count(&metrics.resolved, rule.as_str());
            tracing::info!(instruction, entry, node, found_by = rule.as_str(), "found");
        }
        Report::NotFound { instruction, entry } => {
            count(&metrics.resolved, "unresolved");
            tracing::warn!(instruction, entry, "no Node is found for it; looked for until the deadline");
        }
        Report::UsedAgain { instruction, entry } => {
            tracing::warn!(instruction, entry, "the machine is in use again: not cordoned");
        }
        Report::NotCordonedYet { machine, why } => tracing::warn!(machine, "not cordoned yet: {why}"),
        Report::GivenUp { instruction, machine, why } => {
            count(&metrics.instructions, "not_cordoned");
            tracing::error!(instruction, machine, "given up: {why}");
        }
        Report::Cordoned { instructions, machine, node, deadline, by_us } => {
            tracing::info!(?instructions, machine, node, %deadline, by_us, "cordoned");
        }
        Report::KnownAlready { instructions, node } => {
            tracing::info!(?instructions, node, "the record on the Node knows it already");
        }
        Report::CordonedUnasked { machine, node, rule, deadline } => {
            count(&metrics.instructions, "lost");
            let found_by = rule.as_str();
            tracing::warn!(machine, node, found_by, %deadline, "drains without an instruction: cordoned");
        }
        Report::NoNodeToDrain { machine } => tracing::warn!(machine, "drains, and no Node is found for it"),
        Report::CalledOff { node, uncordoned } => {
            tracing::info!(node, uncordoned, "the machine is used again: the reclaim is over");
        }
        Report::Resumed { machine, node, deadline } => {
            tracing::info!(machine, node, %deadline, "goes on with a drain whose record stands on the Node");
        }
        Report::DrainEnded { machine, node, outcome, text, took } => {
            let took = took.as_secs_f64().max(0.0);
            metrics.drains.get_or_create(&By { result: outcome.as_str() }).observe(took);
            drain_ended(machine, node, *outcome, text);
        }
        Report::Acked { instruction, nodes_started } => tracing::info!(instruction, nodes_started, "acked"),
        Report::AckSent { instruction, after } => {
            count(&metrics.instructions, "acked");
            metrics.ack_latency.observe(after.as_secs_f64());
            let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(instruction, millis, "the ack is sent");
        }
        Report::AckWaits { instruction } => {
            count(&metrics.instructions, "ack_waits");
            tracing::warn!(instruction, "the ack waits for a session; the drains do not");
        }
        Report::NotDoneYet { machine, why, tries } => {
            count(&metrics.writes, "failed");
            if *tries == 0 {
                tracing::warn!(machine, "not done yet, tried again until it is: {why}");
            } else {
                tracing::debug!(machine, tries, "not done yet: {why}");
            }
        }
        Report::NotTold { machine, why } => {
            count(&metrics.writes, "failed");
            tracing::warn!(machine, "its UpcomingNode does not say it: {why}");
        }
        Report::Forgotten { machine } => {
            tracing::info!(machine, "the shard does not know it any more: forgotten");
        }
    }
}

fn drain_ended(machine: &str, node: &str, outcome: Outcome, text: &str) {
    match outcome {
        Outcome::Drained => tracing::info!(machine, node, "drained"),
        Outcome::Failed => tracing::error!(machine, node, "not drained: {text}"),
    }
}
