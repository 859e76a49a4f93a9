//! Dead items that lookups find: how many, and the last one, so that a log can say why a lookup
//! missed.
//!
//! Upstream:   an engine notes each dead item that a lookup removes.
//! Downstream: `shard` asks after a miss, while a client watches.
//!
//! An outcome says only that no item is there, because a reply needs no more. A word beside the
//! outcomes costs a read nothing.
//!
//! ```text
//! word:  high bits of the secret hash of the key | how it died:2    (0: none)
//! ```

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const EXPIRED: u64 = 1;
const FLUSHED: u64 = 2;
/// The bits that say how the item died.
const HOW: u64 = 3;

/// Lookups that found a dead item, since an owner's start or as one core counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadFound {
    /// Items that had expired.
    pub expired: u64,
    /// Items that were flushed.
    pub flushed: u64,
}

/// The last dead item that a lookup of one engine has removed. Only the core that holds the engine
/// notes and asks.
#[derive(Debug, Default)]
pub struct LastDead(AtomicU64);

impl LastDead {
    /// Notes that a lookup has removed an expired item. Cost: a store.
    pub fn note_expired(&self, secret_hash: u64) {
        self.0.store(secret_hash & !HOW | EXPIRED, Relaxed);
    }

    /// Notes that a lookup has removed a flushed item. Cost: a store.
    pub fn note_flushed(&self, secret_hash: u64) {
        self.0.store(secret_hash & !HOW | FLUSHED, Relaxed);
    }

    /// How the item under the key with this hash has died, if it was the last one. Forgets it.
    pub fn take(&self, secret_hash: u64) -> DeadFound {
        let word = self.0.load(Relaxed);
        if word & !HOW != secret_hash & !HOW {
            return DeadFound::default();
        }
        debug_assert!(word == 0 || word & HOW != 0, "a word that is set says how");
        self.forget();
        debug_assert!(word & HOW != HOW, "an item dies once");
        DeadFound {
            expired: u64::from(word & HOW == EXPIRED),
            flushed: u64::from(word & HOW == FLUSHED),
        }
    }

    /// Forgets the item, because it may have died long ago. Any core may call this.
    pub fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_has_died_once_and_under_its_own_key() {
        const KEY: u64 = 0x1234_5678_9abc_def0;
        let last = LastDead::default();
        assert_eq!(last.take(KEY), DeadFound::default());
        last.note_expired(KEY);
        assert_eq!(last.take(KEY + 4), DeadFound::default(), "another key");
        assert_eq!(last.take(KEY), DeadFound { expired: 1, flushed: 0 });
        assert_eq!(last.take(KEY), DeadFound::default());
        last.note_flushed(KEY);
        assert_eq!(last.take(KEY), DeadFound { expired: 0, flushed: 1 });
        last.note_expired(KEY);
        last.forget();
        assert_eq!(last.take(KEY), DeadFound::default());
    }
}
