//! Which ScheduledMachines lend the same host: by the address they give to its provider, or by the Node they ended up on.
//!
//! Two of them would reset each other's host, or fight over one Node. Who gives way is decided elsewhere; here it is only
//! kept who shares what, since looking through all machines in every pass would cost more than the pass.

use crate::cache::Key;
use crate::watched::Watched;
use fivespot_api::ScheduledMachine;
use fivespot_core::intent::Intent;
use fivespot_core::observed::Rival;
use fivespot_core::reclaim::Stage;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};

/// Something that only one ScheduledMachine can have at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Share {
    /// A host, by kind of its provider, address and port.
    Address(String, String, u64),
    /// A Node, by its identity.
    Node(String),
}

/// Who has what.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    holders: HashMap<Share, BTreeSet<Key>>,
    of: HashMap<Key, Vec<Share>>,
}

/// The port of an sshd, for a provider that is told none.
const SSH_PORT: u64 = 22;

#[derive(Deserialize)]
struct RawEndpoint {
    address: Option<String>,
    port: Option<u64>,
}

/// The address that a ScheduledMachine gives to its provider, if it gives one. The embedded spec is the provider's: of
/// one that is of another shape nothing is known.
pub(crate) fn address(watched: &Watched) -> Option<Share> {
    let object = &watched.machine.spec.infrastructure_spec;
    let spec = watched.embedded(fivespot_core::lifecycle::Part::Infrastructure)?;
    let RawEndpoint { address, port } = serde_json::from_str(spec.get()).ok()?;
    let address = address.filter(|address| !address.is_empty())?.to_ascii_lowercase();
    let group = object.api_version.split('/').next().unwrap_or_default();
    Some(Share::Address(format!("{}.{group}", object.kind), address, port.unwrap_or(SSH_PORT)))
}

fn node(watched: &Watched) -> Option<Share> {
    let node = watched.machine.status.as_ref()?.node_ref.as_ref()?;
    Some(Share::Node(node.uid.clone()?))
}

impl Shares {
    /// Keeps what a ScheduledMachine has, and returns the others that share any of it, or shared it until now.
    pub(crate) fn set(&mut self, key: &Key, watched: Option<&Watched>) -> BTreeSet<Key> {
        let mut others = self.others(key);
        for share in self.of.remove(key).unwrap_or_default() {
            if let Some(holders) = self.holders.get_mut(&share) {
                holders.remove(key);
                if holders.is_empty() {
                    self.holders.remove(&share);
                }
            }
        }
        let Some(watched) = watched else { return others };
        let shares: Vec<Share> = [address(watched), node(watched)].into_iter().flatten().collect();
        for share in &shares {
            self.holders.entry(share.clone()).or_default().insert(key.clone());
        }
        self.of.insert(key.clone(), shares);
        others.extend(self.others(key));
        others
    }

    fn others(&self, key: &Key) -> BTreeSet<Key> {
        let shares = self.of.get(key).map(Vec::as_slice).unwrap_or_default();
        shares.iter().flat_map(|share| self.with(share, key)).collect()
    }

    /// The others that have this.
    pub(crate) fn with(&self, share: &Share, but: &Key) -> Vec<Key> {
        let holders = self.holders.get(share).into_iter().flatten();
        holders.filter(|key| *key != but).cloned().collect()
    }
}

/// What is known of another ScheduledMachine that lends the same host.
pub(crate) fn rival(mine: &ScheduledMachine, key: &Key, other: &ScheduledMachine) -> Rival {
    let created = |it: &ScheduledMachine| {
        let at = it.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        (at, it.metadata.namespace.clone(), it.metadata.name.clone())
    };
    let status = other.status.as_ref();
    let holds = status.is_some_and(|it| it.machine_ref.is_some() || it.infrastructure_ref.is_some());
    let is_held = other.memory().reclaim.is_some_and(|reclaim| reclaim.stage() != Stage::Over);
    let may_lend = other.metadata.deletion_timestamp.is_none()
        && other.spec.schedule.enabled
        && !other.spec.kill_switch
        && !is_held;
    let schedule = Intent::try_from(other).ok().filter(|_| may_lend).map(|intent| intent.schedule);
    Rival { name: key.to_string(), holds, is_older: created(other) < created(mine), schedule }
}

/// Whether another ScheduledMachine has the better claim to a Node that both ended up on: the one whose Machine was made
/// first.
pub(crate) fn has_better_claim(mine: &ScheduledMachine, other: &ScheduledMachine) -> bool {
    let since = |it: &ScheduledMachine| {
        let at = it.status.as_ref().and_then(|status| status.last_scheduled_time.as_ref()).map(|time| time.0);
        (at.unwrap_or(Timestamp::MAX), it.metadata.namespace.clone(), it.metadata.name.clone())
    };
    let is_lent = other.status.as_ref().is_some_and(|status| status.machine_ref.is_some());
    is_lent && since(other) < since(mine)
}
