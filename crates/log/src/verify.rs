//! Verifies a log that is not open, and changes nothing: it names each fault, and goes on.
//!
//! Upstream:   `kachel verify`, by the engine whose log it is.
//! Downstream: `walk` reads every record; the owner is told by its [`Inspector`].
//!
//! ```text
//! heads --> closed segments --> open segments --> is all there that was durable?
//!                |                   |
//!                +-- a bad record: named; goes on at the next leader of a commit
//! ```
//!
//! What a crash has left is judged as a start judges it (`recovery`). So the end of the last commit
//! is no fault, unless something says that it was durable. A header of which a crash has damaged
//! one slot is named until a start has mended it.

use std::fmt::Debug;

use kachel_io::{FILE_OPERATION_BYTES_MAX, FileError, FileWork, FolderHandle, OpenMode};

use crate::failure::{Cause, Refusal};
use crate::format::{LogIdentity, claimed_generation};
use crate::geometry::{Geometry, SEGMENTS_MAX, SegmentIndex, UNIT_BYTES};
use crate::header::{Header, Slot, State, read_header};
use crate::log_file::LogFile;
use crate::recovery::{HEAD, LOG_FILE, path_of};
use crate::replay::{FoundRecord, Use};
use crate::task::{Port, Task};
use crate::walk::{Reader, Step, Walk, Window};

/// The bytes after which progress is told.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Gets what a verification finds.
pub trait Inspector: Debug + Send + 'static {
    /// A header or a record is not as it was written. The records behind it, up to the next commit
    /// that can be read, are not verified.
    fn fault(&mut self, fault: Refusal);

    /// A record is as it was written. The records come in the order of the segments' use.
    ///
    /// Errors: its owner cannot have written it. That is a fault as well.
    fn record(&mut self, found: FoundRecord<'_>) -> Result<(), String>;

    /// This number of bytes of the log is verified, of `of_bytes`.
    fn progress(&mut self, done_bytes: u64, of_bytes: u64);
}

/// Verifies every header and record of a log. It ends with the number of records that are whole.
///
/// Cost: it reads each segment that has records once, and the part behind a damaged record twice.
/// It takes 1 MiB, and 100 bytes a segment.
///
/// Errors: the file cannot be opened, or has more segments than [`SEGMENTS_MAX`].
#[must_use]
pub fn verify_log<I: Inspector>(
    folder: FolderHandle,
    identity: LogIdentity,
    geometry: Geometry,
    inspector: I,
) -> Task<Result<(u64, I), Refusal>> {
    Task::new(move |port| async move {
        let path = path_of(&folder);
        let refused = |cause| Refusal::new(&path, None, cause);
        let opened = port.open(&folder, LOG_FILE, OpenMode::Read, true).await;
        let (handle, bytes) = opened.map_err(|error| match error {
            FileError::NOT_FOUND => refused(Cause::Missing),
            error => refused(Cause::Failed(error)),
        })?;
        let file = LogFile { identity, geometry, handle, path: path.as_ref().into() };
        let count = (bytes as u64).div_ceil(geometry.segment_bytes());
        if count > u64::from(SEGMENTS_MAX) {
            return Err(refused(Cause::TooLarge));
        }
        let window = Window::new(file.clone(), bytes as u64, FILE_OPERATION_BYTES_MAX);
        let reader = Reader::new(window, port.clone());
        let of_bytes = bytes as u64;
        let mut verification = Verification {
            file,
            reader,
            inspector,
            of_bytes,
            done_bytes: 0,
            records: 0,
            durable: 0,
        };
        let table = verification.heads(&port, count as u32).await;
        verification.segments(table).await;
        let Verification { file, inspector, records, .. } = verification;
        // Nothing was written, so an error of the close means nothing.
        let _ = port.finish(FileWork::Close { file: Some(file.handle) }).await;
        Ok((records, inspector))
    })
}

#[derive(Debug)]
struct Verification<I> {
    file: LogFile,
    reader: Reader,
    inspector: I,
    of_bytes: u64,
    done_bytes: u64,
    records: u64,
    /// Something says that the records below this sequence were durable.
    durable: u64,
}

impl<I: Inspector> Verification<I> {
    fn fault(&mut self, offset: u64, cause: Cause) {
        self.inspector.fault(Refusal::new(&self.file.path, offset, cause));
    }

    fn advance(&mut self, bytes: u64) {
        self.done_bytes = self.of_bytes.min(self.done_bytes + bytes);
        self.inspector.progress(self.done_bytes, self.of_bytes);
    }

    /// Reads all headers. Returns those of the segments that have one.
    async fn heads(&mut self, port: &Port, count: u32) -> Vec<(SegmentIndex, Header)> {
        let geometry = self.file.geometry;
        let (mut table, mut missing) = (Vec::new(), Vec::new());
        let window = Window::new(self.file.clone(), self.of_bytes, HEAD);
        let mut reader = Reader::new(window, port.clone());
        for segment in (0..count).map(SegmentIndex) {
            let start = geometry.start(segment);
            let read = reader.read(|window| window.bytes(start, HEAD).map(<[u8]>::to_vec)).await;
            match read {
                Err(refusal) => self.inspector.fault(refusal),
                Ok(head) => match self.head(segment, &head) {
                    Some(header) => table.push((segment, header)),
                    None => {
                        let (leader, first) =
                            (&head[2 * UNIT_BYTES..], geometry.first_commit(segment));
                        let claimed = claimed_generation(leader, self.file.identity, first);
                        missing.push((segment, claimed.is_some()));
                    }
                },
            }
        }
        let named = table.iter().map(|(_, header)| header.segments).max().unwrap_or(0).max(1);
        for (segment, has_records) in missing {
            if segment.0 < named || has_records {
                self.fault(geometry.start(segment), Cause::Damaged(None));
            }
        }
        if u64::from(named) * geometry.segment_bytes() > self.of_bytes {
            self.fault(self.of_bytes, Cause::Truncated);
        }
        table
    }

    /// The header of a segment, from its two slots.
    fn head(&mut self, segment: SegmentIndex, head: &[u8]) -> Option<Header> {
        let LogFile { identity, geometry, .. } = self.file;
        let slots =
            [0, UNIT_BYTES].map(|at| read_header(&head[at..], identity, &geometry, segment));
        let valid = slots.iter().filter_map(|slot| match slot {
            Slot::Valid(header) => Some(*header),
            _ => None,
        });
        let best = valid.max_by_key(Header::rank);
        for (slot, number) in slots.into_iter().zip(0..) {
            let cause = match slot {
                Slot::Damaged if best.is_some() => Cause::Damaged(None),
                Slot::Foreign => Cause::Foreign,
                Slot::Newer { found, known } => Cause::Newer { found, known },
                Slot::OtherSize(bytes) => Cause::OtherSize(bytes),
                Slot::Valid(_) | Slot::Damaged => continue,
            };
            self.fault(geometry.slot(segment, number), cause);
        }
        best
    }

    /// Verifies the records of all segments, in their order.
    async fn segments(&mut self, table: Vec<(SegmentIndex, Header)>) {
        let (mut closed, mut open) = (Vec::new(), Vec::new());
        let closed_end = table.iter().map(|(_, header)| header.closed_end).max().unwrap_or(1);
        for (segment, Header { generation, state, .. }) in table {
            let used = Use { segment, generation };
            match state {
                State::Free => self.advance(self.file.geometry.segment_bytes()),
                State::Open => open.push(used),
                State::Closed { first, end } => closed.push((used, first, end)),
            }
        }
        closed.sort_unstable_by_key(|(used, ..)| used.generation);
        open.sort_unstable_by_key(|used| used.generation);
        let mut behind = 1;
        for (used, first, end) in closed {
            if first < behind {
                self.fault(self.file.geometry.start(used.segment), Cause::Damaged(Some(first)));
            }
            self.records(used, first, Some(end)).await;
            behind = end;
        }
        let mut end = behind.max(closed_end);
        let mut begun = Vec::new();
        for used in open {
            let mut walk = Walk::new(&self.file, used.segment, used.generation);
            match self.reader.step(&mut walk).await {
                Ok(Step::Commit) => begun.push((used, walk.sequence.expect("of the commit"))),
                Ok(_) => match self.reader.survey(&mut walk).await {
                    // Its first commit is damaged, and was durable.
                    Ok(()) if walk.durable > end && begun.is_empty() => begun.push((used, end)),
                    Ok(()) => self.durable = self.durable.max(walk.durable),
                    Err(refusal) => self.inspector.fault(refusal),
                },
                Err(refusal) => self.inspector.fault(refusal),
            }
        }
        let firsts: Vec<u64> = begun.iter().map(|(_, first)| *first).collect();
        for (index, (used, first)) in begun.into_iter().enumerate() {
            match firsts.get(index + 1) {
                Some(next) if *next == first => {} // The next one is its copy.
                Some(next) => {
                    self.records(used, first, Some(*next)).await;
                }
                None => end = self.records(used, first, None).await,
            }
        }
        if self.durable > end {
            self.fault(self.of_bytes, Cause::Damaged(Some(end)));
        }
        self.advance(self.of_bytes - self.done_bytes);
    }

    /// Verifies the records of a segment, from `first` to before `end`, or to the end of the log.
    /// Returns the sequence behind those that are there or were durable.
    async fn records(&mut self, used: Use, first: u64, end: Option<u64>) -> u64 {
        let mut walk = Walk::new(&self.file, used.segment, used.generation);
        let mut told = self.file.geometry.start(used.segment);
        // No leader before this place is taken again.
        let mut resumed = walk.offset;
        let mut sequence = first;
        walk.sequence = Some(first);
        while end.is_none_or(|end| sequence < end) {
            let step = self.reader.step(&mut walk).await;
            sequence = walk.sequence.unwrap_or(sequence);
            let fault = match step {
                Ok(Step::Commit) => continue,
                Ok(Step::Record(position, head)) => {
                    self.records += 1;
                    let window = &self.reader.window;
                    let found = FoundRecord::new(window, position, position, &head);
                    if let Err(why) = self.inspector.record(found) {
                        self.fault(position.offset, Cause::Owner(why));
                    }
                    if walk.offset >= told + PROGRESS_BYTES {
                        self.advance(walk.offset - told);
                        told = walk.offset;
                    }
                    continue;
                }
                Ok(Step::End) => {
                    if let Err(refusal) = self.reader.survey(&mut walk).await {
                        self.inspector.fault(refusal);
                    }
                    if end.is_none() && walk.durable <= sequence {
                        break;
                    }
                    let cause = Cause::Damaged(Some(sequence));
                    Refusal::new(&self.file.path, walk.place(), cause)
                }
                Err(refusal) => refusal,
            };
            let from = match fault.cause {
                Cause::Damaged(_) => walk.offset.next_multiple_of(UNIT_BYTES as u64),
                _ => self.behind(&fault),
            };
            self.inspector.fault(fault);
            let Some(next) = self.next_leader(&mut walk, from.max(resumed), sequence).await else {
                break;
            };
            resumed = next + UNIT_BYTES as u64;
            walk.resume(next);
        }
        self.durable = self.durable.max(walk.durable);
        self.advance(self.file.geometry.end(used.segment) - told);
        sequence.max(walk.durable)
    }

    /// The place of the first commit from `offset` on that has a record behind `sequence`.
    async fn next_leader(
        &mut self,
        walk: &mut Walk,
        mut offset: u64,
        sequence: u64,
    ) -> Option<u64> {
        loop {
            let look = |window: &Window| walk.next_leader(window, &mut offset, sequence + 1);
            match self.reader.read(look).await {
                Ok(next) => return next,
                Err(refusal) => {
                    offset = self.behind(&refusal);
                    self.inspector.fault(refusal);
                }
            }
        }
    }

    /// The first unit behind bytes that cannot be read or understood.
    fn behind(&self, refusal: &Refusal) -> u64 {
        let bytes = match refusal.cause {
            Cause::Failed(_) => self.reader.window.bytes_max(),
            _ => 1,
        };
        let offset = refusal.offset.unwrap_or(self.of_bytes) + bytes as u64;
        offset.next_multiple_of(UNIT_BYTES as u64)
    }
}
