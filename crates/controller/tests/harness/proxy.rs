//! An API server that can be held up at every single call: before it is made, or before its answer arrives.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use kube::Client;
use serde_json::Value;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Longest body of a request.
const BODY: usize = 4 << 20;

/// A write that the controller is about to make.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Value,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is made.
    Made,
    /// Whoever made it is dead before it is made.
    DiesBefore,
    /// Whoever made it is dead before it is answered.
    DiesAfter,
}

/// Judges calls, and kills.
pub(crate) trait Executioner: Send + Sync + 'static {
    fn judge(&self, call: &Call) -> impl Future<Output = Fate> + Send;
    fn kill(&self);
}

/// Listens until it is dropped.
pub(crate) struct Proxy {
    pub(crate) url: String,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Passes everything on with the identity of `client`.
    pub(crate) async fn start<E: Executioner>(client: Client, executioner: Arc<E>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(pass::<E>).with_state((client, executioner));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, task }
    }
}

async fn pass<E: Executioner>(
    State((client, executioner)): State<(Client, Arc<E>)>,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(bytes) = to_bytes(body, BODY).await else { return StatusCode::BAD_REQUEST.into_response() };
    let fate = if parts.method == Method::GET {
        Fate::Made
    } else {
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        let call = Call { method: parts.method.clone(), path: parts.uri.path().to_owned(), body };
        executioner.judge(&call).await
    };
    if fate == Fate::DiesBefore {
        executioner.kill();
        return std::future::pending().await;
    }
    parts.headers.remove("host");
    let request = axum::http::Request::from_parts(parts, kube::client::Body::from(bytes.to_vec()));
    let answer = client.send(request).await;
    if fate == Fate::DiesAfter {
        executioner.kill();
        return std::future::pending().await;
    }
    match answer {
        Ok(answer) => answer.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
