//! What the operator does about machines, on a real API server, told by a shard that is played from the protocol.

#![expect(clippy::unwrap_used, reason = "tests: the line that fails is the message")]

#[expect(dead_code, reason = "the tests in `session` use the rest of it")]
#[path = "../harness/mod.rs"]
mod harness;

mod edges;
mod hostile;
mod many;
mod order;
mod policy;
mod recipes;
mod refused;
