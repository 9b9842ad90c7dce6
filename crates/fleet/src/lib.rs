//! `5spot-fleet-operator`: a cluster's side of BigFleet, which gives machines back without breaking a budget.
//!
//! - [`wire`] is the protocol; [`session`] dials the shard (`tls`), listens and never waits, [`outbox`] is what is said to
//!   it, and `acks` what it has heard of;
//! - [`demand`] tells what the cluster wants ([`rollup`], [`quantity`]), [`template`] what makes a machine join,
//!   [`available`] writes down what could be had;
//! - [`desk`] sorts what the shard says by machine (`instructions` knows what came before); `machine` does it, one thing
//!   after the other, and `drains` empties Nodes;
//! - what is decided is decided by [`resolve`] (which Node), `heard` (whether it is still meant), [`record`] (what stands on
//!   it), [`phase`] (what a state means), [`plan`] (which pods go next) and [`backoff`], without clock and network;
//! - [`options`], [`metrics`], [`seen`], `alone` and [`run`] make a process of it, one that speaks for the cluster alone.
//!
//! All memory of a reclaim is on its Node. It evicts, and deletes a pod only if `--on-deadline=force` says so.

mod acks;
mod alone;
pub mod available;
pub mod backoff;
pub mod demand;
pub mod desk;
mod drains;
mod heard;
mod instructions;
mod machine;
pub mod metrics;
pub mod options;
pub mod outbox;
pub mod phase;
pub mod plan;
pub mod quantity;
pub mod rate;
pub mod record;
pub mod resolve;
pub mod rollup;
pub mod run;
pub mod seen;
pub mod session;
pub mod template;
mod tls;
pub mod wire;
