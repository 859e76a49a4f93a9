//! The classic verbs, and the code that the meta verbs share with them: storing values and changing
//! numbers.
//!
//! Upstream:   `Model::carry_out`.
//! Downstream: branches, which `answer` compares with what the client saw.
//!
//! Source: memcached's protocol.txt, and the replies of memcached 1.6.45 for cases that the text
//! does not describe.

use super::answer::Answer;
use super::{Branch, Item, Model, Span, State};
use crate::request::{Direction, Store, StoreMode};
use crate::{Operation, Outcome, Value, Window};

/// The longest value that can be a number. A longer value is not a number, whatever its bytes are.
const NUMERIC_VALUE_BYTES_MAX: usize = 1024;

pub(super) fn retrieve<'r>(state: &State, ttl: Option<Option<Span>>, with_cas: bool) -> Branch<'r> {
    let Some(item) = &state.item else {
        return Branch { answer: Answer::Plain(Outcome::Miss), next: state.clone() };
    };
    let expiry = ttl.unwrap_or(item.expiry);
    let next = state.with(Item { expiry, fetched: Some(true), ..item.clone() });
    Branch { answer: Answer::Hit { with_cas }, next }
}

pub(super) fn touch<'r>(state: &State, expiry: Option<Span>) -> Branch<'r> {
    let Some(item) = &state.item else {
        return Branch { answer: Answer::Plain(Outcome::NotFound), next: state.clone() };
    };
    let next = state.with(Item { expiry, fetched: Some(true), ..item.clone() });
    Branch { answer: Answer::Plain(Outcome::Touched), next }
}

/// A storage request, classic or meta.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreTerms {
    pub(super) mode: StoreMode,
    pub(super) client_flags: u32,
    pub(super) expiry: Option<Span>,
    /// The token that must match.
    pub(super) compare_cas: Option<u64>,
    pub(super) new_cas: Option<u64>,
    /// `I`: a request with a token older than the item's stores its value as stale.
    pub(super) stale_allowed: bool,
    /// `N` with append or prepend: the expiry of an item created on a miss.
    pub(super) vivify: Option<Option<Span>>,
    /// Whether the request sends the key in base64.
    pub(super) base64_key: bool,
}

/// The result of a storage request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The value was stored; the item's value now has this many bytes.
    Yes { value_bytes: usize },
    /// The mode's condition did not hold.
    No,
    /// There was no memory to append or prepend the value (I2 of the model).
    NoRoom,
    /// The token did not match.
    Exists,
    /// The request names a token, and there is no item.
    NotFound,
}

/// How the token that a request names compares with the item's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    Matches,
    /// The request's token is smaller.
    Older,
    Newer,
}

/// All ways in which `token` may compare with the token of the state's item, each with the state
/// that is known in this case.
pub(super) fn compare(state: &State, token: u64) -> Vec<(Compared, State)> {
    let known = state.item.as_ref().and_then(|item| item.token);
    let order = |known: u64| match token.cmp(&known) {
        std::cmp::Ordering::Less => Compared::Older,
        std::cmp::Ordering::Equal => Compared::Matches,
        std::cmp::Ordering::Greater => Compared::Newer,
    };
    match known {
        Some(known) => vec![(order(known), state.clone())],
        // I1 of the model: a token that no client has seen is above the floor.
        None if token <= state.token_floor => vec![(Compared::Older, state.clone())],
        None => {
            let mut ways = vec![(Compared::Older, state.clone()), (Compared::Newer, state.clone())];
            if let Some(bound) = state.clone().bound(token) {
                ways.push((Compared::Matches, bound));
            }
            ways
        }
    }
}

impl Model {
    pub(super) fn classic_store<'r>(
        &self,
        state: &State,
        operation: &'r Operation,
        request: &Store<'r>,
        window: Window,
        branches: &mut Vec<Branch<'r>>,
    ) {
        let terms = StoreTerms {
            mode: request.mode,
            client_flags: request.client_flags,
            expiry: self.rules.expiry(request.ttl, window),
            compare_cas: request.compare_cas,
            new_cas: None,
            stale_allowed: false,
            vivify: None,
            base64_key: false,
        };
        for (stored, next) in self.store(state, operation, terms, window) {
            let outcome = match stored {
                Stored::Yes { .. } => Outcome::Stored,
                Stored::No | Stored::NoRoom => Outcome::NotStored,
                Stored::Exists => Outcome::Exists,
                Stored::NotFound => Outcome::NotFound,
            };
            branches.push(Branch { answer: Answer::Plain(outcome), next });
        }
    }

    /// Executes a storage request in all ways in which its token may compare.
    pub(super) fn store(
        &self,
        state: &State,
        operation: &Operation,
        terms: StoreTerms,
        window: Window,
    ) -> Vec<(Stored, State)> {
        let value = operation.value().expect("a storage request has a data block");
        let fresh = Item {
            value: value.clone(),
            client_flags: terms.client_flags,
            expiry: terms.expiry,
            token: self.new_token(terms.new_cas),
            stale: false,
            win_sent: false,
            base64_key: terms.base64_key,
            fetched: Some(false),
            since_s: window.earliest_s,
        };
        let joins = matches!(terms.mode, StoreMode::Append | StoreMode::Prepend);
        let Some(item) = &state.item else {
            return vec![store_on_miss(state, terms, fresh)];
        };
        // For append and prepend, token 0 means no token. For set and replace, it matches no item.
        let asked = terms.compare_cas.filter(|token| !(joins && *token == 0));
        match (terms.mode, asked) {
            (StoreMode::Lease, _) => unreachable!("`lease` executes it"),
            (StoreMode::Add, _) => vec![(Stored::No, state.clone())],
            (StoreMode::Set | StoreMode::Replace, None) => {
                vec![(yes(value.bytes().len()), state.with(fresh))]
            }
            (StoreMode::Set | StoreMode::Replace, Some(0)) => {
                vec![(Stored::Exists, state.clone())]
            }
            (StoreMode::Set | StoreMode::Replace, Some(token)) => {
                let ways = compare(state, token).into_iter();
                ways.map(|(compared, known)| match compared {
                    Compared::Matches => (yes(value.bytes().len()), known.with(fresh.clone())),
                    Compared::Older if terms.stale_allowed => {
                        let (expiry, win_sent) = (item.expiry, item.win_sent);
                        let stale = Item { expiry, win_sent, stale: true, ..fresh.clone() };
                        (yes(value.bytes().len()), known.with(stale))
                    }
                    Compared::Older | Compared::Newer => (Stored::Exists, known),
                })
                .collect()
            }
            (StoreMode::Append | StoreMode::Prepend, None) => {
                self.join(state, operation.key(), terms.mode, (item, fresh))
            }
            (StoreMode::Append | StoreMode::Prepend, Some(token)) => {
                let ways = compare(state, token).into_iter();
                ways.flat_map(|(compared, known)| match compared {
                    Compared::Matches => {
                        self.join(&known, operation.key(), terms.mode, (item, fresh.clone()))
                    }
                    Compared::Older | Compared::Newer => vec![(Stored::Exists, known)],
                })
                .collect()
            }
        }
    }

    /// Appends or prepends the value of `added` to the value of `item`. Returns all possible
    /// results: it may fail if memory may be short, and fails if the item would be too large.
    fn join(
        &self,
        state: &State,
        key: &[u8],
        mode: StoreMode,
        (item, added): (&Item, Item),
    ) -> Vec<(Stored, State)> {
        let (front, back) = match mode {
            StoreMode::Append => (&item.value, &added.value),
            _ => (&added.value, &item.value),
        };
        let joined = [front.bytes(), back.bytes()].concat();
        if !self.rules.fits(key.len(), joined.len(), item.client_flags) {
            return vec![(Stored::No, state.clone())];
        }
        let value_bytes = joined.len();
        let next = Item {
            value: Value::new(&joined),
            client_flags: item.client_flags,
            expiry: item.expiry,
            base64_key: false,
            ..added
        };
        let mut ways = vec![(yes(value_bytes), state.with(next))];
        if self.rules.memory_may_be_short {
            ways.push((Stored::NoRoom, state.clone()));
        }
        ways
    }

    pub(super) fn classic_arithmetic<'r>(
        &self,
        state: &State,
        by: (Direction, u64),
        branches: &mut Vec<Branch<'r>>,
    ) {
        let Some(item) = &state.item else {
            let answer = Answer::Plain(Outcome::NotFound);
            branches.push(Branch { answer, next: state.clone() });
            return;
        };
        let Some((number, value)) = changed(item, by) else {
            branches.push(Branch { answer: Answer::NonNumeric, next: state.clone() });
            return;
        };
        for next in self.with_number(item, (number, value), None) {
            let answer = Answer::Plain(Outcome::Number(number));
            branches.push(Branch { answer, next: state.with(next) });
        }
    }

    /// The item with another number, in both forms in which memcached may leave it. In place: the
    /// value and the token change, and the marks stay. As a new item, which memcached makes while
    /// the old one is being read: the number has no spaces after it, and the marks are gone (I2 of
    /// the model). A longer number always makes a new item.
    pub(super) fn with_number(
        &self,
        item: &Item,
        (number, value): (u64, Value),
        chosen: Option<u64>,
    ) -> impl Iterator<Item = Item> {
        let fetched = item.fetched.filter(|fetched| !fetched);
        let token = self.new_token(chosen);
        let grows = value.bytes().len() > item.value.bytes().len();
        let kept = Item { value, token, fetched, ..item.clone() };
        let value = Value::new(number.to_string().as_bytes());
        let anew = Item { value, stale: false, win_sent: false, base64_key: false, ..kept.clone() };
        let differs = anew != kept;
        let is_new = grows || differs;
        (!grows).then_some(kept).into_iter().chain(is_new.then_some(anew))
    }
}

const fn yes(value_bytes: usize) -> Stored {
    Stored::Yes { value_bytes }
}

fn store_on_miss(state: &State, terms: StoreTerms, fresh: Item) -> (Stored, State) {
    let value_bytes = fresh.value.bytes().len();
    let stored = (yes(value_bytes), ());
    let expiry = match (terms.mode, terms.vivify) {
        (StoreMode::Set | StoreMode::Replace, _) if terms.compare_cas.is_some() => {
            return (Stored::NotFound, state.clone());
        }
        (StoreMode::Set | StoreMode::Add, _) => fresh.expiry,
        (StoreMode::Append | StoreMode::Prepend, Some(expiry)) => expiry,
        (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend | StoreMode::Lease, _) => {
            return (Stored::No, state.clone());
        }
    };
    (stored.0, state.with(Item { expiry, ..fresh }))
}

/// The number after the change, and the value that contains it. A shorter number is padded with
/// spaces to the old length. `None`: the item's value is not a number.
pub(super) fn changed(item: &Item, (direction, delta): (Direction, u64)) -> Option<(u64, Value)> {
    let bytes = item.value.bytes();
    let number = stored_number(bytes).filter(|_| bytes.len() <= NUMERIC_VALUE_BYTES_MAX)?;
    let number = match direction {
        Direction::Up => number.wrapping_add(delta),
        Direction::Down => number.saturating_sub(delta),
    };
    let width = bytes.len();
    Some((number, Value::new(format!("{number:<width$}").as_bytes())))
}

/// A value as a number: optional white space, an optional sign, digits, then white space, a NUL or
/// the end. A negative number is taken modulo 2^64. `None`: the value has another form, or the
/// result for a negative number has its top bit set.
fn stored_number(value: &[u8]) -> Option<u64> {
    let is_space = |byte: u8| byte == b' ' || (b'\t'..=b'\r').contains(&byte);
    let text = &value[value.iter().take_while(|byte| is_space(**byte)).count()..];
    let (negative, text) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || text.get(digits).is_some_and(|byte| !is_space(*byte) && *byte != 0) {
        return None;
    }
    let number: u64 = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    let number = if negative { number.wrapping_neg() } else { number };
    (!negative || number >> 63 == 0).then_some(number)
}
