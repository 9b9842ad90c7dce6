//! A rack at once.

use crate::harness::shard::{PlayedShard, instruction};
use crate::harness::yard::Yard;
use crate::harness::{CLUSTER, Operator, plane, requests};
use fivespot_api::fleet::UpcomingNode;
use fivespot_fleet::wire::MachineState::{Configured, Draining};
use fivespot_testenv::{AuditEntry, is_proof};
use futures::StreamExt;
use jiff::Timestamp;
use kube::api::ListParams;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rack_of_nodes_is_drained_at_once_and_bootstraps_are_answered_meanwhile() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "many").await;
    let shard = PlayedShard::start().await;
    let (nodes, pods) = if is_proof() { (50, 20) } else { (50, 4) };
    let names: Vec<String> = (0..nodes).map(|number| format!("many-{number:02}")).collect();
    let made = Instant::now();
    futures::stream::iter(&names)
        .for_each_concurrent(8, async |name| {
            yard.node(name, |_| {}).await;
            for pod in 0..pods {
                yard.pod(name, &format!("{name}-{pod}"), |_| {}).await;
            }
        })
        .await;
    println!("{nodes} Nodes with {pods} pods each made in {:?}", made.elapsed());
    let bound: Vec<_> = names.iter().map(|name| (name.as_str(), Configured)).collect();
    shard.bind(&bound);
    let operator = Operator::start(plane, "many", &shard.address, &[]);
    yard.until_phase(&names[nodes - 1], "Ready").await;
    for name in &names {
        yard.until_phase(name, "Ready").await;
    }
    let since = Timestamp::now();
    for name in &names {
        shard.instruct(name, &[name], 600);
        shard.tell(name, Draining);
    }
    let answered = bootstraps(&shard).await;
    let mut slowest = Duration::ZERO;
    for name in &names {
        let (at, count) = shard.acked(name).await;
        assert_eq!(count, 1);
        slowest = slowest.max(Duration::try_from(at.duration_since(since)).unwrap());
    }
    let began = Instant::now();
    for name in &names {
        loop {
            match yard.phase(name).await.unwrap().0.as_str() {
                "Drained" => break,
                "Failed" => panic!("{:?}", yard.phase(name).await),
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
            assert!(began.elapsed() < Duration::from_mins(5), "{name} is not drained");
        }
        assert!(yard.on(name).await.is_empty());
    }
    let took = Timestamp::now().duration_since(since);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for entry in requests(plane, since) {
        let what = match entry.subresource.as_str() {
            "" => format!("{} {}", entry.verb, entry.resource),
            sub => format!("{} {}/{sub}", entry.verb, entry.resource),
        };
        *counts.entry(format!("{what} {}", entry.code)).or_default() += 1;
    }
    println!(
        "{nodes} x {pods}: bootstraps answered after {answered:.0?}, slowest ack after {slowest:?}, all drained after {:.1} s, {} KiB at most",
        took.as_secs_f64(),
        operator.peak_memory(),
    );
    println!("{counts:#?}");
    assert!(operator.peak_memory() < 256 << 10);
    assert_eq!(counts["create pods/eviction 201"], nodes * pods);
}

/// How long five bootstrap requests take, one after the other. One may fall into a moment in which this machine does
/// something else.
async fn bootstraps(shard: &PlayedShard) -> Vec<Duration> {
    let mut all = Vec::new();
    for round in 0..5 {
        let (id, asked) = (format!("boot-{round}"), Timestamp::now());
        shard.ask_bootstrap(&id, CLUSTER);
        shard.until("a blob", |shard| shard.blob(&id).is_some()).await;
        all.push(Duration::try_from(shard.blob(&id).unwrap().0.duration_since(asked)).unwrap());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    all.sort();
    assert!(all[2] < Duration::from_secs(1) && all[4] < Duration::from_secs(5), "{all:?}");
    all
}

/// A session begins with the states of all machines of the cluster. The API server is not asked about all of them at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_machines_are_told_at_once_and_written_down_a_few_at_a_time() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "crowd").await;
    let shard = PlayedShard::start().await;
    let count = if is_proof() { 2000 } else { 500 };
    let names: Vec<String> = (0..count).map(|number| format!("crowd-{number}")).collect();
    let last = names.last().unwrap().as_str();
    yard.node(last, |_| {}).await;
    yard.pod(last, "web", |_| {}).await;
    shard.bind(&names.iter().map(|name| (name.as_str(), Configured)).collect::<Vec<_>>());
    let began = Instant::now();
    let operator = Operator::start(plane, "crowd", &shard.address, &[]);
    let mut most = 0;
    let all_ready = async || {
        let all = yard.upcoming().list(&ListParams::default()).await.unwrap();
        let is_ready = |it: &UpcomingNode| it.status.as_ref().is_some_and(|status| status.phase == "Ready");
        all.iter().filter(|it| is_ready(it)).count() == count
    };
    while !all_ready().await {
        for _ in 0..20 {
            most = most.max(operator.sockets());
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        assert!(began.elapsed() < Duration::from_mins(4), "not all machines are written down");
    }
    let (written, most_then) = (began.elapsed(), most);
    // The same again, when nothing has changed; and right behind it an instruction for the machine that was told last.
    let again = Timestamp::now();
    shard.say_after_states(instruction("crowd", &[last], 600));
    shard.ends_session().await;
    let (_, started) = shard.acked("crowd").await;
    most = most.max(operator.sockets());
    let calls = requests(plane, again);
    let cordon = calls.iter().find(|it| it.verb == "patch" && it.resource == "nodes" && it.name == last);
    let cordoned = cordon.unwrap().at;
    let is_before = |it: &&AuditEntry| it.verb == "get" && it.resource == "upcomingnodes" && it.at < cordoned;
    let before = calls.iter().filter(is_before).count();
    println!(
        "{count} machines written down in {written:?} over at most {most_then} sockets; {before} of them again before the ack; {} KiB at most",
        operator.peak_memory(),
    );
    assert_eq!(started, 1);
    assert!(before < count / 2, "the ack waited behind {before} states");
    assert!(most < 128, "{most} sockets");
    assert!(operator.peak_memory() < 256 << 10);
    yard.until_empty(last).await;
}

/// An API server that does not answer holds up nothing that does not need it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_does_not_delay_a_bootstrap_and_loses_no_instruction() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "hangs").await;
    let shard = PlayedShard::start().await;
    let names: Vec<String> = (0..40).map(|number| format!("hangs-{number}")).collect();
    for name in &names {
        yard.node(name, |_| {}).await;
        yard.pod(name, &format!("{name}-web"), |_| {}).await;
    }
    let operator = Operator::start(plane, "hangs", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    plane.freeze_api_server(plane.management()).unwrap();
    for name in &names {
        shard.instruct(name, &[name], 120);
        shard.tell(name, Draining);
    }
    println!("answered by one whose server hangs after {:.0?}", bootstraps(&shard).await);
    assert!(names.iter().all(|name| shard.acks(name).is_empty()), "nothing is acked that is not cordoned");
    plane.thaw_api_server(plane.management()).unwrap();
    for name in &names {
        assert_eq!(shard.acked(name).await.1, 1, "{}", operator.log());
        yard.until_phase(name, "Drained").await;
    }
}

/// A server that is busy with others says 429 too, and means something else than a budget does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_busy_is_left_alone_and_is_nobodys_fault() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "busy").await;
    let shard = PlayedShard::start().await;
    yard.node("busy-0", |_| {}).await;
    for pod in 0..20 {
        yard.pod("busy-0", &format!("web-{pod}"), |_| {}).await;
    }
    // At most one eviction by the operator at a time finds a place.
    let flow = json!([
        {
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
            "metadata": {"name": "one-place"},
            "spec": {"type": "Limited", "limited": {
                "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
                "limitResponse": {"type": "Reject"},
            }},
        },
        {
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
            "metadata": {"name": "one-place"},
            "spec": {
                "priorityLevelConfiguration": {"name": "one-place"},
                "matchingPrecedence": 2,
                "rules": [{
                    "subjects": [{
                        "kind": "ServiceAccount",
                        "serviceAccount": {"namespace": "5spot-system", "name": "5spot-fleet-operator"},
                    }],
                    "resourceRules": [{
                        "verbs": ["create"], "apiGroups": [""], "resources": ["pods/eviction"], "namespaces": ["*"],
                    }],
                }],
            },
        },
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": flow}).to_string();
    plane.kubectl(plane.management(), &["apply", "-f", "-"], &list).unwrap();
    let operator = Operator::start(plane, "busy", &shard.address, &[]);
    shard.until("hello", PlayedShard::is_connected).await;
    shard.tell("busy-0", Configured);
    yard.until_phase("busy-0", "Ready").await;
    // The server takes a moment to take note of its own rules.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let since = Timestamp::now();
    shard.instruct("busy", &["busy-0"], 60);
    assert_eq!(shard.acked("busy").await.1, 1);
    yard.until_phase("busy-0", "Drained").await;
    plane.kubectl(plane.management(), &["delete", "-f", "-"], &list).unwrap();
    let evictions = requests(plane, since).into_iter().filter(|it| it.subresource == "eviction");
    let codes: Vec<u16> = evictions.map(|it| it.code).collect();
    println!("answers of a server that is busy: {codes:?}");
    assert!(codes.contains(&429), "{codes:?}");
    assert!(!operator.log().contains("held up"), "nobody is in the way:\n{}", operator.log());
    let (_, metrics) = operator.http("/metrics");
    assert!(metrics.contains("fivespot_fleet_evictions_total{result=\"busy\"}"), "{metrics}");
}
