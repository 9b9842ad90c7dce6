//! What can be done, and in which words log lines and `5spot explain` tell of it.

use crate::drain::PodId;
use crate::host::LentHost;
use crate::intent::{Effect, Taint};
use crate::observed::Version;
use crate::taint::TaintChange;
use std::fmt;

/// One of the three objects that make up a lent machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The bootstrap object.
    Bootstrap,
    /// The infrastructure object.
    Infrastructure,
    /// The Machine.
    Machine,
}

/// A Node, as it must still be when it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeId {
    /// Name.
    pub name: String,
    /// Identity.
    pub uid: String,
}

/// One effect. It names what must still be true when it is performed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Put our finalizer on the ScheduledMachine.
    AddFinalizer,
    /// Take it off.
    RemoveFinalizer,
    /// Ask the server whether it would create a part, and knows every field of it.
    Try(Part),
    /// Create a part, which does not exist.
    Create(Part),
    /// Delete the part of this identity.
    Delete {
        /// Which.
        part: Part,
        /// Its identity.
        uid: String,
        /// The version that this was decided on; without one, whatever was written to it since.
        version: Option<Version>,
    },
    /// Tell Cluster API to leave the drain of this Machine alone.
    ExcludeDrain {
        /// Identity of the Machine.
        uid: String,
        /// The version that this was decided on; without one, whatever was written to it since.
        version: Option<Version>,
        /// Whether it shall not wait for volumes either.
        volumes: bool,
    },
    /// Keep new pods away, and write down that it was us.
    Cordon(NodeId),
    /// Take our cordon back.
    Uncordon(NodeId),
    /// Change taints and record together.
    SetTaints {
        /// Of this Node.
        node: NodeId,
        /// The change.
        change: TaintChange,
        /// The record afterwards.
        record: Vec<Taint<Effect>>,
    },
    /// Ask pods to end, as far as their disruption budgets allow.
    Evict(Vec<PodId>),
    /// End pods without grace.
    ForceDelete(Vec<PodId>),
    /// Set `spec.schedule.enabled` to false for a reclaim, and write down in the same request for which.
    Disable {
        /// The reclaim.
        reclaim: String,
    },
    /// Take a request off a Node.
    ClearRequest {
        /// The Node.
        node: NodeId,
        /// Of this time: another request stays.
        requested_at: String,
    },
    /// Take a request by hand off the ScheduledMachine.
    ClearOwnRequest,
    /// Write down on the ScheduledMachine which host is lent.
    RememberHost(LentHost),
    /// Tell the reclaim agent of a Node what to look for.
    WriteAgentConfig {
        /// Name of the Node.
        node: String,
        /// The programs.
        commands: Vec<String>,
    },
    /// Tell it nothing any more.
    DeleteAgentConfig {
        /// Name of the Node.
        node: String,
        /// Identity of what it was told.
        uid: String,
    },
    /// Let the reclaim agent run on a Node.
    Arm {
        /// The Node.
        node: NodeId,
        /// The Machine for which it does: requests of another day do not count.
        machine: String,
    },
    /// Let it run there no more.
    Disarm(NodeId),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bootstrap => "bootstrap object",
            Self::Infrastructure => "infrastructure object",
            Self::Machine => "Machine",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddFinalizer => f.write_str("add the finalizer"),
            Self::RemoveFinalizer => f.write_str("remove the finalizer"),
            Self::Try(part) => write!(f, "ask the server whether it would create the {part}"),
            Self::Create(part) => write!(f, "create the {part}"),
            Self::Delete { part, .. } => write!(f, "delete the {part}"),
            Self::ExcludeDrain { volumes: false, .. } => f.write_str("keep Cluster API from draining again"),
            Self::ExcludeDrain { volumes: true, .. } => {
                f.write_str("keep Cluster API from draining and from waiting for volumes")
            }
            Self::Cordon(node) => write!(f, "cordon Node {}", node.name),
            Self::Uncordon(node) => write!(f, "uncordon Node {}", node.name),
            Self::SetTaints { node, .. } => write!(f, "set the taints of Node {}", node.name),
            Self::Evict(pods) => write!(f, "evict {}", count(pods.len())),
            Self::ForceDelete(pods) => write!(f, "end {} without grace", count(pods.len())),
            Self::Disable { .. } => f.write_str("set spec.schedule.enabled to false"),
            Self::ClearRequest { node, .. } => write!(f, "take the request off Node {}", node.name),
            Self::RememberHost(host) => {
                write!(f, "write down that Node {} is lent", host.node)
            }
            Self::ClearOwnRequest => f.write_str("take the request off the ScheduledMachine"),
            Self::WriteAgentConfig { node, .. } => {
                write!(f, "tell the reclaim agent of Node {node} what to look for")
            }
            Self::DeleteAgentConfig { node, .. } => {
                write!(f, "tell the reclaim agent of Node {node} nothing any more")
            }
            Self::Arm { node, .. } => write!(f, "arm the reclaim agent of Node {}", node.name),
            Self::Disarm(node) => write!(f, "disarm the reclaim agent of Node {}", node.name),
        }
    }
}

fn count(pods: usize) -> String {
    if pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") }
}
