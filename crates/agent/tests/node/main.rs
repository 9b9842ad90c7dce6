//! The agent beside a real kubelet with real containers: whatever pods are named and do, none of it is the owner's.
//!
//! The agent runs as on a host: it sees the kubelet, its helpers, the shims and the containers in the host's `/proc`, and the
//! kernel tells it of each start. The names it looks for are of this process alone, since others may work on this machine;
//! they are never on a command line of the tests themselves.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

#[path = "../harness/mod.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod harness;

mod guests;

use fivespot_testenv::{ControlPlane, Error, Options, RealNode, eventually, is_proof, share};
use guests::Guests;
use harness::{Agent, DETECTORS, Program, Running, both, skipped, token};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Pods that are started at the same time: with more, the machine is busy with itself.
const AT_ONCE: usize = 8;

/// Time between two starts of the owner's.
const OWNER_PAUSE: Duration = Duration::from_secs(1);

fn plane() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    share(&PLANE, &Options::default())
}

/// The node that all tests share, one after the other; nothing if this machine cannot run one.
async fn node(test: &str) -> Option<(&'static RealNode, MutexGuard<'static, ()>)> {
    static NODE: OnceCell<Result<RealNode, String>> = OnceCell::const_new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let start = async || match RealNode::start(plane().management(), "desk").await {
        Err(Error::NodeUnavailable { why }) => Err(why),
        outcome => Ok(outcome.unwrap()),
    };
    match NODE.get_or_init(start).await {
        Ok(node) => Some((node, turn)),
        Err(why) => {
            skipped(test, why);
            None
        }
    }
}

/// The names of programs that the owner has declared, each of them known to this process alone. The kernel keeps all of
/// them: 15 bytes.
fn declared() -> [String; 3] {
    ["java", "idea", "steam"].map(|name| format!("{name}{}", token()))
}

/// One agent for each detector, which look for these names.
fn agents(names: &[String]) -> Vec<Agent> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    DETECTORS.map(|detector| Agent::try_out(&both(&names), detector)).into()
}

/// Matches of all kinds so far, also those whose line in the log a later one has overtaken.
fn matches(agent: &Agent) -> u64 {
    agent.metric("fivespot_agent_matches_total")
}

fn nobody_was_taken_for_the_owner(agents: &[Agent], when: &str) {
    for (agent, detector) in agents.iter().zip(DETECTORS) {
        assert_eq!(matches(agent), 0, "{detector}, {when}: a guest was taken for the owner\n{}", agent.log());
    }
}

/// Starts a program as somebody does who has logged in to the machine, beside its kubelet. No command line on the way
/// quotes its name. It ends with its shell, whose input ends with this value.
fn start_inside(node: &RealNode, program: &Program) -> Running {
    let mut shell = node.enter("sh");
    let script = r#""$PROGRAM" 60 & read -r end; kill $!"#;
    Running::start(shell.args(["-c", script]).env("PROGRAM", program.path()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_not_the_owner_whatever_it_does() {
    let Some((node, _turn)) = node("a_pod_is_not_the_owner_whatever_it_does").await else { return };
    let names = declared();
    let guests = Guests::new(plane(), node, &names).await;
    let agents = agents(&names);

    let pod = guests.start_with_everything("everything").await;
    nobody_was_taken_for_the_owner(&agents, "started with init containers, hooks, probes and every volume");
    // The name is in the pod: what is not seen is there to be seen.
    let in_pod = guests.names_of_processes(&pod);
    assert!(in_pod.contains(&names[0]), "{in_pod:?}");
    guests.exec(&pod).await;
    nobody_was_taken_for_the_owner(&agents, "kubectl exec");
    guests.add_ephemeral_container(&pod).await;
    nobody_was_taken_for_the_owner(&agents, "an ephemeral container");
    // Every process is looked at again, the pod's among them.
    for agent in &agents {
        let scans = || agent.metric("fivespot_agent_scans_total{cause=\"interval\"}");
        let before = scans();
        eventually("it has looked at everything again", async || scans() > before).await;
    }
    nobody_was_taken_for_the_owner(&agents, "all processes were looked at again");
    guests.delete(&pod, 1).await;
    nobody_was_taken_for_the_owner(&agents, "deleted with its hooks");

    for (name, is_inside) in names.iter().zip([false, true, true]) {
        let program = Program::sleeper(name);
        let _running = if is_inside { start_inside(node, &program) } else { program.run() };
        for agent in &agents {
            agent.sees(name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_start_of_the_owner_is_seen_and_none_of_the_guests() {
    let Some((node, _turn)) = node("every_start_of_the_owner_is_seen_and_none_of_the_guests").await else {
        return;
    };
    let (pods, starts) = if is_proof() { (200, 100) } else { (20, 10) };
    let names = declared();
    let guests = Guests::new(plane(), node, &names).await;
    let agents = agents(&names);
    // The owner's have names of their own, so that each is known to have been seen. Another agent looks for them: it
    // reports the last match alone.
    let owners: Vec<String> = (0..starts).map(|_| token()).collect();
    let patterns: Vec<&str> = owners.iter().map(String::as_str).collect();
    let owners_agent = Agent::try_out(&both(&patterns), "netlink");

    let began = Instant::now();
    // On a thread of its own: it waits without yielding, and the pods must not wait for it.
    let owner = tokio::task::spawn_blocking(move || -> Vec<Duration> {
        let start = |name: &String| {
            std::thread::sleep(OWNER_PAUSE);
            let program = Program::sleeper(name);
            let began = Instant::now();
            let _running = program.run();
            owners_agent.sees(name);
            began.elapsed()
        };
        owners.iter().map(start).collect()
    });
    guests.start_and_delete(pods, AT_ONCE).await;
    assert!(owner.is_finished(), "the owner started programs while pods came and went");
    let mut seen_after = owner.await.unwrap();
    seen_after.sort();
    println!(
        "{pods} pods in {:.0} s: {} and {} false matches by events and by polling; {} of {starts} starts of the owner seen, \
         after {:.1?} (p50), {:.1?} (worst), log included",
        began.elapsed().as_secs_f64(),
        matches(&agents[0]),
        matches(&agents[1]),
        seen_after.len(),
        seen_after[seen_after.len() / 2],
        seen_after[seen_after.len() - 1],
    );
    nobody_was_taken_for_the_owner(&agents, "after all pods");
    // They were not blind.
    let program = Program::sleeper(&names[0]);
    let _running = program.run();
    for agent in &agents {
        agent.sees(&names[0]);
    }
}
