//! Having a client wait, and noticing that it need not wait any more.
//!
//! Upstream:   `serve` and `upload`, when a client does not read its replies or a mailbox is full;
//!             `send` and `arrive`, when a block was sent or replies were settled.
//! Downstream: `arrive` serves the connections that may go on.
//!
//! Invariants:
//! - I1  A paused connection is in the list of a mailbox, or it must wait, or it is dirty or
//!   resumable. The cause of its waiting changes only when a block was sent or replies were
//!   settled, and after both the connection is looked at. So no tick walks over all that wait.

use kachel_engine::{Engine, ReadValue};
use kachel_net::{ConnectionIndex, Waiting};

use crate::clients::Clients;
use crate::context::Context;
use crate::delayed::Delayed;
use crate::hop::{Mail, MailboxFull};

/// Connections that are woken in a tick because one mailbox has room again.
const WOKEN_PER_MAILBOX_MAX: usize = 64;

impl<P: ReadValue> Clients<P> {
    /// Has a connection's next request wait.
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
            // The cause may end later in this very tick: `send` checks again (I1).
            self.mark_dirty(connection);
        }
    }

    /// Lists a paused connection that waits for nothing any more (I1).
    pub(crate) fn resume_if_free(&mut self, connection: ConnectionIndex) {
        if let Some(open) = self.connections.get_mut(connection)
            && open.may_resume()
        {
            debug_assert!(!open.awaits_mailbox(), "I1: a mailbox alone wakes what waits for it");
            self.mark_resumable(connection);
        }
    }

    /// The mailbox to `shard` has room again, and a connection was in its list.
    pub(crate) fn has_room_again(&mut self, connection: ConnectionIndex, shard: u16) {
        let open = self.connections.get_mut(connection);
        if open.is_some_and(|open| open.mailbox_has_room(shard)) {
            self.mark_resumable(connection);
        }
    }
}

/// Has a connection's next request wait for room in a mailbox.
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

/// Lists connections that wait for a mailbox which has room again: the first, and few a tick, as
/// each may fill it.
pub(crate) fn resume_for_mail<E: Engine>(
    context: &Context,
    clients: &mut Clients<E::Pinned>,
    mail: &mut Mail<E>,
) {
    mail.take_waiting(context, WOKEN_PER_MAILBOX_MAX, |connection, shard| {
        clients.has_room_again(connection, shard);
    });
}
