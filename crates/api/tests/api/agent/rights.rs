//! What an agent may read, and what it may not even ask.

use super::{Deed, agents, all_refused, asking, attempt, installed, node_path};
use crate::setup::apply;
use fivespot_api::names::{AGENT, SYSTEM_NAMESPACE, agent_config_map};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_reads_what_to_look_for_and_its_node() {
    let (plane, admin, namespace) = installed("reads").await;
    let [agent, _] = agents(plane, &admin, ["reads-a", "reads-b"]).await;
    for node in ["reads-a", "reads-b"] {
        apply(
            plane,
            &json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": agent_config_map(node), "namespace": SYSTEM_NAMESPACE},
                "data": {"reclaim.toml": "match_commands = [\"idea\"]\n"},
            }),
        );
    }
    let maps = format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps");
    // One account serves all agents: each can read what the others look for. docs/threat-model.md says so.
    for map in ["reads-a", "reads-b"].map(agent_config_map) {
        Deed::Get(format!("{maps}/{map}")).by(&agent).await.unwrap();
    }
    Deed::List(maps).by(&agent).await.unwrap();
    for node in ["reads-a", "reads-b"] {
        Deed::Get(node_path(node)).by(&agent).await.unwrap();
    }

    let list = |path: &str| Deed::List(path.to_owned());
    let in_namespace = |kind: &str| Deed::List(format!("/api/v1/namespaces/{namespace}/{kind}"));
    let in_system = |kind: &str| Deed::List(format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/{kind}"));
    let machines = format!("/apis/5spot.finos.org/v1alpha1/namespaces/{namespace}/scheduledmachines");
    let attempts = [
        attempt("list all ConfigMaps", list("/api/v1/configmaps"), "cannot list resource \"configmaps\""),
        attempt(
            "list ConfigMaps elsewhere",
            in_namespace("configmaps"),
            "cannot list resource \"configmaps\"",
        ),
        attempt(
            "read a ConfigMap elsewhere",
            Deed::Get("/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt".to_owned()),
            "cannot get resource \"configmaps\"",
        ),
        attempt("list Secrets", in_system("secrets"), "cannot list resource \"secrets\""),
        attempt("list all Secrets", list("/api/v1/secrets"), "cannot list resource \"secrets\""),
        attempt("list Pods", in_system("pods"), "cannot list resource \"pods\""),
        attempt("list ScheduledMachines", list(&machines), "cannot list resource \"scheduledmachines\""),
    ];
    all_refused(&agent, &attempts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_may_not_even_try_to_write_anything_but_nodes() {
    let (plane, admin, namespace) = installed("writes").await;
    let [agent] = agents(plane, &admin, ["writes-a"]).await;
    let system = format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}");
    let own = format!("{system}/configmaps/{}", agent_config_map("writes-a"));
    let pod = format!("{system}/pods/agent-on-writes-a");
    let named = |name: &str| json!({"metadata": {"name": name}});
    apply(
        plane,
        &json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": agent_config_map("writes-a"), "namespace": SYSTEM_NAMESPACE},
        }),
    );
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "agent-on-writes-a"}});
    let token = json!({"spec": {"audiences": []}});
    let machines = format!("/apis/5spot.finos.org/v1alpha1/namespaces/{namespace}/scheduledmachines");
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let node = node_path("writes-a");
    let attempts = [
        attempt("delete its Node", Deed::Delete(node.clone()), "cannot delete resource \"nodes\""),
        attempt(
            "delete all Nodes",
            Deed::DeleteAll("/api/v1/nodes".to_owned()),
            "cannot deletecollection resource \"nodes\"",
        ),
        attempt(
            "create a Node",
            Deed::Create("/api/v1/nodes".to_owned(), named("writes-b")),
            "cannot create resource \"nodes\"",
        ),
        attempt(
            "replace its Node",
            Deed::Replace(node.clone(), named("writes-a")),
            "cannot update resource \"nodes\"",
        ),
        attempt(
            "write the status of its Node",
            Deed::Merge(format!("{node}/status"), asking(json!({}))),
            "cannot patch resource \"nodes/status\"",
        ),
        attempt(
            "speak to kubelet",
            Deed::Get(format!("{node}/proxy")),
            "cannot get resource \"nodes/proxy\"",
        ),
        attempt(
            "change its own ConfigMap",
            Deed::Merge(own.clone(), json!({"data": {"reclaim.toml": ""}})),
            "cannot patch resource \"configmaps\"",
        ),
        attempt("delete its own ConfigMap", Deed::Delete(own), "cannot delete resource \"configmaps\""),
        attempt(
            "create a ConfigMap",
            Deed::Create(format!("{system}/configmaps"), named("mine")),
            "cannot create resource \"configmaps\"",
        ),
        attempt(
            "create a ConfigMap elsewhere",
            Deed::Create(format!("/api/v1/namespaces/{namespace}/configmaps"), named("mine")),
            "cannot create resource \"configmaps\"",
        ),
        attempt(
            "evict a Pod",
            Deed::Create(format!("{pod}/eviction"), eviction),
            "cannot create resource \"pods/eviction\"",
        ),
        attempt("delete a Pod", Deed::Delete(pod), "cannot delete resource \"pods\""),
        attempt(
            "get another token",
            Deed::Create(format!("{system}/serviceaccounts/{AGENT}/token"), token),
            "cannot create resource \"serviceaccounts/token\"",
        ),
        attempt(
            "remove the policy",
            Deed::Delete(format!("{policies}/reclaim-agent.5spot.finos.org")),
            "cannot delete resource \"validatingadmissionpolicies\"",
        ),
        attempt(
            "ask on the ScheduledMachine itself",
            Deed::Merge(format!("{machines}/any"), asking(json!({}))),
            "cannot patch resource \"scheduledmachines\"",
        ),
    ];
    all_refused(&agent, &attempts).await;
}
