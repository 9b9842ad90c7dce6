//! What is written on a Node that its fleet takes back: which instruction, until when, and whose cordon it is.
//!
//! It is the whole memory of a reclaim. It is written in the request that cordons the Node, so that there is no cordon
//! without a record and no record without a cordon; the next process goes on from it with the time that is left.

use jiff::{SignedDuration, Timestamp, Unit};
use serde::{Deserialize, Serialize};

/// Instructions that a record remembers: a shard that repeats itself repeats the last ones.
const REMEMBERED: usize = 16;

/// Grace of an instruction that gives none, in seconds: what BigFleet's own operator takes for it.
const GRACE_IF_NONE: i64 = 30;

/// The longest grace, in seconds: a week. What is longer is a mistake, and must not overflow a date.
const GRACE_MAX: i64 = 7 * 24 * 3600;

/// An order to give one Node back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The instruction; none if the instruction was lost and the machine is seen draining.
    pub instruction: Option<String>,
    /// The machine it is about, as the instruction calls it.
    pub machine: String,
    /// When it came.
    pub received_at: Timestamp,
    /// How long the drain may take.
    pub grace: SignedDuration,
    /// Priority of whoever gets the machine, 0 if nobody was in a hurry.
    pub preemptor_priority: i32,
}

/// How a grace in seconds is read.
pub fn read_grace(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(if seconds <= 0 { GRACE_IF_NONE } else { seconds.min(GRACE_MAX) })
}

/// A reclaim, as it stands on its Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The instructions that asked for it, oldest first; none if all were lost.
    pub instructions: Vec<String>,
    /// The machine, as the fleet calls it.
    pub machine: String,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// When the Node was cordoned: pods that are younger came in spite of it.
    pub cordoned_at: Timestamp,
    /// When the drain must have ended.
    pub deadline: Timestamp,
    /// The highest priority that asked for it.
    pub preemptor_priority: i32,
    /// Whether the Node was open for pods before. If not, somebody else wants it closed, and it stays so.
    pub cordoned_by_us: bool,
    /// How it ended, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// How a drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// Nothing is left that had to go.
    Drained,
    /// Something was left at the deadline.
    Failed,
}

impl Outcome {
    /// As metrics and people read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Drained => "Drained",
            Self::Failed => "Failed",
        }
    }
}

/// What an order does to a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// Nothing: the record knows it.
    Known(Record),
    /// This is to be written, and the Node to be cordoned.
    New(Record),
}

impl Accepted {
    /// The record as it stands afterwards.
    pub fn record(&self) -> &Record {
        match self {
            Self::Known(record) | Self::New(record) => record,
        }
    }
}

impl Record {
    /// Whether the drain is still to be done.
    pub fn is_running(&self) -> bool {
        self.outcome.is_none()
    }
}

/// What an order does now to a Node that bears this record, or none, and is cordoned or not.
///
/// An instruction that is known changes nothing: not the deadline, not the number of drains. A second one for the same
/// Node can only bring the deadline forward. A drain that has ended is not begun again but by a new instruction.
pub fn accept(old: Option<&Record>, order: &Order, is_cordoned: bool, now: Timestamp) -> Accepted {
    if let Some(old) = old {
        match &order.instruction {
            // Whatever made the machine drain, it is known here.
            None => return Accepted::Known(old.clone()),
            Some(id) if old.instructions.contains(id) => return Accepted::Known(old.clone()),
            Some(_) => {}
        }
    }
    let accepted_at = to_millis(order.received_at);
    // Only a date beyond the year 9999 could be too late.
    let deadline = accepted_at.checked_add(order.grace).unwrap_or(Timestamp::MAX);
    let mut instructions = old.map(|old| old.instructions.clone()).unwrap_or_default();
    instructions.extend(order.instruction.clone());
    let forgotten = instructions.len().saturating_sub(REMEMBERED);
    instructions.drain(..forgotten);
    let ours_before = old.is_some_and(|old| old.cordoned_by_us);
    // One whose time is over was given up, though nobody could write it down.
    let running = old.filter(|old| old.is_running() && now < old.deadline);
    Accepted::New(Record {
        instructions,
        machine: order.machine.clone(),
        accepted_at: running.map_or(accepted_at, |old| old.accepted_at),
        cordoned_at: running.map_or(to_millis(now), |old| old.cordoned_at),
        deadline: running.map_or(deadline, |old| old.deadline.min(deadline)),
        preemptor_priority: running
            .map_or(order.preemptor_priority, |old| old.preemptor_priority.max(order.preemptor_priority)),
        cordoned_by_us: !is_cordoned || ours_before,
        outcome: None,
    })
}

/// A record is read by people.
pub(super) fn to_millis(time: Timestamp) -> Timestamp {
    time.round(Unit::Millisecond).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn order(id: &str, second: i64, grace: i64) -> Order {
        Order {
            instruction: Some(id.into()),
            machine: "m".into(),
            received_at: at(second),
            grace: read_grace(grace),
            preemptor_priority: 0,
        }
    }

    /// An order that is carried out as soon as it comes.
    fn accept(old: Option<&Record>, order: &Order, is_cordoned: bool) -> Accepted {
        super::accept(old, order, is_cordoned, order.received_at)
    }

    #[test]
    fn who_could_not_cordon_at_once_has_no_more_time_for_it() {
        let record = super::accept(None, &order("a", 0, 600), false, at(90)).record().clone();
        assert_eq!((record.accepted_at, record.cordoned_at, record.deadline), (at(0), at(90), at(600)));
        let again = accept(Some(&record), &order("b", 100, 600), true).record().clone();
        assert_eq!((again.cordoned_at, again.deadline), (at(90), at(600)));
    }

    #[test]
    fn a_drain_whose_end_was_never_written_does_not_spoil_the_next() {
        let record = accept(None, &order("a", 0, 10), false).record().clone();
        let next = accept(Some(&record), &order("b", 60, 30), true).record().clone();
        assert_eq!((next.accepted_at, next.deadline, next.cordoned_by_us), (at(60), at(90), true));
    }

    #[test]
    fn the_same_instruction_changes_nothing_however_often_it_comes() {
        let record = accept(None, &order("a", 0, 10), false).record().clone();
        assert_eq!(accept(Some(&record), &order("a", 5, 600), true), Accepted::Known(record.clone()));
        let ended = Record { outcome: Some(Outcome::Failed), ..record };
        assert_eq!(accept(Some(&ended), &order("a", 50, 600), true), Accepted::Known(ended.clone()));
    }

    #[test]
    fn a_second_instruction_brings_the_deadline_forward_and_never_back() {
        let record = accept(None, &order("a", 0, 60), false).record().clone();
        let sooner = accept(Some(&record), &order("b", 5, 10), true);
        assert_eq!(sooner.record().deadline, at(15));
        assert_eq!(sooner.record().instructions, ["a", "b"]);
        assert!(sooner.record().cordoned_by_us, "it was open before the first");
        let later = accept(Some(&record), &order("b", 5, 600), true);
        assert_eq!(later.record().deadline, at(60));
    }

    #[test]
    fn after_its_end_only_a_new_instruction_begins_another() {
        let record = accept(None, &order("a", 0, 10), true).record().clone();
        let ended = Record { outcome: Some(Outcome::Failed), ..record };
        let lost = Order { instruction: None, ..order("", 20, 600) };
        assert_eq!(
            accept(Some(&ended), &lost, true),
            Accepted::Known(ended.clone()),
            "no retry after Failed"
        );
        let anew = accept(Some(&ended), &order("b", 20, 30), true);
        assert_eq!((anew.record().deadline, anew.record().outcome), (at(50), None));
        assert!(!anew.record().cordoned_by_us, "somebody else had cordoned it before the first");
    }

    #[test]
    fn a_grace_that_says_nothing_is_half_a_minute() {
        assert_eq!([0, -5].map(read_grace), [SignedDuration::from_secs(30); 2]);
        assert_eq!(read_grace(1), SignedDuration::from_secs(1));
        assert_eq!(read_grace(i64::MAX), SignedDuration::from_secs(GRACE_MAX));
    }

    proptest! {
        /// Whatever comes in whatever order, the deadline of a running drain never moves back, and what was cordoned by
        /// somebody else is never taken for ours.
        #[test]
        fn deadlines_only_shrink(
            orders in proptest::collection::vec((0_u8..5, 0_i64..100, -1_i64..100), 1..20),
            is_cordoned: bool,
        ) {
            let mut record: Option<Record> = None;
            for (id, second, grace) in orders {
                let order = order(&format!("i{id}"), second, grace);
                let next = accept(record.as_ref(), &order, is_cordoned || record.is_some());
                if let Some(old) = &record {
                    let is_over = at(second) >= old.deadline;
                    prop_assert!(is_over || next.record().deadline <= old.deadline);
                    prop_assert_eq!(next.record().cordoned_by_us, old.cordoned_by_us);
                }
                prop_assert_eq!(next.record().cordoned_by_us, !is_cordoned);
                record = Some(next.record().clone());
            }
        }
    }
}
