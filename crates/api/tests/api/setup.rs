//! A cluster with 5-Spot's API and policies on it.

use fivespot_api::ScheduledMachine;
use fivespot_testenv::{ControlPlane, shared};
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::Request;
use kube::{Api, Client, CustomResourceExt};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

/// How long admission policies may take to take effect: the API server reads them through a watch.
const PATIENCE: Duration = Duration::from_secs(60);

/// A path from the root of the checkout.
pub(crate) fn from_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Runs kubectl against the management cluster and returns what it printed, on success and on failure.
pub(crate) fn kubectl(plane: &ControlPlane, args: &[&str]) -> Result<String, String> {
    let output = plane.kubectl(plane.management()).args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// The shared control plane with `deploy/` installed and its policies in force, and a namespace of one's own.
pub(crate) async fn cluster(stem: &str) -> (&'static ControlPlane, Client, String) {
    let plane = shared();
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let deploy = from_root("deploy");
        kubectl(plane, &["apply", "--server-side", "-k", deploy.to_str().unwrap()]).unwrap();
        kubectl(plane, &["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).unwrap();
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

async fn dry_run(api: &Api<DynamicObject>, object: &Value) -> Result<DynamicObject, String> {
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

/// Waits for something that comes true a moment later.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "still not true: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
