//! Reads the certificates and the key, and makes the configurations of rustls from them.
//!
//! Upstream:   `process`, at the start and when the operator or a client asks to read them again.
//! Downstream: `handshakes` uses the configuration of each listener's kind.
//!
//! Invariants, cited by number where they are asserted:
//! - C1  A certificate or a key that cannot be used is an error here. A server never begins to use
//!   it.
//! - C2  Each kind of listener has its own store of sessions, and each reading a new one. A session
//!   that began without a certificate of the client, or under another authority, is never resumed
//!   where one is needed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kachel_host::UnusableFile;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    NoServerSessionStorage, ServerSessionMemoryCache, StoresServerSessions, WebPkiClientVerifier,
};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::counts::Counts;
use crate::expiry::expires_s;
use crate::limits::{FILE_BYTES_MAX, RECORD_PLAIN_BYTES_MAX, SESSION_BYTES_MAX, SESSIONS_MAX};
use crate::no_authority::NoAuthority;
use crate::settings::{ClientCertificate, KeyFormat, ListenerTls, Settings, Version};

/// Tickets for one connection of TLS 1.3, so that a client can resume it twice at a time.
const TICKETS: usize = 2;
/// Bytes that rustls adds to the plain bytes of a record when it counts its length.
const COUNTED_HEADER_BYTES: usize = 5;

/// The configurations of all kinds of listeners.
#[derive(Debug)]
pub(crate) struct Configurations {
    of_process: Arc<ServerConfig>,
    without_client_certificate: Arc<ServerConfig>,
    with_client_certificate: Arc<ServerConfig>,
    /// The Unix second at which the first certificate of the server's chain expires.
    pub(crate) expires_s: Option<u64>,
}

impl Configurations {
    /// The configuration of a listener. `None` if it is one without TLS.
    pub(crate) fn of(&self, listener: ListenerTls) -> Option<&Arc<ServerConfig>> {
        match listener {
            ListenerTls::Off => None,
            ListenerTls::OfProcess => Some(&self.of_process),
            ListenerTls::WithoutClientCertificate => Some(&self.without_client_certificate),
            ListenerTls::WithClientCertificate => Some(&self.with_client_certificate),
        }
    }

    /// Reads the files of `settings`.
    ///
    /// Errors: a file cannot be read or used (C1), or an option cannot be used.
    pub(crate) fn read(settings: &Settings, counts: &Arc<Counts>) -> Result<Self, UnusableFile> {
        let provider = Arc::new(provider(settings)?);
        let (chain, key) = read_server(settings)?;
        let authorities = settings.authorities.as_deref().map(read_authorities).transpose()?;
        let make = |verifier| {
            configuration(settings, &provider, verifier, (chain.clone(), key.clone_key()), counts)
        };
        let asking = |may_lack| verifier(authorities.as_ref(), may_lack, &provider).map(Some);
        let of_process = make(match settings.client_certificate {
            ClientCertificate::NotAsked => None,
            ClientCertificate::Asked => asking(true)?,
            ClientCertificate::Required => asking(false)?,
        })?;
        let without_client_certificate = make(None)?;
        let with_client_certificate = make(asking(false)?)?;
        let expires_s = chain.iter().filter_map(|certificate| expires_s(certificate)).min();
        Ok(Self { of_process, without_client_certificate, with_client_certificate, expires_s })
    }
}

/// One configuration, with its own store of sessions (C2).
fn configuration(
    settings: &Settings,
    provider: &Arc<CryptoProvider>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    (chain, key): (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
    counts: &Arc<Counts>,
) -> Result<Arc<ServerConfig>, String> {
    let versions: &[&SupportedProtocolVersion] = match settings.min_version {
        Version::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
        Version::Tls13 => &[&rustls::version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(versions)
        .map_err(|error| format!("ssl_ciphers and ssl_min_version leave nothing: {error}"))?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut configuration = builder
        .with_single_cert(chain, key)
        .map_err(|error| format!("Error validating the certificate: {error}"))?;
    configuration.max_fragment_size = Some(RECORD_PLAIN_BYTES_MAX + COUNTED_HEADER_BYTES);
    if settings.resumes {
        let sessions = ServerSessionMemoryCache::new(SESSIONS_MAX);
        configuration.session_storage = Arc::new(Sessions { sessions, counts: counts.clone() });
        configuration.send_tls13_tickets = TICKETS;
    } else {
        configuration.session_storage = Arc::new(NoServerSessionStorage {});
        configuration.send_tls13_tickets = 0;
    }
    Ok(Arc::new(configuration))
}

/// The cryptography of rustls, with the cipher suites of the options.
fn provider(settings: &Settings) -> Result<CryptoProvider, String> {
    let mut provider = ring::default_provider();
    let Some(list) = &settings.ciphers else { return Ok(provider) };
    let all = std::mem::take(&mut provider.cipher_suites);
    let names = || list.split([':', ',', ' ']).filter(|name| !name.is_empty());
    let known: Vec<String> = all.iter().map(|suite| name_of(*suite)).collect();
    if let Some(unknown) = names().find(|name| !known.iter().any(|known| known == name)) {
        let known = known.join(":");
        return Err(format!("ssl_ciphers: {unknown} is not one of {known}"));
    }
    // As in memcached, a list of older names leaves the suites of TLS 1.3 as they are.
    let names_newer = names().any(|name| name.starts_with("TLS_"));
    provider.cipher_suites = all
        .into_iter()
        .zip(&known)
        .filter(|(suite, known)| {
            names().any(|name| name == known.as_str())
                || !names_newer && matches!(suite, rustls::SupportedCipherSuite::Tls13(_))
        })
        .map(|(suite, _)| suite)
        .collect();
    Ok(provider)
}

/// The name of a cipher suite in OpenSSL: `ECDHE-RSA-AES128-GCM-SHA256`, `TLS_AES_128_GCM_SHA256`.
fn name_of(suite: rustls::SupportedCipherSuite) -> String {
    let name = format!("{:?}", suite.suite());
    if let Some(newer) = name.strip_prefix("TLS13_") {
        return format!("TLS_{newer}");
    }
    let name = name.trim_start_matches("TLS_").replace("_WITH_", "_").replace("AES_", "AES");
    name.trim_end_matches("_SHA256_")
        .replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
        .replace('_', "-")
}

/// The certificates of the server, its own first, and its key.
fn read_server(
    settings: &Settings,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), UnusableFile> {
    let path = settings.chain_certificate.as_path();
    let chain = certificates("Error loading the certificate chain:", path)?;
    let path = settings.key.as_deref().unwrap_or(path);
    let what = "Error loading the key:";
    let of = |error: &dyn std::fmt::Display| format!("{what} {}: {error}", path.display());
    let bytes = read_file(what, path)?;
    let der = match settings.key_format {
        KeyFormat::Pem => {
            PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| of(&error))?.secret_der().to_vec()
        }
        KeyFormat::Der => bytes,
    };
    // The contents say which format a key has. A label may name another one, as OpenSSL permits.
    let key = PrivateKeyDer::try_from(der).map_err(|error| of(&error))?;
    Ok((chain, key))
}

/// The certificates of the authorities that may certify clients.
fn read_authorities(path: &Path) -> Result<Arc<RootCertStore>, UnusableFile> {
    let what = "Error loading the CA certificate:";
    let mut authorities = RootCertStore::empty();
    for certificate in certificates(what, path)? {
        let added = authorities.add(certificate);
        added.map_err(|error| format!("{what} {}: {error}", path.display()))?;
    }
    Ok(Arc::new(authorities))
}

/// The check of clients' certificates. Without authorities no certificate is good, but as in
/// memcached the server starts.
fn verifier(
    authorities: Option<&Arc<RootCertStore>>,
    may_lack: bool,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let provider = Arc::clone(provider);
    let Some(authorities) = authorities else {
        return Ok(Arc::new(NoAuthority { provider, may_lack }));
    };
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(authorities), provider);
    let builder = if may_lack { builder.allow_unauthenticated() } else { builder };
    builder.build().map_err(|error| format!("ssl_ca_cert: {error}"))
}

/// All certificates of a file, of which there must be one. An error begins with `what`.
fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, UnusableFile> {
    let text = read_file(what, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let of = |error: &dyn std::fmt::Display| format!("{what} {}: {error}", path.display());
    match all {
        Ok(all) if all.is_empty() => Err(of(&"there is no certificate in it").into()),
        Ok(all) => Ok(all),
        Err(error) => Err(of(&error).into()),
    }
}

fn read_file(what: &str, path: &Path) -> Result<Vec<u8>, UnusableFile> {
    let bytes = kachel_host::read_regular_file(path, FILE_BYTES_MAX);
    bytes.map_err(|error| UnusableFile::unread(what, path, &error))
}

/// The sessions that can be resumed. Counts those that are stored.
#[derive(Debug)]
struct Sessions {
    sessions: Arc<ServerSessionMemoryCache>,
    counts: Arc<Counts>,
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        if value.len() > SESSION_BYTES_MAX {
            return false;
        }
        self.counts.new_sessions.fetch_add(1, Ordering::Relaxed);
        self.sessions.put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.sessions.get(key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.sessions.take(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rustls limits the number of sessions, and not what a client puts into one.
    #[test]
    fn a_session_that_is_too_long_is_not_remembered() {
        let sessions = Sessions {
            sessions: ServerSessionMemoryCache::new(SESSIONS_MAX),
            counts: Arc::default(),
        };
        for (name, bytes) in [("short", SESSION_BYTES_MAX), ("long", SESSION_BYTES_MAX + 1)] {
            let is_stored = sessions.put(name.into(), vec![0; bytes]);
            assert_eq!(is_stored, bytes <= SESSION_BYTES_MAX, "{name}");
            assert_eq!(sessions.get(name.as_bytes()).is_some(), is_stored, "{name}");
        }
        assert_eq!(sessions.counts.new_sessions.load(Ordering::Relaxed), 1);
    }
}
