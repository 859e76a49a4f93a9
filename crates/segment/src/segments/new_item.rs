//! The words in which the owner of a log describes an item to be stored.
//!
//! Upstream:   `cache` fills them in.
//! Downstream: `append` reads them.

use std::fmt;

use crate::layout::{Access, ItemAt};
use crate::pool::Upload;

/// No room for the item: memory is full of what may not be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentsFull;

impl fmt::Display for SegmentsFull {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no room left for the item")
    }
}

impl std::error::Error for SegmentsFull {}

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
    /// The CAS token, where tokens are kept.
    pub cas: Option<u64>,
    /// The item is stale from the start.
    pub stale: bool,
    /// The right to refill it was already given away.
    pub win_sent: bool,
    /// One bit that the protocol keeps with the item.
    pub protocol_mark: bool,
    /// The item of the same key that this one replaces, so that it keeps its queue. Only a hint:
    /// the caller kills it, at the place where the index then finds it.
    pub replaces: Option<ItemAt>,
    /// The access word to begin with; `None` for an item never read.
    pub access: Option<Access>,
}

/// Where a new item's value comes from.
#[derive(Debug)]
pub enum NewValue<'a> {
    /// Bytes at hand.
    Bytes(&'a [u8]),
    /// Bytes at hand in two pieces.
    Joined(&'a [u8], &'a [u8]),
    /// A whole value that was uploaded. Its memory goes over to the item when that is stored, and
    /// stays with the upload otherwise.
    Upload(&'a mut Upload),
    /// A stored item's value with something added, whatever their sizes.
    Extended {
        /// The stored item. It is still to be killed by the caller, where the index then finds it.
        old: ItemAt,
        /// What is added.
        added: Added<'a>,
        /// On which side.
        place: JoinPlace,
    },
    /// The value of a stored item, unchanged: for a new CAS token or new client flags. A large
    /// value keeps its blocks, which then belong to the new item; the old is still to be killed.
    Same(ItemAt),
}

/// What is added to a value; see [`NewValue::Extended`].
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
}

/// On which side of a value something is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinPlace {
    /// Behind it (`append`).
    After,
    /// In front of it (`prepend`).
    Before,
}
