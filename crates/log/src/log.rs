//! The log of one engine: it appends, commits, reads and frees.
//!
//! Upstream:   the engine, under its lock; `recovery` makes the log, and copies a tail by it.
//! Downstream: `commits`, `segments` and `reads`, and by them `io`.
//!
//! Invariants, cited by number where they are asserted:
//! - L1  A record is written only after all before it are, and into a new segment only after all
//!   before it are durable.
//! - L2  After a write or a sync has failed, nothing is written, synced or acknowledged any more.
//! - L3  A segment stays free, so that recovery can copy the last one into it.
//! - L4  A segment is freed only after everything that was appended before [`DurableLog::free`] is
//!   durable. So no power cut loses the copies of records that were given up.

use std::collections::VecDeque;
use std::sync::Arc;

use kachel_io::{AlignedBuffer, FileOperation, FileWork};
use kachel_stdx::{DurableWord, Sequence};

use crate::commits::{Appended, Commits, Fit};
use crate::failure::Failure;
use crate::format::LEADER;
use crate::geometry::{Geometry, Position, SegmentIndex};
use crate::header::State;
use crate::log_file::LogFile;
use crate::reads::{ReadDone, Reads};
use crate::scan::{SCAN_BYTES, SegmentScan};
use crate::segments::{Purpose, Segment, Segments};
use crate::task::{LOG_TOKEN, OWN_TOKEN};
use crate::walk::{Walk, Window};

const COMMIT_TOKEN: u64 = OWN_TOKEN;
const JOB_TOKEN: u64 = OWN_TOKEN | 1;
const SYNC_TOKEN: u64 = OWN_TOKEN | 2;
const READ_TOKEN: u64 = OWN_TOKEN | 1 << 32;

/// When a record counts as written: what `--sync` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Once it is durable.
    Always,
    /// Once the kernel has it. It is made durable this number of nanoseconds later.
    Interval(u64),
    /// Once the kernel has it, which makes it durable when it likes.
    Os,
}

/// Why a record was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendRefused {
    /// The buffer is full, or the next segment is not ready. A completion makes room.
    Wait,
    /// The log or the file system is full. It heals when segments are freed, or when the file
    /// system has space again and [`DurableLog::tend`] is called.
    NoSpace,
    /// A write has failed: see [`DurableLog::failure`].
    Failed,
}

/// What a completion has brought about.
#[derive(Debug)]
pub enum Completed {
    /// Perhaps that records are durable, or that there is room.
    Progress,
    /// The end of a read.
    Read(ReadDone),
    /// The records of this segment are gone for good. So records that only those need, such as
    /// deletions of keys that were stored there, may be freed as well.
    Freed(SegmentIndex),
}

/// A segment that takes no more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedSegment {
    /// Its number.
    pub segment: SegmentIndex,
    /// The sequence of its first record.
    pub first: u64,
    /// The sequence behind its last record.
    pub end: u64,
}

const _: () = {
    const fn any_core_may_hold_it<T: Send>() {}
    any_core_may_hold_it::<DurableLog>();
};

/// The segment to which records are appended, or one before it.
#[derive(Clone, Copy, Debug)]
struct OpenSegment {
    segment: SegmentIndex,
    generation: u64,
    first: u64,
}

/// A log; see the crate's documentation.
#[derive(Debug)]
pub struct DurableLog {
    file: LogFile,
    mode: SyncMode,
    durable: Arc<DurableWord>,
    segments: Segments,
    commits: Commits,
    reads: Reads,
    current: Option<OpenSegment>,
    /// Whether no commit of the current segment has been submitted.
    is_new: bool,
    /// The segment before the current one, and the sequence behind its last record.
    closing: Option<(OpenSegment, u64)>,
    /// The records below this sequence are written, and those below the second one durable.
    written: u64,
    synced: u64,
    /// The leaders of a copy say that all records below this sequence are durable, because the copy
    /// counts only then.
    copied: u64,
    /// `None` while a sync is in flight.
    sync: Option<Box<FileOperation>>,
    /// What the sync in flight makes durable.
    syncing: u64,
    /// The records below this sequence are to be made durable.
    wanted: u64,
    /// Segments that are freed once all records below a sequence are durable (L4).
    leaving: VecDeque<(SegmentIndex, u64)>,
    /// When it was first seen that records are written and not durable.
    unsynced_since_ns: Option<u64>,
    failure: Option<Failure>,
    counts: Counts,
}

/// What a log has done since its start.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    commits: u64,
    syncs: u64,
}

impl DurableLog {
    /// A log over the segments of a file, without a current one. All records that it has are
    /// durable.
    pub(crate) fn new(
        file: LogFile,
        mode: SyncMode,
        durable: Arc<DurableWord>,
        table: Vec<Segment>,
        next_sequence: u64,
    ) -> Self {
        let number = durable.sequence().0 + 1;
        Self {
            segments: Segments::new(file.clone(), table, JOB_TOKEN),
            commits: Commits::new(file.clone(), next_sequence, number, COMMIT_TOKEN),
            reads: Reads::new(file.clone(), READ_TOKEN),
            file,
            mode,
            durable,
            current: None,
            is_new: false,
            closing: None,
            written: next_sequence,
            synced: next_sequence,
            copied: 0,
            sync: Some(FileOperation::new(SYNC_TOKEN)),
            syncing: 0,
            wanted: 0,
            leaving: VecDeque::new(),
            unsynced_since_ns: None,
            failure: None,
            counts: Counts::default(),
        }
    }

    /// Makes sure that the next append is accepted, if its payload has at most `payload_bytes`
    /// bytes, which are at most [`Geometry::payload_bytes_max`]. At least `spares` segments stay
    /// free: with a higher number for stores than for deletions, and none for the collection of
    /// garbage, a full log cannot lock itself.
    ///
    /// Returns the commit that the record will be in: [`Appended::commit`].
    ///
    /// Panics: if the payload is too long.
    ///
    /// Errors: the append would be refused.
    pub fn prepare(
        &mut self,
        payload_bytes: usize,
        spares: u32,
    ) -> Result<Sequence, AppendRefused> {
        let is_short = payload_bytes <= self.file.geometry.payload_bytes_max();
        assert!(is_short, "a record of the owner");
        if self.failure.is_some() {
            return Err(AppendRefused::Failed);
        }
        if self.is_stalled() {
            return Err(AppendRefused::NoSpace);
        }
        let fit = self.commits.fit(payload_bytes);
        let spares = spares.saturating_add(1 + u32::from(fit == Fit::NextSegment)); // L3
        if self.segments.spare() < spares {
            let is_retrying = self.segments.is_retrying();
            return Err(if is_retrying { AppendRefused::Wait } else { AppendRefused::NoSpace });
        }
        match fit {
            Fit::Here => {}
            Fit::NextCommit => return Err(AppendRefused::Wait),
            Fit::NextSegment => self.begin_next_segment()?,
        }
        Ok(self.commits.next_commit())
    }

    /// Makes sure that the file has space for this number of free segments, so that records which
    /// must follow one another never wait for the file system in their middle.
    ///
    /// Errors: it has no space for them. While `Wait`, the file grows by a segment.
    pub fn reserve(&mut self, segments: u32) -> Result<(), AppendRefused> {
        if self.failure.is_some() {
            return Err(AppendRefused::Failed);
        }
        if self.segments.reserve(segments) {
            return Ok(());
        }
        let waits = !self.is_stalled() && self.segments.is_preparing();
        Err(if waits { AppendRefused::Wait } else { AppendRefused::NoSpace })
    }

    /// Appends a record. Its payload consists of `parts`. `spares` is as in [`Self::prepare`].
    ///
    /// Cost: a copy and a checksum of the payload.
    ///
    /// Panics: if `kind` is 0, or the payload is too long.
    ///
    /// Errors: nothing was appended.
    pub fn append(
        &mut self,
        kind: u8,
        epoch: u32,
        parts: &[&[u8]],
        spares: u32,
    ) -> Result<Appended, AppendRefused> {
        assert!(kind != LEADER, "a record of the owner");
        self.prepare(parts.iter().map(|part| part.len()).sum(), spares)?;
        Ok(self.append_here(kind, epoch, parts))
    }

    /// Appends a record that fits.
    pub(crate) fn append_here(&mut self, kind: u8, epoch: u32, parts: &[&[u8]]) -> Appended {
        self.commits.append(kind, epoch, parts)
    }

    fn begin_next_segment(&mut self) -> Result<(), AppendRefused> {
        let next_sequence = self.commits.next_sequence();
        if self.closing.is_none() {
            self.segments.prepare_next();
        }
        let Some((segment, generation)) = self.segments.take_next() else {
            let waits = self.closing.is_some() || self.segments.is_preparing();
            return Err(if waits { AppendRefused::Wait } else { AppendRefused::NoSpace });
        };
        assert!(self.closing.is_none(), "S1 of `segments`: it is closed before the next one");
        self.closing = self.current.map(|current| (current, next_sequence));
        self.begin_segment(segment, generation);
        Ok(())
    }

    /// Has records appended to the front of a segment that counts once the records below `end` are
    /// durable in it.
    pub(crate) fn begin_copy(&mut self, segment: SegmentIndex, generation: u64, end: u64) {
        self.copied = end;
        self.begin_segment(segment, generation);
    }

    /// Has records appended to the front of a segment from now on.
    fn begin_segment(&mut self, segment: SegmentIndex, generation: u64) {
        let first = self.commits.next_sequence();
        self.current = Some(OpenSegment { segment, generation, first });
        self.is_new = true;
        self.commits.begin_segment(segment, generation);
    }

    /// The next operation to be submitted. The owner asks until there is none, after each call that
    /// may have queued one, and brings each operation back by [`Self::complete`].
    pub fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        let read = self.reads.next_submission();
        if read.is_some() || self.failure.is_some() {
            return read; // L2
        }
        self.free_what_may_go();
        let job = self.segments.next_submission();
        job.or_else(|| self.next_commit()).or_else(|| self.next_sync())
    }

    fn free_what_may_go(&mut self) {
        while let Some((segment, _)) = self.leaving.pop_front_if(|(_, end)| *end <= self.synced) {
            self.segments.free(segment); // L4
        }
    }

    fn next_commit(&mut self) -> Option<Box<FileOperation>> {
        if self.commits.is_ready() && self.is_new {
            if self.synced < self.written {
                self.wanted = self.wanted.max(self.written); // L1
                return None;
            }
            self.is_new = false;
            if let Some((closed, end)) = self.closing.take() {
                let OpenSegment { segment, generation, first } = closed;
                let state = State::Closed { first, end };
                let purpose = Purpose::Change;
                self.segments.change(segment, generation, state, purpose);
            }
            self.segments.prepare_next();
        }
        let durable = self.synced.max(self.copied);
        self.commits.submit(durable, self.mode == SyncMode::Always)
    }

    fn next_sync(&mut self) -> Option<Box<FileOperation>> {
        if self.synced >= self.wanted.min(self.written) {
            return None;
        }
        let mut operation = self.sync.take()?;
        self.unsynced_since_ns = None;
        self.syncing = self.written;
        operation.work = FileWork::Sync { file: self.file.handle.clone() };
        Some(operation)
    }

    /// Whether an operation belongs to the log, and not to its owner, or to a task or a scan beside
    /// it.
    #[must_use]
    pub const fn owns(operation: &FileOperation) -> bool {
        operation.token >= OWN_TOKEN
    }

    /// Takes back a completed operation of this log.
    pub fn complete(&mut self, operation: Box<FileOperation>) -> Completed {
        let token = operation.token;
        if let Some(slot) = token.checked_sub(READ_TOKEN) {
            let (segments, geometry) = (&self.segments, &self.file.geometry);
            let generation = |position: &Position| {
                segments.get(geometry.segment_of(position.offset)).header.generation
            };
            let done = self.reads.complete(slot as usize, operation, generation);
            return done.map_or(Completed::Progress, Completed::Read);
        }
        if self.failure.is_some() {
            return Completed::Progress; // L2
        }
        match token {
            COMMIT_TOKEN => self.complete_commit(operation),
            SYNC_TOKEN => self.complete_sync(operation),
            JOB_TOKEN => match self.segments.complete(operation) {
                Ok(None) => {}
                Ok(Some(segment)) => return Completed::Freed(segment),
                Err(failure) => self.fail(failure),
            },
            _ => unreachable!("{operation:?} is not of a log"),
        }
        Completed::Progress
    }

    fn complete_commit(&mut self, operation: Box<FileOperation>) {
        match self.commits.complete(operation) {
            Ok(None) => {}
            Ok(Some(flight)) => {
                self.written = flight.end;
                if self.mode == SyncMode::Always {
                    self.synced = flight.end;
                }
                self.counts.commits += 1;
                self.counts.syncs += u64::from(self.mode == SyncMode::Always);
                self.durable.advance(Sequence(flight.number));
            }
            Err(failure) => self.fail(failure),
        }
    }

    fn complete_sync(&mut self, operation: Box<FileOperation>) {
        match operation.result() {
            Ok(_) => {
                self.synced = self.syncing;
                self.counts.syncs += 1;
            }
            Err(error) => self.fail(Failure::new(&self.file.path, "a sync", 0, error)),
        }
        self.sync = Some(operation);
    }

    fn fail(&mut self, failure: Failure) {
        self.durable.fail();
        self.failure = Some(failure); // L2
    }

    /// Whether the record at a position is written, so that it can be read.
    #[must_use]
    pub fn is_written(&self, position: Position) -> bool {
        !self.commits.is_pending(position.offset)
    }

    /// Whether [`Self::read`] may be called.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.reads.has_room()
    }

    /// Reads a record that is written. [`Completed::Read`] brings the buffer back, which must have
    /// at least [`Position::buffer_bytes`] at a multiple of [`crate::UNIT_BYTES`].
    ///
    /// Panics: if [`crate::READS_MAX`] reads are under way; if the record is not written yet, and
    /// so is only with its owner; if the buffer is too small.
    pub fn read(&mut self, token: u64, position: Position, buffer: AlignedBuffer) {
        assert!(!self.commits.is_pending(position.offset), "a record that is not written");
        let segment = self.file.geometry.segment_of(position.offset);
        let generation = self.segments.get(segment).header.generation;
        self.reads.begin(token, position, generation, buffer);
    }

    /// Gives up all records of a closed segment. They are gone for good, and the segment is used
    /// again, after [`Completed::Freed`]; after a crash before that they may be there.
    ///
    /// Call it after the records are appended that make those of the segment worthless, such as
    /// their copies. The owner does not wait until these are durable: the log waits, in every mode,
    /// and asks for a sync itself.
    ///
    /// Panics: if the segment is not closed, or freed already.
    pub fn free(&mut self, segment: SegmentIndex) {
        let entry = self.segments.get(segment);
        let is_closed = matches!(entry.header.state, State::Closed { .. });
        assert!(is_closed && !entry.is_leaving, "{segment:?} is not closed");
        self.segments.leave(segment);
        self.sync();
        self.leaving.push_back((segment, self.commits.next_sequence()));
    }

    /// The closed segments that are not being freed, in the order of the file.
    pub fn closed(&self) -> impl Iterator<Item = ClosedSegment> {
        self.segments.iter().filter_map(|(segment, entry)| match entry.header.state {
            State::Closed { first, end } if !entry.is_leaving => {
                Some(ClosedSegment { segment, first, end })
            }
            _ => None,
        })
    }

    /// Begins to read all records of a closed segment, for the collection of garbage. The owner
    /// does not free the segment meanwhile. `number` is as that of
    /// [`crate::Task::numbered`].
    ///
    /// Cost: a buffer of 256 KiB.
    ///
    /// Panics: if the segment is not closed.
    #[must_use]
    pub fn scan(&self, segment: SegmentIndex, number: u16) -> SegmentScan {
        let header = self.segments.get(segment).header;
        let State::Closed { first, end } = header.state else {
            panic!("{segment:?} is not closed");
        };
        let mut walk = Walk::new(&self.file, segment, header.generation);
        walk.sequence = Some(first);
        let file_bytes = self.file.geometry.end(segment);
        SegmentScan::new(Window::new(self.file.clone(), file_bytes, SCAN_BYTES), walk, end, number)
    }

    /// The segments that may still be filled, without the current one and the one that recovery
    /// needs. [`Self::append`] leaves `spares` of them.
    #[must_use]
    pub fn spares(&self) -> u32 {
        self.segments.spare().saturating_sub(1)
    }

    /// Has the file have space for this number of free segments from now on, as far as there is
    /// space: the most `spares` that the owner leaves. Without it a full file system, unlike a full
    /// log, leaves no segment for deletions.
    pub const fn keep_reserve(&mut self, segments: u32) {
        self.segments.set_reserve(segments);
    }

    /// Makes durable what is appended, also if the mode does not ask for it.
    pub const fn sync(&mut self) {
        self.wanted = self.commits.next_sequence();
    }

    /// The segments that the log may have: [`Geometry::segments_max`], or those that it has if the
    /// file system has no space for more.
    #[must_use]
    pub fn segments_max(&self) -> u32 {
        self.segments.most()
    }

    /// Tries again what had no space, and begins a sync that is due. The owner calls it once a
    /// second, and when [`Self::deadline_ns`] has come.
    pub fn tend(&mut self, now_ns: u64) {
        self.segments.retry();
        self.commits.retry();
        let (SyncMode::Interval(interval_ns), true) = (self.mode, self.synced < self.written)
        else {
            return;
        };
        let since_ns = *self.unsynced_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) >= interval_ns {
            self.wanted = self.wanted.max(self.written);
        }
    }

    /// When [`Self::tend`] is to be called at the latest. It may have passed.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        match self.mode {
            // After a failure, or while a sync is wanted, there is nothing to do.
            _ if self.failure.is_some() || self.wanted >= self.written => None,
            SyncMode::Interval(interval_ns) if self.synced < self.written => {
                Some(self.unsynced_since_ns.map_or(0, |since_ns| since_ns + interval_ns))
            }
            _ => None,
        }
    }

    /// The word that has reached [`Appended::commit`] once a record is written.
    #[must_use]
    pub const fn durable(&self) -> &Arc<DurableWord> {
        &self.durable
    }

    /// All records below this sequence are durable, in every mode.
    #[must_use]
    pub const fn synced(&self) -> u64 {
        self.synced
    }

    /// The sequence of the next record.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.commits.next_sequence()
    }

    /// The bytes of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.segments.iter().count() as u64 * self.file.geometry.segment_bytes()
    }

    /// The commits that were written since the start.
    #[must_use]
    pub const fn commits(&self) -> u64 {
        self.counts.commits
    }

    /// The commits that were written durably, and the other syncs, since the start.
    #[must_use]
    pub const fn syncs(&self) -> u64 {
        self.counts.syncs
    }

    /// The sizes of the log.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.file.geometry
    }

    /// Why nothing is written any more.
    #[must_use]
    pub const fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether the file system has refused space, and has not given any since.
    #[must_use]
    pub const fn lacks_space(&self) -> bool {
        self.is_stalled() || self.segments.is_refused()
    }

    /// Whether a write waits for space.
    #[must_use]
    pub const fn is_stalled(&self) -> bool {
        self.segments.is_stalled() || self.commits.is_stalled()
    }

    /// Whether nothing is under way, so that the log may be closed. The owner calls [`Self::sync`]
    /// before. After a failure only reads count.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        if self.failure.is_some() {
            return self.reads.is_idle();
        }
        let is_synced = self.synced >= self.wanted && self.sync.is_some();
        let is_freed = self.leaving.is_empty();
        is_freed
            && self.commits.is_idle()
            && self.segments.is_idle()
            && self.reads.is_idle()
            && is_synced
    }

    /// The operation that closes the file. Nothing is under way.
    #[must_use]
    pub fn close(self) -> Box<FileOperation> {
        let mut operation = FileOperation::new(LOG_TOKEN);
        let Self { file, segments, commits, reads, sync, .. } = self;
        drop((segments, commits, reads, sync));
        operation.work = FileWork::Close { file: Some(file.handle) };
        operation
    }

    pub(crate) const fn segments_mut(&mut self) -> &mut Segments {
        &mut self.segments
    }

    /// Ends recovery.
    pub(crate) const fn set_mode(&mut self, mode: SyncMode) {
        self.mode = mode;
    }
}
