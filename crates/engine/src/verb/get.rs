//! `get`, `gets`, `gat`, `gats`, `mg`.
//!
//! Upstream:   `decide`.
//! Downstream: a decision: no change, a mark, or an empty item for the client that missed.
//!
//! If an item is marked stale, one client may refill it. The first client that reads it wins this
//! right. Later readers are told that the right was given away, until the item is stored again.

use super::life_terms::Life;
use crate::change::{Change, Decision, Mark, Put, PutValue};
use crate::item::{Facts, ItemView, Wanted};
use crate::operation::{GetTerms, ValueWanted};
use crate::outcome::Verdict;
use crate::time::{Now, Ttl};

#[inline]
pub(crate) fn get<'e>(terms: &GetTerms, found: Option<&impl ItemView<'e>>, now: &Now) -> Decision {
    let Some(item) = found else { return on_miss(terms, now) };
    let (facts, mark) = on_hit(terms, item, now);
    Decision {
        change: mark.map_or(Change::None, Change::Mark),
        notes_access: terms.notes_access,
        verdict: Verdict::Hit(facts),
    }
}

/// The facts of an item that was found, and its new marks if they change.
#[inline(always)]
pub(crate) fn on_hit<'e>(
    terms: &GetTerms,
    item: &impl ItemView<'e>,
    now: &Now,
) -> (Facts, Option<Mark>) {
    debug_assert!(
        !matches!(terms.value, ValueWanted::UnlessCas(_)) || terms.wanted.has(Wanted::CAS),
        "a comparison needs the item's token"
    );
    let mut facts = Facts::of(item, terms.wanted, now);
    let before = item.expiry();
    let life = Life::after(&terms.life, before, false, now);
    life.tell(&mut facts);
    facts.won = terms.may_win && (life.recached || item.is_stale()) && !item.is_win_sent();
    debug_assert!(life.ttl_made.is_none(), "an item that was found is not created");
    let expiry = (life.expiry != before).then_some(life.expiry);
    let mark = Mark { expiry, win_sent: facts.won };
    (facts, (expiry.is_some() || facts.won).then_some(mark))
}

/// Decides a miss, or creates an empty item if the terms say so.
#[inline]
pub(crate) fn on_miss(terms: &GetTerms, now: &Now) -> Decision {
    match terms.life.vivify() {
        Some(ttl) => create(terms, ttl, now),
        None => Decision::unchanged(Verdict::Miss),
    }
}

/// Creates an empty item for the client that missed it, which wins the right to fill it.
#[cold]
fn create(terms: &GetTerms, ttl: Ttl, now: &Now) -> Decision {
    debug_assert!(terms.life.vivify() == Some(ttl), "the terms create the item");
    let life = Life::after(&terms.life, now.expiry(ttl), true, now);
    let mut facts =
        Facts { created: true, won: true, protocol_mark: Some(false), ..Facts::default() };
    life.tell(&mut facts);
    let put = Put {
        value: PutValue::Empty,
        client_flags: 0,
        expiry: life.expiry,
        cas: terms.new_cas,
        stale: false,
        win_sent: true,
        remnant: false,
        protocol_mark: false,
        keeps_access: false,
        removes_when_refused: false,
    };
    Decision {
        change: Change::Put(put),
        notes_access: terms.notes_access,
        verdict: Verdict::Hit(facts),
    }
}
