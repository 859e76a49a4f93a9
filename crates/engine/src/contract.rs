//! What a shard asks of its engine: the whole contract.
//!
//! Upstream:   `shard` owns one engine and calls it from one thread.
//! Downstream: `cache` implements it over its [`crate::Primitives`]; the simulation implements it
//!             by an engine that delays a part of its answers.
//!
//! ```text
//!              +--> Done(outcome, Now)      executed: the reply may leave
//! execute -----+--> Done(outcome, At(n))    executed: the reply waits until `durable` reaches n
//!              +--> Later(ticket)           nothing changed, nothing taken
//!                     `--> is_ready(ticket), then execute again with the ticket
//! ```
//!
//! Invariants:
//! - I1  An operation that is answered by [`Answer::Later`] has changed nothing, and its block is
//!   untouched. The engine keeps what the ticket fetched until the operation is applied again.
//! - I2  A ticket is used exactly once, after [`Engine::is_ready`] said so. A client that leaves
//!   changes nothing about that: its operation is applied all the same.
//! - I3  [`Engine::durable`] never goes back. An accepted write stands whether its client is still
//!   there or not.

use kachel_stdx::{Held, Landing};

use crate::change::NoRoom;
use crate::change_list::Changed;
use crate::item::ItemView;
use crate::key::Key;
use crate::operation::{Block, GetTerms, Operation};
use crate::options::EngineOptions;
use crate::outcome::Outcome;
use crate::stats::EngineStats;
use crate::time::Now;

/// Operations that are prefetched together, at most.
pub const BATCH_MAX: usize = 32;
/// Bytes of the longest value that comes as [`Block::Bytes`]; a longer one comes as an upload. One
/// less than 16 KiB, from which on values are pinned while they are sent.
pub const INLINE_VALUE_BYTES_MAX: usize = 16 * 1024 - 1;

/// What an engine answers to an operation.
#[derive(Debug)]
pub enum Answer<'e, P> {
    /// The operation was executed.
    Done(Outcome<'e, P>, Durability),
    /// The operation was not executed, and nothing was changed (I1).
    Later(Ticket),
}

/// When the outcome of an operation is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Now, or the engine promises nothing.
    Now,
    /// When the engine's durable sequence reaches this number.
    At(Sequence),
}

/// A number that an engine gives to its changes, in the order in which they become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence(pub u64);

/// What an engine fetches for an operation that it could not execute at once. Not to be copied: it
/// is used once (I2).
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// The lookup that an operation of a batch will make.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    /// The key's secret hash.
    pub secret_hash: u64,
    /// Whether the value is read, too.
    pub value: bool,
}

/// How far a walk over all items has come. A walk begins with [`Self::default`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

impl Cursor {
    /// The cursor that [`Self::to_u64`] gave as a number.
    #[must_use]
    pub const fn from_u64(word: u64) -> Self {
        debug_assert!(word >> 63 == 0, "the highest bit of a cursor is never set");
        Self(word)
    }

    /// The cursor as a number. The highest bit is never set.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }
}

/// What one step of a walk did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkStep {
    /// Items that were looked at, dead ones too.
    pub items: usize,
    /// Whether there are more.
    pub more: bool,
}

/// A large value while it is received: into the memory that it will stay in.
pub trait ReceiveValue {
    /// Adds bytes behind those that have come. Cost: a copy.
    ///
    /// Errors: there is no memory for them now, and nothing was added.
    fn write(&mut self, bytes: &[u8]) -> Result<(), NoRoom>;

    /// Bytes that [`Self::landing`] would lend, of at most `blocks_max` blocks of the engine.
    fn landing_bytes(&self, blocks_max: usize) -> usize;

    /// Lends memory for the next bytes, so that the kernel writes them to their place.
    ///
    /// Errors: there is no memory now, and nothing was lent.
    fn landing(&mut self, landing: &mut Landing, blocks_max: usize) -> Result<(), NoRoom>;

    /// Takes a landing back, of which `bytes` were written. Returns how many of them are the
    /// value's; the others came behind it.
    fn landed(&mut self, landing: &mut Landing, bytes: usize) -> usize;
}

/// A large value that stays readable while the item is replaced or removed.
pub trait ReadValue {
    /// Bytes of the value.
    fn total_bytes(&self) -> usize;

    /// The bytes from `offset` to the end of the piece they lie in; empty only at the end.
    fn piece_at(&self, offset: usize) -> &[u8];

    /// The same bytes, held where they lie.
    fn hold_at(&self, offset: usize) -> Held;
}

/// An engine as a shard sees it.
///
/// Every method returns soon: none waits for a disk, a lock or a network. An engine that has to
/// wait says [`Answer::Later`].
pub trait Engine {
    /// Whether this engine may answer [`Answer::Later`] or [`Durability::At`]. Where it never does,
    /// a shard compiles nothing for it into the request path.
    const DELAYS: bool;

    /// A large value while it is received.
    type Upload: ReceiveValue;
    /// A handle by which a large value is read later.
    type Pinned: ReadValue;

    /// How the engine behaves.
    fn options(&self) -> &EngineOptions;

    /// Fetches what a batch of at most [`BATCH_MAX`] operations is about to look up.
    fn prefetch(&self, batch: impl Iterator<Item = Lookup> + Clone);

    /// Executes an operation, or says when to try again. `block` is the whole value that comes with
    /// a store; the engine takes an upload out of it when it stores it, and leaves it there
    /// otherwise. `ticket` is what an earlier call for the same operation gave.
    fn execute<'e>(
        &'e mut self,
        operation: &Operation<'_>,
        block: &mut Block<'_, Self::Upload>,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, Self::Pinned>;

    /// Executes a read: [`Self::execute`] for [`crate::Verb::Get`], apart so that a read costs no
    /// more than it must.
    fn read<'e>(
        &'e mut self,
        key: &Key<'_>,
        terms: &GetTerms,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, Self::Pinned>;

    /// Takes note of what was fetched or became durable; called once a tick.
    fn poll(&mut self) {}

    /// Whether the operation of this ticket can be applied again (I2).
    fn is_ready(&self, ticket: &Ticket) -> bool;

    /// The sequence up to which all changes are durable (I3).
    fn durable(&self) -> Sequence;

    /// Begins to receive a large value; `None`: it is larger than all memory.
    fn begin_upload(&self, value_bytes: usize) -> Option<Self::Upload>;

    /// An empty landing for uploads of this engine. Cost: one allocation.
    fn spare_landing(&self) -> Landing;

    /// Frees memory for a piece of a large value. `false`: there is none left to free.
    fn make_upload_room(&mut self, bytes: usize, now: &Now) -> bool;

    /// Gives memory back to the process's budget. `false`: there is none left to give.
    fn make_room(&mut self, bytes: u64, now: &Now) -> bool;

    /// Kills everything stored so far, in all engines of the process at once.
    fn flush(&mut self, now: &Now);

    /// Kills in the second `due` everything stored until then, in all engines of the process. A
    /// later call takes the place of a pending one.
    fn flush_in(&mut self, due: u32, now: &Now);

    /// Takes note of what any engine of the process has flushed; called when a tick begins.
    fn note_flush(&mut self, now: &Now);

    /// Records from now on which keys change, for [`Self::take_changes`]. Until it is called, no
    /// change is recorded. Cost: one allocation.
    fn record_changes(&mut self);

    /// Reports which keys changed since the last call: keys that were stored, removed, evicted or
    /// found expired, and keys with a new expiry. The first call reports [`Changed::All`]. A
    /// flush is reported when this engine notes it ([`Self::note_flush`]).
    ///
    /// A shard calls it before it acknowledges what it executed, so that no copy outlives that.
    fn take_changes(&mut self, tell: impl FnMut(Changed));

    /// A bounded step of upkeep. Returns the work done; 0: there is none for now.
    fn maintain(&mut self, now: &Now) -> usize;

    /// Shows living items to `show`, from the cursor on, until `show` returns `false` or
    /// `items_max` items were looked at. An item for which `show` returns `false` counts as shown.
    /// An item that moves meanwhile may be shown twice or not at
    /// all.
    fn walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep;

    /// The most memory that all engines of the process may ever use, in bytes.
    fn bytes_max(&self) -> u64;

    /// Bytes of large values that are pinned, in the whole process.
    fn pinned_bytes(&self) -> u64;

    /// What the engine holds, and what it has done since its start. Cost: a few loads.
    fn stats(&self) -> EngineStats;
}
