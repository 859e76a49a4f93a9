//! Requests by the size class of their item, for `stats slabs`.
//!
//! Upstream:   `apply` and `beside`, for the first requests of each tick.
//! Downstream: `process` adds the counts of all shards up.
//!
//! To find the class of each item would cost each request 2 %. So a core counts at most
//! `CLASSED_PER_TICK_MAX` requests of a tick by class. Where it executes more, these are a sample,
//! and `stats` scales it up to the number of all requests.
//!
//! Invariants:
//! - B1  A request counts in at most one class, and at most once.

use kachel_engine::{
    Answer, Direction, Engine, Facts, GetTerms, Key, Now, Operation, Outcome, ValueWanted, Verb,
    Verdict, Wanted,
};
use kachel_stdx::{Counter, SizeClasses};

use crate::sizes::Sizes;

/// The requests of one tick that are counted by class.
pub const CLASSED_PER_TICK_MAX: u32 = 2;

macro_rules! class_counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Requests that found or stored an item of one size class.
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub struct ClassCounters {
            $($(#[$doc])* pub $name: Counter,)+
        }

        impl ClassCounters {
            fn copy_from(&self, from: &Self) {
                $(self.$name.set(from.$name.value());)+
            }
        }
    };
}

class_counters! {
    /// Keys found.
    get_hits,
    /// Storage requests.
    cmd_set,
    /// Deletes that removed an item.
    delete_hits,
    /// `incr` requests that found an item.
    incr_hits,
    /// `decr` requests that found an item.
    decr_hits,
    /// `cas` requests whose token matched.
    cas_hits,
    /// `cas` requests whose token did not match.
    cas_badval,
    /// Touches that found an item.
    touch_hits,
    /// Values refused because there was no memory.
    store_no_memory,
}

/// The counters of each size class.
#[derive(Debug)]
pub struct ByClass([ClassCounters; SizeClasses::MAX]);

impl Default for ByClass {
    fn default() -> Self {
        Self(std::array::from_fn(|_| ClassCounters::default()))
    }
}

/// An item that a read has found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'k> {
    /// Its key.
    pub key: &'k [u8],
    /// The length of its value.
    pub value_bytes: usize,
    /// Its client flags.
    pub client_flags: u32,
}

/// Whether only the item that is there before the operation tells its class.
pub const fn tells_no_lengths(verb: &Verb) -> bool {
    matches!(verb, Verb::Delete(_) | Verb::Touch(_) | Verb::Arithmetic(_))
}

/// The item of a request before the request is executed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ItemBefore {
    /// Whether there is an item, as far as that was looked up.
    pub is_there: bool,
    /// Its size class; 0 if there is none.
    pub class: u8,
    /// The length of its value.
    pub value_bytes: usize,
    /// Seconds of life left; `None` if it never expires.
    pub ttl_s: Option<u32>,
}

/// The item under `key`, as far as it is in memory. Cost: a lookup.
#[cold]
pub fn look_before<E: Engine>(
    engine: &mut E,
    key: &Key<'_>,
    sizes: &Sizes,
    now: &Now,
) -> ItemBefore {
    let wanted = Wanted::VALUE_BYTES.with(Wanted::CLIENT_FLAGS).with(Wanted::TTL);
    let (value, notes_access) = (ValueWanted::No, false);
    let terms = GetTerms { value, notes_access, wanted, ..GetTerms::VALUE };
    let ticket = match engine.read(key, &terms, None, now) {
        Answer::Done(Outcome { verdict: Verdict::Hit(facts), .. }, _) => {
            let Facts { value_bytes, client_flags, ttl_before, .. } = facts;
            let class = sizes.of(key.bytes().len(), value_bytes, client_flags);
            debug_assert!(class > 0, "an item has a class");
            let ttl_s = ttl_before.and_then(|ttl| u32::try_from(ttl).ok());
            return ItemBefore { is_there: true, class, value_bytes, ttl_s };
        }
        Answer::Done(..) => return ItemBefore::default(),
        Answer::Later(ticket) => ticket,
    };
    engine.forget(ticket); // What is not in memory is not fetched to be counted.
    ItemBefore::default()
}

impl ByClass {
    /// The counters of a class.
    pub fn of(&self, class: u8) -> &ClassCounters {
        debug_assert!(usize::from(class) < SizeClasses::MAX, "a class of the engine");
        &self.0[usize::from(class) % SizeClasses::MAX]
    }

    pub(crate) fn copy_counts_from(&self, from: &Self) {
        for (to, from) in self.0.iter().zip(&from.0) {
            to.copy_from(from);
        }
    }

    /// Counts an operation by its verdict (B1). `value_bytes` are those of the value in the
    /// outcome, if it has one; `class_before` is that of [`look_before`].
    #[cold]
    pub fn note(
        &self,
        Operation { key, verb }: &Operation<'_>,
        verdict: &Verdict,
        value_bytes: Option<usize>,
        class_before: u8,
        sizes: &Sizes,
    ) {
        let found = self.of(class_before);
        debug_assert!(class_before == 0 || tells_no_lengths(verb), "B1: one class");
        match (verb, verdict) {
            (Verb::Get(terms), Verdict::Hit(facts)) => {
                let value_bytes = value_bytes.unwrap_or(facts.value_bytes);
                let Facts { client_flags, .. } = *facts;
                let found = Found { key: key.bytes(), value_bytes, client_flags };
                self.note_hit(terms.life.touches(), found, sizes);
            }
            (Verb::Store(terms), _) => {
                let class = sizes.of(key.bytes().len(), terms.value_bytes, terms.client_flags);
                let row = self.of(class);
                let is_refused = matches!(verdict, Verdict::NoMemory { .. } | Verdict::DiskFailed);
                row.cmd_set.add(u64::from(!is_refused));
                match verdict {
                    Verdict::Stored { .. } if terms.needs_match() => row.cas_hits.add(1),
                    Verdict::Exists if terms.needs_match() => row.cas_badval.add(1),
                    Verdict::NoMemory { .. } => row.store_no_memory.add(1),
                    _ => {}
                }
            }
            (Verb::Delete(_), Verdict::Deleted) => found.delete_hits.add(1),
            (Verb::Delete(terms), Verdict::Invalidated) if terms.empties && !terms.marks_stale => {
                found.delete_hits.add(1);
            }
            (Verb::Arithmetic(terms), Verdict::Number { facts, .. }) if !facts.created => {
                match terms.direction {
                    Direction::Up => found.incr_hits.add(1),
                    Direction::Down => found.decr_hits.add(1),
                }
            }
            (Verb::Touch(_), Verdict::Touched) => found.touch_hits.add(1),
            _ => {}
        }
    }

    /// Counts a read that found an item with this key and value, or a read that touched it (B1).
    #[cold]
    pub fn note_hit(&self, touches: bool, found: Found<'_>, sizes: &Sizes) {
        let Found { key, value_bytes, client_flags } = found;
        debug_assert!(!key.is_empty(), "a key has bytes");
        let row = self.of(sizes.of(key.len(), value_bytes, client_flags));
        if touches { row.touch_hits.add(1) } else { row.get_hits.add(1) }
    }
}
