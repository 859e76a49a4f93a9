//! How much work one request may cause while memory is freed for it.
//!
//! Upstream:   the reclaimer begins an allowance for each request, and takes from it.
//! Downstream: nothing.
//!
//! The unit is a *walk* over the items of one segment. It examines each item, and copies or drops
//! it at most once. Making room for a large value that `append` copies is a request of its own; in
//! a store, for each piece of at most 256 KiB.
//!
//! ```text
//! walks of one request = jobs (8 in a store; 64 in a cache for each segment's worth of bytes)
//!                      + strips (256, in a cache with pinned segments only)
//!                      + 1 job that was under way + 1 rewrite (a store only)
//! ```
//!
//! Invariants:
//! - B1  A request examines at most as many items as its walks would find in segments that are full
//!   of the smallest items.
//! - B2  A step of upkeep begins no action once its work has reached `UPKEEP_BYTES_MAX`. One action
//!   does at most `ACTION_BYTES_MAX` of work.
//! - B3  A request frees the remains of dead large values only for the bytes that it wants, and
//!   `PIECES_MAX` pieces more. At this limit the request waits: its room is on its way.

use crate::layout::ITEM_BYTES_MIN;
use crate::limits::{BLOCK_BYTES, SEGMENTS_PER_SHARD};
use crate::pool::{FREED_BLOCKS_MAX, GATHERED_BYTES_MAX};

/// The most jobs, each over one segment, that one request begins in a store to free memory. A
/// guess: one job is enough for a small item if a 128th of a segment is dead, and jobs that free
/// too little delay other requests.
pub(crate) const STORE_JOBS_MAX: usize = 8;

/// The most jobs that one request begins in a cache for each segment's worth of bytes that it
/// wants. Each job frees at least a sixteenth of its victim, except up to four jobs whose victims
/// may be kept whole.
pub(crate) const CACHE_JOBS_MAX: usize = 64;

/// Walks over pinned segments that one request may cause, in search of large values to drop: as
/// many as an ordinary shard has segments. After that, the request skips pinned segments.
pub(crate) const STRIPS_MAX: usize = SEGMENTS_PER_SHARD;

/// Pinned segments that one step of upkeep may examine, in search of large values to drop.
const UPKEEP_STRIPS_MAX: usize = 8;

/// Steps of gathering that one request may cause for each segment's worth of bytes that it wants.
/// A step that moves nothing examines a few segments.
pub(crate) const GATHERS_MAX: usize = 1024;

/// Bytes that the gathering of one request may move. One step of gathering more may exceed this
/// (`pool::GATHERED_BYTES_MAX`). At this limit a cache evicts, and a store waits for the next tick.
/// A guess: copies that take a millisecond.
pub(crate) const GATHER_BYTES_MAX: usize = 4 << 20;

/// The work in bytes after which a step of upkeep begins no action (B2). A guess: half of the work
/// after which a core of `kachel-shard` releases an engine.
pub(crate) const UPKEEP_BYTES_MAX: u64 = 128 << 10;

/// The most work in bytes of one action of a step of upkeep (B2). The longest action is a search
/// for expired segments, followed by a step of gathering.
pub(crate) const ACTION_BYTES_MAX: u64 = 512 << 10;

/// The most work in bytes of one step of upkeep (B2).
pub const UPKEEP_STEP_BYTES_MAX: u64 = UPKEEP_BYTES_MAX + ACTION_BYTES_MAX;

/// Bytes that the gathering of one step of upkeep may move. A guess.
pub(crate) const UPKEEP_GATHER_BYTES_MAX: usize = 128 << 10;

/// Pieces of dead large values (`pool::FREED_BLOCKS_MAX` blocks each) that one request may free in
/// addition to those that have the bytes that it wants (B3). Without a bound, a request that wants
/// a whole segment would free all of a value whose blocks lie between those of others. A guess: as
/// much work as after which a core of `kachel-shard` releases an engine.
pub(crate) const PIECES_MAX: usize = 2;

/// Walks of one request in addition to the jobs and strips that it begins.
const OTHER_WALKS_MAX: usize = 2;

/// The work that the current request may still cause.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    jobs: usize,
    strips: usize,
    gathers: usize,
    /// Bytes that gathering may still move.
    gather_bytes: usize,
    /// The most bytes that one step of gathering moves.
    gather_step_bytes: usize,
    /// Pieces of dead large values that may still be freed (B3). A step of upkeep has its end.
    pieces: usize,
    /// The work of the log at which a step of upkeep ends. A request has no such end.
    work_end: Option<u64>,
    /// Walks in all (B1).
    walks_max: usize,
    /// Items that a step of upkeep may examine in addition to its walks.
    spare_items: usize,
    /// Items examined so far.
    items: usize,
}

impl Allowance {
    /// The allowance of a request for `bytes` of memory, which are part of `segments` segments, in
    /// a cache (`evict`) or a store.
    #[inline]
    pub(super) const fn new(evict: bool, segments: usize, bytes: u64) -> Self {
        debug_assert!(segments > 0, "each request may want one segment for its item");
        let jobs = if evict { CACHE_JOBS_MAX * segments } else { STORE_JOBS_MAX };
        let strips = if evict { STRIPS_MAX } else { 0 };
        let walks_max = jobs + strips + OTHER_WALKS_MAX;
        Self {
            jobs,
            strips,
            gathers: GATHERS_MAX * segments,
            gather_bytes: GATHER_BYTES_MAX,
            gather_step_bytes: GATHERED_BYTES_MAX,
            pieces: PIECES_MAX + bytes as usize / (FREED_BLOCKS_MAX * BLOCK_BYTES),
            work_end: None,
            walks_max,
            spare_items: 0,
            items: 0,
        }
    }

    /// The allowance of a step of upkeep over `items` items, when the log has done `work_bytes`.
    /// The step may begin as many jobs as that takes.
    pub(super) const fn of_upkeep(items: usize, work_bytes: u64) -> Self {
        let strips = UPKEEP_STRIPS_MAX;
        Self {
            jobs: 0,
            strips,
            gathers: GATHERS_MAX,
            gather_bytes: UPKEEP_GATHER_BYTES_MAX,
            gather_step_bytes: UPKEEP_GATHER_BYTES_MAX,
            pieces: usize::MAX,
            work_end: Some(work_bytes + UPKEEP_BYTES_MAX),
            walks_max: strips,
            spare_items: items,
            items: 0,
        }
    }

    /// Takes one job. Returns `false` if none is left.
    pub(super) fn take_job(&mut self) -> bool {
        take(&mut self.jobs)
    }

    /// Takes one walk over a pinned segment. Returns `false` if none is left.
    pub(super) fn take_strip(&mut self) -> bool {
        take(&mut self.strips)
    }

    /// Takes one piece of a dead large value. Returns `false` if none is left (B3).
    pub(super) fn take_piece(&mut self) -> bool {
        take(&mut self.pieces)
    }

    /// Takes one step of gathering. Returns `false` if none is left.
    pub(super) fn take_gather(&mut self) -> bool {
        self.gather_bytes > 0 && take(&mut self.gathers)
    }

    /// Counts bytes that a step of gathering has moved.
    pub(super) const fn note_gathered(&mut self, bytes: usize) {
        self.gather_bytes = self.gather_bytes.saturating_sub(bytes);
    }

    /// The most bytes that the next step of gathering may move.
    pub(super) const fn gather_step_bytes(&self) -> usize {
        self.gather_step_bytes
    }

    /// Whether a step of upkeep must end, when the log has done `work_bytes`.
    pub(super) fn is_worked_out(&self, work_bytes: u64) -> bool {
        self.work_end.is_some_and(|end| work_bytes >= end)
    }

    /// Whether gathering has moved as many bytes as it may.
    pub(super) const fn is_gathered_out(&self) -> bool {
        self.gather_bytes == 0
    }

    /// Whether pinned segments may still be walked.
    pub(super) const fn may_strip(&self) -> bool {
        self.strips > 0
    }

    /// Whether blocks may still be gathered.
    pub(super) const fn may_gather(&self) -> bool {
        self.gathers > 0 && self.gather_bytes > 0
    }

    /// Counts items that were examined in segments of this size (B1).
    pub(super) fn note_items(&mut self, items: usize, segment_bytes: usize) {
        self.items += items;
        let (items, items_max) = (self.items, self.items_max(segment_bytes));
        assert!(items <= items_max, "B1, V5: {items} of {items_max} items");
    }

    /// The most items that may be examined in all.
    pub(super) const fn items_max(&self, segment_bytes: usize) -> usize {
        (self.walks_max * (segment_bytes / ITEM_BYTES_MIN)).saturating_add(self.spare_items)
    }

    /// Items examined so far.
    #[cfg(all(test, not(loom)))]
    pub(super) const fn items(&self) -> usize {
        self.items
    }
}

fn take(left: &mut usize) -> bool {
    let is_left = *left > 0;
    *left -= usize::from(is_left);
    is_left
}
