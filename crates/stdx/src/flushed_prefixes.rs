//! A short list of prefixes of byte strings, each with the number of the last time when everything
//! with that prefix was declared dead (flushed). All threads read it.
//!
//! Upstream:   any thread adds a prefix for a flush; owners note the list, and readers on other
//!             threads read it.
//! Downstream: an owner gives each part of its memory a generation: the number of the newest flush
//!             that it has noted. A string is dead if its part is older than a flush that takes it.
//!
//! ```text
//!            flush                     all owners are done           no reader is left
//!   free ------------> live (number) ------------------------> retiring ------------> free
//!                        |      ^
//!                        +------+ flush of the same prefix: a new number
//! ```
//!
//! One flush takes few strings, so it does not kill whole parts: a lookup that finds a string in an
//! older part compares it. An owner is done with a flush when it has removed what the flush takes
//! from all older parts. From then on, its lookups need not compare.
//!
//! Invariants:
//! - G1  Each flush has a number of its own, in the order of the flushes. Numbers are compared as
//!   serial numbers, so an owner must examine a part before 2^31 flushes have followed its
//!   generation.
//! - G2  A flush is in the list before its number is the newest. So an owner that has noted the
//!   newest number, and a reader that begins after the flush has returned, see it.
//! - G3  An entry stays in the list until each owner is done with it, and no reader is left that
//!   was awake before that. So an owner never notes an entry whose bytes change while it still has
//!   an older part.
//! - G4  The bytes of an entry change only while its head is 0. A reader that finds another head
//!   after it has compared does not use the result.

use std::sync::PoisonError;

use crossbeam_utils::CachePadded;

use crate::flush_word::is_before;
use crate::quiescence::Stamp;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU64, Mutex, MutexGuard, fence};

/// The most prefixes that are being flushed at a time. All of them take 17 KiB.
pub const FLUSHED_PREFIXES_MAX: usize = if cfg!(loom) { 2 } else { 64 };

/// Bytes of the longest prefix.
pub const PREFIX_BYTES_MAX: usize = 250;

/// Words of the longest prefix. A model has short ones.
const WORDS: usize = if cfg!(loom) { 1 } else { PREFIX_BYTES_MAX.div_ceil(8) };

const _: () = assert!(FLUSHED_PREFIXES_MAX <= 64, "the live entries are the bits of a word");

/// Set in a head if the prefix ends at a boundary.
const BOUNDED: u64 = 1 << 16;

/// A prefix of byte strings, which is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytePrefix<'p> {
    bytes: &'p [u8],
    /// What follows the prefix in a longer string. `None`: any byte.
    delimiter: Option<u8>,
}

impl<'p> BytePrefix<'p> {
    /// The strings that begin with these bytes. `None` if there are none, or too many.
    #[must_use]
    pub fn of_bytes(bytes: &'p [u8]) -> Option<Self> {
        let is_prefix = (1..=PREFIX_BYTES_MAX).contains(&bytes.len());
        is_prefix.then_some(Self { bytes, delimiter: None })
    }

    /// The string `name`, and all below it: those that begin with `name` and `delimiter`. If `name`
    /// ends with the delimiter, it takes all strings that begin with it. `None` if the name is
    /// empty or too long.
    #[must_use]
    pub fn of_name(name: &'p [u8], delimiter: u8) -> Option<Self> {
        let is_open = name.last() == Some(&delimiter);
        let bounded = |prefix| Self { delimiter: (!is_open).then_some(delimiter), ..prefix };
        Self::of_bytes(name).map(bounded)
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(&self) -> &'p [u8] {
        self.bytes
    }

    /// What follows the prefix in a longer string. `None`: any byte.
    #[must_use]
    pub const fn delimiter(&self) -> Option<u8> {
        self.delimiter
    }

    /// Whether this prefix takes `string`.
    #[must_use]
    pub fn takes(&self, string: &[u8]) -> bool {
        let Some(rest) = string.strip_prefix(self.bytes) else { return false };
        let (next, delimiter) = (rest.first(), self.delimiter);
        delimiter.is_none_or(|delimiter| next.is_none_or(|&byte| byte == delimiter))
    }

    /// The head of an entry of this prefix with this number.
    const fn head(&self, number: u32) -> Head {
        let bound = match self.delimiter {
            None => 0,
            Some(byte) => BOUNDED | (byte as u64) << 8,
        };
        Head((number as u64) << 32 | bound | self.bytes.len() as u64)
    }
}

/// The list is full of other prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyPrefixes;

/// What an entry is, in one word: `number:32 | 0:15 | bounded:1 | delimiter:8 | length:8`; 0 if it
/// is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head(u64);

impl Head {
    const fn number(self) -> u32 {
        (self.0 >> 32) as u32
    }

    const fn length(self) -> usize {
        (self.0 & 0xff) as usize
    }

    /// Whether the prefix, which `string` begins with, takes it.
    fn is_at_boundary(self, string: &[u8]) -> bool {
        let delimiter = (self.0 >> 8) as u8;
        self.0 & BOUNDED == 0 || string.get(self.length()).is_none_or(|&byte| byte == delimiter)
    }
}

/// A prefix in memory that all threads read.
struct Entry {
    head: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Entry {
    fn free() -> Self {
        Self { head: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Makes a free entry that of a prefix (G4).
    fn write(&self, prefix: &BytePrefix<'_>, number: u32) {
        debug_assert!(self.head.load(Relaxed) == 0, "G4");
        fence(Release);
        for (word, bytes) in self.words.iter().zip(prefix.bytes.chunks(8)) {
            word.store(word_of(bytes), Relaxed);
        }
        self.head.store(prefix.head(number).0, Release);
    }

    /// Whether `string` begins with the prefix that has this head. Cost: a load for each 8 bytes
    /// that are equal.
    #[inline]
    fn begins(&self, head: Head, string: &[u8]) -> bool {
        let Some(own) = string.get(..head.length()) else { return false };
        let (chunks, rest) = own.as_chunks::<8>();
        for (word, bytes) in self.words.iter().zip(chunks) {
            if word.load(Relaxed) != u64::from_le_bytes(*bytes) {
                return false;
            }
        }
        rest.is_empty() || self.words[chunks.len()].load(Relaxed) == word_of(rest)
    }
}

/// Up to eight bytes as a word; zeros follow them.
fn word_of(bytes: &[u8]) -> u64 {
    debug_assert!(bytes.len() <= 8, "a word has eight bytes");
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// What all threads load with each lookup, on a cache line of its own. Only flushes and the end of
/// one write it.
struct Shared {
    /// The number of the newest flush.
    newest: AtomicU64,
    /// The live entries, one bit each.
    live: AtomicU64,
}

/// What is changed under the lock.
struct Books {
    /// For each owner the newest flush with which it is done.
    done: Vec<u32>,
    /// All owners are done with the flushes up to this number. No reader that has begun after the
    /// stamp needs them.
    retiring: Option<(u32, Stamp)>,
}

impl Books {
    /// The newest flush with which all owners are done. How far each of them is behind `newest` is
    /// compared, because numbers are serial (G1).
    fn done_through(&self, newest: u32) -> u32 {
        let behind = self.done.iter().map(|done| newest.wrapping_sub(*done)).max();
        newest.wrapping_sub(behind.unwrap_or(0))
    }
}

/// The flushed prefixes of a process.
pub struct FlushedPrefixes {
    shared: CachePadded<Shared>,
    entries: Box<[Entry]>,
    books: Mutex<Books>,
}

/// The list as an owner has noted it: the numbers of its entries. All operations of the owner use
/// it until the owner notes the list again.
pub struct NotedPrefixes {
    newest: u32,
    live: u64,
    numbers: [u32; FLUSHED_PREFIXES_MAX],
}

impl Default for NotedPrefixes {
    fn default() -> Self {
        Self { newest: 0, live: 0, numbers: [0; FLUSHED_PREFIXES_MAX] }
    }
}

impl NotedPrefixes {
    /// The number of the newest flush that was noted.
    #[inline]
    pub const fn newest(&self) -> u32 {
        self.newest
    }

    /// Whether a flush was noted that came after this generation.
    pub const fn is_after(&self, generation: u32) -> bool {
        is_before(generation, self.newest)
    }
}

/// The numbers of the bits that are set.
fn places(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        bits &= bits.checked_sub(1)?;
        Some(place)
    })
}

impl FlushedPrefixes {
    /// An empty list for this number of owners. Cost: 17 KiB.
    #[must_use]
    pub fn new(owners: u16) -> Self {
        let books = Books { done: vec![0; owners.into()], retiring: None };
        Self {
            shared: CachePadded::new(Shared { newest: AtomicU64::new(0), live: AtomicU64::new(0) }),
            entries: (0..FLUSHED_PREFIXES_MAX).map(|_| Entry::free()).collect(),
            books: Mutex::new(books),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn newest(&self) -> u32 {
        self.shared.newest.load(Acquire) as u32
    }

    /// Whether a prefix is being flushed. Cost: a load.
    #[inline]
    pub fn is_any_live(&self) -> bool {
        self.shared.live.load(Acquire) != 0
    }

    /// The number of prefixes that are being flushed.
    pub fn live(&self) -> usize {
        self.shared.live.load(Relaxed).count_ones() as usize
    }

    /// Kills all that was stored so far, by any owner, under a string that the prefix takes. A
    /// flush of a prefix that is live takes no further entry.
    ///
    /// Cost: one look at each entry, whatever is stored. Errors: the list is full of other
    /// prefixes, and nothing is flushed.
    pub fn flush(&self, prefix: &BytePrefix<'_>) -> Result<(), TooManyPrefixes> {
        let _one = self.lock();
        let live = self.shared.live.load(Relaxed);
        let number = self.newest().wrapping_add(1);
        if let Some(place) = self.place_of(live, prefix) {
            self.entries[place].head.store(prefix.head(number).0, Release);
        } else {
            let place = live.trailing_ones() as usize;
            let entry = self.entries.get(place).ok_or(TooManyPrefixes)?;
            entry.write(prefix, number);
            self.shared.live.store(live | 1 << place, Release);
        }
        self.shared.newest.store(number.into(), Release); // G2
        Ok(())
    }

    /// Whether a flush of the prefix would be refused now: the list is full of other prefixes.
    pub fn is_full_for(&self, prefix: &BytePrefix<'_>) -> bool {
        let _one = self.lock();
        let live = self.shared.live.load(Relaxed);
        let is_full = live.trailing_ones() as usize >= FLUSHED_PREFIXES_MAX;
        is_full && self.place_of(live, prefix).is_none()
    }

    /// The place of a prefix among the live entries. The caller holds the lock.
    fn place_of(&self, live: u64, prefix: &BytePrefix<'_>) -> Option<usize> {
        places(live).find(|&place| {
            let head = Head(self.entries[place].head.load(Relaxed));
            head == prefix.head(head.number()) && self.entries[place].begins(head, prefix.bytes)
        })
    }

    /// Whether `noted` is the list as it is now. Cost: one load.
    #[inline]
    pub fn is_noted(&self, noted: &NotedPrefixes) -> bool {
        self.newest() == noted.newest
    }

    /// Notes the list for an owner.
    pub fn note(&self, noted: &mut NotedPrefixes) {
        let _one = self.lock();
        let newest = self.newest();
        debug_assert!(!is_before(newest, noted.newest), "G1");
        noted.newest = newest;
        noted.live = self.shared.live.load(Relaxed);
        for place in places(noted.live) {
            noted.numbers[place] = Head(self.entries[place].head.load(Relaxed)).number();
        }
    }

    /// Whether this string, in a part of this generation, was flushed before the owner has noted
    /// the list.
    ///
    /// The entries that decide are live, because the owner has a part that is older (G3).
    pub fn has_flushed(&self, noted: &NotedPrefixes, string: &[u8], generation: u32) -> bool {
        places(noted.live).any(|place| {
            let entry = &self.entries[place];
            let head = Head(entry.head.load(Acquire));
            debug_assert!(!is_before(generation, noted.numbers[place]) || head.0 != 0, "G3");
            is_before(generation, noted.numbers[place])
                && entry.begins(head, string)
                && head.is_at_boundary(string)
        })
    }

    /// Whether this string, in a part of this generation, was flushed: for a reader that does not
    /// own it. `None` if an entry has changed meanwhile, so this is not known (G4).
    pub fn has_flushed_beside(&self, string: &[u8], generation: u32) -> Option<bool> {
        for place in places(self.shared.live.load(Acquire)) {
            let entry = &self.entries[place];
            let head = Head(entry.head.load(Acquire));
            if head.0 == 0 || !is_before(generation, head.number()) {
                continue;
            }
            if entry.begins(head, string) && head.is_at_boundary(string) {
                fence(Acquire);
                let is_same = entry.head.load(Relaxed) == head.0;
                return is_same.then_some(true);
            }
        }
        Some(false)
    }

    /// The owner `owner` has nothing older than flush `number` that a flush takes.
    pub fn note_done(&self, owner: u16, number: u32) {
        let done = &mut self.lock().done[usize::from(owner)];
        debug_assert!(!is_before(number, *done), "G1");
        *done = number;
    }

    /// Ends the flushes with which all owners are done, in two steps (G3): draws a `stamp`, and
    /// frees the entries once `is_past` says that no reader from before it is left. Does nothing if
    /// another thread is at it.
    ///
    /// Cost: a look at each entry.
    pub fn retire(&self, stamp: impl FnOnce() -> Stamp, is_past: impl FnOnce(Stamp) -> bool) {
        let Ok(mut books) = self.books.try_lock() else { return };
        let live = self.shared.live.load(Relaxed);
        let is_older = |place: &usize, through: u32| {
            let head = Head(self.entries[*place].head.load(Relaxed));
            !is_before(through, head.number())
        };
        if books.retiring.is_none() {
            let through = books.done_through(self.newest());
            let is_any = places(live).any(|place| is_older(&place, through));
            books.retiring = is_any.then(|| (through, stamp()));
        }
        let Some((through, stamp)) = books.retiring else { return };
        if !is_past(stamp) {
            return;
        }
        books.retiring = None;
        let over = |place: &usize| is_older(place, through);
        let left = places(live).filter(over).fold(live, |left, place| left & !(1 << place));
        self.shared.live.store(left, Release);
        for place in places(live & !left) {
            self.entries[place].head.store(0, Relaxed);
        }
    }
}

impl std::fmt::Debug for FlushedPrefixes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("FlushedPrefixes")
            .field("live", &self.live())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for NotedPrefixes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("NotedPrefixes")
            .field("newest", &self.newest)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Quiescence;

    fn name(bytes: &[u8]) -> BytePrefix<'_> {
        BytePrefix::of_name(bytes, b':').expect("a name")
    }

    fn bytes(bytes: &[u8]) -> BytePrefix<'_> {
        BytePrefix::of_bytes(bytes).expect("a prefix")
    }

    #[test]
    fn a_name_ends_at_a_boundary_and_bytes_anywhere() {
        let long = [b'k'; PREFIX_BYTES_MAX + 1];
        for (prefix, string, is_taken) in [
            (name(b"user:1"), &b"user:1"[..], true),
            (name(b"user:1"), b"user:1:a", true),
            (name(b"user:1"), b"user:1:", true),
            (name(b"user:1"), b"user:10", false),
            (name(b"user:1"), b"user:", false),
            (name(b"user:"), b"user:1", true),
            (name(b"user:"), b"user:", true),
            (name(b"user:"), b"user", false),
            (bytes(b"user:1"), b"user:10", true),
            (bytes(b"user:1"), b"user:1", true),
            (bytes(b"user:1"), b"user:2", false),
            (name(&long[..250]), &long[..250], true),
            (name(&long[..249]), &long[..250], false),
            (bytes(&long[..249]), &long[..250], true),
            (name(b"eight by"), b"eight by:", true),
            (name(b"eight by"), b"eight bytes", false),
            (bytes(b"\0\0"), b"\0", false),
        ] {
            assert_eq!(prefix.takes(string), is_taken, "{prefix:?} {string:?}");
            let list = FlushedPrefixes::new(1);
            list.flush(&prefix).expect("room");
            let mut noted = NotedPrefixes::default();
            list.note(&mut noted);
            assert_eq!(list.has_flushed_beside(string, 0), Some(is_taken), "{prefix:?} {string:?}");
            assert_eq!(list.has_flushed(&noted, string, 0), is_taken, "{prefix:?} {string:?}");
            assert!(!list.has_flushed(&noted, string, 1), "it was stored later");
        }
        assert_eq!(BytePrefix::of_bytes(&long), None);
        assert_eq!(BytePrefix::of_name(b"", b':'), None);
    }

    #[test]
    fn a_flush_ends_when_all_owners_are_done_and_no_reader_is_left() {
        let quiescence = Arc::new(Quiescence::new(1));
        let mut reader = quiescence.register().expect("a place");
        let list = FlushedPrefixes::new(2);
        list.flush(&name(b"a")).expect("room");
        let end = || list.retire(|| quiescence.stamp(), |stamp| quiescence.is_past(stamp));
        list.note_done(0, 1);
        end();
        list.flush(&name(b"b")).expect("room");
        list.note_done(1, 2);
        end();
        assert_eq!(list.has_flushed_beside(b"a", 0), Some(true), "a reader is left");
        list.note_done(0, 2);
        reader.round_over();
        end();
        assert_eq!((list.has_flushed_beside(b"a", 0), list.live()), (Some(false), 1));
        assert_eq!(list.has_flushed_beside(b"b", 0), Some(true), "that was noted too late");
        end();
        assert_eq!(list.live(), 1, "a reader may be in an item of before");
        reader.round_over();
        end();
        assert_eq!((list.has_flushed_beside(b"b", 0), list.live()), (Some(false), 0));
    }

    #[test]
    fn the_same_prefix_takes_one_entry_and_too_many_others_are_refused() {
        let list = FlushedPrefixes::new(1);
        for number in 0..FLUSHED_PREFIXES_MAX {
            list.flush(&name(format!("{number}").as_bytes())).expect("room");
        }
        assert_eq!(list.flush(&name(b"more")), Err(TooManyPrefixes));
        assert!(list.is_full_for(&name(b"more")) && !list.is_full_for(&name(b"1")));
        assert_eq!(list.flush(&bytes(b"1")), Err(TooManyPrefixes), "it is another prefix");
        let before = list.newest();
        list.flush(&name(b"1")).expect("it is in the list");
        assert_eq!((list.newest(), list.live()), (before + 1, FLUSHED_PREFIXES_MAX));
        assert_eq!(list.has_flushed_beside(b"1:x", before), Some(true));
        assert_eq!(list.has_flushed_beside(b"2:x", before), Some(false), "it was stored later");
        list.note_done(0, before);
        list.retire(|| Quiescence::new(0).stamp(), |_| true);
        assert_eq!(list.live(), 1, "its last flush is newer");
    }
}
