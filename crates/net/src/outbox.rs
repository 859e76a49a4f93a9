//! What a connection still owes its client, in order.
//!
//! Upstream:   verbs word replies into it (`text`), keep a place in it for the answer of another
//!             shard (`await_answers`), or let a large value flow through it (`stream`).
//! Downstream: blocks go to `io` (`flush`), which gives them back when the kernel has them.
//!
//! ```text
//! in flight (io has them) | queued blocks | open block | slots: waiting / text / stream ...
//! ```
//!
//! While no slot is in use, text goes straight into the open block: the short way. Behind a slot it
//! waits in the list, and `settle` moves it on as slots are answered.
//!
//! Invariants:
//! - I1  `owed_bytes` counts the bytes in flight, queued and in the open block.
//! - I2  Bytes leave in the order in which their requests came.
//! - I3  `slot_bytes` counts the text that waits in slots; with `owed_bytes` it decides `is_full`.
//! - I4  A stream is copied out only while `owed_bytes` is below `OWED_BYTES_MAX`.

use std::collections::VecDeque;

use kachel_io::{Io, SendBlock, SocketId};

use crate::OWED_BYTES_MAX;
use crate::blocks::BlockPool;
use crate::connections::ConnectionIndex;
use crate::slots::{SlotIndex, SlotList, Slots};

/// Where a large value's bytes come from: read as the socket drains.
pub trait Source {
    /// Bytes in all.
    fn total_bytes(&self) -> usize;
    /// Copies bytes from `offset` on into `target`; returns how many, 0 only at the end.
    fn read_at(&self, offset: usize, target: &mut [u8]) -> usize;
}

impl Source for () {
    fn total_bytes(&self) -> usize {
        0
    }
    fn read_at(&self, _offset: usize, _target: &mut [u8]) -> usize {
        0
    }
}

/// A large value on its way out.
#[derive(Debug)]
pub struct Stream<S> {
    source: S,
    offset: usize,
}

impl<S> Stream<S> {
    /// The whole of `source`, from its first byte.
    pub const fn new(source: S) -> Self {
        Self { source, offset: 0 }
    }
}

/// The replies of one connection that its client has not got yet.
#[derive(Debug)]
pub struct Outbox {
    queued: VecDeque<SendBlock>,
    open: Option<SendBlock>,
    owed_bytes: usize,
    in_flight_blocks: u32,
    slots: SlotList,
    /// Bytes of text that wait in slots.
    slot_bytes: usize,
}

impl Outbox {
    /// Nothing owed. Holds no memory.
    pub(crate) const fn new() -> Self {
        Self {
            queued: VecDeque::new(),
            open: None,
            owed_bytes: 0,
            in_flight_blocks: 0,
            slots: SlotList::EMPTY,
            slot_bytes: 0,
        }
    }

    /// Whether everything asked for has been handed to the kernel.
    pub fn is_empty(&self) -> bool {
        self.owed_bytes == 0 && self.slots.count == 0
    }

    /// Whether more requests must wait until the client has read, or other shards have answered.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.owed_bytes + self.slot_bytes >= OWED_BYTES_MAX
            || self.slots.count >= crate::SLOTS_PER_CONNECTION_MAX
    }

    /// Bytes worded and not yet taken by the kernel.
    pub fn owed_bytes(&self) -> usize {
        self.owed_bytes
    }

    /// Replies that wait for an answer or for their turn.
    pub fn slots_in_use(&self) -> u32 {
        self.slots.count
    }

    /// Adds text behind everything asked for before (I2). Cost: one copy.
    #[inline]
    pub fn text<S>(
        &mut self,
        bytes: &[u8],
        connection: ConnectionIndex,
        pool: &mut BlockPool,
        slots: &mut Slots<S>,
    ) {
        if self.slots.count == 0 {
            self.put(bytes, pool);
            return;
        }
        let last = match self.slots.tail() {
            Some(tail) if slots.awaited(tail) == 0 && !slots.has_stream(tail) => tail,
            _ => slots.push(&mut self.slots, connection, 0),
        };
        slots.write(last, bytes);
        self.slot_bytes += bytes.len();
    }

    /// Keeps a place for what `awaited` other shards will answer.
    pub fn await_answers<S>(
        &mut self,
        awaited: u32,
        connection: ConnectionIndex,
        slots: &mut Slots<S>,
    ) -> SlotIndex {
        assert!(awaited > 0);
        slots.push(&mut self.slots, connection, awaited)
    }

    /// Puts text into a slot that is still kept (`await_answers`).
    pub fn text_into<S>(&mut self, slot: SlotIndex, bytes: &[u8], slots: &mut Slots<S>) {
        slots.write(slot, bytes);
        self.slot_bytes += bytes.len();
    }

    /// Lets a large value follow what was asked for before.
    pub fn stream<S>(
        &mut self,
        stream: Stream<S>,
        connection: ConnectionIndex,
        slots: &mut Slots<S>,
    ) {
        let slot = slots.push(&mut self.slots, connection, 0);
        *slots.stream_mut(slot) = Some(stream);
    }

    /// Lets a large value follow the text of a slot that is still kept.
    pub fn stream_into<S>(&mut self, slot: SlotIndex, stream: Stream<S>, slots: &mut Slots<S>) {
        debug_assert!(!slots.has_stream(slot), "one stream a slot");
        *slots.stream_mut(slot) = Some(stream);
    }

    fn put(&mut self, mut bytes: &[u8], pool: &mut BlockPool) {
        self.owed_bytes += bytes.len();
        loop {
            let open = self.open.get_or_insert_with(|| pool.take());
            let taken = open.put(bytes);
            if taken == bytes.len() {
                return;
            }
            bytes = &bytes[taken..];
            self.queued.extend(self.open.take());
        }
    }

    /// Moves what is ready at the head of the slots into blocks, and streams as far as I4 allows.
    ///
    /// A slot with text and a stream gives its text first, then the stream, then CR LF.
    pub fn settle<S: Source>(&mut self, pool: &mut BlockPool, slots: &mut Slots<S>) {
        while let Some(head) = self.slots.head() {
            if slots.awaited(head) > 0 {
                return;
            }
            let stream = slots.stream_mut(head).take();
            if stream.as_ref().is_none_or(|stream| stream.offset == 0) {
                slots.read(head, |piece| {
                    self.slot_bytes -= piece.len();
                    self.put(piece, pool);
                });
            }
            if let Some(mut stream) = stream {
                self.pump(&mut stream, pool);
                if stream.offset < stream.source.total_bytes() {
                    *slots.stream_mut(head) = Some(stream);
                    slots.clear_text(head);
                    return;
                }
                self.put(b"\r\n", pool);
            }
            slots.pop(&mut self.slots);
        }
    }

    fn pump<S: Source>(&mut self, stream: &mut Stream<S>, pool: &mut BlockPool) {
        while stream.offset < stream.source.total_bytes() && self.owed_bytes < OWED_BYTES_MAX {
            let open = self.open.get_or_insert_with(|| pool.take());
            if open.room() == 0 {
                self.queued.extend(self.open.take());
                continue;
            }
            let count = stream.source.read_at(stream.offset, open.spare_mut());
            assert!(count > 0, "a source gives bytes until its end");
            open.advance(count);
            stream.offset += count;
            self.owed_bytes += count;
        }
    }

    /// Hands all that is worded to `io`. Cost: a move a block.
    pub fn flush<I: Io>(&mut self, socket: SocketId, io: &mut I) {
        for block in self.queued.drain(..).chain(self.open.take()) {
            self.in_flight_blocks += 1;
            io.send(socket, block);
        }
    }

    /// Whether `flush` has anything to do.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.open.is_some()
    }

    /// A block of this connection has been taken by the kernel.
    pub fn sent(&mut self, block: SendBlock, pool: &mut BlockPool) {
        let bytes = block.bytes().len();
        assert!(self.owed_bytes >= bytes && self.in_flight_blocks > 0, "I1");
        self.owed_bytes -= bytes;
        self.in_flight_blocks -= 1;
        pool.put_back(block);
    }

    /// Forgets all that is owed: the connection is gone.
    pub fn abandon<S>(&mut self, pool: &mut BlockPool, slots: &mut Slots<S>) {
        slots.orphan(&mut self.slots);
        for block in self.queued.drain(..).chain(self.open.take()) {
            pool.put_back(block);
        }
        self.owed_bytes = 0;
        self.slot_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTION: ConnectionIndex = ConnectionIndex(0);

    /// Everything that would leave, the open block included.
    fn worded(outbox: &Outbox) -> Vec<u8> {
        let blocks = outbox.queued.iter().chain(&outbox.open);
        blocks.flat_map(|block| block.bytes().to_vec()).collect()
    }

    #[test]
    fn replies_keep_the_order_of_their_requests() {
        let (mut outbox, mut pool, mut slots) =
            (Outbox::new(), BlockPool::new(), Slots::<()>::new());
        outbox.text(b"one ", CONNECTION, &mut pool, &mut slots);
        let two = outbox.await_answers(1, CONNECTION, &mut slots);
        outbox.text(b"three ", CONNECTION, &mut pool, &mut slots);
        let four = outbox.await_answers(1, CONNECTION, &mut slots);
        outbox.text_into(four, b"four ", &mut slots);
        slots.answered(four);
        outbox.settle(&mut pool, &mut slots);
        assert_eq!(worded(&outbox), b"one ");
        outbox.text_into(two, b"two ", &mut slots);
        slots.answered(two);
        outbox.settle(&mut pool, &mut slots);
        assert_eq!(worded(&outbox), b"one two three four ");
        assert_eq!(outbox.slots_in_use(), 0);
    }

    struct Pattern(usize);

    impl Source for Pattern {
        fn total_bytes(&self) -> usize {
            self.0
        }
        fn read_at(&self, offset: usize, target: &mut [u8]) -> usize {
            let count = target.len().min(self.0 - offset).min(1000);
            for (index, byte) in target[..count].iter_mut().enumerate() {
                *byte = (offset + index).to_le_bytes()[0];
            }
            count
        }
    }

    #[test]
    fn a_large_value_flows_only_as_fast_as_the_client_reads() {
        let (mut outbox, mut pool, mut slots) =
            (Outbox::new(), BlockPool::new(), Slots::<Pattern>::new());
        outbox.stream(Stream::new(Pattern(300_000)), CONNECTION, &mut slots);
        outbox.text(b"END", CONNECTION, &mut pool, &mut slots);
        let mut received = Vec::new();
        while outbox.slots_in_use() > 0 {
            outbox.settle(&mut pool, &mut slots);
            assert!(outbox.owed_bytes() <= OWED_BYTES_MAX + 1000 + 16);
            received.extend(worded(&outbox));
            outbox.queued.clear();
            outbox.open = None;
            outbox.owed_bytes = 0;
        }
        assert_eq!(received.len(), 300_005);
        assert!((0..300_000).all(|index| received[index] == index.to_le_bytes()[0]));
        assert_eq!(&received[300_000..], b"\r\nEND");
    }
}
