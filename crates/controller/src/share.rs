//! Which machines this process looks after.

use fivespot_cluster::{Key, Right};
use fivespot_core::slots::slot_of;
use fivespot_ops::slots::Holdings;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Which machines this process looks after.
pub(crate) enum Share {
    /// All, and writes nothing.
    DryRun,
    /// Those of the slots that it holds.
    Held(Held),
}

/// Slots that are held.
pub(crate) struct Held {
    holdings: Holdings,
    /// Slots that are about to be handed over, and in how much of a hurry.
    leaving: Mutex<BTreeMap<u32, Haste>>,
}

/// How what is under way ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Haste {
    /// Passes end, and none begins.
    Finish,
    /// Writes end, and none begins: what is sent now may arrive after the slot is another's.
    Hurry,
}

impl Share {
    pub(crate) fn new(dry_run: bool, holdings: Holdings) -> Self {
        if dry_run { Self::DryRun } else { Self::Held(Held { holdings, leaving: Mutex::default() }) }
    }

    /// Whether a pass over a machine may begin.
    pub(crate) fn has(&self, key: &Key) -> bool {
        match self {
            Self::DryRun => true,
            Self::Held(held) => {
                let slot = self.slot(key);
                held.holdings.remaining(slot).is_some() && !held.leaving().contains_key(&slot)
            }
        }
    }

    /// Begins no pass in these slots.
    pub(crate) fn leave(&self, slots: &BTreeSet<u32>) {
        self.set(slots, Haste::Finish);
    }

    /// Begins no write either.
    pub(crate) fn hurry(&self, slots: &BTreeSet<u32>) {
        self.set(slots, Haste::Hurry);
    }

    fn set(&self, slots: &BTreeSet<u32>, haste: Haste) {
        if let Self::Held(held) = self {
            held.leaving().extend(slots.iter().map(|slot| (*slot, haste)));
        }
    }

    /// They are not ours any more, or again.
    pub(crate) fn forget(&self, slot: u32) {
        if let Self::Held(held) = self {
            held.leaving().remove(&slot);
        }
    }

    /// Slots that are held, of how many.
    pub(crate) fn held(&self) -> (Vec<u32>, u32) {
        match self {
            Self::DryRun => (Vec::new(), 0),
            Self::Held(Held { holdings, .. }) => (holdings.held(), holdings.count().get()),
        }
    }
}

impl Held {
    fn leaving(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Haste>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Right for Share {
    fn slot(&self, key: &Key) -> u32 {
        match self {
            Self::DryRun => 0,
            Self::Held(Held { holdings, .. }) => slot_of(&key.namespace, &key.name, holdings.count()),
        }
    }

    fn remaining(&self, key: &Key) -> Option<Duration> {
        match self {
            Self::DryRun => None,
            Self::Held(Held { holdings, .. }) => holdings.remaining(self.slot(key)),
        }
    }

    fn may_begin(&self, key: &Key) -> bool {
        match self {
            Self::DryRun => false,
            Self::Held(held) => held.leaving().get(&self.slot(key)) != Some(&Haste::Hurry),
        }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (held, count) = self.held();
        let list = held.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        match (self, held.len()) {
            (Self::DryRun, _) => f.write_str("dry run"),
            (_, 0) => write!(f, "stands by: holds no slot of {count}"),
            (_, 1) => write!(f, "holds slot {list} of {count}"),
            (_, _) => write!(f, "holds slots {list} of {count}"),
        }
    }
}
