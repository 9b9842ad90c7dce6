//! `5spot-fleet-operator`: a cluster's side of BigFleet, which gives machines back without breaking a budget.
//!
//! - [`wire`] is the protocol; [`session`] dials the shard (`tls`), listens and never waits, [`outbox`] is what is said to
//!   it, and `acks` what it has heard of;
//! - [`demand`] tells what the cluster wants ([`rollup`], [`quantity`]), [`template`] what makes a machine join,
//!   [`available`] writes down what could be had;
//! - what is decided about machines is decided by [`fivespot_core::fleet`]: [`owner`] has its state and puts one input
//!   after the other to it, [`perform`] does what comes of it, `drains` empties Nodes, `report` logs and counts;
//! - [`options`], [`metrics`], [`seen`], `alone` and [`run`] make a process of it, one that speaks for the cluster alone.
//!
//! All memory of a reclaim is on its Node. It evicts, and deletes a pod only if `--on-deadline=force` says so.

mod acks;
mod alone;
pub mod available;
pub mod backoff;
pub mod demand;
mod drains;
pub mod metrics;
pub mod options;
pub mod outbox;
pub mod owner;
pub mod perform;
pub mod quantity;
pub mod rate;
mod report;
pub mod rollup;
pub mod run;
pub mod seen;
pub mod session;
pub mod template;
mod tls;
pub mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a panic left behind is as good as what was there before it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
