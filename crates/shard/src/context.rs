//! What every stage of a tick may read: the shard, its process, and the time of the tick.
//!
//! Upstream:   `tick` sets the time once per tick; the rest never changes.
//! Downstream: all stages.

use std::sync::Arc;

use kachel_engine::{ClockOrigin, Key, KeyHasher, Now};

use crate::counters::Counters;
use crate::process::Shared;

/// The facts about one shard, and the time of this tick.
#[derive(Debug)]
pub(crate) struct Context {
    /// The shard's number.
    pub(crate) id: u16,
    /// What all shards of the process share.
    pub(crate) shared: Arc<Shared>,
    /// This shard's counters: only its thread adds to them.
    pub(crate) counters: Arc<Counters>,
    pub(crate) hasher: KeyHasher,
    /// The time from which the process counts seconds.
    pub(crate) origin: ClockOrigin,
    /// The time of this tick.
    pub(crate) now: Now,
}

impl Context {
    /// The number of shards of the process.
    #[inline]
    pub(crate) fn shards(&self) -> u16 {
        self.shared.options.shards
    }

    /// Whether this shard owns a key.
    #[inline]
    pub(crate) fn owns(&self, key: &Key<'_>) -> bool {
        self.hasher.owner(key.hashes()) == self.id
    }

    /// The other shards of the process.
    pub(crate) fn others(&self) -> impl Iterator<Item = u16> + use<> {
        let own = self.id;
        (0..self.shards()).filter(move |shard| *shard != own)
    }
}
