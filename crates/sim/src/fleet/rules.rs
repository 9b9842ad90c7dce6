//! What must hold at every moment, and when everything has come to rest.

use super::{ACK_SLACK, MACHINES, Told, World, node_of};
use fivespot_core::drain::PodId;
use fivespot_core::fleet::MachineState;
use fivespot_core::fleet::phase::Phase;
use fivespot_core::fleet::record::Record;
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeSet;

impl World {
    /// The ack goes before the first eviction, unless nobody hears it.
    pub(super) fn check_ack_before_eviction(
        &mut self,
        record: &Record,
        begun_for: Option<&str>,
        pod: &PodId,
    ) {
        let Some(told) = begun_for.and_then(|id| self.told.get(id)) else { return };
        let since = |at: Timestamp| self.now.duration_since(at);
        let was_decided = told.decided_at.is_some_and(|at| since(at) >= SignedDuration::from_secs(1));
        let has_waited = since(record.cordoned_at) >= SignedDuration::from_secs(10);
        if !told.is_sent && !was_decided && !has_waited {
            self.break_rule(format!("{pod} is evicted before the ack of {begun_for:?}"));
        }
    }

    /// Whatever an instruction meets, its own deadline is when it is acked at the latest.
    pub(super) fn check_acks(&mut self) {
        if self.faults.slow {
            return;
        }
        let late = |told: &&Told| told.acked.is_none() && self.now.duration_since(told.deadline) > ACK_SLACK;
        let late: Vec<String> =
            self.told.iter().filter(|(_, told)| late(told)).map(|(id, _)| id.clone()).collect();
        for id in late {
            if let Some(told) = self.told.get_mut(&id) {
                told.acked = Some(0);
            }
            self.break_rule(format!("{id} is not acked at its deadline"));
        }
    }

    /// What must hold when everything has come to rest, and every deadline is over.
    pub(super) fn check_end(&mut self) {
        let mut broken = Vec::new();
        if !self.operator.is_settled() {
            broken.push("an instruction is never acked".to_owned());
        }
        for (id, told) in &self.told {
            for machine in told.machines.iter().filter(|machine| told.is_clean[**machine]) {
                let name = node_of(MACHINES[*machine]);
                let record = self.nodes.get(&name).and_then(|object| object.node.record.as_ref());
                if record.is_none_or(|record| !record.instructions.contains(id)) {
                    broken.push(format!("{id} of {} left nothing on {name}", told.at));
                }
            }
        }
        for (number, name) in MACHINES.into_iter().enumerate() {
            broken.extend(self.check_machine(number, name));
        }
        let leftover: BTreeSet<&String> = self
            .nodes
            .iter()
            .filter(|(_, object)| object.node.record.as_ref().is_some_and(Record::is_running))
            .map(|(name, _)| name)
            .collect();
        if !leftover.is_empty() {
            broken.push(format!("drains never end: {leftover:?}"));
        }
        for text in broken {
            self.break_rule(text);
        }
    }

    pub(super) fn check_machine(&self, number: usize, name: &str) -> Option<String> {
        let object = self.nodes.get(&node_of(name));
        let record = object.and_then(|object| object.node.record.as_ref());
        let phase = self.upcoming.get(name).and_then(|upcoming| upcoming.status.phase);
        let is_wrong = match self.states[number]? {
            MachineState::Configured if self.is_reused[number] => {
                record.is_some()
                    || phase != Some(Phase::Ready)
                    || object.is_some_and(|object| object.node.is_cordoned && !object.is_admins)
            }
            MachineState::Configuring => {
                record.is_some()
                    || phase != Some(Phase::Registered)
                    || object.is_some_and(|object| object.node.is_cordoned && !object.is_admins)
            }
            MachineState::Draining if object.is_some() => {
                !matches!(phase, Some(Phase::Drained | Phase::Failed))
            }
            // Its pods may have been moved since.
            MachineState::Failed => !matches!(phase, Some(Phase::Failed | Phase::Drained)),
            MachineState::Configured
            | MachineState::Draining
            | MachineState::Idle
            | MachineState::Unspecified
            | MachineState::Speculative
            | MachineState::Creating
            | MachineState::Deleting => false,
        };
        is_wrong.then(|| {
            let state = self.states[number];
            format!(
                "{name} is {state:?}, its UpcomingNode says {phase:?}, on its Node is {record:?}: {object:?}"
            )
        })
    }
}
