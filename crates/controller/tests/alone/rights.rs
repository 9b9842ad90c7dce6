//! The controller may do what it does, and nothing else.

use crate::audit::requests;
use crate::harness::{CLOSED, Controller, OPEN, World, is};
use crate::{end, plane, worlds};
use fivespot_testenv::{AuditEntry, ControlPlane, eventually};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ACCOUNT: &str = "system:serviceaccount:5spot-system:5spot-controller";

/// One thing that a rule allows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    /// In this namespace alone.
    namespace: Option<String>,
    group: String,
    resource: String,
    verb: String,
}

impl Right {
    fn allows(&self, entry: &AuditEntry) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == entry.namespace)
            && (&self.group, &self.verb) == (&entry.group, &entry.verb)
            && self.resource == resource(entry)
    }
}

fn resource(entry: &AuditEntry) -> String {
    match entry.subresource.as_str() {
        "" => entry.resource.clone(),
        subresource => format!("{}/{subresource}", entry.resource),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_is_used_and_every_use_has_a_rule() {
    let (plane, _turn) = plane().await;
    let since = Timestamp::now();
    let world = worlds::own(plane, "rights").await;
    // As on the first day: a lease of another test would be taken, and not made.
    let lease = ["-n", "5spot-system", "delete", "lease", "--all"];
    plane.kubectl(plane.management(), &lease, "").unwrap();
    let controller = Controller::start(plane, "rights", &[]);
    live(&world).await;
    end(&controller);

    let ours = |entry: &AuditEntry| entry.user == ACCOUNT && entry.at >= since;
    let all: Vec<AuditEntry> = plane.management().audit().unwrap().into_iter().filter(ours).collect();
    assert!(requests(plane.management(), since).len() >= all.len(), "our agent has another name");
    let refused: Vec<_> = all.iter().filter(|entry| entry.code == 403).collect();
    assert!(refused.is_empty(), "refused: {refused:#?}");
    let rights = rights(plane);
    // What is no resource is the list of kinds, which everybody may read.
    let used = all.iter().filter(|entry| !entry.resource.is_empty());
    let without: BTreeSet<_> = used
        .clone()
        .filter(|entry| !rights.iter().any(|right| right.allows(entry)))
        .map(|it| &it.uri)
        .collect();
    assert!(without.is_empty(), "without a rule: {without:#?}");
    let namespaces = [None, Some("5spot-system"), Some(world.namespace.as_str())];
    let idle: Vec<_> = rights
        .iter()
        .filter(|right| namespaces.contains(&right.namespace.as_deref()))
        .filter(|right| !used.clone().any(|entry| right.allows(entry)))
        .collect();
    assert!(idle.is_empty(), "never used: {idle:#?}");
    println!("{} requests used all of {} rights", all.len(), rights.len());
}

/// Everything that the controller has to do with.
async fn live(world: &World) {
    // A Cluster that is not there.
    world.create("ghost", OPEN, |spec| spec["clusterName"] = json!("ghost")).await;
    // Both objects of a process that died before it made the Machine.
    world.create("rest", CLOSED, |_| {}).await;
    let owner = world.until_phase("rest", "Inactive").await;
    for kind in ["K0sWorkerConfig", "RemoteMachine"] {
        create_for(world, kind, "rest", owner.metadata.uid.as_deref()).await;
    }
    // A Machine that is not ours.
    create_for(world, "Machine", "taken", None).await;
    world.create("taken", OPEN, |_| {}).await;
    // In with taints, out with an eviction.
    let taints = json!([{"key": "lab.example.com/lent", "effect": "NoSchedule"}]);
    world.create("graceful", OPEN, |spec| spec["nodeTaints"] = taints).await;
    world.create("killed", OPEN, |_| {}).await;
    world.create("deleted", OPEN, |_| {}).await;
    for machine in ["graceful", "killed", "deleted"] {
        world.until_phase(machine, "Active").await;
        world.pod(machine, machine, |_| {}).await;
    }
    taken_back(world).await;
    world.close("graceful").await;
    world.patch("killed", json!({"spec": {"killSwitch": true}})).await;
    world.delete("deleted", &DeleteParams::default()).await;
    world.until_phase("graceful", "Inactive").await;
    world.until_phase("killed", "Terminated").await;
    world.until_gone(&world.machines(), "deleted").await;
    let lost = |it: &fivespot_api::ScheduledMachine| is(it, "Ready", "False", "ClusterNotFound");
    world.until("ghost", "without a Cluster", lost).await;
    world.until("taken", "told that its name is taken", |it| is(it, "Ready", "False", "NameTaken")).await;
    for machine in ["rest", "graceful", "killed", "deleted"] {
        world.nothing_is_left(machine).await;
    }
}

/// Its agent is told, told otherwise and let go.
async fn taken_back(world: &World) {
    world.create("asked", OPEN, |spec| spec["killIfCommands"] = json!(["idea"])).await;
    world.until_phase("asked", "Active").await;
    let node = world.hosts.node_name("asked");
    let config = format!("reclaim-agent-{node}");
    let configs: Api<ConfigMap> = Api::namespaced(world.workload.clone(), "5spot-system");
    eventually("the agent is told", async || configs.get_opt(&config).await.unwrap().is_some()).await;
    world.patch("asked", json!({"spec": {"killIfCommands": ["idea", "java"]}})).await;
    eventually("the agent is told otherwise", async || {
        configs.get(&config).await.unwrap().data.unwrap()["reclaim.toml"].contains("java")
    })
    .await;
    world
        .patch("asked", json!({"metadata": {"annotations": {"5spot.finos.org/reclaim-requested": "true"}}}))
        .await;
    world.until_phase("asked", "Disabled").await;
    world.nothing_is_left("asked").await;
}

/// An object as the ScheduledMachine of this name would have it, which belongs to `owner` if given.
async fn create_for(world: &World, kind: &str, name: &str, owner: Option<&str>) {
    let group = match kind {
        "K0sWorkerConfig" => "bootstrap.cluster.x-k8s.io",
        "RemoteMachine" => "infrastructure.cluster.x-k8s.io",
        _ => "cluster.x-k8s.io",
    };
    let reference = |kind: &str, group: &str| json!({"kind": kind, "name": "other", "apiGroup": group});
    let spec = match kind {
        "Machine" => json!({
            "clusterName": "other",
            "bootstrap": {"configRef": reference("K0sWorkerConfig", "bootstrap.cluster.x-k8s.io")},
            "infrastructureRef": reference("RemoteMachine", "infrastructure.cluster.x-k8s.io"),
        }),
        _ => json!({}),
    };
    let owners: Vec<Value> = owner
        .map(|uid| {
            json!({"apiVersion": "5spot.finos.org/v1alpha1", "kind": "ScheduledMachine", "name": name, "uid": uid})
        })
        .into_iter()
        .collect();
    let object = json!({
        "apiVersion": format!("{group}/v1beta2"), "kind": kind,
        "metadata": {"name": name, "ownerReferences": owners}, "spec": spec,
    });
    let object = serde_json::from_value(object).unwrap();
    world.objects(kind).create(&PostParams::default(), &object).await.unwrap();
}

/// What the bindings of the account allow, one by one.
fn rights(plane: &ControlPlane) -> BTreeSet<Right> {
    let list = |kind: &str| -> Vec<Value> {
        let text = plane.kubectl(plane.management(), &["get", kind, "-A", "-o", "json"], "").unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["items"].as_array().unwrap().clone()
    };
    let (roles, cluster_roles) = (list("roles"), list("clusterroles"));
    let is_ours = |binding: &Value| {
        let subjects = binding["subjects"].as_array().cloned().unwrap_or_default();
        subjects.iter().any(|it| it["name"] == "5spot-controller" && it["namespace"] == "5spot-system")
    };
    let mut rights = BTreeSet::new();
    for binding in list("clusterrolebindings").into_iter().chain(list("rolebindings")).filter(is_ours) {
        let namespace = binding["metadata"]["namespace"].as_str();
        let of = |role: &&Value| {
            role["metadata"]["name"] == binding["roleRef"]["name"]
                && (role["kind"] == "ClusterRole" || role["metadata"]["namespace"].as_str() == namespace)
        };
        let roles = if binding["roleRef"]["kind"] == "Role" { &roles } else { &cluster_roles };
        let role = roles.iter().find(of).unwrap_or_else(|| panic!("a binding without a role: {binding}"));
        for rule in role["rules"].as_array().unwrap() {
            assert!(rule["resourceNames"].is_null(), "names are not judged here: {rule}");
            let words = |field: &str| rule[field].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
            for (group, resource) in
                words("apiGroups").flat_map(|group| words("resources").map(move |it| (group, it)))
            {
                rights.extend(words("verbs").map(|verb| Right {
                    namespace: namespace.map(str::to_owned),
                    group: group.to_owned(),
                    resource: resource.to_owned(),
                    verb: verb.to_owned(),
                }));
            }
        }
    }
    assert!(!rights.is_empty());
    rights
}
