//! The table of copies that the program in the kernel answers from.
//!
//! Upstream:   `kachel_engine::Copies`: an engine drops copies, `shard` offers items, takes hits.
//! Downstream: memory that the program reads (`layout`).
//!
//! ```text
//! tag of a way:   0 free --publish--> 1 busy --written--> hash of the key
//!                 ^                    ^                    |        |
//!                 |                    +--publish (victim)--+        |
//!                 +---------------------------drop_copy--------------+
//! ```
//!
//! Invariants:
//! - I1  Only the core that made a tag busy writes the slot, until it writes the tag. So a slot has
//!   one writer, without a lock.
//! - I2  The version of a slot is odd while it is written. The program copies a value between two
//!   reads of the version and uses it only if both are equal and even.
//! - I3  Once `drop_copy` returns, no run of the program that begins later finds the copy: the tag
//!   is gone, and only the holder of the item's engine writes it again.
//! - I4  Nothing is answered while a flush is under way; a copy from before it is not answered
//!   afterwards.
//! - I5  Once the pipe is switched off, no run of the program answers: this side first says so and
//!   then looks for runs that are about to answer; the program first says that it is about to, and
//!   then looks whether it may (`bpf/pipe.c`, I3).
//!
//! Source: the version is that of a sequence lock, as in Lameter, "Effective synchronization on
//! Linux/NUMA systems", 2005; victims are chosen as in CLOCK (Corbato, 1968), by reads of the last
//! second, among the eight ways of a bucket.

use std::ops::Add;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kachel_engine::{BATCH_MAX, CopiedItem, Copies, CopyHits, FlushStamp};
use kachel_host::SharedWords;

use crate::counts::PipeCounts;
use crate::layout::{BUSY, KEY_BYTES_MAX, LANES_MAX, PLACES_MAX, SLOT_WORDS, WAYS, setting, slot};
use crate::places::Place;
use crate::recent::Recent;

/// Bytes of the longest value of a copy.
pub const VALUE_BYTES_MAX: usize = 256;

/// The facts about the server that the program needs.
#[derive(Clone, Debug)]
pub struct PipeOptions {
    /// The keys of the secret hash of the server's keys.
    pub hash_keys: [u64; 2],
    /// When the first second of the server began, in nanoseconds of the monotonic clock.
    pub start_ns: u64,
    /// A reply has at most this many times the bytes of its request, frames included.
    pub reply_times: u32,
    /// The addresses and ports to answer at; the first 16 count.
    pub places: Vec<Place>,
}

/// The shared memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) settings: SharedWords,
    pub(crate) buckets: SharedWords,
    pub(crate) slots: SharedWords,
    pub(crate) hits: SharedWords,
    pub(crate) counts: SharedWords,
}

/// The table of copies.
#[derive(Debug)]
pub struct Pipe {
    pub(crate) memory: Memory,
    /// The number of slots.
    pub(crate) slots: usize,
    lanes: usize,
    /// Whether a copy was read in the second before the last one (CLOCK).
    is_used: Box<[AtomicBool]>,
    /// The next way of each bucket to be a victim.
    hands: Box<[AtomicU8]>,
    recent: Recent,
    /// Reads of copies that were replaced before anybody took their hits.
    left_hits: AtomicU64,
    /// Held while the number of flushes changes.
    flushing: Mutex<()>,
    /// Held while the pipe is switched on or off.
    phase: Mutex<Phase>,
    /// Copies that were made, that gave way to others, and that were dropped for a change.
    promotions: AtomicU64,
    demotions: AtomicU64,
    invalidations: AtomicU64,
}

/// How far the server is with the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The server has not begun: it starts, or has no address that the pipe could answer at.
    Unused,
    /// It may be switched on and off.
    Serving,
    /// The server ends.
    Ended,
}

/// Why the pipe is not switched on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// The pipe is not in use (any more).
    #[error("the pipe is not in use")]
    NotServing,
    /// The pipe is off, and a run of the program has not ended yet.
    #[error("the pipe still answers a packet")]
    StillAnswering,
}

/// How often the end of the runs is awaited. A run takes about a microsecond, so only a machine
/// that stops its processor in between needs many. A guess: it takes about a tenth of a second.
const WAITS_MAX: u32 = 100_000;

/// The number of copies, and how it came about: `items` is `promotions` less the other two, as long
/// as nothing changes meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Items {
    /// Copies in the table now, with those that a flush has covered.
    pub items: u64,
    /// The most copies that fit.
    pub items_max: u64,
    /// Copies that were made.
    pub promotions: u64,
    /// Copies that gave way to others.
    pub demotions: u64,
    /// Copies that were dropped because their item was about to change, or was copied again.
    pub invalidations: u64,
}

/// The most slots that one step of collecting reads looks at. Clients wait for a step, because it
/// is a part of a tick. A guess: the words of a slot that nobody has read are beside those of the
/// next slot, so a look costs some nanoseconds.
const SLOTS_PER_STEP: usize = 4096;
/// The most slots whose reads one step tells. Each costs the lookup of an item.
const TOLD_PER_STEP: usize = 4 * BATCH_MAX;
/// Bytes that a slot takes in all parts of the table.
const BYTES_PER_SLOT: usize = (SLOT_WORDS + 1 + LANES_MAX) * 8 + 2;

/// The number of buckets that fit into `memory_bytes`: a power of 2.
pub(crate) fn bucket_count(memory_bytes: u64) -> u32 {
    let slots = usize::try_from(memory_bytes).unwrap_or(usize::MAX) / BYTES_PER_SLOT;
    let buckets = (slots / WAYS).max(1);
    u32::try_from(buckets).map_or(1 << 31, |buckets| 1 << buckets.ilog2())
}

impl Pipe {
    /// The table in memory of `buckets` buckets, which has zeros.
    pub(crate) fn new(memory: Memory, buckets: u32) -> Self {
        let slots = buckets as usize * WAYS;
        assert!(buckets.is_power_of_two() && memory.slots.len() == slots * SLOT_WORDS);
        let lanes = memory.hits.len() / slots;
        assert!(lanes.is_power_of_two() && lanes <= LANES_MAX, "the lanes of the program");
        Self {
            memory,
            slots,
            lanes,
            is_used: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            hands: (0..buckets).map(|_| AtomicU8::new(0)).collect(),
            recent: Recent::new(),
            left_hits: AtomicU64::new(0),
            flushing: Mutex::new(()),
            phase: Mutex::new(Phase::Unused),
            promotions: AtomicU64::new(0),
            demotions: AtomicU64::new(0),
            invalidations: AtomicU64::new(0),
        }
    }

    /// Has the program answer from now on. `is_closed` says which source ports are never answered.
    pub fn begin(&self, options: &PipeOptions, is_closed: impl Fn(u16) -> bool) {
        let settings = &self.memory.settings;
        let mut phase = self.phase();
        assert!(*phase == Phase::Unused && !self.answers(), "it begins once");
        let set = |at: usize, value: u64| settings[at].store(value, Relaxed);
        set(setting::SECOND, 0);
        set(setting::START_NS, options.start_ns);
        set(setting::HASH_KEYS, options.hash_keys[0]);
        set(setting::HASH_KEYS + 1, options.hash_keys[1]);
        set(setting::BUCKET_MASK, self.hands.len() as u64 - 1);
        set(setting::LANE_MASK, self.lanes as u64 - 1);
        set(setting::REPLY_TIMES, options.reply_times.into());
        let words = options.places.iter().take(PLACES_MAX).flat_map(Place::words);
        (setting::PLACES..).zip(words).for_each(|(at, word)| set(at, word));
        for port in (0..=u16::MAX).filter(|port| is_closed(*port)) {
            let (at, bit) = (setting::CLOSED_PORTS + usize::from(port / 64), port % 64);
            set(at, settings[at].load(Relaxed) | 1 << bit);
        }
        *phase = Phase::Serving;
        settings[setting::ON].store(1, Release);
    }

    /// Switches the pipe on or off. When this returns after it was switched off, no run of the
    /// program answers (I5). It is switched on without the copies of before.
    ///
    /// Cost: a few microseconds at most, while other cores end their runs.
    ///
    /// Errors: the pipe is not in use; or a run has not ended in time, and the pipe is off.
    pub fn switch(&self, on: bool) -> Result<(), SwitchError> {
        let phase = self.phase();
        if *phase != Phase::Serving {
            return Err(SwitchError::NotServing);
        }
        let word = self.setting(setting::ON);
        if !on {
            word.swap(0, SeqCst); // I5
            let is_over = || !PipeCounts::is_any_answering(&self.memory.counts);
            let waited = (0..WAITS_MAX).any(|_| is_over() || (std::thread::yield_now(), false).1);
            return if waited { Ok(()) } else { Err(SwitchError::StillAnswering) };
        }
        if !self.answers() {
            self.while_flushing(|| {}); // I4: the copies of before are not answered.
            word.store(1, Release);
        }
        Ok(())
    }

    /// Has the program pass everything on from now on, until the process ends.
    pub fn end(&self) {
        *self.phase() = Phase::Ended;
        self.setting(setting::ON).store(0, Release);
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pipe may be switched on and off.
    pub fn is_serving(&self) -> bool {
        *self.phase() == Phase::Serving
    }

    /// Whether the program answers. It does not before [`Self::begin`].
    pub fn answers(&self) -> bool {
        self.setting(setting::ON).load(Acquire) == 1
    }

    /// The counts of the program.
    pub fn counts(&self) -> PipeCounts {
        PipeCounts::read(&self.memory.counts).fold(PipeCounts::default(), Add::add)
    }

    /// The counts of the cores that the program has run on, with the kernel's numbers of these.
    pub fn counts_by_core(&self) -> impl Iterator<Item = (usize, PipeCounts)> {
        let all = PipeCounts::read(&self.memory.counts).enumerate();
        all.filter(|(_, counts)| *counts != PipeCounts::default())
    }

    /// The number of copies, and the changes of it. Cost: a load for each slot.
    pub fn items(&self) -> Items {
        let items = self.memory.buckets.iter().filter(|tag| tag.load(Relaxed) > BUSY).count();
        debug_assert!(items <= self.slots, "a copy has a slot");
        Items {
            items: items as u64,
            items_max: self.slots as u64,
            promotions: self.promotions.load(Relaxed),
            demotions: self.demotions.load(Relaxed),
            invalidations: self.invalidations.load(Relaxed),
        }
    }

    /// Bytes of memory that the table takes.
    pub fn bytes(&self) -> u64 {
        (self.slots * BYTES_PER_SLOT) as u64
    }

    fn setting(&self, at: usize) -> &AtomicU64 {
        &self.memory.settings[at]
    }

    /// The number of the first slot of the bucket of a hash.
    fn first_slot(&self, secret_hash: u64) -> usize {
        (secret_hash as usize & (self.hands.len() - 1)) * WAYS
    }

    /// The tags of the bucket that begins with slot `first`.
    fn tags(&self, first: usize) -> &[AtomicU64] {
        &self.memory.buckets[first..first + WAYS]
    }

    fn words(&self, slot: usize) -> &[AtomicU64] {
        &self.memory.slots[slot * SLOT_WORDS..(slot + 1) * SLOT_WORDS]
    }

    /// Takes and tells the hits of some slots.
    fn tell_hits(
        &self,
        slots: &[usize],
        is_wanted: &mut dyn FnMut(u16) -> bool,
        tell: &mut dyn FnMut(&[CopyHits<'_>]),
    ) {
        debug_assert!(slots.len() <= BATCH_MAX, "a batch");
        let mut shards = [0; BATCH_MAX];
        for (shard, slot) in shards.iter_mut().zip(slots) {
            // So that the cache misses of the batch overlap.
            std::hint::black_box(self.words(*slot)[slot::KEY].load(Relaxed));
            *shard = self.words(*slot)[slot::SHARD].load(Relaxed) as u16;
        }
        let mut keys = [[0; KEY_BYTES_MAX + 8]; BATCH_MAX];
        let (mut read, mut count) = ([(0, 0, 0); BATCH_MAX], 0);
        for (&slot, shard) in slots.iter().zip(shards).filter(|(_, shard)| is_wanted(*shard)) {
            let hits = self.take_hits_of(slot);
            self.is_used[slot].store(hits > 0, Relaxed);
            if hits > 0 {
                let key_bytes = self.key_in(slot, &mut keys[count]).map_or(0, <[u8]>::len);
                read[count] = (key_bytes, shard, hits);
                count += 1;
            }
        }
        let hits: [CopyHits<'_>; BATCH_MAX] = std::array::from_fn(|place| {
            let (key_bytes, shard, count) = read[place];
            CopyHits { key: &keys[place][..key_bytes], shard, count }
        });
        if count > 0 {
            tell(&hits[..count]);
        }
    }

    /// The hits of a slot since they were last taken.
    fn take_hits_of(&self, slot: usize) -> u64 {
        let taken = self.hits_of(slot);
        taken.map(|hits| if hits.load(Relaxed) == 0 { 0 } else { hits.swap(0, Relaxed) }).sum()
    }

    /// Whether a slot was read since its reads were last taken.
    fn has_hits(&self, slot: usize) -> bool {
        self.hits_of(slot).any(|hits| hits.load(Relaxed) != 0)
    }

    /// The counters of a slot's reads, one a lane.
    fn hits_of(&self, slot: usize) -> impl Iterator<Item = &AtomicU64> {
        (0..self.lanes).map(move |lane| &self.memory.hits[lane * self.slots + slot])
    }

    /// Makes a way of the bucket busy, a free one if there is one. `None` if others do the same.
    fn claim(&self, first: usize) -> Option<usize> {
        let tags = self.tags(first);
        let claim = |way: usize, tag: u64| {
            let claimed = tags[way].compare_exchange(tag, BUSY, AcqRel, Relaxed);
            claimed.is_ok().then_some(first + way)
        };
        let free = tags.iter().position(|tag| tag.load(Relaxed) == 0);
        if let Some(slot) = free.and_then(|way| claim(way, 0)) {
            return Some(slot);
        }
        let hand = &self.hands[first / WAYS];
        for _ in 0..2 * WAYS {
            let way = usize::from(hand.load(Relaxed)) % WAYS;
            hand.store(((way + 1) % WAYS) as u8, Relaxed);
            let tag = tags[way].load(Relaxed);
            if tag == BUSY || self.is_used[first + way].swap(false, Relaxed) {
                continue;
            }
            let claimed = claim(way, tag);
            if claimed.is_some() && tag != 0 {
                self.demotions.fetch_add(1, Relaxed);
            }
            return claimed;
        }
        None
    }

    /// Writes an item into a slot that this core has claimed (I1).
    fn write(&self, slot: usize, stamp: FlushStamp, item: &CopiedItem<'_>) {
        let words = self.words(slot);
        let version = words[slot::VERSION].load(Relaxed);
        debug_assert!(version.is_multiple_of(2), "I1: one core writes a slot");
        words[slot::VERSION].store(version + 1, Relaxed);
        fence(Release); // I2: the odd version is seen before any word of the item.
        let set = |at: usize, value: u64| words[at].store(value, Relaxed);
        let flags = item.client_flags.to_string();
        let head = format!(" {flags} {}", item.value.len());
        let cas_text = format!(" {}", item.cas);
        let (key, value) = (item.key.bytes(), item.value);
        debug_assert!(head.len() <= 16 && cas_text.len() <= 24, "there is room for the numbers");
        let lengths = key.len() as u64
            | (value.len() as u64) << 16
            | (flags.len() as u64) << 32
            | (head.len() as u64) << 40
            | (cas_text.len() as u64) << 48;
        set(slot::HASH, item.key.secret_hash());
        set(slot::FLUSHES, stamp.0);
        set(slot::EXPIRY_AND_FLAGS, u64::from(item.expiry) | u64::from(item.client_flags) << 32);
        set(slot::LENGTHS, lengths);
        set(slot::CAS, item.cas);
        set(slot::SHARD, item.shard.into());
        put_text(&words[slot::HEAD..slot::CAS_TEXT], head.as_bytes());
        put_text(&words[slot::CAS_TEXT..slot::SHARD], cas_text.as_bytes());
        put_text(&words[slot::KEY..slot::VALUE], key);
        put_text(&words[slot::VALUE..], value);
        words[slot::VERSION].store(version + 2, Release);
    }

    /// The key of the copy in a slot. `None` if there is no copy, or it changes now.
    fn key_in<'b>(&self, slot: usize, bytes: &'b mut [u8; KEY_BYTES_MAX + 8]) -> Option<&'b [u8]> {
        let words = self.words(slot);
        let version = words[slot::VERSION].load(Acquire);
        let tag = self.memory.buckets[slot].load(Acquire);
        let key_bytes = (words[slot::LENGTHS].load(Relaxed) & 0xffff) as usize;
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(&words[slot::KEY..]) {
            bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        fence(Acquire);
        let is_whole = version.is_multiple_of(2) && words[slot::VERSION].load(Relaxed) == version;
        let is_it = tag > BUSY && words[slot::HASH].load(Relaxed) == tag;
        (is_whole && is_it).then(|| bytes.get(..key_bytes)).flatten()
    }

    /// Runs `change` while nothing is answered (I4).
    fn while_flushing(&self, change: impl FnOnce()) {
        let _one = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = self.setting(setting::FLUSHES_BEGUN).fetch_add(1, AcqRel);
        change();
        let done = self.setting(setting::FLUSHES_DONE).fetch_add(1, AcqRel);
        debug_assert!(begun == done, "I4: one flush at a time");
    }
}

/// Writes bytes, and zeros up to the end.
fn put_text(words: &[AtomicU64], text: &[u8]) {
    debug_assert!(text.len() <= words.len() * 8, "there is room for the text");
    for (at, word) in words.iter().enumerate() {
        let rest = text.get(at * 8..).unwrap_or_default();
        let mut bytes = [0; 8];
        let count = rest.len().min(8);
        bytes[..count].copy_from_slice(&rest[..count]);
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
}

impl Copies for Pipe {
    #[inline]
    fn drop_copy(&self, secret_hash: u64) {
        for tag in self.tags(self.first_slot(secret_hash)) {
            if tag.load(Relaxed) == secret_hash && secret_hash > BUSY {
                // If another core has replaced it meanwhile, it is gone as well.
                if tag.compare_exchange(secret_hash, 0, AcqRel, Relaxed).is_ok() {
                    self.invalidations.fetch_add(1, Relaxed);
                }
            }
        }
    }

    fn flush(&self, due: Option<u32>, change: &mut dyn FnMut()) {
        self.while_flushing(|| {
            change();
            self.setting(setting::FLUSH_DUE).store(due.unwrap_or(0).into(), Release);
        });
    }

    fn note_flushed(&self, second: u32) {
        self.while_flushing(|| {
            let due = self.setting(setting::FLUSH_DUE);
            if due.load(Relaxed) <= second.into() {
                due.store(0, Release);
            }
        });
    }

    fn tick(&self, second: u32, now_ns: u64) {
        self.setting(setting::SECOND).fetch_max(second.into(), AcqRel);
        self.setting(setting::BEAT_NS).fetch_max(now_ns, AcqRel);
    }

    fn is_hot(&self, secret_hash: u64) -> bool {
        self.answers() && self.recent.is_second(secret_hash)
    }

    fn stamp(&self) -> Option<FlushStamp> {
        let done = self.setting(setting::FLUSHES_DONE).load(Acquire);
        let begun = self.setting(setting::FLUSHES_BEGUN).load(Acquire);
        (begun == done).then_some(FlushStamp(begun))
    }

    fn publish(&self, stamp: FlushStamp, item: &CopiedItem<'_>) {
        let hash = item.key.secret_hash();
        let fits = item.key.bytes().len() <= KEY_BYTES_MAX && item.value.len() <= VALUE_BYTES_MAX;
        if !fits || hash <= BUSY {
            return;
        }
        self.drop_copy(hash); // One key has one slot.
        let Some(slot) = self.claim(self.first_slot(hash)) else { return };
        let left = self.take_hits_of(slot);
        self.left_hits.fetch_add(left, Relaxed);
        self.write(slot, stamp, item);
        self.is_used[slot].store(true, Relaxed);
        self.promotions.fetch_add(1, Relaxed);
        debug_assert!(self.memory.buckets[slot].load(Relaxed) == BUSY, "I1");
        self.memory.buckets[slot].store(hash, Release);
    }

    fn take_hits(
        &self,
        from: usize,
        is_wanted: &mut dyn FnMut(u16) -> bool,
        tell: &mut dyn FnMut(&[CopyHits<'_>]),
    ) -> Option<usize> {
        debug_assert!(from < self.slots, "a place of the table");
        let mut end = self.slots.min(from + SLOTS_PER_STEP);
        let (mut found, mut count, mut told) = ([0; BATCH_MAX], 0, 0);
        for slot in from..end {
            let is_quiet = !self.is_used[slot].load(Relaxed) && !self.has_hits(slot);
            if is_quiet || self.memory.buckets[slot].load(Relaxed) == 0 {
                continue;
            }
            found[count] = slot;
            count += 1;
            if count == BATCH_MAX {
                self.tell_hits(&found, is_wanted, tell);
                (count, told) = (0, told + BATCH_MAX);
                if told == TOLD_PER_STEP {
                    end = slot + 1;
                    break;
                }
            }
        }
        self.tell_hits(&found[..count], is_wanted, tell);
        if end < self.slots {
            return Some(end);
        }
        let count = self.left_hits.swap(0, Relaxed);
        if count > 0 {
            tell(&[CopyHits { key: b"", shard: 0, count }]);
        }
        None
    }
}
