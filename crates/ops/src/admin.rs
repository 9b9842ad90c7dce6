//! Health, readiness and metrics over HTTP.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use std::net::{IpAddr, SocketAddr};
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

/// A port that could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Answers `/health` and `/ready`, also as `/healthz` and `/readyz`. Returns the port.
pub async fn serve_health(address: IpAddr, port: u16, checks: Checks) -> Result<u16, ListenError> {
    serve(SocketAddr::new(address, port), health(checks)).await
}

/// Answers `/metrics`. Returns the port.
pub async fn serve_metrics(address: IpAddr, port: u16, registry: Arc<Registry>) -> Result<u16, ListenError> {
    serve(SocketAddr::new(address, port), metrics(registry)).await
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
    let metrics = |State(registry): State<Arc<Registry>>| async move {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &registry) {
            Ok(()) => {
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                ([(header::CONTENT_TYPE, kind)], text).into_response()
            }
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    };
    Router::new().route("/metrics", get(metrics)).with_state(registry)
}

fn answer(outcome: &Result<String, String>) -> impl IntoResponse + use<> {
    let (status, text) = match outcome {
        Ok(text) => (StatusCode::OK, text),
        Err(text) => (StatusCode::SERVICE_UNAVAILABLE, text),
    };
    (status, format!("{text}\n"))
}

async fn serve(address: SocketAddr, router: Router) -> Result<u16, ListenError> {
    let failed = |source| ListenError { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    tokio::spawn(async move {
        // Ends with the process.
        let _ = axum::serve(listener, router).await;
    });
    Ok(port)
}
