//! The state of the collection of garbage, and the choice of what is collected next.
//!
//! Upstream:   `collecting` does the steps; `store` asks whether there will be space.
//! Downstream: the log has the segments; the index knows how much of each is alive.

use std::collections::BTreeSet;

use kachel_io::FileOperation;
use kachel_log::{ClosedSegment, DurableLog, Refusal, SegmentIndex, SegmentScan};

use crate::index::Index;

/// If graves take more than this part of the live bytes, the oldest segments are collected. A
/// guess.
const GRAVES_SHARE: u64 = 8;
/// The seconds after which damaged segments are tried again.
const RETRY_S: u32 = 60;

/// A segment that is collected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) closed: ClosedSegment,
    /// The least sequence of a record in another closed segment. A grave of an older item is not
    /// needed.
    pub(crate) oldest_beside: u64,
}

/// The stage of the collection.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Nothing.
    Idle,
    /// The records of a victim are examined.
    Scanning(Victim, Box<SegmentScan>),
    /// The victim is being freed.
    Freeing(SegmentIndex),
}

/// The collection of garbage of one engine.
#[derive(Debug)]
pub(crate) struct Collection {
    pub(crate) stage: Stage,
    /// The bytes on the disk, in percent of the live bytes, above which garbage is collected.
    pub(crate) target_percent: u64,
    /// The second in which there was no garbage to collect.
    pub(crate) checked: u32,
    /// The free segments that operations wait for.
    pub(crate) wanted_spares: u32,
    /// The second in which the collection itself had no space; 0: it has some.
    pub(crate) stuck: u32,
    /// When a segment was found damaged last.
    pub(crate) damaged_second: u32,
    /// Segments with a record that cannot be read. They are kept as they are.
    pub(crate) damaged: BTreeSet<SegmentIndex>,
}

/// The result of a step.
#[derive(Debug)]
pub(crate) enum Stepped {
    /// There is no work for now: nothing to collect, or an operation is in flight.
    Idle,
    /// This number of bytes was examined.
    Worked(u64),
    /// A segment cannot be collected.
    Damaged(Refusal),
}

impl Collection {
    pub(crate) const fn new(target_percent: u64) -> Self {
        Self {
            stage: Stage::Idle,
            target_percent,
            checked: 0,
            wanted_spares: 0,
            stuck: 0,
            damaged_second: 0,
            damaged: BTreeSet::new(),
        }
    }

    /// The next operation of the scan.
    pub(crate) fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        match &mut self.stage {
            Stage::Scanning(_, scan) => scan.next_submission(),
            Stage::Idle | Stage::Freeing(_) => None,
        }
    }

    /// Takes back an operation of the scan.
    pub(crate) fn complete(&mut self, operation: Box<FileOperation>) {
        match &mut self.stage {
            Stage::Scanning(_, scan) => scan.complete(operation),
            Stage::Idle | Stage::Freeing(_) => {
                unreachable!("a scan is in flight while its operation is")
            }
        }
    }

    /// A segment is free.
    pub(crate) fn freed(&mut self, segment: SegmentIndex) {
        if matches!(self.stage, Stage::Freeing(victim) if victim == segment) {
            self.stage = Stage::Idle;
            // There may be more garbage. An operation that still lacks space sets this again.
            (self.checked, self.wanted_spares, self.stuck) = (0, 0, 0);
        }
    }

    /// The segment whose collection gains most for its cost: the garbage in it, by the bytes that
    /// are read and written for it, times its age. An older segment is colder, so less of it will
    /// die by itself (Rosenblum and Ousterhout, "The design and implementation of a log-structured
    /// file system", TOCS 1992).
    pub(crate) fn victim(&self, log: &DurableLog, index: &Index) -> Option<ClosedSegment> {
        let segment_bytes = log.geometry().segment_bytes();
        let next = log.next_sequence();
        let gain = |closed: &ClosedSegment| {
            let live = index.needed_bytes(closed.segment);
            // A collection must free more than it copies, with the padding of commits.
            let garbage = segment_bytes.checked_sub(live + live / 16 + segment_bytes / 16)?;
            let age = (next - closed.first) as f64;
            (garbage > 0).then_some(garbage as f64 / (segment_bytes + live) as f64 * age)
        };
        let closed = log.closed().filter(|closed| !self.damaged.contains(&closed.segment));
        if self.has_many_graves(log, index) {
            // What is older than the oldest segment needs no grave.
            return closed.min_by_key(|closed| closed.first);
        }
        let gains = closed.filter_map(|closed| Some((gain(&closed)?, closed)));
        gains.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, closed)| closed)
    }

    /// Whether graves take so much space that the oldest segments are collected. That gains nothing
    /// while a segment cannot be collected, because it may have the items.
    pub(crate) fn has_many_graves(&self, log: &DurableLog, index: &Index) -> bool {
        let most = index.live_bytes() / GRAVES_SHARE + log.geometry().segment_bytes();
        self.damaged.is_empty() && index.grave_bytes() > most
    }

    /// Tries damaged segments again, some time after: the disk may read them now.
    pub(crate) fn retry_damaged(&mut self, second: u32) {
        if second >= self.damaged_second.saturating_add(RETRY_S) {
            self.damaged.clear();
        }
    }
}
