//! What a shard has told of machines, in order.
//!
//! A shard says nothing twice, and an instruction may have to wait: for its Node, for the API server, for another session.
//! What was heard since says whether it is still meant. No clock is asked, only what came before what.

use crate::wire::MachineState;
use std::collections::{BTreeSet, HashMap};

/// What the shard has told of machines in this session.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// How many sessions there were.
    session: u64,
    /// How much was told, in all sessions.
    count: u64,
    machines: HashMap<String, Mention>,
}

/// A place in what was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    session: u64,
    count: u64,
}

/// What was heard of one machine, by number.
#[derive(Debug, Default, Clone, Copy)]
struct Mention {
    last: u64,
    /// Whether it was said to be in use, in this session.
    is_used: bool,
    /// Whether it was idle, and not told to join since.
    is_idle: bool,
    /// The last word that it is in use again.
    reused: u64,
}

/// Whether an instruction still means a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It does.
    Holds,
    /// The session is younger than the instruction, and has not spoken of the machine yet.
    Unknown,
    /// The machine is in use again.
    Gone,
}

impl Heard {
    /// What the shard does not speak of in this session is not there any more.
    pub(crate) fn begin_session(&mut self) {
        self.session += 1;
        self.machines.clear();
    }

    /// Now.
    pub(crate) fn now(&self) -> Moment {
        Moment { session: self.session, count: self.count }
    }

    /// Machines that were spoken of in this session.
    pub(crate) fn machines(&self) -> BTreeSet<String> {
        self.machines.keys().cloned().collect()
    }

    /// The number of the last word about a machine in this session.
    pub(crate) fn last(&self, machine: &str) -> Option<u64> {
        self.machines.get(machine).map(|mention| mention.last)
    }

    /// Writes down that a state was told, and returns its number.
    pub(crate) fn hear(&mut self, machine: &str, state: MachineState) -> u64 {
        self.count += 1;
        let mention = self.machines.entry(machine.to_owned()).or_default();
        mention.last = self.count;
        mention.is_used |= matches!(state, MachineState::Configuring | MachineState::Configured);
        match state {
            MachineState::Idle => mention.is_idle = true,
            MachineState::Configuring => (mention.is_idle, mention.reused) = (false, self.count),
            // Alone it may be the state of a moment before, which an instruction has overtaken.
            MachineState::Configured if mention.is_idle => {
                (mention.is_idle, mention.reused) = (false, self.count);
            }
            MachineState::Configured
            | MachineState::Speculative
            | MachineState::Creating
            | MachineState::Draining
            | MachineState::Deleting
            | MachineState::Failed
            | MachineState::Unspecified => {}
        }
        self.count
    }

    /// Whether an instruction that came at that moment still means a machine. That it is idle does not call it off: its
    /// pods must move all the same.
    pub(crate) fn meaning(&self, machine: &str, came: Moment) -> Meaning {
        let is_same_session = came.session == self.session;
        match self.machines.get(machine) {
            Some(it) if is_same_session && it.reused > came.count => Meaning::Gone,
            Some(_) | None if is_same_session => Meaning::Holds,
            None => Meaning::Unknown,
            // A session begins with what the machine is now. That it drains later is another instruction's doing.
            Some(it) if it.is_used => Meaning::Gone,
            Some(_) => Meaning::Holds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MachineState::{Configured, Configuring, Draining, Idle};

    /// What becomes of an instruction after words before it and since.
    fn after(before: &[MachineState], since: &[MachineState], another_session: bool) -> Meaning {
        let mut heard = Heard::default();
        heard.begin_session();
        for state in before {
            heard.hear("m", *state);
        }
        let came = heard.now();
        if another_session {
            heard.begin_session();
        }
        for state in since {
            heard.hear("m", *state);
        }
        heard.meaning("m", came)
    }

    #[test]
    fn an_instruction_holds_until_its_machine_is_in_use_again() {
        let after = |before: &[MachineState], since: &[MachineState]| after(before, since, false);
        assert_eq!(after(&[], &[]), Meaning::Holds);
        assert_eq!(after(&[Configuring, Configured], &[]), Meaning::Holds);
        assert_eq!(
            after(&[Configured], &[Draining, Idle]),
            Meaning::Holds,
            "its pods must move all the same"
        );
        assert_eq!(after(&[], &[Configured]), Meaning::Holds, "the state of a moment before");
        assert_eq!(after(&[Configured], &[Draining, Idle, Configured]), Meaning::Gone);
        assert_eq!(after(&[Configured], &[Draining, Configuring]), Meaning::Gone);
    }

    #[test]
    fn another_session_says_first_what_the_machine_is_now() {
        let after = |since: &[MachineState]| after(&[Configured], since, true);
        assert_eq!(after(&[]), Meaning::Unknown);
        assert_eq!(after(&[Draining]), Meaning::Holds);
        assert_eq!(after(&[Draining, Idle]), Meaning::Holds);
        assert_eq!(after(&[Configured]), Meaning::Gone);
        assert_eq!(after(&[Configured, Draining]), Meaning::Gone, "by another instruction");
    }
}
