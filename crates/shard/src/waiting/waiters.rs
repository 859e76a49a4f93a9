//! The requests that wait for an engine, because it answered `Later`, or because an earlier request
//! for the same key waits. They are found by their key and woken by their ticket.
//!
//! Upstream:   `backlog` adds requests that the engine delays, and passes the tickets on that the
//!             engine names.
//! Downstream: nothing. No method looks at all requests that wait.
//!
//! ```text
//! by key:     hash -> request -> request -> request        the first one may be executed
//! by ticket:  7    -> request -> request                   not named yet
//! ready:              request -> request                   named, and first of their keys
//! ```
//!
//! Invariants:
//! - W1  Requests for one key are taken out in the order in which they were added. Two keys with
//!   one hash count as one key.
//! - W2  A request is in the list of its ticket until the ticket is named. After that, or without a
//!   ticket, it is ready if it is the first of its key. So a request that is ready is never
//!   forgotten: it joins the ready ones when its ticket is named or when it becomes the first of
//!   its key, whichever is later.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use kachel_engine::Engine;
use kachel_stdx::Work;

use crate::waiting::parked::Parked;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// Hashes a number that no client chooses freely: a secret hash, or a ticket.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only numbers are hashed");
    }

    fn write_u64(&mut self, number: u64) {
        // The table uses the lowest and the highest bits; tickets differ in the lowest only.
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type ByNumber = HashMap<u64, List, BuildHasherDefault<NumberHasher>>;

/// The ends of a list of requests.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// The place of a request in a [`Waiters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

struct Waiter<E: Engine> {
    /// `None` while the place is free.
    work: Option<Work<Parked<E>>>,
    key_hash: u64,
    /// Whether its ticket was not named yet (W2).
    is_late: bool,
    next_of_key: u32,
    /// The next one in the list of its ticket, among the ready ones, or of the free places.
    next: u32,
}

/// The requests that wait for one engine.
pub(crate) struct Waiters<E: Engine> {
    places: Vec<Waiter<E>>,
    free: u32,
    by_key: ByNumber,
    by_ticket: ByNumber,
    ready: List,
    count: usize,
}

impl<E: Engine> Waiters<E> {
    /// Nothing waits, and there is no memory for it.
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: NONE,
            by_key: ByNumber::default(),
            by_ticket: ByNumber::default(),
            ready: List { first: NONE, last: NONE },
            count: 0,
        }
    }

    /// The number of requests that wait. Cost: a load.
    #[inline]
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Whether a request can be executed now. Cost: a load.
    #[inline]
    pub(crate) const fn are_ready(&self) -> bool {
        self.ready.first != NONE
    }

    /// Whether a request for this key waits. Cost: a load if nothing waits, else a lookup.
    #[inline]
    pub(crate) fn have_key(&self, key_hash: u64) -> bool {
        self.count > 0 && self.by_key.contains_key(&key_hash)
    }

    /// Whether a request waits for this ticket.
    pub(crate) fn have_ticket(&self, ticket: u64) -> bool {
        self.count > 0 && self.by_ticket.contains_key(&ticket)
    }

    /// Adds a request about a key: behind those for the same key, and to those of its ticket if it
    /// has one. Cost: two lookups; an allocation only if more requests wait than ever before.
    pub(crate) fn add(&mut self, work: Work<Parked<E>>) {
        let key_hash = work.key_hash().expect("only a request about a key is delayed");
        let ticket = work.ticket.as_ref().map(|ticket| ticket.0);
        let place = self.place(Waiter {
            work: Some(work),
            key_hash,
            is_late: ticket.is_some(),
            next_of_key: NONE,
            next: NONE,
        });
        self.count += 1;
        let is_first = match self.by_key.get_mut(&key_hash) {
            Some(list) => {
                let last = std::mem::replace(&mut list.last, place);
                self.places[last as usize].next_of_key = place;
                false
            }
            None => self.by_key.insert(key_hash, List { first: place, last: place }).is_none(),
        };
        match ticket {
            Some(ticket) => self.await_ticket(place, ticket),
            None if is_first => self.push_ready(place),
            None => {} // W2
        }
    }

    fn place(&mut self, waiter: Waiter<E>) -> u32 {
        if self.free == NONE {
            self.places.push(waiter);
            return u32::try_from(self.places.len() - 1).expect("records are bounded");
        }
        let place = self.free;
        let free = std::mem::replace(&mut self.places[place as usize], waiter);
        debug_assert!(free.work.is_none(), "a place that is used is not free");
        self.free = free.next;
        place
    }

    fn await_ticket(&mut self, place: u32, ticket: u64) {
        debug_assert!(self.places[place as usize].is_late, "W2");
        let list = self.by_ticket.entry(ticket).or_insert(List { first: NONE, last: NONE });
        append(&mut self.places, list, place);
    }

    fn push_ready(&mut self, place: u32) {
        debug_assert!(!self.places[place as usize].is_late, "W2");
        append(&mut self.places, &mut self.ready, place);
    }

    /// Notes that the engine has named a ticket as ready. Cost: a lookup, and a step for each
    /// request of the ticket.
    pub(crate) fn wake(&mut self, ticket: u64) {
        let Some(List { first, .. }) = self.by_ticket.remove(&ticket) else { return };
        let mut next = first;
        while next != NONE {
            let place = next;
            let waiter = &mut self.places[place as usize];
            next = std::mem::replace(&mut waiter.next, NONE);
            waiter.is_late = false;
            if self.by_key[&waiter.key_hash].first == place {
                self.push_ready(place); // W2
            }
        }
    }

    /// Takes the next request that is ready, which stays the first of its key until the caller
    /// passes its place to [`Self::finish`] or [`Self::delay`].
    pub(crate) fn next_ready(&mut self) -> Option<(Place, Work<Parked<E>>)> {
        let place = self.ready.first;
        let waiter = self.places.get_mut(place as usize)?;
        self.ready.first = std::mem::replace(&mut waiter.next, NONE);
        if self.ready.first == NONE {
            self.ready.last = NONE;
        }
        let work = waiter.work.take().expect("W2: what is ready waits");
        debug_assert!(self.by_key[&waiter.key_hash].first == place, "W1");
        Some((Place(place), work))
    }

    /// Ends the wait of a request that was executed. The next one for its key may be ready then.
    pub(crate) fn finish(&mut self, Place(place): Place) {
        let waiter = &mut self.places[place as usize];
        debug_assert!(waiter.work.is_none() && waiter.next == NONE, "it was taken");
        let next = waiter.next_of_key;
        waiter.next = std::mem::replace(&mut self.free, place);
        let key_hash = waiter.key_hash;
        self.count -= 1;
        if next == NONE {
            self.by_key.remove(&key_hash);
        } else if let Some(list) = self.by_key.get_mut(&key_hash) {
            list.first = next;
            if !self.places[next as usize].is_late {
                self.push_ready(next); // W2
            }
        }
    }

    /// Has a request wait again, which the engine has delayed once more.
    pub(crate) fn delay(&mut self, Place(place): Place, work: Work<Parked<E>>) {
        let ticket = work.ticket.as_ref().expect("it was delayed").0;
        let waiter = &mut self.places[place as usize];
        debug_assert!(waiter.work.is_none() && !waiter.is_late, "it was taken");
        (waiter.work, waiter.is_late) = (Some(work), true);
        self.await_ticket(place, ticket);
    }
}

fn append<E: Engine>(places: &mut [Waiter<E>], list: &mut List, place: u32) {
    debug_assert!(places[place as usize].next == NONE, "it is in one list");
    match list.last {
        NONE => list.first = place,
        last => places[last as usize].next = place,
    }
    list.last = place;
}

#[cfg(test)]
mod tests {
    use kachel_cache::Cache;
    use kachel_engine::{KeyHasher, Seeds, Ticket};

    use super::*;
    use crate::waiting::parked::Ask;

    /// A request for a key; the text tells it from others.
    fn request(key: &str, ticket: Option<u64>) -> Work<Parked<Cache>> {
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 1);
        let mut parked = Parked::new(0, 0);
        let key_bytes = key.split('/').next().expect("a part").as_bytes();
        parked.fill(Ask::Line, key.as_bytes(), Some(hasher.key(key_bytes)), false, 0);
        parked.ticket = ticket.map(Ticket);
        Work::new(parked)
    }

    fn text(work: &Work<Parked<Cache>>) -> String {
        String::from_utf8_lossy(work.text()).into_owned()
    }

    /// Takes and finishes all that is ready.
    fn run(waiters: &mut Waiters<Cache>) -> Vec<String> {
        let mut taken = Vec::new();
        while let Some((place, work)) = waiters.next_ready() {
            taken.push(text(&work));
            waiters.finish(place);
        }
        taken
    }

    #[test]
    fn requests_are_woken_by_their_ticket_and_keep_the_order_of_their_key() {
        let mut waiters = Waiters::new();
        for (key, ticket) in
            [("a/1", Some(7)), ("b/1", Some(8)), ("a/2", None), ("a/3", Some(9)), ("c/1", Some(7))]
        {
            waiters.add(request(key, ticket));
        }
        assert!(!waiters.are_ready() && waiters.count() == 5);
        waiters.wake(9);
        assert!(!waiters.are_ready(), "W1: it is behind others");
        waiters.wake(1);
        waiters.wake(7);
        assert_eq!(run(&mut waiters), ["a/1", "c/1", "a/2", "a/3"]);
        assert_eq!(waiters.count(), 1);
        waiters.wake(8);
        assert_eq!(run(&mut waiters), ["b/1"]);
        assert!(waiters.count() == 0 && waiters.by_key.is_empty() && waiters.by_ticket.is_empty());
    }

    #[test]
    fn a_request_that_is_delayed_again_stays_before_those_behind_it() {
        let mut waiters = Waiters::new();
        waiters.add(request("a/1", Some(1)));
        waiters.add(request("a/2", None));
        waiters.wake(1);
        let (place, mut work) = waiters.next_ready().expect("it was named");
        assert!(waiters.next_ready().is_none() && waiters.count() == 2);
        work.ticket = Some(Ticket(2));
        waiters.delay(place, work);
        waiters.wake(1);
        assert!(!waiters.are_ready(), "a ticket is used once");
        waiters.wake(2);
        assert_eq!(run(&mut waiters), ["a/1", "a/2"]);
    }

    #[test]
    fn places_are_used_again() {
        let mut waiters = Waiters::new();
        for round in 0..10 {
            for key in ["a", "b", "c"] {
                waiters.add(request(key, Some(round)));
            }
            waiters.wake(round);
            assert_eq!(run(&mut waiters).len(), 3);
        }
        assert_eq!(waiters.places.len(), 3);
    }
}
