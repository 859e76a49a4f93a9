//! Eviction policies, as their papers describe them, over keys with sizes.
//!
//! Upstream:   `simulate`, with the requests of a trace in their order.
//! Downstream: `queues` holds the keys of most policies.
//!
//! All limits are in bytes. Where a paper counts objects, the part of the memory that it names is
//! taken of the bytes.

mod queued;
mod clock;
mod two_queues;
mod arc;
mod s3_fifo;
mod w_tiny_lfu;
mod belady;
#[cfg(test)]
mod tests;

use super::queues::Key;

/// A request as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) key: Key,
    /// Bytes of the key and its value.
    pub(super) bytes: u32,
    /// The number of the next request for this key if that is a read, or a number beyond all: a
    /// key that is written or deleted first need not be there.
    pub(super) next: u64,
}

/// An eviction policy that manages some memory.
///
/// The caller looks a key up first, for a read or a write. It inserts only keys that were not
/// found.
pub(super) trait Policy {
    /// Whether the key is there. If so, the policy notes the access.
    fn read(&mut self, access: Access) -> bool;

    /// Inserts a key that is not there and that fits the memory, and evicts others to make room.
    fn insert(&mut self, access: Access);

    /// Changes the bytes of a key that is there, which fit the memory. The key keeps its place and
    /// its bits. Evicts keys, perhaps this one, until the memory is enough.
    fn resize(&mut self, key: Key, bytes: u32);

    /// Removes a key if it is there.
    fn remove(&mut self, key: Key);

    /// Bytes of the keys that are there.
    fn bytes(&self) -> u64;
}

/// The policies by name, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PolicyName {
    /// First in, first out.
    Fifo,
    /// A second chance for what was read.
    Clock,
    /// The least recently used goes first.
    Lru,
    /// LRU in two segments (Karedla and others, 1994).
    Slru,
    /// Johnson and Shasha, VLDB 1994.
    #[value(name = "2q")]
    TwoQueues,
    /// Megiddo and Modha, FAST 2003.
    Arc,
    /// Einziger and others, ACM Transactions on Storage 2017.
    #[value(name = "w-tinylfu")]
    WTinyLfu,
    /// Yang and others, SOSP 2023.
    #[value(name = "s3-fifo")]
    S3Fifo,
    /// Zhang and others, NSDI 2024.
    Sieve,
    /// The key that is needed last goes first. It knows the future.
    Belady,
}

impl PolicyName {
    /// A policy with empty memory of `capacity` bytes, for keys below `keys`.
    pub(super) fn start(self, capacity: u64, keys: usize) -> Box<dyn Policy> {
        match self {
            Self::Fifo => Box::new(queued::Fifo::new(capacity, keys)),
            Self::Clock => Box::new(clock::Clock::new(capacity, keys)),
            Self::Lru => Box::new(queued::Lru::new(capacity, keys)),
            Self::Slru => Box::new(queued::Slru::new(capacity, keys)),
            Self::TwoQueues => Box::new(two_queues::TwoQueues::new(capacity, keys)),
            Self::Arc => Box::new(arc::Arc::new(capacity, keys)),
            Self::WTinyLfu => Box::new(w_tiny_lfu::WTinyLfu::new(capacity, keys)),
            Self::S3Fifo => Box::new(s3_fifo::S3Fifo::new(capacity, keys)),
            Self::Sieve => Box::new(clock::Sieve::new(capacity, keys)),
            Self::Belady => Box::new(belady::Belady::new(capacity, keys)),
        }
    }
}
