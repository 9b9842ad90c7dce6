//! Each webhook is down for a while: those of the provider, and one that is asked about each kind the controller writes.

use crate::scenario::Scenario;
use crate::tally::{Tally, is_campaign};
use crate::{ACCOUNT, Campaign};
use fivespot_testenv::{ControlPlane, eventually};
use serde_json::{Value, json};
use std::time::Duration;

/// Longer than the controller waits for one call, so that some are tried again while it is down.
const DOWN: Duration = Duration::from_secs(20);

/// A webhook.
struct Webhook {
    name: &'static str,
    /// What it is asked about; nothing for the webhooks of the provider.
    rules: Option<Value>,
}

impl Webhook {
    /// One that is asked about every write of the controller to these resources.
    fn on(name: &'static str, groups: &[&str], resources: &[&str]) -> Self {
        let rule = json!({
            "apiGroups": groups, "apiVersions": ["*"], "operations": ["*"], "resources": resources,
        });
        Self { name, rules: Some(json!([rule])) }
    }

    fn all() -> Vec<Self> {
        vec![
            Self::on("nodes", &[""], &["nodes"]),
            Self { name: "of the provider", rules: None },
            Self::on("pods", &[""], &["pods", "pods/eviction"]),
            Self::on("events", &["", "events.k8s.io"], &["events"]),
            Self::on("configmaps", &[""], &["configmaps"]),
            Self::on("machines", &["cluster.x-k8s.io"], &["machines"]),
            Self::on(
                "provider objects",
                &["bootstrap.cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io"],
                &["*"],
            ),
            Self::on("scheduledmachines", &["5spot.finos.org"], &["scheduledmachines"]),
            Self::on("scheduledmachines/status", &["5spot.finos.org"], &["scheduledmachines/status"]),
            Self::on("leases", &["coordination.k8s.io"], &["leases"]),
        ]
    }

    /// Nobody answers for it from now on.
    async fn stop(&self, campaign: &Campaign) {
        let plane = campaign.plane;
        let Some(rules) = &self.rules else { return plane.stop_provider_webhook() };
        let webhook = |name: &str, rules: &Value, condition: String| {
            json!({
                "name": format!("{name}.example.com"),
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 5,
                // Nobody listens there.
                "clientConfig": {"url": "https://127.0.0.1:9/"},
                "matchConditions": [{"name": "whose", "expression": condition}],
                "rules": rules,
            })
        };
        let probed = json!([{
            "apiGroups": [""], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["configmaps"],
        }]);
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "campaign"},
            "webhooks": [
                // The provider and the hosts go on, and so do the people who want something.
                webhook("ours", rules, format!("request.userInfo.username == '{ACCOUNT}'")),
                webhook("probe", &probed, "object.metadata.name == 'probe'".to_owned()),
            ],
        });
        plane.kubectl(plane.management(), &["apply", "-f", "-"], &configuration.to_string()).unwrap();
        let namespace = campaign.world.namespace.as_str();
        let probe = ["-n", namespace, "create", "configmap", "probe", "--dry-run=server"];
        eventually("the webhook is in force", async || {
            plane.kubectl(plane.management(), &probe, "").is_err()
        })
        .await;
    }

    /// It is back.
    fn start(&self, plane: &ControlPlane) {
        if self.rules.is_none() {
            return plane.start_provider_webhook().unwrap();
        }
        let delete = ["delete", "validatingwebhookconfiguration", "campaign"];
        plane.kubectl(plane.management(), &delete, "").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_webhook_may_be_down() {
    let mut campaign = Campaign::begin(&[]).await;
    let references = campaign.references(&Scenario::ALL).await;
    let mut tally = Tally::new("webhook", Scenario::ALL.map(Scenario::as_str));
    let webhooks = Webhook::all();
    let count = if is_campaign() { webhooks.len() } else { 1 };
    for webhook in webhooks.into_iter().take(count) {
        let runs = campaign.run_each(&Scenario::ALL);
        campaign.prepare(&runs).await;
        webhook.stop(&campaign).await;
        campaign.trigger(&runs).await;
        tokio::time::sleep(DOWN).await;
        webhook.start(campaign.plane);
        let outcomes = campaign.judge(&runs, &references).await;
        for (run, outcome) in runs.iter().zip(outcomes) {
            let scenario = run.scenario.as_str();
            tally.count(webhook.name, scenario, scenario, outcome);
        }
        println!("{}: {} runs", webhook.name, tally.runs());
    }
    tally.close("webhooks");
}
