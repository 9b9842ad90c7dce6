//! Cluster API: its definitions, its real manager, and a cluster for it to look after.
//!
//! The manager runs beside the API server, not in a pod, so whatever its manifests say of a service is told as an
//! address on loopback instead: conversion between versions and admission.

use crate::build::{MANAGER, cluster_api_manager, cluster_api_webhooks};
use crate::control_plane::{ControlPlane, admin, chain, wait_until};
use crate::crds::{cluster_api_crds, converted_cluster_api_crds, k0smotron_crds};
use crate::error::{Context, Error};
use crate::pki::Authority;
use crate::plan::{Plan, args};
use crate::servers::cache_folder;
use crate::supervisor::Supervisor;
use futures::future::try_join_all;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, WebhookClientConfig,
};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::fs;
use std::path::Path;

/// The field manager of everything that is installed here.
const INSTALLER: &str = "5spot-testenv";

/// How much of Cluster API there is in the management cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClusterApi {
    /// Nothing.
    #[default]
    Absent,
    /// The definitions of Cluster API, v1beta2 alone, and those in the place of k0smotron's. Nobody acts on them,
    /// unless simulated hosts play Cluster API ([`Core::Played`](crate::Core)).
    Definitions,
    /// The real manager of Cluster API with its webhooks, serving v1beta1 and v1beta2, and the definitions in the
    /// place of k0smotron's.
    Manager,
}

/// Installs the definitions of Cluster API and k0smotron's, and starts the manager if it is wanted.
pub(crate) async fn install(
    wanted: ClusterApi,
    plan: &Plan,
    port: u16,
    supervisor: &Supervisor,
    folder: &Path,
) -> Result<(), Error> {
    let client = admin(plan).await?;
    match wanted {
        ClusterApi::Absent => Ok(()),
        ClusterApi::Definitions => define(&client, cluster_api_crds()?, plan, supervisor).await,
        ClusterApi::Manager => {
            let program = cluster_api_manager(&cache_folder());
            if !program.is_file() {
                let folder = program.parent().unwrap_or(Path::new("/")).to_owned();
                return Err(Error::ClusterApiNotBuilt { missing: MANAGER, folder });
            }
            let webhooks = Webhooks::draw(folder, port)?;
            let conversion = WebhookClientConfig {
                ca_bundle: Some(ByteString(webhooks.authority.clone().into_bytes())),
                service: None,
                url: Some(webhooks.url("/convert")),
            };
            define(&client, converted_cluster_api_crds(&conversion)?, plan, supervisor).await?;
            supervisor.spawn(MANAGER, &program, &webhooks.manager_args(plan))?;
            webhooks.register(&client).await
        }
    }
}

/// Waits until the manager answers, which a request through the old version asks of both its webhooks.
pub(crate) async fn settle(wanted: ClusterApi, plan: &Plan, supervisor: &Supervisor) -> Result<(), Error> {
    if wanted != ClusterApi::Manager {
        return Ok(());
    }
    let clusters = cluster_api(&admin(plan).await?, "default", "v1beta1", "Cluster");
    let control_plane = json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
        "kind": "K0smotronControlPlane",
        "name": "trial",
    });
    let trial = cluster_object("v1beta1", "trial", &json!({"controlPlaneRef": control_plane}))?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    wait_until(supervisor, MANAGER, || async {
        clusters.create(&dry_run, &trial).await.map_err(|error| chain(&error))
    })
    .await?;
    Ok(())
}

/// Where the manager answers, and the authority that vouches for it.
struct Webhooks {
    port: u16,
    certificates: String,
    authority: String,
}

impl Webhooks {
    fn draw(folder: &Path, port: u16) -> Result<Self, Error> {
        let authority = Authority::new()?;
        let pair = authority.server()?;
        let certificates = folder.join("pki/cluster-api");
        fs::create_dir_all(&certificates).context(|| format!("create {}", certificates.display()))?;
        for (name, text) in [("tls.crt", &pair.certificate), ("tls.key", &pair.key)] {
            let file = certificates.join(name);
            fs::write(&file, text).context(|| format!("write {}", file.display()))?;
        }
        Ok(Self {
            port,
            certificates: certificates.to_string_lossy().into_owned(),
            authority: authority.certificate().to_owned(),
        })
    }

    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    fn manager_args(&self, plan: &Plan) -> Vec<String> {
        args(&[
            ("kubeconfig", &plan.cluster_api),
            ("leader-elect", "false"),
            ("webhook-port", &self.port.to_string()),
            ("webhook-cert-dir", &self.certificates),
            ("health-addr", "0"),
            ("diagnostics-address", "0"),
            // Nothing here is older than the manager.
            ("skip-crd-migration-phases", "StorageVersionMigration,CleanupManagedFields"),
        ])
    }

    /// Registers the admission webhooks that the module ships.
    async fn register(&self, client: &Client) -> Result<(), Error> {
        let file = cluster_api_webhooks(&cache_folder());
        let missing = "the webhooks of Cluster API";
        let text = fs::read_to_string(&file)
            .map_err(|_| Error::ClusterApiNotBuilt { missing, folder: cache_folder() })?;
        let what = || format!("read {}", file.display());
        let shipped: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(Error::api(what()))?;
        for mut configuration in shipped {
            for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
                let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap_or_default().to_owned();
                let authority = ByteString(self.authority.clone().into_bytes());
                webhook["clientConfig"] = json!({"url": self.url(&path), "caBundle": authority});
            }
            if configuration["kind"] == "MutatingWebhookConfiguration" {
                let mutating: MutatingWebhookConfiguration =
                    serde_json::from_value(configuration).map_err(Error::api(what()))?;
                apply(&Api::all(client.clone()), &mutating).await?;
            } else {
                let validating: ValidatingWebhookConfiguration =
                    serde_json::from_value(configuration).map_err(Error::api(what()))?;
                apply(&Api::all(client.clone()), &validating).await?;
            }
        }
        Ok(())
    }
}

/// Applies definitions and waits until the server serves them.
async fn define(
    client: &Client,
    cluster_api: Vec<CustomResourceDefinition>,
    plan: &Plan,
    supervisor: &Supervisor,
) -> Result<(), Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let all: Vec<_> = cluster_api.into_iter().chain(k0smotron_crds()?).collect();
    try_join_all(all.iter().map(|crd| apply(&definitions, crd))).await?;
    wait_until(supervisor, &plan.server("kube-apiserver"), || async {
        let list = definitions.list(&ListParams::default()).await.map_err(|error| chain(&error))?;
        let waiting = list.items.iter().filter(|crd| !is_established(crd)).count();
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} definitions are not established")) }
    })
    .await
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

async fn apply<K>(api: &Api<K>, object: &K) -> Result<K, Error>
where
    K: kube::Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let name = object.meta().name.as_deref().unwrap_or_default();
    let installer = PatchParams::apply(INSTALLER).force();
    api.patch(name, &installer, &Patch::Apply(object)).await.map_err(Error::api(format!("apply {name}")))
}

/// Creates a cluster of Cluster API in a namespace of the management cluster, with the Secret that leads to the
/// workload cluster. With the manager it returns when the manager is connected: its infrastructure is provisioned,
/// since it names none, and its control plane is initialized, since that object says so. Without those two the
/// manager would neither watch Nodes nor drain nor delete them.
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
        // Not the condition InfrastructureReady: of a cluster that names no infrastructure it is never true.
        let is_provisioned = cluster.data["status"]["initialization"]["infrastructureProvisioned"] == true;
        let mut missing: Vec<_> = ["ControlPlaneInitialized", "RemoteConnectionProbe"]
            .into_iter()
            .filter(|it| !is_true(&cluster, it))
            .collect();
        if !is_provisioned {
            missing.push("infrastructureProvisioned");
        }
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("{missing:?} not true: {}", cluster.data["status"]))
        }
    })
    .await
}

/// The part of [`create_cluster`] that is the cluster itself and its control plane. It does not wait for anybody.
pub async fn create_cluster_without_secret(
    plane: &ControlPlane,
    namespace: &str,
    name: &str,
) -> Result<(), Error> {
    let client = plane.management().client().await?;
    let gvk = GroupVersionKind::gvk("controlplane.cluster.x-k8s.io", "v1beta2", "K0smotronControlPlane");
    let control_planes: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&gvk));
    let control_plane: DynamicObject = serde_json::from_value(json!({
        "apiVersion": gvk.api_version(),
        "kind": gvk.kind,
        "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": name}},
        "spec": {},
    }))
    .map_err(Error::api("describe a control plane"))?;
    let what = || format!("create the control plane of the cluster {namespace}/{name}");
    control_planes.create(&PostParams::default(), &control_plane).await.map_err(Error::api(what()))?;
    let status = json!({"status": {
        // There are no machines of the control plane: without this the manager would keep the Node of the last
        // Machine.
        "externalManagedControlPlane": true,
        "ready": true,
        "initialized": true,
        "initialization": {"controlPlaneInitialized": true},
    }});
    let patch = Patch::Merge(status);
    control_planes.patch_status(name, &PatchParams::default(), &patch).await.map_err(Error::api(what()))?;

    let reference = json!({"apiGroup": gvk.group, "kind": gvk.kind, "name": name});
    // Without an endpoint it would stay in phase Provisioning.
    let endpoint = json!({"host": "127.0.0.1", "port": plane.workload().port()});
    let spec = json!({"controlPlaneRef": reference, "controlPlaneEndpoint": endpoint});
    let cluster = cluster_object("v1beta2", name, &spec)?;
    cluster_api(&client, namespace, "v1beta2", "Cluster")
        .create(&PostParams::default(), &cluster)
        .await
        .map_err(Error::api(format!("create the cluster {namespace}/{name}")))?;
    Ok(())
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

fn cluster_object(version: &str, name: &str, spec: &Value) -> Result<DynamicObject, Error> {
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
