//! The kinds in the place of k0smotron's, on a real API server: what it stores, defaults, drops, converts and refuses.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

#[expect(dead_code, reason = "other test binaries use the rest of it")]
mod world;

use fivespot_testenv::{Behaviour, ClusterApi, ControlPlane, Core, Options, eventually, share};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::sync::OnceLock;
use tokio::sync::{Mutex, MutexGuard};
use world::World;

/// The provider's objects of a namespace, in both versions.
struct Provider {
    plane: &'static ControlPlane,
    client: Client,
    namespace: String,
    /// The webhook is everybody's, and some tests stop it.
    _turn: MutexGuard<'static, ()>,
}

impl Provider {
    async fn new() -> Self {
        static PLANE: OnceLock<ControlPlane> = OnceLock::new();
        static TURN: Mutex<()> = Mutex::const_new(());
        let turn = TURN.lock().await;
        let cluster_api = ClusterApi::Definitions;
        let plane = share(&PLANE, &Options { cluster_api, ..Options::default() });
        let mut config = plane.management().config().await.unwrap();
        // The first answer counts.
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        let namespace = plane.management().fresh_namespace(&client, "provider").await.unwrap();
        Self { plane, client, namespace, _turn: turn }
    }

    fn objects(&self, kind: &str, version: &str) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk(group(kind), version, kind);
        Api::namespaced_with(self.client.clone(), &self.namespace, &ApiResource::from_gvk(&gvk))
    }

    async fn create(
        &self,
        kind: &str,
        version: &str,
        name: &str,
        spec: Value,
    ) -> kube::Result<DynamicObject> {
        let object = json!({
            "apiVersion": format!("{}/{version}", group(kind)),
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        self.objects(kind, version).create(&PostParams::default(), &object).await
    }

    async fn spec(&self, kind: &str, version: &str, name: &str) -> Value {
        self.objects(kind, version).get(name).await.unwrap().data["spec"].clone()
    }
}

fn group(kind: &str) -> &'static str {
    if kind == "K0sWorkerConfig" { "bootstrap.cluster.x-k8s.io" } else { "infrastructure.cluster.x-k8s.io" }
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_are_set_and_fields_of_the_other_version_are_dropped() {
    let provider = Provider::new().await;
    let spec = json!({
        "address": "192.0.2.1", "sshKeyRef": {"name": "key"}, "adress": "typo", "customCleanUpCommands": ["old"],
        "provisionJob": {"anything": {"goes": 1}},
    });
    provider.create("RemoteMachine", "v1beta2", "m", spec).await.unwrap();
    let stored = json!({
        "address": "192.0.2.1", "sshKeyRef": {"name": "key"}, "commandsAsScript": false, "port": 22, "user": "root",
        "workingDir": "/etc/k0smotron", "provisionJob": {"anything": {"goes": 1}},
    });
    assert_eq!(provider.spec("RemoteMachine", "v1beta2", "m").await, stored);
    let spec = json!({"version": "v1.34.1+k0s.0", "preStartCommands": ["old"], "provisioner": {}});
    provider.create("K0sWorkerConfig", "v1beta2", "m", spec).await.unwrap();
    let stored = json!({
        "version": "v1.34.1+k0s.0", "k0sInstallDir": "/usr/local/bin", "useSystemHostname": false,
        "provisioner": {"platform": "linux", "type": "cloud-config"},
    });
    assert_eq!(provider.spec("K0sWorkerConfig", "v1beta2", "m").await, stored);
    let machine = json!({"address": "192.0.2.2", "sshKeyRef": {"name": "key"}});
    let spec = json!({"pool": "desks", "machine": machine});
    provider.create("PooledRemoteMachine", "v1beta2", "p", spec).await.unwrap();
    let stored = provider.spec("PooledRemoteMachine", "v1beta1", "p").await;
    assert_eq!((&stored["machine"]["port"], &stored["machine"]["user"]), (&json!(22), &json!("root")));
    let keyless = json!({"pool": "desks", "machine": {"address": "192.0.2.2"}});
    let error = provider.create("PooledRemoteMachine", "v1beta2", "q", keyless).await.unwrap_err();
    assert!(error.to_string().contains("spec.machine.sshKeyRef: Required value"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_in_one_version_is_read_in_the_other() {
    let provider = Provider::new().await;
    let spec =
        json!({"address": "192.0.2.1", "sshKeyRef": {"name": "key"}, "customCleanUpCommands": ["wipe"]});
    provider.create("RemoteMachine", "v1beta1", "m", spec).await.unwrap();
    let new = provider.objects("RemoteMachine", "v1beta2");
    assert_eq!(new.get("m").await.unwrap().data["spec"]["cleanUpCommands"], json!(["wipe"]));
    let failure = json!({"failureReason": "ProvisionFailed", "failureMessage": "connection refused"});
    let status =
        json!({"status": {"initialization": {"provisioned": true}, "deprecated": {"v1beta1": failure}}});
    new.patch_status("m", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let old = provider.objects("RemoteMachine", "v1beta1").get("m").await.unwrap();
    let expected =
        json!({"ready": true, "failureReason": "ProvisionFailed", "failureMessage": "connection refused"});
    assert_eq!(old.data["status"], expected);

    let spec = json!({"preStartCommands": ["a"], "ignition": {"variant": "fcos", "version": "1.5.0"}});
    provider.create("K0sWorkerConfig", "v1beta1", "m", spec).await.unwrap();
    let spec = provider.spec("K0sWorkerConfig", "v1beta2", "m").await;
    assert_eq!(
        (&spec["preK0sCommands"], &spec["provisioner"]["ignition"]["variant"]),
        (&json!(["a"]), &json!("fcos"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_k0s_does_not_know_is_refused() {
    let provider = Provider::new().await;
    for version in ["v1beta1", "v1beta2"] {
        let spec = json!({"version": "v1.34.1-k0s.0"});
        let error = provider.create("K0sWorkerConfig", version, "m", spec).await.unwrap_err();
        assert!(error.to_string().contains("spec.version"), "{error}");
    }
    provider.create("K0sWorkerConfig", "v1beta1", "m", json!({"version": "v1.34.1+k0s.0"})).await.unwrap();
}

/// The day on which k0smotron is down: what is not stored as it is asked for cannot be had.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_webhook_only_the_stored_version_answers() {
    let provider = Provider::new().await;
    let spec = || json!({"address": "192.0.2.1"});
    provider.create("RemoteMachine", "v1beta2", "m", spec()).await.unwrap();
    provider.create("K0sWorkerConfig", "v1beta2", "m", json!({})).await.unwrap();
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));

    provider.plane.stop_provider_webhook();
    for kind in ["RemoteMachine", "K0sWorkerConfig"] {
        let (old, new) = (provider.objects(kind, "v1beta1"), provider.objects(kind, "v1beta2"));
        let error = old.get("m").await.unwrap_err().to_string();
        assert!(error.contains("conversion webhook for") && error.contains("connection refused"), "{error}");
        // Not a list: the server has what was converted before in its watch cache.
        old.patch("m", &PatchParams::default(), &label).await.unwrap_err();
        old.delete("m", &DeleteParams::default()).await.unwrap_err();
        new.get("m").await.unwrap();
    }
    provider.create("RemoteMachine", "v1beta1", "n", spec()).await.unwrap_err();
    provider.create("RemoteMachine", "v1beta2", "n", spec()).await.unwrap();
    let machines = provider.objects("RemoteMachine", "v1beta2");
    machines.patch("m", &PatchParams::default(), &label).await.unwrap();
    machines.delete("m", &DeleteParams::default()).await.unwrap();
    // Admission is down as well, and nobody asks it about status or a deletion.
    let configs = provider.objects("K0sWorkerConfig", "v1beta2");
    let error = configs.patch("m", &PatchParams::default(), &label).await.unwrap_err().to_string();
    assert!(error.contains("failed calling webhook"), "{error}");
    let status = Patch::Merge(json!({"status": {"dataSecretName": "m"}}));
    configs.patch_status("m", &PatchParams::default(), &status).await.unwrap();

    provider.plane.start_provider_webhook().unwrap();
    provider.objects("RemoteMachine", "v1beta1").get("n").await.unwrap();
    configs.patch("m", &PatchParams::default(), &label).await.unwrap();
    provider.plane.stop_provider_webhook();
    configs.delete("m", &DeleteParams::default()).await.unwrap();
    provider.plane.start_provider_webhook().unwrap();
}

/// The webhooks are down, and not the rest of the provider: nothing of the way out needs them.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_leaves_while_the_webhooks_are_down() {
    let provider = Provider::new().await;
    let world = World::on(provider.plane, Core::Played, "v1beta2", Behaviour::default()).await;
    world.created_and_running("a").await;
    provider.plane.stop_provider_webhook();
    world.delete("a").await;
    eventually("everything is gone", async || world.is_gone_with_node("a").await).await;
    assert_eq!(world.hosts.resets("a").len(), 1);
    provider.plane.start_provider_webhook().unwrap();
}
