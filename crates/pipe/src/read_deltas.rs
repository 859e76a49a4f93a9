//! Reads that copies have answered, by key, for the observer of hot keys.
//!
//! Upstream:   `table`, with the counts of its slots and with the copies that it drops.
//! Downstream: a thread of the server, which polls from time to time.
//!
//! The program counts the reads of each slot. A poll compares the counts with those of the poll
//! before. A copy that is dropped in between is noted when it is dropped.
//!
//! Invariants:
//! - L1  A read is told at most once: the count of a version of a slot is told as far as it has
//!   grown. What the engine takes of it (`take_reads`) is added to it again.
//! - L2  A poll examines at most `SLOTS_POLLED_MAX` slots, and the copies that were dropped.
//!
//! Two cores of the program that count one slot at once may lose a read (`bpf/pipe.c`), and the
//! last reads of a copy may come while it is dropped. So the numbers are at most the true ones.

use crate::read_copies::ReadCopy;
use crate::table::Pipe;

/// The most slots that a poll examines. With twice a second it takes less than 1 % of a core.
const SLOTS_POLLED_MAX: usize = 1 << 16;

/// Reads of a key that copies have answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyReads<'k> {
    /// The key.
    pub key: &'k [u8],
    /// Its secret hash.
    pub secret_hash: u64,
    /// Bytes of its value.
    pub value_bytes: usize,
    /// How often it was read.
    pub count: u32,
}

/// By how much the reads of copies have grown since they were told last. At most one of these
/// exists at a time.
#[derive(Debug)]
pub struct ReadDeltas<'p> {
    pipe: &'p Pipe,
    /// For each slot the version of its copy, and the reads of it that were told (L1).
    told: Box<[(u64, u32)]>,
    /// The next slot to examine.
    next: usize,
}

impl<'p> ReadDeltas<'p> {
    /// Begins with the counts of now. Reads of before are not told.
    pub fn begin(pipe: &'p Pipe) -> Self {
        let told = |slot| pipe.read_copy(slot).map_or((0, 0), |copy| (copy.version, copy.reads));
        let told = (0..pipe.slots).map(told).collect();
        pipe.dropped.note_all(true);
        Self { pipe, told, next: 0 }
    }

    /// Tells the reads since they were last told (L1), of some slots (L2).
    pub fn poll(&mut self, mut tell: impl FnMut(KeyReads<'_>)) {
        for copy in self.pipe.dropped.take() {
            self.tell(&copy, &mut tell);
        }
        for _ in 0..self.pipe.slots.min(SLOTS_POLLED_MAX) {
            if let Some(copy) = self.pipe.read_copy(self.next) {
                self.tell(&copy, &mut tell);
            }
            self.next = (self.next + 1) % self.pipe.slots;
        }
    }

    fn tell(&mut self, copy: &ReadCopy, tell: &mut impl FnMut(KeyReads<'_>)) {
        let (version, told) = self.told[copy.slot];
        if copy.version < version {
            return; // It was dropped before the copy that is there now was told.
        }
        let told = if copy.version == version { told } else { 0 };
        // While the engine takes reads, there seem to be fewer than were told.
        let grown = copy.reads.wrapping_sub(told);
        let count = if grown <= u32::MAX / 2 { grown } else { 0 };
        self.told[copy.slot] = (copy.version, told.wrapping_add(count));
        if count > 0 {
            let ReadCopy { secret_hash, value_bytes, .. } = *copy;
            tell(KeyReads { key: &copy.key[..copy.key_bytes], secret_hash, value_bytes, count });
        }
    }
}

impl Drop for ReadDeltas<'_> {
    fn drop(&mut self) {
        self.pipe.dropped.note_all(false);
        drop(self.pipe.dropped.take());
    }
}
