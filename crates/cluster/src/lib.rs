//! The one place that talks to API servers.
//!
//! - [`Shell::observe`] turns what the watches hold, and where asked what the server itself answers, into the
//!   [`Observed`](fivespot_core::observed::Observed) of one ScheduledMachine;
//! - [`Shell::surroundings`] reads the same for a person, as far as that person may;
//! - [`Shell::perform`] carries out the actions of a decision, each with the identity it was decided on, and then
//!   writes status, once, and only if it differs;
//! - [`Shell::ask_back`] and [`Shell::resume`] write what a person asks for with the command line;
//! - [`fleet::Fleet`] is what the fleet operator reads and writes.
//!
//! It holds no decision. Every call has a timeout; no call is repeated here: the next pass decides anew.

mod agent_pods;
mod bounds;
mod cache;
mod capi;
mod client;
mod create;
mod drain;
mod error;
mod event;
mod files;
pub mod fleet;
mod foreign;
mod gate;
mod hand;
mod kinds;
mod node;
mod node_patch;
mod observe;
mod parts;
mod perform;
mod permission;
mod reclaim;
mod rivals;
mod shell;
mod supervisor;
mod watched;
mod workload;

pub use cache::{Cache, Health, Item, Key, Source};
pub use capi::CapiVersion;
pub use client::{Caller, config, connect, connect_to};
pub use error::{Error, Retry};
pub use files::{FileBound, read_file, read_stream};
pub use observe::{Readable, Surroundings};
pub use perform::Performed;
pub use shell::{Change, Right, Settings, Shell};
pub use watched::Watched;
pub use workload::ManagementNamespaces;
