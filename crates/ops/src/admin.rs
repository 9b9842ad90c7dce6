//! Health, readiness and metrics over HTTP.
//!
//! Health and readiness are open to whoever reaches them. So are metrics, unless [`MetricsOptions`] ask for a token: then
//! they are served by TLS alone, since a token must not be sent in clear text.

use crate::reviewer::{METRICS_PATH, Refusal, Reviewer};
use crate::tls::{self, Certificate, Identity};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::ArgAction;
use clap::builder::BoolishValueParser;
use kube::Client;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Whether all is well, and in words why not.
pub type Check = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

/// What is asked over HTTP.
#[derive(Clone)]
pub struct Checks {
    /// Whether the process should be left alone.
    pub alive: Check,
    /// Whether it does its work.
    pub ready: Check,
}

/// Flags that say who may read /metrics.
#[derive(Debug, Clone, clap::Args)]
pub struct MetricsOptions {
    /// Serve /metrics over HTTPS, and only to requests with a bearer token whose user may get the path /metrics. Needs
    /// the rights of deploy/metrics-auth.
    #[arg(long, env = "METRICS_AUTH", default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = BoolishValueParser::new(),
          value_name = "true|false")]
    pub metrics_auth: bool,

    /// Certificate of /metrics with --metrics-auth, in PEM; read again when it changes. Without it, the process makes one
    /// at its start that nobody has signed.
    #[arg(long, env = "METRICS_CERT_FILE", value_name = "FILE", requires = "metrics_key_file")]
    pub metrics_cert_file: Option<PathBuf>,

    /// Private key of the certificate, in PEM.
    #[arg(long, env = "METRICS_KEY_FILE", value_name = "FILE", requires = "metrics_cert_file")]
    pub metrics_key_file: Option<PathBuf>,
}

impl MetricsOptions {
    /// Whether the flags fit together.
    pub fn check(&self) -> Result<(), ListenError> {
        if self.metrics_cert_file.is_some() && !self.metrics_auth {
            return Err(ListenError::CertificateWithoutAuth);
        }
        Ok(())
    }

    fn certificate(&self) -> Certificate {
        match (&self.metrics_cert_file, &self.metrics_key_file) {
            (Some(certificate), Some(key)) => {
                Certificate::Files { certificate: certificate.clone(), key: key.clone() }
            }
            (_, _) => Certificate::SelfSigned,
        }
    }
}

/// A port that could not be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The system refused.
    #[error("cannot listen on {address}: {source}")]
    Address {
        /// Where.
        address: SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// There is no certificate to serve metrics with.
    #[error("cannot serve /metrics over HTTPS: {0}")]
    Certificate(String),
    /// A certificate was given for metrics that are served without TLS.
    #[error("--metrics-cert-file needs --metrics-auth: without it /metrics is served over plain HTTP")]
    CertificateWithoutAuth,
}

/// Answers `/health` and `/ready`, also as `/healthz` and `/readyz`. Returns the port.
pub async fn serve_health(address: SocketAddr, checks: Checks) -> Result<u16, ListenError> {
    serve(address, health(checks)).await
}

/// Answers `/metrics`, to those whom `options` let read them. Returns the port.
pub async fn serve_metrics(
    address: SocketAddr,
    registry: Arc<Registry>,
    options: &MetricsOptions,
    client: &Client,
) -> Result<u16, ListenError> {
    options.check()?;
    if !options.metrics_auth {
        return serve(address, metrics(registry)).await;
    }
    let identity = Identity::new(options.certificate()).await.map_err(ListenError::Certificate)?;
    let (listener, port) = listen(address).await?;
    let router = reviewed_metrics(registry, Reviewer::new(client.clone()));
    // Ends with the process.
    tokio::spawn(tls::serve(listener, identity, router));
    Ok(port)
}

/// Answers all of these on one port, and returns it: for a program on the host's network, where ports are scarce.
pub async fn serve_all(
    address: SocketAddr,
    checks: Checks,
    registry: Arc<Registry>,
) -> Result<u16, ListenError> {
    serve(address, health(checks).merge(metrics(registry))).await
}

fn health(checks: Checks) -> Router {
    let health = |State(checks): State<Checks>| async move { answer(&(checks.alive)()) };
    let ready = |State(checks): State<Checks>| async move { answer(&(checks.ready)()) };
    Router::new()
        .route("/health", get(health))
        .route("/healthz", get(health))
        .route("/ready", get(ready))
        .route("/readyz", get(ready))
        .with_state(checks)
}

fn metrics(registry: Arc<Registry>) -> Router {
    let metrics = |State(registry): State<Arc<Registry>>| async move { show(&registry) };
    Router::new().route(METRICS_PATH, get(metrics)).with_state(registry)
}

fn reviewed_metrics(registry: Arc<Registry>, reviewer: Reviewer) -> Router {
    let metrics = |State(state): State<(Arc<Registry>, Arc<Reviewer>)>, headers: HeaderMap| async move {
        let (registry, reviewer) = state;
        match reviewer.check(&headers).await {
            Ok(()) => show(&registry),
            Err(refusal) => refuse(refusal),
        }
    };
    Router::new().route(METRICS_PATH, get(metrics)).with_state((registry, Arc::new(reviewer)))
}

fn show(registry: &Registry) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Says nothing that depends on the token or on what the API server answered.
fn refuse(refusal: Refusal) -> Response {
    let retry = [(header::RETRY_AFTER, "1")];
    match refusal {
        Refusal::Unauthenticated => {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            let text = "/metrics needs a bearer token that the API server accepts\n";
            (StatusCode::UNAUTHORIZED, challenge, text).into_response()
        }
        Refusal::Forbidden => {
            (StatusCode::FORBIDDEN, "the user of this token may not get the path /metrics\n").into_response()
        }
        Refusal::Busy => {
            let text = "too many unknown tokens were sent: try again in a second\n";
            (StatusCode::TOO_MANY_REQUESTS, retry, text).into_response()
        }
        Refusal::Unavailable => {
            let text = "the API server did not review the token: see the log of this process\n";
            (StatusCode::SERVICE_UNAVAILABLE, retry, text).into_response()
        }
    }
}

fn answer(outcome: &Result<String, String>) -> impl IntoResponse + use<> {
    let (status, text) = match outcome {
        Ok(text) => (StatusCode::OK, text),
        Err(text) => (StatusCode::SERVICE_UNAVAILABLE, text),
    };
    (status, format!("{text}\n"))
}

async fn serve(address: SocketAddr, router: Router) -> Result<u16, ListenError> {
    let (listener, port) = listen(address).await?;
    tokio::spawn(async move {
        // Ends with the process.
        let _ = axum::serve(listener, router).await;
    });
    Ok(port)
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, u16), ListenError> {
    let failed = |source| ListenError::Address { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok((listener, port))
}
