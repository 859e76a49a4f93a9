//! What an engine is asked to do, without a word of any protocol.
//!
//! Upstream:   `wire` makes operations of requests; an embedding program makes its own.
//! Downstream: `verb` decides what each means.

use crate::item::Wanted;
use crate::key::Key;
use crate::time::Ttl;

/// One operation on one key.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'o> {
    /// The key.
    pub key: Key<'o>,
    /// What to do.
    pub verb: Verb,
}

impl<'o> Operation<'o> {
    /// Reads the value, whole, and its client flags.
    pub const fn get(key: Key<'o>) -> Self {
        Self { key, verb: Verb::Get(GetTerms::VALUE) }
    }

    /// Stores a value of `value_bytes` bytes, whatever is there.
    pub const fn set(key: Key<'o>, value_bytes: usize, ttl: Ttl) -> Self {
        let terms = StoreTerms {
            mode: StoreMode::Set,
            value_bytes,
            client_flags: 0,
            ttl,
            compare_cas: None,
            new_cas: None,
            stores_stale: false,
            protocol_mark: false,
            vivify: None,
        };
        Self { key, verb: Verb::Store(terms) }
    }

    /// Removes an item.
    pub fn delete(key: Key<'o>) -> Self {
        Self { key, verb: Verb::Delete(DeleteTerms::default()) }
    }
}

/// What to do, and on which terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read an item (`get`, `gat`, `mg`).
    Get(GetTerms),
    /// Store a value (`set`, `add`, `replace`, `append`, `prepend`, `cas`, `ms`).
    Store(StoreTerms),
    /// Remove or invalidate an item (`delete`, `md`).
    Delete(DeleteTerms),
    /// Change a number (`incr`, `decr`, `ma`).
    Arithmetic(ArithmeticTerms),
    /// Change the expiry (`touch`).
    Touch(Ttl),
    /// Tell all that is known of an item (`me`).
    Inspect,
}

/// The terms of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetTerms {
    /// What happens to the item's life.
    pub life: LifeTerms,
    /// The CAS token of an item that is created; `None`: the engine's next one.
    pub new_cas: Option<u64>,
    /// Whether the value is wanted.
    pub value: ValueWanted,
    /// Bytes of the longest value that is lent; a longer one is pinned.
    pub value_bytes_max: usize,
    /// Whether the item counts as read.
    pub notes_access: bool,
    /// Whether this read may win the right to refill a stale item.
    pub may_win: bool,
    /// The facts that are wanted; [`ValueWanted::UnlessCas`] needs the CAS token among them.
    pub wanted: Wanted,
}

impl GetTerms {
    /// The value, whole, and the client flags.
    pub const VALUE: Self = Self {
        life: LifeTerms::NONE,
        new_cas: None,
        value: ValueWanted::Yes,
        value_bytes_max: usize::MAX,
        notes_access: true,
        may_win: false,
        wanted: Wanted::CLIENT_FLAGS,
    };
}

/// Whether a read wants the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueWanted {
    /// No.
    No,
    /// Yes.
    Yes,
    /// Yes, unless the item still has this CAS token.
    UnlessCas(u64),
}

impl ValueWanted {
    /// Whether the value of an item with this token is wanted.
    #[inline]
    pub const fn is_wanted_at(self, cas: u64) -> bool {
        match self {
            Self::No => false,
            Self::Yes => true,
            Self::UnlessCas(token) => token != cas,
        }
    }
}

/// One thing that happens to the life of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeStep {
    /// The item gets this TTL (`T`, `gat`).
    Touch(Ttl),
    /// A missing item is created with this TTL (`N`).
    Vivify(Ttl),
    /// An item with less life left than this invites one client to refill it (`R`).
    Recache(Ttl),
}

/// What happens to the life of an item, in the order in which the client wrote it: the later of
/// `Touch` and `Vivify` holds, and `Recache` looks at what the steps before it left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifeTerms {
    steps: [Option<LifeStep>; 3],
}

impl LifeTerms {
    /// Nothing happens to it.
    pub const NONE: Self = Self { steps: [None; 3] };

    /// The item gets this TTL, if there is one.
    pub const fn touch(ttl: Option<Ttl>) -> Self {
        let first = match ttl {
            Some(ttl) => Some(LifeStep::Touch(ttl)),
            None => None,
        };
        Self { steps: [first, None, None] }
    }

    /// Adds a step behind the others.
    ///
    /// Panics: on a fourth step. Each kind stands at most once in a request.
    pub fn push(&mut self, step: LifeStep) {
        let place = self.steps.iter_mut().find(|place| place.is_none());
        *place.expect("each kind of step stands once") = Some(step);
    }

    /// The steps, in order.
    pub fn steps(&self) -> impl Iterator<Item = LifeStep> {
        self.steps.into_iter().flatten()
    }

    /// Whether there is no step.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.steps[0].is_none()
    }

    /// Whether the item gets a new TTL.
    pub fn touches(&self) -> bool {
        self.steps().any(|step| matches!(step, LifeStep::Touch(_)))
    }

    /// The TTL with which a missing item is created.
    #[inline]
    pub fn vivify(&self) -> Option<Ttl> {
        self.steps().find_map(|step| match step {
            LifeStep::Vivify(ttl) => Some(ttl),
            LifeStep::Touch(_) | LifeStep::Recache(_) => None,
        })
    }
}

/// On what condition a value is stored, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// In any case.
    Set,
    /// Only where no item is.
    Add,
    /// Only where an item is.
    Replace,
    /// Behind the item's value.
    Append,
    /// Before the item's value.
    Prepend,
}

/// The terms of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreTerms {
    /// On what condition.
    pub mode: StoreMode,
    /// Bytes of the value in the block: the block's own length.
    pub value_bytes: usize,
    /// The client flags.
    pub client_flags: u32,
    /// The TTL; appending keeps the item's.
    pub ttl: Ttl,
    /// The CAS token that must match. A `set` or `replace` with a token stores only where an item
    /// with this token is.
    pub compare_cas: Option<u64>,
    /// The CAS token that the item gets; `None`: the engine's next one.
    pub new_cas: Option<u64>,
    /// Whether a token older than the item's stores the value as stale.
    pub stores_stale: bool,
    /// The protocol's mark: see [`crate::ItemView::protocol_mark`].
    pub protocol_mark: bool,
    /// The TTL of an item that appending creates where none is; `None`: it creates none.
    pub vivify: Option<Ttl>,
}

/// The terms of a delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteTerms {
    /// The CAS token that must match.
    pub compare_cas: Option<u64>,
    /// The item stays, without its value and its client flags.
    pub empties: bool,
    /// The item stays, and is stale: one client is invited to refill it.
    pub marks_stale: bool,
    /// The TTL of an item that stays.
    pub ttl: Option<Ttl>,
    /// The CAS token of an item that stays.
    pub new_cas: Option<u64>,
    /// The client flags of an item that is emptied.
    pub client_flags: u32,
}

/// Which way a number is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Adds, modulo 2^64.
    Up,
    /// Subtracts, not below 0.
    Down,
}

/// The terms of a change to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArithmeticTerms {
    /// Which way.
    pub direction: Direction,
    /// By how much.
    pub delta: u64,
    /// What a number that is created begins with.
    pub initial: u64,
    /// The CAS token that must match; 0 matches every token, as in memcached.
    pub compare_cas: Option<u64>,
    /// The CAS token that the item gets.
    pub new_cas: Option<u64>,
    /// What happens to the item's life.
    pub life: LifeTerms,
}

/// The value that comes with a store.
#[derive(Debug)]
pub enum Block<'b, U> {
    /// The operation brings no value.
    None,
    /// A small value: lent, to be copied.
    Bytes(&'b [u8]),
    /// A large value that already lies where it will stay.
    Upload(U),
}
