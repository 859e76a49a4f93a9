//! Commits: records are gathered in one buffer while the commit before is written from the other.
//!
//! Upstream:   the log appends records; while no commit is in flight, it submits the next one.
//! Downstream: `io`, one operation at a time.
//!
//! ```text
//!   append --> forming --submit--> in flight --+--> done: its records have reached the kernel, or
//!                                      ^       |    the disk if the write is a durable one
//!                                      +-------+ a part was written, or there was no space
//! ```
//!
//! There is no timer. The device sets the size of a commit: it has what was appended while the
//! commit before was written.
//!
//! Invariants, cited by number where they are asserted:
//! - C1  One commit is in flight at most, and the next one begins behind it, or in another segment.
//! - C2  A commit lies in one segment, and takes whole units (F1 of `format`, G1 of `geometry`).

use kachel_io::{AlignedBuffer, FileOperation};
use kachel_stdx::Sequence;

use crate::failure::Failure;
use crate::format::{Head, LEADER, LEADER_BYTES, Leader, record_bytes, write_leader, write_record};
use crate::geometry::{Position, SegmentIndex, UNIT_BYTES};
use crate::log_file::LogFile;
use crate::transfer::{Progress, advance};

/// A record that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Where it will be.
    pub position: Position,
    /// Its sequence: one more than that of the record before it.
    pub sequence: u64,
    /// The record is written when the durable word has reached this number, which it shares with
    /// all records of its commit.
    pub commit: Sequence,
}

/// Where the next commit begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) segment: SegmentIndex,
    pub(crate) generation: u64,
    pub(crate) offset: u64,
}

/// The commit to which records are appended.
#[derive(Debug)]
struct Forming {
    place: Place,
    /// Bytes in the buffer, leader included.
    bytes: usize,
    first: u64,
}

/// A commit that is being written.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) place: Place,
    pub(crate) end_offset: u64,
    /// The sequence behind its last record.
    pub(crate) end: u64,
    /// The number of the commit.
    pub(crate) number: u64,
    attempts: u8,
}

/// Where a record can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Into the forming commit.
    Here,
    /// Into the commit behind it.
    NextCommit,
    /// Into another segment.
    NextSegment,
}

/// The commits of a log.
#[derive(Debug)]
pub(crate) struct Commits {
    file: LogFile,
    /// Where the next commit begins, which may be forming already.
    next: Option<Place>,
    forming: Option<Forming>,
    /// The memory of the forming commit.
    buffer: AlignedBuffer,
    /// The memory of the other one. `None` while it is in flight.
    other: Option<AlignedBuffer>,
    /// `None` while it is in flight.
    operation: Option<Box<FileOperation>>,
    flight: Option<Flight>,
    /// Whether the commit waits for space.
    is_stalled: bool,
    /// The number of the next commit.
    number: u64,
    next_sequence: u64,
}

impl Commits {
    /// `number`: that of the first commit.
    pub(crate) fn new(file: LogFile, next_sequence: u64, number: u64, token: u64) -> Self {
        let bytes = file.geometry.commit_bytes_max();
        Self {
            file,
            next: None,
            forming: None,
            buffer: AlignedBuffer::new(bytes, UNIT_BYTES),
            other: Some(AlignedBuffer::new(bytes, UNIT_BYTES)),
            operation: Some(FileOperation::new(token)),
            flight: None,
            is_stalled: false,
            number,
            next_sequence,
        }
    }

    pub(crate) const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// The number of the forming commit, or of the next one.
    pub(crate) const fn next_commit(&self) -> Sequence {
        Sequence(self.number)
    }

    /// Has later commits begin in a segment.
    pub(crate) fn begin_segment(&mut self, segment: SegmentIndex, generation: u64) {
        let offset = self.file.geometry.first_commit(segment);
        self.next = Some(Place { segment, generation, offset });
    }

    fn room(&self, place: Place) -> usize {
        let geometry = &self.file.geometry;
        let left = geometry.end(place.segment) - place.offset;
        geometry.commit_bytes_max().min(left as usize)
    }

    /// Where a record with a payload of this length can go.
    pub(crate) fn fit(&self, payload_bytes: usize) -> Fit {
        let bytes = record_bytes(payload_bytes);
        match (&self.forming, self.next) {
            (Some(forming), _) if forming.bytes + bytes <= self.room(forming.place) => Fit::Here,
            (Some(_), _) => Fit::NextCommit,
            (None, Some(place)) if LEADER_BYTES + bytes <= self.room(place) => Fit::Here,
            _ => Fit::NextSegment,
        }
    }

    /// Appends a record that fits.
    pub(crate) fn append(&mut self, kind: u8, epoch: u32, parts: &[&[u8]]) -> Appended {
        debug_assert!(kind != LEADER, "owners have other kinds");
        let payload_bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        assert!(self.fit(payload_bytes) == Fit::Here, "C2");
        let sequence = self.next_sequence;
        let begin =
            || Forming { place: self.next.expect("it fits"), bytes: LEADER_BYTES, first: sequence };
        let mut forming = self.forming.take().unwrap_or_else(begin);
        let offset = forming.place.offset + forming.bytes as u64;
        let stamp = self.file.stamp(forming.place.generation);
        let head = Head { kind, payload_bytes: payload_bytes as u32, epoch, sequence };
        let to = &mut self.buffer[forming.bytes..];
        forming.bytes += write_record(to, &stamp, offset, &head, parts);
        self.forming = Some(forming);
        self.next_sequence += 1;
        let position = Position { offset, payload_bytes: payload_bytes as u32 };
        Appended { position, sequence, commit: self.next_commit() }
    }

    /// Whether the forming commit may be submitted: it has a record, and no commit is in flight.
    pub(crate) const fn is_ready(&self) -> bool {
        self.forming.is_some() && self.flight.is_none()
    }

    /// The next operation: the rest of the commit in flight, or the forming one. `durable`: the
    /// records below this sequence are durable. `waits`: whether the operation waits for the disk.
    pub(crate) fn submit(&mut self, durable: u64, waits: bool) -> Option<Box<FileOperation>> {
        if self.flight.is_some() {
            // The bytes that were refused, or the rest of them: F2 of `format`.
            return if self.is_stalled { None } else { self.operation.take() };
        }
        let Forming { place, bytes, first } = self.forming.take()?;
        let mut operation = self.operation.take().expect("C1");
        let end = bytes.next_multiple_of(UNIT_BYTES);
        self.buffer[bytes..end].fill(0);
        let leader = Leader { first, durable, commit_bytes: bytes as u32 };
        write_leader(&mut self.buffer, &self.file.stamp(place.generation), place.offset, &leader);
        let other = self.other.take().expect("C1");
        let buffer = std::mem::replace(&mut self.buffer, other);
        operation.work = self.file.write(place.offset, buffer, end, waits);
        let end_offset = place.offset + end as u64;
        assert!(end_offset <= self.file.geometry.end(place.segment), "C2; F1 of `format`");
        self.next = Some(Place { offset: end_offset, ..place }); // F2 of `format`
        let (end, number) = (self.next_sequence, self.number);
        self.flight = Some(Flight { place, end_offset, end, number, attempts: 0 });
        self.number += 1;
        Some(operation)
    }

    /// Takes note of a completed operation. Returns the commit if it is whole.
    ///
    /// Errors: it could not be written.
    pub(crate) fn complete(
        &mut self,
        mut operation: Box<FileOperation>,
    ) -> Result<Option<Flight>, Failure> {
        let flight = self.flight.as_mut().expect("C1");
        let progress = advance(&mut operation, &mut flight.attempts);
        self.is_stalled = progress == Progress::NoSpace;
        let offset = flight.place.offset;
        match progress {
            Progress::Whole => self.other = operation.take_buffer(),
            Progress::Failed(error) => {
                return Err(Failure::new(&self.file.path, "the write of a commit", offset, error));
            }
            Progress::Part | Progress::NoSpace | Progress::AtEnd => {}
        }
        self.operation = Some(operation);
        Ok(if progress == Progress::Whole { self.flight.take() } else { None })
    }

    /// Whether the commit in flight waits for space.
    pub(crate) const fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Tries again what had no space.
    pub(crate) fn retry(&mut self) {
        self.is_stalled = false;
    }

    /// Whether nothing is appended that is not written.
    pub(crate) const fn is_idle(&self) -> bool {
        self.forming.is_none() && self.flight.is_none()
    }

    /// Whether the byte of the file belongs to a commit that is not written yet.
    pub(crate) fn is_pending(&self, offset: u64) -> bool {
        let of_flight =
            |flight: &Flight| (flight.place.offset..flight.end_offset).contains(&offset);
        let of_forming = |forming: &Forming| {
            let start = forming.place.offset;
            (start..start + forming.bytes as u64).contains(&offset)
        };
        self.flight.as_ref().is_some_and(of_flight) || self.forming.as_ref().is_some_and(of_forming)
    }
}
