//! A cluster of Cluster API, with everything that the manager and the provider need before a machine can join it.

use crate::build::MANAGER;
use crate::cluster_api::ClusterApi;
use crate::control_plane::{ControlPlane, chain, wait_until};
use crate::error::{Context, Error};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::fs;

/// What a Cluster of [`create_cluster_lacking`] lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacking {
    /// It names no infrastructure, so that its condition InfrastructureReady is never true. Cluster API does not mind;
    /// the provider does nothing.
    Infrastructure,
    /// Its control plane is not initialized.
    ControlPlane,
}

/// Creates a cluster of Cluster API in a namespace of the management cluster, with the Secret that leads to the
/// workload cluster. With the manager it returns when the manager is connected: its infrastructure is provisioned and
/// its control plane initialized, since those objects say so. Without these two the manager would neither watch Nodes
/// nor drain nor delete them, and the provider would do nothing.
pub async fn create_cluster(plane: &ControlPlane, namespace: &str, name: &str) -> Result<(), Error> {
    create_kubeconfig_secret(plane, namespace, name).await?;
    create_cluster_without_secret(plane, namespace, name).await?;
    if plane.cluster_api() != ClusterApi::Manager {
        return Ok(());
    }
    let client = plane.management().client().await?;
    let clusters = cluster_api(&client, namespace, "v1beta2", "Cluster");
    wait_until(plane.supervisor(), MANAGER, || async {
        let cluster = clusters.get(name).await.map_err(|error| chain(&error))?;
        let missing: Vec<_> = ["InfrastructureReady", "ControlPlaneInitialized", "RemoteConnectionProbe"]
            .into_iter()
            .filter(|it| !is_true(&cluster, it))
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("{missing:?} not true: {}", cluster.data["status"]))
        }
    })
    .await
}

/// The part of [`create_cluster`] that is the cluster itself, its infrastructure and its control plane. It does not
/// wait for anybody.
pub async fn create_cluster_without_secret(
    plane: &ControlPlane,
    namespace: &str,
    name: &str,
) -> Result<(), Error> {
    create(plane, namespace, name, None).await
}

/// As [`create_cluster_without_secret`], with something missing.
pub async fn create_cluster_lacking(
    plane: &ControlPlane,
    namespace: &str,
    name: &str,
    lacking: Lacking,
) -> Result<(), Error> {
    create(plane, namespace, name, Some(lacking)).await
}

async fn create(
    plane: &ControlPlane,
    namespace: &str,
    name: &str,
    lacking: Option<Lacking>,
) -> Result<(), Error> {
    let client = plane.management().client().await?;
    let provider = Provider { client: &client, namespace, name };
    let has = |part: Lacking| lacking != Some(part);
    // There are no machines of the control plane: without `external...` the manager would keep the Node of the last
    // Machine.
    let initialized = json!({
        "externalManagedControlPlane": true,
        "initialization": {"controlPlaneInitialized": has(Lacking::ControlPlane)},
    });
    // Without an endpoint it would stay in phase Provisioning.
    let mut spec = json!({
        "controlPlaneRef": provider.create("controlplane", "K0smotronControlPlane", initialized).await?,
        "controlPlaneEndpoint": {"host": "127.0.0.1", "port": plane.workload().port()},
    });
    if has(Lacking::Infrastructure) {
        let provisioned = json!({"initialization": {"provisioned": true}});
        spec["infrastructureRef"] = provider.create("infrastructure", "RemoteCluster", provisioned).await?;
    }
    let what = || format!("create the cluster {namespace}/{name}");
    let clusters = cluster_api(&client, namespace, "v1beta2", "Cluster");
    let cluster = cluster_object("v1beta2", name, &spec)?;
    clusters.create(&PostParams::default(), &cluster).await.map_err(Error::api(what()))?;
    if plane.cluster_api() == ClusterApi::Definitions {
        // Nobody else says it.
        let parts = [Lacking::Infrastructure, Lacking::ControlPlane].map(has);
        let patch = Patch::Merge(json!({"status": cluster_status(parts)}));
        clusters.patch_status(name, &PatchParams::default(), &patch).await.map_err(Error::api(what()))?;
    }
    Ok(())
}

/// The status of a Cluster whose infrastructure and control plane are ready, or not.
fn cluster_status([infrastructure, control_plane]: [bool; 2]) -> Value {
    let now = jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string();
    let condition = |kind: &str, is_true: bool| {
        let (status, reason) = if is_true { ("True", "Ready") } else { ("False", "NotReady") };
        json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": now})
    };
    json!({
        "initialization": {
            "infrastructureProvisioned": infrastructure,
            "controlPlaneInitialized": control_plane,
        },
        "conditions": [
            condition("InfrastructureReady", infrastructure),
            condition("ControlPlaneInitialized", control_plane),
        ],
    })
}

/// The provider's objects that belong to a Cluster.
struct Provider<'a> {
    client: &'a Client,
    namespace: &'a str,
    name: &'a str,
}

impl Provider<'_> {
    /// Creates an object of the Cluster's name that says so of itself, and returns the reference to it.
    async fn create(&self, group: &str, kind: &str, status: Value) -> Result<Value, Error> {
        let gvk = GroupVersionKind::gvk(&format!("{group}.cluster.x-k8s.io"), "v1beta2", kind);
        let objects: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), self.namespace, &ApiResource::from_gvk(&gvk));
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": gvk.api_version(),
            "kind": kind,
            "metadata": {"name": self.name, "labels": {"cluster.x-k8s.io/cluster-name": self.name}},
            "spec": {},
        }))
        .map_err(Error::api(format!("describe a {kind}")))?;
        let what = || format!("create the {kind} of the cluster {}/{}", self.namespace, self.name);
        objects.create(&PostParams::default(), &object).await.map_err(Error::api(what()))?;
        let patch = Patch::Merge(json!({"status": status}));
        let written = objects.patch_status(self.name, &PatchParams::default(), &patch).await;
        written.map_err(Error::api(what()))?;
        Ok(json!({"apiGroup": gvk.group, "kind": kind, "name": self.name}))
    }
}

/// The part of [`create_cluster`] that is the Secret with the workload cluster's kubeconfig.
pub async fn create_kubeconfig_secret(
    plane: &ControlPlane,
    namespace: &str,
    cluster: &str,
) -> Result<(), Error> {
    let path = plane.workload().kubeconfig_path();
    let kubeconfig = fs::read_to_string(path).context(|| format!("read {}", path.display()))?;
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {
            "name": format!("{cluster}-kubeconfig"),
            "labels": {"cluster.x-k8s.io/cluster-name": cluster},
        },
        "type": "cluster.x-k8s.io/secret",
        "stringData": {"value": kubeconfig},
    }))
    .map_err(Error::api("describe a Secret"))?;
    Api::<Secret>::namespaced(plane.management().client().await?, namespace)
        .create(&PostParams::default(), &secret)
        .await
        .map_err(Error::api(format!("create the kubeconfig of the cluster {namespace}/{cluster}")))?;
    Ok(())
}

fn is_true(object: &DynamicObject, condition: &str) -> bool {
    let conditions = object.data["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|it| it["type"] == condition && it["status"] == "True")
}

pub(crate) fn cluster_object(version: &str, name: &str, spec: &Value) -> Result<DynamicObject, Error> {
    serde_json::from_value(json!({
        "apiVersion": format!("cluster.x-k8s.io/{version}"),
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": spec,
    }))
    .map_err(Error::api("describe a cluster"))
}

/// Objects of Cluster API in one of its versions, `v1beta1` or `v1beta2`.
pub fn cluster_api(client: &Client, namespace: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("cluster.x-k8s.io", version, kind);
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&gvk))
}
