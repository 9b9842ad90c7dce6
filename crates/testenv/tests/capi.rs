//! The real manager of Cluster API between two real clusters, with simulated hosts: everything that later tests of
//! 5-Spot take for granted, without 5-Spot.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

#[expect(dead_code, reason = "other test binaries use the rest of it")]
mod world;

use fivespot_testenv::{
    Behaviour, ClusterApi, ControlPlane, Core, Fault, Options, Topology, eventually, is_proof,
    shared_with_cluster_api,
};
use futures::stream::{self, StreamExt};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use std::time::{Duration, Instant};
use world::{World, read};

const EXCLUDE_DRAIN: &str = "machine.cluster.x-k8s.io/exclude-node-draining";

/// From nothing to a Node with a pod and back, in the order that 5-Spot relies on.
async fn lives_and_dies(world: &World, version: &str) {
    world.create_parts("a").await;
    world.create_machine("a", version).await;
    let began = Instant::now();
    eventually("the Machine runs", async || world.phase("a").await == "Running").await;
    println!("{version}: running after {:?}", began.elapsed());
    let machine = world.machines.get("a").await.unwrap();
    let id = format!("remote-machine://{}:22", world.hosts.address("a"));
    assert_eq!(machine.data["spec"]["providerID"], id);
    assert_eq!(machine.data["status"]["nodeRef"]["name"], world.hosts.node_name("a"));
    eventually("the Node is ready", async || world.is_node_ready("a").await).await;
    let node = world.node("a").await.unwrap();
    assert_eq!(node.metadata.labels.unwrap()["k0smotron.io/machine-name"], "a");
    assert_eq!(node.spec.unwrap().provider_id, Some(id));
    assert_eq!(node.status.unwrap().node_info.unwrap().machine_id, world.hosts.machine_id("a"));

    let began = Instant::now();
    let pod = world.pod_name("pod");
    let pods = world.run_pod("a", &pod).await;
    println!("{version}: a pod runs after {:?}", began.elapsed());
    pods.delete(&pod, &DeleteParams::default()).await.unwrap();
    eventually("the pod ends", async || pods.get_opt(&pod).await.unwrap().is_none()).await;

    let began = Instant::now();
    world.delete("a").await;
    eventually("everything is gone", async || world.is_gone_with_node("a").await).await;
    println!("{version}: gone after {:?}", began.elapsed());
    let management = world.plane.management().audit().unwrap();
    let workload = world.plane.workload().audit().unwrap();
    let infrastructure = world.deleted_at(&management, "remotemachines", "a");
    let bootstrap = world.deleted_at(&management, "k0sworkerconfigs", "a");
    let node = world.deleted_at(&workload, "nodes", &world.hosts.node_name("a"));
    assert!(infrastructure < bootstrap && bootstrap < node, "{infrastructure} {bootstrap} {node}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_lives_and_dies_in_v1beta2() {
    lives_and_dies(&World::new(Behaviour::default()).await, "v1beta2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_lives_and_dies_in_v1beta1() {
    let world = World::on(shared_with_cluster_api(), Core::Real, "v1beta1", Behaviour::default()).await;
    lives_and_dies(&world, "v1beta1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_machines_live_and_die_while_cluster_api_is_played_in_one_cluster() {
    let plane = one_cluster(ClusterApi::Definitions).await;
    let world = World::on(plane, Core::Played, "v1beta2", Behaviour::default()).await;
    lives_and_dies(&world, "v1beta2").await;

    let names: Vec<String> =
        (0..if is_proof() { 500 } else { 40 }).map(|number| format!("m{number}")).collect();
    let began = Instant::now();
    stream::iter(&names).for_each_concurrent(16, async |name| world.create(name).await).await;
    let count = async |phase: &str| {
        let machines = world.machines.list(&ListParams::default()).await.unwrap();
        machines.iter().filter(|machine| machine.data["status"]["phase"] == phase).count()
    };
    // However long it takes on a busy machine, each minute brings some further.
    let mut running = 0;
    while running < names.len() {
        let before = running;
        eventually("more of them run", async || {
            running = count("Running").await;
            running > before
        })
        .await;
    }
    println!("{} machines run after {:?}", names.len(), began.elapsed());
    let began = Instant::now();
    // One by one: a server gives up a request for all of them after a minute.
    stream::iter(&names).for_each_concurrent(16, async |name| world.delete(name).await).await;
    let mut left = names.len();
    while left > 0 {
        let before = left;
        eventually("more of them are gone", async || {
            left = world.machines.list(&ListParams::default()).await.unwrap().items.len();
            left < before
        })
        .await;
    }
    println!("{} machines are gone after {:?}", names.len(), began.elapsed());
}

/// Also with the manager there may be a single cluster, and the manager may fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_survives_the_manager_in_one_cluster() {
    let plane = one_cluster(ClusterApi::Manager).await;
    let world = World::on(plane, Core::Real, "v1beta2", Behaviour::default()).await;
    world.created_and_running("a").await;
    plane.stop_manager().unwrap();
    assert!(plane.check(plane.management()).is_err());
    assert!(
        world.machines.delete("a", &DeleteParams::default()).await.is_ok(),
        "no webhook answers for a deletion"
    );
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(world.machines.get_opt("a").await.unwrap().is_some());
    plane.start_manager().unwrap();
    eventually("everything is gone", async || world.is_gone_with_node("a").await).await;
    plane.check(plane.management()).unwrap();
}

/// A plane of its own, which ends with this process.
async fn one_cluster(cluster_api: ClusterApi) -> &'static ControlPlane {
    let options = Options { topology: Topology::One, cluster_api, ..Options::default() };
    Box::leak(Box::new(ControlPlane::start(options).await.unwrap()))
}

/// The controllers of Kubernetes give a Node up when they have heard nothing for 50 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_stays_ready_by_its_heartbeats_until_its_host_ends() {
    if !is_proof() {
        return;
    }
    let world = World::new(Fault::FinalizerStays).await;
    world.created_and_running("a").await;
    tokio::time::sleep(Duration::from_secs(80)).await;
    assert!(world.is_node_ready("a").await);
    world.delete("a").await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    eventually("the Node is not ready", async || !world.is_node_ready("a").await).await;
}

/// The negative control of every test that says that 5-Spot's drain was the only one.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_annotation_the_manager_is_seen_draining() {
    let world = World::new(Behaviour::default()).await;
    world.created_and_running("a").await;
    let pod = world.pod_name("kept");
    let pods = world.run_pod("a", &pod).await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(world.workload.clone(), "default");
    let budget = json!({"metadata": {"name": pod}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": pod}}}});
    budgets.create(&PostParams::default(), &read(budget)).await.unwrap();
    eventually("the budget counts the pod", async || {
        budgets.get(&pod).await.unwrap().status.is_some_and(|status| status.current_healthy == 1)
    })
    .await;

    world.delete("a").await;
    eventually("the manager tries to evict", async || {
        world.plane.workload().audit().unwrap().iter().any(|it| {
            it.subresource == "eviction"
                && it.name == pod
                && it.code == 429
                && it.user_agent.starts_with("cluster-api-manager/")
        })
    })
    .await;
    eventually("the Machine says so", async || {
        let machine = world.machines.get("a").await.unwrap();
        let conditions = machine.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["type"] == "Deleting" && it["reason"] == "DrainingNode")
    })
    .await;
    assert!(pods.get_opt(&pod).await.unwrap().is_some());

    let began = Instant::now();
    let annotation = json!({"metadata": {"annotations": {EXCLUDE_DRAIN: ""}}});
    world.machines.patch("a", &PatchParams::default(), &Patch::Merge(annotation)).await.unwrap();
    eventually("the Machine goes", async || world.is_gone_with_node("a").await).await;
    println!("gone {:?} after the annotation", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_machine_takes_its_time_until_it_is_told_otherwise() {
    let world = World::new(Behaviour::slow(Duration::from_hours(1))).await;
    world.create("a").await;
    eventually("it is owned", async || {
        world.infrastructure.get("a").await.unwrap().metadata.owner_references.is_some()
    })
    .await;
    assert_eq!(world.infrastructure.get("a").await.unwrap().metadata.finalizers, None);
    world.hosts.set("a", Behaviour::slow(Duration::from_millis(150)));
    eventually("the Machine runs", async || world.phase("a").await == "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_not_ready_joins_and_may_recover_and_fail_again() {
    let world = World::new(Fault::NotReady).await;
    world.created_and_running("a").await;
    assert!(!world.is_node_ready("a").await);
    world.hosts.set("a", Behaviour::default());
    eventually("the Node is ready", async || world.is_node_ready("a").await).await;
    world.hosts.reset("a");
    eventually("the Node is not ready", async || !world.is_node_ready("a").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_never_joins_is_provisioned() {
    let world = World::new(Fault::NeverJoins).await;
    world.create("a").await;
    eventually("the Machine is provisioned", async || world.phase("a").await == "Provisioned").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(world.node("a").await.is_none());
    world.delete("a").await;
    eventually("it is gone", async || world.is_gone("a").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finalizer_that_stays_holds_the_machine() {
    let world = World::new(Fault::FinalizerStays).await;
    world.created_and_running("a").await;
    world.delete("a").await;
    eventually("the infrastructure is being deleted", async || {
        world.infrastructure.get("a").await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.phase("a").await, "Deleting");
    world.hosts.set("a", Behaviour::default());
    eventually("everything is gone", async || world.is_gone_with_node("a").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_may_go_before_its_machine() {
    let world = World::new(Behaviour::faulty([Fault::NodeGoneEarly, Fault::FinalizerStays])).await;
    world.created_and_running("a").await;
    world.delete("a").await;
    eventually("the Node is gone", async || world.node("a").await.is_none()).await;
    assert!(world.infrastructure.get_opt("a").await.unwrap().is_some());
    world.hosts.set("a", Behaviour::default());
    eventually("everything is gone", async || world.is_gone("a").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_may_come_back_after_its_machine() {
    let world = World::new(Fault::NodeNeverGone).await;
    world.created_and_running("a").await;
    let first = world.node("a").await.unwrap().metadata.uid;
    world.delete("a").await;
    eventually("the Machine is gone", async || world.is_gone("a").await).await;
    eventually("another Node is there", async || {
        world.node("a").await.is_some_and(|node| node.metadata.uid != first)
    })
    .await;
    world.hosts.set("a", Behaviour::default());
    eventually("the Node is gone", async || world.node("a").await.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_may_never_end() {
    let world = World::new(Fault::PodsNeverEnd).await;
    world.created_and_running("a").await;
    let pod = world.pod_name("stuck");
    let pods = world.run_pod("a", &pod).await;
    pods.delete(&pod, &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(pods.get(&pod).await.unwrap().metadata.deletion_timestamp.is_some());
    world.hosts.set("a", Behaviour::default());
    eventually("the pod ends", async || pods.get_opt(&pod).await.unwrap().is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn infrastructure_without_a_machine_may_ignore_its_deletion_until_it_gets_one() {
    let world = World::new(Fault::IgnoresDeletionWithoutMachine).await;
    world.create_parts("a").await;
    eventually("the finalizer is there", async || {
        world.infrastructure.get("a").await.unwrap().metadata.finalizers.is_some()
    })
    .await;
    world.infrastructure.delete("a", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(world.infrastructure.get_opt("a").await.unwrap().is_some());
    world.create_machine("a", "v1beta2").await;
    eventually("the infrastructure goes", async || {
        world.infrastructure.get_opt("a").await.unwrap().is_none()
    })
    .await;
    world.delete("a").await;
    eventually("the rest goes", async || world.is_gone("a").await).await;
}

/// A host finds its old Node when it comes back, with all that was written on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_old_is_kept_as_it_was() {
    let world = World::new(Behaviour::default()).await;
    let node = json!({
        "metadata": {"name": world.hosts.node_name("a"), "annotations": {"left": "behind"}},
        "spec": {"unschedulable": true, "providerID": world.hosts.provider_id("a")},
    });
    world.nodes.create(&PostParams::default(), &read(node)).await.unwrap();
    world.created_and_running("a").await;
    eventually("the Node is ready", async || world.is_node_ready("a").await).await;
    let node = world.node("a").await.unwrap();
    assert_eq!(node.metadata.annotations.unwrap()["left"], "behind");
    assert_eq!(node.spec.unwrap().unschedulable, Some(true));
}
