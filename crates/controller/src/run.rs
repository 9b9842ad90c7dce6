//! The process: its watches, its queue, its end.

use crate::metrics::{ByPhase, Metrics};
use crate::options::Options;
use crate::queue::{Failures, Outcome, Queue};
use crate::work::Worker;
use anyhow::Context;
use fivespot_api::names::CONTROLLER;
use fivespot_cluster::{Change, Key, MayWrite, Reporter, Retry, Settings, Shell, connect_to};
use fivespot_core::lifecycle::{Patience, Phase};
use fivespot_ops::admin::{Checks, serve_health, serve_metrics};
use fivespot_ops::lease::{self, Lease};
use fivespot_ops::shutdown;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// How long a watch may hear nothing before the process counts as dead. A watch that hears nothing for half of it
/// begins anew by itself.
const DEAF: Duration = Duration::from_mins(5);

/// How often the clock is looked at.
const TICK: Duration = Duration::from_secs(5);

/// A difference between the two clocks of the host that is a step, and not their drift.
const STEP: Duration = Duration::from_secs(1);

/// How long passes under way may take to end when the process is asked to.
const ENDING: Duration = Duration::from_secs(8);

/// Number of this instance. There is one; a second process is its standby.
const INSTANCE: i64 = 0;

/// What the watches and the loop share.
#[derive(Default)]
struct Desk {
    queue: Mutex<Queue>,
    ring: Notify,
    /// Passes under way.
    passes: Mutex<HashMap<Key, AbortHandle>>,
    /// Whether anybody works here: until then nothing is put on it, and then all is.
    is_open: AtomicBool,
}

impl Desk {
    fn with<R>(&self, work: impl FnOnce(&mut Queue) -> R) -> R {
        work(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn touch(&self, key: &Key, change: Change) {
        if !self.is_open.load(Ordering::Acquire) {
            return;
        }
        self.with(|queue| queue.touch(key, change, Instant::now()));
        if change == Change::Urgent {
            // A pass may wait for a cluster that answers slowly. To be ended is no worse for it than a crash.
            let passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(pass) = passes.get(key) {
                pass.abort();
            }
        }
        self.ring.notify_one();
    }
}

/// Runs until the process is asked to end, or has lost its right to write.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    options.check()?;
    let client = connect_to(options.kubeconfig.as_deref(), CONTROLLER).await?;
    let name = process_name(&options);
    let mut lease = Lease::new(client.clone(), lease_settings(&options, &name));
    let (held, dry_run) = (lease.held(), options.dry_run);
    let may_write: MayWrite = Arc::new(move || !dry_run && held.is_held());
    let patience = if options.force_finalizer_on_timeout { Patience::Limited } else { Patience::Endless };
    let settings = Settings {
        capi_version: options.capi_version,
        patience,
        instance: INSTANCE,
        reporter: Reporter { instance: name },
        may_write,
    };
    let desk = Arc::new(Desk::default());
    let notify = {
        let desk = Arc::clone(&desk);
        move |key: &Key, change| desk.touch(key, change)
    };
    let shell = Shell::start(client, settings, notify);
    let metrics = serve(&options, &shell).await?;
    let worker = Arc::new(Worker::new(Arc::clone(&shell), metrics, patience, &options));

    let mut passes = JoinSet::new();
    let work = async {
        shell.ready().await;
        tracing::info!(machines = shell.all().len(), "ready");
        if dry_run {
            tracing::info!("dry run: nothing is written");
            work(&desk, &worker, &mut passes).await;
        }
        lease.acquire().await;
        tokio::select! {
            () = work(&desk, &worker, &mut passes) => Ok(()),
            () = lease.keep() => Err(anyhow::anyhow!("the lease is lost: ending, so that nothing more is written")),
        }
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        asked = shutdown::asked() => asked.context("listen for signals"),
    };
    // A pass is short. What is under way is finished while the right to write still stands.
    let finish = async { while passes.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(ENDING, finish).await;
    passes.shutdown().await;
    if !dry_run {
        lease.release().await;
    }
    tracing::info!("ended");
    outcome
}

/// Starts a pass for every machine that is due. Never ends.
async fn work(desk: &Arc<Desk>, worker: &Arc<Worker>, passes: &mut JoinSet<()>) {
    desk.is_open.store(true, Ordering::Release);
    for (key, _) in worker.shell.all() {
        desk.touch(&key, Change::World);
    }
    let mut clocks = Clocks::now();
    let mut tick = tokio::time::interval(TICK);
    loop {
        let mut due: Vec<(Failures, Key)> = desk.with(|queue| {
            let next = || queue.next(Instant::now()).map(|key| (queue.failures(&key), key));
            std::iter::from_fn(next).collect()
        });
        due.sort_by_cached_key(|(_, key)| Reverse(worker.priority(key)));
        for (failures, key) in due {
            let (of_pass, worker, name) = (Arc::clone(desk), Arc::clone(worker), key.clone());
            let mut under_way = desk.passes.lock().unwrap_or_else(PoisonError::into_inner);
            let pass = passes.spawn(async move {
                let mut done = Done { desk: of_pass, key, outcome: None };
                done.outcome = Some(worker.pass(&done.key, failures).await);
            });
            under_way.insert(name, pass);
        }
        let next = desk.with(|queue| queue.next_at());
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = desk.ring.notified() => {}
            Some(_) = passes.join_next() => {}
            _ = tick.tick() => {
                count_phases(worker);
                worker.shell.tidy();
                if clocks.have_parted() {
                    tracing::warn!("the clock was set: every machine is looked at again");
                    for (key, _) in worker.shell.all() {
                        desk.touch(&key, Change::World);
                    }
                }
            }
        }
    }
}

/// A pass that is under way. One that panics must not keep its machine from ever being looked at again.
struct Done {
    desk: Arc<Desk>,
    key: Key,
    outcome: Option<Outcome>,
}

impl Drop for Done {
    fn drop(&mut self) {
        let outcome = self.outcome.unwrap_or_else(|| {
            if std::thread::panicking() {
                Outcome::Failed(Retry::Later, None)
            } else {
                // It was ended for something more urgent.
                Outcome::Behind(Instant::now())
            }
        });
        self.desk.passes.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.desk.with(|queue| queue.done(&self.key, outcome, Instant::now()));
        self.desk.ring.notify_one();
    }
}

/// The two clocks of the host: the one that people set, and the one that only runs.
struct Clocks {
    wall: Timestamp,
    running: Instant,
}

impl Clocks {
    fn now() -> Self {
        Self { wall: Timestamp::now(), running: Instant::now() }
    }

    /// Whether one has moved without the other since the last look.
    fn have_parted(&mut self) -> bool {
        let now = Self::now();
        let by_wall = now.wall.duration_since(self.wall);
        let by_running = jiff::SignedDuration::try_from(now.running - self.running).unwrap_or(by_wall);
        *self = now;
        (by_wall - by_running).unsigned_abs() > STEP
    }
}

fn count_phases(worker: &Worker) {
    let all = worker.shell.all();
    for phase in Phase::ALL {
        let is_in = |key: &&(Key, Arc<fivespot_cluster::Watched>)| {
            let status = key.1.machine.status.as_ref();
            status.and_then(|status| status.phase.as_deref()) == Some(phase.word())
        };
        let count = i64::try_from(all.iter().filter(is_in).count()).unwrap_or(i64::MAX);
        worker.metrics.machines.get_or_create(&ByPhase { phase: phase.word() }).set(count);
    }
}

/// No two processes have the same: in a pod its name, else the host's with the number of the process.
fn process_name(options: &Options) -> String {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    options.pod_name.clone().unwrap_or_else(|| format!("{}-{}", host(), std::process::id()))
}

fn lease_settings(options: &Options, name: &str) -> lease::Settings {
    lease::Settings {
        namespace: options.lease_namespace.clone(),
        name: format!("{CONTROLLER}-{INSTANCE}"),
        holder: name.to_owned(),
        duration: Duration::from_secs(options.lease_duration_secs),
        renew_deadline: Duration::from_secs(options.lease_renew_deadline_secs),
        retry: Duration::from_secs(options.lease_retry_period_secs),
    }
}

async fn serve(options: &Options, shell: &Arc<Shell>) -> anyhow::Result<Metrics> {
    let (of_life, of_readiness) = (Arc::clone(shell), Arc::clone(shell));
    let alive = move || {
        let deaf: Vec<String> = of_life
            .health()
            .into_iter()
            .filter(|(_, health)| health.heard.elapsed() > DEAF)
            .map(|(what, health)| {
                let why = health.failure.map_or("silence".to_owned(), |failure| failure.message);
                format!(
                    "the watch of {what} has heard nothing for {} s: {why}",
                    health.heard.elapsed().as_secs()
                )
            })
            .collect();
        if deaf.is_empty() { Ok("alive".to_owned()) } else { Err(deaf.join("; ")) }
    };
    let ready = move || {
        let unsynced: Vec<String> = of_readiness
            .health()
            .into_iter()
            .filter(|(_, health)| !health.synced)
            .map(|(what, health)| {
                let why = health.failure.map_or(String::new(), |failure| format!(": {}", failure.message));
                format!("the copy of {what} is not whole yet{why}")
            })
            .collect();
        if unsynced.is_empty() { Ok("ready".to_owned()) } else { Err(unsynced.join("; ")) }
    };
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let checks = Checks { alive: Arc::new(alive), ready: Arc::new(ready) };
    let health_port = serve_health(options.listen_address, options.health_port, checks).await?;
    let metrics_port =
        serve_metrics(options.listen_address, options.metrics_port, Arc::new(registry)).await?;
    tracing::info!(address = %options.listen_address, health_port, metrics_port, "listening");
    Ok(metrics)
}
