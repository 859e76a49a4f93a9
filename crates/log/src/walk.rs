//! Reads segments from their beginning, record by record, and trusts no byte of them.
//!
//! Upstream:   `recovery`, `scan` and `verify` step through a segment, and read what is absent.
//! Downstream: a window of at most 1 MiB, which `io` fills.
//!
//! Invariants, cited by number where they are asserted:
//! - W1  A walk goes forward with each step, and never leaves its segment. A step that finds its
//!   bytes absent changes nothing, so it is repeated once they are there.

use kachel_io::{AlignedBuffer, FileWork};

use crate::failure::{Cause, Refusal};
use crate::format::{
    FORMAT, HEAD_BYTES, Head, LEADER, LEADER_BYTES, Leader, NoRecord, Stamp, claimed_payload_bytes,
    read_leader, read_record, record_bytes,
};
use crate::geometry::{Position, SegmentIndex, UNIT_BYTES};
use crate::log_file::LogFile;
use crate::task::Port;

/// Why a step was not made.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The window must be filled from this offset on.
    Absent(u64),
    /// The bytes are of a later version.
    Refused(Refusal),
}

/// The part of the file that is in memory.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) file: LogFile,
    file_bytes: u64,
    bytes_max: usize,
    /// `None` while it is being filled.
    buffer: Option<AlignedBuffer>,
    /// The part of the file, of one segment.
    start: u64,
    end: u64,
}

impl Window {
    /// `bytes_max`: the most bytes that a read takes, in whole units.
    pub(crate) fn new(file: LogFile, file_bytes: u64, bytes_max: usize) -> Self {
        let bytes_max = (file.geometry.segment_bytes() as usize).min(bytes_max);
        let buffer = Some(AlignedBuffer::new(bytes_max, UNIT_BYTES));
        Self { file, file_bytes, bytes_max, buffer, start: 0, end: 0 }
    }

    /// The bytes of a part of a segment. What the file does not have is zeros.
    pub(crate) fn bytes(&self, offset: u64, bytes: usize) -> Result<&[u8], Halt> {
        match &self.buffer {
            Some(buffer) if offset >= self.start && offset + bytes as u64 <= self.end => {
                Ok(&buffer[(offset - self.start) as usize..][..bytes])
            }
            _ => Err(Halt::Absent(offset)),
        }
    }

    /// The payload of a record to which a walk has just come.
    pub(crate) fn payload(&self, position: Position) -> &[u8] {
        let start = position.offset + HEAD_BYTES as u64;
        let payload = self.bytes(start, position.payload_bytes as usize);
        payload.expect("the walk has seen the whole record")
    }

    /// Begins to fill the window from this offset on. Returns the read and the number of bytes that
    /// it must bring. The buffer comes back by [`Self::fill`].
    pub(crate) fn begin(&mut self, offset: u64) -> Option<(FileWork, usize)> {
        let geometry = &self.file.geometry;
        let mut buffer = self.buffer.take().expect("one read at a time");
        self.start = offset / UNIT_BYTES as u64 * UNIT_BYTES as u64;
        let left = geometry.end(geometry.segment_of(offset)) - self.start;
        let bytes = left.min(buffer.len() as u64) as usize;
        self.end = self.start + bytes as u64;
        buffer.fill(0);
        let there = self.file_bytes.saturating_sub(self.start).min(bytes as u64) as usize;
        if there == 0 {
            self.fill(buffer);
            return None;
        }
        Some((self.file.read(self.start, buffer, bytes), there))
    }

    /// Takes the buffer with the bytes that were read.
    pub(crate) fn fill(&mut self, buffer: AlignedBuffer) {
        self.buffer = Some(buffer);
    }

    /// Forgets the part that is in memory.
    pub(crate) const fn clear(&mut self) {
        self.end = self.start;
    }

    /// Notes that a read has failed. Its buffer is gone.
    fn lose(&mut self) {
        self.buffer = Some(AlignedBuffer::new(self.bytes_max, UNIT_BYTES));
        self.end = self.start;
    }

    /// The most bytes that a read takes.
    pub(crate) const fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Where the window begins in the file.
    pub(crate) const fn start(&self) -> u64 {
        self.start
    }

    /// The leader at this offset, if there is one.
    pub(crate) fn leader(&self, stamp: &Stamp, offset: u64) -> Result<Option<Leader>, Halt> {
        let leader = read_leader(self.bytes(offset, LEADER_BYTES)?, stamp, offset);
        self.known(leader, offset)
    }

    /// The record at this offset that ends before `end`, if there is one.
    fn record(&self, stamp: &Stamp, offset: u64, end: u64) -> Result<Option<Head>, Halt> {
        let room = (end - offset) as usize;
        if room < HEAD_BYTES {
            return Ok(None);
        }
        let claimed = claimed_payload_bytes(self.bytes(offset, HEAD_BYTES)?) as usize;
        if claimed > self.file.geometry.payload_bytes_max().min(room - HEAD_BYTES) {
            return Ok(None);
        }
        let head = read_record(self.bytes(offset, HEAD_BYTES + claimed)?, stamp, offset);
        self.known(head, offset)
    }

    fn known<T>(&self, read: Result<T, NoRecord>, offset: u64) -> Result<Option<T>, Halt> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(NoRecord::Damaged) => Ok(None),
            Err(NoRecord::Newer(found)) => {
                let cause = Cause::Newer { found: found.into(), known: FORMAT.into() };
                Err(Halt::Refused(Refusal::new(&self.file.path, offset, cause)))
            }
        }
    }
}

/// A window whose absent bytes are read by a task.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) window: Window,
    port: Port,
}

impl Reader {
    pub(crate) const fn new(window: Window, port: Port) -> Self {
        Self { window, port }
    }

    /// Repeats `look` until the bytes that it needs are there.
    ///
    /// Errors: the disk cannot read them, or they are of a later version.
    pub(crate) async fn read<T>(
        &mut self,
        mut look: impl FnMut(&Window) -> Result<T, Halt>,
    ) -> Result<T, Refusal> {
        loop {
            match look(&self.window) {
                Ok(seen) => return Ok(seen),
                Err(Halt::Refused(refusal)) => return Err(refusal),
                Err(Halt::Absent(offset)) => self.fill(offset).await?,
            }
        }
    }

    /// Writes the units of the window that begin before `end` to the same place in another file.
    /// Returns their bytes.
    ///
    /// Errors: they cannot be written.
    pub(crate) async fn copy_front(&mut self, to: &LogFile, end: u64) -> Result<u64, Refusal> {
        let Window { start, end: window_end, .. } = self.window;
        let end = end.next_multiple_of(UNIT_BYTES as u64).min(window_end);
        let bytes = end.saturating_sub(start);
        if bytes == 0 {
            return Ok(0);
        }
        let buffer = self.window.buffer.take().expect("it is filled");
        let work = to.write(start, buffer, bytes as usize, false);
        match self.port.transfer(work, bytes as usize).await {
            Ok(buffer) => self.window.fill(buffer),
            Err(error) => {
                self.window.lose();
                return Err(Refusal::new(&to.path, start, Cause::Failed(error)));
            }
        }
        Ok(bytes)
    }

    /// Fills the window from this offset on.
    ///
    /// Errors: the disk cannot read it.
    pub(crate) async fn fill(&mut self, offset: u64) -> Result<(), Refusal> {
        let Some((work, there)) = self.window.begin(offset) else { return Ok(()) };
        match self.port.transfer(work, there).await {
            Ok(buffer) => self.window.fill(buffer),
            Err(error) => {
                let path = self.window.file.path.clone();
                self.window.lose();
                return Err(Refusal::new(&path, self.window.start, Cause::Failed(error)));
            }
        }
        Ok(())
    }

    /// The next step of a walk.
    pub(crate) async fn step(&mut self, walk: &mut Walk) -> Result<Step, Refusal> {
        self.read(|window| walk.step(window)).await
    }

    /// Goes over the rest of a walk's segment, and notes what later commits say is durable.
    pub(crate) async fn survey(&mut self, walk: &mut Walk) -> Result<(), Refusal> {
        let mut offset = walk.offset / UNIT_BYTES as u64 * UNIT_BYTES as u64;
        self.read(|window| walk.next_leader(window, &mut offset, u64::MAX)).await.map(|_| ())
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

    /// Where the next record or leader is.
    pub(crate) const fn place(&self) -> u64 {
        if self.is_in_commit() {
            self.offset
        } else {
            self.offset.next_multiple_of(UNIT_BYTES as u64)
        }
    }

    /// Whether the commit to which the walk has come has not all of its records yet.
    pub(crate) const fn is_in_commit(&self) -> bool {
        self.offset < self.commit_end
    }

    /// Goes to the next commit or record.
    ///
    /// Errors: its bytes are absent, or of a later version.
    pub(crate) fn step(&mut self, window: &Window) -> Result<Step, Halt> {
        if self.is_in_commit() {
            return self.step_in_commit(window);
        }
        let offset = self.place();
        if offset >= self.segment_end {
            return Ok(Step::End);
        }
        let Some(leader) = window.leader(&self.stamp, offset)? else { return Ok(Step::End) };
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

    fn step_in_commit(&mut self, window: &Window) -> Result<Step, Halt> {
        let Some(head) = window.record(&self.stamp, self.offset, self.commit_end)? else {
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

    /// Goes over the units of the segment from `offset` on, and notes what their leaders say is
    /// durable. Returns the place of the first leader of records from `sequence` on.
    ///
    /// Errors: the bytes at `offset`, which has gone forward, are absent, or of a later version.
    pub(crate) fn next_leader(
        &mut self,
        window: &Window,
        offset: &mut u64,
        sequence: u64,
    ) -> Result<Option<u64>, Halt> {
        while *offset < self.segment_end {
            if let Some(leader) = window.leader(&self.stamp, *offset)? {
                self.durable = self.durable.max(leader.durable);
                if leader.first >= sequence {
                    return Ok(Some(*offset));
                }
            }
            *offset += UNIT_BYTES as u64; // W1
        }
        Ok(None)
    }

    /// Goes on with the commit at a place behind this one.
    pub(crate) fn resume(&mut self, offset: u64) {
        assert!(self.offset <= offset && offset <= self.segment_end, "W1");
        (self.offset, self.commit_end, self.sequence) = (offset, offset, None);
    }
}
