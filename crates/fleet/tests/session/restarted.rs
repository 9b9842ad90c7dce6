//! The operator is killed at every single call of a reclaim: the next process finishes it within the original deadline.

use crate::harness::shard::PlayedShard;
use crate::harness::yard::Yard;
use crate::harness::{Operator, plane};
use crate::proxy::{Call, Executioner, Fate, Proxy};
use fivespot_core::fleet::record::Outcome;
use fivespot_fleet::wire::MachineState::{Configured, Draining};
use fivespot_testenv::{eventually, is_proof};
use serde_json::json;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Kills the operator at one call, before or after it is made.
#[derive(Default)]
struct At {
    call: usize,
    after: bool,
    is_armed: AtomicBool,
    seen: AtomicUsize,
    pid: AtomicI32,
    made: Mutex<Vec<String>>,
    killed: AtomicBool,
}

impl Executioner for At {
    async fn judge(&self, call: &Call) -> Fate {
        if !self.is_armed.load(Ordering::SeqCst) {
            return Fate::Made;
        }
        let number = self.seen.fetch_add(1, Ordering::SeqCst);
        self.made.lock().unwrap().push(format!("{} {}", call.method, call.path));
        if self.killed.load(Ordering::SeqCst) || number != self.call {
            return Fate::Made;
        }
        if self.after { Fate::DiesAfter } else { Fate::DiesBefore }
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
        let pid = self.pid.load(Ordering::SeqCst).to_string();
        let _ = Command::new("kill").args(["-KILL", &pid]).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_at_any_call_is_followed_by_one_that_finishes_in_time() {
    let (plane, _turn) = plane().await;
    let client = plane.management().client().await.unwrap();
    let (mut call, mut deaths) = (0, 0);
    loop {
        let mut was_last = false;
        for after in [false, true] {
            // Each death costs a second or two; the rest is for `make proof`.
            if !is_proof() && (call + usize::from(after)) % 2 == 1 {
                continue;
            }
            let yard = Yard::new(plane, "killed").await;
            let shard = PlayedShard::start().await;
            let node = format!("killed-{call}-{after}");
            yard.node(&node, |_| {}).await;
            for pod in 0..2 {
                yard.pod(&node, &format!("web-{pod}"), |_| {}).await;
            }
            shard.bind(&[(&node, Configured)]);
            let executioner = Arc::new(At { call, after, ..At::default() });
            let proxy = Proxy::start(client.clone(), Arc::clone(&executioner)).await;
            let first = Operator::start_through(plane, "killed", &proxy.url, &shard.address, &[]);
            executioner.pid.store(first.pid(), Ordering::SeqCst);
            yard.until_phase(&node, "Ready").await;
            executioner.is_armed.store(true, Ordering::SeqCst);
            shard.instruct("killed", &[&node], 30);
            shard.bind(&[(&node, Draining)]);
            shard.tell(&node, Draining);
            let done = async || {
                yard.record(&node).await.is_some_and(|it| it.outcome.is_some())
                    && yard.on(&node).await.is_empty()
            };
            eventually("it is dead, or done", async || !first.runs() || done().await).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            if executioner.seen.load(Ordering::SeqCst) > call {
                eventually("it is dead", async || !first.runs()).await;
            }
            if first.runs() {
                // There are fewer calls than that.
                was_last = true;
                break;
            }
            deaths += 1;
            let second = Operator::start_through(plane, "killed", &proxy.url, &shard.address, &[]);
            eventually("the next process has finished it", done).await;
            yard.until_phase(&node, "Drained").await;
            let record = yard.record(&node).await.unwrap();
            let calls = executioner.made.lock().unwrap().clone();
            let story = format!("call {call} after={after}: {record:?}\n{calls:#?}\n{}", second.log());
            assert_eq!(record.outcome, Some(Outcome::Drained), "{story}");
            assert!(yard.is_cordoned(&node).await, "{story}");
            // One cordon for one instruction, whoever made it.
            let since = record.deadline.duration_since(record.accepted_at).as_secs();
            let is_first = record.instructions == ["killed"];
            assert_eq!(
                since,
                if is_first { 30 } else { 600 },
                "the deadline is the one of the first process: {story}"
            );
            let evictions: Vec<_> = calls.iter().filter(|call| call.ends_with("/eviction")).collect();
            assert!(evictions.len() <= 4, "{story}");
        }
        if was_last {
            break;
        }
        call += 1;
    }
    println!("killed {deaths} times, at each of {call} calls");
    assert!(call >= 8, "a reclaim has more calls than {call}");
}

/// The grace goes on while nobody is there: what is left of it is what the next process has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_process_has_the_time_that_is_left_and_no_more() {
    let (plane, _turn) = plane().await;
    let yard = Yard::new(plane, "left").await;
    let shard = PlayedShard::start().await;
    for node in ["left-0", "left-1"] {
        yard.node(node, |_| {}).await;
        yard.pod(node, &format!("{node}-held"), |it| it["metadata"]["labels"]["app"] = json!("held")).await;
    }
    yard.budget("held").await;
    shard.bind(&[("left-0", Configured), ("left-1", Configured)]);
    let first = Operator::start(plane, "left", &shard.address, &[]);
    for node in ["left-0", "left-1"] {
        yard.until_phase(node, "Ready").await;
    }
    let sent = shard.instruct("short", &["left-0"], 8);
    shard.instruct("long", &["left-1"], 22);
    shard.acked("short").await;
    shard.acked("long").await;
    first.signal("-KILL");
    drop(first);
    shard.bind(&[("left-0", Draining), ("left-1", Draining)]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let _second = Operator::start(plane, "left", &shard.address, &[]);
    // Its time was over before this process began: it is looked at once.
    yard.until_phase("left-0", "Failed").await;
    let took = jiff::Timestamp::now().duration_since(sent).as_secs_f64();
    assert!(took < 18.0, "with a grace of its own it would be 18 s at the least: {took}");
    yard.until_phase("left-1", "Failed").await;
    let took = jiff::Timestamp::now().duration_since(sent).as_secs_f64();
    assert!((22.0..30.0).contains(&took), "with a grace of its own it would be 32 s: {took}");
}
