//! How a process or a person reaches one API server.

use crate::Error;
use crate::pki::Pair;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

/// Who a client acts as.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// User name.
    pub user: String,
    /// Groups beside `system:authenticated`.
    pub groups: Vec<String>,
}

impl Identity {
    /// A user in no group of note.
    pub fn user(name: impl Into<String>) -> Self {
        Self { user: name.into(), groups: Vec::new() }
    }
}

/// Where an API server is and who signed its certificate.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) authority: String,
}

/// A kubeconfig with everything inside, for one user of one server.
pub(crate) fn kubeconfig(endpoint: &Endpoint, pair: &Pair) -> Value {
    let Endpoint { name, url, authority } = endpoint;
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {
            "server": url,
            "certificate-authority-data": STANDARD.encode(authority),
        }}],
        "users": [{"name": name, "user": {
            "client-certificate-data": STANDARD.encode(&pair.certificate),
            "client-key-data": STANDARD.encode(&pair.key),
        }}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    })
}

/// A kubeconfig for a server that asks nobody who he is.
pub fn anonymous_kubeconfig(url: &str) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": url}}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    });
    config.to_string()
}

/// The client configuration for a kubeconfig, acting as somebody else if asked.
pub(crate) async fn config(kubeconfig: &Value, identity: Option<&Identity>) -> Result<Config, Error> {
    let what = "read the kubeconfig";
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig.clone()).map_err(Error::api(what))?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(Error::api(what))?;
    // kube reads the proxy from the environment, and loopback is never behind one.
    config.proxy_url = None;
    if let Some(Identity { user, groups }) = identity {
        config.auth_info.impersonate = Some(user.clone());
        config.auth_info.impersonate_groups = Some(groups.clone());
    }
    Ok(config)
}
