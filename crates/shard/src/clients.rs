//! The clients of a shard: their connections, the reply slots, and the lists of connections that
//! later stages of a tick handle.
//!
//! Upstream:   every stage that answers or pauses a client.
//! Downstream: `net`.
//!
//! Invariants:
//! - I1  An open connection with a socket whose `dirty` mark is set is in `dirty`, and one whose
//!   `resumable` mark is set is in `resumable`. A list may also contain the index of a connection
//!   that has closed since. The stage that takes such an index off finds no connection there, or
//!   one without the mark.
//! - I2  A method that answers or changes a connection that is gone does nothing, because an answer
//!   may come after its client has left.

use std::collections::{BTreeSet, VecDeque};

use kachel_engine::ReadValue;
use kachel_net::{
    AnswerRoom, BlockPool, ClientIndex, CloseReason, Connection, ConnectionIndex, Connections,
    ExchangeIndex, Fence, SlotIndex, Slots, Stream,
};
use kachel_observe::WatcherId;
use kachel_wire::request::BinaryHead;
use kachel_wire::{BinaryRefusal, Reply, Sink};

use crate::cores::refreshes::Refreshing;
use crate::cores::run_queue::RunQueue;
use crate::fences::Fences;
use crate::request::reply::{LargeValue, ToClient};

/// Connections that each list has room for without an allocation.
const LISTED_AT_FIRST: usize = 1024;

/// A shard's clients.
#[derive(Debug)]
pub(crate) struct Clients<P> {
    pub(crate) connections: Connections,
    pub(crate) slots: Slots<LargeValue<P>>,
    pub(crate) blocks: BlockPool,
    /// Connections that have replies to send, and connections to close (I1).
    pub(crate) dirty: Vec<ConnectionIndex>,
    /// Paused connections whose cause to wait has ended (I1).
    pub(crate) resumable: Vec<ClientIndex>,
    /// Clients with input that wait for their turn.
    pub(crate) run_queue: RunQueue,
    /// Connections whose next login is checked later (`logins`, T1).
    pub(crate) login_turns: LoginTurns,
    /// Replies that wait until changes are durable.
    pub(crate) fences: Fences,
    /// The exchanges that are under way (`datagrams`, I2).
    pub(crate) exchanges: Vec<ExchangeIndex>,
    /// Slots that await answers of clients that have left, the oldest first. Each is held until
    /// `records` has looked at it (R4 there).
    pub(crate) gone: VecDeque<SlotIndex>,
    /// Clients that watch the log (`watching`, W1).
    pub(crate) watching: Vec<Watching>,
    /// Clients that have asked for new certificates.
    pub(crate) refreshing: Vec<Refreshing>,
}

/// A client that watches the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watching {
    pub(crate) connection: ConnectionIndex,
    pub(crate) id: WatcherId,
    /// Whether there may be lines for it.
    pub(crate) has_more: bool,
}

/// The connections of a shard whose next login must wait because their last login has failed, each
/// with the time from which the login may be checked (`logins`, T1).
#[derive(Debug, Default)]
pub(crate) struct LoginTurns {
    delayed: BTreeSet<(u64, ConnectionIndex)>,
}

impl LoginTurns {
    /// Lists a connection until `retry_ns`.
    pub(crate) fn delay(&mut self, connection: ConnectionIndex, retry_ns: u64) {
        let is_new = self.delayed.insert((retry_ns, connection));
        assert!(is_new, "logins, T1: it waits once");
    }

    /// The earliest of these times.
    #[inline]
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.delayed.first().map(|(retry_ns, _)| *retry_ns)
    }

    /// Removes and returns a connection whose time has come at `now_ns`.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<ConnectionIndex> {
        let is_due = self.next_ns().is_some_and(|retry_ns| retry_ns <= now_ns);
        if is_due { self.delayed.pop_first().map(|(_, connection)| connection) } else { None }
    }

    /// Removes a connection that closes. It was listed until `retry_ns`.
    pub(crate) fn forget(&mut self, connection: ConnectionIndex, retry_ns: u64) {
        let was_listed = self.delayed.remove(&(retry_ns, connection));
        debug_assert!(was_listed, "logins, T1");
    }
}

/// The answer of another shard, or of the engine, to a request of a client.
pub(crate) struct Answered<'a, P> {
    pub(crate) text: &'a [u8],
    /// The large value that follows the text. It is taken.
    pub(crate) value: &'a mut Option<LargeValue<P>>,
    /// What must come before the answer is sent.
    pub(crate) fence: Option<Fence>,
}

impl<P: ReadValue> Clients<P> {
    /// Makes a list of clients without a client.
    pub(crate) fn new() -> Self {
        Self {
            connections: Connections::new(),
            slots: Slots::new(),
            blocks: BlockPool::new(),
            dirty: Vec::with_capacity(LISTED_AT_FIRST),
            resumable: Vec::with_capacity(LISTED_AT_FIRST),
            run_queue: RunQueue::new(),
            login_turns: LoginTurns::default(),
            fences: Fences::default(),
            exchanges: Vec::new(),
            gone: VecDeque::new(),
            watching: Vec::new(),
            refreshing: Vec::new(),
        }
    }

    /// The outbox of a client, so that a reply can be formatted into it, which is then sent (I1).
    /// `None` if the client is gone (I2).
    #[inline]
    pub(crate) fn answering(
        &mut self,
        connection: impl Into<ClientIndex>,
    ) -> Option<ToClient<'_, P>> {
        let connection = connection.into();
        let open = self.connections.get_mut(connection)?;
        if open.mark_dirty() {
            list_dirty(&mut self.dirty, connection);
        }
        let outbox = open.outbox_mut();
        let Self { slots, blocks, fences, .. } = self;
        Some(ToClient { outbox, slots, blocks, fences, client: connection })
    }

    /// Puts the clients whose fences are reached on the list of dirty connections (I1). Cost: a
    /// load, if there is no fence.
    #[inline]
    pub(crate) fn lift_fences(&mut self, is_reached: impl Fn(Fence) -> bool) {
        if self.fences.is_empty() {
            return;
        }
        if self.fences.are_stale(self.slots.in_use()) {
            self.list_fences();
        }
        while !self.fences.is_empty()
            && let Some(client) = self.fences.take_reached(&is_reached)
        {
            self.mark_dirty(client);
        }
    }

    /// Lists the fences of the clients that are left (`fences`, F3). Cost: a read of each reply
    /// slot, after as many fences were added as there were slots.
    #[cold]
    fn list_fences(&mut self) {
        let Self { connections, slots, fences, exchanges, .. } = self;
        fences.clear();
        let open = connections.indices().map(ClientIndex::from);
        for client in open.chain(exchanges.iter().map(|exchange| (*exchange).into())) {
            let outbox = connections.get(client).map(Connection::outbox);
            let owed = outbox.into_iter().flat_map(|outbox| outbox.fences(slots));
            owed.for_each(|fence| fences.add(fence, client));
        }
        debug_assert!(fences.count() <= slots.in_use() as usize, "fences, F3");
    }

    /// Sends constant text to a client.
    pub(crate) fn text(&mut self, connection: impl Into<ClientIndex>, text: &[u8]) {
        if let Some(mut sink) = self.answering(connection) {
            sink.put(text);
        }
    }

    /// Sends a constant reply to a client; `head` is that of its request in the binary protocol.
    pub(crate) fn reply(
        &mut self,
        connection: impl Into<ClientIndex>,
        head: Option<BinaryHead>,
        reply: Reply,
    ) {
        let Some(mut sink) = self.answering(connection) else { return };
        match head {
            Some(head) => head.put_reply(&mut sink, reply),
            None => sink.put(reply.bytes()),
        }
    }

    /// Answers a binary request that is refused, and stops reading from its client if it must.
    pub(crate) fn refuse_binary(
        &mut self,
        connection: impl Into<ClientIndex>,
        refusal: &BinaryRefusal,
    ) {
        let connection = connection.into();
        debug_assert!(!refusal.closes || refusal.skip_bytes == 0, "nothing is read any more");
        if let Some(mut sink) = self.answering(connection) {
            refusal.head.put_status(&mut sink, refusal.status);
        }
        if refusal.closes {
            self.drain(connection, CloseReason::Error);
        }
    }

    /// Keeps a reply slot, and room, for an answer.
    ///
    /// Panics: when the connection is gone. Requests are executed only for open connections.
    pub(crate) fn keep_slot(&mut self, connection: ClientIndex, room: AnswerRoom) -> SlotIndex {
        let open = self.connections.get_mut(connection).expect("its request is being served");
        open.outbox_mut().await_answers((1, room), connection, &mut self.slots)
    }

    /// Puts an answer into its slot. If the client is gone, the answer is dropped (I2). If no room
    /// was kept for the answer, its text is dropped.
    pub(crate) fn answered(&mut self, slot: SlotIndex, answer: Answered<'_, P>) {
        let Answered { mut text, value, fence } = answer;
        let Self { connections, slots, fences, dirty, .. } = self;
        let client = slots.connection(slot);
        let open = client.and_then(|client| Some((client, connections.get_mut(client)?)));
        let Some((client, open)) = open else {
            *value = None;
            return slots.answered(slot);
        };
        let room_bytes = slots.room(slot).bytes();
        if room_bytes == 0 {
            text = b""; // The client waits only for the request to be done.
        }
        debug_assert!(text.len() <= room_bytes, "an answer fits the room kept for it");
        let value_bytes = value.as_ref().map_or(text.len(), |large| large.value.total_bytes());
        open.outbox_mut().text_into(slot, text, slots);
        if let Some(value) = value.take() {
            let stream = Stream::new(value);
            open.outbox_mut().stream_into(slot, stream, slots);
        }
        open.outbox_mut().answered(slot, value_bytes, slots);
        if let Some(fence) = fence {
            slots.hold_back(slot, fence);
            fences.add(fence, client);
        }
        if open.mark_dirty() {
            list_dirty(dirty, client);
        }
    }

    /// Puts a piece of a listing into its slot. The lines have any length, and no room was kept for
    /// them.
    pub(crate) fn piece(&mut self, slot: SlotIndex, lines: &[u8]) {
        let connection = self.slots.connection(slot);
        let open = connection.and_then(|connection| self.connections.get_mut(connection));
        let Some(open) = open else { return self.slots.answered(slot) };
        open.outbox_mut().text_into(slot, lines, &mut self.slots);
        open.outbox_mut().answered(slot, lines.len(), &mut self.slots);
        connection.into_iter().for_each(|connection| self.mark_dirty(connection));
    }

    /// Puts a connection on the list of dirty connections (I1).
    #[inline]
    pub(crate) fn mark_dirty(&mut self, connection: impl Into<ClientIndex>) {
        let connection = connection.into();
        if let Some(open) = self.connections.get_mut(connection)
            && open.mark_dirty()
        {
            list_dirty(&mut self.dirty, connection);
        }
    }

    /// Puts a paused connection on the list of resumable connections (I1).
    pub(crate) fn mark_resumable(&mut self, connection: ClientIndex) {
        if let Some(open) = self.connections.get_mut(connection)
            && open.mark_resumable()
        {
            debug_assert!(open.is_paused(), "only a paused connection is served again");
            self.resumable.push(connection);
        }
    }

    /// Stops reading from this client, for this reason. The connection closes when all that it is
    /// owed was sent.
    pub(crate) fn drain(&mut self, connection: impl Into<ClientIndex>, reason: CloseReason) {
        let connection = connection.into();
        self.with(connection, |open| open.drain(reason));
        self.mark_dirty(connection);
    }

    /// Changes a connection, if it is still open (I2).
    #[inline]
    pub(crate) fn with(
        &mut self,
        connection: impl Into<ClientIndex>,
        change: impl FnOnce(&mut Connection),
    ) {
        if let Some(open) = self.connections.get_mut(connection) {
            change(open);
        }
    }

    /// Whether the next request of a connection must wait.
    pub(crate) fn is_paused(&self, connection: impl Into<ClientIndex>) -> bool {
        self.connections.get(connection).is_some_and(Connection::is_paused)
    }
}

/// Lists a connection whose `dirty` mark was just set (I1). An exchange has the mark all the time
/// (`kachel_net::Connection`), so it never comes here.
fn list_dirty(dirty: &mut Vec<ConnectionIndex>, connection: ClientIndex) {
    debug_assert!(!connection.is_exchange(), "an exchange is in the list of exchanges");
    dirty.extend(connection.connection());
}
