//! Why nothing more happens, in one word and in one sentence.

use jiff::Timestamp;
use std::fmt;

/// Why nothing more happens now. Its `Display` is the message people read: what is so, and what to do about it if
/// anything can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// The Cluster is not there.
    ClusterNotFound,
    /// The Cluster is being deleted.
    ClusterDeleting,
    /// Somebody paused the machine.
    Paused {
        /// Where.
        by: PausedBy,
    },
    /// The machine is on its way into the cluster.
    Provisioning {
        /// What is missing.
        detail: String,
    },
    /// The Node is there and not Ready.
    NodeNotReady {
        /// Its name.
        node: String,
        /// Why, in its own words.
        detail: String,
    },
    /// The workload cluster does not answer.
    WorkloadUnreachable {
        /// Why.
        detail: String,
    },
    /// The objects of the time before are still going.
    OldObjects {
        /// Which.
        what: String,
    },
    /// An exit begins.
    Leaving,
    /// Pods are asked to end.
    Draining {
        /// The Node.
        node: String,
        /// What is left.
        left: String,
        /// Who is in the way.
        blocked: String,
        /// When the drain ends, done or not.
        deadline: Timestamp,
    },
    /// The workload cluster does not answer, and the drain waits for it.
    DrainUnreachable {
        /// Why.
        detail: String,
        /// When it waits no longer.
        deadline: Timestamp,
    },
    /// The Machine is going.
    MachineDeleting {
        /// Foreign hooks that hold it.
        hooks: Vec<String>,
    },
    /// The Machine is to go, and its Cluster is gone already.
    MachineWithoutCluster,
    /// Provider objects are going.
    ObjectsDeleting {
        /// Which.
        what: String,
    },
    /// The garbage collector takes our name off the objects that stay.
    Orphaning,
    /// The server refused something, or did not answer. It is tried again.
    Failed {
        /// What, and why.
        text: String,
    },
    /// The spec cannot be read.
    InvalidSpec {
        /// Every field and its problem.
        problems: String,
    },
    /// An object of our name is not ours.
    NameTaken {
        /// Kind and name.
        what: String,
        /// Whose it is.
        owner: Option<String>,
    },
    /// The infrastructure object vanished under a live Machine.
    InfrastructureGone,
    /// A kind is not served.
    KindNotServed {
        /// Which.
        what: String,
    },
    /// The Node is not the Machine's.
    WrongNode {
        /// Its name.
        node: String,
        /// Identifier on the Node.
        on_node: String,
        /// Identifier on the Machine.
        on_machine: String,
    },
}

/// Where a pause was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PausedBy {
    /// On the ScheduledMachine.
    Object,
    /// On the Cluster.
    Cluster,
}

impl Waiting {
    /// The reason in one word, as conditions have it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ClusterNotFound | Self::MachineWithoutCluster => "ClusterNotFound",
            Self::ClusterDeleting => "ClusterDeleting",
            Self::Paused { .. } => "Paused",
            Self::Provisioning { .. } => "Provisioning",
            Self::NodeNotReady { .. } => "NodeNotReady",
            Self::WorkloadUnreachable { .. } | Self::DrainUnreachable { .. } => "WorkloadUnreachable",
            Self::OldObjects { .. } => "WaitingForDeletion",
            Self::Leaving => "Leaving",
            Self::Draining { blocked, .. } if blocked.is_empty() => "Draining",
            Self::Draining { .. } => "DrainBlocked",
            Self::MachineDeleting { hooks } if hooks.is_empty() => "MachineDeleting",
            Self::MachineDeleting { .. } => "HeldByHooks",
            Self::ObjectsDeleting { .. } => "ObjectsDeleting",
            Self::Orphaning => "Orphaning",
            Self::Failed { .. } => "ReconcileFailed",
            Self::InvalidSpec { .. } => "InvalidSpec",
            Self::NameTaken { .. } => "NameTaken",
            Self::InfrastructureGone => "InfrastructureGone",
            Self::KindNotServed { .. } => "KindNotServed",
            Self::WrongNode { .. } => "ProviderIDMismatch",
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterNotFound => {
                f.write_str("The Cluster that spec.clusterName names is not in this namespace: nothing is created until it is")
            }
            Self::ClusterDeleting => f.write_str("The Cluster is being deleted: nothing is created in it"),
            Self::Paused { by: PausedBy::Object } => {
                f.write_str("Paused by the annotation cluster.x-k8s.io/paused: remove it to go on")
            }
            Self::Paused { by: PausedBy::Cluster } => {
                f.write_str("Paused, since the Cluster's spec.paused is true: set it to false to go on")
            }
            Self::Provisioning { detail } => f.write_str(detail),
            Self::NodeNotReady { node, detail } => write!(f, "Node {node} is not Ready: {detail}"),
            Self::WorkloadUnreachable { detail } => {
                write!(f, "The workload cluster cannot be reached, so the Node's state is not known: {detail}")
            }
            Self::OldObjects { what } => write!(f, "Waiting until {what} is gone, to start anew"),
            Self::Leaving => f.write_str("The exit begins"),
            Self::Draining { node, left, blocked, deadline } => {
                write!(f, "Draining Node {node} until {deadline}: {left}")?;
                if blocked.is_empty() { Ok(()) } else { write!(f, "; {blocked}") }
            }
            Self::DrainUnreachable { detail, deadline } => write!(
                f,
                "The Node cannot be drained, since the workload cluster cannot be reached; it is tried until {deadline}, \
                 then the Machine is deleted: {detail}"
            ),
            Self::MachineDeleting { hooks } if hooks.is_empty() => {
                f.write_str("Cluster API is deleting the Machine")
            }
            Self::MachineDeleting { hooks } => write!(
                f,
                "The deletion of the Machine is held by hooks that others set: {}. They must remove them",
                hooks.join(", ")
            ),
            Self::MachineWithoutCluster => f.write_str(
                "The Machine is being deleted, but its Cluster is gone, and without it Cluster API does not finish: create \
                 the Cluster again, or remove the Machine's finalizer",
            ),
            Self::ObjectsDeleting { what } => write!(f, "Waiting until {what} is gone"),
            Self::Orphaning => f.write_str(
                "Deleted with --cascade=orphan: the Machine and its objects stay, and 5-Spot lets go of them",
            ),
            Self::Failed { text } => write!(f, "{text}; it is tried again"),
            Self::InvalidSpec { problems } => {
                write!(f, "{problems}. What runs is left alone until this is mended")
            }
            Self::NameTaken { what, owner } => {
                let owner = owner.as_ref().map_or(String::new(), |owner| format!(", owned by {owner}"));
                write!(
                    f,
                    "{what} exists and does not belong to this ScheduledMachine{owner}: remove it, or use another name"
                )
            }
            Self::InfrastructureGone => f.write_str(
                "The infrastructure object was deleted under the Machine: delete the Machine, and all is made anew",
            ),
            Self::KindNotServed { what } => {
                write!(f, "The API server does not serve {what}: install its provider, or mend the apiVersion")
            }
            Self::WrongNode { node, on_node, on_machine } => write!(
                f,
                "Node {node} has the providerID \"{on_node}\", the Machine \"{on_machine}\": they are not the same host, \
                 and the Node is not touched"
            ),
        }
    }
}
