//! Where segments, their headers and their records are in the file.
//!
//! Upstream:   the owner, which chooses the sizes when it makes a store.
//! Downstream: every other file of the crate.
//!
//! ```text
//! file:     | segment 0 | segment 1 | segment 2 | ..
//! segment:  | header | header | commit  padding| commit  padding| ..
//!           0        4096     8192             a multiple of 4096
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - G1  Everything that is written begins and ends at a multiple of [`UNIT_BYTES`], so that no
//!   write touches a unit with durable records.
//! - G2  The size of the segments belongs to the data: it never changes.

use std::ops::Range;

use kachel_io::FILE_OPERATION_BYTES_MAX;

use crate::format::{HEAD_BYTES, LEADER_BYTES, record_bytes};

/// The unit of writing: the block of most file systems, the page of the page cache, and the most
/// that a disk writes at once. A file whose direct I/O asks for more is refused.
pub const UNIT_BYTES: usize = 4096;
/// The fewest bytes of a segment that [`Geometry::of_space`] chooses, and the most.
pub const SEGMENT_BYTES: Range<u64> = 1 << 20..64 << 20;
/// The fewest bytes of a segment, for tests with small disks.
pub const SEGMENT_BYTES_MIN: u64 = 16 * UNIT_BYTES as u64;
/// The fewest segments: one to append to, one that is prepared, one that recovery may use, and one
/// that can be freed.
pub const SEGMENTS_MIN: u32 = 4;
/// The most segments of a log. With segments of 64 MiB they take 4 TiB.
pub const SEGMENTS_MAX: u32 = 1 << 16;
/// The segments that a store has about. A guess: with fewer, each holds more that is alive when it
/// is collected; with more, each has its headers.
const SEGMENTS_WANTED: u64 = 64;
/// The most bytes of a payload. Longer contents are chains of records.
const PAYLOAD_BYTES_MAX: usize = 64 * 1024;

const _: () = assert!(FILE_OPERATION_BYTES_MAX.is_multiple_of(UNIT_BYTES), "G1");
const _: () = assert!(LEADER_BYTES < UNIT_BYTES);
// One operation reads the longest record, wherever it begins in a unit.
const _: () = assert!(FILE_OPERATION_BYTES_MAX >= 2 * UNIT_BYTES + HEAD_BYTES + PAYLOAD_BYTES_MAX);

/// The number of a segment in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentIndex(pub u32);

impl SegmentIndex {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The size and the number of the segments of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    segment_bytes: u64,
    segments_max: u32,
}

impl Geometry {
    /// The geometry of each log of a new store with `space` bytes for all of its engines.
    #[must_use]
    pub fn of_space(space: u64, engines: u16) -> Self {
        let engines = u64::from(engines.max(1));
        let wanted = space / (SEGMENTS_WANTED * engines);
        let segment_bytes = wanted.clamp(SEGMENT_BYTES.start, SEGMENT_BYTES.end);
        Self::new(segment_bytes & !(UNIT_BYTES as u64 - 1), space / engines)
    }

    /// The geometry of a log with segments of this size (G2) and `space` bytes.
    ///
    /// Panics: if the segments are smaller than [`SEGMENT_BYTES_MIN`], larger than 64 MiB or no
    /// multiple of [`UNIT_BYTES`].
    #[must_use]
    pub fn new(segment_bytes: u64, space: u64) -> Self {
        assert!(segment_bytes.is_multiple_of(UNIT_BYTES as u64), "G1");
        assert!((SEGMENT_BYTES_MIN..=SEGMENT_BYTES.end).contains(&segment_bytes), "G1");
        let segments = (space / segment_bytes).clamp(SEGMENTS_MIN.into(), SEGMENTS_MAX.into());
        Self { segment_bytes, segments_max: segments as u32 }
    }

    /// The bytes of a segment.
    #[must_use]
    pub const fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// The most segments that the file grows to.
    #[must_use]
    pub const fn segments_max(&self) -> u32 {
        self.segments_max
    }

    /// The most bytes of a commit, padding included.
    #[must_use]
    pub const fn commit_bytes_max(&self) -> usize {
        let quarter = self.segment_bytes as usize / 4;
        let bytes =
            if quarter < FILE_OPERATION_BYTES_MAX { quarter } else { FILE_OPERATION_BYTES_MAX };
        bytes & !(UNIT_BYTES - 1)
    }

    /// The most bytes of a payload.
    #[must_use]
    pub const fn payload_bytes_max(&self) -> usize {
        let room = self.commit_bytes_max() - LEADER_BYTES - HEAD_BYTES;
        if room < PAYLOAD_BYTES_MAX { room } else { PAYLOAD_BYTES_MAX }
    }

    /// The segment that has this byte of the file.
    #[must_use]
    pub const fn segment_of(&self, offset: u64) -> SegmentIndex {
        SegmentIndex((offset / self.segment_bytes) as u32)
    }

    pub(crate) const fn start(&self, segment: SegmentIndex) -> u64 {
        segment.0 as u64 * self.segment_bytes
    }

    pub(crate) const fn end(&self, segment: SegmentIndex) -> u64 {
        self.start(segment) + self.segment_bytes
    }

    /// Where a header of the segment is.
    pub(crate) const fn slot(&self, segment: SegmentIndex, slot: u8) -> u64 {
        self.start(segment) + slot as u64 * UNIT_BYTES as u64
    }

    /// Where the first commit of the segment is.
    pub(crate) const fn first_commit(&self, segment: SegmentIndex) -> u64 {
        self.slot(segment, 2)
    }
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Where its head begins in the file.
    pub offset: u64,
    /// The bytes of its payload.
    pub payload_bytes: u32,
}

impl Position {
    /// The part of the file that must be read for the record. It consists of whole units.
    #[must_use]
    pub const fn units(&self) -> Range<u64> {
        let end = self.offset + (HEAD_BYTES + self.payload_bytes as usize) as u64;
        let unit = UNIT_BYTES as u64;
        self.offset / unit * unit..end.next_multiple_of(unit)
    }

    /// The bytes that the record takes in its segment.
    #[must_use]
    pub const fn record_bytes(&self) -> u64 {
        record_bytes(self.payload_bytes as usize) as u64
    }

    /// The bytes that a buffer for [`crate::DurableLog::read`] must have.
    #[must_use]
    pub const fn buffer_bytes(&self) -> usize {
        let units = self.units();
        (units.end - units.start) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_as_long_as_the_space_asks() {
        let of = |space, engines| {
            let geometry = Geometry::of_space(space, engines);
            (geometry.segment_bytes(), geometry.segments_max())
        };
        assert_eq!(of(0, 1), (1 << 20, SEGMENTS_MIN));
        assert_eq!(of(64 << 20, 1), (1 << 20, 64));
        assert_eq!(of(1 << 30, 2), (8 << 20, 64));
        assert_eq!(of((1 << 30) + (64 * 4095), 1), (16 << 20, 64));
        assert_eq!(of(1 << 40, 8), (64 << 20, 2048));
        assert_eq!(of(u64::MAX, 1), (64 << 20, SEGMENTS_MAX));
    }

    #[test]
    fn a_record_of_the_longest_payload_fits_a_commit() {
        for segment_bytes in [SEGMENT_BYTES_MIN, 17 * 4096, 1 << 20, 64 << 20] {
            let geometry = Geometry::new(segment_bytes, 0);
            let bytes = record_bytes(geometry.payload_bytes_max());
            assert!(bytes + LEADER_BYTES <= geometry.commit_bytes_max());
            assert!(geometry.commit_bytes_max() as u64 + 8192 <= segment_bytes);
        }
    }

    #[test]
    fn a_record_is_read_in_whole_units() {
        let position = Position { offset: 4096 * 3 - 8, payload_bytes: 1 };
        assert_eq!(position.units(), 8192..4 * 4096);
        assert_eq!(Position { offset: 8192, payload_bytes: 4096 - 24 }.units(), 8192..12288);
    }
}
