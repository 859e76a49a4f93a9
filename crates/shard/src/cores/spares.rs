//! Records or buffers that are not in use. The one that was used last is taken first.
//!
//! Upstream:   `records` keeps records in it, and `buffers` the buffers of the process.
//! Downstream: nothing.
//!
//! ```text
//! cold: not used in the last period | warm: used
//! freed, a few at a time            | given back, taken -->
//! ```
//!
//! Invariants:
//! - S1  `warm` is a stack, so its lowest `fewest` things were not used since the period began.
//!   They become cold when it ends. Cold things are freed, unless they are needed before.

/// The spare things of one kind.
#[derive(Debug)]
pub(crate) struct Spares<T> {
    /// Those given back last are at the end.
    warm: Vec<T>,
    /// Those that are to be freed.
    cold: Vec<T>,
    /// The fewest that `warm` had when it was looked at in this period.
    fewest: usize,
}

impl<T> Default for Spares<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Spares<T> {
    /// No spare things, and no memory for any.
    pub(crate) const fn new() -> Self {
        Self { warm: Vec::new(), cold: Vec::new(), fewest: 0 }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.warm.is_empty() && self.cold.is_empty()
    }

    /// Takes the one that was given back last.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<T> {
        self.warm.pop().or_else(|| self.take_cold())
    }

    #[cold]
    fn take_cold(&mut self) -> Option<T> {
        self.warm.append(&mut self.cold);
        self.warm.pop()
    }

    /// Takes up to `count` of those that were given back last; fewer, if that would take some that
    /// are to be freed. One is taken if there is any.
    pub(crate) fn take_some(&mut self, count: usize) -> impl Iterator<Item = T> {
        if self.warm.is_empty() {
            self.warm.append(&mut self.cold);
        }
        let left = self.warm.len().saturating_sub(count);
        self.warm.drain(left..)
    }

    /// Looks how few are left (S1). The caller calls it before it gives any back that it has taken.
    pub(crate) fn look(&mut self) {
        self.fewest = self.fewest.min(self.warm.len());
    }

    /// Gives one back. Cost: an allocation only if more are spare than before.
    #[inline]
    pub(crate) fn give(&mut self, thing: T) {
        self.warm.push(thing);
    }

    /// Ends a period: those that nobody has used in it are to be freed (S1). Cost: a move of the
    /// others, if there are both.
    pub(crate) fn end_period(&mut self) {
        self.look();
        if self.cold.is_empty() && self.fewest > 0 {
            let used = self.warm.split_off(self.fewest);
            self.cold = std::mem::replace(&mut self.warm, used);
        }
        self.fewest = self.warm.len();
    }

    /// Removes up to `count` of those that are to be freed.
    pub(crate) fn remove_cold(&mut self, count: usize) -> Vec<T> {
        let removed = self.cold.split_off(self.cold.len().saturating_sub(count));
        if self.cold.is_empty() {
            self.cold = Vec::new();
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: u32) -> Spares<u32> {
        let mut spares = Spares::new();
        (0..count).for_each(|number| spares.give(number));
        spares.end_period();
        spares
    }

    /// Takes some, and gives them back.
    fn use_some(spares: &mut Spares<u32>, count: usize) {
        let taken: Vec<_> = (0..count).filter_map(|_| spares.take()).collect();
        spares.look();
        taken.into_iter().rev().for_each(|number| spares.give(number));
    }

    /// The fault: those used last were freed, and those that nobody had used were kept.
    #[test]
    fn those_used_last_are_kept_and_those_that_nobody_uses_are_freed() {
        let mut spares = of(10);
        use_some(&mut spares, 3);
        assert!(spares.remove_cold(10).is_empty(), "the period goes on");
        spares.end_period();
        use_some(&mut spares, 2);
        let freed = [spares.remove_cold(4), spares.remove_cold(4), spares.remove_cold(4)];
        assert_eq!(freed.map(|freed| freed.len()), [4, 3, 0]);
        assert_eq!(spares.take_some(4).collect::<Vec<_>>(), [7, 8, 9]);
        assert!(spares.is_empty());
    }

    #[test]
    fn those_that_are_to_be_freed_are_used_before_others_are_made() {
        let mut spares = of(6);
        use_some(&mut spares, 2);
        spares.end_period();
        let taken: Vec<_> = std::iter::from_fn(|| spares.take()).collect();
        assert_eq!(taken, [5, 4, 3, 2, 1, 0]);
        spares.look();
        taken.into_iter().for_each(|number| spares.give(number));
        assert!(spares.remove_cold(6).is_empty(), "all are used again");
    }
}
