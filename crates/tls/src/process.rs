//! The state of TLS that all threads of a process share.
//!
//! Upstream:   `kachel` makes one at the start, and has it read the certificates again.
//! Downstream: `handshakes` takes a configuration for each new client; `layer` counts, and hands
//!             sessions from core to core.
//!
//! Invariants, cited by number where they are asserted:
//! - P1  New certificates replace the old ones whole. A handshake uses the old ones or the new
//!   ones, and a connection keeps those with which it began.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use kachel_host::UnusableFile;
use kachel_io::{Clock as _, SystemClock};
use rustls::ServerConfig;

use crate::certificates::Configurations;
use crate::counts::Counts;
use crate::moving::Moving;
use crate::settings::{ListenerTls, Settings};

/// The TLS of a process.
#[derive(Debug)]
pub struct Process {
    settings: Settings,
    configurations: RwLock<Configurations>,
    counts: Arc<Counts>,
    pub(crate) moving: Moving,
    /// When the certificates were read, in nanoseconds of the system's clock.
    read_ns: AtomicU64,
}

impl Process {
    /// Reads the certificates of `settings`.
    ///
    /// Errors: a file or an option cannot be used.
    pub fn new(settings: Settings) -> Result<Self, UnusableFile> {
        let counts = Arc::<Counts>::default();
        let configurations = Configurations::read(&settings, &counts)?;
        Ok(Self {
            settings,
            configurations: RwLock::new(configurations),
            counts,
            moving: Moving::default(),
            read_ns: AtomicU64::new(SystemClock.now_ns()),
        })
    }

    /// Reads the certificates again, for handshakes that begin from now on (P1). Cost: reads files,
    /// and checks keys: milliseconds.
    ///
    /// Errors: a file cannot be used. The old certificates stay.
    pub fn read_again(&self) -> Result<(), UnusableFile> {
        let configurations = Configurations::read(&self.settings, &self.counts)?;
        let mut place = self.configurations.write().unwrap_or_else(PoisonError::into_inner);
        *place = configurations;
        self.read_ns.store(SystemClock.now_ns(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether the files can be opened now, so that they can be read again. Cost: opens each file.
    ///
    /// Errors: a sentence about the first one that cannot.
    pub fn check_access(&self) -> Result<(), String> {
        let files = self.settings.files();
        debug_assert!(files.clone().count() > 0, "there is a certificate");
        for path in files {
            kachel_host::open_regular_file(path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// The configuration for a new client of a listener. `None` if it cannot be served.
    pub fn configuration(&self, listener: ListenerTls) -> Option<Arc<ServerConfig>> {
        let configurations = self.configurations.read().unwrap_or_else(PoisonError::into_inner);
        configurations.of(listener).cloned()
    }

    /// The Unix second at which a certificate of the server expires. `None` if it tells none.
    pub fn expires_s(&self) -> Option<u64> {
        self.configurations.read().unwrap_or_else(PoisonError::into_inner).expires_s
    }

    /// The counters.
    pub const fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Seconds since the certificates were read.
    pub fn seconds_since_read(&self) -> u64 {
        SystemClock.now_ns().saturating_sub(self.read_ns.load(Ordering::Relaxed)) / 1_000_000_000
    }
}
