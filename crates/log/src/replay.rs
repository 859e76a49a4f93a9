//! Gives the records of segments to the owner of a log.
//!
//! Upstream:   `recovery`, and the log for a scan of one segment.
//! Downstream: the owner, by its [`Replay`]; `walk` reads.
//!
//! Invariants, cited by number where they are asserted:
//! - P1  The records of a segment are given in the order of their sequences, none missing.

use std::ops::Range;

use crate::failure::{Cause, Refusal};
use crate::format::{HEAD_BYTES, Head};
use crate::geometry::{Position, SegmentIndex};
use crate::log_file::LogFile;
use crate::task::Task;
use crate::walk::{Step, Walk, Window};

/// The most bytes that a scan of a segment reads at once, and gives to its owner in one completion.
/// A guess: a shard holds its engine for so long.
const SCAN_BYTES: usize = 256 * 1024;

/// A record that was found.
#[derive(Clone, Copy, Debug)]
pub struct FoundRecord<'a> {
    /// Where it is once the log is open.
    pub position: Position,
    /// Its kind.
    pub kind: u8,
    /// The number that its owner gave it.
    pub epoch: u32,
    /// Its sequence.
    pub sequence: u64,
    /// Its payload.
    pub payload: &'a [u8],
}

/// The owner of a log, which takes the records that a start or a scan finds.
///
/// A start gives its owner whole segments. It skips the segments whose records are all below
/// [`crate::LogOptions::from`], except the one that ends at `from`. So the owner also gets records
/// that it has, and takes their positions from here: a start moves the last segment, and the one
/// that is last now may have been moved by a start that the owner's own files do not know of.
/// Positions in the segments that are skipped are as they were.
pub trait Replay: Send + 'static {
    /// Takes a record, in the order of the sequences.
    ///
    /// Errors: the owner cannot accept the record, so the start or the scan ends.
    fn record(&mut self, found: FoundRecord<'_>) -> Result<(), String>;
}

/// A use of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) segment: SegmentIndex,
    pub(crate) generation: u64,
}

/// Gives the owner all records of a closed segment, in pieces of at most [`SCAN_BYTES`] at a time.
pub(crate) fn scan<R: Replay>(
    file: LogFile,
    used: Use,
    sequences: Range<u64>,
    mut replay: R,
) -> Task<Result<R, Refusal>> {
    Task::new(move |port| async move {
        let mut walk = Walk::new(&file, used.segment, used.generation);
        let file_bytes = file.geometry.end(used.segment);
        let mut window = Window::new(file, file_bytes, port, SCAN_BYTES);
        give_whole(&mut window, &mut walk, sequences, &mut replay).await?;
        Ok(replay)
    })
}

/// Gives the owner the records of these sequences, with which a segment begins.
///
/// Errors: one is missing.
pub(crate) async fn give_whole(
    window: &mut Window,
    walk: &mut Walk,
    sequences: Range<u64>,
    replay: &mut impl Replay,
) -> Result<(), Refusal> {
    walk.sequence = Some(sequences.start);
    while walk.sequence < Some(sequences.end) {
        match walk.step(window).await? {
            Step::Commit => {}
            Step::Record(position, head) => {
                give(window, replay, position, position, &head).await?;
            }
            Step::End => {
                let cause = Cause::Damaged(walk.sequence);
                return Err(Refusal::new(&window.file.path, walk.offset, cause)); // P1
            }
        }
    }
    Ok(())
}

/// The payload of a record.
pub(crate) async fn payload(window: &mut Window, position: Position) -> Result<&[u8], Refusal> {
    let start = position.offset + HEAD_BYTES as u64;
    window.bytes(start, position.payload_bytes as usize).await
}

/// Gives the owner a record. It is read from one position, and may be at another one later.
pub(crate) async fn give(
    window: &mut Window,
    replay: &mut impl Replay,
    read_from: Position,
    position: Position,
    head: &Head,
) -> Result<(), Refusal> {
    let &Head { kind, epoch, sequence, .. } = head;
    let payload = payload(window, read_from).await?;
    let given = replay.record(FoundRecord { position, kind, epoch, sequence, payload });
    given.map_err(|why| Refusal::new(&window.file.path, position.offset, Cause::Owner(why)))
}
