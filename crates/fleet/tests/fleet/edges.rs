//! What a shard may also say, and what a Node may also be.

use crate::harness::shard::{PlayedShard, update};
use crate::harness::yard::Yard;
use crate::harness::{Operator, plane, requests};
use fivespot_core::fleet::record::Outcome;
use fivespot_fleet::wire::MachineState::{Configured, Configuring, Creating, Draining, Failed, Idle};
use fivespot_fleet::wire::operator_message::Payload as Heard;
use fivespot_fleet::wire::shard_message::Payload as Said;
use fivespot_testenv::eventually;
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_instruction_twice_is_one_drain_with_one_deadline_and_two_acks() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "twice").await;
    let shard = PlayedShard::start().await;
    yard.node("twice-0", |_| {}).await;
    yard.pod("twice-0", "held", |_| {}).await;
    yard.budget("held").await;
    let operator = Operator::start(plane, "twice", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    let sent = shard.instruct("a", &["twice-0"], 60);
    shard.acked("a").await;
    let first = yard.record("twice-0").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    shard.instruct("a", &["twice-0"], 600);
    shard.until("two acks", |shard| shard.acks("a").len() == 2).await;
    assert_eq!(yard.record("twice-0").await.unwrap(), first);

    // Another process does not know it, but the Node does.
    drop(operator);
    let before = shard.sessions();
    let _operator = Operator::start(plane, "twice", &shard.address, &[]);
    shard.until("a second session", |shard| shard.sessions() > before && shard.is_connected()).await;
    shard.instruct("a", &["twice-0"], 600);
    shard.until("three acks", |shard| shard.acks("a").len() == 3).await;
    assert!(shard.acks("a").iter().all(|(_, count)| *count == 1));
    assert_eq!(yard.record("twice-0").await.unwrap(), first);
    let cordons = requests(plane, sent)
        .into_iter()
        .filter(|it| it.verb == "patch" && it.resource == "nodes" && it.code == 200);
    // One to cordon; what else was written is what holds the drain up.
    assert!(cordons.count() <= 3);

    // A second instruction brings the deadline forward, and is remembered beside the first.
    let sooner = shard.instruct("b", &["twice-0"], 5);
    shard.acked("b").await;
    let both = yard.record("twice-0").await.unwrap();
    assert_eq!(both.instructions, ["a", "b"]);
    assert!(both.deadline < first.deadline && both.deadline.duration_since(sooner).as_secs() <= 6);
    shard.instruct("c", &["twice-0"], 600);
    shard.acked("c").await;
    assert_eq!(yard.record("twice-0").await.unwrap().deadline, both.deadline, "never back");
    eventually("it has failed", async || {
        yard.record("twice-0").await.unwrap().outcome == Some(Outcome::Failed)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_nobody_knows_is_not_counted_and_is_drained_if_it_comes_late() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "late").await;
    let shard = PlayedShard::start().await;
    yard.node("late-0", |_| {}).await;
    yard.pod("late-0", "here", |_| {}).await;
    let _operator = Operator::start(plane, "late", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    shard.tell("late-1", Configured);
    yard.until_phase("late-1", "Ready").await;
    shard.instruct("late", &["late-0", "late-1", "../../x"], 60);
    assert_eq!(shard.acked("late").await.1, 1, "only what was cordoned counts");
    yard.until_empty("late-0").await;
    let told = async || yard.events("un-late-1").await.iter().any(|it| it.starts_with("NodeNotFound"));
    eventually("it is told", told).await;
    yard.node("late-1", |_| {}).await;
    eventually("it is cordoned all the same", async || yard.is_cordoned("late-1").await).await;
    yard.until_phase("late-1", "Drained").await;

    // One that has left and was lent again in the meantime is not meant any more.
    shard.tell("late-2", Configured);
    yard.until_phase("late-2", "Ready").await;
    shard.instruct("left", &["late-2"], 600);
    assert_eq!(shard.acked("left").await.1, 0);
    let uid = async || yard.upcoming().get_opt("un-late-2").await.unwrap().and_then(|it| it.metadata.uid);
    let before = uid().await;
    for state in [Draining, Idle, Configuring, Configured] {
        shard.tell("late-2", state);
    }
    eventually("it is another", async || uid().await.is_some_and(|it| Some(it) != before)).await;
    yard.until_phase("late-2", "Ready").await;
    yard.node("late-2", |_| {}).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!yard.is_cordoned("late-2").await && yard.record("late-2").await.is_none());
    shard.instruct("none", &[], 60);
    assert_eq!(shard.acked("none").await.1, 0);
    shard.tell("gone-0", Configured);
    yard.until_phase("gone-0", "Ready").await;
    shard.instruct("gone", &["gone-0"], 2);
    assert_eq!(shard.acked("gone").await.1, 0);
    let error = yard.until_phase("gone-0", "Failed").await;
    assert_eq!(error, "instruction gone: no Node was found for gone-0 before the deadline");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_drains_without_an_instruction_is_drained_with_the_default_grace() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "lost").await;
    let shard = PlayedShard::start().await;
    yard.node("lost-0", |_| {}).await;
    yard.pod("lost-0", "web", |_| {}).await;
    shard.bind(&[("lost-0", Draining), ("lost-1", Draining)]);
    let _operator = Operator::start(plane, "lost", &shard.address, &["--default-grace=90s"]);
    yard.until_phase("lost-0", "Drained").await;
    assert!(yard.on("lost-0").await.is_empty());
    let record = yard.record("lost-0").await.unwrap();
    assert!(record.instructions.is_empty());
    assert_eq!(record.deadline.duration_since(record.accepted_at).as_secs(), 90);
    // One whose Node is not there yet is drained when it is.
    yard.until_phase("lost-1", "Draining").await;
    yard.node("lost-1", |_| {}).await;
    yard.until_phase("lost-1", "Drained").await;
    assert!(yard.is_cordoned("lost-1").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reuses_a_machine_stops_its_drain_and_an_administrators_cordon_stays() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "reuse").await;
    let shard = PlayedShard::start().await;
    for (node, closed) in [("reuse-0", false), ("reuse-1", true), ("reuse-2", false)] {
        yard.node(node, |it| it["spec"]["unschedulable"] = json!(closed)).await;
        yard.pod(node, &format!("{node}-held"), |it| it["metadata"]["labels"]["app"] = json!("held")).await;
    }
    yard.budget("held").await;
    let _operator = Operator::start(plane, "reuse", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    shard.instruct("reuse", &["reuse-0", "reuse-1", "reuse-2"], 600);
    assert_eq!(shard.acked("reuse").await.1, 3);
    assert!(!yard.record("reuse-1").await.unwrap().cordoned_by_us);
    // What a session tells at its beginning is of a moment before, and an instruction may overtake it.
    shard.tell("reuse-0", Configured);
    yard.until_phase("reuse-0", "Draining").await;
    assert!(yard.record("reuse-0").await.is_some_and(|record| record.is_running()));
    shard.tell("reuse-0", Idle);
    shard.tell("reuse-0", Configured);
    shard.tell("reuse-1", Configuring);
    for (node, phase) in [("reuse-0", "Ready"), ("reuse-1", "Registered")] {
        eventually("the reclaim is over", async || yard.record(node).await.is_none()).await;
        yard.until_phase(node, phase).await;
    }
    assert!(!yard.is_cordoned("reuse-0").await, "we had closed it");
    assert!(yard.is_cordoned("reuse-1").await, "somebody else had");
    // A session that is younger than the reclaim knows better.
    shard.bind(&[("reuse-2", Configured)]);
    shard.hang_up();
    eventually("the reclaim is over", async || yard.record("reuse-2").await.is_none()).await;
    assert!(!yard.is_cordoned("reuse-2").await);
    yard.drop_budget("held").await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(yard.on("reuse-0").await.len(), 1, "nobody evicts any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_come_back_or_belong_to_the_node_hold_nothing_up_and_others_are_explained() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "kinds").await;
    let shard = PlayedShard::start().await;
    yard.node("kinds-0", |_| {}).await;
    yard.node("kinds-1", |_| {}).await;
    yard.pod("kinds-0", "mirror", |pod| {
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    })
    .await;
    yard.pod("kinds-0", "pinned", |pod| {
        pod["metadata"]["labels"]["5spot.finos.org/fleet-drain"] = json!("skip");
    })
    .await;
    yard.daemon_set(plane, "kinds-0", "logs").await;
    yard.pod("kinds-0", "web", |_| {}).await;
    // Two budgets on one pod are a mistake that the server answers with an error.
    yard.pod("kinds-1", "both", |_| {}).await;
    yard.budget("both").await;
    let second = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "second"},
        "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "both"}}},
    });
    plane
        .kubectl(plane.management(), &["-n", &yard.namespace, "apply", "-f", "-"], &second.to_string())
        .unwrap();
    yard.pod("kinds-1", "stuck", |pod| pod["metadata"]["finalizers"] = json!(["example.com/held"])).await;
    let _operator = Operator::start(plane, "kinds", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    for machine in ["kinds-0", "kinds-1"] {
        shard.tell(machine, Configured);
        yard.until_phase(machine, "Ready").await;
    }
    shard.instruct("kinds", &["kinds-0"], 60);
    shard.instruct("kinds-1", &["kinds-1"], 8);
    yard.until_phase("kinds-0", "Drained").await;
    let mut left = yard.on("kinds-0").await;
    left.sort();
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(left[0].starts_with("logs-") && left[1..] == ["mirror", "pinned"], "{left:?}");
    let error = yard.until_phase("kinds-1", "Failed").await;
    println!("{error}");
    assert!(error.contains("more than one PodDisruptionBudget"), "{error}");
    assert!(error.contains("1 pod ending: "), "{error}");
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    yard.pods().patch("stuck", &PatchParams::default(), &free).await.unwrap();
    plane.kubectl(plane.management(), &["-n", &yard.namespace, "delete", "daemonset", "logs"], "").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_disappears_in_the_middle_is_drained_and_one_that_comes_again_is_left_alone() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "again").await;
    let shard = PlayedShard::start().await;
    for node in ["again-0", "again-1"] {
        yard.node(node, |_| {}).await;
        yard.pod(node, &format!("{node}-held"), |it| it["metadata"]["labels"]["app"] = json!("held")).await;
    }
    yard.budget("held").await;
    let _operator = Operator::start(plane, "again", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    for machine in ["again-0", "again-1"] {
        shard.tell(machine, Configured);
        yard.until_phase(machine, "Ready").await;
        shard.instruct(machine, &[machine], 600);
        shard.acked(machine).await;
    }
    yard.nodes().delete("again-0", &DeleteParams::default()).await.unwrap();
    yard.until_phase("again-0", "Drained").await;
    yard.nodes().delete("again-1", &DeleteParams::default()).await.unwrap();
    yard.node("again-1", |_| {}).await;
    yard.drop_budget("held").await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!yard.is_cordoned("again-1").await && yard.record("again-1").await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_fails_while_it_is_emptied_says_so_to_the_end_and_the_one_that_is_meant_goes() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "fails").await;
    let shard = PlayedShard::start().await;
    // The name of one machine's Node is the id of another.
    yard.node("fails-0", |node| node["spec"]["providerID"] = json!("metal://rack/ref-fails-1")).await;
    yard.node("fails-1", |node| node["spec"]["providerID"] = json!("metal://rack/ref-fails-0")).await;
    yard.pod("fails-1", "held", |_| {}).await;
    yard.budget("held").await;
    let _operator = Operator::start(plane, "fails", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    shard.tell("fails-0", Configured);
    yard.until_phase("fails-0", "Ready").await;
    shard.instruct("fails", &["fails-0"], 600);
    shard.tell("fails-0", Draining);
    shard.acked("fails").await;
    assert!(yard.is_cordoned("fails-1").await && !yard.is_cordoned("fails-0").await);
    let mut broken = update("fails-0", Failed);
    broken.last_error = "the power supply burns".into();
    shard.say(Said::NodeStateUpdate(broken));
    yard.until_phase("fails-0", "Failed").await;
    yard.drop_budget("held").await;
    eventually("it is empty", async || {
        yard.record("fails-1").await.is_some_and(|record| record.outcome == Some(Outcome::Drained))
    })
    .await;
    let (phase, error) = yard.phase("fails-0").await.unwrap();
    assert_eq!((phase.as_str(), error.as_str()), ("Failed", "the power supply burns"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_a_silent_kubelet_cannot_end_do_not_make_a_drain_fail_and_those_of_a_sick_one_do() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "silent").await;
    yard.pods_end(false);
    let shard = PlayedShard::start().await;
    let all = [
        ("silent-0", "web", "Unknown", 1),
        ("silent-1", "slow", "Unknown", 600),
        ("sick-0", "db", "False", 1),
    ];
    for (node, pod, ready, grace) in all {
        yard.node(node, |node| node["status"]["conditions"][0]["status"] = json!(ready)).await;
        yard.pod(node, pod, |pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(grace)).await;
    }
    let _operator = Operator::start(plane, "silent", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    for (node, ..) in all {
        shard.tell(node, Configured);
        yard.until_phase(node, "Ready").await;
    }
    shard.instruct("silent", &["silent-0", "silent-1", "sick-0"], 15);
    yard.until_phase("silent-0", "Drained").await;
    assert_eq!(yard.on("silent-0").await, ["web"], "it is still there, and nobody can end it");
    let why = "cannot end since the kubelet is silent";
    eventually("it is told", async || yard.events("silent-0").await.iter().any(|it| it.contains(why))).await;
    yard.until_phase("sick-0", "Failed").await;
    let (_, error) = yard.phase("sick-0").await.unwrap();
    assert!(error.contains("the kubelet does not end it") && error.contains("/db"), "{error}");
    // A pod with more time than its drain is not waited for either: nobody counts that time.
    yard.until_phase("silent-1", "Drained").await;
    let why = "/slow; the kubelet is silent";
    eventually("it is told", async || yard.events("silent-1").await.iter().any(|it| it.contains(why))).await;
    yard.pods_end(true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_a_session_never_speaks_of_is_forgotten_unless_it_has_a_node() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "sweep").await;
    let shard = PlayedShard::start().await;
    yard.node("sweep-0", |_| {}).await;
    shard.bind(&[("sweep-0", Configured), ("sweep-1", Creating), ("sweep-2", Creating)]);
    let operator = Operator::start(plane, "sweep", &shard.address, &["--forget-after=3s"]);
    for (machine, phase) in [("sweep-0", "Ready"), ("sweep-1", "Provisioning"), ("sweep-2", "Provisioning")] {
        yard.until_phase(machine, phase).await;
    }
    // A shard that was started again tells only what it has read from its provider.
    shard.bind(&[("sweep-2", Creating)]);
    shard.ends_session().await;
    eventually("one is forgotten", async || yard.phase("sweep-1").await.is_none()).await;
    let hello =
        shard.heard().into_iter().rev().find(|(_, heard)| matches!(heard, Heard::Hello(_))).unwrap().0;
    let took = Timestamp::now().duration_since(hello).as_secs_f64();
    assert!(took > 2.5, "not before the session had time to tell: {took}");
    assert!(operator.log().contains("the shard does not know it any more: forgotten"));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(yard.phase("sweep-0").await.unwrap().0, "Ready", "its Node is there, so it is");
    assert_eq!(yard.phase("sweep-2").await.unwrap().0, "Provisioning", "the session speaks of it");
    yard.nodes().delete("sweep-0", &DeleteParams::default()).await.unwrap();
    eventually("nothing speaks for it any more", async || yard.phase("sweep-0").await.is_none()).await;
}
