//! Nodes that are being emptied.
//!
//! A drain is a task for each Node. It keeps nothing: the record on the Node says until when, the pods that are there say
//! what is left. A process that finds the record goes on where the last one stopped.

use crate::desk::{Desk, Letter, lock};
use crate::metrics::{By, count};
use crate::plan::{Look, OnDeadline, Place, Times};
use crate::record::{Outcome, Record};
use fivespot_api::names::FLEET_PROGRESS;
use fivespot_cluster::Key;
use fivespot_cluster::fleet::{About, Eviction, Guest, Told, Way};
use fivespot_core::drain::{self, Attempt, Attempts, PodId, RETRY};
use fivespot_core::text::{MESSAGE_BYTES, printable};
use futures::StreamExt;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Pods of one Node that are asked at the same time.
const AT_ONCE: usize = 10;

/// How soon pods that end are looked at again.
const ENDS: Duration = Duration::from_secs(1);

/// How often what is in the way of a drain is written on its Node, at most.
const PROGRESS: Duration = Duration::from_secs(5);

/// Pods of one drain that get an event of their own: whoever has more looks at the Node.
const TOLD: usize = 20;

/// A drain of which an ack is not heard goes on after this.
const ACK: Duration = Duration::from_secs(10);

/// The drains that are under way, by the name of the Node.
#[derive(Default)]
pub(crate) struct Drains(Mutex<HashMap<String, Running>>);

struct Running {
    uid: String,
    record: watch::Sender<Record>,
    task: AbortHandle,
    /// Whether it has come to its end, which is not written down yet.
    has_ended: bool,
}

/// How a drain ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) node: String,
    pub(crate) uid: String,
    pub(crate) record: Record,
    pub(crate) outcome: Outcome,
    /// Why it failed, or what is odd about its success.
    pub(crate) text: String,
}

impl Drains {
    /// How many are under way.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Desk {
    /// Empties a Node, or tells whoever does so already what has changed.
    pub(crate) fn start_drain(
        self: &Arc<Self>,
        node: &str,
        uid: &str,
        record: Record,
        acked: Option<watch::Receiver<bool>>,
    ) {
        if self.settings.observe_only {
            tracing::info!(node, "would be drained");
            return;
        }
        let mut drains = lock(&self.drains.0);
        if let Some(running) = drains.get(node) {
            if running.uid == uid && !running.has_ended {
                running.record.send_replace(record);
                return self.count_drains(&drains);
            }
            // It has ended, or another Node has its name and the record was the old one's.
            running.task.abort();
        }
        let (record, records) = watch::channel(record);
        let desk = Arc::clone(self);
        let (name, identity) = (node.to_owned(), uid.to_owned());
        let task = tokio::spawn(async move {
            if let Some(mut acked) = acked {
                // Whoever acks is gone, or too slow: pods must not lose their time.
                let _ = tokio::time::timeout(ACK, acked.wait_for(|is_acked| *is_acked)).await;
            }
            let drain = Draining { desk: &desk, node: &name, uid: &identity, records };
            let ended = drain.run().await;
            desk.drain_ended(&name, &identity, ended);
        });
        let running = Running { uid: uid.to_owned(), record, task: task.abort_handle(), has_ended: false };
        drains.insert(node.to_owned(), running);
        self.count_drains(&drains);
    }

    /// Goes on with a drain that nobody is at.
    pub(crate) fn keep_draining(self: &Arc<Self>, node: &str, uid: &str, record: &Record) {
        let is_known = lock(&self.drains.0).get(node).is_some_and(|running| running.uid == uid);
        if !is_known {
            self.start_drain(node, uid, record.clone(), None);
        }
    }

    fn count_drains(&self, drains: &HashMap<String, Running>) {
        self.metrics.active_drains.set(i64::try_from(drains.len()).unwrap_or(i64::MAX));
        let next = drains.values().map(|running| running.record.borrow().deadline.as_second()).min();
        self.metrics.next_deadline.set(next.unwrap_or_default());
    }

    /// Stops a drain.
    pub(crate) fn stop_drain(&self, node: &str) {
        let mut drains = lock(&self.drains.0);
        if let Some(running) = drains.remove(node) {
            running.task.abort();
        }
        self.count_drains(&drains);
    }

    /// A drain has ended. It is under way until that is written down.
    fn drain_ended(self: &Arc<Self>, node: &str, uid: &str, ended: Option<Ended>) {
        if let Some(running) = lock(&self.drains.0).get_mut(node).filter(|running| running.uid == uid) {
            running.has_ended = true;
        }
        let Some(ended) = ended else { return self.forget_drain(node, uid) };
        let Ended { record, outcome, text, .. } = &ended;
        let machine = record.machine.clone();
        match outcome {
            Outcome::Drained => tracing::info!(machine, node, "drained"),
            Outcome::Failed => tracing::error!(machine, node, "not drained: {text}"),
        }
        let took = Timestamp::now().duration_since(record.accepted_at).as_secs_f64().max(0.0);
        self.metrics.drains.get_or_create(&By { result: outcome.word() }).observe(took);
        self.post(&machine, Letter::Ended(Arc::new(ended)));
    }

    /// The end of a drain is written down, if no other has begun.
    pub(crate) fn forget_drain(&self, node: &str, uid: &str) {
        let mut drains = lock(&self.drains.0);
        if drains.get(node).is_some_and(|running| running.uid == uid && running.has_ended) {
            drains.remove(node);
        }
        self.count_drains(&drains);
    }

    /// Tells something about a Node. Nobody waits for it, and that nobody hears it is no reason to stop.
    pub(crate) fn tell(self: &Arc<Self>, about: About, told: Told) {
        let (desk, now) = (Arc::clone(self), Timestamp::now());
        tokio::spawn(async move {
            if let Err(error) = desk.fleet.tell(&about, &told, now).await {
                tracing::warn!(%error, "an event could not be sent");
            }
        });
    }
}

/// One drain.
struct Draining<'a> {
    desk: &'a Arc<Desk>,
    node: &'a str,
    uid: &'a str,
    records: watch::Receiver<Record>,
}

/// What a drain remembers from pass to pass; nothing depends on it but what is said.
#[derive(Default)]
struct Memory {
    attempts: Attempts,
    gone: BTreeSet<(String, String)>,
    asked: BTreeSet<(String, String)>,
    has_begun: bool,
    /// What was written on the Node last, and when.
    progress: Option<(Option<String>, Instant)>,
    /// Whether somebody was told that it is held up.
    is_held_up: bool,
    /// Pods that were told what holds them.
    told: BTreeSet<PodId>,
    /// Since when pods are ended whatever their budgets say, and which.
    forced: Option<(Instant, BTreeSet<PodId>)>,
}

impl Draining<'_> {
    /// Until nothing is left or the time is over; nothing if the Node is another one.
    async fn run(mut self) -> Option<Ended> {
        let record = self.records.borrow().clone();
        self.tell_accepted(&record);
        let mut memory = Memory::default();
        loop {
            let record = self.records.borrow_and_update().clone();
            let ended = |outcome: Outcome, text: String| {
                let (node, uid) = (self.node.to_owned(), self.uid.to_owned());
                Some(Ended { node, uid, record: record.clone(), outcome, text })
            };
            let seen = self.desk.nodes.get(&Key::new("", self.node));
            if seen.as_ref().is_none_or(|node| node.uid != self.uid) {
                match self.desk.fleet.node(self.node).await {
                    Ok(Some(node)) if node.uid == self.uid => {}
                    Ok(Some(_)) => return None,
                    Ok(None) => {
                        return ended(Outcome::Drained, "the Node is gone, and its pods with it".to_owned());
                    }
                    // Its pods may be those of another one.
                    Err(error) if Timestamp::now() >= record.deadline => {
                        let why = "the time is over, and whether the Node is there is not known";
                        return ended(Outcome::Failed, format!("{why}: {error}"));
                    }
                    Err(error) => {
                        tracing::warn!(node = self.node, %error, "whether the Node is there is not known");
                        tokio::time::sleep(ENDS).await;
                        continue;
                    }
                }
            }
            let is_silent = seen.is_some_and(|node| node.is_silent);
            let wait = match self.pass(&record, is_silent, &mut memory).await {
                Pass::Ended(outcome, text) => return ended(outcome, text),
                Pass::Again(wait) => wait,
            };
            let left = record.deadline.duration_since(Timestamp::now());
            let left = Duration::try_from(left).ok().filter(|left| !left.is_zero()).unwrap_or(wait);
            tokio::select! {
                () = tokio::time::sleep(wait.min(left)) => {}
                // The deadline may have come nearer. The sender is in the list of drains, which ends this task first.
                _ = self.records.changed() => {}
            }
        }
    }

    async fn pass(&self, record: &Record, is_silent: bool, memory: &mut Memory) -> Pass {
        let guests = match self.desk.fleet.guests(self.node).await {
            Ok(guests) => guests,
            Err(error) if Timestamp::now() >= record.deadline => {
                return Pass::Ended(
                    Outcome::Failed,
                    format!("the time is over, and what is left is not known: {error}"),
                );
            }
            Err(error) => {
                tracing::warn!(node = self.node, %error, "the pods are not known; asked again soon");
                return Pass::Again(ENDS);
            }
        };
        self.find_orphans(&guests, memory).await;
        let (namespace, name) = &self.desk.settings.own;
        let place = Place { is_silent, gone: &memory.gone, own: Some((namespace, name)) };
        let (now, policy) = (Timestamp::now(), self.desk.settings.policy);
        let Record { accepted_at, cordoned_at, deadline, .. } = *record;
        let times = Times { now, accepted_at, cordoned_at, deadline };
        let is_over = now >= record.deadline;
        let look = Look::new(guests, place, times, policy);
        if look.is_complete() {
            let parts = [look.summary(&Attempts::default()), by_force(memory.forced.as_ref())];
            let parts = parts.into_iter().filter(|part| !part.is_empty());
            return Pass::Ended(Outcome::Drained, parts.collect::<Vec<_>>().join("; "));
        }
        let has_tried = memory.forced.as_ref().is_some_and(|(since, _)| since.elapsed() >= drain::FORCED);
        if is_over && (policy.on_deadline == OnDeadline::Fail || has_tried) {
            return Pass::Ended(Outcome::Failed, look.failure(&memory.attempts));
        }
        let pods = look.to_ask();
        if is_over {
            let (_, ended) = memory.forced.get_or_insert_with(|| {
                tracing::warn!(node = self.node, pods = pods.len(), "the time is over: ends what is left");
                (Instant::now(), BTreeSet::new())
            });
            ended.extend(pods.iter().cloned());
        }
        self.say_first(&look, &pods, memory);
        let left = record.deadline.duration_since(Timestamp::now());
        let left = Duration::try_from(left).unwrap_or_default();
        let pods = pods.into_iter().map(|pod| (look.way(&pod), pod)).collect();
        // Answers that come after the deadline are of no use any more.
        let patience = if is_over { drain::FORCED } else { left };
        let mut records = self.records.clone();
        tokio::select! {
            answers = tokio::time::timeout(patience, self.ask(pods, times.is_short())) => {
                if let Ok(attempts) = answers {
                    memory.attempts = attempts;
                }
            }
            // The deadline may have come nearer, and so may who is to be asked.
            _ = records.changed() => return Pass::Again(Duration::ZERO),
        }
        let text = memory.attempts.summary();
        self.show(&look, memory).await;
        self.tell_pods(record, memory);
        Pass::Again(if text.is_empty() { ENDS } else { RETRY })
    }

    /// DaemonSets that are gone do not put their pods back.
    async fn find_orphans(&self, guests: &[Guest], memory: &mut Memory) {
        let key = |guest: &Guest| Some((guest.pod.id.namespace.clone(), guest.daemon_set.clone()?));
        let new: BTreeSet<_> =
            guests.iter().filter_map(key).filter(|key| !memory.asked.contains(key)).collect();
        // What cannot be read is there: its pods are left alone.
        let look = async |key: (String, String)| {
            (self.desk.fleet.has_daemon_set(&key.0, &key.1).await.unwrap_or(true), key)
        };
        let looks = futures::stream::iter(new).map(look).buffer_unordered(AT_ONCE).collect::<Vec<_>>();
        // No pod of others waits for that. Who does not answer in time is asked again in the next pass.
        let Ok(looks) = tokio::time::timeout(ENDS, looks).await else { return };
        for (is_there, key) in looks {
            if !is_there {
                let daemon_set = &key.1;
                tracing::warn!(node = self.node, daemon_set, "its DaemonSet is gone: the pod goes too");
                memory.gone.insert(key.clone());
            }
            memory.asked.insert(key);
        }
    }

    fn say_first(&self, look: &Look, pods: &[PodId], memory: &mut Memory) {
        if memory.has_begun || pods.is_empty() {
            return;
        }
        memory.has_begun = true;
        tracing::info!(node = self.node, pods = pods.len(), "evicts the first pods");
        let lost: Vec<String> = look.losses().iter().map(ToString::to_string).collect();
        if !lost.is_empty() {
            let pods = lost.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            tracing::warn!(node = self.node, count = lost.len(), pods, "goes for good, or loses its data");
        }
    }

    /// Asks each pod once.
    async fn ask(&self, pods: Vec<(Way, PodId)>, is_urgent: bool) -> Attempts {
        let desk = self.desk;
        let attempts = futures::stream::iter(pods).map(|(way, pod)| async move {
            desk.rates.take(is_urgent).await;
            let outcome = match desk.fleet.ask(&pod, way).await {
                Eviction::Answered(outcome) => {
                    count(
                        &desk.metrics.evictions,
                        match &outcome {
                            drain::Outcome::Accepted => "accepted",
                            drain::Outcome::Blocked(_) => "blocked",
                            drain::Outcome::Refused(_) => "refused",
                        },
                    );
                    outcome
                }
                Eviction::Busy(wait) => {
                    count(&desk.metrics.evictions, "busy");
                    desk.rates.pause(wait);
                    // It is asked again in the next pass, and nobody is in the way.
                    drain::Outcome::Accepted
                }
            };
            Attempt { pod, outcome }
        });
        Attempts(attempts.buffered(AT_ONCE).collect().await)
    }

    /// Writes on the Node what is in the way, or that nothing is any more, if that is new.
    async fn show(&self, look: &Look, memory: &mut Memory) {
        let is_free = memory.attempts.summary().is_empty() && look.held().is_empty();
        let text = (!is_free).then(|| format!("{} left: {}", look.left(), look.summary(&memory.attempts)));
        let text = text.map(|text| printable(&text, MESSAGE_BYTES).into_owned());
        let is_news = match &memory.progress {
            Some((old, at)) => *old != text && at.elapsed() >= PROGRESS,
            None => text.is_some(),
        };
        if !is_news {
            return;
        }
        if let Some(text) = text.as_ref().filter(|_| !memory.is_held_up) {
            memory.is_held_up = true;
            tracing::warn!(node = self.node, "the drain is held up: {text}");
            let told = Told {
                reason: "DrainBlocked",
                text: text.clone(),
                is_warning: true,
                key: self.records.borrow().deadline.to_string(),
            };
            self.desk.tell(About::Node(self.node.to_owned(), self.uid.to_owned()), told);
        }
        let written = match self.desk.fleet.node(self.node).await {
            Ok(Some(node)) if node.uid == self.uid => {
                let annotations = BTreeMap::from([(FLEET_PROGRESS, text.clone())]);
                self.desk.fleet.patch_node(&node, &annotations, None).await
            }
            answer => answer.map(drop),
        };
        match written {
            Ok(()) => memory.progress = Some((text, Instant::now())),
            Err(error) => tracing::debug!(node = self.node, %error, "the progress could not be written"),
        }
    }

    /// Tells whoever looks at a pod why it has not moved.
    fn tell_pods(&self, record: &Record, memory: &mut Memory) {
        for Attempt { pod, outcome } in &memory.attempts.0 {
            let drain::Outcome::Blocked(why) = outcome else { continue };
            if memory.told.len() >= TOLD || !memory.told.insert(pod.clone()) {
                continue;
            }
            let told = Told {
                reason: "EvictionBlocked",
                text: format!("the fleet takes Node {} back until {}: {why}", self.node, record.deadline),
                is_warning: true,
                key: record.deadline.to_string(),
            };
            self.desk.tell(About::Pod(pod.clone()), told);
        }
    }

    fn tell_accepted(&self, record: &Record) {
        let instruction = record.instructions.last().map_or("a lost instruction", String::as_str);
        let told = Told {
            reason: "ReclaimAccepted",
            text: format!(
                "the fleet takes machine {} back ({instruction}); it is drained until {}",
                record.machine, record.deadline
            ),
            is_warning: false,
            key: format!("{:?}", record.instructions),
        };
        self.desk.tell(About::Node(self.node.to_owned(), self.uid.to_owned()), told);
    }
}

/// Which pods were ended at the deadline, in words; empty if none were.
fn by_force(forced: Option<&(Instant, BTreeSet<PodId>)>) -> String {
    let Some((_, pods)) = forced else { return String::new() };
    let names: Vec<String> = pods.iter().take(3).map(ToString::to_string).collect();
    format!("{} ended at the deadline, whatever budgets said: {}", pods.len(), names.join(", "))
}

/// What came of one look.
enum Pass {
    Ended(Outcome, String),
    Again(Duration),
}
