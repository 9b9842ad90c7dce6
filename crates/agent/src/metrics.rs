//! What is counted.

use crate::source::Kind;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Everything the agent counts.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    pub(crate) detector: Family<ByKind, Gauge>,
    pub(crate) armed: Gauge,
    pub(crate) matches: Counter,
    pub(crate) overflows: Counter,
    pub(crate) scans: Family<ByCause, Counter>,
    pub(crate) heartbeats_lost: Counter,
    pub(crate) step_downs: Counter,
    pub(crate) config_errors: Counter,
    pub(crate) config_refused: Gauge,
    pub(crate) identity_refused: Gauge,
    pub(crate) writes: Counter,
    pub(crate) write_failures: Counter,
}

/// Which source.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByKind {
    pub(crate) kind: &'static str,
}

/// Why all processes were looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ByCause {
    pub(crate) cause: &'static str,
}

impl Metrics {
    /// Registers them all.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("fivespot_agent");
        registry.register("detector", "What notices processes now: 1, else 0", metrics.detector.clone());
        registry.register("armed", "Whether there is anything to look for", metrics.armed.clone());
        registry.register("matches", "Processes found that match", metrics.matches.clone());
        registry.register("overflows", "Events lost; a scan followed", metrics.overflows.clone());
        registry.register("scans", "Looks at all processes, by cause", metrics.scans.clone());
        registry.register("heartbeats_lost", "Times the kernel fell silent", metrics.heartbeats_lost.clone());
        registry.register("step_downs", "Times polling took over from events", metrics.step_downs.clone());
        registry.register("config_errors", "Configurations that were refused", metrics.config_errors.clone());
        registry.register(
            "config_refused",
            "Whether the configuration on the server is refused, and the last good one stands",
            metrics.config_refused.clone(),
        );
        registry.register(
            "identity_refused",
            "Whether the Node is not shown to be this machine, so that nothing is written to it",
            metrics.identity_refused.clone(),
        );
        registry.register("writes", "Requests written to the Node", metrics.writes.clone());
        registry.register("write_failures", "Attempts that failed", metrics.write_failures.clone());
        metrics.uses(None);
        metrics
    }

    /// Shows what notices processes.
    pub(crate) fn uses(&self, kind: Option<Kind>) {
        for each in Kind::ALL {
            self.detector.get_or_create(&ByKind { kind: each.word() }).set(i64::from(kind == Some(each)));
        }
    }
}
