//! What a shard says is shown to people, and obeyed by no terminal.

use crate::harness::shard::{PlayedShard, update};
use crate::harness::yard::Yard;
use crate::harness::{Operator, plane};
use fivespot_core::text::is_hidden;
use fivespot_fleet::wire::MachineState::{Configured, Failed, Idle};
use fivespot_fleet::wire::shard_message::Payload as Said;
use fivespot_testenv::eventually;

const HOSTILE: &str = "no\u{1b}[2J\n2026-01-01T00:00:00.000Z  INFO ready\u{9b}1A\u{202e}\u{200b}x";

const SHOWN: &str = r"no\u{1b}[2J\n2026-01-01T00:00:00.000Z  INFO ready\u{9b}1A\u{202e}\u{200b}x";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_of_a_shard_reach_no_object_event_or_log_as_they_are() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "words").await;
    let shard = PlayedShard::start().await;
    yard.node("words-0", |_| {}).await;
    yard.pod("words-0", "web", |_| {}).await;
    let operator = Operator::start(plane, "words", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    shard.tell("words-0", Configured);
    yard.until_phase("words-0", "Ready").await;

    // The id of an instruction is the shard's choice, and so is why a machine fails.
    shard.instruct(HOSTILE, &["words-0"], 600);
    shard.acked(HOSTILE).await;
    yard.until_empty("words-0").await;
    let accepted = |event: &String| event.starts_with("ReclaimAccepted: ");
    eventually("it is told", async || yard.events("words-0").await.iter().any(accepted)).await;
    let mut broken = update("words-0", Failed);
    (broken.last_error, broken.provider_id) = (HOSTILE.to_owned(), HOSTILE.to_owned());
    shard.say(Said::NodeStateUpdate(broken));
    let error = yard.until_phase("words-0", "Failed").await;
    assert_eq!(error, SHOWN);
    let upcoming = yard.upcoming().list(&kube::api::ListParams::default()).await.unwrap().items;
    let provider_ids: Vec<_> = upcoming.into_iter().filter_map(|it| it.status?.provider_id).collect();
    assert!(provider_ids.contains(&SHOWN.to_owned()), "{provider_ids:?}");

    shard.tell("words-0", Idle);
    eventually("the machine has left", async || yard.phase("words-0").await.is_none()).await;
    let left = |event: &String| {
        event == &format!("FailedMachineLeft: the machine left the cluster; it had failed: {SHOWN}")
    };
    let name = fivespot_api::names::upcoming_node("words-0");
    eventually("that is told", async || yard.events(&name).await.iter().any(left)).await;

    let events = [yard.events("words-0").await, yard.events(&name).await].concat();
    assert!(events.iter().any(|event| accepted(event) && event.contains(SHOWN)), "{events:?}");
    let log = operator.log();
    assert!(log.contains(SHOWN), "{log}");
    for text in events.iter().flat_map(|event| event.lines()).chain(log.lines()) {
        assert!(!text.contains(is_hidden), "{text:?}");
        assert!(!text.ends_with("INFO ready"), "a line was forged: {text}");
    }
    assert!(events.iter().all(|event| event.lines().count() == 1), "{events:?}");
}
