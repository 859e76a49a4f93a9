//! The hot keys of a core: the reads and the writes that were drawn.
//!
//! Upstream:   `Observers::note`, for each drawn request.
//! Downstream: `hottest`.

use crate::observers::Noted;
use crate::observers::summary::Summary;

/// The most bytes of memory that hot keys take for each core.
pub const HOT_KEYS_BYTES_PER_CORE: usize = 2 * Summary::BYTES;

/// The keys that a core has noted.
#[derive(Debug)]
pub(super) struct HotKeys {
    pub(super) reads: Summary,
    pub(super) writes: Summary,
}

impl HotKeys {
    /// No keys yet, at `now_ns` of the monotonic clock.
    pub(super) fn new(now_ns: u64) -> Self {
        Self { reads: Summary::new(now_ns), writes: Summary::new(now_ns) }
    }

    /// Forgets all keys, at `now_ns`.
    pub(super) fn begin_anew(&mut self, now_ns: u64) {
        self.reads.clear(now_ns);
        self.writes.clear(now_ns);
    }

    /// Notes a request. Cost: as [`Summary::add`].
    #[inline]
    pub(super) fn note(&mut self, noted: &Noted<'_>, now_ns: u64) {
        let summary = if noted.access.is_read() { &mut self.reads } else { &mut self.writes };
        summary.add(noted.secret_hash, noted.key, 1, noted.value_bytes as u64, now_ns);
    }
}
