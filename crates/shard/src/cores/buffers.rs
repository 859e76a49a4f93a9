//! Memory of requests that wait: what it is charged, and the buffers of their texts and answers.
//!
//! Upstream:   `records`, for the texts of requests that are parked; `parked` and `listing`, for
//!             answers; `tick`, which has unused buffers freed.
//! Downstream: the budget of the process.
//!
//! ```text
//! core: a few buffers of each size <--take, give--> records and answers
//!               | ^
//!          full | | empty
//!               v |
//! process: all other unused buffers --(unused for a while)--> freed
//! ```
//!
//! A core that leaves a request with another core lends it a buffer for the answer, if it has one,
//! and gets it back with the answer. A core that executes a request without one takes its own. If
//! the request has to wait, the core that has tried to execute it keeps the buffer.
//!
//! Invariants:
//! - B1  The memory of all records and buffers is charged to `-m`, whether they are in use or not.
//!   A request that would need more memory than `-m`, overdrawn by `OVERDRAFT_BYTES_PER_CORE` for
//!   each core, has to wait (`records`, R1). Only answers are charged whether they fit or not:
//!   a connection keeps room for each of them (`kachel_net`, I5 of `outbox`).
//! - B2  A buffer keeps the capacity with which it was made: all code that writes to one asserts
//!   that the bytes fit. So it is refunded what was charged.
//! - B3  No more buffers are made than were ever in use at once, besides those that each core
//!   keeps; buffers that nobody has used in a period of `trim` are freed (`spares`, S1).
//!
//! Source: a core's own buffers and those of the process are the magazines and the depot of Bonwick
//! and Adams, "Magazines and Vmem", USENIX 2001.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use kachel_engine::INLINE_VALUE_BYTES_MAX;
use kachel_host::Budget;
use kachel_wire::request::{KEY_BYTES_MAX, LINE_BYTES_MAX};

use crate::cores::spares::Spares;

/// Bytes of the longest text of a parked request: a line, an inline value, and a decoded key.
pub(crate) const TEXT_BYTES_MAX: usize =
    LINE_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 2 + KEY_BYTES_MAX;
/// The capacities of buffers: a short line with its key; a small value; an answer whose value has
/// the length that the first request of a connection expects; a value of a page; the longest text.
/// All except the last are guesses.
const SIZES: [usize; 5] = [320, 1_280, 2_560, 5_120, TEXT_BYTES_MAX];
/// The most unused buffers of one size that a core keeps for itself, and their bytes; at least one.
/// A guess: 100 KB a core.
const OWN_MAX: usize = 16;
const OWN_BYTES_MAX: usize = 32 * 1024;
/// Bytes for each core by which what waits may overdraw the budget, until the engines have given
/// memory back.
const OVERDRAFT_BYTES_PER_CORE: u64 = 256 * 1024;

/// The most unused buffers that are freed at once, so that a tick stays short.
const FREED_MAX: usize = 1024;

/// The most unused buffers of a size that a core keeps for itself.
const fn own_max(size: usize) -> usize {
    let fit = OWN_BYTES_MAX / SIZES[size];
    if fit < OWN_MAX { fit } else { OWN_MAX }
}

/// The index of the smallest size with room for `bytes`.
#[inline]
fn size_for(bytes: usize) -> usize {
    debug_assert!(bytes <= TEXT_BYTES_MAX, "the longest text fits");
    let [first, second, third, fourth, _] = SIZES;
    match bytes {
        _ if bytes <= first => 0,
        _ if bytes <= second => 1,
        _ if bytes <= third => 2,
        _ if bytes <= fourth => 3,
        _ => 4,
    }
}

/// The capacity of a buffer for `bytes` bytes.
pub(crate) fn buffer_bytes(bytes: usize) -> usize {
    SIZES[size_for(bytes)]
}

/// The memory of all requests of a process that wait, and the buffers that no core keeps for
/// itself.
#[derive(Debug)]
pub(crate) struct WaitingMemory {
    budget: Arc<Budget>,
    overdraft_bytes: u64,
    /// Bytes that are charged to the budget (B1).
    bytes: AtomicU64,
    /// The unused buffers of each size.
    unused: Mutex<[Spares<Vec<u8>>; SIZES.len()]>,
}

impl WaitingMemory {
    /// Nothing waits yet.
    pub(crate) fn new(budget: Arc<Budget>, cores: u16) -> Self {
        let overdraft_bytes = OVERDRAFT_BYTES_PER_CORE * u64::from(cores);
        Self { budget, overdraft_bytes, bytes: AtomicU64::new(0), unused: Mutex::default() }
    }

    /// The bytes that are charged to the budget for what waits.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Charges `bytes` for a record or a buffer. Returns `false`, and charges nothing, if they do
    /// not fit (B1).
    #[must_use]
    pub(crate) fn charge(&self, bytes: usize) -> bool {
        let is_charged = self.budget.charge_overdrawing(bytes as u64, self.overdraft_bytes);
        self.bytes.fetch_add(if is_charged { bytes as u64 } else { 0 }, Relaxed);
        is_charged
    }

    /// Charges `bytes` whether they fit or not.
    pub(crate) fn charge_ahead(&self, bytes: usize) {
        self.budget.charge_ahead(bytes as u64);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Refunds what was charged for a record or a buffer.
    pub(crate) fn refund(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes as u64, Relaxed);
        debug_assert!(before >= bytes as u64, "B1");
        self.budget.refund(bytes as u64);
    }

    /// Frees some of the buffers that nobody has used in the last period (B3), which ends if
    /// `begins`. They are freed without the lock, which cores take while they hold engines.
    pub(crate) fn trim(&self, begins: bool) {
        for (size, bytes) in SIZES.into_iter().enumerate() {
            let freed = {
                let unused = &mut self.unused()[size];
                if begins {
                    unused.end_period();
                }
                unused.remove_cold(FREED_MAX)
            };
            freed.into_iter().for_each(|_buffer| self.refund(bytes));
        }
    }

    fn unused(&self) -> MutexGuard<'_, [Spares<Vec<u8>>; SIZES.len()]> {
        self.unused.lock().expect("a core that panics ends the process")
    }
}

/// The unused buffers that a core keeps for itself, by size.
#[derive(Debug)]
pub(crate) struct Buffers(RefCell<[Vec<Vec<u8>>; SIZES.len()]>);

impl Buffers {
    /// A core without buffers.
    pub(crate) fn new() -> Self {
        Self(RefCell::new(std::array::from_fn(|size| Vec::with_capacity(own_max(size) + 1))))
    }

    /// An empty buffer with room for `bytes` bytes. `None` if there is no memory for it (B1). Cost:
    /// an allocation only if more are in use than before (B3).
    pub(crate) fn take(&self, memory: &WaitingMemory, bytes: usize) -> Option<Vec<u8>> {
        let size = size_for(bytes);
        self.take_unused(memory, size).or_else(|| {
            memory.charge(SIZES[size]).then(|| Vec::with_capacity(SIZES[size])) // B2
        })
    }

    /// As [`Self::take`], whether there is memory or not. It may be a larger one, so it is for a
    /// short use.
    pub(crate) fn take_ahead(&self, memory: &WaitingMemory, bytes: usize) -> Vec<u8> {
        let size = size_for(bytes);
        self.take_unused(memory, size).unwrap_or_else(|| self.take_larger(memory, size))
    }

    #[cold]
    fn take_larger(&self, memory: &WaitingMemory, size: usize) -> Vec<u8> {
        let larger = (size + 1..SIZES.len()).find_map(|size| self.take_unused(memory, size));
        larger.unwrap_or_else(|| self.make_some(memory, size))
    }

    /// Makes a buffer to return and a few more, so that after some of these calls there are enough.
    fn make_some(&self, memory: &WaitingMemory, size: usize) -> Vec<u8> {
        let make = || Vec::with_capacity(SIZES[size]); // B2
        let more = own_max(size) / 2;
        memory.charge_ahead((1 + more) * SIZES[size]);
        self.0.borrow_mut()[size].extend(std::iter::repeat_with(make).take(more));
        make()
    }

    /// A buffer of this core, with room for `bytes` bytes but no more than necessary. Without
    /// memory, if the core has none.
    #[inline]
    pub(crate) fn take_own(&self, bytes: usize) -> Vec<u8> {
        self.0.borrow_mut()[size_for(bytes)].pop().unwrap_or_default()
    }

    #[inline]
    fn take_unused(&self, memory: &WaitingMemory, size: usize) -> Option<Vec<u8>> {
        let own = &mut self.0.borrow_mut()[size];
        own.pop().or_else(|| Self::take_some(own, memory, size))
    }

    #[cold]
    fn take_some(own: &mut Vec<Vec<u8>>, memory: &WaitingMemory, size: usize) -> Option<Vec<u8>> {
        own.extend(memory.unused()[size].take_some(own_max(size).div_ceil(2)));
        own.pop()
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, memory: &WaitingMemory, mut buffer: Vec<u8>) {
        let size = size_for(buffer.capacity());
        debug_assert!(buffer.capacity() == SIZES[size], "B2");
        buffer.clear();
        let own = &mut self.0.borrow_mut()[size];
        own.push(buffer);
        if own.len() > own_max(size) {
            Self::give_some(own, memory, size);
        }
    }

    #[cold]
    fn give_some(own: &mut Vec<Vec<u8>>, memory: &WaitingMemory, size: usize) {
        let kept = own_max(size) / 2;
        let unused = &mut memory.unused()[size];
        unused.look();
        own.drain(kept..).for_each(|buffer| unused.give(buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(limit_bytes: u64) -> WaitingMemory {
        WaitingMemory::new(Arc::new(Budget::new(limit_bytes)), 0)
    }

    #[test]
    fn buffers_go_from_core_to_core_and_none_is_made_twice() {
        let (memory, cores) = (memory(1 << 20), [Buffers::new(), Buffers::new()]);
        for round in 0..10 {
            let taken: Vec<_> = (0..300).filter_map(|_| cores[0].take(&memory, 100)).collect();
            assert!(taken.iter().all(|buffer| buffer.is_empty() && buffer.capacity() == 320));
            taken.into_iter().for_each(|buffer| cores[1].give(&memory, buffer));
            assert!(memory.bytes() <= (300 + own_max(0) as u64) * 320, "round {round}");
        }
    }

    #[test]
    fn buffers_that_nobody_uses_are_freed() {
        let (memory, core) = (memory(64 << 20), Buffers::new());
        let taken: Vec<_> = (0..1_000).filter_map(|_| core.take(&memory, 5_000)).collect();
        taken.into_iter().for_each(|buffer| core.give(&memory, buffer));
        memory.trim(true);
        assert_eq!(memory.bytes(), 1_000 * 5_120, "they were used since the last call");
        let taken: Vec<_> = (0..500).filter_map(|_| core.take(&memory, 5_000)).collect();
        taken.into_iter().for_each(|buffer| core.give(&memory, buffer));
        memory.trim(true);
        assert!((500..=500 + own_max(3) as u64).contains(&(memory.bytes() / 5_120)));
        memory.trim(true);
        memory.trim(true);
        assert!(memory.bytes() <= OWN_BYTES_MAX as u64, "{} bytes are kept", memory.bytes());
        assert_eq!(memory.budget.spent_bytes(), memory.bytes());
    }

    #[test]
    fn a_text_waits_for_memory_and_an_answer_does_not() {
        let (memory, core) = (memory(1_000), Buffers::new());
        let taken: Vec<_> = std::iter::from_fn(|| core.take(&memory, 320)).collect();
        assert_eq!((taken.len(), memory.bytes()), (3, 960));
        let answer = core.take_ahead(&memory, 2_000);
        let made = 1 + own_max(2) as u64 / 2;
        assert_eq!(answer.capacity(), 2_560);
        assert_eq!(memory.budget.overdrawn_bytes(), made * 2_560 - 40);
        core.give(&memory, answer);
        assert_eq!(core.take(&memory, 2_000).expect("it is given back").capacity(), 2_560);
    }
}
