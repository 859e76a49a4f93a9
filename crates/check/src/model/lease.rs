//! Leases: `lease-get`, `lease-set`, and the remnant that a delete leaves for them.
//!
//! Upstream:   `Model::carry_out`.
//! Downstream: branches, which `answer` compares with what the client saw.
//!
//! A key without an item may have a remnant: a stale value that only leases see. A lease that is
//! given away makes the remnant live until its token is no longer good. A delete makes the token
//! invalid, but nobody gets another one before.

use super::answer::Answer;
use super::classic::{Compared, compare};
use super::{Branch, Item, LeaseRules, Model, Remnant, Span, State};
use crate::request::Store;
use crate::{Operation, Outcome, Value, Window};

/// The earlier one of two ends of life.
fn earlier(one: Span, other: Option<Span>) -> Span {
    let other = other.unwrap_or(one);
    Span { first: one.first.min(other.first), last: one.last.min(other.last) }
}

/// When something ends that begins in this window and lasts this long.
const fn end(window: Window, seconds: u32) -> Span {
    Span {
        first: window.earliest_s.saturating_add(seconds),
        last: window.latest_s.saturating_add(seconds),
    }
}

impl Model {
    pub(super) fn lease_get<'r>(
        &self,
        state: &State,
        window: Window,
        branches: &mut Vec<Branch<'r>>,
    ) {
        let LeaseRules { lease_s, .. } = self.rules.leases.unwrap_or(LeaseRules::DEFAULT);
        if let Some(item) = &state.item {
            branches.push(on_item(state, item));
            return;
        }
        let ends = end(window, lease_s);
        let remnant = state.remnant.clone().unwrap_or_else(|| Remnant {
            value: Value::new(b""),
            client_flags: 0,
            token: None,
            win_sent: false,
            expiry: ends,
        });
        let (value, client_flags) = (remnant.value.clone(), remnant.client_flags);
        let is_holder = !remnant.win_sent;
        let answer = if !is_holder && value.bytes().is_empty() {
            Answer::Plain(Outcome::NotFoundHot)
        } else {
            Answer::Leased { value, client_flags, is_holder }
        };
        let next = if is_holder {
            let expiry = earlier(ends, Some(remnant.expiry));
            state.with_remnant(Remnant { win_sent: true, expiry, ..remnant })
        } else {
            state.clone()
        };
        branches.push(Branch { answer, next });
    }

    pub(super) fn lease_set<'r>(
        &self,
        state: &State,
        operation: &'r Operation,
        request: &Store<'r>,
        window: Window,
        branches: &mut Vec<Branch<'r>>,
    ) {
        let value = operation.value().expect("a storage request has a data block");
        let token = request.compare_cas.expect("a lease has a token");
        let fresh = Item {
            value: value.clone(),
            client_flags: request.client_flags,
            expiry: self.rules.expiry(request.ttl, window),
            token: self.new_token(None),
            stale: false,
            win_sent: false,
            base64_key: false,
            fetched: Some(false),
            since_s: window.earliest_s,
        };
        let mut add = |outcome, next| {
            branches.push(Branch { answer: Answer::Plain(outcome), next });
        };
        match (&state.item, &state.remnant) {
            (Some(item), _) if item.stale && item.win_sent => {
                for (compared, known) in compare(state, token) {
                    match compared {
                        Compared::Matches => add(Outcome::Stored, known.with(fresh.clone())),
                        _ => add(Outcome::NotStored, known),
                    }
                }
            }
            (None, Some(remnant)) if remnant.win_sent && remnant.token == Some(token) => {
                add(Outcome::Stored, state.with(fresh));
            }
            (None, Some(remnant)) => {
                let (value, client_flags) = (value.clone(), request.client_flags);
                let stale = Remnant { value, client_flags, ..remnant.clone() };
                add(Outcome::StaleStored, state.with_remnant(stale));
                add(Outcome::NotStored, state.clone()); // There was no memory for it.
            }
            _ => add(Outcome::NotStored, state.clone()),
        }
    }

    pub(super) fn classic_delete<'r>(
        &self,
        state: &State,
        window: Window,
        branches: &mut Vec<Branch<'r>>,
    ) {
        if state.item.is_none() {
            let nexts = delete_remnant(state).into_iter();
            let answer = || Answer::Plain(Outcome::NotFound);
            branches.extend(nexts.map(|next| Branch { answer: answer(), next }));
            return;
        }
        let nexts = self.deleted(state, window).into_iter();
        let answer = || Answer::Plain(Outcome::Deleted);
        branches.extend(nexts.map(|next| Branch { answer: answer(), next }));
    }

    /// The states after the item was deleted: no item, and perhaps a remnant.
    pub(super) fn deleted(&self, state: &State, window: Window) -> Vec<State> {
        let mut states = vec![state.without_item()];
        if let (Some(LeaseRules { stale_s, .. }), Some(item)) = (self.rules.leases, &state.item) {
            let remnant = Remnant {
                value: item.value.clone(),
                client_flags: item.client_flags,
                token: None,
                win_sent: false,
                expiry: earlier(end(window, stale_s), item.expiry),
            };
            states.push(state.with_remnant(remnant));
        }
        states
    }
}

/// `lease-get` of a key that has an item. A stale item is leased, too.
fn on_item<'r>(state: &State, item: &Item) -> Branch<'r> {
    if !item.stale {
        let next = state.with(Item { fetched: Some(true), ..item.clone() });
        return Branch { answer: Answer::Hit { with_cas: false }, next };
    }
    let is_holder = !item.win_sent && item.token.is_none_or(|token| token > 1);
    let (value, client_flags) = (item.value.clone(), item.client_flags);
    let answer = if !is_holder && value.bytes().is_empty() {
        Answer::Plain(Outcome::NotFoundHot)
    } else {
        Answer::Leased { value, client_flags, is_holder }
    };
    let next = state.with(Item { win_sent: item.win_sent || is_holder, ..item.clone() });
    Branch { answer, next }
}

/// The states after a delete of a key without an item: the token of a lease is invalid, or there is
/// no memory for what is kept of it.
pub(super) fn delete_remnant(state: &State) -> Vec<State> {
    let Some(remnant) = &state.remnant else { return vec![state.clone()] };
    vec![state.with_remnant(Remnant { token: None, ..remnant.clone() }), state.without_item()]
}
