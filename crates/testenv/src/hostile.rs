//! An API server of somebody who wants to bring the controller down, or people who read what the controller shows: what it
//! answers never ends, in one way or another, or says what they are to believe.

use crate::error::{Context, Error};
use crate::tls::{self, TlsListener};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::stream;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

/// What must not be shown to anybody.
pub const LIE: &str = "run-this-on-your-laptop";

/// Bytes that are sent at once.
const CHUNK: usize = 64 << 10;

/// What a hostile server does to whoever lists or watches its Nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attack {
    /// One answer that never ends, of one text.
    EndlessText,
    /// One list that never ends, of Nodes that can be read.
    EndlessNodes,
    /// Pages without end, of Nodes.
    EndlessPages,
    /// Pages without end, of nothing.
    EmptyPages,
    /// Nodes of a megabyte each, in what is kept of a Node.
    HugeNodes,
    /// A watch whose first event never ends.
    EndlessEvent,
    /// A watch with events without end.
    EventFlood,
    /// An error whose text never ends.
    EndlessError,
    /// An error with [`LIE`] in every text.
    LyingError,
    /// A watch with such an error as its first event.
    LyingEvent,
    /// One byte every tenth of a second.
    Trickle,
    /// No answer at all.
    Silence,
}

impl Attack {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::EndlessText,
        Self::EndlessNodes,
        Self::EndlessPages,
        Self::EmptyPages,
        Self::HugeNodes,
        Self::EndlessEvent,
        Self::EventFlood,
        Self::EndlessError,
        Self::LyingError,
        Self::LyingEvent,
        Self::Trickle,
        Self::Silence,
    ];

    /// Its name in the address of the server.
    fn path(self) -> String {
        format!("{self:?}").to_ascii_lowercase()
    }
}

/// A server with an address for each attack. It ends with this value.
pub struct HostileServer {
    address: SocketAddr,
    authority: String,
    sent: Arc<Sent>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for HostileServer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("HostileServer").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What was sent.
#[derive(Default)]
struct Sent {
    requests: Mutex<HashMap<String, u64>>,
    bytes: AtomicU64,
}

impl HostileServer {
    /// Answers at a free port of loopback, from when this returns.
    pub fn start() -> Result<Self, Error> {
        let tls::Identity { authority, config } = tls::identity()?;
        let what = || "listen as a hostile server".to_owned();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(what)?;
        listener.set_nonblocking(true).context(what)?;
        let address = listener.local_addr().context(what)?;
        let sent = Arc::<Sent>::default();
        let routes = Router::new().route("/{attack}/{*path}", get(answer)).with_state(Arc::clone(&sent));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context(what)?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                let listener = TlsListener { listener, acceptor: TlsAcceptor::from(config) };
                tokio::select! {
                    _ = stopped => {}
                    _ = axum::serve(listener, routes) => {}
                }
            });
        };
        let thread = thread::Builder::new().name("hostile-server".to_owned()).spawn(serve).context(what)?;
        Ok(Self { address, authority, sent, stop: Some(stop), thread: Some(thread) })
    }

    /// A kubeconfig that leads to an attack.
    pub fn kubeconfig(&self, attack: Attack) -> String {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {
                "server": format!("https://{}/{}", self.address, attack.path()),
                "certificate-authority-data": STANDARD.encode(&self.authority),
            }}],
            "users": [{"name": "a", "user": {"token": "none"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        });
        config.to_string()
    }

    /// How often somebody came for an attack.
    pub fn requests(&self, attack: Attack) -> u64 {
        let requests = self.sent.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.get(&attack.path()).copied().unwrap_or_default()
    }

    /// Bytes that were taken from it, as far as it knows.
    pub fn bytes(&self) -> u64 {
        self.sent.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for HostileServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A thread that panicked answers nobody either.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn answer(
    State(sent): State<Arc<Sent>>,
    Path((name, _)): Path<(String, String)>,
    uri: Uri,
) -> Response {
    *sent.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(name.clone()).or_default() += 1;
    let Some(attack) = Attack::ALL.into_iter().find(|it| it.path() == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let parameters = || uri.query().unwrap_or_default().split('&').filter_map(|it| it.split_once('='));
    let parameter = |name: &str| parameters().find(|(key, _)| *key == name).map(|(_, value)| value);
    let is_watch = parameter("watch").is_some_and(|it| it == "true" || it == "1");
    let text = Bytes::from(vec![b'x'; CHUNK]);
    match attack {
        Attack::EndlessText => endless(&sent, "{\"kind\":\"NodeList\",\"apiVersion\":\"", text),
        Attack::EndlessNodes => {
            let nodes = (0..200).flat_map(|n| [node(&format!("node-{n}"), "").to_string(), ",".to_owned()]);
            let nodes = nodes.collect::<String>();
            endless(&sent, "{\"kind\":\"NodeList\",\"apiVersion\":\"v1\",\"items\":[", nodes.into())
        }
        Attack::EndlessPages => {
            let page = parameter("continue").map_or(0, |it| it.parse::<u64>().unwrap_or_default()) + 1;
            list((0..200).map(|n| node(&format!("node-{page}-{n}"), "")), Some(page))
        }
        Attack::EmptyPages => list(std::iter::empty(), Some(1)),
        Attack::HugeNodes => {
            let large = "x".repeat(1 << 20);
            list((0..12).map(|n| node(&format!("node-{n}"), &large)), None)
        }
        Attack::LyingError => (StatusCode::FORBIDDEN, lie().to_string()).into_response(),
        Attack::EndlessEvent | Attack::EventFlood | Attack::LyingEvent if !is_watch => {
            list(std::iter::once(node("node-0", "")), None)
        }
        Attack::EndlessEvent => endless(&sent, "{\"type\":\"ADDED\",\"object\":{\"kind\":\"", text),
        Attack::LyingEvent => format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", lie()).into_response(),
        Attack::EventFlood => {
            // As every API server writes it, the type comes first.
            let event = |n| {
                let node = node("node-0", &format!("value-{n}"));
                format!("{{\"type\":\"MODIFIED\",\"object\":{node}}}")
            };
            let events = (0..500).flat_map(|n| [event(n), "\n".to_owned()]).collect::<String>();
            endless(&sent, "", events.into())
        }
        Attack::EndlessError => {
            let mut error = endless(&sent, "", text);
            *error.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            error
        }
        Attack::Trickle => {
            let bytes = stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b" ")), ()))
            });
            Body::from_stream(bytes).into_response()
        }
        Attack::Silence => std::future::pending().await,
    }
}

fn lie() -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "message": LIE, "reason": LIE,
        "details": {"name": LIE, "kind": LIE, "causes": [{"reason": LIE, "message": LIE, "field": LIE}]},
    })
}

fn node(name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "spec": {"taints": [{"key": "hostile", "value": value, "effect": "NoSchedule"}]},
    })
}

fn list(nodes: impl Iterator<Item = Value>, next: Option<u64>) -> Response {
    let next = next.map_or(String::new(), |next| next.to_string());
    let list = json!({
        "apiVersion": "v1", "kind": "NodeList",
        "metadata": {"resourceVersion": "1", "continue": next},
        "items": nodes.collect::<Vec<_>>(),
    });
    list.to_string().into_response()
}

/// An answer that begins so and then repeats a chunk for as long as somebody takes it.
fn endless(sent: &Arc<Sent>, beginning: &'static str, chunk: Bytes) -> Response {
    let first = stream::once(async move { Bytes::from_static(beginning.as_bytes()) });
    let sent = Arc::clone(sent);
    let rest = stream::unfold((chunk, sent), |(chunk, sent)| async move {
        sent.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        Some((chunk.clone(), (chunk, sent)))
    });
    let bytes = futures::StreamExt::chain(first, rest);
    Body::from_stream(futures::StreamExt::map(bytes, Ok::<_, std::convert::Infallible>)).into_response()
}
