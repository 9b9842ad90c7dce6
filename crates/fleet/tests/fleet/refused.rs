//! Instructions that cannot be carried out at once: the API server refuses to cordon.

use crate::harness::shard::PlayedShard;
use crate::harness::yard::Yard;
use crate::harness::{Forbidden, Operator, plane};
use fivespot_core::fleet::record::Outcome;
use fivespot_fleet::wire::MachineState::{Configured, Draining, Idle};
use fivespot_testenv::eventually;
use std::time::Duration;

/// A shard says that the machine drains and is idle in the same breath. Neither word brings back an instruction that was
/// dropped, and the pods are still there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instruction_that_is_refused_at_first_is_carried_out_though_its_machine_is_idle_by_then() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "away").await;
    let shard = PlayedShard::start().await;
    yard.node("away-0", |_| {}).await;
    yard.pod("away-0", "web", |_| {}).await;
    let operator = Operator::start(plane, "away", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    shard.tell("away-0", Configured);
    yard.until_phase("away-0", "Ready").await;
    let forbidden = Forbidden::take(plane, "nodes").await;
    shard.instruct("away", &["away-0"], 600);
    shard.tell("away-0", Draining);
    shard.tell("away-0", Idle);
    eventually("it is refused", async || operator.log().contains("not cordoned yet")).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(shard.acks("away"), [], "nothing is acked that is not cordoned");
    drop(forbidden);
    assert_eq!(shard.acked("away").await.1, 1, "{}", operator.log());
    yard.until_empty("away-0").await;
    eventually("that is written down", async || {
        yard.record("away-0").await.unwrap().outcome == Some(Outcome::Drained)
    })
    .await;
    let record = yard.record("away-0").await.unwrap();
    assert_eq!(record.instructions, ["away"]);
    assert_eq!(record.deadline.duration_since(record.accepted_at).as_secs(), 600);
    assert!(
        record.cordoned_at.duration_since(record.accepted_at).as_secs() >= 2,
        "its time began when it came"
    );
    eventually("the machine has left", async || yard.phase("away-0").await.is_none()).await;
}

/// In another session the machine may be in use again. The session says so in the beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instruction_of_the_session_before_holds_for_a_machine_that_still_drains_and_for_no_other() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "before").await;
    let shard = PlayedShard::start().await;
    for node in ["before-0", "before-1"] {
        yard.node(node, |_| {}).await;
        yard.pod(node, &format!("{node}-web"), |_| {}).await;
    }
    shard.bind(&[("before-0", Configured), ("before-1", Configured)]);
    let operator = Operator::start(plane, "before", &shard.address, &[]);
    for machine in ["before-0", "before-1"] {
        yard.until_phase(machine, "Ready").await;
    }
    let forbidden = Forbidden::take(plane, "nodes").await;
    shard.instruct("drains", &["before-0"], 120);
    shard.instruct("reused", &["before-1"], 120);
    eventually("both are refused", async || operator.log().matches("not cordoned yet").count() >= 2).await;
    shard.bind(&[("before-0", Draining), ("before-1", Configured)]);
    shard.ends_session().await;
    assert_eq!(shard.acked("reused").await.1, 0, "{}", operator.log());
    drop(forbidden);
    assert_eq!(shard.acked("drains").await.1, 1, "{}", operator.log());
    yard.until_phase("before-0", "Drained").await;
    let record = yard.record("before-0").await.unwrap();
    assert_eq!(record.instructions, ["drains"]);
    let grace = record.deadline.duration_since(record.accepted_at).as_secs();
    assert_eq!(grace, 120, "and not that of a lost instruction");
    yard.until_phase("before-1", "Ready").await;
    assert!(!yard.is_cordoned("before-1").await && yard.record("before-1").await.is_none());
    assert_eq!(yard.on("before-1").await, ["before-1-web"]);
}

/// What could not be written is tried again, and must not come after what a newer instruction came to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_older_instruction_came_to_is_not_written_over_a_newer_one() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "older").await;
    let shard = PlayedShard::start().await;
    yard.node("older-0", |_| {}).await;
    yard.pod("older-0", "web", |_| {}).await;
    shard.bind(&[("older-0", Configured)]);
    let _operator = Operator::start(plane, "older", &shard.address, &[]);
    yard.until_phase("older-0", "Ready").await;
    let mute = Forbidden::take(plane, "upcomingnodes/status").await;
    let forbidden = Forbidden::take(plane, "nodes").await;
    shard.instruct("older", &["older-0"], 2);
    assert_eq!(shard.acked("older").await.1, 0);
    drop(forbidden);
    eventually("there is a newer one", async || {
        shard.instruct("newer", &["older-0"], 60);
        yard.record("older-0").await.is_some()
    })
    .await;
    yard.until_empty("older-0").await;
    drop(mute);
    yard.until_phase("older-0", "Drained").await;
    // Longer than the next try takes to come.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(yard.phase("older-0").await.unwrap().0, "Drained");
}

/// Ten seconds do not become ten minutes because they were not enough to cordon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_could_not_be_cordoned_in_its_time_has_failed_and_is_not_given_more() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "over").await;
    let shard = PlayedShard::start().await;
    yard.node("over-0", |_| {}).await;
    yard.pod("over-0", "web", |_| {}).await;
    shard.bind(&[("over-0", Configured)]);
    let _operator = Operator::start(plane, "over", &shard.address, &[]);
    yard.until_phase("over-0", "Ready").await;
    let forbidden = Forbidden::take(plane, "nodes").await;
    // Not even that it has failed can be written down.
    let mute = Forbidden::take(plane, "upcomingnodes/status").await;
    shard.instruct("over", &["over-0"], 4);
    shard.tell("over-0", Draining);
    assert_eq!(shard.acked("over").await.1, 0);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(yard.phase("over-0").await.unwrap().0, "Ready");
    drop(mute);
    drop(forbidden);
    let error = yard.until_phase("over-0", "Failed").await;
    assert!(error.contains("could not be cordoned before the deadline"), "{error}");
    assert!(error.contains("forbidden"), "it says why: {error}");
    shard.bind(&[("over-0", Draining)]);
    shard.ends_session().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(yard.phase("over-0").await.unwrap(), ("Failed".to_owned(), error));
    assert!(!yard.is_cordoned("over-0").await && yard.on("over-0").await == ["web"]);

    // Another instruction is another matter.
    shard.instruct("anew", &["over-0"], 60);
    assert_eq!(shard.acked("anew").await.1, 1);
    yard.until_phase("over-0", "Drained").await;
}

/// A second instruction can only bring the deadline forward. It does not wait behind the first, whose time is long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_instruction_is_acked_and_obeyed_while_the_first_cannot_be_carried_out() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "second").await;
    let shard = PlayedShard::start().await;
    for node in ["second-0", "second-1"] {
        yard.node(node, |_| {}).await;
        yard.pod(node, &format!("{node}-web"), |_| {}).await;
    }
    shard.bind(&[("second-0", Configured), ("second-1", Configured)]);
    let operator = Operator::start(plane, "second", &shard.address, &[]);
    for machine in ["second-0", "second-1"] {
        yard.until_phase(machine, "Ready").await;
    }
    let forbidden = Forbidden::take(plane, "nodes").await;
    shard.instruct("long-0", &["second-0"], 600);
    shard.instruct("long-1", &["second-1"], 600);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The time of one is over before the server allows anything, that of the other is not.
    shard.instruct("short-0", &["second-0"], 4);
    shard.instruct("short-1", &["second-1"], 30);
    let told = std::time::Instant::now();
    assert_eq!(shard.acked("short-0").await.1, 0, "{}", operator.log());
    assert!(told.elapsed() < Duration::from_secs(15), "it was acked after {:?}", told.elapsed());
    let error = yard.until_phase("second-0", "Failed").await;
    assert!(error.contains("could not be cordoned before the deadline"), "{error}");
    assert_eq!(shard.acked("long-0").await.1, 0, "a later deadline gives no more time");
    drop(forbidden);
    for instruction in ["long-1", "short-1"] {
        assert_eq!(shard.acked(instruction).await.1, 1, "{}", operator.log());
    }
    yard.until_phase("second-1", "Drained").await;
    let record = yard.record("second-1").await.unwrap();
    assert_eq!(record.instructions, ["long-1", "short-1"]);
    let time = record.deadline.duration_since(record.accepted_at).as_secs();
    assert!((30..=32).contains(&time), "the deadline is that of the second: {time} s after the first came");
    assert!(!yard.is_cordoned("second-0").await, "its time is over");
}
