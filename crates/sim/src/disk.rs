//! The disk of a run: its faults follow from the options, and its time is virtual time.
//!
//! Upstream:   `run`, which makes it for engines with files.
//! Downstream: `kachel_io`'s disk in memory; `server`, which wakes shards when operations are due.
//!
//! Invariants:
//! - I1  A jump of the server's clock completes no operation: the disk has a clock of its own.

use kachel_io::memory::disk::{
    BLOCK_BYTES, ChanceFault, Disk, DiskCounts, Fault as DiskFault, FaultPlan, PlannedFault,
};
use kachel_io::{FileError, FileWorkKind, FolderHandle, ManualClock};
use kachel_testkit::Random;

use crate::options::{EngineChoice, Fault, Options};

/// The longest time that most operations take, in nanoseconds, and the time that some take longer.
const LATENCY_NS_MAX: u64 = 400_000;
const SLOW_NS: u64 = 3_000_000;
/// How many reads and writes in a thousand are done in part, and how many operations take longer.
const SHORT_PERMILLE: u64 = 200;
const SLOW_PERMILLE: u64 = 20;

/// The same for calls of a library. A call reads, or writes, or neither.
const CALL_ERROR_PERMILLE: u64 = 800;
/// More blocks than the files of a run have.
const BLOCKS_ENOUGH: usize = 1 << 18;

/// How many disks with errors in a thousand fail a read, a write, or the sync of a folder. Each
/// kind is drawn on its own. A folder is synced when its files are new.
const ERROR_PERMILLE: [(FileWorkKind, u64); 3] =
    [(FileWorkKind::Read, 600), (FileWorkKind::Write, 400), (FileWorkKind::SyncFolder, 50)];
/// The first operation that fails is at most this one of its kind.
const ERROR_NUMBER_MAX: u64 = 120;

/// The disk of a run.
pub(crate) struct RunDisk {
    disk: Disk,
    clock: ManualClock,
    plan: FaultPlan,
    /// The blocks that it has, unless there is space for all files.
    blocks_max: Option<usize>,
    /// When the shards are woken next, if that is in the queue.
    pub(crate) wakes_ns: Option<u64>,
}

impl RunDisk {
    /// An empty disk, without faults until they begin. Without [`Fault::Disk`] it completes every
    /// operation whole, and at once. Without [`Fault::DiskError`] none fails.
    pub(crate) fn new(options: &Options) -> Self {
        let clock = ManualClock::new(0);
        let disk = Disk::new(Random::for_purpose(options.seed, "disk").bits(), &clock);
        let mut plan = FaultPlan::default();
        if options.faults.has(Fault::Disk) {
            let chance = |permille, fault| ChanceFault { kind: None, permille, fault };
            plan.chances = vec![
                chance(SLOW_PERMILLE, DiskFault::Slow(SLOW_NS)),
                chance(SHORT_PERMILLE, DiskFault::Short),
            ];
            plan.latency_ns = Some(1_000..=LATENCY_NS_MAX);
        }
        if options.faults.has(Fault::DiskError) {
            let mut dice = Random::for_purpose(options.seed, "errors of the disk");
            plan.planned = match options.engine {
                EngineChoice::Rocks => {
                    errors(&mut dice, &[(FileWorkKind::Call, CALL_ERROR_PERMILLE)])
                }
                _ => errors(&mut dice, &ERROR_PERMILLE),
            };
        }
        Self { disk, clock, plan, blocks_max: None, wakes_ns: None }
    }

    /// Limits the space to this number of bytes for all files, until [`Self::heal`].
    pub(crate) fn limit_space(&mut self, bytes: u64) {
        self.blocks_max = Some(bytes as usize / BLOCK_BYTES);
    }

    /// The disk after a power cut.
    pub(crate) fn after_power_cut(&self, seed: u64) -> Self {
        let (disk, clock, plan) = (self.disk.crash(seed), self.clock.clone(), self.plan.clone());
        Self { disk, clock, plan, blocks_max: self.blocks_max, wakes_ns: None }
    }

    /// Begins the faults, because the engines are open. Returns the disk itself.
    pub(crate) fn begin_faults(&self) -> &Disk {
        self.disk.set_plan(self.plan.clone());
        self.blocks_max.into_iter().for_each(|blocks_max| self.disk.set_blocks_max(blocks_max));
        &self.disk
    }

    /// Lets no operation fail that is submitted from now on, and gives the disk enough space.
    pub(crate) fn heal(&mut self) {
        self.plan.planned.clear();
        self.disk.set_plan(self.plan.clone());
        if self.blocks_max.take().is_some() {
            self.disk.set_blocks_max(BLOCKS_ENOUGH);
        }
    }

    /// The folder of the engines' files.
    pub(crate) fn folder(&self) -> FolderHandle {
        self.disk.folder("data")
    }

    /// The disk itself.
    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Lets time pass.
    pub(crate) fn advance_ns(&self, ns: u64) {
        self.clock.advance_ns(ns);
    }

    /// When the next operation becomes due, if the shards are not woken by then.
    pub(crate) fn next_wake_ns(&mut self) -> Option<u64> {
        let due_ns = self.disk.next_due_later_ns()?;
        let is_earlier = self.wakes_ns.is_none_or(|wakes_ns| due_ns < wakes_ns);
        is_earlier.then(|| *self.wakes_ns.insert(due_ns))
    }

    /// The operations and faults so far.
    pub(crate) fn counts(&self) -> DiskCounts {
        self.disk.counts()
    }
}

/// Operations that fail: once, or from then on.
fn errors(dice: &mut Random, kinds: &[(FileWorkKind, u64)]) -> Vec<PlannedFault> {
    let mut planned = Vec::new();
    for &(kind, permille) in kinds {
        if dice.chance(permille) {
            let is_first = kind == FileWorkKind::SyncFolder;
            let number = if is_first { 1 } else { dice.skewed(1, ERROR_NUMBER_MAX) };
            let (forever, fault) = (dice.chance(500), DiskFault::Error(FileError::IO));
            planned.push(PlannedFault { kind: Some(kind), number, forever, fault });
        }
    }
    planned
}
