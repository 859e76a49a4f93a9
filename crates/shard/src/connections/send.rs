//! Sends replies, and closes connections.
//!
//! Upstream:   `tick`, at its end; the events of `io` for blocks that were sent; `late`, with
//!             clients that are too slow.
//! Downstream: `io`.
//!
//! Invariants:
//! - I1  Replies are sent after all engines were released and their statistics published. So a
//!   change is acknowledged only when other cores can see it and `stats` counts it, on every core.
//!   A reply with a fence is sent after its change is durable. If the change is lost, the
//!   connection closes as soon as the replies before it are sent (`kachel_engine`, contract, I5).
//! - I2  A connection that closes gives back its blocks, its slots, its upload and its charges.

use kachel_engine::{Engine, ReadValue};
use kachel_io::{Io, SendBlock, SocketId};
use kachel_net::{CloseReason, ConnectionIndex};

use crate::clients::Clients;
use crate::connections::memory::{narrow, refund_all};
use crate::connections::watching;
use crate::context::Context;
use crate::large::upload::Uploads;
use crate::request::batch::Ready;
use crate::waiting::engines::Engines;

/// The parts of a shard that sending and closing use.
pub(crate) struct Sending<'a, I, E: Engine> {
    pub(crate) io: &'a mut I,
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) uploads: &'a mut Uploads<E::Upload>,
    pub(crate) ready: &'a mut [Ready],
}

impl<I: Io, E: Engine> Sending<'_, I, E> {
    /// Gives all formatted replies to the I/O backend, and closes connections that are done (I1).
    pub(crate) fn send_all(&mut self) {
        while let Some(connection) = self.clients.dirty.pop() {
            let Clients { connections, slots, blocks, .. } = self.clients;
            let Some(open) = connections.get_mut(connection) else { continue };
            if !open.clear_dirty() {
                continue; // clients, I1: an earlier connection was listed at this index.
            }
            let engines = self.engines;
            open.outbox_mut().settle(blocks, slots, |fence| engines.is_reached(fence)); // I1
            let is_lost = open.outbox().first_fence(slots).is_some_and(|it| engines.is_lost(it));
            if is_lost {
                open.drain(CloseReason::Error);
            }
            debug_assert!(open.ready().is_none(), "what was ready is served before it is sent to");
            if open.outbox().has_unsent() {
                let socket = open.socket();
                open.outbox_mut().flush(socket, self.io);
            }
            if open.begin_receiving() {
                self.io.resume(open.socket());
            }
            let over = open.is_served() || open.is_draining() && !open.is_replying();
            // A client that watches is owed nothing when it leaves.
            let is_done = over && (open.outbox().is_empty() || open.is_watching());
            if is_done || is_lost && open.outbox().owed_bytes() == 0 {
                let reason = open.close_reason();
                self.close(connection, reason);
            } else {
                narrow(self.context, self.clients, connection);
                self.clients.resume_if_free(connection);
            }
        }
    }

    /// Closes a connection (I2). `reason` is for the log.
    pub(crate) fn close(&mut self, connection: ConnectionIndex, reason: CloseReason) {
        if self.clients.connections.get(connection).is_some() {
            self.context.log_closed(connection, reason);
            watching::end(self.context, self.engines, self.clients, connection);
        }
        let Clients { connections, slots, blocks, login_turns, gone, .. } = self.clients;
        let Some(mut closed) = connections.close(connection) else { return };
        if let Some(turn) = closed.give_up_login_turn() {
            self.context.change_attempts(|attempts| attempts.leave(turn));
        } else if closed.awaits_login_turn()
            && let Some(login) = closed.login()
        {
            login_turns.forget(connection, login.retry_ns);
        }
        if let Some(place) = closed.ready() {
            self.ready[place as usize].close();
        }
        refund_all(self.context, &closed);
        let first = gone.len();
        gone.extend(closed.outbox().awaiting_slots(slots));
        gone.range(first..).for_each(|slot| slots.hold(*slot)); // records, R4
        closed.outbox_mut().abandon(blocks, slots);
        self.uploads.forget(connection);
        debug_assert!(self.uploads.get_mut(connection).is_none(), "I2");
        self.io.close(closed.socket());
        self.context.counters.connections.set(u64::from(connections.count()));
        self.context.shared.dismiss();
    }
}

impl<P: ReadValue> Clients<P> {
    /// Notes that the kernel has taken a block of a connection. Errors: the connection is gone, and
    /// the block is returned.
    pub(crate) fn sent(
        &mut self,
        context: &Context,
        socket: SocketId,
        block: SendBlock,
        sweep: u32,
    ) -> Result<(), SendBlock> {
        context.counters.bytes_written.add(block.byte_count() as u64);
        let Some(connection) = self.connections.find(socket) else { return Err(block) };
        let Some(open) = self.connections.get_mut(connection) else { return Err(block) };
        debug_assert!(open.outbox().owed_bytes() >= block.byte_count(), "what is sent was owed");
        open.note_active(sweep);
        open.outbox_mut().sent(block, &mut self.blocks);
        let waits = open.outbox().slots_in_use() > 0 || open.outbox().has_unsent();
        if waits || open.is_draining() || open.is_finished() {
            self.mark_dirty(connection);
        }
        narrow(context, self, connection);
        self.resume_if_free(connection);
        Ok(())
    }

    /// Notes that the kernel has taken a part of a block, so the client reads.
    pub(crate) fn taken(&mut self, socket: SocketId, block_bytes: usize, sweep: u32) {
        let Some(connection) = self.connections.find(socket) else { return };
        self.with(connection, |open| {
            open.note_active(sweep);
            open.outbox_mut().taken(block_bytes);
        });
    }
}
