//! Reads what a program serves over HTTPS, as Prometheus does.

#![expect(clippy::unwrap_used, reason = "called by tests alone: the line that fails is the message")]

use axum::body::to_bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};

/// Longest answer that is read.
const ANSWER_BYTES: usize = 4 << 20;

/// A client of one port of this machine. It repeats no request.
#[derive(Clone)]
pub struct Scraper {
    client: Client,
    url: String,
}

/// What was answered.
#[derive(Debug, Clone)]
pub struct Scraped {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
}

impl Scraper {
    /// One that trusts every certificate.
    pub fn new(port: u16) -> Self {
        let mut config = config(port);
        config.accept_invalid_certs = true;
        Self::of(&config)
    }

    /// One that trusts what this certificate has signed, in DER, and nothing else.
    pub fn trusting(port: u16, certificate: Vec<u8>) -> Self {
        let mut config = config(port);
        config.root_cert = Some(vec![certificate]);
        Self::of(&config)
    }

    fn of(config: &Config) -> Self {
        let tls = config.rustls_https_connector().unwrap();
        let http = HttpClient::builder(TokioExecutor::new()).build::<_, Body>(tls);
        Self { client: Client::new(http, "default"), url: config.cluster_url.to_string() }
    }

    /// Asks for a path, with a bearer token if one is given. Fails if no connection comes about.
    ///
    /// # Panics
    /// If the request cannot be written down.
    pub async fn get(&self, path: &str, token: Option<&str>) -> Result<Scraped, String> {
        let mut request = Request::get(format!("{}{path}", self.url.trim_end_matches('/')));
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).unwrap();
        let answer = self.client.send(request).await.map_err(|error| format!("{error:?}"))?;
        let (parts, body) = answer.into_parts();
        let text = to_bytes(axum::body::Body::new(body), ANSWER_BYTES).await;
        let text = text.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(Scraped { status: parts.status.as_u16(), headers: parts.headers, text })
    }
}

fn config(port: u16) -> Config {
    Config::new(format!("https://127.0.0.1:{port}").parse().unwrap())
}
