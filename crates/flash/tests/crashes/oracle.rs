//! What one engine must have: now, and after a crash.
//!
//! Upstream:   `traffic` reports each answer of the engine, `process` what a start finds.
//! Downstream: `model` has the items; each change is kept until the next crash.
//!
//! Invariants, cited by number where they are asserted:
//! - O1  Each answer is that of the model.
//! - O2  A change gets a sequence, and the sequences increase. A read waits for the last change of
//!   its key.
//! - O3  After a crash, the items of an engine are those after some number of its changes, the same
//!   for all keys, and all acknowledged changes are among them.

use std::collections::BTreeSet;

use kachel_engine::{
    Block, Durability, Facts, KeptSeconds, Now, Operation, StoreMode, StoreTerms, Value, Verb,
    Verdict, apply,
};

use crate::model::{Flushes, Item, Model, key_number};

/// What an engine has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) verdict: Verdict,
    pub(crate) value: Option<Vec<u8>>,
}

/// An item as a read shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) value: Vec<u8>,
    pub(crate) client_flags: u32,
    pub(crate) token: u64,
    pub(crate) expiry_unix_s: i64,
    pub(crate) stale: bool,
    pub(crate) win_sent: bool,
    pub(crate) protocol_mark: bool,
}

#[derive(Clone, Debug)]
struct Change {
    sequence: u64,
    key: usize,
    item: Option<Item>,
}

/// The items of one engine, and their history since its start.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    pub(crate) model: Model,
    /// The items at the start.
    base: Vec<Option<Item>>,
    changes: Vec<Change>,
}

/// A verdict without its token, and the token.
fn without_token(verdict: Verdict) -> (Verdict, Option<u64>) {
    let token_of = |facts: Facts| (facts.cas != 0).then_some(facts.cas);
    match verdict {
        Verdict::Stored { cas, value_bytes } => {
            (Verdict::Stored { cas: 0, value_bytes }, Some(cas))
        }
        Verdict::Hit(facts) => (Verdict::Hit(Facts { cas: 0, ..facts }), token_of(facts)),
        Verdict::Number { number, facts } => {
            (Verdict::Number { number, facts: Facts { cas: 0, ..facts } }, token_of(facts))
        }
        Verdict::Leased { token: Some(token), client_flags } => {
            (Verdict::Leased { token: Some(0), client_flags }, Some(token))
        }
        other => (other, None),
    }
}

/// Whether a verdict says that there was no room for a value.
fn is_refusal(verb: &Verb, seen: Verdict) -> bool {
    let may_say_not_stored = matches!(
        verb,
        Verb::Store(StoreTerms { mode: StoreMode::Append | StoreMode::Prepend, .. })
            | Verb::Store(StoreTerms { mode: StoreMode::Lease, .. })
    );
    matches!(seen, Verdict::NoMemory { .. }) || may_say_not_stored && seen == Verdict::NotStored
}

impl Oracle {
    pub(crate) fn new(model: Model) -> Self {
        Self { base: model.items.clone(), model, changes: Vec::new() }
    }

    /// The engine has answered. Returns whether it had no room for a value.
    pub(crate) fn answered(
        &mut self,
        (operation, block): (&Operation<'_>, &[u8]),
        (seen, durability): (&Seen, Durability),
        durable: u64,
        (now, flushes): (&Now, Flushes),
    ) -> Result<bool, String> {
        let key = key_number(operation.key.bytes());
        let Model { items, has_leased, .. } = &self.model;
        let (before, had_leased) = (items[key].clone(), *has_leased);
        self.model.epoch = flushes.epoch;
        let expected = self.apply(operation, block, now);
        let has_agreed = self.agrees(&expected, seen);
        if !has_agreed && is_refusal(&operation.verb, seen.verdict) {
            (self.model.items[key], self.model.has_leased) = (before, had_leased);
            return Ok(true);
        }
        if !has_agreed {
            return Err(format!("O1: {seen:?} for {operation:?} instead of {expected:?}"));
        }
        let last = self.last_of(|_| true);
        match (self.model.has_changed, durability) {
            (true, Durability::At(sequence)) if sequence.0 > last => {
                let item = self.model.items[key].clone();
                self.changes.push(Change { sequence: sequence.0, key, item });
            }
            (true, _) => {
                let what = format!("{durability:?} after {last}");
                return Err(format!("O2: {seen:?} for {operation:?} is {what}"));
            }
            (false, Durability::At(sequence))
                if sequence.0 >= self.last_of(|change| change.key == key) => {}
            (false, Durability::Now) if durable >= self.last_of(|change| change.key == key) => {}
            (false, _) => return Err(format!("O2: a read of key {key} is {durability:?}")),
        }
        Ok(false)
    }

    /// The number of changes since the start.
    pub(crate) fn changes(&self) -> usize {
        self.changes.len()
    }

    /// The sequence of the last change of a kind; 0 if there is none.
    fn last_of(&self, is_meant: impl Fn(&Change) -> bool) -> u64 {
        self.changes.iter().rev().find(|change| is_meant(change)).map_or(0, |last| last.sequence)
    }

    fn apply(&mut self, operation: &Operation<'_>, block: &[u8], now: &Now) -> Seen {
        self.model.has_changed = false;
        let mut block = match &operation.verb {
            Verb::Store(_) => Block::Bytes(block),
            _ => Block::None,
        };
        let applied = apply(&mut self.model, operation, &mut block, now);
        let outcome = applied.expect("the model waits for nothing");
        let value = match outcome.value {
            Value::None => None,
            Value::Inline(value) => Some(value.to_vec()),
            Value::Pinned { pinned, .. } => Some(pinned.to_vec()),
        };
        Seen { verdict: outcome.verdict, value }
    }

    /// Whether two answers are the same. The model learns a token that it does not know.
    fn agrees(&mut self, expected: &Seen, seen: &Seen) -> bool {
        let (expected_verdict, token) = without_token(expected.verdict);
        let (seen_verdict, seen_token) = without_token(seen.verdict);
        let is_same = (expected_verdict, &expected.value) == (seen_verdict, &seen.value);
        is_same
            && match (token, seen_token) {
                (Some(token), Some(seen)) => self.model.tokens.learn(token, seen),
                (token, seen) => token == seen,
            }
    }

    /// Whether a read must show what it has found of a key, if the key's item is this one.
    fn is_shown(
        &self,
        key: usize,
        item: Option<&Item>,
        found: Option<&Found>,
        unix_s: i64,
    ) -> bool {
        let item = item.filter(|item| !item.remnant && self.model.is_live(key, item, unix_s));
        let (Some(item), Some(found)) = (item, found) else {
            return item.is_none() && found.is_none();
        };
        let token = item.token;
        let expected = Found {
            value: item.value.to_vec(),
            client_flags: item.client_flags,
            token: found.token,
            expiry_unix_s: item.expiry_unix_s.into(),
            stale: item.stale,
            win_sent: item.win_sent,
            protocol_mark: item.protocol_mark,
        };
        expected == *found && self.model.tokens.may_be(token, found.token)
    }

    /// The numbers of changes after which the items are those that a start has found (O3), if all
    /// changes up to the sequence `acknowledged` must be there.
    pub(crate) fn fits(
        &mut self,
        found: &[Option<Found>],
        acknowledged: u64,
        unix_s: i64,
        epoch: u32,
    ) -> Result<Vec<usize>, String> {
        self.model.epoch = epoch;
        let least = self.changes.iter().filter(|change| change.sequence <= acknowledged).count();
        let mut state = self.base.clone();
        let is_wrong = |item: &Option<Item>, key: usize| {
            !self.is_shown(key, item.as_ref(), found[key].as_ref(), unix_s)
        };
        let mut wrong: BTreeSet<_> =
            (0..state.len()).filter(|&key| is_wrong(&state[key], key)).collect();
        let (mut fits, mut earlier) = (Vec::new(), None);
        for count in 0..=self.changes.len() {
            if let Some(Change { key, item, .. }) = count.checked_sub(1).map(|at| &self.changes[at])
            {
                state[*key].clone_from(item);
                if is_wrong(item, *key) {
                    wrong.insert(*key);
                } else {
                    wrong.remove(key);
                }
            }
            if wrong.is_empty() && count >= least {
                fits.push(count);
            } else if wrong.is_empty() {
                earlier = Some(count);
            }
        }
        if !fits.is_empty() {
            return Ok(fits);
        }
        let all = self.changes.len();
        if let Some(earlier) = earlier {
            return Err(format!("O3: {earlier} of {all} changes are there, not {least} at least"));
        }
        let show = |item: Option<&Item>| {
            item.map(|item| {
                let mut item = item.clone();
                item.token = self.model.tokens.known(item.token);
                std::rc::Rc::make_mut(&mut item.value).truncate(20);
                item
            })
        };
        let keys = wrong.iter().take(5).map(|&key| {
            let found = found[key].as_ref().map(|found| {
                let value = found.value[..found.value.len().min(20)].to_vec();
                Found { value, ..found.clone() }
            });
            let (first, last) = (show(self.base[key].as_ref()), show(state[key].as_ref()));
            format!("\nkey {key}: {found:?}, at the start {first:?}, at the end {last:?}")
        });
        let keys: String = keys.collect();
        Err(format!("O3: after none of {all} changes, {least} acknowledged, all is so:{keys}"))
    }

    /// The item of a key after a number of changes.
    fn item_after(&self, count: usize, key: usize) -> Option<&Item> {
        match self.changes[..count].iter().rev().find(|change| change.key == key) {
            Some(change) => change.item.as_ref(),
            None => self.base[key].as_ref(),
        }
    }

    /// The keys that may have a remnant after one of these numbers of changes. Only a lease shows
    /// it.
    pub(crate) fn hidden(&self, fits: &[usize]) -> Vec<usize> {
        let is_hidden = |&key: &usize| {
            fits.iter().any(|&count| self.item_after(count, key).is_some_and(|item| item.remnant))
        };
        (0..self.base.len()).filter(is_hidden).collect()
    }

    /// Whether a lease on a key may be answered like this after a number of changes.
    pub(crate) fn is_lease_right(
        &self,
        count: usize,
        key: usize,
        seen: &Seen,
        unix_s: i64,
    ) -> bool {
        let Verdict::Leased { token, client_flags } = seen.verdict else {
            // Only an item that is not stale is a hit, and `fits` has compared it.
            return !self
                .item_after(count, key)
                .is_some_and(|item| item.remnant && self.model.is_live(key, item, unix_s));
        };
        let tokens = &self.model.tokens;
        let is_live = |item: &&Item| self.model.is_live(key, item, unix_s);
        match self.item_after(count, key).filter(is_live) {
            None => {
                let value = seen.value.as_ref().is_none_or(|value| value.is_empty());
                value && client_flags == 0 && token.is_some_and(|token| tokens.is_new(token))
            }
            Some(item) => {
                client_flags == item.client_flags
                    && seen.value.as_ref() == Some(&*item.value)
                    && match token {
                        Some(token) => !item.win_sent && tokens.may_be(item.token, token),
                        None => item.win_sent,
                    }
            }
        }
    }

    /// The engine goes on after a number of changes, with the items that a start has found.
    pub(crate) fn go_on(&mut self, count: usize, found: &[Option<Found>], seconds: KeptSeconds) {
        self.model.items =
            (0..self.base.len()).map(|key| self.item_after(count, key).cloned()).collect();
        for (item, found) in self.model.items.iter().zip(found) {
            if let (Some(item), Some(found)) = (item, found) {
                assert!(self.model.tokens.learn(item.token, found.token), "O3: it was compared");
            }
        }
        (self.model.has_leased, self.model.seconds) = (false, seconds);
        self.base.clone_from(&self.model.items);
        self.changes.clear();
    }
}
