//! What a newcomer sees first: 5-Spot's API, Cluster API's and the examples on a real control plane.

use crate::root;
use anyhow::{Context, Result, bail};
use fivespot_testenv::{ControlPlane, cluster_api_crds, k0smotron_crds};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// Applies everything to the management cluster, saying what it does.
pub(crate) fn install(plane: &ControlPlane, _folder: &Path) -> Result<()> {
    let cluster_api = cluster_api_crds()?;
    println!("installing {} CRDs of Cluster API", cluster_api.len());
    let k0smotron = k0smotron_crds()?;
    println!("installing {} CRDs in the place of k0smotron's", k0smotron.len());
    let items: Vec<_> = cluster_api.iter().chain(&k0smotron).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    kubectl(plane, &["apply", "--server-side", "-f", "-"], Some(&list))?;

    println!("installing 5-Spot (deploy/)");
    let deploy = root().join("deploy");
    kubectl(plane, &["apply", "--server-side", "-k", &deploy.to_string_lossy()], None)?;
    kubectl(plane, &["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"], None)?;

    println!("applying examples/");
    let examples = root().join("examples");
    let applied = kubectl(plane, &["apply", "-f", &examples.to_string_lossy()], None)?;
    print!("{applied}");
    Ok(())
}

fn kubectl(plane: &ControlPlane, args: &[&str], input: Option<&str>) -> Result<String> {
    let mut child = plane
        .kubectl(plane.management())
        .args(args)
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("run kubectl")?;
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(input.as_bytes()).context("feed kubectl")?;
    }
    let output = child.wait_with_output().context("wait for kubectl")?;
    if !output.status.success() {
        bail!("kubectl {} failed:\n{}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
