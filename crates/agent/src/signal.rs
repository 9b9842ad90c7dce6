//! The request on the Node: that it comes to stand there, and that it stays while it is needed.
//!
//! A sighting leads to one merge patch with all three annotations and the uid of the Node that was shown to be this
//! machine. It is tried until it is written, however long the API server is away.
//!
//! Once written, the request belongs to the controller, who clears it when he is done. If it goes while a match still
//! runs, it is written again, but not on the word of our copies: the controller removes the ConfigMap *before* he
//! clears the request, and two watches can show the two in any order. So the server itself is asked for both.

use crate::config::ConfigText;
use crate::detector::Sighting;
use crate::identity::{Identity, NotThisMachine};
use crate::metrics::Metrics;
use crate::node::NodeView;
use fivespot_api::AgentConfig;
use fivespot_api::names::{
    AGENT, RECLAIM_REASON, RECLAIM_REQUESTED, RECLAIM_REQUESTED_AT, SYSTEM_NAMESPACE, agent_config_map,
};
use fivespot_cluster::{Cache, Key};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// First and last delay before a write is tried again. The last is what a server that is back waits for us.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The delay while there is no Node that we may write to. When one comes, its watch says so at once.
const UNWRITABLE: Duration = Duration::from_secs(15);

/// How long one call may take.
const CALL: Duration = Duration::from_secs(3);

/// How often the connection is used when there is nothing to say: an idle one is given up after 90 s, and a new one
/// costs three round trips at the moment that counts.
const WARM: Duration = Duration::from_secs(30);

/// Where things are on the server.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) client: Client,
    pub(crate) node: String,
}

impl Place {
    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// The ConfigMap, from the server itself.
    pub(crate) async fn config(&self) -> Result<Option<ConfigText>, String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        let map = call(maps.get_opt(&agent_config_map(&self.node))).await?;
        Ok(map.map(ConfigText::from))
    }

    /// Keeps a connection open while there is something to look for. Never ends.
    pub(crate) async fn keep_warm(&self, mut armed: watch::Receiver<Option<Arc<AgentConfig>>>) {
        // The sender lives as long as the process.
        while armed.wait_for(Option::is_some).await.is_ok() {
            // Whatever the answer, the connection is open.
            let _ = call(self.client.apiserver_version()).await;
            tokio::time::sleep(WARM).await;
        }
    }

    async fn live_node(&self) -> Result<Option<NodeView>, String> {
        Ok(call(self.nodes().get_opt(&self.node)).await?.map(NodeView::from))
    }

    async fn write(&self, uid: &str, sighting: &Sighting) -> Result<(), String> {
        let params = PatchParams { field_manager: Some(AGENT.to_owned()), ..PatchParams::default() };
        let body = body(uid, sighting);
        call(self.nodes().patch_metadata(&self.node, &params, &Patch::Merge(body))).await.map(|_| ())
    }
}

/// The request, for the Node with this uid and no other.
fn body(uid: &str, sighting: &Sighting) -> Value {
    json!({"metadata": {"uid": uid, "annotations": {
        RECLAIM_REQUESTED: "true",
        RECLAIM_REASON: format!("process-match: {}", sighting.pattern),
        RECLAIM_REQUESTED_AT: format!("{:.3}", sighting.at),
    }}})
}

/// One call, in words if it fails.
async fn call<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(CALL, call).await {
        Err(_) => Err(format!("the API server has not answered within {} s", CALL.as_secs())),
        Ok(Err(kube::Error::Api(status))) => Err(format!("{} {}", status.code, status.message)),
        Ok(Err(error)) => {
            let mut innermost: &dyn std::error::Error = &error;
            while let Some(source) = innermost.source() {
                innermost = source;
            }
            Err(innermost.to_string())
        }
        Ok(Ok(answer)) => Ok(answer),
    }
}

/// What is known of the Node, and from whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// Our copy will do: nothing has been written yet.
    Copy,
    /// The server itself: something has been written, or was refused.
    Server,
}

/// What to do about a sighting.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Nothing: a request stands already.
    Stands,
    /// Write, to the Node with this uid.
    Write(String),
    /// Wait: there is no Node.
    NoNode,
    /// Wait: it is not ours to write to.
    Refused(NotThisMachine),
}

fn step(node: Option<&NodeView>, identity: &Identity) -> Step {
    let Some(node) = node else { return Step::NoNode };
    if node.requested {
        return Step::Stands;
    }
    match identity.check(node) {
        Ok(()) => Step::Write(node.uid.clone()),
        Err(why) => Step::Refused(why),
    }
}

/// How an attempt ended.
enum Outcome {
    Written,
    Stands,
    Disarmed,
    /// The server did not take it, or is not there.
    Failed(String),
    /// There is no Node, or it is not this machine.
    Unwritable(String),
}

/// Carries sightings to the Node.
pub(crate) struct Signaller {
    pub(crate) place: Place,
    pub(crate) identity: Identity,
    pub(crate) metrics: Metrics,
    pub(crate) nodes: Cache<NodeView>,
    /// Rings when the Node has changed.
    pub(crate) node_changed: Arc<Notify>,
    pub(crate) armed: watch::Receiver<Option<Arc<AgentConfig>>>,
    pub(crate) sightings: watch::Receiver<Option<Sighting>>,
    /// Looks at every process once more.
    pub(crate) scan: Box<dyn Fn() + Send + Sync>,
}

/// A sighting that has not led to a request yet.
struct Wanted {
    sighting: Sighting,
    delay: Duration,
    /// The last failure, which is said once.
    said: Option<String>,
    announced: bool,
}

impl Signaller {
    /// Never ends.
    pub(crate) async fn run(mut self) {
        let mut wanted: Option<Wanted> = None;
        let mut trust = Trust::Copy;
        loop {
            let armed = self.armed.borrow_and_update().clone();
            if armed.is_none() {
                trust = Trust::Copy;
            }
            wanted = wanted.filter(|wanted| looks_for(armed.as_deref(), &wanted.sighting));
            if let Some(pending) = &mut wanted {
                match self.attempt(pending, trust).await {
                    Outcome::Written | Outcome::Stands => (wanted, trust) = (None, Trust::Server),
                    Outcome::Disarmed => wanted = None,
                    Outcome::Failed(why) => {
                        self.metrics.write_failures.inc();
                        trust = Trust::Server;
                        pending.failed(why);
                    }
                    Outcome::Unwritable(why) => {
                        pending.failed(why);
                        pending.delay = UNWRITABLE;
                    }
                }
            }
            let delay = wanted.as_mut().map(Wanted::next_delay);
            let pause = async {
                match delay {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = pause => {}
                _ = self.armed.changed() => {}
                () = self.node_changed.notified() => {
                    // The request has gone: whether it is still needed, the processes say.
                    if trust == Trust::Server && wanted.is_none() && !self.is_requested() {
                        (self.scan)();
                    }
                }
                _ = self.sightings.changed() => {
                    let sighting = self.sightings.borrow_and_update().clone();
                    if wanted.is_none() && !self.is_requested() {
                        wanted = sighting.map(Wanted::new);
                    }
                }
            }
        }
    }

    /// The Node as our copy has it.
    fn node(&self) -> Option<Arc<NodeView>> {
        self.nodes.get(&Key::new("", self.place.node.as_str()))
    }

    fn is_requested(&self) -> bool {
        self.node().is_some_and(|node| node.requested)
    }

    async fn attempt(&self, wanted: &mut Wanted, trust: Trust) -> Outcome {
        let node = match trust {
            Trust::Copy => Ok(self.node().map(|node| (*node).clone())),
            Trust::Server => self.place.live_node().await,
        };
        let step = match node {
            Ok(node) => step(node.as_ref(), &self.identity),
            Err(why) => return Outcome::Failed(why),
        };
        if step == Step::Stands {
            return Outcome::Stands;
        }
        if trust == Trust::Server {
            match self.place.config().await {
                Ok(Some(_)) => {}
                Ok(None) => return Outcome::Disarmed,
                Err(why) => return Outcome::Failed(why),
            }
        }
        wanted.announce();
        let uid = match step {
            Step::Write(uid) => uid,
            Step::NoNode => return Outcome::Unwritable(format!("there is no Node {}", self.place.node)),
            Step::Refused(why) => return Outcome::Unwritable(why.to_string()),
            Step::Stands => return Outcome::Stands,
        };
        match self.place.write(&uid, &wanted.sighting).await {
            Ok(()) => {
                self.metrics.writes.inc();
                let took = Timestamp::now().duration_since(wanted.sighting.at);
                let pattern = &*wanted.sighting.pattern;
                tracing::info!(pattern, after_ms = took.as_millis(), "asked for the machine on its Node");
                Outcome::Written
            }
            Err(why) => Outcome::Failed(why),
        }
    }
}

impl Wanted {
    fn new(sighting: Sighting) -> Self {
        Self { sighting, delay: BACKOFF.0, said: None, announced: false }
    }

    fn announce(&mut self) {
        if !self.announced {
            tracing::info!(pattern = &*self.sighting.pattern, "a process matches");
            self.announced = true;
        }
    }

    fn failed(&mut self, why: String) {
        if self.said.as_ref() != Some(&why) {
            tracing::warn!(error = why, "the request could not be written yet");
            self.said = Some(why);
        }
    }

    /// The time until the next attempt, spread so that the agents of a fleet do not come back together.
    fn next_delay(&mut self) -> Duration {
        let delay = self.delay;
        self.delay = (delay * 2).min(BACKOFF.1);
        let spread = u32::try_from(Timestamp::now().subsec_nanosecond() / 1000 % 256).unwrap_or_default();
        delay / 2 + delay * spread / 512
    }
}

fn looks_for(config: Option<&AgentConfig>, sighting: &Sighting) -> bool {
    let is = |pattern: &String| **pattern == *sighting.pattern;
    config.is_some_and(|config| {
        config.match_commands.iter().any(is) || config.match_argv_substrings.iter().any(is)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(machine_id: &str, requested: bool) -> NodeView {
        NodeView { uid: "u1".to_owned(), machine_id: machine_id.to_owned(), requested }
    }

    #[test]
    fn a_request_is_written_to_this_machine_alone_and_once() {
        let identity = Identity::Machine("m".to_owned());
        assert_eq!(step(Some(&node("m", false)), &identity), Step::Write("u1".to_owned()));
        assert_eq!(step(Some(&node("m", true)), &identity), Step::Stands);
        assert_eq!(step(Some(&node("x", false)), &identity), Step::Refused(NotThisMachine::Other));
        assert_eq!(step(Some(&node("", false)), &identity), Step::Refused(NotThisMachine::Unknown));
        assert_eq!(step(None, &identity), Step::NoNode);
    }

    #[test]
    fn the_request_names_the_pattern_the_moment_and_the_node() {
        let at = "2026-03-01T12:00:00.123456Z".parse().unwrap();
        let sighting = Sighting { pattern: Arc::from("idea"), at };
        expect_test::expect![[r#"
            {
              "metadata": {
                "annotations": {
                  "5spot.finos.org/reclaim-reason": "process-match: idea",
                  "5spot.finos.org/reclaim-requested": "true",
                  "5spot.finos.org/reclaim-requested-at": "2026-03-01T12:00:00.123Z"
                },
                "uid": "u1"
              }
            }"#]]
        .assert_eq(&format!("{:#}", body("u1", &sighting)));
    }

    #[test]
    fn delays_grow_to_a_second_and_are_spread() {
        let sighting = Sighting { pattern: Arc::from("idea"), at: Timestamp::UNIX_EPOCH };
        let mut wanted = Wanted::new(sighting);
        for _ in 0..20 {
            let delay = wanted.next_delay();
            assert!(delay >= BACKOFF.0 / 2 && delay <= BACKOFF.1, "{delay:?}");
        }
        assert!(wanted.next_delay() >= BACKOFF.1 / 2);
    }

    #[test]
    fn what_is_not_looked_for_any_more_is_not_asked_for() {
        let sighting = Sighting { pattern: Arc::from("idea"), at: Timestamp::UNIX_EPOCH };
        let config = |pattern: &str| AgentConfig::for_commands(&[pattern.to_owned()]);
        assert!(looks_for(Some(&config("idea")), &sighting));
        assert!(!looks_for(Some(&config("steam")), &sighting));
        assert!(!looks_for(None, &sighting));
    }
}
