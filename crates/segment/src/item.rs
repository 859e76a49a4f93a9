//! An item as a whole: how it is written, and how it is read in place.
//!
//! Upstream:   `cache` reads items that its index names; `segments` writes them.
//! Downstream: `layout` says which byte is what, `arena` holds the bytes, `pool` has the blocks of
//!             large values.
//!
//! An item that is handed out does not move, and its bytes do not change while the borrow lasts,
//! except for its header and its access word (I1 and I2 of `layout`).

use std::sync::Arc;

use kachel_stdx::{Reader, is_before};

use crate::arena::Arena;
use crate::layout::{
    Access, EXTENT, EXTENT_GIVEN, FIXED_BYTES, HAS_CAS, HAS_CLIENT_FLAGS, Header, ItemAt, LONG_CAS,
    PROTOCOL_MARK, REMNANT, SEGMENT_HEAD_BYTES, STALE, WIN_SENT,
};
use crate::limits::BLOCK_BYTES;
use crate::meta::{EPOCH, NONE, USED};
use crate::pool::{ExtentId, Pinned, Pool};

/// The parts of an item before it is written to a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    /// The header, except for the length of the CAS token.
    header: Header,
    access: Access,
    cas: u64,
    client_flags: u32,
    extent: Option<ExtentId>,
    body: Body<'a>,
}

/// The bytes after access word and CAS token.
#[derive(Clone, Copy, Debug)]
enum Body<'a> {
    /// Key and value in pieces; client flags and extent are formatted from their fields.
    Pieces { key: &'a [u8], inline: [&'a [u8]; 2] },
    /// The whole body, as it lies in the item that is copied.
    Copied(&'a [u8]),
}

impl<'a> Draft<'a> {
    /// An item without a value.
    pub(crate) fn new(key: &'a [u8], cas: Option<u64>, client_flags: u32, access: Access) -> Self {
        let header = Header::of_key(key.len())
            .marked(HAS_CLIENT_FLAGS, client_flags != 0)
            .marked(HAS_CAS, cas.is_some());
        let body = Body::Pieces { key, inline: [&[], &[]] };
        Self { header, access, cas: cas.unwrap_or(0), client_flags, extent: None, body }
    }

    /// This draft with an expiry and the marks of a lease.
    pub(crate) fn with_life(self, expiry: u32, stale: bool, win_sent: bool) -> Self {
        let header = self.header.with_expiry(expiry);
        Self { header: header.marked(STALE, stale).marked(WIN_SENT, win_sent), ..self }
    }

    /// This draft with the protocol's mark, or without it.
    pub(crate) fn with_protocol_mark(self, wanted: bool) -> Self {
        Self { header: self.header.marked(PROTOCOL_MARK, wanted), ..self }
    }

    /// This draft as an item that is kept for leases only, or as any other item.
    pub(crate) fn with_remnant(self, wanted: bool) -> Self {
        Self { header: self.header.with_remnant(wanted), ..self }
    }

    /// This draft with a value, whose inline part comes in up to two pieces.
    pub(crate) fn with_value<'b>(self, extent: Option<ExtentId>, inline: [&'b [u8]; 2]) -> Draft<'b>
    where
        'a: 'b,
    {
        let Body::Pieces { key, .. } = self.body else { unreachable!("a copy has its value") };
        let header = self.header.with_inline_bytes(inline[0].len() + inline[1].len());
        let header = header.marked(EXTENT, extent.is_some());
        Draft { header, extent, body: Body::Pieces { key, inline }, ..self }
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

    /// Writes the item at `at`, where there is room for `header.item_bytes()`. Writes the header
    /// last.
    pub(crate) fn write(&self, arena: &Arena, at: ItemAt, header: Header, cas_base: u64) {
        let cas_start = at.offset() + FIXED_BYTES;
        match header.cas_bytes() {
            0 => {}
            4 => {
                debug_assert!(short_cas(self.cas, cas_base).is_some(), "layout, I4");
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
                    arena.write(key_start + key.len(), &extent.to_word().to_le_bytes());
                }
                let inline_bytes = inline[0].len() + inline[1].len();
                debug_assert!(inline_bytes == header.inline_bytes(), "the header tells the length");
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

/// One item, read in place. It borrows the owner's `Segments`, so the item cannot move, or a reader
/// whose round is not over, so the segment of the item is not used again.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    pool: &'a Pool,
    at: ItemAt,
    header: Header,
}

/// An item that was found: where it lies, and the header that it had.
///
/// The parts that never change are read without another load of the header. Its expiry and its
/// marks are those of the moment when it was found.
#[derive(Clone, Copy, Debug)]
pub struct FoundItem {
    at: ItemAt,
    header: Header,
}

impl FoundItem {
    /// Where the item lies.
    #[inline]
    pub const fn at(&self) -> ItemAt {
        self.at
    }
}

impl<'a> Item<'a> {
    /// The item that was found, in its place. Cost: nothing is read.
    #[inline]
    pub(crate) fn of(pool: &'a Pool, found: FoundItem) -> Self {
        let FoundItem { at, header } = found;
        debug_assert!(
            Header::load(&pool.arena, at).has_lengths_of(header),
            "key and length of an item never change"
        );
        Self { pool, at, header }
    }

    /// The item without its borrow.
    #[inline]
    pub const fn found(&self) -> FoundItem {
        FoundItem { at: self.at, header: self.header }
    }

    #[inline]
    pub(crate) fn load(pool: &'a Pool, at: ItemAt) -> Self {
        Self { pool, at, header: Header::load(&pool.arena, at) }
    }

    /// The pool in which the item lies.
    pub(crate) const fn pool(&self) -> &'a Pool {
        self.pool
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
    pub fn value(&self) -> ItemValue<'a> {
        let inline = self.inline();
        ItemValue { pool: self.pool, inline, extent: self.extent() }
    }

    /// The part of the value that lies in the item.
    #[inline]
    pub(crate) fn inline(&self) -> &'a [u8] {
        self.field(self.header.inline_start(), self.header.inline_bytes())
    }

    /// The value's blocks, unless it has none or gave them away.
    #[inline]
    pub(crate) fn extent(&self) -> Option<ExtentId> {
        if !self.header.has_extent() || self.header.has(EXTENT_GIVEN) {
            return None;
        }
        let start = self.header.key_start() + self.header.key_bytes();
        Some(ExtentId::from_word(self.word_64(start)))
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

    /// Whether the item's time has passed in second `now`.
    #[inline]
    pub const fn is_expired(&self, now: u32) -> bool {
        self.header.is_expired(now)
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

    /// The CAS token; `None` when the item carries none.
    pub fn token(&self) -> Option<u64> {
        (self.header.cas_bytes() != 0).then(|| self.cas())
    }

    /// Whether the item was marked stale (meta `I`).
    #[inline]
    pub const fn stale(&self) -> bool {
        self.header.has(STALE)
    }

    /// Whether a client already won the right to refill the item.
    #[inline]
    pub const fn win_sent(&self) -> bool {
        self.header.has(WIN_SENT)
    }

    /// The bit that the protocol keeps with the item.
    #[inline]
    pub const fn protocol_mark(&self) -> bool {
        self.header.has(PROTOCOL_MARK)
    }

    /// Whether the item is kept for leases only.
    #[inline]
    pub const fn is_remnant(&self) -> bool {
        self.header.has(REMNANT)
    }

    /// The flush epoch in which the item was stored. Only the owner asks.
    pub fn epoch(&self) -> u32 {
        self.pool.metas.get(self.pool.segment_of(self.at), EPOCH)
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

    /// Whether the item was read at least twice since eviction last examined it.
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

    /// Whether the value is a large one. Only the owner may pin its blocks, so a reader on another
    /// core must not read them.
    #[inline]
    pub const fn is_large(&self) -> bool {
        self.header.has_extent()
    }

    /// Notes that the item was read in second `now`. Writes nothing once three reads are counted.
    /// Returns `false` if the owner has replaced the item meanwhile by one that keeps its accesses:
    /// then nothing was noted, and the caller must look for the item again.
    #[inline]
    #[must_use]
    pub fn note_access(&self, now: u32) -> bool {
        Access::note(&self.pool.arena, self.at, now)
    }

    /// Notes `count` reads, the last of them in second `last`, as [`Self::note_access`] notes one.
    #[must_use]
    pub fn note_accesses(&self, count: u64, last: u32) -> bool {
        let last = last.max(self.last_access());
        (0..count.min(Access::READS_MAX.into())).all(|_| self.note_access(last))
    }

    /// Bytes that the item takes: in its segment, and in blocks.
    pub fn memory_bytes(&self) -> usize {
        self.header.item_bytes() + self.extent().map_or(0, ExtentId::memory_bytes)
    }

    /// Whether the death of this living item gives blocks back at once: its value is large and not
    /// pinned. Only the owner's thread may call this, because only that thread makes a first pin.
    pub(crate) fn frees_blocks(&self) -> bool {
        let extent = self.extent().filter(|_| !self.header.is_dead());
        extent.is_some_and(|extent| self.pool.frees_blocks(extent))
    }

    /// The draft for a copy of this living item.
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

impl Pool {
    /// The item at `at`, which `reader` found in the index in its current round.
    ///
    /// The item may be dead by now. The caller must not read its value if that is large.
    #[inline]
    pub fn item<'a>(&'a self, at: ItemAt, _reader: &'a Reader) -> Item<'a> {
        Item::load(self, at)
    }

    /// Whether `item`, which `_reader` found in the index in its current round, is flushed in
    /// second `now`. The flush word and the flushed prefixes are loaded after the slot. `None`: the
    /// item was moved or removed meanwhile, so the caller must look again.
    ///
    /// Cost: one load of the word, one of the segment's line, one of the prefixes; while there are
    /// flushed prefixes, a comparison with each that is newer than the segment. The first caller
    /// that notices a due delayed flush carries it out.
    #[inline]
    pub fn is_flushed(&self, item: &Item<'_>, now: u32, _reader: &Reader) -> Option<bool> {
        let flushed = self.flush_word.settle(now);
        let segment = self.segment_of(item.at);
        if is_before(self.metas.get(segment, EPOCH), flushed.epoch()) {
            return Some(true);
        }
        if !self.flushed_prefixes.is_any_live() {
            return Some(false);
        }
        self.is_prefix_flushed(item, segment)
    }

    #[cold]
    fn is_prefix_flushed(&self, item: &Item<'_>, segment: u32) -> Option<bool> {
        let generation = self.metas.generation(segment);
        let is_flushed = self.flushed_prefixes.has_flushed_beside(item.key(), generation)?;
        // A segment gets a new generation after what was flushed in it has died.
        let is_dead = !is_flushed && Header::load(&self.arena, item.at).is_dead();
        (!is_dead).then_some(is_flushed)
    }

    /// The item at byte `offset` of a segment, and where the next one begins; `None` at the end of
    /// what is written.
    pub(crate) fn item_in(&self, segment: u32, offset: usize) -> Option<(Item<'_>, usize)> {
        debug_assert!(offset >= SEGMENT_HEAD_BYTES, "no item lies in a segment's head");
        if offset >= self.metas.get(segment, USED) as usize {
            return None;
        }
        let item = Item::load(self, ItemAt::from_offset(self.segment_start(segment) + offset));
        Some((item, offset + item.header.item_bytes()))
    }

    /// The owner: moves the access word of the item at `from` to the item at `to`, which replaces
    /// it, and whose location nobody else knows yet. The word that `to` gets is `changed`.
    pub(crate) fn move_access(
        &self,
        from: ItemAt,
        to: ItemAt,
        changed: impl FnOnce(Access) -> Access,
    ) {
        debug_assert!(from != to, "the new item lies elsewhere");
        changed(Access::take(&self.arena, from)).store(&self.arena, to);
    }

    /// Pins the value of the item at `at`.
    pub(crate) fn pin(self: &Arc<Self>, at: ItemAt) -> Pinned {
        let item = Item::load(self, at);
        let start = at.offset() + item.header.inline_start();
        let inline = start..start + item.header.inline_bytes();
        Pinned::new(self, self.segment_of(at), item.extent(), inline)
    }
}

/// An item's value: in the segment, or blocks and a rest in the segment.
#[derive(Clone, Copy, Debug)]
pub struct ItemValue<'a> {
    pool: &'a Pool,
    inline: &'a [u8],
    extent: Option<ExtentId>,
}

impl<'a> ItemValue<'a> {
    /// Bytes of the whole value.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.extent.map_or(0, ExtentId::value_bytes) + self.inline.len()
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
        let block = self.extent.map_or(NONE, |extent| self.pool.first_block(extent.id));
        let start = self.extent.map_or(0, |extent| extent.headroom as usize);
        Parts { pool: self.pool, block, blocks_left, start, inline: self.inline }
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

/// The pieces of a value, in order; see [`ItemValue::parts`].
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    pool: &'a Pool,
    block: u32,
    blocks_left: u32,
    /// Where the value begins in the next block.
    start: usize,
    inline: &'a [u8],
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.blocks_left > 0 {
            debug_assert!(self.block != NONE, "B1: a chain has as many blocks as its item says");
            let start = std::mem::take(&mut self.start);
            let part = self.pool.block_bytes(self.block, start..BLOCK_BYTES);
            self.block = self.pool.next_block(self.block);
            self.blocks_left -= 1;
            return Some(part);
        }
        Some(std::mem::take(&mut self.inline)).filter(|part| !part.is_empty())
    }
}
