//! The API of 5-Spot as Kubernetes sees it.
//!
//! - [`ScheduledMachine`] and the types it is made of. They are lenient on purpose: every field of `spec`
//!   has a default and a plain type, so that one object written under older rules cannot make a watch of
//!   all objects fail. Strictness is the business of the schema (at the door) and of
//!   [`Intent`](fivespot_core::intent::Intent) (for what is inside already).
//! - [`scheduled_machine_crd`]: the definition with every bound and CEL rule, so that the API server alone
//!   refuses what is malformed.
//!
//! - [`read_manifest`]: a file, read as strictly as the server reads it.
//! - [`lint_provider_specs`]: what k0smotron could not use in the embedded specs of such a file.
//! - [`AgentConfig`]: what the reclaim agent of a Node looks for.
//! - [`fleet`]: the objects that a cluster and its fleet speak through.
//! - [`Lease`]: through which an instance of the controller holds a share of the machines.
//! - Orders and memory, read from an object, and the status that is written back; [`names`] of everything.
//!
//! Rules and their bounds come from [`fivespot_core::limits`]; `tests/api/table` proves that server and code
//! give the same verdict.

mod agent_config;
pub mod fleet;
mod lease;
mod manifest;
pub mod names;
mod printable;
mod provider_lint;
mod read;
mod rules;
mod scheduled_machine;
mod schema;
mod status;

pub use agent_config::{AgentConfig, ConfigError, DEFAULT_POLL_INTERVAL_MS, POLL_INTERVAL_MS};
pub use lease::{Lease, lease_change, lease_name, leases_path};
pub use manifest::read_manifest;
pub use provider_lint::{ProviderFinding, ProviderProblem, lint_provider_specs};
pub use rules::scheduled_machine_crd;
pub use scheduled_machine::*;
pub use status::Writing;
