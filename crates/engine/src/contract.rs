//! The contract between a shard and the engines. A shard calls an engine only through it.
//!
//! Upstream:   `shard`. One core at a time uses an engine; other cores read it through its
//!             [`ReadBeside`].
//! Downstream: `cache`, `flash`, `rocks` and the plain engine of `testkit` implement the contract
//!             over their [`crate::Primitives`]; that of `testkit` that delays wraps another.
//!
//! ```text
//!              +--> Done(outcome, Now)      executed: the reply may be sent
//! execute -----+--> Done(outcome, At(n))    executed: the reply waits until `durable` has
//!              |                            reached n
//!              +--> Later(ticket)           not executed; when the engine has named the ticket as
//!                                           ready, the shard calls execute again with the ticket
//! ```
//!
//! Invariants:
//! - I1  If an engine answers [`Answer::Later`], the operation has changed nothing, and its block
//!   is untouched. The engine keeps what it fetches for the ticket until the operation is executed
//!   again.
//! - I2  The shard uses each ticket exactly once, after the engine has named it as ready
//!   ([`Engine::reach`], [`Engine::complete`]), even if the client has left. Or the shard gives the
//!   ticket back ([`Engine::forget`]). The ticket [`Ticket::ROOM`] may also be dropped.
//! - I3  The sequence of [`Engine::durable`] never decreases. The engine advances it under its
//!   lock, so the core that releases the engine sees the advance and wakes the cores that wait for
//!   it. The engine keeps an accepted write even if its client has left.
//! - I4  A core that reads other engines is registered, awake ([`Common::register_core`]), and
//!   changes no engine while it holds what it read: a value is lent for as long as its round is
//!   borrowed.
//! - I5  An outcome whose sequence is lost ([`DurableWord::is_lost`]) reaches no client. The shard
//!   sends the replies before it and closes the connection, so the client does not know whether
//!   its change was made. A sequence is lost if the disk fails before it is durable.
//! - I6  An engine whose write or sync has failed changes nothing any more. It answers
//!   [`Answer::disk_failed`] to an operation that would change something or depends on what is
//!   lost. Each engine answers the same to an operation whose value the disk cannot read. That
//!   operation may succeed when a client asks again.

use std::fmt;
use std::sync::Arc;

use kachel_stdx::{BytePrefix, DurableWord, Held, Landing, Place, Reader, Sequence, SizeClasses};

use crate::change::NoRoom;
use crate::extensions::{Extensions, Lookup};
use crate::item::ItemView;
use crate::key::Key;
use crate::last_dead::DeadFound;
use crate::miss_model::MissModel;
use crate::operation::{Block, GetTerms, Operation, Ticket, Verb};
use crate::options::EngineOptions;
use crate::outcome::{Outcome, Value, Verdict};
use crate::report::FileReport;
use crate::stats::{ClassStats, EngineStats};
use crate::time::Now;
use crate::walk::{Cursor, WalkStep};

/// Bytes of the longest value that is passed as [`Block::Bytes`]. A longer value is passed as an
/// upload. Values of 16 KiB or more are pinned while they are sent, so this is one byte less.
pub const INLINE_VALUE_BYTES_MAX: usize = 16 * 1024 - 1;

/// The answer of an engine to an operation.
#[derive(Debug)]
pub enum Answer<'e, P> {
    /// The operation was executed.
    Done(Outcome<'e, P>, Durability),
    /// The operation was not executed yet, and nothing was changed (I1). The shard executes it
    /// again with this ticket.
    Later(Ticket),
}

impl<P> Answer<'_, P> {
    /// The answer to an operation that the disk prevents, and that has changed nothing (I6).
    #[must_use]
    pub const fn disk_failed() -> Self {
        let (verdict, value) = (Verdict::DiskFailed, Value::None);
        Self::Done(Outcome { verdict, value }, Durability::Now)
    }
}

/// When the outcome of an operation is durable. A read is durable when the changes are durable that
/// its outcome shows: the store of the item that was found, or the removal that caused a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The outcome is durable now, or the engine does not promise durability.
    Now,
    /// The outcome is durable once [`Engine::durable`] has reached this number, or it is lost (I5).
    At(Sequence),
}

impl Durability {
    /// The durability of a change with this sequence. `Now` if it is durable already: its reply
    /// needs no fence.
    #[must_use]
    pub fn of(sequence: Sequence, durable: &DurableWord) -> Self {
        if durable.has_reached(sequence) { Self::Now } else { Self::At(sequence) }
    }
}

/// Why the items of a prefix are not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixRefused {
    /// So many other prefixes are being flushed: [`kachel_stdx::FLUSHED_PREFIXES_MAX`].
    TooMany,
    /// The engine cannot flush a prefix.
    Unsupported,
    /// The disk takes no changes any more.
    DiskFailed,
}

/// A flush of all items is not kept: the disk takes no changes any more, or could not keep this
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushFailed;

impl fmt::Display for FlushFailed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the disk could not keep the flush")
    }
}

impl std::error::Error for FlushFailed {}

/// The answer to a read of another core's items.
#[derive(Debug)]
pub enum ReadAnswer<'r, P> {
    /// The outcome, as the owner would have given it. Its value is lent, never pinned.
    Done(Outcome<'r, P>, Durability),
    /// Only the owner can execute this read. Nothing was changed and nothing counted.
    AskOwner,
}

/// Reads the items of an engine on any core, while the owner of the engine works. For a batch of
/// reads, [`crate::ReadGuesses::of`] calls the steps that prefetch.
pub trait ReadBeside: Clone + Send + Sync + 'static {
    /// A pinned large value. A reader never pins.
    type Pinned;

    /// Where an item probably is. It may be wrong or out of date by the time of [`Self::read`],
    /// which then costs more and answers the same.
    type Guess: Copy;

    /// The first step of a batch: prefetches the part of the index in which [`Self::guess`] looks.
    /// Cost: no wait.
    fn prefetch(&self, lookup: Lookup) {
        let _nothing_to_prefetch = lookup;
    }

    /// The second step: guesses where the item is, and prefetches it. `None` if it is not where
    /// [`Self::prefetch`] looked; then prefetches the part for [`Self::guess_again`]. Cost: a line
    /// of the index.
    fn guess(&self, lookup: Lookup) -> Option<Self::Guess> {
        let _never_guessed = lookup;
        None
    }

    /// The third step, if the second one had no guess. Cost: a line of the index.
    fn guess_again(&self, lookup: Lookup) -> Option<Self::Guess> {
        let _never_guessed = lookup;
        None
    }

    /// Executes a read that changes nothing. `round` is the registration of the core that reads,
    /// awake; the value is lent until its round ends. `now` is the greatest second of the process.
    fn read<'r>(
        &'r self,
        key: &Key<'_>,
        guess: Option<Self::Guess>,
        terms: &GetTerms,
        round: &'r Reader,
        now: &Now,
        dead_found: &mut DeadFound,
    ) -> ReadAnswer<'r, Self::Pinned> {
        let _only_the_owner_reads = (key, guess, terms, round, now, dead_found);
        ReadAnswer::AskOwner
    }

    /// Counts of the items of a size class ([`Common::size_classes`]) that are gone. All are 0 if
    /// there is no such class. Cost: a few loads.
    fn class_stats(&self, class: u8) -> ClassStats {
        let _not_counted_by_class = class;
        ClassStats::default()
    }
}

/// A large value that is being received, directly into the memory where it will be stored.
pub trait ReceiveValue {
    /// Adds bytes after those that have arrived before. Cost: a copy.
    ///
    /// Errors: there is no memory for the bytes now, and none of them was added.
    fn write(&mut self, bytes: &[u8]) -> Result<(), NoRoom>;

    /// The number of bytes that [`Self::landing`] would lend now, in at most `blocks_max` blocks of
    /// the engine. An upload that never lends memory returns 0, and its bytes are written.
    fn landing_bytes(&self, blocks_max: usize) -> usize {
        let _nothing_is_lent = blocks_max;
        0
    }

    /// Lends the memory for the next bytes through `landing`, so that the kernel writes the bytes
    /// directly into it.
    ///
    /// Errors: there is no memory now, and nothing was lent.
    fn landing(&mut self, landing: &mut Landing, blocks_max: usize) -> Result<(), NoRoom> {
        let _nothing_is_lent = (landing, blocks_max);
        Err(NoRoom)
    }

    /// Takes back a landing into which `bytes` bytes were received. Returns how many of them belong
    /// to the value; the others follow the value.
    fn landed(&mut self, landing: &mut Landing, bytes: usize) -> usize {
        unreachable!("{bytes} bytes in {landing:?}, which this upload never lent")
    }
}

/// A pinned large value. It stays readable even if its item is replaced or removed.
pub trait ReadValue {
    /// The length of the value in bytes.
    fn total_bytes(&self) -> usize;

    /// The bytes from `offset` to the end of the piece of memory that holds them. The result is
    /// empty only at the end of the value.
    ///
    /// A piece has at most 16 KiB, even where more of the value lies in one piece of memory: the
    /// shard hands whole pieces to the kernel, so longer ones would be held for a client that does
    /// not read them.
    fn piece_at(&self, offset: usize) -> &[u8];

    /// The same bytes as [`Self::piece_at`], as a handle that keeps their memory in place until it
    /// is released.
    fn hold_at(&self, offset: usize) -> Held;
}

/// The memory, the options and the flushes of all engines of a process. Any core may use them at
/// any time, without a lock.
pub trait Common: Clone + Send + Sync + 'static {
    /// A large value that is being received.
    type Upload: ReceiveValue;

    /// Whether the core that flushes waits for a disk.
    const FLUSH_WAITS: bool = false;

    /// The options with which the engines were started.
    fn options(&self) -> &EngineOptions;

    /// Registers the calling core as a reader of all engines of the process. It begins asleep.
    /// `None`: there are too many readers.
    fn register_core(&self) -> Option<Reader>;

    /// Begins to receive a large value on the core at `core`. Returns `None` if the value is larger
    /// than the memory limit.
    fn begin_upload(&self, value_bytes: usize, core: Place) -> Option<Self::Upload>;

    /// An empty landing for uploads. It is not called if no upload lends memory
    /// ([`ReceiveValue::landing_bytes`]). Cost: one allocation.
    fn spare_landing(&self) -> Landing {
        unreachable!("uploads of this engine lend no memory")
    }

    /// Flushes all items that are stored so far, in all engines at once. An operation that begins
    /// later sees the flush. It is durable when the call returns, if the engine promises that of
    /// changes: a flush is rare, so the core may wait for it.
    ///
    /// Errors: a crash may take the flush back, or it was not made.
    fn flush(&self, now: &Now) -> Result<(), FlushFailed>;

    /// Flushes in the second `due` all items that are stored until then, in all engines. A later
    /// call replaces a pending one.
    ///
    /// Errors: those of [`Self::flush`].
    fn flush_in(&self, due: u32, now: &Now) -> Result<(), FlushFailed>;

    /// Forgets a pending flush.
    ///
    /// Errors: those of [`Self::flush`].
    fn cancel_flush(&self, now: &Now) -> Result<(), FlushFailed>;

    /// Flushes all items that are stored so far under a key that `prefix` takes, in all engines at
    /// once. An operation that begins later sees the flush. It is durable as [`Self::flush`] is.
    ///
    /// Cost: the same for any number of items. Errors: nothing was flushed. After
    /// [`PrefixRefused::DiskFailed`], the next process may see the flush.
    fn flush_prefix(&self, prefix: &BytePrefix<'_>) -> Result<(), PrefixRefused> {
        let _no_prefix_is_flushed = prefix;
        Err(PrefixRefused::Unsupported)
    }

    /// The number of prefixes whose flush is not over, because upkeep has not examined all items
    /// that were stored before. Cost: a load.
    fn live_prefixes(&self) -> usize {
        0
    }

    /// The highest value, in bytes, that the memory limit can be raised to.
    fn bytes_max(&self) -> u64 {
        u64::MAX
    }

    /// The size classes by which items are counted. An item belongs to the class of its nominal
    /// size ([`EngineOptions::nominal_bytes`]).
    fn size_classes(&self) -> Arc<SizeClasses> {
        Arc::default()
    }

    /// Has all engines keep a list of the items that they evict, or no longer. See
    /// [`Extensions::take_evicted`]. Cost: a store.
    fn list_evictions(&self, on: bool) {
        let _nothing_is_evicted = on;
    }

    /// Has all engines draw one of `every` items that they evict, with random gaps, and list it
    /// also while not all are listed. 0: none is drawn. Cost: a store.
    fn draw_evictions(&self, every: u32) {
        let _nothing_is_evicted = every;
    }

    /// A model of the eviction of an engine of this kind. `None` if it does not evict.
    fn miss_model() -> Option<Box<dyn MissModel>> {
        None
    }

    /// A report about the files of all engines. It may be some seconds old. `None` if they have no
    /// files. Cost: locks of this part, and no wait for a disk.
    fn file_report(&self) -> Option<FileReport> {
        None
    }

    /// The number of pinned bytes of large values. A byte is pinned as long as a handle of
    /// [`Engine::Pinned`], or a [`Held`] that came from one, keeps it. An engine that returns 0
    /// must charge pinned values to the budget by itself, or have none.
    fn pinned_bytes(&self) -> u64 {
        0
    }
}

/// An engine, as a shard uses it: the part of the contract that every engine implements. The
/// optional part is [`Extensions`].
///
/// Every method returns soon: no method waits for a disk, a lock or a network. An engine that would
/// have to wait answers [`Answer::Later`].
pub trait Engine: Extensions {
    /// A large value that is being received. The core that holds the engine may be another one than
    /// the core that received the value. So an upload moves between threads, and its memory belongs
    /// to the process.
    type Upload: ReceiveValue + Send;
    /// A pinned large value, which the shard reads and sends later, perhaps on another thread.
    type Pinned: ReadValue + Send;
    /// An operation on a file that the engine wants to be carried out. An engine without files uses
    /// [`std::convert::Infallible`] for this and for [`Self::Completion`].
    type Submission: Send;
    /// An operation that was carried out.
    type Completion: Send;
    /// Reads the items of this engine on any core.
    type Reader: ReadBeside<Pinned = Self::Pinned>;
    /// The part that all engines of the process share.
    type Common: Common<Upload = Self::Upload>;

    /// Returns the part that all engines of the process share.
    fn common(&self) -> Self::Common;

    /// Returns a reader of this engine's items for any core.
    fn reader(&self) -> Self::Reader;

    /// Executes an operation, or answers that it must be executed again later.
    ///
    /// `block` is the whole value of a store. If it is an upload, the engine takes the upload out
    /// when it stores the value, and otherwise leaves it there. `ticket` is the ticket that an
    /// earlier call for the same operation returned, if any.
    fn execute<'e>(
        &'e mut self,
        operation: &Operation<'_>,
        block: &mut Block<'_, Self::Upload>,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, Self::Pinned>;

    /// Executes a read, as [`Self::execute`] does for [`Verb::Get`]. It is a method of its own so
    /// that a read costs no more than necessary.
    fn read<'e>(
        &'e mut self,
        key: &Key<'_>,
        terms: &GetTerms,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, Self::Pinned> {
        let operation = Operation { key: *key, verb: Verb::Get(*terms) };
        self.execute(&operation, &mut Block::None, ticket, now)
    }

    /// Whether operations with [`Ticket::ROOM`] may be executed again now. If not, a reader that is
    /// in the way was marked: when its `round_over` or `sleep` returns `true`, the shard executes
    /// these operations again. Or the room comes with the completion of an operation on a file:
    /// then [`Self::complete`] names [`Ticket::ROOM`]. Called under the lock, after an operation
    /// was answered so.
    fn await_room(&mut self) -> bool {
        true
    }

    /// When the engine wants [`Self::reach`] to be called at the latest, in nanoseconds of the
    /// monotonic clock. `None` if the engine waits for no time. The shard asks after each use.
    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    /// The time `now_ns` has come, which is the deadline or later. Calls `ready` with the number of
    /// each ticket whose operation can be executed again now (I2).
    fn reach(&mut self, now_ns: u64, ready: &mut impl FnMut(u64)) {
        let _ = (now_ns, ready);
    }

    /// Takes the next operation on a file that the engine has queued. Before the shard releases the
    /// engine, it calls this until the queue is empty or the I/O backend of the core is full. The
    /// other operations stay in the queue, and the home core of the engine takes them later.
    fn next_submission(&mut self) -> Option<Self::Submission> {
        None
    }

    /// An operation was carried out, with or without success. Each comes back once, in any order.
    /// Calls `ready` with the number of each ticket whose operation can be executed again now (I2).
    /// After a write or a sync has failed, the engine calls [`DurableWord::fail`], and tries none
    /// again.
    fn complete(&mut self, completion: Self::Completion, ready: &mut impl FnMut(u64)) {
        let _ = (completion, ready);
    }

    /// Takes a ticket back. The shard will not execute the operation with this ticket, but it may
    /// execute the operation again without one. The engine drops what it keeps for the ticket. A
    /// buffer that a disk fills lives until the disk has filled it.
    fn forget(&mut self, ticket: Ticket) {
        let _ = ticket;
    }

    /// Tells up to which sequence all changes are durable (I3), and whether the others are lost
    /// (I5).
    fn durable(&self) -> &Arc<DurableWord>;

    /// Executes a step of upkeep, which is bounded in [`Self::work_bytes`]. Returns the amount of
    /// work done; 0 means that there is no work for now. The home core calls this until there is no
    /// work. Then it calls it again after the engine has worked ([`Self::work_bytes`]), when a
    /// second begins, and in each tick that serves nothing.
    fn maintain(&mut self, now: &Now) -> usize;

    /// Executes one step of a walk over all items: passes live items to `show`, from the cursor on,
    /// and moves the cursor. The step ends at the latest when `show` returns `false`, or when
    /// `items_max` items were examined. The next step continues after the item for which `show`
    /// returned `false`. An item that moves during the walk may be shown twice or not at all. The
    /// shard may leave a walk at any time.
    fn walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep;

    /// The work that the engine has done since its start, in bytes: those that it has copied, and a
    /// fixed number for each item that it has examined and each piece of memory that it has freed.
    /// By the difference the shard bounds how long it holds the engine, so the number must grow
    /// with the time that a call takes. It never decreases. Cost: a load or two.
    fn work_bytes(&self) -> u64;

    /// What the engine holds, and what it has done since its start, in numbers. Cost: a few loads.
    fn stats(&self) -> EngineStats;
}
