//! The DaemonSet, as the server has it.

use super::{Deed, asking, bound_token, installed, make_node, node_path, with_token};
use crate::setup::{from_root, kubectl};
use fivespot_api::names::{AGENT, AGENT_ENABLED, AGENT_LABEL, SYSTEM_NAMESPACE};
use fivespot_testenv::{ControlPlane, assert_only_scrapers_reach, eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

/// Installs one of the two ways and returns what the server makes of its Pods.
fn template(plane: &ControlPlane, folder: &str) -> Value {
    kubectl(plane, &["apply", "--server-side", "-k", from_root(folder).to_str().unwrap()]);
    let text = kubectl(plane, &["-n", SYSTEM_NAMESPACE, "get", "daemonset", AGENT, "-o", "json"]);
    let daemon_set: Value = serde_json::from_str(&text).unwrap();
    let update = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%", "maxSurge": 0}});
    assert_eq!(daemon_set["spec"]["updateStrategy"], update);
    daemon_set["spec"]["template"]["spec"].clone()
}

/// What matters to who may do what on a host. Anything else about the Pod may change without this being asked.
fn powers(pod: &Value) -> Value {
    let container = &pod["containers"][0];
    json!({
        "containers": pod["containers"].as_array().map(Vec::len),
        "initContainers": pod["initContainers"],
        "hostPID": pod["hostPID"],
        "hostNetwork": pod["hostNetwork"],
        "hostIPC": pod["hostIPC"],
        "pod": pod["securityContext"],
        "container": container["securityContext"],
        "command": container["command"],
        "ports": container["ports"],
        "account": pod["serviceAccountName"],
        "automount": pod["automountServiceAccountToken"],
        "volumes": pod["volumes"],
        "mounts": container["volumeMounts"],
        "limits": container["resources"]["limits"],
    })
}

fn expected(host_network: &Value, capabilities: &Value) -> Value {
    let kubernetes = "/var/run/secrets/kubernetes.io/serviceaccount";
    let namespace =
        json!({"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}});
    json!({
        "containers": 1,
        "initContainers": null,
        "hostPID": true,
        "hostNetwork": host_network,
        "hostIPC": null,
        "pod": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "container": {
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": capabilities,
        },
        "command": null,
        "ports": null,
        "account": AGENT,
        "automount": false,
        "volumes": [
            {"name": "machine-id", "hostPath": {"path": "/etc/machine-id", "type": "File"}},
            {"name": "token", "projected": {"defaultMode": 0o400, "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [namespace]}},
            ]}},
        ],
        "mounts": [
            {"name": "machine-id", "mountPath": "/host/etc/machine-id", "readOnly": true},
            {"name": "token", "mountPath": kubernetes, "readOnly": true},
        ],
        "limits": {"memory": "64Mi"},
    })
}

/// The value of an environment variable, or the field it is read from.
fn env<'a>(pod: &'a Value, name: &str) -> &'a str {
    let all = pod["containers"][0]["env"].as_array().unwrap();
    let one = all.iter().find(|one| one["name"] == name).unwrap();
    one["value"].as_str().or_else(|| one["valueFrom"]["fieldRef"]["fieldPath"].as_str()).unwrap()
}

/// Where kubelet asks: host, path and port of both probes.
fn probes(pod: &Value) -> Value {
    ["livenessProbe", "readinessProbe"].map(|probe| {
        let get = &pod["containers"][0][probe]["httpGet"];
        json!([get["host"], get["path"], get["port"]])
    })[..]
        .into()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_runs_where_it_should_with_no_more_than_it_needs() {
    let (plane, admin, _) = installed("manifests").await;
    let labels = json!({AGENT_LABEL: AGENT_ENABLED});
    let taints = json!([{"key": "example.com/away", "effect": "NoExecute"}]);
    // Its kubelet is away too, for there is none.
    let worst = json!({"metadata": {"labels": labels}, "spec": {"unschedulable": true, "taints": taints}});
    make_node(&admin, "manifests-labelled", worst).await;
    make_node(&admin, "manifests-bare", json!({})).await;

    let base = template(plane, "deploy/node-agent");
    let net_admin = json!({"drop": ["ALL"], "add": ["NET_ADMIN"]});
    assert_eq!(powers(&base), expected(&json!(true), &net_admin));
    assert_eq!(base["dnsPolicy"], "ClusterFirstWithHostNet");
    assert_eq!(base["nodeSelector"], json!({AGENT_LABEL: AGENT_ENABLED}));
    assert_eq!(base["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(base["priorityClassName"], "system-node-critical");
    assert_eq!(env(&base, "NODE_NAME"), "spec.nodeName");
    assert_eq!(env(&base, "MACHINE_ID_PATH"), "/host/etc/machine-id");
    assert_eq!(env(&base, "RECLAIM_DETECTOR"), "auto");
    assert_eq!(env(&base, "LISTEN_ADDRESS"), "127.0.0.1");
    assert_eq!(env(&base, "HEALTH_PORT"), "8082");
    assert_eq!(probes(&base), json!([["127.0.0.1", "/health", 8082], ["127.0.0.1", "/ready", 8082]]));

    // The real controller of DaemonSets and the real scheduler put it there, and its token does its work.
    let pods: Api<Pod> = Api::namespaced(admin.clone(), SYSTEM_NAMESPACE);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={AGENT}"));
    let node_of = |pod: &Pod| pod.spec.clone().unwrap_or_default().node_name;
    let on = async |node: &str| -> Option<Pod> {
        let all = pods.list(&ours).await.unwrap().items;
        all.into_iter().find(|pod| node_of(pod).as_deref() == Some(node))
    };
    eventually("an agent is on a cordoned, tainted Node that is not Ready", async || {
        on("manifests-labelled").await.is_some()
    })
    .await;
    assert!(on("manifests-bare").await.is_none());
    let pod = on("manifests-labelled").await.unwrap();
    let agent = with_token(plane, &bound_token(&admin, &pod).await).await;
    eventually("it asks for its Node", async || {
        Deed::Merge(node_path("manifests-labelled"), asking(json!({}))).by(&agent).await.is_ok()
    })
    .await;

    // Without the network of the host, and back.
    let poll = template(plane, "deploy/node-agent-poll");
    assert_eq!(powers(&poll), expected(&Value::Null, &json!({"drop": ["ALL"]})));
    assert_eq!(poll["dnsPolicy"], "ClusterFirst");
    assert_eq!(env(&poll, "RECLAIM_DETECTOR"), "poll");
    assert_eq!(env(&poll, "NODE_NAME"), "spec.nodeName");
    assert_eq!(env(&poll, "MACHINE_ID_PATH"), "/host/etc/machine-id");
    // kubelet cannot reach the loopback of a Pod.
    assert_eq!(env(&poll, "LISTEN_ADDRESS"), "status.podIP");
    assert_eq!(probes(&poll), json!([[null, "/health", 8082], [null, "/ready", 8082]]));
    for same in ["nodeSelector", "tolerations", "priorityClassName"] {
        assert_eq!(poll[same], base[same]);
    }
    // On the address of the Pod, where others would reach it.
    let read = |kind: &str| -> Value {
        let get = ["-n", SYSTEM_NAMESPACE, "get", kind, AGENT, "-o", "json"];
        serde_json::from_str(&kubectl(plane, &get)).unwrap()
    };
    let template_of_poll = read("daemonset")["spec"]["template"].clone();
    assert_only_scrapers_reach(&read("networkpolicy"), &template_of_poll, &json!(8082));
    assert_eq!(env(&poll, "HEALTH_PORT"), "8082");
    assert_eq!(template(plane, "deploy/node-agent"), base);

    let namespace = kubectl(plane, &["get", "namespace", SYSTEM_NAMESPACE, "-o", "json"]);
    let namespace: Value = serde_json::from_str(&namespace).unwrap();
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "privileged");
}
