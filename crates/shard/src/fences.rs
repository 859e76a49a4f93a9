//! The fences of a core: replies that it has formatted and does not send until an engine's changes
//! are durable.
//!
//! Upstream:   `clients` notes a fence with each reply that needs one.
//! Downstream: `tick` has `send` look at the clients whose fence is reached or lost; the durable
//!             word of the engine.
//!
//! ```text
//! reply with At(n) --> outbox: a slot with a fence --+-- durable word reaches n --> dirty --> sent
//!                  --> here: (n, client) ------------+
//! ```
//!
//! Invariants:
//! - F1  For each fence in an outbox of this core, its sequence and client are listed under its
//!   engine until the durable word has reached the sequence, or the sequence is lost. A client that
//!   is gone may be listed.
//! - F2  Before this core sleeps, it sets its bit at each engine for which it lists a fence, and
//!   then looks at the durable words for the last time. A core that releases an engine whose word
//!   has changed takes all bits of that engine, and wakes these cores. Between each one's write
//!   and its read stands a sequentially consistent fence, so not both miss (Dekker).
//! - F3  When a tick has looked at the fences, there are at most twice as many as reply slots in
//!   use, and `STALE_MAX` more. An outbox has a slot for each of its fences. So the fences of
//!   clients that are gone take a bounded amount of memory, however long a disk stalls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use kachel_net::{ClientIndex, Fence};

/// Fences of clients that are gone are listed up to this number before they are looked for (F3).
const STALE_MAX: usize = 64;

/// The fences of one core.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    /// By the number of the engine: the clients, the one with the lowest sequence first (F1).
    waiting: Vec<BinaryHeap<Reverse<(u64, ClientIndex)>>>,
    count: usize,
}

impl Fences {
    /// Whether no reply waits. Cost: a load.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there are more than F3 allows, if `slots` reply slots are in use. Cost: a load.
    #[inline]
    pub(crate) const fn are_stale(&self, slots: u32) -> bool {
        self.count > 2 * slots as usize + STALE_MAX
    }

    /// Removes all fences. The caller lists those that the outboxes have (F1).
    pub(crate) fn clear(&mut self) {
        self.waiting.iter_mut().for_each(BinaryHeap::clear);
        self.count = 0;
    }

    /// The number of fences that are listed.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Lists a client (F1). Cost: an allocation only if more clients wait than ever before.
    #[cold]
    pub(crate) fn add(&mut self, fence: Fence, client: ClientIndex) {
        let engine = usize::from(fence.engine);
        if engine >= self.waiting.len() {
            self.waiting.resize_with(engine + 1, BinaryHeap::new);
        }
        self.waiting[engine].push(Reverse((fence.sequence, client)));
        self.count += 1;
    }

    /// Removes a client whose fence is reached.
    pub(crate) fn take_reached(
        &mut self,
        is_reached: impl Fn(Fence) -> bool,
    ) -> Option<ClientIndex> {
        let fence = self.lowest().find(|fence| is_reached(*fence))?;
        let taken = self.waiting[usize::from(fence.engine)].pop();
        let Reverse((sequence, client)) = taken.expect("F1: it is listed");
        debug_assert!(sequence == fence.sequence, "F1");
        self.count -= 1;
        Some(client)
    }

    /// The lowest fence of each engine.
    pub(crate) fn lowest(&self) -> impl Iterator<Item = Fence> {
        (0..).zip(&self.waiting).filter_map(|(engine, waiting)| {
            waiting.peek().map(|Reverse((sequence, _))| Fence { engine, sequence: *sequence })
        })
    }
}

#[cfg(test)]
mod tests {
    use kachel_net::ConnectionIndex;

    use super::*;

    #[test]
    fn clients_are_taken_in_the_order_of_the_sequences_of_each_engine() {
        let mut fences = Fences::default();
        for (engine, sequence, number) in [(1, 7, 0), (1, 5, 1), (0, 6, 2), (1, 5, 3)] {
            fences.add(Fence { engine, sequence }, ConnectionIndex(number).into());
        }
        let lowest: Vec<_> = fences.lowest().map(|fence| (fence.engine, fence.sequence)).collect();
        assert_eq!(lowest, [(0, 6), (1, 5)]);
        let mut take = |engine, sequence| {
            let is_reached = |fence: Fence| fence.engine == engine && fence.sequence <= sequence;
            let taken = std::iter::from_fn(|| fences.take_reached(is_reached));
            let mut taken: Vec<_> =
                taken.filter_map(ClientIndex::connection).map(|taken| taken.0).collect();
            taken.sort_unstable();
            taken
        };
        assert!(take(1, 4).is_empty() && take(2, 9).is_empty());
        assert_eq!(take(1, 6), [1, 3]);
        assert_eq!(take(0, 6), [2]);
        assert_eq!(take(1, 9), [0]);
        assert!(fences.is_empty());
    }
}
