//! The life of machines under the real Cluster API manager, which is spoken to in v1beta2.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "scenarios are tests in all but name: the line that fails is the message"
)]

#[path = "../harness/mod.rs"]
#[expect(dead_code, reason = "other test binaries use the rest of it")]
mod harness;

#[path = "../harness/agent.rs"]
mod agent;
mod look;
mod stage;

mod agents;
mod cycle;
mod deleted;
mod drain;
mod hangs;
mod invalid;
mod killed;
mod made;
mod nodes;
mod others;
mod paused;
mod prepared;
mod programs;
mod reclaimed;
mod reopened;
mod returned;
mod rivals;
mod taints;

use stage::Scenario;

/// The version of Cluster API that the controller speaks.
const VERSION: &str = "v1beta2";

/// Those that take longest come first.
fn all() -> Vec<Scenario> {
    let modules = [
        programs::SCENARIOS,
        agents::SCENARIOS,
        hangs::SCENARIOS,
        others::SCENARIOS,
        reclaimed::SCENARIOS,
        deleted::SCENARIOS,
        drain::SCENARIOS,
        cycle::SCENARIOS,
        made::SCENARIOS,
        reopened::SCENARIOS,
        returned::SCENARIOS,
        rivals::SCENARIOS,
        killed::SCENARIOS,
        paused::SCENARIOS,
        prepared::SCENARIOS,
        invalid::SCENARIOS,
        nodes::SCENARIOS,
        taints::SCENARIOS,
    ];
    modules.concat()
}
