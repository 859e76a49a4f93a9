//! The meta verbs: the effects of their flags, and the flags that they return.
//!
//! Upstream:   `Model::carry_out`.
//! Downstream: branches, which `answer` compares with what the client saw.
//!
//! A reply for a stale item shows `X`. The first reader wins the right to refill the item (`W`).
//! Until the next store, later readers see `Z`: another client has this right. A client also wins
//! this right if it creates an item on a miss (`N`) or reads an item that expires soon (`R`).

use super::answer::{Answer, MetaAnswer, Return};
use super::classic::{Compared, StoreTerms, Stored, changed, compare};
use super::lease::delete_remnant;
use super::{Branch, Item, Model, Span, State};
use crate::request::{Direction, Meta, MetaKey, StoreMode};
use crate::{Operation, Value, Window};

/// A reply that shows nothing of an item.
fn plain<'r>(code: &'static [u8; 2], meta: &Meta<'r>) -> Answer<'r> {
    let returns = returns(meta, |letter| match letter {
        b'O' => Some(Return::Echo),
        b'k' => Some(Return::Key { base64: meta.key.base64 }),
        _ => None,
    });
    Answer::Meta(MetaAnswer::new(code, meta, returns))
}

/// The return flags of a reply, in the order of the request. `what` maps each letter to the content
/// of its return flag.
fn returns<'r>(
    meta: &Meta<'r>,
    mut what: impl FnMut(u8) -> Option<Return>,
) -> Vec<(&'r [u8], Return)> {
    meta.flags.filter_map(|flag| Some((flag, what(flag[0])?))).collect()
}

/// Whether `k` shows the key in base64: because the item is `marked`, or because the request sent
/// the key in base64 and no line can contain it as text. A key that came as text was in a line.
fn shown_in_base64(key: MetaKey<'_>, marked: bool) -> bool {
    marked || key.base64 && key.raw().iter().any(|byte| b" \r\n".contains(byte))
}

/// `me`.
pub(super) fn debug<'r>(state: &State, key: MetaKey<'r>) -> Branch<'r> {
    let answer = match &state.item {
        Some(item) => Answer::Debug { key, base64: shown_in_base64(key, item.base64_key) },
        None => Answer::DebugMiss,
    };
    Branch { answer, next: state.clone() }
}

/// The effect of `T`, `N` and `R`, applied in the order of the flags.
struct Life {
    expiry: Option<Span>,
    /// Whether `R` may have found too few seconds left, and whether it may have found enough.
    recached: (bool, bool),
}

impl Model {
    fn live_on(
        &self,
        meta: &Meta<'_>,
        window: Window,
        (before, created): (Option<Span>, bool),
    ) -> Life {
        let mut life = Life { expiry: before, recached: (false, true) };
        for letter in meta.flags.map(|flag| flag[0]) {
            match (letter, meta.number(b'T'), meta.number(b'N'), meta.number(b'R')) {
                (b'T', Some(ttl), _, _) => life.expiry = self.rules.expiry(ttl, window),
                (b'N', _, Some(ttl), _) if created => {
                    life.expiry = self.rules.expiry(ttl, window);
                }
                (b'R', _, _, Some(seconds)) => {
                    let limit = self.rules.expiry(seconds, window);
                    life.recached = match (life.expiry, limit) {
                        (Some(expiry), Some(limit)) => {
                            (expiry.first < limit.last, expiry.last >= limit.first)
                        }
                        _ => (false, true),
                    };
                }
                _ => {}
            }
        }
        life
    }

    /// The expiry that `t` shows: the item's old expiry, or the expiry from a flag before `t`.
    fn shown_expiry<'r>(
        &self,
        meta: &Meta<'r>,
        window: Window,
        (before, created): (Option<Span>, bool),
    ) -> Option<Span> {
        let mut shown = if created { None } else { before };
        for letter in meta.flags.map(|flag| flag[0]) {
            match (letter, meta.number(b'T'), meta.number(b'N')) {
                (b't', _, _) => return shown,
                (b'T', Some(ttl), _) => shown = self.rules.expiry(ttl, window),
                (b'N', _, Some(ttl)) if created => shown = self.rules.expiry(ttl, window),
                _ => {}
            }
        }
        shown
    }

    fn vivified(&self, meta: &Meta<'_>, value: &[u8], window: Window) -> Option<Item> {
        let expiry = self.rules.expiry(meta.number(b'N')?, window);
        Some(Item {
            value: Value::new(value),
            client_flags: 0,
            expiry,
            token: self.new_token(meta.number(b'E')),
            stale: false,
            win_sent: false,
            base64_key: false,
            fetched: Some(false),
            since_s: window.earliest_s,
        })
    }

    pub(super) fn meta_get<'r>(
        &self,
        state: &State,
        meta: &Meta<'r>,
        window: Window,
        branches: &mut Vec<Branch<'r>>,
    ) {
        let (found, created) = match &state.item {
            Some(_) => (state.clone(), false),
            None => match self.vivified(meta, b"", window) {
                Some(item) => (state.with(item), true),
                None => {
                    let answer = plain(b"EN", meta);
                    branches.push(Branch { answer, next: state.clone() });
                    return;
                }
            },
        };
        let asks_value = meta.has(b'v');
        let ways = match meta.number(b'C').filter(|_| asks_value) {
            Some(token) => compare(&found, token),
            None => vec![(Compared::Newer, found)],
        };
        for (compared, known) in ways {
            let shows_value = asks_value && compared != Compared::Matches;
            self.meta_hit(&known, meta, (created, shows_value), window, branches);
        }
    }

    fn meta_hit<'r>(
        &self,
        state: &State,
        meta: &Meta<'r>,
        (created, shows_value): (bool, bool),
        window: Window,
        branches: &mut Vec<Branch<'r>>,
    ) {
        let Some(item) = &state.item else { unreachable!("a hit has an item") };
        let life = self.live_on(meta, window, (item.expiry, created));
        let shown = self.shown_expiry(meta, window, (item.expiry, created));
        let wins = created || item.stale && !item.win_sent;
        for won in [false, true] {
            let possible = match (wins, item.win_sent) {
                (true, _) => won,
                (false, true) => !won,
                (false, false) => {
                    if won {
                        life.recached.0
                    } else {
                        life.recached.1
                    }
                }
            };
            if !possible {
                continue;
            }
            let returns = returns(meta, |letter| match letter {
                b'O' => Some(Return::Echo),
                b'k' => {
                    let base64 = shown_in_base64(meta.key, item.base64_key);
                    Some(Return::Key { base64 })
                }
                b's' => Some(Return::Number(item.value.bytes().len() as u64)),
                b'f' => Some(Return::Number(u64::from(item.client_flags))),
                b'c' => Some(Return::Token),
                b't' => Some(Return::Life(shown)),
                b'l' => Some(Return::Since(item.since_s)),
                b'h' => Some(
                    item.fetched.map_or(Return::Flag, |fetched| Return::Number(u64::from(fetched))),
                ),
                _ => None,
            });
            let code = if shows_value { b"VA" } else { b"HD" };
            let mut answer = MetaAnswer::new(code, meta, returns);
            answer.value = shows_value.then(|| item.value.clone());
            answer.marks = [item.win_sent, item.stale, won];
            let next = Item {
                expiry: life.expiry,
                win_sent: item.win_sent || won,
                fetched: if meta.has(b'u') { item.fetched } else { Some(true) },
                ..item.clone()
            };
            branches.push(Branch { answer: Answer::Meta(answer), next: state.with(next) });
        }
    }

    pub(super) fn meta_set<'r>(
        &self,
        state: &State,
        operation: &Operation,
        (meta, mode): (&Meta<'r>, StoreMode),
        window: Window,
        branches: &mut Vec<Branch<'r>>,
    ) {
        let joins = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        let terms = StoreTerms {
            mode,
            client_flags: meta.number(b'F').unwrap_or(0),
            expiry: meta.number(b'T').and_then(|ttl| self.rules.expiry(ttl, window)),
            compare_cas: meta.number(b'C'),
            new_cas: meta.number(b'E'),
            stale_allowed: meta.has(b'I'),
            base64_key: meta.key.base64,
            vivify: meta.number(b'N').filter(|_| joins).map(|ttl| self.rules.expiry(ttl, window)),
        };
        let block_bytes = operation.value().map_or(0, |value| value.bytes().len());
        for (stored, next) in self.store(state, operation, terms, window) {
            let (code, value_bytes) = match stored {
                Stored::Yes { value_bytes } => (b"HD", value_bytes),
                Stored::No | Stored::NoRoom => (b"NS", block_bytes),
                Stored::Exists => (b"EX", block_bytes),
                Stored::NotFound => (b"NF", block_bytes),
            };
            let token = if code == b"HD" { Return::Token } else { Return::Number(0) };
            let returns = returns(meta, |letter| match letter {
                b'O' => Some(Return::Echo),
                b'k' => Some(Return::Key { base64: meta.key.base64 }),
                b's' => Some(Return::Number(value_bytes as u64)),
                b'c' => Some(token),
                _ => None,
            });
            let answer = Answer::Meta(MetaAnswer::new(code, meta, returns));
            branches.push(Branch { answer, next });
        }
    }

    pub(super) fn meta_delete<'r>(
        &self,
        state: &State,
        meta: &Meta<'r>,
        window: Window,
        branches: &mut Vec<Branch<'r>>,
    ) {
        let answer = |code| plain(code, meta);
        if state.item.is_none() {
            let nexts = delete_remnant(state).into_iter();
            branches.extend(nexts.map(|next| Branch { answer: answer(b"NF"), next }));
            return;
        }
        let ways = match meta.number(b'C') {
            Some(token) => compare(state, token),
            None => vec![(Compared::Matches, state.clone())],
        };
        for (compared, known) in ways {
            if compared == Compared::Matches {
                for next in self.marked_or_gone(&known, meta, window) {
                    branches.push(Branch { answer: answer(b"HD"), next });
                }
            } else {
                branches.push(Branch { answer: answer(b"EX"), next: known });
            }
        }
    }

    /// The states after `md`: no item, or an item that is stale (`I`), emptied (`x`) or both.
    fn marked_or_gone(&self, state: &State, meta: &Meta<'_>, window: Window) -> Vec<State> {
        let (empties, stale) = (meta.has(b'x'), meta.has(b'I'));
        let Some(item) = state.item.as_ref().filter(|_| empties || stale) else {
            return self.deleted(state, window);
        };
        let ttl = meta.number(b'T').map(|ttl| self.rules.expiry(ttl, window));
        // Emptying an item keeps its token. Marking it stale gives it a new token.
        let keeps_token = !stale && !meta.has(b'E');
        let token = if keeps_token { item.token } else { self.new_token(meta.number(b'E')) };
        let mut next = Item { token, stale, win_sent: false, ..item.clone() };
        next.expiry = ttl.unwrap_or(item.expiry);
        if empties {
            next.value = Value::new(b"");
            next.base64_key = false;
            next.client_flags = meta.number(b'F').unwrap_or(0);
            next.expiry = ttl.flatten();
            next.fetched = Some(false);
            next.since_s = window.earliest_s;
        }
        vec![state.with(next)]
    }

    pub(super) fn meta_arithmetic<'r>(
        &self,
        state: &State,
        (meta, direction): (&Meta<'r>, Direction),
        window: Window,
        branches: &mut Vec<Branch<'r>>,
    ) {
        let Some(item) = &state.item else {
            let digits = meta.number(b'J').unwrap_or(0).to_string();
            match self.vivified(meta, digits.as_bytes(), window) {
                Some(made) => {
                    let made = (made, meta.number(b'J').unwrap_or(0), true);
                    branches.push(self.counted(state, meta, made, window));
                }
                None => branches.push(Branch { answer: plain(b"NF", meta), next: state.clone() }),
            }
            return;
        };
        // A value of this length is not a number. It is refused before the tokens are compared.
        let bytes = item.value.bytes().len();
        let is_hopeless = bytes == 0 || bytes > 1024;
        let ways = match meta.number(b'C').filter(|token| *token != 0 && !is_hopeless) {
            Some(token) => compare(state, token),
            None => vec![(Compared::Matches, state.clone())],
        };
        for (compared, known) in ways {
            match changed(item, (direction, meta.number(b'D').unwrap_or(1))) {
                _ if compared != Compared::Matches => {
                    branches.push(Branch { answer: plain(b"EX", meta), next: known })
                }
                None => branches.push(Branch { answer: Answer::NonNumeric, next: known }),
                Some((number, value)) => {
                    for next in self.with_number(item, (number, value), meta.number(b'E')) {
                        branches.push(self.counted(&known, meta, (next, number, false), window));
                    }
                }
            }
        }
    }

    /// The branch in which `ma` leaves `item`, whose value is `number`.
    fn counted<'r>(
        &self,
        state: &State,
        meta: &Meta<'r>,
        (item, number, created): (Item, u64, bool),
        window: Window,
    ) -> Branch<'r> {
        let life = self.live_on(meta, window, (item.expiry, created));
        let shown = self.shown_expiry(meta, window, (item.expiry, created));
        let returns = returns(meta, |letter| match letter {
            b'O' => Some(Return::Echo),
            b'k' => Some(Return::Key { base64: meta.key.base64 }),
            b'c' => Some(Return::Token),
            b't' => Some(Return::Life(shown)),
            _ => None,
        });
        let shows_value = meta.has(b'v');
        let code = if shows_value { b"VA" } else { b"HD" };
        let mut answer = MetaAnswer::new(code, meta, returns);
        answer.value = shows_value.then(|| Value::new(number.to_string().as_bytes()));
        let next = state.with(Item { expiry: life.expiry, ..item });
        Branch { answer: Answer::Meta(answer), next }
    }
}
