//! One tenant sets and takes back kill switches as fast as the server takes it; another owner wants a machine back.

use crate::harness::{Controller, OPEN, World, condition};
use crate::{end, plane, worlds};
use fivespot_api::ScheduledMachine;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Machines of the tenant who floods.
const MACHINES: usize = 60;

/// Reclaims that are measured, each on a machine of its own.
const RECLAIMS: usize = 5;

/// Pods on each machine.
const PODS: usize = 6;

fn name(n: usize) -> String {
    format!("m{n}")
}

async fn lend(world: &World, count: usize) {
    for n in 0..count {
        world.create(&name(n), OPEN, |_| {}).await;
    }
    for n in 0..count {
        world.until_phase(&name(n), "Active").await;
    }
}

async fn fill(world: &World, machine: &str) {
    world.workload_namespace().await;
    for n in 0..PODS {
        let pod = json!({
            "metadata": {"name": format!("{machine}-{n}")},
            "spec": {
                "nodeName": world.hosts.node_name(machine), "containers": [{"name": "main", "image": "none"}],
                "tolerations": [{"operator": "Exists"}],
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        world.pods().create(&PostParams::default(), &pod).await.unwrap();
    }
}

/// How long it takes from the request on a ScheduledMachine until its Machine is deleted and its schedule disabled.
async fn reclaim(world: &World, machine: &str) -> Duration {
    let began = Instant::now();
    let annotations = json!({"5spot.finos.org/reclaim-requested": "true"});
    world.patch(machine, json!({"metadata": {"annotations": annotations}})).await;
    let is_over = |it: &ScheduledMachine| {
        let reclaim = it.status.as_ref().and_then(|status| status.reclaim.clone());
        reclaim.is_some_and(|reclaim| reclaim.hold)
    };
    loop {
        let it = world.machines().get(machine).await.unwrap();
        if is_over(&it) {
            return began.elapsed();
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", condition(&it, "Ready"));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn reclaims(world: &World, range: std::ops::Range<usize>) -> Vec<Duration> {
    let mut all = Vec::new();
    for n in range {
        all.push(reclaim(world, &name(n)).await);
    }
    all.sort_unstable();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_switches_of_one_tenant_do_not_slow_down_the_reclaim_of_another() {
    let (plane, _turn) = plane().await;
    let flooding = Arc::new(worlds::own(plane, "flood").await);
    let other = worlds::own(plane, "quiet").await;
    let controller = Controller::start(plane, "flood", &[]);
    lend(&flooding, MACHINES).await;
    lend(&other, 2 * RECLAIMS).await;
    for n in 0..2 * RECLAIMS {
        fill(&other, &name(n)).await;
    }
    let alone = reclaims(&other, 0..RECLAIMS).await;
    let (stop, edits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let floods = (0..MACHINES).map(|n| {
        let (world, stop, edits) = (Arc::clone(&flooding), Arc::clone(&stop), Arc::clone(&edits));
        tokio::spawn(async move {
            let mut on = true;
            while !stop.load(Ordering::Relaxed) {
                let patch = Patch::Merge(json!({"spec": {"killSwitch": on}}));
                world.machines().patch(&name(n), &PatchParams::default(), &patch).await.unwrap();
                edits.fetch_add(1, Ordering::Relaxed);
                on = !on;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        })
    });
    let floods: Vec<_> = floods.collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let flooded = reclaims(&other, RECLAIMS..2 * RECLAIMS).await;
    stop.store(true, Ordering::Relaxed);
    join_all(floods).await;
    println!(
        "reclaimed after {alone:?}; beside {} edits of kill switches after {flooded:?}",
        edits.load(Ordering::Relaxed)
    );
    let median = |all: &[Duration]| all[all.len() / 2];
    let ratio = median(&flooded).as_secs_f64() / median(&alone).as_secs_f64();
    println!("ratio of the medians: {ratio:.1}");
    end(&controller);
}
