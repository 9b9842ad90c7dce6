//! Clients that answer promptly.

use crate::Error;
use crate::bounds::{Bounded, Meter};
use crate::files::{KUBECONFIG, check_size, read_file};
use http::HeaderValue;
use http::header::{InvalidHeaderValue, USER_AGENT};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use secrecy::ExposeSecret;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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

/// Connects to the cluster of a kubeconfig, or as [`config`] says without one.
pub async fn connect_to(kubeconfig: Option<&Path>, caller: impl Into<Caller>) -> Result<Client, Error> {
    connect(&config(kubeconfig, None).await?, &caller.into())
}

/// How the cluster of a kubeconfig is reached; without one, that of what kubectl would use, or as the pod's own account.
pub async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, Error> {
    let unreadable = |why: String| Error::Unreadable {
        what: kubeconfig
            .map_or("use the kubeconfig".to_owned(), |it| format!("use --kubeconfig {}", it.display())),
        why,
    };
    let is_set = env::var_os("KUBECONFIG").is_some_and(|it| !it.is_empty());
    let is_chosen = kubeconfig.is_some() || context.is_some() || is_set;
    let found = match read(kubeconfig) {
        Ok(kubeconfig) => {
            if let Some(cluster) = behind_a_proxy(&kubeconfig, context) {
                return Err(unreadable(format!(
                    "its cluster {cluster} names a proxy-url, which is not supported"
                )));
            }
            let context = context.map(str::to_owned);
            let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
            Config::from_custom_kubeconfig(kubeconfig, &options).await
        }
        Err(error) => Err(error),
    };
    let mut config = match found {
        Ok(config) => config,
        Err(KubeconfigError::ReadConfig(error, _)) if kubeconfig.is_some() => {
            return Err(unreadable(error.to_string()));
        }
        // Without the lines around the mistake: they hold keys and tokens.
        Err(KubeconfigError::Parse(error)) if is_chosen => {
            return Err(unreadable(format!("it is not a kubeconfig: {}", error.without_snippet())));
        }
        Err(error) if is_chosen => return Err(unreadable(error.to_string())),
        Err(error) => Config::incluster().map_err(|as_pod| Error::Unreadable {
            what: "find a cluster: set KUBECONFIG or give --kubeconfig".to_owned(),
            why: format!("{error}; this is no pod either: {as_pod}"),
        })?,
    };
    // kube reads a proxy from the environment, which our client does not speak.
    config.proxy_url = None;
    Ok(config)
}

/// Reads a kubeconfig; without one, the files that kubectl would read.
fn read(kubeconfig: Option<&Path>) -> Result<Kubeconfig, KubeconfigError> {
    if let Some(path) = kubeconfig {
        return read_one(path);
    }
    let named = env::var_os("KUBECONFIG").unwrap_or_default();
    let named: Vec<PathBuf> = env::split_paths(&named).filter(|it| !it.as_os_str().is_empty()).collect();
    if named.is_empty() {
        let home = env::home_dir().ok_or(KubeconfigError::FindPath)?;
        return read_one(&home.join(".kube/config"));
    }
    let merge = |merged: Kubeconfig, path: &PathBuf| merged.merge(read_one(path)?);
    named.iter().try_fold(Kubeconfig::default(), merge)
}

/// Reads one file, up to its bound.
fn read_one(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let failed = |error| KubeconfigError::ReadConfig(error, path.to_owned());
    if path.metadata().map_err(failed)?.is_file() {
        check_size(path, KUBECONFIG).map_err(failed)?;
        // Files that it names are looked for beside it.
        return Kubeconfig::read_from(path);
    }
    Kubeconfig::from_yaml(&read_file(path, KUBECONFIG).map_err(failed)?)
}

/// The cluster that a context of a kubeconfig means, if it is behind a proxy: to go there without one is not what was
/// asked for.
fn behind_a_proxy<'a>(kubeconfig: &'a Kubeconfig, context: Option<&str>) -> Option<&'a str> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|it| it.name == name)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|it| it.name == context.cluster)?;
    cluster.cluster.as_ref()?.proxy_url.as_ref().filter(|url| !url.is_empty()).map(|_| cluster.name.as_str())
}

/// Connects to an API server.
///
/// Two things are different from kube's own client. Small requests are sent at once (`TCP_NODELAY`): otherwise a PATCH
/// waits some 40 ms for an acknowledgement that the other side holds back. And nothing is repeated behind our
/// back: an eviction that a disruption budget blocks is answered with 429, which kube would take for a server that is
/// busy.
pub fn connect(config: &Config, caller: &Caller) -> Result<Client, Error> {
    connect_within(config, caller, None)
}

/// Connects to an API server whose answers are bounded, if a meter is given.
pub(crate) fn connect_within(
    config: &Config,
    caller: &Caller,
    meter: Option<Arc<Meter>>,
) -> Result<Client, Error> {
    let failed = |source: kube::Error| Error::api("make a client", source);
    // The layer that puts it into a header would panic.
    if config
        .auth_info
        .token
        .as_ref()
        .is_some_and(|token| HeaderValue::from_str(token.expose_secret()).is_err())
    {
        let why = "its token has characters that cannot be sent, such as a line break".to_owned();
        return Err(Error::Unreadable { what: "make a client".to_owned(), why });
    }
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
    Ok(match meter {
        None => Client::new(service, config.default_namespace),
        Some(meter) => Client::new(Bounded::new(service, meter), config.default_namespace),
    })
}
