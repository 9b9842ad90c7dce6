//! The session with the shard: dialled, kept, watched, and dialled again.
//!
//! The receive loop decodes and hands on; it never waits for anything but the next frame, since a shard whose frames are
//! not read stops to decide for everybody.

use crate::acks::Acks;
use crate::available::Available;
use crate::backoff::{Backoff, Ending};
use crate::demand::Demand;
use crate::lock;
use crate::metrics::{Metrics, count};
use crate::options::TlsFiles;
use crate::outbox::Outbox;
use crate::owner::Inputs;
use crate::quantity::readable;
use crate::template::Template;
use crate::tls::Identity;
use crate::wire::operator_message::Payload;
use crate::wire::shard_client::ShardClient;
use crate::wire::shard_message::Payload as FromShard;
use crate::wire::{
    self, BootstrapBlobResponse, BootstrapRequest, Hello, NodeStateUpdate, ReclaimInstruction, ShardMessage,
};
use fivespot_core::fleet::{Input, Instruction, MachineSpec, MachineState, MachineTaint, MachineUpdate};
use fivespot_core::text::{MESSAGE_BYTES, printable};
use hyper_util::client::legacy::connect::HttpConnector;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

/// Largest message in either direction, as BigFleet has it: a rollup of a great cluster has many megabytes.
const MESSAGE: usize = 256 << 20;

/// How long the shard may take to answer the dial and the hello.
const DIAL: Duration = Duration::from_secs(10);

/// How long a connection may be silent before the kernel asks whether the other side is there, how often it asks, and how
/// many times. A shard never hears of it, unlike of a ping. It matters when no rollup is sent: then no ack is missed.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// Rollups that may go without an ack before the session is taken for dead.
const UNANSWERED: u32 = 3;

/// How soon a rollup is tried again that could not be made.
const WITHHELD: Duration = Duration::from_secs(1);

/// How long the bootstrap answer is good for, in seconds. The shard does not look at it.
const TTL: i64 = 600;

/// A session that shuts down waits no longer than this for its last words to be read.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Everything a session needs.
pub struct Session {
    /// Name of the cluster.
    pub cluster: String,
    /// Where the shard listens.
    pub shard: String,
    /// Files of mutual TLS; read anew for each session.
    pub tls: Option<TlsFiles>,
    /// What makes a machine join.
    pub template: Template,
    /// How often the shard is told what the cluster wants.
    pub interval: Duration,
    /// What the cluster wants.
    pub demand: Arc<Demand>,
    /// Where what the shard says of machines goes.
    pub inputs: Inputs,
    /// Where hints go.
    pub available: Arc<Available>,
    /// What is said to the shard.
    pub outbox: Arc<Outbox>,
    /// What is counted.
    pub metrics: Metrics,
    /// How the session is doing, for whoever asks.
    pub standing: Arc<Standing>,
}

/// How the session is doing.
#[derive(Default)]
pub struct Standing(Mutex<Option<Result<Instant, String>>>);

impl Standing {
    /// Since when the shard has said hello, or why it has not.
    pub fn look(&self) -> Result<Instant, String> {
        lock(&self.0).clone().unwrap_or_else(|| Err("it is not our turn to speak".to_owned()))
    }

    /// Whether it is not our turn to speak.
    pub fn is_waiting(&self) -> bool {
        lock(&self.0).is_none()
    }

    fn set(&self, standing: Result<Instant, String>) {
        *lock(&self.0) = Some(standing);
    }
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Files(String),
    #[error("cannot reach the shard: {0}")]
    Unreachable(String),
    #[error("the shard ended the session: {} ({})", .0.message(), .0.code())]
    Refused(Box<Status>),
    #[error("the shard ended the session")]
    Ended,
    #[error(
        "no rollup was acknowledged for {} s: another operator speaks for this cluster, the shard hangs, or it refuses what \
         it is told", .0.as_secs()
    )]
    Silent(Duration),
}

impl Failure {
    fn word(&self) -> &'static str {
        match self {
            Self::Files(_) => "files",
            Self::Unreachable(_) => "unreachable",
            Self::Refused(_) if self.is_unwanted() => "refused",
            Self::Refused(_) => "broken",
            Self::Ended => "ended",
            Self::Silent(_) => "silent",
        }
    }

    fn is_unwanted(&self) -> bool {
        match self {
            Self::Refused(status) => {
                matches!(
                    status.code(),
                    Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument
                )
            }
            Self::Files(_) | Self::Unreachable(_) | Self::Ended | Self::Silent(_) => false,
        }
    }
}

impl Session {
    /// Holds a session until `stop` is said, and dials again whenever it ends.
    pub async fn hold(&self, mut stop: watch::Receiver<bool>) {
        let (mut backoff, mut told) = (Backoff::default(), String::new());
        self.standing.set(Err("the shard has not answered yet".to_owned()));
        while !*stop.borrow_and_update() {
            let began = Instant::now();
            let failure = tokio::select! {
                failure = self.once(stop.clone()) => failure,
                () = stopped_for(&mut stop, LAST_WORDS) => return,
            };
            self.metrics.connected.set(0);
            let Some(failure) = failure else { return };
            count(&self.metrics.sessions, failure.word());
            let was_open = self.standing.look().ok();
            let ending = match was_open {
                _ if failure.is_unwanted() => Ending::Unwanted,
                Some(since) => Ending::Lived(since.elapsed()),
                None => Ending::Unreachable,
            };
            let wait = backoff.after(ending, chance());
            // The shard's own words are among them, and /ready and the log show them.
            let text = printable(&failure.to_string(), MESSAGE_BYTES).into_owned();
            let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            if text == told {
                tracing::debug!(again_in_millis = millis, "{text}");
            } else {
                tracing::error!(again_in_millis = millis, lived = ?began.elapsed(), "{text}");
                told.clone_from(&text);
            }
            if was_open.is_some() {
                told.clear();
            }
            self.standing.set(Err(text));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = stop.changed() => {}
            }
        }
    }

    /// One session; why it ended, or nothing if it was asked to.
    async fn once(&self, stop: watch::Receiver<bool>) -> Option<Failure> {
        let incoming = match tokio::time::timeout(DIAL, self.dial()).await {
            Ok(Ok(incoming)) => incoming,
            Ok(Err(failure)) => return Some(failure),
            Err(_) => return Some(Failure::Unreachable(format!("no answer within {} s", DIAL.as_secs()))),
        };
        self.inputs.put(Input::SessionBegan);
        let (acks, answers) = (Arc::new(Acks::default()), Arc::new(tokio::sync::Notify::new()));
        let teller = Teller {
            demand: Arc::clone(&self.demand),
            outbox: Arc::clone(&self.outbox),
            acks: Arc::clone(&acks),
            metrics: self.metrics.clone(),
        };
        let rollups = tokio::spawn(teller.tell_every(self.interval));
        let acknowledge =
            tokio::spawn(acknowledge(Arc::clone(&self.demand), Arc::clone(&acks), Arc::clone(&answers)));
        let outcome = tokio::select! {
            failure = self.receive(incoming, &acks, &answers) => failure,
            failure = watch_acks(&acks, self.interval * UNANSWERED) => failure,
        };
        rollups.abort();
        acknowledge.abort();
        // Its last words were said: that the shard ends it too is what was asked for.
        (!*stop.borrow()).then_some(outcome)
    }

    async fn dial(&self) -> Result<Streaming<ShardMessage>, Failure> {
        let channel = self.connect().await?;
        let mut client =
            ShardClient::new(channel).max_decoding_message_size(MESSAGE).max_encoding_message_size(MESSAGE);
        let hello = Hello { cluster_id: self.cluster.clone(), protocol_version: "v1alpha1".to_owned() };
        let words = self.outbox.begin(Payload::Hello(hello));
        let answer = client.session(words).await.map_err(|status| Failure::Refused(Box::new(status)))?;
        Ok(answer.into_inner())
    }

    async fn connect(&self) -> Result<Channel, Failure> {
        let unreachable = |error: tonic::transport::Error| {
            let mut innermost: &dyn std::error::Error = &error;
            while let Some(source) = innermost.source() {
                innermost = source;
            }
            Failure::Unreachable(innermost.to_string())
        };
        // No pings: the shard takes them for an attack. Rollups and their acks show that it is there.
        let endpoint = Endpoint::from_shared(format!("http://{}", self.shard))
            .map_err(unreachable)?
            .connect_timeout(DIAL);
        let Some(files) = &self.tls else {
            return endpoint.connect_with_connector(tcp()).await.map_err(unreachable);
        };
        let identity = Identity::read(files, &self.shard).map_err(Failure::Files)?;
        let origin = format!("https://{}", self.shard).parse();
        let endpoint =
            endpoint.origin(origin.map_err(|error| Failure::Files(format!("--shard-addr: {error}")))?);
        let connect = move |address| identity.clone().connect(tcp(), address);
        endpoint.connect_with_connector(tower::service_fn(connect)).await.map_err(unreachable)
    }

    /// Hands on what the shard says. Nothing in it waits but for the next frame.
    async fn receive(
        &self,
        mut incoming: Streaming<ShardMessage>,
        acks: &Acks,
        answers: &tokio::sync::Notify,
    ) -> Failure {
        loop {
            let message = match incoming.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return Failure::Ended,
                Err(status) => return Failure::Refused(Box::new(status)),
            };
            match message.payload {
                Some(FromShard::Ack(ack)) if ack.echo == "hello" => {
                    self.standing.set(Ok(Instant::now()));
                    self.metrics.connected.set(1);
                    tracing::info!(
                        shard = self.shard,
                        cluster = self.cluster,
                        epoch = ack.shard_epoch,
                        "the shard has said hello"
                    );
                }
                Some(FromShard::Ack(ack)) => {
                    count(&self.metrics.rollups, "acked");
                    acks.heard();
                    answers.notify_one();
                    tracing::debug!(echo = ack.echo, "acknowledged");
                }
                Some(FromShard::BootstrapRequest(request)) => self.bootstrap(&request),
                Some(FromShard::ReclaimInstruction(instruction)) => {
                    self.inputs.put(Input::Instruction(read_instruction(instruction)));
                }
                Some(FromShard::NodeStateUpdate(update)) => {
                    self.inputs.put(Input::Update(read_update(update)));
                }
                Some(FromShard::AvailableCapacity(update)) => self.available.put(update),
                None => tracing::debug!("the shard said something that is not known here"),
            }
        }
    }

    fn bootstrap(&self, request: &BootstrapRequest) {
        // A cluster that is not ours would get our secrets.
        let is_ours = request.cluster_id.is_empty() || request.cluster_id == self.cluster;
        let (user_data, error) = if is_ours {
            (self.template.render(&self.cluster, &request.requirements).into_bytes(), String::new())
        } else {
            (Vec::new(), format!("this operator speaks for cluster {}", self.cluster))
        };
        count(&self.metrics.bootstraps, if is_ours { "answered" } else { "refused" });
        let request_id = request.request_id.clone();
        self.outbox.answer(BootstrapBlobResponse { request_id, user_data, ttl_seconds: TTL, error });
    }
}

fn read_instruction(instruction: ReclaimInstruction) -> Instruction {
    Instruction {
        id: instruction.instruction_id,
        entries: instruction.nodes,
        grace_seconds: instruction.grace_period_seconds,
        preemptor_priority: instruction.preemptor_priority,
    }
}

fn read_update(update: NodeStateUpdate) -> MachineUpdate {
    let state = match update.state() {
        wire::MachineState::Unspecified => MachineState::Unspecified,
        wire::MachineState::Speculative => MachineState::Speculative,
        wire::MachineState::Creating => MachineState::Creating,
        wire::MachineState::Idle => MachineState::Idle,
        wire::MachineState::Configuring => MachineState::Configuring,
        wire::MachineState::Configured => MachineState::Configured,
        wire::MachineState::Draining => MachineState::Draining,
        wire::MachineState::Deleting => MachineState::Deleting,
        wire::MachineState::Failed => MachineState::Failed,
    };
    let resources = readable(update.resources.as_ref());
    let taint =
        |taint: wire::Taint| MachineTaint { key: taint.key, value: taint.value, effect: taint.effect };
    MachineUpdate {
        machine: update.machine_id,
        state,
        provider_id: update.provider_id,
        last_error: update.last_error,
        spec: MachineSpec {
            labels: update.labels.into_iter().collect(),
            resources: resources.into_iter().map(|(name, amount)| (name, amount.0)).collect(),
            taints: update.taints.into_iter().map(taint).collect(),
        },
    }
}

/// What a session runs over.
fn tcp() -> HttpConnector {
    let (idle, interval, times) = KEEPALIVE;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(DIAL));
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(idle));
    tcp.set_keepalive_interval(Some(interval));
    tcp.set_keepalive_retries(Some(times));
    tcp
}

/// Tells the shard what the cluster wants.
struct Teller {
    demand: Arc<Demand>,
    outbox: Arc<Outbox>,
    acks: Arc<Acks>,
    metrics: Metrics,
}

impl Teller {
    async fn tell_every(self, interval: Duration) {
        let mut told = None;
        loop {
            match self.demand.rollup().await {
                Ok((rollup, new)) => {
                    count(&self.metrics.rollups, "sent");
                    tracing::debug!(needs = rollup.needs.len(), "tells what the cluster wants");
                    self.acks.expect(new);
                    if self.outbox.rollup(rollup) {
                        self.acks.replaced();
                    }
                    told = None;
                }
                Err(why) => {
                    count(&self.metrics.rollups, "withheld");
                    if told.as_ref() != Some(&why) {
                        tracing::warn!("the shard is not told what the cluster wants: {why}");
                        told = Some(why);
                    }
                }
            }
            // What could not be said is not late by a whole interval.
            tokio::time::sleep(if told.is_none() { interval } else { interval.min(WITHHELD) }).await;
        }
    }
}

async fn acknowledge(demand: Arc<Demand>, acks: Arc<Acks>, answers: Arc<tokio::sync::Notify>) {
    loop {
        answers.notified().await;
        demand.acknowledge(acks.take()).await;
    }
}

/// Returns when rollups are not acknowledged any more.
async fn watch_acks(acks: &Acks, patience: Duration) -> Failure {
    loop {
        match acks.missing_since() {
            Some(since) if since.elapsed() >= patience => return Failure::Silent(since.elapsed()),
            Some(since) => tokio::time::sleep_until(since + patience).await,
            None => tokio::time::sleep(patience / 4).await,
        }
    }
}

/// Returns so long after the word to stop.
async fn stopped_for(stop: &mut watch::Receiver<bool>, time: Duration) {
    // Whoever could say it is gone: nobody will.
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(time).await;
}

/// A number from 0 to 1 that another process does not have.
fn chance() -> f64 {
    let bits = u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or_default();
    f64::from(bits) / f64::from(u32::MAX)
}
