//! The CAS tokens of the items of a model, which has to learn them from the engine.
//!
//! Upstream:   `model` takes a token for each item that it stores.
//! Downstream: `oracle` compares tokens with those that the engine has shown.
//!
//! Invariants, cited by number where they are asserted:
//! - T1  A token that the engine shows for a new item was never shown for another item.

use std::collections::{BTreeMap, BTreeSet};

/// A token that the engine has not shown yet is a number from here on.
const UNKNOWN: u64 = 1 << 63;

/// The tokens of one engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownTokens {
    taken: u64,
    /// What the engine has shown for tokens that were unknown.
    known: BTreeMap<u64, u64>,
    shown: BTreeSet<u64>,
}

impl KnownTokens {
    /// The token of a new item.
    pub(crate) fn take(&mut self) -> u64 {
        self.taken += 1;
        UNKNOWN + self.taken
    }

    /// The token as the engine shows it, if it has.
    pub(crate) fn known(&self, token: u64) -> u64 {
        self.known.get(&token).copied().unwrap_or(token)
    }

    /// Whether the engine may show `shown` for a token (T1).
    pub(crate) fn may_be(&self, token: u64, shown: u64) -> bool {
        match self.known(token) {
            UNKNOWN.. => !self.shown.contains(&shown),
            known => known == shown,
        }
    }

    /// The engine has shown `shown` for a token. Returns whether it may (T1).
    pub(crate) fn learn(&mut self, token: u64, shown: u64) -> bool {
        if !self.may_be(token, shown) {
            return false;
        }
        if self.known(token) != shown {
            self.known.insert(token, shown);
            self.shown.insert(shown);
        }
        true
    }

    /// Whether the engine may show this token for an item that is new now (T1).
    pub(crate) fn is_new(&self, shown: u64) -> bool {
        !self.shown.contains(&shown)
    }
}
