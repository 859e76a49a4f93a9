//! The operations that an engine executes, independent of any protocol.
//!
//! Upstream:   `wire` makes operations of requests; an embedding program makes its own.
//! Downstream: `verb` decides what each operation does.

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
    /// Reads the whole value and its client flags.
    pub const fn get(key: Key<'o>) -> Self {
        Self { key, verb: Verb::Get(GetTerms::VALUE) }
    }

    /// Stores a value of `value_bytes` bytes, whether or not there is an item.
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

/// What an operation needs of the item under its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// Only where it is: a plain `set` replaces whatever is there, so it never waits for a read.
    Place,
    /// What is known about it, except its value.
    Facts,
    /// Its value, too.
    Value,
}

impl Verb {
    /// What the operation needs of the item under its key.
    #[inline]
    pub const fn needed(&self) -> Needed {
        match self {
            Self::Get(terms) => terms.needed(),
            Self::Store(terms) if terms.removes_when_refused() => Needed::Place,
            Self::Store(StoreTerms { mode: StoreMode::Append | StoreMode::Prepend, .. })
            | Self::Arithmetic(_) => Needed::Value,
            Self::Store(_) | Self::Delete(_) | Self::Touch(_) | Self::Inspect => Needed::Facts,
        }
    }
}

/// The kind of an operation, and its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read an item (`get`, `gat`, `mg`, `lease-get`).
    Get(GetTerms),
    /// Store a value (`set`, `add`, `replace`, `append`, `prepend`, `cas`, `ms`, `lease-set`).
    Store(StoreTerms),
    /// Remove or invalidate an item (`delete`, `md`).
    Delete(DeleteTerms),
    /// Change a number (`incr`, `decr`, `ma`).
    Arithmetic(ArithmeticTerms),
    /// Change the expiry (`touch`).
    Touch(Ttl),
    /// Return all that is known about an item (`me`).
    Inspect,
}

/// The terms of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetTerms {
    /// What happens to the item's life.
    pub life: LifeTerms,
    /// The CAS token of an item that is created. `None` for the engine's next token.
    pub new_cas: Option<u64>,
    /// Whether the value is wanted.
    pub value: ValueWanted,
    /// Bytes of the longest value that is lent. A longer value is pinned.
    pub value_bytes_max: usize,
    /// Whether the item counts as read.
    pub notes_access: bool,
    /// Whether this read may win the right to refill a stale item.
    pub may_win: bool,
    /// Whether a miss gives the client a lease (`lease-get`). A stale item is a miss then.
    pub leases: bool,
    /// The facts that are wanted; [`ValueWanted::UnlessCas`] needs the CAS token among them.
    pub wanted: Wanted,
}

impl GetTerms {
    /// The terms of a read of the whole value and the client flags.
    pub const VALUE: Self = Self {
        life: LifeTerms::NONE,
        new_cas: None,
        value: ValueWanted::Yes,
        value_bytes_max: usize::MAX,
        notes_access: true,
        may_win: false,
        leases: false,
        wanted: Wanted::CLIENT_FLAGS,
    };

    /// What the read needs of the item.
    #[inline]
    pub const fn needed(&self) -> Needed {
        if matches!(self.value, ValueWanted::No) { Needed::Facts } else { Needed::Value }
    }
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
    /// If the item has less life left than this, one client wins the right to refill it (`R`).
    Recache(Ttl),
}

/// The steps that change the life of an item, in the client's order. If there are both `Touch` and
/// `Vivify`, the later one counts. `Recache` sees the result of the steps before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifeTerms {
    steps: [Option<LifeStep>; 3],
}

impl LifeTerms {
    /// Nothing happens to the life of the item.
    pub const NONE: Self = Self { steps: [None; 3] };

    /// The item gets this TTL, if there is one.
    pub const fn touch(ttl: Option<Ttl>) -> Self {
        let first = match ttl {
            Some(ttl) => Some(LifeStep::Touch(ttl)),
            None => None,
        };
        Self { steps: [first, None, None] }
    }

    /// Adds a step after the others.
    ///
    /// Panics: on a fourth step. Each kind of step occurs at most once in a request.
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

/// The condition for storing a value, and where the value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// In any case.
    Set,
    /// Only if there is no item.
    Add,
    /// Only if there is an item.
    Replace,
    /// After the item's value.
    Append,
    /// Before the item's value.
    Prepend,
    /// Only for the holder of the lease, whose token is `compare_cas` (`lease-set`).
    Lease,
}

/// The terms of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreTerms {
    /// The condition for storing the value.
    pub mode: StoreMode,
    /// Bytes of the value in the block.
    pub value_bytes: usize,
    /// The client flags.
    pub client_flags: u32,
    /// The TTL. Appending keeps the TTL of the item.
    pub ttl: Ttl,
    /// The CAS token that must match. A `set` or `replace` with a token stores only if there is an
    /// item with this token.
    pub compare_cas: Option<u64>,
    /// The CAS token that the item gets. `None` for the engine's next token.
    pub new_cas: Option<u64>,
    /// Whether the value is stored as stale if `compare_cas` is older than the token of the item.
    pub stores_stale: bool,
    /// The protocol's mark: see [`crate::ItemView::protocol_mark`].
    pub protocol_mark: bool,
    /// The TTL of an item that appending creates if there is none. `None` if it creates no item.
    pub vivify: Option<Ttl>,
}

/// The terms of a delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteTerms {
    /// The CAS token that must match.
    pub compare_cas: Option<u64>,
    /// Whether the item stays, without its value and its client flags.
    pub empties: bool,
    /// Whether the item stays and becomes stale. One client then wins the right to refill it.
    pub marks_stale: bool,
    /// The TTL of an item that stays.
    pub ttl: Option<Ttl>,
    /// The CAS token of an item that stays.
    pub new_cas: Option<u64>,
    /// The client flags of an item that is emptied.
    pub client_flags: u32,
}

/// The direction in which a number is changed.
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
    /// The direction.
    pub direction: Direction,
    /// The amount that is added or subtracted.
    pub delta: u64,
    /// The value of a number that is created.
    pub initial: u64,
    /// The CAS token that must match; 0 matches every token, as in memcached.
    pub compare_cas: Option<u64>,
    /// The CAS token that the item gets.
    pub new_cas: Option<u64>,
    /// What happens to the item's life.
    pub life: LifeTerms,
}

/// Identifies what an engine fetches for an operation that it could not execute at once. A ticket
/// cannot be copied, because it is used once (`contract`, I2).
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

impl Ticket {
    /// The ticket of each operation that waits for room on its way. Such an operation is executed
    /// again from its beginning, so the engine keeps nothing for it, and these tickets need not
    /// differ. [`crate::Engine::await_room`] tells when to do so. An engine whose room comes with
    /// the completion of an operation on a file names this ticket as ready then.
    pub const ROOM: Self = Self(0);
}

/// The value that comes with a store.
#[derive(Debug)]
pub enum Block<'b, U> {
    /// The operation brings no value.
    None,
    /// A small value, which is lent. The engine copies it.
    Bytes(&'b [u8]),
    /// A large value that is already in the memory where it will be stored.
    Upload(U),
}
