//! The admission policies, shipped and sample, judged on who asks and on what changes.

mod authorization;
mod deletion;
mod tenant;

use crate::setup::{apply, machines, message};
use fivespot_testenv::{ControlPlane, Identity};
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
