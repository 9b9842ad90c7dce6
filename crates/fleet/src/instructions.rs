//! Which instructions this process has heard, and with which count they were acked.
//!
//! An instruction that comes again is acked again, and nothing else. What this process has forgotten, or another one has
//! heard, the record on the Node knows.

use std::collections::{HashMap, VecDeque};

/// Instructions that are remembered with their count.
const REMEMBERED: usize = 1024;

/// Instructions by id: the count of those that were acked.
#[derive(Debug, Default)]
pub(crate) struct Instructions {
    counts: HashMap<String, Option<i32>>,
    order: VecDeque<String>,
}

/// What is known of an instruction that comes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing.
    New,
    /// It came before, and is not acked yet.
    AtWork,
    /// It came before, and was acked with this count.
    Acked(i32),
}

impl Instructions {
    /// Writes an instruction down, if it is new.
    pub(crate) fn begin(&mut self, id: &str) -> Known {
        match self.counts.get(id) {
            Some(Some(count)) => return Known::Acked(*count),
            Some(None) => return Known::AtWork,
            None => {}
        }
        self.counts.insert(id.to_owned(), None);
        self.order.push_back(id.to_owned());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.counts.remove(&oldest);
        }
        Known::New
    }

    /// Writes down that an instruction was acked.
    pub(crate) fn end(&mut self, id: &str, nodes_started: i32) {
        if let Some(count) = self.counts.get_mut(id) {
            *count = Some(nodes_started);
        }
    }

    /// Whether none waits for its ack.
    pub(crate) fn are_acked(&self) -> bool {
        self.counts.values().all(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_instruction_is_forgotten_first() {
        let mut instructions = Instructions::default();
        for id in 0..=REMEMBERED {
            assert_eq!(instructions.begin(&id.to_string()), Known::New);
        }
        instructions.end("1", 7);
        assert_eq!(instructions.begin("1"), Known::Acked(7));
        assert_eq!(instructions.begin("2"), Known::AtWork);
        assert_eq!(instructions.begin("0"), Known::New, "it was forgotten");
        assert!(!instructions.are_acked());
    }
}
