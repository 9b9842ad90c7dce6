//! Everything around the controller fails in turn: every call it makes, every watch it follows, every webhook that is asked
//! about what it writes, the process that holds the machines, and the people who edit them.
//!
//! Each scenario runs once undisturbed: that shows how many calls it takes and what the world looks like afterwards. Then it
//! runs again for every fault, each time with a machine of its own. In the end the world must look the same, and the calls
//! must have kept to the rules of [`never`]. `make campaign` does all of it and writes the tables of `docs/campaign.md`;
//! `make test` does about a tenth.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests: the line that fails is the message")]

#[path = "../harness/disturbance.rs"]
mod disturbance;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/mod.rs"]
mod harness;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/proxy.rs"]
mod proxy;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/settled.rs"]
mod settled;
#[path = "../harness/tally.rs"]
mod tally;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../instances/timeline.rs"]
mod timeline;
#[expect(dead_code, reason = "other tests use the rest of it")]
#[path = "../harness/worlds.rs"]
mod worlds;

mod calls;
mod edits;
mod frozen;
mod look;
mod never;
mod scenario;
mod stopped;
mod taken_over;

use disturbance::{Disturber, Plan};
use fivespot_testenv::{ClusterApi, ControlPlane, Identity, Options, share};
use futures::future::join_all;
use harness::{Controller, World};
use look::Look;
use proxy::Proxy;
use scenario::Scenario;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tally::Outcome;
use tokio::sync::{Mutex, MutexGuard};

/// Machines that are disturbed at the same time.
const AT_ONCE: usize = 200;

/// How long the world may take to become what it should be. A pass that failed is repeated after half a minute, and then
/// after a minute.
const PATIENCE: Duration = Duration::from_mins(4);

/// How long nothing may be written in the end.
const QUIET: Duration = Duration::from_secs(3);

/// Who the controller is to the server: its rights are those that are shipped.
const ACCOUNT: &str = "system:serviceaccount:5spot-system:5spot-controller";

/// What an undisturbed run shows.
struct Reference {
    calls: usize,
    look: Look,
}

/// One run: a scenario, and what happens to its calls.
struct Run {
    machine: String,
    scenario: Scenario,
    plan: Option<Plan>,
}

/// The runs of a campaign share a controller and its server.
struct Campaign {
    plane: &'static ControlPlane,
    world: World,
    disturber: Arc<Disturber>,
    proxy: Proxy,
    controller: Controller,
    runs: usize,
    _turn: MutexGuard<'static, ()>,
}

impl Campaign {
    /// Waits for its turn: the controllers of these tests look after all namespaces.
    async fn begin(args: &[&str]) -> Self {
        static PLANE: OnceLock<ControlPlane> = OnceLock::new();
        static TURN: Mutex<()> = Mutex::const_new(());
        let turn = TURN.lock().await;
        let options = Options { cluster_api: ClusterApi::Definitions, ..Options::default() };
        let plane: &'static ControlPlane = share(&PLANE, &options);
        let world = worlds::own(plane, "campaign").await;
        let disturber = Arc::<Disturber>::default();
        let account = plane.management().client_as(&Identity::user(ACCOUNT)).await.unwrap();
        let proxy = Proxy::start(account, Arc::clone(&disturber)).await;
        let controller = Controller::start_through(plane, "campaign", &proxy.url, args);
        Self { plane, world, disturber, proxy, controller, runs: 0, _turn: turn }
    }

    fn run(&mut self, scenario: Scenario, plan: Option<Plan>) -> Run {
        self.runs += 1;
        Run { machine: format!("run-{:04}", self.runs), scenario, plan }
    }

    fn run_each(&mut self, scenarios: &[Scenario]) -> Vec<Run> {
        scenarios.iter().map(|scenario| self.run(*scenario, None)).collect()
    }

    /// Makes the machines of runs, brings them to where their scenarios begin, and arms what is planned for them.
    async fn prepare(&self, runs: &[Run]) {
        let world = &self.world;
        join_all(runs.iter().map(|run| run.scenario.prepare(world, &run.machine))).await;
        self.until(runs, |run, look| run.scenario.is_prepared(look)).await;
        join_all(runs.iter().map(|run| run.scenario.furnish(world, &run.machine))).await;
        self.until_quiet(runs).await;
        for run in runs {
            self.disturber.arm(&run.machine, run.plan);
        }
    }

    async fn trigger(&self, runs: &[Run]) {
        join_all(runs.iter().map(|run| run.scenario.trigger(&self.world, &run.machine))).await;
    }

    /// Waits until the world around each run looks as it did undisturbed, and says in what it differs if it never does. The
    /// machines of the runs are taken away.
    async fn judge(&self, runs: &[Run], references: &BTreeMap<Scenario, Reference>) -> Vec<Outcome> {
        let expected = |run: &Run| &references[&run.scenario].look;
        let looks = self.until(runs, |run, look| expected(run) == look).await;
        self.until_quiet(runs).await;
        let judge = |(run, look): (&Run, Look)| {
            let journal = self.disturber.journal(&run.machine);
            let is_disturbed = run.plan.is_none() || journal.iter().any(|entry| entry.fate.is_some());
            let wrong = if look == *expected(run) {
                never::check(run.scenario, &journal)
            } else {
                Some(look.differs_from(expected(run)))
            };
            match wrong {
                Some(wrong) => Outcome::Wrong(format!("{wrong}\n{}", disturbance::show(&journal))),
                None if is_disturbed => Outcome::Right,
                None => Outcome::NotDisturbed,
            }
        };
        let outcomes = runs.iter().zip(looks).map(judge).collect();
        self.clear(runs).await;
        outcomes
    }

    async fn clear(&self, runs: &[Run]) {
        join_all(runs.iter().map(|run| scenario::clear(&self.world, &run.machine))).await;
    }

    /// What scenarios look like that nothing disturbs.
    async fn references(&mut self, scenarios: &[Scenario]) -> BTreeMap<Scenario, Reference> {
        let runs = self.run_each(scenarios);
        self.prepare(&runs).await;
        self.trigger(&runs).await;
        let looks = self.until(&runs, |run, look| run.scenario.is_over(look)).await;
        self.until_quiet(&runs).await;
        for (run, look) in runs.iter().zip(looks) {
            let journal = disturbance::show(&self.disturber.journal(&run.machine));
            assert!(run.scenario.is_over(&look), "undisturbed: {look:?}\n{journal}");
            let broken = never::check(run.scenario, &self.disturber.journal(&run.machine));
            assert_eq!(broken, None, "undisturbed:\n{journal}");
        }
        // Again: what is told last may come after the end.
        let looks = look::read(&self.world, runs.iter().map(|run| run.machine.as_str())).await;
        let references = runs.iter().zip(looks).map(|(run, look)| {
            (run.scenario, Reference { calls: self.disturber.journal(&run.machine).len(), look })
        });
        let references = references.collect();
        self.clear(&runs).await;
        references
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

    /// Waits until nothing has been called for a while. What never comes to rest is found by the rules.
    async fn until_quiet(&self, runs: &[Run]) {
        let began = Instant::now();
        while self.disturber.last_call(runs.iter().map(|run| run.machine.as_str())) < QUIET
            && began.elapsed() < PATIENCE
        {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
