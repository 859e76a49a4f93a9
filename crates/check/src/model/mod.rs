//! The model of one key: what it may hold, and what each operation may answer.
//!
//! Upstream:   `judge`, the simulator, and whoever keeps one state a key beside a server.
//! Downstream: `classic` and `meta` carry out one request; `answer` compares what the client saw.
//!
//! A step gives all states in which the key may be afterwards; none means that the outcome was
//! impossible. More than one come of what the protocol leaves open:
//!
//! - a second that is known within bounds only: an item whose time may have come may be gone;
//! - eviction, in `Mode::Cache`: any item may be gone at any time;
//! - a CAS token that nobody has been shown: it may or may not be the one that a request names;
//! - an unknown outcome: the operation may or may not have been carried out.
//!
//! Invariants:
//! - I1  Tokens that the server picks grow from item to item of a key. So one that nobody has seen
//!   is above all that were seen (`State::token_floor`), and none comes back. Tokens that clients
//!   picked (`E`) are exempt.
//! - I2  What a step accepts too freely: after `incr` and the like, which memcached does in place
//!   or by a new item, any `h`, that the marks of a lease and of a key in base64 are gone, and a
//!   shorter number with or without spaces behind it. Of `l` and `la` only the upper bound is
//!   checked; sizes and classes of `me` are not. A refusal for want of memory is taken, whether or
//!   not memory was short; where it may be (`Rules::memory_may_be_short`), so is `NOT_STORED` or
//!   `NS` for any `append` or `prepend`.

mod answer;
mod classic;
mod meta;

use crate::{Operation, Outcome, Value, Window};
use kachel_wire::request::{Admin, Request, StoreMode, Ttl};

use answer::{Answer, Seen};

/// TTLs up to this are relative, beyond it absolute: 30 days.
const RELATIVE_TTL_MAX: i32 = 60 * 60 * 24 * 30;

/// A refusal for want of memory of which the client was told nothing.
const UNSEEN_REFUSAL: &[u8] = b"SERVER_ERROR out of memory";

/// Whether items may go before their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They may: a miss is always possible.
    Cache,
    /// They may not.
    Store,
}

/// What is promised of the server that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether items may be evicted.
    pub mode: Mode,
    /// Whether items carry CAS tokens (not with `-C`: then every token is shown as 0).
    pub cas: bool,
    /// The largest item as memcached counts it, `-I`: a larger value is refused, and so is an
    /// `append` that would make one.
    pub item_bytes_max: u64,
    /// Whether memory may be short: then nothing may be appended or prepended, and in a store a
    /// request whose reply nobody saw may have been refused.
    pub memory_may_be_short: bool,
    /// The Unix time of second 0 of the windows. Without it an absolute TTL may mean any time.
    pub unix_s: Option<i64>,
}

impl Rules {
    /// The rules of a server that was given no options.
    pub const fn new(mode: Mode) -> Self {
        let (item_bytes_max, memory_may_be_short) = (1 << 20, false);
        Self { mode, cas: true, item_bytes_max, memory_may_be_short, unix_s: None }
    }

    /// When an item dies that is given this TTL in this window; `None`: never.
    fn expiry(&self, ttl: Ttl, window: Window) -> Option<Span> {
        match (ttl.0, self.unix_s) {
            (0, _) => None,
            (relative @ 1..=RELATIVE_TTL_MAX, _) => {
                let seconds = relative.unsigned_abs();
                Some(Span {
                    first: window.earliest_s.saturating_add(seconds),
                    last: window.latest_s.saturating_add(seconds),
                })
            }
            (negative, _) if negative < 0 => Some(Span { first: 0, last: 0 }),
            (_, None) => Some(Span { first: 0, last: u32::MAX }),
            (absolute, Some(unix_s)) => {
                let second = (i64::from(absolute) - unix_s).clamp(0, i64::from(u32::MAX)) as u32;
                Some(Span { first: second, last: second })
            }
        }
    }

    /// Whether `-I` lets such an item be: header, CAS token, key and NUL, client flags that are not
    /// 0, value and CR LF.
    fn fits(&self, key_bytes: usize, value_bytes: usize, client_flags: u32) -> bool {
        let header = 48 + 8 * u64::from(self.cas) + 4 * u64::from(client_flags != 0);
        header + key_bytes as u64 + 1 + value_bytes as u64 + 2 <= self.item_bytes_max
    }
}

/// A second that is known within bounds, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// No earlier.
    pub first: u32,
    /// No later.
    pub last: u32,
}

impl Span {
    const fn may_have_come(self, window: Window) -> bool {
        window.latest_s >= self.first
    }

    const fn must_have_come(self, window: Window) -> bool {
        window.earliest_s >= self.last
    }
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    /// The value.
    pub value: Value,
    /// The client flags.
    pub client_flags: u32,
    /// When it dies; `None`: never.
    pub expiry: Option<Span>,
    /// The CAS token, once somebody has been shown it.
    pub token: Option<u64>,
    /// Whether it was marked stale.
    pub stale: bool,
    /// Whether the right to refill it was given away.
    pub win_sent: bool,
    /// Whether the key is shown in base64: so was it worded by the request that stored the item.
    pub base64_key: bool,
    /// Whether it was read since it was stored, where that is known.
    pub fetched: Option<bool>,
    /// The second before which it was surely not stored.
    pub since_s: u32,
}

/// Everything that decides what a key's next operation may answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    /// The item, if there is one.
    pub item: Option<Item>,
    /// The largest token of the server's own choice that anybody was shown (I1).
    pub token_floor: u64,
    /// When a flush falls due that was asked for with a delay.
    pub flush: Option<Span>,
}

impl State {
    fn with(&self, item: Item) -> Self {
        Self { item: Some(item), ..self.clone() }
    }

    fn without_item(&self) -> Self {
        Self { item: None, ..self.clone() }
    }

    /// The state once the item is known to have this token. `None`: it has another.
    fn bound(mut self, token: u64) -> Option<Self> {
        let item = self.item.as_mut()?;
        match item.token {
            Some(known) => return (known == token).then_some(self),
            None if token <= self.token_floor => return None, // I1
            None => item.token = Some(token),
        }
        self.token_floor = token;
        Some(self)
    }
}

/// One way in which an operation may have been carried out.
struct Branch<'r> {
    answer: Answer<'r>,
    next: State,
}

/// The semantics of one key.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// What is promised.
    pub rules: Rules,
    /// Whether the states say if and when the item was read. Without that there are fewer; only for
    /// who asks for none of it (`h`, `l`, `me`).
    pub watches_access: bool,
}

impl Model {
    /// The model of a server that promises this.
    pub const fn new(rules: Rules) -> Self {
        Self { rules, watches_access: true }
    }

    /// All states that may follow `state` when `operation` was invoked in it and came out so; in
    /// order, none twice. None at all: that outcome is impossible.
    ///
    /// An unknown outcome gives `state` too: nothing may have happened yet.
    ///
    /// ```
    /// use kachel_check::{Mode, Model, Operation, Outcome, Rules, State, Window};
    /// let model = Model::new(Rules::new(Mode::Store));
    /// let set = Operation::new(b"set k 0 0 1\r\na\r\n").unwrap();
    /// let states = model.step(&State::default(), &set, &Outcome::Stored, Window::at(5));
    /// assert_eq!(states.len(), 1);
    /// let miss = model.step(&states[0], &Operation::get(b"k"), &Outcome::Miss, Window::at(6));
    /// assert!(miss.is_empty());
    /// ```
    pub fn step(
        &self,
        state: &State,
        operation: &Operation,
        outcome: &Outcome,
        window: Window,
    ) -> Vec<State> {
        let mut states = Vec::new();
        self.effects(state, operation, outcome, window, &mut states);
        if *outcome == Outcome::Unknown {
            states.push(state.clone());
        }
        states.sort_unstable();
        states.dedup();
        states
    }

    /// Adds to `into` the states in which the operation has been carried out.
    pub(crate) fn effects(
        &self,
        state: &State,
        operation: &Operation,
        outcome: &Outcome,
        window: Window,
        into: &mut Vec<State>,
    ) {
        let from = into.len();
        let request = operation.request();
        let is_noreply = operation.is_noreply();
        let refused = matches!(outcome, Outcome::Refused(_));
        if is_noreply && !refused && !matches!(outcome, Outcome::Silent | Outcome::Unknown) {
            return;
        }
        let seen = Seen { outcome, window, is_noreply };
        for living in self.lives(state, window) {
            if let Outcome::Refused(line) = outcome
                && !answer::is_foreseen(line)
            {
                refusal(living, &request, line, into);
                continue;
            }
            let is_unseen =
                is_noreply && *outcome == Outcome::Silent || *outcome == Outcome::Unknown;
            let may_refuse = self.rules.memory_may_be_short && self.rules.mode == Mode::Store;
            if is_unseen && may_refuse {
                refusal(living.clone(), &request, UNSEEN_REFUSAL, into);
            }
            let mut branches = Vec::new();
            self.carry_out(&living, operation, &request, window, &mut branches);
            into.extend(branches.into_iter().filter_map(|branch| seen.accept(branch)));
        }
        if !self.watches_access {
            for item in into[from..].iter_mut().filter_map(|state| state.item.as_mut()) {
                (item.fetched, item.since_s) = (None, 0);
            }
        }
    }

    fn carry_out<'r>(
        &self,
        state: &State,
        operation: &'r Operation,
        request: &Request<'r>,
        window: Window,
        branches: &mut Vec<Branch<'r>>,
    ) {
        if let Some(next) = self.too_large(state, operation, request) {
            branches.push(Branch { answer: Answer::TooLarge, next });
            return;
        }
        match *request {
            Request::Retrieve(retrieve) => {
                let ttl = retrieve.ttl.map(|ttl| self.rules.expiry(ttl, window));
                branches.push(classic::retrieve(state, ttl, retrieve.with_cas));
            }
            Request::Store(store) => self.classic_store(state, operation, &store, window, branches),
            Request::Delete { .. } => branches.push(classic::delete(state)),
            Request::Touch { ttl, .. } => {
                branches.push(classic::touch(state, self.rules.expiry(ttl, window)));
            }
            Request::Arithmetic { direction, delta, .. } => {
                self.classic_arithmetic(state, (direction, delta), branches);
            }
            Request::MetaGet(meta) => self.meta_get(state, &meta, window, branches),
            Request::MetaSet { meta, mode, .. } => {
                self.meta_set(state, operation, (&meta, mode), window, branches);
            }
            Request::MetaDelete(meta) => self.meta_delete(state, &meta, window, branches),
            Request::MetaArithmetic { meta, direction } => {
                self.meta_arithmetic(state, (&meta, direction), window, branches);
            }
            Request::MetaDebug(key) => branches.push(meta::debug(state, key)),
            Request::Admin(Admin::FlushAll { delay, .. }) => {
                self.flush(state, delay, window, branches);
            }
            Request::MetaNoop | Request::Admin(_) => unreachable!("no operation is made of it"),
        }
    }

    /// What is left where the request's value is larger than an item may be: for `set`, and for
    /// `ms` in every mode, nothing, so that no stale value stays. `None`: it may be stored.
    fn too_large(
        &self,
        state: &State,
        operation: &Operation,
        request: &Request<'_>,
    ) -> Option<State> {
        let (client_flags, removes) = match request {
            Request::Store(store) => {
                let is_set = store.mode == StoreMode::Set && store.compare_cas.is_none();
                (store.client_flags, is_set)
            }
            Request::MetaSet { meta, .. } => (meta.client_flags, true),
            _ => return None,
        };
        let value_bytes = operation.value()?.bytes().len();
        if self.rules.fits(operation.key().len(), value_bytes, client_flags) {
            return None;
        }
        Some(if removes { state.without_item() } else { state.clone() })
    }

    /// What the state may have become by itself: flushed, expired, evicted.
    fn lives(&self, state: &State, window: Window) -> Vec<State> {
        let mut lives = Vec::new();
        let mut flushes = true;
        if let Some(due) = state.flush {
            flushes = !due.must_have_come(window);
            if due.may_have_come(window) {
                lives.push(State { item: None, flush: None, ..state.clone() });
            }
        }
        let Some(item) = state.item.as_ref().filter(|_| flushes) else {
            if flushes {
                lives.push(state.clone());
            }
            return lives;
        };
        let expiry = item.expiry;
        let evicts = self.rules.mode == Mode::Cache;
        if evicts || expiry.is_some_and(|expiry| expiry.may_have_come(window)) {
            lives.push(state.without_item());
        }
        if !expiry.is_some_and(|expiry| expiry.must_have_come(window)) {
            lives.push(state.clone());
        }
        lives
    }

    /// `flush_all`, for this key. One that is due at once takes a pending one away; so does a later
    /// one.
    fn flush<'r>(&self, state: &State, delay: Ttl, window: Window, branches: &mut Vec<Branch<'r>>) {
        let answer = || Answer::Plain(Outcome::Ok);
        let due = self.rules.expiry(delay, window);
        let (now, later) = match delay.0 {
            ..=1 => (true, false),
            2..=RELATIVE_TTL_MAX => (false, true),
            _ => (true, true),
        };
        if now {
            let next = State { item: None, flush: None, ..state.clone() };
            branches.push(Branch { answer: answer(), next });
        }
        if let Some(due) = due.filter(|_| later) {
            // It takes effect in the second before, at the start of it or at its end.
            let flush = Some(Span { first: due.first.saturating_sub(1), last: due.last });
            branches.push(Branch { answer: answer(), next: State { flush, ..state.clone() } });
        }
    }

    /// The token of an item that is stored now: chosen by the client, or not known yet.
    fn new_token(&self, chosen: Option<u64>) -> Option<u64> {
        if self.rules.cas { chosen } else { Some(0) }
    }
}

/// What is left after a refusal: what was there, or nothing where room was short for the value of a
/// plain set.
fn refusal(state: State, request: &Request<'_>, line: &[u8], into: &mut Vec<State>) {
    let sets = match request {
        Request::Store(store) => store.mode == StoreMode::Set && store.compare_cas.is_none(),
        Request::MetaSet { meta, mode, .. } => {
            *mode == StoreMode::Set && meta.compare_cas.is_none()
        }
        _ => false,
    };
    if sets && line.starts_with(b"SERVER_ERROR") && state.item.is_some() {
        into.push(state.without_item());
    }
    into.push(state);
}

#[cfg(test)]
mod tests;
