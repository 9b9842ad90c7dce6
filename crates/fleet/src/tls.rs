//! Mutual TLS with the shard: 1.3, and nothing older.

use crate::options::TlsFiles;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::Uri;
use tower::{BoxError, Service};

/// Whom we are, and whom we believe.
#[derive(Clone)]
pub(crate) struct Identity {
    connector: TlsConnector,
    host: ServerName<'static>,
}

impl Identity {
    /// Reads the files. `address` is where the shard listens; its certificate must name that host.
    pub(crate) fn read(files: &TlsFiles, address: &str) -> Result<Self, String> {
        let TlsFiles { cert, key, ca } = files;
        let mut believed = RootCertStore::empty();
        for certificate in certificates("--tls-ca", ca)? {
            believed.add(certificate).map_err(|error| said("--tls-ca", ca, error))?;
        }
        let chain = certificates("--tls-cert", cert)?;
        let key_of = |error| said("--tls-key", key, error);
        let private = PrivateKeyDer::from_pem_file(key).map_err(key_of)?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| error.to_string())?
            .with_root_certificates(believed)
            .with_client_auth_cert(chain, private)
            .map_err(|error| format!("--tls-cert and --tls-key do not belong together: {error}"))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        let host = ServerName::try_from(host.to_owned()).map_err(|error| format!("--shard-addr: {error}"))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), host })
    }

    /// Connects, and knows then with whom.
    pub(crate) async fn connect(
        self,
        mut tcp: HttpConnector,
        address: Uri,
    ) -> Result<TokioIo<TlsStream<TcpStream>>, BoxError> {
        let stream = tcp.call(address).await?.into_inner();
        Ok(TokioIo::new(self.connector.connect(self.host, stream).await?))
    }
}

fn certificates(flag: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| said(flag, file, error))?;
    if certificates.is_empty() {
        return Err(said(flag, file, "there is no certificate in it"));
    }
    Ok(certificates)
}

fn said(flag: &str, file: &Path, error: impl std::fmt::Display) -> String {
    format!("{flag}: cannot use {}: {error}", file.display())
}
