//! The header of a segment: which use of the segment this is, and what became of it.
//!
//! Upstream:   `segments` writes headers, in jobs.
//! Downstream: `recovery` learns from them which segments to read.
//!
//! ```text
//!            prepared         the next one began         freed
//!   Free(g) ----------> Open(g') -----------> Closed(g') -----> Free(g'')
//!                          |                                       ^
//!                          +------- recovery found no record ------+
//!
//! slot of 4 KiB, little-endian:
//!  0          4       12       16       20        24        28      36
//!  +----------+-------+--------+--------+---------+---------+-------+------------+
//!  | checksum | magic | format | engine | segment | segment | store | generation |
//!  |          |       |        |        | number  | bytes   |       |            |
//!  +----------+-------+--------+--------+---------+---------+-------+------------+
//!  44           52      60    68         72      76        80
//!  +------------+-------+-----+----------+-------+---------+-----+
//!  | closed end | first | end | segments | state | records | 0   |
//!  +------------+-------+-----+----------+-------+---------+-----+
//! ```
//!
//! `records` is the greatest format of the records in the segment. The checksum is CRC-32C of the
//! rest of the slot.
//!
//! Each change is written into both slots of the segment, one after the other, and counts once both
//! are durable. Recovery takes the valid header with the greatest rank. So a change that a crash
//! interrupts is made or not, and one slot that is damaged later changes nothing.
//!
//! Invariants, cited by number where they are asserted:
//! - H1  A generation is given out once in a log. So segments with records have the order of their
//!   generations, and what an earlier use has left in a segment is no record of a later one.
//! - H2  A closed segment says which records it has. All of them are durable.
//! - H3  Every later format keeps the checksum of the slot, the magic, and the place of `format`. A
//!   version that writes another format of records, with a new kind of checksum or codec perhaps,
//!   says so in `records`. So an older version refuses the segment as newer, not as damaged.

use crate::format::{FORMAT, LogIdentity, SEQUENCE_MAX};
use crate::geometry::{Geometry, SegmentIndex, UNIT_BYTES};

const MAGIC: [u8; 8] = *b"KachelLg";
/// The version of the format of headers.
const HEADER_FORMAT: u32 = 1;
/// Greater generations are not given out, and not believed.
const GENERATION_MAX: u64 = 1 << 56;

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Nothing in it is a record.
    Free,
    /// Records are appended to it, or will be.
    Open,
    /// It has the records of these sequences (H2).
    Closed { first: u64, end: u64 },
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) generation: u64,
    pub(crate) state: State,
    /// Every record of a closed segment so far has a lower sequence.
    pub(crate) closed_end: u64,
    /// The file has at least this number of segments.
    pub(crate) segments: u32,
}

impl Header {
    /// That of the first segment of a log that was never opened.
    pub(crate) const FIRST: Self =
        Self { generation: 1, state: State::Free, closed_end: 1, segments: 1 };

    /// That of a segment that was never used.
    pub(crate) const NONE: Self =
        Self { generation: 0, state: State::Free, closed_end: 1, segments: 0 };

    /// Of two valid headers of a segment, the one with the greater rank is the later one.
    pub(crate) const fn rank(&self) -> (u64, u8) {
        let state = match self.state {
            State::Free => 0,
            State::Open => 1,
            State::Closed { .. } => 2,
        };
        (self.generation, state)
    }
}

/// What a slot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Valid(Header),
    /// No header of this segment, or a damaged one.
    Damaged,
    /// A header of another log.
    Foreign,
    /// A header of a later version.
    Newer {
        /// Its format, or that of the records in the segment.
        found: u32,
        /// The greatest one that this version reads.
        known: u32,
    },
    /// A header of this log with segments of this number of bytes.
    OtherSize(u32),
}

/// Writes a header to the front of a slot.
pub(crate) fn write_header(
    to: &mut [u8],
    identity: LogIdentity,
    geometry: &Geometry,
    segment: SegmentIndex,
    header: &Header,
) {
    assert!((1..=GENERATION_MAX).contains(&header.generation), "H1");
    let (state, first, end) = match header.state {
        State::Free => (0, 0, 0),
        State::Open => (1, 0, 0),
        State::Closed { first, end } => (2, first, end),
    };
    to.fill(0);
    to[4..12].copy_from_slice(&MAGIC);
    let words = [HEADER_FORMAT, identity.engine, segment.0, geometry.segment_bytes() as u32];
    let numbers = [identity.store, header.generation, header.closed_end, first, end];
    let tail = [header.segments, state, FORMAT.into()];
    let words = words.into_iter().flat_map(u32::to_le_bytes);
    let numbers = numbers.into_iter().flat_map(u64::to_le_bytes);
    let bytes = words.chain(numbers).chain(tail.into_iter().flat_map(u32::to_le_bytes));
    to[12..].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    let checksum = crc32c::crc32c(&to[4..UNIT_BYTES]);
    to[..4].copy_from_slice(&checksum.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn is_header(bytes: &[u8]) -> bool {
    word(bytes, 0) == crc32c::crc32c(&bytes[4..UNIT_BYTES]) && bytes[4..12] == MAGIC // H3
}

/// Whether both slots at the front of `bytes` have [`Header::FIRST`], of whichever log.
pub(crate) fn is_unused(bytes: &[u8]) -> bool {
    [0, UNIT_BYTES].iter().all(|&at| {
        let slot = &bytes[at..];
        is_header(slot) && word(slot, 12) == HEADER_FORMAT && number(slot, 36) == 1
    })
}

/// What the slot with these bytes has.
pub(crate) fn read_header(
    bytes: &[u8],
    identity: LogIdentity,
    geometry: &Geometry,
    segment: SegmentIndex,
) -> Slot {
    let word = |at| word(bytes, at);
    let number = |at| number(bytes, at);
    if !is_header(bytes) {
        return Slot::Damaged;
    }
    if word(12) != HEADER_FORMAT {
        return Slot::Newer { found: word(12), known: HEADER_FORMAT };
    }
    if (LogIdentity { store: number(28), engine: word(16) }) != identity {
        return Slot::Foreign;
    }
    if word(76) > u32::from(FORMAT) {
        return Slot::Newer { found: word(76), known: FORMAT.into() };
    }
    if u64::from(word(24)) != geometry.segment_bytes() {
        return Slot::OtherSize(word(24));
    }
    let state = match word(72) {
        0 => State::Free,
        1 => State::Open,
        2 => State::Closed { first: number(52), end: number(60) },
        _ => return Slot::Damaged,
    };
    let (generation, closed_end) = (number(36), number(44));
    let is_bounded = (1..=GENERATION_MAX).contains(&generation) && closed_end <= SEQUENCE_MAX;
    if word(20) != segment.0 || !is_bounded {
        return Slot::Damaged;
    }
    Slot::Valid(Header { generation, state, closed_end, segments: word(68) })
}
