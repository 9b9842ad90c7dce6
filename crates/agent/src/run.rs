//! The process: its detector, its watches, its end.

use crate::config::{ConfigText, Standing};
use crate::detector::{Detector, Orders, Report, Settings, Sighting, look_once};
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::node::NodeView;
use crate::options::Options;
use crate::signal::{Place, Signaller};
use anyhow::Context;
use fivespot_api::AgentConfig;
use fivespot_api::names::{AGENT, SYSTEM_NAMESPACE, agent_config_map};
use fivespot_cluster::{Cache, Health, Key, Source, connect_to};
use fivespot_ops::admin::{Check, Checks, serve_all};
use fivespot_ops::shutdown;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};

/// How long a watch may hear nothing, or the detector not come round, before the process counts as dead.
const DEAF: Duration = Duration::from_mins(5);

/// What the process says at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It was asked to end.
    Asked,
    /// It looked once, and this is whether a process matched.
    Looked(bool),
}

/// Runs until the process is asked to end, or has looked once if that is all it was asked for.
pub async fn run(options: Options) -> anyhow::Result<Ending> {
    match (&options.config, options.node_name.clone()) {
        (Some(file), _) => try_out(&options, file).await,
        (None, Some(node)) => serve_node(&options, node).await,
        (None, None) => anyhow::bail!("give --node-name or --config"),
    }
}

/// Looks for what a file says, and tells nobody but the log.
async fn try_out(options: &Options, file: &Path) -> anyhow::Result<Ending> {
    let what = || format!("read {}", file.display());
    let text = std::fs::read_to_string(file).with_context(what)?;
    let config = AgentConfig::parse(&text).with_context(what)?;
    if options.oneshot {
        return look(options, &config);
    }
    let mut registry = Registry::default();
    let (agent, failures) = Agent::start(options, &mut registry)?;
    agent.arm(Some(&config));
    let detector = Arc::clone(&agent.detector);
    let of_ready = Arc::clone(&detector);
    let alive: Check = Arc::new(move || detector_health(&detector));
    let ready: Check = Arc::new(move || detector_readiness(&of_ready));
    listen(options, Checks { alive, ready }, registry).await?;
    let mut sightings = agent.sightings.clone();
    let tell = async {
        while sightings.changed().await.is_ok() {
            if let Some(Sighting { pattern, .. }) = &*sightings.borrow_and_update() {
                tracing::info!(pattern = &**pattern, "a process matches");
            }
        }
    };
    agent.until_the_end(failures, tell).await
}

/// Looks for what the ConfigMap says, and asks for the machine on its Node.
async fn serve_node(options: &Options, node: String) -> anyhow::Result<Ending> {
    let place = Place { client: connect_to(options.kubeconfig.as_deref(), AGENT).await?, node };
    if options.oneshot {
        let config = place.config().await.map_err(anyhow::Error::msg).context("read the ConfigMap")?;
        let config = config.map(|text| text.parse()).transpose().map_err(anyhow::Error::msg)?;
        return look(options, &config.unwrap_or_default());
    }
    let identity = if options.skip_host_id_check {
        tracing::warn!("the machine-id is not compared with the Node's: NODE_NAME alone decides");
        Identity::Unchecked
    } else {
        Identity::read(&options.machine_id_path)?
    };
    let mut registry = Registry::default();
    let (agent, failures) = Agent::start(options, &mut registry)?;
    let watches = Watches::new(place, identity, &agent);
    listen(options, watches.checks(&agent), registry).await?;
    agent.until_the_end(failures, Box::pin(watches.follow(&agent))).await
}

fn look(options: &Options, config: &AgentConfig) -> anyhow::Result<Ending> {
    let found = look_once(&options.proc_root, &config.patterns())?;
    if let Some(pattern) = &found {
        tracing::info!(pattern = &**pattern, "a process matches");
    }
    Ok(Ending::Looked(found.is_some()))
}

/// The detector and what it reports.
struct Agent {
    detector: Arc<Detector>,
    metrics: Metrics,
    sightings: watch::Receiver<Option<Sighting>>,
}

/// Why the detector cannot go on.
type Failures = mpsc::UnboundedReceiver<String>;

impl Agent {
    fn start(options: &Options, registry: &mut Registry) -> anyhow::Result<(Self, Failures)> {
        let metrics = Metrics::new(registry);
        let (seen, sightings) = watch::channel(None);
        let (failed, failures) = mpsc::unbounded_channel();
        let tell = move |report| match report {
            Report::Seen(sighting) => {
                seen.send_replace(Some(sighting));
            }
            Report::Failed(why) => {
                let _ = failed.send(why);
            }
        };
        let settings = Settings::new(options.proc_root.clone(), options.detector.into());
        let detector = Arc::new(Detector::start(settings, metrics.clone(), tell)?);
        Ok((Self { detector, metrics, sightings }, failures))
    }

    /// Looks for something else from now on, or for nothing.
    fn arm(&self, config: Option<&AgentConfig>) {
        let config = config.filter(|config| !config.patterns().is_empty());
        self.metrics.armed.set(i64::from(config.is_some()));
        self.detector.order(config.map(|config| Orders {
            patterns: config.patterns(),
            interval: Duration::from_millis(config.poll_interval_ms),
        }));
        if let Some(config) = config {
            let (commands, arguments) = (config.match_commands.len(), config.match_argv_substrings.len());
            tracing::info!(commands, arguments, "armed");
        } else {
            tracing::info!("disarmed: there is nothing to look for");
        }
    }

    /// Does `work` until the process is asked to end or the detector cannot go on, and unsubscribes.
    async fn until_the_end(
        &self,
        mut failures: Failures,
        work: impl Future<Output = ()>,
    ) -> anyhow::Result<Ending> {
        // Work may end because nothing is heard of the detector any more; why that is, the detector says itself.
        let forever = async {
            work.await;
            std::future::pending().await
        };
        let outcome = tokio::select! {
            ending = forever => ending,
            asked = shutdown::asked() => asked.context("listen for signals").map(|()| Ending::Asked),
            why = failures.recv() => Err(anyhow::Error::msg(why.unwrap_or_else(|| "the detector ended".to_owned()))),
        };
        self.detector.stop();
        tracing::info!("ended");
        outcome
    }
}

async fn listen(options: &Options, checks: Checks, registry: Registry) -> anyhow::Result<()> {
    let address = SocketAddr::new(options.listen_address, options.health_port);
    let port = serve_all(address, checks, Arc::new(registry)).await?;
    tracing::info!(address = %options.listen_address, port, "listening");
    Ok(())
}

/// What is watched on the server.
struct Watches {
    place: Place,
    identity: Identity,
    metrics: Metrics,
    nodes: Cache<NodeView>,
    configs: Cache<ConfigText>,
    node_changed: Arc<Notify>,
    armed: watch::Sender<Option<Arc<AgentConfig>>>,
    standing: Arc<Mutex<Standing>>,
    refused: Mutex<Option<(String, String)>>,
}

impl Watches {
    fn new(place: Place, identity: Identity, agent: &Agent) -> Self {
        Self {
            place,
            identity,
            metrics: agent.metrics.clone(),
            nodes: Cache::new("Node"),
            configs: Cache::new("ConfigMap"),
            node_changed: Arc::default(),
            armed: watch::Sender::new(None),
            standing: Arc::default(),
            refused: Mutex::default(),
        }
    }

    async fn follow(&self, agent: &Agent) {
        let (node, config) = (&self.place.node, agent_config_map(&self.place.node));
        let client = &self.place.client;
        let source = |path: &str, name: &str| Source {
            fields: Some(format!("metadata.name={name}")),
            ..Source::of(client.clone(), path)
        };
        let node_source = source("/api/v1/nodes", node);
        let config_source = source(&format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps"), &config);
        let detector = Arc::downgrade(&agent.detector);
        let signaller = Signaller {
            place: self.place.clone(),
            identity: self.identity.clone(),
            metrics: self.metrics.clone(),
            nodes: self.nodes.clone(),
            node_changed: Arc::clone(&self.node_changed),
            armed: self.armed.subscribe(),
            sightings: agent.sightings.clone(),
            scan: Box::new(move || {
                if let Some(detector) = detector.upgrade() {
                    detector.scan();
                }
            }),
        };
        tokio::join!(
            self.nodes.follow(node_source, |_| self.see_node()),
            self.configs.follow(config_source, |key| self.see_config(key, agent)),
            signaller.run(),
            self.place.keep_warm(self.armed.subscribe()),
        );
    }

    /// The Node has changed: whether it is this machine is said once for each Node.
    fn see_node(&self) {
        let node = self.nodes.get(&Key::new("", self.place.node.as_str()));
        let refusal = node.and_then(|node| {
            let why = self.identity.check(&node).err()?;
            Some((node.uid.clone(), why.to_string()))
        });
        self.metrics.identity_refused.set(i64::from(refusal.is_some()));
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if *refused != refusal {
            if let Some((_, why)) = &refusal {
                tracing::error!(node = self.place.node, "nothing will be written to the Node: {why}");
            }
            *refused = refusal;
        }
        drop(refused);
        self.node_changed.notify_one();
    }

    /// The ConfigMap has changed, or is gone.
    fn see_config(&self, key: &Key, agent: &Agent) {
        let seen = self.configs.get(key);
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        let next = standing.after(seen.as_deref());
        self.metrics.config_refused.set(i64::from(next.refused.is_some()));
        if let Some(why) = next.refused.as_ref().filter(|why| standing.refused.as_ref() != Some(why)) {
            self.metrics.config_errors.inc();
            let keeps =
                if next.armed.is_some() { "the last good one stands" } else { "nothing is looked for" };
            tracing::error!("the configuration is refused, {keeps}: {why}");
        }
        if next.armed != standing.armed {
            // Who carries sightings must know what is looked for before anything can be seen.
            self.armed.send_replace(next.armed.clone().map(Arc::new));
            agent.arm(next.armed.as_ref());
        }
        *standing = next;
    }

    fn checks(&self, agent: &Agent) -> Checks {
        let (nodes, configs, detector) =
            (self.nodes.clone(), self.configs.clone(), Arc::downgrade(&agent.detector));
        let alive: Check = Arc::new(move || {
            let deaf = |what: &str, health: &Health| {
                let silence = health.heard.elapsed();
                (silence > DEAF)
                    .then(|| format!("the watch of the {what} has heard nothing for {} s", silence.as_secs()))
            };
            let deaf = [deaf(nodes.what(), &nodes.health()), deaf(configs.what(), &configs.health())];
            match deaf.into_iter().flatten().next() {
                Some(deaf) => Err(deaf),
                None => detector.upgrade().map_or(Ok("ending".to_owned()), |it| detector_health(&it)),
            }
        });
        let (nodes, configs) = (self.nodes.clone(), self.configs.clone());
        let (standing, identity, node) =
            (Arc::clone(&self.standing), self.identity.clone(), self.place.node.clone());
        let detector = Arc::downgrade(&agent.detector);
        let ready: Check = Arc::new(move || {
            for (what, health) in [(nodes.what(), nodes.health()), (configs.what(), configs.health())] {
                if !health.synced {
                    let why =
                        health.failure.map_or(String::new(), |failure| format!(": {}", failure.message));
                    return Err(format!("the {what} has not been read yet{why}"));
                }
            }
            if let Some(why) = &standing.lock().unwrap_or_else(PoisonError::into_inner).refused {
                return Err(format!("the configuration is refused: {why}"));
            }
            let Some(node) = nodes.get(&Key::new("", node.as_str())) else {
                return Err(format!("there is no Node {node}"));
            };
            identity.check(&node).map_err(|why| why.to_string())?;
            detector.upgrade().map_or(Ok("ending".to_owned()), |it| detector_readiness(&it))
        });
        Checks { alive, ready }
    }
}

/// An agent that polls where events were expected looks all the same; that it is not ready is how the controller, which
/// sees its pod and nothing else, learns of it.
fn detector_readiness(detector: &Detector) -> Result<String, String> {
    if detector.has_stepped_down() {
        let why = "it polls for processes, since the kernel's events cannot be used (the log says why); if polling is \
                   enough, set --detector=poll";
        return Err(why.to_owned());
    }
    Ok("ready".to_owned())
}

fn detector_health(detector: &Detector) -> Result<String, String> {
    let stuck = detector.stuck_for();
    if stuck > DEAF {
        return Err(format!("the detector has not come round for {} s", stuck.as_secs()));
    }
    Ok("alive".to_owned())
}
