//! Which faults a disk in memory has, and how often each of them has happened.
//!
//! Upstream:   a test, or the simulator from its seed.
//! Downstream: the disk asks for the fault of each operation when it is submitted.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A fault happens only to operations of a kind that can have it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::dice::Dice;
use crate::files::{FileError, FileWorkKind};

/// A fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails. A part of a write may have been done, and a file that was to be closed
    /// is closed; other operations are not done. After a sync or a durable write that failed, each
    /// sector is durable or lost, and the next sync succeeds without it.
    Error(FileError),
    /// The operation completes with [`FileError::CANCELLED`]. It was done, done in part, or not
    /// done.
    Cancelled,
    /// A read or a write does only a part.
    Short,
    /// The operation takes this number of nanoseconds longer.
    Slow(u64),
    /// A sync or a durable write succeeds, and nothing is durable.
    FalseSync,
    /// A read returns a wrong bit. The next read returns the right one.
    RotOnce,
    /// A bit of what is read has changed on the media.
    RotLasting,
    /// A read returns bytes from another place of the file.
    MisdirectedRead,
    /// A write goes to another place of the file.
    MisdirectedWrite,
    /// The file system refuses direct I/O: when a file is opened, or at a read or a write.
    DirectRefused,
}

impl Fault {
    /// Whether an operation of this kind can have this fault (I1).
    fn befalls(self, kind: FileWorkKind) -> bool {
        use FileWorkKind::{Close, Open, Read, Sync, SyncFolder, Write};
        match self {
            Self::Error(_) | Self::Slow(_) => true,
            Self::Cancelled => kind != Close,
            Self::Short => matches!(kind, Read | Write),
            Self::FalseSync => matches!(kind, Write | Sync | SyncFolder),
            Self::RotOnce | Self::RotLasting | Self::MisdirectedRead => kind == Read,
            Self::MisdirectedWrite => kind == Write,
            Self::DirectRefused => matches!(kind, Open | Read | Write),
        }
    }
}

/// A fault of a chosen operation.
#[derive(Clone, Copy, Debug)]
pub struct PlannedFault {
    /// The kind of operations that are counted, or `None` for all.
    pub kind: Option<FileWorkKind>,
    /// The number of the operation, from 1, counted since the plan was set.
    pub number: u64,
    /// Whether all later ones have the fault, too.
    pub forever: bool,
    /// The fault.
    pub fault: Fault,
}

/// A fault that comes by chance.
#[derive(Clone, Copy, Debug)]
pub struct ChanceFault {
    /// The kind of operations, or `None` for all.
    pub kind: Option<FileWorkKind>,
    /// In how many of 1,000 operations of the kind.
    pub permille: u64,
    /// The fault.
    pub fault: Fault,
}

/// The faults of a disk. The default is no fault and no latency.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Faults of chosen operations. They take precedence over faults by chance.
    pub planned: Vec<PlannedFault>,
    /// Faults by chance.
    pub chances: Vec<ChanceFault>,
    /// The shortest and the longest time of an operation, in nanoseconds. Operations complete in
    /// the order in which they are due, so different times reorder them. `None`: all are due at
    /// once.
    pub latency_ns: Option<RangeInclusive<u64>>,
}

/// A plan, and the operations since it was set.
#[derive(Debug, Default)]
pub(super) struct Planner {
    plan: FaultPlan,
    of_kind: BTreeMap<FileWorkKind, u64>,
    of_all: u64,
}

impl Planner {
    pub(super) fn new(plan: FaultPlan) -> Self {
        Self { plan, of_kind: BTreeMap::new(), of_all: 0 }
    }

    /// Counts an operation, and returns its fault and its latency in nanoseconds.
    pub(super) fn draw(&mut self, kind: FileWorkKind, dice: &mut Dice) -> (Option<Fault>, u64) {
        let of_kind = self.of_kind.entry(kind).or_default();
        *of_kind += 1;
        self.of_all += 1;
        let Self { plan, of_all, .. } = self;
        let planned = plan.planned.iter().find(|planned| {
            let count = match planned.kind {
                None => *of_all,
                Some(wanted) if wanted == kind => *of_kind,
                Some(_) => return false,
            };
            let is_there = count == planned.number || planned.forever && count > planned.number;
            is_there && planned.fault.befalls(kind)
        });
        let mut fault = planned.map(|planned| planned.fault);
        for chance in &plan.chances {
            if fault.is_none()
                && chance.kind.is_none_or(|wanted| wanted == kind)
                && chance.fault.befalls(kind)
                && dice.chance(chance.permille)
            {
                fault = Some(chance.fault);
            }
        }
        debug_assert!(fault.is_none_or(|fault| fault.befalls(kind)), "I1");
        let latency_ns = plan.latency_ns.as_ref().map_or(0, |range| {
            let (least, most) = (*range.start(), *range.end());
            least + dice.below(most.saturating_sub(least) + 1)
        });
        (fault, latency_ns)
    }
}

/// The operations and faults of a disk. A disk that a crash has made goes on with the counts of the
/// disk before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Operations that were carried out.
    pub operations: u64,
    /// Operations that failed by [`Fault::Error`], syncs included.
    pub errors: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Syncs and durable writes that failed.
    pub failed_syncs: u64,
    /// Calls that were not made.
    pub failed_calls: u64,
    /// Operations that found no space.
    pub full: u64,
    /// Operations that were cancelled.
    pub cancelled: u64,
    /// Operations that did only a part because of [`Fault::Short`].
    pub short: u64,
    /// Operations that took longer.
    pub slow: u64,
    /// Syncs that made nothing durable.
    pub false_syncs: u64,
    /// Reads with a wrong bit that was gone afterwards.
    pub rots_once: u64,
    /// Bits that have changed on the media.
    pub rots_lasting: u64,
    /// Reads from another place.
    pub misdirected_reads: u64,
    /// Writes to another place.
    pub misdirected_writes: u64,
    /// Operations for which direct I/O was refused.
    pub direct_refused: u64,
    /// Crashes.
    pub crashes: u64,
    /// Sectors that were pending at a crash and were kept.
    pub sectors_kept: u64,
    /// Those that were dropped.
    pub sectors_dropped: u64,
    /// Those of which a part was kept.
    pub sectors_torn: u64,
    /// Those that have other content than anybody wrote.
    pub sectors_garbled: u64,
    /// Those dropped that show what another file had in their place.
    pub sectors_stale: u64,
    /// Files that became shorter by a crash.
    pub lengths_lost: u64,
    /// Changes of names that were pending at a crash and were kept.
    pub names_kept: u64,
    /// Those that were dropped.
    pub names_dropped: u64,
    /// Operations in flight at a crash that were begun.
    pub cut_short: u64,
}
