//! The clients of a shard: their connections, the reply slots, and the lists of those that a tick
//! has something to do for.
//!
//! Upstream:   every stage that answers a client, or has it wait.
//! Downstream: `net`.
//!
//! Invariants:
//! - I1  An open connection whose `dirty` mark is set is in `dirty`, and one whose `resumable` mark
//!   is set is in `resumable`. The lists may also name a connection that has closed since: taking
//!   it off finds it gone, or unmarked.
//! - I2  What is asked of a connection that is gone does nothing: an answer may come after its
//!   client left.

use kachel_engine::ReadValue;
use kachel_net::{
    AnswerRoom, BlockPool, Connection, ConnectionIndex, Connections, SlotIndex, Slots, Stream,
};
use kachel_wire::Sink;

use crate::reply::{LargeValue, ToClient};

/// Connections listed at once without an allocation.
const LISTED_AT_FIRST: usize = 1024;

/// A shard's clients.
#[derive(Debug)]
pub(crate) struct Clients<P> {
    pub(crate) connections: Connections,
    pub(crate) slots: Slots<LargeValue<P>>,
    pub(crate) blocks: BlockPool,
    /// Connections with replies to hand to the kernel, and those to close (I1).
    pub(crate) dirty: Vec<ConnectionIndex>,
    /// Paused connections that wait for nothing any more (I1).
    pub(crate) resumable: Vec<ConnectionIndex>,
}

/// What another shard, or the engine, answers to a request of a client.
pub(crate) struct Answered<'a, P> {
    pub(crate) text: &'a [u8],
    /// The large value that follows the text.
    pub(crate) value: Option<LargeValue<P>>,
}

impl<P: ReadValue> Clients<P> {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            connections: Connections::new(),
            slots: Slots::new(),
            blocks: BlockPool::new(),
            dirty: Vec::with_capacity(LISTED_AT_FIRST),
            resumable: Vec::with_capacity(LISTED_AT_FIRST),
        }
    }

    /// The outbox of a client, to format a reply into. `None`: it is gone (I2).
    #[inline]
    pub(crate) fn sink(&mut self, connection: ConnectionIndex) -> Option<ToClient<'_, P>> {
        let open = self.connections.get_mut(connection)?;
        let (outbox, slots, blocks) = (open.outbox_mut(), &mut self.slots, &mut self.blocks);
        Some(ToClient { outbox, slots, blocks, connection })
    }

    /// Sends constant text to a client.
    pub(crate) fn text(&mut self, connection: ConnectionIndex, text: &[u8]) {
        if let Some(mut sink) = self.sink(connection) {
            sink.put(text);
            self.mark_dirty(connection);
        }
    }

    /// Puts constant text into a slot that waits for answers.
    pub(crate) fn text_into(&mut self, connection: ConnectionIndex, slot: SlotIndex, text: &[u8]) {
        if let Some(open) = self.connections.get_mut(connection) {
            debug_assert!(
                self.slots.connection(slot) == Some(connection),
                "a slot belongs to the connection that it was kept for"
            );
            open.outbox_mut().text_into(slot, text, &mut self.slots);
        }
    }

    /// Keeps a place, and room, for the answers of `awaited` shards.
    ///
    /// Panics: when the connection is gone; requests are only carried out for open ones.
    pub(crate) fn keep_slot(
        &mut self,
        connection: ConnectionIndex,
        awaited: u32,
        room: AnswerRoom,
    ) -> SlotIndex {
        let open = self.connections.get_mut(connection).expect("its request is being served");
        open.outbox_mut().await_answers((awaited, room), connection, &mut self.slots)
    }

    /// An answer has come for a slot. It is dropped where the client is gone (I2), and its text is
    /// dropped where no room was kept for it.
    pub(crate) fn answered(&mut self, slot: SlotIndex, answer: Answered<'_, P>) {
        let connection = self.slots.connection(slot);
        let open = connection.and_then(|connection| self.connections.get_mut(connection));
        let Some(open) = open else { return self.slots.answered(slot) };
        let Answered { mut text, value } = answer;
        let room_bytes = self.slots.room(slot).bytes();
        if room_bytes == 0 {
            text = b""; // The client waits only until it is done.
        }
        debug_assert!(text.len() <= room_bytes, "an answer fits the room kept for it");
        let value_bytes = value.as_ref().map_or(text.len(), |large| large.value.total_bytes());
        open.outbox_mut().text_into(slot, text, &mut self.slots);
        if let Some(value) = value {
            let stream = Stream::new(value);
            open.outbox_mut().stream_into(slot, stream, &mut self.slots);
        }
        open.outbox_mut().answered(slot, value_bytes, &mut self.slots);
        connection.into_iter().for_each(|connection| self.mark_dirty(connection));
    }

    /// A piece of a listing has come for a slot: lines of any length, for which no room was kept.
    pub(crate) fn piece(&mut self, slot: SlotIndex, lines: &[u8]) {
        let connection = self.slots.connection(slot);
        let open = connection.and_then(|connection| self.connections.get_mut(connection));
        let Some(open) = open else { return self.slots.answered(slot) };
        open.outbox_mut().text_into(slot, lines, &mut self.slots);
        open.outbox_mut().answered(slot, lines.len(), &mut self.slots);
        connection.into_iter().for_each(|connection| self.mark_dirty(connection));
    }

    /// Puts a connection on the list of those to send to (I1).
    #[inline]
    pub(crate) fn mark_dirty(&mut self, connection: ConnectionIndex) {
        if let Some(open) = self.connections.get_mut(connection)
            && open.mark_dirty()
        {
            self.dirty.push(connection);
        }
    }

    /// Puts a paused connection on the list of those to serve again (I1).
    pub(crate) fn mark_resumable(&mut self, connection: ConnectionIndex) {
        if let Some(open) = self.connections.get_mut(connection)
            && open.mark_resumable()
        {
            debug_assert!(open.is_paused(), "only a paused connection is served again");
            self.resumable.push(connection);
        }
    }

    /// Reads nothing more from this client; what it is owed is sent, then it is closed.
    pub(crate) fn drain(&mut self, connection: ConnectionIndex) {
        self.with(connection, Connection::drain);
        self.mark_dirty(connection);
    }

    /// Changes a connection, if it is still open (I2).
    #[inline]
    pub(crate) fn with(
        &mut self,
        connection: ConnectionIndex,
        change: impl FnOnce(&mut Connection),
    ) {
        if let Some(open) = self.connections.get_mut(connection) {
            change(open);
        }
    }

    /// Whether a connection waits for something before its next request is served.
    pub(crate) fn is_paused(&self, connection: ConnectionIndex) -> bool {
        self.connections.get(connection).is_some_and(Connection::is_paused)
    }
}
