//! `5spot-fleet-operator`: a cluster's side of BigFleet, which gives machines back without breaking a budget.

pub mod backoff;
pub mod outbox;
pub mod phase;
pub mod plan;
pub mod quantity;
pub mod record;
pub mod resolve;
pub mod rollup;
pub mod template;
pub mod wire;
