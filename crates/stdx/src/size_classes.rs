//! Size classes as a slab allocator makes them: each one is longer than the one before by a factor.
//!
//! Upstream:   an engine that counts its items by their sizes; the statistics that show the counts.
//! Downstream: nothing.
//!
//! ```text
//! class       1    2    3    4   ...   39
//! bytes      96  120  152  192   ...   524288    with a factor of 1.25
//! ```
//!
//! Something belongs to the first class that is as long. Whatever is longer than the last class
//! belongs to that one.
//!
//! Invariants:
//! - C1  A class is longer than the one before, and there is at least one.

/// Bytes to which the lengths of the classes are aligned. The unit of the table of short sizes.
const UNIT_BYTES: usize = 8;
/// The classes of shorter sizes are in a table. Others are found by a search.
const TABLE_BYTES: usize = 17 << 10;

/// How the lengths of the classes grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeClassOptions {
    /// Bytes of the first class.
    pub first_bytes: u32,
    /// Bytes of the last class.
    pub last_bytes: u32,
    /// How much longer each class is than the one before. At least 1.
    pub growth_factor: f64,
}

impl Default for SizeClassOptions {
    /// 39 classes from 96 bytes to 512 KiB.
    fn default() -> Self {
        Self { first_bytes: 96, last_bytes: 512 << 10, growth_factor: 1.25 }
    }
}

/// The size classes, numbered from 1 on.
#[derive(Debug)]
pub struct SizeClasses {
    /// The length of each class. Class 0 does not exist.
    bytes: Vec<u32>,
    /// The class of each short size, in units.
    table: [u8; TABLE_BYTES / UNIT_BYTES + 1],
}

impl Default for SizeClasses {
    fn default() -> Self {
        Self::new(SizeClassOptions::default())
    }
}

impl SizeClasses {
    /// Room for all classes: the highest number is 63, and 0 is no class.
    pub const MAX: usize = 64;

    /// Computes the classes. Cost: one allocation.
    pub fn new(options: SizeClassOptions) -> Self {
        let SizeClassOptions { first_bytes, last_bytes, growth_factor } = options;
        debug_assert!(growth_factor >= 1.0, "each class is longer than the one before");
        let last_bytes = last_bytes.max(1);
        let mut bytes = vec![0];
        let mut next = f64::from(first_bytes.max(1));
        // The last class is as long as it should be, whatever the factor makes of it.
        while bytes.len() < Self::MAX - 1 && next <= f64::from(last_bytes) / growth_factor {
            let unaligned = next as u32;
            let aligned =
                unaligned.checked_next_multiple_of(UNIT_BYTES as u32).unwrap_or(last_bytes);
            bytes.push(aligned);
            next = (f64::from(aligned) * growth_factor).trunc().max(f64::from(aligned) + 1.0);
        }
        bytes.retain(|&shorter| shorter < last_bytes);
        bytes.push(last_bytes);
        debug_assert!(bytes.is_sorted() && bytes.len() > 1, "C1");
        let mut classes = Self { bytes, table: [0; _] };
        for unit in 0..classes.table.len() {
            classes.table[unit] = classes.search(unit * UNIT_BYTES);
        }
        classes
    }

    /// The length of each class, by its number. Class 0 has length 0.
    pub fn lengths(&self) -> &[u32] {
        &self.bytes
    }

    /// The class of this many bytes. Cost: a load, below 17 KiB.
    #[inline]
    #[expect(clippy::manual_div_ceil, reason = "`div_ceil` takes two instructions more")]
    pub fn of(&self, bytes: usize) -> u8 {
        match self.table.get((bytes + (UNIT_BYTES - 1)) / UNIT_BYTES) {
            Some(class) => *class,
            None => self.search(bytes),
        }
    }

    #[cold]
    fn search(&self, bytes: usize) -> u8 {
        let shorter = self.bytes.partition_point(|&length| (length as usize) < bytes);
        shorter.clamp(1, self.bytes.len() - 1) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_by_the_factor() {
        let classes = SizeClasses::default();
        let lengths = classes.lengths();
        assert_eq!(lengths.len() - 1, 39);
        assert_eq!(lengths[..9], [0, 96, 120, 152, 192, 240, 304, 384, 480]);
        assert_eq!(lengths[37..], [315_872, 394_840, 524_288]);
        let few = SizeClassOptions { growth_factor: 2.0, ..SizeClassOptions::default() };
        let lengths = SizeClasses::new(few).bytes;
        assert_eq!(lengths[10..], [49_152, 98_304, 196_608, 524_288]);
        let many = SizeClassOptions { growth_factor: 1.08, ..SizeClassOptions::default() };
        let lengths = SizeClasses::new(many).bytes;
        assert_eq!(lengths[61..], [12_776, 13_800, 524_288], "as many as there may be");
    }

    #[test]
    fn a_size_belongs_to_the_first_class_that_is_as_long() {
        let classes = SizeClasses::default();
        for (bytes, class) in [(1, 1), (96, 1), (97, 2), (120, 2), (121, 3), (384, 7), (385, 8)] {
            assert_eq!(classes.of(bytes), class, "{bytes}");
        }
        for bytes in 0..2 * TABLE_BYTES {
            assert_eq!(classes.of(bytes), classes.search(bytes), "{bytes}");
        }
        assert_eq!(classes.of(524_288), 39);
        assert_eq!(classes.of(1 << 30), 39, "longer ones belong to the last class");
    }

    #[test]
    fn any_options_make_between_one_and_63_classes() {
        for growth_factor in [1.0, 1.000_1, 1.05, 1.25, 2.0, 1e9] {
            for first_bytes in [0, 1, 96, 4096, u32::MAX] {
                for last_bytes in [0, 1, 1024, 512 << 10, 1 << 20, u32::MAX] {
                    let options = SizeClassOptions { first_bytes, last_bytes, growth_factor };
                    let lengths = SizeClasses::new(options).bytes;
                    assert!((2..=SizeClasses::MAX).contains(&lengths.len()), "{options:?}");
                    assert!(lengths.is_sorted_by(|a, b| a < b), "{options:?}");
                }
            }
        }
    }
}
