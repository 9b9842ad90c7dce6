//! A fleet drain, from its first eviction to its end.
//!
//! It remembers nothing that matters: the record on the Node says until when, the pods that are there say what is left. A
//! process that finds the record goes on where the last one stopped. What is kept from pass to pass is only what was said.

use super::pods::{Conditions, OnDeadline, PodFacts, PodPlan, Policy, Times};
use super::record::{Outcome, Record};
use super::{NodeId, Notice, Subject};
use crate::drain::{self, Attempt, Attempts, PodId, RETRY, Way};
use crate::text::{MESSAGE_BYTES, printable};
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::time::Duration;

/// How soon pods that end are looked at again.
pub const RECHECK: Duration = Duration::from_secs(1);

/// How often what is in the way of a drain is written on its Node, at most.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Pods of one drain that get an event of their own: whoever has more reads the Node.
const PODS_WITH_EVENTS: usize = 20;

/// A drain of a Node.
#[derive(Debug)]
pub struct FleetDrain {
    node: NodeId,
    policy: Policy,
    /// The operator's own pod, as namespace and name.
    own: (String, String),
    attempts: Attempts,
    /// DaemonSets that are gone, and those that were looked for.
    gone: BTreeSet<(String, String)>,
    looked_for: BTreeSet<(String, String)>,
    has_begun: bool,
    /// What was written on the Node last, and when.
    progress: Option<(Option<String>, Duration)>,
    /// Whether somebody was told that it is blocked.
    is_blocked_told: bool,
    /// Pods whose event was sent.
    told: BTreeSet<PodId>,
    /// Since when pods are ended whatever their budgets say, and which.
    forced: Option<(Duration, BTreeSet<PodId>)>,
}

/// What is done next.
#[derive(Debug)]
pub enum Pass {
    /// The drain has ended.
    Ended(Outcome, String),
    /// Pods are asked to go, each once.
    Ask(Batch),
}

/// Pods that are asked to go in one pass.
#[derive(Debug)]
pub struct Batch {
    /// Which, and how.
    pub pods: Vec<(PodId, Way)>,
    /// Answers that come later are of no use.
    pub patience: Duration,
    /// Whether there is so little time that it does not wait behind others.
    pub is_urgent: bool,
    /// Whether these are the first, and which of all pods go for good or lose their data.
    pub first: Option<Vec<PodId>>,
    /// Whether the time is over and what is left is ended by force from now on.
    pub begins_force: bool,
    /// All pods, for the text of progress.
    plan: Box<PodPlan>,
}

/// What is said after the answers.
#[derive(Debug, PartialEq, Eq)]
pub struct Progress {
    /// A new text for the Node, or that nothing is in the way any more; absent if nothing is to be written.
    pub write: Option<Option<String>>,
    /// Events.
    pub notices: Vec<Notice>,
    /// The text, if the drain is blocked for the first time.
    pub is_blocked_by: Option<String>,
    /// When to look again.
    pub wait: Duration,
}

impl FleetDrain {
    /// A drain that has not begun.
    pub fn new(node: NodeId, policy: Policy, own: (String, String)) -> Self {
        Self {
            node,
            policy,
            own,
            attempts: Attempts::default(),
            gone: BTreeSet::new(),
            looked_for: BTreeSet::new(),
            has_begun: false,
            progress: None,
            is_blocked_told: false,
            told: BTreeSet::new(),
            forced: None,
        }
    }

    /// The event that it begins.
    pub fn accepted(&self, record: &Record) -> Notice {
        let instruction = record.instructions.last().map_or("a lost instruction", String::as_str);
        let text = format!(
            "the fleet takes machine {} back ({instruction}); it is drained until {}",
            record.machine, record.deadline
        );
        let key = format!("{:?}", record.instructions);
        self.notice("ReclaimAccepted", text, false, key)
    }

    /// DaemonSets of these pods of which it is not known yet whether they are there: one that is gone does not put its pods
    /// back.
    pub fn unknown_daemon_sets(&self, pods: &[PodFacts]) -> BTreeSet<(String, String)> {
        let key = |facts: &PodFacts| Some((facts.pod.id.namespace.clone(), facts.daemon_set.clone()?));
        pods.iter().filter_map(key).filter(|key| !self.looked_for.contains(key)).collect()
    }

    /// A DaemonSet, as namespace and name, is there or is not.
    pub fn put_daemon_set(&mut self, daemon_set: (String, String), is_there: bool) {
        if !is_there {
            self.gone.insert(daemon_set.clone());
        }
        self.looked_for.insert(daemon_set);
    }

    /// What is done about the pods that are there. `uptime` is the time of a clock that nobody sets.
    pub fn pass(
        &mut self,
        record: &Record,
        pods: Vec<PodFacts>,
        is_silent: bool,
        now: Timestamp,
        uptime: Duration,
    ) -> Pass {
        let own = Some((self.own.0.as_str(), self.own.1.as_str()));
        let conditions = Conditions { is_silent, gone: &self.gone, own };
        let Record { accepted_at, cordoned_at, deadline, .. } = *record;
        let times = Times { now, accepted_at, cordoned_at, deadline };
        let is_over = now >= deadline;
        let plan = PodPlan::new(pods, conditions, times, self.policy);
        if plan.is_complete() {
            let parts = [plan.summary(&Attempts::default()), self.ended_by_force()];
            let parts = parts.into_iter().filter(|part| !part.is_empty());
            return Pass::Ended(Outcome::Drained, parts.collect::<Vec<_>>().join("; "));
        }
        let force_time = self.forced.as_ref().map(|(since, _)| uptime.saturating_sub(*since));
        let has_forced = force_time.is_some_and(|time| time >= drain::FORCED);
        if is_over && (self.policy.on_deadline == OnDeadline::Fail || has_forced) {
            return Pass::Ended(Outcome::Failed, plan.failure(&self.attempts));
        }
        let pods = plan.to_ask();
        let begins_force = is_over && self.forced.is_none();
        if is_over {
            let (_, ended) = self.forced.get_or_insert_with(|| (uptime, BTreeSet::new()));
            ended.extend(pods.iter().cloned());
        }
        let is_first = !self.has_begun && !pods.is_empty();
        self.has_begun |= is_first;
        let left = Duration::try_from(deadline.duration_since(now)).unwrap_or_default();
        Pass::Ask(Batch {
            patience: if is_over { drain::FORCED } else { left },
            is_urgent: times.is_short(),
            first: is_first.then(|| plan.losses().into_iter().cloned().collect()),
            begins_force,
            pods: pods.into_iter().map(|pod| (pod.clone(), plan.way(&pod))).collect(),
            plan: Box::new(plan),
        })
    }

    /// The pods of a pass have answered; without answers they did not in time.
    pub fn asked(
        &mut self,
        batch: &Batch,
        answers: Option<Attempts>,
        record: &Record,
        uptime: Duration,
    ) -> Progress {
        if let Some(attempts) = answers {
            self.attempts = attempts;
        }
        let mut progress = Progress { write: None, notices: Vec::new(), is_blocked_by: None, wait: RECHECK };
        if !self.attempts.summary().is_empty() {
            progress.wait = RETRY;
        }
        let is_free = self.attempts.summary().is_empty() && batch.plan.held().is_empty();
        let text = (!is_free)
            .then(|| format!("{} left: {}", batch.plan.left(), batch.plan.summary(&self.attempts)))
            .map(|text| printable(&text, MESSAGE_BYTES).into_owned());
        let is_news = match &self.progress {
            Some((old, at)) => *old != text && uptime.saturating_sub(*at) >= PROGRESS_INTERVAL,
            None => text.is_some(),
        };
        if is_news {
            if let Some(text) = text.as_ref().filter(|_| !self.is_blocked_told) {
                self.is_blocked_told = true;
                let key = record.deadline.to_string();
                progress.notices.push(self.notice("DrainBlocked", text.clone(), true, key));
                progress.is_blocked_by = Some(text.clone());
            }
            progress.write = Some(text);
        }
        self.tell_pods(record, &mut progress.notices);
        progress
    }

    /// A text of progress is written on the Node.
    pub fn written(&mut self, text: Option<String>, uptime: Duration) {
        self.progress = Some((text, uptime));
    }

    /// Tells whoever looks at a pod why it has not moved.
    fn tell_pods(&mut self, record: &Record, notices: &mut Vec<Notice>) {
        for Attempt { pod, outcome } in &self.attempts.0 {
            let drain::Outcome::Blocked(why) = outcome else { continue };
            if self.told.len() >= PODS_WITH_EVENTS || !self.told.insert(pod.clone()) {
                continue;
            }
            notices.push(Notice {
                subject: Subject::Pod(pod.clone()),
                reason: "EvictionBlocked",
                text: format!(
                    "the fleet takes Node {} back until {}: {why}",
                    self.node.name, record.deadline
                ),
                is_warning: true,
                key: record.deadline.to_string(),
            });
        }
    }

    fn notice(&self, reason: &'static str, text: String, is_warning: bool, key: String) -> Notice {
        Notice { subject: Subject::Node(self.node.clone()), reason, text, is_warning, key }
    }

    /// Which pods were ended at the deadline, in words; empty if none were.
    fn ended_by_force(&self) -> String {
        let Some((_, pods)) = &self.forced else { return String::new() };
        let names: Vec<String> = pods.iter().take(3).map(ToString::to_string).collect();
        format!("{} ended at the deadline, whatever budgets said: {}", pods.len(), names.join(", "))
    }
}
