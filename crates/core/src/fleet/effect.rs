//! What the fleet operator hears, and what it wants done.

use super::record::{Outcome, Record};
use super::{Action, Facts, Instruction, MachineUpdate, NodeFacts, NodeId, Notice, Rule, UpcomingFacts};
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// What the operator hears.
#[derive(Debug, Clone)]
pub enum Input {
    /// A session with the shard begins.
    SessionBegan,
    /// The shard wants Nodes back.
    Instruction(Instruction),
    /// The shard tells the state of a machine.
    Update(MachineUpdate),
    /// A watch shows a Node of this name, or that it is gone.
    NodeChanged(String, Option<NodeFacts>),
    /// A watch shows the UpcomingNode of this machine, or that it is gone.
    UpcomingChanged(String, Option<UpcomingFacts>),
    /// This process speaks for the cluster from now on; these records are on Nodes.
    Leads(Vec<(String, Record)>),
    /// What was to be read for a machine, or why it could not be.
    Read(String, Result<Box<Facts>, String>),
    /// How the writes for a machine went.
    Written(String, Written),
    /// The ack of an instruction is sent.
    AckSent(String),
    /// A drain has ended: by its number, with its outcome. Without one its Node is not there any more under that identity.
    DrainEnded(u64, Option<(Outcome, String)>),
    /// The session is old enough that the shard has mentioned all machines: the others are not there any more.
    Sweep,
    /// Nothing but that time has passed.
    Time,
}

/// How writes went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Whether all that are required are done.
    pub result: Result<(), WriteError>,
    /// Why others are not.
    pub missed: Vec<String>,
}

/// Why a write is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteError {
    /// In words.
    pub text: String,
    /// Whether somebody else wrote to the object meanwhile.
    pub is_race: bool,
}

/// A write, and whether what follows needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// What is written.
    pub action: Action,
    /// If not, it only tells people something.
    pub is_required: bool,
}

/// What is to be done. Whoever does it answers with an [`Input`] where one is named.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Read a Node of this name and the UpcomingNode of a machine, as far as wanted: [`Input::Read`].
    Read {
        /// For this machine.
        machine: String,
        /// Name of the Node.
        node: Option<String>,
        /// Whether the UpcomingNode is wanted.
        upcoming: bool,
    },
    /// Write, in order, until one that is required fails: [`Input::Written`].
    Write {
        /// For this machine.
        machine: String,
        /// What.
        writes: Vec<Write>,
    },
    /// Tell the shard that an instruction is accepted: [`Input::AckSent`].
    Ack {
        /// The instruction.
        instruction: String,
        /// How many Nodes were cordoned.
        nodes_started: i32,
    },
    /// Drain a Node: [`Input::DrainEnded`].
    StartDrain {
        /// Number of the drain.
        number: u64,
        /// The Node.
        node: NodeId,
        /// The record on it.
        record: Record,
    },
    /// The record of a drain has changed: its deadline may have come nearer.
    UpdateDrain {
        /// Number of the drain.
        number: u64,
        /// The record.
        record: Record,
    },
    /// Stop a drain.
    StopDrain {
        /// Number of the drain.
        number: u64,
    },
    /// Send an event.
    Notify(Notice),
    /// Log and count.
    Report(Report),
}

/// What is logged and counted.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "fields have the names that the log shows")]
pub enum Report {
    /// An instruction without an id cannot be acked and is not carried out.
    Refused { entries: Vec<String> },
    /// An instruction came that is known; the count it was acked with.
    Repeated { instruction: String, acked: Option<i32> },
    /// An instruction came.
    Instructed {
        instruction: String,
        entries: Vec<String>,
        count: usize,
        grace: SignedDuration,
        preemptor_priority: i32,
    },
    /// An instruction names more Nodes than are given back.
    TooManyEntries { instruction: String, count: usize, limit: usize },
    /// An id is not the name of a machine.
    NotAName { machine: String },
    /// In observe-only mode a Node would be given back.
    WouldGiveBack { instruction: String, entry: String, node: Option<String> },
    /// In observe-only mode a Node would be drained.
    WouldDrain { machine: String, node: String },
    /// In observe-only mode a reclaim would be called off.
    WouldCallOff { node: String },
    /// The Node of an entry is found.
    Found { instruction: String, entry: String, node: String, rule: Rule },
    /// No Node is found for an entry; it is looked for until the deadline.
    NotFound { instruction: String, entry: String },
    /// The machine is in use again: its Node is not cordoned.
    UsedAgain { instruction: String, entry: String },
    /// A Node is not cordoned yet.
    NotCordonedYet { machine: String, why: String },
    /// Nothing was done about a Node until the deadline.
    GivenUp { instruction: String, machine: String, why: String },
    /// A Node is cordoned.
    Cordoned { instructions: Vec<String>, machine: String, node: String, deadline: Timestamp, by_us: bool },
    /// The record on a Node knows the instruction.
    KnownAlready { instructions: Vec<String>, node: String },
    /// A machine drains without an instruction: its Node is cordoned.
    CordonedUnasked { machine: String, node: String, rule: Rule, deadline: Timestamp },
    /// A machine drains without an instruction, and no Node is found for it.
    NoNodeToDrain { machine: String },
    /// A reclaim is over, since the machine is used again.
    CalledOff { node: String, uncordoned: bool },
    /// A drain goes on that another process began.
    Resumed { machine: String, node: String, deadline: Timestamp },
    /// A drain has ended.
    DrainEnded { machine: String, node: String, outcome: Outcome, text: String, took: SignedDuration },
    /// An ack was decided.
    Acked { instruction: String, nodes_started: i32 },
    /// An ack is sent: so long after the instruction, if it was the first time.
    AckSent { instruction: String, after: Duration },
    /// An ack waits for a session; drains do not wait for it.
    AckWaits { instruction: String },
    /// Something is not done yet; it is tried again.
    NotDoneYet { machine: String, why: String, tries: u32 },
    /// The UpcomingNode does not say something that it should.
    NotTold { machine: String, why: String },
    /// The shard does not know a machine any more.
    Forgotten { machine: String },
}

/// How a drain ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The Node.
    pub node: NodeId,
    /// The record that was on it.
    pub record: Record,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it failed, or what is odd about its success.
    pub text: String,
}
