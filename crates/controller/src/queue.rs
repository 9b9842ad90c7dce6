//! Which machine is looked at next, and when.
//!
//! Each machine is looked at by at most one pass at a time. What changes around it makes it due at once; a pass says
//! when it is due again at the latest. A pass that failed is repeated with growing distance, but a change makes it due
//! at once even then, unless the change is what we wrote ourselves.

use fivespot_cluster::{Change, Key, Retry};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// First and longest distance between two passes that fail.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(5));

/// The same, if the world has only moved on between look and write.
const SOON: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Well; look again at the latest then.
    Done(Option<Instant>),
    /// Not at all: what is known of the machine is older than what we wrote. Look again then.
    Behind(Instant),
    /// It failed.
    Failed(Retry),
    /// The machine is gone.
    Gone,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: HashMap<Key, Entry>,
    due: BTreeSet<(Instant, Key)>,
}

#[derive(Debug, Default)]
struct Entry {
    due: Option<Instant>,
    is_running: bool,
    /// What changed while it was running.
    again: Option<Change>,
    failures: u32,
}

impl Queue {
    /// Something changed.
    pub(crate) fn touch(&mut self, key: &Key, change: Change, now: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.is_running {
            // The world is more than what we wrote ourselves.
            if entry.again != Some(Change::World) {
                entry.again = Some(change);
            }
            return;
        }
        // What we wrote to tell of a failure must not undo its backoff.
        if change == Change::Own && entry.failures > 0 {
            return;
        }
        self.set(key, now);
    }

    /// The next machine that is due.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Key> {
        let (at, key) = self.due.first()?.clone();
        if at > now {
            return None;
        }
        self.due.pop_first();
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.due = None;
            entry.is_running = true;
            entry.again = None;
        }
        Some(key)
    }

    /// When the next machine is due.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// How often the last passes of a machine have failed.
    pub(crate) fn failures(&self, key: &Key) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    /// A pass has ended.
    pub(crate) fn done(&mut self, key: &Key, outcome: Outcome, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.is_running = false;
        let again = std::mem::take(&mut entry.again);
        let at = match outcome {
            Outcome::Done(at) => {
                entry.failures = 0;
                // The next step may need no more than what this one has written down.
                again.map_or(at, |_| Some(now))
            }
            Outcome::Behind(at) => Some(at),
            Outcome::Failed(retry) => {
                let (first, longest) = match retry {
                    Retry::Soon => SOON,
                    Retry::Later | Retry::Refused => BACKOFF,
                };
                let factor = 2_u32.saturating_pow(entry.failures);
                entry.failures = entry.failures.saturating_add(1);
                Some(now + first.saturating_mul(factor).min(longest))
            }
            Outcome::Gone if again.is_some() => None,
            Outcome::Gone => {
                self.entries.remove(key);
                return;
            }
        };
        if let Some(at) = if again == Some(Change::World) { Some(now) } else { at } {
            self.set(key, at);
        }
    }

    /// Makes it due then, or earlier if it was.
    fn set(&mut self, key: &Key, at: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(before) = entry.due {
            if before <= at {
                return;
            }
            self.due.remove(&(before, key.clone()));
        }
        entry.due = Some(at);
        self.due.insert((at, key.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("n", name)
    }

    #[test]
    fn a_machine_is_looked_at_by_one_pass_at_a_time() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.touch(&key("a"), Change::World, now);
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), None, "it is running");
        queue.done(&key("a"), Outcome::Done(None), now);
        assert_eq!(queue.next(now), Some(key("a")), "it changed meanwhile");
        queue.done(&key("a"), Outcome::Done(Some(now + Duration::from_secs(9))), now);
        assert_eq!(queue.next(now), None);
        assert_eq!(queue.next_at(), Some(now + Duration::from_secs(9)));
    }

    #[test]
    fn failures_wait_longer_each_time_and_a_change_ends_the_wait() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.touch(&key("a"), Change::World, now);
        for seconds in [30, 60, 120, 240, 300, 300] {
            assert_eq!(queue.next(queue.next_at().unwrap()), Some(key("a")));
            queue.done(&key("a"), Outcome::Failed(Retry::Later), now);
            assert_eq!(queue.next_at(), Some(now + Duration::from_secs(seconds)));
        }
        queue.touch(&key("a"), Change::Own, now);
        assert_eq!(queue.next(now), None, "what we wrote ourselves is no reason to try again");
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.done(&key("a"), Outcome::Done(None), now);
        assert_eq!(queue.failures(&key("a")), 0);
    }

    #[test]
    fn what_we_wrote_leads_to_the_next_pass_unless_it_tells_of_a_failure() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for (outcome, again) in [(Outcome::Done(None), true), (Outcome::Failed(Retry::Later), false)] {
            queue.touch(&key("a"), Change::World, now);
            assert_eq!(queue.next(now), Some(key("a")));
            queue.touch(&key("a"), Change::Own, now);
            queue.done(&key("a"), outcome, now);
            assert_eq!(queue.next(now).is_some(), again, "{outcome:?}");
            queue.done(&key("a"), Outcome::Done(None), now);
        }
    }

    #[test]
    fn a_pass_that_came_too_early_neither_fails_nor_succeeds() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.done(&key("a"), Outcome::Failed(Retry::Later), now);
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
        let soon = now + Duration::from_millis(50);
        queue.done(&key("a"), Outcome::Behind(soon), now);
        assert_eq!((queue.failures(&key("a")), queue.next_at()), (1, Some(soon)));
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.done(&key("a"), Outcome::Gone, now);
        assert_eq!((queue.entries.len(), queue.next_at()), (0, None));
    }
}
