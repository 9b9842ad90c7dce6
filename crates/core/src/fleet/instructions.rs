//! Which instructions this process knows, how far they are, and with which count they were acked.
//!
//! An instruction that comes again is acked again, and nothing else. What this process has forgotten, or another one has
//! been told, the record on the Node knows.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Instructions that are remembered.
const REMEMBERED: usize = 1024;

/// How long an ack waits for the last of its Nodes, if others are cordoned: pods must not be evicted before the ack, and
/// must not lose their time because one Node cannot be reached.
pub(super) const ACK_PATIENCE: Duration = Duration::from_secs(5);

/// Instructions by id.
#[derive(Debug, Default)]
pub(super) struct Instructions {
    by_id: HashMap<String, Progress>,
    order: VecDeque<String>,
}

/// How far an instruction is.
#[derive(Debug)]
struct Progress {
    /// When it came, since the process began.
    received: Duration,
    /// Entries of which it is not known yet whether their Nodes are cordoned.
    left: BTreeSet<String>,
    /// Nodes that were cordoned.
    started: i32,
    /// The count it was acked with.
    acked: Option<i32>,
    /// Whether the ack is taken to have been sent: the drains may begin.
    is_sent: bool,
}

/// What is known of an instruction that comes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing.
    New,
    /// It came before, and is not acked yet.
    InProgress,
    /// It came before, and was acked with this count.
    Acked(i32),
}

impl Instructions {
    /// Adds an instruction, if it is new.
    pub(super) fn begin(
        &mut self,
        id: &str,
        entries: impl IntoIterator<Item = String>,
        now: Duration,
    ) -> Known {
        match self.by_id.get(id) {
            Some(Progress { acked: Some(count), .. }) => return Known::Acked(*count),
            Some(Progress { acked: None, .. }) => return Known::InProgress,
            None => {}
        }
        let left = entries.into_iter().collect();
        self.by_id
            .insert(id.to_owned(), Progress { received: now, left, started: 0, acked: None, is_sent: false });
        self.order.push_back(id.to_owned());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        Known::New
    }

    /// One entry is dealt with. Returns the count to ack with, if that is due now.
    pub(super) fn settle(&mut self, id: &str, entry: &str, is_started: bool, now: Duration) -> Option<i32> {
        let progress = self.by_id.get_mut(id)?;
        if !progress.left.remove(entry) {
            return None;
        }
        progress.started += i32::from(is_started);
        let is_late = now.saturating_sub(progress.received) >= ACK_PATIENCE && progress.started > 0;
        if progress.left.is_empty() || is_late { progress.ack() } else { None }
    }

    /// The patience for the entries that are left is over. Returns the count to ack with, if any Node is cordoned: an
    /// instruction without one waits, since there are no pods whose time that would cost.
    pub(super) fn ack_late(&mut self, id: &str) -> Option<i32> {
        self.by_id.get_mut(id).filter(|progress| progress.started > 0 || progress.left.is_empty())?.ack()
    }

    /// The ack is sent, or has waited long enough for a session. Returns how long after the instruction, the first time.
    pub(super) fn sent(&mut self, id: &str, now: Duration) -> Option<Duration> {
        let progress = self.by_id.get_mut(id)?;
        let is_first = !std::mem::replace(&mut progress.is_sent, true);
        is_first.then(|| now.saturating_sub(progress.received))
    }

    /// Whether a drain that waits for this ack may begin. One that is forgotten was acked long ago.
    pub(super) fn is_sent(&self, id: &str) -> bool {
        self.by_id.get(id).is_none_or(|progress| progress.is_sent)
    }

    /// Whether none waits for its ack.
    pub(super) fn are_acked(&self) -> bool {
        self.by_id.values().all(|progress| progress.acked.is_some())
    }
}

impl Progress {
    fn ack(&mut self) -> Option<i32> {
        let is_first = self.acked.is_none();
        is_first.then(|| *self.acked.insert(self.started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn the_oldest_instruction_is_forgotten_first() {
        let mut instructions = Instructions::default();
        for id in 0..=REMEMBERED {
            assert_eq!(instructions.begin(&id.to_string(), ["m".to_owned()], NOW), Known::New);
        }
        assert_eq!(instructions.settle("1", "m", true, NOW), Some(1));
        assert_eq!(instructions.begin("1", [], NOW), Known::Acked(1));
        assert_eq!(instructions.begin("2", [], NOW), Known::InProgress);
        assert_eq!(instructions.begin("0", [], NOW), Known::New, "it was forgotten");
        assert!(!instructions.are_acked());
    }

    #[test]
    fn an_ack_waits_for_its_last_node_but_not_for_long() {
        let mut instructions = Instructions::default();
        instructions.begin("i", ["a", "b", "c"].map(str::to_owned), NOW);
        assert_eq!(instructions.ack_late("i"), None, "no Node is cordoned: nothing waits for the ack");
        assert_eq!(instructions.settle("i", "a", true, NOW), None);
        assert_eq!(instructions.settle("i", "a", true, NOW), None, "one entry counts once");
        assert_eq!(instructions.ack_late("i"), Some(1));
        assert_eq!(instructions.settle("i", "b", true, ACK_PATIENCE), None, "it is acked once");
        assert_eq!(instructions.begin("i", [], NOW), Known::Acked(1));

        instructions.begin("alone", ["a".to_owned()], NOW);
        assert_eq!(instructions.settle("alone", "a", false, ACK_PATIENCE * 20), Some(0));
    }
}
