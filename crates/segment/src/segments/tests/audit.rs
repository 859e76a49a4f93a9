//! Counts everything anew, item by item, and compares it with the books.

use super::super::{BINS, Segments};
use crate::BLOCK_BYTES;
use crate::item::Item;
use crate::layout::{ItemAt, SEGMENT_HEAD_BYTES};
use crate::meta::{DEAD, EXPIRY_MAX, ITEMS, OWNER, Phase, SLOT, USED};

impl Segments {
    /// Panics where a book is wrong; returns the locations of all items not dead.
    pub(super) fn audit(&self) -> Vec<ItemAt> {
        let metas = &self.pool.metas;
        let mut items_at = Vec::new();
        let (mut dead_bytes, mut live_bytes, mut blocks, mut flushed) = (0, 0, 0, 0);
        let mut queue_bytes = [0; 2];
        for (slot, &segment) in self.own.iter().enumerate() {
            assert_eq!(metas.get(segment, SLOT) as usize, slot, "S1");
            let is_item_segment =
                matches!(metas.phase(segment), Phase::Open | Phase::Sealed | Phase::Victim);
            let owner = metas.get(segment, OWNER) as u16;
            assert!(is_item_segment && owner == self.options.shard, "S1");
            let start = self.pool.segment_start(segment);
            let (mut offset, mut dead, mut items) = (SEGMENT_HEAD_BYTES, 0, 0);
            let queue = self.queue_of(segment) as usize;
            queue_bytes[queue] += self.pool.segment_bytes();
            while offset < metas.get(segment, USED) as usize {
                let at = ItemAt::from_offset(start + offset);
                let item = Item::load(&self.pool, at);
                let bytes = item.header().item_bytes();
                offset += bytes;
                if item.header().is_dead() {
                    dead += bytes;
                    continue;
                }
                items += 1;
                items_at.push(at);
                let item_blocks = item.extent().map_or(0, |extent| extent.blocks as usize);
                live_bytes += bytes + item_blocks * BLOCK_BYTES;
                blocks += item_blocks;
                queue_bytes[queue] += item_blocks * BLOCK_BYTES;
                let expiry = super::super::reclaimer::expiry_or_never(item.expiry());
                assert!(expiry <= metas.get(segment, EXPIRY_MAX), "expiry of the segment");
            }
            assert_eq!(offset, metas.get(segment, USED) as usize);
            assert_eq!(metas.get(segment, DEAD) as usize, dead, "S2");
            assert_eq!(metas.get(segment, ITEMS), items, "S2");
            dead_bytes += dead;
            flushed += usize::from(self.is_flushed(segment));
        }
        assert_eq!(self.dead_bytes, dead_bytes, "S2");
        assert_eq!(self.live_bytes, live_bytes, "S2");
        assert_eq!(self.blocks, blocks, "S2");
        assert_eq!(self.queue_bytes, queue_bytes, "S2");
        assert_eq!(self.flushed_segments, flushed);
        assert_eq!(self.counts.items as usize, items_at.len(), "S2");
        self.audit_lists();
        items_at
    }

    fn audit_lists(&self) {
        let metas = &self.pool.metas;
        let mut listed = 0;
        for fifo in &self.fifo {
            let mut next = fifo.head();
            while let Some(segment) = next {
                listed += 1;
                assert!(self.own.contains(&segment), "S3");
                next = fifo.next(metas, segment);
            }
        }
        let closed = self.own.iter().filter(|&&at| metas.phase(at) != Phase::Open).count();
        assert!(listed >= closed && listed <= self.own.len(), "S3");
        for bin in 1..BINS {
            let mut next = self.bins[bin].head();
            while let Some(segment) = next {
                assert!(metas.phase(segment) == Phase::Sealed, "S3, S4");
                assert_eq!(self.bin_of(metas.get(segment, DEAD) as usize), bin, "S3");
                next = self.bins[bin].next(metas, segment);
            }
        }
    }
}
