//! The list of keys that have changed, for listeners that keep copies of items outside of the
//! engine.
//!
//! Upstream:   an engine notes every change of an item, including evictions and expiries.
//! Downstream: a listener that answers from copies (in the kernel, or in memory shared with
//!             clients) takes the list and drops its copies before the change is acknowledged.
//!
//! Invariants:
//! - I1  Between two calls of `take`, every key whose item changed is noted, or the list notes all
//!   keys.
//! - I2  The list never grows: the memory is taken once, when recording begins.

/// The most keys that are noted between two calls of [`ChangeList::take`]. After that, all keys are
/// noted as changed. A guess: a tick executes at most a few batches of 32, and upkeep drops 64
/// items.
pub const CHANGES_MAX: usize = 1024;

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The item under the key with this secret hash was stored, removed, evicted or found expired,
    /// or its expiry or its marks changed. A key may be reported several times.
    Key(u64),
    /// Any item may have changed: drop all copies.
    All,
}

/// The changes of one engine since they were last taken. Records nothing before `record` is called.
#[derive(Debug, Default)]
pub struct ChangeList {
    hashes: Vec<u64>,
    is_recording: bool,
    all: bool,
}

impl ChangeList {
    /// Records changes from now on. A listener may have copies from before, so the first call of
    /// [`Self::take`] reports [`Changed::All`]. Cost: one allocation.
    pub fn record(&mut self) {
        assert!(!self.is_recording, "recording begins once");
        self.hashes.reserve_exact(CHANGES_MAX);
        self.is_recording = true;
        self.all = true;
    }

    /// Whether changes are recorded.
    #[inline]
    pub const fn is_recording(&self) -> bool {
        self.is_recording
    }

    /// Notes a change. Cost: a branch while nothing is recorded.
    #[inline]
    pub fn note(&mut self, secret_hash: u64) {
        if self.is_recording {
            self.keep(secret_hash);
        }
    }

    fn keep(&mut self, secret_hash: u64) {
        debug_assert!(self.hashes.capacity() >= CHANGES_MAX, "I2");
        if self.hashes.len() == CHANGES_MAX {
            self.all = true;
        } else {
            self.hashes.push(secret_hash);
        }
    }

    /// Notes that any item may have changed.
    #[inline]
    pub fn note_all(&mut self) {
        self.all |= self.is_recording;
    }

    /// Reports what changed since the last call, and empties the list (I1).
    pub fn take(&mut self, mut tell: impl FnMut(Changed)) {
        debug_assert!(self.hashes.len() <= CHANGES_MAX, "I2");
        debug_assert!(self.is_recording || self.hashes.is_empty() && !self.all, "I1");
        if std::mem::take(&mut self.all) {
            tell(Changed::All);
        } else {
            self.hashes.iter().for_each(|&hash| tell(Changed::Key(hash)));
        }
        self.hashes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(list: &mut ChangeList) -> Vec<Changed> {
        let mut taken = Vec::new();
        list.take(|changed| taken.push(changed));
        taken
    }

    #[test]
    fn a_list_that_is_not_asked_for_stays_empty() {
        let mut list = ChangeList::default();
        list.note(7);
        list.note_all();
        assert_eq!(taken(&mut list), []);
    }

    #[test]
    fn changes_are_told_once_and_too_many_are_told_as_all() {
        let mut list = ChangeList::default();
        list.record();
        assert_eq!(taken(&mut list), [Changed::All], "what was before is not known");
        list.note(7);
        list.note(9);
        assert_eq!(taken(&mut list), [Changed::Key(7), Changed::Key(9)]);
        assert_eq!(taken(&mut list), []);
        (0..=CHANGES_MAX as u64).for_each(|hash| list.note(hash));
        assert_eq!(taken(&mut list), [Changed::All]);
        list.note(7);
        assert_eq!(taken(&mut list), [Changed::Key(7)]);
    }
}
