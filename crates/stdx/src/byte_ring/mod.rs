//! A bounded ring of byte records of any length, from one thread to one other.
//!
//! Upstream:   one producer, which pushes records and publishes them in batches.
//! Downstream: one consumer, which reads them in place, in order, and releases their room in
//! batches.
//!
//! ```text
//! positions, monotone; memory is taken modulo the capacity
//!      released        head             published           tail
//! ---------|-------------|------------------|----------------|---------- released + capacity
//!   free      popped        to be read         pushed              free
//!
//! record, at a multiple of 8:   bytes:32 | zero:32 | payload, then up to 7 unused bytes
//! pad, to the end of memory:    u32::MAX:32 | zero:32 | unused
//! ```
//!
//! Invariants:
//! - I1  released <= head <= published <= tail <= released + capacity.
//! - I2  Only the producer writes `[published, released + capacity)`; no thread writes the rest.
//! - I3  The consumer reads only `[released, published)`.
//! - I4  `published` and `released` are stored with release and loaded with acquire by the other
//!   side: bytes are written before they are read, and read before they are written again.
//! - I5  A pad is followed by a record in the same push.
//! - I6  A record with its header takes at most half of the capacity, so that with the pad before
//!   it (which is shorter than the record) it fits an empty ring at every position.

mod memory;
#[cfg(test)]
mod tests;

use std::ptr::NonNull;

use crate::CachePadded;
use crate::sync::{Arc, AtomicU64, Ordering};
use memory::{Memory, UNIT_BYTES};

const HEADER_BYTES: u64 = 8;
/// The length that marks a pad.
const PAD: u32 = u32::MAX;
/// The least capacity: a record of 24 bytes fits.
const CAPACITY_BYTES_MIN: usize = 64;

const _: () = assert!(HEADER_BYTES == UNIT_BYTES, "a pad of one unit holds its header");

#[derive(Debug)]
struct Shared {
    memory: Memory,
    published: CachePadded<AtomicU64>,
    released: CachePadded<AtomicU64>,
}

/// A new, empty ring of at least `capacity_bytes` (rounded up to a power of two), and its two ends.
///
/// Cost: one small allocation. The first push allocates the capacity.
/// Panics: when the capacity exceeds 2 GiB.
pub fn byte_ring(capacity_bytes: usize) -> (Producer, Consumer) {
    assert!(capacity_bytes <= 1 << 31, "a record's length has 32 bits");
    let capacity_bytes = capacity_bytes.next_power_of_two().max(CAPACITY_BYTES_MIN);
    let shared = Arc::new(Shared {
        memory: Memory::new(capacity_bytes),
        published: CachePadded::new(AtomicU64::new(0)),
        released: CachePadded::new(AtomicU64::new(0)),
    });
    let producer =
        Producer { shared: Arc::clone(&shared), tail: 0, published: 0, released_seen: 0 };
    (producer, Consumer { shared, head: 0, released: 0, published_seen: 0 })
}

/// The end that records enter by.
#[derive(Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    tail: u64,
    published: u64,
    /// The consumer's `released` when it was last loaded. It may be old; the consumer never takes
    /// room back.
    released_seen: u64,
}

impl Producer {
    /// Bytes of the longest record that this ring can carry: half of its capacity less 8 (I6).
    pub fn record_bytes_max(&self) -> usize {
        (self.shared.memory.capacity_bytes() / 2 - HEADER_BYTES) as usize
    }

    /// Whether a push of a record of `bytes` bytes would succeed now. Cost: at most one load of the
    /// consumer's line.
    pub fn room(&self, bytes: usize) -> bool {
        let (pad, whole) = self.plan(bytes);
        self.fits(pad + whole, self.released_seen)
            || self.fits(pad + whole, self.shared.released.load(Ordering::Acquire))
    }

    /// Appends one record, the concatenation of `parts`; the consumer sees it after
    /// [`Self::publish`].
    ///
    /// The consumer will see its bytes in one piece, starting at a multiple of 8.
    /// Returns false, with nothing written, when the ring has no room.
    /// Cost: a copy; one load of the consumer's line when the known room does not suffice.
    /// Panics: when the record is longer than [`Self::record_bytes_max`].
    #[inline]
    pub fn push(&mut self, parts: &[&[u8]]) -> bool {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        let (pad, whole) = self.plan(bytes);
        if !self.fits(pad + whole, self.released_seen) {
            self.released_seen = self.shared.released.load(Ordering::Acquire); // I4
            if !self.fits(pad + whole, self.released_seen) {
                return false;
            }
        }
        let base = self.shared.memory.base_to_write();
        if pad > 0 {
            self.write(base, self.tail, &u64::from(PAD).to_le_bytes());
        }
        let start = self.tail + pad;
        self.write(base, start, &(bytes as u64).to_le_bytes());
        let mut position = start + HEADER_BYTES;
        for part in parts {
            self.write(base, position, part);
            position += part.len() as u64;
        }
        self.tail = start + whole;
        debug_assert!(self.tail <= self.released_seen + self.shared.memory.capacity_bytes(), "I1");
        true
    }

    /// Makes all records pushed so far visible to the consumer; true when there were any.
    ///
    /// Cost: one release store, or nothing.
    pub fn publish(&mut self) -> bool {
        let any = self.published != self.tail;
        if any {
            self.published = self.tail;
            self.shared.published.store(self.tail, Ordering::Release); // I4
        }
        any
    }

    /// Bytes of the pad and of the record with its header that a push of `bytes` would write.
    #[inline]
    fn plan(&self, bytes: usize) -> (u64, u64) {
        assert!(bytes <= self.record_bytes_max(), "I6: {bytes} bytes are no record of this ring");
        let whole = HEADER_BYTES + (bytes as u64).next_multiple_of(UNIT_BYTES);
        let to_end = self.shared.memory.bytes_to_end(self.tail);
        (if whole > to_end { to_end } else { 0 }, whole)
    }

    #[inline]
    fn fits(&self, bytes: u64, released: u64) -> bool {
        self.tail + bytes - released <= self.shared.memory.capacity_bytes()
    }

    /// Writes `source` at `position`, which lies in the room that `push` found.
    #[inline]
    fn write(&self, base: NonNull<u64>, position: u64, source: &[u8]) {
        debug_assert!(position >= self.tail, "I2");
        // SAFETY: no other thread touches these bytes:
        // - they are at or after `tail`, so unpublished, and the consumer stays away (I3);
        // - the consumer has released what was there before: `fits` held with a loaded `released`
        //   (I4).
        // `base` is of the memory of this ring: `push` is the only caller.
        unsafe { self.shared.memory.write(base, position, source) }
    }
}

/// The end that records leave by.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    head: u64,
    released: u64,
    /// The producer's `published` when it was last loaded. It may be old; the producer never takes
    /// a record back.
    published_seen: u64,
}

impl Consumer {
    /// The oldest record not yet popped; `None` when nothing more is published.
    ///
    /// The bytes are in one piece, start at a multiple of 8, and stay put until [`Self::release`].
    /// Cost: one load of the producer's line when all known records are popped.
    #[inline]
    pub fn front(&mut self) -> Option<&[u8]> {
        let bytes = self.seek()?;
        Some(self.read(self.head + HEADER_BYTES, bytes))
    }

    /// Steps over the record that [`Self::front`] shows; its room stays taken until
    /// [`Self::release`].
    ///
    /// Panics: when there is none.
    #[inline]
    pub fn pop(&mut self) {
        let bytes = self.seek().expect("pop follows a front that showed a record");
        self.head += HEADER_BYTES + (bytes as u64).next_multiple_of(UNIT_BYTES);
        debug_assert!(self.head <= self.published_seen, "I1");
    }

    /// Gives the room of all popped records back to the producer. Cost: one release store, or
    /// nothing.
    pub fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            self.shared.released.store(self.head, Ordering::Release); // I4
        }
    }

    /// Whether every published record is popped. Cost: one load. Meant for the check before
    /// sleeping.
    pub fn is_empty(&self) -> bool {
        self.head == self.shared.published.load(Ordering::Acquire)
    }

    /// Moves `head` over a pad to the next record's header and returns its length.
    #[inline]
    fn seek(&mut self) -> Option<usize> {
        if self.head == self.published_seen {
            self.published_seen = self.shared.published.load(Ordering::Acquire); // I4
            if self.head == self.published_seen {
                return None;
            }
        }
        let mut bytes = self.header();
        if bytes == PAD {
            self.head += self.shared.memory.bytes_to_end(self.head);
            debug_assert!(self.head < self.published_seen, "I5");
            bytes = self.header();
        }
        Some(bytes as usize)
    }

    #[inline]
    fn header(&self) -> u32 {
        let header = self.read(self.head, HEADER_BYTES as usize);
        u32::from_le_bytes([header[0], header[1], header[2], header[3]])
    }

    #[inline]
    fn read(&self, position: u64, bytes: usize) -> &[u8] {
        debug_assert!(position + bytes as u64 <= self.published_seen, "I3");
        // SAFETY: these bytes were written before they were published, and `published_seen` was
        // loaded with acquire (I4). No thread writes them while the slice lives:
        // - they are published and not released, so the producer stays away (I2, I4);
        // - releasing takes `&mut self`, which the slice's borrow of `self` excludes.
        unsafe { self.shared.memory.read(position, bytes) }
    }
}
