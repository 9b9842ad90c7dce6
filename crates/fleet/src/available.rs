//! What could be had from the fleet, written down as hints.

use crate::metrics::{Metrics, count};
use crate::quantity::readable;
use crate::template::operator_word;
use crate::wire::AvailableCapacityUpdate;
use crate::wire::available_capacity_update::Confidence;
use fivespot_api::fleet::{AvailableCapacitySpec, Requirement};
use fivespot_cluster::fleet::Fleet;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// The newest hint of each kind that is not written yet.
pub struct Available {
    fleet: Fleet,
    metrics: Metrics,
    waiting: Mutex<HashMap<String, AvailableCapacityUpdate>>,
    written: Mutex<HashMap<String, AvailableCapacitySpec>>,
    changed: Notify,
}

impl Available {
    /// Nothing to write.
    pub fn new(fleet: Fleet, metrics: Metrics) -> Self {
        Self { fleet, metrics, waiting: Mutex::default(), written: Mutex::default(), changed: Notify::new() }
    }

    /// Takes a hint, in the place of an older one of its kind. Does not wait.
    pub fn put(&self, update: AvailableCapacityUpdate) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.insert(update.supersedes_key.clone(), update);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Writes hints for ever.
    pub async fn run(&self) {
        loop {
            let taken = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if taken.is_empty() {
                self.changed.notified().await;
            }
            for (key, update) in taken {
                let (name, spec) = (name_of(&key), spec_of(&update));
                let is_known = {
                    let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
                    written.get(&name) == Some(&spec)
                };
                if is_known {
                    continue;
                }
                match self.fleet.apply_available(&name, &spec).await {
                    Ok(()) => {
                        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert(name, spec);
                    }
                    Err(error) => {
                        count(&self.metrics.writes, "failed");
                        tracing::warn!(%error, "a hint could not be written");
                    }
                }
            }
        }
    }
}

/// Name of the object of a kind of hints.
fn name_of(key: &str) -> String {
    let digest = Sha256::digest(key);
    digest.iter().take(16).fold("ac-".to_owned(), |mut name, byte| {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
        name
    })
}

fn spec_of(update: &AvailableCapacityUpdate) -> AvailableCapacitySpec {
    let availability = match update.confidence() {
        Confidence::Unspecified | Confidence::None => "None",
        Confidence::Low => "Low",
        Confidence::Medium => "Medium",
        Confidence::High => "High",
    };
    // A price that is no number is none.
    let cost = if update.cost_per_hour.is_finite() { update.cost_per_hour } else { 0.0 };
    AvailableCapacitySpec {
        requirements: update
            .requirements
            .iter()
            .map(|it| Requirement {
                key: it.key.clone(),
                operator: operator_word(it.operator()).to_owned(),
                values: it.values.clone(),
            })
            .collect(),
        resources: readable(update.resources.as_ref()),
        available_count: update.available_count,
        availability: availability.to_owned(),
        cost: Quantity(format!("{cost:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_has_one_object_for_its_kind() {
        assert_eq!(name_of("available:x"), name_of("available:x"));
        assert_ne!(name_of("available:x"), name_of("available:y"));
        assert_eq!(name_of("available:x").len(), 35);
        let update = AvailableCapacityUpdate {
            available_count: 3,
            confidence: Confidence::High.into(),
            cost_per_hour: 0.25,
            ..AvailableCapacityUpdate::default()
        };
        let spec = spec_of(&update);
        assert_eq!((spec.availability.as_str(), spec.cost.0.as_str()), ("High", "0.25"));
        let free = AvailableCapacityUpdate { cost_per_hour: f64::NAN, ..update };
        assert_eq!(spec_of(&free).cost.0, "0");
    }
}
