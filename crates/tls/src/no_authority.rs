//! The check of clients' certificates in a server without an authority: no certificate is good.
//!
//! Upstream:   `certificates`, if `ssl_ca_cert` is missing and clients are asked for a certificate.
//! Downstream: rustls calls it in a handshake.
//!
//! The verifier of rustls cannot be made without authorities. memcached starts without them, and
//! refuses each client in its handshake, with an alert.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Refuses every certificate.
#[derive(Debug)]
pub(crate) struct NoAuthority {
    pub(crate) provider: Arc<CryptoProvider>,
    /// Whether a client without a certificate is let in.
    pub(crate) may_lack: bool,
}

const REFUSED: Error = Error::InvalidCertificate(CertificateError::UnknownIssuer);

impl ClientCertVerifier for NoAuthority {
    fn client_auth_mandatory(&self) -> bool {
        !self.may_lack
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Err(REFUSED)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(REFUSED)
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(REFUSED)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
