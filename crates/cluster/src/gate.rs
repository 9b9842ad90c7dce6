//! Who may write next, when many want to.
//!
//! At a boundary hundreds of machines have work at once. Each takes its first step before any takes its second, and
//! among equal steps the higher priority goes first. What is urgent does not queue at all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Writes that are under way at the same time.
const AT_ONCE: usize = 16;

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

#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
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
pub(crate) struct Permit<'a>(Option<&'a Gate>);

impl Gate {
    /// Waits for the right to write. Without a rank there is no waiting.
    pub(crate) async fn enter(&self, rank: Option<Rank>) -> Permit<'_> {
        let Some(rank) = rank else { return Permit(None) };
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
        Permit(Some(self))
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
        if let Some(gate) = self.0 {
            gate.leave();
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
    use std::sync::Arc;

    #[tokio::test]
    async fn first_steps_go_first_and_among_them_the_higher_priority() {
        let gate = Arc::new(Gate::default());
        let mut permits = Vec::new();
        for _ in 0..AT_ONCE {
            permits.push(gate.enter(Some(Rank { step: 9, priority: Reverse(0) })).await);
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (step, priority) in [(1, 255), (0, 1), (0, 200), (2, 0), (0, 1)] {
            let (waiter, order) = (Arc::clone(&gate), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let _permit = waiter.enter(Some(Rank { step, priority: Reverse(priority) })).await;
                order.lock().unwrap().push((step, priority));
            }));
            tokio::task::yield_now().await;
        }
        // One who waits and goes away holds up nobody.
        let gone = Arc::clone(&gate);
        let gone =
            tokio::spawn(
                async move { drop(gone.enter(Some(Rank { step: 0, priority: Reverse(255) })).await) },
            );
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
        assert!(gate.enter(None).await.0.is_none(), "what is urgent does not wait");
        permits.truncate(AT_ONCE - 1);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [(0, 200), (0, 1), (0, 1), (1, 255), (2, 0)]);
        drop(permits);
        let all = (0..AT_ONCE).map(|_| gate.enter(Some(Rank { step: 0, priority: Reverse(0) })));
        let all = futures::future::join_all(all);
        tokio::time::timeout(Duration::from_secs(5), all).await.expect("every permit came back");
    }
}
