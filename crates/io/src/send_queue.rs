//! The blocks of one connection that wait for the kernel, in order.
//!
//! Upstream:   `Io::send` pushes; a backend gets the unsent slices.
//! Downstream: a backend reports how many bytes the kernel took; finished blocks leave in order.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  `sent_bytes` counts bytes of the first block only, and is 0 when there is none.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::send_block::SendBlock;

/// Unsent blocks in order, the first perhaps partly sent.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    blocks: VecDeque<SendBlock>,
    sent_bytes: usize,
}

impl SendQueue {
    /// Queues a block behind the others.
    pub(crate) fn push(&mut self, block: SendBlock) {
        self.blocks.push_back(block);
    }

    /// Whether everything has been sent and given back.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether all unsent bytes lie in one piece, [`Self::first_unsent`].
    pub(crate) fn is_one_piece(&self) -> bool {
        self.blocks.len() == 1 && self.blocks[0].is_one_piece()
    }

    /// Bytes that the kernel took of the first block.
    pub(crate) fn taken_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// Drops all blocks; keeps the room for new ones.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.sent_bytes = 0;
    }

    /// The first unsent bytes that lie in one piece; empty when there are none.
    pub(crate) fn first_unsent(&self) -> &[u8] {
        match self.blocks.front() {
            Some(block) if block.is_one_piece() => &block.bytes()[self.sent_bytes..],
            _ => self.unsent().next().unwrap_or_default(),
        }
    }

    /// Puts the unsent bytes, piece by piece, into `slices`; returns how many slices it used.
    pub(crate) fn gather<'queue>(&'queue self, slices: &mut [IoSlice<'queue>]) -> usize {
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(self.unsent()) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    /// The unsent bytes in order, no piece of them empty.
    fn unsent(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.sent_bytes;
        self.blocks.iter().flat_map(SendBlock::pieces).filter_map(move |piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            Some(&piece[skipped..]).filter(|rest| !rest.is_empty())
        })
    }

    /// Notes that the kernel took `bytes` more bytes, and passes each block that is now finished to
    /// `finished`, in order. With 0 bytes it still passes on leading blocks that are empty.
    ///
    /// Panics: if fewer bytes were queued.
    pub(crate) fn advance(&mut self, mut bytes: usize, mut finished: impl FnMut(SendBlock)) {
        while let Some(first) = self.blocks.front() {
            let rest = first.byte_count() - self.sent_bytes;
            if bytes < rest {
                self.sent_bytes += bytes;
                return;
            }
            bytes -= rest;
            self.sent_bytes = 0; // I1
            finished(self.blocks.pop_front().expect("front() was there"));
        }
        assert!(bytes == 0, "I1: the kernel took more than was queued");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn block(bytes: &[u8]) -> SendBlock {
        let mut block = SendBlock::new();
        block.put(bytes);
        block
    }

    fn finished(queue: &mut SendQueue, bytes: usize) -> Vec<Vec<u8>> {
        let mut blocks = Vec::new();
        queue.advance(bytes, |block| blocks.push(block.bytes().to_vec()));
        blocks
    }

    #[test]
    fn blocks_finish_in_order_however_the_bytes_are_cut() {
        let mut queue = SendQueue::default();
        for bytes in [&b"abc"[..], b"", b"de", b"f"] {
            queue.push(block(bytes));
        }
        assert!(finished(&mut queue, 2).is_empty());
        assert_eq!(queue.first_unsent(), b"c");
        let mut slices = [IoSlice::new(&[]); 3];
        assert_eq!(queue.gather(&mut slices), 3);
        assert_eq!((&*slices[0], &*slices[1], &*slices[2]), (&b"c"[..], &b"de"[..], &b"f"[..]));
        assert_eq!(finished(&mut queue, 2), [&b"abc"[..], b""]);
        assert_eq!(finished(&mut queue, 2), [&b"de"[..], b"f"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_empty_block_finishes_without_a_byte() {
        let mut queue = SendQueue::default();
        queue.push(block(b""));
        assert_eq!(finished(&mut queue, 0).len(), 1);
    }

    #[test]
    #[should_panic(expected = "I1")]
    fn taking_more_than_was_queued_panics() {
        let mut queue = SendQueue::default();
        queue.push(block(b"abc"));
        finished(&mut queue, 4);
    }
}
