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

/// The longest distance if somebody waits for his machine.
const URGENT: Duration = Duration::from_secs(1);

/// The same, if the world has only moved on between look and write.
const SOON: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Well.
    Done(Next),
    /// Not at all: what is known of the machine is older than what we wrote. Look again then.
    Behind(Instant),
    /// It failed; the clock goes on all the same, and the moment that was awaited is not missed.
    Failed(Retry, Option<Instant>),
    /// It failed, and somebody waits for his machine: no backoff.
    FailedUrgently(Retry),
    /// The machine is gone, or another instance looks after it.
    Gone,
}

/// When a machine is looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Next {
    /// At the latest then.
    pub(crate) at: Option<Instant>,
    /// Whether it is waited for, so that what we wrote ourselves is no reason to look earlier.
    pub(crate) waits: bool,
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
    failures: Failures,
    waits: bool,
}

/// Passes that failed in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Failures {
    /// Since the world had moved on between look and write.
    pub(crate) soon: u32,
    /// Since something is broken.
    pub(crate) later: u32,
}

impl Failures {
    /// Whether there were any.
    pub(crate) fn any(self) -> bool {
        self != Self::default()
    }
}

impl Queue {
    /// Something changed.
    pub(crate) fn touch(&mut self, key: &Key, change: Change, now: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.is_running {
            entry.again = match (entry.again, change) {
                (None | Some(Change::Own), Change::Own) => Some(Change::Own),
                (Some(Change::World | Change::Urgent), _) | (_, Change::World | Change::Urgent) => {
                    Some(Change::World)
                }
            };
            return;
        }
        // What we wrote to tell of a failure must not undo its backoff, nor what we wrote of a wait shorten it.
        if change == Change::Own && (entry.failures.any() || entry.waits) {
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
    pub(crate) fn failures(&self, key: &Key) -> Failures {
        self.entries.get(key).map_or(Failures::default(), |entry| entry.failures)
    }

    /// A pass has ended.
    pub(crate) fn done(&mut self, key: &Key, outcome: Outcome, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.is_running = false;
        let again = match entry.again.take() {
            Some(Change::World | Change::Urgent) => true,
            // What a pass wrote may be seen before the pass has ended: the next step follows from it. What it wrote to
            // tell of a failure must not undo its backoff.
            Some(Change::Own) => matches!(outcome, Outcome::Done(Next { waits: false, .. })),
            None => false,
        };
        let at = match outcome {
            Outcome::Done(Next { at, waits }) => {
                entry.failures = Failures::default();
                entry.waits = waits;
                at
            }
            Outcome::Behind(at) => Some(at),
            Outcome::Failed(retry, wake) => {
                let ((first, longest), count) = match retry {
                    Retry::Soon => (SOON, &mut entry.failures.soon),
                    Retry::Later | Retry::Refused => (BACKOFF, &mut entry.failures.later),
                };
                let factor = 2_u32.saturating_pow(*count);
                *count = count.saturating_add(1);
                let backoff = now + first.saturating_mul(factor).min(longest);
                // A moment that has passed already is not awaited: it is what failed.
                Some(wake.filter(|wake| *wake > now).map_or(backoff, |wake| wake.min(backoff)))
            }
            Outcome::FailedUrgently(retry) => {
                let count = match retry {
                    Retry::Soon => &mut entry.failures.soon,
                    Retry::Later | Retry::Refused => &mut entry.failures.later,
                };
                let backoff = SOON.0.saturating_mul(2_u32.saturating_pow(*count)).min(URGENT);
                *count = count.saturating_add(1);
                Some(now + backoff)
            }
            Outcome::Gone if again => None,
            Outcome::Gone => {
                self.entries.remove(key);
                return;
            }
        };
        if let Some(at) = if again { Some(now) } else { at } {
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
        queue.done(&key("a"), Outcome::Done(Next::default()), now);
        assert_eq!(queue.next(now), Some(key("a")), "it changed meanwhile");
        queue.done(
            &key("a"),
            Outcome::Done(Next { at: Some(now + Duration::from_secs(9)), waits: false }),
            now,
        );
        assert_eq!(queue.next(now), None);
        assert_eq!(queue.next_at(), Some(now + Duration::from_secs(9)));
    }

    #[test]
    fn what_a_pass_wrote_may_be_seen_before_it_ends() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.touch(&key("a"), Change::World, now);
        queue.next(now);
        queue.touch(&key("a"), Change::Own, now);
        queue.done(
            &key("a"),
            Outcome::Done(Next { at: Some(now + Duration::from_secs(30)), waits: false }),
            now,
        );
        assert_eq!(queue.next(now), Some(key("a")), "the next step follows from what was written");
        queue.touch(&key("a"), Change::Own, now);
        queue.done(&key("a"), Outcome::Failed(Retry::Later, None), now);
        assert_eq!(queue.next(now), None, "a failure that was told of waits all the same");
    }

    #[test]
    fn failures_wait_longer_each_time_and_a_change_ends_the_wait() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.touch(&key("a"), Change::World, now);
        for seconds in [30, 60, 120, 240, 300, 300] {
            assert_eq!(queue.next(queue.next_at().unwrap()), Some(key("a")));
            queue.done(&key("a"), Outcome::Failed(Retry::Later, None), now);
            assert_eq!(queue.next_at(), Some(now + Duration::from_secs(seconds)));
        }
        queue.touch(&key("a"), Change::Own, now);
        assert_eq!(queue.next(now), None, "what we wrote ourselves is no reason to try again");
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.done(&key("a"), Outcome::Done(Next::default()), now);
        assert!(!queue.failures(&key("a")).any());
    }

    #[test]
    fn a_pass_that_came_too_early_neither_fails_nor_succeeds() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.done(&key("a"), Outcome::Failed(Retry::Later, None), now);
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
        let soon = now + Duration::from_millis(50);
        queue.done(&key("a"), Outcome::Behind(soon), now);
        assert_eq!((queue.failures(&key("a")).later, queue.next_at()), (1, Some(soon)));
    }

    #[test]
    fn a_failure_does_not_make_the_clock_stand_still() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let window_ends = now + Duration::from_secs(7);
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.done(&key("a"), Outcome::Failed(Retry::Refused, Some(window_ends)), now);
        assert_eq!(queue.next_at(), Some(window_ends));
        assert_eq!(queue.next(window_ends), Some(key("a")));
        queue.done(&key("a"), Outcome::Failed(Retry::Refused, Some(window_ends)), window_ends);
        assert_eq!(
            queue.next_at(),
            Some(window_ends + Duration::from_mins(1)),
            "what failed at its moment waits"
        );
    }

    #[test]
    fn who_waits_for_his_machine_waits_a_second_at_most() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.touch(&key("a"), Change::World, now);
        for millis in [100, 200, 400, 800, 1000, 1000] {
            assert_eq!(queue.next(queue.next_at().unwrap()), Some(key("a")));
            queue.done(&key("a"), Outcome::FailedUrgently(Retry::Later), now);
            assert_eq!(queue.next_at(), Some(now + Duration::from_millis(millis)));
        }
    }

    #[test]
    fn a_wait_is_not_shortened_by_what_we_write_about_it() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let at = Some(now + Duration::from_secs(2));
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
        queue.touch(&key("a"), Change::Own, now);
        queue.done(&key("a"), Outcome::Done(Next { at, waits: true }), now);
        queue.touch(&key("a"), Change::Own, now);
        assert_eq!((queue.next(now), queue.next_at()), (None, at));
        queue.touch(&key("a"), Change::World, now);
        assert_eq!(queue.next(now), Some(key("a")));
    }

    #[test]
    fn what_we_wrote_leads_to_the_next_pass_unless_it_tells_of_a_failure() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let done = Outcome::Done(Next::default());
        for (outcome, again) in [(done, true), (Outcome::Failed(Retry::Later, None), false)] {
            queue.touch(&key("a"), Change::World, now);
            assert_eq!(queue.next(now), Some(key("a")));
            queue.touch(&key("a"), Change::Own, now);
            queue.done(&key("a"), outcome, now);
            assert_eq!(queue.next(now).is_some(), again, "{outcome:?}");
            queue.done(&key("a"), done, now);
        }
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
