//! What is still to be said to the shard.
//!
//! Nobody waits to put anything in: the receive loop must never be held up by a shard that does not read. Acks outlive a
//! session, since an instruction is accepted by the process and not by a connection. Answers to bootstrap requests do not:
//! their ids mean nothing to the next session. Of rollups only the newest counts.

use crate::wire::operator_message::Payload;
use crate::wire::{BootstrapBlobResponse, ClusterCapacityNeeds, OperatorMessage, ReclaimAck};
use futures::Stream;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// Acks and answers that are kept; a shard that leaves more unread is gone.
const MOST: usize = 4096;

/// What is still to be said.
#[derive(Default)]
pub struct Outbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    session: u64,
    is_closed: bool,
    acks: VecDeque<(ReclaimAck, oneshot::Sender<()>)>,
    answers: VecDeque<BootstrapBlobResponse>,
    rollup: Option<ClusterCapacityNeeds>,
}

impl Outbox {
    /// Says that an instruction is accepted. The answer comes when the ack is on its way to the shard.
    pub fn ack(&self, ack: ReclaimAck) -> oneshot::Receiver<()> {
        let (sent, receiver) = oneshot::channel();
        self.change(|state| {
            state.acks.push_back((ack, sent));
            if state.acks.len() > MOST {
                state.acks.pop_front();
            }
        });
        receiver
    }

    /// Answers a bootstrap request.
    pub fn answer(&self, answer: BootstrapBlobResponse) {
        self.change(|state| {
            state.answers.push_back(answer);
            if state.answers.len() > MOST {
                state.answers.pop_front();
            }
        });
    }

    /// Says what is wanted, in the place of what was to be said before; whether there was such a thing.
    pub fn rollup(&self, rollup: ClusterCapacityNeeds) -> bool {
        let mut is_replaced = false;
        self.change(|state| is_replaced = state.rollup.replace(rollup).is_some());
        is_replaced
    }

    /// Ends the sessions when everything is said.
    pub fn close(&self) {
        self.change(|state| state.is_closed = true);
    }

    /// Whether no ack is left to be said.
    pub fn is_flushed(&self) -> bool {
        self.lock().acks.is_empty()
    }

    /// Begins a session with its first words. The one before says nothing more.
    pub fn begin(self: &Arc<Self>, hello: Payload) -> impl Stream<Item = OperatorMessage> + Send + use<> {
        let mut session = 0;
        self.change(|state| {
            state.session += 1;
            session = state.session;
            state.answers.clear();
            state.rollup = None;
        });
        futures::stream::unfold((Arc::clone(self), Some(hello)), move |(outbox, hello)| async move {
            let payload = match hello {
                Some(hello) => hello,
                None => outbox.next(session).await?,
            };
            Some((OperatorMessage { payload: Some(payload) }, (outbox, None)))
        })
    }

    async fn next(&self, session: u64) -> Option<Payload> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Before the look, so that what comes in between is heard of.
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                if state.session != session {
                    return None;
                }
                if let Some((ack, sent)) = state.acks.pop_front() {
                    // Whoever waited may have given up.
                    let _ = sent.send(());
                    return Some(Payload::ReclaimAck(ack));
                }
                if let Some(answer) = state.answers.pop_front() {
                    return Some(Payload::BootstrapResponse(answer));
                }
                if let Some(rollup) = state.rollup.take() {
                    return Some(Payload::Rollup(rollup));
                }
                if state.is_closed {
                    return None;
                }
            }
            changed.await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Hello;
    use futures::StreamExt;

    fn ack(id: &str) -> ReclaimAck {
        ReclaimAck { instruction_id: id.into(), nodes_started: 1 }
    }

    fn hello() -> Payload {
        Payload::Hello(Hello { cluster_id: "lab".into(), protocol_version: "v1alpha1".into() })
    }

    fn word(message: Option<OperatorMessage>) -> String {
        match message.and_then(|message| message.payload) {
            None => "end".to_owned(),
            Some(Payload::Hello(_)) => "hello".to_owned(),
            Some(Payload::ReclaimAck(ack)) => ack.instruction_id,
            Some(Payload::BootstrapResponse(answer)) => answer.request_id,
            Some(Payload::Rollup(rollup)) => format!("rollup {}", rollup.timestamp_unix_nanos),
        }
    }

    #[tokio::test]
    async fn acks_go_first_and_outlive_a_session_and_only_the_newest_rollup_counts() {
        let outbox = Arc::new(Outbox::default());
        let rollup =
            |at| ClusterCapacityNeeds { timestamp_unix_nanos: at, ..ClusterCapacityNeeds::default() };
        let answer =
            |id: &str| BootstrapBlobResponse { request_id: id.into(), ..BootstrapBlobResponse::default() };
        let mut first = Box::pin(outbox.begin(hello()));
        assert_eq!(word(first.next().await), "hello");
        assert!(!outbox.rollup(rollup(1)));
        assert!(outbox.rollup(rollup(2)), "in the place of the first");
        outbox.answer(answer("b1"));
        let mut sent = outbox.ack(ack("a1"));
        assert!(sent.try_recv().is_err(), "not on its way yet");
        assert_eq!(word(first.next().await), "a1");
        assert!(sent.try_recv().is_ok());
        assert_eq!(word(first.next().await), "b1");
        assert_eq!(word(first.next().await), "rollup 2");

        outbox.answer(answer("b2"));
        outbox.rollup(rollup(3));
        drop(outbox.ack(ack("a2")));
        let mut second = Box::pin(outbox.begin(hello()));
        assert_eq!(word(first.next().await), "end", "it was replaced");
        assert_eq!(word(second.next().await), "hello");
        assert_eq!(word(second.next().await), "a2", "and not what was meant for the first session");
        drop(outbox.ack(ack("a3")));
        assert!(!outbox.is_flushed());
        outbox.close();
        assert_eq!(word(second.next().await), "a3");
        assert_eq!(word(second.next().await), "end");
        assert!(outbox.is_flushed());
    }
}
