//! Actions and parts, in words: for log lines and for `5spot explain`.

use super::{Action, Part};
use std::fmt;

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
