//! What is counted.

use fivespot_core::fleet::Rule;
use fivespot_core::fleet::record::Outcome;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// By one word.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct By {
    pub(crate) result: &'static str,
}

/// Everything the operator counts.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) connected: Gauge,
    pub(crate) sessions: Family<By, Counter>,
    pub(crate) rollups: Family<By, Counter>,
    pub(crate) unusable_requests: Gauge,
    pub(crate) bootstraps: Family<By, Counter>,
    pub(crate) instructions: Family<By, Counter>,
    pub(crate) resolved: Family<By, Counter>,
    pub(crate) ack_latency: Histogram,
    pub(crate) active_drains: Gauge,
    pub(crate) next_deadline: Gauge,
    pub(crate) evictions: Family<By, Counter>,
    pub(crate) drains: Family<By, Histogram>,
    pub(crate) writes: Family<By, Counter>,
}

impl Metrics {
    /// Registers them all.
    pub fn new(registry: &mut Registry) -> Self {
        let long = || Histogram::new(exponential_buckets(0.25, 2.0, 14));
        let metrics = Self {
            connected: Gauge::default(),
            sessions: Family::default(),
            rollups: Family::default(),
            unusable_requests: Gauge::default(),
            bootstraps: Family::default(),
            instructions: Family::default(),
            resolved: Family::default(),
            ack_latency: Histogram::new(exponential_buckets(0.002, 2.0, 14)),
            active_drains: Gauge::default(),
            next_deadline: Gauge::default(),
            evictions: Family::default(),
            drains: Family::new_with_constructor(long),
            writes: Family::default(),
        };
        for rule in Rule::ALL {
            let _ = metrics.resolved.get_or_create(&By { result: rule.as_str() });
        }
        for outcome in [Outcome::Drained, Outcome::Failed] {
            let _ = metrics.drains.get_or_create(&By { result: outcome.as_str() });
        }
        let registry = registry.sub_registry_with_prefix("fivespot_fleet");
        registry.register("connected", "Whether the shard has said hello", metrics.connected.clone());
        registry.register("sessions", "Sessions with the shard, by how they ended", metrics.sessions.clone());
        registry.register("rollups", "Sums of all demands: sent, acked, withheld", metrics.rollups.clone());
        registry.register(
            "unusable_requests",
            "CapacityRequests that are left out of the sum, since the shard would refuse all others with them",
            metrics.unusable_requests.clone(),
        );
        registry.register("bootstraps", "Bootstrap requests that were answered", metrics.bootstraps.clone());
        registry.register(
            "instructions",
            "Reclaim instructions, by what came of them",
            metrics.instructions.clone(),
        );
        registry.register(
            "resolved",
            "Entries of instructions, by how their Node was found",
            metrics.resolved.clone(),
        );
        registry.register_with_unit(
            "ack_latency",
            "From the arrival of an instruction to its ack",
            Unit::Seconds,
            metrics.ack_latency.clone(),
        );
        registry.register("active_drains", "Drains that are under way", metrics.active_drains.clone());
        registry.register_with_unit(
            "next_deadline_timestamp",
            "When the drain that has the least time must have ended, since 1970; 0 if there is none",
            Unit::Seconds,
            metrics.next_deadline.clone(),
        );
        registry.register(
            "evictions",
            "Pods that were asked to go, by the answer",
            metrics.evictions.clone(),
        );
        registry.register_with_unit(
            "drain_duration",
            "From acceptance to the end of a drain, by how it ended",
            Unit::Seconds,
            metrics.drains.clone(),
        );
        registry.register("writes", "Writes to the API server, by what came of them", metrics.writes.clone());
        metrics
    }
}

/// Counts one of a family.
pub(crate) fn count(family: &Family<By, Counter>, result: &'static str) {
    family.get_or_create(&By { result }).inc();
}
