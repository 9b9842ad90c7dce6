//! A shard that says what a test wants it to say, and writes down what it hears and when.
//!
//! It is played from BigFleet's protocol and from its public source: the module of the real shard could not be fetched from
//! the registry when this was written. What these tests prove is our side of that protocol; that it is understood by what
//! the real one is built of, the tests with a [`super::front::Front`] prove.

use fivespot_fleet::wire::operator_message::Payload as Heard;
use fivespot_fleet::wire::shard_message::Payload as Said;
use fivespot_fleet::wire::shard_server::{Shard, ShardServer};
use fivespot_fleet::wire::{
    Acknowledgement, BootstrapRequest, CapacityNeed, MachineState, NodeStateUpdate, OperatorMessage,
    ReclaimInstruction, Resources, ShardMessage,
};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// Largest message, as the real one has it.
const MESSAGE: usize = 256 << 20;

/// A shard that listens on loopback until it is dropped.
pub(crate) struct PlayedShard {
    pub(crate) address: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

type Voice = mpsc::UnboundedSender<Result<ShardMessage, Status>>;

#[derive(Default)]
struct State {
    /// Whether rollups are acknowledged.
    is_mute: AtomicBool,
    heard: Mutex<Vec<(Timestamp, Heard)>>,
    current: Mutex<Option<Voice>>,
    /// Sessions that a newer one has replaced: they stay open, hear nothing, and nobody hears them.
    superseded: Mutex<Vec<Voice>>,
    sessions: Mutex<usize>,
    /// Machines of the cluster, told at the beginning of each session.
    bound: Mutex<Vec<NodeStateUpdate>>,
    /// What is said once after that.
    after_states: Mutex<Vec<Said>>,
}

impl Drop for PlayedShard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PlayedShard {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State::default());
        let service = ShardServer::new(Service(Arc::clone(&state)))
            .max_decoding_message_size(MESSAGE)
            .max_encoding_message_size(MESSAGE);
        let incoming = futures::stream::unfold(listener, |listener| async {
            let stream = listener.accept().await.map(|(stream, _)| {
                stream.set_nodelay(true).unwrap();
                stream
            });
            Some((stream, listener))
        });
        let task = tokio::spawn(async move {
            // It ends with the test.
            let _ = Server::builder().add_service(service).serve_with_incoming(incoming).await;
        });
        Self { address, state, task }
    }

    /// Says something in the session of now.
    pub(crate) fn say(&self, payload: Said) {
        let current = self.state.current.lock().unwrap();
        let session = current.as_ref().expect("there is a session");
        let _ = session.send(Ok(ShardMessage { payload: Some(payload) }));
    }

    /// Sends an instruction, and returns when.
    pub(crate) fn instruct(&self, id: &str, nodes: &[&str], grace: i64) -> Timestamp {
        let at = Timestamp::now();
        self.say(instruction(id, nodes, grace));
        at
    }

    /// Says something when the next session has begun, right after the states of its machines.
    pub(crate) fn say_after_states(&self, payload: Said) {
        self.state.after_states.lock().unwrap().push(payload);
    }

    pub(crate) fn ask_bootstrap(&self, id: &str, cluster: &str) {
        self.say(Said::BootstrapRequest(BootstrapRequest {
            request_id: id.into(),
            requirements: Vec::new(),
            cluster_id: cluster.into(),
        }));
    }

    /// Tells the state of a machine.
    pub(crate) fn tell(&self, machine: &str, state: MachineState) {
        self.say(Said::NodeStateUpdate(update(machine, state)));
    }

    /// From now on these machines are told when a session begins.
    pub(crate) fn bind(&self, machines: &[(&str, MachineState)]) {
        *self.state.bound.lock().unwrap() = machines.iter().map(|(id, state)| update(id, *state)).collect();
    }

    /// Whether rollups are left without an ack from now on.
    pub(crate) fn be_mute(&self, is_mute: bool) {
        self.state.is_mute.store(is_mute, Ordering::Relaxed);
    }

    /// Ends the session of now, as a shard that is started again does.
    pub(crate) fn hang_up(&self) {
        *self.state.current.lock().unwrap() = None;
        self.state.superseded.lock().unwrap().clear();
    }

    /// The same, and waits until the operator is there again.
    pub(crate) async fn ends_session(&self) {
        let before = self.sessions();
        self.hang_up();
        self.until("another session", |shard| shard.sessions() > before && shard.is_connected()).await;
    }

    pub(crate) fn sessions(&self) -> usize {
        *self.state.sessions.lock().unwrap()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state.current.lock().unwrap().as_ref().is_some_and(|session| !session.is_closed())
    }

    pub(crate) fn heard(&self) -> Vec<(Timestamp, Heard)> {
        self.state.heard.lock().unwrap().clone()
    }

    /// When each ack of an instruction came, and its count.
    pub(crate) fn acks(&self, id: &str) -> Vec<(Timestamp, i32)> {
        let ack = |(at, heard): &(Timestamp, Heard)| match heard {
            Heard::ReclaimAck(ack) if ack.instruction_id == id => Some((*at, ack.nodes_started)),
            _ => None,
        };
        self.heard().iter().filter_map(ack).collect()
    }

    /// The needs of each rollup.
    pub(crate) fn rollups(&self) -> Vec<usize> {
        let needs = |(_, heard): &(Timestamp, Heard)| match heard {
            Heard::Rollup(rollup) => Some(rollup.needs.len()),
            _ => None,
        };
        self.heard().iter().filter_map(needs).collect()
    }

    /// GPUs of the last rollup; nothing if there was none.
    pub(crate) fn gpus(&self) -> Option<u32> {
        let mut rollups = self.heard().into_iter().filter_map(|(_, heard)| match heard {
            Heard::Rollup(rollup) => Some(rollup),
            _ => None,
        });
        let gpus = |need: &CapacityNeed| need.aggregate_resources["nvidia.com/gpu"].parse::<u32>().unwrap();
        rollups.next_back().map(|rollup| rollup.needs.iter().map(gpus).sum())
    }

    /// How long the last rollup is on the wire.
    pub(crate) fn last_rollup_bytes(&self) -> usize {
        let size = |(_, heard): &(Timestamp, Heard)| match heard {
            Heard::Rollup(rollup) => Some(prost::Message::encoded_len(rollup)),
            _ => None,
        };
        self.heard().iter().filter_map(size).next_back().unwrap_or_default()
    }

    /// When a bootstrap request was answered, and with what.
    pub(crate) fn blob(&self, id: &str) -> Option<(Timestamp, String)> {
        self.heard().into_iter().find_map(|(at, heard)| match heard {
            Heard::BootstrapResponse(answer) if answer.request_id == id => {
                assert_eq!(answer.error, "");
                Some((at, String::from_utf8(answer.user_data).unwrap()))
            }
            _ => None,
        })
    }

    /// Waits until something was heard.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < Duration::from_mins(1), "the shard has not heard {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for the ack of an instruction.
    pub(crate) async fn acked(&self, id: &str) -> (Timestamp, i32) {
        self.until(&format!("an ack of {id}"), |shard| !shard.acks(id).is_empty()).await;
        self.acks(id)[0]
    }
}

/// An instruction as shards give it.
pub(crate) fn instruction(id: &str, nodes: &[&str], grace: i64) -> Said {
    Said::ReclaimInstruction(ReclaimInstruction {
        instruction_id: id.into(),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        grace_period_seconds: grace,
        preemptor_priority: 0,
    })
}

/// What is told of a machine: as the real shard does, neither its Node nor its cluster.
pub(crate) fn update(machine: &str, state: MachineState) -> NodeStateUpdate {
    NodeStateUpdate {
        supersedes_key: format!("node:{machine}"),
        machine_id: machine.to_owned(),
        state: state.into(),
        provider_id: format!("ref-{machine}"),
        labels: [("node.kubernetes.io/instance-type".to_owned(), "a3-highgpu-8g".to_owned())].into(),
        resources: Some(Resources { resources: [("nvidia.com/gpu".to_owned(), "8".to_owned())].into() }),
        ..NodeStateUpdate::default()
    }
}

struct Service(Arc<State>);

#[tonic::async_trait]
impl Shard for Service {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<ShardMessage, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<OperatorMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let state = Arc::clone(&self.0);
        let mut incoming = request.into_inner();
        let first = incoming.message().await?.and_then(|message| message.payload);
        let Some(Heard::Hello(hello)) = first else {
            return Err(Status::invalid_argument("the first frame must be a Hello"));
        };
        if hello.cluster_id.is_empty() {
            return Err(Status::invalid_argument("cluster_id is empty"));
        }
        let (say, said) = mpsc::unbounded_channel();
        let ack = |echo: &str| {
            Ok(ShardMessage {
                payload: Some(Said::Ack(Acknowledgement {
                    echo: echo.into(),
                    coordinator_term: 0,
                    shard_epoch: 1,
                })),
            })
        };
        let _ = say.send(ack("hello"));
        for update in state.bound.lock().unwrap().iter() {
            let _ = say.send(Ok(ShardMessage { payload: Some(Said::NodeStateUpdate(update.clone())) }));
        }
        for payload in state.after_states.lock().unwrap().drain(..) {
            let _ = say.send(Ok(ShardMessage { payload: Some(payload) }));
        }
        if let Some(older) = state.current.lock().unwrap().replace(say.clone()) {
            state.superseded.lock().unwrap().push(older);
        }
        *state.sessions.lock().unwrap() += 1;
        let weak = say.downgrade();
        drop(say);
        tokio::spawn(async move {
            state.heard.lock().unwrap().push((Timestamp::now(), Heard::Hello(hello)));
            while let Ok(Some(message)) = incoming.message().await {
                let Some(payload) = message.payload else { continue };
                let Some(say) = weak.upgrade() else { break };
                let is_current =
                    state.current.lock().unwrap().as_ref().is_some_and(|now| now.same_channel(&say));
                if !is_current {
                    continue;
                }
                // What cannot be read is dropped whole, and nothing is said about it.
                let is_rollup = match &payload {
                    Heard::Rollup(rollup) if !rollup.needs.iter().all(is_readable) => continue,
                    Heard::Rollup(_) => true,
                    _ => false,
                };
                state.heard.lock().unwrap().push((Timestamp::now(), payload));
                if is_rollup && !state.is_mute.load(Ordering::Relaxed) {
                    let _ = say.send(ack("rollup"));
                }
            }
            // Who says nothing more is told nothing more.
            let own = weak.upgrade();
            let mut current = state.current.lock().unwrap();
            if current.as_ref().zip(own.as_ref()).is_some_and(|(now, own)| now.same_channel(own)) {
                *current = None;
            }
        });
        let said = futures::stream::unfold(said, |mut said| async { said.recv().await.map(|it| (it, said)) });
        Ok(Response::new(said.boxed()))
    }
}

/// Whether a need passes the shard's checks: known operators and buckets, and quantities that Kubernetes can read.
fn is_readable(need: &CapacityNeed) -> bool {
    let quantities = need.aggregate_resources.values().chain(need.min_unit.values());
    let is_quantity = |text: &String| {
        let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let suffix = &text[number.len()..];
        let known = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        number.parse::<f64>().is_ok() && known.contains(&suffix)
    };
    quantities.into_iter().all(is_quantity)
        && need.requirements.iter().all(|it| (0..=5).contains(&it.operator))
        && [need.interruption_penalty_bucket, need.reclamation_penalty_bucket]
            .iter()
            .all(|bucket| (0..=27).contains(bucket))
}
