//! Acks, and the drains that wait for them.

use super::{Operator, Timer};
use crate::fleet::machine::{Job, Machine};
use crate::fleet::record::{Outcome, Record};
use crate::fleet::{Effect, Ended, NodeId, Report};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long drains wait until an ack is sent. Without a session it is not, and they begin all the same.
const ACK_ASSUMED: Duration = Duration::from_secs(1);

/// How long a Node may have a record whose drain has not ended, and nobody drains it: longer than it takes to start that
/// after the record is written.
pub(super) const ORPHAN_AFTER: Duration = Duration::from_secs(5);

/// How long a drain waits for the acks of its instructions: pods must not lose their time.
const ACK_LIMIT: Duration = Duration::from_secs(10);

/// A drain of a Node.
#[derive(Debug)]
pub(super) struct Drain {
    pub(super) number: u64,
    pub(super) node: NodeId,
    pub(super) record: Record,
    pub(super) stage: Stage,
}

/// How far a drain is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for acks, until this time.
    Waits { acks: BTreeSet<String>, until: Duration },
    /// Its pods are evicted.
    Runs,
    /// It has ended, which is not written down yet.
    Ended,
}

impl Operator {
    /// An entry is dealt with, for now.
    pub(super) fn settle(&mut self, id: &str, entry: &str, is_started: bool) {
        let due = self.instructions.settle(id, entry, is_started, self.now.uptime);
        self.ack(id, due);
    }

    pub(super) fn ack(&mut self, id: &str, due: Option<i32>) {
        let Some(nodes_started) = due else { return };
        self.report(Report::Acked { instruction: id.to_owned(), nodes_started });
        self.effects.push(Effect::Ack { instruction: id.to_owned(), nodes_started });
        self.timers.insert((self.now.uptime + ACK_ASSUMED, Timer::AckAssumed(id.to_owned())));
    }

    /// An ack is sent, or is not waited for any longer: the drains of its Nodes begin.
    pub(super) fn ack_sent(&mut self, id: &str, is_sent: bool) {
        let Some(after) = self.instructions.sent(id, self.now.uptime) else { return };
        let instruction = id.to_owned();
        self.report(if is_sent {
            Report::AckSent { instruction, after }
        } else {
            Report::AckWaits { instruction }
        });
        let nodes: Vec<String> = self.drains.keys().cloned().collect();
        for node in nodes {
            let Some(drain) = self.drains.get_mut(&node) else { continue };
            if let Stage::Waits { acks, .. } = &mut drain.stage
                && acks.remove(id)
                && acks.is_empty()
            {
                self.run_drain(&node);
            }
        }
    }

    /// Drains a Node, or tells whoever does so already what has changed. It waits for the acks of the instructions that this
    /// process has.
    pub(super) fn start_drain(&mut self, node: NodeId, record: Record) {
        if self.settings.observe_only {
            let machine = record.machine;
            return self.report(Report::WouldDrain { machine, node: node.name });
        }
        match self.drains.get_mut(&node.name) {
            Some(drain) if drain.node == node && drain.stage != Stage::Ended => {
                drain.record = record.clone();
                if drain.stage == Stage::Runs {
                    self.effects.push(Effect::UpdateDrain { number: drain.number, record });
                }
                return;
            }
            // It has ended, or another Node has its name and the record was the old one's.
            Some(_) => self.stop_drain(&node.name),
            None => {}
        }
        let acks = record.instructions.iter().filter(|id| !self.instructions.is_sent(id)).cloned().collect();
        let until = self.now.uptime + ACK_LIMIT;
        self.last_drain += 1;
        let (number, name) = (self.last_drain, node.name.clone());
        self.drains.insert(name.clone(), Drain { number, node, record, stage: Stage::Waits { acks, until } });
        self.timers.insert((until, Timer::Drain(name.clone())));
        if let Some(Drain { stage: Stage::Waits { acks, .. }, .. }) = self.drains.get(&name)
            && acks.is_empty()
        {
            self.run_drain(&name);
        }
    }

    pub(super) fn is_drained(&self, node: &str) -> bool {
        let id = self.index.node(node).map(|facts| &facts.id);
        self.drains.get(node).is_some_and(|drain| Some(&drain.node) == id)
    }

    /// The record of a drain stands on a Node, and nobody may be at it: it was written, and the answer was lost.
    pub(super) fn adopt(&mut self, node: &str) {
        let Some(machine) = self.index.node(node).and_then(|facts| facts.drains_for.clone()) else { return };
        if self.is_drained(node) {
            return;
        }
        if self.machines.get(&machine).is_none_or(Machine::is_at_rest) {
            self.push(&machine, Job::Resume { node: node.to_owned() });
        } else {
            self.timers.insert((self.now.uptime + ORPHAN_AFTER, Timer::Orphan(node.to_owned())));
        }
    }

    pub(super) fn run_drain(&mut self, node: &str) {
        let Some(drain) = self.drains.get_mut(node) else { return };
        drain.stage = Stage::Runs;
        let Drain { number, node, record, .. } = drain;
        let effect = Effect::StartDrain { number: *number, node: node.clone(), record: record.clone() };
        self.effects.push(effect);
    }

    /// Stops a drain. That its record goes too may fail, and may not be wanted any more when it is tried again.
    pub(super) fn stop_drain(&mut self, node: &str) {
        self.timers.insert((self.now.uptime + ORPHAN_AFTER, Timer::Orphan(node.to_owned())));
        if let Some(drain) = self.drains.remove(node)
            && drain.stage == Stage::Runs
        {
            self.effects.push(Effect::StopDrain { number: drain.number });
        }
    }

    /// A drain has ended. It is under way until that is written down.
    pub(super) fn drain_ended(&mut self, number: u64, end: Option<(Outcome, String)>) {
        let Some(drain) = self.drains.values_mut().find(|drain| drain.number == number) else { return };
        drain.stage = Stage::Ended;
        let (node, record) = (drain.node.clone(), drain.record.clone());
        let Some((outcome, text)) = end else {
            // If its record stands on the Node all the same, somebody has to drain it.
            self.timers.insert((self.now.uptime + ORPHAN_AFTER, Timer::Orphan(node.name.clone())));
            self.drains.remove(&node.name);
            return;
        };
        let machine = record.machine.clone();
        self.report(Report::DrainEnded {
            machine: machine.clone(),
            node: node.name.clone(),
            outcome,
            text: text.clone(),
            took: self.now.time.duration_since(record.accepted_at),
        });
        self.push(&machine, Job::End(Ended { node, record, outcome, text }));
    }
}
