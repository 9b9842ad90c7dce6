//! Webhooks that are down: of the provider, of Cluster API, and of somebody who has nothing to do with any of it.

use crate::harness::{CLOSED, Controller, OPEN, World, is};
use crate::{end, plane, worlds};
use fivespot_testenv::{ControlPlane, eventually};
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const PAUSED: &str = "cluster.x-k8s.io/paused";

/// How long a machine may take to leave: a webhook that is waited for costs ten seconds for each call.
const AT_ONCE: Duration = Duration::from_secs(20);

/// A machine whose embedded specs are in the version that is not the stored one.
async fn lend(world: &World, name: &str) {
    world
        .create(name, OPEN, |spec| {
            spec["bootstrapSpec"]["apiVersion"] = json!("bootstrap.cluster.x-k8s.io/v1beta1");
            spec["infrastructureSpec"]["apiVersion"] = json!("infrastructure.cluster.x-k8s.io/v1beta1");
        })
        .await;
    world.until_phase(name, "Active").await;
}

/// A machine without a Machine of which a provider object is left. It is paused, so that nobody removes the object yet.
async fn leave_behind(world: &World, name: &str) {
    world
        .create(name, CLOSED, |spec| {
            spec["bootstrapSpec"]["apiVersion"] = json!("bootstrap.cluster.x-k8s.io/v1beta1");
        })
        .await;
    world.patch(name, json!({"metadata": {"annotations": {PAUSED: ""}}})).await;
    let is_paused = |machine: &fivespot_api::ScheduledMachine| {
        machine.status.as_ref().is_some_and(|status| status.conditions.iter().any(|it| it.reason == "Paused"))
    };
    world.until(name, "paused", is_paused).await;
    let owner = world.machines().get(name).await.unwrap();
    let left = json!({
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "K0sWorkerConfig",
        "metadata": {"name": name, "ownerReferences": [{
            "apiVersion": "5spot.finos.org/v1alpha1", "kind": "ScheduledMachine", "name": name,
            "uid": owner.metadata.uid,
        }]},
        "spec": {"version": "v1.34.1+k0s.0"},
    });
    let left = serde_json::from_value(left).unwrap();
    world.objects("K0sWorkerConfig").create(&PostParams::default(), &left).await.unwrap();
}

fn reclaim() -> Value {
    let annotations = json!({
        "5spot.finos.org/reclaim-requested": "true",
        "5spot.finos.org/reclaim-requested-at": "2026-01-01T00:00:00Z",
    });
    json!({"metadata": {"annotations": annotations}})
}

/// The provider's webhooks are down until this is dropped.
struct ProviderDown(&'static ControlPlane);

impl ProviderDown {
    fn new(plane: &'static ControlPlane) -> Self {
        plane.stop_provider_webhook();
        Self(plane)
    }
}

impl Drop for ProviderDown {
    fn drop(&mut self) {
        let _ = self.0.start_provider_webhook();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_way_out_waits_for_the_webhooks_of_the_provider() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "provider-down").await;
    let controller = Controller::start(plane, "provider-down", &[]);
    for name in ["reclaimed", "killed", "disabled", "deleted"] {
        lend(&world, name).await;
    }
    leave_behind(&world, "left").await;
    let down = ProviderDown::new(plane);
    let v1beta1 = "remotemachines.v1beta1.infrastructure.cluster.x-k8s.io";
    let v1beta1 = ["get", v1beta1, "reclaimed", "-n", &world.namespace];
    let answer = plane.kubectl(plane.management(), &v1beta1, "");
    assert!(answer.is_err(), "the webhook is not down: {answer:?}");
    let began = Instant::now();
    world.patch("reclaimed", reclaim()).await;
    world.patch("killed", json!({"spec": {"killSwitch": true}})).await;
    world.patch("disabled", json!({"spec": {"schedule": {"enabled": false}}})).await;
    world.delete("deleted", &DeleteParams::default()).await;
    world.patch("left", json!({"metadata": {"annotations": {PAUSED: null}}})).await;
    world.patch("left", reclaim()).await;
    let machine = world.until_phase("reclaimed", "Disabled").await;
    assert!(is(&machine, "Scheduled", "False", "EmergencyReclaimDisabledSchedule"));
    assert!(!machine.spec.schedule.enabled);
    world.until_phase("killed", "Terminated").await;
    world.until_phase("disabled", "Disabled").await;
    world.until_gone(&world.machines(), "deleted").await;
    // No Machine takes this one along: it is deleted by us, in a version that needs no conversion.
    world.until_gone(&world.objects("K0sWorkerConfig"), "left").await;
    world.until_phase("left", "Disabled").await;
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
    // Nothing can be created through a version that is not served by anybody, and that is said.
    world.patch("disabled", json!({"spec": {"schedule": {"enabled": true}}})).await;
    let tells = |machine: &fivespot_api::ScheduledMachine| {
        let message = crate::harness::message(machine);
        message.contains("could not create the") && message.contains("webhook")
    };
    world.until("disabled", "waiting for the webhook", tells).await;
    drop(down);
    world.patch("disabled", json!({"metadata": {"annotations": {"note": "mended"}}})).await;
    world.until_phase("disabled", "Active").await;
    // A process that starts while the webhooks are down sees what is there.
    end(&controller);
    let _down = ProviderDown::new(plane);
    let second = Controller::start(plane, "provider-down", &[]);
    world.patch("disabled", reclaim()).await;
    world.until_phase("disabled", "Disabled").await;
    end(&second);
}

/// A webhook that is asked about some writes and never answers, until this is dropped.
struct Unrelated {
    plane: &'static ControlPlane,
    name: &'static str,
}

impl Unrelated {
    fn new(plane: &'static ControlPlane, name: &'static str, rules: &Value) -> Self {
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [{
                "name": format!("{name}.example.com"),
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 5,
                // Nobody listens there.
                "clientConfig": {"url": "https://127.0.0.1:9/"},
                "rules": rules,
            }],
        });
        for cluster in [plane.management(), plane.workload()] {
            plane.kubectl(cluster, &["apply", "-f", "-"], &configuration.to_string()).unwrap();
        }
        Self { plane, name }
    }
}

impl Drop for Unrelated {
    fn drop(&mut self) {
        for cluster in [self.plane.management(), self.plane.workload()] {
            let delete = ["delete", "--ignore-not-found", "validatingwebhookconfiguration", self.name];
            let _ = self.plane.kubectl(cluster, &delete, "");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_eject_waits_for_a_webhook_on_nodes_or_events() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "unrelated").await;
    let controller = Controller::start(plane, "unrelated", &[]);
    lend(&world, "m").await;
    world.pod("m", "guest", |_| {}).await;
    let rules = json!([
        {"apiGroups": [""], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["nodes"]},
        {"apiGroups": ["", "events.k8s.io"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["events"]},
    ]);
    let down = Unrelated::new(plane, "unrelated", &rules);
    eventually("the webhook is in force", async || {
        let node = world.hosts.node_name("m");
        plane.kubectl(plane.workload(), &["annotate", "node", &node, "tried=now", "--overwrite"], "").is_err()
    })
    .await;
    let began = Instant::now();
    world.patch("m", reclaim()).await;
    eventually("the Machine is deleted and the schedule is disabled", async || {
        let machine = world.objects("Machine").get_opt("m").await.unwrap();
        let goes = machine.is_none_or(|it| it.metadata.deletion_timestamp.is_some());
        goes && !world.machines().get("m").await.unwrap().spec.schedule.enabled
    })
    .await;
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
    assert!(world.pods().get_opt("guest").await.unwrap().is_none(), "the pod was not ended");
    drop(down);
    world.until_phase("m", "Disabled").await;
    end(&controller);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_exit_waits_for_the_webhooks_of_cluster_api() {
    let (plane, _turn) = plane().await;
    let world = worlds::own(plane, "capi-down").await;
    let controller = Controller::start(plane, "capi-down", &[]);
    lend(&world, "reclaimed").await;
    lend(&world, "closed").await;
    let rules = json!([{
        "apiGroups": ["cluster.x-k8s.io"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
        "resources": ["machines"],
    }]);
    let down = Unrelated::new(plane, "capi-down", &rules);
    eventually("the webhook is in force", async || {
        let annotate = ["annotate", "machine", "closed", "tried=now", "--overwrite", "-n", &world.namespace];
        plane.kubectl(plane.management(), &annotate, "").is_err()
    })
    .await;
    let began = Instant::now();
    world.patch("reclaimed", reclaim()).await;
    world.close("closed").await;
    eventually("both Machines are deleted", async || {
        let mut gone = true;
        for name in ["reclaimed", "closed"] {
            let machine = world.objects("Machine").get_opt(name).await.unwrap();
            gone &= machine.is_none_or(|it| it.metadata.deletion_timestamp.is_some());
        }
        gone && !world.machines().get("reclaimed").await.unwrap().spec.schedule.enabled
    })
    .await;
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
    drop(down);
    world.until_phase("reclaimed", "Disabled").await;
    world.until_phase("closed", "Inactive").await;
    end(&controller);
}
