//! What the policy lets an agent write, and what not.

use super::{
    Attempt, Deed, agents, all_refused, asking, attempt, bound_token, installed, make_node, make_pod,
    node_path, with_token,
};
use crate::setup::{apply, kubectl};
use fivespot_api::names::{
    AGENT, AGENT_ENABLED, AGENT_LABEL, APPLIED_TAINTS, CORDONED_BY, RECLAIM_REASON, RECLAIM_REQUESTED,
    RECLAIM_REQUESTED_AT, SYSTEM_NAMESPACE,
};
use fivespot_core::limits::COMMAND_CHARS;
use fivespot_testenv::{Identity, eventually};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::fs;

/// What a request consists of.
const TRIPLE: [&str; 3] = [RECLAIM_REQUESTED, RECLAIM_REASON, RECLAIM_REQUESTED_AT];

/// A patch of annotations alone.
fn annotations(of: &[(&str, Value)]) -> Value {
    let map: serde_json::Map<String, Value> =
        of.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    json!({"metadata": {"annotations": map}})
}

/// A patch that removes annotations.
fn without(keys: &[&str]) -> Value {
    let nulls: Vec<_> = keys.iter().map(|key| (*key, Value::Null)).collect();
    annotations(&nulls)
}

/// What an agent asks with, but for one annotation.
fn asking_with(key: &str, value: impl Into<Value>) -> Value {
    let mut patch = asking(json!({}));
    patch["metadata"]["annotations"][key] = value.into();
    patch
}

fn node_named(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_of_a_node_may_ask_for_it() {
    let (plane, admin, _) = installed("asks").await;
    let [agent] = agents(plane, &admin, ["asks-a"]).await;
    let path = node_path("asks-a");
    let before = Deed::Get(path.clone()).by(&agent).await.unwrap();
    let uid = before["metadata"]["uid"].clone();

    let made = Deed::Merge(path.clone(), asking(json!({"metadata": {"uid": uid}}))).by(&agent).await.unwrap();
    let of_node = &made["metadata"]["annotations"];
    assert_eq!(of_node[RECLAIM_REQUESTED], "true");
    assert_eq!(of_node[RECLAIM_REASON], "process-match: idea");
    assert_eq!(of_node[RECLAIM_REQUESTED_AT], "2026-03-01T18:30:00Z");

    // The longest pattern that a ScheduledMachine may have, in characters and not in bytes, and any precision.
    let longest = format!("process-match: {}", "é".repeat(COMMAND_CHARS));
    for good in [
        asking_with(RECLAIM_REASON, longest),
        asking_with(RECLAIM_REQUESTED_AT, "2026-12-31T23:59:59.123456789Z"),
        asking_with(RECLAIM_REQUESTED_AT, "2026-03-01T00:00:00.5Z"),
        // Again, word for word.
        asking_with(RECLAIM_REQUESTED_AT, "2026-03-01T00:00:00.5Z"),
    ] {
        Deed::Merge(path.clone(), good).by(&agent).await.unwrap();
    }

    // The controller took the request back; the program still runs.
    Deed::Merge(path.clone(), without(&TRIPLE)).by(&admin).await.unwrap();
    Deed::Merge(path.clone(), asking(json!({}))).by(&agent).await.unwrap();

    // Another host by the same name.
    let other = json!({"metadata": {"uid": "8a0e5d4c-0000-4000-8000-000000000000"}});
    let refused = Deed::Merge(path.clone(), asking(other)).by(&agent).await.unwrap_err();
    assert!(refused.contains("metadata.uid"), "{refused}");
    // The server itself drops the status from a write of the Node.
    let status = json!({"status": {"capacity": {"cpu": "99"}}});
    let made = Deed::Merge(path.clone(), asking(status)).by(&agent).await.unwrap();
    assert_eq!(made["status"]["capacity"]["cpu"], "4");
    // Who applied which field is bookkeeping that the policy leaves alone. docs/threat-model.md says so.
    let mut applied = node_named("asks-a");
    applied["metadata"]["labels"] = json!({"example.com/applied": ""});
    let applied = Deed::Apply(path.clone(), applied).by(&admin).await.unwrap();
    assert!(applied["metadata"]["managedFields"].is_array());
    let forgotten = json!({"metadata": {"managedFields": [{}]}});
    let forgotten = Deed::Merge(path.clone(), asking(forgotten)).by(&agent).await.unwrap();
    assert_eq!(forgotten["metadata"]["managedFields"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_of_a_node_may_write_nothing_else() {
    let (plane, admin, namespace) = installed("denied").await;
    let [agent, _] = agents(plane, &admin, ["denied-a", "denied-b"]).await;
    let owner = Api::<Namespace>::all(admin.clone()).get(&namespace).await.unwrap();
    let furnished = json!({"metadata": {
        "labels": {"example.com/kept": "kept", AGENT_LABEL: AGENT_ENABLED},
        "annotations": {"example.com/kept": "kept", CORDONED_BY: "5spot-controller"},
        "finalizers": ["example.com/kept"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": owner.metadata.uid},
        ],
    }});
    let mut before = Deed::Merge(node_path("denied-a"), furnished).by(&admin).await.unwrap();

    let node = node_path("denied-a");
    let mut attempts = vec![
        attempt(
            "ask for another Node",
            Deed::Merge(node_path("denied-b"), asking(json!({}))),
            "the reclaim agent of Node denied-a may write to that Node alone, and not to Node denied-b",
        ),
        attempt(
            "make a Node by server-side apply",
            Deed::Apply(node_path("denied-c"), asking(node_named("denied-c"))),
            "cannot create resource \"nodes\"",
        ),
    ];
    attempts.extend(other_fields(&node));
    attempts.extend(other_annotations(&node));
    attempts.extend(other_values(&node));
    all_refused(&agent, &attempts).await;

    // kubelet's absence is noticed meanwhile, in spec.taints and in status; the metadata is as it was.
    let mut after = Deed::Get(node).by(&admin).await.unwrap();
    for seen in [&mut before, &mut after] {
        for kept_by_the_server in ["managedFields", "resourceVersion"] {
            seen["metadata"][kept_by_the_server].take();
        }
    }
    assert_eq!(after["metadata"], before["metadata"]);
    assert_eq!(after["spec"]["unschedulable"], Value::Null);
}

/// Fields beside the annotations. Each comes with a request that would be accepted alone.
fn other_fields(node: &str) -> Vec<Attempt> {
    let owner =
        json!([{"apiVersion": "v1", "kind": "PersistentVolume", "name": "gone", "uid": "no-such-uid"}]);
    let taint = json!([{"key": "example.com/mine", "effect": "NoExecute"}]);
    [
        ("add a label", json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}})),
        ("change a label", json!({"metadata": {"labels": {"example.com/kept": "changed"}}})),
        ("remove a label", json!({"metadata": {"labels": {"example.com/kept": null}}})),
        ("remove the label of the agent", json!({"metadata": {"labels": {AGENT_LABEL: null}}})),
        ("add a finalizer", json!({"metadata": {"finalizers": ["example.com/kept", "example.com/mine"]}})),
        ("remove the finalizers", json!({"metadata": {"finalizers": null}})),
        ("give the Node an owner", json!({"metadata": {"ownerReferences": owner}})),
        ("take the owner from the Node", json!({"metadata": {"ownerReferences": null}})),
        ("taint the Node", json!({"spec": {"taints": taint}})),
        ("cordon the Node", json!({"spec": {"unschedulable": true}})),
        ("set its podCIDR", json!({"spec": {"podCIDR": "10.9.0.0/24"}})),
        ("set its providerID", json!({"spec": {"providerID": "k0smotron://other"}})),
    ]
    .into_iter()
    .map(|(name, change)| {
        let says = match (change["spec"].is_null(), name) {
            (false, _) => "this changes spec",
            (_, name) if name.contains("label") => "this changes metadata.labels",
            (_, name) if name.contains("finalizer") => "this changes metadata.finalizers",
            _ => "this changes metadata.ownerReferences",
        };
        attempt(name, Deed::Merge(node.to_owned(), asking(change)), says)
    })
    .collect()
}

fn other_annotations(node: &str) -> Vec<Attempt> {
    let merge = |key: &str, value: Value| Deed::Merge(node.to_owned(), asking(annotations(&[(key, value)])));
    let many = json!({"apiVersion": "v1", "kind": "Node", "metadata": {
        "labels": {"example.com/mine": ""}, "annotations": {"example.com/mine": ""},
    }, "spec": {"unschedulable": true}});
    vec![
        attempt(
            "add an annotation",
            merge("example.com/mine", json!("")),
            "this changes metadata.annotations[example.com/mine]",
        ),
        attempt(
            "change an annotation",
            merge("example.com/kept", json!("changed")),
            "this changes metadata.annotations[example.com/kept]",
        ),
        attempt(
            "remove an annotation",
            merge("example.com/kept", Value::Null),
            "this changes metadata.annotations[example.com/kept]",
        ),
        attempt(
            "claim taints for 5-Spot",
            merge(APPLIED_TAINTS, json!("[]")),
            "this changes metadata.annotations[5spot.finos.org/applied-taints]",
        ),
        attempt(
            "disown the cordon of 5-Spot",
            merge(CORDONED_BY, Value::Null),
            "this changes metadata.annotations[5spot.finos.org/cordoned-by]",
        ),
        attempt(
            "much at once, by server-side apply",
            Deed::Apply(node.to_owned(), asking(many)),
            "may set only the annotations 5spot.finos.org/reclaim-requested, 5spot.finos.org/reclaim-reason, \
             5spot.finos.org/reclaim-requested-at: this changes spec, metadata.labels, \
             metadata.annotations[example.com/mine]",
        ),
    ]
}

/// The three annotations with something else in them.
fn other_values(node: &str) -> Vec<Attempt> {
    let merge = |patch: Value| Deed::Merge(node.to_owned(), patch);
    let mut attempts = Vec::new();
    let requested =
        "5spot.finos.org/reclaim-requested: write \"true\"; a reclaim agent asks with all three annotations";
    for (name, value) in [
        ("ask with \"false\"", json!("false")),
        ("ask with \"True\"", json!("True")),
        ("ask with \"1\"", json!("1")),
        ("ask with nothing", json!("")),
        ("reason and time without a request", Value::Null),
    ] {
        attempts.push(attempt(name, merge(asking_with(RECLAIM_REQUESTED, value)), requested));
    }
    let reason = "5spot.finos.org/reclaim-reason: write \"process-match: \" and the pattern that matched";
    for (name, value) in [
        ("no reason", Value::Null),
        ("a reason of another form", json!("because")),
        ("a reason without a pattern", json!("process-match: ")),
        ("a reason with something before it", json!("a process-match: idea")),
        ("a reason of two lines", json!("process-match: idea\nforged: yes")),
        ("a reason that is too long", json!(format!("process-match: {}", "x".repeat(COMMAND_CHARS + 1)))),
    ] {
        attempts.push(attempt(name, merge(asking_with(RECLAIM_REASON, value)), reason));
    }
    let time = "5spot.finos.org/reclaim-requested-at: write the time in RFC 3339 and UTC";
    for (name, value) in [
        ("no time", Value::Null),
        ("a time in words", json!("yesterday")),
        ("a day without a time", json!("2026-03-01")),
        ("a time of another zone", json!("2026-03-01T18:30:00+01:00")),
        ("a month that does not exist", json!("2026-13-01T18:30:00Z")),
        ("a time with something after it", json!("2026-03-01T18:30:00Z\n")),
    ] {
        attempts.push(attempt(name, merge(asking_with(RECLAIM_REQUESTED_AT, value)), time));
    }
    attempts.push(attempt("nothing at all", merge(json!({})), requested));
    attempts
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_does_not_take_its_request_back() {
    let (plane, admin, _) = installed("takes-back").await;
    let [agent] = agents(plane, &admin, ["takes-back-a"]).await;
    let node = node_path("takes-back-a");
    let asked = Deed::Merge(node.clone(), asking(json!({}))).by(&agent).await.unwrap();
    let remove = |keys: &[&str]| Deed::Merge(node.clone(), without(keys));
    let attempts = [
        attempt(
            "remove the request",
            remove(&TRIPLE),
            "asks with all three annotations, and does not take back",
        ),
        attempt("remove its reason", remove(&[RECLAIM_REASON]), "5spot.finos.org/reclaim-reason: write"),
        attempt(
            "remove its time",
            remove(&[RECLAIM_REQUESTED_AT]),
            "5spot.finos.org/reclaim-requested-at: write",
        ),
    ];
    all_refused(&agent, &attempts).await;
    let after = Deed::Get(node.clone()).by(&agent).await.unwrap();
    assert_eq!(after["metadata"]["annotations"], asked["metadata"]["annotations"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_writes_only_to_the_node_that_it_names() {
    let (plane, admin, _) = installed("tokens").await;
    let [agent_a, agent_b] = agents(plane, &admin, ["tokens-a", "tokens-b"]).await;
    let ask = || Deed::Merge(node_path("tokens-a"), asking(json!({})));

    // Unbound, as `kubectl create token` and the Secrets of old make them.
    let unbound = kubectl(plane, &["-n", SYSTEM_NAMESPACE, "create", "token", AGENT]);
    let unbound = with_token(plane, &unbound).await;
    let not_bound = "this token is not bound to a Pod on a Node";
    all_refused(&unbound, &[attempt("with an unbound token", ask(), not_bound)]).await;

    // Of a Pod that no scheduler has placed.
    let homeless = make_pod(&admin, SYSTEM_NAMESPACE, "tokens-homeless", None).await;
    let homeless = with_token(plane, &bound_token(&admin, &homeless).await).await;
    all_refused(&homeless, &[attempt("with the token of a Pod that is on no Node", ask(), not_bound)]).await;

    // Somebody who may act as the account, but has no Pod.
    let account = Identity::user(format!("system:serviceaccount:{SYSTEM_NAMESPACE}:{AGENT}"));
    let actor = plane.management().client_as(&account).await.unwrap();
    all_refused(&actor, &[attempt("in the name of the account", ask(), not_bound)]).await;

    let not_there =
        "the reclaim agent of Node tokens-b may write to that Node alone, and not to Node tokens-a";
    all_refused(&agent_b, &[attempt("with the token of a Pod on another Node", ask(), not_there)]).await;

    // The negative control, and the end of a token.
    ask().by(&agent_a).await.unwrap();
    let asked = |line: &str| -> bool {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        let extra =
            |key: &str| event["user"]["extra"][format!("authentication.kubernetes.io/{key}")][0].as_str();
        event["objectRef"]["name"] == "tokens-a"
            && event["responseStatus"]["code"] == 200
            && extra("pod-name") == Some("agent-on-tokens-a")
            && extra("node-name") == Some("tokens-a")
            && extra("credential-id").is_some()
    };
    eventually("the audit log tells who asked", async || {
        fs::read_to_string(plane.management().audit_log()).unwrap().lines().any(asked)
    })
    .await;
    let pods: Api<Pod> = Api::namespaced(admin, SYSTEM_NAMESPACE);
    pods.delete("agent-on-tokens-a", &DeleteParams::default().grace_period(0)).await.unwrap();
    eventually("the token of a Pod that is gone is no token", async || {
        ask().by(&agent_a).await.is_err_and(|text| text.contains("Unauthorized"))
    })
    .await;
}

/// Rights are often given more widely than was meant. The policy stands behind them, also for an agent that was
/// installed in another namespace.
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_holds_where_the_rights_are_too_wide() {
    let (plane, admin, namespace) = installed("wide").await;
    make_node(&admin, "wide-a", json!({})).await;
    apply(
        plane,
        &json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": AGENT, "namespace": namespace},
        }),
    );
    let group = "rbac.authorization.k8s.io";
    apply(
        plane,
        &json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": namespace},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": AGENT, "namespace": namespace}],
        }),
    );
    let pod = make_pod(&admin, &namespace, "agent", Some("wide-a")).await;
    let agent = with_token(plane, &bound_token(&admin, &pod).await).await;
    let node = node_path("wide-a");
    eventually("it may do everything, but for the policy", async || {
        Deed::List("/api/v1/secrets".to_owned()).by(&agent).await.is_ok()
            && Deed::DryRun(node.clone(), asking(json!({}))).by(&agent).await.is_ok()
    })
    .await;

    let mut whole = Deed::Get(node.clone()).by(&agent).await.unwrap();
    whole["metadata"]["labels"] = json!({"example.com/mine": ""});
    let new = json!({"metadata": {"name": "wide-b"}});
    let applied = node_named("wide-b");
    let conditions = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let all_nodes = || "/api/v1/nodes".to_owned();
    let sub = |name: &str| format!("{node}/{name}");
    let attempts = [
        attempt("create a Node", Deed::Create(all_nodes(), new), "CREATE of nodes is not for it"),
        attempt(
            "create a Node by server-side apply",
            Deed::Apply(node_path("wide-b"), asking(applied)),
            "CREATE of nodes is not for it",
        ),
        attempt("delete the Node", Deed::Delete(node.clone()), "DELETE of nodes is not for it"),
        attempt("delete all Nodes", Deed::DeleteAll(all_nodes()), "DELETE of nodes is not for it"),
        attempt(
            "replace the Node",
            Deed::Replace(node.clone(), asking(whole)),
            "this changes metadata.labels",
        ),
        attempt(
            "say that the Node is Ready",
            Deed::Merge(sub("status"), asking(conditions)),
            "UPDATE of nodes/status is not for it",
        ),
        attempt("speak to kubelet", Deed::Get(sub("proxy")), "CONNECT of nodes/proxy is not for it"),
    ];
    all_refused(&agent, &attempts).await;
    kubectl(plane, &["delete", "clusterrolebinding", &namespace]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_is_for_agents_alone() {
    let (plane, admin, _) = installed("others").await;
    let [agent] = agents(plane, &admin, ["others-a"]).await;
    let node = node_path("others-a");
    let controller = kubectl(plane, &["-n", SYSTEM_NAMESPACE, "create", "token", "5spot-controller"]);
    let controller = with_token(plane, &controller).await;
    let kubelet =
        Identity { user: "system:node:others-a".to_owned(), groups: vec!["system:nodes".to_owned()] };
    let kubelet = plane.management().client_as(&kubelet).await.unwrap();

    let cordon = json!({"spec": {"unschedulable": true}, "metadata": {
        "labels": {AGENT_LABEL: "paused"}, "annotations": {CORDONED_BY: "5spot-controller"},
    }});
    let annotation =
        annotations(&[("volumes.kubernetes.io/controller-managed-attach-detach", json!("true"))]);
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    for (who, client, deed) in [
        ("the controller", &controller, Deed::Merge(node.clone(), cordon)),
        ("kubelet", &kubelet, Deed::Merge(node.clone(), annotation)),
        ("kubelet", &kubelet, Deed::Merge(format!("{node}/status"), ready)),
        (
            "an administrator",
            &admin,
            Deed::Merge(node.clone(), json!({"metadata": {"finalizers": ["example.com/held"]}})),
        ),
    ] {
        let refused = deed.by(&agent).await.unwrap_err();
        assert!(refused.contains("reclaim agent") || refused.contains("cannot patch"), "{who}: {refused}");
        let answer = deed.by(client).await;
        assert!(answer.is_ok(), "{who}: {answer:?}");
    }

    // The controller takes back what the agent asked for.
    Deed::Merge(node.clone(), asking(json!({}))).by(&agent).await.unwrap();
    let cleared = Deed::Merge(node, without(&TRIPLE)).by(&controller).await.unwrap();
    assert_eq!(cleared["metadata"]["annotations"][RECLAIM_REQUESTED], Value::Null);
}

/// The server stops an expression that costs too much, and a policy that fails refuses: a large Node would keep its
/// owner from getting it back.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_node_can_be_asked_for() {
    let (plane, admin, _) = installed("large").await;
    let [agent] = agents(plane, &admin, ["large-a"]).await;
    let nodes: Api<Node> = Api::all(admin.clone());
    let map = |count: usize, value: &str| -> Value {
        (0..count)
            .map(|n| (format!("large.example.com/k{n}"), json!(value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let images: Vec<Value> = (0..500)
        .map(|n| json!({"names": [format!("registry.example.com/a/long/name/of/an/image:{n}")], "sizeBytes": n}))
        .collect();
    let taints: Vec<Value> = (0..200)
        .map(|n| json!({"key": format!("large.example.com/t{n}"), "effect": "PreferNoSchedule"}))
        .collect();
    let status = Patch::Merge(json!({"status": {"images": images}}));
    nodes.patch_status("large-a", &PatchParams::default(), &status).await.unwrap();

    // All annotations together may be 256 KiB: few that are long, or many that are short.
    for (count, length) in [(25, 10_000), (9_000, 3)] {
        let empty = Patch::Merge(json!({"metadata": {"annotations": null}}));
        nodes.patch("large-a", &PatchParams::default(), &empty).await.unwrap();
        let much = json!({
            "metadata": {"labels": map(1_000, "value"), "annotations": map(count, &"x".repeat(length))},
            "spec": {"taints": taints},
        });
        nodes.patch("large-a", &PatchParams::default(), &Patch::Merge(much)).await.unwrap();
        let node = node_path("large-a");
        let answer = Deed::Merge(node.clone(), asking(json!({}))).by(&agent).await;
        assert!(answer.is_ok(), "{count} annotations: {:?}", answer.err());
        let many = asking(json!({"metadata": {"annotations": map(count, "y")}}));
        let refused = Deed::Merge(node, many).by(&agent).await.unwrap_err();
        assert!(refused.contains("a reclaim agent may set only"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_has_no_doubt_about_the_policy() {
    let (plane, ..) = installed("doubts").await;
    let read = || -> Value {
        let name = "reclaim-agent.5spot.finos.org";
        let text = kubectl(plane, &["get", "validatingadmissionpolicy", name, "-o", "json"]);
        serde_json::from_str(&text).unwrap()
    };
    eventually("the policy has been checked", async || read()["status"]["observedGeneration"].is_i64()).await;
    let policy = read();
    assert_eq!(policy["spec"]["failurePolicy"], "Fail");
    assert_eq!(policy["status"]["typeChecking"]["expressionWarnings"], Value::Null, "{policy:#}");
}
