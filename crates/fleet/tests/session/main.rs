//! The operator as a process: its session, its end, and what it does when servers are away.

#![expect(clippy::unwrap_used, reason = "tests: the line that fails is the message")]

#[expect(dead_code, reason = "the tests in `fleet` use the rest of it")]
#[path = "../harness/mod.rs"]
mod harness;
#[expect(dead_code, reason = "the tests of the controller use the rest of it")]
#[path = "../../../controller/tests/harness/proxy.rs"]
mod proxy;

mod process;
mod restarted;
mod scraped;
mod wire;
mod without_server;
