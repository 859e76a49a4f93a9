//! Answers a read on a core that must not change anything.
//!
//! Upstream:   an engine's reader, which any core may use concurrently with the owner of the
//!             engine.
//! Downstream: `verb::get`, the decision that the owner makes too.
//!
//! Invariants:
//! - I1  There is an answer only if the decision changes nothing and the value is lent. It is the
//!   answer that the owner gives for the same item in the same second.
//! - I2  Only the owner answers that an item was never read. Otherwise two cores could both say so,
//!   or a core could say so of an item that the owner has just created by reading it.

use crate::apply::lent_value;
use crate::change::{Change, Decision};
use crate::item::{ItemView, Wanted};
use crate::operation::GetTerms;
use crate::options::LeaseOptions;
use crate::outcome::{Outcome, Value, Verdict};
use crate::time::Now;
use crate::verb;

/// The answer of [`crate::get`] for the item that was found. `None` if the owner must execute the
/// read, because the read changes the item, creates one, pins a value, says that the item was never
/// read before, or gives the client a lease.
///
/// If there is an answer and the terms note the access, the caller must note it. Cost: reads of the
/// item's first cache lines; no allocation.
#[inline(always)]
pub fn get_unchanged<'e, P>(
    terms: &GetTerms,
    found: Option<&impl ItemView<'e>>,
    now: &Now,
) -> Option<Outcome<'e, P>> {
    if terms.leases {
        return lease_unchanged(terms, found, now);
    }
    let Some(item) = found.filter(|item| !item.is_remnant()) else {
        let creates = terms.life.vivify().is_some();
        return (!creates).then_some(Outcome { verdict: Verdict::Miss, value: Value::None });
    };
    let (facts, mark) = verb::get::on_hit(terms, item, now);
    let is_first = terms.wanted.has(Wanted::ACCESS) && !facts.hit_before; // I2
    if mark.is_some() || is_first {
        return None;
    }
    let value = if terms.value.is_wanted_at(facts.cas) {
        Value::Inline(lent_value(item, terms.value_bytes_max)?)
    } else {
        Value::None
    };
    debug_assert!(facts.won <= terms.may_win, "I1: the decision of the owner");
    Some(Outcome { verdict: Verdict::Hit(facts), value })
}

/// The answer to `lease-get`: a value, or that another client has the lease.
#[cold]
#[inline(never)]
fn lease_unchanged<'e, P>(
    terms: &GetTerms,
    found: Option<&impl ItemView<'e>>,
    now: &Now,
) -> Option<Outcome<'e, P>> {
    let item = found?;
    let Decision { change: Change::None, verdict, .. } =
        verb::lease::get(terms, Some(item), &LeaseOptions::DEFAULT, now)
    else {
        return None;
    };
    debug_assert!(matches!(verdict, Verdict::Hit(_) | Verdict::Leased { token: None, .. }), "I1");
    Some(Outcome { verdict, value: Value::Inline(lent_value(item, terms.value_bytes_max)?) })
}
