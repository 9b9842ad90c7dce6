//! A cluster with 5-Spot's API and policies on it.

use fivespot_api::ScheduledMachine;
use fivespot_testenv::{ControlPlane, eventually, shared};
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::Request;
use kube::{Api, Client, CustomResourceExt};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// A path from the root of the checkout.
pub(crate) fn from_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The documents of a YAML file.
pub(crate) fn read_yaml(path: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&fs::read_to_string(from_root(path)).unwrap()).unwrap()
}

/// Runs kubectl on the management cluster and returns what it printed.
pub(crate) fn kubectl(plane: &ControlPlane, args: &[&str]) -> String {
    plane.kubectl(plane.management(), args, "").unwrap()
}

/// Applies an object with kubectl.
pub(crate) fn apply(plane: &ControlPlane, object: &Value) {
    plane.kubectl(plane.management(), &["apply", "-f", "-"], &object.to_string()).unwrap();
}

/// The shared control plane with `deploy/` installed and its policies in force, and a namespace of one's own.
pub(crate) async fn cluster(stem: &str) -> (&'static ControlPlane, Client, String) {
    static INSTALLED: Once = Once::new();
    let plane = shared();
    INSTALLED.call_once(|| {
        let deploy = from_root("deploy");
        kubectl(plane, &["apply", "--server-side", "-k", deploy.to_str().unwrap()]);
        plane.until_established(plane.management()).unwrap();
    });
    let client = plane.management().client().await.unwrap();
    let namespace = plane.management().fresh_namespace(&client, stem).await.unwrap();
    let probe = machines(&client, &namespace);
    eventually("the namespace policy is in force", async || {
        let mut object = machine("probe");
        object["spec"]["bootstrapSpec"]["namespace"] = json!("elsewhere");
        dry_run(&probe, &object).await.is_err_and(|message| message.contains("is not the namespace"))
    })
    .await;
    eventually("the authorization policy is in force", async || {
        let mut object = machine("probe");
        object["spec"]["bootstrapSpec"]["kind"] = json!("Unlisted");
        dry_run(&probe, &object).await.is_err_and(|message| message.contains("is not known here"))
    })
    .await;
    (plane, client, namespace)
}

/// Untyped access to ScheduledMachines: what is sent is what the test wrote, whatever our types make of it.
pub(crate) fn machines(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let resource: ApiResource = ScheduledMachine::api_resource();
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// A ScheduledMachine that is accepted everywhere.
pub(crate) fn machine(name: &str) -> Value {
    let mut base = crate::table::Table::load().base;
    base["metadata"]["name"] = json!(name);
    base
}

/// The server's message, whole, on refusal.
#[expect(clippy::panic, reason = "a broken connection is no verdict")]
pub(crate) fn message<T>(result: Result<T, kube::Error>) -> Result<T, String> {
    result.map_err(|error| match error {
        kube::Error::Api(status) => status.message,
        other => panic!("not an answer of the API server: {other}"),
    })
}

/// Creates an object, strictly: an unknown field is an error, as it is for kubectl.
pub(crate) async fn create(api: &Api<DynamicObject>, object: &Value) -> Result<DynamicObject, String> {
    post(api, object, PostParams::default()).await
}

/// Asks whether an object would be created, strictly, and creates nothing.
pub(crate) async fn dry_run(api: &Api<DynamicObject>, object: &Value) -> Result<DynamicObject, String> {
    post(api, object, PostParams { dry_run: true, ..PostParams::default() }).await
}

async fn post(api: &Api<DynamicObject>, object: &Value, params: PostParams) -> Result<DynamicObject, String> {
    let body = serde_json::to_vec(object).unwrap();
    let mut request = Request::new(api.resource_url()).create(&params, body).unwrap();
    // kube asks for strict field validation on patches only.
    let strict = format!("{}&fieldValidation=Strict", request.uri());
    *request.uri_mut() = strict.parse().unwrap();
    message(api.clone().into_client().request(request).await)
}
