//! An item as it lies in a segment, and how it is read.
//!
//! Upstream:   `cache` reads items that its index names; `segments` writes them.
//! Downstream: `arena` for bytes, `pool` for the blocks of a large value.
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
//!                          extent given:1 | base64 key:1 | 0:1
//! access, low bits first:  fetched:1 | reads:2 | turns:2 | second of the last access:27
//! extent, low bits first:  extent:32 | blocks:32; 'value' then holds what follows the whole blocks
//! ```
//!
//! Invariants:
//! - I1  Everything but header and access is written once, before the item's location is handed
//!   out.
//! - I2  The header is stored by the owner alone; the access word by any reader, and only while
//!   fewer than three reads are counted.
//! - I3  An item begins at a multiple of 8 and lies in one segment.
//! - I4  A short CAS is relative to the CAS base in its segment's head.

use std::sync::atomic::Ordering;

use crate::arena::Arena;
use crate::pool::{ExtentId, Pool};
use crate::{BLOCK_BYTES, INLINE_VALUE_BYTES_MAX, KEY_BYTES_MAX};

/// Bytes at the start of a segment: its generation, its CAS base.
pub(crate) const SEGMENT_HEAD_BYTES: usize = 16;

/// Bytes of header and access word.
const FIXED_BYTES: usize = 12;

/// Bytes of the description of a value's blocks.
const EXTENT_BYTES: usize = 8;

/// Bytes of the longest item.
pub(crate) const ITEM_BYTES_MAX: usize =
    FIXED_BYTES + 8 + 4 + KEY_BYTES_MAX + EXTENT_BYTES + INLINE_VALUE_BYTES_MAX + 7;

const _: () = assert!(ITEM_BYTES_MAX + SEGMENT_HEAD_BYTES < crate::SEGMENT_BYTES_MIN);

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

const HAS_CLIENT_FLAGS: u64 = 1 << 54;
const HAS_CAS: u64 = 1 << 55;
const LONG_CAS: u64 = 1 << 56;
const STALE: u64 = 1 << 57;
const WIN_SENT: u64 = 1 << 58;
const EXTENT: u64 = 1 << 59;
const DEAD: u64 = 1 << 60;
/// The blocks belong to another item, which replaces this one.
const EXTENT_GIVEN: u64 = 1 << 61;
/// Replies show the key in base64: so was it worded by the request that stored the item.
const BASE64_KEY: u64 = 1 << 62;

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
    const fn has(self, mark: u64) -> bool {
        self.0 & mark != 0
    }

    #[inline]
    const fn cas_bytes(self) -> usize {
        if !self.has(HAS_CAS) {
            0
        } else if self.has(LONG_CAS) {
            8
        } else {
            4
        }
    }

    #[inline]
    const fn client_flags_bytes(self) -> usize {
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
    const fn key_start(self) -> usize {
        FIXED_BYTES + self.cas_bytes() + self.client_flags_bytes()
    }

    #[inline]
    const fn inline_start(self) -> usize {
        self.key_start() + self.key_bytes() + self.extent_bytes()
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

    const fn marked(self, mark: u64, wanted: bool) -> Self {
        Self(self.0 & !mark | if wanted { mark } else { 0 })
    }

    pub(crate) const fn with_dead(self) -> Self {
        Self(self.0 | DEAD)
    }

    pub(crate) const fn with_extent_given(self) -> Self {
        Self(self.0 | EXTENT_GIVEN)
    }

    pub(crate) const fn with_win_sent(self) -> Self {
        Self(self.0 | WIN_SENT)
    }

    pub(crate) const fn with_expiry(self, expiry: u32) -> Self {
        Self(self.0 >> 32 << 32 | expiry as u64)
    }
}

/// The 32-bit access word: whether and when an item was read, and what eviction owes it.
///
/// *Reads* are counted up to three, and written no more after that; eviction begins them anew each
/// time that it looks. *Turns* are how often it may still find the item unread and keep it.
/// *Fetched* stays until the item is replaced. The seconds of four years of uptime fit; then the
/// last access is too early by as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    const FETCHED: u32 = 1;
    const READS_SHIFT: u32 = 1;
    const TURNS_SHIFT: u32 = 3;
    const SECOND_SHIFT: u32 = 5;
    const TURNS_MASK: u32 = Self::TURNS_MAX << Self::TURNS_SHIFT;

    /// Reads that are counted.
    pub(crate) const READS_MAX: u32 = 3;
    /// Turns that an item can be owed.
    pub(crate) const TURNS_MAX: u32 = 3;

    /// Of an item never read, stored in second `now`.
    #[inline]
    pub const fn unread(now: u32) -> Self {
        Self(now << Self::SECOND_SHIFT)
    }

    /// Whether the item was read since it was stored.
    #[inline]
    pub const fn fetched(self) -> bool {
        self.0 & Self::FETCHED != 0
    }

    /// How often the item was read since eviction last looked at it, up to [`Self::READS_MAX`].
    #[inline]
    pub(crate) const fn reads(self) -> u32 {
        self.0 >> Self::READS_SHIFT & Self::READS_MAX
    }

    /// How often eviction may find the item unread and keep it.
    #[inline]
    pub(crate) const fn turns(self) -> u32 {
        self.0 >> Self::TURNS_SHIFT & Self::TURNS_MAX
    }

    /// Whether the item was read at least twice since eviction last looked at it.
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

    /// The word of an item that eviction keeps and owes so many turns.
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

    /// Any core: the item at `at` was read in second `now`. Writes nothing once three reads are
    /// counted (I2).
    ///
    /// Cost: a load; for an item's first three reads a compare and swap, which another core's at
    /// the same time may have to repeat.
    #[inline]
    pub(crate) fn note(arena: &Arena, at: ItemAt, now: u32) {
        let word = arena.half_word(at.offset() + 8);
        let mut there = Self(word.load(Ordering::Relaxed));
        while there.reads() < Self::READS_MAX {
            let order = Ordering::Relaxed;
            match word.compare_exchange(there.0, there.read(now).0, order, order) {
                Ok(_) => return,
                Err(other) => there = Self(other), // One read more: after three it is enough.
            }
        }
    }
}

/// What is written of an item, wherever it will lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    /// The header, but for the length of the CAS token.
    header: Header,
    access: Access,
    cas: u64,
    client_flags: u32,
    extent: Option<ExtentId>,
    body: Body<'a>,
}

/// What follows access word and CAS token.
#[derive(Clone, Copy, Debug)]
enum Body<'a> {
    /// Key and value in pieces; client flags and extent are worded from their fields.
    Pieces { key: &'a [u8], inline: [&'a [u8]; 2] },
    /// All of it, as it lies in the item that is copied.
    Copied(&'a [u8]),
}

impl<'a> Draft<'a> {
    /// An item without a value.
    pub(crate) fn new(key: &'a [u8], cas: Option<u64>, client_flags: u32, access: Access) -> Self {
        debug_assert!(key.len() <= KEY_BYTES_MAX);
        let header = Header((key.len() as u64) << 32)
            .marked(HAS_CLIENT_FLAGS, client_flags != 0)
            .marked(HAS_CAS, cas.is_some());
        let body = Body::Pieces { key, inline: [&[], &[]] };
        Self { header, access, cas: cas.unwrap_or(0), client_flags, extent: None, body }
    }

    /// The same with an expiry and the marks of a lease.
    pub(crate) fn with_life(self, expiry: u32, stale: bool, win_sent: bool) -> Self {
        let header = self.header.with_expiry(expiry);
        Self { header: header.marked(STALE, stale).marked(WIN_SENT, win_sent), ..self }
    }

    /// The same with a key that replies show in base64, or not.
    pub(crate) fn with_base64_key(self, wanted: bool) -> Self {
        Self { header: self.header.marked(BASE64_KEY, wanted), ..self }
    }

    /// The same with this value; its inline part comes in up to two pieces.
    pub(crate) fn with_value<'b>(self, extent: Option<ExtentId>, inline: [&'b [u8]; 2]) -> Draft<'b>
    where
        'a: 'b,
    {
        let Body::Pieces { key, .. } = self.body else { unreachable!("a copy has its value") };
        let inline_bytes = inline[0].len() + inline[1].len();
        debug_assert!(inline_bytes <= INLINE_VALUE_BYTES_MAX && self.header.inline_bytes() == 0);
        let header = Header(self.header.0 | (inline_bytes as u64) << 40);
        let header = header.marked(EXTENT, extent.is_some());
        Draft { header, extent, body: Body::Pieces { key, inline }, ..self }
    }

    pub(crate) const fn with_access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    pub(crate) const fn access(&self) -> Access {
        self.access
    }

    pub(crate) const fn expiry(&self) -> u32 {
        self.header.expiry()
    }

    pub(crate) const fn cas(&self) -> u64 {
        self.cas
    }

    pub(crate) fn blocks(&self) -> usize {
        self.extent.map_or(0, |extent| extent.blocks as usize)
    }

    /// The header that the item has in a segment with this CAS base.
    #[inline]
    pub(crate) fn header(&self, cas_base: u64) -> Header {
        let is_long = self.header.has(HAS_CAS) && short_cas(self.cas, cas_base).is_none();
        self.header.marked(LONG_CAS, is_long)
    }

    /// Writes the item at `at`, where room for `header.item_bytes()` is; the header last.
    pub(crate) fn write(&self, arena: &Arena, at: ItemAt, header: Header, cas_base: u64) {
        let cas_start = at.offset() + FIXED_BYTES;
        match header.cas_bytes() {
            0 => {}
            4 => {
                let short = self.cas.wrapping_sub(cas_base) as u32;
                arena.write(cas_start, &short.to_le_bytes());
            }
            _ => arena.write(cas_start, &self.cas.to_le_bytes()),
        }
        let body_start = cas_start + header.cas_bytes();
        match self.body {
            Body::Copied(body) => arena.write(body_start, body),
            Body::Pieces { key, inline } => {
                if self.client_flags != 0 {
                    arena.write(body_start, &self.client_flags.to_le_bytes());
                }
                let key_start = at.offset() + header.key_start();
                arena.write(key_start, key);
                if let Some(extent) = self.extent {
                    let word = u64::from(extent.id) | u64::from(extent.blocks) << 32;
                    arena.write(key_start + key.len(), &word.to_le_bytes());
                }
                let inline_start = at.offset() + header.inline_start();
                arena.write(inline_start, inline[0]);
                arena.write(inline_start + inline[0].len(), inline[1]);
            }
        }
        self.access.store(arena, at);
        header.store(arena, at);
    }
}

/// The CAS token relative to its segment's base, when that takes four bytes (I4).
fn short_cas(cas: u64, base: u64) -> Option<u32> {
    u32::try_from(cas.wrapping_sub(base)).ok()
}

/// One item, read in place. Whoever holds it holds the owner's `&Segments`, so it cannot move, or a
/// reader whose round is not over, so its segment is not used again.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    pool: &'a Pool,
    at: ItemAt,
    header: Header,
}

impl<'a> Item<'a> {
    #[inline]
    pub(crate) fn load(pool: &'a Pool, at: ItemAt) -> Self {
        Self { pool, at, header: Header::load(&pool.arena, at) }
    }

    #[inline]
    fn field(&self, start: usize, length: usize) -> &'a [u8] {
        self.pool.arena.bytes(self.at.offset() + start, length)
    }

    fn word_32(&self, start: usize) -> u32 {
        let bytes = self.field(start, 4);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    fn word_64(&self, start: usize) -> u64 {
        u64::from(self.word_32(start)) | u64::from(self.word_32(start + 4)) << 32
    }

    /// Where the item lies.
    #[inline]
    pub const fn at(&self) -> ItemAt {
        self.at
    }

    #[inline]
    pub(crate) const fn header(&self) -> Header {
        self.header
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        self.field(self.header.key_start(), self.header.key_bytes())
    }

    /// The value, wherever its bytes lie.
    #[inline]
    pub fn value(&self) -> Value<'a> {
        let inline = self.inline();
        Value { pool: self.pool, inline, extent: self.extent() }
    }

    /// The part of the value that lies in the item.
    #[inline]
    pub(crate) fn inline(&self) -> &'a [u8] {
        self.field(self.header.inline_start(), self.header.inline_bytes())
    }

    pub(crate) fn inline_offset(&self) -> usize {
        self.at.offset() + self.header.inline_start()
    }

    /// The value's blocks, unless it has none or gave them away.
    #[inline]
    pub(crate) fn extent(&self) -> Option<ExtentId> {
        if !self.header.has_extent() || self.header.has(EXTENT_GIVEN) {
            return None;
        }
        let start = self.header.key_start() + self.header.key_bytes();
        Some(ExtentId { id: self.word_32(start), blocks: self.word_32(start + 4) })
    }

    /// The client's opaque 32 bits.
    #[inline]
    pub fn client_flags(&self) -> u32 {
        if self.header.client_flags_bytes() == 0 {
            return 0;
        }
        self.word_32(FIXED_BYTES + self.header.cas_bytes())
    }

    /// Second in which the item dies; 0 for never.
    #[inline]
    pub const fn expiry(&self) -> u32 {
        self.header.expiry()
    }

    /// The CAS token; 0 when items carry none.
    #[inline]
    pub fn cas(&self) -> u64 {
        match self.header.cas_bytes() {
            0 => 0,
            4 => self.pool.cas_base(self.at).wrapping_add(self.word_32(FIXED_BYTES).into()),
            _ => self.word_64(FIXED_BYTES),
        }
    }

    /// Whether the item was marked stale (meta `I`).
    #[inline]
    pub const fn stale(&self) -> bool {
        self.header.has(STALE)
    }

    /// Whether someone already won the right to refill the item.
    #[inline]
    pub const fn win_sent(&self) -> bool {
        self.header.has(WIN_SENT)
    }

    /// Whether replies show the key in base64.
    #[inline]
    pub const fn base64_key(&self) -> bool {
        self.header.has(BASE64_KEY)
    }

    /// The access word as it is now.
    #[inline]
    pub fn access(&self) -> Access {
        Access::load(&self.pool.arena, self.at)
    }

    /// Whether the item was read since it was stored.
    #[inline]
    pub fn fetched(&self) -> bool {
        self.access().fetched()
    }

    /// Whether the item was read at least twice since eviction last looked at it.
    #[inline]
    pub fn active(&self) -> bool {
        self.access().active()
    }

    /// Second in which the item was stored or last read while reads were counted.
    #[inline]
    pub fn last_access(&self) -> u32 {
        self.access().last_access()
    }

    /// Whether the item is in no index any more. A reader on another core may still find it.
    #[inline]
    pub const fn is_dead(&self) -> bool {
        self.header.is_dead()
    }

    /// Whether the value is a large one. Its blocks are the owner's to pin: a reader on another
    /// core must not look at them.
    #[inline]
    pub const fn is_large(&self) -> bool {
        self.header.has_extent()
    }

    /// Notes that the item was read in second `now`. Writes nothing once three reads are counted.
    #[inline]
    pub fn note_access(&self, now: u32) {
        Access::note(&self.pool.arena, self.at, now);
    }

    /// Bytes that the item takes: in its segment, and in blocks.
    pub fn memory_bytes(&self) -> usize {
        let blocks = self.extent().map_or(0, |extent| extent.blocks as usize);
        self.header.item_bytes() + blocks * BLOCK_BYTES
    }

    /// The living item as it would be written again, elsewhere.
    pub(crate) fn draft(&self) -> Draft<'a> {
        debug_assert!(!self.header.is_dead() && !self.header.has(EXTENT_GIVEN));
        let body_start = FIXED_BYTES + self.header.cas_bytes();
        let body_bytes = self.header.inline_start() + self.header.inline_bytes() - body_start;
        Draft {
            header: self.header.marked(LONG_CAS, false),
            access: self.access(),
            cas: self.cas(),
            client_flags: 0,
            extent: self.extent(),
            body: Body::Copied(self.field(body_start, body_bytes)),
        }
    }
}

/// An item's value: in the segment, or blocks and a rest in the segment.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    pool: &'a Pool,
    inline: &'a [u8],
    extent: Option<ExtentId>,
}

impl<'a> Value<'a> {
    /// Bytes of the whole value.
    #[inline]
    pub fn bytes(&self) -> usize {
        let blocks = self.extent.map_or(0, |extent| extent.blocks as usize);
        blocks * BLOCK_BYTES + self.inline.len()
    }

    /// The whole value, when it lies in the segment; `None` for a large value.
    #[inline]
    pub fn as_slice(&self) -> Option<&'a [u8]> {
        match self.extent {
            None => Some(self.inline),
            Some(_) => None,
        }
    }

    /// The value's pieces in order, none of them empty. Cost: one cache miss a block.
    pub fn parts(&self) -> Parts<'a> {
        let blocks_left = self.extent.map_or(0, |extent| extent.blocks);
        let block = self.extent.map_or(0, |extent| self.pool.first_block(extent));
        Parts { pool: self.pool, block, blocks_left, inline: self.inline }
    }

    /// Whether the value is exactly `bytes`.
    pub fn equals(&self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.bytes() == bytes.len()
            && self.parts().all(|part| {
                let (head, tail) = rest.split_at(part.len());
                rest = tail;
                head == part
            })
    }
}

/// The pieces of a value, in order; see [`Value::parts`].
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    pool: &'a Pool,
    block: u32,
    blocks_left: u32,
    inline: &'a [u8],
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.blocks_left > 0 {
            let part = self.pool.block_bytes(self.block, BLOCK_BYTES);
            self.block = self.pool.next_block(self.block);
            self.blocks_left -= 1;
            return Some(part);
        }
        Some(std::mem::take(&mut self.inline)).filter(|part| !part.is_empty())
    }
}
