//! The segments of the file, and the jobs that change their headers.
//!
//! Upstream:   the log asks for the next segment, closes full ones and frees those that its owner
//!             gives up.
//! Downstream: `io`, one operation at a time.
//!
//! ```text
//! job:  [allocate --> sync] --> a slot --> the other slot --> the table has the new header
//! ```
//!
//! Only a segment that is added to the file is allocated. The sync makes the length of the file
//! durable. So a file that ends within a segment with a header was truncated.
//!
//! Invariants, cited by number where they are asserted:
//! - S1  Jobs are done one after the other, in their order. So a segment is prepared only after
//!   the one before the last is closed, and at most two segments with records are open.
//! - S2  The slot that does not have the last durable header is written first.
//! - S3  A segment without records of its generation is in `free`, is `next`, is current, or has a
//!   job that adds it.
//! - S4  The next segment is taken only while another one is free. So recovery can copy the last
//!   segment even if the file system is full.
//! - S5  A header is written only after all segments before its own have one. So a start refuses a
//!   file in which one of those is missing.

use std::collections::VecDeque;

use kachel_io::{AlignedBuffer, FileOperation, FileWork};

use crate::failure::Failure;
use crate::geometry::{SegmentIndex, UNIT_BYTES};
use crate::header::{Header, State, write_header};
use crate::log_file::LogFile;
use crate::transfer::{Progress, advance};

/// A segment of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// The last durable header.
    pub(crate) header: Header,
    /// The slot to be written first (S2).
    pub(crate) first_slot: u8,
    /// Whether its owner has given it up.
    pub(crate) is_leaving: bool,
}

impl Segment {
    /// A segment that is added to the file, or without a header there.
    pub(crate) const NEW: Self = Self { header: Header::NONE, first_slot: 0, is_leaving: false };

    const fn is_new(&self) -> bool {
        self.header.generation == Header::NONE.generation
    }
}

/// What a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A free segment becomes the next one.
    Prepare,
    /// A segment is added to the file, and is free.
    Add,
    /// A free segment gets a generation in which recovery may write to it.
    Copy,
    /// The segment becomes free.
    Free,
    /// The header changes, and nothing else.
    Change,
}

/// The space of a job's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    /// It is to be allocated.
    Wanted,
    /// The length of the file is to be made durable.
    Unsynced,
    /// The segment has it.
    There,
}

#[derive(Debug)]
struct Job {
    segment: SegmentIndex,
    header: Header,
    purpose: Purpose,
    space: Space,
    /// The slots that are written.
    slots: u8,
}

/// The segment that follows the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    None,
    Preparing,
    Ready(SegmentIndex),
}

/// All segments of a log.
#[derive(Debug)]
pub(crate) struct Segments {
    file: LogFile,
    table: Vec<Segment>,
    free: VecDeque<SegmentIndex>,
    next: Next,
    /// Whether a job adds a segment that will be free.
    is_adding: bool,
    /// The free segments that the owner wants to have beside the one for recovery (S4).
    reserve: u32,
    jobs: VecDeque<Job>,
    /// The operation of the first job. `None` while it is in flight.
    operation: Option<Box<FileOperation>>,
    /// Whether `operation` is the rest of a write.
    is_begun: bool,
    attempts: u8,
    next_generation: u64,
    /// See [`Header::closed_end`].
    closed_end: u64,
    /// The file has this number of segments for certain; see [`Header::segments`].
    durable_segments: u32,
    /// Whether the file system had no space for a segment. Until it has, no more segments count.
    is_refused: bool,
    /// Whether the first job waits for [`Self::retry`], because the file system has no space for a
    /// header.
    is_stalled: bool,
}

impl Segments {
    /// `table` has all segments of the file, none in use by a job. `next_generation` is greater
    /// than all in it.
    pub(crate) fn new(file: LogFile, table: Vec<Segment>, token: u64) -> Self {
        let is_free = |segment: &Segment| segment.header.state == State::Free;
        let free = (0..).zip(&table).filter(|(_, segment)| is_free(segment));
        let free = free.map(|(index, _)| SegmentIndex(index)).collect();
        let next_generation = table.iter().map(|segment| segment.header.generation).max();
        let closed_end = table.iter().map(|segment| segment.header.closed_end).max();
        let durable_segments = table.iter().map(|segment| segment.header.segments).max();
        Self {
            file,
            free,
            next: Next::None,
            is_adding: false,
            reserve: 0,
            jobs: VecDeque::new(),
            operation: Some(FileOperation::new(token)),
            is_begun: false,
            attempts: 0,
            next_generation: next_generation.map_or(1, |greatest| greatest + 1),
            closed_end: closed_end.unwrap_or(Header::NONE.closed_end),
            durable_segments: durable_segments.unwrap_or(0),
            table,
            is_refused: false,
            is_stalled: false,
        }
    }

    pub(crate) fn get(&self, segment: SegmentIndex) -> &Segment {
        &self.table[segment.index()]
    }

    /// All segments of the file, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentIndex, &Segment)> {
        (0..).map(SegmentIndex).zip(&self.table)
    }

    /// The segments that may still be written, without the current one.
    pub(crate) fn spare(&self) -> u32 {
        let more = self.most().saturating_sub(self.table.len() as u32);
        let is_added = self.is_adding && !self.is_refused;
        let soon = u32::from(self.next != Next::None) + u32::from(is_added);
        self.free.len() as u32 + more + soon
    }

    /// The most segments, as far as the file system has space.
    pub(crate) fn most(&self) -> u32 {
        let geometry = &self.file.geometry;
        if self.is_refused { self.table.len() as u32 } else { geometry.segments_max() }
    }

    /// Whether a header waits for space.
    pub(crate) const fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Whether the file system had no space for a segment.
    pub(crate) const fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Whether no job is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Tries again what had no space.
    pub(crate) fn retry(&mut self) {
        self.is_stalled = false;
        if self.is_refused && !self.is_adding {
            let segment = self.push();
            self.is_adding = segment.is_some();
            segment.map(|segment| self.begin_use(segment, State::Free, Purpose::Add));
        }
    }

    /// Whether it is tried again to add a segment.
    pub(crate) const fn is_retrying(&self) -> bool {
        self.is_refused && self.is_adding
    }

    /// Has the file grow until this number of free segments has space, beside the one that recovery
    /// needs.
    pub(crate) const fn set_reserve(&mut self, segments: u32) {
        self.reserve = segments;
    }

    /// Whether the free segments are needed for the reserve and for recovery.
    fn needs_free(&self) -> bool {
        self.free.len() as u32 <= self.reserve
    }

    /// Takes a free segment, or a new one at the end of the file if none is free.
    pub(crate) fn take_free(&mut self) -> Option<SegmentIndex> {
        self.free.pop_front().or_else(|| self.add())
    }

    /// Takes a new segment at the end of the file, unless the file system had no space for one.
    fn add(&mut self) -> Option<SegmentIndex> {
        if self.is_refused { None } else { self.push() }
    }

    fn push(&mut self) -> Option<SegmentIndex> {
        let count = self.table.len() as u32;
        (count < self.file.geometry.segments_max()).then(|| {
            self.table.push(Segment::NEW);
            SegmentIndex(count)
        })
    }

    /// Whether the file has space for this number of free segments, beside the one that recovery
    /// needs. If not, and the file may grow, adds one: [`Self::is_preparing`].
    pub(crate) fn reserve(&mut self, segments: u32) -> bool {
        let has_next = matches!(self.next, Next::Ready(_));
        let is_there = self.free.len() as u32 + u32::from(has_next) > segments;
        if !is_there && !self.is_adding {
            self.begin_adding();
        }
        is_there
    }

    /// Prepares the next segment, and adds the one that recovery needs (S4), as far as there is
    /// room.
    pub(crate) fn prepare_next(&mut self) {
        if self.next == Next::None {
            let added = if self.needs_free() { self.add() } else { None };
            if let Some(segment) = added.or_else(|| self.take_free()) {
                self.next = Next::Preparing;
                self.begin_use(segment, State::Open, Purpose::Prepare);
            }
        }
        self.add_free();
    }

    /// Adds a free segment if there are too few.
    fn add_free(&mut self) {
        if !self.is_adding && self.needs_free() {
            self.begin_adding();
        }
    }

    fn begin_adding(&mut self) {
        if let Some(segment) = self.add() {
            self.is_adding = true;
            self.begin_use(segment, State::Free, Purpose::Add);
        }
    }

    /// Takes the segment that was prepared, if another one is left (S4).
    pub(crate) fn take_next(&mut self) -> Option<(SegmentIndex, u64)> {
        let Next::Ready(segment) = self.next else { return None };
        if self.free.is_empty() {
            return None; // S4
        }
        self.next = Next::None;
        Some((segment, self.get(segment).header.generation))
    }

    /// Whether a segment is being prepared or added.
    pub(crate) fn is_preparing(&self) -> bool {
        self.next == Next::Preparing || self.is_adding
    }

    /// Gives a segment a new generation (H1 of `header`), which is returned.
    pub(crate) fn begin_use(
        &mut self,
        segment: SegmentIndex,
        state: State,
        purpose: Purpose,
    ) -> u64 {
        let generation = self.next_generation;
        self.next_generation += 1;
        self.change(segment, generation, state, purpose);
        generation
    }

    /// Notes that a segment will be freed.
    pub(crate) fn leave(&mut self, segment: SegmentIndex) {
        self.table[segment.index()].is_leaving = true;
    }

    /// Frees a segment. What is in it is no record any more once the job is done.
    pub(crate) fn free(&mut self, segment: SegmentIndex) {
        self.leave(segment);
        self.begin_use(segment, State::Free, Purpose::Free);
    }

    /// Queues a job.
    pub(crate) fn change(
        &mut self,
        segment: SegmentIndex,
        generation: u64,
        state: State,
        purpose: Purpose,
    ) {
        let segments = self.durable_segments.max(segment.0 + 1);
        if let State::Closed { end, .. } = state {
            self.closed_end = self.closed_end.max(end);
        }
        let header = Header { generation, state, closed_end: self.closed_end, segments };
        let is_new = self.get(segment).is_new();
        let space = if is_new { Space::Wanted } else { Space::There };
        self.jobs.push_back(Job { segment, header, purpose, space, slots: 0 });
    }

    /// The next operation of the first job.
    pub(crate) fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        if self.is_stalled {
            return None;
        }
        let job = self.jobs.front()?;
        let mut operation = self.operation.take()?;
        if std::mem::take(&mut self.is_begun) {
            return Some(operation);
        }
        let segment = &self.table[job.segment.index()];
        let LogFile { geometry, identity, handle, .. } = &self.file;
        match job.space {
            Space::Wanted => {
                assert!(job.segment.0 == self.durable_segments, "S5");
                let (offset, bytes) = (geometry.start(job.segment), geometry.segment_bytes());
                operation.work = FileWork::Allocate { file: handle.clone(), offset, bytes };
                return Some(operation);
            }
            Space::Unsynced => {
                operation.work = FileWork::Sync { file: handle.clone() };
                return Some(operation);
            }
            Space::There => {}
        }
        let mut buffer = match operation.take_buffer() {
            Some(buffer) => buffer,
            None => AlignedBuffer::new(UNIT_BYTES, UNIT_BYTES),
        };
        write_header(&mut buffer, *identity, geometry, job.segment, &job.header);
        let offset = geometry.slot(job.segment, segment.first_slot ^ job.slots);
        operation.work = self.file.write(offset, buffer, UNIT_BYTES, true);
        Some(operation)
    }

    /// Takes note of a completed operation. Returns the segment that is free now, if one is.
    ///
    /// Errors: a write or a sync has failed.
    pub(crate) fn complete(
        &mut self,
        mut operation: Box<FileOperation>,
    ) -> Result<Option<SegmentIndex>, Failure> {
        let job = self.jobs.front_mut().expect("S1: the first job is in flight");
        let offset = self.file.geometry.start(job.segment);
        let progress = match operation.work {
            FileWork::Allocate { .. } => {
                match operation.result() {
                    Ok(_) => {
                        job.space = Space::Unsynced;
                        self.is_refused = false;
                    }
                    Err(_) => self.refuse_space(),
                }
                self.operation = Some(operation);
                return Ok(None);
            }
            FileWork::Sync { .. } => operation.result().map_or_else(Progress::Failed, |_| {
                job.space = Space::There;
                Progress::AtEnd
            }),
            _ => advance(&mut operation, &mut self.attempts),
        };
        self.operation = Some(operation);
        self.is_begun = matches!(progress, Progress::Part | Progress::NoSpace);
        self.is_stalled = progress == Progress::NoSpace;
        match progress {
            Progress::Whole => job.slots += 1,
            Progress::Failed(error) => {
                return Err(Failure::new(&self.file.path, "the write of a header", offset, error));
            }
            Progress::Part | Progress::NoSpace | Progress::AtEnd => {}
        }
        Ok(if job.slots == 2 { self.finish_job() } else { None })
    }

    /// The file system has no space for the first job's segment. It leaves the table again, with
    /// those behind it, so that no segment with a header follows one without (S5).
    fn refuse_space(&mut self) {
        self.is_refused = true;
        while let Some(at) = self.jobs.iter().position(|job| job.space == Space::Wanted) {
            match self.jobs.remove(at).expect("it was found").purpose {
                Purpose::Prepare => self.next = Next::None,
                Purpose::Add => self.is_adding = false,
                Purpose::Copy | Purpose::Free | Purpose::Change => {}
            }
        }
        while self.table.pop_if(|segment| segment.is_new()).is_some() {}
    }

    fn finish_job(&mut self) -> Option<SegmentIndex> {
        let Job { segment, header, purpose, .. } = self.jobs.pop_front().expect("it was there");
        let entry = &mut self.table[segment.index()];
        assert!(entry.header.rank() <= header.rank(), "H1: {:?}, then {header:?}", entry.header);
        (entry.header, entry.first_slot, entry.is_leaving) = (header, 0, false);
        self.durable_segments = self.durable_segments.max(header.segments);
        match purpose {
            Purpose::Prepare => self.next = Next::Ready(segment),
            Purpose::Add => {
                self.is_adding = false;
                self.free.push_back(segment); // S3
                self.add_free();
            }
            Purpose::Free => {
                self.free.push_back(segment); // S3
                return Some(segment);
            }
            Purpose::Copy | Purpose::Change => {}
        }
        None
    }
}
