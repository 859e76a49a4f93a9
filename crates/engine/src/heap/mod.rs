//! Parts for an engine that keeps its items on the heap: what its engines share, an item, its
//! value, and a value that is being received.
//!
//! Upstream:   a small engine, such as the plain engine of `testkit`.
//! Downstream: the budget of the process, to which every byte is charged.
//!
//! Invariants:
//! - I1  Bytes are charged to the budget before they are stored, and are refunded when their last
//!   handle is dropped. So a pinned value is charged until it is sent.
//! - I2  An item that was stored in an earlier epoch than that of the flush word is flushed. So is
//!   an item of an earlier generation than a flushed prefix that takes its key. What an operation
//!   stores has the epoch and the generation in which it has looked for the item: a flush may come
//!   between the two, and what is made of a flushed item is flushed.
//! - I3  An engine is done with the flush of a prefix once a sweep that has begun after it is over.
//!   The sweep gives the items that live on the generation of the flush.
//! - I4  A value counts as pinned once, for as long as a pin of it, or a piece that came from one,
//!   is there.

mod map;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use kachel_host::Budget;
use kachel_stdx::{
    BytePrefix, FlushWord, FlushedPrefixes, GuardedBytes, Held, Place, Quiescence, Reader,
    TooManyPrefixes,
};

use crate::change::{Mark, NoRoom, Put, PutValue, Side};
use crate::contract::{
    Common, FlushFailed, INLINE_VALUE_BYTES_MAX, PrefixRefused, ReadBeside, ReadValue, ReceiveValue,
};
use crate::item::ItemView;
use crate::opening::Opening;
use crate::operation::Block;
use crate::options::EngineOptions;
use crate::time::Now;

pub use map::{HeapEntry, HeapMap};

/// Readers that may register in addition to one for each core: a simulation looks on.
const READERS_BESIDE: usize = 1;
/// The most bytes of a value that are sent at once ([`ReadValue::piece_at`]).
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// The part that all engines of a process share: the options, the budget, the flushes, and the
/// cores that use the engines.
#[derive(Clone, Debug)]
pub struct HeapCommon {
    options: EngineOptions,
    budget: Arc<Budget>,
    flushes: Arc<FlushWord>,
    prefixes: Arc<FlushedPrefixes>,
    cores: Arc<Quiescence>,
    /// Bytes of the values that are pinned (I4).
    pinned_bytes: Arc<AtomicU64>,
}

impl HeapCommon {
    /// The part that all engines of one process share. It is made before the first engine.
    #[must_use]
    pub fn new(opening: &Opening) -> Self {
        Self::with_flushes(opening, FlushWord::default())
    }

    /// The same, for a process that goes on from the flushes of an earlier one.
    #[must_use]
    pub fn with_flushes(opening: &Opening, flushes: FlushWord) -> Self {
        Self {
            options: opening.options,
            budget: Arc::clone(&opening.budget),
            flushes: Arc::new(flushes),
            prefixes: Arc::new(FlushedPrefixes::new(opening.engines)),
            cores: Arc::new(Quiescence::new(usize::from(opening.cores) + READERS_BESIDE)),
            pinned_bytes: Arc::default(),
        }
    }

    /// The number of flushes until now.
    #[must_use]
    pub fn epoch(&self, now: &Now) -> u32 {
        self.flushes.settle(now.second).epoch()
    }

    /// The word of all flushes, for an engine that keeps it over a restart.
    #[must_use]
    pub const fn flushes(&self) -> &Arc<FlushWord> {
        &self.flushes
    }

    /// Whether the budget has `bytes` left.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.budget.spent_bytes().saturating_add(bytes as u64) <= self.budget.limit_bytes()
    }

    /// A value on the heap. Its bytes are charged even if that overdraws the budget: the engine
    /// bounds how many values it holds.
    #[must_use]
    pub fn value(&self, bytes: Box<[u8]>) -> HeapValue {
        let mut charge = Charge::none(&self.budget);
        charge.add(bytes.len() as u64, u64::MAX).expect("an overdraft without a limit");
        HeapValue::new(bytes, charge)
    }

    /// Pins a value, which is sent later. Cost: an allocation.
    #[must_use]
    pub fn pin(&self, value: &HeapValue) -> HeapPinned {
        HeapPinned::new(value, &self.pinned_bytes)
    }
}

impl Common for HeapCommon {
    type Upload = HeapUpload;

    fn options(&self) -> &EngineOptions {
        &self.options
    }

    fn register_core(&self) -> Option<Reader> {
        self.cores.register_asleep()
    }

    /// `None` also if the value is larger than the limit of the budget.
    fn begin_upload(&self, value_bytes: usize, _core: Place) -> Option<HeapUpload> {
        let fits = value_bytes as u64 <= self.budget.limit_bytes();
        let bytes = || Vec::with_capacity(value_bytes);
        fits.then(|| HeapUpload { bytes: bytes(), charge: Charge::none(&self.budget) })
    }

    fn flush(&self, now: &Now) -> Result<(), FlushFailed> {
        self.flushes.flush(now.second);
        Ok(())
    }

    fn flush_in(&self, due: u32, now: &Now) -> Result<(), FlushFailed> {
        self.flushes.flush_in(due, now.second);
        Ok(())
    }

    fn cancel_flush(&self, now: &Now) -> Result<(), FlushFailed> {
        self.flushes.cancel(now.second);
        Ok(())
    }

    fn flush_prefix(&self, prefix: &BytePrefix<'_>) -> Result<(), PrefixRefused> {
        self.prefixes.flush(prefix).map_err(|TooManyPrefixes| PrefixRefused::TooMany)
    }

    fn live_prefixes(&self) -> usize {
        self.prefixes.live()
    }

    fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes.load(Relaxed)
    }
}

/// Bytes that are charged to a budget until this is dropped (I1).
#[derive(Debug)]
struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    fn none(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Charges `bytes` more. The budget may be overdrawn by `freed_bytes`, which the caller is
    /// about to refund.
    fn add(&mut self, bytes: u64, freed_bytes: u64) -> Result<(), NoRoom> {
        if !self.budget.charge_overdrawing(bytes, freed_bytes) {
            return Err(NoRoom);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Charges `bytes` for the last part of a new item. The whole item takes `item_bytes`, and
    /// replaces one of `freed_bytes`. A new item that is not larger always fits: requests that wait
    /// may have overdrawn the budget, and the replacement does not add to that.
    fn replace(&mut self, bytes: u64, item_bytes: u64, freed_bytes: u64) -> Result<(), NoRoom> {
        debug_assert!(bytes <= item_bytes, "a part of the item");
        if item_bytes > freed_bytes {
            return self.add(bytes, freed_bytes);
        }
        self.budget.charge_ahead(bytes);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.refund(self.bytes);
    }
}

/// A value on the heap. Clones are the same value.
#[derive(Clone, Debug)]
pub struct HeapValue {
    bytes: Arc<Box<[u8]>>,
    stored: Arc<StoredValue>,
}

/// The state that all handles of a value share.
#[derive(Debug)]
struct StoredValue {
    charge: Charge,
    /// The pins of the value.
    pins: AtomicU64,
}

impl HeapValue {
    fn new(bytes: Box<[u8]>, charge: Charge) -> Self {
        let stored = StoredValue { charge, pins: AtomicU64::new(0) };
        Self { bytes: Arc::new(bytes), stored: Arc::new(stored) }
    }

    /// The bytes of the value.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that are refunded when this handle is dropped.
    fn freed_bytes(&self) -> u64 {
        if Arc::strong_count(&self.stored) == 1 { self.stored.charge.bytes } else { 0 }
    }
}

/// A pinned value on the heap, which is sent from where it is. It is charged, and counts as pinned,
/// until the last piece of it is sent (I1, I4).
#[derive(Debug)]
pub struct HeapPinned(Arc<GuardedBytes<Pin>>);

/// The count of a pinned value.
#[derive(Debug)]
struct Pin {
    value: HeapValue,
    pinned_bytes: Arc<AtomicU64>,
}

impl HeapPinned {
    fn new(value: &HeapValue, pinned_bytes: &Arc<AtomicU64>) -> Self {
        let pin = Pin { value: value.clone(), pinned_bytes: Arc::clone(pinned_bytes) };
        if value.stored.pins.fetch_add(1, Relaxed) == 0 {
            pinned_bytes.fetch_add(value.len() as u64, Relaxed); // I4
        }
        Self(Arc::new(GuardedBytes::new(Arc::clone(&value.bytes), pin)))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let Self { value, pinned_bytes } = self;
        if value.stored.pins.fetch_sub(1, Relaxed) == 1 {
            let before = pinned_bytes.fetch_sub(value.len() as u64, Relaxed);
            debug_assert!(before >= value.len() as u64, "I4: it was counted");
        }
    }
}

impl ReadValue for HeapPinned {
    fn total_bytes(&self) -> usize {
        self.0.all().len()
    }

    fn piece_at(&self, offset: usize) -> &[u8] {
        let rest = &self.0.all()[offset..];
        &rest[..rest.len().min(PIECE_BYTES_MAX)]
    }

    fn hold_at(&self, offset: usize) -> Held {
        self.0.hold(offset..offset + self.piece_at(offset).len())
    }
}

/// A large value that is being received into memory on the heap.
#[derive(Debug)]
pub struct HeapUpload {
    bytes: Vec<u8>,
    charge: Charge,
}

impl HeapUpload {
    /// The bytes that have been received.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The value that was received.
    #[must_use]
    pub fn into_value(self) -> HeapValue {
        HeapValue::new(self.bytes.into_boxed_slice(), self.charge)
    }
}

impl ReceiveValue for HeapUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        self.charge.add(bytes.len() as u64, 0)?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

/// When an item was stored (I2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StoredIn {
    /// The flush epoch.
    epoch: u32,
    /// The newest flush of a prefix; that of the last sweep, if it is newer (I3).
    generation: u32,
}

/// An item on the heap.
#[derive(Debug)]
pub struct HeapItem {
    /// `None` while the value is on a disk only.
    value: Option<HeapValue>,
    value_bytes: usize,
    stored_in: StoredIn,
    /// The [`Put`] that stored the item. `mark` changes its expiry and its win bit.
    put: Put,
    cas: u64,
    is_fetched: Cell<bool>,
    last_access: Cell<u32>,
    /// The bytes beside the value.
    own: Charge,
}

/// The bytes of the value that a put stores. An unchanged value has none here. `old` are the bytes
/// of the value that it replaces.
pub fn bytes_of_put<'v>(
    value: PutValue,
    block: &Block<'_, HeapUpload>,
    old: impl FnOnce() -> &'v [u8],
) -> Vec<u8> {
    let block = match block {
        Block::Bytes(bytes) => bytes,
        Block::Upload(upload) => &upload.bytes[..],
        Block::None => b"",
    };
    match value {
        PutValue::Block => block.to_vec(),
        PutValue::Joined(Side::After) => [old(), block].concat(),
        PutValue::Joined(Side::Before) => [block, old()].concat(),
        PutValue::Number { number, bytes } => format!("{number:<bytes$}").into_bytes(),
        PutValue::Empty | PutValue::Unchanged => Vec::new(),
    }
}

impl HeapItem {
    /// The item that `put` stores in place of `old`. `cas` is its token, and `own_bytes` the number
    /// of bytes that it takes beside its value. An upload is taken out of `block`.
    ///
    /// Errors: the budget has no room for it. `block` is as it was.
    ///
    /// # Panics
    /// If the value depends on that of `old` and there is none.
    fn new(
        put: &Put,
        old: Option<&Self>,
        block: &mut Block<'_, HeapUpload>,
        (cas, own_bytes): (u64, u64),
        common: &HeapCommon,
        (stored_in, now): (StoredIn, &Now),
    ) -> Result<Self, NoRoom> {
        let budget = &common.budget;
        // What it replaces is freed at once.
        let mut freed_bytes = old.map_or(0, |old| old.own.bytes);
        if put.value != PutValue::Unchanged {
            let freed = |old: &Self| old.value.as_ref().map(HeapValue::freed_bytes);
            freed_bytes += old.and_then(freed).unwrap_or(0);
        }
        let mut own = Charge::none(budget);
        own.replace(own_bytes, own_bytes, freed_bytes)?;
        let old_value = || old.expect("change, I2: an item was found");
        let value = match (put.value, &mut *block) {
            (PutValue::Unchanged, _) => old_value().value.clone(),
            (PutValue::Block, Block::Upload(_)) => {
                let Block::Upload(upload) = std::mem::replace(block, Block::None) else {
                    unreachable!("it was an upload")
                };
                Some(upload.into_value())
            }
            (value, block) => {
                let bytes = bytes_of_put(value, block, || old_value().value().bytes());
                let mut charge = Charge::none(budget);
                let value_bytes = bytes.len() as u64;
                charge.replace(value_bytes, own_bytes + value_bytes, freed_bytes)?;
                Some(HeapValue::new(bytes.into_boxed_slice(), charge))
            }
        };
        let is_fetched = put.keeps_access && old.is_some_and(|old| old.is_fetched.get());
        let last_access = old.filter(|_| put.keeps_access).map(|old| old.last_access.get());
        let value_bytes = value.as_ref().map_or_else(|| old_value().value_bytes, HeapValue::len);
        Ok(Self {
            value,
            value_bytes,
            stored_in,
            put: *put,
            cas,
            is_fetched: Cell::new(is_fetched),
            last_access: Cell::new(last_access.unwrap_or(now.second)),
            own,
        })
    }

    /// The value.
    ///
    /// # Panics
    /// If it is not in memory.
    #[must_use]
    pub fn value(&self) -> &HeapValue {
        self.value.as_ref().expect("the engine has fetched what it reads")
    }

    /// Whether the value is in memory.
    #[must_use]
    pub const fn is_warm(&self) -> bool {
        self.value.is_some()
    }

    /// Drops the value from memory, because the engine has it on a disk. An empty value stays:
    /// there is nothing to read.
    pub fn cool(&mut self) {
        if self.value_bytes > 0 {
            self.value = None;
        }
    }

    /// Gives the item its value back, which was read from a disk. The bytes are charged even if
    /// that overdraws the budget: the engine bounds what it reads at a time.
    pub fn warm(&mut self, value: &[u8], common: &HeapCommon) {
        assert!(value.len() == self.value_bytes, "it is the value of this item");
        self.value = Some(common.value(value.into()));
    }

    /// Whether the item has expired.
    #[must_use]
    pub const fn has_expired(&self, now: &Now) -> bool {
        self.put.expiry != 0 && self.put.expiry <= now.second
    }

    /// The bytes that are charged beside the value.
    const fn own_bytes(&self) -> u64 {
        self.own.bytes
    }

    /// Gives the item new marks.
    pub fn mark(&mut self, mark: Mark) {
        self.put.expiry = mark.expiry.unwrap_or(self.put.expiry);
        self.put.win_sent |= mark.win_sent;
    }

    /// Notes that the item was read.
    pub fn note_access(&self, now: &Now) {
        self.is_fetched.set(true);
        self.last_access.set(now.second);
    }
}

impl<'e> ItemView<'e> for &'e HeapItem {
    fn expiry(&self) -> u32 {
        self.put.expiry
    }

    fn client_flags(&self) -> u32 {
        self.put.client_flags
    }

    fn cas(&self) -> u64 {
        self.cas
    }

    fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    fn small_value(&self) -> Option<&'e [u8]> {
        self.value
            .as_ref()
            .map(HeapValue::bytes)
            .filter(|value| value.len() <= INLINE_VALUE_BYTES_MAX)
    }

    fn is_stale(&self) -> bool {
        self.put.stale
    }

    fn is_win_sent(&self) -> bool {
        self.put.win_sent
    }

    fn is_remnant(&self) -> bool {
        self.put.remnant
    }

    fn protocol_mark(&self) -> bool {
        self.put.protocol_mark
    }

    fn is_fetched(&self) -> bool {
        self.is_fetched.get()
    }

    fn last_access(&self) -> u32 {
        self.last_access.get()
    }

    fn memory_bytes(&self) -> usize {
        self.value.as_ref().map_or(0, HeapValue::len) + self.own.bytes as usize
    }
}

/// A reader of an engine whose items only its owner can read: it asks the owner each time.
#[derive(Debug)]
pub struct NoReader<P>(PhantomData<fn() -> P>);

impl<P> Default for NoReader<P> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<P> Clone for NoReader<P> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<P: 'static> ReadBeside for NoReader<P> {
    type Pinned = P;
    type Guess = ();
}
