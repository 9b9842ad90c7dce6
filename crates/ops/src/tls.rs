//! A server that is reached by TLS 1.3, with a bounded number of connections.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::TLS13;

/// Connections that are open at the same time; a Prometheus server needs one. Another one closes the oldest, so that
/// nobody keeps others out by holding connections.
const CONNECTIONS: usize = 64;

/// How long a client may take for its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client may take for the headers of a request, and how long a connection may be idle. Prometheus opens
/// another one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection lives at most: a client that does not read its answer would hold it for ever.
const CONNECTION_TTL: Duration = Duration::from_mins(10);

/// How often the files of a certificate are read again.
const REREAD_INTERVAL: Duration = Duration::from_secs(10);

/// Delay after a connection that could not be accepted, such as for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Where the certificate of a server comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Certificate {
    /// Made and signed by this process: it keeps the traffic from being read, and proves nothing.
    SelfSigned,
    /// From files in PEM, which are read again when they change.
    Files {
        /// The certificate, and those that lead to an authority.
        certificate: PathBuf,
        /// Its private key.
        key: PathBuf,
    },
}

/// The certificate that new connections get.
struct Current {
    acceptor: TlsAcceptor,
    /// The files it was made of.
    read: Vec<u8>,
}

/// A certificate that can be replaced while the server runs.
pub(crate) struct Identity {
    source: Certificate,
    current: Mutex<Current>,
}

impl Identity {
    pub(crate) async fn new(source: Certificate) -> Result<Self, String> {
        let current = match &source {
            Certificate::SelfSigned => {
                let failed = |error| format!("cannot make a certificate: {error}");
                let made =
                    rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).map_err(failed)?;
                let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(str::to_owned)?;
                let acceptor = acceptor(vec![made.cert.der().clone()], key)?;
                Current { acceptor, read: Vec::new() }
            }
            Certificate::Files { certificate, key } => read(certificate, key).await?,
        };
        Ok(Self { source, current: Mutex::new(current) })
    }

    fn acceptor(&self) -> TlsAcceptor {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).acceptor.clone()
    }

    /// Reads the files again; whether they had changed. Files that cannot be used leave the certificate as it is.
    async fn refresh(&self) -> Result<bool, String> {
        let Certificate::Files { certificate, key } = &self.source else { return Ok(false) };
        let new = read(certificate, key).await?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let is_changed = new.read != current.read;
        if is_changed {
            *current = new;
        }
        Ok(is_changed)
    }

    async fn keep_fresh(&self) {
        let mut complaint = String::new();
        loop {
            sleep(REREAD_INTERVAL).await;
            match self.refresh().await {
                Ok(is_changed) => {
                    complaint.clear();
                    if is_changed {
                        tracing::info!("certificate of /metrics replaced");
                    }
                }
                Err(error) if error != complaint => {
                    tracing::warn!(error, "certificate of /metrics not replaced");
                    complaint = error;
                }
                Err(_) => {}
            }
        }
    }
}

async fn read(certificate: &Path, key: &Path) -> Result<Current, String> {
    let failed =
        |file: &Path, error: &dyn std::fmt::Display| format!("cannot use {}: {error}", file.display());
    let load = async |file: &Path| tokio::fs::read(file).await.map_err(|error| failed(file, &error));
    let (chain, private) = (load(certificate).await?, load(key).await?);
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
    let certificates = certificates.map_err(|error| failed(certificate, &error))?;
    let parsed = PrivateKeyDer::from_pem_slice(&private).map_err(|error| failed(key, &error))?;
    let acceptor = acceptor(certificates, parsed).map_err(|error| failed(certificate, &error))?;
    Ok(Current { acceptor, read: [chain, private].concat() })
}

fn acceptor(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<TlsAcceptor, String> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves until the process ends.
pub(crate) async fn serve(listener: TcpListener, identity: Identity, router: Router) {
    tokio::join!(identity.keep_fresh(), accept(listener, &identity, &router));
}

async fn accept(listener: TcpListener, identity: &Identity, router: &Router) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_RETRY).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        while open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let connection = timeout(CONNECTION_TTL, answer(stream, identity.acceptor(), router.clone()));
        open.push_back(tokio::spawn(connection).abort_handle());
    }
}

/// Answers one client. What goes wrong with it concerns nobody else.
async fn answer(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await else { return };
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let _ = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write_pair(folder: &Path) -> Certificate {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        Certificate::Files { certificate, key }
    }

    #[tokio::test]
    async fn a_certificate_is_replaced_when_its_files_change_and_kept_when_they_are_broken() {
        let folder = tempfile::tempdir().unwrap();
        let files = write_pair(folder.path());
        let identity = Identity::new(files.clone()).await.unwrap();
        assert_eq!(identity.refresh().await, Ok(false));
        write_pair(folder.path());
        assert_eq!(identity.refresh().await, Ok(true));
        assert_eq!(identity.refresh().await, Ok(false));
        // The certificate of another key, as while both files are written.
        let key = fs::read(folder.path().join("tls.key")).unwrap();
        write_pair(folder.path());
        fs::write(folder.path().join("tls.key"), key).unwrap();
        let error = identity.refresh().await.unwrap_err();
        assert!(error.contains("tls.crt"), "{error}");
        fs::remove_file(folder.path().join("tls.key")).unwrap();
        assert!(identity.refresh().await.unwrap_err().contains("tls.key"));
        assert!(Identity::new(files).await.is_err(), "a process that starts says so");
    }
}
