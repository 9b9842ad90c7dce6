//! What is done about one machine, one thing after the other.

use crate::desk::{Desk, Instruction, Letter, is_name, lock};
use crate::drains::Ended;
use crate::heard::Meaning;
use crate::metrics::count;
use crate::phase::{Phase, Seen, Step, decide};
use crate::quantity::readable;
use crate::record::{Accepted, Order, Outcome, Record, accept};
use crate::wire::{MachineState, NodeStateUpdate};
use fivespot_api::fleet::{UpcomingNode, UpcomingNodeSpec};
use fivespot_api::names::{CORDONED_BY, FLEET, FLEET_PROGRESS, FLEET_RECLAIM, upcoming_node};
use fivespot_cluster::Error;
use fivespot_cluster::fleet::{About, NodeNow, Told};
use fivespot_core::text::{MESSAGE_BYTES, printable};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// First and last wait before a cordon is tried again.
const WAIT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// How often a Node that others write to is read again at once.
const RACES: usize = 5;

/// How often a Node that is not there is looked for.
const LOOK: Duration = Duration::from_secs(1);

impl Desk {
    /// Does what a letter says. An error is one that may pass.
    pub(crate) async fn handle(self: &Arc<Self>, machine: &str, letter: Letter) -> Result<(), Error> {
        match letter {
            Letter::Entry(instruction, entry) => {
                self.give_back(machine, &entry, &instruction).await;
                Ok(())
            }
            Letter::Failed(instruction, text) => self.write_failure(machine, &text, &instruction).await,
            Letter::State(update, _) => self.follow(machine, &update).await,
            Letter::Resumed(node) => self.resumed(machine, &node).await,
            Letter::Ended(ended) => self.write_end(machine, &ended).await,
            Letter::Look => self.look(machine).await,
        }
    }

    /// The shard wants the Node of a machine back.
    async fn give_back(self: &Arc<Self>, machine: &str, entry: &str, instruction: &Arc<Instruction>) {
        if self.settings.observe_only {
            let node = self.find(entry).map(|(node, _)| node.name);
            tracing::info!(instruction = instruction.id, entry, ?node, "would be given back");
            return self.settle(instruction, entry, false);
        }
        let (mut wait, mut told) = (WAIT.0, String::new());
        loop {
            let Some((node, rule)) = self.find(entry) else {
                return self.unresolved(machine, entry, instruction).await;
            };
            let outcome = match self.meaning(machine, instruction) {
                Meaning::Holds => self.cordon(&node.name, &instruction.order(machine)).await,
                Meaning::Unknown => Err(Error::Unreadable {
                    what: format!("know what machine {machine} is now"),
                    why: "the shard has not said so since the session began anew".to_owned(),
                }),
                Meaning::Gone => {
                    tracing::warn!(
                        instruction = instruction.id,
                        entry,
                        "the machine is in use again: not cordoned"
                    );
                    return self.settle(instruction, entry, false);
                }
            };
            match outcome {
                Ok(Some((now, accepted))) => {
                    count(&self.metrics.resolved, rule.word());
                    tracing::info!(
                        instruction = instruction.id,
                        entry,
                        node = now.name,
                        found_by = rule.word(),
                        "found"
                    );
                    self.settle_cordoned(machine, entry, &now, accepted, instruction).await;
                    return;
                }
                Ok(None) => return self.unresolved(machine, entry, instruction).await,
                Err(error) => {
                    let text = error.to_string();
                    if told != text {
                        tracing::warn!(
                            instruction = instruction.id,
                            node = node.name,
                            "not cordoned yet: {text}"
                        );
                        told = text;
                    }
                }
            }
            if Timestamp::now() >= instruction.deadline() {
                count(&self.metrics.instructions, "not_cordoned");
                let text = format!("the Node could not be cordoned before the deadline: {told}");
                tracing::error!(instruction = instruction.id, node = node.name, text);
                self.settle(instruction, entry, false);
                return self.give_up(machine, instruction, text);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAIT.1);
        }
    }

    /// Cordons a Node and writes the record, in one request. Nothing if there is no such Node.
    async fn cordon(&self, name: &str, order: &Order) -> Result<Option<(NodeNow, Accepted)>, Error> {
        let mut outcome = Ok(None);
        for _ in 0..RACES {
            let Some(node) = self.fleet.node(name).await? else { return Ok(None) };
            let accepted = accept(record_of(&node).as_ref(), order, node.unschedulable, Timestamp::now());
            let Accepted::New(record) = &accepted else { return Ok(Some((node, accepted))) };
            let mut annotations =
                BTreeMap::from([(FLEET_RECLAIM, Some(record.text())), (FLEET_PROGRESS, None)]);
            if record.cordoned_by_us {
                annotations.insert(CORDONED_BY, Some(FLEET.to_owned()));
            }
            outcome =
                self.fleet.patch_node(&node, &annotations, Some(true)).await.map(|()| Some((node, accepted)));
            if !matches!(outcome, Err(Error::Changed { .. })) {
                break;
            }
        }
        if matches!(outcome, Ok(Some(_))) {
            lock(&self.idle).remove(&order.machine);
            lock(&self.given_up).remove(&order.machine);
        }
        outcome
    }

    async fn settle_cordoned(
        self: &Arc<Self>,
        machine: &str,
        entry: &str,
        node: &NodeNow,
        accepted: Accepted,
        instruction: &Arc<Instruction>,
    ) {
        match accepted {
            Accepted::Known(record) => {
                tracing::info!(instruction = instruction.id, node = node.name, "known already");
                self.settle(instruction, entry, true);
                if record.is_running() {
                    self.start_drain(&node.name, &node.uid, record, Some(instruction.acked()));
                }
            }
            Accepted::New(record) => {
                tracing::info!(
                    instruction = instruction.id,
                    machine,
                    node = node.name,
                    deadline = %record.deadline,
                    by_us = record.cordoned_by_us,
                    "cordoned"
                );
                self.mark(machine, &draining(node)).await;
                self.settle(instruction, entry, true);
                self.start_drain(&node.name, &node.uid, record, Some(instruction.acked()));
            }
        }
    }

    /// An entry has no Node, or none yet: the instruction does not wait for it, but it is looked for until the deadline.
    async fn unresolved(self: &Arc<Self>, machine: &str, entry: &str, instruction: &Arc<Instruction>) {
        count(&self.metrics.resolved, "unresolved");
        tracing::warn!(
            instruction = instruction.id,
            entry,
            "no Node is found for it; looked for until the deadline"
        );
        self.settle(instruction, entry, false);
        if is_name(machine)
            && let Ok(Some(it)) = self.fleet.upcoming(&upcoming_node(machine)).await
        {
            let told = Told {
                reason: "NodeNotFound",
                text: format!(
                    "instruction {} wants {entry} back, and no Node is found for it",
                    instruction.id
                ),
                is_warning: true,
                key: instruction.id.clone(),
            };
            self.tell(about(&it), told);
        }
        let (desk, instruction) = (Arc::clone(self), Arc::clone(instruction));
        let (machine, entry) = (machine.to_owned(), entry.to_owned());
        tokio::spawn(async move {
            while Timestamp::now() < instruction.deadline() {
                tokio::time::sleep(LOOK).await;
                match desk.meaning(&machine, &instruction) {
                    Meaning::Gone => return,
                    Meaning::Holds if desk.find(&entry).is_some() => {
                        return desk.post(&machine, Letter::Entry(instruction, entry));
                    }
                    Meaning::Holds | Meaning::Unknown => {}
                }
            }
            let id = &instruction.id;
            let text = format!("instruction {id}: no Node was found for {entry} before the deadline");
            desk.give_up(&machine, &instruction, text);
        });
    }

    /// The time of an instruction is over before anything was done. That the machine is said to drain, which was heard
    /// meanwhile or is heard in the next session, is not a reason to begin.
    fn give_up(self: &Arc<Self>, machine: &str, instruction: &Arc<Instruction>, text: String) {
        lock(&self.given_up).insert(machine.to_owned());
        self.post(machine, Letter::Failed(Arc::clone(instruction), text));
    }

    async fn write_failure(&self, machine: &str, text: &str, instruction: &Instruction) -> Result<(), Error> {
        // It may be tried again after a newer instruction has done what this one could not.
        let is_given_up = lock(&self.given_up).contains(machine);
        if !is_name(machine) || !is_given_up || self.meaning(machine, instruction) != Meaning::Holds {
            return Ok(());
        }
        let status = json!({"phase": Phase::Failed.word(), "lastError": shown(text)});
        self.fleet.patch_upcoming(&upcoming_node(machine), &status).await.map(drop)
    }

    /// A drain of another process goes on.
    async fn resumed(self: &Arc<Self>, machine: &str, node: &str) -> Result<(), Error> {
        let Some(now) = self.fleet.node(node).await? else { return Ok(()) };
        let Some(record) = record_of(&now).filter(Record::is_running) else { return Ok(()) };
        tracing::info!(node, machine, deadline = %record.deadline, "goes on with a drain that another process began");
        self.keep_draining(&now.name, &now.uid, &record);
        if is_name(machine)
            && let Some(it) = self.fleet.upcoming(&upcoming_node(machine)).await?
            && it.status.unwrap_or_default().phase != Phase::Draining.word()
        {
            self.fleet.patch_upcoming(&upcoming_node(machine), &draining(&now)).await?;
        }
        Ok(())
    }

    /// Says on the UpcomingNode of a machine how it is, if there is one.
    async fn mark(&self, machine: &str, status: &Value) {
        if !is_name(machine) {
            return;
        }
        if let Err(error) = self.fleet.patch_upcoming(&upcoming_node(machine), status).await {
            count(&self.metrics.writes, "failed");
            tracing::warn!(machine, %error, "the UpcomingNode does not say it");
        }
    }

    /// A drain has ended: first what people look at, then the record, so that whoever dies in between does it again.
    async fn write_end(self: &Arc<Self>, machine: &str, ended: &Ended) -> Result<(), Error> {
        let Ended { node, uid, record, outcome, text } = ended;
        let now = self.fleet.node(node).await?.filter(|now| now.uid == *uid);
        let standing = now.as_ref().and_then(record_of);
        match &standing {
            // Another instruction came at the last moment: its drain is not this one, and may have ended too.
            Some(standing)
                if (&standing.instructions, standing.accepted_at)
                    != (&record.instructions, record.accepted_at) =>
            {
                if standing.is_running() {
                    self.start_drain(node, uid, standing.clone(), None);
                } else {
                    self.forget_drain(node, uid);
                }
                return Ok(());
            }
            // The machine is in use again.
            None if now.is_some() => {
                self.forget_drain(node, uid);
                return Ok(());
            }
            Some(_) | None => {}
        }
        let (reason, is_warning) = match outcome {
            Outcome::Drained => ("Drained", false),
            Outcome::Failed => ("DrainFailed", true),
        };
        let words = match (outcome, text.as_str()) {
            (Outcome::Drained, "") => "every pod that had to go is gone".to_owned(),
            (Outcome::Drained, left) => format!("every pod that could go is gone; {left}"),
            (Outcome::Failed, why) => format!(
                "{why}. The Node stays cordoned: mend what holds the pods, or delete them; the fleet decides what is next"
            ),
        };
        let told = Told { reason, text: words, is_warning, key: record.deadline.to_string() };
        if is_name(machine)
            && let Some(it) = self.fleet.upcoming(&upcoming_node(machine)).await?
        {
            let phase = it.status.as_ref().and_then(|status| Phase::read(&status.phase));
            let status = match outcome {
                // It left, and may be on its way back with another Node.
                Outcome::Drained if now.is_none() && phase != Some(Phase::Draining) => None,
                Outcome::Failed => Some(json!({"phase": Phase::Failed.word(), "lastError": shown(text)})),
                // The shard has said why the machine failed, which its pods do not change.
                Outcome::Drained if phase == Some(Phase::Failed) => None,
                Outcome::Drained => Some(json!({"phase": Phase::Drained.word()})),
            };
            if let Some(status) = status {
                self.fleet.patch_upcoming(&upcoming_node(machine), &status).await?;
            }
            self.tell(about(&it), told.clone());
        }
        let (Some(now), Some(standing)) = (now, standing) else {
            self.forget_drain(node, uid);
            return Ok(());
        };
        let done = Record { outcome: Some(*outcome), ..standing };
        let progress = Some(shown(text)).filter(|_| *outcome == Outcome::Failed);
        let annotations = BTreeMap::from([(FLEET_RECLAIM, Some(done.text())), (FLEET_PROGRESS, progress)]);
        self.fleet.patch_node(&now, &annotations, None).await?;
        self.forget_drain(node, uid);
        self.tell(About::Node(node.clone(), uid.clone()), told);
        Ok(())
    }

    /// The shard tells the state of a machine.
    async fn follow(self: &Arc<Self>, machine: &str, update: &NodeStateUpdate) -> Result<(), Error> {
        let state = update.state();
        // Before anything that may fail: what is told next depends on it.
        if matches!(state, MachineState::Idle | MachineState::Configuring) {
            lock(&self.idle).insert(machine.to_owned());
        }
        if matches!(state, MachineState::Idle | MachineState::Configuring | MachineState::Configured) {
            lock(&self.given_up).remove(machine);
        }
        let name = upcoming_node(machine);
        let old = self.fleet.upcoming(&name).await?;
        let node = match self.find(machine) {
            Some((node, _)) => self.fleet.node(&node.name).await?,
            None => None,
        };
        // The Node may have become another machine's.
        let is_its = |record: &Record| record.machine == machine || !self.is_machine(&record.machine);
        let node = node.filter(|node| record_of(node).as_ref().is_none_or(is_its));
        let record = node.as_ref().and_then(record_of);
        if record.is_none() {
            lock(&self.idle).remove(machine);
        }
        if let (MachineState::Configuring | MachineState::Configured, Some(node), None) =
            (state, &node, &record)
        {
            // What was called off may have been begun again from an older look.
            self.stop_drain(&node.name);
        }
        let phase = old.as_ref().and_then(|it| it.status.as_ref()).and_then(|it| Phase::read(&it.phase));
        let phase = if lock(&self.given_up).contains(machine) { Some(Phase::Failed) } else { phase };
        let may_be_reused = record.as_ref().is_none_or(|record| self.may_be_reused(machine, record));
        let seen = Seen { exists: old.is_some(), phase, record: record.as_ref(), may_be_reused };
        let steps = decide(state, seen);
        tracing::debug!(machine, state = state.as_str_name(), ?steps, "told");
        for step in steps {
            match step {
                Step::Put(phase) => self.put(update, phase, old.as_ref(), node.as_ref()).await?,
                Step::Remove { after_failure } => {
                    if let Some(old) = &old {
                        self.remove(old, after_failure).await?;
                    }
                }
                Step::Drain => self.drain_unasked(machine).await?,
                Step::GoOn => {
                    if let (Some(node), Some(record)) = (&node, &record) {
                        self.keep_draining(&node.name, &node.uid, record);
                    }
                }
                Step::CallOff => {
                    if let Some(node) = &node {
                        self.call_off(node, record.as_ref()).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes or changes the UpcomingNode of a machine.
    async fn put(
        &self,
        update: &NodeStateUpdate,
        phase: Option<Phase>,
        old: Option<&UpcomingNode>,
        node: Option<&NodeNow>,
    ) -> Result<(), Error> {
        let (name, spec) = (&upcoming_node(&update.machine_id), spec_of(update));
        let made;
        let old = if let Some(old) = old {
            if old.spec != spec {
                self.fleet.replace_upcoming(old, &spec).await?;
            }
            old
        } else {
            made = self.fleet.create_upcoming(name, &spec).await?;
            &made
        };
        let was = old.status.clone().unwrap_or_default();
        let mut status = was.clone();
        if let Some(phase) = phase {
            phase.word().clone_into(&mut status.phase);
        }
        if status.phase.is_empty() {
            Phase::Provisioning.word().clone_into(&mut status.phase);
        }
        if !update.provider_id.is_empty() {
            status.provider_id = Some(shown(&update.provider_id));
        }
        if !update.last_error.is_empty() {
            status.last_error = Some(shown(&update.last_error));
        } else if matches!(phase, Some(Phase::Registered | Phase::Ready)) {
            status.last_error = None;
        }
        if status.provisioning_start_time.is_none() {
            status.provisioning_start_time =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now()));
        }
        let joined =
            matches!(Phase::read(&status.phase), Some(Phase::Registered | Phase::Ready | Phase::Draining));
        if let Some(node) = node.filter(|_| joined) {
            status.node_ref = Some(k8s_openapi::api::core::v1::ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(node.name.clone()),
                uid: Some(node.uid.clone()),
                ..Default::default()
            });
        }
        if status != was {
            // What is gone must be said to be gone.
            let mut patch = json!(status);
            if status.last_error.is_none() {
                patch["lastError"] = Value::Null;
            }
            self.fleet.patch_upcoming(name, &patch).await?;
        }
        Ok(())
    }

    async fn remove(self: &Arc<Self>, old: &UpcomingNode, after_failure: bool) -> Result<(), Error> {
        let (name, uid) = (old.metadata.name.as_deref(), old.metadata.uid.as_deref());
        if after_failure {
            let last = old.status.as_ref().and_then(|it| it.last_error.clone()).unwrap_or_default();
            let told = Told {
                reason: "FailedMachineLeft",
                text: format!("the machine left the cluster; it had failed: {last}"),
                is_warning: true,
                key: uid.unwrap_or_default().to_owned(),
            };
            self.tell(about(old), told);
        }
        self.fleet.delete_upcoming(name.unwrap_or_default(), uid.unwrap_or_default()).await
    }

    /// The machine drains, and no instruction has come: it was lost, or came when nobody was there.
    async fn drain_unasked(self: &Arc<Self>, machine: &str) -> Result<(), Error> {
        let Some((node, rule)) = self.find(machine) else {
            tracing::warn!(machine, "drains, and no Node is found for it");
            return Ok(());
        };
        if self.settings.observe_only {
            tracing::info!(machine, node = node.name, "would be drained");
            return Ok(());
        }
        let order = Order {
            instruction: None,
            machine: machine.to_owned(),
            received_at: Timestamp::now(),
            grace: self.settings.default_grace,
            preemptor_priority: 0,
        };
        if let Some((now, Accepted::New(record))) = self.cordon(&node.name, &order).await? {
            count(&self.metrics.instructions, "lost");
            let found_by = rule.word();
            tracing::warn!(machine, node = now.name, found_by, deadline = %record.deadline, "drains without an instruction: cordoned");
            self.mark(machine, &draining(&now)).await;
            self.start_drain(&now.name, &now.uid, record, None);
        }
        Ok(())
    }

    /// The machine is used again.
    async fn call_off(self: &Arc<Self>, node: &NodeNow, record: Option<&Record>) -> Result<(), Error> {
        if self.settings.observe_only {
            tracing::info!(node = node.name, "its reclaim would be called off");
            return Ok(());
        }
        self.stop_drain(&node.name);
        let is_ours = record.is_some_and(|record| record.cordoned_by_us)
            && node.annotations.get(CORDONED_BY).is_some_and(|by| by == FLEET);
        let mut annotations = BTreeMap::from([(FLEET_RECLAIM, None), (FLEET_PROGRESS, None)]);
        if is_ours {
            annotations.insert(CORDONED_BY, None);
        }
        self.fleet.patch_node(node, &annotations, is_ours.then_some(false)).await?;
        if let Some(record) = record {
            lock(&self.idle).remove(&record.machine);
        }
        tracing::info!(
            node = node.name,
            uncordoned = is_ours,
            "the machine is used again: the reclaim is over"
        );
        let told = Told {
            reason: "ReclaimCalledOff",
            text: "the fleet uses the machine for this cluster again".to_owned(),
            is_warning: false,
            key: node.version.clone(),
        };
        self.tell(About::Node(node.name.clone(), node.uid.clone()), told);
        Ok(())
    }

    /// The Node of a machine may have appeared.
    async fn look(self: &Arc<Self>, machine: &str) -> Result<(), Error> {
        let Some((node, _)) = self.find(machine) else { return Ok(()) };
        let status = json!({"nodeRef": {"kind": "Node", "name": node.name, "uid": node.uid}});
        self.fleet.patch_upcoming(&upcoming_node(machine), &status).await?;
        // It came too late for the word that it drains.
        let it = self.fleet.upcoming(&upcoming_node(machine)).await?;
        let phase = it.and_then(|it| it.status).and_then(|status| Phase::read(&status.phase));
        if phase == Some(Phase::Draining) { self.drain_unasked(machine).await } else { Ok(()) }
    }
}

/// A text with words of the shard or of a server in it, as objects of ours have it.
fn shown(text: &str) -> String {
    printable(text, MESSAGE_BYTES).into_owned()
}

/// The reclaim that stands on a Node.
fn record_of(node: &NodeNow) -> Option<Record> {
    node.annotations.get(FLEET_RECLAIM).and_then(|text| Record::read(text))
}

fn draining(node: &NodeNow) -> Value {
    json!({
        "phase": Phase::Draining.word(),
        "lastError": null,
        "nodeRef": {"kind": "Node", "name": node.name, "uid": node.uid},
    })
}

fn about(it: &UpcomingNode) -> About {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    About::Upcoming(text(&it.metadata.name), text(&it.metadata.uid))
}

fn spec_of(update: &NodeStateUpdate) -> UpcomingNodeSpec {
    UpcomingNodeSpec {
        labels: update.labels.clone(),
        resources: readable(update.resources.as_ref()),
        taints: update
            .taints
            .iter()
            .map(|taint| Taint {
                key: taint.key.clone(),
                value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
                effect: taint.effect.clone(),
                time_added: None,
            })
            .collect(),
    }
}
