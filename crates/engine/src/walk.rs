//! Walks over all items of an engine, in bounded steps: where a step begins, and how it has ended.
//!
//! Upstream:   a listing or the crawler of `shard`, which holds the cursor between two steps.
//! Downstream: the engine, which holds nothing for a walk between two steps.

use std::fmt;

use crate::key::KEY_BYTES_MAX;
use crate::operation::Ticket;

/// The position of a walk over all items ([`crate::Engine::walk`]). A walk begins at
/// [`Self::default`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

impl Cursor {
    /// Makes a cursor of a number that [`Self::to_u64`] returned.
    #[must_use]
    pub const fn from_u64(word: u64) -> Self {
        debug_assert!(word >> 63 == 0, "the highest bit of a cursor is never set");
        Self(word)
    }

    /// The cursor as a number. The highest bit is never set.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }
}

/// The result of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkStep {
    /// The number of items that were examined, dead items included.
    pub items: usize,
    /// How the walk goes on.
    pub next: WalkNext,
}

impl WalkStep {
    /// A step that has examined this number of items in memory. `more`: whether the walk must go
    /// on, because there may be more items.
    #[must_use]
    pub const fn in_memory(items: usize, more: bool) -> Self {
        Self { items, next: if more { WalkNext::More } else { WalkNext::End } }
    }
}

/// How a walk goes on after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalkNext {
    /// It is over: all items were examined.
    #[default]
    End,
    /// There may be more items.
    More,
    /// The next items must be read from a disk. A step finds them at the earliest when the engine
    /// has completed another operation on a file ([`crate::Engine::complete`]).
    Later,
    /// It is over although there may be more items: the disk could not read them, or the engine
    /// does not know any more where the walk was.
    Failed,
}

/// The result of one step of a walk that reclaims space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrawlStep {
    /// The items that were examined.
    pub walked: WalkStep,
    /// The number of items whose space was reclaimed.
    pub reclaimed: usize,
}

/// The position of a scan ([`crate::Extensions::scan`]): the last key that it has passed. So an
/// engine holds nothing for a scan between two steps, and a client may leave at any time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ScanCursor {
    bytes: [u8; KEY_BYTES_MAX],
    length: u8,
}

impl ScanCursor {
    /// Before the first key.
    pub const START: Self = Self { bytes: [0; KEY_BYTES_MAX], length: 0 };

    /// Behind `key`.
    ///
    /// Panics: if it is longer than a key.
    #[must_use]
    pub fn after(key: &[u8]) -> Self {
        let mut cursor = Self::START;
        cursor.bytes[..key.len()].copy_from_slice(key);
        cursor.length = u8::try_from(key.len()).expect("key, I1");
        cursor
    }

    /// The last key that was passed. It is empty before the first one.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Debug for ScanCursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ScanCursor(\"{}\")", self.key().escape_ascii())
    }
}

/// How a step of a scan has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ScanStep {
    /// The engine keeps its items in no order. Nothing was shown.
    Unordered,
    /// There is no item behind the cursor.
    End,
    /// There may be more items behind the cursor.
    More,
    /// The value of the next item must be fetched. The scan goes on behind the cursor, with this
    /// ticket, when the ticket is ready.
    Later(Ticket),
}
