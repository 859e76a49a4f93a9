//! Picks the clients to close when too much memory is pinned: the slowest readers among those that
//! have held large values for long.
//!
//! Upstream:   `late` offers the clients that have held values for long, once a second.
//! Downstream: `send` closes them in this order, one a tick, until enough memory is unpinned.
//!
//! Invariants:
//! - I1  `places[next..count]` is in the order of closing: the slowest client first, and among
//!   equally slow ones the client that holds most. A client that was offered and left out does not
//!   come before any of them.

use kachel_net::{ConnectionIndex, SlowHolder};

/// A shard closes at most this many connections in one second for the memory that they pin. A
/// guess; the next second can close more.
const CLOSED_PER_SECOND_MAX: usize = 64;

/// The slowest holders of a shard. It allocates nothing.
#[derive(Debug)]
pub(crate) struct Slowest {
    places: [(SlowHolder, ConnectionIndex); CLOSED_PER_SECOND_MAX],
    count: usize,
    next: usize,
}

impl Default for Slowest {
    fn default() -> Self {
        Self::new()
    }
}

impl Slowest {
    pub(crate) const fn new() -> Self {
        let nobody = SlowHolder { pace_bytes: 0, held_bytes: 0, held_s: 0 };
        let nobody = (nobody, ConnectionIndex(u32::MAX));
        Self { places: [nobody; CLOSED_PER_SECOND_MAX], count: 0, next: 0 }
    }

    /// Adds a holder. If there are too many, the fastest one is left out. Cost: at most a move of
    /// all places.
    pub(crate) fn offer(&mut self, holder: SlowHolder, connection: ConnectionIndex) {
        let taken = &self.places[..self.count];
        let place = taken.partition_point(|(before, _)| !holder.is_slower_than(before));
        if place == CLOSED_PER_SECOND_MAX {
            return;
        }
        self.count = (self.count + 1).min(CLOSED_PER_SECOND_MAX);
        self.places[place..self.count].rotate_right(1);
        self.places[place] = (holder, connection);
        debug_assert!(place == 0 || !holder.is_slower_than(&self.places[place - 1].0), "I1");
    }

    /// Takes out the connection to close next. It may have closed since.
    pub(crate) fn take_next(&mut self) -> Option<ConnectionIndex> {
        let (_, connection) = *self.places[..self.count].get(self.next)?;
        self.next += 1;
        Some(connection)
    }

    /// Whether a connection is left.
    pub(crate) const fn is_empty(&self) -> bool {
        self.next == self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_come_first_and_the_fastest_are_left_out() {
        let mut slowest = Slowest::new();
        assert!(slowest.is_empty() && slowest.take_next().is_none());
        let offered = (0..200u32).map(|number| number * 77 % 200);
        for number in offered {
            let (pace_bytes, held_bytes) = ((number / 2).into(), number.into());
            let holder = SlowHolder { pace_bytes, held_bytes, held_s: 3 };
            slowest.offer(holder, ConnectionIndex(number));
        }
        let order: Vec<u32> = std::iter::from_fn(|| slowest.take_next()).map(|at| at.0).collect();
        // Two pairs are as slow as each other: the one that holds more goes first.
        let wanted: Vec<u32> = (0..CLOSED_PER_SECOND_MAX as u32).map(|place| place ^ 1).collect();
        assert_eq!(order, wanted);
    }
}
