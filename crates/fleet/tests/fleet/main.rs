//! The operator on a real API server, spoken to by a shard that is played from the protocol.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests: the line that fails is the message")]

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../../../controller/tests/harness/proxy.rs"]
mod proxy;

mod edges;
mod many;
mod order;
mod process;
mod recipes;
mod restarted;
mod wire;
