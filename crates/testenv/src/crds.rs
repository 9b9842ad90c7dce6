//! Definitions of the providers that 5-Spot works with, ready to apply.

use crate::build::cluster_api_crd_folder;
use crate::error::{Context, Error};
use crate::servers::cache_folder;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, WebhookClientConfig, WebhookConversion,
};
use std::fs;

/// The k0smotron kinds that examples and tests use. See the head of the file for what they are and are not.
const K0SMOTRON: &str = include_str!("../../../control-plane/k0smotron/crds.yaml");

/// The k0smotron kinds that its webhook converts.
const CONVERTED: [&str; 2] = ["K0sWorkerConfig", "RemoteMachine"];

/// The definitions Cluster API ships, serving their storage version only: without the manager, which converts
/// between versions, the server would silently drop fields.
pub fn cluster_api_crds() -> Result<Vec<CustomResourceDefinition>, Error> {
    Ok(shipped_crds()?.into_iter().map(serve_storage_version_only).collect())
}

/// The definitions Cluster API ships, serving every version it serves, with a conversion webhook.
pub(crate) fn converted_cluster_api_crds(
    webhook: &WebhookClientConfig,
) -> Result<Vec<CustomResourceDefinition>, Error> {
    let mut crds = shipped_crds()?;
    for crd in &mut crds {
        crd.spec.conversion = Some(conversion_by(webhook));
    }
    Ok(crds)
}

fn conversion_by(webhook: &WebhookClientConfig) -> CustomResourceConversion {
    CustomResourceConversion {
        strategy: "Webhook".to_owned(),
        webhook: Some(WebhookConversion {
            client_config: Some(webhook.clone()),
            conversion_review_versions: vec!["v1".to_owned()],
        }),
    }
}

fn shipped_crds() -> Result<Vec<CustomResourceDefinition>, Error> {
    let folder = cluster_api_crd_folder(&cache_folder());
    let entries = fs::read_dir(&folder).map_err(|_| Error::ClusterApiNotBuilt {
        missing: "the CRDs of Cluster API",
        folder: folder.clone(),
    })?;
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry.context(|| format!("read {}", folder.display()))?.path());
    }
    files.sort();
    let mut crds = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).context(|| format!("read {}", file.display()))?;
        crds.push(serde_saphyr::from_str(&text).map_err(Error::api(format!("read {}", file.display())))?);
    }
    Ok(crds)
}

/// Definitions of the k0smotron kinds that examples and tests use, serving both versions. Two of them are
/// converted by the provider's webhook.
pub(crate) fn k0smotron_crds(webhook: &WebhookClientConfig) -> Result<Vec<CustomResourceDefinition>, Error> {
    let mut crds: Vec<CustomResourceDefinition> =
        serde_saphyr::from_multiple(K0SMOTRON).map_err(Error::api("read the k0smotron definitions"))?;
    for crd in &mut crds {
        if CONVERTED.contains(&crd.spec.names.kind.as_str()) {
            crd.spec.conversion = Some(conversion_by(webhook));
        }
    }
    Ok(crds)
}

fn serve_storage_version_only(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    crd.spec.conversion = None;
    crd.spec.versions.retain(|version| version.storage);
    crd
}
