//! Checks that all counts and lists of a log agree, in debug builds.
//!
//! Upstream:   `Segments::maintain`, and tests.
//! Downstream: `meta`, and in tests the items themselves.

use super::Log;
use super::queues::Queue;
#[cfg(all(test, not(loom)))]
use crate::layout::{ItemAt, SEGMENT_HEAD_BYTES};
use crate::limits::BLOCK_BYTES;
use crate::meta::{DEAD, ITEMS, OWNER, Phase, SLOT};

impl Log {
    /// Checks the whole log once in as many calls as it has segments, so that a call reads one
    /// segment's line on average.
    #[cfg(debug_assertions)]
    pub(crate) fn audit_in_turn(&mut self) {
        self.audited += 1;
        if self.audited > self.owned.len() {
            self.audited = 0;
            self.audit();
        }
    }

    /// Panics if the books disagree with the lines of the segments (L1 to L5, L7).
    pub(crate) fn audit(&self) {
        let metas = &self.pool.metas;
        let (mut dead_bytes, mut items, mut flushed, mut stale, mut open) = (0, 0, 0, 0, 0);
        let mut to_sweep = 0;
        let mut segment_bytes = [0; 2];
        for (slot, &segment) in self.owned.all().iter().enumerate() {
            let phase = metas.phase(segment);
            let is_of_items = matches!(phase, Phase::Open | Phase::Sealed | Phase::Victim);
            let owner = metas.get(segment, OWNER) as u16;
            assert!(metas.get(segment, SLOT) as usize == slot, "L1, W1");
            assert!(is_of_items && owner == self.options.shard, "L1");
            dead_bytes += metas.get(segment, DEAD) as usize;
            items += u64::from(metas.get(segment, ITEMS));
            flushed += usize::from(self.is_flushed(segment));
            stale += usize::from(self.is_stale(segment));
            to_sweep += usize::from(self.is_to_sweep(segment));
            segment_bytes[self.queue_of(segment) as usize] += self.pool.segment_bytes();
            if phase == Phase::Open {
                open += 1;
                let is_known = self.open.exact(self.stream_of(segment), self.bucket_of(segment));
                assert!(is_known == Some(segment), "O1");
                assert!(!self.is_flushed(segment) && !self.is_stale(segment), "L5");
            }
        }
        assert!((dead_bytes, items) == (self.dead_bytes, self.items), "L2");
        assert!((flushed, stale) == (self.flushed_segments, self.stale_segments), "L5");
        assert!(to_sweep == self.sweep_left, "L7");
        let held_bytes: usize = self.queues.total_bytes();
        let own_bytes: usize = segment_bytes.iter().sum();
        assert!(held_bytes == own_bytes + self.blocks * BLOCK_BYTES, "L2, Q2");
        self.audit_lists(open);
    }

    /// Checks that `open` segments are open, and that the others stand where they must (L3).
    fn audit_lists(&self, open: usize) {
        let metas = &self.pool.metas;
        let mut listed = 0;
        for queue in [Queue::Probation, Queue::Main] {
            for segment in self.queues.by_age(metas, queue) {
                listed += 1;
                assert!(self.owns(segment) && self.queue_of(segment) == queue, "L3");
            }
        }
        assert!(listed >= self.owned.len() - open && listed <= self.owned.len(), "L3");
        for (bin, segment) in self.queues.binned(metas) {
            assert!(metas.phase(segment) == Phase::Sealed && self.owns(segment), "L3");
            let dead_bytes = metas.get(segment, DEAD) as usize;
            assert!(self.queues.is_bin_of(bin, dead_bytes), "L3, Q1");
        }
    }

    /// Counts all items again and compares the sums with the books. Returns the locations of all
    /// items that are not dead.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn audit_items(&self) -> Vec<ItemAt> {
        use super::ttl::expiry_or_never;
        use crate::meta::{EXPIRY_MAX, USED};
        self.audit();
        let metas = &self.pool.metas;
        let mut items_at = Vec::new();
        let (mut live_bytes, mut blocks) = (0, 0);
        let mut queue_bytes = [0; 2];
        for &segment in self.owned.all() {
            let (mut offset, mut dead, mut items) = (SEGMENT_HEAD_BYTES, 0, 0);
            let queue = self.queue_of(segment) as usize;
            queue_bytes[queue] += self.pool.segment_bytes();
            while let Some((item, next)) = self.pool.item_in(segment, offset) {
                let bytes = next - offset;
                offset = next;
                if item.is_dead() {
                    dead += bytes;
                    continue;
                }
                items += 1;
                items_at.push(item.at());
                let item_blocks = item.extent().map_or(0, |extent| extent.blocks as usize);
                live_bytes += bytes + item_blocks * BLOCK_BYTES;
                blocks += item_blocks;
                queue_bytes[queue] += item_blocks * BLOCK_BYTES;
                let expiry = expiry_or_never(item.expiry());
                assert!(expiry <= metas.get(segment, EXPIRY_MAX), "expiry of the segment");
            }
            assert_eq!(offset, metas.get(segment, USED) as usize);
            assert_eq!(metas.get(segment, DEAD) as usize, dead, "L2");
            assert_eq!(metas.get(segment, ITEMS), items, "L2");
        }
        assert_eq!((self.live_bytes, self.blocks), (live_bytes, blocks), "L2");
        assert_eq!(self.queues.bytes(), queue_bytes, "Q2");
        items_at
    }

    /// Bytes still free in some open segment of probation.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn open_room_bytes(&self) -> usize {
        let open = self.open.any(Queue::Probation).expect("an open segment");
        self.pool.segment_bytes() - self.pool.metas.get(open, crate::meta::USED) as usize
    }

    /// The oldest segment of probation.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn oldest_of_probation(&self) -> Option<u32> {
        self.queues.by_age(&self.pool.metas, Queue::Probation).next()
    }

    /// Replaces the spare segments. Returns the previous ones.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn replace_spare(&mut self, spare: Vec<u32>) -> Vec<u32> {
        std::mem::replace(&mut self.spare, spare)
    }
}
