//! The one owner of everything that is known of machines, and those who put things to it.
//!
//! What the shard says, what watches show and how effects went are [`Input`]s in one queue. One task takes them one after
//! the other, has [`Operator`] decide, and hands the effects on. Nobody who puts something in waits: the receive loop does.

use crate::perform::Performer;
use fivespot_api::names::UPCOMING_PREFIX;
use fivespot_cluster::fleet::Taken;
use fivespot_cluster::{Cache, Key};
use fivespot_core::fleet::{Input, NodeFacts, Now, Operator, Settings, UpcomingFacts};
use jiff::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::Instant;

/// Where inputs are put.
#[derive(Clone)]
pub struct Inputs {
    sender: UnboundedSender<Input>,
    /// How many were put.
    put: Arc<AtomicU64>,
    state: watch::Receiver<State>,
}

/// What others may know of the owner.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// How many inputs were taken.
    handled: u64,
    /// Whether no instruction waits for its ack.
    is_settled: bool,
    /// How many drains are under way.
    pub drains: usize,
}

/// The owner, before it begins.
pub struct Owner {
    operator: Operator,
    began: Instant,
    inputs: UnboundedReceiver<Input>,
    state: watch::Sender<State>,
}

impl Inputs {
    /// Puts an input into the queue. It is taken while the process lives.
    pub fn put(&self, input: Input) {
        self.put.fetch_add(1, Ordering::SeqCst);
        // The owner ends with the process.
        let _ = self.sender.send(input);
    }

    /// A watch has shown something of a Node.
    pub(crate) fn node_changed(&self, key: &Key, nodes: &Cache<NodeFacts>) {
        let facts = nodes.get(key).map(|facts| NodeFacts::clone(&facts));
        self.put(Input::NodeChanged(key.name.clone(), facts));
    }

    /// A watch has shown something of an UpcomingNode.
    pub(crate) fn upcoming_changed(&self, key: &Key, upcoming: &Cache<UpcomingFacts>) {
        let facts = upcoming.get(key).map(|facts| UpcomingFacts::clone(&facts));
        let machine = key.name.strip_prefix(UPCOMING_PREFIX).unwrap_or(&key.name);
        self.put(Input::UpcomingChanged(machine.to_owned(), facts));
    }

    /// It is our turn to speak for the cluster: these Nodes are taken back.
    pub(crate) fn lead(&self, taken: &[Taken]) {
        let record = |it: &Taken| Some((it.node.clone(), fivespot_api::fleet::read_record(&it.record)?));
        self.put(Input::Leads(taken.iter().filter_map(record).collect()));
    }

    /// Whether no instruction waits for its ack, nor to be taken.
    pub(crate) fn are_settled(&self) -> bool {
        let put = self.put.load(Ordering::SeqCst);
        let state = *self.state.borrow();
        state.is_settled && state.handled >= put
    }

    /// How many drains are under way.
    pub(crate) fn drains(&self) -> usize {
        self.state.borrow().drains
    }
}

impl Owner {
    /// An owner, and where inputs are put for it.
    pub fn new(settings: Settings) -> (Self, Inputs) {
        let (sender, inputs) = mpsc::unbounded_channel();
        let (state, watched) = watch::channel(State { is_settled: true, ..State::default() });
        let began = Instant::now();
        let operator = Operator::new(settings, now(began));
        (Self { operator, began, inputs, state }, Inputs { sender, put: Arc::default(), state: watched })
    }

    /// Takes inputs for ever.
    pub async fn run(mut self, performer: Arc<Performer>) {
        loop {
            let due = self.operator.due_in(now(self.began)).unwrap_or(Duration::MAX);
            let input = tokio::select! {
                input = self.inputs.recv() => input,
                () = tokio::time::sleep(due) => Some(Input::Time),
            };
            // The performer has a sender of its own, so the queue never ends before the process.
            let Some(input) = input else { return };
            let is_time = matches!(input, Input::Time);
            for effect in self.operator.handle(now(self.began), input) {
                performer.begin(effect);
            }
            let (is_settled, drains) = (self.operator.is_settled(), self.operator.drains());
            let taken = u64::from(!is_time);
            self.state.send_modify(|state| {
                *state = State { handled: state.handled + taken, is_settled, drains };
            });
            performer.count_drains(drains, self.operator.next_deadline());
        }
    }
}

fn now(began: Instant) -> Now {
    Now { time: Timestamp::now(), uptime: began.elapsed() }
}
