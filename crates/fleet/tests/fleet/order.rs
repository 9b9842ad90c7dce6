//! Cordon, ack, eviction: in this order, and the ack whatever disruption budgets say.

use crate::harness::shard::PlayedShard;
use crate::harness::yard::Yard;
use crate::harness::{Operator, plane, requests};
use fivespot_fleet::wire::MachineState;
use fivespot_testenv::AuditEntry;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ack_comes_after_the_cordon_and_before_the_first_eviction_while_a_budget_blocks_all() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "order").await;
    let shard = PlayedShard::start().await;
    let (mut ratios, mut in_order) = (Vec::new(), 0);
    let operator = Operator::start(plane, "order", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    for round in 0..5 {
        let node = format!("order-{round}");
        yard.node(&node, |_| {}).await;
        for pod in 0..3 {
            yard.pod(&node, &format!("web-{round}-{pod}"), |it| {
                it["metadata"]["labels"]["app"] = json!(node);
            })
            .await;
        }
        yard.budget(&node).await;
        shard.tell(&node, MachineState::Configured);
        yard.until_phase(&node, "Ready").await;
        let measured = two_patches(&yard, &node).await;
        tokio::time::sleep(Duration::from_millis(200)).await;

        let id = format!("order-{round}");
        let sent = shard.instruct(&id, &[&node], 600);
        let (acked, count) = shard.acked(&id).await;
        assert_eq!(count, 1);
        let began = Instant::now();
        let eviction = loop {
            let evicted = |it: &&AuditEntry| {
                it.subresource == "eviction" && it.name.starts_with(&format!("web-{round}-"))
            };
            if let Some(entry) = requests(plane, sent).iter().find(evicted) {
                break entry.clone();
            }
            assert!(began.elapsed() < Duration::from_secs(20), "nothing is evicted");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(eviction.code, 429, "the budget blocks it");
        let entries = requests(plane, sent);
        let cordon = entries
            .iter()
            .find(|it| it.verb == "patch" && it.resource == "nodes" && it.name == node)
            .unwrap();
        let marked = entries
            .iter()
            .find(|it| it.verb == "patch" && it.resource == "upcomingnodes" && it.at > cordon.at)
            .unwrap();
        assert!(
            cordon.at < marked.at && marked.at < acked,
            "cordon {} mark {} ack {acked}",
            cordon.at,
            marked.at
        );
        // The ack was on its way. The shard may have read it late: it is a task of this busy process.
        let log = operator.log();
        let is_ack = |line: &&str| line.contains(" acked ") && line.contains(&format!("{id:?}"));
        let line = log.lines().find(is_ack).unwrap_or_else(|| panic!("no ack of {id} in\n{log}"));
        let said: Timestamp = line.split_whitespace().next().unwrap().parse().unwrap();
        assert!(said < eviction.at, "{line}, and the first eviction at {}", eviction.at);
        in_order += usize::from(acked < eviction.at);
        let took = acked.duration_since(sent).as_secs_f64();
        ratios.push(took / measured.as_secs_f64());
        println!(
            "round {round}: two patches take {measured:?}, the ack came after {:.1} ms, the first eviction {:.1} ms later",
            took * 1000.0,
            eviction.at.duration_since(acked).as_secs_f64() * 1000.0
        );
        assert!(yard.is_cordoned(&node).await);
        let record = yard.record(&node).await.unwrap();
        assert_eq!((record.instructions, record.cordoned_by_us), (vec![id], true));
        assert_eq!(yard.phase(&node).await.unwrap().0, "Draining");
    }
    assert!(in_order >= 3, "the shard had heard {in_order} of 5 acks before the first eviction");
    ratios.sort_by(f64::total_cmp);
    println!("ack in units of two patches: {ratios:.2?}");
    assert!(ratios[2] < 3.0, "{ratios:?}\n{}", operator.log());
    let log = operator.log();
    let found = |words: &str| log.find(words).unwrap_or_else(|| panic!("no line {words:?} in\n{log}"));
    assert!(found("cordoned") < found(" acked") && found(" acked") < found("evicts the first pods"));
    for line in log
        .lines()
        .filter(|line| ["cordoned", " acked", "evicts the first"].iter().any(|it| line.contains(it)))
        .take(3)
    {
        println!("{line}");
    }
}

/// How long an administrator takes for the two patches that come before an ack.
async fn two_patches(yard: &Yard, node: &str) -> Duration {
    let mut all = Vec::new();
    for round in 0..9 {
        let began = Instant::now();
        let change = Patch::Merge(json!({"metadata": {"annotations": {"measured": round.to_string()}}}));
        yard.nodes().patch(node, &PatchParams::default(), &change).await.unwrap();
        let change = Patch::Merge(json!({"status": {"lastError": round.to_string()}}));
        yard.upcoming().patch_status(&format!("un-{node}"), &PatchParams::default(), &change).await.unwrap();
        all.push(began.elapsed());
    }
    all.sort();
    all[all.len() / 2]
}
