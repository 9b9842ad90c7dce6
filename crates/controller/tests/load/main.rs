//! Hundreds of machines: nothing happens while nothing changes, and everything happens when a window opens or closes.

#![expect(clippy::unwrap_used, reason = "tests: the line that fails is the message")]

#[path = "../harness/audit.rs"]
mod audit;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../harness/wall_clock.rs"]
mod wall_clock;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/worlds.rs"]
mod worlds;

use audit::{is_write, requests};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{AuditEntry, ClusterApi, ControlPlane, Options, is_proof, share};
use harness::{CLOSED, Controller, World, message};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use wall_clock::Clock;

/// Machines that are lent, and as many that are not.
const MACHINES: usize = 200;

/// Requests of a plain client under way at once; as many as the controller has.
const AT_ONCE: usize = 16;

/// How far ahead of a boundary the clock is set: long enough for the controller to notice.
const AHEAD: SignedDuration = SignedDuration::from_secs(12);

/// How long it takes at most until machines that have begun to move have arrived.
const SETTLES: Duration = Duration::from_mins(3);

fn name(number: usize) -> String {
    format!("m{number:03}")
}

/// Numbers follow priorities in no order, so that neither the order of names nor of creation helps.
fn priority(number: usize) -> usize {
    number * 77 % MACHINES
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_open_and_close_in_time_and_nothing_happens_between() {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    let plane = share(&PLANE, &Options { cluster_api: ClusterApi::Definitions, ..Options::default() });
    let world = Arc::new(worlds::own(plane, "load").await);
    // Its clock is set, so that nobody has to wait for the end of an hour.
    let clock = Clock::new(plane, "load");
    let noon = Timestamp::now().to_zoned(TimeZone::UTC).start_of_day().unwrap().timestamp() + 12.hours();
    clock.set(noon);
    // As many machines as here on two cores keep the API server so busy that a lease of the usual length is lost.
    let leases = ["--lease-duration-secs=180", "--lease-renew-deadline-secs=120"];
    let began = Instant::now();
    create_all(&world, "30-49 * * * *").await;
    let creates = began.elapsed() / 2;
    let maps = create_maps(&world).await;
    println!(
        "a plain client creates {MACHINES} ScheduledMachines in {creates:.1?}, ConfigMaps in {maps:.1?}"
    );
    let controller = Controller::start_with(plane, "load", &leases, &clock.env());
    settle(&controller, 0).await;

    let (opens, closes) = (noon + 30.minutes(), noon + 50.minutes());
    let plain = write_plainly(&world, &controller).await;
    let boundary = opens - clock.set(opens - AHEAD);
    settle(&controller, MACHINES).await;
    println!("all are lent {:.1} s after the window opened", since(boundary));
    check_boundary(&world, "opened", boundary, plain);

    let quiet = if is_proof() { Duration::from_mins(5) } else { Duration::from_secs(30) };
    // The last events of the last writes.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let from = Timestamp::now();
    tokio::time::sleep(quiet).await;
    check_quiet(plane, from, Timestamp::now());

    let plain = write_plainly(&world, &controller).await;
    let boundary = closes - clock.set(closes - AHEAD);
    tokio::time::sleep(Duration::try_from(AHEAD).unwrap()).await;
    until_none_is_lent(&controller).await;
    println!("all are on their way back {:.1} s after the window closed", since(boundary));
    check_boundary(&world, "closed", boundary, plain);
}

fn since(at: Timestamp) -> f64 {
    Timestamp::now().duration_since(at).as_secs_f64()
}

async fn in_parallel<F: Future<Output = ()> + Send + 'static>(work: impl IntoIterator<Item = F>) {
    let gate = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for one in work {
        let gate = Arc::clone(&gate);
        tasks.spawn(async move {
            let _permit = gate.acquire_owned().await.unwrap();
            one.await;
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap();
    }
}

async fn create_all(world: &Arc<World>, cron: &str) {
    let all = (0..2 * MACHINES).map(|number| {
        let (world, cron) = (Arc::clone(world), cron.to_owned());
        async move {
            if number < MACHINES {
                world.create(&name(number), &cron, |spec| spec["priority"] = json!(priority(number))).await;
            } else {
                world.create(&format!("idle{number}"), CLOSED, |_| {}).await;
            }
        }
    });
    in_parallel(all).await;
}

/// How long a plain client takes to create as many small objects.
async fn create_maps(world: &World) -> Duration {
    let api: Api<ConfigMap> = Api::namespaced(world.management.clone(), &world.namespace);
    let began = Instant::now();
    in_parallel((0..MACHINES).map(|number| {
        let api = api.clone();
        async move {
            let map = serde_json::from_value(json!({"metadata": {"name": name(number)}, "data": {"a": "b"}}));
            api.create(&PostParams::default(), &map.unwrap()).await.unwrap();
        }
    }))
    .await;
    began.elapsed()
}

/// How long a plain client takes for what a boundary asks of the controller first: a new status of each machine. The
/// controller stands still meanwhile, and puts right afterwards what was written.
async fn write_plainly(world: &Arc<World>, controller: &Controller) -> Duration {
    const WORD: &str = "written by a plain client";
    controller.signal("-STOP");
    let all = world.machines().list(&ListParams::default()).await.unwrap();
    let is_lent = |machine: &ScheduledMachine| machine.name_any().starts_with('m');
    let bodies: Vec<(String, Value)> = all
        .into_iter()
        .filter(is_lent)
        .map(|machine| {
            let mut status = serde_json::to_value(&machine.status).unwrap();
            status["message"] = json!(WORD);
            for condition in status["conditions"].as_array_mut().unwrap() {
                condition["message"] = json!(WORD);
            }
            let version = machine.resource_version().unwrap();
            (machine.name_any(), json!({"metadata": {"resourceVersion": version}, "status": status}))
        })
        .collect();
    assert_eq!(bodies.len(), MACHINES);
    let began = Instant::now();
    in_parallel(bodies.into_iter().map(|(name, body)| {
        let api = world.machines();
        async move {
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
        }
    }))
    .await;
    let taken = began.elapsed();
    controller.signal("-CONT");
    let began = Instant::now();
    while world.machines().list(&ListParams::default()).await.unwrap().iter().any(|it| message(it) == WORD) {
        assert!(began.elapsed() < SETTLES, "it is not put right:\n{}", controller.log());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    taken
}

/// Waits until so many machines are lent, and all others are not. It asks the controller, which costs no request.
async fn settle(controller: &Controller, lent: usize) {
    let began = Instant::now();
    loop {
        let text = controller.http("/metrics").1;
        let counts = |phase: &str, count: usize| {
            text.contains(&format!("fivespot_machines_by_phase{{phase=\"{phase}\"}} {count}\n"))
        };
        if counts("Active", lent) && counts("Inactive", 2 * MACHINES - lent) {
            return;
        }
        let phases: Vec<_> = text.lines().filter(|line| line.contains("by_phase{")).collect();
        assert!(began.elapsed() < SETTLES, "not {lent} machines are lent: {phases:#?}\n{}", controller.log());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn until_none_is_lent(controller: &Controller) {
    let began = Instant::now();
    while !controller.http("/metrics").1.contains("fivespot_machines_by_phase{phase=\"Active\"} 0\n") {
        assert!(began.elapsed() < SETTLES, "some machines stay:\n{}", controller.log());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Every machine's first write comes in time, and those of higher priority come first.
fn check_boundary(world: &World, what: &str, boundary: Timestamp, plain: Duration) {
    // To the object itself: an event tells of a step and takes none, and would hide how late the step comes.
    let is_step = |entry: &AuditEntry| is_write(entry) && entry.resource == "scheduledmachines";
    let mut first: BTreeMap<String, AuditEntry> = BTreeMap::new();
    for entry in requests(world.plane.management(), boundary).into_iter().filter(is_step) {
        let known = first.entry(entry.name.clone()).or_insert_with(|| entry.clone());
        if entry.at < known.at {
            *known = entry;
        }
    }
    let mut begun: Vec<(f64, usize)> = (0..MACHINES)
        .map(|number| {
            let entry = first.get(&name(number)).unwrap();
            (entry.at.duration_since(boundary).as_secs_f64(), priority(number))
        })
        .collect();
    begun.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at = |percent: usize| begun[(begun.len() - 1) * percent / 100].0;
    let (median, p99, last) = (at(50), at(99), at(100));
    let mean = |wanted: &dyn Fn(usize) -> bool| {
        let of: Vec<f64> =
            begun.iter().filter(|(_, priority)| wanted(*priority)).map(|(at, _)| *at).collect();
        of.iter().sum::<f64>() / f64::from(u32::try_from(of.len()).unwrap())
    };
    let (high, low) = (mean(&|priority| priority >= MACHINES - 50), mean(&|priority| priority < 50));
    let leaders = begun.iter().take(AT_ONCE).filter(|(_, priority)| *priority >= MACHINES - 32).count();
    println!(
        "{what}: first writes after {:.0} ms, half by {:.0} ms, p99 {:.0} ms, last {:.0} ms; \
         mean of the 50 highest priorities {:.0} ms, of the 50 lowest {:.0} ms; \
         {leaders} of the first {AT_ONCE} are of the 32 highest; a plain client takes {:.0} ms to write as many",
        at(0) * 1e3,
        median * 1e3,
        p99 * 1e3,
        last * 1e3,
        high * 1e3,
        low * 1e3,
        plain.as_secs_f64() * 1e3,
    );
    let bound = (2.0 * plain.as_secs_f64()).max(1.0);
    assert!(p99 < bound, "{what}: p99 is {p99:.3} s, more than {bound:.3} s");
    assert!(high < low, "{what}: higher priority does not go first");
    assert_eq!(leaders, AT_ONCE, "{what}: the first are not those of the highest priority");
}

/// Nothing but leases is written, and nothing read but by watches.
fn check_quiet(plane: &ControlPlane, from: Timestamp, until: Timestamp) {
    let all: Vec<AuditEntry> =
        requests(plane.management(), from).into_iter().filter(|it| it.at <= until).collect();
    let (leases, rest): (Vec<_>, Vec<_>) = all.iter().partition(|entry| entry.resource == "leases");
    let (watches, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|entry| entry.verb == "watch");
    println!(
        "{} machines for {:.0} s: {} requests for the lease, {} watches begun anew, {} others",
        2 * MACHINES,
        until.duration_since(from).as_secs_f64(),
        leases.len(),
        watches.len(),
        rest.len(),
    );
    assert!(!leases.is_empty(), "it is alive");
    assert!(rest.is_empty(), "{rest:#?}");
}
