//! Cluster API: its definitions and its real manager.
//!
//! The manager runs beside the API server, not in a pod, so whatever its manifests say of a service is told as an
//! address on loopback instead: conversion between versions and admission.

use crate::build::{MANAGER, cluster_api_manager, cluster_api_webhooks};
use crate::cluster_fixture::{cluster_api, cluster_object};
use crate::control_plane::{admin, chain, wait_until};
use crate::crds::{cluster_api_crds, converted_cluster_api_crds, k0smotron_crds};
use crate::error::{Context, Error};
use crate::pki::Authority;
use crate::plan::{Plan, args};
use crate::private_file::write_private;
use crate::provider_webhook::ProviderWebhook;
use crate::servers::cache_folder;
use crate::supervisor::Supervisor;
use futures::future::try_join_all;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, WebhookClientConfig,
};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
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
    /// The definitions of Cluster API, v1beta2 alone, and those in the place of k0smotron's with their webhooks.
    /// Nobody acts on them, unless simulated hosts play Cluster API ([`Core::Played`](crate::Core)).
    Definitions,
    /// The real manager of Cluster API with its webhooks, serving v1beta1 and v1beta2, and the definitions in the
    /// place of k0smotron's with theirs.
    Manager,
}

/// Installs the definitions of Cluster API and k0smotron's, starts the manager if it is wanted, and returns the webhooks
/// of the provider.
pub(crate) async fn install(
    wanted: ClusterApi,
    plan: &Plan,
    port: u16,
    supervisor: &Supervisor,
    folder: &Path,
) -> Result<Option<ProviderWebhook>, Error> {
    let client = admin(plan).await?;
    if wanted == ClusterApi::Absent {
        return Ok(None);
    }
    let provider = ProviderWebhook::launch()?;
    let providers = k0smotron_crds(&provider.conversion())?;
    apply(&Api::all(client.clone()), &provider.admission()?).await?;
    match wanted {
        ClusterApi::Absent => {}
        ClusterApi::Definitions => {
            let all = [cluster_api_crds()?, providers].concat();
            define(&client, all, plan, supervisor).await?;
        }
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
            let all = [converted_cluster_api_crds(&conversion)?, providers].concat();
            define(&client, all, plan, supervisor).await?;
            supervisor.spawn(MANAGER, &program, &webhooks.manager_args(plan))?;
            webhooks.register(&client).await?;
        }
    }
    Ok(Some(provider))
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
            write_private(&file, text).context(|| format!("write {}", file.display()))?;
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
    all: Vec<CustomResourceDefinition>,
    plan: &Plan,
    supervisor: &Supervisor,
) -> Result<(), Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
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
