//! What the state of a machine means for its UpcomingNode and for its Node.

use super::MachineState;
use super::record::{Outcome, Record};

/// How far a machine is, as an UpcomingNode tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It is being made.
    Provisioning,
    /// It is there and belongs to nobody.
    Launched,
    /// It is told how to join.
    Registered,
    /// It has joined.
    Ready,
    /// It is emptied.
    Draining,
    /// It is empty.
    Drained,
    /// Something went wrong that a person should look at.
    Failed,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Provisioning,
        Self::Launched,
        Self::Registered,
        Self::Ready,
        Self::Draining,
        Self::Drained,
        Self::Failed,
    ];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "Provisioning",
            Self::Launched => "Launched",
            Self::Registered => "Registered",
            Self::Ready => "Ready",
            Self::Draining => "Draining",
            Self::Drained => "Drained",
            Self::Failed => "Failed",
        }
    }

    /// As it is read.
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == word)
    }
}

/// What is there when a state arrives.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Whether there is an UpcomingNode.
    pub exists: bool,
    /// Its phase, if it has one.
    pub phase: Option<Phase>,
    /// The reclaim that stands on its Node.
    pub record: Option<&'a Record>,
    /// Whether the machine may be in use again without a word about how it came to be: it was idle since the reclaim, or
    /// the reclaim is older than the session.
    pub may_be_reused: bool,
}

/// What is to be done about a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The UpcomingNode says what the shard says; its phase becomes this, or stays.
    Put(Option<Phase>),
    /// The UpcomingNode goes.
    Remove {
        /// Whether a person may not have seen yet what went wrong.
        after_failure: bool,
    },
    /// The machine drains and nobody was told: its Node is drained as if an instruction had come.
    Drain,
    /// The drain that its Node speaks of goes on, if nobody is at it.
    GoOn,
    /// The machine is used again: the reclaim is over, and the Node open if we had closed it.
    CallOff,
}

/// What is to be done about a state, in order.
pub fn decide(state: MachineState, seen: Seen<'_>) -> Vec<Step> {
    let used_again = |phase: Phase| {
        let call_off = seen.record.map(|_| Step::CallOff);
        call_off.into_iter().chain([Step::Put(Some(phase))]).collect()
    };
    match state {
        // Nothing that has a name here: what is known of it is kept current.
        MachineState::Unspecified | MachineState::Deleting if seen.exists => vec![Step::Put(None)],
        MachineState::Unspecified | MachineState::Deleting => vec![],
        MachineState::Speculative | MachineState::Creating => vec![Step::Put(Some(Phase::Provisioning))],
        MachineState::Idle => idle(seen),
        MachineState::Configuring => used_again(Phase::Registered),
        // A machine that drains is not in use again before it was idle: a shard that begins a session tells states of a
        // moment before, and an instruction may overtake them.
        MachineState::Configured if seen.record.is_some() && !seen.may_be_reused => draining(seen),
        MachineState::Configured => used_again(Phase::Ready),
        MachineState::Draining => draining(seen),
        MachineState::Failed => vec![Step::Put(Some(Phase::Failed))],
    }
}

/// A machine that belongs to nobody. On its way in that is a step, on its way out the end, whichever of its frames
/// arrived before.
fn idle(seen: Seen<'_>) -> Vec<Step> {
    match seen.phase {
        None if !seen.exists => vec![],
        None | Some(Phase::Provisioning | Phase::Launched | Phase::Registered) => {
            vec![Step::Put(Some(Phase::Launched))]
        }
        Some(Phase::Ready | Phase::Draining | Phase::Drained) => vec![Step::Remove { after_failure: false }],
        Some(Phase::Failed) => vec![Step::Remove { after_failure: true }],
    }
}

/// A machine that is being emptied. What our own drain has come to is not forgotten because a frame is late, and a Node that
/// could not be cordoned in its time is not given more.
fn draining(seen: Seen<'_>) -> Vec<Step> {
    match seen.record {
        None if seen.phase == Some(Phase::Failed) => vec![Step::Put(None)],
        None => vec![Step::Put(Some(Phase::Draining)), Step::Drain],
        Some(record) if record.is_running() => vec![Step::Put(Some(Phase::Draining)), Step::GoOn],
        Some(record) => vec![Step::Put(record.outcome.map(Phase::from))],
    }
}

impl From<Outcome> for Phase {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Drained => Self::Drained,
            Outcome::Failed => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::record::{Order, accept, read_grace};
    use expect_test::expect;
    use jiff::Timestamp;
    use std::fmt::Write as _;

    fn record(outcome: Option<Outcome>) -> Record {
        let order = Order {
            instruction: Some("a".into()),
            machine: "m".into(),
            received_at: Timestamp::UNIX_EPOCH,
            grace: read_grace(10),
            preemptor_priority: 0,
        };
        Record { outcome, ..accept(None, &order, false, Timestamp::UNIX_EPOCH).record().clone() }
    }

    #[test]
    fn a_state_that_an_instruction_has_overtaken_does_not_call_it_off() {
        let steps = |state, record: Option<&Record>| {
            let phase = Some(Phase::Draining);
            decide(state, Seen { exists: true, phase, record, may_be_reused: false })
        };
        let (running, failed) = (record(None), record(Some(Outcome::Failed)));
        let put = |phase| vec![Step::Put(Some(phase))];
        let go_on = vec![Step::Put(Some(Phase::Draining)), Step::GoOn];
        assert_eq!(steps(MachineState::Configured, Some(&running)), go_on);
        assert_eq!(steps(MachineState::Configured, Some(&failed)), put(Phase::Failed));
        assert_eq!(steps(MachineState::Configured, None), put(Phase::Ready));
        assert_eq!(steps(MachineState::Configuring, Some(&running))[0], Step::CallOff);
    }

    fn word(step: Step) -> &'static str {
        match step {
            Step::Put(Some(phase)) => phase.as_str(),
            Step::Put(None) => "keep",
            Step::Remove { after_failure: false } => "remove",
            Step::Remove { after_failure: true } => "tell, remove",
            Step::Drain => "drain",
            Step::GoOn => "go on",
            Step::CallOff => "call off",
        }
    }

    /// Every state in every phase, with and without a reclaim.
    #[test]
    fn the_whole_table() {
        let mut table = String::new();
        let records = [None, Some(record(None)), Some(record(Some(Outcome::Failed)))];
        let phases = [None].into_iter().chain(Phase::ALL.map(Some));
        for state in MachineState::ALL {
            for phase in phases.clone() {
                let cells = records.each_ref().map(|record| {
                    let (exists, record) = (phase.is_some(), record.as_ref());
                    let steps = decide(state, Seen { exists, phase, record, may_be_reused: true });
                    let words = steps.into_iter().map(word).collect::<Vec<_>>().join(", ");
                    if words.is_empty() { "-".to_owned() } else { words }
                });
                let phase = phase.map_or("absent", Phase::as_str);
                let [none, running, ended] = cells;
                let state = state.as_str();
                writeln!(table, "{state:11} {phase:12} | {none:18} | {running:22} | {ended}").unwrap();
            }
        }
        expect![[r#"
            UNSPECIFIED absent       | -                  | -                      | -
            UNSPECIFIED Provisioning | keep               | keep                   | keep
            UNSPECIFIED Launched     | keep               | keep                   | keep
            UNSPECIFIED Registered   | keep               | keep                   | keep
            UNSPECIFIED Ready        | keep               | keep                   | keep
            UNSPECIFIED Draining     | keep               | keep                   | keep
            UNSPECIFIED Drained      | keep               | keep                   | keep
            UNSPECIFIED Failed       | keep               | keep                   | keep
            SPECULATIVE absent       | Provisioning       | Provisioning           | Provisioning
            SPECULATIVE Provisioning | Provisioning       | Provisioning           | Provisioning
            SPECULATIVE Launched     | Provisioning       | Provisioning           | Provisioning
            SPECULATIVE Registered   | Provisioning       | Provisioning           | Provisioning
            SPECULATIVE Ready        | Provisioning       | Provisioning           | Provisioning
            SPECULATIVE Draining     | Provisioning       | Provisioning           | Provisioning
            SPECULATIVE Drained      | Provisioning       | Provisioning           | Provisioning
            SPECULATIVE Failed       | Provisioning       | Provisioning           | Provisioning
            CREATING    absent       | Provisioning       | Provisioning           | Provisioning
            CREATING    Provisioning | Provisioning       | Provisioning           | Provisioning
            CREATING    Launched     | Provisioning       | Provisioning           | Provisioning
            CREATING    Registered   | Provisioning       | Provisioning           | Provisioning
            CREATING    Ready        | Provisioning       | Provisioning           | Provisioning
            CREATING    Draining     | Provisioning       | Provisioning           | Provisioning
            CREATING    Drained      | Provisioning       | Provisioning           | Provisioning
            CREATING    Failed       | Provisioning       | Provisioning           | Provisioning
            IDLE        absent       | -                  | -                      | -
            IDLE        Provisioning | Launched           | Launched               | Launched
            IDLE        Launched     | Launched           | Launched               | Launched
            IDLE        Registered   | Launched           | Launched               | Launched
            IDLE        Ready        | remove             | remove                 | remove
            IDLE        Draining     | remove             | remove                 | remove
            IDLE        Drained      | remove             | remove                 | remove
            IDLE        Failed       | tell, remove       | tell, remove           | tell, remove
            CONFIGURING absent       | Registered         | call off, Registered   | call off, Registered
            CONFIGURING Provisioning | Registered         | call off, Registered   | call off, Registered
            CONFIGURING Launched     | Registered         | call off, Registered   | call off, Registered
            CONFIGURING Registered   | Registered         | call off, Registered   | call off, Registered
            CONFIGURING Ready        | Registered         | call off, Registered   | call off, Registered
            CONFIGURING Draining     | Registered         | call off, Registered   | call off, Registered
            CONFIGURING Drained      | Registered         | call off, Registered   | call off, Registered
            CONFIGURING Failed       | Registered         | call off, Registered   | call off, Registered
            CONFIGURED  absent       | Ready              | call off, Ready        | call off, Ready
            CONFIGURED  Provisioning | Ready              | call off, Ready        | call off, Ready
            CONFIGURED  Launched     | Ready              | call off, Ready        | call off, Ready
            CONFIGURED  Registered   | Ready              | call off, Ready        | call off, Ready
            CONFIGURED  Ready        | Ready              | call off, Ready        | call off, Ready
            CONFIGURED  Draining     | Ready              | call off, Ready        | call off, Ready
            CONFIGURED  Drained      | Ready              | call off, Ready        | call off, Ready
            CONFIGURED  Failed       | Ready              | call off, Ready        | call off, Ready
            DRAINING    absent       | Draining, drain    | Draining, go on        | Failed
            DRAINING    Provisioning | Draining, drain    | Draining, go on        | Failed
            DRAINING    Launched     | Draining, drain    | Draining, go on        | Failed
            DRAINING    Registered   | Draining, drain    | Draining, go on        | Failed
            DRAINING    Ready        | Draining, drain    | Draining, go on        | Failed
            DRAINING    Draining     | Draining, drain    | Draining, go on        | Failed
            DRAINING    Drained      | Draining, drain    | Draining, go on        | Failed
            DRAINING    Failed       | keep               | Draining, go on        | Failed
            DELETING    absent       | -                  | -                      | -
            DELETING    Provisioning | keep               | keep                   | keep
            DELETING    Launched     | keep               | keep                   | keep
            DELETING    Registered   | keep               | keep                   | keep
            DELETING    Ready        | keep               | keep                   | keep
            DELETING    Draining     | keep               | keep                   | keep
            DELETING    Drained      | keep               | keep                   | keep
            DELETING    Failed       | keep               | keep                   | keep
            FAILED      absent       | Failed             | Failed                 | Failed
            FAILED      Provisioning | Failed             | Failed                 | Failed
            FAILED      Launched     | Failed             | Failed                 | Failed
            FAILED      Registered   | Failed             | Failed                 | Failed
            FAILED      Ready        | Failed             | Failed                 | Failed
            FAILED      Draining     | Failed             | Failed                 | Failed
            FAILED      Drained      | Failed             | Failed                 | Failed
            FAILED      Failed       | Failed             | Failed                 | Failed
        "#]]
        .assert_eq(&table);
    }
}
