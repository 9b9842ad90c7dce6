//! Instructions that are not carried out yet: for which Node they are, why it is not cordoned, when they are given up.

use super::Operator;
use super::work::backoff;
use crate::fleet::machine::{Failure, Job, Machine, Plan, Request, plan_reclaim};
use crate::fleet::{Applies, Effect, Node, Notice, Report, Rule, Subject};
use std::time::Duration;

/// First and last wait before a cordon is tried again.
const CORDON_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// How often a Node that is not there is looked for, at the least.
const NODE_INTERVAL: Duration = Duration::from_secs(1);

impl Operator {
    /// The Node that the requests of a machine mean, if one is to be read now. Requests that do not apply any more are
    /// dropped, and all of them are given up when the time is over.
    pub(super) fn begin_reclaim(&mut self, machine: &str) -> Option<String> {
        let session = self.position.session;
        let it = self.machines.get_mut(machine)?;
        if self.settings.observe_only {
            for Request { instruction, entry, .. } in std::mem::take(&mut it.requests) {
                let node = self.index.find(&entry).map(|(node, _)| node.id.name.clone());
                self.report(Report::WouldGiveBack {
                    instruction: instruction.clone(),
                    entry: entry.clone(),
                    node,
                });
                self.settle(&instruction, &entry, false);
            }
            return None;
        }
        let said = it.said;
        let applies = move |request: &Request| said.applies(request.came, session);
        let (kept, over): (Vec<_>, Vec<_>) =
            std::mem::take(&mut it.requests).into_iter().partition(|request| applies(request) != Applies::No);
        it.requests = kept;
        for Request { instruction, entry, .. } in over {
            self.report(Report::UsedAgain { instruction: instruction.clone(), entry: entry.clone() });
            self.settle(&instruction, &entry, false);
        }
        let deadline = self.machines.get(machine)?.deadline()?;
        if self.now.time >= deadline {
            self.give_up(machine);
            return None;
        }
        let requests = self.machines.get(machine)?.requests.clone();
        let mut node = None;
        for request in requests.iter().filter(|request| applies(request) == Applies::Yes) {
            match self.index.find(&request.entry) {
                Some((found, _)) => node = node.or_else(|| Some(found.id.name.clone())),
                None => self.unresolved(machine, request),
            }
        }
        if node.is_some() {
            return node;
        }
        if requests.iter().any(|request| applies(request) == Applies::Unknown) {
            let why =
                format!("the shard has not said what machine {machine} is now, since the session began anew");
            self.retry_reclaim(machine, why);
        } else {
            self.reclaim_later(machine, NODE_INTERVAL);
        }
        None
    }

    /// No Node is found for an entry, or none yet: the ack does not wait for it, but it is looked for until the deadline.
    pub(super) fn unresolved(&mut self, machine: &str, request: &Request) {
        let Request { instruction, entry, .. } = request;
        let Some(it) = self.machines.get_mut(machine) else { return };
        let is_it = |it: &&mut Request| it.instruction == *instruction && it.entry == *entry;
        let Some(stored) = it.requests.iter_mut().find(is_it) else { return };
        if std::mem::replace(&mut stored.is_unresolved, true) {
            return;
        }
        self.report(Report::NotFound { instruction: instruction.clone(), entry: entry.clone() });
        self.settle(instruction, entry, false);
        if let Some(upcoming) = self.index.upcoming(machine) {
            let subject = Subject::Upcoming { machine: machine.to_owned(), uid: upcoming.uid.clone() };
            self.effects.push(Effect::Notify(Notice {
                subject,
                reason: "NodeNotFound",
                text: format!("instruction {instruction} wants {entry} back, and no Node is found for it"),
                is_warning: true,
                key: instruction.clone(),
            }));
        }
    }

    /// A Node is not cordoned yet: tried again soon, but not at once.
    pub(super) fn retry_reclaim(&mut self, machine: &str, why: String) {
        let obstacle = &mut self.machine(machine).obstacle;
        let wait = backoff(CORDON_RETRY, obstacle.tries);
        obstacle.tries = obstacle.tries.saturating_add(1);
        if obstacle.text != why {
            obstacle.text.clone_from(&why);
            self.report(Report::NotCordonedYet { machine: machine.to_owned(), why });
        }
        self.reclaim_later(machine, wait);
    }

    /// At the deadline at the latest.
    pub(super) fn reclaim_later(&mut self, machine: &str, wait: Duration) {
        let Some(deadline) = self.machines.get(machine).and_then(Machine::deadline) else { return };
        let left = Duration::try_from(deadline.duration_since(self.now.time)).unwrap_or_default();
        self.later(machine, wait.min(left), Job::Reclaim.queued());
    }

    /// The time is over before anything was done. That the machine is said to drain, now or in the next session, is not a
    /// reason to begin.
    pub(super) fn give_up(&mut self, machine: &str) {
        let it = self.machine(machine);
        let (requests, obstacle) = (std::mem::take(&mut it.requests), std::mem::take(&mut it.obstacle));
        for request in requests {
            let Request { instruction, entry, came, is_unresolved, .. } = request;
            let text = if is_unresolved {
                format!("instruction {instruction}: no Node was found for {entry} before the deadline")
            } else {
                let why = if obstacle.text.is_empty() { "no answer in time" } else { &obstacle.text };
                format!("the Node could not be cordoned before the deadline: {why}")
            };
            self.machine(machine).failure = Some(Failure { came, text: text.clone() });
            self.report(Report::GivenUp {
                instruction: instruction.clone(),
                machine: machine.to_owned(),
                why: text,
            });
            self.settle(&instruction, &entry, false);
        }
        // The caller goes on with what is queued.
        self.machine(machine).queue.push_back(Job::Fail.queued());
    }

    /// The requests that mean this Node, all at once.
    pub(super) fn plan_requests(&mut self, machine: &str, node: Option<&Node>) -> Option<Plan> {
        let session = self.position.session;
        let it = self.machines.get(machine)?;
        let said = it.said;
        let current: Vec<Request> = it
            .requests
            .iter()
            .filter(|request| said.applies(request.came, session) == Applies::Yes)
            .cloned()
            .collect();
        let Some(node) = node else {
            // The index was of a moment before.
            for request in &current {
                self.unresolved(machine, request);
            }
            self.reclaim_later(machine, NODE_INTERVAL);
            return None;
        };
        let meant: Vec<(Request, Rule)> = current
            .into_iter()
            .filter_map(|request| {
                let (found, rule) = self.index.find(&request.entry)?;
                (found.id.name == node.id.name).then_some((request, rule))
            })
            .collect();
        if meant.is_empty() {
            self.reclaim_later(machine, CORDON_RETRY.0);
            return None;
        }
        Some(plan_reclaim(machine, &meant, node, self.now.time))
    }
}
