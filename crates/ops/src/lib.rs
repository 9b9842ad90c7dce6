//! What every long-running program of 5-Spot needs, and no decision of any of them.
//!
//! - [`logs`]: one line per decision, for people or for machines;
//! - [`admin`]: health, readiness and metrics over HTTP, metrics also over HTTPS for those who may read them;
//! - [`slots`]: shares of the work, each held by one process at a time;
//! - [`shutdown`]: the signal to end.

pub mod admin;
pub mod logs;
mod reviewer;
pub mod shutdown;
pub mod slots;
mod tls;
