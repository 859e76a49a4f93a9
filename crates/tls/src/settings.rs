//! The options of TLS.
//!
//! Upstream:   `kachel`, from the options of the process.
//! Downstream: `certificates` reads the files that they name.

use std::path::{Path, PathBuf};

/// The format of the file with the private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFormat {
    /// Text between lines with dashes.
    Pem,
    /// The bytes of the key (ASN.1).
    Der,
}

/// Whether clients must have a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// They are not asked for one.
    NotAsked,
    /// They are asked for one. One that is given must be good.
    Asked,
    /// They must have a good one.
    Required,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// The options of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The file with the certificate of the server and those that link it to an authority.
    pub chain_certificate: PathBuf,
    /// The file with the private key. `None` if it is in the file of the certificate.
    pub key: Option<PathBuf>,
    /// The format of [`Self::key`].
    pub key_format: KeyFormat,
    /// The file with the certificates of the authorities that may certify clients.
    pub authorities: Option<PathBuf>,
    /// Whether clients of a listener without a prefix must have a certificate.
    pub client_certificate: ClientCertificate,
    /// The names of the cipher suites to offer, as OpenSSL spells them, between colons. `None`:
    /// all.
    pub ciphers: Option<String>,
    /// The oldest version to offer.
    pub min_version: Version,
    /// Whether sessions can be resumed.
    pub resumes: bool,
}

impl Settings {
    /// The files that the options name.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> + Clone {
        let chain = Some(self.chain_certificate.as_path());
        [chain, self.key.as_deref(), self.authorities.as_deref()].into_iter().flatten()
    }
}

/// The TLS of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerTls {
    /// Its clients speak without TLS (`notls:`).
    Off,
    /// Clients must have a certificate if the option of the process says so.
    OfProcess,
    /// Clients are not asked for a certificate (`btls:`).
    WithoutClientCertificate,
    /// Clients must have a certificate (`mtls:`).
    WithClientCertificate,
}
