//! The verb that stores a value: `set`, `add`, `replace`, `append`, `prepend`, `cas`, `ms`,
//! `lease-set`.
//!
//! Upstream:   `decide`, after the whole value was received.
//! Downstream: a decision to store one new item, or to change nothing.

use super::lease;
use crate::change::{Change, Decision, Put, PutValue, Side};
use crate::item::ItemView;
use crate::operation::{StoreMode, StoreTerms};
use crate::options::EngineOptions;
use crate::outcome::Verdict;
use crate::time::Now;

/// How the operation's CAS token compares with the item's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    /// The operation has no token, or token 0. `append` and `prepend` accept any item then. `set`
    /// and `replace` do so without a token; for them, token 0 matches no item.
    Unconditional,
    Matches,
    /// The token is older than the item's, and the operation stores a stale value in this case.
    Older,
    Differs,
}

impl StoreTerms {
    /// Whether the operation stores only if there is an item whose token matches. If
    /// `stores_stale` is set, an older token is enough.
    #[inline]
    pub const fn needs_match(&self) -> bool {
        self.compare_cas.is_some() && matches!(self.mode, StoreMode::Set | StoreMode::Replace)
    }

    /// Whether the old item is removed if the new one gets no memory. As in memcached, a plain
    /// `set` that is refused must not leave a stale value behind.
    #[inline]
    pub const fn removes_when_refused(&self) -> bool {
        matches!(self.mode, StoreMode::Set) && self.compare_cas.is_none()
    }

    fn compared(&self, cas: u64) -> Compared {
        match self.compare_cas {
            None | Some(0) => Compared::Unconditional,
            Some(token) if token == cas => Compared::Matches,
            Some(token) if self.stores_stale && token < cas => Compared::Older,
            Some(_) => Compared::Differs,
        }
    }

    /// The new item that these terms describe.
    #[inline(always)]
    pub(super) fn put(&self, now: &Now) -> Put {
        Put {
            value: PutValue::Block,
            client_flags: self.client_flags,
            expiry: now.expiry(self.ttl),
            cas: self.new_cas,
            stale: false,
            win_sent: false,
            remnant: false,
            protocol_mark: self.protocol_mark,
            keeps_access: false,
            removes_when_refused: self.removes_when_refused(),
        }
    }
}

#[inline]
pub(super) fn store<'e>(
    terms: &StoreTerms,
    key_bytes: usize,
    found: Option<&impl ItemView<'e>>,
    options: &EngineOptions,
    now: &Now,
) -> Decision {
    let Some(item) = found else { return on_miss(terms, now) };
    if item.is_remnant() {
        return on_remnant(terms, item, now);
    }
    let compared = terms.compared(item.cas());
    let mut put = terms.put(now);
    let side = match terms.mode {
        StoreMode::Add => return Decision::unchanged(Verdict::NotStored),
        StoreMode::Set | StoreMode::Replace => {
            if terms.needs_match() {
                match compared {
                    Compared::Matches => {}
                    Compared::Older => {
                        debug_assert!(terms.stores_stale, "an older token stores a stale value");
                        put.expiry = item.expiry();
                        put.stale = true;
                        put.win_sent = item.is_win_sent();
                    }
                    Compared::Differs | Compared::Unconditional => {
                        return Decision::unchanged(Verdict::Exists);
                    }
                }
            }
            return stored(put, terms.value_bytes);
        }
        StoreMode::Lease => return lease::set(terms, item, now),
        StoreMode::Append => Side::After,
        StoreMode::Prepend => Side::Before,
    };
    if !matches!(compared, Compared::Unconditional | Compared::Matches) {
        return Decision::unchanged(Verdict::Exists);
    }
    let value_bytes = item.value_bytes() + terms.value_bytes;
    debug_assert!(!put.removes_when_refused, "a value that is not appended leaves the old one");
    put.client_flags = item.client_flags();
    if !options.fits(key_bytes, value_bytes, put.client_flags) {
        return Decision::unchanged(Verdict::NotStored);
    }
    put.value = PutValue::Joined(side);
    put.expiry = item.expiry();
    put.protocol_mark = false; // As in memcached, a joined item has no mark.
    stored(put, value_bytes)
}

/// A remnant is no item, except for a lease.
#[cold]
#[inline(never)]
fn on_remnant<'e>(terms: &StoreTerms, remnant: &impl ItemView<'e>, now: &Now) -> Decision {
    debug_assert!(remnant.is_remnant(), "an item is no miss");
    match terms.mode {
        StoreMode::Lease => lease::set(terms, remnant, now),
        _ => on_miss(terms, now),
    }
}

fn on_miss(terms: &StoreTerms, now: &Now) -> Decision {
    if terms.needs_match() {
        return Decision::unchanged(Verdict::Miss);
    }
    let mut put = terms.put(now);
    debug_assert!(put.value == PutValue::Block, "change, I2: nothing was found to join");
    match (terms.mode, terms.vivify) {
        (StoreMode::Set | StoreMode::Add, _) => {}
        (StoreMode::Append | StoreMode::Prepend, Some(ttl)) => put.expiry = now.expiry(ttl),
        (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend | StoreMode::Lease, _) => {
            return Decision::unchanged(Verdict::NotStored);
        }
    }
    stored(put, terms.value_bytes)
}

fn stored(put: Put, value_bytes: usize) -> Decision {
    debug_assert!(!put.win_sent || put.stale, "a fresh value has no right to give away");
    // The engine replaces this 0 by the token of the new item.
    let verdict = Verdict::Stored { cas: 0, value_bytes };
    Decision { change: Change::Put(put), notes_access: false, verdict }
}
