//! What is counted.

use fivespot_cluster::Error;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByResult {
    pub(crate) result: PassResult,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum PassResult {
    #[expect(non_camel_case_types, reason = "the label's value is the variant's name")]
    unchanged,
    #[expect(non_camel_case_types, reason = "the label's value is the variant's name")]
    acted,
    #[expect(non_camel_case_types, reason = "the label's value is the variant's name")]
    error,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByError {
    pub(crate) error_type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByPhase {
    pub(crate) phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByTask {
    pub(crate) task: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct BySlot {
    pub(crate) slot: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByChange {
    pub(crate) change: SlotChange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum SlotChange {
    #[expect(non_camel_case_types, reason = "the label's value is the variant's name")]
    gained,
    #[expect(non_camel_case_types, reason = "the label's value is the variant's name")]
    handed_over,
    #[expect(non_camel_case_types, reason = "the label's value is the variant's name")]
    lost,
}

/// Everything that is counted.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) passes: Family<ByResult, Counter>,
    pub(crate) duration: Histogram,
    pub(crate) errors: Family<ByError, Counter>,
    pub(crate) machines: Family<ByPhase, Gauge>,
    pub(crate) hosts_not_cleaned: Gauge,
    pub(crate) machines_unreachable: Gauge,
    pub(crate) task_restarts: Family<ByTask, Gauge>,
    pub(crate) lateness: Histogram,
    pub(crate) drains: Histogram,
    pub(crate) ejects: Histogram,
    pub(crate) finalizers_forced: Counter,
    pub(crate) slots: Gauge,
    pub(crate) slots_held: Family<BySlot, Gauge>,
    pub(crate) slot_changes: Family<ByChange, Counter>,
}

impl Metrics {
    /// Registers everything under `fivespot_`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let short = || Histogram::new(exponential_buckets(0.001, 2.0, 14));
        let long = || Histogram::new(exponential_buckets(0.05, 2.0, 16));
        let metrics = Self {
            passes: Family::default(),
            duration: short(),
            errors: Family::default(),
            machines: Family::default(),
            hosts_not_cleaned: Gauge::default(),
            machines_unreachable: Gauge::default(),
            task_restarts: Family::default(),
            lateness: long(),
            drains: long(),
            ejects: long(),
            finalizers_forced: Counter::default(),
            slots: Gauge::default(),
            slots_held: Family::default(),
            slot_changes: Family::default(),
        };
        // What has not happened yet is counted too: a dashboard cannot tell "never" from "not known".
        for result in [PassResult::unchanged, PassResult::acted, PassResult::error] {
            drop(metrics.passes.get_or_create(&ByResult { result }));
        }
        for error_type in Error::WORDS {
            drop(metrics.errors.get_or_create(&ByError { error_type }));
        }
        for change in [SlotChange::gained, SlotChange::handed_over, SlotChange::lost] {
            drop(metrics.slot_changes.get_or_create(&ByChange { change }));
        }
        let registry = registry.sub_registry_with_prefix("fivespot");
        registry.register(
            "reconciliations",
            "Passes over a ScheduledMachine, by result",
            metrics.passes.clone(),
        );
        registry.register_with_unit(
            "reconciliation_duration",
            "Duration of a pass",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register("errors", "Passes that failed, by kind of error", metrics.errors.clone());
        registry.register("machines_by_phase", "ScheduledMachines in each phase", metrics.machines.clone());
        registry.register(
            "hosts_not_cleaned",
            "Hosts that were handed back and whose Node is in the cluster all the same",
            metrics.hosts_not_cleaned.clone(),
        );
        registry.register(
            "machines_unreachable",
            "ScheduledMachines whose workload cluster cannot be reached",
            metrics.machines_unreachable.clone(),
        );
        registry.register(
            "task_restarts",
            "Background tasks that panicked and were restarted since this process started, by task",
            metrics.task_restarts.clone(),
        );
        registry.register_with_unit(
            "transition_lateness",
            "Time between the boundary of a window and the first pass that acts on it",
            Unit::Seconds,
            metrics.lateness.clone(),
        );
        registry.register_with_unit(
            "drain_duration",
            "Time from the beginning of a graceful exit to the deletion of the Machine",
            Unit::Seconds,
            metrics.drains.clone(),
        );
        registry.register_with_unit(
            "eject_duration",
            "Time from the beginning of an emergency exit to the deletion of the Machine",
            Unit::Seconds,
            metrics.ejects.clone(),
        );
        registry.register(
            "finalizers_forced",
            "Deletions that gave up on a Machine which would not go",
            metrics.finalizers_forced.clone(),
        );
        registry.register(
            "slot_count",
            "Slots that the machines are shared out to, for this process",
            metrics.slots.clone(),
        );
        registry.register("slot_held", "Whether this process holds a slot", metrics.slots_held.clone());
        registry.register(
            "slot_changes",
            "Slots that this process gained, handed over on request, or lost",
            metrics.slot_changes.clone(),
        );
        metrics
    }
}
