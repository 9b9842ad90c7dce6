//! The process: its watches, its queue, its end.

use crate::metrics::{ByChange, ByPhase, BySlot, ByTask, Metrics, SlotChange};
use crate::options::Options;
use crate::queue::{Failures, Outcome, Queue};
use crate::share::Share;
use crate::work::Worker;
use anyhow::Context;
use fivespot_api::ScheduledMachine;
use fivespot_api::names::CONTROLLER;
use fivespot_cluster::{
    Caller, Change, Key, ManagementNamespaces, Retry, Right, Settings, Shell, connect_to,
};
use fivespot_core::lifecycle::{Patience, Phase};
use fivespot_core::servers::AllowedServers;
use fivespot_ops::admin::{Checks, serve_health, serve_metrics};
use fivespot_ops::shutdown;
use fivespot_ops::slots::{self, Keeper, Loss, Tenant};
use jiff::Timestamp;
use kube::Client;
use prometheus_client::registry::Registry;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// How long a watch may hear nothing before the process counts as dead. A watch that hears nothing for half of it
/// begins anew by itself.
const DEAF: Duration = Duration::from_mins(5);

/// How often the clock is looked at.
const TICK: Duration = Duration::from_secs(5);

/// A difference between the two clocks of the host that is a step, and not their drift.
const STEP: Duration = Duration::from_secs(1);

/// How long passes under way may take to end when their machines go to another process.
const ENDING: Duration = Duration::from_secs(1);

/// How long writes under way may take to be answered, then. What is older has arrived for certain.
const ANSWERING: Duration = Duration::from_millis(500);

/// How long passes that were ended may take to notice it.
const ABORTING: Duration = Duration::from_millis(200);

/// What the watches and the loop share.
struct Desk {
    /// Whose machines are put on it.
    share: Arc<Share>,
    queue: Mutex<Queue>,
    ring: Notify,
    /// Passes under way.
    passes: Mutex<HashMap<Key, AbortHandle>>,
    /// Rings when one has ended.
    ended: Notify,
}

impl Desk {
    fn with<R>(&self, work: impl FnOnce(&mut Queue) -> R) -> R {
        work(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn touch(&self, key: &Key, change: Change) {
        if !self.share.has(key) {
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

    /// Passes under way in these slots.
    fn under_way(&self, slots: &BTreeSet<u32>) -> Vec<AbortHandle> {
        let passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = passes.iter().filter(|(key, _)| slots.contains(&self.share.slot(key)));
        inside.map(|(_, pass)| pass.clone()).collect()
    }
}

/// What happens when slots come and go.
struct Office {
    desk: Arc<Desk>,
    worker: Arc<Worker>,
}

impl Tenant for Office {
    fn gained(&self, slot: u32) {
        self.desk.share.forget(slot);
        self.count(slot, SlotChange::gained);
        for (key, _) in self.worker.shell.all() {
            if self.desk.share.slot(&key) == slot {
                self.desk.touch(&key, Change::World);
            }
        }
    }

    fn lost(&self, slot: u32, how: Loss) {
        self.desk.share.forget(slot);
        let change = match how {
            Loss::HandedOver => SlotChange::handed_over,
            Loss::Lost => SlotChange::lost,
        };
        self.count(slot, change);
    }

    async fn leave(&self, slots: &BTreeSet<u32>) {
        self.desk.share.leave(slots);
        // A pass is short, unless a cluster answers slowly. To be ended is no worse for it than a crash.
        if tokio::time::timeout(ENDING, self.finish(slots)).await.is_err() {
            self.desk.share.hurry(slots);
            let _ = tokio::time::timeout(ANSWERING, self.finish(slots)).await;
            self.desk.under_way(slots).iter().for_each(AbortHandle::abort);
            let _ = tokio::time::timeout(ABORTING, self.finish(slots)).await;
        }
    }
}

impl Office {
    /// Returns when no pass is under way in these slots.
    async fn finish(&self, slots: &BTreeSet<u32>) {
        loop {
            let mut ended = pin!(self.desk.ended.notified());
            // Before the look, so that what ends in between is heard of.
            ended.as_mut().enable();
            if self.desk.under_way(slots).is_empty() {
                return;
            }
            ended.await;
        }
    }

    fn count(&self, slot: u32, change: SlotChange) {
        let metrics = &self.worker.metrics;
        metrics.slot_changes.get_or_create(&ByChange { change }).inc();
        metrics.slots_held.get_or_create(&BySlot { slot }).set(i64::from(change == SlotChange::gained));
    }
}

/// Runs until the process is asked to end.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    options.check()?;
    let (name, dry_run) = (options.instance_name(), options.dry_run);
    let caller = Caller { program: CONTROLLER, instance: Some(name.clone()) };
    let client = connect_to(options.kubeconfig.as_deref(), caller).await?;
    let (namespace, instance) = (options.lease_namespace.clone(), options.instance());
    let mut keeper =
        Keeper::new(client.clone(), slots::Settings { namespace, program: CONTROLLER, instance });
    let share = Arc::new(Share::new(dry_run, keeper.holdings()));
    let patience = if options.force_finalizer_on_timeout { Patience::Limited } else { Patience::Endless };
    let settings = Settings {
        capi_version: options.capi_version,
        patience,
        management_namespaces: ManagementNamespaces::Listed(options.management_cluster_namespaces.clone()),
        allowed_servers: AllowedServers(options.workload_api_servers.clone()),
        instance: name,
        right: share.clone(),
    };
    let desk = Arc::new(Desk {
        share: Arc::clone(&share),
        queue: Mutex::default(),
        ring: Notify::new(),
        passes: Mutex::default(),
        ended: Notify::new(),
    });
    let notify = {
        let desk = Arc::clone(&desk);
        move |key: &Key, change| desk.touch(key, change)
    };
    let shell = Shell::start(client.clone(), settings, notify);
    let metrics = serve(&options, &client, &shell, &share).await?;
    let worker = Arc::new(Worker::new(Arc::clone(&shell), share, metrics, patience, &options));
    let office = Office { desk: Arc::clone(&desk), worker: Arc::clone(&worker) };

    let mut passes = JoinSet::new();
    let (stop, stopped) = watch::channel(false);
    let outcome = {
        let mut holding = pin!(hold(&mut keeper, &office, dry_run, stopped));
        let working = async {
            shell.ready().await;
            tracing::info!(machines = shell.all().len(), "ready");
            work(&desk, &worker, &mut passes).await;
        };
        let outcome = tokio::select! {
            () = working => Ok(()),
            () = &mut holding => Ok(()),
            asked = shutdown::asked() => asked.context("listen for signals"),
        };
        stop.send_replace(true);
        // A pass is short. What is under way is finished while the right to write still stands.
        let all = (0..=desk.share.held().1).collect();
        let _ = tokio::join!(office.leave(&all), tokio::time::timeout(ENDING, holding));
        outcome
    };
    passes.shutdown().await;
    if !dry_run {
        keeper.release().await;
    }
    tracing::info!("ended");
    outcome
}

/// Holds slots, as soon as enough is known to work on them and until it is told to stop.
async fn hold(keeper: &mut Keeper, office: &Office, dry_run: bool, mut stop: watch::Receiver<bool>) {
    let mut stopped = pin!(async move {
        // Nobody who could tell is as good as being told.
        let _ = stop.wait_for(|is_told| *is_told).await;
    });
    tokio::select! {
        () = office.worker.shell.ready() => {}
        () = &mut stopped => return,
    }
    if dry_run {
        tracing::info!("dry run: nothing is written");
        stopped.await;
    } else {
        keeper.keep(office, stopped).await;
    }
}

/// Starts a pass for every machine that is due. Never ends.
async fn work(desk: &Arc<Desk>, worker: &Arc<Worker>, passes: &mut JoinSet<()>) {
    // A dry run looks at everything; else nothing is ours yet.
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
            let (worker, name) = (Arc::clone(worker), key.clone());
            start(desk, passes, key, async move { worker.pass(&name, failures).await });
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

/// Starts a pass. However it ends, the queue hears of it: also if it is ended before it has begun.
fn start(
    desk: &Arc<Desk>,
    passes: &mut JoinSet<()>,
    key: Key,
    pass: impl Future<Output = Outcome> + Send + 'static,
) {
    let name = key.clone();
    // Made here: a task that is ended before it was polled runs nothing, and drops what it was given.
    let done = Done { desk: Arc::clone(desk), key, outcome: None };
    let mut under_way = desk.passes.lock().unwrap_or_else(PoisonError::into_inner);
    let pass = passes.spawn(async move {
        // The whole of it is moved in, and not the field that is written alone.
        let mut done = done;
        done.outcome = Some(pass.await);
    });
    under_way.insert(name, pass);
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
        self.desk.ended.notify_waiters();
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

/// Only of those that are looked after here: the sum over all instances is right then.
fn count_phases(worker: &Worker) {
    let mut all = worker.shell.all();
    all.retain(|(key, _)| worker.share.has(key));
    for phase in Phase::ALL {
        let is_in = |key: &&(Key, Arc<fivespot_cluster::Watched>)| {
            let status = key.1.machine.status.as_ref();
            status.and_then(|status| status.phase.as_deref()) == Some(phase.word())
        };
        let count = i64::try_from(all.iter().filter(is_in).count()).unwrap_or(i64::MAX);
        worker.metrics.machines.get_or_create(&ByPhase { phase: phase.word() }).set(count);
    }
    let count = |is_so: fn(&ScheduledMachine) -> bool| {
        i64::try_from(all.iter().filter(|(_, it)| is_so(&it.machine)).count()).unwrap_or(i64::MAX)
    };
    for (task, times) in worker.shell.restarts() {
        worker
            .metrics
            .task_restarts
            .get_or_create(&ByTask { task })
            .set(i64::try_from(times).unwrap_or(i64::MAX));
    }
    worker.metrics.hosts_not_cleaned.set(count(|machine| machine.returned_node().is_some()));
    worker.metrics.machines_unreachable.set(count(ScheduledMachine::is_workload_unreachable));
}

async fn serve(
    options: &Options,
    client: &Client,
    shell: &Arc<Shell>,
    share: &Arc<Share>,
) -> anyhow::Result<Metrics> {
    let (of_life, of_readiness, share) = (Arc::clone(shell), Arc::clone(shell), Arc::clone(share));
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
        let restarts: Vec<String> =
            of_life.restarts().iter().map(|(task, times)| format!("{task} {times}")).collect();
        match (deaf.as_slice(), restarts.as_slice()) {
            ([], []) => Ok("alive".to_owned()),
            ([], restarts) => {
                Ok(format!("alive; tasks that panicked and were restarted: {}", restarts.join(", ")))
            }
            (deaf, _) => Err(deaf.join("; ")),
        }
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
        if unsynced.is_empty() { Ok(format!("ready: {share}")) } else { Err(unsynced.join("; ")) }
    };
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    metrics.slots.set(i64::from(options.instance_count.get()));
    for slot in 0..options.instance_count.get() {
        metrics.slots_held.get_or_create(&BySlot { slot }).set(0);
    }
    let checks = Checks { alive: Arc::new(alive), ready: Arc::new(ready) };
    let at = |port| SocketAddr::new(options.listen_address, port);
    let health_port = serve_health(at(options.health_port), checks).await?;
    let metrics_at = at(options.metrics_port);
    let metrics_port = serve_metrics(metrics_at, Arc::new(registry), &options.metrics, client).await?;
    tracing::info!(address = %options.listen_address, health_port, metrics_port, "listening");
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kill switch may be set between the moment a pass is started and the moment its task begins to run.
    #[tokio::test]
    async fn a_pass_that_is_ended_before_it_begins_is_made_again() {
        let desk = Arc::new(Desk {
            share: Arc::new(Share::DryRun),
            queue: Mutex::default(),
            ring: Notify::new(),
            passes: Mutex::default(),
            ended: Notify::new(),
        });
        let (key, mut passes) = (Key::new("default", "m"), JoinSet::new());
        desk.touch(&key, Change::World);
        assert_eq!(desk.with(|queue| queue.next(Instant::now())), Some(key.clone()));
        start(&desk, &mut passes, key.clone(), std::future::pending());
        // The task has not run: this test has one thread, and has not waited for anything.
        desk.touch(&key, Change::Urgent);
        while passes.join_next().await.is_some() {}
        assert_eq!(desk.with(|queue| queue.next(Instant::now())), Some(key));
        assert!(desk.under_way(&BTreeSet::from([0])).is_empty(), "and nobody waits for it");
    }
}
