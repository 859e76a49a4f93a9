//! Leases: `lease-get`, `lease-set`, and what a delete leaves for them.
//!
//! Upstream:   `decide`, and `apply` for a delete.
//! Downstream: a decision. A lease uses the state that meta's `I`, `W` and `Z` use: an item is
//!             stale, and the right to refill it is given away or not. Its CAS token is the token
//!             of the lease.
//!
//! A *remnant* is a stale item that only leases see: every other request misses it. A delete leaves
//! one with the deleted value, and a lease on a missing key one without a value.
//!
//! ```text
//! item ----delete----> remnant --lease-get--> win sent --lease-set with its token--> item
//! no item ------------------------lease-get--> win sent --lease_s seconds-----------> no item
//!                                             win sent --delete--------------------> new token
//! ```
//!
//! Invariants:
//! - L1  A `lease-set` makes a value visible only if its token is that of a stale item whose right
//!   was given away. Each delete, and each store, gives the item another token or removes it. So
//!   what was read before a delete is not stored after it.
//! - L2  A remnant whose right was given away lives as long as the token is good. So a key has one
//!   good token at a time, unless the remnant is evicted or replaced.
//! - L3  A remnant is stale.
//!
//! Source: Nishtala and others, "Scaling Memcache at Facebook", NSDI 2013, 3.2.1.

use crate::change::{Change, Decision, Mark, Put, PutValue};
use crate::item::{Facts, ItemView};
use crate::operation::{GetTerms, StoreTerms};
use crate::options::LeaseOptions;
use crate::outcome::Verdict;
use crate::time::{Now, Ttl};

/// The largest number that is no token: on the wire, 0 says that there is a value, and 1 that
/// another client has the lease.
pub const NO_TOKEN_MAX: u64 = 1;

/// The second in which something ends that lasts this long; never 0, which means never.
fn end(seconds: u32, now: &Now) -> u32 {
    now.expiry(Ttl(i32::try_from(seconds).unwrap_or(i32::MAX))).max(1)
}

/// The earlier one of two ends of life; 0 means never.
fn earlier(expiry: u32, end: u32) -> u32 {
    debug_assert!(end != 0, "a lease ends");
    if expiry == 0 { end } else { expiry.min(end) }
}

/// A remnant that replaces `item`, with its value.
fn remnant_of<'e>(item: &impl ItemView<'e>, expiry: u32, win_sent: bool) -> Put {
    Put {
        value: PutValue::Unchanged,
        client_flags: item.client_flags(),
        expiry,
        cas: None,
        stale: true,
        win_sent,
        remnant: true,
        protocol_mark: false,
        keeps_access: false,
        removes_when_refused: true,
    }
}

/// `lease-get`: a hit, or a lease, or the answer that another client has it.
pub(crate) fn get<'e>(
    terms: &GetTerms,
    found: Option<&impl ItemView<'e>>,
    options: &LeaseOptions,
    now: &Now,
) -> Decision {
    debug_assert!(terms.leases, "any other read is decided elsewhere");
    let ends = end(options.lease_s, now);
    let Some(item) = found else {
        let put = Put {
            value: PutValue::Empty,
            client_flags: 0,
            expiry: ends,
            cas: None,
            stale: true,
            win_sent: true,
            remnant: true,
            protocol_mark: false,
            keeps_access: false,
            removes_when_refused: false,
        };
        // `apply` replaces this 0 by the token of the new item.
        let verdict = Verdict::Leased { token: Some(0), client_flags: 0 };
        return Decision { change: Change::Put(put), notes_access: false, verdict };
    };
    if !item.is_stale() {
        debug_assert!(!item.is_remnant(), "L3");
        let verdict = Verdict::Hit(Facts::of(item, terms.wanted, now));
        return Decision { change: Change::None, notes_access: terms.notes_access, verdict };
    }
    // A token that a client chose (`E`) may be no token of a lease.
    let is_free = !item.is_win_sent() && item.cas() > NO_TOKEN_MAX;
    let token = is_free.then(|| item.cas());
    let verdict = Verdict::Leased { token, client_flags: item.client_flags() };
    if !is_free {
        return Decision::unchanged(verdict);
    }
    let expiry = item.is_remnant().then(|| earlier(item.expiry(), ends)); // L2
    let mark = Mark { expiry, win_sent: true };
    Decision { change: Change::Mark(mark), notes_access: false, verdict }
}

/// `lease-set` of a key that has an item or a remnant.
#[cold]
#[inline(never)]
pub(super) fn set<'e>(terms: &StoreTerms, item: &impl ItemView<'e>, now: &Now) -> Decision {
    debug_assert!(!item.is_remnant() || item.is_stale(), "L3");
    let is_good = item.is_stale() && item.is_win_sent() && terms.compare_cas == Some(item.cas());
    if is_good {
        let fresh = terms.put(now);
        debug_assert!(!fresh.stale && !fresh.remnant, "everybody sees it");
        // The engine replaces this 0 by the token of the new item.
        let verdict = Verdict::Stored { cas: 0, value_bytes: terms.value_bytes };
        return Decision { change: Change::Put(fresh), notes_access: false, verdict }; // L1
    }
    if !item.is_remnant() {
        return Decision::unchanged(Verdict::NotStored);
    }
    // The holder of the lease keeps its token.
    let stale = Put {
        value: PutValue::Block,
        client_flags: terms.client_flags,
        cas: Some(item.cas()),
        removes_when_refused: false,
        ..remnant_of(item, item.expiry(), item.is_win_sent())
    };
    let verdict = Verdict::StaleStored;
    Decision { change: Change::Put(stale), notes_access: false, verdict }
}

/// A delete of a key that has only a remnant: a miss. A token that was given away becomes invalid.
pub(super) fn delete_remnant<'e>(item: &impl ItemView<'e>) -> Decision {
    debug_assert!(item.is_remnant(), "an item is deleted elsewhere");
    let change = if item.is_win_sent() { Change::Remove } else { Change::None };
    Decision { change, notes_access: false, verdict: Verdict::Miss }
}

/// The remnant that a delete stores in place of the item. `None` if values are not kept.
///
/// It has another token (L1), and lives no longer than the item (L2).
pub(crate) fn left_by_delete<'e>(
    item: &impl ItemView<'e>,
    options: &LeaseOptions,
    now: &Now,
) -> Option<Put> {
    let (is_remnant, expiry) = (item.is_remnant(), item.expiry());
    debug_assert!(!is_remnant || expiry != 0, "L2: a remnant ends");
    let expiry = if is_remnant { expiry } else { earlier(expiry, end(options.stale_s, now)) };
    let is_kept = is_remnant || options.keeps_values();
    is_kept.then(|| remnant_of(item, expiry, is_remnant && item.is_win_sent()))
}
