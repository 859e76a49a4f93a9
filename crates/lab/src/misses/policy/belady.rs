//! Belady's rule: the key whose next request is farthest away goes first.
//!
//! Upstream:   `PolicyName::start`; each request tells when the next one for its key comes.
//! Downstream: the keys in the order of their next requests.
//!
//! Source: Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer", IBM Systems
//! Journal 1966. With keys of different sizes it is not always best, but near it.

use std::collections::BTreeSet;

use super::super::queues::{Key, Queues};
use super::{Access, Policy};

pub(super) struct Belady {
    capacity: u64,
    /// The keys with the numbers of their next requests.
    order: BTreeSet<(u64, Key)>,
    next: Vec<u64>,
    /// Only their bytes matter.
    keys: Queues,
}

impl Belady {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        Self { capacity, order: BTreeSet::new(), next: vec![0; keys], keys: Queues::new(1, keys) }
    }
}

impl Policy for Belady {
    fn read(&mut self, access: Access) -> bool {
        if self.keys.place(access.key).is_none() {
            return false;
        }
        let next = &mut self.next[access.key as usize];
        self.order.remove(&(*next, access.key));
        *next = access.next;
        self.order.insert((access.next, access.key));
        true
    }

    fn insert(&mut self, access: Access) {
        self.next[access.key as usize] = access.next;
        self.order.insert((access.next, access.key));
        self.keys.push(0, access.key, access.bytes);
        while self.keys.bytes(0) > self.capacity {
            let (_, last) = self.order.pop_last().expect("a key that fits finds room");
            self.keys.remove(last);
        }
    }

    fn remove(&mut self, key: Key) {
        if self.keys.place(key).is_some() {
            self.order.remove(&(self.next[key as usize], key));
            self.keys.remove(key);
        }
    }

    fn bytes(&self) -> u64 {
        self.keys.bytes(0)
    }
}
