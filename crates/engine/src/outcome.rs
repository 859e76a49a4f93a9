//! The answers of an engine.
//!
//! Upstream:   `apply`.
//! Downstream: `wire` formats an outcome for the client's protocol; `shard` counts it.

use crate::item::Facts;

/// The result of an operation.
#[derive(Debug)]
pub struct Outcome<'e, P> {
    /// What happened.
    pub verdict: Verdict,
    /// The value, if the operation wanted it and an item was found.
    pub value: Value<'e, P>,
}

/// The value of the item that was found.
#[derive(Debug)]
pub enum Value<'e, P> {
    /// No value was wanted, or there is none.
    None,
    /// A value of at most the bytes that the operation allowed, lent by the engine.
    Inline(&'e [u8]),
    /// A longer value: a handle that is read later, piece by piece.
    Pinned {
        /// The handle.
        pinned: P,
        /// Bytes of the value.
        bytes: usize,
    },
}

impl<P> Value<'_, P> {
    /// Bytes of the value, if there is one.
    #[inline]
    pub const fn bytes(&self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Inline(value) => Some(value.len()),
            Self::Pinned { bytes, .. } => {
                debug_assert!(*bytes > 0, "an empty value is lent");
                Some(*bytes)
            }
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No item is there.
    Miss,
    /// An item is there, or was created by this operation.
    Hit(Facts),
    /// No fresh item is there. The value of the outcome is the stale one, if there is one.
    Leased {
        /// The token with which the client may store a value. `None` while another client has the
        /// lease.
        token: Option<u64>,
        /// The client flags of the stale value.
        client_flags: u32,
    },
    /// Stored.
    Stored {
        /// The CAS token of the item; 0 if items have no tokens.
        cas: u64,
        /// Bytes of the value. After appending, those of the whole value.
        value_bytes: usize,
    },
    /// The client's lease was invalid. Its value was stored as a stale one, for leases only.
    StaleStored,
    /// The mode's condition does not hold, or there is no memory for a value to be appended.
    NotStored,
    /// The item has another CAS token.
    Exists,
    /// Removed.
    Deleted,
    /// A delete left an empty or a stale item in place of the item.
    Invalidated,
    /// The expiry was changed.
    Touched,
    /// A number was changed, or created.
    Number {
        /// The number now.
        number: u64,
        /// The facts that the operation wanted, of `cas`, `value_bytes` and the item's life.
        facts: Facts,
    },
    /// The value is not a number.
    NonNumeric,
    /// All that is known about the item, for debugging.
    Inspected(Inspection),
    /// There is no memory for the change. The old item keeps its value, unless it was evicted to
    /// make room or [`crate::Put::removes_when_refused`] is set.
    NoMemory {
        /// Whether an item was there.
        found: bool,
    },
    /// The disk cannot read what the operation needs, or takes no change any more. Nothing was
    /// changed.
    DiskFailed,
}

impl Verdict {
    /// Sets the CAS token that the item got.
    #[inline]
    pub(crate) fn set_cas(&mut self, cas: u64) {
        match self {
            Self::Stored { cas: token, .. } => *token = cas,
            Self::Hit(facts) | Self::Number { facts, .. } => facts.cas = cas,
            _ => {}
        }
    }
}

/// All that is known about an item, for debugging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Seconds of life left; `None` when the item never expires.
    pub ttl: Option<i64>,
    /// Seconds since the last access.
    pub since_access_s: u32,
    /// The CAS token.
    pub cas: u64,
    /// Whether the item was ever fetched.
    pub fetched: bool,
    /// Bytes of memory that the item takes.
    pub item_bytes: usize,
    /// The protocol's mark.
    pub protocol_mark: bool,
}
