//! The operator on a real API server, spoken to by a shard that is played from the protocol.

#![expect(clippy::unwrap_used, reason = "tests: the line that fails is the message")]

#[path = "../harness/mod.rs"]
mod harness;
#[expect(dead_code, reason = "the tests of the controller use the rest of it")]
#[path = "../../../controller/tests/harness/proxy.rs"]
mod proxy;

mod edges;
mod many;
mod order;
mod policy;
mod process;
mod recipes;
mod restarted;
mod wire;
