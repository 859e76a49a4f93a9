//! Certificates for tests: an authority, and the servers and clients that it certifies.
//!
//! Upstream:   tests of TLS.
//! Downstream: files for a server, configurations of rustls for clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use rustls::client::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, SupportedProtocolVersion};

/// All versions of TLS that the server offers.
pub const TLS_VERSIONS: [&SupportedProtocolVersion; 2] =
    [&rustls::version::TLS13, &rustls::version::TLS12];

/// Whether a certificate may be used today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// It is good for years.
    Good,
    /// It has expired.
    Expired,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate, in PEM.
    pub certificate: PathBuf,
    /// The key, in PEM.
    pub key: PathBuf,
}

/// A certificate of a client, and its key.
#[derive(Debug)]
pub struct ClientCertificate {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

/// An authority with a key of its own.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// An authority with a new key.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate") }
    }

    fn certify(&self, name: &str, validity: Validity) -> (rcgen::Certificate, KeyPair) {
        assert!(!name.is_empty(), "a certificate is somebody's");
        let names = vec!["localhost".to_string(), "127.0.0.1".to_string()];
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        if validity == Validity::Expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, &self.issuer).expect("a certificate"), key)
    }

    /// Certifies a server called `name`. Writes its certificate and its key to `folder`, over those
    /// that are there.
    pub fn certify_server(&self, folder: &Path, name: &str) -> CertificateFiles {
        let (certificate, key) = self.certify(name, Validity::Good);
        let files = CertificateFiles {
            certificate: folder.join("server.pem"),
            key: folder.join("server.key"),
        };
        fs::write(&files.certificate, certificate.pem()).expect("a file");
        fs::write(&files.key, key.serialize_pem()).expect("a file");
        files
    }

    /// Writes the certificate of the authority to `folder`. Returns its path.
    pub fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join("authority.pem");
        fs::write(&path, self.issuer.pem()).expect("a file");
        path
    }

    /// Certifies a client.
    pub fn certify_client(&self, validity: Validity) -> ClientCertificate {
        let (certificate, key) = self.certify("client", validity);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        ClientCertificate { certificate: certificate.der().clone(), key }
    }

    /// The configuration of a client that trusts this authority.
    pub fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        certificate: Option<&ClientCertificate>,
    ) -> ClientConfig {
        assert!(!versions.is_empty(), "a client speaks some version");
        let mut authorities = RootCertStore::empty();
        authorities.add(self.issuer.der().clone()).expect("an authority");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(authorities);
        match certificate {
            None => builder.with_no_client_auth(),
            Some(ClientCertificate { certificate, key }) => builder
                .with_client_auth_cert(vec![certificate.clone()], key.clone_key())
                .expect("a certificate with its key"),
        }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}
