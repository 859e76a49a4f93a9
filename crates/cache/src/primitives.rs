//! The primitives of the cache: find an item, and apply one change.
//!
//! Upstream:   `kachel_engine::apply`.
//! Downstream: `cache` and `find`.
//!
//! Invariants:
//! - I1  A place that was found is valid until the next `find`, `put` or `remove`, because only
//!   these move items. Marks are written in place. An item that is read at a place shows the marks
//!   that it had when it was found.

use kachel_engine::{
    Block, EngineOptions, Key, Mark, NUMBER_BYTES_MAX, Needed, NotYet, Now, Primitives, Put,
    PutValue, Refused, Side,
};
use kachel_segment::{Added, FoundItem, ItemAt, JoinPlace, NewItem, NewValue, NoSegment};

use crate::cache::Cache;
use crate::index::note_copy_reads;
use crate::item::CachedItem;
use crate::large::{CachePinned, CacheUpload};

impl Primitives for Cache {
    type At = FoundItem;
    type Item<'e> = CachedItem<'e>;
    type Upload = CacheUpload;
    type Pinned = CachePinned;

    #[inline]
    fn options(&self) -> &EngineOptions {
        &self.options
    }

    #[inline(always)]
    fn find(
        &mut self,
        key: &Key<'_>,
        _needed: Needed,
        now: &Now,
    ) -> Result<Option<FoundItem>, NotYet> {
        Ok(self.find_live(key, now))
    }

    #[inline]
    fn item(&self, at: FoundItem) -> CachedItem<'_> {
        CachedItem(self.segments.found(at))
    }

    #[inline]
    fn remove(&mut self, key: &Key<'_>, at: FoundItem) {
        let at = at.at();
        debug_assert!(self.segments.key_is(at, key.bytes()), "I1: the place is still good");
        self.remove_at(key, at);
    }

    #[inline]
    fn mark(&mut self, _key: &Key<'_>, at: FoundItem, mark: Mark) {
        let at = at.at();
        if self.changes.are_reported() {
            self.before_mark(at);
        }
        if let Some(expiry) = mark.expiry {
            self.segments.set_expiry(at, expiry);
        }
        if mark.win_sent {
            self.segments.set_win_sent(at);
        }
    }

    #[inline]
    fn count_reads(&mut self, at: FoundItem) {
        note_copy_reads(&self.changes, &self.hasher, &self.segments.found(at));
    }

    #[inline]
    fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<FoundItem>,
        put: &Put,
        block: &mut Block<'_, CacheUpload>,
        now: &Now,
    ) -> Result<FoundItem, Refused> {
        let found = found.map(|found| found.at());
        debug_assert!(
            found.is_none_or(|at| self.segments.key_is(at, key.bytes())),
            "I1: the place that was found is still good"
        );
        if put.remnant {
            self.admit_remnant(put, found, block, now)?;
        }
        let cas = self.cas_of(put);
        let mut digits;
        let value = match put.value {
            PutValue::Block => block_value(block),
            PutValue::Empty => NewValue::Bytes(b""),
            PutValue::Unchanged => NewValue::Same(found.expect("an unchanged value was found")),
            PutValue::Number { number, bytes } => {
                digits = Digits::new();
                NewValue::Bytes(digits.padded(number, bytes))
            }
            PutValue::Joined(side) => joined(found.expect("a joined value was found"), block, side),
        };
        let item = NewItem {
            key: key.bytes(),
            hash: key.secret_hash(),
            value,
            client_flags: put.client_flags,
            expiry: put.expiry,
            cas,
            stale: put.stale,
            win_sent: put.win_sent,
            remnant: put.remnant,
            protocol_mark: put.protocol_mark,
            replaces: found,
            keeps_access: put.keeps_access,
        };
        let at = self.append(item, now).map_err(|none| match none {
            NoSegment::Refused => Refused::NoRoom,
            NoSegment::NotYet => Refused::NotYet,
        })?;
        if let Block::Upload(_) = block {
            // The memory of the upload belongs to the item now.
            *block = Block::None;
        }
        Ok(self.segments.item(at).found())
    }

    #[inline]
    fn note_access(&self, at: FoundItem, now: &Now) {
        self.segments.note_access(at.at(), now.second);
    }

    #[inline]
    fn has_leased(&self) -> bool {
        self.leases.has_leased()
    }

    fn pin(&self, at: FoundItem) -> CachePinned {
        CachePinned(self.segments.pin(at.at()))
    }
}

/// The value that came with the operation.
#[inline]
fn block_value<'b>(block: &'b mut Block<'_, CacheUpload>) -> NewValue<'b> {
    match block {
        Block::Bytes(bytes) => NewValue::Bytes(bytes),
        Block::Upload(upload) => NewValue::Upload(&mut upload.0),
        Block::None => unreachable!("an operation that stores its block has one"),
    }
}

/// The value of `old`, with the operation's value added to it.
fn joined<'b>(old: ItemAt, block: &'b Block<'_, CacheUpload>, side: Side) -> NewValue<'b> {
    let added = match block {
        Block::Bytes(bytes) => Added::Bytes(bytes),
        Block::Upload(upload) => Added::Upload(&upload.0),
        Block::None => unreachable!("an operation that joins its block has one"),
    };
    let place = match side {
        Side::Before => JoinPlace::Before,
        Side::After => JoinPlace::After,
    };
    NewValue::Extended { old, added, place }
}

/// A number's digits, followed by spaces.
struct Digits([u8; NUMBER_BYTES_MAX]);

impl Digits {
    const fn new() -> Self {
        Self([b' '; NUMBER_BYTES_MAX])
    }

    /// The number in decimal, padded to `bytes`, which is at least as many as its digits.
    fn padded(&mut self, number: u64, bytes: usize) -> &[u8] {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(number).as_bytes();
        assert!(digits.len() <= bytes && bytes <= NUMBER_BYTES_MAX, "a number fits its value");
        self.0[..digits.len()].copy_from_slice(digits);
        &self.0[..bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_padded_with_spaces() {
        assert_eq!(Digits::new().padded(0, 1), b"0");
        assert_eq!(Digits::new().padded(907, 5), b"907  ");
        assert_eq!(Digits::new().padded(u64::MAX, 20), b"18446744073709551615");
    }
}
