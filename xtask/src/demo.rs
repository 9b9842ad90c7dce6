//! What a newcomer sees first: 5-Spot's API, Cluster API's and the examples on a real control plane.

use crate::root;
use anyhow::Result;
use fivespot_testenv::{ControlPlane, cluster_api_crds, k0smotron_crds};
use serde_json::json;

/// Applies everything to the management cluster, saying what it does.
pub(crate) fn install(plane: &ControlPlane) -> Result<()> {
    let cluster_api = cluster_api_crds()?;
    println!("installing {} CRDs of Cluster API", cluster_api.len());
    let k0smotron = k0smotron_crds()?;
    println!("installing {} CRDs in the place of k0smotron's", k0smotron.len());
    let items: Vec<_> = cluster_api.iter().chain(&k0smotron).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let kubectl = |args: &[&str], input: &str| plane.kubectl(plane.management(), args, input);
    kubectl(&["apply", "--server-side", "-f", "-"], &list)?;

    println!("installing 5-Spot (deploy/)");
    let deploy = root().join("deploy");
    kubectl(&["apply", "--server-side", "-k", &deploy.to_string_lossy()], "")?;
    kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"], "")?;

    println!("applying examples/");
    let examples = root().join("examples");
    let applied = kubectl(&["apply", "-f", &examples.to_string_lossy()], "")?;
    print!("{applied}");
    Ok(())
}
