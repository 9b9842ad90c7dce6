//! An instance is stopped in the middle of its work and wakes when another one holds its slot.
//!
//! Two things hide a woken instance that goes on writing. Its next look at the leases ends its belief, some milliseconds
//! after it wakes; and most of its writes are refused, since they name a version that the other instance has changed. So
//! this test makes both impossible. All writes of the instance wait for their answers when it is stopped, so that every
//! pass has its next write to send the moment it wakes; it is woken as soon as the other instance has the lease; its looks
//! at the leases are not answered for a while; and every write that it sends counts, also one that is refused.

use crate::faults::until_ready;
use crate::harness::{CLOSED, Controller, World};
use crate::proxy::{Call, Executioner, Fate, Proxy};
use crate::timeline::Timeline;
use crate::{end, plane, short_lease, start, worlds};
use axum::http::Method;
use fivespot_testenv::{AuditEntry, eventually, is_proof};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

const MACHINES: usize = 24;

/// Passes that must be under way when the instance is stopped. The controller sends 16 writes at once.
const UNDER_WAY: usize = 12;

/// How long no further write comes before all passes are taken to wait.
const QUIET: Duration = Duration::from_millis(300);

/// How long the woken instance cannot look at the leases. It gives up a look after a second.
const BLIND: Duration = Duration::from_secs(3);

/// The way of one instance to the API server.
struct Network {
    answers_writes: watch::Sender<bool>,
    answers_looks: watch::Sender<bool>,
    /// Writes whose answers are held back.
    waiting: AtomicUsize,
    /// Looks at the leases.
    looks: AtomicUsize,
    /// Writes that came, but for those to leases.
    writes: Mutex<Vec<String>>,
}

impl Network {
    fn new() -> Self {
        let (waiting, looks, writes) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::default());
        let (answers_writes, answers_looks) = (watch::Sender::new(true), watch::Sender::new(true));
        Self { answers_writes, answers_looks, waiting, looks, writes }
    }

    fn writes(&self) -> Vec<String> {
        self.writes.lock().unwrap().clone()
    }

    /// Returns when every pass under way has sent a write and waits for its answer.
    async fn until_all_wait(&self) {
        let began = Instant::now();
        let mut last = (0, Instant::now());
        loop {
            let waiting = self.waiting.load(Ordering::SeqCst);
            if waiting != last.0 {
                last = (waiting, Instant::now());
            }
            if waiting >= UNDER_WAY && last.1.elapsed() > QUIET {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(5), "only {waiting} writes are under way");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns shortly after a look at the leases: the next comes a second later.
    async fn until_looked(&self) {
        let before = self.looks.load(Ordering::SeqCst);
        eventually("it looks at the leases", async || self.looks.load(Ordering::SeqCst) > before).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn is_lease(call: &Call) -> bool {
    call.path.contains("/leases")
}

async fn until_open(gate: &watch::Sender<bool>) {
    // The sender lives, so the wait cannot fail.
    let _ = gate.subscribe().wait_for(|is_open| *is_open).await;
}

impl Executioner for Network {
    async fn judge(&self, call: &Call) -> Fate {
        if !is_lease(call) {
            self.writes.lock().unwrap().push(format!("{} {}", call.method, call.path));
        }
        Fate::Made
    }

    fn kill(&self) {}

    async fn may_be_answered(&self, call: &Call) {
        let is_look = call.method == Method::GET;
        if is_look && is_lease(call) {
            self.looks.fetch_add(1, Ordering::SeqCst);
            until_open(&self.answers_looks).await;
        } else if !is_look && !is_lease(call) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            until_open(&self.answers_writes).await;
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// What is due for all machines at the same moment.
#[derive(Debug, Clone, Copy)]
enum Due {
    /// Three objects for each machine.
    Join,
    /// A cordon, evictions and a deletion.
    GracefulExit,
    /// The same, and at once: these writes do not wait for each other.
    EmergencyExit,
}

impl Due {
    /// Makes it due for a machine.
    async fn ask(self, world: &World, name: &str) {
        match self {
            Self::Join => world.open(name).await,
            Self::GracefulExit => world.close(name).await,
            Self::EmergencyExit => world.patch(name, json!({"spec": {"killSwitch": true}})).await,
        }
    }

    /// The phase that it ends in.
    fn phase(self) -> &'static str {
        match self {
            Self::Join => "Active",
            Self::GracefulExit => "Inactive",
            Self::EmergencyExit => "Terminated",
        }
    }
}

fn name(number: usize) -> String {
    format!("m{number:02}")
}

/// The instance that is stopped, its way to the server, and the machines.
struct Scene {
    world: World,
    network: Arc<Network>,
    first: Controller,
}

impl Scene {
    /// Stops the first instance in the middle of what is due, wakes it when the second has its slot, and returns what it
    /// wrote after that, by the audit log of the API server.
    async fn stop_and_wake(&self, due: Due) -> Vec<String> {
        let network = &self.network;
        network.answers_writes.send_replace(false);
        for number in 0..MACHINES {
            due.ask(&self.world, &name(number)).await;
        }
        network.until_all_wait().await;
        network.until_looked().await;
        let under_way = network.waiting.load(Ordering::SeqCst);
        let stopped = Timestamp::now();
        self.first.signal("-STOP");
        // The answers arrive while it is stopped.
        network.answers_looks.send_replace(false);
        network.answers_writes.send_replace(true);
        let taken = self.until_taken(stopped).await;
        let before = network.writes().len();
        self.first.signal("-CONT");
        tokio::time::sleep(BLIND).await;
        network.answers_looks.send_replace(true);
        until_ready(&self.first, "stands by: holds no slot of 1").await;
        for number in 0..MACHINES {
            self.world.until_phase(&name(number), due.phase()).await;
        }
        let arrived = network.writes()[before..].to_vec();
        let sent = self.written_since(taken);
        println!(
            "{due:?}: {under_way} writes under way; lease taken after {} ms; {} writes since",
            taken.duration_since(stopped).as_millis(),
            sent.len()
        );
        assert_eq!(sent.len(), arrived.len(), "{sent:#?} and {arrived:#?}");
        sent
    }

    /// When the second instance took the lease.
    async fn until_taken(&self, stopped: Timestamp) -> Timestamp {
        let leases: Api<Lease> = Api::namespaced(self.world.management.clone(), "5spot-system");
        let began = Instant::now();
        loop {
            let lease = leases.get("5spot-controller-0").await.unwrap().spec.unwrap_or_default();
            if lease.holder_identity.as_deref() == Some("second") {
                break;
            }
            assert!(began.elapsed() < Duration::from_mins(1), "nobody takes the lease");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let timeline = Timeline::read(&self.world, stopped, short_lease());
        timeline.held(0, Some("second"), stopped).unwrap().from
    }

    /// What the first instance wrote since then, leases aside.
    fn written_since(&self, since: Timestamp) -> Vec<String> {
        let is_written = |entry: &AuditEntry| {
            entry.at >= since
                && entry.stage == "ResponseComplete"
                && entry.user_agent.ends_with("(first)")
                && entry.resource != "leases"
                && !matches!(entry.verb.as_str(), "get" | "list" | "watch")
        };
        let audit = self.world.plane.management().audit().unwrap();
        let text = |it: AuditEntry| format!("{} {} {}: {}", it.at, it.verb, it.uri, it.code);
        audit.into_iter().filter(is_written).map(text).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_wakes_after_another_took_its_slot_writes_nothing() {
    let (plane, _turn) = plane().await;
    let since = Timestamp::now();
    let world = worlds::own(plane, "woken").await;
    for number in 0..MACHINES {
        world.create(&name(number), CLOSED, |_| {}).await;
    }
    let network = Arc::new(Network::new());
    let proxy = Proxy::start(world.management.clone(), Arc::clone(&network)).await;
    let [duration, deadline, retry] = short_lease();
    let args = [
        format!("--lease-duration-secs={duration}"),
        format!("--lease-renew-deadline-secs={deadline}"),
        format!("--lease-retry-period-secs={retry}"),
    ];
    let first = Controller::start_through(plane, "first", &proxy.url, &args.each_ref().map(String::as_str));
    until_ready(&first, "holds slot 0 of 1").await;
    for number in 0..MACHINES {
        world.until_phase(&name(number), "Inactive").await;
    }
    let scene = Scene { world, network, first };
    let all: &[Due] = if is_proof() {
        &[Due::Join, Due::GracefulExit, Due::Join, Due::EmergencyExit]
    } else {
        &[Due::Join, Due::EmergencyExit]
    };
    let mut second: Option<Controller> = None;
    for due in all {
        if let Some(second) = &second {
            end(second).await;
            until_ready(&scene.first, "holds slot 0 of 1").await;
        }
        second = Some(start(plane, "second", 0, 1, short_lease(), &[]));
        until_ready(second.as_ref().unwrap(), "stands by: holds no slot of 1").await;
        let sent = scene.stop_and_wake(*due).await;
        assert!(sent.is_empty(), "{due:?}: an instance without its slot wrote {sent:#?}");
    }
    for controller in second.iter().chain([&scene.first]) {
        end(controller).await;
    }
    let timeline = Timeline::read(&scene.world, since, short_lease());
    print!("{}", timeline.show());
    println!("{} writes, each by the holder of its slot", timeline.check());
}
