//! Workload clusters of somebody who wants to bring the controller down.

use crate::harness::{Controller, OPEN, World, is, message};
use crate::{end, plane, worlds};
use fivespot_api::{ScheduledMachine, names};
use fivespot_testenv::{Attack, HostileServer, create_cluster_without_secret, eventually};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;
use std::time::Instant;

/// Machines of the others.
const GOOD: usize = 100;

/// What the container of the controller may use, in `deploy/`.
const LIMIT_KIB: u64 = 256 << 10;

/// What a machine says of a cluster that attacks, unless the cluster can be used all the same.
fn expected(attack: Attack) -> Option<(&'static str, &'static str)> {
    match attack {
        Attack::EndlessText | Attack::EndlessNodes | Attack::EndlessError => {
            Some(("LimitExceeded", "larger than"))
        }
        Attack::EndlessPages | Attack::EmptyPages => Some(("LimitExceeded", "objects")),
        Attack::HugeNodes => Some(("LimitExceeded", "what is kept of its objects is larger than 8 MiB")),
        Attack::EndlessEvent => Some(("LimitExceeded", "one event of a watch is larger than 2 MiB")),
        Attack::Trickle | Attack::Silence => Some(("ConnectionFailed", "")),
        Attack::EventFlood => None,
    }
}

async fn machine_of(world: &World, server: &HostileServer, attack: Attack) {
    let cluster = format!("{attack:?}").to_ascii_lowercase();
    create_cluster_without_secret(world.plane, &world.namespace, &cluster).await.unwrap();
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": format!("{cluster}-kubeconfig")},
        "stringData": {"value": server.kubeconfig(attack)},
    }))
    .unwrap();
    let secrets: Api<Secret> = Api::namespaced(world.management.clone(), &world.namespace);
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    world.create(&cluster, OPEN, |spec| spec["clusterName"] = json!(cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_hostile_clusters_take_nothing_from_the_machines_of_others() {
    let (plane, _turn) = plane().await;
    let server = HostileServer::start().unwrap();
    let hostile = worlds::bare(plane, plane.workload(), "hostile").await;
    worlds::admit(&hostile);
    let good = worlds::linked(plane, "good").await;
    let controller = Controller::start(plane, "hostile", &[]);
    for attack in Attack::ALL {
        machine_of(&hostile, &server, attack).await;
    }
    for attack in Attack::ALL {
        let name = format!("{attack:?}").to_ascii_lowercase();
        let Some((reason, text)) = expected(attack) else { continue };
        let shown = |machine: &ScheduledMachine| is(machine, "WorkloadReachable", "False", reason);
        let machine = hostile.until(&name, reason, shown).await;
        let said = message(&machine);
        println!("{attack:?}: {said}");
        assert!(said.contains(text) && !said.contains("xxxx"), "{attack:?}: {said}");
    }
    // All attacks go on while the machines of others join, and are reclaimed.
    let began = Instant::now();
    let names: Vec<String> = (0..GOOD).map(|n| format!("good-{n}")).collect();
    join_all(names.iter().map(|name| good.create(name, OPEN, |_| {}))).await;
    let is_active = |machine: &ScheduledMachine| {
        machine.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Active"))
    };
    eventually("the machines of others are Active", async || {
        let machines = good.machines().list(&ListParams::default()).await.unwrap();
        machines.iter().filter(|machine| is_active(machine)).count() == GOOD
    })
    .await;
    let joined = began.elapsed();
    let began = Instant::now();
    good.patch("good-0", json!({"metadata": {"annotations": {names::RECLAIM_REQUESTED: "true"}}})).await;
    good.until_phase("good-0", "Disabled").await;
    let peak = controller.peak_memory();
    println!(
        "{GOOD} machines Active after {joined:.1?}, one reclaimed in {:.1?}; the controller had {peak} KiB; {} \
         MiB were sent by hostile servers",
        began.elapsed(),
        server.bytes() >> 20
    );
    for attack in Attack::ALL {
        assert!(server.requests(attack) > 0, "{attack:?} was never tried");
    }
    assert!(peak < LIMIT_KIB, "the pod would have been killed: {peak} KiB");
    end(&controller);
}
