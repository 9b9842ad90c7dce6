//! Which ScheduledMachines lend the same host: by the address they give to its provider, or by the Node they ended up on.
//!
//! Two of them would reset each other's host, or fight over one Node. Who gives way is decided in `core::claim`; here it is only
//! kept who shares what, since looking through all machines in every pass would cost more than the pass.

use crate::cache::Key;
use crate::watched::Watched;
use fivespot_core::claim::{Claim, Rival};
use fivespot_core::intent::Intent;
use fivespot_core::lifecycle::{Part, Patience};
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
    let spec = watched.embedded(Part::Infrastructure)?;
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

/// What a ScheduledMachine shows of itself.
pub(crate) fn claim(watched: &Watched) -> Claim {
    let machine = &watched.machine;
    let status = machine.status.as_ref();
    Claim {
        name: watched.key().to_string(),
        created_at: machine.metadata.creation_timestamp.as_ref().map(|time| time.0),
        lent_since: status.and_then(|it| it.last_scheduled_time.as_ref()).map(|time| time.0),
        has_machine: status.is_some_and(|it| it.machine_ref.is_some()),
        has_infrastructure: status.is_some_and(|it| it.infrastructure_ref.is_some()),
    }
}

/// What is known of another ScheduledMachine that lends the same host.
pub(crate) fn rival(other: &Watched) -> Rival {
    let machine = &other.machine;
    Rival {
        claim: claim(other),
        orders: machine.orders(Patience::Endless, false),
        reclaim: machine.memory().reclaim,
        schedule: Intent::try_from(machine).ok().map(|intent| intent.schedule),
    }
}
