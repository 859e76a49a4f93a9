//! Pausing a client: what its requests wait for, and who notices that they need not any more.
//!
//! Upstream:   `serve`, when a client owes us its reading or a mailbox is full; `shard::tick`, when
//!             a block is sent or replies are settled.
//! Downstream: `shard::tick` serves who is resumable.
//!
//! Invariants:
//! - I1  A stalled connection is in a mailbox's list, or it `must_wait`, or it is dirty or
//!   resumable: what it waits for changes only by `sent` and `settle`, and after both it is looked
//!   at. So no tick walks over those who wait.

use kachel_net::{ConnectionIndex, WIDENED_BYTES};

use crate::core::Core;
use crate::hop::{MailboxFull, REQUEST_BYTES_MAX};

/// Connections that are woken in a tick because one mailbox has room again.
const WOKEN_PER_MAILBOX_MAX: usize = 64;

impl Core {
    /// Lets a connection's next request wait for its client's reading, a listing, or an answer.
    pub(crate) fn stall(&mut self, connection: ConnectionIndex) {
        if let Some(open) = self.connections.get_mut(connection)
            && !open.stalled
        {
            open.stalled = true;
            self.counters.conn_yields.add(1);
            // What frees it may come later in this very tick: `send` looks (I1).
            self.mark_dirty(connection);
        }
    }

    /// Lets a connection's next request wait for room in a mailbox.
    pub(crate) fn stall_for(&mut self, connection: ConnectionIndex, full: MailboxFull) {
        self.stall(connection);
        if let Some(open) = self.connections.get_mut(connection)
            && !open.awaits_mail
        {
            open.awaits_mail = true;
            self.mail.to(full.0).waiting.push_back(connection);
        }
    }

    /// Lists a stalled connection that waits for nothing any more (I1).
    pub(crate) fn look_again(&mut self, connection: ConnectionIndex) {
        if let Some(open) = self.connections.get_mut(connection)
            && open.stalled
            && !open.awaits_mail
            && !open.must_wait()
        {
            self.list_resumable(connection);
        }
    }

    /// Lists connections that wait for a mailbox which has room again: the first, and few a tick,
    /// as each may fill it.
    pub(crate) fn look_at_mailboxes(&mut self) {
        for peer in 0..self.shared.options.shards {
            if peer == self.id {
                continue;
            }
            let mailbox = self.mail.to(peer);
            if mailbox.waiting.is_empty() || !mailbox.requests_out.room(REQUEST_BYTES_MAX) {
                continue;
            }
            for _ in 0..WOKEN_PER_MAILBOX_MAX {
                let Some(connection) = self.mail.to(peer).waiting.pop_front() else { break };
                let open = self.connections.get_mut(connection);
                if open.is_some_and(|open| std::mem::take(&mut open.awaits_mail)) {
                    self.list_resumable(connection);
                }
            }
        }
    }

    fn list_resumable(&mut self, connection: ConnectionIndex) {
        if let Some(open) = self.connections.get_mut(connection)
            && !open.resumable
        {
            open.resumable = true;
            self.resumable.push(connection);
        }
    }

    pub(crate) fn is_stalled(&self, connection: ConnectionIndex) -> bool {
        self.connections.get(connection).is_some_and(|open| open.stalled)
    }

    /// Lets a connection that owes its own share owe more, at the cost of `-m`. `false`: it must
    /// wait for its client's reading, with `kept_bytes` of requests kept meanwhile.
    #[cold]
    pub(crate) fn widen(&mut self, connection: ConnectionIndex, kept_bytes: usize) -> bool {
        let Some(open) = self.connections.get_mut(connection) else { return false };
        if !open.outbox.would_widen(kept_bytes) {
            return !open.outbox.is_full(kept_bytes);
        }
        let budget = &self.shared.budget;
        if budget.charge(WIDENED_BYTES)
            || self.cache.make_room(WIDENED_BYTES, &self.now) && budget.charge(WIDENED_BYTES)
        {
            open.outbox.widen();
        }
        open.outbox.is_wide()
    }

    /// Gives back what `widen` took, once a connection owes little again.
    pub(crate) fn narrow(&mut self, connection: ConnectionIndex) {
        if let Some(open) = self.connections.get_mut(connection)
            && open.outbox.narrow()
        {
            self.shared.budget.refund(WIDENED_BYTES);
        }
    }
}
