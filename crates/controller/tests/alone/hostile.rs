//! Workload clusters of somebody who wants to bring the controller down.

use crate::harness::{Controller, OPEN, World, is, message};
use crate::{end, plane, worlds};
use fivespot_api::{ScheduledMachine, names};
use fivespot_testenv::{Attack, HostileServer, LIE, create_cluster_without_secret, eventually};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use std::time::{Duration, Instant};

/// Machines of the others, before the attacks and again while they last.
const GOOD: usize = 50;

/// What the container of the controller may use, in `deploy/`.
const LIMIT_KIB: u64 = 256 << 10;

/// How long a list of a workload cluster may take at the longest.
const LIST_TIME: Duration = Duration::from_mins(2);

/// What a machine says of a cluster that attacks, unless the cluster can be used all the same.
fn expected(attack: Attack) -> Option<(&'static str, &'static str)> {
    match attack {
        Attack::EndlessText | Attack::EndlessNodes | Attack::EndlessError => {
            Some(("LimitExceeded", "larger than"))
        }
        Attack::EndlessPages => Some(("LimitExceeded", "objects")),
        // By the number of objects, or on a busy machine by the time.
        Attack::EmptyPages => Some(("LimitExceeded", "one list ")),
        Attack::HugeNodes => Some(("LimitExceeded", "what is kept of its objects is larger than 8 MiB")),
        Attack::EndlessEvent => Some(("LimitExceeded", "one event of a watch is larger than 2 MiB")),
        Attack::LyingError | Attack::LyingEvent => Some(("ConnectionFailed", "403 Forbidden: the user of")),
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

/// Lets machines join, which takes a minute at most, and says how long it took.
async fn join(world: &World, stem: &str, count: usize) -> Duration {
    let began = Instant::now();
    join_all((0..count).map(async |number| world.create(&format!("{stem}-{number}"), OPEN, |_| {}).await))
        .await;
    let is_active = |machine: &&ScheduledMachine| {
        machine.name_any().starts_with(stem)
            && machine.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Active"))
    };
    eventually("all are Active", async || {
        let machines = world.machines().list(&ListParams::default()).await.unwrap();
        machines.iter().filter(is_active).count() == count
    })
    .await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_clusters_take_nothing_from_the_machines_of_others() {
    let (plane, _turn) = plane().await;
    let server = HostileServer::start().unwrap();
    let hostile = worlds::bare(plane, plane.workload(), "hostile").await;
    worlds::admit(&hostile);
    let good = worlds::linked(plane, "good").await;
    let controller = Controller::start(plane, "hostile", &[]);
    let calm = join(&good, "calm", GOOD).await;
    for attack in Attack::ALL {
        machine_of(&hostile, &server, attack).await;
    }
    for attack in Attack::ALL {
        let name = format!("{attack:?}").to_ascii_lowercase();
        let Some((reason, text)) = expected(attack) else { continue };
        let shown = |machine: &ScheduledMachine| is(machine, "WorkloadReachable", "False", reason);
        let began = Instant::now();
        while !shown(&hostile.machines().get(&name).await.unwrap()) && began.elapsed() < LIST_TIME {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let machine = hostile.until(&name, reason, shown).await;
        let said = message(&machine);
        println!("{attack:?}: {said}");
        assert!(said.contains(text) && !said.contains("xxxx"), "{attack:?}: {said}");
        let shown = serde_json::to_string(&machine.status).unwrap() + &hostile.events(&name).await.join(" ");
        assert!(!shown.contains(LIE), "{attack:?}: {shown}");
    }
    assert!(!controller.log().contains(LIE), "the log repeats what a hostile server says");
    // All attacks go on while the machines of others join, and are reclaimed.
    let joined = join(&good, "attacked", GOOD).await;
    println!("{GOOD} machines Active after {joined:.1?}, as many before the attacks after {calm:.1?}");
    let began = Instant::now();
    good.patch("attacked-0", json!({"metadata": {"annotations": {names::RECLAIM_REQUESTED: "true"}}})).await;
    good.until_phase("attacked-0", "Disabled").await;
    let peak = controller.peak_memory();
    println!(
        "one reclaimed in {:.1?}; the controller had {peak} KiB; {} MiB were sent by hostile servers",
        began.elapsed(),
        server.bytes() >> 20
    );
    for attack in Attack::ALL {
        assert!(server.requests(attack) > 0, "{attack:?} was never tried");
    }
    assert!(peak < LIMIT_KIB, "the pod would have been killed: {peak} KiB");
    end(&controller);
}
