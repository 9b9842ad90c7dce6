//! The process: what it shows of itself, how it ends, and who goes on.

use crate::audit::{is_write, requests};
use crate::harness::{CLOSED, Controller, OPEN, World, condition, from_root, is};
use crate::{end, plane, worlds};
use fivespot_api::ScheduledMachine;
use fivespot_testenv::{ControlPlane, eventually};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use std::time::{Duration, Instant};

/// Leases that end soon.
const SHORT: [&str; 3] =
    ["--lease-duration-secs=9", "--lease-renew-deadline-secs=6", "--lease-retry-period-secs=1"];

async fn holder(world: &World) -> String {
    let leases: Api<Lease> = Api::namespaced(world.management.clone(), "5spot-system");
    let lease = leases.get_opt("5spot-controller-0").await.unwrap();
    lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
}

async fn until_held(world: &World, by: &str) -> Duration {
    let began = Instant::now();
    eventually(&format!("{by} holds the lease"), async || holder(world).await == by).await;
    began.elapsed()
}

/// The number behind a line of `/metrics` that begins so.
fn metric(controller: &Controller, line: &str) -> f64 {
    let (status, text) = controller.http("/metrics");
    assert_eq!(status, 200);
    let number = text.lines().find_map(|it| it.strip_prefix(line)?.trim().parse().ok());
    number.unwrap_or_else(|| panic!("no {line} in\n{text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_readiness_and_metrics_tell_how_it_is() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "metrics").await;
    // Without its rights it cannot see what it is there for, and says so.
    let binding = ["delete", "clusterrolebinding", "5spot-controller"];
    plane.kubectl(plane.management(), &binding, "").unwrap();
    let controller = Controller::start(plane, "metrics", &[]);
    eventually("not ready, and why", async || {
        let (status, text) = controller.http("/ready");
        status == 503 && text.contains("scheduledmachines is not whole") && text.contains("forbidden")
    })
    .await;
    assert_eq!(controller.http("/health").0, 200, "a restart would not help");
    let rights = from_root("deploy/controller/rbac.yaml");
    plane.kubectl(plane.management(), &["apply", "-f", rights.to_str().unwrap()], "").unwrap();
    for path in ["/health", "/healthz", "/ready", "/readyz"] {
        eventually(&format!("{path} is well"), async || controller.http(path).0 == 200).await;
    }

    world.create("lent", OPEN, |_| {}).await;
    world.create("killed", OPEN, |_| {}).await;
    world.create("closed", OPEN, |_| {}).await;
    for machine in ["lent", "killed", "closed"] {
        world.until_phase(machine, "Active").await;
    }
    world.patch("killed", json!({"spec": {"killSwitch": true}})).await;
    world.close("closed").await;
    world.until_phase("killed", "Terminated").await;
    world.until_phase("closed", "Inactive").await;
    // Those of other tests count too.
    let everywhere: Api<ScheduledMachine> = Api::all(world.management.clone());
    for phase in ["Active", "Terminated", "Inactive", "Error"] {
        let line = format!("fivespot_machines_by_phase{{phase=\"{phase}\"}}");
        eventually(&line, async || {
            let all = everywhere.list(&ListParams::default()).await.unwrap();
            let is_in = |it: &&ScheduledMachine| {
                it.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
            };
            let count = all.items.iter().filter(is_in).count();
            metric(&controller, &line).to_string() == count.to_string()
        })
        .await;
    }
    assert!(metric(&controller, "fivespot_reconciliations_total{result=\"acted\"}") > 5.0);
    assert!(metric(&controller, "fivespot_reconciliation_duration_seconds_count") > 5.0);
    assert!(metric(&controller, "fivespot_drain_duration_seconds_count") >= 1.0);
    assert!(metric(&controller, "fivespot_eject_duration_seconds_count") >= 1.0);
    let text = controller.http("/metrics").1;
    for kind in [
        "fivespot_errors counter",
        "fivespot_transition_lateness_seconds histogram",
        "fivespot_finalizers_forced counter",
    ] {
        assert!(text.contains(&format!("# TYPE {kind}")), "no {kind} in\n{text}");
    }
    assert_eq!(controller.http("/other").0, 404);
    end(&controller);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_decides_and_writes_nothing() {
    let (plane, _turn) = plane().await;
    let since = Timestamp::now();
    let world = worlds::own(plane, "dry").await;
    let controller = Controller::start(plane, "dry", &["--dry-run"]);
    world.create("open", OPEN, |_| {}).await;
    world.create("closed", CLOSED, |_| {}).await;
    let name = format!("object={}/open", world.namespace);
    eventually("the decision is logged", async || {
        controller.log().lines().any(|line| line.contains(&name) && line.contains("create the Machine"))
    })
    .await;
    let passes = metric(&controller, "fivespot_reconciliations_total{result=\"acted\"}");
    assert!(passes >= 1.0);
    world.patch("open", json!({"spec": {"killSwitch": true}})).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    end(&controller);
    let all = requests(plane.management(), since);
    assert!(all.iter().any(|entry| entry.resource == "scheduledmachines"), "it did look");
    let wrong: Vec<_> = all.iter().filter(|entry| is_write(entry) || entry.resource == "leases").collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(world.status("open").await.phase, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_goes_on_at_once_after_an_end_and_soon_after_a_death() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "standby").await;
    let first = Controller::start(plane, "first", &SHORT);
    until_held(&world, "first").await;
    world.create("m", CLOSED, |_| {}).await;
    world.until_phase("m", "Inactive").await;
    let second = Controller::start(plane, "second", &SHORT);
    eventually("the second waits", async || second.log().contains("stands by")).await;
    assert_eq!(second.http("/ready").0, 200, "a standby is ready to go on");

    let ended = end(&first);
    assert!(ended < Duration::from_secs(5), "the end took {ended:?}");
    assert!(first.log().contains("released slots=[0]"), "{}", first.log());
    let taken = until_held(&world, "second").await;
    assert!(taken < Duration::from_secs(5), "the standby took over after {taken:?}");
    world.open("m").await;
    world.until_phase("m", "Active").await;
    println!("released after {ended:?}, taken over {taken:?} later");

    let third = Controller::start(plane, "third", &SHORT);
    eventually("the third waits", async || third.log().contains("stands by")).await;
    second.signal("-KILL");
    assert_eq!(holder(&world).await, "second", "nobody has given it back");
    let taken = until_held(&world, "third").await;
    assert!(taken < Duration::from_secs(9 + 5), "the standby took over after {taken:?}");
    assert!(taken > Duration::from_secs(5), "a holder that may be alive was not respected: {taken:?}");
    println!("taken over {taken:?} after a death");
    world.close("m").await;
    world.until_phase("m", "Inactive").await;
    end(&third);
    assert_eq!(holder(&world).await, "", "released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_read_its_secret_a_machine_says_so() {
    let (plane, _turn) = plane().await;
    let world = worlds::bare(plane, plane.management(), "tenant").await;
    let controller = Controller::start(plane, "tenant", &[]);
    world.create("m", OPEN, |_| {}).await;
    let forbidden = |it: &_| is(it, "WorkloadReachable", "False", "KubeconfigSecretForbidden");
    let machine = world.until("m", "told of the missing right", forbidden).await;
    assert!(is(&machine, "Ready", "False", "WorkloadUnreachable"), "{:?}", condition(&machine, "Ready"));
    assert_eq!(machine.status.unwrap().phase.as_deref(), Some("Pending"));
    worlds::admit(&world);
    world.until_phase("m", "Active").await;
    end(&controller);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_that_nobody_was_there_for_still_has_its_whole_budget() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "budget").await;
    let controller = Controller::start(plane, "budget", &[]);
    world.create("m", OPEN, |spec| spec["gracefulShutdownTimeout"] = json!("6s")).await;
    world.until_phase("m", "Active").await;
    world.pod("m", "web", |_| {}).await;
    world.budget("web", 1).await;
    end(&controller);
    world.close("m").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Status has whole seconds.
    let back = Timestamp::now() - SignedDuration::from_secs(1);
    let controller = restart(plane);
    let leaving = |it: &ScheduledMachine| it.status.as_ref().is_some_and(|status| status.shutdown.is_some());
    let machine = world.until("m", "leaving", leaving).await;
    let shutdown = machine.status.unwrap().shutdown.unwrap();
    let (started, deadline) = (shutdown.started_at.unwrap().0, shutdown.drain_deadline.unwrap().0);
    assert!(started >= back, "began at {started}, before the controller was back at {back}");
    assert!(deadline.duration_since(started) >= SignedDuration::from_secs(6));
    let uid = world.objects("Machine").get("m").await.unwrap().metadata.uid;
    assert!(uid.is_some(), "the Machine waits for its drain");
    world.until_phase("m", "Inactive").await;
    let now = Timestamp::now();
    assert!(now >= deadline, "gone at {now}, before its deadline {deadline}");
    assert!(world.has_event("m", "NodeDrainFailed").await);
    end(&controller);
}

fn restart(plane: &ControlPlane) -> Controller {
    Controller::start(plane, "budget", &[])
}
