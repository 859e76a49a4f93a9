//! When changes are durable: the engine's own sequence of changes, over the commits of its log.
//!
//! Upstream:   `store` numbers each change; `engine` advances the durable word.
//! Downstream: a fence of a reply, which waits for the number of a change.
//!
//! Invariants, cited by number where they are asserted:
//! - A1  Numbers and commits increase together, so a change is durable once its commit is.

use std::collections::VecDeque;
use std::sync::Arc;

use kachel_stdx::{DurableWord, Sequence};

/// Changes that are in one commit.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The number of the last of them.
    change: Sequence,
    commit: Sequence,
}

/// The changes of an engine that are not durable.
#[derive(Debug)]
pub(crate) struct Acknowledgements {
    last: Sequence,
    waiting: VecDeque<Waiting>,
    durable: Arc<DurableWord>,
}

impl Acknowledgements {
    pub(crate) fn new(durable: Arc<DurableWord>) -> Self {
        Self { last: Sequence(0), waiting: VecDeque::new(), durable }
    }

    /// The word that has reached the number of a change once it is durable.
    pub(crate) const fn durable(&self) -> &Arc<DurableWord> {
        &self.durable
    }

    /// The number of the next change.
    pub(crate) const fn next(&self) -> Sequence {
        Sequence(self.last.0 + 1)
    }

    /// The change with the next number was appended to a commit.
    pub(crate) fn appended(&mut self, commit: Sequence) {
        let change = self.next();
        self.last = change;
        match self.waiting.back_mut() {
            Some(waiting) if waiting.commit == commit => waiting.change = change,
            last => {
                assert!(last.is_none_or(|last| last.commit < commit), "A1");
                self.waiting.push_back(Waiting { change, commit });
            }
        }
    }

    /// Advances the durable word by that of the log.
    pub(crate) fn advance(&mut self, log: &DurableWord) {
        if log.has_failed() {
            self.durable.fail();
            return;
        }
        while let Some(waiting) = self.waiting.front()
            && log.has_reached(waiting.commit)
        {
            self.durable.advance(waiting.change);
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_durable_with_its_commit() {
        let (durable, log) = (Arc::<DurableWord>::default(), DurableWord::default());
        let mut changes = Acknowledgements::new(Arc::clone(&durable));
        for commit in [3, 3, 4, 6] {
            changes.appended(Sequence(commit));
        }
        for (commit, change) in [(2, 0), (3, 2), (5, 3), (6, 4)] {
            log.advance(Sequence(commit));
            changes.advance(&log);
            assert_eq!(durable.sequence(), Sequence(change), "commit {commit}");
        }
        changes.appended(Sequence(7));
        log.fail();
        changes.advance(&log);
        assert!(durable.is_lost(Sequence(5)) && !durable.is_lost(Sequence(4)));
    }
}
