//! Walks and scans over all items of an engine, in bounded steps: where a step begins, and how it
//! has ended.
//!
//! Upstream:   a listing, a scan or the crawler of `shard`, which holds the cursor between two
//!             steps.
//! Downstream: the engine, which holds nothing that a walk needs between two steps.

use std::fmt;

use crate::key::KEY_BYTES_MAX;

/// The position of a walk over all items ([`crate::Engine::walk`]). A walk begins at
/// [`Self::default`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

impl Cursor {
    /// Makes a cursor of a number that [`Self::to_u64`] returned.
    #[must_use]
    pub const fn from_u64(word: u64) -> Self {
        debug_assert!(word >> 63 == 0, "the highest bit of a cursor is never set");
        Self(word)
    }

    /// The cursor as a number. The highest bit is never set.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }
}

/// The result of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkStep {
    /// The number of items that were examined, dead items included.
    pub items: usize,
    /// How the walk goes on.
    pub next: WalkNext,
}

impl WalkStep {
    /// A step that has examined this number of items in memory. `more`: whether the walk must go
    /// on, because there may be more items.
    #[must_use]
    pub const fn in_memory(items: usize, more: bool) -> Self {
        Self { items, next: if more { WalkNext::More } else { WalkNext::End } }
    }
}

/// How a walk goes on after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalkNext {
    /// It is over: all items were examined.
    #[default]
    End,
    /// There may be more items.
    More,
    /// The next items must be read from a disk. A step finds them at the earliest when the engine
    /// has completed another operation on a file ([`crate::Engine::complete`]).
    Later,
    /// It is over although there may be more items: the disk could not read them, or the engine
    /// does not know any more where the walk was.
    Failed,
}

/// The result of one step of a walk that reclaims space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrawlStep {
    /// The items that were examined.
    pub walked: WalkStep,
    /// The number of items whose space was reclaimed.
    pub reclaimed: usize,
}

/// The position of a scan ([`crate::Extensions::scan`]): a key that it has passed. A scan may go on
/// from it at any time, so an engine holds nothing that a scan needs between two steps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ScanCursor {
    bytes: [u8; KEY_BYTES_MAX],
    length: u8,
    /// By which the engine finds what it has read ahead for the scan. The default is for nothing.
    pub reads: Cursor,
}

impl ScanCursor {
    /// Before the first key.
    pub const START: Self =
        Self { bytes: [0; KEY_BYTES_MAX], length: 0, reads: Cursor::from_u64(0) };
    /// Behind the last key that may be stored.
    pub const END: Self = Self {
        bytes: [u8::MAX; KEY_BYTES_MAX],
        length: KEY_BYTES_MAX as u8,
        reads: Cursor::from_u64(0),
    };

    /// Behind `key`, so that the item of `key` is passed.
    ///
    /// Panics: if it is longer than a key.
    #[must_use]
    pub fn after(key: &[u8]) -> Self {
        let mut cursor = Self::START;
        cursor.pass(key);
        cursor
    }

    /// Before `key`, so that the item of `key` is the next one: behind the greatest key below it.
    /// [`Self::START`], if there is none.
    ///
    /// Panics: if it is longer than a key.
    #[must_use]
    pub fn before(key: &[u8]) -> Self {
        match key.split_last() {
            None => Self::START,
            Some((0, shorter)) => Self::after(shorter),
            Some((last, shorter)) => {
                let mut cursor = Self::END;
                cursor.bytes[..shorter.len()].copy_from_slice(shorter);
                cursor.bytes[shorter.len()] = last - 1;
                cursor
            }
        }
    }

    /// Behind the last key that begins with `prefix`.
    ///
    /// Panics: if it is longer than a key.
    #[must_use]
    pub fn after_prefix(prefix: &[u8]) -> Self {
        let mut cursor = Self::END;
        cursor.bytes[..prefix.len()].copy_from_slice(prefix);
        cursor
    }

    /// Moves behind `key`, and keeps what was read ahead.
    ///
    /// Panics: if it is longer than a key.
    pub fn pass(&mut self, key: &[u8]) {
        self.bytes[..key.len()].copy_from_slice(key);
        self.length = u8::try_from(key.len()).expect("key, I1");
    }

    /// The last key that was passed. It is empty before the first one.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Debug for ScanCursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ScanCursor(\"{}\", {:?})", self.key().escape_ascii(), self.reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys near each other: all short ones of a few bytes, and the longest ones that begin so.
    fn keys() -> Vec<Vec<u8>> {
        let bytes = [0, 1, b'a', 254, 255];
        let one: Vec<Vec<u8>> = bytes.iter().map(|&byte| vec![byte]).collect();
        let longer = |keys: &[Vec<u8>]| -> Vec<Vec<u8>> {
            let with = |key: &Vec<u8>| bytes.map(|byte| [&key[..], &[byte]].concat());
            keys.iter().flat_map(with).collect()
        };
        let two = longer(&one);
        let three = longer(&two);
        let long = one.iter().flat_map(|key| {
            [0, 255].map(|byte| {
                let mut long = key.clone();
                long.resize(KEY_BYTES_MAX, byte);
                long
            })
        });
        let long: Vec<Vec<u8>> = long.collect();
        [one, two, three, long].concat()
    }

    #[test]
    fn nothing_is_between_a_key_and_the_cursor_before_it() {
        let keys = keys();
        for key in &keys {
            let before = ScanCursor::before(key);
            assert!(before.key() < &key[..], "{before:?}");
            let is_behind = |other: &&Vec<u8>| &other[..] > before.key();
            assert!(keys.iter().filter(is_behind).eq(keys.iter().filter(|other| *other >= key)));
        }
    }

    #[test]
    fn the_keys_of_a_prefix_end_at_its_cursor() {
        let keys = keys();
        for prefix in &keys {
            let end = ScanCursor::after_prefix(prefix);
            let is_inside = |other: &&Vec<u8>| *other >= prefix && &other[..] <= end.key();
            let begins = |other: &&Vec<u8>| other.starts_with(prefix);
            assert!(keys.iter().filter(is_inside).eq(keys.iter().filter(begins)), "{end:?}");
        }
        assert!(keys.iter().all(|key| &key[..] <= ScanCursor::END.key()));
    }
}
