//! Opens a log: finds its segments, gives its owner every record, and makes a log to go on with.
//!
//! Upstream:   the owner of the store, at each start.
//! Downstream: `walk` reads; `log` writes the copy.
//!
//! ```text
//! heads --> closed segments --> open segments --> judge --> sync --> copy the last --> ready
//!           (whole or refused)  (to the first     |         from here on the file is changed
//!                                bad record)      +--> refused by name, nothing changed
//! ```
//!
//! A log that was not closed in order ends somewhere in its last open segment: with a commit that
//! was not durable, of which any part may be there. A damaged record that was durable looks alike.
//! Two things tell them apart. A closed segment says which records it has. And each leader says
//! which records were durable before it. So a bad record is the end of the log only if nothing that
//! can be read says that it was durable.
//!
//! The last segment is copied as a whole, commit by commit, into a free one, and then freed. So no
//! unit is written again, nothing counts that was only in the page cache, and a start takes no
//! space. The copy counts once its header does; until then the header says that it is free.
//!
//! Invariants, cited by number where they are asserted:
//! - V1  Records are given to the owner in the order of their sequences, each once, none missing.
//! - V2  Nothing is written before all that was durable has been found.
//! - V3  What the owner gets is durable when the log is open.

use std::sync::Arc;

use kachel_io::{
    AlignedBuffer, FILE_OPERATION_BYTES_MAX, FileError, FileWork, FolderHandle, OpenMode, Transfer,
};
use kachel_stdx::DurableWord;

use crate::failure::{Cause, Refusal};
use crate::format::{LogIdentity, claimed_generation};
use crate::geometry::{Geometry, SEGMENTS_MAX, SegmentIndex, UNIT_BYTES};
use crate::header::{Header, Slot, State, is_unused, read_header, write_header};
use crate::log::{DurableLog, SyncMode};
use crate::log_file::LogFile;
use crate::new_file::{create_unnamed, give_name};
use crate::replay::{Replay, Use, give, give_whole};
use crate::segments::{Purpose, Segment};
use crate::task::{Port, Task};
use crate::walk::{Reader, Step, Walk, Window};

/// The name of the file in the folder of its engine.
pub const LOG_FILE: &str = "log";
/// The bytes of a segment up to the end of its first unit with a commit.
pub(crate) const HEAD: usize = 3 * UNIT_BYTES;

/// How a log is opened.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The folder of the engine.
    pub folder: FolderHandle,
    /// As when the log was made.
    pub identity: LogIdentity,
    /// With the size of segments as when the log was made.
    pub geometry: Geometry,
    /// When records count as written.
    pub mode: SyncMode,
    /// The owner has all records below this sequence elsewhere, and they were durable here first.
    /// Segments that end before it are not read; see [`Replay`]. 0: it has none.
    pub from: u64,
    /// The word that the log advances. The numbers of commits follow the number that it has, so
    /// each start of an engine may have the same word. After a failure it needs another one.
    pub durable: Arc<DurableWord>,
}

/// Makes an empty log in a folder, which has none. The store counts as made only after that, when
/// its root is written; so a log that was made for a store without a root is made again.
///
/// The file has its name once its first segment has its space and its headers, durably. So a file
/// without them was damaged.
///
/// Errors: the kernel failed an operation, or the folder has a file of this name that is no unused
/// log.
#[must_use]
pub fn create_log(
    folder: FolderHandle,
    identity: LogIdentity,
    geometry: Geometry,
) -> Task<Result<(), Refusal>> {
    Task::new(move |port| async move {
        let path = path_of(&folder);
        let refused = |cause| Refusal::new(&path, None, cause);
        let created = create(&port, folder, identity, geometry).await;
        match created.map_err(|error| refused(Cause::Failed(error)))? {
            true => Ok(()),
            false => Err(refused(Cause::Exists)),
        }
    })
}

/// Makes an empty log. Returns `false` if there is a file that is no unused log.
async fn create(
    port: &Port,
    folder: FolderHandle,
    identity: LogIdentity,
    geometry: Geometry,
) -> Result<bool, FileError> {
    match port.open(&folder, LOG_FILE, OpenMode::Read, true).await {
        Err(FileError::NOT_FOUND) => {}
        Err(error) => return Err(error),
        Ok((file, bytes)) => {
            if bytes < HEAD {
                return Ok(false);
            }
            let buffer = AlignedBuffer::new(HEAD, UNIT_BYTES);
            let head = Transfer { file: file.clone(), offset: 0, buffer, start: 0, bytes: HEAD };
            let head = port.transfer(FileWork::Read(head), HEAD).await?;
            port.finish(FileWork::Close { file: Some(file) }).await?;
            if !is_unused(&head) {
                return Ok(false);
            }
        }
    }
    let file = create_unnamed(port, &folder, LOG_FILE).await?;
    let bytes = geometry.segment_bytes();
    port.finish(FileWork::Allocate { file: file.clone(), offset: 0, bytes }).await?;
    let bytes = 2 * UNIT_BYTES;
    let mut buffer = AlignedBuffer::new(bytes, UNIT_BYTES);
    for slot in buffer.chunks_mut(UNIT_BYTES) {
        write_header(slot, identity, &geometry, SegmentIndex(0), &Header::FIRST);
    }
    let slots = Transfer { file: file.clone(), offset: 0, buffer, start: 0, bytes };
    port.transfer(FileWork::Write { transfer: slots, durable: false }, bytes).await?;
    port.finish(FileWork::Sync { file: file.clone() }).await?;
    give_name(port, folder, LOG_FILE, file).await?;
    Ok(true)
}

/// Opens the log of a folder. It ends with the log and the owner's state.
#[must_use]
pub fn open_log<R: Replay>(
    options: LogOptions,
    replay: R,
) -> Task<Result<(DurableLog, R), Refusal>> {
    Task::new(|port| async move {
        let path = path_of(&options.folder);
        let refused = |cause| Refusal::new(&path, None, cause);
        if options.durable.has_failed() {
            return Err(refused(Cause::WordFailed));
        }
        let opened = port.open(&options.folder, LOG_FILE, OpenMode::ReadWrite, true).await;
        let (handle, bytes) = opened.map_err(|error| match error {
            FileError::NOT_FOUND => refused(Cause::Missing),
            error => refused(Cause::Failed(error)),
        })?;
        if handle.alignment() > UNIT_BYTES {
            return Err(refused(Cause::Alignment(handle.alignment())));
        }
        let LogOptions { identity, geometry, .. } = options;
        let file = LogFile { identity, geometry, handle, path: path.as_ref().into() };
        let window = Window::new(file.clone(), bytes as u64, FILE_OPERATION_BYTES_MAX);
        let reader = Reader::new(window, port.clone());
        let mut recovery = Recovery {
            port,
            file,
            reader,
            table: Vec::new(),
            mended: Vec::new(),
            replay,
            from: options.from,
            end: 1,
            durable: options.from,
            segments_done: 0,
            segments_of: 0,
        };
        recovery.read_heads(bytes as u64).await?;
        let found = recovery.read_segments().await?;
        let log = recovery.write(found, options.durable, options.mode).await?;
        Ok((log, recovery.replay))
    })
}

pub(crate) fn path_of(folder: &FolderHandle) -> Box<str> {
    format!("{}/{LOG_FILE}", folder.path()).into()
}

/// What is to be written, once everything is read.
#[derive(Debug, Default)]
struct Plan {
    /// Open segments that have all of their records, with the first sequence and the end.
    full: Vec<(Use, u64, u64)>,
    /// Open segments without records, or with those that a copy has.
    empty: Vec<Use>,
    /// The last open segment, and the sequence of its first record.
    last: Option<(Use, u64)>,
}

struct Recovery<R> {
    port: Port,
    file: LogFile,
    reader: Reader,
    table: Vec<Segment>,
    /// Segments whose slots differ.
    mended: Vec<SegmentIndex>,
    replay: R,
    from: u64,
    /// The sequence behind the records that were found.
    end: u64,
    /// Something says that the records below this sequence were durable.
    durable: u64,
    /// The segments that were read, and those that are to be read.
    segments_done: u64,
    segments_of: u64,
}

impl<R: Replay> Recovery<R> {
    fn refused(&self, offset: u64, cause: Cause) -> Refusal {
        Refusal::new(&self.file.path, offset, cause)
    }

    /// Reads the headers of all segments of a file of this length.
    async fn read_heads(&mut self, file_bytes: u64) -> Result<(), Refusal> {
        let geometry = self.file.geometry;
        let count = file_bytes.div_ceil(geometry.segment_bytes());
        if file_bytes < geometry.segment_bytes() {
            return Err(self.refused(file_bytes, Cause::Truncated));
        }
        if count > u64::from(SEGMENTS_MAX) {
            return Err(self.refused(0, Cause::TooLarge));
        }
        let window = Window::new(self.file.clone(), file_bytes, HEAD);
        let mut heads = Reader::new(window, self.port.clone());
        let mut missing = None;
        for segment in (0..count as u32).map(SegmentIndex) {
            let start = geometry.start(segment);
            let bytes = heads.read(|window| window.bytes(start, HEAD).map(<[u8]>::to_vec)).await?;
            match self.judge_head(segment, &bytes)? {
                Ok(entry) => self.table.push(entry),
                Err(cause) => {
                    missing.get_or_insert((segment, cause));
                    self.table.push(Segment::NEW);
                }
            }
        }
        let named = self.table.iter().map(|entry| entry.header.segments).max();
        let named = named.unwrap_or(0).max(1);
        if u64::from(named) * geometry.segment_bytes() > file_bytes {
            return Err(self.refused(file_bytes, Cause::Truncated));
        }
        if let Some((segment, cause)) = missing.filter(|(segment, _)| segment.0 < named) {
            return Err(self.refused(geometry.start(segment), cause)); // S5 of `segments`
        }
        self.table.truncate(named as usize); // The rest is added anew.
        Ok(())
    }

    /// Finds the header of a segment in its two slots. `bytes` end with its first leader. Returns
    /// why there is none.
    ///
    /// Errors: the start is refused in any case.
    fn judge_head(
        &mut self,
        segment: SegmentIndex,
        bytes: &[u8],
    ) -> Result<Result<Segment, Cause>, Refusal> {
        let LogFile { identity, geometry, .. } = self.file;
        let slots =
            [0, UNIT_BYTES].map(|at| read_header(&bytes[at..], identity, &geometry, segment));
        let mut best: Option<(Header, u8)> = None;
        for (slot, number) in slots.into_iter().zip(0..) {
            let offset = geometry.slot(segment, number);
            match slot {
                Slot::Valid(header) => {
                    if best.is_none_or(|(best, _)| best.rank() < header.rank()) {
                        best = Some((header, number));
                    }
                }
                Slot::Newer { found, known } => {
                    return Err(self.refused(offset, Cause::Newer { found, known }));
                }
                Slot::OtherSize(bytes) => {
                    return Err(self.refused(offset, Cause::OtherSize(bytes)));
                }
                Slot::Damaged | Slot::Foreign => {}
            }
        }
        let offset = geometry.first_commit(segment);
        let Some((header, number)) = best else {
            // A crash leaves no records in a segment without a header.
            if claimed_generation(&bytes[2 * UNIT_BYTES..], identity, offset).is_some() {
                return Err(self.refused(geometry.start(segment), Cause::Damaged(None)));
            }
            let is_foreign = slots.contains(&Slot::Foreign);
            return Ok(Err(if is_foreign { Cause::Foreign } else { Cause::Damaged(None) }));
        };
        if slots != [Slot::Valid(header); 2] {
            self.mended.push(segment);
        }
        Ok(Ok(Segment { header, first_slot: number ^ 1, ..Segment::NEW }))
    }

    /// Reads all records, and gives those of all segments but the last to the owner.
    async fn read_segments(&mut self) -> Result<Plan, Refusal> {
        let (mut closed, mut open) = (Vec::new(), Vec::new());
        for (segment, entry) in (0..).map(SegmentIndex).zip(&self.table) {
            let used = Use { segment, generation: entry.header.generation };
            match entry.header.state {
                State::Free => {}
                State::Open => open.push(used),
                State::Closed { first, end } => closed.push((used, first, end)),
            }
        }
        self.segments_of = (closed.len() + open.len()) as u64;
        closed.sort_unstable_by_key(|(used, ..)| used.generation); // V1
        open.sort_unstable_by_key(|used| used.generation);
        for (used, first, end) in closed {
            self.read_whole(used, first, end).await?;
        }
        let mut plan = Plan::default();
        let mut begun = Vec::new();
        for used in open {
            let mut walk = Walk::new(&self.file, used.segment, used.generation);
            match self.reader.step(&mut walk).await? {
                Step::Commit => begun.push((used, walk.sequence.expect("of the commit"))),
                _ => {
                    self.reader.survey(&mut walk).await?;
                    self.durable = self.durable.max(walk.durable);
                    plan.empty.push(used);
                    self.advance();
                }
            }
        }
        plan.last = begun.pop();
        for (index, (used, first)) in begun.iter().enumerate() {
            let following = begun.get(index + 1).or(plan.last.as_ref());
            let end = following.expect("the last one is behind all").1;
            if *first == end {
                plan.empty.push(*used); // The following one is its copy.
                self.advance();
            } else {
                self.read_whole(*used, *first, end).await?;
                plan.full.push((*used, *first, end));
            }
        }
        self.judge_end(&plan).await?;
        Ok(plan)
    }

    /// A segment is read.
    fn advance(&mut self) {
        self.segments_done += 1;
        let bytes = self.file.geometry.segment_bytes();
        self.replay.progress(self.segments_done * bytes, self.segments_of * bytes);
    }

    /// Gives the owner the records of a segment, from `first` to before `end`.
    async fn read_whole(&mut self, used: Use, first: u64, end: u64) -> Result<(), Refusal> {
        let mut walk = Walk::new(&self.file, used.segment, used.generation);
        if first >= end || first < self.end {
            return Err(self.refused(walk.offset, Cause::Damaged(Some(first)))); // V1
        }
        self.end = end;
        // A segment that was the last one at a start after `from` has moved, and ends there or
        // behind it.
        if end >= self.from {
            give_whole(&mut self.reader, &mut walk, first..end, &mut self.replay).await?;
            self.durable = self.durable.max(walk.durable);
        }
        self.advance();
        Ok(())
    }

    /// Finds the end of the log, and whether it may end there.
    async fn judge_end(&mut self, plan: &Plan) -> Result<(), Refusal> {
        let offset;
        let mut is_cut_short = false;
        if let Some((used, first)) = plan.last {
            let mut walk = Walk::new(&self.file, used.segment, used.generation);
            if first < self.end {
                return Err(self.refused(walk.offset, Cause::Damaged(Some(first)))); // V1
            }
            while self.reader.step(&mut walk).await? != Step::End {}
            self.end = walk.sequence.expect("it has a commit");
            offset = walk.place();
            self.reader.survey(&mut walk).await?;
            self.durable = self.durable.max(walk.durable);
            is_cut_short = walk.is_in_commit();
        } else {
            let closed = self.table.iter().map(|entry| entry.header.closed_end).max();
            self.end = self.end.max(closed.unwrap_or(1));
            let start = |used: &Use| self.file.geometry.start(used.segment);
            offset = plan.empty.first().map_or(0, start);
        }
        if self.durable > self.end {
            return Err(self.refused(offset, Cause::Damaged(Some(self.end))));
        }
        if is_cut_short {
            self.replay.cut_short(offset);
        }
        Ok(())
    }

    /// Copies the last segment, and puts the headers in order.
    async fn write(
        &mut self,
        plan: Plan,
        durable: Arc<DurableWord>,
        mode: SyncMode,
    ) -> Result<DurableLog, Refusal> {
        let file = self.file.clone();
        let sync = FileWork::Sync { file: file.handle.clone() };
        let synced = self.port.finish(sync).await; // V2, V3
        synced.map_err(|error| self.refused(0, Cause::Failed(error)))?;
        let first = plan.last.map_or(self.end, |(_, first)| first);
        let table = std::mem::take(&mut self.table);
        let mut log = DurableLog::new(file, SyncMode::Os, durable, table, first);
        for used in &plan.empty {
            log.segments_mut().free(used.segment);
        }
        let is_rewritten = |segment: &SegmentIndex| {
            let mut others = plan.empty.iter().chain(plan.full.iter().map(|(used, ..)| used));
            others.any(|used| used.segment == *segment)
        };
        for segment in std::mem::take(&mut self.mended) {
            if !is_rewritten(&segment) {
                let Header { generation, state, .. } = log.segments_mut().get(segment).header;
                log.segments_mut().change(segment, generation, state, Purpose::Change);
            }
        }
        self.drive(&mut log).await?;
        if let Some((used, _)) = plan.last {
            self.copy(&mut log, used).await?;
            log.segments_mut().free(used.segment);
        }
        for (used, first, end) in plan.full {
            let (state, purpose) = (State::Closed { first, end }, Purpose::Change);
            log.segments_mut().change(used.segment, used.generation, state, purpose);
        }
        self.drive(&mut log).await?;
        log.segments_mut().prepare_next();
        self.drive(&mut log).await?;
        log.set_mode(mode);
        Ok(log)
    }

    /// Copies a segment into a free one, which becomes the current one.
    async fn copy(&mut self, log: &mut DurableLog, from: Use) -> Result<(), Refusal> {
        let start = self.file.geometry.start(from.segment);
        let target = log.segments_mut().take_free();
        let target = target.ok_or_else(|| self.refused(start, Cause::NoSpace))?;
        let generation = log.segments_mut().begin_use(target, State::Free, Purpose::Copy);
        self.drive(log).await?;
        if log.lacks_space() {
            return Err(self.refused(start, Cause::NoSpace));
        }
        log.begin_copy(target, generation, self.end);
        let mut walk = Walk::new(&self.file, from.segment, from.generation);
        while walk.sequence < Some(self.end) {
            match self.reader.step(&mut walk).await? {
                // The commits of the copy are those of the original, so all of them fit.
                Step::Commit => self.drive(log).await?,
                Step::Record(position, head) => {
                    let window = &self.reader.window;
                    let payload = window.payload(position);
                    let copy = log.append_here(head.kind, head.epoch, &[payload]);
                    assert!(copy.sequence == head.sequence, "V1");
                    give(window, &mut self.replay, position, copy.position, &head)?;
                }
                Step::End => return Err(self.refused(walk.place(), Cause::Damaged(walk.sequence))),
            }
        }
        self.advance();
        log.sync();
        self.drive(log).await?;
        log.segments_mut().change(target, generation, State::Open, Purpose::Change);
        self.drive(log).await
    }

    /// Has the log do all that it can.
    async fn drive(&mut self, log: &mut DurableLog) -> Result<(), Refusal> {
        while let Some(operation) = log.next_submission() {
            log.complete(self.port.perform(operation).await);
        }
        if let Some(failure) = log.failure() {
            return Err(self.refused(failure.offset, Cause::Failed(failure.error)));
        }
        if log.is_stalled() {
            return Err(self.refused(0, Cause::NoSpace));
        }
        Ok(())
    }
}
