//! How an item lies in a segment: its location, its header word, its access word.
//!
//! Upstream:   `item` reads and writes whole items by this layout; `pool` and `segments` use the
//!             locations.
//! Downstream: `arena` for the two words that change.
//!
//! ```text
//! byte 0                 8        12       12+c     12+c+f
//!      +-----------------+--------+--------+--------+-----+-----------+-------+---------+
//!      | header          | access | CAS    | client | key | extent    | value | padding |
//!      | (atomic)        |(atomic)| 0 4 8  | flags  |     | 0 or 8    |       | to 8    |
//!      |                 |        | bytes  | 0 or 4 |     |           |       |         |
//!      +-----------------+--------+--------+--------+-----+-----------+-------+---------+
//! header, low bits first:  expiry:32 | key bytes:8 | value bytes:14 | client flags:1 | CAS:1 |
//!                          long CAS:1 | stale:1 | win sent:1 | extent:1 | dead:1 |
//!                          extent given:1 | protocol mark:1 | remnant:1
//! access, low bits first:  fetched:1 | reads:2 | turns:2 | second of the last access:27
//! extent, low bits first:  extent:32 | blocks:18 | headroom:14; 'value' then holds what follows
//!                          the blocks (`pool::block`)
//! ```
//!
//! Invariants:
//! - I1  Everything but header and access is written once, before the item's location is handed
//!   out.
//! - I2  The header is stored by the owner alone; the access word by any reader, and only while
//!   fewer than three reads are counted. When the owner replaces an item by one that keeps its
//!   access word, it marks the old word as left. A reader that comes too late to note its read sees
//!   this mark, so no noted read is lost.
//! - I3  An item begins at a multiple of 8 and lies in one segment.
//! - I4  A short CAS is relative to the CAS base in its segment's head.
use std::sync::atomic::Ordering;

use crate::arena::Arena;
use crate::limits::{BLOCK_BYTES, INLINE_VALUE_BYTES_MAX, KEY_BYTES_MAX};

/// Bytes at the start of a segment: its generation, its CAS base.
pub(crate) const SEGMENT_HEAD_BYTES: usize = 16;

/// Bytes of header and access word.
pub(crate) const FIXED_BYTES: usize = 12;

/// Bytes of the description of a value's blocks.
pub(crate) const EXTENT_BYTES: usize = 8;

/// Bytes of the shortest item, whose key has one byte.
pub(crate) const ITEM_BYTES_MIN: usize = (FIXED_BYTES + 1).next_multiple_of(8);

/// Bytes of the longest item.
pub(crate) const ITEM_BYTES_MAX: usize =
    FIXED_BYTES + 8 + 4 + KEY_BYTES_MAX + EXTENT_BYTES + INLINE_VALUE_BYTES_MAX + 7;

const _: () = assert!(ITEM_BYTES_MAX + SEGMENT_HEAD_BYTES < crate::limits::SEGMENT_BYTES_MIN);

/// Where an item lies: its byte offset in the arena, divided by 8. Never 0, at most 44 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemAt(u64);

impl ItemAt {
    /// Bits that a location takes.
    pub const BITS: u32 = 44;

    /// The location that [`Self::get`] gave as a number.
    ///
    /// Panics (debug builds): when no item can lie there.
    #[inline]
    pub const fn new(word: u64) -> Self {
        debug_assert!(word != 0 && word >> Self::BITS == 0);
        Self(word)
    }

    /// The location as a number, for the index's slot.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn from_offset(offset: usize) -> Self {
        debug_assert!(offset.is_multiple_of(8));
        Self::new((offset / 8) as u64)
    }

    #[inline]
    pub(crate) const fn offset(self) -> usize {
        self.0 as usize * 8
    }
}

/// The 64-bit header word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header(u64);

pub(crate) const HAS_CLIENT_FLAGS: u64 = 1 << 54;
pub(crate) const HAS_CAS: u64 = 1 << 55;
pub(crate) const LONG_CAS: u64 = 1 << 56;
pub(crate) const STALE: u64 = 1 << 57;
pub(crate) const WIN_SENT: u64 = 1 << 58;
pub(crate) const EXTENT: u64 = 1 << 59;
const DEAD: u64 = 1 << 60;
/// The blocks belong to another item, which replaces this one.
pub(crate) const EXTENT_GIVEN: u64 = 1 << 61;
/// One bit that the protocol keeps with the item.
pub(crate) const PROTOCOL_MARK: u64 = 1 << 62;
/// The item is kept for leases only. It is the sign bit, which is the cheapest to test.
pub(crate) const REMNANT: u64 = 1 << 63;

impl Header {
    #[inline]
    pub(crate) fn load(arena: &Arena, at: ItemAt) -> Self {
        arena.audit.header(at.offset());
        Self(arena.word(at.offset()).load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn store(self, arena: &Arena, at: ItemAt) {
        arena.word(at.offset()).store(self.0, Ordering::Release);
    }

    #[inline]
    pub(crate) const fn expiry(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    pub(crate) const fn key_bytes(self) -> usize {
        (self.0 >> 32) as usize & KEY_BYTES_MAX
    }

    #[inline]
    pub(crate) const fn inline_bytes(self) -> usize {
        (self.0 >> 40) as usize & INLINE_VALUE_BYTES_MAX
    }

    #[inline]
    pub(crate) const fn has(self, mark: u64) -> bool {
        self.0 & mark != 0
    }

    #[inline]
    pub(crate) const fn cas_bytes(self) -> usize {
        if !self.has(HAS_CAS) {
            0
        } else if self.has(LONG_CAS) {
            8
        } else {
            4
        }
    }

    #[inline]
    pub(crate) const fn client_flags_bytes(self) -> usize {
        if self.has(HAS_CLIENT_FLAGS) { 4 } else { 0 }
    }

    #[inline]
    pub(crate) const fn has_extent(self) -> bool {
        self.has(EXTENT)
    }

    #[inline]
    const fn extent_bytes(self) -> usize {
        if self.has_extent() { EXTENT_BYTES } else { 0 }
    }

    #[inline]
    pub(crate) const fn key_start(self) -> usize {
        FIXED_BYTES + self.cas_bytes() + self.client_flags_bytes()
    }

    #[inline]
    pub(crate) const fn inline_start(self) -> usize {
        self.key_start() + self.key_bytes() + self.extent_bytes()
    }

    /// Whether an item with this header lies as one with `other`: only marks and expiry differ.
    pub(crate) const fn has_lengths_of(self, other: Self) -> bool {
        let marks = STALE | WIN_SENT | DEAD | EXTENT_GIVEN | PROTOCOL_MARK | u32::MAX as u64;
        (self.0 ^ other.0) & !marks == 0
    }

    /// Bytes of the whole item, padding included.
    #[inline]
    pub(crate) const fn item_bytes(self) -> usize {
        (self.inline_start() + self.inline_bytes()).next_multiple_of(8)
    }

    #[inline]
    pub(crate) const fn is_dead(self) -> bool {
        self.has(DEAD)
    }

    #[inline]
    pub(crate) const fn is_expired(self, now: u32) -> bool {
        self.expiry() != 0 && self.expiry() <= now
    }

    /// The header of a dead item that fills up to `bytes` bytes, as many as an item can have.
    pub(crate) fn of_padding(bytes: usize) -> Self {
        const KEY_BYTES: usize = 1;
        debug_assert!(bytes >= ITEM_BYTES_MIN && bytes.is_multiple_of(8), "I3");
        let inline_bytes = (bytes - FIXED_BYTES - KEY_BYTES).min(INLINE_VALUE_BYTES_MAX);
        let padding = Self::of_key(KEY_BYTES).with_inline_bytes(inline_bytes).with_dead();
        debug_assert!(padding.item_bytes() <= bytes.next_multiple_of(8), "it ends there");
        padding
    }

    /// The header of an item with a key of this length, and nothing else yet.
    pub(crate) const fn of_key(key_bytes: usize) -> Self {
        debug_assert!(key_bytes <= KEY_BYTES_MAX, "a key's length takes eight bits");
        Self((key_bytes as u64) << 32)
    }

    /// The header with the length of the value's inline part, which it did not have yet.
    pub(crate) const fn with_inline_bytes(self, bytes: usize) -> Self {
        debug_assert!(bytes <= INLINE_VALUE_BYTES_MAX && self.inline_bytes() == 0);
        Self(self.0 | (bytes as u64) << 40)
    }

    pub(crate) const fn marked(self, mark: u64, wanted: bool) -> Self {
        Self(self.0 & !mark | if wanted { mark } else { 0 })
    }

    pub(crate) const fn with_dead(self) -> Self {
        Self(self.0 | DEAD)
    }

    pub(crate) const fn with_extent_given(self) -> Self {
        Self(self.0 | EXTENT_GIVEN)
    }

    /// The header of an item that is kept for leases only, if `wanted`.
    pub(crate) const fn with_remnant(self, wanted: bool) -> Self {
        Self(self.0 | (wanted as u64) << REMNANT.trailing_zeros())
    }

    pub(crate) const fn with_win_sent(self) -> Self {
        Self(self.0 | WIN_SENT)
    }

    pub(crate) const fn with_expiry(self, expiry: u32) -> Self {
        Self(self.0 >> 32 << 32 | expiry as u64)
    }
}

/// Bytes that an item takes whose key and value have these lengths, for models of eviction: in its
/// segment, and in blocks if the value is large. The item has a short CAS token and no client
/// flags.
pub const fn memory_bytes_of(key_bytes: usize, value_bytes: usize) -> usize {
    let is_large = value_bytes > INLINE_VALUE_BYTES_MAX;
    let block_bytes = if is_large { value_bytes / BLOCK_BYTES * BLOCK_BYTES } else { 0 };
    let header = Header::of_key(key_bytes)
        .with_inline_bytes(value_bytes - block_bytes)
        .marked(HAS_CAS, true)
        .marked(EXTENT, is_large);
    header.item_bytes() + block_bytes
}

/// The 32-bit access word: whether and when an item was read, and what eviction owes it.
///
/// *Reads* counts the first three reads; later ones write nothing. Eviction sets it to 0 each time
/// that it examines the item. *Turns* is how often eviction may still find the item unread and keep
/// it. *Fetched* stays set until the item is replaced. The second has 27 bits, so after four years
/// of uptime the last access appears four years too early.
///
/// A word that was left (I2) has three reads and is not fetched, which no other word has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    const FETCHED: u32 = 1;
    const READS_SHIFT: u32 = 1;
    const TURNS_SHIFT: u32 = 3;
    const SECOND_SHIFT: u32 = 5;
    const TURNS_MASK: u32 = Self::TURNS_MAX << Self::TURNS_SHIFT;

    /// The most reads that are counted.
    pub const READS_MAX: u32 = 3;
    /// The most turns that an item can be owed.
    pub const TURNS_MAX: u32 = 3;

    /// The word of an item that was stored in second `now` and never read.
    #[inline]
    pub const fn unread(now: u32) -> Self {
        Self(now << Self::SECOND_SHIFT)
    }

    /// The word of an item with these counts, of an unknown second, for models of eviction.
    #[inline]
    pub const fn of(reads: u32, turns: u32) -> Self {
        debug_assert!(reads <= Self::READS_MAX && turns <= Self::TURNS_MAX);
        Self((reads > 0) as u32 | reads << Self::READS_SHIFT | turns << Self::TURNS_SHIFT)
    }

    /// Whether the item was read since it was stored.
    #[inline]
    pub const fn fetched(self) -> bool {
        self.0 & Self::FETCHED != 0
    }

    /// How often the item was read since eviction last examined it, up to [`Self::READS_MAX`].
    #[inline]
    pub(crate) const fn reads(self) -> u32 {
        self.0 >> Self::READS_SHIFT & Self::READS_MAX
    }

    /// How often eviction may find the item unread and keep it.
    #[inline]
    pub(crate) const fn turns(self) -> u32 {
        self.0 >> Self::TURNS_SHIFT & Self::TURNS_MAX
    }

    /// Whether the item was read at least twice since eviction last examined it.
    #[inline]
    pub const fn active(self) -> bool {
        self.reads() >= 2
    }

    /// Second in which the item was stored or last read while reads were counted.
    #[inline]
    pub const fn last_access(self) -> u32 {
        self.0 >> Self::SECOND_SHIFT
    }

    /// The word after one more read in second `now`; fewer than [`Self::READS_MAX`] were counted.
    #[inline]
    pub(crate) const fn read(self, now: u32) -> Self {
        debug_assert!(self.reads() < Self::READS_MAX);
        let reads = (self.reads() + 1) << Self::READS_SHIFT;
        Self(now << Self::SECOND_SHIFT | self.0 & Self::TURNS_MASK | reads | Self::FETCHED)
    }

    /// This word, marked as left (I2).
    const fn left(self) -> Self {
        Self(self.0 & !Self::FETCHED | Self::READS_MAX << Self::READS_SHIFT)
    }

    /// The word as a number, for [`Self::from_saved`].
    pub const fn to_saved(self) -> u32 {
        self.0
    }

    /// The word that [`Self::to_saved`] gave as a number. No number gives a word that was left,
    /// because an item of the index never has one (I2).
    pub const fn from_saved(word: u32) -> Self {
        let access = Self(word);
        if access.is_left() { Self(word | Self::FETCHED) } else { access }
    }

    const fn is_left(self) -> bool {
        !self.fetched() && self.reads() == Self::READS_MAX
    }

    /// The word of an item that eviction keeps and owes this number of turns.
    pub(crate) const fn kept(self, turns: u32) -> Self {
        debug_assert!(turns <= Self::TURNS_MAX);
        let others = self.0 & !(Self::TURNS_MASK | Self::READS_MAX << Self::READS_SHIFT);
        Self(others | turns << Self::TURNS_SHIFT)
    }

    #[inline]
    pub(crate) fn load(arena: &Arena, at: ItemAt) -> Self {
        Self(arena.half_word(at.offset() + 8).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn store(self, arena: &Arena, at: ItemAt) {
        arena.half_word(at.offset() + 8).store(self.0, Ordering::Relaxed);
    }

    /// Any core: notes that the item at `at` was read in second `now`. Writes nothing once three
    /// reads are counted (I2). Returns `false` if the word was left: then nothing was noted, and
    /// the caller must look for the item again.
    ///
    /// Cost: a load; for an item's first three reads also a compare-and-swap, which is repeated if
    /// another core changed the word at the same time.
    #[inline]
    #[must_use]
    pub(crate) fn note(arena: &Arena, at: ItemAt, now: u32) -> bool {
        let word = arena.half_word(at.offset() + 8);
        let mut there = Self(word.load(Ordering::Relaxed));
        while there.reads() < Self::READS_MAX {
            let order = Ordering::Relaxed;
            match word.compare_exchange(there.0, there.read(now).0, order, order) {
                Ok(_) => return true,
                Err(other) => there = Self(other), // Another core counted a read.
            }
        }
        !there.is_left()
    }

    /// The owner: takes the word of the item at `at`, and marks it as left if readers may still
    /// change it (I2). The caller gives the word to another item of the same key, before it hands
    /// out that item's location.
    ///
    /// Cost: a load; if fewer than three reads were counted also a compare-and-swap.
    pub(crate) fn take(arena: &Arena, at: ItemAt) -> Self {
        let word = arena.half_word(at.offset() + 8);
        let mut there = Self(word.load(Ordering::Relaxed));
        debug_assert!(!there.is_left(), "I2: the word of an item is taken once");
        while there.reads() < Self::READS_MAX {
            let order = Ordering::Relaxed;
            match word.compare_exchange(there.0, there.left().0, order, order) {
                Ok(_) => break,
                Err(other) => there = Self(other), // A reader counted a read.
            }
        }
        there
    }
}
