//! A block of a memory file: some items of one shard.
//!
//! Upstream:   `kachel` fills blocks and writes them, or reads them and restores their items.
//! Downstream: `head` for the hash.
//!
//! ```text
//! block:  head of 40 bytes | items
//!
//! byte 0         8        12      16          20   24             32                40
//!      +---------+--------+-------+-----------+----+--------------+-----------------+
//!      | file id | number | items | bytes of  | 0  | hash over    | hash over the   |
//!      |         |        |       | the items |    | the items    | 32 bytes before |
//!      +---------+--------+-------+-----------+----+--------------+-----------------+
//!
//! item:   key bytes:1 | marks:1 | access:4 | expiry:4 | value bytes:4 |
//!         CAS token:8 or 0 | client flags:4 or 0 | key | value
//! marks, low bits first:  stale, win sent, remnant, protocol mark, CAS token, client flags, main
//! ```
//!
//! Invariants:
//! - I1  The file ID and the number in the head say that the block belongs to this file, at this
//!   place.
//! - I2  Items are shown only if all items of the block are well formed.
//! - I3  A head that was read promises no more bytes than a block can have. Only a block of one
//!   item is longer than [`BLOCK_BYTES_MAX`].

use kachel_engine::KEY_BYTES_MAX;
use kachel_segment::{ItemValue, SavedItem};

use super::head::{ITEM_BYTES_LEAST, Unfit, hash, word_32, word_64};

/// Bytes of a block's head.
pub const BLOCK_HEAD_BYTES: usize = 40;

/// A block with this many bytes of items takes no more. A single item may be longer.
pub(crate) const BLOCK_FULL_BYTES: usize = 1 << 20;

/// Bytes of an item before its CAS token.
const FIXED_BYTES: usize = 14;

/// The most bytes of an item besides its value: CAS token, client flags and key.
const ITEM_HEAD_BYTES_MAX: usize = FIXED_BYTES + 8 + 4 + KEY_BYTES_MAX;

/// The most bytes of the items of a block that has several: the last one may reach beyond a full
/// block by all that it has besides its value.
pub const BLOCK_BYTES_MAX: usize = BLOCK_FULL_BYTES + ITEM_HEAD_BYTES_MAX;

/// The most bytes of an item: the largest `-I` is 1 GiB.
const LARGE_BYTES_MAX: usize = (1 << 30) + ITEM_HEAD_BYTES_MAX;

const _: () = assert!(ITEM_BYTES_LEAST == FIXED_BYTES as u64 + 1);

const STALE: u8 = 1;
const WIN_SENT: u8 = 1 << 1;
const REMNANT: u8 = 1 << 2;
const PROTOCOL_MARK: u8 = 1 << 3;
const HAS_CAS: u8 = 1 << 4;
const HAS_CLIENT_FLAGS: u8 = 1 << 5;
const MAIN: u8 = 1 << 6;
const UNKNOWN: u8 = 1 << 7;

/// A block that is being filled.
#[derive(Debug)]
pub struct BlockBuilder {
    /// Room for the head, then the items.
    bytes: Vec<u8>,
    items: u32,
}

impl Default for BlockBuilder {
    fn default() -> Self {
        let mut bytes = Vec::with_capacity(BLOCK_HEAD_BYTES + BLOCK_FULL_BYTES);
        bytes.resize(BLOCK_HEAD_BYTES, 0);
        Self { bytes, items: 0 }
    }
}

impl BlockBuilder {
    /// Whether there is no item.
    pub const fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Whether it takes no item with a value of this length, unless it is empty.
    pub const fn is_full_for(&self, value_bytes: usize) -> bool {
        self.bytes.len() + value_bytes > BLOCK_HEAD_BYTES + BLOCK_FULL_BYTES
    }

    /// Adds an item. Cost: a copy.
    ///
    /// Panics: if a key or a value is longer than an item of a cache can have.
    pub fn push(&mut self, item: &SavedItem<'_>, value: ItemValue<'_>) {
        debug_assert!(self.is_empty() || !self.is_full_for(value.bytes()), "the caller asks first");
        let marks = [
            (STALE, item.stale),
            (WIN_SENT, item.win_sent),
            (REMNANT, item.remnant),
            (PROTOCOL_MARK, item.protocol_mark),
            (HAS_CAS, item.cas.is_some()),
            (HAS_CLIENT_FLAGS, item.client_flags != 0),
            (MAIN, item.is_main),
        ];
        let marks = marks.iter().filter(|(_, wanted)| *wanted).fold(0, |sum, (mark, _)| sum | mark);
        let bytes = &mut self.bytes;
        bytes.push(u8::try_from(item.key.len()).expect("a key has at most 250 bytes"));
        bytes.push(marks);
        bytes.extend_from_slice(&item.access.to_le_bytes());
        bytes.extend_from_slice(&item.expiry.to_le_bytes());
        let value_bytes = u32::try_from(value.bytes()).expect("-I is at most 1 GiB");
        bytes.extend_from_slice(&value_bytes.to_le_bytes());
        if let Some(cas) = item.cas {
            bytes.extend_from_slice(&cas.to_le_bytes());
        }
        if item.client_flags != 0 {
            bytes.extend_from_slice(&item.client_flags.to_le_bytes());
        }
        bytes.extend_from_slice(item.key);
        value.parts().for_each(|part| bytes.extend_from_slice(part));
        self.items += 1;
    }

    /// The number of items.
    pub const fn items(&self) -> u32 {
        self.items
    }

    /// Completes the block as number `number` of the file (I1), and returns its bytes.
    ///
    /// Cost: a hash over all of it.
    pub fn seal(&mut self, file_id: u64, number: u32) -> &[u8] {
        assert!(!self.is_empty(), "a block has an item");
        let (head, items) = self.bytes.split_at_mut(BLOCK_HEAD_BYTES);
        let items_bytes = u32::try_from(items.len()).expect("the longest item is 1 GiB");
        debug_assert!(self.items == 1 || items.len() <= BLOCK_BYTES_MAX, "I3");
        head[..8].copy_from_slice(&file_id.to_le_bytes());
        head[8..12].copy_from_slice(&number.to_le_bytes());
        head[12..16].copy_from_slice(&self.items.to_le_bytes());
        head[16..20].copy_from_slice(&items_bytes.to_le_bytes());
        head[24..32].copy_from_slice(&hash(items).to_le_bytes());
        let head_hash = hash(&head[..32]);
        head[32..40].copy_from_slice(&head_hash.to_le_bytes());
        &self.bytes
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        self.bytes.truncate(BLOCK_HEAD_BYTES);
        self.items = 0;
    }
}

/// The head of a block that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// The number of items.
    pub items: u32,
    /// Bytes of the items, which follow the head.
    pub items_bytes: u32,
    items_hash: u64,
}

impl BlockHead {
    /// Reads the head of block `number` of a file (I1). Its numbers are in range (I3).
    ///
    /// Errors: it is damaged, the head of another block, or names more bytes than a block has.
    pub fn decode(
        bytes: &[u8; BLOCK_HEAD_BYTES],
        file_id: u64,
        number: u32,
    ) -> Result<Self, Unfit> {
        if hash(&bytes[..32]) != word_64(bytes, 32) {
            return Err(Unfit::Damaged);
        }
        let head = Self {
            items: word_32(bytes, 12),
            items_bytes: word_32(bytes, 16),
            items_hash: word_64(bytes, 24),
        };
        let is_here = word_64(bytes, 0) == file_id && word_32(bytes, 8) == number;
        let bytes_max = if head.items == 1 { LARGE_BYTES_MAX } else { BLOCK_BYTES_MAX };
        let bytes_least = u64::from(head.items) * ITEM_BYTES_LEAST;
        let is_possible = head.items > 0
            && (bytes_least..=bytes_max as u64).contains(&u64::from(head.items_bytes)); // I3
        if is_here && is_possible { Ok(head) } else { Err(Unfit::Range) }
    }

    /// The fewest bytes that the value of its item has, if it has only one; otherwise 0.
    pub(super) const fn value_bytes_least(&self) -> usize {
        debug_assert!(self.items > 0, "a block has an item");
        if self.items > 1 {
            return 0;
        }
        (self.items_bytes as usize).saturating_sub(ITEM_HEAD_BYTES_MAX)
    }

    /// Shows the items of the block, which are the bytes `items`, with their values.
    ///
    /// Errors: they are damaged, and none was shown (I2).
    pub fn show<'b>(
        &self,
        items: &'b [u8],
        mut show: impl FnMut(&SavedItem<'b>, &'b [u8]),
    ) -> Result<(), Unfit> {
        if hash(items) != self.items_hash {
            return Err(Unfit::Damaged);
        }
        let mut rest = items;
        for _ in 0..self.items {
            let (_, _, next) = split_item(rest).ok_or(Unfit::Range)?;
            rest = next;
        }
        if !rest.is_empty() {
            return Err(Unfit::Range);
        }
        rest = items;
        while let Some((item, value, next)) = split_item(rest) {
            show(&item, value);
            rest = next;
        }
        debug_assert!(rest.is_empty(), "I2");
        Ok(())
    }
}

/// The first item in `bytes`, its value, and the bytes that follow. `None` if it is not well
/// formed.
fn split_item(bytes: &[u8]) -> Option<(SavedItem<'_>, &[u8], &[u8])> {
    let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>()?;
    let (key_bytes, marks) = (usize::from(fixed[0]), fixed[1]);
    let has = |mark| marks & mark != 0;
    let (cas, rest) = match has(HAS_CAS) {
        true => rest.split_first_chunk().map(|(cas, rest)| (Some(u64::from_le_bytes(*cas)), rest)),
        false => Some((None, rest)),
    }?;
    let (client_flags, rest) = match has(HAS_CLIENT_FLAGS) {
        true => rest.split_first_chunk().map(|(flags, rest)| (u32::from_le_bytes(*flags), rest)),
        false => Some((0, rest)),
    }?;
    let (key, rest) = rest.split_at_checked(key_bytes)?;
    let (value, rest) = rest.split_at_checked(word_32(fixed, 10) as usize)?;
    // A lease is compared with the token of a remnant, so a remnant has one.
    let is_remnant_whole = !has(REMNANT) || cas.is_some() && has(STALE);
    if !(1..=KEY_BYTES_MAX).contains(&key_bytes) || has(UNKNOWN) || !is_remnant_whole {
        return None;
    }
    let item = SavedItem {
        key,
        client_flags,
        expiry: word_32(fixed, 6),
        cas,
        access: word_32(fixed, 2),
        stale: has(STALE),
        win_sent: has(WIN_SENT),
        remnant: has(REMNANT),
        protocol_mark: has(PROTOCOL_MARK),
        is_main: has(MAIN),
    };
    Some((item, value, rest))
}
