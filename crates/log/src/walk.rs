//! Reads segments from their beginning, record by record, and trusts no byte of them.
//!
//! Upstream:   `recovery`.
//! Downstream: `io`, by one buffer of at most 1 MiB.
//!
//! Invariants, cited by number where they are asserted:
//! - W1  A walk goes forward with each step, and never leaves its segment.

use kachel_io::AlignedBuffer;

use crate::failure::{Cause, Refusal};
use crate::format::{
    FORMAT, HEAD_BYTES, Head, LEADER, LEADER_BYTES, Leader, NoRecord, Stamp, claimed_payload_bytes,
    read_leader, read_record, record_bytes,
};
use crate::geometry::{Position, SegmentIndex, UNIT_BYTES};
use crate::log_file::LogFile;
use crate::task::Port;

/// The part of the file that is in memory.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) file: LogFile,
    port: Port,
    file_bytes: u64,
    /// `None` while it is being filled.
    buffer: Option<AlignedBuffer>,
    /// The part of the file, of one segment.
    start: u64,
    end: u64,
}

impl Window {
    /// `bytes_max`: the most bytes that a read takes, in whole units.
    pub(crate) fn new(file: LogFile, file_bytes: u64, port: Port, bytes_max: usize) -> Self {
        let bytes = (file.geometry.segment_bytes() as usize).min(bytes_max);
        let buffer = Some(AlignedBuffer::new(bytes, UNIT_BYTES));
        Self { file, port, file_bytes, buffer, start: 0, end: 0 }
    }

    /// The bytes of a part of a segment. What the file does not have is zeros.
    pub(crate) async fn bytes(&mut self, offset: u64, bytes: usize) -> Result<&[u8], Refusal> {
        let end = offset + bytes as u64;
        if offset < self.start || end > self.end {
            self.fill(offset).await?;
        }
        assert!(end <= self.end, "W1: a part of a segment, and shorter than the buffer");
        let buffer = self.buffer.as_ref().expect("it is filled");
        Ok(&buffer[(offset - self.start) as usize..][..bytes])
    }

    async fn fill(&mut self, offset: u64) -> Result<(), Refusal> {
        let geometry = &self.file.geometry;
        let mut buffer = self.buffer.take().expect("one use at a time");
        self.start = offset / UNIT_BYTES as u64 * UNIT_BYTES as u64;
        let left = geometry.end(geometry.segment_of(offset)) - self.start;
        let bytes = left.min(buffer.len() as u64) as usize;
        self.end = self.start + bytes as u64;
        buffer.fill(0);
        let there = self.file_bytes.saturating_sub(self.start).min(bytes as u64) as usize;
        if there > 0 {
            let work = self.file.read(self.start, buffer, bytes);
            buffer =
                self.port.transfer(work, there).await.map_err(|error| {
                    Refusal::new(&self.file.path, self.start, Cause::Failed(error))
                })?;
        }
        self.buffer = Some(buffer);
        Ok(())
    }

    /// The leader at this offset, if there is one.
    pub(crate) async fn leader(
        &mut self,
        stamp: &Stamp,
        offset: u64,
    ) -> Result<Option<Leader>, Refusal> {
        let leader = read_leader(self.bytes(offset, LEADER_BYTES).await?, stamp, offset);
        self.known(leader, offset)
    }

    /// The record at this offset that ends before `end`, if there is one.
    async fn record(
        &mut self,
        stamp: &Stamp,
        offset: u64,
        end: u64,
    ) -> Result<Option<Head>, Refusal> {
        let room = (end - offset) as usize;
        if room < HEAD_BYTES {
            return Ok(None);
        }
        let claimed = claimed_payload_bytes(self.bytes(offset, HEAD_BYTES).await?) as usize;
        if claimed > self.file.geometry.payload_bytes_max().min(room - HEAD_BYTES) {
            return Ok(None);
        }
        let head = read_record(self.bytes(offset, HEAD_BYTES + claimed).await?, stamp, offset);
        self.known(head, offset)
    }

    fn known<T>(&self, read: Result<T, NoRecord>, offset: u64) -> Result<Option<T>, Refusal> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(NoRecord::Damaged) => Ok(None),
            Err(NoRecord::Newer(found)) => {
                let cause = Cause::Newer { found: found.into(), known: FORMAT.into() };
                Err(Refusal::new(&self.file.path, offset, cause))
            }
        }
    }
}

/// What a walk has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The beginning of a commit.
    Commit,
    /// A record.
    Record(Position, Head),
    /// No record follows.
    End,
}

/// A walk through a segment.
#[derive(Debug)]
pub(crate) struct Walk {
    stamp: Stamp,
    segment_end: u64,
    /// Where the next record or commit is.
    pub(crate) offset: u64,
    commit_end: u64,
    /// The sequence of the next record. `None` before the first commit.
    pub(crate) sequence: Option<u64>,
    /// Records below this sequence were durable when the segment was written.
    pub(crate) durable: u64,
}

impl Walk {
    pub(crate) fn new(file: &LogFile, segment: SegmentIndex, generation: u64) -> Self {
        let offset = file.geometry.first_commit(segment);
        Self {
            stamp: file.stamp(generation),
            segment_end: file.geometry.end(segment),
            offset,
            commit_end: offset,
            sequence: None,
            durable: 0,
        }
    }

    /// Goes to the next commit or record.
    ///
    /// Errors: the disk cannot read it, or it is of a later version.
    pub(crate) async fn step(&mut self, window: &mut Window) -> Result<Step, Refusal> {
        if self.offset < self.commit_end {
            return self.step_in_commit(window).await;
        }
        let offset = self.offset.next_multiple_of(UNIT_BYTES as u64);
        if offset >= self.segment_end {
            return Ok(Step::End);
        }
        let Some(leader) = window.leader(&self.stamp, offset).await? else { return Ok(Step::End) };
        let commit_end = offset + u64::from(leader.commit_bytes);
        let is_next = self.sequence.is_none_or(|sequence| sequence == leader.first);
        let bytes_max = window.file.geometry.commit_bytes_max();
        let is_sound = (LEADER_BYTES + 1..=bytes_max).contains(&(leader.commit_bytes as usize));
        if !is_next || !is_sound || commit_end > self.segment_end {
            return Ok(Step::End);
        }
        self.sequence = Some(leader.first);
        self.durable = self.durable.max(leader.durable);
        (self.offset, self.commit_end) = (offset + LEADER_BYTES as u64, commit_end); // W1
        Ok(Step::Commit)
    }

    async fn step_in_commit(&mut self, window: &mut Window) -> Result<Step, Refusal> {
        let Some(head) = window.record(&self.stamp, self.offset, self.commit_end).await? else {
            return Ok(Step::End);
        };
        if Some(head.sequence) != self.sequence || head.kind == LEADER {
            return Ok(Step::End);
        }
        let position = Position { offset: self.offset, payload_bytes: head.payload_bytes };
        self.offset += record_bytes(head.payload_bytes as usize) as u64; // W1
        self.sequence = Some(head.sequence + 1);
        Ok(Step::Record(position, head))
    }

    /// Goes over the rest of the segment, and notes what later commits say is durable.
    ///
    /// Errors: the disk cannot read it, or it is of a later version.
    pub(crate) async fn survey(&mut self, window: &mut Window) -> Result<(), Refusal> {
        let mut offset = self.offset / UNIT_BYTES as u64 * UNIT_BYTES as u64;
        while offset < self.segment_end {
            if let Some(leader) = window.leader(&self.stamp, offset).await? {
                self.durable = self.durable.max(leader.durable);
            }
            offset += UNIT_BYTES as u64; // W1
        }
        Ok(())
    }
}
