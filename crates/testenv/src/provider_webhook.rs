//! The webhooks of the provider: conversion between its two versions, and admission.
//!
//! They answer on a thread of this process for as long as the control plane is there, and can be stopped by a test:
//! then nothing listens at their port, and the API server can neither convert nor admit, as on a day on which the real
//! provider is down.

mod convert;

use crate::error::{Context, Error};
use crate::tls::{self, Identity, TlsListener};
use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::WebhookClientConfig;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

const CONVERT: &str = "/convert";
const VALIDATE: &str = "/validate-bootstrap-cluster-x-k8s-io-v1beta2-k0sworkerconfig";

/// The provider's webhooks at one port, answering or not.
pub(crate) struct ProviderWebhook {
    address: SocketAddr,
    authority: String,
    tls: Arc<ServerConfig>,
    running: Mutex<Option<Running>>,
}

impl std::fmt::Debug for ProviderWebhook {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ProviderWebhook").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The thread that answers. It ends when the other end of its channel is dropped, and its connections with it.
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl ProviderWebhook {
    /// Answers at a free port of loopback, from when this returns.
    pub(crate) fn launch() -> Result<Self, Error> {
        let Identity { authority, config } = tls::identity()?;
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let webhook = Self {
            address: listener.local_addr().context(|| "read the number of a port".to_owned())?,
            authority,
            tls: config,
            running: Mutex::default(),
        };
        webhook.answer(listener)?;
        Ok(webhook)
    }

    /// Answers again after [`Self::stop`], at the same port.
    pub(crate) fn start(&self) -> Result<(), Error> {
        self.stop();
        self.answer(listen(self.address)?)
    }

    /// Ends every connection, and returns when nothing listens any more.
    pub(crate) fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Running { stop, thread }) = running {
            drop(stop);
            // A thread that panicked answers nobody either.
            let _ = thread.join();
        }
    }

    fn answer(&self, listener: TcpListener) -> Result<(), Error> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.tls));
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context(|| "start a runtime for the provider's webhooks".to_owned())?;
        let serve = move || {
            // Dropping the runtime ends the connections.
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = serve(listener, acceptor) => {}
                }
            });
        };
        let thread = thread::Builder::new().name("provider-webhook".to_owned()).spawn(serve);
        let thread = thread.context(|| "start a thread for the provider's webhooks".to_owned())?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running { stop, thread });
        Ok(())
    }

    /// How the API server finds the conversion.
    pub(crate) fn conversion(&self) -> WebhookClientConfig {
        let ca_bundle = Some(ByteString(self.authority.clone().into_bytes()));
        WebhookClientConfig { ca_bundle, service: None, url: Some(self.url(CONVERT)) }
    }

    /// How the API server finds the admission. As with the real provider, nobody can write a K0sWorkerConfig while
    /// it does not answer; its status can be written, and it can be deleted.
    pub(crate) fn admission(&self) -> Result<ValidatingWebhookConfiguration, Error> {
        serde_json::from_value(json!({
            "metadata": {"name": "k0smotron-validating-webhook-configuration"},
            "webhooks": [{
                "name": "validate-k0sworkerconfig-v1beta2.k0smotron.io",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "clientConfig": {
                    "url": self.url(VALIDATE),
                    "caBundle": ByteString(self.authority.clone().into_bytes()),
                },
                "rules": [{
                    "apiGroups": ["bootstrap.cluster.x-k8s.io"],
                    "apiVersions": ["v1beta2"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": ["k0sworkerconfigs"],
                }],
            }],
        }))
        .map_err(Error::api("describe the provider's admission"))
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }
}

impl Drop for ProviderWebhook {
    fn drop(&mut self) {
        self.stop();
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let what = || format!("listen on {address} for the provider's webhooks");
    let listener = TcpListener::bind(address).context(what)?;
    listener.set_nonblocking(true).context(what)?;
    Ok(listener)
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor) {
    let routes = Router::new()
        .route(CONVERT, post(async |body: Bytes| answer(&body, convert::review)))
        .route(VALIDATE, post(async |body: Bytes| answer(&body, convert::admit)))
        // A list of hundreds of objects is converted in one request.
        .layer(DefaultBodyLimit::disable());
    // It was made for this runtime a moment ago; if that fails nobody answers, as the tests will say.
    if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
        let _ = axum::serve(TlsListener { listener, acceptor }, routes).await;
    }
}

/// Answers a review, which has a request of this kind inside.
fn answer(body: &[u8], respond: impl FnOnce(&Value) -> Value) -> Response {
    match serde_json::from_slice::<Value>(body) {
        Ok(review) => {
            let json = [(header::CONTENT_TYPE, "application/json")];
            (json, respond(&review["request"]).to_string()).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}
