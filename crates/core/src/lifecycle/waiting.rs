//! Why nothing more happens, in one word and in one sentence.

use crate::observed::Unknown;
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
    /// The Machine is going, and somebody says what it waits for.
    MachineGoing {
        /// What.
        detail: String,
    },
    /// The Machine has been going for so long that a person should look.
    MachineStalls {
        /// Since when.
        since: Timestamp,
        /// What it waits for, as far as anybody says.
        detail: String,
    },
    /// The Machine is to go, and its provider needs its bootstrap data for that.
    BootstrapData {
        /// When it is waited for no longer.
        until: Timestamp,
    },
    /// The Machine is to go, and its Cluster is gone already.
    MachineWithoutCluster,
    /// Provider objects are going.
    ObjectsDeleting {
        /// Which.
        what: String,
    },
    /// Nobody can say whether provider objects exist.
    ProviderUnreadable(Unknown),
    /// The host was handed back, and its Node is in the cluster all the same.
    HostNotCleaned {
        /// The Node.
        node: String,
        /// What is left on it that must go; empty if nothing is.
        left: String,
        /// Who is in the way.
        blocked: String,
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
    /// Another ScheduledMachine has the host.
    AddressInUse {
        /// Namespace and name.
        other: String,
    },
    /// Another ScheduledMachine has the Node.
    NodeClaimed {
        /// The Node.
        node: String,
        /// Namespace and name.
        other: String,
    },
    /// The Node is that of another Machine, or of a control plane.
    NodeOfOther {
        /// Its name.
        node: String,
        /// Whose it is.
        other: String,
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

/// The reason while somebody is in the way of a drain.
pub(super) const BLOCKED: &str = "DrainBlocked";

/// Where a pause was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PausedBy {
    /// On the ScheduledMachine.
    Object,
    /// On the Cluster.
    Cluster,
}

impl Waiting {
    /// Whether nothing moves any more unless a person does something, in whatever phase.
    pub fn is_stalled(&self) -> bool {
        matches!(self, Self::MachineStalls { .. })
    }

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
            Self::Draining { .. } => BLOCKED,
            Self::MachineGoing { .. } => "MachineDeleting",
            Self::MachineStalls { .. } => "DeletionStalled",
            Self::MachineDeleting { hooks } if hooks.is_empty() => "MachineDeleting",
            Self::MachineDeleting { .. } => "HeldByHooks",
            Self::BootstrapData { .. } => "WaitingForBootstrapData",
            Self::ObjectsDeleting { .. } => "ObjectsDeleting",
            Self::ProviderUnreadable(_) => "ProviderUnreadable",
            Self::HostNotCleaned { .. } => "HostNotCleaned",
            Self::Orphaning => "Orphaning",
            Self::Failed { .. } => "ReconcileFailed",
            Self::InvalidSpec { .. } => "InvalidSpec",
            Self::NameTaken { .. } => "NameTaken",
            Self::InfrastructureGone => "InfrastructureGone",
            Self::KindNotServed { .. } => "KindNotServed",
            Self::AddressInUse { .. } => "AddressInUse",
            Self::NodeClaimed { .. } => "NodeClaimed",
            Self::NodeOfOther { .. } => "NodeOfOther",
            Self::WrongNode { .. } => "ProviderIDMismatch",
        }
    }
}

/// What is wrong with a host whose Node is in the cluster without a Machine, and what to do about it.
pub(crate) fn not_cleaned(node: &str) -> String {
    format!(
        "The host is not with its owner yet: Node {node} is in the cluster without a Machine, so the provider did not \
         clean the host up. On the host run what the provider would have run (for k0s: k0s stop, k0s reset, reboot), \
         then kubectl delete node {node}"
    )
}

/// That a Machine names a Node of somebody else.
fn node_of_other(node: &str, other: &str) -> String {
    format!(
        "The Machine names Node {node}, which belongs to {other}: nothing is written to it. Check nodeRef and providerID of \
         the Machine, and who wrote them"
    )
}

/// That a deletion hangs, what it waits for, and what to do about it.
fn stalls(since: Timestamp, detail: &str) -> String {
    let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
    format!(
        "Cluster API has been deleting the Machine since {since}{detail}. Mend what is named here. If the host cannot be \
         cleaned by its provider, clean it by hand, then remove the finalizers of the infrastructure object"
    )
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
            Self::MachineGoing { detail } => write!(f, "Cluster API is deleting the Machine: {detail}"),
            Self::MachineStalls { since, detail } => f.write_str(&stalls(*since, detail)),
            Self::BootstrapData { until } => write!(
                f,
                "The Machine is deleted when it has its bootstrap data, or at {until}: without that data its provider \
                 does not let go of it"
            ),
            Self::ObjectsDeleting { what } => write!(f, "Waiting until {what} is gone"),
            Self::ProviderUnreadable(Unknown { why, is_refused }) => {
                let what_to_do = if *is_refused {
                    "Give the controller that right"
                } else {
                    "Check that the provider and its webhooks run"
                };
                write!(f, "It is not known whether the provider's objects exist: {why}. {what_to_do}")
            }
            Self::HostNotCleaned { node, left, blocked } => {
                f.write_str(&not_cleaned(node))?;
                let left = if left.is_empty() { "It is cordoned and no pod is left on it" } else { left };
                write!(f, ". {left}")?;
                if blocked.is_empty() { Ok(()) } else { write!(f, "; {blocked}") }
            }
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
            Self::AddressInUse { other } => write!(
                f,
                "ScheduledMachine {other} lends the host at the same address, and the two would reset it under each other: \
                 nothing is created until that one has left. Delete one of the two, or give them windows that do not \
                 overlap"
            ),
            Self::NodeClaimed { node, other } => write!(
                f,
                "Node {node} is lent by ScheduledMachine {other} already, so nothing is written to it: both are the same \
                 host. Delete one of the two"
            ),
            Self::NodeOfOther { node, other } => f.write_str(&node_of_other(node, other)),
            Self::WrongNode { node, on_node, on_machine } => write!(
                f,
                "Node {node} has the providerID \"{on_node}\", the Machine \"{on_machine}\": they are not the same host, \
                 and the Node is not touched"
            ),
        }
    }
}
