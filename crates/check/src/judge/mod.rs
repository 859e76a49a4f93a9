//! The judge: is there an order of the operations that explains every reply?
//!
//! Upstream:   a history.
//! Downstream: statistics, or a violation.
//!
//! Keys are judged one by one, which is as good as all together: no operation but `flush_all` is
//! about two keys, and nothing is promised of its moment on different keys.
//!
//! For one key it searches, depth first, for an order that respects time (what returned before
//! another was invoked stands before it) and whose every outcome the model allows. The model's many
//! possible states are carried along as one set. A pair (operations placed, states) that led
//! nowhere is remembered. Operations of unknown outcome need no place.
//!
//! Source: Wing and Gong, "Testing and Verifying Concurrent Objects", JPDC 1993; Lowe, "Testing for
//! Linearizability", CCPE 2017, for what is remembered. Ours: an operation that can change no state
//! is placed as soon as it can be and never elsewhere, for what it leaves out would only narrow the
//! states later; and those that returned first are tried first.
//!
//! Invariants:
//! - I1  An entry may be placed if every entry not placed yet returned no earlier than it was
//!   invoked, and what its client asked before and knows of is placed.
//! - I2  `placed` and `order` name the same entries; `states` are those after all of them.

use std::collections::{BTreeMap, HashSet};

use kachel_wire::request::Request;

use crate::stats::Stats;
use crate::violation::Contradiction;
use crate::{Entry, History, Model, NEVER, Operation, Outcome, Rules, State, Violation};

/// Steps of the model at most, for one key; beyond it the judge gives up, by name.
pub const STEPS_MAX: u64 = 5_000_000;

/// Judges a history of a server that began empty.
///
/// Errors: no order explains the replies of some key; or for none that is so, but the search was
/// given up for some (`TooLarge`), about which nothing is proven.
///
/// Cost: about a step an operation where few overlap; exponential in how many do.
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
    let flushes = || history.entries.iter().filter(|entry| entry.operation.is_flush());
    stats.keys = keys.len();
    let mut given_up = None;
    for (key, mut entries) in keys {
        let operations = entries.len();
        entries.extend(flushes());
        entries.sort_by_key(|entry| (entry.invoked, entry.returned));
        stats.overlapping += overlapping(&entries);
        if !check_key(key, &entries, (rules, steps_max), &mut stats)? {
            // Another key may be contradictory.
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

/// How many entries were invoked before an earlier one had returned.
fn overlapping(entries: &[&Entry]) -> usize {
    let mut latest = 0;
    let mut count = 0;
    for entry in entries.iter().filter(|entry| entry.returned != NEVER) {
        count += usize::from(entry.invoked < latest);
        latest = latest.max(entry.returned);
    }
    count
}

/// Whether an operation is told if, or when, the item was read before.
fn asks_for_access(operation: &Operation) -> bool {
    match operation.request() {
        Request::MetaGet(meta) => meta.letters.has(b'h') || meta.letters.has(b'l'),
        Request::MetaDebug(_) => true,
        _ => false,
    }
}

/// Whether there is an order; `false`: the search was given up. Errors: there is none.
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

/// The shortest beginning of a contradictory history that is one already: what was invoked until
/// some return, where later returns are not known yet. Every longer beginning is contradictory too,
/// so it is found by halving.
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

/// For each entry, the last one that the same client invoked earlier and knows of. Clients
/// pipeline, and what they ask is carried out in their order; what was asked in the same moment
/// (the keys of a multiget) is not.
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

/// The set of states in which a key may be, in order, none twice.
type States = Vec<State>;

/// The search for the order of one key.
struct Search<'h> {
    model: Model,
    /// By the time of their invocation.
    entries: Vec<&'h Entry>,
    /// For each entry, the last before it that its client knows of (I1): one, or the keys of a
    /// multiget that are the same.
    previous: Vec<Vec<usize>>,
    /// What returned later counts as not returned, and needs no place.
    until: u64,
    placed: Vec<u64>,
    order: Vec<usize>,
    /// Entries that need a place and have none.
    needed: usize,
    states: States,
    /// What led nowhere.
    dead_ends: HashSet<(Vec<u64>, States)>,
    steps: u64,
    steps_max: u64,
    /// The longest order seen, and the states after it.
    best: (Vec<usize>, States),
}

/// A point at which there was a choice: what to return to, and what is left to be tried.
struct Choice {
    order_length: usize,
    states: States,
    /// Entries to place next, with the states that follow; the best last.
    left: Vec<(usize, States)>,
}

impl<'h> Search<'h> {
    fn new(model: Model, entries: &[&'h Entry]) -> Self {
        Self {
            model,
            entries: entries.to_vec(),
            previous: previous(entries),
            until: NEVER - 1,
            placed: vec![0; entries.len().div_ceil(64)],
            order: Vec::new(),
            needed: 0,
            states: vec![State::default()],
            dead_ends: HashSet::new(),
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
            if !left.is_empty()
                && !self.dead_ends.insert((self.placed.clone(), self.states.clone()))
            {
                left.clear();
            }
            choices.push(Choice {
                order_length: self.order.len(),
                states: self.states.clone(),
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

    /// Places all that may be placed and changes nothing; returns what else may come next, with the
    /// states that follow, the best last.
    fn settle(&mut self) -> Vec<(usize, States)> {
        // As long as the states stay, so does what follows from them.
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
        // What returned first is tried first, what never did last.
        next.retain(|index, states| {
            // Others wait for one that is known to have come about, whatever it did.
            let must_come = self.entries[*index].outcome != Outcome::Unknown;
            !states.is_empty() && (must_come || *states != self.states)
        });
        let mut next: Vec<(usize, States)> = next.into_iter().collect();
        next.sort_by_key(|(index, _)| std::cmp::Reverse((self.returned(*index), *index)));
        next
    }

    /// Whether the entry returned and, with the outcome it had, changes no state whatever.
    fn only_reads(&self, index: usize) -> bool {
        let Entry { operation, outcome, .. } = self.entries[index];
        let fails = match outcome {
            Outcome::Miss | Outcome::NotStored | Outcome::Exists | Outcome::NotFound => true,
            Outcome::Meta { code, .. } => matches!(code, b"EN" | b"NS" | b"EX" | b"NF"),
            _ => false,
        };
        let reads = match operation.request() {
            Request::Retrieve(retrieve) => retrieve.ttl.is_none() && !self.model.watches_access,
            Request::MetaDebug(_) => true,
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
