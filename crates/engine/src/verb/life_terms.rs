//! Applies the life terms of an operation to the life of an item.
//!
//! Upstream:   `get` and `arithmetic`.
//! Downstream: a [`Life`], which the decisions use.

use crate::item::Facts;
use crate::operation::{LifeStep, LifeTerms};
use crate::time::Now;

/// The life of an item once the terms were applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// The expiry.
    pub(super) expiry: u32,
    /// Seconds of life that `Touch` gave.
    pub(super) ttl: Option<i64>,
    /// Seconds of life that `Vivify` gave.
    pub(super) ttl_made: Option<i64>,
    /// Whether `Recache` found less life left than its TTL.
    pub(super) recached: bool,
}

impl Life {
    /// Applies the terms to an item with the expiry `before`. `Vivify` acts only on an item that
    /// this operation created.
    #[inline(always)]
    pub(super) fn after(terms: &LifeTerms, before: u32, created: bool, now: &Now) -> Self {
        debug_assert!(!created || terms.vivify().is_some(), "`Vivify` alone creates an item");
        let life = Self { expiry: before, ttl: None, ttl_made: None, recached: false };
        if terms.is_empty() { life } else { life.through(terms, created, now) }
    }

    fn through(mut self, terms: &LifeTerms, created: bool, now: &Now) -> Self {
        let life = &mut self;
        for step in terms.steps() {
            match step {
                LifeStep::Touch(ttl) => {
                    life.expiry = now.expiry(ttl);
                    life.ttl = now.ttl_left(life.expiry);
                }
                LifeStep::Vivify(ttl) if created => {
                    life.expiry = now.expiry(ttl);
                    life.ttl_made = now.ttl_left(life.expiry);
                }
                LifeStep::Vivify(_) => {}
                LifeStep::Recache(ttl) => {
                    life.recached = life.expiry != 0 && life.expiry < now.expiry(ttl);
                }
            }
        }
        debug_assert!(created || self.ttl_made.is_none(), "`Vivify` acts on a created item");
        self
    }

    /// Adds the life that the terms gave to the facts.
    #[inline]
    pub(super) fn tell(&self, facts: &mut Facts) {
        facts.ttl = self.ttl;
        facts.ttl_made = self.ttl_made;
    }
}
