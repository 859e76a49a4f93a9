//! Targets for a formatted reply: the outbox of a client, or the answer to a parked request.
//!
//! Upstream:   `apply`, and all stages that answer a client.
//! Downstream: `net`'s outbox; `parked`.

use kachel_engine::{Durability, EngineIndex, INLINE_VALUE_BYTES_MAX, ReadValue};
use kachel_net::{AnswerRoom, BlockPool, ClientIndex, Fence, Outbox, Slots, Source, Stream};
use kachel_observe::Log;
use kachel_stdx::Held;
use kachel_wire::Sink;

use crate::fences::Fences;

/// A target for a reply that may contain a value.
pub(crate) trait ReplySink: Sink {
    /// Bytes of the longest value that is formatted into the target. A longer value is pinned.
    fn value_bytes_max(&self) -> usize;

    /// The descriptor of the client, for the log. Only known while somebody watches.
    fn descriptor(&self, log: &Log) -> i32;

    /// Notes, before the reply is formatted, when the changes of an engine are durable on which the
    /// reply depends.
    fn depends_on(&mut self, engine: EngineIndex, durability: Durability);
}

/// The fence of a reply that depends on changes of an engine. `None` if they are durable.
#[inline]
fn fence_of(engine: EngineIndex, durability: Durability) -> Option<Fence> {
    match durability {
        Durability::Now => None,
        Durability::At(sequence) => Some(Fence { engine: engine.0, sequence: sequence.0 }),
    }
}

/// A large value that is sent to a client.
#[derive(Debug)]
pub(crate) struct LargeValue<P> {
    pub(crate) value: P,
    /// The bytes that the client's protocol writes after the value.
    pub(crate) end: &'static [u8],
}

impl<P: ReadValue> Source for LargeValue<P> {
    fn total_bytes(&self) -> usize {
        self.value.total_bytes()
    }

    fn piece_at(&self, offset: usize) -> &[u8] {
        self.value.piece_at(offset)
    }

    fn hold_at(&self, offset: usize) -> Held {
        self.value.hold_at(offset)
    }

    fn end(&self) -> &'static [u8] {
        self.end
    }
}

/// A client's outbox, as the target of a reply.
pub(crate) struct ToClient<'a, P> {
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) slots: &'a mut Slots<LargeValue<P>>,
    pub(crate) blocks: &'a mut BlockPool,
    pub(crate) fences: &'a mut Fences,
    pub(crate) client: ClientIndex,
}

impl<P: ReadValue> ToClient<'_, P> {
    /// Sends a large value after the formatted text.
    pub(crate) fn value(&mut self, value: LargeValue<P>) {
        let stream = Stream::new(value);
        self.outbox.stream(stream, self.client, self.blocks, self.slots);
    }
}

impl<P> ToClient<'_, P> {
    /// Has the next reply wait until a fence is reached.
    #[cold]
    fn wait_for(&mut self, fence: Fence) {
        if self.outbox.fence(fence, self.client, self.slots) {
            self.fences.add(fence, self.client);
        }
    }
}

impl<P> Sink for ToClient<'_, P> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.outbox.text(bytes, self.client, self.blocks, self.slots);
    }

    #[inline]
    fn put_all<const PIECES: usize>(&mut self, pieces: [&[u8]; PIECES]) {
        self.outbox.text_all(pieces, self.client, self.blocks, self.slots);
    }
}

impl<P> ReplySink for ToClient<'_, P> {
    #[inline]
    fn value_bytes_max(&self) -> usize {
        INLINE_VALUE_BYTES_MAX
    }

    #[cold]
    fn descriptor(&self, log: &Log) -> i32 {
        log.descriptor(self.client)
    }

    #[inline(always)]
    fn depends_on(&mut self, engine: EngineIndex, durability: Durability) {
        if let Some(fence) = fence_of(engine, durability) {
            self.wait_for(fence);
        }
    }
}

/// The answer to a parked request.
#[derive(Debug)]
pub(crate) struct AnswerText {
    /// It has no memory while the request waits for an engine (`parked`, P4).
    pub(crate) text: Vec<u8>,
    /// The room that the receiver of the answer keeps for it.
    pub(crate) room: AnswerRoom,
    /// The descriptor of the client, if somebody watched when the request was parked.
    pub(crate) descriptor: i32,
    /// The sequence of the changes on which the answer depends; 0 if they are durable.
    sequence: u64,
}

impl AnswerText {
    /// The next answer, without memory, to a client that keeps this room for it.
    pub(crate) const fn new(room: AnswerRoom) -> Self {
        Self { text: Vec::new(), room, descriptor: 0, sequence: 0 }
    }

    /// Begins the next answer.
    #[inline]
    pub(crate) fn begin(&mut self, room: AnswerRoom) {
        debug_assert!(self.text.capacity() == 0, "parked, P4");
        (self.room, self.descriptor, self.sequence) = (room, 0, 0);
    }

    /// The fence that holds back this answer of an engine, if there is one.
    pub(crate) fn fence(&self, engine: EngineIndex) -> Option<Fence> {
        let Self { sequence, .. } = *self;
        (sequence > 0).then_some(Fence { engine: engine.0, sequence })
    }
}

impl Sink for AnswerText {
    /// Adds bytes. Drops them if their receiver keeps no room for them.
    ///
    /// Panics: when they do not fit the buffer, which may not grow (`buffers`, B2).
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if self.text.capacity() > 0 {
            assert!(bytes.len() <= self.text.capacity() - self.text.len(), "parked, P2");
            self.text.extend_from_slice(bytes);
        }
    }
}

impl ReplySink for AnswerText {
    #[inline]
    fn value_bytes_max(&self) -> usize {
        usize::from(self.room.value_bytes)
    }

    #[cold]
    fn descriptor(&self, _log: &Log) -> i32 {
        self.descriptor
    }

    #[inline]
    fn depends_on(&mut self, _engine: EngineIndex, durability: Durability) {
        // The core of the client has its fence.
        self.sequence = match durability {
            Durability::Now => 0,
            Durability::At(sequence) => sequence.0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(buffer_bytes: usize) -> AnswerText {
        let mut answer = AnswerText::new(AnswerRoom::default());
        answer.text = Vec::with_capacity(buffer_bytes);
        answer
    }

    #[test]
    fn an_answer_may_fill_its_buffer_and_without_a_buffer_it_is_dropped() {
        for buffer_bytes in [320, 0] {
            let mut answer = answer(buffer_bytes);
            [200, 120].into_iter().for_each(|bytes| answer.put(&vec![b'a'; bytes]));
            assert_eq!((answer.text.len(), answer.text.capacity()), (buffer_bytes, buffer_bytes));
        }
    }

    /// The fault: only builds with assertions for debugging checked it, and the buffer grew.
    #[test]
    #[should_panic(expected = "parked, P2")]
    fn an_answer_that_exceeds_its_buffer_is_a_bug() {
        let mut answer = answer(320);
        [200, 121].into_iter().for_each(|bytes| answer.put(&vec![b'a'; bytes]));
    }
}
