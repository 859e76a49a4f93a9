//! Large values that are being received or sent, as the engine contract requires.
//!
//! Upstream:   `shard` receives into [`CacheUpload`] and sends from [`CachePinned`].
//! Downstream: the uploads and pinned values of `segment`.

use kachel_engine::{NoRoom, ReadValue, ReceiveValue};
use kachel_segment::{NoMemory, Pinned, Upload};
use kachel_stdx::{Held, Landing};

/// A large value that is received piece by piece into blocks of the pool. If it is dropped, its
/// blocks are freed.
#[derive(Debug)]
pub struct CacheUpload(pub(crate) Upload);

/// A large value that stays readable as long as this handle exists. Its memory is in use for that
/// time.
#[derive(Debug)]
pub struct CachePinned(pub(crate) Pinned);

impl CacheUpload {
    /// Bytes of the whole value, as announced.
    pub const fn total_bytes(&self) -> usize {
        self.0.total_bytes()
    }
}

impl ReceiveValue for CacheUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        self.0.write(bytes).map_err(|NoMemory| NoRoom)
    }

    fn landing_bytes(&self, blocks_max: usize) -> usize {
        self.0.landing_bytes(blocks_max)
    }

    fn landing(&mut self, landing: &mut Landing, blocks_max: usize) -> Result<(), NoRoom> {
        self.0.landing(landing, blocks_max).map_err(|NoMemory| NoRoom)
    }

    fn landed(&mut self, landing: &mut Landing, bytes: usize) -> usize {
        self.0.landed(landing, bytes)
    }
}

impl ReadValue for CachePinned {
    #[inline]
    fn total_bytes(&self) -> usize {
        self.0.total_bytes()
    }

    fn piece_at(&self, offset: usize) -> &[u8] {
        self.0.piece_at(offset)
    }

    fn hold_at(&self, offset: usize) -> Held {
        self.0.hold_at(offset)
    }
}
