//! Which rollups the shard has acknowledged.
//!
//! An ack does not say which rollup it is for, and there are fewer acks than rollups: a shard drops what it cannot read,
//! and of those that wait in a queue only the newest counts. So an ack is taken for the oldest rollup that may be meant,
//! and a request is said to be heard of too late rather than too early.

use crate::lock;
use fivespot_cluster::Key;
use std::collections::VecDeque;
use std::sync::Mutex;
use tokio::time::Instant;

/// Rollups whose acks are waited for at most: what is older was skipped.
const SENT: usize = 16;

/// The rollups of one session that were handed over, and what their acks have shown.
#[derive(Default)]
pub(crate) struct Acks(Mutex<State>);

#[derive(Default)]
struct State {
    /// Since when no ack has come though one is waited for.
    since: Option<Instant>,
    /// The requests that were new in each rollup.
    sent: VecDeque<Vec<Key>>,
    heard: Vec<Key>,
}

impl Acks {
    /// A rollup is about to be handed over, in which these requests are new.
    pub(crate) fn expect(&self, new: Vec<Key>) {
        let mut state = lock(&self.0);
        state.since.get_or_insert_with(Instant::now);
        state.sent.push_back(new);
        if state.sent.len() > SENT {
            state.sent.pop_front();
        }
    }

    /// The rollup that was expected last has taken the place of the one before it, which nobody has seen.
    pub(crate) fn replaced(&self) {
        let mut state = lock(&self.0);
        if let Some(before) = state.sent.len().checked_sub(2) {
            state.sent.remove(before);
        }
    }

    /// An ack has come.
    pub(crate) fn heard(&self) {
        let mut state = lock(&self.0);
        state.since = None;
        let oldest = state.sent.pop_front().unwrap_or_default();
        state.heard.extend(oldest);
    }

    /// The requests that the shard has heard of, once.
    pub(crate) fn take(&self) -> Vec<Key> {
        std::mem::take(&mut lock(&self.0).heard)
    }

    /// Since when no ack has come though one is waited for.
    pub(crate) fn missing_since(&self) -> Option<Instant> {
        lock(&self.0).since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &[&str]) -> Vec<Key> {
        names.iter().map(|name| Key::new("default", *name)).collect()
    }

    #[test]
    fn an_ack_is_for_the_oldest_rollup_and_what_came_later_is_not_heard_of_yet() {
        let acks = Acks::default();
        acks.expect(keys(&["a"]));
        acks.expect(keys(&["a", "b"]));
        acks.heard();
        assert_eq!(acks.take(), keys(&["a"]), "the second may not have been read");
        assert_eq!(acks.take(), [], "once");
        acks.heard();
        assert_eq!(acks.take(), keys(&["a", "b"]));
        acks.heard();
        assert_eq!(acks.take(), [], "an ack too many says nothing");
    }

    #[test]
    fn a_rollup_that_was_replaced_before_it_was_sent_gets_no_ack() {
        let acks = Acks::default();
        acks.expect(keys(&["a"]));
        acks.expect(keys(&["a", "b"]));
        acks.replaced();
        acks.heard();
        assert_eq!(acks.take(), keys(&["a", "b"]));
    }

    #[test]
    fn rollups_that_are_never_acknowledged_are_not_kept_for_ever() {
        let acks = Acks::default();
        for number in 0..=SENT {
            acks.expect(keys(&[&number.to_string()]));
        }
        acks.heard();
        assert_eq!(acks.take(), keys(&["1"]));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_counted_from_the_first_rollup_without_an_ack() {
        let acks = Acks::default();
        assert_eq!(acks.missing_since(), None);
        acks.expect(Vec::new());
        let first = Instant::now();
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        acks.expect(Vec::new());
        assert_eq!(acks.missing_since(), Some(first));
        acks.heard();
        assert_eq!(acks.missing_since(), None);
    }
}
