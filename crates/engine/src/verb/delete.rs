//! `delete`, `md`.
//!
//! Upstream:   `decide`.
//! Downstream: a decision: the item is removed, emptied, or marked stale.

use super::lease;
use crate::change::{Change, Decision, Put, PutValue};
use crate::item::ItemView;
use crate::operation::DeleteTerms;
use crate::outcome::Verdict;
use crate::time::Now;

#[inline]
pub(super) fn delete<'e>(
    terms: &DeleteTerms,
    found: Option<&impl ItemView<'e>>,
    now: &Now,
) -> Decision {
    let Some(item) = found else { return Decision::unchanged(Verdict::Miss) };
    if item.is_remnant() {
        return lease::delete_remnant(item);
    }
    if terms.compare_cas.is_some_and(|token| token != item.cas()) {
        return Decision::unchanged(Verdict::Exists);
    }
    if terms.empties || terms.marks_stale {
        return Decision {
            change: Change::Put(invalidated(terms, item, now)),
            notes_access: false,
            verdict: Verdict::Invalidated,
        };
    }
    Decision { change: Change::Remove, notes_access: false, verdict: Verdict::Deleted }
}

/// The item that stays: stale, or empty, or both.
fn invalidated<'e>(terms: &DeleteTerms, item: &impl ItemView<'e>, now: &Now) -> Put {
    debug_assert!(terms.empties || terms.marks_stale, "any other delete removes the item");
    let ttl = terms.ttl.map(|ttl| now.expiry(ttl));
    let mut put = Put {
        value: PutValue::Unchanged,
        client_flags: item.client_flags(),
        expiry: ttl.unwrap_or_else(|| item.expiry()),
        // Emptying alone keeps the token; marking stale gives the next one.
        cas: terms.new_cas.or_else(|| (!terms.marks_stale).then(|| item.cas())),
        stale: terms.marks_stale,
        win_sent: false,
        remnant: false,
        protocol_mark: item.protocol_mark() && !terms.empties,
        keeps_access: !terms.empties,
        removes_when_refused: false,
    };
    if terms.empties {
        put.value = PutValue::Empty;
        put.client_flags = terms.client_flags;
        put.expiry = ttl.unwrap_or(0);
    }
    put
}
