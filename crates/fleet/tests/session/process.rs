//! The process by itself: what it may do, what it tells, and its end.

use crate::harness::shard::{PlayedShard, update};
use crate::harness::yard::Yard;
use crate::harness::{Forbidden, Operator, PATIENCE, plane, requests};
use crate::proxy::{Call, Executioner, Fate, Proxy};
use fivespot_core::fleet::record::Outcome;
use fivespot_fleet::wire::MachineState::{Configured, Creating, Draining, Idle};
use fivespot_fleet::wire::shard_message::Payload as Said;
use fivespot_fleet::wire::{AvailableCapacityUpdate, NodeStateUpdate};
use fivespot_testenv::{AuditEntry, ControlPlane, eventually};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_asked_to_end_says_his_acks_and_leaves_the_drain_to_the_next() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "end").await;
    let shard = PlayedShard::start().await;
    for number in 0..10 {
        let node = format!("end-{number}");
        yard.node(&node, |_| {}).await;
        yard.pod(&node, &format!("{node}-held"), |it| it["metadata"]["labels"]["app"] = json!("held")).await;
    }
    yard.budget("held").await;
    let operator = Operator::start(plane, "end", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    for number in 0..10 {
        let node = format!("end-{number}");
        shard.instruct(&node, &[&node], 600);
    }
    // What it has read it carries out.
    let began = Instant::now();
    while operator.log().matches("the shard wants Nodes back").count() < 10 {
        assert!(began.elapsed() < PATIENCE, "it has not heard them:\n{}", operator.log());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    operator.signal("-TERM");
    let began = Instant::now();
    while operator.runs() {
        assert!(began.elapsed() < Duration::from_secs(10), "it does not end:\n{}", operator.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("ended after {:?}", began.elapsed());
    let mut acked = 0;
    for number in 0..10 {
        let node = format!("end-{number}");
        let is_cordoned = yard.is_cordoned(&node).await;
        assert_eq!(
            is_cordoned,
            !shard.acks(&node).is_empty(),
            "{node}: what is cordoned is acked\n{}",
            operator.log()
        );
        acked += usize::from(is_cordoned);
    }
    assert!(acked > 0, "{}", operator.log());
    yard.drop_budget("held").await;
    let _next = Operator::start(plane, "end", &shard.address, &[]);
    for number in 0..10 {
        let node = format!("end-{number}");
        if yard.is_cordoned(&node).await {
            yard.until_empty(&node).await;
        }
    }
}

/// Judges nobody.
struct Lenient;

impl Executioner for Lenient {
    async fn judge(&self, _: &Call) -> Fate {
        Fate::Made
    }

    fn kill(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demand_that_cannot_be_read_is_not_an_empty_demand() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "demand").await;
    yard.request("one", 8).await;
    let kubectl = |args: &[&str]| plane.kubectl(plane.management(), args, "").unwrap();
    // Without the right to list them there is nothing to send, whatever else works.
    let forbidden = Forbidden::take(plane, "capacityrequests").await;
    let shard = PlayedShard::start().await;
    let operator = Operator::start(plane, "demand", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(shard.rollups(), [] as [usize; 0], "{}", operator.log());
    assert!(operator.log().contains("the shard is not told what the cluster wants"), "{}", operator.log());
    let (status, why) = operator.http("/ready");
    assert!(status == 503 && why.contains("the CapacityRequests have not been read yet"), "{status} {why}");
    drop(forbidden);
    shard.until("the demand", |shard| shard.gpus() == Some(8)).await;
    assert!(shard.rollups().iter().all(|needs| *needs == 1), "{:?}", shard.rollups());

    // Nor is a demand of which nothing can be understood.
    let resources = |gpus: &str| json!({"spec": {"resources": {"nvidia.com/gpu": gpus}}}).to_string();
    let patch = |gpus: &str| {
        let patch = resources(gpus);
        kubectl(&["-n", &yard.namespace, "patch", "capacityrequest", "one", "--type=merge", "-p", &patch]);
    };
    patch("-8");
    eventually("it is not told", async || operator.log().contains("no CapacityRequest of 1 can be used"))
        .await;
    assert!(operator.log().contains("spec.resources[nvidia.com/gpu]: -8 is less than nothing"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(shard.rollups().iter().all(|needs| *needs == 1), "{:?}", shard.rollups());
    patch("8");
    // An administrator who deletes the last one is believed.
    kubectl(&["-n", &yard.namespace, "delete", "capacityrequest", "one"]);
    shard.until("that nothing is wanted", |shard| shard.rollups().last() == Some(&0)).await;
}

/// A definition that allows more than ours, such as one of a later version of the fleet, lets in what is not understood
/// here. To leave it out would be to say that it is not wanted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demand_of_which_one_part_cannot_be_read_is_not_told_in_part() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "part").await;
    let kubectl = |args: &[&str], input: &str| plane.kubectl(plane.management(), args, input);
    let get = ["get", "crd", "capacityrequests.bigfleet.lucy.sh", "-o", "json"];
    let mut strict: Value = serde_json::from_str(&kubectl(&get, "").unwrap()).unwrap();
    strict["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let mut loose = strict.clone();
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    kubectl(&["replace", "-f", "-"], &loose.to_string()).unwrap();
    yard.request("one", 8).await;
    let shard = PlayedShard::start().await;
    let operator = Operator::start(plane, "part", &shard.address, &[]);
    shard.until("the demand", |shard| shard.gpus() == Some(8)).await;
    let odd = json!({
        "apiVersion": "bigfleet.lucy.sh/v1alpha1", "kind": "CapacityRequest",
        "metadata": {"name": "odd", "namespace": yard.namespace},
        "spec": {"resources": {"nvidia.com/gpu": "8"}, "priority": "as soon as possible"},
    });
    eventually("the server takes it", async || kubectl(&["apply", "-f", "-"], &odd.to_string()).is_ok())
        .await;
    let why = format!("CapacityRequest {}/odd cannot be read", yard.namespace);
    eventually("it is not told", async || operator.log().contains(&why)).await;
    let before = shard.rollups().len();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(shard.rollups().len(), before, "{}", operator.log());
    assert_eq!(shard.gpus(), Some(8));
    kubectl(&["-n", &yard.namespace, "delete", "capacityrequest", "odd"], "").unwrap();
    shard.until("the demand again", |shard| shard.rollups().len() > before).await;
    kubectl(&["replace", "-f", "-"], &strict.to_string()).unwrap();
}

/// Nothing is told twice, so what cannot be written is tried again until it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_written_is_written_later() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "later").await;
    let shard = PlayedShard::start().await;
    yard.node("later-0", |_| {}).await;
    yard.pod("later-0", "web", |_| {}).await;
    let forbidden = Forbidden::take(plane, "upcomingnodes/status").await;
    let operator = Operator::start(plane, "later", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    shard.tell("later-0", Configured);
    shard.tell("later-1", Creating);
    shard.instruct("later", &["later-0"], 60);
    assert_eq!(shard.acked("later").await.1, 1, "what people look at is not what it hangs on");
    yard.until_empty("later-0").await;
    eventually("it is drained", async || operator.log().contains(" drained ")).await;
    // Something newer is no reason to forget what is older.
    yard.node("later-2", |_| {}).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(yard.record("later-0").await.unwrap().is_running(), "its end is not written yet");
    drop(forbidden);
    yard.until_phase("later-0", "Drained").await;
    yard.until_phase("later-1", "Provisioning").await;
    eventually("the record says so", async || {
        yard.record("later-0").await.is_some_and(|record| record.outcome == Some(Outcome::Drained))
    })
    .await;
    let is_over = async || operator.http("/metrics").1.contains("fivespot_fleet_active_drains 0");
    eventually("it is not counted any more", is_over).await;
    let (_, metrics) = operator.http("/metrics");
    assert!(
        metrics.contains("fivespot_fleet_drain_duration_seconds_count{result=\"Drained\"} 1"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_looks_changes_no_node() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "look").await;
    let shard = PlayedShard::start().await;
    yard.node("look-0", |_| {}).await;
    yard.pod("look-0", "web", |_| {}).await;
    let client = plane.management().client().await.unwrap();
    let proxy = Proxy::start(client, Arc::new(Lenient)).await;
    let operator = Operator::start_through(plane, "look", &proxy.url, &shard.address, &["--observe-only"]);
    shard.until("hello", PlayedShard::is_connected).await;
    shard.instruct("look", &["look-0"], 5);
    assert_eq!(shard.acked("look").await.1, 0);
    shard.tell("look-0", Draining);
    yard.until_phase("look-0", "Draining").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!yard.is_cordoned("look-0").await && yard.on("look-0").await == ["web"]);
    assert!(operator.log().contains("would be given back"), "{}", operator.log());
    drop((operator, proxy));

    // Nor does he go on with what another began, or call it off.
    yard.budget("web").await;
    let operator = Operator::start(plane, "look", &shard.address, &[]);
    shard.until("hello", |shard| shard.sessions() == 2).await;
    shard.instruct("begun", &["look-0"], 600);
    shard.acked("begun").await;
    drop(operator);
    let operator = Operator::start(plane, "look", &shard.address, &["--observe-only"]);
    shard.until("hello", |shard| shard.sessions() == 3).await;
    yard.drop_budget("web").await;
    shard.tell("look-0", Configured);
    eventually("it is told", async || operator.log().contains("its reclaim would be called off")).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(yard.record("look-0").await.unwrap().is_running());
    assert!(yard.is_cordoned("look-0").await && yard.on("look-0").await == ["web"]);
    assert!(operator.log().contains("would be drained"), "{}", operator.log());
}

/// Two operators do not take the session from each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_operator_waits_and_goes_on_when_the_first_ends() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "two").await;
    let shard = PlayedShard::start().await;
    yard.node("two-0", |_| {}).await;
    yard.pod("two-0", "held", |_| {}).await;
    yard.budget("held").await;
    let first = Operator::start(plane, "two-a", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    let second = Operator::start(plane, "two-b", &shard.address, &[]);
    shard.instruct("two", &["two-0"], 600);
    shard.acked("two").await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(shard.sessions(), 1, "{}", second.log());
    let (status, why) = second.http("/ready");
    // Otherwise a Deployment would wait for it before it ends the one that has the lease.
    assert_eq!((status, why.trim()), (200, "ready: stands by, another operator has the lease"));
    let began = Instant::now();
    first.signal("-TERM");
    shard.until("the second", |shard| shard.sessions() == 2).await;
    println!("the second operator spoke {:?} after the first was asked to end", began.elapsed());
    yard.drop_budget("held").await;
    yard.until_empty("two-0").await;
    assert!(
        second.log().contains("goes on with a drain whose record stands on the Node"),
        "{}",
        second.log()
    );
}

/// One thing that a rule allows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    group: String,
    resource: String,
    verb: String,
}

fn used(entry: &AuditEntry) -> Right {
    let resource = match entry.subresource.as_str() {
        "" => entry.resource.clone(),
        sub => format!("{}/{sub}", entry.resource),
    };
    Right { group: entry.group.clone(), resource, verb: entry.verb.clone() }
}

fn rights(plane: &ControlPlane) -> BTreeSet<Right> {
    let mut all = BTreeSet::new();
    let roles: [&[&str]; 2] = [
        &["get", "clusterrole", "5spot-fleet-operator", "-o", "json"],
        &["-n", "5spot-system", "get", "role", "5spot-fleet-operator", "-o", "json"],
    ];
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    for role in roles {
        let text = plane.kubectl(plane.management(), role, "").unwrap();
        let role: Value = serde_json::from_str(&text).unwrap();
        for rule in role["rules"].as_array().unwrap() {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        all.insert(Right { group: group.clone(), resource: resource.clone(), verb });
                    }
                }
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_is_used_and_every_use_has_a_rule() {
    let (plane, _turn) = plane().await;
    let since = Timestamp::now();
    let yard = Yard::new(plane, "rights").await;
    let shard = PlayedShard::start().await;
    yard.node("rights-0", |_| {}).await;
    yard.pod("rights-0", "web", |_| {}).await;
    yard.daemon_set(plane, "rights-0", "logs").await;
    yard.request("rights", 8).await;
    let operator = Operator::start(plane, "rights", &shard.address, &[]);
    shard.until("the demand", |shard| shard.gpus() == Some(8)).await;
    shard.tell("rights-0", Creating);
    yard.until_phase("rights-0", "Provisioning").await;
    let other = NodeStateUpdate {
        labels: [("a".to_owned(), "b".to_owned())].into(),
        ..update("rights-0", Configured)
    };
    shard.say(Said::NodeStateUpdate(other));
    yard.until_phase("rights-0", "Ready").await;
    shard.say(Said::AvailableCapacity(AvailableCapacityUpdate {
        supersedes_key: "available:x".into(),
        available_count: 3,
        cost_per_hour: 1.5,
        ..AvailableCapacityUpdate::default()
    }));
    shard.instruct("rights", &["rights-0"], 60);
    yard.until_phase("rights-0", "Drained").await;
    shard.tell("rights-0", Idle);
    eventually("it has left", async || yard.phase("rights-0").await.is_none()).await;
    let get = [
        "get",
        "availablecapacities",
        "-o",
        "jsonpath={.items[*].spec.cost} {.items[*].spec.availableCount}",
    ];
    eventually("the hint is there", async || plane.kubectl(plane.management(), &get, "").unwrap() == "1.5 3")
        .await;
    eventually("the fleet has heard of the demand", async || {
        let request = yard.requests().get("rights").await.unwrap();
        request.status.is_some_and(|status| status.phase == "Acknowledged")
    })
    .await;
    operator.signal("-TERM");
    while operator.runs() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let all = requests(plane, since);
    let refused: Vec<_> = all.iter().filter(|entry| entry.code == 403).collect();
    assert!(refused.is_empty(), "refused: {refused:#?}");
    let rights = rights(plane);
    let uses: BTreeSet<Right> = all.iter().filter(|entry| !entry.resource.is_empty()).map(used).collect();
    let without: Vec<_> = uses.difference(&rights).collect();
    assert!(without.is_empty(), "without a rule: {without:#?}");
    // The server asks for it when an apply makes an object, and writes down a patch.
    let hidden = |right: &&Right| right.resource == "availablecapacities" && right.verb == "create";
    let idle: Vec<_> = rights.difference(&uses).filter(|right| !hidden(right)).collect();
    assert!(idle.is_empty(), "never used: {idle:#?}");
    println!("{} requests used all of {} rights", all.len(), rights.len());
}
