//! The streams of the log that a client can watch (`watch`).
//!
//! Upstream:   `text` parses the names of the streams.
//! Downstream: `shard` writes the lines of the streams that are watched.

use crate::words::abbreviates;

/// A set of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams(u16);

impl Streams {
    /// No stream.
    pub const NONE: Self = Self(0);
    /// Reads, and the lookups of other requests.
    pub const FETCHERS: Self = Self(1);
    /// Stores.
    pub const MUTATIONS: Self = Self(1 << 1);
    /// Evictions.
    pub const EVICTIONS: Self = Self(1 << 2);
    /// Connections that are opened or closed.
    pub const CONNEVENTS: Self = Self(1 << 3);
    /// Runs of the crawler.
    pub const SYSEVENTS: Self = Self(1 << 4);
    /// Deletions.
    pub const DELETIONS: Self = Self(1 << 5);

    /// The names in 1.6.45, in the order in which it compares them. Only the proxy of memcached
    /// writes to `rawcmds` and to its own streams.
    const NAMES: [(&'static [u8], Self); 10] = [
        (b"rawcmds", Self::NONE),
        (b"evictions", Self::EVICTIONS),
        (b"fetchers", Self::FETCHERS),
        (b"mutations", Self::MUTATIONS),
        (b"sysevents", Self::SYSEVENTS),
        (b"connevents", Self::CONNEVENTS),
        (b"proxyreqs", Self::NONE),
        (b"proxyevents", Self::NONE),
        (b"proxyuser", Self::NONE),
        (b"deletions", Self::DELETIONS),
    ];

    /// The streams that a client names; `fetchers` if it names none. `None`: there is no stream of
    /// that name. As in 1.6.45, the beginning of a name is enough.
    pub(crate) fn named<'w>(words: impl Iterator<Item = &'w [u8]>) -> Option<Self> {
        let mut streams = None;
        for word in words {
            let named = Self::NAMES.iter().find(|(name, _)| abbreviates(word, name));
            let (_, stream) = named?;
            streams = Some(streams.unwrap_or(Self::NONE).with(*stream));
        }
        Some(streams.unwrap_or(Self::FETCHERS))
    }

    /// The set as a number, for [`Self::from_bits`].
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Makes a set of a number that [`Self::bits`] returned.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The streams of both sets.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether any of `others` is in the set.
    #[inline]
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Whether the set is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_named_as_in_memcached() {
        let named = |words: &[&'static [u8]]| Streams::named(words.iter().copied());
        assert_eq!(named(&[]), Some(Streams::FETCHERS));
        let both = Streams::MUTATIONS.with(Streams::EVICTIONS);
        assert_eq!(named(&[b"mutations", b"evictions"]), Some(both));
        assert_eq!(named(&[b"rawcmds", b"proxyreqs"]), Some(Streams::NONE));
        assert_eq!(named(&[b"d"]), Some(Streams::DELETIONS), "a beginning");
        assert_eq!(named(&[b"fetchers", b"bogus"]), None);
        assert_eq!(Streams::from_bits(both.bits()), both);
        assert!(both.has(Streams::EVICTIONS) && !both.has(Streams::FETCHERS));
    }
}
