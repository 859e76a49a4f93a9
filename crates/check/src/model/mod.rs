//! The model of one key: the items that it may hold, and the replies that each operation may get.
//!
//! Upstream:   `judge`, the simulator, and tests that follow the states of keys beside a server.
//! Downstream: `classic` and `meta` execute one request; `answer` compares the reply with what the
//!             client saw.
//!
//! A step returns all states in which the key may be afterwards. No state means that the outcome is
//! impossible. There are several states where the protocol leaves something open:
//!
//! - a second that is known only within bounds: an item that may have expired may be gone;
//! - eviction, in `Mode::Cache`: any item may be gone at any time;
//! - a CAS token that no client has seen: it may or may not equal the token of a request;
//! - a remnant that a delete leaves for leases: it may be missing, because its memory is bounded;
//! - an unknown outcome: the operation may or may not have been executed.
//!
//! Invariants:
//! - I1  Tokens that the server chooses grow from item to item of a key. So a token that no client
//!   has seen is above all tokens that were seen (`State::token_floor`), and no token is used
//!   twice. Tokens that clients chose (`E`) are exempt.
//! - I2  A step accepts more than it should in these cases. memcached executes `incr`, `decr` and
//!   `ma` in place or with a new item. Afterwards a step accepts any `h` of an item that was read
//!   before, a lost mark of a lease or of a key in base64, and a shorter number with or without
//!   spaces after it. Only the upper bounds of `l` and `la` are checked, and sizes and classes of
//!   `me` are not checked. A refusal is accepted even if memory was not short; only the refusals
//!   that follow from the request and the item must be correct. With `Rules::memory_may_be_short`,
//!   `NOT_STORED` or `NS` is accepted for any `append` and `prepend`.

mod answer;
mod classic;
mod lease;
mod meta;

use crate::request::{Request, StoreMode};
use crate::{Operation, Outcome, Value, Window};

use answer::{Answer, Seen};

/// The largest relative TTL: 30 days. Larger TTLs are absolute.
const RELATIVE_TTL_MAX: i32 = 60 * 60 * 24 * 30;

/// A refusal for lack of memory that the client did not see.
const UNSEEN_REFUSAL: &[u8] = b"SERVER_ERROR out of memory";

/// Whether items may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Items may be evicted: a miss is always possible.
    Cache,
    /// Items are never evicted.
    Store,
}

/// The promises of the server that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether items may be evicted.
    pub mode: Mode,
    /// Whether items have CAS tokens. They have none with `-C`; then every token is shown as 0.
    pub cas: bool,
    /// The size of the largest item as memcached counts it (`-I`). The server refuses a larger
    /// value, and does not store an `append` or `prepend` that would make a larger item.
    pub item_bytes_max: u64,
    /// Whether memory may be short. Then an `append` or `prepend` may fail, and in `Mode::Store`
    /// the server may have refused a request whose reply no client saw.
    pub memory_may_be_short: bool,
    /// The Unix time of second 0 of the windows. Without it an absolute TTL may mean any second.
    pub unix_s: Option<i64>,
    /// How leases behave. `None`: a delete leaves nothing for them.
    pub leases: Option<LeaseRules>,
}

/// How leases behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRules {
    /// How long a token is good, in seconds.
    pub lease_s: u32,
    /// How long the value of a deleted item may be kept for leases, in seconds.
    pub stale_s: u32,
}

impl LeaseRules {
    /// Those of a server without options.
    pub const DEFAULT: Self = Self { lease_s: 10, stale_s: 60 };
}

impl Rules {
    /// The rules of a server without options.
    pub const fn new(mode: Mode) -> Self {
        let (item_bytes_max, memory_may_be_short) = (1 << 20, false);
        let (unix_s, leases) = (None, None);
        Self { mode, cas: true, item_bytes_max, memory_may_be_short, unix_s, leases }
    }

    /// When an item that gets this TTL in this window expires. `None`: never.
    fn expiry(&self, ttl: i32, window: Window) -> Option<Span> {
        match (ttl, self.unix_s) {
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

    /// Whether `-I` allows an item of this size. memcached counts the header, the CAS token, the
    /// key and a NUL, the client flags if they are not 0, the value and CR LF.
    fn fits(&self, key_bytes: usize, value_bytes: usize, client_flags: u32) -> bool {
        let header = 48 + 8 * u64::from(self.cas) + 4 * u64::from(client_flags != 0);
        header + key_bytes as u64 + 1 + value_bytes as u64 + 2 <= self.item_bytes_max
    }
}

/// A second that is known only within bounds, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The earliest possible second.
    pub first: u32,
    /// The latest possible second.
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

/// The item of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    /// The value.
    pub value: Value,
    /// The client flags.
    pub client_flags: u32,
    /// When the item expires. `None`: never.
    pub expiry: Option<Span>,
    /// The CAS token, if clients know it.
    pub token: Option<u64>,
    /// Whether the item was marked stale.
    pub stale: bool,
    /// Whether a client has won the right to refill the item.
    pub win_sent: bool,
    /// Whether the key is shown in base64, because the request that stored the item sent it so.
    pub base64_key: bool,
    /// Whether the item was read since it was stored. `None`: that is not known.
    pub fetched: Option<bool>,
    /// The earliest second in which the item may have been stored.
    pub since_s: u32,
}

/// A stale value that only leases see. Its key has no item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Remnant {
    /// The stale value; empty if there was none.
    pub value: Value,
    /// The client flags of the stale value.
    pub client_flags: u32,
    /// The token with which a client may store a value, if a client has a good one.
    pub token: Option<u64>,
    /// Whether a client was given a lease.
    pub win_sent: bool,
    /// When the remnant is gone.
    pub expiry: Span,
}

/// Everything that determines the possible replies to the next operation on a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    /// The item, if there is one.
    pub item: Option<Item>,
    /// The stale value for leases, if there is no item.
    pub remnant: Option<Remnant>,
    /// The largest token that the server chose and that clients know (I1).
    pub token_floor: u64,
    /// When a pending delayed flush takes effect.
    pub flush: Option<Span>,
}

impl State {
    fn with(&self, item: Item) -> Self {
        Self { item: Some(item), remnant: None, ..self.clone() }
    }

    fn without_item(&self) -> Self {
        Self { item: None, remnant: None, ..self.clone() }
    }

    fn with_remnant(&self, remnant: Remnant) -> Self {
        Self { item: None, remnant: Some(remnant), ..self.clone() }
    }

    /// The state if a lease was given with this token. `None`: it cannot be.
    fn leased(mut self, token: u64) -> Option<Self> {
        let Some(remnant) = self.remnant.as_mut() else { return self.bound(token) };
        if token <= self.token_floor {
            return None; // I1
        }
        (remnant.token, self.token_floor) = (Some(token), token);
        Some(self)
    }

    /// The state if the item has this token. `None`: it cannot have this token.
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

/// One way in which an operation may have been executed.
struct Branch<'r> {
    answer: Answer<'r>,
    next: State,
}

/// The semantics of one key.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// The promises of the server.
    pub rules: Rules,
    /// Whether the states record if and when the item was read. Without this record there are
    /// fewer states. It may be `false` only if no request asks for it (`h`, `l`, `me`).
    pub watches_access: bool,
}

impl Model {
    /// The model of a server with these rules.
    pub const fn new(rules: Rules) -> Self {
        Self { rules, watches_access: true }
    }

    /// All states that may follow `state` after `operation` with `outcome`, sorted and without
    /// duplicates. No state: the outcome is impossible.
    ///
    /// For an unknown outcome the result contains `state` too, because the server may not have
    /// executed the operation yet.
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

    /// Adds to `into` the states in which the operation has been executed.
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
                self.refusal(living, &request, line, window, into);
                continue;
            }
            let is_unseen =
                is_noreply && *outcome == Outcome::Silent || *outcome == Outcome::Unknown;
            let may_refuse = self.rules.memory_may_be_short && self.rules.mode == Mode::Store;
            if is_unseen && may_refuse {
                self.refusal(living.clone(), &request, UNSEEN_REFUSAL, window, into);
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
        let refused = self.too_large(state, operation, request, window);
        if !refused.is_empty() {
            let refused = refused.into_iter();
            branches.extend(refused.map(|next| Branch { answer: Answer::TooLarge, next }));
            return;
        }
        match *request {
            Request::Retrieve(retrieve) if retrieve.is_lease => {
                self.lease_get(state, window, branches);
            }
            Request::Retrieve(retrieve) => {
                let ttl = retrieve.ttl.map(|ttl| self.rules.expiry(ttl, window));
                branches.push(classic::retrieve(state, ttl, retrieve.with_cas));
            }
            Request::Store(store) if store.mode == StoreMode::Lease => {
                self.lease_set(state, operation, &store, window, branches);
            }
            Request::Store(store) => self.classic_store(state, operation, &store, window, branches),
            Request::Delete(_) => self.classic_delete(state, window, branches),
            Request::Touch { ttl, .. } => {
                branches.push(classic::touch(state, self.rules.expiry(ttl, window)));
            }
            Request::Arithmetic { by, .. } => self.classic_arithmetic(state, by, branches),
            Request::MetaGet(meta) => self.meta_get(state, &meta, window, branches),
            Request::MetaSet { meta, mode, .. } => {
                self.meta_set(state, operation, (&meta, mode), window, branches);
            }
            Request::MetaDelete(meta) => self.meta_delete(state, &meta, window, branches),
            Request::MetaArithmetic { meta, direction } => {
                self.meta_arithmetic(state, (&meta, direction), window, branches);
            }
            Request::MetaDebug(key) => branches.push(meta::debug(state, key)),
            Request::FlushAll { delay } => self.flush(state, delay, window, branches),
            Request::FlushPrefix(_) => {
                // The judge has found that it takes the key. A pending flush stays pending.
                let answer = Answer::Plain(Outcome::Ok);
                branches.push(Branch { answer, next: state.without_item() });
            }
        }
    }

    /// The state after a request whose value is too large for an item. `set`, and `ms` in every
    /// mode, remove the old item, so that no outdated value stays. No state: the value is not too
    /// large.
    fn too_large(
        &self,
        state: &State,
        operation: &Operation,
        request: &Request<'_>,
        window: Window,
    ) -> Vec<State> {
        let (client_flags, removes) = match request {
            Request::Store(store) => {
                let is_set = store.mode == StoreMode::Set && store.compare_cas.is_none();
                (store.client_flags, is_set)
            }
            Request::MetaSet { meta, .. } => (meta.number(b'F').unwrap_or(0), true),
            _ => return Vec::new(),
        };
        let value_bytes = operation.value().map_or(0, |value| value.bytes().len());
        if self.rules.fits(operation.key().len(), value_bytes, client_flags) {
            return Vec::new();
        }
        match (removes, &state.item) {
            (true, Some(_)) => self.deleted(state, window),
            (true, None) => lease::delete_remnant(state),
            (false, _) => vec![state.clone()],
        }
    }

    /// The states that `state` may have become without a request: unchanged, flushed, expired or
    /// evicted.
    fn lives(&self, state: &State, window: Window) -> Vec<State> {
        let mut lives = Vec::new();
        let mut flushes = true;
        if let Some(due) = state.flush {
            flushes = !due.must_have_come(window);
            if due.may_have_come(window) {
                lives.push(State { flush: None, ..state.without_item() });
            }
        }
        let Some(item) = state.item.as_ref().filter(|_| flushes) else {
            if flushes {
                self.remnants(state, window, &mut lives);
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

    /// The states that a state without an item may have become: the remnant may be gone.
    fn remnants(&self, state: &State, window: Window, lives: &mut Vec<State>) {
        let expiry = state.remnant.as_ref().map(|remnant| remnant.expiry);
        let may_be_dropped = self.rules.mode == Mode::Cache || self.rules.memory_may_be_short;
        if expiry.is_some_and(|expiry| may_be_dropped || expiry.may_have_come(window)) {
            lives.push(state.without_item());
        }
        if !expiry.is_some_and(|expiry| expiry.must_have_come(window)) {
            lives.push(state.clone());
        }
    }

    /// `flush_all`, for this key. It replaces a pending flush, whether it has a delay or not.
    fn flush<'r>(&self, state: &State, delay: i32, window: Window, branches: &mut Vec<Branch<'r>>) {
        let answer = || Answer::Plain(Outcome::Ok);
        let due = self.rules.expiry(delay, window);
        let (now, later) = match delay {
            ..=1 => (true, false),
            2..=RELATIVE_TTL_MAX => (false, true),
            _ => (true, true),
        };
        if delay > RELATIVE_TTL_MAX {
            // A Unix time from before the start flushes nothing. The model knows no start.
            branches
                .push(Branch { answer: answer(), next: State { flush: None, ..state.clone() } });
        }
        if now {
            let next = State { flush: None, ..state.without_item() };
            branches.push(Branch { answer: answer(), next });
        }
        if let Some(due) = due.filter(|_| later) {
            // The flush takes effect at some point of the second before, at the latest at its end.
            let flush = Some(Span { first: due.first.saturating_sub(1), last: due.last });
            branches.push(Branch { answer: answer(), next: State { flush, ..state.clone() } });
        }
    }

    /// The token of an item that is stored now: the client's choice, or `None` because no client
    /// knows it yet. Without tokens it is 0.
    fn new_token(&self, chosen: Option<u64>) -> Option<u64> {
        if self.rules.cas { chosen } else { Some(0) }
    }

    /// Adds the states that may follow a refusal: the unchanged state, and the state without the
    /// item if memory was short for the value of a plain `set`.
    fn refusal(
        &self,
        state: State,
        request: &Request<'_>,
        line: &[u8],
        window: Window,
        into: &mut Vec<State>,
    ) {
        let sets = match request {
            Request::Store(store) => store.mode == StoreMode::Set && store.compare_cas.is_none(),
            Request::MetaSet { meta, mode, .. } => *mode == StoreMode::Set && !meta.has(b'C'),
            _ => false,
        };
        if sets && line.starts_with(b"SERVER_ERROR") {
            if state.item.is_some() {
                into.extend(self.deleted(&state, window));
            } else if state.remnant.is_some() {
                into.extend(lease::delete_remnant(&state));
            }
        }
        into.push(state);
    }
}

#[cfg(test)]
mod tests;
