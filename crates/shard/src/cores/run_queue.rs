//! The run queue: clients with input that wait for their turn, the oldest first.
//!
//! Upstream:   `pause`, when a client has had its turn, or the tick has used up its budget.
//! Downstream: `arrive` makes the clients at the front ready.
//!
//! A tick does no work for a client that waits. So a tick with a hundred clients that pipeline
//! takes no longer than its budget allows (`work`, W1).
//!
//! Invariants:
//! - Q1  Each client that waits for its turn is in the queue. The queue may also contain the index
//!   of a client that is gone, because searching the queue at each close would take a second for
//!   20,000 clients. `arrive` skips such an index. A later client with the same index may get its
//!   turn early.

use std::collections::VecDeque;

use kachel_net::ClientIndex;

/// Clients that the queue has room for without an allocation.
const QUEUED_AT_FIRST: usize = 256;

/// Where a client joins the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// At the front: the tick has taken the client off the queue, but has no time for its turn.
    Front,
    /// At the back: the client has had its turn, or its input is new.
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

    /// Takes the client that has waited longest off the queue.
    pub(crate) fn pop(&mut self) -> Option<ClientIndex> {
        self.waiting.pop_front()
    }
}
