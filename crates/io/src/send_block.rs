//! One buffer of replies for the kernel, and the large values between them.
//!
//! Upstream:   `net` takes a block, formats replies into it and passes it to `Io::send`.
//! Downstream: a backend lets the kernel read from it and returns it in `Event::Sent`.
//!
//! ```text
//! own bytes:  VALUE a 0 40000 CR LF | CR LF VALUE b 0 20000 CR LF | CR LF END CR LF
//! held:                             ^ piece, piece, piece         ^ piece, piece
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The memory of a block and of its held pieces never moves, also when the block moves.
//! - I2  The first `used` own bytes are sent; `used <= SEND_BLOCK_BYTES`.
//! - I3  Held pieces are sorted by position; there are at most `HELD_PIECES_MAX`.

use std::fmt;

use kachel_stdx::Held;

use crate::limits::{HELD_PIECES_MAX, SEND_BLOCK_BYTES};

/// An owned buffer of [`SEND_BLOCK_BYTES`] bytes, filled from the front, and pieces of memory held
/// elsewhere that are sent between them. A block is moved, never copied.
pub struct SendBlock {
    memory: Box<[u8; SEND_BLOCK_BYTES]>,
    used: u32,
    held_bytes: usize,
    /// The own byte before which each piece is sent, and the piece.
    held: Vec<(u32, Held)>,
}

const _: () = assert!(SEND_BLOCK_BYTES <= u32::MAX as usize); // I2

impl SendBlock {
    /// An empty block. Cost: an allocation of [`SEND_BLOCK_BYTES`] zeroed bytes, and one for the
    /// pieces that it may hold, so callers should reuse blocks.
    ///
    /// Panics: never; when memory is out the process aborts, as for any allocation.
    #[must_use]
    pub fn new() -> Self {
        let memory = vec![0_u8; SEND_BLOCK_BYTES].into_boxed_slice();
        let memory = memory.try_into().expect("a slice of exactly SEND_BLOCK_BYTES");
        Self { memory, used: 0, held_bytes: 0, held: Vec::with_capacity(HELD_PIECES_MAX) }
    }

    /// The number of own bytes that still fit.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        SEND_BLOCK_BYTES - self.used as usize
    }

    /// Appends as many of `bytes` as fit; returns their number.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        let start = self.used as usize;
        self.memory[start..start + count].copy_from_slice(&bytes[..count]);
        self.used += count as u32;
        count
    }

    /// Appends all of the pieces. Returns `false`, and copies nothing, if they do not fit. Cost:
    /// one check of the space, one copy per piece.
    #[inline]
    pub fn put_all<const PIECES: usize>(&mut self, pieces: [&[u8]; PIECES]) -> bool {
        let bytes = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let Some(mut rest) = self.spare_mut().get_mut(..bytes) else { return false };
        for piece in pieces {
            let (place, behind) = rest.split_at_mut(piece.len());
            place.copy_from_slice(piece);
            rest = behind;
        }
        self.used += bytes as u32;
        true
    }

    /// The unused rest, to be written in place; then call [`Self::advance`] with the number of
    /// bytes. Its content is unspecified (it may be bytes of earlier replies).
    #[inline]
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.used as usize..]
    }

    /// Appends the first `count` bytes of the unused rest.
    ///
    /// Panics: if `count` is more than [`Self::room`].
    #[inline]
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.room(), "I2");
        self.used += count as u32;
    }

    /// Whether one more piece may be held.
    #[must_use]
    pub fn may_hold(&self) -> bool {
        self.held.len() < HELD_PIECES_MAX
    }

    /// Appends `piece`, which is sent from its own memory. Cost: no copy.
    ///
    /// Panics: when no more piece may be held ([`Self::may_hold`]).
    pub fn hold(&mut self, piece: Held) {
        assert!(self.may_hold(), "I3");
        self.held_bytes += piece.byte_count();
        self.held.push((self.used, piece)); // I3
    }

    /// The block's own bytes to send.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.used as usize]
    }

    /// The number of bytes to send, own and held.
    #[inline]
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.used as usize + self.held_bytes
    }

    /// The number of held bytes to send.
    #[inline]
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether everything to send lies in one piece: the own bytes.
    #[inline]
    #[must_use]
    pub fn is_one_piece(&self) -> bool {
        self.held.is_empty()
    }

    /// The bytes to send, in order; pieces may be empty.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut own_before = 0;
        let between = self.held.iter().flat_map(move |(place, piece)| {
            let own = &self.memory[own_before..*place as usize];
            own_before = *place as usize;
            [own, piece.bytes()]
        });
        let last = self.held.last().map_or(0, |(place, _)| *place as usize);
        between.chain(std::iter::once(&self.bytes()[last..]))
    }

    /// Empties the block for its next use, and releases its held pieces. Cost: none for own bytes.
    #[inline]
    pub fn clear(&mut self) {
        self.used = 0;
        if !self.held.is_empty() {
            self.held.clear();
            self.held_bytes = 0;
        }
    }
}

impl Default for SendBlock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SendBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendBlock({} bytes, {} of them held)", self.byte_count(), self.held_bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn put_takes_what_fits_and_no_more() {
        let mut block = SendBlock::new();
        assert_eq!(block.put(b"VALUE "), 6);
        let long = vec![b'x'; SEND_BLOCK_BYTES];
        assert_eq!(block.put(&long), SEND_BLOCK_BYTES - 6);
        assert_eq!(block.room(), 0);
        assert_eq!(block.put(b"y"), 0);
        assert_eq!(&block.bytes()[..7], b"VALUE x");
    }

    #[test]
    fn what_is_written_in_place_counts_after_advance() {
        let mut block = SendBlock::new();
        block.put(b"a");
        block.spare_mut()[..2].copy_from_slice(b"bc");
        assert_eq!(block.bytes(), b"a");
        block.advance(2);
        assert_eq!(block.bytes(), b"abc");
        block.clear();
        assert_eq!(block.bytes(), b"");
        assert_eq!(block.room(), SEND_BLOCK_BYTES);
    }

    #[test]
    fn memory_stays_in_place_when_the_block_moves() {
        let mut block = SendBlock::new();
        block.put(b"a");
        let before = block.bytes().as_ptr();
        let moved = Box::new(block);
        assert_eq!(moved.bytes().as_ptr(), before, "I1");
    }

    #[test]
    #[should_panic(expected = "I2")]
    fn advancing_past_the_end_panics() {
        let mut block = SendBlock::new();
        block.advance(SEND_BLOCK_BYTES);
        block.advance(1);
    }

    #[test]
    fn pieces_are_taken_all_or_none() {
        let mut block = SendBlock::new();
        assert!(block.put_all([b"VALUE ", b"", b"k"]));
        assert_eq!(block.bytes(), b"VALUE k");
        let long = vec![b'x'; block.room() - 1];
        assert!(!block.put_all([&long, b"yz"]));
        assert_eq!(block.bytes(), b"VALUE k");
        assert!(block.put_all([&long, b"y"]));
        assert_eq!(block.room(), 0);
        assert!(block.put_all([b""]));
    }
}
