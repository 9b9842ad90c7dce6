//! The process: its watches, its session, its end.

use crate::alone;
use crate::available::Available;
use crate::demand::Demand;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::outbox::Outbox;
use crate::owner::{Inputs, Owner};
use crate::perform::Performer;
use crate::rate::Rates;
use crate::seen::{NODES, REQUESTS, RequestView, UPCOMING};
use crate::session::{Session, Standing};
use crate::template::Template;
use anyhow::Context;
use fivespot_api::names::FLEET;
use fivespot_cluster::fleet::Fleet;
use fivespot_cluster::{Cache, Caller, Health, Item, Key, connect_to};
use fivespot_core::fleet::{Input, NodeFacts, Settings, UpcomingFacts};
use fivespot_ops::admin::{Check, Checks, serve_all, serve_health, serve_metrics};
use fivespot_ops::shutdown;
use fivespot_ops::slots::Holdings;
use jiff::SignedDuration;
use kube::Client;
use prometheus_client::registry::Registry;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long a watch may hear nothing before the process counts as dead.
const DEAF: Duration = Duration::from_mins(5);

/// How soon a watch of a kind that is not installed is tried again.
const NOT_INSTALLED: Duration = Duration::from_secs(10);

/// How soon the Nodes are listed again that could not be.
const AGAIN: Duration = Duration::from_secs(1);

/// How long the last acks are waited for.
const LAST_ACKS: Duration = Duration::from_secs(5);

/// How long the shard is waited for to end a session that we have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How often it is looked for machines to forget, at the least.
const SWEEP: Duration = Duration::from_secs(30);

/// Runs until the process is asked to end.
pub async fn run(options: Options) -> anyhow::Result<()> {
    options.check()?;
    let template = if let Some(file) = &options.bootstrap_template_file {
        let what = || format!("--bootstrap-template-file {}", file.display());
        let text = std::fs::read_to_string(file).with_context(what)?;
        Template::read(&text).with_context(what)?
    } else {
        tracing::warn!("no --bootstrap-template-file: machines get a text that says so, and do not join");
        Template::default()
    };
    if options.tls().is_none() {
        tracing::warn!(
            "no TLS: whoever reaches the shard may speak for this cluster, and whoever answers is believed"
        );
    }
    let mut registry = Registry::default();
    let (operator, mut owner) = Operator::new(&options, &mut registry).await?;
    let (mut keeper, right) = alone::keeper(operator.client.clone(), &options);
    serve(&options, &operator.client, operator.checks(keeper.holdings()), registry).await?;
    let stop = watch::Sender::new(false);
    let session = operator.session(&options, template);
    let mut speaking = None;
    {
        let mut ends = stop.subscribe();
        let mut keeping = pin!(keeper.keep(&right, async move {
            // Nobody who could tell is as good as being told.
            let _ = ends.wait_for(|is_told| *is_told).await;
        }));
        let outcome = tokio::select! {
            () = operator.watch() => Ok(()),
            // Without it nothing is decided: another process begins anew from the records.
            ended = &mut owner => Err(anyhow::anyhow!("the task that decides has ended: {ended:?}")),
            () = &mut keeping => Ok(()),
            () = async {
                right.gained().await;
                speaking = Some(tokio::spawn(operator.speak(session, stop.subscribe())));
                right.lost().await;
            } => Err(anyhow::anyhow!("the lease is lost: ending, so that two do not speak for one cluster")),
            asked = shutdown::asked() => asked.context("listen for signals"),
        };
        outcome?;
        operator.say_last_acks().await;
        stop.send_replace(true);
        // What it is about to write to the Lease is written.
        let _ = tokio::time::timeout(LAST_WORDS, keeping).await;
    }
    operator.outbox.close();
    if let Some(speaking) = speaking {
        // A shard that does not read is not waited for.
        let _ = tokio::time::timeout(LAST_WORDS, speaking).await;
    }
    keeper.release().await;
    tracing::info!("ended");
    Ok(())
}

/// Answers on one port, or on two if health has an address of its own.
async fn serve(options: &Options, client: &Client, checks: Checks, registry: Registry) -> anyhow::Result<()> {
    let (address, registry) = (options.metrics_addr, Arc::new(registry));
    let Some(health) = options.health_addr else {
        let port = serve_all(address, checks, registry).await?;
        tracing::info!(address = %address.ip(), port, "listening");
        return Ok(());
    };
    let health_port = serve_health(health, checks).await?;
    let metrics_port = serve_metrics(address, registry, &options.metrics, client).await?;
    tracing::info!(address = %address.ip(), health_port, metrics_port, "listening");
    Ok(())
}

struct Operator {
    client: Client,
    fleet: Fleet,
    nodes: Cache<NodeFacts>,
    upcoming: Cache<UpcomingFacts>,
    requests: Cache<RequestView>,
    outbox: Arc<Outbox>,
    metrics: Metrics,
    inputs: Inputs,
    available: Arc<Available>,
    standing: Arc<Standing>,
    forget_after: Duration,
}

impl Operator {
    async fn new(options: &Options, registry: &mut Registry) -> anyhow::Result<(Self, JoinHandle<()>)> {
        let caller = Caller { program: FLEET, instance: Some(options.pod_name.clone()) };
        let client = connect_to(options.kubeconfig.as_deref(), caller).await?;
        let fleet = Fleet::new(client.clone(), &options.pod_name);
        let metrics = Metrics::new(registry);
        let (nodes, upcoming) = (Cache::new("Nodes"), Cache::new("UpcomingNodes"));
        let outbox = Arc::new(Outbox::default());
        let settings = Settings {
            default_grace: SignedDuration::try_from(options.default_grace).context("--default-grace")?,
            observe_only: options.observe_only,
        };
        let (owner, inputs) = Owner::new(settings);
        let performer = Arc::new(Performer {
            fleet: fleet.clone(),
            nodes: nodes.clone(),
            outbox: Arc::clone(&outbox),
            metrics: metrics.clone(),
            rates: Rates::new(options.evictions_per_second),
            inputs: inputs.clone(),
            policy: options.policy(),
            own: (options.lease_namespace.clone(), options.pod_name.clone()),
            drains: Mutex::default(),
        });
        let owner = tokio::spawn(owner.run(performer));
        let operator = Self {
            client,
            available: Arc::new(Available::new(fleet.clone(), metrics.clone())),
            fleet,
            nodes,
            upcoming,
            requests: Cache::new("CapacityRequests"),
            outbox,
            metrics,
            inputs,
            standing: Arc::default(),
            forget_after: options.forget_after,
        };
        Ok((operator, owner))
    }

    fn session(&self, options: &Options, template: Template) -> Session {
        let demand = Demand::new(
            options.cluster_id.clone(),
            self.fleet.clone(),
            self.requests.clone(),
            self.metrics.clone(),
        );
        Session {
            cluster: options.cluster_id.clone(),
            shard: options.shard_addr.clone(),
            tls: options.tls(),
            template,
            interval: options.rollup_interval,
            demand: Arc::new(demand),
            inputs: self.inputs.clone(),
            available: Arc::clone(&self.available),
            outbox: Arc::clone(&self.outbox),
            metrics: self.metrics.clone(),
            standing: Arc::clone(&self.standing),
        }
    }

    /// Goes on with what another process began, and holds the session. A task of its own: nothing can hold it up.
    fn speak(
        &self,
        session: Session,
        stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (nodes, upcoming) = (self.nodes.clone(), self.upcoming.clone());
        let (fleet, inputs) = (self.fleet.clone(), self.inputs.clone());
        async move {
            // What the shard says can be carried out only by who knows the Nodes.
            tokio::join!(nodes.synced(), upcoming.synced());
            let resume = async {
                // They are asked of the server, since what a watch shows may be of a moment before.
                loop {
                    match fleet.taken().await {
                        Ok(taken) => break inputs.lead(&taken),
                        Err(error) => tracing::warn!(%error, "what another process began is not known yet"),
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = session.hold(stop) => {}
                () = resume => {}
            }
        }
    }

    /// Watches for ever.
    async fn watch(&self) {
        tokio::join!(
            follow(&self.fleet, &self.nodes, NODES, |key| self.inputs.node_changed(key, &self.nodes)),
            follow(&self.fleet, &self.upcoming, UPCOMING, |key| {
                self.inputs.upcoming_changed(key, &self.upcoming);
            }),
            follow(&self.fleet, &self.requests, REQUESTS, |_| {}),
            self.available.run(),
            self.sweep(),
        );
    }

    /// Removes UpcomingNodes of machines that the shard does not know any more: it tells all that it knows when a session
    /// begins. A shard that was started again knows none before it has asked its provider, so a machine that has a Node is
    /// believed to be there.
    async fn sweep(&self) {
        loop {
            tokio::time::sleep(SWEEP.min(self.forget_after / 2)).await;
            let Ok(since) = self.standing.look() else { continue };
            if since.elapsed() < self.forget_after {
                continue;
            }
            self.inputs.put(Input::Sweep);
        }
    }

    /// Waits until the last acks are said. Drains go on in the next process.
    async fn say_last_acks(&self) {
        let began = Instant::now();
        let is_done =
            || self.standing.look().is_err() || (self.inputs.are_settled() && self.outbox.is_flushed());
        while began.elapsed() < LAST_ACKS && !is_done() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn checks(&self, holdings: Holdings) -> Checks {
        let (nodes, upcoming, requests) = (self.nodes.clone(), self.upcoming.clone(), self.requests.clone());
        let health = move || {
            [
                (nodes.what().to_owned(), nodes.health()),
                (upcoming.what().to_owned(), upcoming.health()),
                (requests.what().to_owned(), requests.health()),
            ]
        };
        let all = health.clone();
        let alive: Check = Arc::new(move || {
            let deaf = all().into_iter().find(|(_, health)| health.heard.elapsed() > DEAF);
            match deaf {
                Some((what, health)) => Err(format!(
                    "the watch of {what} has heard nothing for {} s",
                    health.heard.elapsed().as_secs()
                )),
                None => Ok("alive".to_owned()),
            }
        });
        let (standing, inputs) = (Arc::clone(&self.standing), self.inputs.clone());
        let ready: Check = Arc::new(move || {
            for (what, Health { synced, failure, .. }) in health() {
                if !synced {
                    let why = failure.map_or(String::new(), |failure| format!(": {}", failure.message));
                    return Err(format!("the {what} have not been read yet{why}"));
                }
            }
            // One that waits has done what it can: it must count as ready, or no new version could be rolled out.
            if standing.is_waiting() {
                return match holdings.complaint() {
                    Some(complaint) => Err(complaint),
                    None => Ok("ready: stands by, another operator has the lease".to_owned()),
                };
            }
            standing.look().map_err(|why| format!("no session: {why}"))?;
            Ok(format!("ready; drains under way: {}", inputs.drains()))
        });
        Checks { alive, ready }
    }
}

/// Keeps a copy, also of a kind that is installed later.
async fn follow<T: Item>(fleet: &Fleet, cache: &Cache<T>, path: &str, changed: impl Fn(&Key) + Send + Sync) {
    loop {
        cache.follow(fleet.source(path), &changed).await;
        tokio::time::sleep(NOT_INSTALLED).await;
    }
}
