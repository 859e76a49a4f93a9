//! Pauses connections, and lists those that may be resumed.
//!
//! Upstream:   `serve` and `upload`, when a client does not read its replies or a mailbox is full;
//!             `send`, when a block was sent or replies were settled; `tick` and `delayed`, when a
//!             mailbox has room again.
//! Downstream: `arrive` resumes the listed connections.
//!
//! Invariants:
//! - I1  A paused connection that need not wait any more is dirty or resumable, or in the list of a
//!   mailbox. If it does not wait for a mailbox, the cause of its pause ends only when a block was
//!   sent or replies were settled, and `send` checks the connection after both. So no tick checks
//!   all paused connections.

use kachel_engine::{Engine, ReadValue};
use kachel_net::{ConnectionIndex, Waiting};

use crate::clients::Clients;
use crate::context::Context;
use crate::delayed::Delayed;
use crate::hop::{Mail, MailboxFull};

/// The most connections that are resumed in a tick because one mailbox has room again.
const WOKEN_PER_MAILBOX_MAX: usize = 64;

impl<P: ReadValue> Clients<P> {
    /// Pauses a connection: its next request waits.
    pub(crate) fn pause(
        &mut self,
        context: &Context,
        connection: ConnectionIndex,
        waiting: Waiting,
    ) {
        if let Some(open) = self.connections.get_mut(connection)
            && open.pause(waiting)
        {
            debug_assert!(open.is_paused(), "I1");
            context.counters.conn_yields.add(1);
            // The cause may end later in this tick. `send` checks every dirty connection for that
            // (I1).
            self.mark_dirty(connection);
        }
    }

    /// Lists a paused connection as resumable if the cause of its pause has ended (I1).
    pub(crate) fn resume_if_free(&mut self, connection: ConnectionIndex) {
        if let Some(open) = self.connections.get_mut(connection)
            && open.may_resume()
        {
            debug_assert!(!open.awaits_mailbox(), "I1: a mailbox alone wakes what waits for it");
            self.mark_resumable(connection);
        }
    }

    /// Notes that the mailbox to `shard` has room again. The connection was in its list.
    pub(crate) fn has_room_again(&mut self, connection: ConnectionIndex, shard: u16) {
        let open = self.connections.get_mut(connection);
        if open.is_some_and(|open| open.mailbox_has_room(shard)) {
            self.mark_resumable(connection);
        }
    }
}

/// Pauses a connection until a mailbox has room.
pub(crate) fn pause_for<E: Engine>(
    context: &Context,
    clients: &mut Clients<E::Pinned>,
    mail: &mut Mail<E>,
    delayed: &mut Delayed<E>,
    connection: ConnectionIndex,
    full: MailboxFull,
) {
    debug_assert!(full.0 < context.shards(), "a mailbox is one to a shard of this process");
    clients.pause(context, connection, Waiting::Mailbox(full.0));
    if clients.connections.get(connection).is_some() {
        if full.0 == context.id {
            delayed.wait(connection);
        } else {
            mail.boxes.to(full.0).waiting.push_back(connection);
        }
    }
}

/// Lists connections as resumable whose mailbox has room again. It lists the ones that have waited
/// longest, and few per tick, because each of them may fill the mailbox.
pub(crate) fn resume_for_mail<E: Engine>(
    context: &Context,
    clients: &mut Clients<E::Pinned>,
    mail: &mut Mail<E>,
) {
    mail.take_waiting(context, WOKEN_PER_MAILBOX_MAX, |connection, shard| {
        clients.has_room_again(connection, shard);
    });
}
