//! Requests that the engine delays, and replies that wait until their change is durable.
//!
//! Upstream:   `serve`, `upload` and `mail`: all requests for an engine that delays any
//!             ([`Engine::DELAYS`]); for others those whose room is on its way, those that find
//!             the engine held by another core, and those behind.
//! Downstream: `apply`, once a ticket is ready; the client's slot, or the ring of answers.
//!
//! ```text
//!                 +-- Answered, now --------------------------------------> answer
//! apply, retry ---+-- Answered, at a sequence --> undurable --(durable)--> answer
//!      ^          +-- Later --> parked --+
//!      +---------(ticket is ready)-------+
//! ```
//!
//! The queue is the mailbox of a shard to itself. A request of its own client is parked as the
//! record that a hop would send, with a reply slot and room for its answer.
//!
//! Invariants:
//! - I1  At most [`REQUESTS_MAX`] requests and replies wait here. While there is no room, requests
//!   of other shards stay in their rings, and clients of this shard wait as if for a full mailbox.
//! - I2  Requests about one key are applied in the order in which they came: while one of them is
//!   parked, later ones are parked as well.
//! - I3  A parked request is applied again only when there is room for its answer.
//! - I4  If the client of a parked request has left, the request is still applied, once, and its
//!   answer is dropped.
//! - I5  Replies leave `undurable` in the order of their sequences.

use std::collections::VecDeque;

use kachel_engine::{Durability, Engine, Key, Sequence, Ticket};
use kachel_net::{ConnectionIndex, SlotIndex};

use crate::apply::Applied;
use crate::clients::{Answered, Clients};
use crate::context::Context;
use crate::engines::Engines;
use crate::hop::{HopKey, Mail, MailboxFull, Outgoing, ReplyTo, Taken, apply_taken};
use crate::reply::LargeValue;

/// The most requests and replies that wait in one shard. A guess: an engine with a disk has fewer
/// fetches in progress.
pub const REQUESTS_MAX: usize = 256;
/// The most connections that are resumed in a tick because there is room again.
const WOKEN_MAX: usize = 64;

/// Where a request came from, and where its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The shard whose client waits.
    pub(crate) shard: u16,
    /// The slot of that shard that waits for the answer.
    pub(crate) slot: SlotIndex,
}

/// A request that waits for the engine.
struct Parked<U> {
    origin: Origin,
    /// `None` if the request waits behind another request about its key (I2), or for the engine.
    ticket: Option<Ticket>,
    key_hash: u64,
    record: Vec<u8>,
    upload: Option<U>,
}

/// A reply whose change is not durable yet.
struct Undurable<P> {
    origin: Origin,
    sequence: Sequence,
    text: Vec<u8>,
    value: Option<LargeValue<P>>,
}

/// The requests and replies of one shard that wait for the engine.
pub(crate) struct Delayed<E: Engine> {
    /// Parked requests, the oldest first.
    parked: VecDeque<Parked<E::Upload>>,
    /// Replies that are not durable yet, in the order of their sequences (I5).
    undurable: VecDeque<Undurable<E::Pinned>>,
    /// Connections of this shard that wait for room (I1).
    waiting: VecDeque<ConnectionIndex>,
    /// Memory of earlier records and texts, which is used again.
    spare: Vec<Vec<u8>>,
    /// The hashes of keys whose requests stay parked; used only by `retry`.
    blocked: Vec<u64>,
}

impl<E: Engine> Delayed<E> {
    /// Nothing waits. Allocates nothing.
    pub(crate) const fn new() -> Self {
        Self {
            parked: VecDeque::new(),
            undurable: VecDeque::new(),
            waiting: VecDeque::new(),
            spare: Vec::new(),
            blocked: Vec::new(),
        }
    }

    /// Whether no request and no reply waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.parked.is_empty() && self.undurable.is_empty()
    }

    /// Whether every request goes through [`Self::apply`]: if the engine may delay any, or while
    /// some are parked (I2). Otherwise the caller applies it, and parks it if it must wait.
    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        E::DELAYS || !self.parked.is_empty()
    }

    /// Requests and replies that wait.
    pub(crate) fn count(&self) -> usize {
        self.parked.len() + self.undurable.len()
    }

    /// How many more requests or replies may wait (I1).
    #[inline]
    pub(crate) fn room(&self) -> usize {
        REQUESTS_MAX - self.count()
    }

    /// Adds a connection of this shard to those that wait for room (I1).
    pub(crate) fn wait(&mut self, connection: ConnectionIndex) {
        debug_assert!(self.room() == 0, "a connection waits only while there is no room");
        self.waiting.push_back(connection);
    }

    /// Applies a request of a client of this shard, as if it had come from another shard.
    ///
    /// Errors: there is no room, and nothing was done. The caller must pause the connection.
    #[expect(clippy::too_many_arguments, reason = "the parts of a shard that any request needs")]
    pub(crate) fn apply_own(
        &mut self,
        context: &Context,
        engine: Option<&mut E>,
        clients: &mut Clients<E::Pinned>,
        mail: &mut Mail<E>,
        connection: ConnectionIndex,
        key: Key<'_>,
        request: Outgoing<'_>,
        upload: Option<E::Upload>,
    ) -> Result<(), (MailboxFull, Option<E::Upload>)> {
        if self.room() == 0 {
            return Err((MailboxFull(context.id), upload));
        }
        let (origin, record) = self.record(context, clients, connection, key, request);
        mail.answer.begin(request.room.value_bytes);
        self.apply(context, engine, clients, mail, origin, &Taken::read(&record), upload);
        self.spare.push(record);
        Ok(())
    }

    /// Parks a request of a client of this shard that the engine did not execute.
    #[expect(clippy::too_many_arguments, reason = "the parts of a shard that any request needs")]
    pub(crate) fn park_own(
        &mut self,
        context: &Context,
        clients: &mut Clients<E::Pinned>,
        connection: ConnectionIndex,
        key: Key<'_>,
        request: Outgoing<'_>,
        upload: Option<E::Upload>,
        ticket: Ticket,
    ) {
        let (origin, record) = self.record(context, clients, connection, key, request);
        let key_hash = key.secret_hash();
        self.park(Parked { origin, ticket: Some(ticket), key_hash, record, upload });
    }

    /// Parks a request of another shard that the engine did not execute.
    pub(crate) fn park_taken(
        &mut self,
        origin: Origin,
        taken: &Taken<'_>,
        upload: Option<E::Upload>,
        ticket: Option<Ticket>,
    ) {
        let key_hash = taken.key.expect("a parked request is about a key").secret_hash();
        let mut record = self.spare_record();
        record.extend_from_slice(taken.record);
        self.park(Parked { origin, ticket, key_hash, record, upload });
    }

    /// Memory for a record, empty.
    fn spare_record(&mut self) -> Vec<u8> {
        let mut record = self.spare.pop().unwrap_or_default();
        record.clear();
        record
    }

    fn park(&mut self, parked: Parked<E::Upload>) {
        assert!(self.room() > 0, "I1: the caller has asked for room");
        self.parked.push_back(parked);
    }

    /// The record of a request of a client of this shard, with a slot kept for its answer.
    fn record(
        &mut self,
        context: &Context,
        clients: &mut Clients<E::Pinned>,
        connection: ConnectionIndex,
        key: Key<'_>,
        request: Outgoing<'_>,
    ) -> (Origin, Vec<u8>) {
        debug_assert!(context.owns(&key), "only the owner of a key parks requests about it");
        let Outgoing { hop, text, room } = request;
        let slot = clients.keep_slot(connection, room);
        let reply = ReplyTo { slot: Some(slot), value_bytes: room.value_bytes };
        let (place, added) = HopKey::place(key, text);
        let mut record = self.spare_record();
        let head = hop.head(reply, Some(place));
        [&head, text, added].iter().for_each(|piece| record.extend_from_slice(piece));
        (Origin { shard: context.id, slot }, record)
    }

    /// Applies a request about a key, or parks it; without the engine, which another core holds, it
    /// is parked. The caller has checked that there is room here and for the answer.
    #[expect(clippy::too_many_arguments, reason = "the parts of a shard that any request needs")]
    pub(crate) fn apply(
        &mut self,
        context: &Context,
        engine: Option<&mut E>,
        clients: &mut Clients<E::Pinned>,
        mail: &mut Mail<E>,
        origin: Origin,
        taken: &Taken<'_>,
        mut upload: Option<E::Upload>,
    ) {
        let key_hash = taken.key.expect("a parked request is about a key").secret_hash();
        let is_behind = self.parked.iter().any(|parked| parked.key_hash == key_hash);
        let ticket = if let Some(engine) = engine.filter(|_| !is_behind) {
            match apply_taken(context, engine, taken, &mut upload, None, &mut mail.answer) {
                Applied::Answered(value, durability) => {
                    return self.answer(context, clients, mail, origin, value, durability);
                }
                Applied::Later(ticket) => Some(ticket),
            }
        } else {
            None // I2
        };
        self.park_taken(origin, taken, upload, ticket);
    }

    /// Sends the reply that was formatted, or keeps it until its change is durable.
    fn answer(
        &mut self,
        context: &Context,
        clients: &mut Clients<E::Pinned>,
        mail: &mut Mail<E>,
        origin: Origin,
        value: Option<LargeValue<E::Pinned>>,
        durability: Durability,
    ) {
        let Durability::At(sequence) = durability else {
            return deliver(context, clients, mail, origin, value);
        };
        let newest = self.undurable.back().map(|reply| reply.sequence);
        assert!(newest.is_none_or(|newest| newest <= sequence), "I5: sequences only grow");
        let spare = self.spare.pop().unwrap_or_default();
        let mut text = std::mem::replace(&mut mail.answer.text, spare);
        text.shrink_to(text.len());
        self.undurable.push_back(Undurable { origin, sequence, text, value });
    }

    /// Applies the parked requests that are ready, and sends the replies whose change has become
    /// durable.
    ///
    /// Cost: a check of each request that waits.
    pub(crate) fn step(
        &mut self,
        context: &Context,
        engines: &Engines<E>,
        clients: &mut Clients<E::Pinned>,
        mail: &mut Mail<E>,
    ) {
        if !self.is_in_use() && self.waiting.is_empty() {
            return;
        }
        debug_assert!(self.count() <= REQUESTS_MAX, "I1");
        if let Some(mut engine) = engines.take(context.id, context) {
            engine.poll();
            self.send_durable(context, engine.durable(), clients, mail);
            self.retry(context, &mut engine, clients, mail);
        }
        let woken = WOKEN_MAX.min(self.room()).min(self.waiting.len());
        for connection in self.waiting.drain(..woken) {
            clients.has_room_again(connection, context.id);
        }
    }

    /// Sends the replies whose change is durable, in their order (I5).
    fn send_durable(
        &mut self,
        context: &Context,
        durable: Sequence,
        clients: &mut Clients<E::Pinned>,
        mail: &mut Mail<E>,
    ) {
        while let Some(first) = self.undurable.front() {
            let origin = first.origin;
            if first.sequence > durable || !has_room_for_answer(context, mail, origin) {
                return;
            }
            let Some(reply) = self.undurable.pop_front() else { return };
            debug_assert!(reply.sequence <= durable, "I5");
            let spare = std::mem::replace(&mut mail.answer.text, reply.text);
            self.spare.push(spare);
            deliver(context, clients, mail, origin, reply.value);
        }
    }

    /// Goes through the parked requests once, the oldest first.
    fn retry(
        &mut self,
        context: &Context,
        engine: &mut E,
        clients: &mut Clients<E::Pinned>,
        mail: &mut Mail<E>,
    ) {
        self.blocked.clear();
        for _ in 0..self.parked.len() {
            let Some(mut parked) = self.parked.pop_front() else { return };
            let is_ready = parked.ticket.as_ref().is_none_or(|ticket| engine.is_ready(ticket));
            let may_run = is_ready
                && !self.blocked.contains(&parked.key_hash)
                && has_room_for_answer(context, mail, parked.origin); // I3
            let applied = may_run.then(|| {
                let taken = Taken::read(&parked.record);
                mail.answer.begin(taken.reply.value_bytes);
                let (upload, ticket) = (&mut parked.upload, parked.ticket.take());
                apply_taken(context, engine, &taken, upload, ticket, &mut mail.answer)
            });
            match applied {
                Some(Applied::Answered(value, durability)) => {
                    self.spare.push(std::mem::take(&mut parked.record));
                    self.answer(context, clients, mail, parked.origin, value, durability);
                    continue;
                }
                Some(Applied::Later(ticket)) => parked.ticket = Some(ticket),
                None => {}
            }
            self.blocked.push(parked.key_hash); // I2
            self.parked.push_back(parked);
        }
        debug_assert!(self.count() <= REQUESTS_MAX, "I1");
    }
}

/// Whether the longest answer to this request can be sent now. The slot of a client of this shard
/// always has room.
fn has_room_for_answer<E: Engine>(context: &Context, mail: &mut Mail<E>, origin: Origin) -> bool {
    origin.shard == context.id || mail.has_room_for_answer(origin.shard)
}

/// Sends the formatted reply to the slot that waits for it. The caller has checked that there is
/// room.
fn deliver<E: Engine>(
    context: &Context,
    clients: &mut Clients<E::Pinned>,
    mail: &mut Mail<E>,
    origin: Origin,
    value: Option<LargeValue<E::Pinned>>,
) {
    debug_assert!(origin.shard < context.shards(), "an origin is a shard of this process");
    if origin.shard == context.id {
        clients.answered(origin.slot, Answered { text: &mail.answer.text, value });
    } else {
        mail.send_answer(origin.shard, origin.slot, value);
    }
}
