//! A scan reads a closed segment for the collection of garbage, while the log goes on.
//!
//! Upstream:   the owner asks for one record after the other, each as long as it needs it.
//! Downstream: `io`, one read at a time; `walk` finds the records.
//!
//! ```text
//!   record() --> Wait:    the owner submits a read, and returns after its completion
//!            --> Record:  the same one until advance()
//!            --> End
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - N1  The records of the segment are given in the order of their sequences, none missing.

use kachel_io::FileOperation;

use crate::failure::{Cause, Refusal};
use crate::format::Head;
use crate::geometry::Position;
use crate::replay::FoundRecord;
use crate::task::LOG_TOKEN;
use crate::transfer::{Progress, advance};
use crate::walk::{Halt, Step, Walk, Window};

/// The most bytes that a scan reads at once. A guess: the owner processes the records of one read
/// in one hold of its lock.
pub(crate) const SCAN_BYTES: usize = 256 * 1024;

/// What a scan has come to.
#[derive(Clone, Copy, Debug)]
pub enum Scanned<'a> {
    /// A record.
    Record(FoundRecord<'a>),
    /// The next records are not in memory. There is a read to be submitted, or it is in flight.
    Wait,
    /// All records were given.
    End,
}

/// A scan of a closed segment; see [`crate::DurableLog::scan`].
#[derive(Debug)]
pub struct SegmentScan {
    window: Window,
    walk: Walk,
    /// The sequence behind the last record.
    end: u64,
    record: Option<(Position, Head)>,
    /// `None` while it is in flight.
    operation: Option<Box<FileOperation>>,
    /// Whether `operation` is to be submitted, or is in flight.
    is_reading: bool,
    attempts: u8,
    refusal: Option<Refusal>,
}

impl SegmentScan {
    /// A scan of the records from the sequence at which `walk` is to before `end`.
    pub(crate) fn new(window: Window, walk: Walk, end: u64, number: u16) -> Self {
        let operation = Some(FileOperation::new(LOG_TOKEN | u64::from(number)));
        let (record, is_reading, attempts, refusal) = (None, false, 0, None);
        Self { window, walk, end, record, operation, is_reading, attempts, refusal }
    }

    /// The record to which the scan has come. It stays the same until [`Self::advance`], so an
    /// owner that cannot append it yet asks again.
    ///
    /// Cost: the first time, a checksum of the record.
    ///
    /// Errors: the segment is damaged, or the disk cannot read it. The scan has ended.
    pub fn record(&mut self) -> Result<Scanned<'_>, Refusal> {
        while self.record.is_none() {
            if let Some(refusal) = &self.refusal {
                return Err(refusal.clone());
            }
            if self.is_reading {
                return Ok(Scanned::Wait);
            }
            if self.walk.sequence >= Some(self.end) {
                return Ok(Scanned::End);
            }
            match self.walk.step(&self.window) {
                Ok(Step::Commit) => {}
                Ok(Step::Record(position, head)) => self.record = Some((position, head)),
                Ok(Step::End) => {
                    let cause = Cause::Damaged(self.walk.sequence);
                    self.refuse(self.walk.place(), cause); // N1
                }
                Err(Halt::Refused(refusal)) => self.refusal = Some(refusal),
                Err(Halt::Absent(offset)) => self.read(offset),
            }
        }
        let (position, head) = self.record.as_ref().expect("the loop has found it");
        Ok(Scanned::Record(FoundRecord::new(&self.window, *position, *position, head)))
    }

    /// Goes on to the next record.
    pub const fn advance(&mut self) {
        self.record = None;
    }

    fn refuse(&mut self, offset: u64, cause: Cause) {
        self.refusal = Some(Refusal::new(&self.window.file.path, offset, cause));
    }

    fn read(&mut self, offset: u64) {
        let Some((work, _)) = self.window.begin(offset) else { return };
        self.operation.as_mut().expect("no read is in flight").work = work;
        (self.is_reading, self.attempts) = (true, 0);
    }

    /// The next operation to be submitted.
    pub fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        if self.is_reading { self.operation.take() } else { None }
    }

    /// Takes back a completed operation of this scan.
    pub fn complete(&mut self, mut operation: Box<FileOperation>) {
        let progress = advance(&mut operation, &mut self.attempts);
        match progress {
            Progress::Part => {}
            Progress::Whole => {
                self.window.fill(operation.take_buffer().expect("a read has its buffer"));
                self.is_reading = false;
            }
            Progress::Failed(error) => self.refuse(self.window.start(), Cause::Failed(error)),
            Progress::AtEnd | Progress::NoSpace => {
                self.refuse(self.window.start(), Cause::Truncated);
            }
        }
        self.operation = Some(operation);
        self.is_reading &= self.refusal.is_none();
    }
}
