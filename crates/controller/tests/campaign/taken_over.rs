//! The process that holds the machines dies, and another takes them over: also when its calls fail.

use crate::disturbance::{Fault, LEASES, Plan, a_tenth};
use crate::harness::{CLOSED, Controller};
use crate::scenario::Scenario;
use crate::tally::{Outcome, Tally, is_campaign};
use crate::timeline::Timeline;
use crate::{AT_ONCE, Campaign, PATIENCE, Run, disturbance};
use fivespot_testenv::eventually;
use jiff::Timestamp;
use std::time::{Duration, Instant};

/// Seconds until others respect a Lease no more, until its holder believes in it no more, and between renewals.
const LEASE: [u64; 3] = [4, 3, 1];

/// How long the one that dies has been at work: some of its calls are made, the others are not.
const AT_WORK: Duration = Duration::from_millis(300);

/// What every process is started with.
fn args() -> [String; 3] {
    let [duration, deadline, retry] = LEASE;
    [
        format!("--lease-duration-secs={duration}"),
        format!("--lease-renew-deadline-secs={deadline}"),
        format!("--lease-retry-period-secs={retry}"),
    ]
}

/// One process at work, and one that stands by.
struct Relay {
    campaign: Campaign,
    /// Nobody for as long as a take-over lasts: it would have a rival.
    heir: Option<Controller>,
    heirs: usize,
}

impl Relay {
    async fn begin() -> Self {
        let campaign = Campaign::begin(&args().each_ref().map(String::as_str)).await;
        eventually("it holds the slot", async || holds(&campaign.controller)).await;
        let mut relay = Self { campaign, heir: None, heirs: 0 };
        relay.stand_by().await;
        relay
    }

    fn heir_name(&self) -> String {
        format!("heir-{}", self.heirs)
    }

    /// Starts a process that has nothing to do for now.
    async fn stand_by(&mut self) {
        self.heirs += 1;
        let (name, args) = (self.heir_name(), args());
        let (plane, url) = (self.campaign.plane, &self.campaign.proxy.url);
        let heir = Controller::start_through(plane, &name, url, &args.each_ref().map(String::as_str));
        eventually("it stands by", async || heir.log().contains("stands by")).await;
        self.heir = Some(heir);
    }

    /// Kills the one at work.
    fn kill(&mut self) {
        let heir = self.heir.take().unwrap();
        std::mem::replace(&mut self.campaign.controller, heir).signal("-KILL");
    }

    /// The slot is taken over, while calls on its Lease fail as planned: the new holder then does what is due. Returns
    /// how many calls on Leases that took.
    async fn slot(&mut self, machine: &str, plan: Option<Plan>) -> (usize, Outcome) {
        self.campaign.disturber.arm_leases(&self.heir_name(), plan);
        self.kill();
        let world = &self.campaign.world;
        let is_lent = world.status(machine).await.phase.as_deref() == Some("Active");
        let wanted = if is_lent { "Inactive" } else { "Active" };
        if is_lent {
            world.close(machine).await;
        } else {
            world.open(machine).await;
        }
        let began = Instant::now();
        while !holds(&self.campaign.controller) && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let calls = self.campaign.disturber.journal(LEASES).len();
        let mut phase = None;
        while phase.as_deref() != Some(wanted) && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(100)).await;
            phase = self.campaign.world.status(machine).await.phase;
        }
        let journal = self.campaign.disturber.journal(LEASES);
        let is_disturbed = journal.iter().any(|entry| entry.fate.is_some());
        let outcome = if phase.as_deref() != Some(wanted) {
            let calls = disturbance::show(&journal);
            Outcome::Wrong(format!("{phase:?} and not {wanted}\n{calls}\n{}", self.campaign.controller.log()))
        } else if is_disturbed {
            Outcome::Right
        } else {
            Outcome::NotDisturbed
        };
        self.stand_by().await;
        (calls, outcome)
    }
}

fn holds(controller: &Controller) -> bool {
    controller.http("/ready").1.trim() == "ready: holds slot 0 of 1"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_a_take_over_may_fail() {
    let since = Timestamp::now();
    let mut relay = Relay::begin().await;
    let mut tally = Tally::new("take-over of", Fault::ALL.map(Fault::as_str));
    let chosen = |plans: Vec<Plan>| if is_campaign() { plans } else { a_tenth(plans) };

    // Machines in the middle of their exit.
    let references = relay.campaign.references(&[Scenario::GracefulExit]).await;
    // Whoever goes on looks at what its predecessor has done, which takes some calls more.
    let calls = references[&Scenario::GracefulExit].calls;
    tally.calls("machines", calls);
    for batch in chosen(Plan::all(calls)).chunks(AT_ONCE) {
        let run = |plan: &Plan| relay.campaign.run(Scenario::GracefulExit, Some(*plan));
        let runs: Vec<Run> = batch.iter().map(run).collect();
        relay.campaign.prepare(&runs).await;
        relay.campaign.trigger(&runs).await;
        tokio::time::sleep(AT_WORK).await;
        relay.kill();
        let outcomes = relay.campaign.judge(&runs, &references).await;
        for (plan, outcome) in batch.iter().zip(outcomes) {
            tally.count("machines", plan.fault.as_str(), &plan.to_string(), outcome);
        }
        println!("{} runs", tally.runs());
        relay.stand_by().await;
    }

    // The slot itself.
    let machine = relay.campaign.run(Scenario::Activate, None).machine;
    relay.campaign.world.create(&machine, CLOSED, |_| {}).await;
    relay.campaign.world.until_phase(&machine, "Inactive").await;
    let (calls, undisturbed) = relay.slot(&machine, None).await;
    assert_eq!(undisturbed, Outcome::NotDisturbed);
    tally.calls("the slot", calls);
    for plan in chosen(Plan::all(calls)) {
        let (_, outcome) = relay.slot(&machine, Some(plan)).await;
        tally.count("the slot", plan.fault.as_str(), &plan.to_string(), outcome);
    }
    let timeline = Timeline::read(&relay.campaign.world, since, LEASE);
    println!("{}{} writes, each by the holder of its slot", timeline.show(), timeline.check());
    tally.close("take-overs");
}
