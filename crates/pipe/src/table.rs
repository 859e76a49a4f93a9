//! The table of copies that the program in the kernel answers from.
//!
//! Upstream:   `kachel_engine::Copies`: an engine drops copies and takes their reads, `shard`
//!             offers items.
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
//! Linux/NUMA systems", 2005; a hand chooses victims as in CLOCK (Corbato, 1968), by the second of
//! their last read, among the eight ways of a bucket.

use std::ops::Add;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kachel_engine::{CopiedItem, Copies, CopyReads, FlushStamp};
use kachel_host::SharedWords;

use crate::counts::PipeCounts;
use crate::layout::{
    BUSY, KEY_BYTES_MAX, LANES_MAX, PLACE_WORDS, PLACES_MAX, SLOT_WORDS, VALUE_BYTES_MAX, WAYS,
    setting, slot,
};
use crate::places::{PipeNetwork, Place, address_bit};
use crate::read_copies::{DroppedCopies, ReadCopy};
use crate::recent::Recent;

/// The facts about the server that the program needs.
#[derive(Clone, Debug)]
pub struct PipeOptions {
    /// The keys of the secret hash of the server's keys.
    pub hash_keys: [u64; 2],
    /// When the first second of the server began, in nanoseconds of the monotonic clock. It has
    /// wrapped if that was before the machine began: a server goes on from an earlier one.
    pub start_ns: u64,
    /// The time now, in nanoseconds of the monotonic clock: the first word of the server.
    pub now_ns: u64,
    /// A reply has at most this many times the bytes of its request, frames included.
    pub reply_times: u32,
    /// The addresses and ports to answer at; the first 16 count.
    pub places: Vec<Place>,
    /// The network of the interface.
    pub network: PipeNetwork,
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
    /// The next way of each bucket to be a victim.
    hands: Box<[AtomicU8]>,
    recent: Recent,
    /// The reads of each slot's copy that engines have taken.
    taken: Box<[AtomicU32]>,
    /// The copies that were dropped, for the next look.
    pub(crate) dropped: DroppedCopies,
    /// Held while the number of flushes changes.
    flushing: Mutex<()>,
    /// Held while the pipe is switched on or off.
    phase: Mutex<Phase>,
    /// Where the pipe answers as long as the interface has these addresses.
    places: OnceLock<Vec<Place>>,
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

/// Bytes that a slot takes in all parts of the table.
const BYTES_PER_SLOT: usize = (SLOT_WORDS + 1 + LANES_MAX) * 8 + size_of::<u32>() + 1;

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
            hands: (0..buckets).map(|_| AtomicU8::new(0)).collect(),
            recent: Recent::new(),
            taken: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            dropped: DroppedCopies::default(),
            flushing: Mutex::new(()),
            phase: Mutex::new(Phase::Unused),
            places: OnceLock::new(),
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
        set(setting::BEAT_NS, options.now_ns);
        set(setting::HASH_KEYS, options.hash_keys[0]);
        set(setting::HASH_KEYS + 1, options.hash_keys[1]);
        set(setting::BUCKET_MASK, self.hands.len() as u64 - 1);
        set(setting::LANE_MASK, self.lanes as u64 - 1);
        set(setting::REPLY_TIMES, options.reply_times.into());
        let places: Vec<Place> = options.places.iter().take(PLACES_MAX).copied().collect();
        let words = places.iter().flat_map(Place::words);
        (setting::PLACES..).zip(words).for_each(|(at, word)| set(at, word));
        self.places.set(places).expect("it begins once");
        self.note_network(&options.network);
        for port in (0..=u16::MAX).filter(|port| is_closed(*port)) {
            let (at, bit) = (setting::CLOSED_PORTS + usize::from(port / 64), port % 64);
            set(at, settings[at].load(Relaxed) | 1 << bit);
        }
        *phase = Phase::Serving;
        settings[setting::ON].store(1, Release);
    }

    /// Tells the program the network of the interface. It answers at no address that the interface
    /// has lost, and from no address that is closed. An address that was closed once stays closed.
    ///
    /// Cost: a few stores for each address.
    pub fn note_network(&self, network: &PipeNetwork) {
        self.setting(setting::MAC).store(network.mac_word(), Relaxed);
        let places = self.places.get().map_or(&[][..], Vec::as_slice);
        debug_assert!(places.len() <= PLACES_MAX, "the others are left out");
        for (number, place) in places.iter().enumerate() {
            let is_there = network.addresses.contains(&place.address.ip());
            let [front, back, ..] = if is_there { place.words() } else { [0; PLACE_WORDS] };
            let at = setting::PLACES + number * PLACE_WORDS;
            // Between the two stores it is half an address, which is nobody's.
            self.setting(at).store(front, Relaxed);
            self.setting(at + 1).store(back, Relaxed);
        }
        let own = places.iter().map(|place| place.address.ip());
        for bit in network.closed.iter().copied().chain(own).map(address_bit) {
            let at = setting::CLOSED_ADDRESSES + usize::from(bit / 64);
            self.setting(at).fetch_or(1 << (bit % 64), Relaxed);
        }
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

    pub(crate) fn setting(&self, at: usize) -> &AtomicU64 {
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

    /// The words of a slot's reads, one a lane.
    fn hits_of(&self, slot: usize) -> impl Iterator<Item = &AtomicU64> {
        (0..self.lanes).map(move |lane| &self.memory.hits[lane * self.slots + slot])
    }

    /// The copy in a slot, with its reads. `None` if there is none, or if another core writes it
    /// (I2).
    pub(crate) fn read_copy(&self, slot: usize) -> Option<ReadCopy> {
        let (tag, words) = (&self.memory.buckets[slot], self.words(slot));
        let secret_hash = tag.load(Acquire);
        let version = words[slot::VERSION].load(Acquire);
        let load = |at: usize| words[at].load(Relaxed);
        if secret_hash <= BUSY || !version.is_multiple_of(2) || load(slot::HASH) != secret_hash {
            return None;
        }
        let lengths = load(slot::LENGTHS);
        let key_bytes = usize::from(lengths as u16).min(KEY_BYTES_MAX);
        let value_bytes = usize::from((lengths >> 16) as u16);
        let mut key = [0; KEY_BYTES_MAX];
        for (at, bytes) in key.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&load(slot::TEXT + at).to_le_bytes());
        }
        let reads = self.reads_of(slot);
        fence(Acquire);
        let is_same = load(slot::VERSION) == version && tag.load(Relaxed) == secret_hash;
        let copy = ReadCopy { slot, version, secret_hash, key, key_bytes, value_bytes, reads };
        is_same.then_some(copy)
    }

    /// How often the copy in a slot was read. The number wraps around.
    fn reads_of(&self, slot: usize) -> u32 {
        let counted = self.hits_of(slot).map(|hits| hits.load(Relaxed) as u32);
        counted.fold(self.taken[slot].load(Relaxed), u32::wrapping_add)
    }

    /// The second in which a slot was read last, or was written.
    fn last_read(&self, slot: usize) -> u32 {
        self.hits_of(slot).map(|hits| (hits.load(Relaxed) >> 32) as u32).max().unwrap_or(0)
    }

    /// Makes a way of the bucket busy: a free one, or else one that was not read for a second.
    /// `None` if there is none, or others do the same.
    fn claim(&self, first: usize, second: u32) -> Option<usize> {
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
        for _ in 0..WAYS {
            let way = usize::from(hand.load(Relaxed)) % WAYS;
            hand.store(((way + 1) % WAYS) as u8, Relaxed);
            let tag = tags[way].load(Relaxed);
            if tag == BUSY || self.last_read(first + way) + 1 >= second {
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
        put_text(&words[slot::HEAD..slot::CAS], head.as_bytes());
        put_text(&words[slot::CAS_TEXT..slot::RESERVED], cas_text.as_bytes());
        let value_at = slot::TEXT + key.len().div_ceil(8);
        put_text(&words[slot::TEXT..value_at], key);
        put_text(&words[value_at..value_at + value.len().div_ceil(8)], value);
        words[slot::VERSION].store(version + 2, Release);
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

/// Writes bytes, and zeros up to the end of the last word.
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
        let first = self.first_slot(secret_hash);
        for (way, tag) in self.tags(first).iter().enumerate() {
            if tag.load(Relaxed) == secret_hash && secret_hash > BUSY {
                let is_noted = self.dropped.are_noted();
                let copy = if is_noted { self.read_copy(first + way) } else { None };
                // If another core has replaced it meanwhile, it is gone as well.
                if tag.compare_exchange(secret_hash, 0, AcqRel, Relaxed).is_ok() {
                    self.invalidations.fetch_add(1, Relaxed);
                    copy.into_iter().for_each(|copy| self.dropped.note(copy));
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

    fn flush_some(&self, change: &mut dyn FnMut()) {
        self.while_flushing(change);
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
        let second = self.setting(setting::SECOND).load(Relaxed) as u32;
        let Some(slot) = self.claim(self.first_slot(hash), second) else { return };
        self.write(slot, stamp, item);
        self.hits_of(slot).for_each(|hits| hits.store(u64::from(second) << 32, Relaxed));
        self.taken[slot].store(0, Relaxed);
        self.promotions.fetch_add(1, Relaxed);
        debug_assert!(self.memory.buckets[slot].load(Relaxed) == BUSY, "I1");
        self.memory.buckets[slot].store(hash, Release);
    }

    fn take_reads(&self, secret_hash: u64) -> Option<CopyReads> {
        let first = self.first_slot(secret_hash);
        let way = self.tags(first).iter().position(|tag| tag.load(Relaxed) == secret_hash)?;
        let mut reads = CopyReads { count: 0, second: 0 };
        for hits in self.hits_of(first + way) {
            if hits.load(Relaxed) as u32 != 0 {
                let taken = hits.fetch_and(!u64::from(u32::MAX), Relaxed);
                reads.count += taken & u64::from(u32::MAX);
                reads.second = reads.second.max((taken >> 32) as u32);
            }
        }
        self.taken[first + way].fetch_add(reads.count as u32, Relaxed);
        (reads.count > 0).then_some(reads)
    }

    fn answered(&self) -> u64 {
        PipeCounts::items_answered(&self.memory.counts)
    }
}
