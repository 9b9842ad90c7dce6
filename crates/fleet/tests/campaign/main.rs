//! Every call that the operator makes for a machine fails, in every way a call can fail.
//!
//! A machine is asked back once undisturbed: that shows how many calls it takes and what the world looks like afterwards.
//! Then again for every call and every fault, each time with a machine of its own. In the end the world must look the same,
//! and the calls must have kept to the order of a reclaim: cordon, ack, evictions. `make campaign` does all of it and writes
//! its table into `docs/campaign.md`; `make test` does every tenth run.

#![expect(clippy::unwrap_used, reason = "tests: the line that fails is the message")]

#[expect(dead_code, reason = "the tests of the controller use the rest of it")]
#[path = "../../../controller/tests/harness/disturbance.rs"]
mod disturbance;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/mod.rs"]
mod harness;
#[expect(dead_code, reason = "the tests of the controller use the rest of it")]
#[path = "../../../controller/tests/harness/proxy.rs"]
mod proxy;
#[path = "../../../controller/tests/harness/tally.rs"]
mod tally;

use axum::http::Method;
use disturbance::{Disturber, Entry, Fault, Plan, a_tenth};
use fivespot_api::fleet::read_record;
use fivespot_fleet::wire::MachineState::{Configured, Draining};
use futures::future::join_all;
use harness::shard::PlayedShard;
use harness::yard::Yard;
use harness::{Operator, plane};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ListParams;
use proxy::Proxy;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tally::{Outcome, Tally, is_campaign};

/// Machines that are disturbed at the same time.
const AT_ONCE: usize = 100;

/// How long the world may take to become what it should be.
const PATIENCE: Duration = Duration::from_mins(4);

/// How long nothing may be called in the end.
const QUIET: Duration = Duration::from_secs(3);

/// Seconds that pods have: more than any disturbance takes.
const GRACE: i64 = 600;

/// What the world looks like around a machine, by name and without times.
type Look = BTreeMap<&'static str, String>;

/// A machine, and what happens to its calls.
struct Run {
    machine: String,
    plan: Option<Plan>,
}

/// Machines of one operator, which are asked back at the same time.
struct Batch {
    yard: Yard,
    shard: PlayedShard,
    disturber: Arc<Disturber>,
    operator: Operator,
    runs: Vec<Run>,
    _proxy: Proxy,
}

impl Batch {
    /// Two pods on each machine, and all at rest.
    async fn prepare(plane: &'static fivespot_testenv::ControlPlane, runs: Vec<Run>) -> Self {
        let yard = Yard::new(plane, "campaign").await;
        let shard = PlayedShard::start().await;
        for Run { machine, .. } in &runs {
            yard.node(machine, |_| {}).await;
            for pod in ["a", "b"] {
                yard.pod(machine, &format!("{machine}-{pod}"), |_| {}).await;
            }
        }
        let bound: Vec<_> = runs.iter().map(|run| (run.machine.as_str(), Configured)).collect();
        shard.bind(&bound);
        let disturber = Arc::<Disturber>::default();
        let proxy = Proxy::start(yard.client.clone(), Arc::clone(&disturber)).await;
        let operator = Operator::start_through(plane, "campaign", &proxy.url, &shard.address, &[]);
        let batch = Self { yard, shard, disturber, operator, runs, _proxy: proxy };
        join_all(batch.runs.iter().map(|run| batch.yard.until_phase(&run.machine, "Ready"))).await;
        batch.until_quiet().await;
        for Run { machine, plan } in &batch.runs {
            batch.disturber.arm(machine, *plan);
        }
        batch
    }

    /// Asks all machines back, each by an instruction of its own.
    fn trigger(&self) {
        let bound: Vec<_> = self.runs.iter().map(|run| (run.machine.as_str(), Draining)).collect();
        self.shard.bind(&bound);
        for Run { machine, .. } in &self.runs {
            self.shard.instruct(machine, &[machine], GRACE);
            self.shard.tell(machine, Draining);
        }
    }

    /// What the world looks like, with one list of each kind.
    async fn look(&self) -> Vec<Look> {
        let all = ListParams::default();
        let mut looks: BTreeMap<&str, Look> =
            self.runs.iter().map(|run| (run.machine.as_str(), Look::new())).collect();
        for node in self.yard.nodes().list(&all).await.unwrap() {
            let Some(look) = looks.get_mut(node.name_any().as_str()) else { continue };
            let record = node.annotations().get("5spot.finos.org/fleet-reclaim");
            if let Some(record) = record.map(|text| read_record(text).unwrap()) {
                let (by_us, outcome) = (record.cordoned_by_us, record.outcome);
                look.insert("record", format!("{:?} {by_us} {outcome:?}", record.instructions.len()));
            }
            let spec = node.spec.unwrap_or_default();
            look.insert("cordoned", spec.unschedulable.unwrap_or_default().to_string());
        }
        for upcoming in self.yard.upcoming().list(&all).await.unwrap() {
            let name = upcoming.name_any();
            let machine = name.strip_prefix("un-").unwrap_or_default();
            let Some(look) = looks.get_mut(machine) else { continue };
            let status = upcoming.status.unwrap_or_default();
            look.insert("phase", status.phase);
            look.insert("error", status.last_error.unwrap_or_default());
        }
        for pod in self.yard.pods().list(&all).await.unwrap() {
            let node = pod.spec.clone().unwrap_or_default().node_name.unwrap_or_default();
            if let Some(look) = looks.get_mut(node.as_str()) {
                look.insert("pod", pod.name_any());
            }
        }
        for (machine, look) in &mut looks {
            let counts: Vec<i32> = self.shard.acks(machine).iter().map(|(_, count)| *count).collect();
            look.insert("acked", format!("{counts:?}"));
        }
        self.runs.iter().map(|run| looks.remove(run.machine.as_str()).unwrap_or_default()).collect()
    }

    /// Looks until all machines are as wanted and nothing is called any more, or time is up.
    async fn until(&self, holds: impl Fn(&Look) -> bool) -> Vec<Look> {
        let began = Instant::now();
        while !self.look().await.iter().all(&holds) && began.elapsed() < PATIENCE {
            assert!(self.operator.runs(), "the operator has ended:\n{}", self.operator.log());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        self.until_quiet().await;
        self.look().await
    }

    async fn until_quiet(&self) {
        let began = Instant::now();
        let machines = || self.runs.iter().map(|run| run.machine.as_str());
        while self.disturber.last_call(machines()) < QUIET && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// A rule that a run has broken.
    fn broken(&self, machine: &str, journal: &[Entry]) -> Option<&'static str> {
        let is_cordon = |entry: &&Entry| {
            entry.is_done()
                && entry.path.ends_with(&format!("/nodes/{machine}"))
                && entry.method == Method::PATCH
        };
        let cordoned = journal.iter().find(is_cordon).and_then(|entry| entry.answer).map(|(_, at)| at);
        let acked: Option<Timestamp> = self.shard.acks(machine).first().map(|(at, _)| *at);
        let evicted = journal.iter().position(|entry| entry.path.ends_with("/eviction"));
        let cordon = journal.iter().position(|entry| is_cordon(&entry));
        if acked.is_some() && cordoned.is_none_or(|cordoned| acked.is_some_and(|acked| acked < cordoned)) {
            return Some("the ack came before the cordon");
        }
        if evicted.is_some() && cordon.is_none_or(|cordon| evicted.is_some_and(|evicted| evicted < cordon)) {
            return Some("a pod was evicted before the cordon");
        }
        let deletes = |entry: &Entry| entry.method == Method::DELETE && entry.path.contains("/pods/");
        journal.iter().any(deletes).then_some("a pod was deleted and not evicted")
    }

    async fn judge(&self, expected: &Look) -> Vec<Outcome> {
        let looks = self.until(|look| look == expected).await;
        let judge = |(run, look): (&Run, Look)| {
            let journal = self.disturber.journal(&run.machine);
            let broken = self.broken(&run.machine, &journal).map(str::to_owned);
            let differs = (look != *expected).then(|| format!("{look:?} and not {expected:?}"));
            match differs.or(broken) {
                Some(wrong) => Outcome::Wrong(format!("{wrong}\n{}", disturbance::show(&journal))),
                None if journal.iter().any(|entry| entry.fate.is_some()) => Outcome::Right,
                None => Outcome::NotDisturbed,
            }
        };
        self.runs.iter().zip(looks).map(judge).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_a_drain_may_fail_in_every_way() {
    let (plane, _turn) = plane().await;
    let mut number = 0;
    let mut run = |plan: Option<Plan>| {
        number += 1;
        Run { machine: format!("run-{number:04}"), plan }
    };
    let undisturbed = Batch::prepare(plane, vec![run(None)]).await;
    undisturbed.trigger();
    let is_over = |look: &Look| look.get("phase").is_some_and(|phase| phase == "Drained");
    let expected = undisturbed.until(is_over).await.remove(0);
    let journal = undisturbed.disturber.journal("run-0001");
    println!("{expected:?}\n{}", disturbance::show(&journal));
    assert!(is_over(&expected), "{}", undisturbed.operator.log());
    assert_eq!(undisturbed.broken("run-0001", &journal), None);
    drop(undisturbed);

    let mut tally = Tally::new("scenario", Fault::ALL.map(Fault::as_str));
    tally.calls("fleet drain", journal.len());
    let all = Plan::all(journal.len());
    let chosen = if is_campaign() { all } else { a_tenth(all) };
    for chunk in chosen.chunks(AT_ONCE) {
        let batch = Batch::prepare(plane, chunk.iter().map(|plan| run(Some(*plan))).collect()).await;
        batch.trigger();
        let outcomes = batch.judge(&expected).await;
        for (plan, outcome) in chunk.iter().zip(outcomes) {
            tally.count("fleet drain", plan.fault.as_str(), &plan.to_string(), outcome);
        }
        println!("{} of {} runs", tally.runs(), chosen.len());
    }
    tally.close("fleet");
}
