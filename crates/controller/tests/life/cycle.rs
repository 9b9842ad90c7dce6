//! In and out again.

use crate::harness::{CLOSED, is};
use crate::world;

#[tokio::test]
async fn a_window_opens_and_closes() {
    let world = world("cycle").await;
    world.create("m", CLOSED, |_| {}).await;
    let machine = world.until_phase("m", "Inactive").await;
    assert!(is(&machine, "Ready", "True", "OutsideWindow"));

    world.open("m").await;
    world.until_phase("m", "Active").await;
    world.pod("m", "web", |_| {}).await;

    world.close("m").await;
    world.until_phase("m", "Inactive").await;
    world.nothing_is_left("m").await;
}
