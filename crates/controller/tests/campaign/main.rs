//! Every call that the controller makes for a machine fails once, in every way a call can fail.
//!
//! Each scenario runs once undisturbed: that shows how many calls it takes and what the world looks like afterwards. Then it
//! runs again for every call and every fault, each time with a machine of its own. In the end the world must look the same,
//! and the calls must have kept to the rules of [`never`]. `make campaign` does all of it and writes the table of
//! `docs/campaign.md`; `make test` does every tenth run.

#![expect(clippy::unwrap_used, reason = "tests: the line that fails is the message")]

#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/mod.rs"]
mod harness;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/proxy.rs"]
mod proxy;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/worlds.rs"]
mod worlds;

mod disturbance;
mod look;
mod never;
mod scenario;
mod table;

use disturbance::{Disturber, Fault, Plan};
use fivespot_testenv::{ClusterApi, ControlPlane, Options, share};
use futures::future::join_all;
use harness::{Controller, World};
use look::Look;
use proxy::Proxy;
use scenario::Scenario;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use table::Table;

/// Machines that are disturbed at the same time.
const AT_ONCE: usize = 100;

/// How long the world may take to become what it should be. A pass that failed is repeated after half a minute, and then
/// after a minute.
const PATIENCE: Duration = Duration::from_mins(4);

/// How long nothing may be written in the end.
const QUIET: Duration = Duration::from_secs(3);

/// What an undisturbed run shows.
struct Reference {
    calls: usize,
    look: Look,
}

/// One run: a scenario, and what happens to it.
struct Run {
    machine: String,
    scenario: Scenario,
    plan: Option<Plan>,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Right,
    /// In what way, and what was called.
    Wrong(String),
    /// The call that was to fail was not made: what is told of a run may be told in fewer calls.
    NotDisturbed,
}

/// The runs of a campaign share a controller and its server.
struct Campaign {
    world: World,
    disturber: Arc<Disturber>,
    controller: Controller,
    _proxy: Proxy,
    runs: usize,
}

impl Campaign {
    async fn begin() -> Self {
        static PLANE: OnceLock<ControlPlane> = OnceLock::new();
        let options = Options { cluster_api: ClusterApi::Definitions, ..Options::default() };
        let plane: &'static ControlPlane = share(&PLANE, &options);
        let world = worlds::own(plane, "campaign").await;
        let disturber = Arc::<Disturber>::default();
        let proxy = Proxy::start(world.management.clone(), Arc::clone(&disturber)).await;
        let controller = Controller::start_through(plane, "campaign", &proxy.url, &[]);
        Self { world, disturber, controller, _proxy: proxy, runs: 0 }
    }

    fn run(&mut self, scenario: Scenario, plan: Option<Plan>) -> Run {
        self.runs += 1;
        Run { machine: format!("run-{:04}", self.runs), scenario, plan }
    }

    /// Runs at the same time, each with a machine of its own, until each looks as it should or time is up.
    async fn perform(&self, runs: &[Run], expected: impl Fn(&Run) -> Option<Look>) -> Vec<Outcome> {
        let world = &self.world;
        join_all(runs.iter().map(|run| run.scenario.prepare(world, &run.machine))).await;
        self.until(runs, |run, look| run.scenario.is_prepared(look)).await;
        join_all(runs.iter().map(|run| run.scenario.furnish(world, &run.machine))).await;
        self.until_quiet(runs).await;
        for run in runs {
            self.disturber.arm(&run.machine, run.plan);
        }
        join_all(runs.iter().map(|run| run.scenario.trigger(world, &run.machine))).await;
        let is_over = |run: &Run, look: &Look| {
            expected(run).map_or_else(|| run.scenario.is_over(look), |expected| expected == *look)
        };
        let looks = self.until(runs, is_over).await;
        self.until_quiet(runs).await;
        runs.iter()
            .zip(looks)
            .map(|(run, look)| {
                let journal = self.disturber.journal(&run.machine);
                let broken = never::check(run.scenario, &journal);
                let is_disturbed = run.plan.is_none() || journal.iter().any(|entry| entry.fate.is_some());
                let wrong = match expected(run) {
                    Some(expected) if expected != look => Some(look.differs_from(&expected)),
                    None if !run.scenario.is_over(&look) => Some(format!("{look:?}")),
                    Some(_) | None => broken,
                };
                match wrong {
                    Some(wrong) => Outcome::Wrong(format!("{wrong}\n{}", disturbance::show(&journal))),
                    None if is_disturbed => Outcome::Right,
                    None => Outcome::NotDisturbed,
                }
            })
            .collect()
    }

    /// Looks again and again until every run is as wanted, or time is up.
    async fn until(&self, runs: &[Run], holds: impl Fn(&Run, &Look) -> bool) -> Vec<Look> {
        let began = Instant::now();
        loop {
            let all = look::read(&self.world, runs.iter().map(|run| run.machine.as_str())).await;
            let is_done = runs.iter().zip(&all).all(|(run, look)| holds(run, look));
            if is_done || began.elapsed() > PATIENCE {
                return all;
            }
            assert!(self.controller.runs(), "the controller has ended:\n{}", self.controller.log());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Waits until nothing has been written for a while. What never comes to rest is found by the rules.
    async fn until_quiet(&self, runs: &[Run]) {
        let began = Instant::now();
        while self.disturber.last_call(runs.iter().map(|run| run.machine.as_str())) < QUIET
            && began.elapsed() < PATIENCE
        {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

fn is_campaign() -> bool {
    std::env::var_os("FIVESPOT_CAMPAIGN").is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_may_fail_in_every_way() {
    let mut campaign = Campaign::begin().await;
    let undisturbed: Vec<Run> =
        Scenario::ALL.into_iter().map(|scenario| campaign.run(scenario, None)).collect();
    let wrong = campaign.perform(&undisturbed, |_| None).await;
    assert!(wrong.iter().all(|it| *it == Outcome::Right), "undisturbed: {wrong:#?}");
    let looks = look::read(&campaign.world, undisturbed.iter().map(|run| run.machine.as_str())).await;
    let references: BTreeMap<Scenario, Reference> = undisturbed
        .iter()
        .zip(looks)
        .map(|(run, look)| {
            let calls = campaign.disturber.journal(&run.machine).len();
            (run.scenario, Reference { calls, look })
        })
        .collect();

    let mut plans = Vec::new();
    for (scenario, reference) in &references {
        for at in 0..reference.calls {
            plans.extend(Fault::ALL.map(|fault| (*scenario, Plan { at, fault, times: 1 })));
            // What fails may fail again.
            plans.extend(Fault::ALL.map(|fault| (*scenario, Plan { at, fault, times: 3 })));
        }
    }
    if !is_campaign() {
        // Of ten neighbours one, and not always the same fault.
        plans =
            plans.into_iter().enumerate().filter(|(n, _)| (n + n / 10) % 10 == 0).map(|(_, it)| it).collect();
    }
    let mut table = Table::new(references.iter().map(|(scenario, it)| (*scenario, it.calls)));
    let began = Instant::now();
    for batch in plans.chunks(AT_ONCE) {
        let runs: Vec<Run> =
            batch.iter().map(|(scenario, plan)| campaign.run(*scenario, Some(*plan))).collect();
        let wrong = campaign.perform(&runs, |run| Some(references[&run.scenario].look.clone())).await;
        for (run, wrong) in runs.iter().zip(wrong) {
            table.count(run.scenario, run.plan.as_ref(), wrong);
        }
        println!("{} of {} runs after {:.0?}", table.runs(), plans.len(), began.elapsed());
        join_all(runs.iter().map(|run| scenario::clear(&campaign.world, &run.machine))).await;
    }
    println!("{table}");
    if is_campaign() {
        std::fs::write(harness::from_root("docs/campaign.md"), table.page()).unwrap();
    }
    table.check();
}
