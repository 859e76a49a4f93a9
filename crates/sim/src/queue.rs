//! The events to come, in the order of virtual time.
//!
//! Upstream:   `run`, `server` and `client`, which add events.
//! Downstream: `run`, which takes the next event and performs it.
//!
//! Invariants:
//! - I1  Events with the same time come in the order in which they were added. So nothing depends
//!   on the internal order of the heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A shard's thread gets its core.
    Run(usize),
    /// The sleep of a shard reaches its time limit; `nap` is the number of the sleep.
    Overslept { shard: usize, nap: u64 },
    /// An operation on files is due.
    FileDue,
    /// A client takes its next step.
    Step(usize),
    /// Bytes from a client arrive at the server.
    Arrive { client: usize, link: u64, bytes: Vec<u8> },
    /// The end of a client's input arrives at the server.
    Finish { client: usize, link: u64 },
    /// A connection breaks.
    Reset { client: usize, link: u64 },
    /// A client reads `bytes` more bytes; `None`: it reads everything from now on.
    Read { client: usize, link: u64, bytes: Option<usize> },
    /// The clock jumps ahead by this number of nanoseconds.
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

/// The queue of events.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    scheduled: u64,
}

impl Queue {
    /// Adds an event that happens at `at_ns`.
    pub(crate) fn schedule(&mut self, at_ns: u64, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse(Entry { at_ns, number: self.scheduled, event }));
    }

    /// Forgets the events of a server that is no more.
    pub(crate) fn forget_server(&mut self) {
        self.heap.retain(|Reverse(Entry { event, .. })| match event {
            Event::Run(_) | Event::Overslept { .. } | Event::FileDue => false,
            Event::Step(_) | Event::Arrive { .. } | Event::Finish { .. } => true,
            Event::Reset { .. } | Event::Read { .. } | Event::Jump(_) => true,
        });
    }

    /// The number of events that were added so far.
    pub(crate) fn scheduled(&self) -> u64 {
        self.scheduled
    }

    /// Removes the next event and returns it with its time.
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
        queue.schedule(5, Event::Run(0));
        queue.schedule(3, Event::Run(1));
        queue.schedule(5, Event::Run(2));
        queue.schedule(3, Event::Run(3));
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(
            order,
            [(3, Event::Run(1)), (3, Event::Run(3)), (5, Event::Run(0)), (5, Event::Run(2))]
        );
    }
}
