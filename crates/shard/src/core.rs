//! All of a shard but its door: cache, connections, mailboxes. What `serve`, `hop` and `admin`
//! work on.
//!
//! Upstream:   `shard::tick` owns it beside the `Io`, so that lent bytes and this can be used at
//!             once.
//! Downstream: `cache`, `net`, the rings of `hop`.
//!
//! Invariants:
//! - I1  An open connection whose `dirty` mark is set is in `dirty`; `resumable` and `awaits_mail`
//!   likewise. The lists may also name a connection that has closed since: whoever takes it off
//!   finds it gone, or unmarked.
//! - I2  What is asked of a connection that is gone does nothing: an answer may come after its
//!   client left.

use std::sync::Arc;

use kachel_cache::{Cache, CacheStats, Pinned};
use kachel_engine::{Epoch, KeyHasher, Now};
use kachel_net::{
    AnswerRoom, BlockPool, Connection, ConnectionIndex, Connections, Outbox, Phase, SlotIndex,
    Slots, Source, Stream,
};
use kachel_stdx::Held;
use kachel_wire::{Reply, Sink};

use crate::apply::{Applier, ReplySink};
use crate::counters::Counters;
use crate::dump::Dumps;
use crate::hop::REQUEST_HEAD_BYTES;
use crate::hop::{MailboxFull, Mailboxes};
use crate::shared::Shared;
use crate::timeouts::Timeouts;
use crate::upload::Uploads;

/// A large value on its way to a client.
#[derive(Debug)]
pub(crate) struct LargeValue(pub(crate) Pinned);

impl Source for LargeValue {
    fn total_bytes(&self) -> usize {
        self.0.total_bytes()
    }

    fn piece_at(&self, offset: usize) -> &[u8] {
        self.0.piece_at(offset)
    }

    fn hold_at(&self, offset: usize) -> Held {
        self.0.hold_at(offset)
    }
}

/// A client's outbox as a place to word a reply into.
pub(crate) struct ToClient<'a> {
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) slots: &'a mut Slots<LargeValue>,
    connection: ConnectionIndex,
    pool: &'a mut BlockPool,
}

impl ToClient<'_> {
    /// Lets a large value follow what was worded.
    pub(crate) fn value(&mut self, pinned: Pinned) {
        let stream = Stream::new(LargeValue(pinned));
        self.outbox.stream(stream, self.connection, self.pool, self.slots);
    }
}

impl Sink for ToClient<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.outbox.text(bytes, self.connection, self.pool, self.slots);
    }

    #[inline]
    fn put_all<const PIECES: usize>(&mut self, pieces: [&[u8]; PIECES]) {
        self.outbox.text_all(pieces, self.connection, self.pool, self.slots);
    }
}

impl ReplySink for ToClient<'_> {
    #[inline]
    fn value_bytes_max(&self) -> usize {
        usize::MAX
    }
}

/// The answer to another shard, while it is worded.
pub(crate) struct AnswerText {
    pub(crate) text: Vec<u8>,
    /// Bytes of value that the one who waits has room for.
    pub(crate) value_bytes_max: u16,
}

impl Sink for AnswerText {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }
}

impl ReplySink for AnswerText {
    #[inline]
    fn value_bytes_max(&self) -> usize {
        usize::from(self.value_bytes_max)
    }
}

/// A shard without its door.
pub(crate) struct Core {
    pub(crate) id: u16,
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) epoch: Epoch,
    /// The time of this tick.
    pub(crate) now: Now,
    pub(crate) hasher: KeyHasher,
    pub(crate) cache: Cache,
    /// What the cache had done at the last `stats reset`.
    pub(crate) stats_before: CacheStats,
    pub(crate) connections: Connections,
    pub(crate) slots: Slots<LargeValue>,
    pub(crate) pool: BlockPool,
    pub(crate) timeouts: Timeouts,
    pub(crate) mail: Mailboxes,
    /// Connections with replies to hand to the kernel, or that are to be closed.
    pub(crate) dirty: Vec<ConnectionIndex>,
    /// Stalled connections that wait for nothing any more.
    pub(crate) resumable: Vec<ConnectionIndex>,
    pub(crate) uploads: Uploads,
    pub(crate) dumps: Dumps,
    /// Whether a mailbox had no room in this tick, so that sleep must be short.
    pub(crate) mailbox_was_full: bool,
    /// Connections ever closed for holding large values.
    pub(crate) pinned_closes: u64,
    pub(crate) answer: AnswerText,
    /// Keys that came in base64, decoded, while their batch is served.
    pub(crate) decoded_keys: Vec<u8>,
    /// Requests of another shard, while they are carried out.
    pub(crate) request: Vec<u8>,
    /// What the door is called, for `stats`.
    pub(crate) io_kind: &'static str,
}

impl Core {
    /// The engine and the outbox, to apply a request of this client. `None`: it is gone (I2).
    #[inline]
    pub(crate) fn client(
        &mut self,
        connection: ConnectionIndex,
    ) -> Option<(Applier<'_>, ToClient<'_>)> {
        let open = self.connections.get_mut(connection)?;
        let sink = ToClient {
            outbox: &mut open.outbox,
            slots: &mut self.slots,
            connection,
            pool: &mut self.pool,
        };
        let applier = Applier { cache: &mut self.cache, now: &self.now, counters: &self.counters };
        Some((applier, sink))
    }

    /// Words constant text to a client.
    pub(crate) fn text(&mut self, connection: ConnectionIndex, text: &[u8]) {
        if let Some((_, mut sink)) = self.client(connection) {
            sink.put(text);
            self.mark_dirty(connection);
        }
    }

    /// Words constant text into a slot that is kept.
    pub(crate) fn text_into(&mut self, connection: ConnectionIndex, slot: SlotIndex, text: &[u8]) {
        if let Some(open) = self.connections.get_mut(connection) {
            open.outbox.text_into(slot, text, &mut self.slots);
        }
    }

    /// Lets requests behind a listing go on.
    pub(crate) fn end_dump(&mut self, connection: ConnectionIndex) {
        self.with(connection, |open| open.dumping = false);
        self.mark_dirty(connection);
    }

    /// Whether a hop with this much text can be pushed to `owner` now.
    pub(crate) fn has_room(&mut self, owner: u16, text_bytes: usize) -> Result<(), MailboxFull> {
        let room = self.mail.has_room(owner, REQUEST_HEAD_BYTES + text_bytes);
        self.mailbox_was_full |= room.is_err();
        room
    }

    /// Squares a connection's kept input with the budget; one whose long line finds no room is told
    /// so and closed.
    pub(crate) fn charge_input(&mut self, connection: ConnectionIndex) {
        let Some(open) = self.connections.get_mut(connection) else { return };
        let (budget, charged) = (&self.shared.budget, open.input.charged_bytes);
        let (cache, now) = (&mut self.cache, &self.now);
        let mut wanted = open.input.chargeable_bytes();
        if wanted > charged {
            let more = wanted - charged;
            let has_room = budget.charge(more) || cache.make_room(more, now) && budget.charge(more);
            if !has_room {
                // Its memory may be larger than what is in it.
                open.input.tail.shrink_to_fit();
                wanted = open.input.chargeable_bytes();
                if wanted > charged && !budget.charge(wanted - charged) {
                    return self.refuse_input(connection);
                }
            }
        }
        budget.refund(charged.saturating_sub(wanted));
        open.input.charged_bytes = wanted;
    }

    /// The input of a connection found no memory.
    fn refuse_input(&mut self, connection: ConnectionIndex) {
        let Some(open) = self.connections.get_mut(connection) else { return };
        open.input.tail = Vec::new();
        self.shared.budget.refund(std::mem::take(&mut open.input.charged_bytes));
        self.text(connection, Reply::OutOfMemoryReading.bytes());
        self.drain(connection);
    }

    /// Keeps a place for the answers of `awaited` shards.
    ///
    /// Panics: when the connection is gone; requests are only carried out for open ones.
    pub(crate) fn keep_slot(
        &mut self,
        connection: ConnectionIndex,
        (awaited, room): (u32, AnswerRoom),
    ) -> SlotIndex {
        let open = self.connections.get_mut(connection).expect("its request is being served");
        open.outbox.await_answers((awaited, room), connection, &mut self.slots)
    }

    /// Puts a connection on the list of those to flush (I1).
    #[inline]
    pub(crate) fn mark_dirty(&mut self, connection: ConnectionIndex) {
        if let Some(open) = self.connections.get_mut(connection)
            && !open.dirty
        {
            open.dirty = true;
            self.dirty.push(connection);
        }
    }

    /// Remembers that the input so far holds no whole line.
    pub(crate) fn note_scanned(&mut self, connection: ConnectionIndex, bytes: usize) {
        self.with(connection, |open| {
            open.input.scanned_bytes = bytes;
            open.input.announced_bytes = 0;
        });
    }

    /// Remembers that a data block of this size is awaited: its time begins with the end of its
    /// line. An empty one counts as a byte, because its CR LF is awaited.
    pub(crate) fn note_announced(&mut self, connection: ConnectionIndex, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        self.with(connection, |open| {
            if std::mem::replace(&mut open.input.announced_bytes, bytes) == 0 {
                open.input.waiting_since = 0;
            }
            // The line at the front is whole: nothing is known of what follows it.
            open.input.scanned_bytes = 0;
        });
    }

    /// Lets the next `bytes` of input pass unread.
    pub(crate) fn skip(&mut self, connection: ConnectionIndex, bytes: u64) {
        if bytes > 0 {
            self.note_announced(connection, usize::try_from(bytes).unwrap_or(usize::MAX));
            self.with(connection, |open| {
                open.input.skip_bytes = bytes;
                open.input.waiting_since = 0;
            });
        }
    }

    /// Reads nothing more from this client; what it is owed is sent, then it is closed.
    pub(crate) fn drain(&mut self, connection: ConnectionIndex) {
        self.with(connection, |open| open.phase = Phase::Draining);
        self.mark_dirty(connection);
    }

    fn with(&mut self, connection: ConnectionIndex, change: impl FnOnce(&mut Connection)) {
        if let Some(open) = self.connections.get_mut(connection) {
            change(open);
        }
    }

    /// Writes the gauges that `stats` shows.
    pub(crate) fn publish_gauges(&self) {
        self.counters.publish(&self.cache.stats(), &self.stats_before);
    }

    /// Begins to count again from 0 (`stats reset`).
    pub(crate) fn reset_stats(&mut self) {
        self.counters.reset();
        self.stats_before = self.cache.stats();
        self.publish_gauges();
    }
}
