//! The API server of the world: what the operator asks for is done here as the shell does it.

use super::{Drain, World};
use fivespot_core::drain::{Attempt, Attempts, Outcome as Answer, PodId};
use fivespot_core::fleet::drain::{FleetDrain, Pass};
use fivespot_core::fleet::pods::{PodFacts, Policy};
use fivespot_core::fleet::record::{Outcome, Record};
use fivespot_core::fleet::{
    Action, Effect, Facts, Input, NodeId, Upcoming, UpcomingStatus, Write, WriteError, Written,
};

impl World {
    /// Does what is to be done until nothing is.
    pub(super) fn run(&mut self) {
        for _ in 0..20_000 {
            if self.faults.slow {
                return;
            }
            if self.pending.is_empty() && self.watched.is_empty() {
                return;
            }
            self.answer_oldest();
        }
        self.break_rule("it never comes to rest".to_owned());
    }

    pub(super) fn answer_oldest(&mut self) {
        if let Some(effect) = self.pending.pop_front() {
            self.perform(effect);
        } else if let Some(input) = self.watched.pop_front() {
            self.hear(input);
        }
    }

    pub(super) fn fails(&mut self) -> bool {
        let fails = self.faults.calls_fail > 0;
        self.faults.calls_fail = self.faults.calls_fail.saturating_sub(1);
        if fails {
            self.dirty(&[0, 1]);
        }
        fails
    }

    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Read { machine, node, upcoming } => {
                let facts = if self.fails() {
                    Err("no answer".to_owned())
                } else {
                    let node = node.and_then(|name| self.nodes.get(&name)).map(|object| object.node.clone());
                    let upcoming = self.upcoming.get(&machine).filter(|_| upcoming).cloned();
                    Ok(Box::new(Facts { node, upcoming }))
                };
                self.hear(Input::Read(machine, facts));
            }
            Effect::Write { machine, writes } => {
                let written = self.write_all(&machine, &writes);
                self.hear(Input::Written(machine, written));
            }
            Effect::Ack { instruction, nodes_started } => self.ack(&instruction, nodes_started),
            Effect::StartDrain { number, node, record } => {
                let state = FleetDrain::new(node.clone(), Policy::default(), (String::new(), String::new()));
                // One that another process was told of was acked by that.
                let begun_for = record.instructions.last().filter(|id| self.told.contains_key(*id)).cloned();
                self.drains.insert(number, Drain { state, node, record, begun_for });
                self.drain(number);
            }
            Effect::UpdateDrain { number, record } => {
                if let Some(drain) = self.drains.get_mut(&number) {
                    drain.record = record;
                }
                self.drain(number);
            }
            Effect::StopDrain { number } => drop(self.drains.remove(&number)),
            Effect::Notify(notice) => self.note(&format!("event {}: {}", notice.reason, notice.text)),
            Effect::Report(report) => self.note(&format!("{report:?}")),
        }
    }

    pub(super) fn ack(&mut self, id: &str, nodes_started: i32) {
        let Some(told) = self.told.get_mut(id) else { return };
        let (before, machines) = (told.acked.replace(nodes_started), told.machines.len());
        if before.is_some_and(|before| before != nodes_started) {
            self.break_rule(format!("{id} is acked with {before:?} and with {nodes_started}"));
        }
        if usize::try_from(nodes_started).is_ok_and(|count| count > machines) {
            self.break_rule(format!("{id} is acked with {nodes_started} Nodes of {machines}"));
        }
        if self.has_session {
            self.send_ack(id);
        }
    }

    pub(super) fn write_all(&mut self, machine: &str, writes: &[Write]) -> Written {
        let mut missed = Vec::new();
        for Write { action, is_required } in writes {
            match self.write(machine, action) {
                Ok(()) => {}
                Err(error) if *is_required => return Written { result: Err(error), missed },
                Err(error) => missed.push(error.text),
            }
        }
        Written { result: Ok(()), missed }
    }

    pub(super) fn write(&mut self, machine: &str, action: &Action) -> Result<(), WriteError> {
        let error = |text: &str, is_race| Err(WriteError { text: text.to_owned(), is_race });
        if self.fails() {
            return error("no answer", false);
        }
        let of_node = match action {
            Action::Cordon { node, .. } | Action::EndReclaim { node, .. } | Action::CallOff { node, .. } => {
                Some(node)
            }
            Action::CreateUpcoming(_)
            | Action::ReplaceUpcoming { .. }
            | Action::PatchUpcoming(_)
            | Action::RemoveUpcoming { .. } => None,
        };
        if let Some(node) = of_node {
            if self.faults.nodes_refused {
                return error("refused by a policy", false);
            }
            let there = self.nodes.get(&node.id.name).map(|object| (&object.node.id, &object.node.version));
            if there != Some((&node.id, &node.version)) {
                return error("changed meanwhile", true);
            }
        }
        self.note(&format!("{machine}: {action:?}"));
        self.version += 1;
        let version = self.version.to_string();
        match action {
            Action::Cordon { node, record } => self.cordon(&node.id.name, record, version),
            Action::EndReclaim { node, record, .. } => {
                if let Some(object) = self.nodes.get_mut(&node.id.name) {
                    (object.node.record, object.node.version) = (Some(record.clone()), version);
                }
            }
            Action::CallOff { node, uncordon } => self.call_off(&node.id.name, *uncordon, version),
            Action::CreateUpcoming(spec) => {
                if self.upcoming.contains_key(machine) {
                    return error("it exists", false);
                }
                let (uid, spec) = (format!("u{version}"), spec.clone());
                let upcoming = Upcoming { uid, version, spec, status: UpcomingStatus::default() };
                self.upcoming.insert(machine.to_owned(), upcoming);
            }
            Action::ReplaceUpcoming { version: read, spec } => match self.upcoming.get_mut(machine) {
                Some(upcoming) if upcoming.version == *read => {
                    (upcoming.spec, upcoming.version) = (spec.clone(), version);
                }
                Some(_) | None => return error("changed meanwhile", true),
            },
            Action::PatchUpcoming(patch) => {
                if let Some(upcoming) = self.upcoming.get_mut(machine) {
                    let patch = patch.clone();
                    let status = &mut upcoming.status;
                    status.phase = patch.phase.or(status.phase);
                    status.node = patch.node.or(status.node.take());
                    status.provider_id = patch.provider_id.or(status.provider_id.take());
                    status.last_error = patch.last_error.unwrap_or(status.last_error.take());
                    status.started_at = patch.started_at.or(status.started_at);
                    upcoming.version = version;
                }
            }
            Action::RemoveUpcoming { uid } => {
                if self.upcoming.get(machine).is_some_and(|upcoming| upcoming.uid == *uid) {
                    self.upcoming.remove(machine);
                }
            }
        }
        if let Some(node) = of_node {
            self.node_changed(&node.id.name);
        } else {
            let facts = self.upcoming_facts(machine);
            self.watched.push_back(Input::UpcomingChanged(machine.to_owned(), facts));
        }
        if std::mem::take(&mut self.faults.write_lost) {
            self.dirty(&[0, 1]);
            return error("no answer", false);
        }
        Ok(())
    }

    pub(super) fn cordon(&mut self, name: &str, record: &Record, version: String) {
        let now = self.now;
        let Some(object) = self.nodes.get_mut(name) else { return };
        let was = object.node.clone();
        object.node.is_cordoned = true;
        object.node.is_cordoned_by_fleet |= record.cordoned_by_us;
        (object.node.record, object.node.version) = (Some(record.clone()), version);
        if record.cordoned_by_us && object.is_admins {
            self.break_rule(format!("the cordon of an administrator on {name} is taken for the fleet's"));
        }
        if let Some(old) = was.record.filter(|old| old.is_running() && now < old.deadline)
            && record.deadline > old.deadline
        {
            self.break_rule(format!(
                "the deadline on {name} moves back from {} to {}",
                old.deadline, record.deadline
            ));
        }
    }

    pub(super) fn call_off(&mut self, name: &str, uncordon: bool, version: String) {
        let Some(object) = self.nodes.get_mut(name) else { return };
        (object.node.record, object.node.version) = (None, version);
        if uncordon {
            (object.node.is_cordoned, object.node.is_cordoned_by_fleet) = (false, false);
            if std::mem::take(&mut object.is_admins) {
                self.break_rule(format!("the cordon of an administrator on {name} is undone"));
            }
        }
    }

    pub(super) fn drain_all(&mut self) {
        for number in self.drains.keys().copied().collect::<Vec<_>>() {
            self.drain(number);
        }
    }

    /// One pass of a drain, as the shell does it.
    pub(super) fn drain(&mut self, number: u64) {
        let Some(mut it) = self.drains.remove(&number) else { return };
        let (node, record) = (it.node.clone(), it.record.clone());
        let Some(object) = self.nodes.get(&node.name) else {
            let end = (Outcome::Drained, "the Node is gone".to_owned());
            return self.hear(Input::DrainEnded(number, Some(end)));
        };
        if object.node.id != node {
            return self.hear(Input::DrainEnded(number, None));
        }
        let pods = object.pods.iter().map(|(facts, _)| facts.clone()).collect();
        match it.state.pass(&record, pods, false, self.now, self.uptime) {
            Pass::Ended(outcome, text) => self.hear(Input::DrainEnded(number, Some((outcome, text)))),
            Pass::Ask(batch) => {
                let mut answers = Vec::new();
                for (pod, _) in &batch.pods {
                    let outcome = self.evict(&node, pod, it.begun_for.as_deref());
                    answers.push(Attempt { pod: pod.clone(), outcome });
                }
                it.state.asked(&batch, Some(Attempts(answers)), &record, self.uptime);
                self.drains.insert(number, it);
            }
        }
    }

    pub(super) fn evict(&mut self, node: &NodeId, pod: &PodId, begun_for: Option<&str>) -> Answer {
        let Some(object) = self.nodes.get(&node.name) else { return Answer::Accepted };
        let record = object.node.record.clone().filter(Record::is_running);
        match &record {
            None => self.break_rule(format!("{pod} is evicted, and no reclaim stands on {}", node.name)),
            Some(record) => self.check_ack_before_eviction(record, begun_for, pod),
        }
        let Some(object) = self.nodes.get_mut(&node.name) else { return Answer::Accepted };
        let is_it = |it: &(PodFacts, bool)| it.0.pod.id == *pod;
        match object.pods.iter().position(is_it) {
            Some(at) if object.pods[at].1 => Answer::Blocked("web-pdb".to_owned()),
            Some(at) => {
                object.pods.remove(at);
                Answer::Accepted
            }
            None => Answer::Accepted,
        }
    }
}
