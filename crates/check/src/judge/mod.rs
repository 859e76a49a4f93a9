//! The judge: is there an order of the operations that explains every reply?
//!
//! Upstream:   a history.
//! Downstream: statistics, or a violation.
//!
//! Each key is judged alone. This is equivalent to judging all keys together: only `flush_all`
//! affects more than one key, and it may take effect on different keys at different times.
//!
//! For one key, a depth-first search looks for an order in which the model allows every outcome. If
//! one operation returned before another was invoked, it comes first in the order. After each
//! operation the key may be in several states of the model; the search carries them as one set. An
//! operation with an unknown outcome needs no place. The search remembers each point (operations
//! placed, states) that led nowhere. It does not continue from another point with the same states
//! and the same known operations, if all unknown operations of the old point are placed there as
//! well: each of them may be placed later, and nothing waits for it, so the old point had all
//! continuations of the new one. For the same reason, an unknown operation is not placed before
//! another one that leads to the same states without it. Without these rules, ten unknown stores
//! are tried in every order.
//!
//! Source: Wing and Gong, "Testing and Verifying Concurrent Objects", JPDC 1993. The pairs that are
//! remembered are from Lowe, "Testing for Linearizability", CCPE 2017. Ours: the rules about
//! unknown operations; and an operation that changes no state and rules none out is placed at once
//! and nowhere else, because in a later place it could only rule out states. Operations that
//! returned first are tried first.
//!
//! Invariants:
//! - I1  An entry may be placed only if no unplaced entry returned before it was invoked, and only
//!   if the earlier operations of its client with a known outcome are placed.
//! - I2  `placed` and `order` name the same entries; `states` are the states after all of them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::request::Request;
use crate::stats::Stats;
use crate::violation::Contradiction;
use crate::{Entry, History, Model, NEVER, Operation, Outcome, Rules, State, Violation};

/// The most steps of the model for one key. Beyond them the judge gives up on the key and returns
/// [`Violation::TooLarge`]. An order that exists is found soon: in 60 runs of the simulation within
/// 270,000 steps, in 200 histories of real servers within 50,000.
pub const STEPS_MAX: u64 = 1_000_000;

/// The most sets of unknown operations that are remembered for the same states and the same known
/// operations. A search that forgets some takes longer.
const TRIED_MAX: usize = 64;

/// Judges a history of a server that started empty.
///
/// Errors: `Contradiction` if no order explains the replies for some key. Otherwise `TooLarge` if
/// the search was given up for some keys; nothing is known about these keys.
///
/// Cost: about one step per operation if few operations overlap; exponential in the number of
/// operations that overlap.
///
/// ```
/// use kachel_check::{Entry, History, Mode, Operation, Outcome, Rules, Window, check_history};
/// let mut history = History::default();
/// let mut at = 0;
/// let mut done = |client, wire: &[u8], outcome| {
///     let operation = Operation::new(wire).unwrap();
///     at += 2;
///     let window = Window::at(1);
///     history.push(Entry { client, operation, outcome, invoked: at, returned: at + 1, window });
/// };
/// done(1, b"set k 0 0 1\r\na\r\n", Outcome::Stored);
/// done(2, b"get k\r\n", Outcome::Miss);
/// let violation = check_history(&history, &Rules::new(Mode::Store)).unwrap_err();
/// assert!(violation.to_string().contains("no order"));
/// assert!(check_history(&history, &Rules::new(Mode::Cache)).is_ok());
/// ```
pub fn check_history(history: &History, rules: &Rules) -> Result<Stats, Violation> {
    check_within(history, rules, STEPS_MAX)
}

fn check_within(history: &History, rules: &Rules, steps_max: u64) -> Result<Stats, Violation> {
    let mut keys: BTreeMap<&[u8], Vec<&Entry>> = BTreeMap::new();
    let mut stats = Stats { operations: history.entries.len(), ..Stats::default() };
    for entry in &history.entries {
        match entry.outcome {
            Outcome::Unknown => stats.unknown += 1,
            Outcome::Refused(_) => stats.refused += 1,
            _ => {}
        }
        if !entry.operation.is_flush() {
            keys.entry(entry.operation.key()).or_default().push(entry);
        }
    }
    let flushes = |key| history.entries.iter().filter(move |entry| entry.operation.flushes(key));
    stats.keys = keys.len();
    let mut given_up = None;
    for (key, mut entries) in keys {
        let operations = entries.len();
        entries.extend(flushes(key));
        entries.sort_by_key(|entry| (entry.invoked, entry.returned));
        stats.overlapping += overlapping(&entries);
        if !check_key(key, &entries, (rules, steps_max), &mut stats)? {
            // The judge continues, because another key may be contradictory.
            stats.keys_given_up += 1;
            stats.operations_given_up += operations;
            given_up = given_up.or(Some(key));
        }
    }
    match given_up {
        Some(key) => Err(Violation::TooLarge { key: key.to_vec(), stats }),
        None => Ok(stats),
    }
}

/// The number of entries that were invoked before an earlier entry returned. Entries that never
/// returned are ignored.
fn overlapping(entries: &[&Entry]) -> usize {
    let mut latest = 0;
    let mut count = 0;
    for entry in entries.iter().filter(|entry| entry.returned != NEVER) {
        count += usize::from(entry.invoked < latest);
        latest = latest.max(entry.returned);
    }
    count
}

/// Whether the reply to an operation may show if or when the item was read before.
fn asks_for_access(operation: &Operation) -> bool {
    match operation.request() {
        Request::MetaGet(meta) => meta.has(b'h') || meta.has(b'l'),
        Request::MetaDebug(_) => true,
        _ => false,
    }
}

/// Searches for an order of one key's entries. `true`: there is one. `false`: the search was given
/// up. Errors: there is none.
fn check_key(
    key: &[u8],
    entries: &[&Entry],
    (rules, steps_max): (&Rules, u64),
    stats: &mut Stats,
) -> Result<bool, Violation> {
    let mut model = Model::new(*rules);
    model.watches_access = entries.iter().any(|entry| asks_for_access(&entry.operation));
    let mut search = Search::new(model, entries);
    search.steps_max = steps_max;
    let found = search.run();
    stats.steps += search.steps;
    match found {
        Found::Order => Ok(true),
        Found::GaveUp => Ok(false),
        Found::None => {
            let prefix = shortest_prefix(model, entries);
            let mut search = Search::new(model, &prefix);
            search.run();
            let (order, states) = search.best;
            let prefix: Vec<Entry> = prefix.into_iter().cloned().collect();
            let contradiction = Contradiction { key: key.to_vec(), prefix, order, states };
            Err(Violation::Contradiction(Box::new(contradiction)))
        }
    }
}

/// The shortest contradictory prefix of a contradictory history. A prefix contains the entries that
/// were invoked until some return, and later returns count as not known yet. Every longer prefix is
/// contradictory too, so a binary search finds the shortest one.
fn shortest_prefix<'h>(model: Model, entries: &[&'h Entry]) -> Vec<&'h Entry> {
    let mut returns: Vec<u64> = entries.iter().map(|entry| entry.returned).collect();
    returns.retain(|returned| *returned != NEVER);
    returns.sort_unstable();
    let begun = |until: u64| -> Vec<&'h Entry> {
        entries.iter().copied().filter(|entry| entry.invoked <= until).collect()
    };
    let (mut good, mut bad) = (0, returns.len().saturating_sub(1));
    while good < bad {
        let middle = (good + bad) / 2;
        let until = returns[middle];
        let prefix = begun(until);
        let mut search = Search::new(model, &prefix);
        search.until = until;
        if matches!(search.run(), Found::None) {
            bad = middle;
        } else {
            good = middle + 1;
        }
    }
    begun(returns.get(bad).copied().unwrap_or(NEVER))
}

/// For each entry, the previous entries of the same client that have a known outcome: one entry, or
/// all keys of one multiget. Clients pipeline, and the server executes the operations of one client
/// in their order. Operations that a client invoked at the same time (the keys of a multiget) have
/// no order.
fn previous(entries: &[&Entry]) -> Vec<Vec<usize>> {
    let mut last: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut previous = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let told = last.entry(entry.client).or_default();
        let earlier = told.iter().rev().copied().filter(|at| entries[*at].invoked < entry.invoked);
        let last = earlier.clone().next().map(|at| entries[at].invoked);
        previous.push(earlier.take_while(|at| Some(entries[*at].invoked) == last).collect());
        if entry.returned != NEVER || entry.outcome == Outcome::Silent {
            told.push(index);
        }
    }
    previous
}

/// How a search ended.
enum Found {
    Order,
    None,
    GaveUp,
}

/// The set of states in which a key may be, sorted and without duplicates.
type States = Vec<State>;

/// The search for the order of one key.
struct Search<'h> {
    model: Model,
    /// Sorted by invocation time.
    entries: Vec<&'h Entry>,
    /// For each entry, the previous entries of its client, which must be placed before it (I1).
    previous: Vec<Vec<usize>>,
    /// Entries that returned later count as not returned and need no place.
    until: u64,
    placed: Vec<u64>,
    order: Vec<usize>,
    /// The number of entries that still need a place.
    needed: usize,
    states: States,
    /// The entries whose outcome is unknown. No entry waits for them.
    unknown: Vec<u64>,
    /// For each digest (`point`): the sets of unknown entries that were placed where the search has
    /// already tried to continue.
    dead_ends: HashMap<u128, Vec<Vec<u64>>>,
    steps: u64,
    steps_max: u64,
    /// The longest order found, and the states after it.
    best: (Vec<usize>, States),
}

/// A point of the search to return to, and the entries that are not tried there yet.
struct Choice {
    order_length: usize,
    states: States,
    /// The entries to place next, each with the states after it. The first to try is last.
    left: Vec<(usize, States)>,
    /// Those of them that are unknown, also if they were tried already.
    unknown: Vec<(usize, States)>,
}

impl<'h> Search<'h> {
    fn new(model: Model, entries: &[&'h Entry]) -> Self {
        let mut unknown = vec![0; entries.len().div_ceil(64)];
        for (index, entry) in entries.iter().enumerate() {
            let is_unknown = entry.returned == NEVER && entry.outcome != Outcome::Silent;
            unknown[index / 64] |= u64::from(is_unknown) << (index % 64);
        }
        Self {
            unknown,
            model,
            entries: entries.to_vec(),
            previous: previous(entries),
            until: NEVER - 1,
            placed: vec![0; entries.len().div_ceil(64)],
            order: Vec::new(),
            needed: 0,
            states: vec![State::default()],
            dead_ends: HashMap::new(),
            steps: 0,
            steps_max: STEPS_MAX,
            best: (Vec::new(), vec![State::default()]),
        }
    }

    fn returned(&self, index: usize) -> u64 {
        let returned = self.entries[index].returned;
        if returned > self.until { NEVER } else { returned }
    }

    fn is_placed(&self, index: usize) -> bool {
        self.placed[index / 64] >> (index % 64) & 1 != 0
    }

    fn is_unknown(&self, index: usize) -> bool {
        self.unknown[index / 64] >> (index % 64) & 1 != 0
    }

    /// Whether the entry that was placed last is unknown, and the first after this choice.
    fn has_only_placed_unknown(&self, after: &Choice) -> bool {
        self.order.len() == after.order_length + 1
            && self.order.last().is_some_and(|last| self.is_unknown(*last))
    }

    fn place(&mut self, index: usize, states: States) {
        debug_assert!(!self.is_placed(index), "I2");
        self.placed[index / 64] |= 1 << (index % 64);
        self.order.push(index);
        self.needed -= usize::from(self.returned(index) != NEVER);
        self.states = states;
    }

    fn unplace_to(&mut self, order_length: usize) {
        while self.order.len() > order_length {
            let Some(index) = self.order.pop() else { break };
            self.placed[index / 64] &= !(1 << (index % 64));
            self.needed += usize::from(self.returned(index) != NEVER);
        }
    }

    /// A digest of the states and the placed entries that are not unknown. `dead_ends` holds
    /// digests because the states themselves may take gigabytes: each order of appends makes a
    /// value of its own. Two different values have the same hash with a probability of 2^-64. The
    /// search could then reject a correct history, but never accept a wrong one.
    fn point(&self) -> u128 {
        let known =
            self.placed.iter().zip(&self.unknown).map(|(placed, unknown)| placed & !unknown);
        let known: Vec<u64> = known.collect();
        let half = |which: u64| {
            let mut hasher = DefaultHasher::new();
            (which, &known, &self.states).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        half(0) << 64 | half(1)
    }

    /// Notes that the search tries to continue from here. Returns false if it has already done so
    /// from here, or from a point that had all continuations of this one.
    fn is_new_point(&mut self) -> bool {
        let unknown =
            self.placed.iter().zip(&self.unknown).map(|(placed, unknown)| placed & unknown);
        let mut unknown: Vec<u64> = unknown.collect();
        // Most points have none. Trailing zeros are left out to save memory.
        let words = unknown.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        unknown.truncate(words);
        unknown.shrink_to_fit();
        let point = self.point();
        let tried = self.dead_ends.entry(point).or_default();
        let is_within = |tried: &Vec<u64>| {
            let of_point = unknown.iter().chain(std::iter::repeat(&0));
            tried.iter().zip(of_point).all(|(tried, point)| tried & !point == 0)
        };
        let is_new = !tried.iter().any(is_within);
        if is_new && tried.len() < TRIED_MAX {
            tried.push(unknown);
        }
        is_new
    }

    fn run(&mut self) -> Found {
        self.needed = (0..self.entries.len()).filter(|at| self.returned(*at) != NEVER).count();
        let mut choices: Vec<Choice> = Vec::new();
        loop {
            let mut left = self.settle();
            if self.order.len() > self.best.0.len() {
                self.best = (self.order.clone(), self.states.clone());
            }
            if self.needed == 0 {
                return Found::Order;
            }
            if self.steps > self.steps_max {
                return Found::GaveUp;
            }
            if let Some(before) = choices.last().filter(|last| self.has_only_placed_unknown(last)) {
                left.retain(|next| !before.unknown.contains(next));
            }
            if !left.is_empty() && !self.is_new_point() {
                left.clear();
            }
            choices.push(Choice {
                order_length: self.order.len(),
                states: self.states.clone(),
                unknown: left.iter().filter(|(at, _)| self.is_unknown(*at)).cloned().collect(),
                left,
            });
            let (index, states) = loop {
                let Some(choice) = choices.last_mut() else { return Found::None };
                if let Some(next) = choice.left.pop() {
                    break next;
                }
                choices.pop();
            };
            let Some(choice) = choices.last() else { return Found::None };
            let (order_length, before) = (choice.order_length, choice.states.clone());
            self.unplace_to(order_length);
            self.states = before;
            self.place(index, states);
        }
    }

    /// Places every entry that may be placed, changes no state and rules none out. Returns the
    /// other entries that may come next, each with the states after it. The first to try is last.
    fn settle(&mut self) -> Vec<(usize, States)> {
        // These results stay valid because the states stay the same.
        let mut next: BTreeMap<usize, States> = BTreeMap::new();
        let mut first = 0;
        'again: loop {
            while first < self.entries.len() && self.is_placed(first) {
                first += 1;
            }
            let mut earliest_return = NEVER;
            for index in first..self.entries.len() {
                if self.is_placed(index) {
                    continue;
                }
                if self.entries[index].invoked > earliest_return {
                    break; // I1
                }
                earliest_return = earliest_return.min(self.returned(index));
                let waits = self.previous[index].iter().any(|at| !self.is_placed(*at));
                if waits || next.contains_key(&index) {
                    continue;
                }
                let states = self.step(index);
                if states == self.states && self.only_reads(index) {
                    self.place(index, states);
                    continue 'again;
                }
                next.insert(index, states);
            }
            break;
        }
        next.retain(|index, states| {
            // An entry with a known outcome is placed even if it changes no state, because later
            // entries of its client wait for it.
            let must_come = self.entries[*index].outcome != Outcome::Unknown;
            !states.is_empty() && (must_come || *states != self.states)
        });
        let mut next: Vec<(usize, States)> = next.into_iter().collect();
        // Entries that returned first are tried first; entries that never returned are tried last.
        next.sort_by_key(|(index, _)| std::cmp::Reverse((self.returned(*index), *index)));
        next
    }

    /// Whether the entry returned, and an operation with its outcome never changes a state.
    fn only_reads(&self, index: usize) -> bool {
        let Entry { operation, outcome, .. } = self.entries[index];
        let fails = match outcome {
            Outcome::Miss | Outcome::NotStored | Outcome::Exists | Outcome::NotFound => true,
            Outcome::Meta { code, .. } => matches!(code, b"EN" | b"NS" | b"EX" | b"NF"),
            _ => false,
        };
        let reads = match operation.request() {
            Request::Retrieve(retrieve) => {
                let may_lease = retrieve.is_lease && !matches!(outcome, Outcome::Hit { .. });
                retrieve.ttl.is_none() && !self.model.watches_access && !may_lease
            }
            Request::MetaDebug(_) => true,
            // A delete that finds no item may make the token of a lease invalid.
            Request::Delete(_) | Request::MetaDelete(_) => return false,
            _ => false,
        };
        self.returned(index) != NEVER && (fails || reads)
    }

    fn step(&mut self, index: usize) -> States {
        let entry = self.entries[index];
        let unknown = self.returned(index) == NEVER && entry.outcome != Outcome::Silent;
        let outcome = if unknown { &Outcome::Unknown } else { &entry.outcome };
        let mut states = Vec::new();
        for state in &self.states {
            self.steps += 1;
            self.model.effects(state, &entry.operation, outcome, entry.window, &mut states);
        }
        states.sort_unstable();
        states.dedup();
        states
    }
}

#[cfg(test)]
mod tests;
