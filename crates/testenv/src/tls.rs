//! Servers of this process that are reached by TLS.

use crate::error::Error;
use crate::pki::Authority;
use axum::serve::Listener;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// Time that a client gets to say hello. All clients are on this machine.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// Delay after a connection that could not be accepted, such as for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Who a server is.
pub(crate) struct Identity {
    /// The certificate of who signed its own.
    pub(crate) authority: String,
    pub(crate) config: Arc<ServerConfig>,
}

/// A new identity for a server on loopback.
pub(crate) fn identity() -> Result<Identity, Error> {
    let authority = Authority::new()?;
    let pair = authority.server()?;
    let what = "describe the certificate of a server";
    let certificate =
        CertificateDer::from_pem_slice(pair.certificate.as_bytes()).map_err(Error::api(what))?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(Error::api(what))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(Error::api(what))?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(Error::api(what))?;
    Ok(Identity { authority: authority.certificate().to_owned(), config: Arc::new(config) })
}

pub(crate) struct TlsListener {
    pub(crate) listener: tokio::net::TcpListener,
    pub(crate) acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            };
            // Whoever says no hello is of no concern to the next one.
            let handshake = tokio::time::timeout(HANDSHAKE, self.acceptor.accept(stream)).await;
            if let Ok(Ok(stream)) = handshake {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
