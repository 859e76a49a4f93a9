//! Two shards on two threads over one pool, which hand each other uploads and pinned values.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use kachel_host::Budget;

use super::index::{MapIndex, Random, hash, pattern, read_pinned};
use crate::{NewItem, NewValue, Pinned, Pool, PoolOptions, SegmentOptions, Segments, Upload};

/// A message from one thread to the other: a seed and the value made of it.
enum Parcel {
    Pinned(u64, Pinned),
    Upload(u64, Upload),
}

struct Side {
    segments: Segments,
    index: MapIndex,
    random: Random,
    sent: Sender<Parcel>,
    received: Receiver<Parcel>,
}

fn bytes_of(seed: u64) -> usize {
    match seed % 5 {
        0 => 17_000 + (seed % 60_000) as usize,
        _ => (seed % 400) as usize,
    }
}

impl Side {
    fn store(&mut self, seed: u64, value: NewValue<'_>) {
        let key = (seed % 5000).to_le_bytes();
        let item = NewItem {
            key: &key,
            hash: hash(&key),
            value,
            client_flags: seed as u32,
            expiry: 0,
            cas: Some(seed),
            stale: false,
            win_sent: false,
            remnant: false,
            protocol_mark: false,
            replaces: self.index.map.get(&key[..]).copied(),
            keeps_access: false,
        };
        let Ok(at) = self.segments.append(item, 9, &mut self.index) else { return };
        if let Some(old) = self.index.map.insert(key.to_vec(), at) {
            self.segments.kill(old);
        }
    }

    fn step(&mut self) {
        let seed = self.random.next();
        let key = (seed % 5000).to_le_bytes();
        match self.random.below(10) {
            0 => {
                let bytes = bytes_of(seed);
                let mut upload = self.segments.pool().begin_upload(bytes).expect("it is small");
                if upload.write(&pattern(seed, bytes)).is_ok() {
                    self.sent.send(Parcel::Upload(seed, upload)).expect("the other side lives");
                } else {
                    self.segments.make_upload_room(bytes, 9, &mut self.index);
                }
            }
            1 | 2 => {
                let Some(&at) = self.index.map.get(&key[..]) else { return };
                let seed = self.segments.item(at).cas();
                let pinned = self.segments.pin(at);
                self.sent.send(Parcel::Pinned(seed, pinned)).expect("the other side lives");
            }
            3 => {
                if let Some(at) = self.index.map.remove(&key[..]) {
                    self.segments.kill(at);
                }
            }
            4 => drop(self.segments.maintain(9, &mut self.index, 50)),
            _ => self.store(seed, NewValue::Bytes(&pattern(seed, bytes_of(seed)))),
        }
        match self.received.try_recv() {
            Ok(Parcel::Upload(seed, mut upload)) => {
                self.store(seed, NewValue::Upload(&mut upload));
            }
            Ok(Parcel::Pinned(seed, pinned)) => {
                let read = read_pinned(&pinned);
                assert!(read == pattern(seed, bytes_of(seed)), "a pinned value stays as it was");
            }
            Err(_nothing_yet) => {}
        }
    }
}

#[test]
fn shards_on_two_threads_share_one_pool() {
    let budget = Arc::new(Budget::new(12 << 20));
    let options = PoolOptions { engines: 2, reserve_bytes: 0, ..PoolOptions::default() };
    let pool = Pool::new(Arc::clone(&budget), options).expect("address space");
    let ((sent_0, received_1), (sent_1, received_0)) = (channel(), channel());
    let sides =
        [(0, sent_0, received_0), (1, sent_1, received_1)].map(|(shard, sent, received)| {
            let options = SegmentOptions { evict: true, cas: true, shard, item_overhead_bytes: 0 };
            let segments = Segments::new(Arc::clone(&pool), options).expect("address space");
            let random = Random(41 + u64::from(shard));
            Side { segments, index: MapIndex::default(), random, sent, received }
        });
    let threads = sides.map(|mut side| {
        std::thread::spawn(move || {
            for _ in 0..40_000 {
                side.step();
            }
            side
        })
    });
    let mut sides = threads.map(|thread| thread.join().expect("no side panics"));
    for side in &sides {
        while side.received.try_recv().is_ok() {}
    }
    assert_eq!(pool.pinned_bytes(), 0, "P2: all pins are gone");
    for side in &mut sides {
        side.segments.audit();
        for (key, &at) in &side.index.map {
            let item = side.segments.item(at);
            assert_eq!(item.key(), key);
            assert!(item.value().equals(&pattern(item.cas(), bytes_of(item.cas()))));
        }
        assert!(side.segments.stats().evictions > 0, "memory was full");
        side.segments.pool().flush_word().flush(10);
        side.segments.note_flush(10, &mut side.index);
        while side.segments.maintain(10, &mut side.index, 1000) > 0 {}
    }
    assert_eq!(pool.free_blocks(), 0, "all blocks came back");
    assert!(budget.spent_bytes() <= budget.limit_bytes());
}

#[test]
fn pins_that_come_and_go_on_many_threads_leave_the_count_exact() {
    const VALUES: usize = 3;
    let budget = Arc::new(Budget::new(12 << 20));
    let options = PoolOptions { engines: 1, reserve_bytes: 0, ..PoolOptions::default() };
    let pool = Pool::new(budget, options).expect("address space");
    let options = SegmentOptions { evict: true, cas: true, shard: 0, item_overhead_bytes: 0 };
    let segments = Segments::new(Arc::clone(&pool), options).expect("address space");
    let (sent, _nobody) = channel();
    let (_nothing, received) = channel();
    let random = Random(7);
    let mut side = Side { segments, index: MapIndex::default(), random, sent, received };
    for seed in 0..VALUES as u64 {
        side.store(5 * seed, NewValue::Bytes(&pattern(seed, 20_000)));
    }
    let places: Vec<_> = side.index.map.values().copied().collect();
    assert_eq!(places.len(), VALUES);
    let all_bytes = (pool.segment_bytes() + VALUES * crate::BLOCK_BYTES) as u64;
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (handed, pins) = std::sync::mpsc::sync_channel::<Pinned>(2);
            (handed, std::thread::spawn(move || pins.into_iter().for_each(drop)))
        })
        .collect();
    // Each pin is the last of its value now and then, and the first, on another thread.
    for turn in 0..60_000 {
        let pinned = side.segments.pin(places[turn % VALUES]);
        let counted = pool.pinned_bytes();
        // A value that is being unpinned at this moment may still count when it is pinned again.
        assert!((1..=4 * all_bytes).contains(&counted), "P2: {counted} bytes are pinned");
        threads[turn % threads.len()].0.send(pinned).expect("it takes what comes");
    }
    for (handed, thread) in threads {
        drop(handed);
        thread.join().expect("it does not panic");
    }
    assert_eq!(pool.pinned_bytes(), 0);
}
