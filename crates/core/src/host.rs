//! The physical host behind a Node, and a host that came back after it was handed back.
//!
//! A provider's clean-up may fail, be logged and be forgotten: the Machine is gone, the Node is gone, and the kubelet is
//! still installed. At its next boot the host registers a Node again, without a Machine, Ready and open to every pod,
//! on its owner's desk. So the host that was lent is remembered, and a Node of it is noticed for as long as the machine
//! should be out.
//!
//! Such a Node has neither the providerID nor the labels of before. It is the host's if both its name and its machine
//! id are those of the Node that was lent; a name alone is shown, and nothing is done about it.

use crate::claim;
use crate::observed::{Cluster, Machine, Node, NodeOwner, Observed, Presence};

/// What a kubelet reports about the host it runs on (`status.nodeInfo`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostId {
    /// `machineID`: made when the operating system was installed. Copies of one disk image may share it.
    pub machine_id: String,
    /// `systemUUID`: of the board, or of the virtual machine. Some boards have none, or a constant.
    pub system_uuid: String,
}

impl HostId {
    /// Whether two Nodes of one name are the same host. Both must have a machine id, and a system UUID that both have
    /// must not differ: it tells copies of one disk image apart.
    pub fn is_same(&self, other: &Self) -> bool {
        let either_is_empty = self.system_uuid.is_empty() || other.system_uuid.is_empty();
        !self.machine_id.is_empty()
            && self.machine_id == other.machine_id
            && (either_is_empty || self.system_uuid.eq_ignore_ascii_case(&other.system_uuid))
    }
}

/// The host that was lent last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LentHost {
    /// Name of its Node.
    pub node: String,
    /// Its identity.
    pub id: HostId,
}

/// A Node that has the name of the one that was lent, and no Machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// It is the host that was lent.
    SameHost,
    /// It is another host, or nobody can tell.
    NameOnly,
}

/// The Node of the Machine of ours, if both are seen and are the same host: no Node or Pod is written otherwise, but for
/// a host that came back.
pub fn lent_node(observed: &Observed) -> Option<&Node> {
    let machine = observed.machine.ours()?;
    let is_named = |node: &&Node| machine.node_name.as_ref() == Some(&node.name);
    observed.workload.node().filter(is_named).filter(|node| is_machines(observed, machine, node))
}

/// Whether a Node is the host of this Machine, and of no other that has a better right to it. Cluster API must have said so
/// on the Node itself: providerID and nodeRef stand on the Machine, where others may write.
pub fn is_machines(observed: &Observed, machine: &Machine, node: &Node) -> bool {
    let is_marked = node.owner == NodeOwner::ThisMachine;
    is_marked && has_same_id(machine, node) && claim::node_rival(observed, node).is_none()
}

/// Whether Machine and Node have one providerID.
pub fn has_same_id(machine: &Machine, node: &Node) -> bool {
    machine.provider_id.is_some() && machine.provider_id == node.provider_id
}

/// The host that is lent now, or was lent last.
pub fn lent_host(observed: &Observed) -> Option<LentHost> {
    let host = |node: &Node| LentHost { node: node.name.clone(), id: node.host.clone() };
    let known = lent_node(observed).filter(|node| !node.host.machine_id.is_empty());
    known.map(host).or_else(|| observed.memory.host.clone())
}

/// The Node of a host that was handed back and is in the cluster again, or still. One that belongs to a Machine, ours or
/// another's, is not.
pub fn returned(observed: &Observed) -> Option<(&Node, Returned)> {
    let lent = observed.memory.host.as_ref()?;
    // The Nodes of a Cluster that goes are left where they are, and go with it.
    if !matches!(observed.cluster, Cluster::Present { deleting: false, .. }) {
        return None;
    }
    let is_free = |node: &&Node| {
        let is_others = matches!(node.owner, NodeOwner::Other(_));
        !is_others && claim::node_rival(observed, node).is_none()
    };
    let node = observed.workload.node().filter(|node| node.name == lent.node).filter(is_free)?;
    let machine = match &observed.machine {
        Presence::Absent(_) => None,
        Presence::Ours(machine) => Some(machine),
        // It may be the Machine of this very Node, which somebody let go of.
        Presence::Foreign(_) | Presence::NotServed(_) | Presence::Unknown(_) => return None,
    };
    let goes = machine.is_some_and(|machine| machine.object.deleting_since.is_some());
    if goes || machine.is_some_and(|machine| machine.node_name.as_ref() == Some(&node.name)) {
        return None;
    }
    let is_same = node.host.is_same(&lent.id);
    Some((node, if is_same { Returned::SameHost } else { Returned::NameOnly }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(machine_id: &str, system_uuid: &str) -> HostId {
        HostId { machine_id: machine_id.to_owned(), system_uuid: system_uuid.to_owned() }
    }

    #[test]
    fn the_same_host_has_the_same_machine_id_and_no_other_board() {
        for (one, other, expected) in [
            (id("a", "B1"), id("a", "b1"), true),
            (id("a", ""), id("a", "b1"), true),
            (id("a", "b1"), id("a", "b2"), false),
            (id("a", "b1"), id("c", "b1"), false),
            (id("", "b1"), id("", "b1"), false),
            (id("", ""), id("", ""), false),
        ] {
            assert_eq!(one.is_same(&other), expected, "{one:?} {other:?}");
            assert_eq!(other.is_same(&one), expected, "{other:?} {one:?}");
        }
    }
}
