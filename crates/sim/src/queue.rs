//! What is to happen, in the order of virtual time.
//!
//! Upstream:   `run` and the clients lay events in.
//! Downstream: `run` takes the next one and makes it the present.
//!
//! Invariants:
//! - I1  Of two events of one moment the one laid in first comes first: nothing depends on how a
//!   heap is built.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What may happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A shard's thread gets its core.
    Run(usize),
    /// A shard has slept as long as it wanted; `nap` names the sleep.
    Overslept { shard: usize, nap: u64 },
    /// A client does what it does next.
    Step(usize),
    /// Bytes of a client arrive.
    Arrive { client: usize, link: u64, bytes: Vec<u8> },
    /// A client's end arrives.
    Finish { client: usize, link: u64 },
    /// A connection breaks.
    Reset { client: usize, link: u64 },
    /// A client reads so many bytes; none: all there is and ever will be.
    Read { client: usize, link: u64, bytes: Option<usize> },
    /// The clock jumps by so many nanoseconds.
    Jump(u64),
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    at_ns: u64,
    number: u64,
    event: Event,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number)) // I1
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Events to come.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    laid: u64,
}

impl Queue {
    /// Lays in what is to happen at `at_ns`.
    pub(crate) fn lay(&mut self, at_ns: u64, event: Event) {
        self.laid += 1;
        self.heap.push(Reverse(Entry { at_ns, number: self.laid, event }));
    }

    /// Takes the next event out.
    pub(crate) fn next(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at_ns, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_laid_in() {
        let mut queue = Queue::default();
        queue.lay(5, Event::Run(0));
        queue.lay(3, Event::Run(1));
        queue.lay(5, Event::Run(2));
        queue.lay(3, Event::Run(3));
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(
            order,
            [(3, Event::Run(1)), (3, Event::Run(3)), (5, Event::Run(0)), (5, Event::Run(2))]
        );
    }
}
