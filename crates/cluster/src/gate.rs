//! Who may write next, when many want to.
//!
//! At a boundary hundreds of machines have work at once. Each takes its first step before any takes its second, and
//! among equal steps the higher priority goes first. What is urgent does not queue behind them; it is bounded for each
//! namespace, so that nobody who sets kill switches by the hundred slows down the reclaim of another tenant.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Writes that are under way at the same time.
const AT_ONCE: usize = 16;

/// Urgent writes of one namespace that are under way at the same time: as many as the pods of one Node are deleted with.
const URGENT_AT_ONCE: usize = 16;

/// How long the first of many wait for the others: at the boundary of a window all become ready within this time, but
/// not in the order of their priorities. One that is alone does not wait.
const GATHER: Duration = Duration::from_millis(20);

/// Where in the queue a write stands; less goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// How many writes of the same machine went before it, since it last came to rest.
    pub(crate) step: u16,
    /// Of the machine.
    pub(crate) priority: Reverse<u8>,
}

/// How a write is let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It stands in line.
    Ranked(Rank),
    /// Somebody waits for a machine of this namespace.
    Urgent(String),
}

#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    /// Of the namespaces that have something urgent.
    urgent: Mutex<HashMap<String, Arc<Semaphore>>>,
}

#[derive(Default)]
struct State {
    inside: usize,
    arrived: u64,
    waiting: BinaryHeap<Reverse<Waiter>>,
}

struct Waiter {
    rank: Rank,
    arrived: u64,
    open: oneshot::Sender<()>,
}

impl Waiter {
    fn place(&self) -> (Rank, u64) {
        (self.rank, self.arrived)
    }
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for Waiter {}

impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.place().cmp(&other.place())
    }
}

/// The right to write; given back when dropped.
pub(crate) struct Permit<'a> {
    gate: &'a Gate,
    /// `None` if it stood in line.
    urgent: Option<(String, Option<OwnedSemaphorePermit>)>,
}

impl Gate {
    /// Waits for the right to write.
    pub(crate) async fn enter(&self, admission: Admission) -> Permit<'_> {
        match admission {
            Admission::Ranked(rank) => self.stand_in_line(rank).await,
            Admission::Urgent(namespace) => {
                let bound = {
                    let mut urgent = self.urgent.lock().unwrap_or_else(PoisonError::into_inner);
                    let new = || Arc::new(Semaphore::new(URGENT_AT_ONCE));
                    Arc::clone(urgent.entry(namespace.clone()).or_insert_with(new))
                };
                // Made before the wait, so that whoever gives up waiting tidies up too. Nobody closes the semaphore.
                let mut permit = Permit { gate: self, urgent: Some((namespace.clone(), None)) };
                permit.urgent = Some((namespace, bound.acquire_owned().await.ok()));
                permit
            }
        }
    }

    async fn stand_in_line(&self, rank: Rank) -> Permit<'_> {
        let (open, waiting) = oneshot::channel();
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.arrived += 1;
            let arrived = state.arrived;
            state.waiting.push(Reverse(Waiter { rank, arrived, open }));
        }
        // Made before the wait, so that a task that is dropped while it waits gives back what it was just given.
        let mut turn = Turn { gate: self, waiting: Some(waiting) };
        if let Some(waiting) = &mut turn.waiting {
            // Whoever is ready at the same moment stands in line before the first is let in.
            tokio::task::yield_now().await;
            let gather = if self.is_crowded() { GATHER } else { Duration::ZERO };
            if tokio::time::timeout(gather, &mut *waiting).await.is_err() {
                self.admit();
                // The sender is in the heap until it is used.
                let _ = waiting.await;
            }
        }
        turn.waiting = None;
        Permit { gate: self, urgent: None }
    }

    /// Whether more than one stand in line.
    fn is_crowded(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).waiting.len() > 1
    }

    fn admit(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.inside < AT_ONCE {
            let Some(Reverse(next)) = state.waiting.pop() else { return };
            // A waiter that is gone does not take its turn.
            if next.open.send(()).is_ok() {
                state.inside += 1;
            }
        }
    }

    fn leave(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.inside = state.inside.saturating_sub(1);
        drop(state);
        self.admit();
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let Some((namespace, permit)) = self.urgent.take() else { return self.gate.leave() };
        drop(permit);
        let mut urgent = self.gate.urgent.lock().unwrap_or_else(PoisonError::into_inner);
        // The map has one of the references; whoever waits or writes has another.
        if urgent.get(&namespace).is_some_and(|bound| Arc::strong_count(bound) == 1) {
            urgent.remove(&namespace);
        }
    }
}

/// A place in the queue; empty when its turn has come.
struct Turn<'a> {
    gate: &'a Gate,
    waiting: Option<oneshot::Receiver<()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(waiting) = &mut self.waiting else { return };
        waiting.close();
        if waiting.try_recv().is_ok() {
            self.gate.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(step: u16, priority: u8) -> Admission {
        Admission::Ranked(Rank { step, priority: Reverse(priority) })
    }

    fn urgent(namespace: &str) -> Admission {
        Admission::Urgent(namespace.to_owned())
    }

    #[tokio::test]
    async fn first_steps_go_first_and_among_them_the_higher_priority() {
        let gate = Arc::new(Gate::default());
        let mut permits = Vec::new();
        for _ in 0..AT_ONCE {
            permits.push(gate.enter(ranked(9, 0)).await);
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (step, priority) in [(1, 255), (0, 1), (0, 200), (2, 0), (0, 1)] {
            let (waiter, order) = (Arc::clone(&gate), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let _permit = waiter.enter(ranked(step, priority)).await;
                order.lock().unwrap().push((step, priority));
            }));
            tokio::task::yield_now().await;
        }
        // One who waits and goes away holds up nobody.
        let gone = Arc::clone(&gate);
        let gone = tokio::spawn(async move { drop(gone.enter(ranked(0, 255)).await) });
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
        assert!(gate.enter(urgent("a")).await.urgent.is_some(), "what is urgent does not wait");
        permits.truncate(AT_ONCE - 1);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [(0, 200), (0, 1), (0, 1), (1, 255), (2, 0)]);
        drop(permits);
        let all = (0..AT_ONCE).map(|_| gate.enter(ranked(0, 0)));
        let all = futures::future::join_all(all);
        tokio::time::timeout(Duration::from_secs(5), all).await.expect("every permit came back");
    }

    #[tokio::test]
    async fn what_is_urgent_in_one_namespace_holds_up_no_other() {
        let gate = Gate::default();
        let is_let_in = async |namespace: &str| {
            let enters = gate.enter(urgent(namespace));
            tokio::time::timeout(Duration::from_millis(20), enters).await.is_ok()
        };
        let mut permits = Vec::new();
        for _ in 0..URGENT_AT_ONCE {
            permits.push(gate.enter(urgent("flood")).await);
        }
        assert!(!is_let_in("flood").await);
        assert!(is_let_in("other").await);
        permits.pop();
        assert!(is_let_in("flood").await);
        drop(permits);
        assert!(gate.urgent.lock().unwrap().is_empty(), "nobody is remembered");
    }
}
