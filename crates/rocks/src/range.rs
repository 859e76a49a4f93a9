//! A range of keys, as the flush of a prefix removes it.
//!
//! Upstream:   `shared`, for a flush of a prefix.
//! Downstream: `pending` and `fetches` forget what they know of its keys; a batch deletes it.

use std::ops::Bound;

use kachel_stdx::BytePrefix;

/// The keys from one on, up to another one, which is not in the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) from: Box<[u8]>,
    /// `None`: up to the last key.
    pub(crate) to: Option<Box<[u8]>>,
}

impl KeyRange {
    /// The keys that begin with `bytes`.
    fn beginning_with(bytes: &[u8]) -> Self {
        // The next bytes that do not: the last one that can grow does, and nothing is behind it.
        let grows = bytes.iter().rposition(|&byte| byte != u8::MAX);
        let to = grows.map(|last| {
            let mut to: Box<[u8]> = bytes[..=last].into();
            to[last] += 1;
            to
        });
        Self { from: bytes.into(), to }
    }

    /// The ranges of the keys that a prefix takes.
    pub(crate) fn of_prefix(prefix: &BytePrefix<'_>) -> Vec<Self> {
        let bytes = prefix.bytes();
        let Some(delimiter) = prefix.delimiter() else { return vec![Self::beginning_with(bytes)] };
        let alone = Self { from: bytes.into(), to: Some([bytes, &[0]].concat().into()) };
        vec![alone, Self::beginning_with(&[bytes, &[delimiter]].concat())]
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        *self.from <= *key && self.to.as_ref().is_none_or(|to| *key < **to)
    }

    /// The bounds of the range in a map of keys.
    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let to = self.to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        (Bound::Included(&self.from), to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_a_prefix_have_the_keys_that_it_takes() {
        let names: [&[u8]; 5] = [b"user", b"a:", b"\xff", b"b\xff\xff", b"c"];
        let ends: [&[u8]; 7] = [b"", b":", b":1", b"\0", b"x", b"\xff", b":\xff\xff"];
        let mut taken = 0;
        for name in names {
            let prefixes = [BytePrefix::of_bytes(name), BytePrefix::of_name(name, b':')];
            for prefix in prefixes.map(|prefix| prefix.expect("a short name")) {
                let ranges = KeyRange::of_prefix(&prefix);
                for key in names.iter().flat_map(|key| ends.map(|end| [key, end].concat())) {
                    let has = ranges.iter().any(|range| range.has(&key));
                    assert_eq!(has, prefix.takes(&key), "{prefix:?} {key:?}");
                    taken += u32::from(has);
                }
            }
        }
        assert!(taken > 40, "{taken}");
    }
}
