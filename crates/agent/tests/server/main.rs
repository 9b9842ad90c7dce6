//! The agent on the real kernel and a real API server: from its ConfigMap to the request on its Node.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

#[path = "../harness/mod.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod harness;

use fivespot_api::AgentConfig;
use fivespot_api::names::{
    AGENT, AGENT_CONFIG_KEY, RECLAIM_REASON, RECLAIM_REQUESTED, RECLAIM_REQUESTED_AT, SYSTEM_NAMESPACE,
    agent_config_map,
};
use fivespot_testenv::{AuditEntry, ControlPlane, Options, eventually, is_proof, share};
use harness::{Agent, DETECTORS, Program, run_agent, token};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::sync::{RwLock, RwLockReadGuard};

/// The id of this machine in these tests.
const MACHINE: &str = "0123456789abcdef0123456789abcdef";

/// Who takes the API server away must be alone.
static SERVER: RwLock<()> = RwLock::const_new(());

fn plane() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    share(&PLANE, &Options::default())
}

/// A Node of its own for each test, and what belongs to it.
struct World {
    client: Client,
    node: String,
    _server: Option<RwLockReadGuard<'static, ()>>,
}

impl World {
    async fn new() -> Self {
        let server = SERVER.read().await;
        Self { _server: Some(server), ..Self::alone().await }
    }

    /// For who holds the lock himself.
    async fn alone() -> Self {
        let client = plane().management().client().await.unwrap();
        let world = Self { client, node: format!("node-{}", token()), _server: None };
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}});
        let namespaces: Api<Namespace> = Api::all(world.client.clone());
        let apply = PatchParams::apply("test").force();
        namespaces.patch(SYSTEM_NAMESPACE, &apply, &Patch::Apply(namespace)).await.unwrap();
        world.register(MACHINE).await;
        world
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), SYSTEM_NAMESPACE)
    }

    /// Makes the Node, as its kubelet would.
    async fn register(&self, machine_id: &str) {
        let node = json!({"metadata": {"name": self.node}});
        let node: Node = serde_json::from_value(node).unwrap();
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
        self.report(machine_id).await;
    }

    /// Lets the Node report a machine-id.
    async fn report(&self, machine_id: &str) {
        let info = json!({
            "machineID": machine_id, "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
            "operatingSystem": "linux", "architecture": "amd64",
        });
        let status = json!({"status": {"nodeInfo": info}});
        self.nodes().patch_status(&self.node, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    async fn configure(&self, text: &str) {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": agent_config_map(&self.node)},
            "data": {AGENT_CONFIG_KEY: text},
        });
        let apply = PatchParams::apply("test").force();
        self.maps().patch(&agent_config_map(&self.node), &apply, &Patch::Apply(map)).await.unwrap();
    }

    async fn look_for(&self, pattern: &str) {
        self.configure(&AgentConfig::for_commands(&[pattern.to_owned()]).to_toml()).await;
    }

    async fn disarm(&self) {
        self.maps().delete(&agent_config_map(&self.node), &DeleteParams::default()).await.unwrap();
    }

    fn agent(&self, args: &[&str]) -> Agent {
        let folder = tempfile::tempdir().unwrap();
        let machine_id = folder.path().join("machine-id");
        std::fs::write(&machine_id, format!("{MACHINE}\n")).unwrap();
        let kubeconfig = plane().management().kubeconfig_path();
        let mut all = vec!["--node-name", &self.node, "--kubeconfig", kubeconfig.to_str().unwrap()];
        let machine_id = machine_id.to_str().unwrap().to_owned();
        all.extend(["--machine-id-path", &machine_id]);
        all.extend(args);
        Agent::start(folder, &[], &all)
    }

    /// The request on the Node: whether it is asked for, why and when.
    async fn request(&self) -> Option<(String, String, String)> {
        let node = self.nodes().get_opt(&self.node).await.unwrap()?;
        let all = node.metadata.annotations.unwrap_or_default();
        let value = |key: &str| all.get(key).cloned();
        Some((value(RECLAIM_REQUESTED)?, value(RECLAIM_REASON)?, value(RECLAIM_REQUESTED_AT)?))
    }

    async fn requested(&self, pattern: &str) -> String {
        eventually("the machine is asked for", async || self.request().await.is_some()).await;
        let (asked, reason, at) = self.request().await.unwrap();
        assert_eq!((asked.as_str(), reason), ("true", format!("process-match: {pattern}")));
        at
    }

    /// Clears the request, as the controller does.
    async fn clear(&self) {
        let nothing = json!({"metadata": {"annotations": {
            RECLAIM_REQUESTED: null, RECLAIM_REASON: null, RECLAIM_REQUESTED_AT: null,
        }}});
        self.nodes().patch(&self.node, &PatchParams::default(), &Patch::Merge(nothing)).await.unwrap();
    }

    async fn stays_unasked(&self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            assert_eq!(self.request().await, None);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn armed(agent: &Agent, armed: bool) {
    eventually(if armed { "armed" } else { "disarmed" }, async || {
        agent.metric("fivespot_agent_armed") == u64::from(armed)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_match_is_written_to_the_node_with_reason_and_moment() {
    for detector in DETECTORS {
        let world = World::new().await;
        let token = token();
        let program = Program::sleeper(&token);
        let agent = world.agent(&["--detector", detector]);
        eventually("ready", async || agent.http("/ready").0 == 200).await;
        assert_eq!(agent.metric("fivespot_agent_armed"), 0, "there is no ConfigMap");
        world.look_for(&token).await;
        armed(&agent, true).await;
        let before = Timestamp::now();
        let _running = program.run();
        let at: Timestamp = world.requested(&token).await.parse().unwrap();
        assert!(at.as_millisecond() >= before.as_millisecond() && at <= Timestamp::now(), "{at}");
        eventually("it says so", async || agent.log().contains("asked for the machine on its Node")).await;
        let line = agent.log().lines().find(|line| line.contains("asked for")).unwrap().to_owned();
        let took = line.split("after_ms=").nth(1).unwrap().to_owned();
        println!(
            "{detector}: seen {} after the start, written {took} ms after that",
            at.duration_since(before)
        );
        let audit = plane().management().audit().unwrap();
        let ours = |entry: &&AuditEntry| entry.user_agent.starts_with(AGENT) && entry.name == world.node;
        let writes: Vec<_> = audit.iter().filter(ours).filter(|entry| entry.verb == "patch").collect();
        let [write] = writes[..] else { panic!("one write: {writes:?}") };
        assert_eq!((write.resource.as_str(), write.subresource.as_str(), write.code), ("nodes", "", 200));
        assert!(write.uri.contains(&format!("fieldManager={AGENT}")), "{}", write.uri);
        assert_eq!(agent.metric("fivespot_agent_writes_total"), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_configuration_counts_at_once_and_a_bad_one_does_not_count() {
    let world = World::new().await;
    let (first, second, third) = (token(), token(), token());
    world.look_for(&first).await;
    // Whether it is ready does not depend on the kernel of this machine.
    let agent = world.agent(&["--detector", "poll"]);
    armed(&agent, true).await;
    // What runs already is found by a new configuration too.
    let program = Program::sleeper(&second);
    let running = program.run();
    world.stays_unasked(Duration::from_millis(500)).await;
    world.look_for(&second).await;
    world.requested(&second).await;
    drop(running);
    world.clear().await;
    // Neither what cannot be read nor what is misspelled.
    let all_bad = ["match_commands = [", "match_comands = []", "match_commands = [\"\"]"];
    for (bad, count) in all_bad.into_iter().zip(1..) {
        world.configure(bad).await;
        let is_refused = async || agent.metric("fivespot_agent_config_errors_total") == count;
        eventually("it is refused", is_refused).await;
        assert_eq!(agent.http("/ready").0, 503);
        assert!(
            agent.http("/ready").1.contains("the configuration is refused"),
            "{}",
            agent.http("/ready").1
        );
    }
    assert_eq!(agent.metric("fivespot_agent_config_refused"), 1);
    assert_eq!(agent.metric("fivespot_agent_config_errors_total"), 3);
    assert!(agent.log().contains("the last good one stands: unknown key match_comands"), "{}", agent.log());
    let running = program.run();
    world.requested(&second).await;
    drop(running);
    world.clear().await;
    world.look_for(&third).await;
    eventually("it is good again", async || agent.http("/ready").0 == 200).await;
    let program = Program::sleeper(&third);
    let _running = program.run();
    world.requested(&third).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_to_a_node_that_is_another_machine() {
    let world = World::new().await;
    let token = token();
    world.report("ffffffffffffffffffffffffffffffff").await;
    world.look_for(&token).await;
    let agent = world.agent(&[]);
    armed(&agent, true).await;
    let program = Program::sleeper(&token);
    let _running = program.run();
    eventually("it refuses", async || agent.log().contains("another machine-id than this machine has")).await;
    world.stays_unasked(Duration::from_secs(2)).await;
    assert_eq!(agent.http("/ready").0, 503);
    assert_eq!(agent.metric("fivespot_agent_identity_refused"), 1);
    // It is looked at again when the Node changes.
    world.report("").await;
    eventually("it waits", async || agent.http("/ready").1.contains("reports no machine-id yet")).await;
    world.report(MACHINE).await;
    world.requested(&token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_made_anew_is_checked_anew() {
    let world = World::new().await;
    let token = token();
    world.look_for(&token).await;
    let agent = world.agent(&[]);
    armed(&agent, true).await;
    let program = Program::sleeper(&token);
    let _running = program.run();
    let first = world.requested(&token).await;
    world.nodes().delete(&world.node, &DeleteParams::default()).await.unwrap();
    world.register("ffffffffffffffffffffffffffffffff").await;
    eventually("it refuses", async || agent.log().contains("another machine-id than this machine has")).await;
    world.stays_unasked(Duration::from_secs(2)).await;
    world.nodes().delete(&world.node, &DeleteParams::default()).await.unwrap();
    world.register(MACHINE).await;
    let second = world.requested(&token).await;
    assert_ne!(first, second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_match_while_the_server_is_away_is_written_when_it_is_back() {
    let _alone = SERVER.write().await;
    let world = World::alone().await;
    let token = token();
    world.look_for(&token).await;
    let agent = world.agent(&[]);
    armed(&agent, true).await;
    let program = Program::sleeper(&token);
    plane().stop_api_server(plane().management()).unwrap();
    let running = program.run();
    eventually("it is seen", async || agent.has_seen(&token)).await;
    let seen = Timestamp::now();
    // It need not run any longer: it was seen.
    drop(running);
    tokio::time::sleep(if is_proof() { Duration::from_secs(30) } else { Duration::from_secs(10) }).await;
    plane().start_api_server(plane().management()).await.unwrap();
    let back = Instant::now();
    let at: Timestamp = world.requested(&token).await.parse().unwrap();
    println!("written {:.1?} after the server was back", back.elapsed());
    assert!(back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
    assert!(at <= seen, "the moment is that of the match");
    assert!(agent.metric("fivespot_agent_write_failures_total") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_disarmed_it_does_not_ask_again() {
    let world = World::new().await;
    let token = token();
    let program = Program::sleeper(&token);
    let _running = program.run();
    let agent = world.agent(&[]);
    for _ in 0..if is_proof() { 30 } else { 5 } {
        world.look_for(&token).await;
        world.requested(&token).await;
        // As the controller does it, and as fast as it can be done.
        world.disarm().await;
        world.clear().await;
        world.stays_unasked(Duration::from_secs(1)).await;
        armed(&agent, false).await;
    }
    assert_eq!(agent.metric("fivespot_agent_detector{kind=\"netlink\"}"), 0);
    // An empty configuration disarms as well.
    world.look_for(&token).await;
    world.requested(&token).await;
    world.configure("match_commands = []").await;
    armed(&agent, false).await;
    world.clear().await;
    world.stays_unasked(Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_armed_a_request_stands_as_it_is_and_comes_back_if_it_goes() {
    let world = World::new().await;
    let token = token();
    let program = Program::sleeper(&token);
    let running = program.run();
    world.look_for(&token).await;
    let agent = world.agent(&[]);
    let first = world.requested(&token).await;
    // Neither another start nor the next full scan writes it anew.
    drop(program.run());
    eventually("it has looked at everything again", async || {
        agent.metric("fivespot_agent_scans_total{cause=\"interval\"}") > 0
    })
    .await;
    assert_eq!(world.request().await.unwrap().2, first);
    assert_eq!(agent.metric("fivespot_agent_writes_total"), 1);
    world.clear().await;
    let second = world.requested(&token).await;
    assert_ne!(first, second);
    // Nor does another agent, which takes over in its place.
    drop(agent);
    let agent = world.agent(&[]);
    armed(&agent, true).await;
    eventually("it has seen it", async || agent.metric("fivespot_agent_matches_total") > 0).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.request().await.unwrap().2, second);
    // Nothing runs any more: what is cleared stays so.
    drop(running);
    world.clear().await;
    world.stays_unasked(Duration::from_secs(2)).await;
}

#[test]
fn without_a_machine_id_it_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine-id");
    let kubeconfig = plane().management().kubeconfig_path().to_str().unwrap();
    let args = ["--node-name=n", "--kubeconfig", kubeconfig, "--machine-id-path", path.to_str().unwrap()];
    let (code, said) = run_agent(&[], &args);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("mount the host's /etc/machine-id there, or give --machine-id-path"), "{said}");
    std::fs::write(&path, "\n").unwrap();
    let (code, said) = run_agent(&[], &args);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is empty: run systemd-machine-id-setup"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_look_reads_the_config_map_and_writes_nothing() {
    let world = World::new().await;
    let token = token();
    let kubeconfig = plane().management().kubeconfig_path().to_str().unwrap();
    let look = || run_agent(&[], &["--oneshot", "--node-name", &world.node, "--kubeconfig", kubeconfig]);
    let program = Program::sleeper(&token);
    let running = program.run();
    assert_eq!(look().0, Some(1), "there is no ConfigMap");
    world.look_for(&token).await;
    eventually("it is found", async || look().0 == Some(0)).await;
    drop(running);
    assert_eq!(look().0, Some(1));
    assert_eq!(world.request().await, None);
}
