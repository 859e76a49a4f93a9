//! The options of TLS, with types.
//!
//! Upstream:   the rows of `tls_rows.rs`; `listen.rs` for the prefixes of listeners.
//! Downstream: `kachel` reads the files that they name; `settings.rs` shows them.

/// Which TLS the clients of a listener speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenTls {
    /// None.
    #[default]
    Off,
    /// That of the options of the process.
    OfProcess,
    /// TLS without a certificate of the client (`btls:`).
    WithoutClientCertificate,
    /// TLS with a certificate of the client (`mtls:`).
    WithClientCertificate,
}

/// The options of TLS, with memcached's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// Whether listeners without a prefix speak TLS (`-Z`). Without it, the others have no effect.
    pub enabled: bool,
    /// The file with the certificate of the server and those that certify it. Given if `enabled`.
    pub chain_certificate: Option<String>,
    /// The file with the private key; `None`: it is in the file of the certificate.
    pub key: Option<String>,
    /// The format of the key: 1: PEM, 2: DER.
    pub key_format: u8,
    /// The file with the certificates of the authorities for clients.
    pub authorities: Option<String>,
    /// Whether clients are asked for a certificate: 0: no, 1: yes, 2 and 3: they must have one.
    pub verify_mode: u8,
    /// The cipher suites to offer, in OpenSSL's spelling; `None`: all.
    pub ciphers: Option<String>,
    /// The oldest version of TLS: 2: 1.2, 3: 1.3.
    pub min_version: u8,
    /// Whether sessions can be resumed.
    pub session_cache: bool,
    /// `ssl_wbuf_size`, in bytes. Only `stats settings` shows it.
    pub wbuf_bytes: u32,
}

impl TlsOptions {
    pub(crate) const DEFAULTS: Self = Self {
        enabled: false,
        chain_certificate: None,
        key: None,
        key_format: 1,
        authorities: None,
        verify_mode: 0,
        ciphers: None,
        min_version: 2,
        session_cache: false,
        wbuf_bytes: 16 << 10,
    };
}
