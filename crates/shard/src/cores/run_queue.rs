//! The run queue: clients with input that wait for their turn, the oldest first.
//!
//! Upstream:   `pause`, when a client has had its turn or the core has done enough in a tick.
//! Downstream: `arrive` makes the clients at the front ready.
//!
//! A client that waits costs a tick nothing. So a tick is as short beside a hundred clients that
//! pipeline as beside ten (`work`, W1).
//!
//! Invariants:
//! - Q1  Each client that waits for its turn is in the queue. The queue may also have the index of
//!   a client that is gone: to search for it at each close would take a second for 20,000 clients.
//!   `arrive` passes over such an index. A later client of the same index may get an early turn.

use std::collections::VecDeque;

use kachel_net::ClientIndex;

/// Clients that the queue has room for without an allocation.
const QUEUED_AT_FIRST: usize = 256;

/// Where a client joins the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// Its turn came, but the tick ended before it.
    Front,
    Back,
}

/// The clients that wait for their turn (Q1).
#[derive(Debug)]
pub(crate) struct RunQueue {
    waiting: VecDeque<ClientIndex>,
}

impl RunQueue {
    /// Makes an empty queue.
    pub(crate) fn new() -> Self {
        Self { waiting: VecDeque::with_capacity(QUEUED_AT_FIRST) }
    }

    /// The number of clients that wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn push(&mut self, client: ClientIndex, join: Join) {
        match join {
            Join::Front => self.waiting.push_front(client),
            Join::Back => self.waiting.push_back(client),
        }
    }

    /// Takes the client off that waits longest.
    pub(crate) fn pop(&mut self) -> Option<ClientIndex> {
        self.waiting.pop_front()
    }
}
