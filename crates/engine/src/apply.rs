//! Applies an operation: find, decide, change, answer.
//!
//! Upstream:   the core that holds the engine, for its own clients and for parked requests.
//! Downstream: an engine's [`Primitives`].

use crate::change::{Change, Decision, Mark, NotYet, Put, PutValue, Refused};
use crate::item::{Facts, ItemView, Wanted};
use crate::key::Key;
use crate::operation::{Block, GetTerms, Needed, Operation, Verb};
use crate::options::EngineOptions;
use crate::outcome::{Outcome, Value, Verdict};
use crate::time::Now;
use crate::verb;

/// The primitives that an engine supplies: to find an item, and to change one.
///
/// A place ([`Self::At`]) is valid until the next `find`, `put` or `remove`. `mark` does not end
/// that.
pub trait Primitives {
    /// Where an item is.
    type At: Copy;
    /// An item, read in place.
    type Item<'e>: ItemView<'e>
    where
        Self: 'e;
    /// A large value that was received into the memory where it will be stored.
    type Upload;
    /// A handle by which a large value is read later.
    type Pinned;

    /// The options of the engine.
    fn options(&self) -> &EngineOptions;

    /// Whether the engine changes nothing any more, because its disk takes no writes. Then
    /// `remove`, `mark` and `put` are not called.
    fn is_read_only(&self) -> bool {
        false
    }

    /// The live item under `key`. An item that has expired or was flushed is not returned.
    ///
    /// Errors: what is `needed` of the item must be fetched first. Nothing was changed.
    fn find(
        &mut self,
        key: &Key<'_>,
        needed: Needed,
        now: &Now,
    ) -> Result<Option<Self::At>, NotYet>;

    /// The item at a place.
    fn item(&self, at: Self::At) -> Self::Item<'_>;

    /// Removes an item.
    fn remove(&mut self, key: &Key<'_>, at: Self::At);

    /// A read is about to give an item new marks.
    ///
    /// Errors: it must be executed again later.
    fn prepare_mark(&mut self) -> Result<(), NotYet> {
        Ok(())
    }

    /// Gives the item under `key` new marks.
    fn mark(&mut self, key: &Key<'_>, at: Self::At, mark: Mark);

    /// Stores an item under `key` in place of `found`. Returns its place.
    ///
    /// An upload is taken out of `block` when it is stored.
    ///
    /// Errors: there is no memory for the item, or not yet. `block` is as it was. The old item
    /// keeps its value, but it may have been moved or evicted meanwhile. So the caller must find it
    /// again.
    fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<Self::At>,
        put: &Put,
        block: &mut Block<'_, Self::Upload>,
        now: &Now,
    ) -> Result<Self::At, Refused>;

    /// Whether the item that was found goes if there is no room for one that would replace it
    /// ([`Put::removes_when_refused`]). An engine that evicts nothing keeps it.
    fn gives_up_refused(&self) -> bool {
        true
    }

    /// Notes that an item was read.
    fn note_access(&self, at: Self::At, now: &Now);

    /// The reply tells how often and when the item was read: counts the reads that were answered
    /// elsewhere.
    fn count_reads(&mut self, at: Self::At) {
        let _all_reads_are_counted = at;
    }

    /// Whether a client has ever asked for a lease. Before that, a delete leaves nothing for them.
    fn has_leased(&self) -> bool;

    /// A handle by which the item's value is read later, even if the item is gone by then.
    fn pin(&self, at: Self::At) -> Self::Pinned;
}

/// Applies an operation. `block` is the whole value that comes with a store. An upload that is not
/// stored stays in it.
///
/// Cost: that of the engine's `find`, and of one change.
/// Errors: room for the item is on its way, or what is needed of the item must be fetched first.
/// Nothing was changed, and the same operation must be applied again later.
#[inline]
pub fn apply<'e, E: Primitives>(
    engine: &'e mut E,
    operation: &Operation<'_>,
    block: &mut Block<'_, E::Upload>,
    now: &Now,
) -> Result<Outcome<'e, E::Pinned>, NotYet> {
    let key = &operation.key;
    debug_assert!(
        !matches!((&operation.verb, &*block), (Verb::Store(terms), Block::Bytes(bytes))
            if bytes.len() != terms.value_bytes),
        "the terms of a store announce the bytes of its block"
    );
    if let Verb::Get(terms) = &operation.verb {
        return get(engine, key, terms, now);
    }
    let found = engine.find(key, operation.verb.needed(), now)?;
    debug_assert!(found.is_none_or(|at| is_live(engine, at, now)), "`find` gives live items");
    let mut decision = {
        let item = found.map(|at| engine.item(at));
        verb::decide(operation, item.as_ref(), engine.options(), now)
    };
    if matches!(decision.change, Change::Remove) && engine.has_leased() {
        leave_for_leases(engine, found, &mut decision, now);
    }
    let at = change(engine, key, found, &mut decision, block, now)?;
    if let Some(at) = at.filter(|_| decision.notes_access) {
        engine.note_access(at, now);
    }
    Ok(Outcome { verdict: decision.verdict, value: Value::None })
}

/// Reads an item, as [`apply`] does for [`Verb::Get`]. It is a function of its own so that a read
/// costs no more than necessary.
///
/// It is always inlined, because terms that the caller knows at compile time then cost nothing.
/// Otherwise they cost a fifth of a tick of GETs.
/// Errors: those of [`apply`]; that room is on its way only where the read would create an item.
#[inline(always)]
pub fn get<'e, E: Primitives>(
    engine: &'e mut E,
    key: &Key<'_>,
    terms: &GetTerms,
    now: &Now,
) -> Result<Outcome<'e, E::Pinned>, NotYet> {
    let found = engine.find(key, terms.needed(), now)?;
    if terms.leases {
        return lease(engine, key, found, terms, now);
    }
    let Some(at) = found.filter(|&at| !engine.item(at).is_remnant()) else {
        return if terms.life.vivify().is_some() {
            create(engine, key, found, terms, now)
        } else {
            Ok(Outcome { verdict: Verdict::Miss, value: Value::None })
        };
    };
    debug_assert!(is_live(engine, at, now), "`find` gives live items");
    if terms.wanted.has(Wanted::ACCESS) {
        engine.count_reads(at);
    }
    let (facts, mark) = verb::get::on_hit(terms, &engine.item(at), now);
    if let Some(mark) = mark {
        if engine.is_read_only() {
            return Ok(Outcome { verdict: Verdict::DiskFailed, value: Value::None });
        }
        engine.prepare_mark()?;
        engine.mark(key, at, mark);
    }
    Ok(read(engine, at, terms, facts, now))
}

/// Reads an item, or takes a lease on its key.
#[cold]
#[inline(never)]
fn lease<'e, E: Primitives>(
    engine: &'e mut E,
    key: &Key<'_>,
    found: Option<E::At>,
    terms: &GetTerms,
    now: &Now,
) -> Result<Outcome<'e, E::Pinned>, NotYet> {
    let mut decision = {
        let item = found.map(|at| engine.item(at));
        verb::lease::get(terms, item.as_ref(), &engine.options().leases, now)
    };
    let at = change_rarely(engine, key, found, &mut decision, now)?;
    let verdict = decision.verdict;
    Ok(match (at, verdict) {
        (Some(at), Verdict::Hit(facts)) => read(engine, at, terms, facts, now),
        (Some(at), Verdict::Leased { token, client_flags }) => {
            let token = token.map(|_| engine.item(at).cas());
            let verdict = Verdict::Leased { token, client_flags };
            Outcome { verdict, value: value(engine, at, terms.value_bytes_max) }
        }
        _ => Outcome { verdict, value: Value::None },
    })
}

/// Creates an item, because none was found, or only a remnant, which it replaces.
#[cold]
#[inline(never)]
fn create<'e, E: Primitives>(
    engine: &'e mut E,
    key: &Key<'_>,
    found: Option<E::At>,
    terms: &GetTerms,
    now: &Now,
) -> Result<Outcome<'e, E::Pinned>, NotYet> {
    let mut decision = verb::get::on_miss(terms, now);
    debug_assert!(decision.is_possible(false), "change, I2: nothing was found");
    let at = change_rarely(engine, key, found, &mut decision, now)?;
    Ok(match (at, decision.verdict) {
        (Some(at), Verdict::Hit(facts)) => read(engine, at, terms, facts, now),
        (_, verdict) => Outcome { verdict, value: Value::None },
    })
}

/// The outcome of a read of the item at a place.
#[inline(always)]
fn read<'e, E: Primitives>(
    engine: &'e E,
    at: E::At,
    terms: &GetTerms,
    facts: Facts,
    now: &Now,
) -> Outcome<'e, E::Pinned> {
    if terms.notes_access {
        engine.note_access(at, now);
    }
    let is_wanted = terms.value.is_wanted_at(facts.cas);
    let value = if is_wanted { value(engine, at, terms.value_bytes_max) } else { Value::None };
    Outcome { verdict: Verdict::Hit(facts), value }
}

/// Whether the item at a place is live in this second.
fn is_live<E: Primitives>(engine: &E, at: E::At, now: &Now) -> bool {
    let expiry = engine.item(at).expiry();
    expiry == 0 || expiry > now.second
}

/// The value at a place: lent if it is short enough, otherwise pinned.
#[inline(always)]
fn value<E: Primitives>(engine: &E, at: E::At, bytes_max: usize) -> Value<'_, E::Pinned> {
    let item = engine.item(at);
    match lent_value(&item, bytes_max) {
        Some(value) => Value::Inline(value),
        None => {
            debug_assert!(item.value_bytes() > 0, "an empty value is lent");
            Value::Pinned { pinned: engine.pin(at), bytes: item.value_bytes() }
        }
    }
}

/// The value of an item if it may be lent: it is in one piece of memory, and has at most
/// `bytes_max` bytes.
#[inline]
pub(crate) fn lent_value<'e>(item: &impl ItemView<'e>, bytes_max: usize) -> Option<&'e [u8]> {
    item.small_value().filter(|value| value.len() <= bytes_max)
}

/// Applies the one change of a decision. Returns where the item is then. If the engine changes
/// nothing any more, or there is no memory for the change, the verdict becomes that.
#[inline]
fn change<E: Primitives>(
    engine: &mut E,
    key: &Key<'_>,
    found: Option<E::At>,
    decision: &mut Decision,
    block: &mut Block<'_, E::Upload>,
    now: &Now,
) -> Result<Option<E::At>, NotYet> {
    if engine.is_read_only() && !matches!(decision.change, Change::None) {
        decision.verdict = Verdict::DiskFailed;
        return Ok(None);
    }
    Ok(match (&decision.change, found) {
        (Change::None, _) => found,
        (Change::Mark(mark), Some(at)) => {
            engine.mark(key, at, *mark);
            found
        }
        (Change::Remove, Some(at)) => {
            engine.remove(key, at);
            None
        }
        (Change::Put(put), _) => match engine.put(key, found, put, block, now) {
            Ok(at) => {
                debug_assert!(is_live(engine, at, now) || put.expiry <= now.second, "it is stored");
                decision.verdict.set_cas(engine.item(at).cas());
                Some(at)
            }
            // A delete does not wait for memory: it leaves nothing then.
            Err(Refused::NotYet) if !(put.remnant && put.removes_when_refused) => {
                return Err(NotYet);
            }
            Err(_) => {
                // Making room may have moved the old item, or evicted it.
                // A delete that can leave nothing for leases is a delete all the same.
                if put.removes_when_refused
                    && (put.remnant || engine.gives_up_refused())
                    && let Some(old) = engine.find(key, Needed::Place, now)?
                {
                    engine.remove(key, old);
                }
                let was_miss = matches!(decision.verdict,
                    Verdict::Number { facts, .. } if facts.created);
                // As in memcached, the old value stays as it is if there is no memory for the
                // longer one.
                decision.verdict = match put.value {
                    PutValue::Unchanged if put.remnant => decision.verdict,
                    PutValue::Joined(_) => Verdict::NotStored,
                    // A stale value is not worth an error.
                    PutValue::Block if put.remnant => Verdict::NotStored,
                    _ => Verdict::NoMemory { found: found.is_some() && !was_miss },
                };
                None
            }
        },
        (Change::Mark(_) | Change::Remove, None) => {
            unreachable!("only an item that was found is marked or removed")
        }
    })
}

/// Makes a delete store what leases need of the item, instead of removing it.
#[cold]
#[inline(never)]
fn leave_for_leases<E: Primitives>(
    engine: &E,
    found: Option<E::At>,
    decision: &mut Decision,
    now: &Now,
) {
    let item = engine.item(found.expect("what is removed was found"));
    if let Some(left) = verb::lease::left_by_delete(&item, &engine.options().leases, now) {
        debug_assert!(left.remnant && left.removes_when_refused, "others see nothing of it");
        decision.change = Change::Put(left);
    }
}

/// Applies a change of an operation that is rare, so that the code is not inlined twice.
#[cold]
#[inline(never)]
fn change_rarely<E: Primitives>(
    engine: &mut E,
    key: &Key<'_>,
    found: Option<E::At>,
    decision: &mut Decision,
    now: &Now,
) -> Result<Option<E::At>, NotYet> {
    debug_assert!(decision.is_possible(found.is_some()), "change, I2");
    change(engine, key, found, decision, &mut Block::None, now)
}
