//! What all cores have of an observer, as it was merged last.
//!
//! Upstream:   threads that ask for it: those of the shards, and that of the admin address.
//! Downstream: `Observers`, which copies the numbers of all cores and merges them.
//!
//! Invariants:
//! - M1  At most one thread merges at a time, and at most once in [`MERGED_FOR_NS`]. So clients
//!   that ask all the time, or at once, cost no more than one.
//! - M2  A thread waits for a merge only if there is none that it could tell.

use std::sync::{Arc, Mutex, TryLockError};

use crate::observers::lock;

/// The time for which what was merged is told again. So clients that ask for it all the time cost
/// no more than a merge in this time. A guess.
const MERGED_FOR_NS: u64 = 500_000_000;

/// What was merged last.
#[derive(Debug)]
pub(super) struct LastMerged<T> {
    last: Mutex<Option<Arc<Merged<T>>>>,
    /// Held while a thread merges.
    merging: Mutex<()>,
}

/// What all cores knew at a time.
#[derive(Debug)]
pub(super) struct Merged<T> {
    at_ns: u64,
    with_keys: bool,
    pub(super) what: T,
}

impl<T> Default for LastMerged<T> {
    fn default() -> Self {
        Self { last: Mutex::default(), merging: Mutex::default() }
    }
}

impl<T> LastMerged<T> {
    /// What `merge` returns, or what it has returned not long before (M1). While another thread
    /// merges, what was merged before that; if there is nothing, waits for the other thread.
    pub(super) fn at(
        &self,
        now_ns: u64,
        with_keys: bool,
        merge: impl FnOnce() -> T,
    ) -> Arc<Merged<T>> {
        let last = || lock(&self.last).clone().filter(|last| last.with_keys == with_keys);
        let is_new = |last: &Arc<Merged<T>>| now_ns.saturating_sub(last.at_ns) < MERGED_FOR_NS;
        if let Some(last) = last().filter(is_new) {
            return last;
        }
        let _merging = match self.merging.try_lock() {
            Ok(merging) => merging,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => match last() {
                Some(last) => return last,
                None => lock(&self.merging),
            },
        };
        // Another thread may have merged meanwhile.
        if let Some(last) = last().filter(is_new) {
            return last;
        }
        let merged = Arc::new(Merged { at_ns: now_ns, with_keys, what: merge() });
        *lock(&self.last) = Some(Arc::clone(&merged));
        merged
    }

    /// Forgets what was merged, because an observer was switched.
    pub(super) fn forget(&self) {
        *lock(&self.last) = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// M1, M2. The fault: each thread that asked while nothing new was there merged all cores.
    #[test]
    fn threads_that_ask_at_once_merge_once() {
        let merged = LastMerged::default();
        assert_eq!(merged.at(0, true, || 1).what, 1);
        assert_eq!(merged.at(MERGED_FOR_NS - 1, true, || 2).what, 1);
        let ((begins, has_begun), (ends, may_end)) = (channel(), channel());
        thread::scope(|scope| {
            let merged = &merged;
            scope.spawn(move || {
                let merge = || {
                    begins.send(()).expect("it is waited for");
                    may_end.recv().expect("it is told");
                    3
                };
                assert_eq!(merged.at(MERGED_FOR_NS, true, merge).what, 3);
            });
            has_begun.recv().expect("it merges");
            let other = merged.at(MERGED_FOR_NS, true, || unreachable!("another thread merges"));
            assert_eq!(other.what, 1, "what was merged before");
            // With names there is nothing yet, so this thread waits, and then merges.
            let waiting = scope.spawn(move || merged.at(MERGED_FOR_NS, false, || 4).what);
            ends.send(()).expect("it waits");
            assert_eq!(waiting.join().expect("it ends"), 4);
        });
        merged.forget();
        assert_eq!(merged.at(MERGED_FOR_NS, false, || 5).what, 5, "an observer was switched");
    }
}
