//! The disk of a run: its faults follow from the options, and its time is virtual time.
//!
//! Upstream:   `run`, which makes it for engines with files.
//! Downstream: `kachel_io`'s disk in memory; `server`, which wakes shards when operations are due.
//!
//! Invariants:
//! - I1  A jump of the server's clock completes no operation: the disk has a clock of its own.

use kachel_io::FolderHandle;
use kachel_io::ManualClock;
use kachel_io::memory::disk::{ChanceFault, Disk, DiskCounts, Fault as DiskFault, FaultPlan};
use kachel_testkit::Random;

use crate::options::{Fault, Options};

/// The longest time that most operations take, in nanoseconds, and the time that some take longer.
const LATENCY_NS_MAX: u64 = 400_000;
const SLOW_NS: u64 = 3_000_000;
/// How many reads and writes in a thousand are done in part, and how many operations take longer.
const SHORT_PERMILLE: u64 = 200;
const SLOW_PERMILLE: u64 = 20;

/// The disk of a run.
pub(crate) struct RunDisk {
    disk: Disk,
    clock: ManualClock,
    /// When the shards are woken next, if that is in the queue.
    pub(crate) wakes_ns: Option<u64>,
}

impl RunDisk {
    /// An empty disk. Without [`Fault::Disk`] it completes every operation whole, and at once.
    pub(crate) fn new(options: &Options) -> Self {
        let clock = ManualClock::new(0);
        let disk = Disk::new(Random::for_purpose(options.seed, "disk").bits(), &clock);
        if options.faults.has(Fault::Disk) {
            let chance = |permille, fault| ChanceFault { kind: None, permille, fault };
            let chances = vec![
                chance(SLOW_PERMILLE, DiskFault::Slow(SLOW_NS)),
                chance(SHORT_PERMILLE, DiskFault::Short),
            ];
            let latency_ns = Some(1_000..=LATENCY_NS_MAX);
            disk.set_plan(FaultPlan { chances, latency_ns, ..FaultPlan::default() });
        }
        Self { disk, clock, wakes_ns: None }
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
