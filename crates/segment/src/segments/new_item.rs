//! The types with which the owner of a log describes an item to be stored.
//!
//! Upstream:   `cache` fills them in.
//! Downstream: `append` reads them.

use std::fmt;
use std::ops::Range;

use crate::layout::ItemAt;
use crate::limits::INLINE_VALUE_BYTES_MAX;
use crate::pool::Upload;

/// Why there is no segment for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSegment {
    /// Memory is full of items and blocks that may not be evicted.
    Refused,
    /// Memory was freed, but readers on other cores may still read it (*room on the way*). Or
    /// blocks of a large value that is gone remain, more than one request may free. Nothing was
    /// stored; the same call succeeds later.
    NotYet,
}

impl fmt::Display for NoSegment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Refused => "no room left for the item",
            Self::NotYet => "room for the item is on its way",
        })
    }
}

impl std::error::Error for NoSegment {}

/// An item to be stored.
#[derive(Debug)]
pub struct NewItem<'a> {
    /// The key, 1 to [`crate::KEY_BYTES_MAX`] bytes.
    pub key: &'a [u8],
    /// The key's secret hash, as [`crate::Index::hash`] would give it.
    pub hash: u64,
    /// The value.
    pub value: NewValue<'a>,
    /// The client's opaque 32 bits.
    pub client_flags: u32,
    /// Second in which the item dies; 0 for never.
    pub expiry: u32,
    /// The CAS token, if items carry tokens.
    pub cas: Option<u64>,
    /// Whether the item is stale from the start.
    pub stale: bool,
    /// Whether a client already has the right to refill the item.
    pub win_sent: bool,
    /// Whether the item is kept for leases only. Such an item has a token in any case.
    pub remnant: bool,
    /// One bit that the protocol keeps with the item.
    pub protocol_mark: bool,
    /// The item of the same key that this one replaces, so that the new item keeps its queue. This
    /// is only a hint: the caller must kill the old item, at the location that the index then has.
    pub replaces: Option<ItemAt>,
    /// Whether the caller will give the new item the accesses of `replaces`, which is then not
    /// dropped to make room. Otherwise the new item was never read.
    pub keeps_access: bool,
}

/// Where a new item's value comes from.
#[derive(Debug)]
pub enum NewValue<'a> {
    /// Bytes at hand.
    Bytes(&'a [u8]),
    /// Bytes at hand in two pieces.
    Joined(&'a [u8], &'a [u8]),
    /// A whole value that was uploaded. If the item is stored, it takes over the memory of the
    /// upload. Otherwise the upload keeps its memory.
    Upload(&'a mut Upload),
    /// A stored item's value with bytes added. Both may have any size.
    Extended {
        /// The stored item. The caller must still kill it, at the location that the index then has.
        old: ItemAt,
        /// The bytes that are added.
        added: Added<'a>,
        /// The side on which they are added.
        place: JoinPlace,
    },
    /// The value of a stored item, unchanged, for a new CAS token or new client flags. The blocks
    /// of a large value then belong to the new item. The caller must still kill the old item.
    Same(ItemAt),
}

/// The bytes that are added to a value; see [`NewValue::Extended`].
#[derive(Debug)]
pub enum Added<'a> {
    /// Bytes at hand.
    Bytes(&'a [u8]),
    /// Bytes that were uploaded, to be copied.
    Upload(&'a Upload),
}

impl Added<'_> {
    /// Bytes that are added.
    pub(crate) const fn total_bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Upload(upload) => upload.total_bytes(),
        }
    }

    /// The bytes, which are less than a block.
    pub(crate) fn inline(&self) -> &[u8] {
        debug_assert!(self.total_bytes() <= INLINE_VALUE_BYTES_MAX, "an item has room for them");
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Upload(upload) => upload.rest_bytes(),
        }
    }

    /// The bytes in this range, in pieces, none of them empty.
    pub(crate) fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        debug_assert!(range.end <= self.total_bytes(), "a part of what is added");
        let (bytes, upload) = match self {
            Self::Bytes(bytes) => (Some(*bytes), None),
            Self::Upload(upload) => (None, Some(upload.pieces())),
        };
        let mut start = 0;
        let part = move |piece: &'_ [u8]| {
            let at = start;
            start += piece.len();
            range.start.clamp(at, start) - at..range.end.clamp(at, start) - at
        };
        let all = bytes.into_iter().chain(upload.into_iter().flatten());
        all.scan(part, |part, piece| Some(&piece[part(piece)])).filter(|piece| !piece.is_empty())
    }
}

/// The side of a value on which bytes are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinPlace {
    /// Behind it (`append`).
    After,
    /// In front of it (`prepend`).
    Before,
}
