//! Reply slots: places kept for replies that cannot be sent yet.
//!
//! Upstream:   `shard` keeps a slot when a request is parked, when a reply must wait for a fence,
//!             or when it must wait for such a slot before it.
//! Downstream: `outbox` empties a connection's slots in order.
//!
//! The slots of a connection form a list, in the order of its requests. Text that waits is stored
//! in chunks:
//!
//! ```text
//! outbox.head -> slot(waiting for 1) -> slot(text) -> slot(stream) -> slot(text) <- outbox.tail
//!                                         |
//!                                         +-> chunk 512 B -> chunk 512 B
//! ```
//!
//! Invariants:
//! - I1  A slot is in exactly one place: the free list, one connection's list, or orphaned (its
//!   connection is gone and an answer is still to come).
//! - I2  A slot with `awaited > 0` will get that many answers, which name it by its index. So the
//!   index is not reused.
//! - I3  Slots and chunks are given back to the allocator when no slot is in use and more than
//!   `KEPT_SLOTS_MAX` or `KEPT_CHUNKS_MAX` exist.

use crate::index::ClientIndex;
use crate::stream::Stream;

/// Bytes of text in one chunk.
const CHUNK_BYTES: usize = 512;
/// Slots kept when no slot is in use: about 112 KiB a shard.
const KEPT_SLOTS_MAX: usize = 1024;
/// Chunks kept when no slot is in use: 512 KiB a shard.
const KEPT_CHUNKS_MAX: usize = 1024;
/// Bytes that a slot takes without its text.
pub(crate) const SLOT_BYTES: usize = 112;
/// The end of a list.
const NONE: u32 = u32::MAX;

/// The index of a slot. The record of a parked request carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotIndex(pub u32);

/// Bytes kept free for an answer that is awaited.
///
/// If no room is kept, the text of the answer is dropped: the answer is awaited only so that no
/// later reply is sent before it has come. Pieces of a listing are the exception. Their text is
/// kept, and a listing asks for one piece at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerRoom {
    /// Bytes for the lines of the answer.
    pub line_bytes: u16,
    /// Bytes for a value in the answer. A longer value is passed pinned. 0 if no value is
    /// requested.
    pub value_bytes: u16,
}

impl AnswerRoom {
    /// The bytes for lines and value together.
    pub fn bytes(self) -> usize {
        usize::from(self.line_bytes) + usize::from(self.value_bytes)
    }
}

/// What must come before a reply is sent: the changes of an engine up to a sequence are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The number of the engine.
    pub engine: u16,
    /// The sequence.
    pub sequence: u64,
}

#[derive(Debug)]
struct Slot<S> {
    next: u32,
    /// Answers of other shards still to come.
    awaited: u32,
    /// The room kept free for these answers.
    room: AnswerRoom,
    first_chunk: u32,
    last_chunk: u32,
    client: ClientIndex,
    orphaned: bool,
    /// What must come before the slot is sent, and all behind it (`outbox`, I6).
    fence: Option<Fence>,
    stream: Option<Stream<S>>,
}

#[derive(Debug)]
struct Chunk {
    next: u32,
    used: u32,
    bytes: [u8; CHUNK_BYTES],
}

impl Chunk {
    /// Adds all bytes, if there is room for them. Returns whether there was.
    #[inline]
    fn put_all(&mut self, bytes: &[u8]) -> bool {
        let room = self.bytes[self.used as usize..].get_mut(..bytes.len());
        let Some(room) = room else { return false };
        room.copy_from_slice(bytes);
        self.used += u32::try_from(bytes.len()).expect("at most CHUNK_BYTES");
        true
    }

    /// Adds as many bytes as there is room for, and returns their number.
    fn put(&mut self, bytes: &[u8]) -> usize {
        let room = &mut self.bytes[self.used as usize..];
        let count = bytes.len().min(room.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.used += u32::try_from(count).expect("at most CHUNK_BYTES");
        count
    }
}

/// All reply slots of a shard, and the text that waits in them. `S` is the source of large values.
#[derive(Debug)]
pub struct Slots<S> {
    slots: Vec<Slot<S>>,
    free_slot: u32,
    chunks: Vec<Chunk>,
    free_chunk: u32,
    slots_in_use: u32,
}

/// The ends of one connection's list of slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotList {
    head: u32,
    tail: u32,
    pub(crate) count: u32,
}

impl SlotList {
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE, count: 0 };

    pub(crate) fn head(&self) -> Option<SlotIndex> {
        (self.head != NONE).then_some(SlotIndex(self.head))
    }

    pub(crate) fn tail(&self) -> Option<SlotIndex> {
        (self.tail != NONE).then_some(SlotIndex(self.tail))
    }
}

impl<S> Slots<S> {
    /// Makes an empty table. Slots are made when they are needed.
    pub const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free_slot: NONE,
            chunks: Vec::new(),
            free_chunk: NONE,
            slots_in_use: 0,
        }
    }

    /// The number of slots in use.
    pub fn in_use(&self) -> u32 {
        self.slots_in_use
    }

    /// Adds a slot at the end of `list`, for `awaited` answers from other shards.
    pub(crate) fn push(
        &mut self,
        list: &mut SlotList,
        connection: ClientIndex,
        (awaited, room): (u32, AnswerRoom),
    ) -> SlotIndex {
        let slot = Slot {
            next: NONE,
            awaited,
            room,
            first_chunk: NONE,
            last_chunk: NONE,
            client: connection,
            orphaned: false,
            fence: None,
            stream: None,
        };
        let index = if self.free_slot == NONE {
            self.slots.push(slot);
            u32::try_from(self.slots.len() - 1).expect("I2 bounds the slots far below 2^32")
        } else {
            let index = self.free_slot;
            self.free_slot = self.slots[index as usize].next;
            self.slots[index as usize] = slot;
            index
        };
        if list.tail == NONE {
            list.head = index;
        } else {
            self.slots[list.tail as usize].next = index;
        }
        list.tail = index;
        list.count += 1;
        self.slots_in_use += 1;
        SlotIndex(index)
    }

    /// Takes the first slot out of `list`. The slot must not await an answer.
    pub(crate) fn pop(&mut self, list: &mut SlotList) {
        let index = list.head;
        assert!(index != NONE, "I1: popped from an empty list");
        assert_eq!(self.slots[index as usize].awaited, 0, "I2");
        list.head = self.slots[index as usize].next;
        if list.head == NONE {
            list.tail = NONE;
        }
        list.count -= 1;
        self.free(index);
    }

    fn free(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.stream = None;
        slot.next = self.free_slot;
        let (first, last) = (slot.first_chunk, slot.last_chunk);
        slot.first_chunk = NONE;
        slot.last_chunk = NONE;
        self.free_slot = index;
        self.slots_in_use -= 1;
        self.free_chunks(first, last);
        if self.slots_in_use == 0 && self.chunks.len() > KEPT_CHUNKS_MAX {
            self.chunks = Vec::new();
            self.free_chunk = NONE;
        }
        if self.slots_in_use == 0 && self.slots.len() > KEPT_SLOTS_MAX {
            self.slots = Vec::new();
            self.free_slot = NONE;
        }
    }

    fn free_chunks(&mut self, first: u32, last: u32) {
        if first != NONE {
            self.chunks[last as usize].next = self.free_chunk;
            self.free_chunk = first;
        }
    }

    /// Frees the text of a slot, after it was copied out.
    pub(crate) fn clear_text(&mut self, slot: SlotIndex) {
        let slot = &mut self.slots[slot.0 as usize];
        let (first, last) = (slot.first_chunk, slot.last_chunk);
        slot.first_chunk = NONE;
        slot.last_chunk = NONE;
        self.free_chunks(first, last);
    }

    /// The slots of a list, in its order.
    pub(crate) fn of(&self, list: &SlotList) -> impl Iterator<Item = SlotIndex> {
        let next = |slot: &SlotIndex| {
            let next = self.slots[slot.0 as usize].next;
            (next != NONE).then_some(SlotIndex(next))
        };
        std::iter::successors(list.head(), next)
    }

    /// Frees a whole list, because its connection is gone. Slots that await answers become orphans.
    pub(crate) fn orphan(&mut self, list: &mut SlotList) {
        let mut index = list.head;
        while index != NONE {
            let slot = &mut self.slots[index as usize];
            let next = slot.next;
            if slot.awaited == 0 {
                self.free(index);
            } else {
                slot.orphaned = true;
                slot.stream = None;
            }
            index = next;
        }
        *list = SlotList::EMPTY;
    }

    /// The client whose reply this slot is for. `None` if that client is gone.
    pub fn connection(&self, slot: SlotIndex) -> Option<ClientIndex> {
        let slot = &self.slots[slot.0 as usize];
        (!slot.orphaned).then_some(slot.client)
    }

    /// Keeps a slot that awaits answers, so that no other reply gets it, until
    /// [`Self::answered`] is called once more.
    pub fn hold(&mut self, slot: SlotIndex) {
        let kept = &mut self.slots[slot.0 as usize];
        debug_assert!(kept.awaited > 0, "I2: it is in use");
        kept.awaited += 1;
    }

    /// Whether answers are still to come for a slot that is held.
    pub fn held_awaits(&self, slot: SlotIndex) -> bool {
        self.slots[slot.0 as usize].awaited > 1
    }

    /// Notes that one of the answers that `slot` awaits has come. An orphan is freed with its last
    /// answer.
    pub fn answered(&mut self, slot: SlotIndex) {
        let kept = &mut self.slots[slot.0 as usize];
        assert!(kept.awaited > 0, "I2: an answer that nobody awaits");
        kept.awaited -= 1;
        if kept.orphaned && kept.awaited == 0 {
            self.free(slot.0);
        }
    }

    /// The room kept free for the answers that `slot` awaits.
    pub fn room(&self, slot: SlotIndex) -> AnswerRoom {
        self.slots[slot.0 as usize].room
    }

    pub(crate) fn awaited(&self, slot: SlotIndex) -> u32 {
        self.slots[slot.0 as usize].awaited
    }

    pub(crate) fn fence(&self, slot: SlotIndex) -> Option<Fence> {
        self.slots[slot.0 as usize].fence
    }

    /// Has the reply in a slot, and what follows it, wait until `fence` is reached.
    pub fn hold_back(&mut self, slot: SlotIndex, fence: Fence) {
        self.slots[slot.0 as usize].fence = Some(fence);
    }

    pub(crate) fn lift_fence(&mut self, slot: SlotIndex) {
        self.slots[slot.0 as usize].fence = None;
    }

    pub(crate) fn stream_mut(&mut self, slot: SlotIndex) -> &mut Option<Stream<S>> {
        &mut self.slots[slot.0 as usize].stream
    }

    pub(crate) fn has_stream(&self, slot: SlotIndex) -> bool {
        self.slots[slot.0 as usize].stream.is_some()
    }

    /// Whether text may be added to a slot that is the last of its connection: it awaits no answer,
    /// and no large value comes behind its text.
    pub(crate) fn takes_text(&self, slot: SlotIndex) -> bool {
        let slot = &self.slots[slot.0 as usize];
        slot.awaited == 0 && slot.stream.is_none()
    }

    /// Adds text to a slot. Cost: a copy, and the allocation of a chunk of 512 bytes if no chunk is
    /// free.
    pub(crate) fn write(&mut self, slot: SlotIndex, bytes: &[u8]) {
        let last = self.slots[slot.0 as usize].last_chunk; // No chunk has the index `NONE`.
        if !self.chunks.get_mut(last as usize).is_some_and(|chunk| chunk.put_all(bytes)) {
            self.write_on(slot, bytes);
        }
    }

    /// Adds text that goes on in another chunk.
    #[inline(never)]
    fn write_on(&mut self, slot: SlotIndex, mut bytes: &[u8]) {
        let mut last = self.slots[slot.0 as usize].last_chunk;
        while !bytes.is_empty() {
            let written = self.chunks.get_mut(last as usize).map_or(0, |chunk| chunk.put(bytes));
            bytes = &bytes[written..];
            if !bytes.is_empty() {
                last = self.add_chunk(slot);
            }
        }
    }

    fn add_chunk(&mut self, slot: SlotIndex) -> u32 {
        let index = if self.free_chunk == NONE {
            self.chunks.push(Chunk { next: NONE, used: 0, bytes: [0; CHUNK_BYTES] });
            u32::try_from(self.chunks.len() - 1).expect("far below 2^32 chunks")
        } else {
            let index = self.free_chunk;
            let chunk = &mut self.chunks[index as usize];
            self.free_chunk = chunk.next;
            chunk.next = NONE;
            chunk.used = 0;
            index
        };
        let slot = &mut self.slots[slot.0 as usize];
        if slot.first_chunk == NONE {
            slot.first_chunk = index;
        } else {
            self.chunks[slot.last_chunk as usize].next = index;
        }
        slot.last_chunk = index;
        index
    }

    /// Passes the text of a slot to `sink`, piece by piece.
    pub(crate) fn read(&self, slot: SlotIndex, mut sink: impl FnMut(&[u8])) {
        let mut index = self.slots[slot.0 as usize].first_chunk;
        while index != NONE {
            let chunk = &self.chunks[index as usize];
            sink(&chunk.bytes[..chunk.used as usize]);
            index = chunk.next;
        }
    }
}

impl<S> Default for Slots<S> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::ConnectionIndex;

    /// No answer is awaited.
    const NOW: (u32, AnswerRoom) = (0, AnswerRoom { line_bytes: 0, value_bytes: 0 });

    fn client() -> ClientIndex {
        ConnectionIndex(3).into()
    }

    #[test]
    fn text_longer_than_a_chunk_is_read_back_whole() {
        let mut slots = Slots::<()>::new();
        let mut list = SlotList::EMPTY;
        let slot = slots.push(&mut list, client(), NOW);
        let text: Vec<u8> = (0..2000u32).map(|byte| byte.to_le_bytes()[0]).collect();
        slots.write(slot, &text[..700]);
        slots.write(slot, &text[700..]);
        let mut read = Vec::new();
        slots.read(slot, |piece| read.extend_from_slice(piece));
        assert_eq!(read, text);
    }

    #[test]
    fn an_orphan_is_freed_with_its_last_answer_and_not_before() {
        let mut slots = Slots::<()>::new();
        let mut list = SlotList::EMPTY;
        let waiting = slots.push(&mut list, client(), (2, AnswerRoom::default()));
        slots.push(&mut list, client(), NOW);
        slots.orphan(&mut list);
        assert_eq!(slots.in_use(), 1);
        assert_eq!(slots.connection(waiting), None);
        slots.answered(waiting);
        assert_eq!(slots.in_use(), 1);
        slots.answered(waiting);
        assert_eq!(slots.in_use(), 0);
    }

    #[test]
    fn freed_slots_and_chunks_are_used_again() {
        let mut slots = Slots::<()>::new();
        for _ in 0..100 {
            let mut list = SlotList::EMPTY;
            let slot = slots.push(&mut list, client(), NOW);
            slots.write(slot, &[7; 1500]);
            slots.pop(&mut list);
        }
        assert_eq!((slots.slots.len(), slots.chunks.len()), (1, 3));
    }

    #[test]
    fn chunks_of_a_crowd_are_given_back_when_it_has_gone() {
        let mut slots = Slots::<()>::new();
        let mut list = SlotList::EMPTY;
        for _ in 0..2 * KEPT_CHUNKS_MAX {
            let slot = slots.push(&mut list, client(), NOW);
            slots.write(slot, &[7; CHUNK_BYTES]);
        }
        for _ in 0..2 * KEPT_CHUNKS_MAX {
            slots.pop(&mut list);
        }
        assert_eq!((slots.chunks.capacity(), slots.slots.capacity()), (0, 0));
        let slot = slots.push(&mut list, client(), NOW);
        slots.write(slot, b"after");
        let mut read = Vec::new();
        slots.read(slot, |piece| read.extend_from_slice(piece));
        assert_eq!(read, b"after");
    }
}
