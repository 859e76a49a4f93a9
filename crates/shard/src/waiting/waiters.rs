//! The requests that wait for an engine, because it answered `Later`, or because an earlier request
//! for the same key waits. They are found by their key and woken by their ticket.
//!
//! Upstream:   `backlog` adds requests that the engine delays, and passes the tickets on that the
//!             engine names.
//! Downstream: nothing. No method looks at all requests that wait.
//!
//! ```text
//! by key:     hash -> request -> request -> request        the first one has a ticket or is ready
//! by ticket:  7    -> hash                                 not named yet
//! for room:   hash, hash                                   as with a ticket; there is one for all
//! ready:      hash, hash                                   keys whose first request is ready
//! ```
//!
//! Invariants:
//! - W1  Requests for one key are taken out in the order in which they were added. Two keys with
//!   one hash count as one key.
//! - W2  Only the first request of a key has a ticket, which no other request shares, except that
//!   for room. Once the ticket is named, or if it has none, its key is in the list of ready ones.
//!   So a request that is ready is never forgotten, and all requests for a key wait for one fetch.
//! - W3  A read whose client has left is removed, unless its ticket was named, or others wait
//!   behind it for what it fetches. Then it is removed when it is alone.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use kachel_engine::{Engine, Ticket};
use kachel_stdx::{Chain, Work};

use crate::waiting::parked::Parked;

/// The memory that a request takes here, in bytes: its entries by key and by ticket, in tables that
/// may be half empty.
pub(crate) const WAITER_BYTES: usize = 128;
/// Keys for which the memory stays when nothing waits any more: 100 KB an engine.
const KEPT_KEYS_MAX: usize = 1024;
/// The most requests for one key among which one is looked for to be removed (W3).
const LOOKED_MAX: usize = 64;

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

type ByNumber<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// The key of a request that was taken out of a [`Waiters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

/// The requests that wait for one engine.
pub(crate) struct Waiters<E: Engine> {
    by_key: ByNumber<Chain<Parked<E>>>,
    /// The hash of the key of each ticket that was not named, without [`Ticket::ROOM`].
    by_ticket: ByNumber<u64>,
    /// The hashes of the keys whose first request waits for room.
    for_room: Vec<u64>,
    /// The hashes of the keys whose first request is ready (W2).
    ready: VecDeque<u64>,
    count: usize,
}

impl<E: Engine> Waiters<E> {
    /// Nothing waits, and there is no memory for it.
    pub(crate) fn new() -> Self {
        Self {
            by_key: ByNumber::default(),
            by_ticket: ByNumber::default(),
            for_room: Vec::new(),
            ready: VecDeque::new(),
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
    pub(crate) fn are_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether a request for this key waits. Cost: a load if nothing waits, else a lookup.
    #[inline]
    pub(crate) fn have_key(&self, key_hash: u64) -> bool {
        self.count > 0 && self.by_key.contains_key(&key_hash)
    }

    /// Whether a request waits for room. Cost: a load.
    pub(crate) const fn await_room(&self) -> bool {
        !self.for_room.is_empty()
    }

    /// Adds a request about a key, behind those for the same key. If there are any, returns its
    /// ticket, which the caller gives back (W2). Cost: two lookups; an allocation only if more
    /// requests wait than before.
    #[must_use]
    pub(crate) fn add(&mut self, mut work: Work<Parked<E>>) -> Option<Ticket> {
        let key_hash = work.key_hash().expect("only a request about a key is delayed");
        self.count += 1;
        if let Some(earlier) = self.by_key.get_mut(&key_hash) {
            let unused = work.ticket.take();
            earlier.push(work);
            return unused;
        }
        let ticket = work.ticket.as_ref().map(|ticket| ticket.0);
        let mut first = Chain::new();
        first.push(work);
        self.by_key.insert(key_hash, first);
        self.await_ticket(key_hash, ticket);
        None
    }

    fn await_ticket(&mut self, key_hash: u64, ticket: Option<u64>) {
        match ticket {
            None => self.ready.push_back(key_hash),
            Some(ticket) if ticket == Ticket::ROOM.0 => self.for_room.push(key_hash),
            Some(ticket) => {
                let other = self.by_ticket.insert(ticket, key_hash);
                debug_assert!(other.is_none(), "W2");
            }
        }
    }

    /// Notes that the engine has named a ticket as ready. Cost: a lookup; for the ticket for room a
    /// step for each request.
    pub(crate) fn wake(&mut self, ticket: u64) {
        if ticket == Ticket::ROOM.0 {
            self.ready.extend(self.for_room.drain(..));
        } else {
            self.ready.extend(self.by_ticket.remove(&ticket));
        }
    }

    /// Takes the next request that is ready. Others for its key stay behind it until the caller
    /// passes its place to [`Self::finish`] or [`Self::delay`].
    pub(crate) fn next_ready(&mut self) -> Option<(Place, Work<Parked<E>>)> {
        let key_hash = self.ready.pop_front()?;
        let of_key = self.by_key.get_mut(&key_hash).expect("W2: what is ready waits");
        let work = of_key.pop().expect("W2: what is ready waits");
        Some((Place(key_hash), work))
    }

    /// Ends the wait of a request that was executed. The next one for its key is ready then.
    pub(crate) fn finish(&mut self, Place(key_hash): Place) {
        self.count -= 1;
        let of_key = self.by_key.get(&key_hash).expect("W1: its key stays until it is finished");
        if of_key.is_empty() {
            self.remove_key(key_hash);
        } else {
            self.ready.push_back(key_hash); // W2
        }
    }

    fn remove_key(&mut self, key_hash: u64) {
        let removed = self.by_key.remove(&key_hash);
        debug_assert!(removed.is_none_or(|of_key| of_key.is_empty()), "W1");
        if self.count == 0 && self.by_key.capacity() > KEPT_KEYS_MAX {
            debug_assert!(self.by_ticket.is_empty() && !self.are_ready(), "W2");
            *self = Self::new();
        }
    }

    /// Has a request wait again, which the engine has delayed once more.
    pub(crate) fn delay(&mut self, Place(key_hash): Place, work: Work<Parked<E>>) {
        let ticket = work.ticket.as_ref().expect("it was delayed").0;
        let of_key = self.by_key.get_mut(&key_hash).expect("W1: its key stays");
        of_key.push_first(work);
        self.await_ticket(key_hash, Some(ticket));
    }

    /// Notes that the client of a read has left: `gone` names the core and the slot of the read.
    /// Returns the reads that are removed (W3), with their tickets, which the caller gives
    /// back. Cost: a few lookups, and a step for each of the first `LOOKED_MAX` requests for the
    /// key.
    pub(crate) fn forget(&mut self, key_hash: u64, gone: &Parked<E>) -> Chain<Parked<E>> {
        let mut removed = Chain::new();
        let Some(of_key) = self.by_key.get_mut(&key_hash) else { return removed };
        let (mut before, mut looked) = (Chain::new(), 0);
        while looked < LOOKED_MAX
            && let Some(mut work) = of_key.pop()
        {
            looked += 1;
            if !work.waits_as(gone) {
                before.push(work);
                continue;
            }
            if before.is_empty() {
                work.is_gone = true;
                before.push(work);
            } else {
                removed.push(work);
                self.count -= 1;
            }
            break;
        }
        before.append(std::mem::take(of_key));
        *of_key = before;
        removed.append(self.forget_alone(key_hash));
        removed
    }

    /// Removes the first request for a key if its client has left, its ticket was not named, and no
    /// other request waits for the key (W3).
    fn forget_alone(&mut self, key_hash: u64) -> Chain<Parked<E>> {
        let of_key = self.by_key.get_mut(&key_hash).expect("the caller has looked");
        let ticket = match (of_key.iter().next(), of_key.iter().nth(1)) {
            (Some(first), None) if first.is_gone => first.ticket.as_ref().map(|ticket| ticket.0),
            _ => None,
        };
        if ticket.is_none_or(|ticket| self.by_ticket.remove(&ticket).is_none()) {
            return Chain::new();
        }
        let alone = std::mem::take(of_key);
        self.count -= 1;
        self.remove_key(key_hash);
        alone
    }
}

#[cfg(test)]
mod tests {
    use kachel_cache::Cache;
    use kachel_engine::{KeyHasher, Seeds};
    use kachel_net::SlotIndex;

    use super::*;
    use crate::waiting::parked::tests::parked;

    /// A request for a key; its text and its slot tell it from others.
    fn request(text: &str, ticket: Option<u64>) -> Work<Parked<Cache>> {
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 1);
        let (key, number) = text.split_once('/').expect("a key and a number");
        let mut parked = parked(text.as_bytes(), Some(hasher.key(key.as_bytes())));
        parked.slot = SlotIndex(number.parse().expect("a number"));
        parked.ticket = ticket.map(Ticket);
        Work::new(parked)
    }

    fn text(work: &Parked<Cache>) -> String {
        String::from_utf8_lossy(work.text()).into_owned()
    }

    /// Waiters to which these requests were added, and the tickets that were given back.
    fn waiters(requests: &[(&str, Option<u64>)]) -> (Waiters<Cache>, Vec<u64>) {
        let mut waiters = Waiters::new();
        let add = |&(text, ticket): &(&str, _)| waiters.add(request(text, ticket));
        let unused = requests.iter().filter_map(add).map(|Ticket(unused)| unused);
        let unused = unused.collect();
        (waiters, unused)
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

    fn forget(waiters: &mut Waiters<Cache>, gone: &str) -> Vec<(String, Option<u64>)> {
        let gone = request(gone, None);
        let removed = waiters.forget(gone.key_hash().expect("it has a key"), &gone);
        let shown = |work: &Parked<Cache>| (text(work), work.ticket.as_ref().map(|known| known.0));
        removed.iter().map(shown).collect()
    }

    fn assert_empty(waiters: &Waiters<Cache>) {
        assert!(waiters.count() == 0 && !waiters.are_ready() && !waiters.await_room());
        assert!(waiters.by_key.is_empty() && waiters.by_ticket.is_empty());
    }

    #[test]
    fn requests_are_woken_by_their_ticket_and_keep_the_order_of_their_key() {
        let (mut waiters, unused) = waiters(&[
            ("a/1", Some(7)),
            ("b/1", Some(8)),
            ("a/2", None),
            ("a/3", Some(9)),
            ("c/1", Some(0)),
        ]);
        assert_eq!(unused, [9], "they wait for one fetch");
        assert!(!waiters.are_ready() && waiters.count() == 5 && waiters.await_room());
        waiters.wake(9);
        waiters.wake(1);
        assert!(!waiters.are_ready());
        waiters.wake(7);
        waiters.wake(0);
        assert_eq!(run(&mut waiters), ["a/1", "c/1", "a/2", "a/3"]);
        assert_eq!(waiters.count(), 1);
        waiters.wake(8);
        assert_eq!(run(&mut waiters), ["b/1"]);
        assert_empty(&waiters);
    }

    #[test]
    fn a_request_that_is_delayed_again_stays_before_those_behind_it() {
        let (mut waiters, _) = waiters(&[("a/1", Some(1)), ("a/2", None)]);
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
    fn a_read_whose_client_has_left_is_removed_once_no_other_waits_for_its_fetch() {
        let (mut waiters, _) = waiters(&[("a/1", Some(1)), ("a/2", None), ("a/3", None)]);
        assert_eq!(forget(&mut waiters, "b/1"), []);
        assert_eq!(forget(&mut waiters, "a/9"), []);
        assert_eq!(forget(&mut waiters, "a/2"), [("a/2".to_owned(), None)]);
        assert_eq!(forget(&mut waiters, "a/1"), [], "another waits for its fetch");
        let both = [("a/3".to_owned(), None), ("a/1".to_owned(), Some(1))];
        assert_eq!(forget(&mut waiters, "a/3"), both);
        assert_empty(&waiters);
    }

    #[test]
    fn a_read_whose_ticket_was_named_is_executed_though_its_client_has_left() {
        let (mut waiters, _) = waiters(&[("a/1", Some(1)), ("b/1", Some(0))]);
        waiters.wake(1);
        assert_eq!(forget(&mut waiters, "a/1"), []);
        assert_eq!(forget(&mut waiters, "b/1"), [], "room is not fetched for it");
        waiters.wake(0);
        assert_eq!(run(&mut waiters), ["a/1", "b/1"]);
        assert_empty(&waiters);
    }

    #[test]
    fn a_read_behind_many_others_stays_and_keeps_its_place() {
        let requests: Vec<_> = (0..LOOKED_MAX + 5).map(|number| format!("a/{number}")).collect();
        let ticket = |number: usize| (number == 0).then_some(1);
        let added =
            requests.iter().enumerate().map(|(number, text)| (text.as_str(), ticket(number)));
        let (mut waiters, _) = waiters(&added.collect::<Vec<_>>());
        assert_eq!(forget(&mut waiters, requests.last().expect("some")), []);
        waiters.wake(1);
        assert_eq!(run(&mut waiters), requests);
    }

    #[test]
    fn the_memory_of_a_crowd_is_freed_when_nothing_waits() {
        let mut waiters = Waiters::new();
        let number = KEPT_KEYS_MAX as u64 + 1;
        for ticket in 1..=number {
            let unused = waiters.add(request(&format!("key{ticket}/1"), Some(ticket)));
            assert_eq!(unused, None);
        }
        (1..=number).for_each(|ticket| waiters.wake(ticket));
        assert_eq!(run(&mut waiters).len() as u64, number);
        assert_eq!(waiters.by_key.capacity() + waiters.by_ticket.capacity(), 0);
    }
}
