//! Clients that answer promptly.

use crate::Error;
use http::HeaderValue;
use http::header::{InvalidHeaderValue, USER_AGENT};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use std::path::Path;
use std::time::Duration;
use tower::{BoxError, ServiceBuilder};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// How a program presents itself to servers.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Which program.
    pub program: &'static str,
    /// Which of its processes, if that matters to who reads an audit log.
    pub instance: Option<String>,
}

impl From<&'static str> for Caller {
    fn from(program: &'static str) -> Self {
        Self { program, instance: None }
    }
}

impl Caller {
    fn user_agent(&self) -> Result<HeaderValue, InvalidHeaderValue> {
        let instance = self.instance.as_ref().map_or(String::new(), |instance| format!(" ({instance})"));
        HeaderValue::from_str(&format!("{}/{}{instance}", self.program, env!("CARGO_PKG_VERSION")))
    }
}

/// Connects to the cluster of a kubeconfig; without one, as the pod's own account, or to what kubectl would use.
pub async fn connect_to(kubeconfig: Option<&Path>, caller: impl Into<Caller>) -> Result<Client, Error> {
    let mut config = match kubeconfig {
        Some(file) => {
            let unreadable = |error: KubeconfigError| Error::Unreadable {
                what: format!("read {}", file.display()),
                why: error.to_string(),
            };
            let kubeconfig = Kubeconfig::read_from(file).map_err(unreadable)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(unreadable)?
        }
        None => Config::infer().await.map_err(|error| Error::Unreadable {
            what: "find the cluster: give --kubeconfig".to_owned(),
            why: error.to_string(),
        })?,
    };
    // kube reads a proxy from the environment, which our client does not speak.
    config.proxy_url = None;
    connect(&config, &caller.into())
}

/// Connects to an API server.
///
/// Two things are different from kube's own client. Small requests are sent at once (`TCP_NODELAY`): otherwise a PATCH
/// waits some 40 ms for an acknowledgement that the other side holds back. And nothing is repeated behind our
/// back: an eviction that a disruption budget blocks is answered with 429, which kube would take for a server that is
/// busy.
pub fn connect(config: &Config, caller: &Caller) -> Result<Client, Error> {
    let failed = |source: kube::Error| Error::api("make a client", source);
    let mut config = config.clone();
    let agent = caller.user_agent().map_err(|error| failed(kube::Error::HttpError(error.into())))?;
    config.headers.push((USER_AGENT, agent));
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(Duration::from_secs(30)));
    let tls = config.rustls_https_connector_with_connector(tcp).map_err(failed)?;
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(tls);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(failed)?)
        .layer(config.extra_headers_layer().map_err(failed)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}
