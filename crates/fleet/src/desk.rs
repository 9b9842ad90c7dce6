//! Where what the shard says is sorted, and handed to whoever does it.
//!
//! Each machine has a mailbox and at most one worker, so that what is said about one machine is done in the order it was
//! said, and a machine whose Node cannot be reached holds up no other. Nothing here waits: the receive loop calls it.

use crate::drains::{Drains, Ended};
use crate::heard::{Heard, Meaning, Moment};
use crate::instructions::{Instructions, Known};
use crate::metrics::{Metrics, count};
use crate::outbox::Outbox;
use crate::plan::Policy;
use crate::rate::Rates;
use crate::record::{Order, Record, read_grace, to_millis};
use crate::resolve::{NodeView, Places, Rule, UpcomingView, resolve};
use crate::wire::{MachineState, NodeStateUpdate, ReclaimAck, ReclaimInstruction};
use fivespot_api::names::upcoming_node;
use fivespot_cluster::fleet::Fleet;
use fivespot_cluster::{Cache, Error, Key};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

/// Nodes of one instruction; a shard that names more has lost its mind, and only the first are given back.
const ENTRIES: usize = 1000;

/// How long an ack waits for the last of its Nodes, if the others are cordoned: pods must not be evicted before the ack,
/// and must not lose their time because one Node cannot be reached.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a drain waits until its ack is on its way. Without a session it is not, and the drain goes on.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// Machines whose states are written down at the same time: a session begins with the states of all of them, and each
/// request under way is a connection to the API server.
const AT_ONCE: usize = 32;

/// First and last wait before something is tried again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// What does not change while the process runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Grace of a drain whose instruction was lost.
    pub default_grace: SignedDuration,
    /// Whether nothing is cordoned and nothing evicted.
    pub observe_only: bool,
    /// Our own pod, as namespace and name.
    pub own: (String, String),
    /// What whoever runs the cluster has chosen.
    pub policy: Policy,
}

/// Everything that the work on machines needs.
pub struct Desk {
    pub(crate) fleet: Fleet,
    pub(crate) nodes: Cache<NodeView>,
    pub(crate) upcoming: Cache<UpcomingView>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) metrics: Metrics,
    pub(crate) settings: Settings,
    pub(crate) rates: Rates,
    pub(crate) drains: Drains,
    mailboxes: Mutex<HashMap<String, VecDeque<Mail>>>,
    turns: Semaphore,
    /// Tells those who wait for a turn to look whether they may go without.
    hurry: Notify,
    providers: Mutex<HashMap<String, String>>,
    instructions: Mutex<Instructions>,
    heard: Mutex<Heard>,
    /// Machines that were idle since they were last taken back.
    pub(crate) idle: Mutex<HashSet<String>>,
    /// Machines whose instruction was given up at its deadline. Their UpcomingNodes say so too, as soon as that can be
    /// written.
    pub(crate) given_up: Mutex<HashSet<String>>,
    session_began: Mutex<Timestamp>,
    /// Whether it is we who speak for the cluster.
    speaks: AtomicBool,
}

/// What the work on machines is made of.
pub struct Parts {
    /// The API server.
    pub fleet: Fleet,
    /// All Nodes.
    pub nodes: Cache<NodeView>,
    /// All UpcomingNodes.
    pub upcoming: Cache<UpcomingView>,
    /// What is said to the shard.
    pub outbox: Arc<Outbox>,
    /// What is counted.
    pub metrics: Metrics,
    /// How fast pods are asked.
    pub rates: Rates,
}

/// Something to be done about a machine.
#[derive(Clone)]
pub(crate) enum Letter {
    /// The shard wants its Node back; the entry is what the instruction calls it.
    Entry(Arc<Instruction>, String),
    /// Nothing could be done about its Node until the deadline, for this reason.
    Failed(Arc<Instruction>, String),
    /// The shard tells its state; the number is that of what was heard.
    State(Arc<NodeStateUpdate>, u64),
    /// The drain of its Node goes on after a restart.
    Resumed(String),
    /// The drain of its Node has ended.
    Ended(Arc<Ended>),
    /// A Node has appeared that may be it.
    Look,
}

/// An instruction that is being carried out.
pub(crate) struct Instruction {
    pub(crate) id: String,
    pub(crate) received_at: Timestamp,
    pub(crate) grace: SignedDuration,
    pub(crate) preemptor_priority: i32,
    received: Instant,
    /// What had been heard of machines before.
    heard: Moment,
    progress: Mutex<Progress>,
    acked: watch::Sender<bool>,
}

#[derive(Default)]
struct Progress {
    /// Entries of which it is not known yet whether their Nodes are cordoned.
    left: BTreeSet<String>,
    started: i32,
    is_acked: bool,
}

/// A letter, and how often it could not be dealt with.
type Mail = (Letter, u32);

impl Letter {
    /// Whether an ack or pods wait for it, and not only people who look.
    fn is_urgent(&self) -> bool {
        match self {
            Self::Entry(..) | Self::Failed(..) | Self::Resumed(_) | Self::Ended(_) => true,
            Self::State(update, _) => update.state() == MachineState::Draining,
            Self::Look => false,
        }
    }
}

impl Instruction {
    pub(crate) fn order(&self, machine: &str) -> Order {
        Order {
            instruction: Some(self.id.clone()),
            machine: machine.to_owned(),
            received_at: self.received_at,
            grace: self.grace,
            preemptor_priority: self.preemptor_priority,
        }
    }

    pub(crate) fn deadline(&self) -> Timestamp {
        self.received_at.checked_add(self.grace).unwrap_or(Timestamp::MAX)
    }

    /// Hears when the ack is on its way.
    pub(crate) fn acked(&self) -> watch::Receiver<bool> {
        self.acked.subscribe()
    }
}

impl Desk {
    /// A desk with nothing on it.
    pub fn new(parts: Parts, settings: Settings) -> Arc<Self> {
        let Parts { fleet, nodes, upcoming, outbox, metrics, rates } = parts;
        Arc::new(Self {
            fleet,
            nodes,
            upcoming,
            outbox,
            metrics,
            settings,
            rates,
            drains: Drains::default(),
            mailboxes: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
            hurry: Notify::new(),
            providers: Mutex::default(),
            instructions: Mutex::default(),
            heard: Mutex::default(),
            idle: Mutex::default(),
            given_up: Mutex::default(),
            session_began: Mutex::new(Timestamp::UNIX_EPOCH),
            speaks: AtomicBool::new(false),
        })
    }

    /// A session begins: what the shard does not speak of in it is not there any more.
    pub fn begin_session(&self) {
        lock(&self.heard).begin_session();
        *lock(&self.session_began) = to_millis(Timestamp::now());
    }

    /// Whether a machine may be in use again though nobody has said that it was told to join.
    pub(crate) fn may_be_reused(&self, machine: &str, record: &Record) -> bool {
        record.accepted_at < *lock(&self.session_began) || lock(&self.idle).contains(machine)
    }

    /// Machines that the shard has spoken of in this session.
    pub fn heard(&self) -> BTreeSet<String> {
        lock(&self.heard).machines()
    }

    /// Whether an instruction that could not be carried out at once still means this machine: a Node that comes late may be
    /// that of its next life. That it is idle does not call it off: its pods must move all the same.
    pub(crate) fn meaning(&self, machine: &str, instruction: &Instruction) -> Meaning {
        lock(&self.heard).meaning(machine, instruction.heard)
    }

    /// Takes an instruction.
    pub fn instruct(self: &Arc<Self>, instruction: ReclaimInstruction) {
        let ReclaimInstruction { instruction_id: id, nodes, grace_period_seconds, preemptor_priority } =
            instruction;
        if id.is_empty() {
            count(&self.metrics.instructions, "refused");
            tracing::error!(?nodes, "an instruction without an id cannot be acked and is not carried out");
            return;
        }
        let known = lock(&self.instructions).begin(&id);
        match known {
            Known::Acked(nodes_started) => {
                count(&self.metrics.instructions, "repeated");
                tracing::info!(instruction = id, nodes_started, "known already: acked again, nothing else");
                drop(self.outbox.ack(ReclaimAck { instruction_id: id, nodes_started }));
                return;
            }
            Known::AtWork => {
                count(&self.metrics.instructions, "repeated");
                return;
            }
            Known::New => {}
        }
        let entries: BTreeSet<String> = nodes.into_iter().filter(|entry| !entry.is_empty()).collect();
        let grace = read_grace(grace_period_seconds);
        tracing::info!(
            instruction = id,
            entries = ?entries.iter().take(10).collect::<Vec<_>>(),
            count = entries.len(),
            grace_seconds = grace.as_secs(),
            preemptor_priority,
            "the shard wants Nodes back"
        );
        if entries.len() > ENTRIES {
            tracing::error!(
                instruction = id,
                count = entries.len(),
                "only the first {ENTRIES} are given back"
            );
        }
        let entries: Vec<String> = entries.into_iter().take(ENTRIES).collect();
        let instruction = Arc::new(Instruction {
            id,
            received_at: Timestamp::now(),
            grace,
            preemptor_priority,
            received: Instant::now(),
            heard: lock(&self.heard).now(),
            progress: Mutex::new(Progress { left: entries.iter().cloned().collect(), ..Progress::default() }),
            acked: watch::Sender::new(false),
        });
        if entries.is_empty() {
            self.ack(&instruction);
            return;
        }
        for entry in entries {
            self.post(&self.machine_of(&entry), Letter::Entry(Arc::clone(&instruction), entry));
        }
        let desk = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            // Whoever is alone waits for his Node: there is nobody whose time it would cost.
            let is_alone = {
                let progress = lock(&instruction.progress);
                progress.started == 0
            };
            if !is_alone {
                desk.ack(&instruction);
            }
        });
    }

    /// One entry of an instruction is done with, for now.
    pub(crate) fn settle(self: &Arc<Self>, instruction: &Arc<Instruction>, entry: &str, is_started: bool) {
        let is_due = {
            let mut progress = lock(&instruction.progress);
            if !progress.left.remove(entry) {
                return;
            }
            progress.started += i32::from(is_started);
            let is_late = instruction.received.elapsed() >= PATIENCE && progress.started > 0;
            progress.left.is_empty() || is_late
        };
        if is_due {
            self.ack(instruction);
        }
    }

    fn ack(self: &Arc<Self>, instruction: &Arc<Instruction>) {
        let nodes_started = {
            let mut progress = lock(&instruction.progress);
            if std::mem::replace(&mut progress.is_acked, true) {
                return;
            }
            progress.started
        };
        lock(&self.instructions).end(&instruction.id, nodes_started);
        let mut sent = self.outbox.ack(ReclaimAck { instruction_id: instruction.id.clone(), nodes_started });
        let (desk, instruction) = (Arc::clone(self), Arc::clone(instruction));
        tokio::spawn(async move {
            let outcome = tokio::time::timeout(ON_ITS_WAY, &mut sent).await;
            let is_sent = matches!(outcome, Ok(Ok(())));
            let took = instruction.received.elapsed();
            count(&desk.metrics.instructions, if is_sent { "acked" } else { "ack_waits" });
            tracing::info!(
                instruction = instruction.id,
                nodes_started,
                is_sent,
                millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                "acked"
            );
            instruction.acked.send_replace(true);
            // Without a session it is said in the next one.
            if is_sent || (outcome.is_err() && sent.await.is_ok()) {
                desk.metrics.ack_latency.observe(instruction.received.elapsed().as_secs_f64());
            }
        });
    }

    /// Takes the state of a machine.
    pub fn update(self: &Arc<Self>, update: NodeStateUpdate) {
        let machine = update.machine_id.clone();
        if !is_name(&machine) {
            tracing::error!(
                machine = machine.chars().take(80).collect::<String>(),
                "not the name of a machine"
            );
            return;
        }
        let number = lock(&self.heard).hear(&machine, update.state());
        if !update.provider_id.is_empty() {
            lock(&self.providers).insert(machine.clone(), update.provider_id.clone());
        }
        self.post(&machine, Letter::State(Arc::new(update), number));
    }

    /// A Node has appeared, changed or gone: UpcomingNodes that do not know theirs look for it.
    pub fn node_changed(self: &Arc<Self>) {
        if !self.speaks.load(Ordering::Relaxed) {
            return;
        }
        let wanting = |_: &Key, it: &UpcomingView| {
            it.node.is_none() && matches!(it.phase.as_str(), "Registered" | "Ready" | "Draining")
        };
        for key in self.upcoming.keys(wanting) {
            if let Some(it) = self.upcoming.get(&key)
                && self.find(&it.machine).is_some()
            {
                self.post(&it.machine, Letter::Look);
            }
        }
    }

    /// It is our turn to speak for the cluster: goes on with the drains that another process began. They are asked of the
    /// server, since what a watch shows may be of a moment before.
    pub async fn resume(self: &Arc<Self>) -> Result<(), Error> {
        self.speaks.store(true, Ordering::Relaxed);
        self.node_changed();
        for taken in self.fleet.taken().await? {
            if let Some(record) = Record::read(&taken.record).filter(Record::is_running) {
                self.post(&record.machine, Letter::Resumed(taken.node));
            }
        }
        Ok(())
    }

    /// Forgets what is known of machines that are gone.
    pub fn prune(&self) {
        let is_there = |machine: &String| self.is_machine(machine) || self.find(machine).is_some();
        let mut all: BTreeSet<String> = lock(&self.providers).keys().cloned().collect();
        all.extend(lock(&self.idle).iter().cloned());
        all.extend(lock(&self.given_up).iter().cloned());
        for machine in all.iter().filter(|machine| !is_there(machine)) {
            lock(&self.providers).remove(machine);
            lock(&self.idle).remove(machine);
            lock(&self.given_up).remove(machine);
        }
    }

    /// Puts something into the mailbox of a machine. Of two equal things in a row only the last counts.
    pub(crate) fn post(self: &Arc<Self>, machine: &str, letter: Letter) {
        self.put_into_mailbox(machine, (letter, 0));
    }

    fn put_into_mailbox(self: &Arc<Self>, machine: &str, mail: Mail) {
        let mut mailboxes = lock(&self.mailboxes);
        if let Some(queue) = mailboxes.get_mut(machine) {
            match (queue.back(), &mail.0) {
                (Some((Letter::Look, _)), Letter::Look) => return,
                (Some((Letter::State(last, _), _)), Letter::State(next, _)) if last.state == next.state => {
                    queue.pop_back();
                }
                _ => {}
            }
            let is_urgent = mail.0.is_urgent();
            queue.push_back(mail);
            drop(mailboxes);
            if is_urgent {
                self.hurry.notify_waiters();
            }
            return;
        }
        mailboxes.insert(machine.to_owned(), VecDeque::from([mail]));
        drop(mailboxes);
        let (desk, machine) = (Arc::clone(self), machine.to_owned());
        tokio::spawn(async move {
            loop {
                let _turn = desk.turn(&machine).await;
                let mail = {
                    let mut mailboxes = lock(&desk.mailboxes);
                    let mail = mailboxes.get_mut(&machine).and_then(VecDeque::pop_front);
                    if mail.is_none() {
                        mailboxes.remove(&machine);
                    }
                    mail
                };
                let Some((letter, tries)) = mail else { return };
                if let Err(error) = desk.handle(&machine, letter.clone()).await {
                    desk.post_again(&machine, (letter, tries), &error);
                }
            }
        });
    }

    /// Waits until the next letter about a machine may be dealt with: at once, if somebody waits for one of them, or until
    /// there are few others at work.
    async fn turn(&self, machine: &str) -> Option<SemaphorePermit<'_>> {
        let is_urgent = |mail: &Mail| mail.0.is_urgent();
        let mut turn = pin!(self.turns.acquire());
        loop {
            let mut hurry = pin!(self.hurry.notified());
            // Before the look, so that what comes in between is heard of.
            hurry.as_mut().enable();
            if lock(&self.mailboxes).get(machine).is_none_or(|queue| queue.iter().any(is_urgent)) {
                return None;
            }
            tokio::select! {
                // It is never closed.
                turn = &mut turn => return turn.ok(),
                () = hurry => {}
            }
        }
    }

    /// What could not be done is tried again, for ever, and holds up nothing else that is to be done about the machine.
    fn post_again(self: &Arc<Self>, machine: &str, (letter, tries): Mail, error: &Error) {
        count(&self.metrics.writes, "failed");
        if tries == 0 {
            tracing::warn!(machine, %error, "not done yet; tried again until it is");
        } else {
            tracing::debug!(machine, %error, tries, "not done yet");
        }
        let (desk, machine) = (Arc::clone(self), machine.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(AGAIN.0.saturating_mul(1 << tries.min(16)).min(AGAIN.1)).await;
            if desk.is_current(&machine, &letter) {
                desk.put_into_mailbox(&machine, (letter, tries.saturating_add(1)));
            }
        });
    }

    /// Whether a letter is not overtaken by another: of states only the last counts.
    fn is_current(&self, machine: &str, letter: &Letter) -> bool {
        !matches!(letter, Letter::State(_, number) if lock(&self.heard).last(machine) != Some(*number))
    }

    /// Whether nobody works on an instruction that is not acked yet.
    pub fn is_settled(&self) -> bool {
        lock(&self.instructions).are_acked()
    }

    /// The Node that an entry or a machine means.
    pub(crate) fn find(&self, entry: &str) -> Option<(NodeView, Rule)> {
        let nodes: Vec<Arc<NodeView>> = self.nodes.all().into_iter().map(|(_, node)| node).collect();
        let upcoming = self.upcoming.get(&Key::new("", upcoming_node(entry)));
        let provider_id = lock(&self.providers).get(entry).cloned();
        let places =
            Places { nodes: &nodes, upcoming: upcoming.as_deref(), provider_id: provider_id.as_deref() };
        resolve(entry, places).map(|(node, rule)| (node.clone(), rule))
    }

    /// Whether the shard speaks of a machine of this name, or did.
    pub(crate) fn is_machine(&self, name: &str) -> bool {
        lock(&self.heard).last(name).is_some()
            || self.upcoming.get(&Key::new("", upcoming_node(name))).is_some()
    }

    /// The machine that an entry of an instruction is about: by the letter of the protocol it may be the name of a Node.
    fn machine_of(&self, entry: &str) -> String {
        if self.is_machine(entry) || lock(&self.providers).contains_key(entry) {
            return entry.to_owned();
        }
        let refers = self.upcoming.all().into_iter().find(|(_, it)| it.node.as_deref() == Some(entry));
        let by_label = || self.nodes.get(&Key::new("", entry)).and_then(|node| node.machine.clone());
        refers.map(|(_, it)| it.machine.clone()).or_else(by_label).unwrap_or_else(|| entry.to_owned())
    }
}

/// Whether a text can be part of the name of an object, and so of a path.
pub(crate) fn is_name(text: &str) -> bool {
    let is_edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    (1..=240).contains(&bytes.len())
        && bytes.iter().all(|byte| is_edge(*byte) || matches!(byte, b'-' | b'.'))
        && bytes.first().copied().is_some_and(is_edge)
        && bytes.last().copied().is_some_and(is_edge)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_never_becomes_part_of_a_path() {
        for name in ["a", "conf-s0-c0-i0", "i-0abc.example"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "A", "a/b", "../x", "-a", "a-", "a b", "ä", &"a".repeat(300)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
