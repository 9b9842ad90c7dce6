//! Every call that the controller makes for a machine fails, in every way a call can fail.

use crate::disturbance::{Fault, Plan, a_tenth};
use crate::scenario::Scenario;
use crate::tally::{Tally, is_campaign};
use crate::{AT_ONCE, Campaign, Run};
use std::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_may_fail_in_every_way() {
    let mut campaign = Campaign::begin(&[]).await;
    let references = campaign.references(&Scenario::ALL).await;
    let mut tally = Tally::new("scenario", Fault::ALL.map(Fault::as_str));
    let mut plans = Vec::new();
    for (scenario, reference) in &references {
        tally.calls(scenario.as_str(), reference.calls);
        plans.extend(Plan::all(reference.calls).into_iter().map(|plan| (*scenario, plan)));
    }
    if !is_campaign() {
        plans = a_tenth(plans);
    }
    let began = Instant::now();
    for batch in plans.chunks(AT_ONCE) {
        let runs: Vec<Run> =
            batch.iter().map(|(scenario, plan)| campaign.run(*scenario, Some(*plan))).collect();
        campaign.prepare(&runs).await;
        campaign.trigger(&runs).await;
        let outcomes = campaign.judge(&runs, &references).await;
        for ((scenario, plan), outcome) in batch.iter().zip(outcomes) {
            tally.count(scenario.as_str(), plan.fault.as_str(), &plan.to_string(), outcome);
        }
        println!("{} of {} runs after {:.0?}", tally.runs(), plans.len(), began.elapsed());
    }
    tally.close("calls");
}
