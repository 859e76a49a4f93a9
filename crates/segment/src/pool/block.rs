//! Blocks: the unit of large values, cut from segments; and extents, the chains they form.
//!
//! Upstream:   `upload` takes blocks as bytes arrive; `segments` frees extents, and has their
//!             blocks moved.
//! Downstream: `pool` for whole segments, `meta` for the bitmap of each.
//!
//! ```text
//! per block:   next block:32 | previous block:32      extent:32 | last block:32 (B5)
//! per extent:  first block:32 | shard:32              pins:31 | pinned blocks:32 | dead:1
//!   remains:   first block:32 | next of the list:32   0:31    | blocks:32        | dead:1 = 1
//!   unused:    unspecified:32 | next of the list:32   unspecified
//! a value:     | headroom | its bytes ..  | .. | .. their last block is full |, then its rest
//! ```
//!
//! The *headroom* is the part of the first block that holds nothing yet. Bytes before the value are
//! written into it from its end on (`prepend`), and blocks are linked in front of the first one if
//! it has no room. Blocks are linked behind the last one in the same way. So a value grows on both
//! sides without a copy of its bytes, even while it is pinned: a reader that has pinned it knows
//! its own first block, its own number of blocks and its own headroom.
//!
//! Invariants:
//! - B1  Links, owners and bitmaps change under the pool's lock, except those of blocks that belong
//!   to an unfinished upload. Only the core that uses the shard's engine changes an extent that
//!   belongs to an item, so that core reads the chain without the lock. Below it is called the
//!   thread of the shard.
//! - B2  An extent is freed once: by the thread that brings its state to 'dead, no pins'. If it is
//!   long, that thread frees its first blocks, and `remains` has the rest.
//! - B3  A block segment stands in the list of its number of free blocks. It is in no list if it
//!   has no free block. It becomes idle when all its blocks are free.
//! - B4  A pinned extent is neither freed nor moved. Blocks that are linked to it while it is
//!   pinned change no link that its readers follow, and no byte that they read.
//! - B5  The first block of an extent that belongs to an item names the last one.
//! - B6  Extents that are not in use are linked by their own words. So freeing a value, which
//!   happens on the request path, needs no memory, and no list needs a bound.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use kachel_host::Region;
use kachel_stdx::{Piece, Place};

use super::{Free, NoMemory, Pool};
use crate::audit::Use;
use crate::limits::{BLOCK_BYTES, SEGMENT_BYTES_MAX};
use crate::meta::{FIFO, List, NONE, Phase};

/// Set in an extent's state once its item is gone.
pub(super) const DEAD: u64 = 1 << 63;
/// The bits of an extent's state that count pins.
pub(super) const PINS: u64 = (1 << PINNED_BLOCKS_SHIFT) - 1;
/// The bits above the pins hold the number of blocks that count as pinned. It is 0 without a pin.
pub(super) const PINNED_BLOCKS_SHIFT: u32 = 31;

/// Bytes of the table for each block: two words for the block, and two for an extent, because there
/// may be as many extents as blocks.
pub(super) const TABLE_BYTES_PER_BLOCK: usize = 32;

/// One call of [`Pool::gather_blocks`] moves blocks out of at most this many segments. Each may
/// cost 63 copies of a block under the lock.
const GATHER_SEGMENTS_MAX: usize = 4;

/// The most bytes that one call of [`Pool::gather_blocks`] copies: all blocks of segments of the
/// largest size.
pub(crate) const GATHERED_BYTES_MAX: usize = GATHER_SEGMENTS_MAX * SEGMENT_BYTES_MAX;

/// One call of [`Pool::gather_blocks`] looks for blocks of its shard in at most this many segments,
/// under the lock. Each used block there costs two cache lines.
pub(crate) const GATHER_LOOKS_MAX: usize = 16;

/// A round of calls examines at most this many of the emptiest segments. Fuller segments gain
/// little, and the owners of the blocks in these segments are called to gather them.
const GATHER_RANGE: usize = 256;

/// The result of a step of gathering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gathered {
    /// Whether a segment became free.
    pub(crate) freed: bool,
    /// The number of blocks that were moved. If there are some, another round may move more.
    pub(crate) moved: usize,
    /// Segments whose blocks were examined.
    pub(crate) looks: usize,
    /// Whether the step ended because it had moved as many blocks as it may.
    pub(crate) is_cut: bool,
}

/// Bits of the number of blocks of an extent in the word of its item. The other bits of that half
/// are the headroom.
const BLOCKS_BITS: u32 = 32 - BLOCK_BYTES.trailing_zeros();
/// The most blocks of an extent: 4 GiB.
pub(crate) const EXTENT_BLOCKS_MAX: usize = (1 << BLOCKS_BITS) - 1;

/// The blocks of one large value: a chain in the pool, without the value's rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentId {
    pub(crate) id: u32,
    pub(crate) blocks: u32,
    /// Bytes at the start of the first block that hold nothing of the value yet. They are less than
    /// a block.
    pub(crate) headroom: u32,
}

impl ExtentId {
    /// Bytes of the value that its blocks hold.
    pub(crate) const fn value_bytes(self) -> usize {
        self.memory_bytes() - self.headroom as usize
    }

    /// Bytes of its blocks.
    pub(crate) const fn memory_bytes(self) -> usize {
        self.blocks as usize * BLOCK_BYTES
    }

    /// The word that an item has for its blocks.
    pub(crate) fn to_word(self) -> u64 {
        debug_assert!(self.blocks as usize <= EXTENT_BLOCKS_MAX && self.blocks > 0);
        debug_assert!((self.headroom as usize) < BLOCK_BYTES, "the first block holds a byte");
        pair(self.id, self.blocks | self.headroom << BLOCKS_BITS)
    }

    /// The extent that [`Self::to_word`] gave as a word.
    pub(crate) const fn from_word(word: u64) -> Self {
        let high = (word >> 32) as u32;
        let blocks = high & EXTENT_BLOCKS_MAX as u32;
        Self { id: word as u32, blocks, headroom: high >> BLOCKS_BITS }
    }
}

/// Blocks to link to those of a value: a finished extent of an upload, and its last block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linked {
    pub(crate) extent: ExtentId,
    pub(crate) last: u32,
}

/// The blocks that an upload has taken and not begun yet, in the order in which it took them. They
/// are linked like the blocks of an extent, so a queue needs no memory of its own.
#[derive(Debug)]
pub(super) struct BlockQueue {
    first: u32,
    last: u32,
}

impl BlockQueue {
    pub(super) const EMPTY: Self = Self { first: NONE, last: NONE };

    pub(super) const fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

/// Links of blocks and state of extents, for the whole arena. Its pages are backed when first used.
#[derive(Debug)]
pub(crate) struct ExtentTable {
    region: Region,
    blocks: usize,
}

impl ExtentTable {
    pub(crate) fn reserve(blocks: usize) -> io::Result<Self> {
        let bytes = blocks * TABLE_BYTES_PER_BLOCK;
        Ok(Self { region: Region::reserve(bytes, false, "the state of blocks")?, blocks })
    }

    fn links(&self, block: u32) -> &AtomicU64 {
        &self.region.words()[block as usize * 2]
    }

    pub(super) fn owner(&self, block: u32) -> &AtomicU64 {
        &self.region.words()[block as usize * 2 + 1]
    }

    pub(super) fn head(&self, extent: u32) -> &AtomicU64 {
        &self.region.words()[(self.blocks + extent as usize) * 2]
    }

    pub(super) fn state(&self, extent: u32) -> &AtomicU64 {
        &self.region.words()[(self.blocks + extent as usize) * 2 + 1]
    }

    fn set_links(&self, block: u32, next: u32, previous: u32) {
        self.links(block).store(pair(next, previous), Ordering::Relaxed);
    }
}

/// Extents that are not in use, linked by the high halves of their heads (B6). The one that was
/// pushed last comes first.
#[derive(Debug)]
pub(super) struct ExtentList {
    first: u32,
}

impl ExtentList {
    pub(super) const fn new() -> Self {
        Self { first: NONE }
    }

    pub(super) const fn first(&self) -> Option<u32> {
        if self.first == NONE { None } else { Some(self.first) }
    }

    /// Adds an extent. The low half of its head stays as it is.
    pub(super) fn push(&mut self, extents: &ExtentTable, extent: u32) {
        debug_assert!(extent != NONE && extent != self.first, "B6: an extent is in one list once");
        let head = extents.head(extent);
        head.store(pair(low(head), self.first), Ordering::Relaxed);
        self.first = extent;
    }

    pub(super) fn pop(&mut self, extents: &ExtentTable) -> Option<u32> {
        let first = self.first()?;
        self.first = high(extents.head(first));
        Some(first)
    }
}

pub(super) const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

pub(super) fn low(word: &AtomicU64) -> u32 {
    word.load(Ordering::Relaxed) as u32
}

pub(super) fn high(word: &AtomicU64) -> u32 {
    (word.load(Ordering::Relaxed) >> 32) as u32
}

/// The block segments by their number of free blocks, and the unused extent numbers.
#[derive(Debug)]
pub(super) struct BlockLists {
    by_free_count: Vec<List>,
    pub(super) extents_unused: ExtentList,
    extents_touched: u32,
}

impl BlockLists {
    pub(super) fn new() -> Self {
        Self {
            by_free_count: (0..=u64::BITS).map(|_| List::new(FIFO)).collect(),
            extents_unused: ExtentList::new(),
            extents_touched: 0,
        }
    }
}

impl Pool {
    /// The first block of an extent.
    pub(crate) fn first_block(&self, id: u32) -> u32 {
        low(self.extents.head(id))
    }

    /// The block after `block` in its chain.
    pub(crate) fn next_block(&self, block: u32) -> u32 {
        low(self.extents.links(block))
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(&self, block: u32, range: Range<usize>) -> &[u8] {
        assert!(range.end <= BLOCK_BYTES);
        self.arena.bytes(block as usize * BLOCK_BYTES + range.start, range.len())
    }

    /// Bytes of a block that belongs to an upload, for its landing.
    pub(super) fn block_piece(&self, block: u32, start: usize, length: usize) -> Piece {
        assert!(start + length <= BLOCK_BYTES);
        self.arena.piece(block as usize * BLOCK_BYTES + start, length)
    }

    /// Tells the auditor that bytes of a block were written through its landing.
    #[track_caller]
    pub(super) fn note_landed(&self, block: u32, start: usize, length: usize) {
        self.arena.audit.write(block as usize * BLOCK_BYTES + start, length);
    }

    /// Copies into a block that belongs to an upload, or into headroom; nothing reads the bytes
    /// yet.
    pub(crate) fn write_block(&self, block: u32, start: usize, bytes: &[u8]) {
        assert!(start + bytes.len() <= BLOCK_BYTES);
        self.arena.write(block as usize * BLOCK_BYTES + start, bytes);
    }

    /// Adds `count` blocks to `queue`, from the fullest segments first. If there are fewer, gives
    /// back all blocks that the queue holds.
    pub(super) fn take_blocks(
        &self,
        count: usize,
        queue: &mut BlockQueue,
        own: Option<Place>,
    ) -> Result<(), NoMemory> {
        let mut free = self.lock();
        for _ in 0..count {
            let Some(block) = self.take_block(&mut free, own) else {
                while let Some(block) = self.next_taken(queue) {
                    self.give_block(&mut free, block);
                }
                return Err(NoMemory);
            };
            self.extents.set_links(block, NONE, NONE);
            match queue.last {
                NONE => queue.first = block,
                last => self.extents.set_links(last, block, NONE),
            }
            queue.last = block;
        }
        Ok(())
    }

    /// Takes the first block out of an upload's queue.
    pub(super) fn next_taken(&self, queue: &mut BlockQueue) -> Option<u32> {
        let first = Some(queue.first).filter(|&first| first != NONE)?;
        debug_assert!(queue.last != NONE, "a queue with a first block has a last one");
        queue.first = self.next_block(first);
        if queue.first == NONE {
            queue.last = NONE;
        }
        Some(first)
    }

    pub(super) fn give_one_block(&self, block: u32) {
        self.give_block(&mut self.lock(), block);
    }

    fn take_block(&self, free: &mut Free, own: Option<Place>) -> Option<u32> {
        let count = self.blocks_per_segment();
        if let Some(block) = self.take_cut_block(free, count) {
            return Some(block);
        }
        self.cut_segment(free, own)?;
        self.take_cut_block(free, count)
    }

    /// A block of the densest segment with room, of those that have at most `free_max` free.
    fn take_cut_block(&self, free: &mut Free, free_max: usize) -> Option<u32> {
        let segment = (1..=free_max).find_map(|count| free.blocks.by_free_count[count].head())?;
        let bits = self.metas.free_blocks(segment);
        let bit = bits.trailing_zeros();
        self.move_between_counts(free, segment, bits & !(1 << bit));
        self.free_blocks.fetch_sub(1, Ordering::Relaxed);
        let block = segment * self.blocks_per_segment() as u32 + bit;
        // It belongs to no extent yet, so no call moves it (B1).
        self.extents.owner(block).store(NONE.into(), Ordering::Relaxed);
        self.arena.audit.block(block as usize * BLOCK_BYTES);
        Some(block)
    }

    fn cut_segment(&self, free: &mut Free, own: Option<Place>) -> Option<()> {
        let segment = self.take_raw(free, own)?;
        let count = self.blocks_per_segment();
        self.metas.set_phase(segment, Phase::Blocks);
        self.arena.audit.begin(self.segment_start(segment), Use::Blocks);
        self.metas.set_free_blocks(segment, u64::MAX >> (u64::BITS as usize - count));
        free.blocks.by_free_count[count].push_back(&self.metas, segment);
        self.free_blocks.fetch_add(count as u32, Ordering::Relaxed);
        Some(())
    }

    pub(super) fn give_block(&self, free: &mut Free, block: u32) {
        self.arena.audit.dead(block as usize * BLOCK_BYTES);
        let count = self.blocks_per_segment() as u32;
        let segment = block / count;
        let bit = 1 << (block % count);
        let bits = self.metas.free_blocks(segment);
        assert!(self.metas.phase(segment) == Phase::Blocks && bits & bit == 0, "B3");
        self.free_blocks.fetch_add(1, Ordering::Relaxed);
        self.move_between_counts(free, segment, bits | bit);
        if (bits | bit).count_ones() == count {
            free.blocks.by_free_count[count as usize].remove(&self.metas, segment);
            self.free_blocks.fetch_sub(count, Ordering::Relaxed);
            self.give_raw(free, segment);
        }
    }

    /// Stores a segment's bitmap and keeps B3.
    fn move_between_counts(&self, free: &mut Free, segment: u32, bits: u64) {
        let before = self.metas.free_blocks(segment).count_ones() as usize;
        debug_assert!(before.abs_diff(bits.count_ones() as usize) == 1, "B3: one block a time");
        if before > 0 {
            free.blocks.by_free_count[before].remove(&self.metas, segment);
        }
        self.metas.set_free_blocks(segment, bits);
        if bits != 0 {
            free.blocks.by_free_count[bits.count_ones() as usize].push_back(&self.metas, segment);
        }
    }

    /// A new extent number whose first block is `first`; the extent belongs to no shard yet.
    pub(super) fn begin_extent(&self, first: u32) -> u32 {
        let mut free = self.lock();
        let extent = free.blocks.extents_unused.pop(&self.extents).unwrap_or_else(|| {
            free.blocks.extents_touched += 1;
            free.blocks.extents_touched - 1
        });
        self.extents.head(extent).store(pair(first, NONE), Ordering::Relaxed);
        self.extents.state(extent).store(0, Ordering::Relaxed);
        self.extents.set_links(first, NONE, NONE);
        self.extents.owner(first).store(extent.into(), Ordering::Relaxed);
        extent
    }

    /// Appends `block` to the chain that ends in `last`. Only for uploads, so it takes no lock
    /// (B1).
    pub(super) fn chain_block(&self, extent: u32, last: u32, block: u32) {
        self.extents.set_links(last, block, high(self.extents.links(last)));
        self.extents.set_links(block, NONE, last);
        self.extents.owner(block).store(extent.into(), Ordering::Relaxed);
    }

    /// Makes a finished extent, whose last block is `last`, `shard`'s own: from now on that shard
    /// may move its blocks.
    pub(crate) fn adopt_extent(&self, extent: ExtentId, last: u32, shard: u16) {
        let _free = self.lock();
        let head = self.extents.head(extent.id);
        let first = low(head);
        head.store(pair(first, shard.into()), Ordering::Relaxed);
        self.extents.owner(first).store(pair(extent.id, last), Ordering::Relaxed); // B5
    }

    /// Links the blocks of `tail` behind `extent`, which belongs to an item. Only the thread of the
    /// extent's shard may call this (B1). Afterwards no extent has the number of `tail`.
    ///
    /// Cost: the lock, and two words for each block of the tail.
    pub(crate) fn link_behind(&self, extent: ExtentId, tail: Linked) {
        let mut free = self.lock();
        let (first, tail_first) = (self.first_block(extent.id), self.first_block(tail.extent.id));
        let last = high(self.extents.owner(first));
        debug_assert!(self.next_block(last) == NONE, "B5");
        self.extents.set_links(last, tail_first, high(self.extents.links(last)));
        self.extents.set_links(tail_first, self.next_block(tail_first), last);
        self.take_over(&mut free, extent, tail.extent, NONE);
        self.extents.owner(first).store(pair(extent.id, tail.last), Ordering::Relaxed); // B5
    }

    /// Links the blocks of `front` in front of `extent`, as [`Self::link_behind`] does behind it.
    pub(crate) fn link_before(&self, extent: ExtentId, front: Linked) {
        let mut free = self.lock();
        let (first, front_first) = (self.first_block(extent.id), self.first_block(front.extent.id));
        let last = high(self.extents.owner(first));
        debug_assert!(self.next_block(last) == NONE && self.next_block(front.last) == NONE, "B5");
        self.extents.set_links(first, self.next_block(first), front.last);
        self.extents.set_links(front.last, first, high(self.extents.links(front.last)));
        self.take_over(&mut free, extent, front.extent, first);
        self.extents.owner(first).store(extent.id.into(), Ordering::Relaxed);
        let head = self.extents.head(extent.id);
        head.store(pair(front_first, high(head)), Ordering::Relaxed);
        self.extents.owner(front_first).store(pair(extent.id, last), Ordering::Relaxed); // B5
    }

    /// Makes `extent` the owner of the blocks of `linked`, which end before `end`, and counts them
    /// as pinned if it is pinned. No extent has the number of `linked` any more.
    fn take_over(&self, free: &mut Free, extent: ExtentId, linked: ExtentId, end: u32) {
        let mut block = self.first_block(linked.id);
        for _ in 0..linked.blocks {
            self.extents.owner(block).store(extent.id.into(), Ordering::Relaxed);
            block = self.next_block(block);
        }
        debug_assert!(block == end, "B1: a chain has as many blocks as its upload says");
        free.blocks.extents_unused.push(&self.extents, linked.id);
        self.count_linked(extent, linked);
    }

    /// Counts the blocks of `linked` as pinned, if `extent` is pinned. They count before any thread
    /// can count them as unpinned (`pinned`, P2).
    fn count_linked(&self, extent: ExtentId, linked: ExtentId) {
        let state = self.extents.state(extent.id);
        if state.load(Ordering::Acquire) & PINS == 0 {
            return; // Only this thread makes a first pin.
        }
        self.count_pinned(linked.memory_bytes());
        let blocks = u64::from(linked.blocks) << PINNED_BLOCKS_SHIFT;
        let add = |state: u64| (state & PINS > 0).then(|| state + blocks);
        if state.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_err() {
            self.count_unpinned(linked.memory_bytes());
        }
    }

    /// Pins an extent, so that its blocks stay in place until [`Self::unpin_extent`]. Only the
    /// thread of its shard or of its upload may call this. Returns whether it is the only pin.
    pub(crate) fn pin_extent(&self, extent: ExtentId) -> bool {
        let pinned = |state: u64| match state & PINS {
            0 => Some(state + 1 + (u64::from(extent.blocks) << PINNED_BLOCKS_SHIFT)),
            _ => Some(state + 1),
        };
        let state = self.extents.state(extent.id);
        let (Ok(before) | Err(before)) =
            state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pinned);
        assert!(before & DEAD == 0, "B2: only a living item's or upload's extent is pinned");
        before & PINS == 0
    }

    /// Pins again an extent that the caller has pinned, on any thread. Its item may be gone.
    pub(super) fn pin_again(&self, id: u32) {
        let before = self.extents.state(id).fetch_add(1, Ordering::Relaxed);
        assert!(before & PINS > 0, "B2: only what is pinned is pinned again");
    }

    /// Undoes one [`Self::pin_extent`] or [`Self::pin_again`], from any thread. If it was the last
    /// pin, returns the number of blocks that counted as pinned.
    pub(crate) fn unpin_extent(&self, id: u32) -> Option<u32> {
        let unpinned = |state: u64| match state & PINS {
            1 => Some(state & DEAD),
            _ => Some(state - 1),
        };
        let state = self.extents.state(id);
        let (Ok(before) | Err(before)) =
            state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, unpinned);
        assert!(before & PINS > 0, "B2: an extent is unpinned as often as it was pinned");
        let is_last = before & PINS == 1;
        let blocks = ((before & !DEAD) >> PINNED_BLOCKS_SHIFT) as u32;
        if is_last && before & DEAD != 0 {
            self.free_extent(id, blocks);
        }
        is_last.then_some(blocks)
    }

    /// Whether the death of the extent's living item gives blocks back at once: it has some, and is
    /// not pinned. Only the owner's thread may call this, because only that thread makes a first
    /// pin.
    pub(crate) fn frees_blocks(&self, extent: ExtentId) -> bool {
        let state = self.extents.state(extent.id).load(Ordering::Acquire);
        debug_assert!(state & DEAD == 0, "B2: the item of a living extent lives");
        state == 0
    }

    /// Drops an extent whose item is gone: frees its blocks now, or has the last unpin free them
    /// (B2). Returns the number of blocks that were freed now.
    pub(crate) fn drop_extent(&self, extent: ExtentId) -> usize {
        let before = self.extents.state(extent.id).fetch_or(DEAD, Ordering::AcqRel);
        assert!(before & DEAD == 0, "B2: an extent dies once");
        if before != 0 {
            return 0;
        }
        self.free_extent(extent.id, extent.blocks)
    }

    /// Moves up to `blocks_max` blocks of `shard`'s unpinned extents out of the emptiest block
    /// segments that have any into segments as full or fuller. `from` is the number of the emptiest
    /// that earlier calls examined without success; it begins with 0.
    ///
    /// Blocks move only to segments that are as full or fuller, so calls that free nothing come to
    /// an end.
    ///
    /// Only `shard`'s thread may call this, while it reads none of its large values (B1).
    /// Cost: the lock, for a walk over up to `GATHER_RANGE` lines, a search of `GATHER_LOOKS_MAX`
    /// segments, and the copies out of `GATHER_SEGMENTS_MAX`.
    pub(crate) fn gather_blocks(
        &self,
        shard: u16,
        from: &mut usize,
        blocks_max: usize,
    ) -> Gathered {
        let mut free = self.lock();
        let mut candidates = [NONE; GATHER_SEGMENTS_MAX];
        let (mut found, mut looks) = (0, 0);
        for segment in self.emptiest(&free).skip(*from).take(GATHER_LOOKS_MAX) {
            looks += 1;
            if self.has_movable(segment, shard) {
                candidates[found] = segment;
                found += 1;
                if found == candidates.len() {
                    break;
                }
            }
        }
        let mut gathered = Gathered { looks, ..Gathered::default() };
        for &segment in &candidates[..found] {
            let left = blocks_max - gathered.moved;
            let (moved, freed) = self.empty_segment(&mut free, segment, shard, left);
            debug_assert!(moved > 0 || !freed, "a segment comes free by a move");
            gathered.moved += moved;
            gathered.freed = freed;
            gathered.is_cut = !freed && gathered.moved == blocks_max;
            if freed || gathered.is_cut {
                return gathered;
            }
        }
        *from += looks;
        if looks == 0 || *from >= GATHER_RANGE {
            *from = 0;
        }
        gathered
    }

    /// Block segments that have both free and used blocks, the emptiest first.
    fn emptiest<'a>(&'a self, free: &'a Free) -> impl Iterator<Item = u32> + 'a {
        (1..self.blocks_per_segment()).rev().flat_map(|count| {
            let list = &free.blocks.by_free_count[count];
            std::iter::successors(list.head(), |&segment| list.next(&self.metas, segment))
        })
    }

    fn has_movable(&self, segment: u32, shard: u16) -> bool {
        let count = self.blocks_per_segment() as u32;
        let bits = self.metas.free_blocks(segment);
        (0..count)
            .filter(|bit| bits & 1 << bit == 0)
            .any(|bit| self.is_movable(segment * count + bit, shard))
    }

    /// Whether `shard` may move a used block: the block belongs to an unpinned extent of the shard.
    fn is_movable(&self, block: u32, shard: u16) -> bool {
        let extent = low(self.extents.owner(block));
        extent != NONE
            && high(self.extents.head(extent)) == u32::from(shard)
            && self.extents.state(extent).load(Ordering::Acquire) == 0
    }

    /// Moves what can be moved out of `segment`, at most `blocks_max` blocks. Returns how many were
    /// moved, and whether the segment became free.
    fn empty_segment(
        &self,
        free: &mut Free,
        segment: u32,
        shard: u16,
        blocks_max: usize,
    ) -> (usize, bool) {
        let count = self.blocks_per_segment() as u32;
        let bits = self.metas.free_blocks(segment);
        let free_before = bits.count_ones();
        let room_elsewhere = self.free_blocks.load(Ordering::Relaxed) - free_before;
        if self.metas.phase(segment) != Phase::Blocks
            || bits == 0
            || room_elsewhere < count - free_before
        {
            return (0, false);
        }
        // Out of the lists while it is emptied, so that no block moves within the segment.
        free.blocks.by_free_count[free_before as usize].remove(&self.metas, segment);
        let mut bits_now = bits;
        let mut left = blocks_max;
        for bit in (0..count).filter(|bit| bits & 1 << bit == 0) {
            let source = segment * count + bit;
            if left == 0 {
                break;
            }
            if self.is_movable(source, shard) {
                left -= 1;
                let Some(target) = self.take_cut_block(free, free_before as usize) else { break };
                self.move_block(source, target);
                bits_now |= 1 << bit;
                self.free_blocks.fetch_add(1, Ordering::Relaxed);
            }
        }
        debug_assert!(bits_now & bits == bits, "B3: nothing moves into what is emptied");
        let moved = (bits_now ^ bits).count_ones() as usize;
        self.metas.set_free_blocks(segment, bits_now);
        if bits_now.count_ones() == count {
            self.free_blocks.fetch_sub(count, Ordering::Relaxed);
            self.give_raw(free, segment);
            return (moved, true);
        }
        let list = &mut free.blocks.by_free_count[bits_now.count_ones() as usize];
        list.push_back(&self.metas, segment);
        (moved, false)
    }

    /// Moves a block that may be moved to `target`, which was taken for it.
    fn move_block(&self, source: u32, target: u32) {
        let extent = low(self.extents.owner(source));
        debug_assert!(extent != NONE, "B1: only a block of an extent is moved");
        debug_assert!(self.extents.state(extent).load(Ordering::Acquire) == 0, "B4");
        let head = self.extents.head(extent);
        self.arena.write(target as usize * BLOCK_BYTES, self.block_bytes(source, 0..BLOCK_BYTES));
        self.arena.audit.dead(source as usize * BLOCK_BYTES);
        let next = low(self.extents.links(source));
        let previous = high(self.extents.links(source));
        self.extents.set_links(target, next, previous);
        let owner = self.extents.owner(source).load(Ordering::Relaxed);
        self.extents.owner(target).store(owner, Ordering::Relaxed);
        match previous {
            NONE => head.store(pair(target, high(head)), Ordering::Relaxed),
            _ => self.extents.set_links(previous, target, high(self.extents.links(previous))),
        }
        if next != NONE {
            self.extents.set_links(next, low(self.extents.links(next)), target);
        } else {
            let first = low(head);
            self.extents.owner(first).store(pair(extent, target), Ordering::Relaxed); // B5
        }
    }

    /// Calls the other shards to gather their blocks, because the caller could not free a segment
    /// by moving its own. Returns the number of calls so far.
    pub(crate) fn call_to_gather(&self) -> u32 {
        self.gather_calls.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// How often [`Self::call_to_gather`] was called, modulo 2^32.
    pub(crate) fn gather_calls(&self) -> u32 {
        self.gather_calls.load(Ordering::Relaxed)
    }
}
