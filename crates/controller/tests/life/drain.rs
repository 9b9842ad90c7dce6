//! Disruption budgets: kept until the deadline, and never longer.

use crate::harness::{World, message};
use crate::look::{CLUSTER_API, OURS};
use crate::stage::{scenarios, world};
use fivespot_testenv::AuditEntry;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::time::Duration;

scenarios![
    a_budget_that_allows_nothing_holds_one_machine_until_its_deadline,
    a_budget_that_opens_loses_no_pod_to_force,
    pods_of_a_daemon_set_are_not_waited_for,
    a_workload_that_comes_back_is_not_evicted_as_fast_as_it_comes,
];

/// When we asked for the deletion of a Machine.
fn deleted_at(world: &World, machine: &str) -> Timestamp {
    let is_it = |it: &AuditEntry| {
        it.verb == "delete"
            && it.resource == "machines"
            && (it.namespace.as_str(), it.name.as_str()) == (world.namespace.as_str(), machine)
            && it.user_agent.starts_with(OURS)
    };
    let entries = world.plane.management().audit().unwrap();
    entries.into_iter().find(is_it).unwrap().at
}

async fn a_budget_that_allows_nothing_holds_one_machine_until_its_deadline() {
    let world = world().await;
    let drain = |spec: &mut Value| spec["nodeDrainTimeout"] = json!("15s");
    tokio::join!(world.lend("held", drain), world.lend("free", |_| {}));
    world.held_pod("held", "held-web").await;
    world.pod("free", "free-web", |_| {}).await;
    tokio::join!(world.close("held"), world.close("free"));

    let blocked = world.until_blocked("held").await;
    let (pod, budget) = (format!("{}/held-web", world.namespace), "held-web-budget");
    assert!(message(&blocked).contains(&pod) && message(&blocked).contains(budget), "{}", message(&blocked));
    let shutdown = blocked.status.unwrap().shutdown.unwrap();
    let deadline = shutdown.drain_deadline.unwrap().0;
    assert!(world.is_cordoned("held").await);
    let warning = format!("NodeDrainBlocked: {pod} is held by its disruption budget");
    fivespot_testenv::eventually("people are told that the drain is blocked", async || {
        world.events("held").await.iter().any(|it| it.starts_with(&warning) && it.contains(budget))
    })
    .await;

    world.until_phase("held", "Inactive").await;
    world.nothing_is_left("held").await;
    world.until_phase("free", "Inactive").await;
    assert!(
        world.has_event("held", "NodeDrainFailed").await && !world.has_event("held", "NodeDrained").await
    );
    assert!(
        world.has_event("free", "NodeDrained").await && !world.has_event("free", "NodeDrainFailed").await
    );
    let failed = world.events("held").await.into_iter().find(|it| it.starts_with("NodeDrainFailed")).unwrap();
    assert!(failed.contains(budget), "the budget is not named: {failed}");
    let told = world.events("held").await.iter().filter(|it| it.starts_with("NodeDrainBlocked")).count();
    assert_eq!(told, 1, "once, however often it is tried");
    let (held, free) = (deleted_at(world, "held"), deleted_at(world, "free"));
    assert!(held >= deadline, "{held} is before the deadline, {deadline}");
    let late = held.duration_since(deadline);
    assert!(late < SignedDuration::from_secs(20), "deleted {late} after the deadline");
    let is_late = |it: &&AuditEntry| it.subresource == "eviction" && it.at > deadline;
    let requests = world.pod_requests("held-web");
    let after = requests.iter().filter(is_late).count();
    assert!(after <= 1, "only what was under way at the deadline may come after it: {after} attempts did");
    let head_start = held.duration_since(free);
    assert!(head_start > SignedDuration::from_secs(5), "the other machine went only {head_start} earlier");

    let tried = world.evictions("held-web", OURS);
    assert!(tried.len() >= 3 && tried.iter().all(|&code| code == 429), "{tried:?}");
    let nobody: [u16; 0] = [];
    assert_eq!(world.evictions("held-web", CLUSTER_API), nobody, "Cluster API began a drain of its own");
    assert_eq!(world.pod_deletions("held-web", OURS), 0);
    assert_eq!(world.evictions("free-web", OURS), [201]);
}

async fn a_budget_that_opens_loses_no_pod_to_force() {
    let world = world().await;
    world.lend("patient", |spec| spec["nodeDrainTimeout"] = json!("50s")).await;
    world.held_pod("patient", "patient-web").await;
    world.close("patient").await;
    world.until_blocked("patient").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.pods().get("patient-web").await.unwrap().metadata.deletion_timestamp, None);
    world.remove_budget("patient-web").await;
    world.until_phase("patient", "Inactive").await;
    world.nothing_is_left("patient").await;
    let tried = world.evictions("patient-web", OURS);
    let (refused, accepted): (Vec<u16>, Vec<u16>) = tried.iter().partition(|&&code| code == 429);
    assert!(refused.len() >= 2 && accepted == [201], "{tried:?}");
    assert_eq!(world.pod_deletions("patient-web", OURS), 0);
    assert!(world.has_event("patient", "NodeDrained").await);
    assert!(!world.has_event("patient", "NodeDrainFailed").await);
}

async fn pods_of_a_daemon_set_are_not_waited_for() {
    let world = world().await;
    world.lend("daemons", |_| {}).await;
    let node = world.hosts.node_name("daemons");
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "daemons", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "daemons"}},
            "template": {
                "metadata": {"labels": {"app": "daemons"}},
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": node},
                    "containers": [{"name": "main", "image": "none"}],
                },
            },
        },
    });
    let sets: kube::Api<k8s_openapi::api::apps::v1::DaemonSet> =
        kube::Api::namespaced(world.workload.clone(), "default");
    sets.create(&kube::api::PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    fivespot_testenv::eventually("the DaemonSet runs", async || {
        sets.get("daemons").await.unwrap().status.is_some_and(|status| status.number_ready == 1)
    })
    .await;
    world.close("daemons").await;
    world.until_phase("daemons", "Inactive").await;
    world.nothing_is_left("daemons").await;
    assert!(world.has_event("daemons", "NodeDrained").await);
    let entries = world.plane.workload().audit().unwrap();
    let ours = |it: &&AuditEntry| it.subresource == "eviction" && it.name.starts_with("daemons-");
    assert_eq!(entries.iter().filter(ours).count(), 0);
    sets.delete("daemons", &kube::api::DeleteParams::default()).await.unwrap();
}

/// Its pods tolerate the cordon, or name the Node: each that is evicted is followed by the next at once.
async fn a_workload_that_comes_back_is_not_evicted_as_fast_as_it_comes() {
    let world = world().await;
    world.lend("haunted", |spec| spec["nodeDrainTimeout"] = json!("25s")).await;
    let node = world.hosts.node_name("haunted");
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": "haunted", "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "haunted"}},
            "template": {
                "metadata": {"labels": {"app": "haunted"}},
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "none"}],
                },
            },
        },
    });
    let sets: kube::Api<k8s_openapi::api::apps::v1::ReplicaSet> =
        kube::Api::namespaced(world.workload.clone(), "default");
    sets.create(&kube::api::PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    fivespot_testenv::eventually("the workload runs", async || {
        sets.get("haunted").await.unwrap().status.is_some_and(|status| status.ready_replicas == Some(1))
    })
    .await;
    world.close("haunted").await;
    let tells = |machine: &fivespot_api::ScheduledMachine| {
        message(machine).contains("back after the cordon, evicted at most every 10 s")
    };
    world.until("haunted", "telling that a pod comes back", tells).await;
    world.until_phase("haunted", "Inactive").await;
    let entries = world.plane.workload().audit().unwrap();
    let ours = |it: &&AuditEntry| it.subresource == "eviction" && it.name.starts_with("haunted-");
    let evictions = entries.iter().filter(ours).count();
    assert!((2..=5).contains(&evictions), "{evictions} evictions in 25 s");
    sets.delete("haunted", &kube::api::DeleteParams::default()).await.unwrap();
}
