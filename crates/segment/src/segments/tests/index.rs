//! A `HashMap` as index, and short ways to store.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use kachel_host::Budget;

use crate::{
    Index, ItemAt, NewItem, NewValue, NoSegment, Pinned, Pool, PoolOptions, SegmentOptions,
    Segments,
};

/// A map from keys to locations, and a record of the changes that the segments made to it.
#[derive(Debug, Default)]
pub(super) struct MapIndex {
    /// The hasher is the same in each run.
    pub(super) map: HashMap<Vec<u8>, ItemAt, BuildHasherDefault<DefaultHasher>>,
    pub(super) removed: Vec<Vec<u8>>,
    /// Items that were copied.
    pub(super) swings: usize,
}

impl Index for MapIndex {
    fn hash(&self, key: &[u8]) -> u64 {
        hash(key)
    }

    fn swing(&mut self, key: &[u8], from: ItemAt, to: ItemAt) {
        let slot = self.map.get_mut(key).expect("a living item is in the index");
        assert_eq!(*slot, from);
        *slot = to;
        self.swings += 1;
    }

    fn remove(&mut self, key: &[u8], at: ItemAt) {
        assert_eq!(self.map.remove(key), Some(at), "a living item is in the index");
        self.removed.push(key.to_vec());
    }
}

/// FNV-1a with a final mix: a hash as good as tests need.
pub(super) fn hash(key: &[u8]) -> u64 {
    let sum = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (sum ^ sum >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A shard's segments, its index and the budget.
pub(super) struct Shard {
    pub(super) budget: Arc<Budget>,
    pub(super) segments: Segments,
    pub(super) index: MapIndex,
    pub(super) cas: u64,
}

impl Shard {
    pub(super) fn new(limit_bytes: u64, evict: bool) -> Self {
        let [shard] = Self::sharing(limit_bytes, evict);
        shard
    }

    /// Shards that share one pool and one budget.
    pub(super) fn sharing<const N: usize>(limit_bytes: u64, evict: bool) -> [Self; N] {
        Self::sharing_cut_for(limit_bytes, limit_bytes, evict)
    }

    /// Shards that share one pool and one budget. Their segments are as long as with a limit of
    /// `cut_for_bytes`.
    pub(super) fn sharing_cut_for<const N: usize>(
        limit_bytes: u64,
        cut_for_bytes: u64,
        evict: bool,
    ) -> [Self; N] {
        let budget = Arc::new(Budget::new(cut_for_bytes));
        let options =
            PoolOptions { engines: N as u16, reserve_bytes: limit_bytes, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(&budget), options).expect("address space");
        budget.set_limit_bytes(limit_bytes);
        std::array::from_fn(|shard| {
            let options =
                SegmentOptions { evict, cas: true, shard: shard as u16, item_overhead_bytes: 0 };
            let segments = Segments::new(Arc::clone(&pool), options).expect("address space");
            Self { budget: Arc::clone(&budget), segments, index: MapIndex::default(), cas: 0 }
        })
    }

    pub(super) fn at(&self, key: &[u8]) -> Option<ItemAt> {
        self.index.map.get(key).copied()
    }

    pub(super) fn set(&mut self, key: &[u8], value: &[u8], now: u32) -> Result<ItemAt, NoSegment> {
        self.store(self.new_item(key, NewValue::Bytes(value)), now)
    }

    pub(super) fn new_item<'a>(&self, key: &'a [u8], value: NewValue<'a>) -> NewItem<'a> {
        NewItem {
            key,
            hash: hash(key),
            value,
            client_flags: 0,
            expiry: 0,
            cas: Some(self.cas + 1),
            stale: false,
            win_sent: false,
            remnant: false,
            protocol_mark: false,
            replaces: self.at(key),
            keeps_access: false,
        }
    }

    /// Appends, swings the index to the new item and kills the old.
    pub(super) fn store(&mut self, item: NewItem<'_>, now: u32) -> Result<ItemAt, NoSegment> {
        let (key, keeps_access) = (item.key, item.keeps_access);
        self.cas = self.cas.max(item.cas.unwrap_or(0).min(1 << 62));
        let at = self.segments.append(item, now, &mut self.index)?;
        if let Some(old) = self.index.map.insert(key.to_vec(), at) {
            if keeps_access {
                self.segments.move_access(old, at);
            }
            self.segments.kill(old);
        }
        Ok(at)
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        let Some(at) = self.index.map.remove(key) else { return false };
        self.segments.kill(at);
        true
    }

    /// Flushes everything, and has the segments note it.
    pub(super) fn flush(&mut self, now: u32) {
        self.segments.pool().flush_word().flush(now);
        assert!(!self.segments.is_flush_noted());
        self.segments.note_flush(now, &mut self.index);
        assert!(self.segments.is_flush_noted());
    }

    /// Flushes, and checks that no memory is in use afterwards.
    pub(super) fn assert_all_comes_back(&mut self, now: u32) {
        self.flush(now);
        self.maintain_all(now);
        assert_eq!(self.segments.stats().segments, 0, "everything came back");
        assert_eq!(self.segments.pool().free_blocks(), 0);
    }

    pub(super) fn value(&self, key: &[u8]) -> Option<Vec<u8>> {
        let at = self.at(key)?;
        Some(self.segments.item(at).value().parts().collect::<Vec<_>>().concat())
    }

    pub(super) fn maintain_all(&mut self, now: u32) {
        while self.segments.maintain(now, &mut self.index, 1000) > 0 {}
    }
}

/// A small deterministic generator (xorshift64*), so that tests need no crate.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// The whole of a pinned value.
pub(super) fn read_pinned(pinned: &Pinned) -> Vec<u8> {
    let mut read = Vec::new();
    while read.len() < pinned.total_bytes() {
        read.extend_from_slice(pinned.piece_at(read.len()));
    }
    read
}

/// Bytes that depend on `seed`, so that a mix-up of values shows.
pub(super) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut bytes = vec![0; length];
    for chunk in bytes.chunks_mut(8) {
        let word = random.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}
