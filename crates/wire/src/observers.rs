//! The observers of a server that a client can switch on and off (`observe`).
//!
//! Upstream:   `text` parses the names of the observers.
//! Downstream: `shard` notes requests for the observers that are on.

use std::fmt;

/// A set of observers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObserverSet(u8);

impl ObserverSet {
    /// No observer.
    pub const NONE: Self = Self(0);
    /// The keys that are requested most often, and those that move the most bytes.
    pub const HOT_KEYS: Self = Self(1);
    /// The miss-ratio curve.
    pub const CURVE: Self = Self(1 << 1);

    /// What the prefixes of keys have: items, bytes, requests.
    pub const PREFIXES: Self = Self(1 << 2);

    /// The names of the observers that there are.
    pub const NAMES: [(&'static str, Self); 3] =
        [("hotkeys", Self::HOT_KEYS), ("curve", Self::CURVE), ("prefixes", Self::PREFIXES)];

    /// All observers.
    pub const ALL: Self = {
        let (mut all, mut at) = (Self::NONE, 0);
        while at < Self::NAMES.len() {
            all = all.with(Self::NAMES[at].1);
            at += 1;
        }
        all
    };

    /// The observers in a list of names with commas between them; `all` is a name, too. `None`:
    /// there is no observer of one of the names.
    ///
    /// ```
    /// use kachel_wire::ObserverSet;
    /// assert_eq!(ObserverSet::named(b"hotkeys"), Some(ObserverSet::HOT_KEYS));
    /// assert_eq!(ObserverSet::named(b"all"), Some(ObserverSet::ALL));
    /// assert_eq!(ObserverSet::named(b"hotkeys,"), None);
    /// ```
    pub fn named(list: &[u8]) -> Option<Self> {
        list.split(|&byte| byte == b',').try_fold(Self::NONE, |set, word| {
            let named = Self::NAMES.iter().find(|(name, _)| name.as_bytes() == word);
            let all = (word == b"all").then_some(Self::ALL);
            Some(set.with(named.map(|(_, one)| *one).or(all)?))
        })
    }

    /// The set as a number, for [`Self::from_bits`].
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Makes a set of a number that [`Self::bits`] returned.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The observers of both sets.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// The observers of this set that are not in `others`.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
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

impl fmt::Display for ObserverSet {
    /// The names of the observers in the set, with commas between them; `off` if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("off");
        }
        let named = Self::NAMES.iter().filter(|(_, one)| self.has(*one));
        named.enumerate().try_for_each(|(place, (name, _))| {
            f.write_str(if place > 0 { "," } else { "" })?;
            f.write_str(name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_named_as_it_is_parsed() {
        assert_eq!(ObserverSet::NONE.to_string(), "off");
        for (list, wanted) in [
            (&b"hotkeys,hotkeys"[..], Some(ObserverSet::HOT_KEYS)),
            (b"all,hotkeys", Some(ObserverSet::ALL)),
            (b"", None),
            (b"off", None),
            (b"hotkey", None),
            (b"HOTKEYS", None),
        ] {
            assert_eq!(ObserverSet::named(list), wanted, "{list:?}");
        }
        assert_eq!(
            ObserverSet::named(ObserverSet::ALL.to_string().as_bytes()),
            Some(ObserverSet::ALL)
        );
        assert!(ObserverSet::ALL.without(ObserverSet::ALL).is_empty());
    }
}
