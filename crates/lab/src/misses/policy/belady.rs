//! Belady's rule: the key whose next read is farthest away goes first. A key that is written or
//! deleted before it is read again need not be there, and goes before all others.
//!
//! Upstream:   `PolicyName::start`; each request tells when its key is read next.
//! Downstream: the keys in the order of their next reads.
//!
//! Source: Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer", IBM Systems
//! Journal 1966. With keys of different sizes it is not always best, but near it.

use std::collections::BTreeSet;

use super::super::queues::{Key, Queues};
use super::{Access, Policy};

pub(super) struct Belady {
    capacity: u64,
    /// The keys with the numbers of their next reads.
    order: BTreeSet<(u64, Key)>,
    next: Vec<u64>,
    /// Only their bytes matter.
    keys: Queues,
}

impl Belady {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        Self { capacity, order: BTreeSet::new(), next: vec![0; keys], keys: Queues::new(1, keys) }
    }

    fn evict(&mut self) {
        while self.keys.bytes(0) > self.capacity {
            let (_, last) = self.order.pop_last().expect("a key that fits finds room");
            self.keys.remove(last);
        }
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
        self.evict();
    }

    fn resize(&mut self, key: Key, bytes: u32) {
        self.keys.resize(key, bytes);
        self.evict();
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
