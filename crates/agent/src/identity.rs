//! Whether the Node is this machine.
//!
//! A wrong `NODE_NAME` would give back somebody else's machine. So the machine-id of the host must be the one that the
//! Node's kubelet reports. It is compared before every write; that a Node was made anew makes no difference.

use crate::node::NodeView;
use std::path::{Path, PathBuf};

/// What this machine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// The machine with this id.
    Machine(String),
    /// Whatever it is told to be.
    Unchecked,
}

/// A machine-id that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It cannot be read.
    #[error(
        "cannot read {}: {source}; mount the host's /etc/machine-id there, or give --machine-id-path",
        path.display()
    )]
    Unreadable {
        /// Where it should be.
        path: PathBuf,
        /// Why it is not.
        source: std::io::Error,
    },
    /// It is empty.
    #[error("{} is empty: run systemd-machine-id-setup on the host", path.display())]
    Empty {
        /// Where.
        path: PathBuf,
    },
}

/// Why a Node is not shown to be this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotThisMachine {
    /// It reports none.
    #[error("the Node reports no machine-id yet")]
    Unknown,
    /// It reports another.
    #[error("the Node reports another machine-id than this machine has: check NODE_NAME")]
    Other,
}

impl Identity {
    /// Reads the id of this machine.
    pub fn read(path: &Path) -> Result<Self, IdentityError> {
        let unreadable = |source| IdentityError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        match text.trim() {
            "" => Err(IdentityError::Empty { path: path.to_owned() }),
            id => Ok(Self::Machine(id.to_owned())),
        }
    }

    /// Compares it with a Node.
    pub fn check(&self, node: &NodeView) -> Result<(), NotThisMachine> {
        match self {
            Self::Unchecked => Ok(()),
            Self::Machine(_) if node.machine_id.is_empty() => Err(NotThisMachine::Unknown),
            Self::Machine(id) if *id == node.machine_id => Ok(()),
            Self::Machine(_) => Err(NotThisMachine::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(machine_id: &str) -> NodeView {
        NodeView { uid: "u".to_owned(), machine_id: machine_id.to_owned(), requested: false }
    }

    #[test]
    fn only_the_same_id_is_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine-id");
        assert!(matches!(Identity::read(&path), Err(IdentityError::Unreadable { .. })));
        std::fs::write(&path, " \n").unwrap();
        assert!(matches!(Identity::read(&path), Err(IdentityError::Empty { .. })));
        std::fs::write(&path, "abc\n").unwrap();
        let identity = Identity::read(&path).unwrap();
        assert_eq!(identity.check(&node("abc")), Ok(()));
        assert_eq!(identity.check(&node("abd")), Err(NotThisMachine::Other));
        assert_eq!(identity.check(&node("")), Err(NotThisMachine::Unknown));
        assert_eq!(Identity::Unchecked.check(&node("")), Ok(()));
    }
}
