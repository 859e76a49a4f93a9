//! The TLS of the process: its certificates, and the threads for handshakes.
//!
//! Upstream:   `serve` reads the certificates at the start and at each SIGHUP; `shards` puts TLS
//!             over the I/O backend of each shard.
//! Downstream: `kachel_tls`.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kachel_admin::AdminListener;
use kachel_host::UnusableFile;
use kachel_io::Io;
use kachel_observe::{TlsNumbers, tls_rows};
use kachel_options::{ListenTls, ServeOptions, TlsOptions};
use kachel_shard::{Certificates, OtherCounts};
use kachel_tls::{
    ClientCertificate, HANDSHAKES_MAX, Handshakes, KeyFormat, ListenerTls, Process, Settings, Tls,
    Version,
};

/// The answer to `refresh_certs` if the options do not ask for TLS.
pub(crate) const CERTIFICATES_WITHOUT_TLS: Certificates = Certificates::NotEnabled;

/// One thread for handshakes serves this number of shards. A guess: a new connection is rare
/// compared with its requests.
const SHARDS_PER_THREAD: usize = 4;
/// The most threads for handshakes.
const THREADS_MAX: usize = 8;

/// The TLS of the process.
#[derive(Clone, Debug)]
pub(crate) struct Encryption {
    process: Arc<Process>,
    handshakes: Arc<OnceLock<Arc<Handshakes>>>,
    threads: usize,
    resumes: bool,
}

impl Encryption {
    /// Reads the certificates of the options. Their paths are taken from the working folder of now:
    /// a daemon leaves it. `None` if the options ask for no TLS.
    ///
    /// Errors: a file or an option cannot be used.
    pub(crate) fn new(options: &ServeOptions, shards: u16) -> Result<Option<Self>, UnusableFile> {
        if !options.tls.enabled {
            return Ok(None);
        }
        let settings = settings(&options.tls)?;
        let resumes = settings.resumes;
        let process = Arc::new(Process::new(settings)?);
        let (handshakes, threads) = (Arc::default(), threads(shards));
        debug_assert!((1..=THREADS_MAX).contains(&threads), "some thread does the handshakes");
        Ok(Some(Self { process, handshakes, threads, resumes }))
    }

    /// The most files that the threads for handshakes of a process with `shards` shards open for
    /// clients.
    pub(crate) fn files(shards: u16) -> u64 {
        threads(shards) as u64 * u64::from(HANDSHAKES_MAX)
    }

    /// Starts the threads for handshakes, once. The signals of the process must be blocked.
    ///
    /// Errors: out of threads, descriptors or memory.
    pub(crate) fn start(&self) -> io::Result<()> {
        let started = self.handshakes.set(Handshakes::start(self.threads, &self.process)?);
        assert!(started.is_ok(), "they are started once");
        Ok(())
    }

    /// Puts TLS over the I/O backend of a shard, which will listen on `listeners`, in their order.
    pub(crate) fn over<I: Io + 'static>(&self, io: I, listeners: &[ListenTls]) -> Tls<I> {
        let handshakes = self.handshakes.get().expect("the threads run before the shards do");
        let listeners = listeners.iter().map(|tls| of_listener(*tls)).collect();
        Tls::new(io, Arc::clone(&self.process), Arc::clone(handshakes), listeners)
    }

    /// Reads the certificates again, for clients that connect from now on.
    ///
    /// Errors: a sentence about a file. The old certificates stay.
    pub(crate) fn read_again(&self) -> Result<(), String> {
        self.process.read_again().map_err(|file| file.to_string())
    }

    /// Whether the files can be opened by the user that the server runs as now.
    ///
    /// Errors: a sentence about the first one that cannot.
    pub(crate) fn check_access(&self) -> Result<(), String> {
        self.process.check_access()
    }

    /// Puts TLS over the admin address. Its clients show a token, and no certificate.
    pub(crate) fn admin_listener(&self, listener: TcpListener) -> AdminListener {
        let process = Arc::clone(&self.process);
        let of_new_client = move || process.configuration(ListenerTls::WithoutClientCertificate);
        AdminListener::Tls(listener, Arc::new(of_new_client))
    }

    /// The statistics of TLS, with memcached's names.
    pub(crate) fn counts(&self) -> OtherCounts {
        let Self { process, resumes, .. } = self.clone();
        OtherCounts(Arc::new(move || {
            let counts = process.counts();
            let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
            tls_rows(&TlsNumbers {
                new_sessions: resumes.then(|| load(&counts.new_sessions)),
                handshake_errors: load(&counts.handshake_errors),
                protocol_errors: load(&counts.protocol_errors),
                certificate_age_s: process.seconds_since_read(),
                expires_s: process.expires_s(),
                kept_bytes: load(&counts.kept_bytes),
            })
        }))
    }
}

/// The number of threads for handshakes.
fn threads(shards: u16) -> usize {
    (usize::from(shards) / SHARDS_PER_THREAD).clamp(1, THREADS_MAX)
}

fn settings(tls: &TlsOptions) -> Result<Settings, UnusableFile> {
    let path = |path: &String| -> Result<PathBuf, UnusableFile> {
        let path = Path::new(path);
        std::path::absolute(path)
            .map_err(|error| UnusableFile::unread("no working folder for", path, &error))
    };
    let chain = tls.chain_certificate.as_ref().expect("the options refuse TLS without it");
    Ok(Settings {
        chain_certificate: path(chain)?,
        key: tls.key.as_ref().map(path).transpose()?,
        key_format: if tls.key_format == 2 { KeyFormat::Der } else { KeyFormat::Pem },
        authorities: tls.authorities.as_ref().map(path).transpose()?,
        client_certificate: match tls.verify_mode {
            0 => ClientCertificate::NotAsked,
            1 => ClientCertificate::Asked,
            _ => ClientCertificate::Required,
        },
        ciphers: tls.ciphers.clone(),
        min_version: if tls.min_version == 3 { Version::Tls13 } else { Version::Tls12 },
        resumes: tls.session_cache,
    })
}

const fn of_listener(tls: ListenTls) -> ListenerTls {
    match tls {
        ListenTls::Off => ListenerTls::Off,
        ListenTls::OfProcess => ListenerTls::OfProcess,
        ListenTls::WithoutClientCertificate => ListenerTls::WithoutClientCertificate,
        ListenTls::WithClientCertificate => ListenerTls::WithClientCertificate,
    }
}
