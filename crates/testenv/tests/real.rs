//! What the control plane must really do, since later proofs rest on it.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

use fivespot_testenv::{Identity, eventually, shared};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenReview};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fs;

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

async fn make_node(client: &Client, name: &str) -> Node {
    let nodes: Api<Node> = Api::all(client.clone());
    let node =
        nodes.create(&PostParams::default(), &read(json!({"metadata": {"name": name}}))).await.unwrap();
    let status = json!({"status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
    }});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    node
}

fn pod(name: &str, node: Option<&str>) -> Pod {
    read(json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "example.com/pause"}], "tolerations": [{"operator": "Exists"}]},
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_is_the_pinned_one() {
    let client = shared().management().client().await.unwrap();
    let version = client.apiserver_version().await.unwrap();
    let pinned = include_str!("../../../control-plane/go.mod");
    let is_ours = shared().servers().are_built_here();
    assert!(
        !is_ours || pinned.contains(&format!("k8s.io/kubernetes {}", version.git_version)),
        "{version:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_bound_to_a_node_names_it() {
    let plane = shared();
    let client = plane.management().client().await.unwrap();
    let namespace = plane.management().fresh_namespace(&client, "tokens").await.unwrap();
    let node = make_node(&client, "tokens-node").await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
    accounts.create(&PostParams::default(), &read(json!({"metadata": {"name": "agent"}}))).await.unwrap();
    let mut agent = pod("agent", Some("tokens-node"));
    agent.spec.as_mut().unwrap().service_account_name = Some("agent".to_owned());
    let agent = pods.create(&PostParams::default(), &agent).await.unwrap();
    let request: TokenRequest = read(json!({"spec": {"audiences": [], "boundObjectRef": {
        "kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": agent.metadata.uid,
    }}}));
    let token = accounts.create_token_request("agent", &PostParams::default(), &request).await.unwrap();
    let review: TokenReview = read(json!({"spec": {"token": token.status.unwrap().token}}));
    let review = Api::<TokenReview>::all(client).create(&PostParams::default(), &review).await.unwrap();
    let extra = review.status.unwrap().user.unwrap().extra.unwrap();
    assert_eq!(extra["authentication.kubernetes.io/node-name"], ["tokens-node"]);
    assert_eq!(extra["authentication.kubernetes.io/node-uid"], [node.metadata.uid.unwrap()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_may_write_itself_and_no_other() {
    let plane = shared();
    let admin = plane.management().client().await.unwrap();
    make_node(&admin, "mine").await;
    make_node(&admin, "theirs").await;
    let identity = Identity { user: "system:node:mine".to_owned(), groups: vec!["system:nodes".to_owned()] };
    let nodes: Api<Node> = Api::all(plane.management().client_as(&identity).await.unwrap());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
    nodes.patch("mine", &PatchParams::default(), &patch).await.unwrap();
    let refused = nodes.patch("theirs", &PatchParams::default(), &patch).await.unwrap_err();
    assert!(refused.to_string().contains("not allowed to modify node"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_and_scheduler_are_at_work() {
    let plane = shared();
    let client = plane.management().client().await.unwrap();
    let namespace = plane.management().fresh_namespace(&client, "work").await.unwrap();
    make_node(&client, "work-node").await;

    // The scheduler places a pod.
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    pods.create(&PostParams::default(), &pod("placed", None)).await.unwrap();
    eventually("the pod has a node", async || {
        pods.get("placed").await.unwrap().spec.is_some_and(|spec| spec.node_name.is_some())
    })
    .await;

    // A disruption budget answers an eviction with 429.
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &namespace);
    let budget = json!({"metadata": {"name": "placed"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "placed"}}}});
    budgets.create(&PostParams::default(), &read(budget)).await.unwrap();
    let running =
        json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    pods.patch_status("placed", &PatchParams::default(), &Patch::Merge(running)).await.unwrap();
    eventually("the budget counts the pod", async || {
        budgets.get("placed").await.unwrap().status.is_some_and(|status| status.current_healthy == 1)
    })
    .await;
    let mut config = plane.management().config().await.unwrap();
    // kube would try fifteen times; here the first answer is the one that counts.
    config.default_retry = false;
    let impatient: Api<Pod> = Api::namespaced(Client::try_from(config).unwrap(), &namespace);
    let refused = impatient.evict("placed", &EvictParams::default()).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 429), "{refused:?}");

    // What an owner leaves behind is collected.
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let owner =
        maps.create(&PostParams::default(), &read(json!({"metadata": {"name": "owner"}}))).await.unwrap();
    let child = json!({"metadata": {"name": "owned", "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid},
    ]}});
    maps.create(&PostParams::default(), &read(child)).await.unwrap();
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    eventually("the owned object is gone", async || maps.get_opt("owned").await.unwrap().is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_is_in_the_audit_log_with_its_answer() {
    let plane = shared();
    let client = plane.management().client_as(&Identity::user("audited-user")).await.unwrap();
    let refused = Api::<ConfigMap>::namespaced(client, "default").get("nothing").await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused:?}");
    eventually("the line is there", async || {
        let log = fs::read_to_string(plane.management().audit_log()).unwrap();
        log.lines().filter(|line| line.contains("audited-user")).any(|line| {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            event["level"] == "Metadata"
                && event["verb"] == "get"
                && event["impersonatedUser"]["username"] == "audited-user"
                && event["responseStatus"]["code"] == 403
        })
    })
    .await;
}
