//! Gives the records of segments to the owner of a log that is opened.
//!
//! Upstream:   `recovery`; `walk` finds the records.
//! Downstream: the owner, by its [`Replay`].
//!
//! Invariants, cited by number where they are asserted:
//! - P1  The records of a segment are given in the order of their sequences, none missing.

use std::ops::Range;

use crate::failure::{Cause, Refusal};
use crate::format::Head;
use crate::geometry::{Position, SegmentIndex};
use crate::walk::{Reader, Step, Walk, Window};

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

impl<'a> FoundRecord<'a> {
    /// A record to which a walk has just come at `read_from`.
    pub(crate) fn new(
        window: &'a Window,
        read_from: Position,
        position: Position,
        head: &Head,
    ) -> Self {
        let &Head { kind, epoch, sequence, .. } = head;
        Self { position, kind, epoch, sequence, payload: window.payload(read_from) }
    }
}

/// The owner of a log, which takes the records that a start finds.
///
/// A start gives its owner whole segments. It skips the segments whose records are all below
/// [`crate::LogOptions::from`], except the one that ends at `from`. So the owner also gets records
/// that it has, and takes their positions from here: a start moves the last segment, and the one
/// that is last now may have been moved by a start that the owner's own files do not know of.
/// Positions in the segments that are skipped are as they were.
pub trait Replay: Send + 'static {
    /// Takes a record, in the order of the sequences.
    ///
    /// Errors: the owner cannot accept the record, so the start ends.
    fn record(&mut self, found: FoundRecord<'_>) -> Result<(), String>;

    /// The start has read this number of bytes, of `of_bytes`. It is told after each segment.
    fn progress(&mut self, done_bytes: u64, of_bytes: u64) {
        let _nobody_asks = (done_bytes, of_bytes);
    }

    /// A crash has cut the last commit short. What is left of it is whole up to this offset.
    fn cut_short(&mut self, offset: u64) {
        let _nobody_asks = offset;
    }
}

/// A use of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) segment: SegmentIndex,
    pub(crate) generation: u64,
}

/// Gives the owner the records of these sequences, with which a segment begins.
///
/// Errors: one is missing.
pub(crate) async fn give_whole(
    reader: &mut Reader,
    walk: &mut Walk,
    sequences: Range<u64>,
    replay: &mut impl Replay,
) -> Result<(), Refusal> {
    walk.sequence = Some(sequences.start);
    while walk.sequence < Some(sequences.end) {
        match reader.step(walk).await? {
            Step::Commit => {}
            Step::Record(position, head) => {
                give(&reader.window, replay, position, position, &head)?;
            }
            Step::End => {
                let cause = Cause::Damaged(walk.sequence);
                return Err(Refusal::new(&reader.window.file.path, walk.place(), cause)); // P1
            }
        }
    }
    Ok(())
}

/// Gives the owner a record. It is read from one position, and may be at another one later.
pub(crate) fn give(
    window: &Window,
    replay: &mut impl Replay,
    read_from: Position,
    position: Position,
    head: &Head,
) -> Result<(), Refusal> {
    let given = replay.record(FoundRecord::new(window, read_from, position, head));
    given.map_err(|why| Refusal::new(&window.file.path, position.offset, Cause::Owner(why)))
}
