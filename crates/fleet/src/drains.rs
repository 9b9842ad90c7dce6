//! Drains a Node: reads its pods, asks those to go that [`FleetDrain`] names, until that says it has ended.

use crate::metrics::count;
use crate::perform::Performer;
use fivespot_cluster::Key;
use fivespot_cluster::fleet::Eviction;
use fivespot_core::drain::{Attempt, Attempts, Outcome as Answer, PodId, Way};
use fivespot_core::fleet::drain::{Batch, FleetDrain, Pass, RECHECK};
use fivespot_core::fleet::pods::PodFacts;
use fivespot_core::fleet::record::{Outcome, Record};
use fivespot_core::fleet::{Node, NodeId};
use futures::StreamExt;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Pods of one Node that are asked at the same time.
const AT_ONCE: usize = 10;

/// What a drain works with.
pub(crate) struct Surroundings {
    pub(crate) performer: Arc<Performer>,
    pub(crate) node: NodeId,
    /// The record on the Node; its deadline may come nearer.
    pub(crate) records: watch::Receiver<Record>,
}

/// How a drain ended, and why; nothing if the Node is another one.
type End = Option<(Outcome, String)>;

/// What came of looking for the Node.
enum Presence {
    There(bool),
    Ended(End),
    Unknown,
}

/// Drains a Node until nothing is left or the time is over.
pub(crate) async fn drain(mut it: Surroundings) -> End {
    let (began, policy) = (Instant::now(), it.performer.policy);
    let mut drain = FleetDrain::new(it.node.clone(), policy, it.performer.own.clone());
    it.performer.notify(drain.accepted(&it.records.borrow()));
    loop {
        let record = it.records.borrow_and_update().clone();
        let wait = match it.presence(&record).await {
            Presence::Ended(end) => return end,
            Presence::Unknown => RECHECK,
            Presence::There(is_silent) => match it.pass(&mut drain, &record, is_silent, began).await {
                Ok(wait) => wait,
                Err(end) => return Some(end),
            },
        };
        let left = Duration::try_from(record.deadline.duration_since(Timestamp::now()));
        let left = left.ok().filter(|left| !left.is_zero()).unwrap_or(wait);
        tokio::select! {
            () = tokio::time::sleep(wait.min(left)) => {}
            // Whoever could tell ends this task first.
            _ = it.records.changed() => {}
        }
    }
}

impl Surroundings {
    /// Whether the Node is there, and its kubelet silent.
    async fn presence(&self, record: &Record) -> Presence {
        let seen = self.performer.nodes.get(&Key::new("", &self.node.name));
        let is_silent = seen.as_ref().is_some_and(|facts| facts.is_silent);
        if seen.is_some_and(|facts| facts.id == self.node) {
            return Presence::There(is_silent);
        }
        match self.performer.fleet.node(&self.node.name).await {
            Ok(Some(node)) if node.id == self.node => Presence::There(is_silent),
            Ok(Some(_)) => Presence::Ended(None),
            Ok(None) => {
                let why = "the Node is gone, and its pods with it";
                Presence::Ended(Some((Outcome::Drained, why.to_owned())))
            }
            // Its pods may be those of another one.
            Err(error) if Timestamp::now() >= record.deadline => {
                let why = format!("the time is over, and whether the Node is there is not known: {error}");
                Presence::Ended(Some((Outcome::Failed, why)))
            }
            Err(error) => {
                tracing::warn!(node = self.node.name, %error, "whether the Node is there is not known");
                Presence::Unknown
            }
        }
    }

    /// One pass over the pods: how long to wait for the next, or the end.
    async fn pass(
        &mut self,
        drain: &mut FleetDrain,
        record: &Record,
        is_silent: bool,
        began: Instant,
    ) -> Result<Duration, (Outcome, String)> {
        let node = self.node.name.clone();
        let pods = match self.performer.fleet.pods(&node).await {
            Ok(pods) => pods,
            Err(error) if Timestamp::now() >= record.deadline => {
                let why = format!("the time is over, and what is left is not known: {error}");
                return Err((Outcome::Failed, why));
            }
            Err(error) => {
                tracing::warn!(node, %error, "the pods are not known; asked again soon");
                return Ok(RECHECK);
            }
        };
        self.find_orphans(drain, &pods).await;
        let batch = match drain.pass(record, pods, is_silent, Timestamp::now(), began.elapsed()) {
            Pass::Ended(outcome, text) => return Err((outcome, text)),
            Pass::Ask(batch) => batch,
        };
        self.log(&batch);
        let answers = tokio::select! {
            answers = tokio::time::timeout(batch.patience, ask(&self.performer, &batch)) => answers.ok(),
            // The deadline may have come nearer, and with it others to be asked.
            _ = self.records.changed() => return Ok(Duration::ZERO),
        };
        let progress = drain.asked(&batch, answers, record, began.elapsed());
        if let Some(text) = &progress.is_blocked_by {
            tracing::warn!(node, "the drain is held up: {text}");
        }
        progress.notices.into_iter().for_each(|notice| self.performer.notify(notice));
        if let Some(text) = progress.write {
            match self.show(text.as_deref()).await {
                Ok(()) => drain.written(text, began.elapsed()),
                Err(error) => tracing::debug!(node, %error, "the progress could not be written"),
            }
        }
        Ok(progress.wait)
    }

    /// DaemonSets that are gone do not put their pods back.
    async fn find_orphans(&self, drain: &mut FleetDrain, pods: &[PodFacts]) {
        let fleet = &self.performer.fleet;
        // What cannot be read is there: its pods are left alone.
        let look =
            async |it: (String, String)| (fleet.has_daemon_set(&it.0, &it.1).await.unwrap_or(true), it);
        let looks =
            futures::stream::iter(drain.unknown_daemon_sets(pods)).map(look).buffer_unordered(AT_ONCE);
        // No pod of others waits for that. Whatever does not answer in time is asked again in the next pass.
        let Ok(looks) = tokio::time::timeout(RECHECK, looks.collect::<Vec<_>>()).await else { return };
        for (is_there, daemon_set) in looks {
            if !is_there {
                let (node, name) = (&self.node.name, &daemon_set.1);
                tracing::warn!(node, daemon_set = name, "its DaemonSet is gone: the pod goes too");
            }
            drain.put_daemon_set(daemon_set, is_there);
        }
    }

    fn log(&self, batch: &Batch) {
        let (node, pods) = (&self.node.name, batch.pods.len());
        if batch.begins_force {
            tracing::warn!(node, pods, "the time is over: ends what is left");
        }
        let Some(lost) = &batch.first else { return };
        tracing::info!(node, pods, "evicts the first pods");
        if !lost.is_empty() {
            let names: Vec<String> = lost.iter().take(5).map(ToString::to_string).collect();
            let (count, pods) = (lost.len(), names.join(", "));
            tracing::warn!(node, count, pods, "goes for good, or loses its data");
        }
    }

    /// Writes on the Node what is in the way, or that nothing is any more.
    async fn show(&self, text: Option<&str>) -> Result<(), fivespot_cluster::Error> {
        let fleet = &self.performer.fleet;
        let is_it = |node: &Node| node.id == self.node;
        match fleet.node(&self.node.name).await?.filter(is_it) {
            Some(node) => fleet.show_progress(&node, text).await,
            None => Ok(()),
        }
    }
}

/// Asks each pod once.
async fn ask(performer: &Performer, batch: &Batch) -> Attempts {
    let attempts = futures::stream::iter(batch.pods.iter().cloned())
        .map(|(pod, way)| ask_one(performer, pod, way, batch.is_urgent));
    Attempts(attempts.buffered(AT_ONCE).collect().await)
}

async fn ask_one(performer: &Performer, pod: PodId, way: Way, is_urgent: bool) -> Attempt {
    performer.rates.take(is_urgent).await;
    let outcome = match performer.fleet.ask(&pod, way).await {
        Eviction::Answered(outcome) => {
            let word = match &outcome {
                Answer::Accepted => "accepted",
                Answer::Blocked(_) => "blocked",
                Answer::Refused(_) => "refused",
            };
            count(&performer.metrics.evictions, word);
            outcome
        }
        Eviction::Busy(wait) => {
            count(&performer.metrics.evictions, "busy");
            performer.rates.pause(wait);
            // It is asked again in the next pass, and nobody is in the way.
            Answer::Accepted
        }
    };
    Attempt { pod, outcome }
}
