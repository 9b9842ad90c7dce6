//! Machines that a BigFleet shard gives to a cluster and takes back: everything that is decided about them.
//!
//! [`Operator`] is the whole state of the fleet operator. It takes one [`Input`] at a time (what the shard says, what the
//! API server shows, how an effect went, that time has passed) and returns [`Effect`]s: what to read, what to write, what
//! to tell the shard, which Node to drain. It has no clock and sends nothing, so that the simulation replays every life of
//! it as it is (`crates/sim`).
//!
//! - [`Said`] knows what the shard has said of a machine, and whether an instruction still applies;
//! - [`Index`] finds the Node that an instruction means;
//! - [`record`] is what stands on a Node that is taken back, [`phase`] what a state of the shard means;
//! - `instructions` counts what an ack says, `machine` plans what is written for one machine;
//! - [`pods`] sorts the pods of a Node into waves, and [`drain`] takes a drain from its first eviction to its end.
//!
//! A process that starts knows nothing. What it needs is on the Nodes and in what the shard repeats (ADR 10).

pub mod drain;
mod effect;
mod index;
mod instructions;
mod machine;
mod operator;
pub mod phase;
pub mod pods;
pub mod record;
mod said;

pub use effect::{Effect, Ended, Input, Report, Write, WriteError, Written};
pub use index::{Index, NodeFacts, Rule, UpcomingFacts};
pub use operator::{Now, Operator, Settings};
pub use said::{Applies, Position, Said};

use crate::drain::PodId;
use jiff::Timestamp;
use phase::Phase;
use record::Record;
use std::collections::BTreeMap;

/// The state of a machine, as the shard calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MachineState {
    /// Not said.
    Unspecified,
    /// It does not exist yet.
    Speculative,
    /// Its provider makes it.
    Creating,
    /// It belongs to no cluster.
    Idle,
    /// It is told how to join.
    Configuring,
    /// It belongs to the cluster.
    Configured,
    /// It is being taken back.
    Draining,
    /// Its provider removes it.
    Deleting,
    /// Something is wrong with it.
    Failed,
}

impl MachineState {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Unspecified,
        Self::Speculative,
        Self::Creating,
        Self::Idle,
        Self::Configuring,
        Self::Configured,
        Self::Draining,
        Self::Deleting,
        Self::Failed,
    ];

    /// As the shard writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "UNSPECIFIED",
            Self::Speculative => "SPECULATIVE",
            Self::Creating => "CREATING",
            Self::Idle => "IDLE",
            Self::Configuring => "CONFIGURING",
            Self::Configured => "CONFIGURED",
            Self::Draining => "DRAINING",
            Self::Deleting => "DELETING",
            Self::Failed => "FAILED",
        }
    }
}

/// What the shard tells of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineUpdate {
    /// Its id.
    pub machine: String,
    /// Its state.
    pub state: MachineState,
    /// The machine as its provider calls it; empty if the shard does not say.
    pub provider_id: String,
    /// What went wrong, in the shard's words; empty if nothing did.
    pub last_error: String,
    /// What its Node will be.
    pub spec: MachineSpec,
}

/// What the Node of a machine will be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MachineSpec {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What it offers to pods.
    pub resources: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<MachineTaint>,
}

/// A taint that a Node will have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineTaint {
    /// Its key.
    pub key: String,
    /// Its value; empty if it has none.
    pub value: String,
    /// Its effect.
    pub effect: String,
}

/// An instruction to give Nodes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instruction {
    /// Its id.
    pub id: String,
    /// What is meant: ids of machines, though the protocol calls them Nodes.
    pub entries: Vec<String>,
    /// How long the drain may take, in seconds.
    pub grace_seconds: i64,
    /// Priority of whoever gets the machines.
    pub preemptor_priority: i32,
}

/// Name and identity of a Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId {
    /// Its name.
    pub name: String,
    /// Its identity: another Node may get the name.
    pub uid: String,
}

/// A Node, as the server has it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Which.
    pub id: NodeId,
    /// Its version: a write names it.
    pub version: String,
    /// Whether pods are kept away from it.
    pub is_cordoned: bool,
    /// Whether its annotation says that the fleet operator cordoned it.
    pub is_cordoned_by_fleet: bool,
    /// The reclaim that stands on it.
    pub record: Option<Record>,
}

/// An UpcomingNode, as the server has it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upcoming {
    /// Its identity.
    pub uid: String,
    /// Its version: a write of its spec names it.
    pub version: String,
    /// What the Node will be.
    pub spec: MachineSpec,
    /// Its status.
    pub status: UpcomingStatus,
}

/// The status of an UpcomingNode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UpcomingStatus {
    /// How far the machine is; none if that is not written yet.
    pub phase: Option<Phase>,
    /// The Node that it has become.
    pub node: Option<NodeId>,
    /// The machine as its provider calls it.
    pub provider_id: Option<String>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// When the machine was first heard of.
    pub started_at: Option<Timestamp>,
}

/// What was read for one machine. What was not asked for is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Its Node.
    pub node: Option<Node>,
    /// Its UpcomingNode.
    pub upcoming: Option<Upcoming>,
}

/// A write to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Cordons a Node and puts the record on it, in one request on the version that was read.
    Cordon {
        /// The Node, as it was read.
        node: Node,
        /// What is put on it.
        record: Record,
    },
    /// Writes on a Node how its drain has ended.
    EndReclaim {
        /// The Node, as it was read.
        node: Node,
        /// The record with the outcome.
        record: Record,
        /// What was left, if it failed.
        progress: Option<String>,
    },
    /// Removes the record from a Node.
    CallOff {
        /// The Node, as it was read.
        node: Node,
        /// Whether it is opened for pods again: only what the operator closed.
        uncordon: bool,
    },
    /// Makes an UpcomingNode.
    CreateUpcoming(MachineSpec),
    /// Gives an UpcomingNode another spec.
    ReplaceUpcoming {
        /// The version that was read.
        version: String,
        /// The new spec.
        spec: MachineSpec,
    },
    /// Changes the status of an UpcomingNode, if there is one: only what is given.
    PatchUpcoming(StatusPatch),
    /// Deletes an UpcomingNode of that identity.
    RemoveUpcoming {
        /// Its identity.
        uid: String,
    },
}

/// What changes in the status of an UpcomingNode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatusPatch {
    /// The new phase.
    pub phase: Option<Phase>,
    /// The Node that the machine has become.
    pub node: Option<NodeId>,
    /// The machine as its provider calls it.
    pub provider_id: Option<String>,
    /// What went wrong; nothing went wrong any more if it holds nothing.
    pub last_error: Option<Option<String>>,
    /// When the machine was first heard of.
    pub started_at: Option<Timestamp>,
}

impl StatusPatch {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A Node.
    Node(NodeId),
    /// The UpcomingNode of a machine, with its identity.
    Upcoming {
        /// The machine.
        machine: String,
        /// Identity of the UpcomingNode.
        uid: String,
    },
    /// A pod.
    Pod(PodId),
}

/// An event: something that a person may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What it is about.
    pub subject: Subject,
    /// In a word.
    pub reason: &'static str,
    /// In a sentence.
    pub text: String,
    /// Whether somebody should look.
    pub is_warning: bool,
    /// What makes it one and the same event, however often it is sent.
    pub key: String,
}

/// Whether a text can be part of the name of an object, and so of a path.
pub fn is_name(text: &str) -> bool {
    let is_edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    (1..=240).contains(&bytes.len())
        && bytes.iter().all(|byte| is_edge(*byte) || matches!(byte, b'-' | b'.'))
        && bytes.first().copied().is_some_and(is_edge)
        && bytes.last().copied().is_some_and(is_edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_never_becomes_part_of_a_path() {
        for name in ["a", "conf-s0-c0-i0", "i-0abc.example"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "A", "a/b", "../x", "-a", "a-", "a b", "ä", &"a".repeat(300)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
