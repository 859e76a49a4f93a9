//! Blocks: the unit of large values, cut from segments; and extents, the chains they form.
//!
//! Upstream:   `upload` takes blocks as bytes arrive; `segments` frees extents, and has their
//!             blocks moved.
//! Downstream: `pool` for whole segments, `meta` for the bitmap of each.
//!
//! ```text
//! per block:   next block:32 | previous block:32      extent:32 | last block:32 (B5)
//! per extent:  first block:32 | shard:32              pins:63 | dead:1
//! ```
//!
//! Invariants:
//! - B1  Links, owners and bitmaps change under the pool's lock, except those of blocks that belong
//!   to an unfinished upload. Only the core that uses the shard's engine changes an extent that
//!   belongs to an item, so that core reads the chain without the lock. Below it is called the
//!   thread of the shard.
//! - B2  An extent is freed once: by the thread that brings its state to 'dead, no pins'.
//! - B3  A block segment stands in the list of its number of free blocks. It is in no list if it
//!   has no free block. It becomes idle when all its blocks are free.
//! - B4  A pinned extent is neither freed nor moved, and nothing is linked behind it.
//! - B5  The first block of an extent that belongs to an item names the last one.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use kachel_host::Region;
use kachel_stdx::{Piece, Place};

use super::{Free, NoMemory, Pool};
use crate::BLOCK_BYTES;
use crate::audit::Use;
use crate::meta::{FIFO, List, NONE, Phase};

/// Set in an extent's state once its item is gone; the other bits count pins.
const DEAD: u64 = 1 << 63;

/// Bytes of the table for each block: two words for the block, and two for an extent, because there
/// may be as many extents as blocks.
pub(super) const TABLE_BYTES_PER_BLOCK: usize = 32;

/// One call of [`Pool::gather_blocks`] moves blocks out of at most this many segments. Each may
/// cost 63 copies of a block under the lock.
const GATHER_SEGMENTS_MAX: usize = 4;

/// One call of [`Pool::gather_blocks`] looks for blocks of its shard in at most this many segments,
/// under the lock. Each used block there costs two cache lines.
const GATHER_LOOKS_MAX: usize = 16;

/// A round of calls examines at most this many of the emptiest segments. Fuller segments gain
/// little, and the owners of the blocks in these segments are called to gather them.
const GATHER_RANGE: usize = 256;

/// The result of a step of gathering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gathered {
    /// Whether a segment became free.
    pub(crate) freed: bool,
    /// Whether blocks were moved. If so, another round may move more.
    pub(crate) moved: bool,
}

/// The blocks of one large value: a chain in the pool, without the value's rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentId {
    pub(crate) id: u32,
    pub(crate) blocks: u32,
}

impl ExtentId {
    /// Bytes of its blocks.
    pub(crate) const fn bytes(self) -> usize {
        self.blocks as usize * BLOCK_BYTES
    }
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

    fn owner(&self, block: u32) -> &AtomicU64 {
        &self.region.words()[block as usize * 2 + 1]
    }

    fn head(&self, extent: u32) -> &AtomicU64 {
        &self.region.words()[(self.blocks + extent as usize) * 2]
    }

    fn state(&self, extent: u32) -> &AtomicU64 {
        &self.region.words()[(self.blocks + extent as usize) * 2 + 1]
    }

    fn set_links(&self, block: u32, next: u32, previous: u32) {
        self.links(block).store(pair(next, previous), Ordering::Relaxed);
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn low(word: &AtomicU64) -> u32 {
    word.load(Ordering::Relaxed) as u32
}

fn high(word: &AtomicU64) -> u32 {
    (word.load(Ordering::Relaxed) >> 32) as u32
}

/// The block segments by their number of free blocks, and the unused extent numbers.
#[derive(Debug)]
pub(super) struct BlockLists {
    by_free_count: Vec<List>,
    extents_unused: Vec<u32>,
    extents_touched: u32,
}

impl BlockLists {
    pub(super) fn new() -> Self {
        Self {
            by_free_count: (0..=u64::BITS).map(|_| List::new(FIFO)).collect(),
            extents_unused: Vec::new(),
            extents_touched: 0,
        }
    }
}

impl Pool {
    /// The first block of an extent that has any.
    pub(crate) fn first_block(&self, extent: ExtentId) -> u32 {
        low(self.extents.head(extent.id))
    }

    /// The block after `block` in its chain.
    pub(crate) fn next_block(&self, block: u32) -> u32 {
        low(self.extents.links(block))
    }

    /// The first `length` bytes of a block.
    pub(crate) fn block_bytes(&self, block: u32, length: usize) -> &[u8] {
        assert!(length <= BLOCK_BYTES);
        self.arena.bytes(block as usize * BLOCK_BYTES, length)
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

    /// Copies into a block that belongs to an upload; nothing reads it yet.
    pub(super) fn write_block(&self, block: u32, start: usize, bytes: &[u8]) {
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

    fn give_block(&self, free: &mut Free, block: u32) {
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
        let extent = free.blocks.extents_unused.pop().unwrap_or_else(|| {
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

    /// Links the blocks of `tail`, a finished extent of an upload whose last block is `tail_last`,
    /// behind `extent`, which belongs to an item and is not pinned. Only the thread of the extent's
    /// shard may call this (B1). Afterwards no extent has the number of `tail`.
    ///
    /// Cost: the lock, and two words for each block of the tail.
    pub(crate) fn link_extent(&self, extent: ExtentId, tail: ExtentId, tail_last: u32) {
        let mut free = self.lock();
        assert!(self.extents.state(extent.id).load(Ordering::Acquire) == 0, "B4");
        let (first, tail_first) = (self.first_block(extent), self.first_block(tail));
        let last = high(self.extents.owner(first));
        debug_assert!(self.next_block(last) == NONE, "B5");
        self.extents.set_links(last, tail_first, high(self.extents.links(last)));
        self.extents.set_links(tail_first, self.next_block(tail_first), last);
        let mut block = tail_first;
        for _ in 0..tail.blocks {
            self.extents.owner(block).store(extent.id.into(), Ordering::Relaxed);
            block = self.next_block(block);
        }
        debug_assert!(block == NONE, "B1: a chain has as many blocks as its upload says");
        self.extents.owner(first).store(pair(extent.id, tail_last), Ordering::Relaxed); // B5
        free.blocks.extents_unused.push(tail.id);
    }

    /// Pins an extent, so that its blocks stay in place until [`Self::unpin_extent`]. Only the
    /// thread of its shard or of its upload may call this. Returns whether it is the only pin.
    pub(crate) fn pin_extent(&self, extent: ExtentId) -> bool {
        let before = self.extents.state(extent.id).fetch_add(1, Ordering::Relaxed);
        assert!(before & DEAD == 0, "B2: only a living item's or upload's extent is pinned");
        before == 0
    }

    /// Pins again an extent that the caller has pinned, on any thread. Its item may be gone.
    pub(super) fn pin_again(&self, extent: ExtentId) {
        let before = self.extents.state(extent.id).fetch_add(1, Ordering::Relaxed);
        assert!(before & !DEAD > 0, "B2: only what is pinned is pinned again");
    }

    /// Undoes one [`Self::pin_extent`] or [`Self::pin_again`], from any thread. Returns whether it
    /// was the last pin.
    pub(crate) fn unpin_extent(&self, extent: ExtentId) -> bool {
        let before = self.extents.state(extent.id).fetch_sub(1, Ordering::AcqRel);
        assert!(before & !DEAD > 0, "B2: an extent is unpinned as often as it was pinned");
        if before == DEAD | 1 {
            self.free_extent(extent);
        }
        before & !DEAD == 1
    }

    /// Whether the death of the extent's living item gives blocks back at once: it has some, and is
    /// not pinned. Only the owner's thread may call this, because only that thread makes a first
    /// pin.
    pub(crate) fn frees_blocks(&self, extent: ExtentId) -> bool {
        let state = self.extents.state(extent.id).load(Ordering::Acquire);
        debug_assert!(state & DEAD == 0, "B2: the item of a living extent lives");
        state == 0 && extent.blocks > 0
    }

    /// Drops an extent whose item is gone: frees its blocks now, or has the last unpin free them
    /// (B2).
    pub(crate) fn drop_extent(&self, extent: ExtentId) {
        let before = self.extents.state(extent.id).fetch_or(DEAD, Ordering::AcqRel);
        assert!(before & DEAD == 0, "B2: an extent dies once");
        if before == 0 {
            self.free_extent(extent);
        }
    }

    pub(crate) fn free_extent(&self, extent: ExtentId) {
        let mut free = self.lock();
        let mut block = self.first_block(extent);
        for _ in 0..extent.blocks {
            assert!(low(self.extents.owner(block)) == extent.id, "B1: a chain stays in its extent");
            let next = self.next_block(block);
            self.give_block(&mut free, block);
            block = next;
        }
        debug_assert!(block == NONE, "B1: a chain has as many blocks as its item says");
        free.blocks.extents_unused.push(extent.id);
    }

    /// Moves blocks of `shard`'s unpinned extents out of the emptiest block segments that have any
    /// into segments as full or fuller. `from` is the number of the emptiest that earlier calls
    /// examined without success; it begins with 0.
    ///
    /// Blocks move only to segments that are as full or fuller, so calls that free nothing come to
    /// an end.
    ///
    /// Only `shard`'s thread may call this, while it reads none of its large values (B1).
    /// Cost: the lock, for a walk over up to `GATHER_RANGE` lines, a search of `GATHER_LOOKS_MAX`
    /// segments, and the copies out of `GATHER_SEGMENTS_MAX`.
    pub(crate) fn gather_blocks(&self, shard: u16, from: &mut usize) -> Gathered {
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
        let mut gathered = Gathered::default();
        for &segment in &candidates[..found] {
            let Gathered { freed, moved } = self.empty_segment(&mut free, segment, shard);
            debug_assert!(moved || !freed, "a segment comes free by a move");
            gathered.moved |= moved;
            gathered.freed = freed;
            if freed {
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

    /// Moves what can be moved out of `segment`.
    fn empty_segment(&self, free: &mut Free, segment: u32, shard: u16) -> Gathered {
        let count = self.blocks_per_segment() as u32;
        let bits = self.metas.free_blocks(segment);
        let free_before = bits.count_ones();
        let room_elsewhere = self.free_blocks.load(Ordering::Relaxed) - free_before;
        if self.metas.phase(segment) != Phase::Blocks
            || bits == 0
            || room_elsewhere < count - free_before
        {
            return Gathered::default();
        }
        // Out of the lists while it is emptied, so that no block moves within the segment.
        free.blocks.by_free_count[free_before as usize].remove(&self.metas, segment);
        let mut bits_now = bits;
        for bit in (0..count).filter(|bit| bits & 1 << bit == 0) {
            let source = segment * count + bit;
            if self.is_movable(source, shard) {
                let Some(target) = self.take_cut_block(free, free_before as usize) else { break };
                self.move_block(source, target);
                bits_now |= 1 << bit;
                self.free_blocks.fetch_add(1, Ordering::Relaxed);
            }
        }
        debug_assert!(bits_now & bits == bits, "B3: nothing moves into what is emptied");
        self.metas.set_free_blocks(segment, bits_now);
        if bits_now.count_ones() == count {
            self.free_blocks.fetch_sub(count, Ordering::Relaxed);
            self.give_raw(free, segment);
            return Gathered { freed: true, moved: true };
        }
        let list = &mut free.blocks.by_free_count[bits_now.count_ones() as usize];
        list.push_back(&self.metas, segment);
        Gathered { freed: false, moved: bits_now != bits }
    }

    /// Moves a block that may be moved to `target`, which was taken for it.
    fn move_block(&self, source: u32, target: u32) {
        let extent = low(self.extents.owner(source));
        debug_assert!(extent != NONE, "B1: only a block of an extent is moved");
        debug_assert!(self.extents.state(extent).load(Ordering::Acquire) == 0, "B4");
        let head = self.extents.head(extent);
        self.arena.write(target as usize * BLOCK_BYTES, self.block_bytes(source, BLOCK_BYTES));
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
