//! The reclaim agent as it is installed, with tokens such as kubelet mounts into its Pod. Nodes belong to no namespace,
//! so each test names its own.

mod manifests;
mod policy;
mod rights;

use crate::setup::{cluster, from_root, kubectl, message};
use fivespot_api::names::{AGENT, RECLAIM_REASON, RECLAIM_REQUESTED, RECLAIM_REQUESTED_AT, SYSTEM_NAMESPACE};
use fivespot_testenv::{ControlPlane, eventually};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Api, Client};
use serde_json::{Value, json};
use std::sync::Once;

/// The shared control plane with `deploy/node-agent` on it, its administrator and a namespace of one's own.
async fn installed(stem: &str) -> (&'static ControlPlane, Client, String) {
    static INSTALLED: Once = Once::new();
    let (plane, admin, namespace) = cluster(stem).await;
    INSTALLED.call_once(|| {
        kubectl(plane, &["apply", "-k", from_root("deploy/workload").to_str().unwrap()]);
        kubectl(plane, &["apply", "--server-side", "-k", from_root("deploy/node-agent").to_str().unwrap()]);
    });
    (plane, admin, namespace)
}

/// Agents on Nodes that this makes, with rights and policy in force.
async fn agents<const N: usize>(plane: &ControlPlane, admin: &Client, nodes: [&str; N]) -> [Client; N] {
    let mut clients = Vec::new();
    for node in nodes {
        make_node(admin, node, json!({})).await;
        let pod = make_pod(admin, SYSTEM_NAMESPACE, &format!("agent-on-{node}"), Some(node)).await;
        let client = with_token(plane, &bound_token(admin, &pod).await).await;
        eventually("the rights and the policy are in force", async || {
            let more = asking(json!({"metadata": {"labels": {"a": "b"}}}));
            Deed::DryRun(node_path(node), asking(json!({}))).by(&client).await.is_ok()
                && Deed::DryRun(node_path(node), more).by(&client).await.is_err()
        })
        .await;
        clients.push(client);
    }
    clients.try_into().unwrap_or_else(|_| unreachable!())
}

/// A Node without a kubelet, `change`d before it is made, with room for pods.
async fn make_node(admin: &Client, name: &str, mut change: Value) -> Node {
    let nodes: Api<Node> = Api::all(admin.clone());
    change["metadata"]["name"] = json!(name);
    nodes.create(&PostParams::default(), &serde_json::from_value(change).unwrap()).await.unwrap();
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "10"});
    let status = Patch::Merge(json!({"status": {"allocatable": room, "capacity": room}}));
    nodes.patch_status(name, &PatchParams::default(), &status).await.unwrap()
}

/// A Pod of the agents' account, on a Node if one is given.
async fn make_pod(admin: &Client, namespace: &str, name: &str, node: Option<&str>) -> Pod {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "nodeSelector": {"example.com/nowhere": ""},
            "serviceAccountName": AGENT,
            "containers": [{"name": "agent", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
        },
    });
    let pods: Api<Pod> = Api::namespaced(admin.clone(), namespace);
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
}

/// The token that kubelet would mount into a Pod.
async fn bound_token(admin: &Client, pod: &Pod) -> String {
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": [], "boundObjectRef": {
        "kind": "Pod", "apiVersion": "v1", "name": pod.metadata.name, "uid": pod.metadata.uid,
    }}}))
    .unwrap();
    let accounts: Api<ServiceAccount> =
        Api::namespaced(admin.clone(), pod.metadata.namespace.as_deref().unwrap());
    let answer = accounts.create_token_request(AGENT, &PostParams::default(), &request).await.unwrap();
    answer.status.unwrap().token
}

/// A client that has nothing but a token.
async fn with_token(plane: &ControlPlane, token: &str) -> Client {
    let mut config = plane.management().config().await.unwrap();
    config.auth_info = serde_json::from_value(json!({"token": token.trim()})).unwrap();
    // The first answer is the one that counts.
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

fn node_path(node: &str) -> String {
    format!("/api/v1/nodes/{node}")
}

/// The patch by which an agent asks for its machine, with more in it.
fn asking(mut more: Value) -> Value {
    let annotations = &mut more["metadata"]["annotations"];
    annotations[RECLAIM_REQUESTED] = json!("true");
    annotations[RECLAIM_REASON] = json!("process-match: idea");
    annotations[RECLAIM_REQUESTED_AT] = json!("2026-03-01T18:30:00Z");
    more
}

/// Something that is asked of the API server, by its path.
enum Deed {
    Get(String),
    List(String),
    Create(String, Value),
    Merge(String, Value),
    /// As [`Deed::Merge`], without a trace.
    DryRun(String, Value),
    /// By server-side apply, with force.
    Apply(String, Value),
    Replace(String, Value),
    Delete(String),
    DeleteAll(String),
}

impl Deed {
    /// Does it, and returns what the server says.
    async fn by(&self, client: &Client) -> Result<Value, String> {
        let (path, sent) = match self {
            Self::Get(path) | Self::List(path) | Self::Delete(path) | Self::DeleteAll(path) => {
                (path, &Value::Null)
            }
            Self::Create(path, sent)
            | Self::Merge(path, sent)
            | Self::DryRun(path, sent)
            | Self::Apply(path, sent)
            | Self::Replace(path, sent) => (path, sent),
        };
        let body = serde_json::to_vec(sent).unwrap();
        let all = Request::new(path);
        // What stands after the last slash is a name to kube, also if it is a subresource to the server.
        let (folder, name) = path.rsplit_once('/').unwrap();
        let one = Request::new(folder);
        let request = match self {
            Self::Get(_) => one.get(name, &GetParams::default()),
            Self::List(_) => all.list(&ListParams::default()),
            Self::Create(..) => all.create(&PostParams::default(), body),
            Self::Merge(..) => one.patch(name, &PatchParams::default(), &Patch::Merge(sent)),
            Self::DryRun(..) => one.patch(name, &PatchParams::default().dry_run(), &Patch::Merge(sent)),
            Self::Apply(..) => one.patch(name, &PatchParams::apply("a-test").force(), &Patch::Apply(sent)),
            Self::Replace(..) => one.replace(name, &PostParams::default(), body),
            Self::Delete(_) => one.delete(name, &DeleteParams::default()),
            Self::DeleteAll(_) => all.delete_collection(&DeleteParams::default(), &ListParams::default()),
        };
        message(client.request(request.unwrap()).await)
    }
}

/// An attempt that must be refused, and what the refusal says.
struct Attempt {
    name: &'static str,
    deed: Deed,
    says: &'static str,
}

fn attempt(name: &'static str, deed: Deed, says: &'static str) -> Attempt {
    Attempt { name, deed, says }
}

/// Makes the attempts, prints the answers as a table, and fails if one was not refused as it should be.
async fn all_refused(client: &Client, attempts: &[Attempt]) {
    let mut wrong = Vec::new();
    let mut table = vec!["| attempt | answer |\n|---|---|".to_owned()];
    for Attempt { name, deed, says } in attempts {
        let answer = deed.by(client).await;
        let text = answer.as_ref().err().map_or("ACCEPTED", String::as_str);
        table.push(format!("| {name} | {text} |"));
        if !answer.as_ref().is_err_and(|text| text.contains(says)) {
            wrong.push(format!("{name}: wanted \"{says}\", got {answer:?}"));
        }
    }
    // At once: tests beside this one print too.
    println!("{}\n{} attempts", table.join("\n"), attempts.len());
    assert!(wrong.is_empty(), "not refused, or not so:\n{}", wrong.join("\n"));
}
