//! Copies a log that may be in use, without its owner's help, and changes nothing in it.
//!
//! Upstream:   a backup, for each engine of a store.
//! Downstream: `walk` reads every record; `new_file` names the copy once it is whole.
//!
//! ```text
//! begin --> look --> copy --> [look until nothing changes --> copy the rest --> look] --> finish
//!                                 ^                                              |
//!                                 +---- a segment that was to be copied is gone -+
//! ```
//!
//! The collection of garbage moves records from old segments to the end of the log, and frees the
//! old segments, which are used again. A copy that has read the end before the move, and the old
//! segment after it, would lack the records. A copy that has read the old segment before, and what
//! was freed after that, would have records back that were removed. So the copy is of one moment T.
//! Two looks at all headers find the same generations, so between the two, at T, the log had these
//! segments. The copy gets them, each in the use that it had at T. A closed segment does not change
//! in its use, and its checksums cover the use, so it may be copied before T, and may be freed
//! after. An open one is copied after T, as far as it is written then. That is what a crash after T
//! could leave, so a start takes it.
//!
//! A use of a segment is copied once. So after the first look and its copy, which may take hours,
//! there is little left to copy.
//!
//! Invariants, cited by number where they are asserted:
//! - B1  A record is written to the copy from the memory in which it was verified.
//! - B2  Open segments are copied in the reverse order of their use. A segment gets records only
//!   after the one before it has all of its own (L1 of `log`), so no record before another one is
//!   missing.
//! - B3  Each segment of the copy has the generation that it had at T.

use std::fmt::Debug;
use std::ops::Range;

use kachel_io::{
    AlignedBuffer, FILE_OPERATION_BYTES_MAX, FileError, FileHandle, FileWork, FolderHandle,
    OpenMode,
};

use crate::failure::{Cause, Refusal};
use crate::format::LogIdentity;
use crate::geometry::{Geometry, SEGMENTS_MAX, SegmentIndex, UNIT_BYTES};
use crate::header::{Header, Slot, State, read_header, write_header};
use crate::log_file::LogFile;
use crate::new_file::{create_unnamed, give_name};
use crate::recovery::{LOG_FILE, path_of};
use crate::task::{Port, Task};
use crate::walk::{Halt, Reader, Step, Walk, Window};

/// The most looks until two find the same. A log with so many changes has no moment in which its
/// headers can be read. Two looks take some milliseconds for 100 segments.
const LOOKS_MAX: u32 = 1000;
/// The most tries to copy what a look has found. A segment is seldom freed soon after its use.
const ROUNDS_MAX: u32 = 64;

/// A segment that lacks records.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    segment: usize,
    refusal: Refusal,
}

/// The open segments that were copied, the last one first. A start judges them in the same way
/// (`recovery`).
#[derive(Debug, Default)]
struct Tail {
    /// The sequence of the first record of the segment before this one.
    later: Option<u64>,
    /// The sequence behind the last record of the log.
    end: u64,
    /// Where the last record of the log ends.
    place: u64,
    /// Something says that the records below this sequence were durable.
    durable: u64,
}

impl Tail {
    /// Takes the next segment, whose first record has this sequence. Returns why it does not reach
    /// the segment behind it.
    fn take(&mut self, first: Option<u64>, walk: &Walk) -> Option<Cause> {
        self.durable = self.durable.max(walk.durable);
        let (first, end) = (first?, walk.sequence?);
        let Some(later) = self.later.replace(first) else {
            (self.end, self.place) = (end, walk.place());
            return None;
        };
        // The same first record: the later one is its copy.
        (end < later && first != later).then_some(Cause::Damaged(Some(end)))
    }

    /// The place at which the log has records that were durable, and that cannot be read.
    fn cut_off(&self, geometry: &Geometry) -> Option<(usize, u64)> {
        let segment = geometry.segment_of(self.place.saturating_sub(1)).index();
        (self.durable > self.end).then_some((segment, self.place))
    }
}

/// Is told how far a copy is.
pub trait WatchCopy: Debug + Send + Sync + 'static {
    /// This number of bytes was copied, besides those that were told before.
    fn copied(&mut self, bytes: u64);
}

/// A copy of a log, which has no name yet.
#[derive(Debug)]
pub struct LogCopy<W> {
    from: FolderHandle,
    to: FolderHandle,
    source: Box<str>,
    target: LogFile,
    /// The use of each segment whose records were all copied; 0: none.
    whole: Vec<u64>,
    /// The segments for which the copy has space.
    allocated: u32,
    watch: W,
}

impl<W: WatchCopy> LogCopy<W> {
    /// Begins to copy the log of the folder `from` to the folder `to`, which has none.
    ///
    /// Errors: the copy cannot be made.
    #[must_use]
    pub fn begin(
        from: FolderHandle,
        to: FolderHandle,
        identity: LogIdentity,
        geometry: Geometry,
        watch: W,
    ) -> Task<Result<Self, Refusal>> {
        Task::new(move |port| async move {
            let (source, path) = (path_of(&from), path_of(&to));
            let created = create_unnamed(&port, &to, LOG_FILE).await;
            let handle = created.map_err(|error| failed(&path, error))?;
            let target = LogFile { identity, geometry, handle, path: path.as_ref().into() };
            Ok(Self { from, to, source, target, whole: Vec::new(), allocated: 0, watch })
        })
    }

    /// Brings the copy to a moment after this call. All records that were written before the call
    /// are in it, except those that their owner has given up. It ends with the bytes of the
    /// segments that have records.
    ///
    /// Cost: it reads the headers of all segments four times at least, and each use of a segment
    /// once. It takes 1 MiB, and 100 bytes a segment.
    ///
    /// Errors: the log is damaged, or cannot be read; the copy cannot be written; the log changes
    /// faster than it can be copied.
    #[must_use]
    pub fn cut(mut self) -> Task<Result<(Self, u64), Refusal>> {
        Task::new(move |port| async move {
            let bytes = self.rounds(&port).await?;
            Ok((self, bytes))
        })
    }

    /// Makes the copy durable and gives it its name, durably.
    ///
    /// Errors: the copy cannot be written.
    #[must_use]
    pub fn finish(self) -> Task<Result<(), Refusal>> {
        Task::new(move |port| async move {
            let Self { to, target, .. } = self;
            let LogFile { handle, path, .. } = target;
            let synced = port.finish(FileWork::Sync { file: handle.clone() }).await;
            synced.map_err(|error| failed(&path, error))?;
            let named = give_name(&port, to, LOG_FILE, handle).await;
            named.map_err(|error| failed(&path, error))
        })
    }

    async fn rounds(&mut self, port: &Port) -> Result<u64, Refusal> {
        // What is copied here does not have to be copied after T.
        let first = self.look(port).await?;
        let closed = |header: &Header| header.state != State::Open;
        let (_, mut seen) = self.copy_segments(port, &first, closed).await?;
        for _ in 0..ROUNDS_MAX {
            let heads = self.look_twice(port).await?;
            let (bytes, missing) = self.copy_segments(port, &heads, |_| true).await?;
            let later = self.look(port).await?;
            let is_there = |segment: usize| {
                later.get(segment).is_some_and(|of| of.generation == heads[segment].generation)
            };
            let is_open = |segment: &usize| heads[*segment].state == State::Open;
            match &missing {
                // What was being written is whole at the second look.
                Some(fault) if seen == missing && is_there(fault.segment) => {
                    return Err(fault.refusal.clone());
                }
                None if (0..heads.len()).filter(is_open).all(is_there) => {
                    self.write_heads(port, &heads).await?; // B3
                    return Ok(bytes);
                }
                _ => seen = missing,
            }
        }
        Err(Refusal::new(&self.source, None, Cause::TooBusy))
    }

    /// The headers at one moment: T.
    async fn look_twice(&self, port: &Port) -> Result<Vec<Header>, Refusal> {
        let mut before = self.look(port).await?;
        for _ in 0..LOOKS_MAX {
            let after = self.look(port).await?;
            if before.iter().map(|of| of.generation).eq(after.iter().map(|of| of.generation)) {
                return Ok(after);
            }
            before = after;
        }
        Err(Refusal::new(&self.source, None, Cause::TooBusy))
    }

    /// Opens the log, whose length may have changed.
    async fn open(&self, port: &Port) -> Result<(LogFile, u64), Refusal> {
        let opened = port.open(&self.from, LOG_FILE, OpenMode::Read, true).await;
        let (handle, bytes) = opened.map_err(|error| match error {
            FileError::NOT_FOUND => Refusal::new(&self.source, None, Cause::Missing),
            error => failed(&self.source, error),
        })?;
        let path = self.source.as_ref().into();
        Ok((LogFile { handle, path, ..self.target.clone() }, bytes as u64))
    }

    /// Reads the headers of all segments that the log says it has.
    async fn look(&self, port: &Port) -> Result<Vec<Header>, Refusal> {
        let mut missing = 0;
        for _ in 0..LOOKS_MAX {
            let (file, file_bytes) = self.open(port).await?;
            let count = file_bytes.div_ceil(file.geometry.segment_bytes());
            if count > u64::from(SEGMENTS_MAX) {
                return Err(Refusal::new(&self.source, None, Cause::TooLarge));
            }
            let window = Window::new(file.clone(), file_bytes, 2 * UNIT_BYTES);
            let mut reader = Reader::new(window, port.clone());
            let mut heads = Vec::new();
            for segment in (0..count as u32).map(SegmentIndex) {
                heads.push(head(&mut reader, &file, segment).await?);
            }
            close(port, file.handle).await;
            let named = heads.iter().flatten().map(|header: &Header| header.segments).max();
            let named = named.unwrap_or(0).max(1) as usize;
            let found: Vec<_> = heads.into_iter().map_while(|header| header).take(named).collect();
            if found.len() == named {
                return Ok(found);
            }
            missing = found.len() as u32; // Perhaps it is being written.
        }
        let offset = self.target.geometry.start(SegmentIndex(missing));
        Err(Refusal::new(&self.source, offset, Cause::Damaged(None)))
    }

    /// Copies the records of all segments of a kind that have no whole copy. Returns the bytes of
    /// all, and a segment that lacks records that it must have.
    async fn copy_segments(
        &mut self,
        port: &Port,
        heads: &[Header],
        is_meant: impl Fn(&Header) -> bool,
    ) -> Result<(u64, Option<Fault>), Refusal> {
        self.allocate(port, heads.len() as u32).await?;
        self.whole.resize(heads.len().max(self.whole.len()), 0);
        let mut used: Vec<_> = (0..).zip(heads).collect();
        used.retain(|(_, header)| header.state != State::Free && is_meant(header));
        // B2
        used.sort_unstable_by_key(|(_, header)| {
            (header.state == State::Open, u64::MAX - header.generation)
        });
        let bytes = used.len() as u64 * self.target.geometry.segment_bytes();
        let (file, file_bytes) = self.open(port).await?;
        let window = Window::new(file.clone(), file_bytes, FILE_OPERATION_BYTES_MAX);
        let (mut reader, mut missing) = (Reader::new(window, port.clone()), None);
        let closed_end = heads.iter().map(|header| header.closed_end).max();
        let mut tail = Tail { end: closed_end.unwrap_or(0), ..Tail::default() };
        for (segment, &Header { generation, state, .. }) in used {
            if self.whole[segment] == generation {
                continue;
            }
            reader.window.clear();
            let mut walk = Walk::new(&file, SegmentIndex(segment as u32), generation);
            let lacks = match state {
                State::Closed { first, end } => {
                    let lacks = self.copy_closed(&mut reader, &mut walk, first..end).await?;
                    if lacks.is_none() {
                        self.whole[segment] = generation;
                    }
                    lacks
                }
                _ => {
                    let first = self.copy_open(&mut reader, &mut walk).await?;
                    tail.take(first, &walk).map(|cause| self.refused(walk.place(), cause))
                }
            };
            missing = missing.or(lacks.map(|refusal| Fault { segment, refusal }));
        }
        close(port, file.handle).await;
        if let Some((segment, offset)) = tail.cut_off(&self.target.geometry) {
            let refusal = self.refused(offset, Cause::Damaged(Some(tail.end)));
            missing = missing.or(Some(Fault { segment, refusal }));
        }
        Ok((bytes, missing))
    }

    fn refused(&self, offset: u64, cause: Cause) -> Refusal {
        Refusal::new(&self.source, offset, cause)
    }

    /// Copies a closed segment. Returns why it does not have these records.
    async fn copy_closed(
        &mut self,
        reader: &mut Reader,
        walk: &mut Walk,
        sequences: Range<u64>,
    ) -> Result<Option<Refusal>, Refusal> {
        walk.sequence = Some(sequences.start);
        while walk.sequence < Some(sequences.end) {
            match self.step(reader, walk).await? {
                Ok(Step::Commit | Step::Record(..)) => {}
                Ok(Step::End) => {
                    return Ok(Some(self.refused(walk.place(), Cause::Damaged(walk.sequence))));
                }
                Err(refusal) => return Ok(Some(refusal)),
            }
        }
        self.write_verified(reader, walk.offset).await?;
        Ok(None)
    }

    /// Copies an open segment as far as it is written. Returns the sequence of its first record,
    /// and notes in `walk` what later commits say was durable.
    async fn copy_open(
        &mut self,
        reader: &mut Reader,
        walk: &mut Walk,
    ) -> Result<Option<u64>, Refusal> {
        let mut first = None;
        loop {
            match self.step(reader, walk).await? {
                Ok(Step::End) => break,
                Ok(_) => first = first.or(walk.sequence),
                Err(refusal) => return Err(refusal),
            }
        }
        self.write_verified(reader, walk.offset).await?;
        reader.window.clear();
        reader.survey(walk).await?;
        Ok(first)
    }

    /// The next step of a walk. What it has verified is written before other bytes are read.
    async fn step(
        &mut self,
        reader: &mut Reader,
        walk: &mut Walk,
    ) -> Result<Result<Step, Refusal>, Refusal> {
        loop {
            match walk.step(&reader.window) {
                Ok(step) => return Ok(Ok(step)),
                Err(Halt::Refused(refusal)) => return Ok(Err(refusal)),
                Err(Halt::Absent(offset)) => {
                    self.write_verified(reader, walk.offset).await?;
                    reader.fill(offset).await?;
                }
            }
        }
    }

    /// Writes what is verified of the window: all units that begin before `offset` (B1). The rest
    /// of the last one is zeros or a part of the next record, which counts for nothing.
    async fn write_verified(&mut self, reader: &mut Reader, offset: u64) -> Result<(), Refusal> {
        let bytes = reader.copy_front(&self.target, offset).await?;
        self.watch.copied(bytes);
        Ok(())
    }

    /// Has the copy have space for this number of segments. So a copy that does not fit is refused
    /// at once.
    async fn allocate(&mut self, port: &Port, segments: u32) -> Result<(), Refusal> {
        if segments <= self.allocated {
            return Ok(());
        }
        let LogFile { geometry, handle, path, .. } = &self.target;
        let offset = geometry.start(SegmentIndex(self.allocated));
        let bytes = geometry.start(SegmentIndex(segments)) - offset;
        let allocate = FileWork::Allocate { file: handle.clone(), offset, bytes };
        port.finish(allocate).await.map_err(|error| match error {
            FileError::NO_SPACE => Refusal::new(path, None, Cause::NoSpaceForCopy(bytes)),
            error => failed(path, error),
        })?;
        self.allocated = segments;
        Ok(())
    }

    /// Writes the headers of the copy, twice each as the log has them.
    async fn write_heads(&mut self, port: &Port, heads: &[Header]) -> Result<(), Refusal> {
        let LogFile { identity, geometry, path, .. } = &self.target;
        let bytes = 2 * UNIT_BYTES;
        for (segment, header) in (0..).map(SegmentIndex).zip(heads) {
            let mut buffer = AlignedBuffer::new(bytes, UNIT_BYTES);
            for slot in buffer.chunks_mut(UNIT_BYTES) {
                write_header(slot, *identity, geometry, segment, header);
            }
            let work = self.target.write(geometry.start(segment), buffer, bytes, false);
            port.transfer(work, bytes).await.map_err(|error| failed(path, error))?;
        }
        Ok(())
    }
}

fn failed(path: &str, error: FileError) -> Refusal {
    Refusal::new(path, None, Cause::Failed(error))
}

/// Closes a file of which nothing was written, so an error means nothing.
async fn close(port: &Port, file: FileHandle) {
    let _nothing_was_written = port.finish(FileWork::Close { file: Some(file) }).await;
}

/// The header of a segment. `None`: it has none, or both slots are being written.
async fn head(
    reader: &mut Reader,
    file: &LogFile,
    segment: SegmentIndex,
) -> Result<Option<Header>, Refusal> {
    let LogFile { identity, geometry, path, .. } = file;
    let (start, mut best) = (geometry.start(segment), None);
    let bytes = reader.read(|window| window.bytes(start, 2 * UNIT_BYTES).map(<[u8]>::to_vec));
    let bytes = bytes.await?;
    for number in 0..2 {
        let slot = &bytes[usize::from(number) * UNIT_BYTES..];
        let cause = match read_header(slot, *identity, geometry, segment) {
            Slot::Valid(header) => {
                let is_better = |best: &Header| best.rank() < header.rank();
                if best.as_ref().is_none_or(is_better) {
                    best = Some(header);
                }
                continue;
            }
            Slot::Damaged => continue,
            Slot::Foreign => Cause::Foreign,
            Slot::Newer { found, known } => Cause::Newer { found, known },
            Slot::OtherSize(bytes) => Cause::OtherSize(bytes),
        };
        return Err(Refusal::new(path, geometry.slot(segment, number), cause));
    }
    Ok(best)
}
