//! When items were read last: a table in memory of the keys that were read of late.
//!
//! Upstream:   the engine notes each read, and forgets a key that is stored anew.
//! Downstream: the replies of meta commands that ask for it. Nothing else depends on it.
//!
//! An item on a disk cannot note that it was read without a write. A key whose place another key
//! has taken, and each key after a restart, counts as not read since it was stored.
//!
//! ```text
//! slot:  high bits of the secret hash:32 | second:32    (0: none)
//! ```

use std::cell::Cell;

/// The keys of one engine that are remembered: 128 KiB. A guess.
const SLOTS: usize = 1 << 14;

/// The table.
#[derive(Debug)]
pub(crate) struct Accesses(Box<[Cell<u64>]>);

impl Default for Accesses {
    fn default() -> Self {
        Self(vec![Cell::new(0); SLOTS].into_boxed_slice())
    }
}

impl Accesses {
    fn slot(&self, secret_hash: u64) -> &Cell<u64> {
        &self.0[secret_hash as usize % SLOTS]
    }

    /// The second of the last read of a key. `None` if it was not read, or that is not known.
    pub(crate) fn last(&self, secret_hash: u64) -> Option<u32> {
        let slot = self.slot(secret_hash).get();
        (slot >> 32 == secret_hash >> 32).then_some(slot as u32).filter(|&second| second != 0)
    }

    /// Notes a read.
    pub(crate) fn note(&self, secret_hash: u64, second: u32) {
        debug_assert!(second != 0, "no second is 0");
        self.slot(secret_hash).set(secret_hash >> 32 << 32 | u64::from(second));
    }

    /// Forgets the reads of a key.
    pub(crate) fn forget(&self, secret_hash: u64) {
        if self.last(secret_hash).is_some() {
            self.slot(secret_hash).set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_known_until_the_key_is_stored_anew_or_another_takes_its_place() {
        let accesses = Accesses::default();
        let (key, other) = (0x1234_5678_0000_0042, 0x8765_4321_0000_0042);
        assert_eq!(accesses.last(key), None);
        accesses.note(key, 7);
        assert_eq!((accesses.last(key), accesses.last(other)), (Some(7), None));
        accesses.forget(other);
        assert_eq!(accesses.last(key), Some(7));
        accesses.forget(key);
        assert_eq!(accesses.last(key), None);
        accesses.note(key, 8);
        accesses.note(other, 9);
        assert_eq!((accesses.last(key), accesses.last(other)), (None, Some(9)));
    }
}
