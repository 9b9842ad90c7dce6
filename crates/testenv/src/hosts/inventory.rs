//! The hosts themselves: one address is one host, whoever names it and in whichever namespace.

use super::digest;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The hosts of a control plane, by their addresses. A host that nobody has used yet is clean.
#[derive(Debug, Default)]
pub(crate) struct Inventory(Mutex<BTreeMap<String, Host>>);

/// What is on a host.
#[derive(Debug, Default)]
struct Host {
    installation: Option<Installation>,
    boots: usize,
    resets: Vec<Timestamp>,
}

/// k0s on a host, with the kubelet that it runs. It survives a reboot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Installation {
    /// The RemoteMachine that it was installed for: namespace, name and uid.
    pub(super) namespace: String,
    pub(super) machine: String,
    pub(super) uid: String,
    /// The Node that its kubelet registers.
    pub(super) node: String,
    /// Whether the kubelet last said that it is ready; nothing before it has registered.
    pub(super) is_ready: Option<bool>,
    /// Whether the provider has written the providerID to the Node.
    pub(super) has_provider_id: bool,
    /// Whether its RemoteMachine is gone, and it runs on by a fault.
    pub(super) is_orphan: bool,
}

impl Inventory {
    /// Installs k0s, and returns whether that worked: a host on which another RemoteMachine's k0s is left refuses.
    pub(super) fn install(&self, address: &str, installation: Installation) -> bool {
        let mut hosts = self.lock();
        let host = hosts.entry(address.to_owned()).or_default();
        let is_dirty = host.installation.as_ref().is_some_and(|it| it.uid != installation.uid);
        if host.installation.is_none() {
            host.installation = Some(installation);
        }
        !is_dirty
    }

    /// Removes k0s, whoever installed it.
    pub(super) fn reset(&self, address: &str) {
        let mut hosts = self.lock();
        let host = hosts.entry(address.to_owned()).or_default();
        host.installation = None;
        host.resets.push(Timestamp::now());
    }

    /// Starts a host again, and returns what is installed on it.
    pub(super) fn boot(&self, address: &str) -> Option<Installation> {
        let mut hosts = self.lock();
        let host = hosts.entry(address.to_owned()).or_default();
        host.boots += 1;
        host.installation.clone()
    }

    pub(super) fn resets(&self, address: &str) -> Vec<Timestamp> {
        self.lock().get(address).map(|host| host.resets.clone()).unwrap_or_default()
    }

    pub(super) fn boots(&self, address: &str) -> usize {
        self.lock().get(address).map(|host| host.boots).unwrap_or_default()
    }

    pub(super) fn installation(&self, address: &str) -> Option<Installation> {
        self.lock().get(address).and_then(|host| host.installation.clone())
    }

    /// Changes an installation if it is still the one of this RemoteMachine.
    pub(super) fn update(&self, address: &str, uid: &str, change: impl FnOnce(&mut Installation)) {
        let mut hosts = self.lock();
        let installation = hosts.get_mut(address).and_then(|host| host.installation.as_mut());
        if let Some(installation) = installation.filter(|it| it.uid == uid) {
            change(installation);
        }
    }

    /// The hosts whose kubelets have registered for machines of a namespace, with their addresses.
    pub(super) fn registered(&self, namespace: &str) -> Vec<(String, Installation)> {
        let hosts = self.lock();
        let all = hosts.iter().filter_map(|(address, host)| Some((address, host.installation.as_ref()?)));
        all.filter(|(_, it)| it.namespace == namespace && it.is_ready.is_some())
            .map(|(address, it)| (address.clone(), it.clone()))
            .collect()
    }

    /// The machine whose host has registered this Node.
    pub(super) fn machine_of(&self, namespace: &str, node: &str) -> Option<String> {
        let hosts = self.lock();
        let all = hosts.values().filter_map(|host| host.installation.as_ref());
        all.filter(|it| it.namespace == namespace && it.is_ready.is_some())
            .find(|it| it.node == node)
            .map(|it| it.machine.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Host>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the host of an address has in its `/etc/machine-id`, whatever is installed on it.
pub(super) fn machine_id(address: &str) -> String {
    hex(address)
}

/// What the firmware of the host says.
pub(super) fn system_uuid(address: &str) -> String {
    let hex = hex(&format!("firmware of {address}"));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

pub(super) fn boot_id(address: &str, boots: usize) -> String {
    hex(&format!("boot {boots} of {address}"))
}

fn hex(text: &str) -> String {
    digest(text).iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
