//! What depends on the version of Cluster API, once more in v1beta1.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "scenarios are tests in all but name: the line that fails is the message"
)]

#[path = "../harness/mod.rs"]
#[expect(dead_code, reason = "other test binaries use the rest of it")]
mod harness;

#[path = "../life/look.rs"]
#[expect(dead_code, reason = "other test binaries use the rest of it")]
mod look;
#[path = "../life/stage.rs"]
mod stage;

#[path = "../life/cycle.rs"]
mod cycle;
#[path = "../life/deleted.rs"]
mod deleted;
#[path = "../life/drain.rs"]
mod drain;
#[path = "../life/killed.rs"]
mod killed;
#[path = "../life/made.rs"]
mod made;
#[path = "../life/reopened.rs"]
mod reopened;

use stage::Scenario;

/// The version of Cluster API that the controller speaks.
const VERSION: &str = "v1beta1";

/// Those that take longest come first.
fn all() -> Vec<Scenario> {
    let modules = [
        deleted::SCENARIOS,
        drain::SCENARIOS,
        cycle::SCENARIOS,
        made::SCENARIOS,
        reopened::SCENARIOS,
        killed::SCENARIOS,
    ];
    modules.concat()
}
