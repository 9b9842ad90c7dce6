//! The admission policies, shipped and sample, judged on who asks and on what changes.

mod authorization;
mod deletion;
mod machine_keys;
mod tenant;

use crate::setup::{apply, cluster, dry_run, from_root, kubectl, machine, machines, message, read_yaml};
use fivespot_testenv::{ControlPlane, Identity, eventually};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::fs;

/// What an author needs to create a ScheduledMachine as [`machine`](crate::setup::machine) has it.
const RIGHTS_OF_AUTHORS: [&str; 4] = [
    "scheduledmachines.5spot.finos.org",
    "k0sworkerconfigs.bootstrap.cluster.x-k8s.io",
    "remotemachines.infrastructure.cluster.x-k8s.io",
    "machines.cluster.x-k8s.io",
];

/// Lets a user create, read and patch a resource, written `resource.group`, in a namespace. The API server need
/// not know a resource for RBAC to speak of it.
fn grant(plane: &ControlPlane, namespace: &str, user: &str, resource: &str) {
    let (plural, group) = resource.split_once('.').unwrap();
    let verbs = ["create", "get", "patch"];
    let rule = json!({"apiGroups": [group], "resources": [plural], "verbs": verbs});
    grant_rules(plane, namespace, user, &[rule]);
}

/// Gives a user rules of RBAC in a namespace. They replace earlier ones whose first resource is the same.
pub(crate) fn grant_rules(plane: &ControlPlane, namespace: &str, user: &str, rules: &[Value]) {
    let api_group = "rbac.authorization.k8s.io";
    let resource = rules[0]["resources"][0].as_str().unwrap();
    let metadata = json!({"name": format!("{user}-{resource}"), "namespace": namespace});
    apply(
        plane,
        &json!({
            "apiVersion": format!("{api_group}/v1"), "kind": "Role", "metadata": metadata, "rules": rules,
        }),
    );
    apply(
        plane,
        &json!({
            "apiVersion": format!("{api_group}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": api_group, "kind": "Role", "name": metadata["name"]},
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

/// The API server checks the types of every expression, also of those that no request reaches.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_has_no_doubt_about_the_policies() {
    let (plane, ..) = cluster("doubts").await;
    let files = fs::read_dir(from_root("deploy/policies")).unwrap();
    let mut checked = 0;
    for file in files {
        let name = file.unwrap().file_name().into_string().unwrap();
        let policy = read_yaml(&format!("deploy/policies/{name}")).remove(0);
        let name = policy["metadata"]["name"].as_str().unwrap();
        let read = || -> Value {
            let text = kubectl(plane, &["get", "validatingadmissionpolicy", name, "-o", "json"]);
            serde_json::from_str(&text).unwrap()
        };
        eventually("the policy has been checked", async || {
            read()["status"]["observedGeneration"] == read()["metadata"]["generation"]
        })
        .await;
        let policy = read();
        assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{name}");
        assert_eq!(policy["status"]["typeChecking"]["expressionWarnings"], Value::Null, "{policy:#}");
        checked += 1;
    }
    assert!(checked >= 6, "{checked}");
}

/// A message that has a line break in it is not shown by the server: it says "failed expression" and no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_with_a_line_break_is_refused_with_the_name_of_its_field() {
    let (plane, client, namespace) = cluster("line-breaks").await;
    let api = machines(&client, &namespace);
    let user = "liz";
    for resource in RIGHTS_OF_AUTHORS {
        grant(plane, &namespace, user, resource);
    }
    let without_secrets = as_user(plane, user, &namespace).await;
    eventually("the rights are there", async || dry_run(&without_secrets, &machine("one")).await.is_ok())
        .await;
    for (api, path, value) in [
        (&api, "bootstrapSpec.kind", json!("a\nb")),
        (&api, "infrastructureSpec.kind", json!("a\nb")),
        (&api, "bootstrapSpec.namespace", json!("a\nb")),
        (&api, "infrastructureSpec.namespace", json!("a\nb")),
        (&api, "machineTemplate.labels", json!({"a\nb/c": "d"})),
        (&api, "machineTemplate.annotations", json!({"a\nb/c": "d"})),
        (&without_secrets, "kubeconfigSecretRef", json!({"name": "a\nb"})),
    ] {
        let mut object = machine("odd");
        *path.split('.').fold(&mut object["spec"], |at, field| &mut at[field]) = value;
        let refused = dry_run(api, &object).await.expect_err(path);
        let names_it = refused.contains(&format!("spec.{path}")) && !refused.contains("failed expression");
        assert!(names_it, "{path}: {refused}");
    }
}
