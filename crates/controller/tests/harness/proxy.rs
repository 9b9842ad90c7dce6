//! An API server that can be disturbed at every single call: before it is made, or before its answer arrives.

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use kube::Client;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Longest body of a request.
const BODY: usize = 4 << 20;

/// A call that the controller is about to make.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    /// How the program presents itself.
    pub(crate) agent: String,
    pub(crate) body: Value,
}

impl Call {
    pub(crate) fn is_watch(&self) -> bool {
        self.method == Method::GET && self.query.contains("watch=")
    }
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
    /// It is not made, and answered with this code.
    Refused(u16),
    /// It is not made, and its connection breaks.
    CutBefore,
    /// It is made, and its connection breaks before the answer.
    CutAfter,
    /// It is made after this time, whoever still waits for it.
    Late(Duration),
}

/// Judges calls, and kills.
pub(crate) trait Executioner: Send + Sync + 'static {
    /// Whether reads are judged beside writes, but for watches.
    const JUDGES_READS: bool = false;

    fn judge(&self, call: &Call) -> impl Future<Output = Fate> + Send;

    /// What the server answered to a call that was made.
    fn answered(&self, _: &Call, _: StatusCode) {}

    /// Returns when the answer to a call, be it a write or a read, may be passed on.
    fn may_be_answered(&self, _: &Call) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// A watch begins.
    fn watches(&self, _: &Call) {}

    /// Returns when the next events of a watch may be passed on.
    fn may_flow(&self, _: &Call) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    fn kill(&self) {}
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
    let body = serde_json::from_slice(&bytes).unwrap_or_default();
    let agent = parts.headers.get("user-agent").and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    let call = Arc::new(Call {
        method: parts.method.clone(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        agent: agent.to_owned(),
        body,
    });
    let is_judged = call.method != Method::GET || (E::JUDGES_READS && !call.is_watch());
    let fate = if is_judged { executioner.judge(&call).await } else { Fate::Made };
    match fate {
        Fate::DiesBefore => {
            executioner.kill();
            return std::future::pending().await;
        }
        Fate::Refused(code) => return refusal(code),
        Fate::CutBefore => return cut(),
        Fate::Made | Fate::DiesAfter | Fate::CutAfter | Fate::Late(_) => {}
    }
    parts.headers.remove("host");
    let request = axum::http::Request::from_parts(parts, kube::client::Body::from(bytes.to_vec()));
    // A task of its own: whoever gives up waiting does not call it off.
    let (of_task, made_call) = (Arc::clone(&executioner), Arc::clone(&call));
    let made = tokio::spawn(async move {
        if let Fate::Late(by) = fate {
            tokio::time::sleep(by).await;
        }
        let answer = client.send(request).await;
        if let Ok(answer) = &answer
            && is_judged
        {
            of_task.answered(&made_call, answer.status());
        }
        answer
    });
    let answer = made.await.unwrap();
    match fate {
        Fate::DiesAfter => {
            executioner.kill();
            return std::future::pending().await;
        }
        Fate::CutAfter => return cut(),
        Fate::Made | Fate::DiesBefore | Fate::Refused(_) | Fate::CutBefore | Fate::Late(_) => {}
    }
    executioner.may_be_answered(&call).await;
    match answer {
        Ok(answer) if call.is_watch() => {
            executioner.watches(&call);
            answer.map(|events| flowing(Body::new(events), executioner, call))
        }
        Ok(answer) => answer.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

/// The events of a watch, as they may flow.
fn flowing<E: Executioner>(events: Body, executioner: Arc<E>, call: Arc<Call>) -> Body {
    Body::from_stream(events.into_data_stream().then(move |part| {
        let (executioner, call) = (Arc::clone(&executioner), Arc::clone(&call));
        async move {
            executioner.may_flow(&call).await;
            part
        }
    }))
}

/// An error as an API server answers it.
fn refusal(code: u16) -> Response {
    let reason = match code {
        409 => "Conflict",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": "disturbed by a test", "details": {"name": "disturbed", "retryAfterSeconds": 1},
    });
    let code = StatusCode::from_u16(code).unwrap();
    (code, [("content-type", "application/json"), ("retry-after", "1")], status.to_string()).into_response()
}

/// An answer that breaks off before it has said anything.
fn cut() -> Response {
    let nothing = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut")) });
    Body::from_stream(nothing).into_response()
}
