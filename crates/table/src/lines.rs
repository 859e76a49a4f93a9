//! The memory that the owner of a table shares with readers on other cores: the buckets, and their
//! number.
//!
//! Upstream:   `table` and `grow` write here, the owner's thread alone; `reader` reads.
//! Downstream: `bucket`, the words of a line; `host`'s region.
//!
//! ```text
//! shape, low bits first:  buckets:32 | changes:32
//! ```
//!
//! Invariants:
//! - I1  The shape is stored after the copies that a new number of buckets leads to, and before
//!   their originals are cleared.
//! - I2  Of 2^32 successive shapes, no two are equal, although a merge brings the number of buckets
//!   back to an earlier value. So a reader that finds the same shape twice has met no change.

use crate::bucket::Bucket;
use crate::geometry::Geometry;
use crate::line::Line;
use crate::sync::{AtomicU64, Ordering, Region};

/// The buckets of one table.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) region: Region,
    shape: AtomicU64,
}

/// The number of buckets at some moment, and the number of changes until then (I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(u64);

impl Shape {
    pub(crate) fn geometry(self) -> Geometry {
        Geometry::new(self.0 as u32)
    }
}

impl Lines {
    pub(crate) fn new(region: Region, geometry: Geometry) -> Self {
        Self { region, shape: AtomicU64::new(geometry.buckets().into()) }
    }

    /// Bucket `index`; it lies at byte 64 * `index`.
    #[inline]
    pub(crate) fn bucket(&self, index: u32) -> Bucket<'_> {
        let (lines, _) = self.region.words().as_chunks();
        let lines: &[Line] = lines;
        Bucket(&lines[index as usize])
    }

    /// The shape, with all copies that it leads to (I1).
    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        Shape(self.shape.load(Ordering::Acquire))
    }

    /// Owner: sets the number of buckets to that of `geometry` (I1).
    pub(crate) fn set_geometry(&self, geometry: Geometry) {
        let changes = (self.shape.load(Ordering::Relaxed) >> 32).wrapping_add(1); // I2
        self.shape.store(changes << 32 | u64::from(geometry.buckets()), Ordering::Release);
    }
}
