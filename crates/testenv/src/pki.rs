//! Certificates and keys of one control plane. They live as long as it does and are trusted by nobody else.

use crate::Error;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// The authority that signs everything in one control plane.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate and its key, as PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl std::fmt::Debug for Authority {
    /// Without its key.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    pub(crate) fn new() -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "5spot-testenv");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// The authority's own certificate, as PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for a server on loopback.
    pub(crate) fn server(&self) -> Result<Pair, Error> {
        let names = [
            "127.0.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "10.0.0.1",
        ];
        let params = CertificateParams::new(names.map(str::to_owned))?;
        self.sign(params, "kube-apiserver", None, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate that authenticates `user`, in `group` if given.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Pair, Error> {
        self.sign(CertificateParams::default(), user, group, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        name: &str,
        group: Option<&str>,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Pair, Error> {
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }
}

/// The key that signs service-account tokens, private and public, as PEM.
pub(crate) fn token_keys() -> Result<(String, String), Error> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}
