//! Reads of single records by their position, each verified before its owner sees it.
//!
//! Upstream:   the owner, which knows the position from an append or from recovery.
//! Downstream: `io`; the owner gets its buffer back with the record in it.
//!
//! Invariants, cited by number where they are asserted:
//! - R1  At most [`READS_MAX`] reads are under way. Each has a slot with an operation, made at the
//!   start.
//! - R2  A record counts only if its segment has had the same use during the whole read.

use std::collections::VecDeque;
use std::ops::Range;

use kachel_io::{AlignedBuffer, FileOperation};

use crate::failure::{Cause, Refusal};
use crate::format::{FORMAT, HEAD_BYTES, LEADER, NoRecord, read_record};
use crate::geometry::Position;
use crate::log_file::LogFile;
use crate::transfer::{Progress, advance};

/// The most reads of a log that are under way. A guess: an `Io` has room for 128 operations.
pub const READS_MAX: usize = 64;

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecord {
    /// Its kind.
    pub kind: u8,
    /// The number that its owner gave it.
    pub epoch: u32,
    /// Its sequence.
    pub sequence: u64,
    /// Where its payload is in the buffer.
    pub payload: Range<usize>,
}

/// Why a record was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// The segment was freed, so the record was given up. Its owner looks for it again.
    Gone,
    /// The disk cannot read it, or it is damaged. Other records are not affected.
    Refused(Refusal),
}

/// A read that has ended.
#[derive(Debug)]
pub struct ReadDone {
    /// The token of the read.
    pub token: u64,
    /// The buffer of the read.
    pub buffer: AlignedBuffer,
    /// The record.
    pub outcome: Result<ReadRecord, ReadFault>,
}

#[derive(Debug)]
struct Read {
    token: u64,
    position: Position,
    generation: u64,
    attempts: u8,
}

#[derive(Debug)]
struct Slot {
    /// `None` while it is in flight.
    operation: Option<Box<FileOperation>>,
    read: Option<Read>,
}

/// The reads of a log.
#[derive(Debug)]
pub(crate) struct Reads {
    file: LogFile,
    slots: Vec<Slot>,
    idle: Vec<usize>,
    queue: VecDeque<usize>,
}

impl Reads {
    /// The operation of the slot `n` has the token `first_token + n`.
    pub(crate) fn new(file: LogFile, first_token: u64) -> Self {
        let slot = |token| Slot { operation: Some(FileOperation::new(token)), read: None };
        let slots: Vec<Slot> = (first_token..).map(slot).take(READS_MAX).collect();
        let queue = VecDeque::with_capacity(READS_MAX);
        Self { file, slots, idle: (0..READS_MAX).collect(), queue }
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.idle.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle.len() == READS_MAX
    }

    /// Queues a read of a record in a segment of this generation.
    pub(crate) fn begin(
        &mut self,
        token: u64,
        position: Position,
        generation: u64,
        buffer: AlignedBuffer,
    ) {
        let index = self.idle.pop().expect("R1: the caller has asked for room");
        let slot = &mut self.slots[index];
        let bytes = position.buffer_bytes();
        let operation = slot.operation.as_mut().expect("R1: an idle slot has its operation");
        operation.work = self.file.read(position.units().start, buffer, bytes);
        slot.read = Some(Read { token, position, generation, attempts: 0 });
        self.queue.push_back(index);
    }

    pub(crate) fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        let index = self.queue.pop_front()?;
        self.slots[index].operation.take()
    }

    /// Takes note of a completed operation of a slot. `generation`: that of a segment by now.
    pub(crate) fn complete(
        &mut self,
        index: usize,
        mut operation: Box<FileOperation>,
        generation: impl FnOnce(&Position) -> u64,
    ) -> Option<ReadDone> {
        let slot = &mut self.slots[index];
        let read = slot.read.as_mut().expect("R1: the slot has a read");
        let progress = advance(&mut operation, &mut read.attempts);
        if progress == Progress::Part {
            slot.operation = Some(operation);
            self.queue.push_back(index);
            return None;
        }
        let Read { token, position, generation: begun, .. } = slot.read.take().expect("seen above");
        let buffer = operation.take_buffer().expect("a read has its buffer");
        slot.operation = Some(operation);
        self.idle.push(index);
        let refused =
            |cause| ReadFault::Refused(Refusal::new(&self.file.path, position.offset, cause));
        let outcome = match progress {
            _ if generation(&position) != begun => Err(ReadFault::Gone), // R2
            Progress::Failed(error) => Err(refused(Cause::Failed(error))),
            _ => self.verify(&buffer, &position, begun).map_err(refused),
        };
        Some(ReadDone { token, buffer, outcome })
    }

    fn verify(
        &self,
        buffer: &[u8],
        position: &Position,
        generation: u64,
    ) -> Result<ReadRecord, Cause> {
        let start = (position.offset - position.units().start) as usize;
        let end = start + HEAD_BYTES + position.payload_bytes as usize;
        let stamp = self.file.stamp(generation);
        match read_record(&buffer[start..end], &stamp, position.offset) {
            Ok(head) if head.kind != LEADER => Ok(ReadRecord {
                kind: head.kind,
                epoch: head.epoch,
                sequence: head.sequence,
                payload: start + HEAD_BYTES..end,
            }),
            Ok(_) | Err(NoRecord::Damaged) => Err(Cause::Damaged(None)),
            Err(NoRecord::Newer(found)) => {
                Err(Cause::Newer { found: found.into(), known: FORMAT.into() })
            }
        }
    }
}
