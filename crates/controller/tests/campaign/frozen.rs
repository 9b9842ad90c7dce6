//! Each watch tells nothing for a while, and its connection stays open all the same.

use crate::Campaign;
use crate::scenario::Scenario;
use crate::tally::{Tally, is_campaign};
use std::time::Duration;

/// Longer than the controller believes a watch that is silent.
const BEYOND_BELIEF: Duration = Duration::from_secs(100);

/// What is enough for the controller to go on without it.
const A_WHILE: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_watch_may_fall_silent() {
    let mut campaign = Campaign::begin(&[]).await;
    let references = campaign.references(&Scenario::ALL).await;
    let mut tally = Tally::new("watch", Scenario::ALL.map(Scenario::as_str));
    let mut watches: Vec<String> = campaign.disturber.watched().into_iter().collect();
    let of_nodes = |path: &String| path.ends_with("/nodes");
    assert!(watches.len() > 5 && watches.iter().any(of_nodes), "{watches:?}");
    if !is_campaign() {
        watches.retain(of_nodes);
    }
    for path in watches {
        let runs = campaign.run_each(&Scenario::ALL);
        campaign.prepare(&runs).await;
        campaign.disturber.freeze(Some(&path));
        campaign.trigger(&runs).await;
        tokio::time::sleep(if is_campaign() { BEYOND_BELIEF } else { A_WHILE }).await;
        campaign.disturber.freeze(None);
        let outcomes = campaign.judge(&runs, &references).await;
        let resource = path.rsplit('/').next().unwrap_or_default();
        for (run, outcome) in runs.iter().zip(outcomes) {
            let scenario = run.scenario.as_str();
            tally.count(resource, scenario, scenario, outcome);
        }
        println!("{resource}: {} runs", tally.runs());
    }
    tally.close("watches");
}
