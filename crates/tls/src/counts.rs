//! The counters of TLS for `stats`.
//!
//! Upstream:   the cores and the threads for handshakes count.
//! Downstream: `kachel` reads them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers since the start of the process.
#[derive(Debug, Default)]
pub struct Counts {
    /// Handshakes that have failed, those that took too long included.
    pub handshake_errors: AtomicU64,
    /// Connections that were closed because the client broke the protocol after its handshake.
    pub protocol_errors: AtomicU64,
    /// Sessions that were stored so that they can be resumed.
    pub new_sessions: AtomicU64,
    /// Bytes of memory for records and messages that are not whole, of all sessions together. It is
    /// the only number here that falls.
    pub kept_bytes: AtomicU64,
}

/// The bytes that one session adds to [`Counts::kept_bytes`], until it is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    counts: Arc<Counts>,
    bytes: usize,
}

impl Kept {
    pub(crate) const fn nothing(counts: Arc<Counts>) -> Self {
        Self { counts, bytes: 0 }
    }

    /// Notes how many bytes the session keeps now. Cost: nothing if the number has not changed.
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            // Wrapping, so that one addition does for a fall as well.
            let change = (bytes as u64).wrapping_sub(self.bytes as u64);
            self.counts.kept_bytes.fetch_add(change, Ordering::Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.set(0);
    }
}
