//! The changes of a database, as a batch writes them.
//!
//! Upstream:   `pending` collects them in the order in which operations were executed.
//! Downstream: `database` adds them to a batch of RocksDB's.

use std::sync::Arc;

use kachel_engine::HeapValue;

use crate::record::{HEADER_BYTES, Note};

/// A change. Its key is shared with what the engine knows about the key.
#[derive(Debug)]
pub(crate) enum Change {
    /// An item is stored.
    Put {
        /// Its key.
        key: Arc<[u8]>,
        /// The bytes before its value.
        header: [u8; HEADER_BYTES],
        /// Its value.
        value: HeapValue,
    },
    /// An item is removed.
    Delete {
        /// Its key.
        key: Arc<[u8]>,
    },
    /// All items from a key on are removed, up to another one, which stays.
    DeleteRange {
        /// The first key.
        from: Box<[u8]>,
        /// The key behind the last one. `None` if all keys behind the first one go.
        to: Option<Box<[u8]>>,
    },
    /// The engine notes something about itself.
    Note(Note),
}
