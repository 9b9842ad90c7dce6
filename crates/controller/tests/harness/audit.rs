//! What the API servers wrote down about our program.

use fivespot_testenv::{AuditEntry, Cluster};
use jiff::Timestamp;

/// How the controller presents itself.
pub(crate) const AGENT: &str = "5spot-controller/";

/// Every request of the controller that was answered since then.
pub(crate) fn requests(cluster: &Cluster, since: Timestamp) -> Vec<AuditEntry> {
    let ours = |entry: &AuditEntry| entry.user_agent.starts_with(AGENT) && entry.at >= since;
    cluster.audit().unwrap().into_iter().filter(ours).collect()
}

pub(crate) fn is_write(entry: &AuditEntry) -> bool {
    !matches!(entry.verb.as_str(), "get" | "list" | "watch")
}
