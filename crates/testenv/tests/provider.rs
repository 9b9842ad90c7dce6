//! The provider where it fails, and the hosts that suffer from it: what k0smotron does on a bad day, seen through the
//! real manager of Cluster API.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

#[expect(dead_code, reason = "other test binaries use the rest of it")]
mod world;

use fivespot_testenv::{
    Behaviour, Fault, Lacking, PROVIDER_WORKERS, SSH_KEY, create_cluster_lacking, eventually,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeStatus, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use std::time::Duration;
use world::{World, read};

/// Time in which anything that is not held back would have happened.
const A_WHILE: Duration = Duration::from_secs(2);

impl World {
    /// What the provider says of a failure, where it says it.
    async fn failure(&self, name: &str) -> String {
        let machine = self.infrastructure.get(name).await.unwrap();
        machine.data["status"]["deprecated"]["v1beta1"]["failureMessage"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    async fn until_failure(&self, name: &str, part: &str) {
        eventually(&format!("{name} says {part}"), async || self.failure(name).await.contains(part)).await;
    }

    async fn patch_infrastructure(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.infrastructure.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// The Machine is being deleted, and that does not get anywhere.
    async fn hangs(&self, name: &str) {
        self.delete(name).await;
        eventually("the infrastructure is being deleted", async || {
            self.infrastructure.get(name).await.unwrap().metadata.deletion_timestamp.is_some()
        })
        .await;
        tokio::time::sleep(A_WHILE).await;
        assert!(self.infrastructure.get_opt(name).await.unwrap().is_some(), "{name} has left");
    }

    async fn never_joins(&self, name: &str) {
        tokio::time::sleep(A_WHILE).await;
        let machine = self.infrastructure.get(name).await.unwrap();
        assert_ne!(machine.data["status"]["initialization"]["provisioned"], true);
        assert!(self.node(name).await.is_none());
    }

    fn secrets(&self, client: kube::Client) -> Api<Secret> {
        Api::namespaced(client, &self.namespace)
    }

    fn pool(&self, client: kube::Client) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk("infrastructure.cluster.x-k8s.io", "v1beta2", "PooledRemoteMachine");
        Api::namespaced_with(client, &self.namespace, &ApiResource::from_gvk(&gvk))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_reset_when_its_machine_leaves_and_not_before() {
    let world = World::new(Behaviour::default()).await;
    world.created_and_running("a").await;
    assert!(world.hosts.is_installed("a"));
    assert_eq!(world.hosts.resets("a"), []);
    let asked = Timestamp::now();
    world.delete("a").await;
    eventually("everything is gone", async || world.is_gone_with_node("a").await).await;
    let resets = world.hosts.resets("a");
    assert!(resets.len() == 1 && resets[0] > asked, "{resets:?}, asked at {asked}");
    assert!(!world.hosts.is_installed("a"));
    assert!(!world.hosts.reboot("a").await.unwrap(), "nothing is left on it that could join");
    assert!(world.node("a").await.is_none());
}

/// sshd is down at the end of the window: the Machine goes, k0s stays, and with the next boot the Node is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_not_cleaned_comes_back_when_it_boots() {
    let world = World::new(Behaviour::default()).await;
    world.created_and_running("a").await;
    let written = json!({
        "metadata": {"labels": {"lent": "yes"}, "annotations": {"lent": "yes"}},
        "spec": {"unschedulable": true},
    });
    let (name, patch) = (world.hosts.node_name("a"), Patch::Merge(written));
    let before = world.nodes.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    world.hosts.set("a", Fault::CleanUpFails);
    world.delete("a").await;
    eventually("everything is gone", async || world.is_gone_with_node("a").await).await;
    assert_eq!(world.hosts.resets("a"), []);
    assert!(world.hosts.is_installed("a"));

    assert!(world.hosts.reboot("a").await.unwrap());
    assert!(world.is_node_ready("a").await);
    let after = world.node("a").await.unwrap();
    assert_ne!(after.metadata.uid, before.metadata.uid);
    let spec = after.spec.unwrap();
    assert_eq!((spec.provider_id, spec.unschedulable), (None, None));
    let labels = after.metadata.labels.unwrap();
    assert!(!labels.contains_key("lent") && !labels.contains_key("k0smotron.io/machine-name"), "{labels:?}");
    assert!(!after.metadata.annotations.unwrap_or_default().contains_key("lent"));
    let (before, after) =
        (before.status.unwrap().node_info.unwrap(), after.status.unwrap().node_info.unwrap());
    assert_eq!((&after.machine_id, &after.system_uuid), (&before.machine_id, &before.system_uuid));
    assert_ne!(after.boot_id, before.boot_id);

    // The next window finds a host that is not clean, until somebody has cleaned it.
    world.hosts.reset("a");
    world.create("a").await;
    world.until_failure("a", "exited with status 1").await;
    world.hosts.reset_by_hand("a");
    eventually("the Machine runs", async || world.phase("a").await == "Running").await;
    assert_eq!(world.failure("a").await, "");
}

/// A kubelet that starts again finds its Node as it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_lent_host_that_reboots_keeps_its_node() {
    let world = World::new(Behaviour::default()).await;
    world.created_and_running("a").await;
    let before = world.node("a").await.unwrap();
    assert!(world.hosts.reboot("a").await.unwrap());
    let after = world.node("a").await.unwrap();
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert_eq!(after.spec.unwrap().provider_id, Some(world.hosts.provider_id("a")));
    let boot_id = |status: Option<NodeStatus>| status.unwrap().node_info.unwrap().boot_id;
    assert_ne!(boot_id(after.status), boot_id(before.status));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_a_key_neither_joins_nor_leaves() {
    let world = World::new(Behaviour::default()).await;
    world.create_with("a", |machine| machine["spec"]["sshKeyRef"] = Value::Null).await;
    world.until_failure("a", "resource name may not be empty").await;
    world.never_joins("a").await;
    world.hangs("a").await;
    world.patch_infrastructure("a", json!({"spec": {"sshKeyRef": {"name": SSH_KEY}}})).await;
    eventually("everything is gone", async || world.is_gone("a").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_missing_holds_a_machine_that_is_lent() {
    let world = World::new(Behaviour::default()).await;
    world.created_and_running("a").await;
    let secrets = world.secrets(world.plane.management().client().await.unwrap());
    let key = secrets.get(SSH_KEY).await.unwrap();
    secrets.delete(SSH_KEY, &DeleteParams::default()).await.unwrap();
    world.create("b").await;
    world.until_failure("b", &format!("secrets \"{SSH_KEY}\" not found")).await;
    let old = world.infrastructure_in("v1beta1").await.get("b").await.unwrap();
    assert_eq!(old.data["status"]["failureReason"], "ProvisionFailed");
    world.hangs("a").await;
    assert_eq!(world.hosts.resets("a"), []);
    let key =
        Secret { metadata: kube::core::ObjectMeta { name: key.metadata.name, ..Default::default() }, ..key };
    secrets.create(&PostParams::default(), &key).await.unwrap();
    eventually("it has left", async || world.is_gone_with_node("a").await).await;
    eventually("the other runs", async || world.phase("b").await == "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_refuses_says_why_and_joins_when_it_does_no_more() {
    let world = World::new(Behaviour::default()).await;
    world.hosts.set("a", Fault::ConnectionRefused);
    world.hosts.set("b", Fault::LoginRefused);
    world.create("a").await;
    world.create("b").await;
    world.until_failure("a", "connection refused").await;
    world.until_failure("b", "unable to authenticate").await;
    // Cluster API hears of it, and not why.
    eventually("Cluster API says where to look", async || {
        let machine = world.machines.get("a").await.unwrap();
        let conditions = machine.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready =
            conditions.iter().find(|it| it["type"] == "InfrastructureReady").cloned().unwrap_or_default();
        ready["message"].as_str().unwrap_or_default().contains("Check the bootstrap logs")
    })
    .await;
    world.hosts.reset("a");
    eventually("it runs", async || world.phase("a").await == "Running").await;
    assert_eq!(world.failure("a").await, "");
    // A clean-up that nobody can log in for is no reason to stay.
    world.delete("b").await;
    eventually("it is gone", async || world.is_gone("b").await).await;
    assert_eq!(world.hosts.resets("b"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_of_a_pool_needs_an_annotation() {
    let world = World::new(Behaviour::default()).await;
    let pool = world.pool(world.plane.management().client().await.unwrap());
    let pooled = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "PooledRemoteMachine",
        "metadata": {"name": "desk"},
        "spec": {"pool": "desks", "machine": {"address": world.hosts.address("desk"), "sshKeyRef": {"name": SSH_KEY}}},
    });
    pool.create(&PostParams::default(), &read(pooled)).await.unwrap();
    world.create_with("a", |machine| machine["spec"] = json!({"pool": "desks"})).await;
    world.never_joins("a").await;
    assert_eq!(world.failure("a").await, "", "k0smotron panics and says nothing");
    world.hangs("a").await;
    world.until_failure("a", "resource name may not be empty").await;
    world.patch_infrastructure("a", json!({"spec": {"sshKeyRef": {"name": SSH_KEY}}})).await;
    eventually("it is gone", async || world.is_gone("a").await).await;

    let annotated = |machine: &mut Value| {
        machine["spec"] = json!({"pool": "desks"});
        machine["metadata"]["annotations"] = json!({"any": "one"});
    };
    world.create_with("b", annotated).await;
    eventually("it runs", async || world.phase("b").await == "Running").await;
    assert_eq!(pool.get("desk").await.unwrap().data["status"]["machineRef"]["name"], "b");
    assert_eq!(world.hosts.provider_id("b"), format!("remote-machine://{}:22", world.hosts.address("desk")));
    world.create_with("c", annotated).await;
    world.until_failure("c", "free pooled machine not found").await;
    world.delete("b").await;
    eventually("the other has it", async || world.phase("c").await == "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_machines_of_one_address_reset_each_others_host() {
    let world = World::new(Behaviour::default()).await;
    world.created_and_running("a").await;
    let shared = world.hosts.address("a");
    world.create_with("b", |machine| machine["spec"]["address"] = json!(shared)).await;
    world.until_failure("b", "exited with status 1").await;
    assert_eq!(world.hosts.machine_id("a"), world.hosts.machine_id("b"));
    assert_eq!(world.hosts.resets("a"), []);
    world.delete("b").await;
    eventually("it is gone", async || world.is_gone("b").await).await;
    assert_eq!(
        world.hosts.resets("a").len(),
        1,
        "b was never provisioned, and its host was reset all the same"
    );
    assert!(!world.hosts.is_installed("a"));
    assert!(!world.hosts.reboot("a").await.unwrap());
    assert_eq!(world.phase("a").await, "Running", "nobody has told Cluster API");
}

/// A host does not know of namespaces.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_of_another_namespace_resets_the_host_as_well() {
    let world = World::new(Behaviour::default()).await;
    let other = World::new(Behaviour::default()).await;
    world.created_and_running("a").await;
    let shared = world.hosts.address("a");
    other.create_with("b", |machine| machine["spec"]["address"] = json!(shared)).await;
    other.until_failure("b", "exited with status 1").await;
    other.delete("b").await;
    eventually("the host is reset", async || world.hosts.resets("a").len() == 1).await;
    assert!(!world.hosts.is_installed("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_objects_are_written_in_v1beta1_joins_and_leaves() {
    let world = World::new(Behaviour::default()).await;
    let machines = world.infrastructure_in("v1beta1").await;
    world.create_bootstrap("a").await;
    let machine = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "RemoteMachine",
        "metadata": {"name": "a"},
        "spec": {
            "address": world.hosts.address("a"), "sshKeyRef": {"name": SSH_KEY}, "customCleanUpCommands": ["wipe"],
        },
    });
    machines.create(&PostParams::default(), &read(machine)).await.unwrap();
    world.create_machine("a", "v1beta2").await;
    eventually("the Machine runs", async || world.phase("a").await == "Running").await;
    let machine = machines.get("a").await.unwrap();
    assert_eq!(machine.data["status"]["ready"], true);
    assert_eq!(machine.data["spec"]["customCleanUpCommands"], json!(["wipe"]));
    world.delete("a").await;
    eventually("everything is gone", async || world.is_gone_with_node("a").await).await;
}

/// As when somebody has deleted it, or when a Machine is made only to let a RemoteMachine go.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_bootstrap_object_a_machine_may_never_leave() {
    let world = World::new(Fault::HangsWithoutBootstrapObject).await;
    world.create_parts("a").await;
    world.bootstrap.delete("a", &DeleteParams::default()).await.unwrap();
    world.create_machine("a", "v1beta2").await;
    eventually("the infrastructure is taken up", async || {
        world.infrastructure.get("a").await.unwrap().metadata.finalizers.is_some()
    })
    .await;
    world.hangs("a").await;
    world.hosts.set("a", Behaviour::default());
    eventually("everything is gone", async || world.is_gone("a").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_hosts_stop_the_provider_when_there_is_one_for_each_worker() {
    let world = World::new(Behaviour::default()).await;
    world.created_and_running("lent").await;
    let silent: Vec<String> = (0..PROVIDER_WORKERS).map(|number| format!("silent{number}")).collect();
    for name in &silent[1..] {
        world.hosts.set(name, Fault::Silent);
        world.create(name).await;
    }
    world.never_joins(&silent[1]).await;
    // One worker is left.
    world.created_and_running("other").await;
    world.hosts.set(&silent[0], Fault::Silent);
    world.create(&silent[0]).await;
    world.never_joins(&silent[0]).await;
    world.create("late").await;
    world.never_joins("late").await;
    world.hangs("lent").await;
    assert_eq!(world.hosts.resets("lent"), []);
    world.hosts.reset(&silent[0]);
    eventually("it has left", async || world.is_gone_with_node("lent").await).await;
    for name in ["late", &silent[0]] {
        eventually("it runs", async || world.phase(name).await == "Running").await;
    }
    world.never_joins(&silent[1]).await;
}

/// Cluster API is content with a Cluster that names no infrastructure, and its provider is not.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_joins_or_leaves_while_the_infrastructure_of_the_cluster_is_not_ready() {
    let world = World::new(Behaviour::default()).await;
    create_cluster_lacking(world.plane, &world.namespace, "two", Lacking::Infrastructure).await.unwrap();
    world.create_parts("a").await;
    world.create_machine_of("a", "two").await;
    world.never_joins("a").await;
    world.hangs("a").await;
    assert_eq!(world.failure("a").await, "", "k0smotron says nothing");
    assert_eq!(world.hosts.resets("a"), []);
}

/// Without a control plane there is no bootstrap data, and without the data the provider lets nothing go either.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_joins_or_leaves_before_the_control_plane_is_initialized() {
    let world = World::new(Behaviour::default()).await;
    create_cluster_lacking(world.plane, &world.namespace, "two", Lacking::ControlPlane).await.unwrap();
    world.create_parts("a").await;
    world.create_machine_of("a", "two").await;
    eventually("the bootstrap object says what it waits for", async || {
        let config = world.bootstrap.get("a").await.unwrap();
        let conditions = config.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["reason"] == "WaitingForControlPlaneInitialization")
    })
    .await;
    world.never_joins("a").await;
    world.hangs("a").await;
    let initialized = Patch::Merge(json!({"status": {"initialization": {"controlPlaneInitialized": true}}}));
    let client = world.plane.management().client().await.unwrap();
    let gvk = GroupVersionKind::gvk("controlplane.cluster.x-k8s.io", "v1beta2", "K0smotronControlPlane");
    let planes: Api<DynamicObject> =
        Api::namespaced_with(client, &world.namespace, &ApiResource::from_gvk(&gvk));
    planes.patch_status("two", &PatchParams::default(), &initialized).await.unwrap();
    eventually("it is gone", async || world.is_gone("a").await).await;
}

/// As with `kubectl delete --cascade=foreground`: the garbage collector deletes the provider's objects within moments
/// of the Machine, and the provider does not ask whether Cluster API has finished the drain.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_reset_in_the_middle_of_a_drain_when_its_machine_is_deleted_in_the_foreground() {
    let world = World::new(Behaviour::default()).await;
    world.created_and_running("a").await;
    let pod = world.pod_name("kept");
    let pods = world.run_pod("a", &pod).await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(world.workload.clone(), "default");
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": pod}}});
    let budget = read(json!({"metadata": {"name": pod}, "spec": spec}));
    budgets.create(&PostParams::default(), &budget).await.unwrap();
    world.machines.delete("a", &DeleteParams::foreground()).await.unwrap();
    eventually("the host is reset", async || !world.hosts.resets("a").is_empty()).await;
    eventually("Cluster API still deletes the Machine", async || world.phase("a").await == "Deleting").await;
    let pod = pods.get(&pod).await.unwrap();
    assert_eq!(pod.metadata.deletion_timestamp, None, "the drain was not over");
}
