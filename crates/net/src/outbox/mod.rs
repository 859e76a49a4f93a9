//! The replies that a connection still owes its client, in order.
//!
//! Upstream:   `shard` formats replies into it (`text`), keeps a slot in it for the answer of
//!             another shard (`await_answers`), and sends large values through it (`stream`).
//! Downstream: `io` gets blocks (`flush`), and gives them back when the kernel has taken them.
//!
//! ```text
//! in flight (io has them) | queued blocks | open block | slots: waiting / text / stream ...
//! ```
//!
//! While no slot is in use, text is written directly into the open block. After a slot, text waits
//! in the list, and `settle` moves it into blocks when the slots before it are answered.
//!
//! Invariants:
//! - I1  `owed_bytes` counts the bytes in flight, queued and in the open block.
//! - I2  Bytes are sent in the order in which their requests came.
//! - I3  `slot_bytes` counts the text that waits in slots. `room_bytes` counts the room kept free
//!   for awaited answers. `streams` counts the large values that wait.
//! - I4  A stream is put into blocks only while the blocks before it take less than `limit_bytes`.
//!   Long pieces are not copied: a block refers to at most `HELD_PIECES_MAX` of them. So a client
//!   is never sent much more than it has read.
//! - I5  A request is begun only while `debt_bytes` is below `limit_bytes`, and `debt_bytes` plus
//!   the kept requests is below `BEGUN_BYTES_MAX`. No answer is longer than the room kept for it.
//!   So a connection takes memory for `OWED_BYTES_MAX` and one reply at most, whichever shard
//!   answers.
//! - I6  A reply that has a fence, and all replies behind it, are put into blocks only after the
//!   fence was reached. So a client is not told of its own change, and reads no item, before the
//!   change is durable. Listings, statistics and lines of the log do not wait for it.

use std::collections::VecDeque;

use kachel_io::{Io, SEND_BLOCK_BYTES, SendBlock, SocketId};

use crate::blocks::BlockPool;
use crate::holding::Holding;
use crate::index::ClientIndex;
use crate::limits::{
    BEGUN_BYTES_MAX, KEPT_BYTES_MAX, OWED_BYTES_MAX, OWN_BYTES_PER_CONNECTION,
    SLOTS_PER_CONNECTION_MAX,
};
use crate::slots::{AnswerRoom, Fence, SLOT_BYTES, SlotIndex, SlotList, Slots};
use crate::stream::{Source, Stream};

/// The replies of one connection that the kernel has not taken yet.
#[derive(Debug)]
pub struct Outbox {
    queued: VecDeque<SendBlock>,
    open: Option<SendBlock>,
    owed_bytes: usize,
    in_flight_blocks: u32,
    /// Bytes of the first block in flight that the kernel has taken.
    first_taken_bytes: usize,
    slots: SlotList,
    /// Bytes of text that wait in slots.
    slot_bytes: usize,
    /// Bytes kept free for answers that are awaited.
    room_bytes: usize,
    /// Answers of other shards still to come.
    awaited: u32,
    /// Large values in slots, which are not in blocks yet, or only in part.
    streams: usize,
    holding: Holding,
    /// `OWN_BYTES_PER_CONNECTION`, or `OWED_BYTES_MAX` while the difference is charged to `-m`.
    limit_bytes: usize,
    /// The length of the values in recent answers. The next value is expected to be as long.
    value_bytes_seen: u16,
}

/// The expected length of a value until the first answers come.
const VALUE_BYTES_AT_FIRST: u16 = 2048;
/// The least room for a value.
const VALUE_BYTES_MIN: u16 = 128;
/// The most room for a value. Longer values are not sent inline.
const VALUE_ROOM_MAX: u16 = 16 * 1024 - 1;
/// A shorter piece of a large value is copied, because a copy costs less than to send the piece by
/// itself.
const HELD_BYTES_MIN: usize = 2048;

impl Outbox {
    /// Makes an empty outbox, without memory.
    pub(crate) const fn new() -> Self {
        Self {
            queued: VecDeque::new(),
            open: None,
            owed_bytes: 0,
            in_flight_blocks: 0,
            first_taken_bytes: 0,
            slots: SlotList::EMPTY,
            slot_bytes: 0,
            room_bytes: 0,
            awaited: 0,
            streams: 0,
            holding: Holding::NONE,
            limit_bytes: OWN_BYTES_PER_CONNECTION,
            value_bytes_seen: VALUE_BYTES_AT_FIRST,
        }
    }

    /// Whether the kernel has taken all replies, and none waits for an answer, a fence or its turn.
    pub fn is_empty(&self) -> bool {
        self.owed_bytes == 0 && self.slots.count == 0
    }

    /// Whether more requests must wait until the client has read replies, or other shards have
    /// answered (I5). `kept_bytes` is the size of the kept requests.
    #[inline]
    pub fn is_full(&self, kept_bytes: usize) -> bool {
        if self.in_flight_blocks == 0 && self.queued.is_empty() && self.slots.count == 0 {
            // This is the common case. One block that is not full is not enough to wait for.
            return false;
        }
        self.debt_bytes() >= self.limit_bytes || self.holds_all(kept_bytes)
    }

    /// Whether the wide limit would allow more requests.
    pub fn would_widen(&self, kept_bytes: usize) -> bool {
        !self.is_wide() && !self.holds_all(kept_bytes)
    }

    /// Whether replies and kept requests together take as much memory as is ever allowed.
    fn holds_all(&self, kept_bytes: usize) -> bool {
        self.debt_bytes() + kept_bytes.min(KEPT_BYTES_MAX) >= BEGUN_BYTES_MAX
            || self.slots.count >= SLOTS_PER_CONNECTION_MAX
    }

    /// The memory that the outbox takes, or may take when answers come. Blocks in flight or queued
    /// count whole, because a block with one byte takes as much memory as a full one. Each large
    /// value that waits counts as one block.
    #[inline]
    fn debt_bytes(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |open| open.bytes().len());
        let streams = self.streams * SEND_BLOCK_BYTES;
        let slots = self.slots.count as usize * SLOT_BYTES;
        self.block_bytes() + open + streams + slots + self.slot_bytes + self.room_bytes
    }

    /// Memory of the blocks that are in flight or queued.
    #[inline]
    fn block_bytes(&self) -> usize {
        (self.in_flight_blocks as usize + self.queued.len()) * SEND_BLOCK_BYTES
    }

    /// Bytes of memory that hold replies.
    pub fn memory_bytes(&self) -> usize {
        let open = usize::from(self.open.is_some()) * SEND_BLOCK_BYTES;
        self.block_bytes() + open + self.slot_bytes
    }

    /// Whether the limit is the wide one, which is charged to `-m`.
    #[inline]
    pub fn is_wide(&self) -> bool {
        self.limit_bytes > OWN_BYTES_PER_CONNECTION
    }

    /// Takes the wide limit. The caller has charged `WIDENED_BYTES`.
    pub fn widen(&mut self) {
        self.limit_bytes = OWED_BYTES_MAX;
    }

    /// Goes back to the narrow limit if that is enough. Returns whether it did; the caller must
    /// then refund `WIDENED_BYTES`.
    pub fn narrow(&mut self) -> bool {
        let narrowed = self.is_wide() && self.debt_bytes() < OWN_BYTES_PER_CONNECTION;
        if narrowed {
            self.limit_bytes = OWN_BYTES_PER_CONNECTION;
        }
        narrowed
    }

    /// The large values that the connection holds, and how fast its client takes them.
    pub fn holding(&self) -> &Holding {
        &self.holding
    }

    /// The same as [`Self::holding`], mutable.
    pub fn holding_mut(&mut self) -> &mut Holding {
        &mut self.holding
    }

    /// Room to keep for a value in the next answer.
    pub fn value_room_bytes(&self) -> u16 {
        self.value_bytes_seen
    }

    /// Bytes formatted and not yet taken by the kernel.
    pub fn owed_bytes(&self) -> usize {
        self.owed_bytes
    }

    /// Replies that wait for an answer or for their turn.
    pub fn slots_in_use(&self) -> u32 {
        self.slots.count
    }

    /// Whether an awaited answer has not come yet.
    pub fn awaits_answers(&self) -> bool {
        self.awaited > 0
    }

    /// Adds text after all earlier replies (I2). Cost: one copy.
    #[inline]
    pub fn text<S>(
        &mut self,
        bytes: &[u8],
        connection: ClientIndex,
        pool: &mut BlockPool,
        slots: &mut Slots<S>,
    ) {
        if self.slots.count == 0 {
            self.put(bytes, pool);
        } else {
            let last = self.last_for_text(connection, slots);
            self.text_into(last, bytes, slots);
        }
    }

    /// The slot behind all replies to which text is added.
    #[inline(never)]
    fn last_for_text<S>(&mut self, connection: ClientIndex, slots: &mut Slots<S>) -> SlotIndex {
        match self.slots.tail() {
            Some(tail) if slots.takes_text(tail) => tail,
            _ => slots.push(&mut self.slots, connection, (0, AnswerRoom::default())),
        }
    }

    /// Adds several pieces, as [`Self::text`] does. Cost: one check for room, and one copy per
    /// piece.
    #[inline]
    pub fn text_all<S, const PIECES: usize>(
        &mut self,
        pieces: [&[u8]; PIECES],
        connection: ClientIndex,
        pool: &mut BlockPool,
        slots: &mut Slots<S>,
    ) {
        if self.slots.count == 0 && self.open.get_or_insert_with(|| pool.take()).put_all(pieces) {
            self.owed_bytes += pieces.iter().map(|piece| piece.len()).sum::<usize>();
            return;
        }
        for piece in pieces {
            self.text(piece, connection, pool, slots);
        }
    }

    /// Holds back all replies that are added from now on until `fence` is reached (I6). Returns
    /// whether a new fence stands: an earlier one may hold back the same replies. Cost: a slot.
    pub fn fence<S>(
        &mut self,
        fence: Fence,
        connection: ClientIndex,
        slots: &mut Slots<S>,
    ) -> bool {
        let tail = self.slots.tail().filter(|&tail| slots.awaited(tail) == 0);
        if tail.and_then(|tail| slots.fence(tail)) == Some(fence) {
            return false;
        }
        let slot = slots.push(&mut self.slots, connection, (0, AnswerRoom::default()));
        slots.hold_back(slot, fence);
        true
    }

    /// The fences that hold back replies, in the order of the replies.
    pub fn fences<S>(&self, slots: &Slots<S>) -> impl Iterator<Item = Fence> {
        slots.of(&self.slots).filter_map(|slot| slots.fence(slot))
    }

    /// The slots that await answers.
    pub fn awaiting_slots<S>(&self, slots: &Slots<S>) -> impl Iterator<Item = SlotIndex> {
        slots.of(&self.slots).filter(|slot| slots.awaited(*slot) > 0)
    }

    /// Keeps a slot, and room, for the answers of `awaited` other shards.
    pub fn await_answers<S>(
        &mut self,
        (awaited, room): (u32, AnswerRoom),
        connection: ClientIndex,
        slots: &mut Slots<S>,
    ) -> SlotIndex {
        assert!(awaited > 0);
        self.awaited += awaited;
        self.room_bytes += room.bytes();
        slots.push(&mut self.slots, connection, (awaited, room))
    }

    /// Notes that an answer has come, and frees the room kept for it. Its text and its value are in
    /// the slot already. `value_bytes` is the length that the value had, or would have had, in the
    /// answer.
    pub fn answered<S>(&mut self, slot: SlotIndex, value_bytes: usize, slots: &mut Slots<S>) {
        let room = slots.room(slot);
        self.awaited -= 1;
        slots.answered(slot);
        if slots.awaited(slot) == 0 {
            self.room_bytes -= room.bytes();
        }
        if room.value_bytes > 0 {
            let value_bytes = u16::try_from(value_bytes).unwrap_or(u16::MAX);
            let faded = self.value_bytes_seen - self.value_bytes_seen / 8;
            self.value_bytes_seen = faded.max(value_bytes).clamp(VALUE_BYTES_MIN, VALUE_ROOM_MAX);
        }
    }

    /// Adds text to a slot that [`Self::await_answers`] returned.
    pub fn text_into<S>(&mut self, slot: SlotIndex, bytes: &[u8], slots: &mut Slots<S>) {
        slots.write(slot, bytes);
        self.slot_bytes += bytes.len();
    }

    /// Sends a large value after all earlier replies. If no slot is in use, it is put into blocks
    /// at once, as far as I4 allows.
    pub fn stream<S: Source>(
        &mut self,
        mut stream: Stream<S>,
        connection: ClientIndex,
        pool: &mut BlockPool,
        slots: &mut Slots<S>,
    ) {
        self.holding.begin(stream.source.total_bytes());
        if self.slots.count == 0 && self.pump(&mut stream, pool) {
            return;
        }
        let slot = slots.push(&mut self.slots, connection, (0, AnswerRoom::default()));
        self.streams += 1;
        *slots.stream_mut(slot) = Some(stream);
    }

    /// Sends a large value after the text of a slot that [`Self::await_answers`] returned.
    pub fn stream_into<S: Source>(
        &mut self,
        slot: SlotIndex,
        stream: Stream<S>,
        slots: &mut Slots<S>,
    ) {
        debug_assert!(!slots.has_stream(slot), "one stream a slot");
        self.streams += 1;
        self.holding.begin(stream.source.total_bytes());
        *slots.stream_mut(slot) = Some(stream);
    }

    /// Adds bytes to the open block. An empty slice opens no block.
    fn put(&mut self, mut bytes: &[u8], pool: &mut BlockPool) {
        self.owed_bytes += bytes.len();
        while !bytes.is_empty() {
            let open = self.open.get_or_insert_with(|| pool.take());
            let taken = open.put(bytes);
            bytes = &bytes[taken..];
            if !bytes.is_empty() {
                self.queued.extend(self.open.take());
            }
        }
    }

    /// The fence that holds the first reply back, which waits for nothing else. Cost: a load, if no
    /// reply waits.
    #[inline]
    pub fn first_fence<S>(&self, slots: &Slots<S>) -> Option<Fence> {
        self.slots
            .head()
            .filter(|&head| slots.awaited(head) == 0)
            .and_then(|head| slots.fence(head))
    }

    /// Moves the replies of the first slots into blocks, up to a slot that awaits an answer, or
    /// whose fence is not reached (I6). Moves large values as far as I4 allows.
    ///
    /// If a slot has text and a large value, the text comes first.
    pub fn settle<S: Source>(
        &mut self,
        pool: &mut BlockPool,
        slots: &mut Slots<S>,
        is_reached: impl Fn(Fence) -> bool,
    ) {
        while let Some(head) = self.slots.head() {
            if slots.awaited(head) > 0 || !slots.fence(head).is_none_or(&is_reached) {
                return;
            }
            slots.lift_fence(head); // It holds back nothing any more (`discard`).
            let stream = slots.stream_mut(head).take();
            if stream.as_ref().is_none_or(|stream| stream.offset == 0) {
                slots.read(head, |piece| {
                    self.slot_bytes -= piece.len();
                    self.put(piece, pool);
                });
            }
            if let Some(mut stream) = stream {
                if !self.pump(&mut stream, pool) {
                    *slots.stream_mut(head) = Some(stream);
                    slots.clear_text(head);
                    return;
                }
                self.streams -= 1;
            }
            slots.pop(&mut self.slots);
        }
    }

    /// Puts a large value into blocks as far as I4 allows. Returns whether all of it is there, with
    /// the bytes that the protocol writes after it.
    fn pump<S: Source>(&mut self, stream: &mut Stream<S>, pool: &mut BlockPool) -> bool {
        while stream.offset < stream.source.total_bytes() {
            if self.block_bytes() >= self.limit_bytes {
                return false;
            }
            let open = self.open.get_or_insert_with(|| pool.take());
            let piece = stream.source.piece_at(stream.offset);
            assert!(!piece.is_empty(), "a source has bytes until its end");
            let count = if piece.len() < HELD_BYTES_MIN {
                let count = open.put(piece);
                self.holding.end(count);
                count
            } else if open.may_hold() {
                open.hold(stream.source.hold_at(stream.offset));
                piece.len()
            } else {
                0
            };
            stream.offset += count;
            self.owed_bytes += count;
            if count == 0 {
                self.queued.extend(self.open.take());
            }
        }
        self.put(stream.source.end(), pool);
        true
    }

    /// Passes the formatted bytes to `io`. Cost: a move per block.
    ///
    /// While `io` has earlier blocks, the open block stays here. The kernel would not take it yet,
    /// and a client that does not read would hold one block for each reply. So the caller must call
    /// `flush` again after `sent`.
    pub fn flush<I: Io>(&mut self, socket: SocketId, io: &mut I) {
        let open = if self.in_flight_blocks == 0 { self.open.take() } else { None };
        while let Some(block) = self.queued.pop_front() {
            self.send(socket, block, io);
        }
        if let Some(block) = open {
            self.send(socket, block, io);
        }
    }

    #[inline]
    fn send<I: Io>(&mut self, socket: SocketId, block: SendBlock, io: &mut I) {
        self.in_flight_blocks += 1;
        io.send(socket, block);
    }

    /// Whether `flush` has anything to do.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.open.is_some() || !self.queued.is_empty()
    }

    /// Notes that the kernel has taken the first `block_bytes` bytes of the first block in flight.
    pub fn taken(&mut self, block_bytes: usize) {
        assert!(self.in_flight_blocks > 0 && block_bytes >= self.first_taken_bytes, "Taken");
        self.holding.taken(block_bytes - self.first_taken_bytes);
        self.first_taken_bytes = block_bytes;
    }

    /// Notes that the kernel has taken a whole block of this connection.
    pub fn sent(&mut self, block: SendBlock, pool: &mut BlockPool) {
        let bytes = block.byte_count();
        assert!(self.owed_bytes >= bytes && self.in_flight_blocks > 0, "I1");
        self.owed_bytes -= bytes;
        self.in_flight_blocks -= 1;
        self.holding.taken(bytes - std::mem::take(&mut self.first_taken_bytes));
        self.holding.end(block.held_bytes());
        pool.put_back(block);
    }

    /// Drops the replies that are complete: all before the first slot that awaits an answer, or has
    /// a fence that `is_held`. For a connection whose replies are not sent.
    pub(crate) fn discard<S>(
        &mut self,
        pool: &mut BlockPool,
        slots: &mut Slots<S>,
        is_held: impl Fn(Fence) -> bool,
    ) {
        assert!(self.in_flight_blocks == 0, "the replies were not sent");
        while let Some(head) = self.slots.head() {
            if slots.awaited(head) > 0 || slots.fence(head).is_some_and(&is_held) {
                break;
            }
            slots.read(head, |piece| self.slot_bytes -= piece.len());
            self.streams -= usize::from(slots.stream_mut(head).take().is_some());
            slots.pop(&mut self.slots);
        }
        for block in self.queued.drain(..).chain(self.open.take()) {
            pool.put_back(block);
        }
        self.owed_bytes = 0;
        self.holding = Holding::NONE;
    }

    /// The complete replies in order, piece by piece. For a connection whose replies are not sent
    /// through a socket.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.queued.iter().chain(&self.open).flat_map(SendBlock::pieces)
    }

    /// Drops all replies, because the connection is gone.
    pub fn abandon<S>(&mut self, pool: &mut BlockPool, slots: &mut Slots<S>) {
        slots.orphan(&mut self.slots);
        for block in self.queued.drain(..).chain(self.open.take()) {
            pool.put_back(block);
        }
        self.owed_bytes = 0;
        self.slot_bytes = 0;
        self.room_bytes = 0;
        self.awaited = 0;
        self.streams = 0;
        self.holding = Holding::NONE;
        self.in_flight_blocks = 0;
        self.first_taken_bytes = 0;
    }
}

#[cfg(test)]
mod tests;
