//! The admission policies, shipped and sample, judged on who asks and on what changes.

use crate::setup::{apply, cluster, create, kubectl, machine, machines, message, read_yaml};
use fivespot_testenv::{ControlPlane, Identity, eventually};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Lets a user create, read and patch a resource, written `resource.group`, in a namespace. The API server need
/// not know a resource for RBAC to speak of it.
fn grant(plane: &ControlPlane, namespace: &str, user: &str, resource: &str) {
    let (plural, group) = resource.split_once('.').unwrap();
    let api_group = "rbac.authorization.k8s.io";
    let metadata = json!({"name": plural, "namespace": namespace});
    apply(
        plane,
        &json!({
            "apiVersion": format!("{api_group}/v1"), "kind": "Role", "metadata": metadata,
            "rules": [{"apiGroups": [group], "resources": [plural], "verbs": ["create", "get", "patch"]}],
        }),
    );
    apply(
        plane,
        &json!({
            "apiVersion": format!("{api_group}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": api_group, "kind": "Role", "name": plural},
            "subjects": [{"apiGroup": api_group, "kind": "User", "name": user}],
        }),
    );
}

async fn as_user(plane: &ControlPlane, user: &str, namespace: &str) -> Api<DynamicObject> {
    let client: Client = plane.management().client_as(&Identity::user(user)).await.unwrap();
    machines(&client, namespace)
}

async fn patch(api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<DynamicObject, String> {
    message(api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_gets_from_5_spot_only_what_he_could_create_himself() {
    let (plane, client, namespace) = cluster("tenant").await;
    let user = "tina";
    grant(plane, &namespace, user, "scheduledmachines.5spot.finos.org");
    let api = as_user(plane, user, &namespace).await;

    eventually("he may write the object, but not what it embeds", async || {
        let refused = create(&api, &machine("one")).await.unwrap_err();
        refused.contains("you may not create k0sworkerconfigs.bootstrap.cluster.x-k8s.io")
    })
    .await;

    grant(plane, &namespace, user, "k0sworkerconfigs.bootstrap.cluster.x-k8s.io");
    eventually("the missing right is the other one", async || {
        let refused = create(&api, &machine("one")).await.unwrap_err();
        refused.contains("you may not create remotemachines.infrastructure.cluster.x-k8s.io")
    })
    .await;

    grant(plane, &namespace, user, "remotemachines.infrastructure.cluster.x-k8s.io");
    eventually("he may", async || create(&api, &machine("one")).await.is_ok()).await;

    // The rights to the embedded kinds hold in that namespace and in no other.
    let second = plane.management().fresh_namespace(&client, "tenant-second").await.unwrap();
    grant(plane, &second, user, "scheduledmachines.5spot.finos.org");
    let elsewhere = as_user(plane, user, &second).await;
    eventually("he may not, elsewhere", async || {
        let refused = create(&elsewhere, &machine("two")).await.unwrap_err();
        refused.contains(&format!(
            "you may not create k0sworkerconfigs.bootstrap.cluster.x-k8s.io in namespace {second}"
        ))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_change_the_embedded_specs_needs_no_right_to_them() {
    let (plane, client, namespace) = cluster("operator").await;
    create(&machines(&client, &namespace), &machine("one")).await.unwrap();
    grant(plane, &namespace, "otto", "scheduledmachines.5spot.finos.org");
    let api = as_user(plane, "otto", &namespace).await;
    eventually("otto may disable", async || {
        patch(&api, "one", json!({"spec": {"schedule": {"enabled": false}}})).await.is_ok()
    })
    .await;
    patch(&api, "one", json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/x"]}}))
        .await
        .unwrap();
    patch(&api, "one", json!({"metadata": {"finalizers": null}})).await.unwrap();
    for part in ["bootstrapSpec", "infrastructureSpec"] {
        let refused = patch(&api, "one", json!({"spec": {part: {"spec": {"x": "y"}}}})).await.unwrap_err();
        assert!(refused.contains("you may not create"), "{part}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_not_known_any_more_is_refused_but_what_runs_can_be_given_back() {
    let (plane, client, namespace) = cluster("unknown").await;
    let api = machines(&client, &namespace);
    let of_kind = |name: &str| {
        let mut object = machine(name);
        object["spec"]["bootstrapSpec"]["kind"] = json!("OddConfig");
        object
    };
    let annotate = |line: &str| {
        let key = format!("embedded.5spot.finos.org/OddConfig.bootstrap.cluster.x-k8s.io{line}");
        kubectl(plane, &["annotate", "crd", "scheduledmachines.5spot.finos.org", &key]);
    };
    annotate("=oddconfigs");
    eventually("the kind is known", async || create(&api, &of_kind("before")).await.is_ok()).await;
    annotate("-");
    let mut tries = 0;
    eventually("the kind is unknown", async || {
        tries += 1;
        let refused = create(&api, &of_kind(&format!("after-{tries}"))).await;
        refused
            .is_err_and(|message| message.contains("OddConfig.bootstrap.cluster.x-k8s.io is not known here"))
    })
    .await;
    patch(&api, "before", json!({"spec": {"schedule": {"enabled": false}}})).await.unwrap();
    patch(&api, "before", json!({"metadata": {"finalizers": ["example.com/x"]}})).await.unwrap();
    patch(&api, "before", json!({"metadata": {"finalizers": null}})).await.unwrap();
    patch(&api, "before", json!({"spec": {"bootstrapSpec": {"spec": {"x": "y"}}}})).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_policy_for_tenants_refuses_commands_and_foreign_addresses() {
    let (plane, client, namespace) = cluster("payloads").await;
    let api = machines(&client, &namespace);
    let with = |name: &str, path: &[&str], value: Value| {
        let mut object = machine(name);
        *path.iter().fold(&mut object["spec"], |at, field| &mut at[*field]) = value;
        object
    };
    let cloud_init = |name| with(name, &["bootstrapSpec", "spec", "cloudInit"], json!("#cloud-config"));
    let address = |name, text: &str| with(name, &["infrastructureSpec", "spec", "address"], json!(text));

    // Without the policy both are accepted: what is refused below is refused by the policy.
    create(&api, &cloud_init("old-1")).await.unwrap();
    create(&api, &address("old-2", "203.0.113.9")).await.unwrap();

    let documents = read_yaml("examples/policies/tenant-payloads.yaml");
    bind_here(plane, &namespace, &documents);
    eventually("a namespace without the annotation may reach nothing", async || {
        let refused = create(&api, &machine("none")).await;
        refused.is_err_and(|text| {
            text.contains("the networks that its annotation example.com/machine-networks lists")
        })
    })
    .await;
    let networks = "example.com/machine-networks=192.168.10.0/24, 10.20.0.0/16";
    kubectl(plane, &["annotate", "namespace", &namespace, networks]);
    eventually("its own addresses are accepted", async || {
        create(&api, &address("mine", "10.20.3.4")).await.is_ok()
    })
    .await;

    let bootstrap = |field: &str, value: Value| with("bad", &["bootstrapSpec", "spec", field], value);
    let infrastructure =
        |field: &str, value: Value| with("bad", &["infrastructureSpec", "spec", field], value);
    let kind = |part: &str, kind: &str| with("bad", &[part, "kind"], json!(kind));
    for (object, says) in [
        (cloud_init("bad"), "remove cloudInit".to_owned()),
        (bootstrap("files", json!([])), "remove files".to_owned()),
        (bootstrap("args", json!(["--debug", "; id"])), "plain words".to_owned()),
        (bootstrap("version", json!("v1 && id")), "plain words".to_owned()),
        (infrastructure("provisionJob", json!({})), "remove provisionJob".to_owned()),
        (infrastructure("cleanUpCommands", json!(["id"])), "remove cleanUpCommands".to_owned()),
        (infrastructure("pool", json!("theirs")), "remove pool".to_owned()),
        (kind("bootstrapSpec", "KubeadmConfig"), "of kind K0sWorkerConfig".to_owned()),
        (kind("infrastructureSpec", "Metal3Machine"), "of kind RemoteMachine only".to_owned()),
    ]
    .into_iter()
    .chain(["203.0.113.9", "10.21.0.1", "db.example.com", ""].map(|text| {
        (address("bad", text), format!("address: \"{text}\" is not an address of namespace {namespace}"))
    })) {
        let refused = create(&api, &object).await.expect_err(&says);
        assert!(refused.contains(&says), "{says}: {refused}");
    }

    // What was there before can still be taken out of service.
    for name in ["old-1", "old-2"] {
        patch(&api, name, json!({"spec": {"killSwitch": true}})).await.unwrap();
    }
}

/// Applies the documents of a policy file under names of this test, its binding confined to this namespace, so
/// that the tests beside this one are not judged by it.
fn bind_here(plane: &ControlPlane, namespace: &str, documents: &[Value]) {
    for document in documents {
        let mut document = document.clone();
        let name = document["metadata"]["name"].as_str().unwrap();
        document["metadata"]["name"] = json!(format!("{namespace}.{name}"));
        if document["kind"] == "ValidatingAdmissionPolicyBinding" {
            let policy = document["spec"]["policyName"].as_str().unwrap();
            document["spec"]["policyName"] = json!(format!("{namespace}.{policy}"));
            document["spec"]["matchResources"] =
                json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}});
        }
        apply(plane, &document);
    }
}
