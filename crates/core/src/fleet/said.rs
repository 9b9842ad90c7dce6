//! What the shard has said of one machine, in order.
//!
//! A shard says nothing twice, and an instruction may have to wait: for its Node, for the API server, for another session.
//! What was said since then tells whether the instruction still applies. No clock is read, only the order of what was said.

use super::MachineState;

/// A position in everything that the shard has said of all machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Number of the session; 0 before the first.
    pub session: u64,
    /// How many states were told before, in all sessions.
    pub count: u64,
}

/// What the shard has said of one machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Said {
    /// The session in which it was mentioned last.
    session: u64,
    /// Number of the last state.
    last: u64,
    /// Whether that was Draining.
    is_draining: bool,
    /// Whether it was said to be in use, in that session.
    is_used: bool,
    /// Whether it was idle, and not told to join since.
    is_idle: bool,
    /// Number of the last state that says it is in use again.
    reused: u64,
    /// Number of the last state that says it has left, or joins anew; of all sessions.
    left: u64,
}

/// Whether an instruction still applies to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applies {
    /// It does.
    Yes,
    /// The session is younger than the instruction, and the shard has not mentioned the machine in it yet.
    Unknown,
    /// The machine is in use again.
    No,
}

impl Said {
    /// A state was told; `at` counts it already.
    pub(super) fn hear(&mut self, at: Position, state: MachineState) {
        if self.session != at.session {
            *self = Self { session: at.session, left: self.left, ..Self::default() };
        }
        self.last = at.count;
        self.is_draining = state == MachineState::Draining;
        self.is_used |= matches!(state, MachineState::Configuring | MachineState::Configured);
        match state {
            MachineState::Idle => (self.is_idle, self.left) = (true, at.count),
            MachineState::Configuring => {
                (self.is_idle, self.reused, self.left) = (false, at.count, at.count);
            }
            // Alone it may be the state of a moment before, which an instruction has overtaken.
            MachineState::Configured if self.is_idle => (self.is_idle, self.reused) = (false, at.count),
            MachineState::Configured
            | MachineState::Speculative
            | MachineState::Creating
            | MachineState::Draining
            | MachineState::Deleting
            | MachineState::Failed
            | MachineState::Unspecified => {}
        }
    }

    /// Whether it was mentioned in this session. What is not mentioned is not there any more.
    pub(super) fn is_mentioned_in(&self, session: u64) -> bool {
        self.session == session && self.last > 0
    }

    /// Whether the last that was said in this session is that it drains.
    pub(super) fn is_draining_in(&self, session: u64) -> bool {
        self.is_mentioned_in(session) && self.is_draining
    }

    /// Number of the last state.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Whether it has left, or joins anew, since that position.
    pub(super) fn has_left_since(&self, count: u64) -> bool {
        self.left > count
    }

    /// Whether an instruction that came at that position still applies. That the machine is idle does not call it off: its
    /// pods must move all the same.
    pub(super) fn applies(&self, came: Position, session: u64) -> Applies {
        let is_mentioned = self.is_mentioned_in(session);
        if came.session == session {
            let is_reused = is_mentioned && self.reused > came.count;
            return if is_reused { Applies::No } else { Applies::Yes };
        }
        // A session begins with what the machine is now. That it drains later is another instruction's doing.
        match (is_mentioned, self.is_used) {
            (false, _) => Applies::Unknown,
            (true, true) => Applies::No,
            (true, false) => Applies::Yes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MachineState::{Configured, Configuring, Draining, Idle};

    /// What becomes of an instruction after states before it and since.
    fn after(before: &[MachineState], since: &[MachineState], is_another_session: bool) -> Applies {
        let (mut said, mut at) = (Said::default(), Position { session: 1, count: 0 });
        let mut tell = |at: &mut Position, states: &[MachineState]| {
            for state in states {
                at.count += 1;
                said.hear(*at, *state);
            }
        };
        tell(&mut at, before);
        let came = at;
        at.session += u64::from(is_another_session);
        tell(&mut at, since);
        said.applies(came, at.session)
    }

    #[test]
    fn an_instruction_applies_until_its_machine_is_in_use_again() {
        let after = |before: &[MachineState], since: &[MachineState]| after(before, since, false);
        assert_eq!(after(&[], &[]), Applies::Yes);
        assert_eq!(after(&[Configuring, Configured], &[]), Applies::Yes);
        assert_eq!(after(&[Configured], &[Draining, Idle]), Applies::Yes, "its pods must move all the same");
        assert_eq!(after(&[], &[Configured]), Applies::Yes, "the state of a moment before");
        assert_eq!(after(&[Configured], &[Draining, Idle, Configured]), Applies::No);
        assert_eq!(after(&[Configured], &[Draining, Configuring]), Applies::No);
    }

    #[test]
    fn another_session_says_first_what_the_machine_is_now() {
        let after = |since: &[MachineState]| after(&[Configured], since, true);
        assert_eq!(after(&[]), Applies::Unknown);
        assert_eq!(after(&[Draining]), Applies::Yes);
        assert_eq!(after(&[Draining, Idle]), Applies::Yes);
        assert_eq!(after(&[Configured]), Applies::No);
        assert_eq!(after(&[Configured, Draining]), Applies::No, "by another instruction");
    }
}
