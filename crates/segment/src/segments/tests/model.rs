//! Compares random operations with a map: items that are found are bit-exact, and each lost item
//! is reported to the index.

use std::collections::BTreeMap;

use kachel_stdx::BytePrefix;

use super::index::{Random, Shard, hash, pattern};
use crate::{Added, JoinPlace, NewItem, NewValue, Reclaimed};

#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    value: Vec<u8>,
    client_flags: u32,
    expiry: u32,
    cas: u64,
    stale: bool,
    win_sent: bool,
    remnant: bool,
    protocol_mark: bool,
}

struct Model {
    shard: Shard,
    wanted: BTreeMap<Vec<u8>, Wanted>,
    random: Random,
    now: u32,
    value_bytes_max: u64,
}

impl Model {
    fn new(limit_bytes: u64, evict: bool, seed: u64, value_bytes_max: u64) -> Self {
        let shard = Shard::new(limit_bytes, evict);
        let random = Random(seed);
        Self { shard, wanted: BTreeMap::new(), random, now: 1000, value_bytes_max }
    }

    fn key(&mut self) -> Vec<u8> {
        // Few keys are hot, so that there is something to replace.
        let bound = 1 << self.random.below(13);
        let number = self.random.below(bound);
        let width = 3 + (number % 40) as usize;
        format!("{number:0width$}").into_bytes()
    }

    /// Drops the items from the model that the segments reported as removed. Only expired and, in a
    /// cache, evicted items may be among them.
    fn settle_removed(&mut self, flushed: bool) {
        for key in std::mem::take(&mut self.shard.index.removed) {
            // The model has forgotten the items of a flushed prefix before.
            let Some(gone) = self.wanted.remove(&key) else { continue };
            let expired = gone.expiry != 0 && gone.expiry <= self.now;
            let evicts = self.shard.segments.stats().evictions > 0;
            assert!(expired || evicts || flushed, "an item vanished: {key:?}");
        }
    }

    fn store(&mut self, key: &[u8]) {
        let length = match self.random.below(20) {
            0 => self.random.below(self.value_bytes_max),
            1..=4 => self.random.below(3000),
            _ => self.random.below(200),
        };
        let value = pattern(self.random.next(), length as usize);
        let expiry = match self.random.below(4) {
            0 => 0,
            1 => self.now + 1 + self.random.below(20) as u32,
            2 => self.now + 1 + self.random.below(3000) as u32,
            _ => self.now + 1 + self.random.below(10_000_000) as u32,
        };
        let random_cas = self.random.next();
        let wanted = Wanted {
            value,
            client_flags: if self.random.below(2) == 0 { 0 } else { self.random.next() as u32 },
            expiry,
            cas: if self.random.below(10) == 0 { random_cas } else { self.shard.cas + 1 },
            stale: self.random.below(9) == 0,
            win_sent: self.random.below(9) == 0,
            remnant: self.random.below(9) == 0,
            protocol_mark: self.random.below(7) == 0,
        };
        let half = wanted.value.len() / 2;
        let mut whole = None;
        let value = match self.random.below(3) {
            0 => NewValue::Bytes(&wanted.value),
            1 => NewValue::Joined(&wanted.value[..half], &wanted.value[half..]),
            _ => {
                let pool = self.shard.segments.pool();
                let mut upload = pool.begin_upload(wanted.value.len()).expect("fits the budget");
                let step = 1 + self.random.below(40_000) as usize;
                for piece in wanted.value.chunks(step) {
                    while upload.write(piece).is_err() {
                        let (segments, index) = (&mut self.shard.segments, &mut self.shard.index);
                        if segments.make_upload_room(piece.len(), self.now, index)
                            != Reclaimed::Made
                        {
                            self.settle_removed(false);
                            return;
                        }
                    }
                }
                NewValue::Upload(whole.insert(upload))
            }
        };
        let item = NewItem {
            key,
            hash: hash(key),
            value,
            client_flags: wanted.client_flags,
            expiry: wanted.expiry,
            cas: Some(wanted.cas),
            stale: wanted.stale,
            win_sent: wanted.win_sent,
            remnant: wanted.remnant,
            protocol_mark: wanted.protocol_mark,
            replaces: self.shard.at(key),
            keeps_access: false,
        };
        let stored = self.shard.store(item, self.now);
        self.settle_removed(false);
        if stored.is_ok() {
            self.wanted.insert(key.to_vec(), wanted);
        }
    }

    /// Appends to, prepends to, or rewrites a stored value.
    fn rewrite(&mut self, key: &[u8]) {
        let Some(at) = self.shard.at(key) else { return };
        if !self.shard.segments.is_live(at, self.now) {
            return;
        }
        let mut wanted = self.wanted[key].clone();
        let added = pattern(self.random.next(), self.random.below(20_000) as usize);
        let as_upload = self.random.below(2) == 0;
        let mut whole = None;
        let value = match self.random.below(3) {
            0 => NewValue::Same(at),
            side => {
                let place = if side == 1 { JoinPlace::After } else { JoinPlace::Before };
                match place {
                    JoinPlace::After => wanted.value.extend_from_slice(&added),
                    JoinPlace::Before => drop(wanted.value.splice(0..0, added.iter().copied())),
                }
                let added = if as_upload {
                    let pool = self.shard.segments.pool();
                    let mut upload = pool.begin_upload(added.len()).expect("small");
                    if upload.write(&added).is_err() {
                        return;
                    }
                    Added::Upload(whole.insert(upload))
                } else {
                    Added::Bytes(&added)
                };
                NewValue::Extended { old: at, added, place }
            }
        };
        wanted.cas = self.shard.cas + 1;
        let item = NewItem {
            client_flags: wanted.client_flags,
            expiry: wanted.expiry,
            stale: wanted.stale,
            win_sent: wanted.win_sent,
            remnant: wanted.remnant,
            protocol_mark: wanted.protocol_mark,
            keeps_access: true,
            ..self.shard.new_item(key, value)
        };
        let stored = self.shard.store(item, self.now);
        self.settle_removed(false);
        if stored.is_ok() {
            self.wanted.insert(key.to_vec(), wanted);
        }
    }

    fn touch(&mut self, key: &[u8]) {
        let Some(at) = self.shard.at(key) else { return };
        if !self.shard.segments.is_live(at, self.now) {
            return;
        }
        let expiry = match self.random.below(3) {
            0 => 0,
            _ => self.now + 1 + self.random.below(5000) as u32,
        };
        self.shard.segments.set_expiry(at, expiry);
        self.shard.segments.set_win_sent(at);
        let wanted = self.wanted.get_mut(key).expect("what is live is wanted");
        wanted.expiry = expiry;
        wanted.win_sent = true;
    }

    fn check(&mut self, key: &[u8]) {
        let Some(wanted) = self.wanted.get(key) else {
            assert!(!self.is_live(key), "nothing is found that is not wanted");
            return;
        };
        let at = self.shard.at(key).expect("what is wanted is found");
        let segments = &self.shard.segments;
        let alive = wanted.expiry == 0 || wanted.expiry > self.now;
        assert_eq!(segments.is_live(at, self.now), alive);
        assert!(segments.key_is(at, key) && !segments.key_is(at, b"another"));
        let item = segments.item(at);
        assert!(item.value().equals(&wanted.value));
        let found = Wanted {
            value: item.value().parts().collect::<Vec<_>>().concat(),
            client_flags: item.client_flags(),
            expiry: item.expiry(),
            cas: item.cas(),
            stale: item.stale(),
            win_sent: item.win_sent(),
            remnant: item.is_remnant(),
            protocol_mark: item.protocol_mark(),
        };
        assert_eq!(found, *wanted);
        segments.note_access(at, self.now);
        assert!(segments.item(at).fetched());
    }

    fn is_live(&self, key: &[u8]) -> bool {
        let at = self.shard.at(key);
        at.is_some_and(|at| self.shard.segments.is_live(at, self.now))
    }

    /// Flushes the keys that begin with this one, without up to two of its last bytes.
    fn flush_prefix(&mut self, key: &[u8]) {
        let length = key.len() - self.random.below(3) as usize;
        let prefix = BytePrefix::of_bytes(&key[..length]).expect("some bytes");
        let segments = &mut self.shard.segments;
        if segments.pool().flushed_prefixes().flush(&prefix).is_ok() {
            segments.note_flush(self.now, &mut self.shard.index);
            self.settle_removed(false);
            self.wanted.retain(|key, _| !prefix.takes(key));
        }
    }

    fn flush(&mut self) {
        let before = self.shard.index.map.clone();
        self.shard.flush(self.now);
        for &at in before.values() {
            assert!(!self.shard.segments.is_live(at, self.now), "flushed at once");
        }
        // The items that are stored now must survive the reclaiming of flushed ones.
        self.wanted.clear();
        for key in before.into_keys().step_by(3) {
            self.shard.delete(&key);
        }
        while self.shard.segments.maintain(self.now, &mut self.shard.index, 50) > 0 {}
        self.settle_removed(true);
        assert!(self.shard.index.map.is_empty());
        assert_eq!(self.shard.segments.stats().items, 0);
    }

    fn step(&mut self) {
        let key = self.key();
        match self.random.below(200) {
            0..=79 => self.store(&key),
            80..=89 => self.rewrite(&key),
            90..=99 => self.touch(&key),
            100..=109 => {
                let was_found = self.shard.at(&key).is_some() && !self.is_live(&key);
                let found = self.shard.delete(&key);
                assert!(found == self.wanted.remove(&key).is_some() || was_found, "{key:?}");
            }
            110..=111 => self.now += self.random.below(12) as u32,
            115..=119 => {
                let items = self.random.below(300) as usize;
                self.shard.segments.maintain(self.now, &mut self.shard.index, items);
                self.settle_removed(false);
            }
            120 if self.random.below(100) == 0 => self.flush(),
            121 if self.random.below(10) == 0 => self.flush_prefix(&key),
            _ => self.check(&key),
        }
    }

    fn run(&mut self, steps: usize) {
        for step in 0..steps {
            self.step();
            if step % 1000 == 0 {
                let mut alive = self.shard.segments.audit();
                let mut indexed: Vec<_> = self.shard.index.map.values().copied().collect();
                alive.sort_unstable();
                indexed.sort_unstable();
                assert_eq!(alive, indexed, "the index names what lives, and nothing else");
            }
            let budget = &self.shard.budget;
            assert!(budget.spent_bytes() <= budget.limit_bytes());
        }
        let keys: Vec<_> = self.wanted.keys().cloned().collect();
        for key in keys {
            self.check(&key);
        }
    }
}

#[test]
fn a_cache_gives_back_what_was_stored() {
    for seed in 1..=4 {
        let mut model = Model::new(2 << 20, true, seed, 100_000);
        model.run(20_000);
        assert!(model.shard.segments.stats().evictions > 0, "memory was full");
    }
}

#[test]
fn a_cache_of_small_items_gives_back_what_was_stored() {
    for seed in 1..=3 {
        let mut model = Model::new(2 << 20, true, seed, 16_384);
        model.run(30_000);
        assert!(model.shard.segments.stats().compacted > 0, "memory was full");
    }
}

#[test]
fn a_store_loses_nothing() {
    for seed in 1..=3 {
        let mut model = Model::new(16 << 20, false, seed, 100_000);
        model.run(20_000);
        assert_eq!(model.shard.segments.stats().evictions, 0);
    }
}
