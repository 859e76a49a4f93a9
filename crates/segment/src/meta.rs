//! The state of each segment, apart from the segment itself: one cache line for each.
//!
//! Upstream:   `segments` keeps its own segments' lines, `pool` those of block segments.
//! Downstream: `kachel_host::Region`, so that a large reservation costs no memory until used.
//!
//! ```text
//! byte 0       4       8       12      16      24      32      40      48      56      64
//!      +-------+-------+-------+-------+-------+-------+-------+-------+-------+-------+
//!      | state | owner | used  | dead  | pins  | FIFO  | bin   | expiry| epoch | slot  |
//!      |       |       |       |       | gen.  | p | n | p | n | b | m | touch | items |
//!      +-------+-------+-------+-------+-------+-------+-------+-------+-------+-------+
//! block segments keep the bitmap of their free blocks in the last word, `slot | items`.
//! ```
//!
//! Invariants:
//! - I1  All fields but `pins` are written by the segment's owner alone (block segments: under the
//!   pool's lock), so plain loads and stores of halves suffice. `gen.`, the generation, shares its
//!   word with `pins`, so its owner adds to it.
//! - I2  `pins` rises from 0 by the owner's thread alone; any thread lowers it, or raises it while
//!   it holds a pin.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use kachel_host::Region;

/// No segment, block or extent.
pub(crate) const NONE: u32 = u32::MAX;

/// Bytes of one segment's line.
pub(crate) const META_BYTES: usize = 64;

/// One 32-bit field of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field(usize, u32);

/// What the segment is now, a [`Phase`].
pub(crate) const PHASE: Field = Field(0, 0);
/// Shard, stream and TTL bucket; low bits first: shard:16 | stream:2 | bucket:14.
pub(crate) const OWNER: Field = Field(0, 32);
/// Bytes written, the segment's head included.
pub(crate) const USED: Field = Field(1, 0);
/// Bytes of dead items among them.
pub(crate) const DEAD: Field = Field(1, 32);
/// Neighbors in the queue of sealed segments, or in a list of block segments.
pub(crate) const FIFO: Links = Links(3);
/// Neighbors among segments with as much dead space.
pub(crate) const BIN: Links = Links(4);
/// The latest expiry of an appended item, without later touches; `u32::MAX` for never.
pub(crate) const EXPIRY_BASE: Field = Field(5, 0);
/// No item here lives longer than this second.
pub(crate) const EXPIRY_MAX: Field = Field(5, 32);
/// The flush epoch in which the segment was opened. A retired segment keeps it until it is opened
/// again, because a reader may still be about to compare it.
pub(crate) const EPOCH: Field = Field(6, 0);
/// The pins, in the low half of their word, and the generation in the high half: the newest flush
/// of a prefix whose keys are not in the segment, because it was opened or examined after that. A
/// retired segment keeps it, as it keeps `EPOCH`.
const PINS: usize = 2;
/// Bytes of items whose expiry was raised above `EXPIRY_BASE`.
pub(crate) const TOUCHED: Field = Field(6, 32);
/// Position in the owner's list of segments.
pub(crate) const SLOT: Field = Field(7, 0);
/// Items neither removed nor replaced.
pub(crate) const ITEMS: Field = Field(7, 32);

/// A pair of neighbors, previous in the low half.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links(usize);

impl Links {
    const fn previous(self) -> Field {
        Field(self.0, 0)
    }

    pub(crate) const fn next(self) -> Field {
        Field(self.0, 32)
    }
}

/// A segment's life: free, open, sealed, victim of a job, and back; or cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Free,
    Open,
    Sealed,
    Victim,
    Blocks,
}

impl Phase {
    fn from_word(word: u32) -> Self {
        match word {
            0 => Self::Free,
            1 => Self::Open,
            2 => Self::Sealed,
            3 => Self::Victim,
            4 => Self::Blocks,
            other => unreachable!("a phase is written from the enum, not {other}"),
        }
    }
}

/// The lines of all segments.
#[derive(Debug)]
pub(crate) struct Metas {
    region: Region,
    /// In a model the generations are words that the model knows, because readers rely on the order
    /// between a generation and the headers of items.
    #[cfg(loom)]
    generations: Box<[loom::sync::atomic::AtomicU64]>,
}

impl Metas {
    /// Lines for `segments` segments, all zero: free.
    pub(crate) fn reserve(segments: usize) -> io::Result<Self> {
        Ok(Self {
            region: Region::reserve(segments * META_BYTES, false, "the state of segments")?,
            #[cfg(loom)]
            generations: (0..segments).map(|_| loom::sync::atomic::AtomicU64::new(0)).collect(),
        })
    }

    #[inline]
    fn word(&self, segment: u32, word: usize) -> &AtomicU64 {
        &self.region.words()[segment as usize * (META_BYTES / 8) + word]
    }

    #[inline]
    pub(crate) fn get(&self, segment: u32, field: Field) -> u32 {
        (self.word(segment, field.0).load(Ordering::Relaxed) >> field.1) as u32
    }

    #[inline]
    pub(crate) fn set(&self, segment: u32, field: Field, value: u32) {
        let word = self.word(segment, field.0);
        let others = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << field.1);
        word.store(others | u64::from(value) << field.1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn add(&self, segment: u32, field: Field, amount: u32) -> u32 {
        let sum = self.get(segment, field) + amount;
        self.set(segment, field, sum);
        sum
    }

    pub(crate) fn phase(&self, segment: u32) -> Phase {
        Phase::from_word(self.get(segment, PHASE))
    }

    pub(crate) fn set_phase(&self, segment: u32, phase: Phase) {
        self.set(segment, PHASE, phase as u32);
    }

    /// The free blocks of a block segment, one bit each.
    pub(crate) fn free_blocks(&self, segment: u32) -> u64 {
        self.word(segment, 7).load(Ordering::Relaxed)
    }

    pub(crate) fn set_free_blocks(&self, segment: u32, bits: u64) {
        self.word(segment, 7).store(bits, Ordering::Relaxed);
    }

    /// Whether the segment is pinned. Once this is false, it stays false until the owner pins the
    /// segment again (I2).
    pub(crate) fn is_pinned(&self, segment: u32) -> bool {
        pins(self.word(segment, PINS).load(Ordering::Acquire)) != 0
    }

    /// Adds a pin. Returns whether it is the only one.
    pub(crate) fn pin(&self, segment: u32) -> bool {
        pins(self.word(segment, PINS).fetch_add(1, Ordering::Relaxed)) == 0
    }

    /// Removes a pin. Returns whether it was the last.
    pub(crate) fn unpin(&self, segment: u32) -> bool {
        let before = pins(self.word(segment, PINS).fetch_sub(1, Ordering::Release));
        assert!(before > 0, "I2: a segment is unpinned as often as it was pinned");
        before == 1
    }

    /// The generation of a segment. Cost: a load. What its owner did before it has set the
    /// generation is visible.
    #[inline]
    #[cfg(not(loom))]
    pub(crate) fn generation(&self, segment: u32) -> u32 {
        (self.word(segment, PINS).load(Ordering::Acquire) >> 32) as u32
    }

    #[cfg(loom)]
    pub(crate) fn generation(&self, segment: u32) -> u32 {
        self.generations[segment as usize].load(Ordering::Acquire) as u32
    }

    #[cfg(loom)]
    pub(crate) fn set_generation(&self, segment: u32, generation: u32) {
        self.generations[segment as usize].store(generation.into(), Ordering::Release);
    }

    /// Sets the generation of a segment. Pins may change meanwhile.
    #[cfg(not(loom))]
    pub(crate) fn set_generation(&self, segment: u32, generation: u32) {
        let step = generation.wrapping_sub(self.generation(segment));
        self.word(segment, PINS).fetch_add(u64::from(step) << 32, Ordering::Release);
        debug_assert!(self.generation(segment) == generation, "I1: the owner alone sets it");
    }

    /// Zeroes the line of an unpinned segment except for `EPOCH` and the generation, so that a
    /// reused segment starts clean.
    pub(crate) fn clear(&self, segment: u32) {
        debug_assert!(!self.is_pinned(segment), "I2");
        for word in (0..META_BYTES / 8).filter(|word| ![EPOCH.0, PINS].contains(word)) {
            self.word(segment, word).store(0, Ordering::Relaxed);
        }
        self.set(segment, TOUCHED, 0);
    }
}

/// The pins of a word that also has the generation.
const fn pins(word: u64) -> u32 {
    word as u32
}

/// A doubly linked list of segments. The lines of the segments hold the links.
#[derive(Debug)]
pub(crate) struct List {
    links: Links,
    head: u32,
    tail: u32,
}

impl List {
    pub(crate) const fn new(links: Links) -> Self {
        Self { links, head: NONE, tail: NONE }
    }

    pub(crate) const fn head(&self) -> Option<u32> {
        if self.head == NONE { None } else { Some(self.head) }
    }

    pub(crate) fn next(&self, metas: &Metas, segment: u32) -> Option<u32> {
        Some(metas.get(segment, self.links.next())).filter(|&next| next != NONE)
    }

    pub(crate) fn push_back(&mut self, metas: &Metas, segment: u32) {
        self.insert(metas, segment, self.tail, NONE);
    }

    /// Links `segment` right before `mark`, which is in the list.
    pub(crate) fn insert_before(&mut self, metas: &Metas, segment: u32, mark: u32) {
        self.insert(metas, segment, metas.get(mark, self.links.previous()), mark);
    }

    fn insert(&mut self, metas: &Metas, segment: u32, previous: u32, next: u32) {
        debug_assert!(previous != segment && next != segment, "a segment stands once in a list");
        metas.set(segment, self.links.previous(), previous);
        metas.set(segment, self.links.next(), next);
        match previous {
            NONE => self.head = segment,
            _ => metas.set(previous, self.links.next(), segment),
        }
        match next {
            NONE => self.tail = segment,
            _ => metas.set(next, self.links.previous(), segment),
        }
    }

    pub(crate) fn remove(&mut self, metas: &Metas, segment: u32) {
        let previous = metas.get(segment, self.links.previous());
        let next = metas.get(segment, self.links.next());
        match previous {
            NONE => {
                assert!(self.head == segment, "a segment without a previous one heads its list");
                self.head = next;
            }
            _ => metas.set(previous, self.links.next(), next),
        }
        match next {
            NONE => {
                assert!(self.tail == segment, "a segment without a next one ends its list");
                self.tail = previous;
            }
            _ => metas.set(next, self.links.previous(), previous),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_order_through_inserts_and_removals() {
        let metas = Metas::reserve(8).expect("one page");
        let mut list = List::new(FIFO);
        list.push_back(&metas, 3);
        list.push_back(&metas, 5);
        list.insert_before(&metas, 1, 3);
        list.insert_before(&metas, 4, 5);
        let order = |list: &List| {
            std::iter::successors(list.head(), |&at| list.next(&metas, at)).collect::<Vec<_>>()
        };
        assert_eq!(order(&list), [1, 3, 4, 5]);
        list.remove(&metas, 1);
        list.remove(&metas, 4);
        assert_eq!(order(&list), [3, 5]);
        list.remove(&metas, 5);
        list.remove(&metas, 3);
        assert_eq!(order(&list), [0u32; 0]);
    }

    #[test]
    fn halves_of_a_word_do_not_disturb_each_other() {
        let metas = Metas::reserve(2).expect("one page");
        metas.set(1, USED, 7);
        metas.set(1, DEAD, u32::MAX);
        metas.set(1, USED, 9);
        assert_eq!((metas.get(1, USED), metas.get(1, DEAD)), (9, u32::MAX));
        assert_eq!((metas.get(0, USED), metas.get(0, DEAD)), (0, 0));
    }

    #[test]
    fn pins_and_generation_do_not_disturb_each_other() {
        let metas = Metas::reserve(1).expect("one page");
        for generation in [7, u32::MAX, 0, 5] {
            metas.set_generation(0, generation);
            assert!(!metas.is_pinned(0));
            assert!(metas.pin(0), "the first");
            metas.set_generation(0, generation.wrapping_add(3));
            assert!(metas.is_pinned(0) && !metas.pin(0));
            assert!(!metas.unpin(0) && metas.unpin(0));
            assert_eq!(metas.generation(0), generation.wrapping_add(3));
        }
        metas.clear(0);
        assert_eq!(metas.generation(0), 8, "a reader may still be about to compare it");
    }
}
