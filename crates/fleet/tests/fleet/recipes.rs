//! The three ways in which a shard takes machines back, from demand to the end.

use crate::harness::front::Front;
use crate::harness::shard::PlayedShard;
use crate::harness::yard::Yard;
use crate::harness::{CLUSTER, Operator, from_root, plane};
use fivespot_core::fleet::record::Outcome;
use fivespot_fleet::wire::MachineState::{Configured, Configuring, Draining, Idle};
use fivespot_testenv::{build_programs, eventually};
use jiff::Timestamp;
use kube::api::DeleteParams;
use serde_json::json;
use std::process::Command;
use std::time::Duration;

/// R1: nobody wants the machines any more. The shard says so, and its provider is done at once: Idle comes while the drain
/// has hardly begun, and the pods are moved all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_machines_that_nobody_wants_go_with_their_pods() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "r1").await;
    let shard = PlayedShard::start().await;
    let front = Front::before(plane, "r1", &shard.address);
    let machines = ["conf-s0-c0-i0", "conf-s0-c0-i1", "conf-s0-c0-i2"];
    shard.bind(&machines.map(|machine| (machine, Configured)));
    for machine in machines {
        yard.node(machine, |_| {}).await;
        for pod in 0..3 {
            yard.pod(machine, &format!("{machine}-{pod}"), |_| {}).await;
        }
        yard.request(machine, 8).await;
    }
    let _operator = Operator::start(plane, "r1", &front.address, &[]);
    shard.until("the demand", |shard| shard.gpus() == Some(24)).await;
    for machine in machines {
        yard.until_phase(machine, "Ready").await;
        let is_heard = async || {
            let request = yard.requests().get(machine).await.unwrap();
            request.status.is_some_and(|status| status.phase == "Acknowledged")
        };
        eventually("the fleet has heard of the demand", is_heard).await;
        let upcoming = yard.upcoming().get(&format!("un-{machine}")).await.unwrap();
        let status = upcoming.status.unwrap();
        assert_eq!(status.node_ref.unwrap().name.as_deref(), Some(machine));
        assert_eq!(status.provider_id.unwrap(), format!("ref-{machine}"));
        assert_eq!(upcoming.spec.resources["nvidia.com/gpu"].0, "8");
    }

    for machine in machines {
        yard.requests().delete(machine, &DeleteParams::default()).await.unwrap();
    }
    shard.until("that nothing is wanted", |shard| shard.gpus() == Some(0)).await;
    for machine in machines {
        shard.instruct(&format!("r1-{machine}"), &[machine], 600);
        shard.tell(machine, Draining);
        shard.tell(machine, Idle);
    }
    for machine in machines {
        assert_eq!(shard.acked(&format!("r1-{machine}")).await.1, 1);
        yard.until_empty(machine).await;
        assert!(yard.is_cordoned(machine).await);
        eventually("the record says so", async || {
            yard.record(machine).await.is_some_and(|record| record.outcome == Some(Outcome::Drained))
        })
        .await;
        eventually("the machine has left", async || yard.phase(machine).await.is_none()).await;
    }
}

/// R2: somebody with a much higher priority wants the machine, and there are ten seconds; a budget never lets the pod go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preemption_with_ten_seconds_fails_at_ten_seconds_and_says_why() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "r2").await;
    let shard = PlayedShard::start().await;
    let front = Front::before(plane, "r2", &shard.address);
    yard.request("wanted", 8).await;
    let template = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(template.path(), "join {{.ClusterID}}").unwrap();
    let file = template.path().to_str().unwrap();
    let operator = Operator::start(plane, "r2", &front.address, &["--bootstrap-template-file", file]);
    shard.until("the demand", |shard| shard.gpus() == Some(8)).await;
    shard.tell("idle-0", Configuring);
    yard.until_phase("idle-0", "Registered").await;
    shard.ask_bootstrap("boot", CLUSTER);
    shard.until("a blob", |shard| shard.blob("boot").is_some()).await;
    assert_eq!(shard.blob("boot").unwrap().1, format!("join {CLUSTER}"));
    shard.tell("idle-0", Configured);
    yard.until_phase("idle-0", "Ready").await;
    // The Node registers after the machine is said to be there: the UpcomingNode finds it.
    yard.node("idle-0", |_| {}).await;
    eventually("the Node is known", async || {
        let status = yard.upcoming().get("un-idle-0").await.unwrap().status.unwrap();
        status.node_ref.is_some()
    })
    .await;
    yard.pod("idle-0", "train-0", |pod| pod["metadata"]["labels"]["app"] = json!("train")).await;
    yard.budget("train").await;

    // Cargo does not build the programs of another package for these tests.
    let command = build_programs(&from_root(""), &["5spot"]).unwrap().join("5spot");
    let status = || {
        let mut command = Command::new(&command);
        command.args(["fleet", "status"]).env("KUBECONFIG", plane.management().kubeconfig_path());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };

    let sent = shard.instruct("r2", &["idle-0"], 10);
    shard.tell("idle-0", Draining);
    let (acked, count) = shard.acked("r2").await;
    assert_eq!(count, 1);
    assert!(acked.duration_since(sent).as_secs() < 3);
    let pod = format!("{}/train-0", yard.namespace);
    let held = format!("{pod} is held by its disruption budget: ");
    let mut seen = (None, String::new());
    eventually("whoever looks sees what holds it", async || {
        seen = status();
        seen.1.contains(&held)
    })
    .await;
    let (code, text) = seen;
    println!("{text}");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..5], ["NODE", "MACHINE", "STATE", "ENDS", "INSTRUCTION"]);
    assert_eq!((rows.len(), code), (2, Some(1)));
    assert_eq!(rows[1][..4], ["idle-0", "idle-0", "draining", "in"]);
    assert!(text.contains("train-pdb needs 1000 healthy pods and has 1 currently"), "{text}");
    let error = yard.until_phase("idle-0", "Failed").await;
    let took = Timestamp::now().duration_since(sent).as_secs_f64();
    assert!((10.0..20.0).contains(&took), "{took}");
    println!("after {took:.1} s: {error}");
    assert!(error.starts_with(&format!("not drained within 10 s: 1 pod to evict: {pod}")), "{error}");
    assert!(error.contains("train-pdb needs 1000 healthy pods and has 1 currently"), "{error}");

    let words = || status().1.split_whitespace().collect::<Vec<_>>().join(" ");
    eventually("it is seen", async || words().contains(&format!("failed - r2 {error}"))).await;

    // No retry, no uncordon, whatever comes late.
    shard.tell("idle-0", Draining);
    yard.drop_budget("train").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(yard.phase("idle-0").await.unwrap().0, "Failed");
    assert_eq!(yard.on("idle-0").await, ["train-0"]);
    assert!(yard.is_cordoned("idle-0").await);
    let events = yard.events("un-idle-0").await;
    assert!(
        events.iter().any(|event| event.starts_with("DrainFailed: not drained within 10 s")),
        "{events:?}"
    );
    let on_node = yard.events("idle-0").await;
    for reason in ["ReclaimAccepted", "DrainBlocked", "DrainFailed"] {
        assert!(on_node.iter().any(|event| event.starts_with(reason)), "{reason}: {on_node:?}");
    }
    is_told_on_its_pod(&yard).await;
    // A machine that failed stays to be looked at until it leaves.
    shard.tell("idle-0", Idle);
    eventually("it has left", async || yard.phase("idle-0").await.is_none()).await;
    let is_told = |event: &String| event.starts_with("FailedMachineLeft");
    eventually("it is told", async || yard.events("un-idle-0").await.iter().any(is_told)).await;
    let (status, metrics) = operator.http("/metrics");
    assert_eq!(status, 200);
    for line in [
        "fivespot_fleet_instructions_total{result=\"acked\"} 1",
        "fivespot_fleet_drain_duration_seconds_count{result=\"Failed\"} 1",
        "fivespot_fleet_active_drains 0",
        "fivespot_fleet_next_deadline_timestamp_seconds 0",
        "fivespot_fleet_connected 1",
        "fivespot_fleet_bootstraps_total{result=\"answered\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

/// Whoever looks at the pod sees what holds it too.
async fn is_told_on_its_pod(yard: &Yard) {
    let events: kube::Api<k8s_openapi::api::core::v1::Event> =
        kube::Api::namespaced(yard.client.clone(), &yard.namespace);
    let params =
        kube::api::ListParams::default().fields("involvedObject.name=train-0,reason=EvictionBlocked");
    let on_pod = events.list(&params).await.unwrap().items;
    assert_eq!(on_pod.len(), 1, "{on_pod:?}");
    let text = on_pod[0].message.clone().unwrap_or_default();
    assert!(
        text.starts_with("the fleet takes Node idle-0 back until ") && text.contains("train-pdb"),
        "{text}"
    );
}

/// R3: a provider that takes its time. The Node is empty long before the machine is Idle, and stays so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_takes_its_time_finds_the_machine_drained() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "r3").await;
    let shard = PlayedShard::start().await;
    let front = Front::before(plane, "r3", &shard.address);
    // The machine is not called as its Node is: the provider's id says which it is.
    shard.bind(&[("m-17", Configured)]);
    yard.node("worker-17", |node| node["spec"]["providerID"] = json!("metal://rack-3/ref-m-17")).await;
    for pod in 0..2 {
        yard.pod("worker-17", &format!("web-{pod}"), |_| {}).await;
    }
    yard.request("r3", 8).await;
    let operator = Operator::start(plane, "r3", &front.address, &[]);
    yard.until_phase("m-17", "Ready").await;
    // The operator hears of what it has written by its watch.
    tokio::time::sleep(Duration::from_millis(500)).await;
    shard.instruct("r3", &["m-17"], 120);
    shard.tell("m-17", Draining);
    assert_eq!(shard.acked("r3").await.1, 1);
    yard.until_phase("m-17", "Drained").await;
    assert!(yard.on("worker-17").await.is_empty());
    assert!(operator.log().contains("found_by=\"upcoming\""), "the provider's id had led to its nodeRef");
    // The provider still works on it; a session that begins anew tells so.
    shard.bind(&[("m-17", Draining)]);
    shard.ends_session().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(yard.phase("m-17").await.unwrap().0, "Drained", "what our drain came to is not forgotten");
    shard.tell("m-17", Idle);
    eventually("it has left", async || yard.phase("m-17").await.is_none()).await;

    // The same machine is wanted again: its Node is opened, since it was we who closed it.
    shard.tell("m-17", Configured);
    yard.until_phase("m-17", "Ready").await;
    eventually("it is open", async || !yard.is_cordoned("worker-17").await).await;
    assert_eq!(yard.record("worker-17").await, None);
}
