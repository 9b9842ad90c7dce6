//! The API, proved against a real API server. The tests of this binary share one control plane, on which
//! `deploy/` is installed the way a user installs it.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

mod agent;
mod examples;
mod policies;
mod ratcheting;
mod setup;
mod table;
