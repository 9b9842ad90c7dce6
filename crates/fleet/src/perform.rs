//! Does what was decided: reads, writes, acks, drains, events, log lines. Each effect is a task of its own, and its answer is
//! an input of the owner. Nothing is decided here.

use crate::drains::{self, Surroundings};
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::owner::Inputs;
use crate::rate::Rates;
use crate::report;
use crate::wire::ReclaimAck;
use fivespot_cluster::fleet::Fleet;
use fivespot_cluster::{Cache, Error};
use fivespot_core::fleet::pods::Policy;
use fivespot_core::fleet::record::Record;
use fivespot_core::fleet::{Effect, Facts, Input, NodeFacts, Notice, Write, WriteError, Written};
use jiff::Timestamp;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError};

/// Whoever does what was decided.
pub struct Performer {
    pub(crate) fleet: Fleet,
    /// All Nodes, for drains: whether a kubelet is silent.
    pub(crate) nodes: Cache<NodeFacts>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) metrics: Metrics,
    pub(crate) rates: Rates,
    pub(crate) inputs: Inputs,
    pub(crate) policy: Policy,
    /// The operator's own pod, as namespace and name.
    pub(crate) own: (String, String),
    /// The drains that are under way, by number.
    pub(crate) drains: Mutex<HashMap<u64, Running>>,
}

/// A drain that is under way.
pub(crate) struct Running {
    record: watch::Sender<Record>,
    task: AbortHandle,
}

impl Performer {
    /// Begins to do what was decided. Does not wait.
    pub(crate) fn begin(self: &Arc<Self>, effect: Effect) {
        match effect {
            Effect::Read { machine, node, upcoming } => {
                let it = Arc::clone(self);
                tokio::spawn(async move {
                    let facts = it.read(&machine, node.as_deref(), upcoming).await;
                    it.inputs
                        .put(Input::Read(machine, facts.map(Box::new).map_err(|error| error.to_string())));
                });
            }
            Effect::Write { machine, writes } => {
                let (it, name) = (Arc::clone(self), machine.clone());
                let write = async move { it.write(&name, &writes).await };
                self.answer(write, |written| {
                    let failed = |error: JoinError| {
                        let error = WriteError { text: error.to_string(), is_race: false };
                        Written { result: Err(error), missed: Vec::new() }
                    };
                    Input::Written(machine, written.unwrap_or_else(failed))
                });
            }
            Effect::Ack { instruction, nodes_started } => {
                let ack = ReclaimAck { instruction_id: instruction.clone(), nodes_started };
                let (sent, inputs) = (self.outbox.ack(ack), self.inputs.clone());
                tokio::spawn(async move {
                    // Without a session it is sent in the next one.
                    if sent.await.is_ok() {
                        inputs.put(Input::AckSent(instruction));
                    }
                });
            }
            Effect::StartDrain { number, node, record } => {
                let (sender, records) = watch::channel(record);
                let surroundings = Surroundings { performer: Arc::clone(self), node, records };
                let (it, task) = (Arc::clone(self), tokio::spawn(drains::drain(surroundings)));
                let handle = task.abort_handle();
                tokio::spawn(async move {
                    let end = match task.await {
                        Ok(end) => end,
                        Err(error) if error.is_cancelled() => return,
                        // Its record stands on the Node, and is found there again.
                        Err(_) => None,
                    };
                    it.lock().remove(&number);
                    it.inputs.put(Input::DrainEnded(number, end));
                });
                self.lock().insert(number, Running { record: sender, task: handle });
            }
            Effect::UpdateDrain { number, record } => {
                if let Some(running) = self.lock().get(&number) {
                    running.record.send_replace(record);
                }
            }
            Effect::StopDrain { number } => {
                if let Some(running) = self.lock().remove(&number) {
                    running.task.abort();
                }
            }
            Effect::Notify(notice) => self.notify(notice),
            Effect::Report(report) => report::report(&self.metrics, &report),
        }
    }

    /// Does something in a task of its own. The owner waits for its answer, and gets one also if the task panics.
    fn answer<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        input: impl FnOnce(Result<T, JoinError>) -> Input + Send + 'static,
    ) {
        let (inputs, task) = (self.inputs.clone(), tokio::spawn(work));
        tokio::spawn(async move { inputs.put(input(task.await)) });
    }

    async fn read(&self, machine: &str, node: Option<&str>, upcoming: bool) -> Result<Facts, Error> {
        let upcoming = if upcoming { self.fleet.upcoming(machine).await? } else { None };
        let node = match node {
            Some(name) => self.fleet.node(name).await?,
            None => None,
        };
        Ok(Facts { node, upcoming })
    }

    async fn write(&self, machine: &str, writes: &[Write]) -> Written {
        let mut missed = Vec::new();
        for Write { action, is_required } in writes {
            match self.fleet.perform(machine, action).await {
                Ok(()) => {}
                Err(error) if *is_required => {
                    let is_race = matches!(error, Error::Changed { .. });
                    let error = WriteError { text: error.to_string(), is_race };
                    return Written { result: Err(error), missed };
                }
                Err(error) => missed.push(error.to_string()),
            }
        }
        Written { result: Ok(()), missed }
    }

    /// Sends an event. Nobody waits for it, and that it cannot be sent is no reason to stop.
    pub(crate) fn notify(self: &Arc<Self>, notice: Notice) {
        let (it, now) = (Arc::clone(self), Timestamp::now());
        tokio::spawn(async move {
            if let Err(error) = it.fleet.notify(&notice, now).await {
                tracing::warn!(%error, "an event could not be sent");
            }
        });
    }

    /// Shows how many drains are under way, and which deadline is next.
    pub(crate) fn count_drains(&self, drains: usize, next_deadline: Option<Timestamp>) {
        self.metrics.active_drains.set(i64::try_from(drains).unwrap_or(i64::MAX));
        self.metrics.next_deadline.set(next_deadline.map_or(0, Timestamp::as_second));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Running>> {
        self.drains.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
