//! The counters of TLS for `stats`.
//!
//! Upstream:   the cores and the threads for handshakes count.
//! Downstream: `kachel` reads them.

use std::sync::atomic::AtomicU64;

/// Numbers since the start of the process.
#[derive(Debug, Default)]
pub struct Counts {
    /// Handshakes that have failed, those that took too long included.
    pub handshake_errors: AtomicU64,
    /// Connections that were closed because the client broke the protocol after its handshake.
    pub protocol_errors: AtomicU64,
    /// Sessions that were stored so that they can be resumed.
    pub new_sessions: AtomicU64,
}
