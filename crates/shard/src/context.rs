//! The context of a tick, which every stage may read: the shard, its process, and the time.
//!
//! Upstream:   `tick` sets the time once per tick, and `entered` advances it; the rest never
//!             changes.
//! Downstream: all stages.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use kachel_engine::{ClockOrigin, DeadFound, EngineIndex, KeyHasher, Now};
use kachel_net::{Attempts, CoreIndex};
use kachel_observe::{Counters, Log, Picked, Prefixes, SampleGate, Sizes, WAIT_UNIT_NS};
use kachel_stdx::Place;

use crate::cores::buffers::Buffers;
use crate::cores::homes::Homes;
use crate::cores::process::Shared;
use crate::cores::work::WorkMeter;

/// The number of no engine.
pub(crate) const NO_ENGINE: EngineIndex = EngineIndex(u16::MAX);

/// The facts about one core, and the time of this tick.
#[derive(Debug)]
pub(crate) struct Context {
    /// The index of this core.
    pub(crate) core: CoreIndex,
    /// The home cores of the engines.
    pub(crate) homes: Homes,
    /// The engines whose home this core is.
    home_engines: Box<[EngineIndex]>,
    /// The first one of these; [`NO_ENGINE`] if there is none.
    first_home_engine: EngineIndex,
    /// What all shards of the process share.
    pub(crate) shared: Arc<Shared>,
    /// This shard's counters: only its thread adds to them.
    pub(crate) counters: Arc<Counters>,
    pub(crate) hasher: KeyHasher,
    /// The time from which the process counts seconds.
    pub(crate) origin: ClockOrigin,
    /// The place of this core among those that read items.
    pub(crate) place: Place,
    /// The size classes by which requests are counted.
    pub(crate) sizes: Sizes,
    /// Which requests of this tick are in the sample (`sample`).
    pub(crate) gate: SampleGate,
    /// The requests for the miss-ratio curve that are not passed on yet.
    pub(crate) picked: RefCell<Picked>,
    /// The requests by prefix that this core has executed.
    pub(crate) prefixes: RefCell<Prefixes>,
    /// The lines of the log that this core writes.
    pub(crate) log: Log,
    /// The time of this tick in nanoseconds of the monotonic clock.
    now_ns: Cell<u64>,
    /// The time of this tick, or the second that another core has reached meanwhile.
    now: Cell<Now>,
    /// The work of this core.
    pub(crate) work: WorkMeter,
    /// Unused buffers of this core, for parked requests.
    buffers: Buffers,
    /// The operations on files that the backend of this core takes now, without those that wait in
    /// `engines` to be submitted (`files`, S2).
    pub(crate) file_room: Cell<usize>,
    /// Whether any wait there.
    pub(crate) has_outgoing: Cell<bool>,
    /// The operations on files that this core has taken and that have not completed, by the indices
    /// of their engines.
    files_in_flight: Box<[Cell<u16>]>,
    /// Cores that this one must wake as soon as it holds no engine (`mailboxes`, M2), a bit for
    /// each.
    to_wake: Box<[Cell<u64>]>,
}

impl Context {
    /// Makes the context of a shard of `shared`, on a core that is registered at `place`.
    #[expect(clippy::too_many_arguments, reason = "the parts of a shard are made in one place")]
    pub(crate) fn new(
        core: CoreIndex,
        shared: Arc<Shared>,
        hasher: KeyHasher,
        origin: ClockOrigin,
        place: Place,
        sizes: Sizes,
        log: Log,
        work: WorkMeter,
    ) -> Self {
        let counters = Arc::clone(&shared.totals.cores[core.number()]);
        let homes = shared.homes;
        let home_engines: Box<[EngineIndex]> = homes.engines_of(core).collect();
        let first_home_engine = home_engines.first().copied().unwrap_or(NO_ENGINE);
        let now = Cell::new(origin.start());
        let to_wake = (0..homes.cores().div_ceil(64)).map(|_| Cell::new(0)).collect();
        Self {
            core,
            homes,
            home_engines,
            first_home_engine,
            shared,
            counters,
            hasher,
            origin,
            place,
            sizes,
            picked: RefCell::default(),
            gate: SampleGate::new(hasher.shown_hash(u64::from(core.0))),
            prefixes: RefCell::default(),
            log,
            now_ns: Cell::new(0),
            now,
            work,
            buffers: Buffers::new(),
            file_room: Cell::new(0),
            has_outgoing: Cell::new(false),
            files_in_flight: homes.all().map(|_| Cell::new(0)).collect(),
            to_wake,
        }
    }

    /// A buffer for the text of a parked request. `None` if there is no memory for it, unless
    /// `always`.
    pub(crate) fn text_buffer(&self, bytes: usize, always: bool) -> Option<Vec<u8>> {
        let memory = &self.shared.waiting;
        match always {
            true => Some(self.buffers.take_ahead(memory, bytes)),
            false => self.buffers.take(memory, bytes),
        }
    }

    /// A buffer for the answer to a parked request. Without memory, if it has no bytes.
    #[inline]
    pub(crate) fn answer_buffer(&self, bytes: usize) -> Vec<u8> {
        match bytes {
            0 => Vec::new(),
            _ => self.buffers.take_ahead(&self.shared.waiting, bytes),
        }
    }

    /// As [`Self::answer_buffer`], if this core has one. Otherwise without memory.
    #[inline]
    pub(crate) fn own_buffer(&self, bytes: usize) -> Vec<u8> {
        match bytes {
            0 => Vec::new(),
            _ => self.buffers.take_own(bytes),
        }
    }

    /// Takes a buffer back.
    #[inline]
    pub(crate) fn give_buffer(&self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 {
            self.buffers.give(&self.shared.waiting, buffer);
        }
    }

    /// Notes that this core must wake another one.
    pub(crate) fn note_wake(&self, core: CoreIndex) {
        debug_assert!(core != self.core && core.0 < self.cores(), "another core of this process");
        let word = &self.to_wake[core.number() / 64];
        word.set(word.get() | 1 << (core.number() % 64));
    }

    /// Whether this core must wake others.
    pub(crate) fn owes_wakes(&self) -> bool {
        self.to_wake.iter().any(|word| word.get() != 0)
    }

    /// Takes the next core that this one must wake. Cost: a load for 64 cores.
    #[inline]
    pub(crate) fn next_to_wake(&self) -> Option<CoreIndex> {
        let (place, word) = self.to_wake.iter().enumerate().find(|(_, word)| word.get() != 0)?;
        let cores = word.get();
        word.set(cores & (cores - 1)); // Without the lowest one.
        Some(CoreIndex((place * 64) as u16 + cores.trailing_zeros() as u16))
    }

    /// The time. Within a tick only [`Self::catch_up`] and [`Self::move_on`] change it.
    #[inline]
    pub(crate) fn now(&self) -> Now {
        self.now.get()
    }

    /// Sets the time that the clock shows, `since_boot_ns` after the boot of the machine. Cost: as
    /// [`Shared::latest`].
    pub(crate) fn set_clock(&self, since_boot_ns: u64) {
        let now = self.origin.at(since_boot_ns).later_by(self.shared.moved_s());
        if now.second > self.now().second {
            self.tell_copies(now.second, since_boot_ns);
        }
        let now = self.shared.latest(now);
        debug_assert!(self.now().second <= now.second, "the monotonic clock does not go back");
        self.now.set(now);
        self.now_ns.set(since_boot_ns);
    }

    /// Tells the copies a second before any core uses it.
    #[cold]
    fn tell_copies(&self, second: u32, since_boot_ns: u64) {
        debug_assert!(second > self.now().second, "a second begins once on a core");
        if let Some(copies) = &self.shared.options.copies {
            copies.tick(second, since_boot_ns);
        }
    }

    /// The time of this tick in nanoseconds of the monotonic clock.
    pub(crate) const fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// The time of this tick in units of [`WAIT_UNIT_NS`], which wraps around after an hour. Only
    /// differences mean something.
    #[inline]
    pub(crate) const fn tick_in_wait_units(&self) -> u32 {
        (self.now_ns.get() / WAIT_UNIT_NS) as u32
    }

    /// Follows the clock of the process, which was moved in this tick.
    pub(crate) fn move_on(&self) {
        self.set_clock(self.now_ns.get());
    }

    /// The Unix time of this tick in microseconds.
    pub(crate) fn unix_us(&self) -> u64 {
        self.origin.unix_us(self.now_ns.get())
    }

    /// Notes dead items that a read beside their owner has found.
    #[inline]
    pub(crate) fn note_dead_beside(&self, found: DeadFound) {
        if found != DeadFound::default() {
            self.note_found(found);
        }
    }

    #[cold]
    fn note_found(&self, found: DeadFound) {
        self.counters.note_dead(found);
        self.log.note_found_beside(found);
    }

    /// Advances the time to the latest second that any core has reached. Each core does this when
    /// it takes an engine, so an engine never sees time go back. Cost: a load.
    #[inline]
    pub(crate) fn catch_up(&self) {
        self.now.set(self.shared.latest(self.now()));
    }

    /// Changes the logins of the process that fail or wait (`throttle`), and notes the other shards
    /// that it must wake.
    pub(crate) fn change_attempts<T>(&self, change: impl FnOnce(&mut Attempts) -> T) -> T {
        self.shared.throttle.change(change, |core| {
            if core != self.core {
                self.note_wake(core);
            }
        })
    }

    /// The operations on files of an engine that this core has taken and that have not completed.
    pub(crate) fn files_in_flight(&self, engine: EngineIndex) -> usize {
        self.files_in_flight[engine.number()].get().into()
    }

    /// Whether this core has taken any that have not completed.
    pub(crate) fn has_files_in_flight(&self) -> bool {
        self.files_in_flight.iter().any(|count| count.get() > 0)
    }

    /// Notes that this core has taken an operation on a file, for which its backend has room.
    pub(crate) fn note_file_taken(&self, engine: EngineIndex) {
        self.file_room.set(self.file_room.get() - 1);
        let count = &self.files_in_flight[engine.number()];
        count.set(count.get() + 1);
    }

    /// Notes that one of them has completed.
    pub(crate) fn note_file_done(&self, engine: EngineIndex) {
        let count = &self.files_in_flight[engine.number()];
        count.set(count.get().checked_sub(1).expect("files, S3: what completes was taken"));
    }

    /// The number of cores of the process.
    #[inline]
    pub(crate) fn cores(&self) -> u16 {
        self.homes.cores()
    }

    /// The number of engines of the process.
    #[inline]
    pub(crate) fn engines(&self) -> u16 {
        self.homes.engines()
    }

    /// The engines whose home this core is.
    #[inline]
    pub(crate) fn home_engines(&self) -> &[EngineIndex] {
        &self.home_engines
    }

    /// Whether this core is the home of an engine. Cost: a comparison or two, and a division if it
    /// is the home of several engines.
    #[inline]
    pub(crate) fn is_home_of(&self, engine: EngineIndex) -> bool {
        engine == self.first_home_engine
            || self.home_engines.len() > 1 && self.homes.core_of(engine) == self.core
    }

    /// The other cores of the process.
    pub(crate) fn others(&self) -> impl Iterator<Item = CoreIndex> + use<> {
        let own = self.core;
        (0..self.cores()).map(CoreIndex).filter(move |core| *core != own)
    }
}
