//! Checks of the counts and lists of a log, and of its items, for tests.

use super::super::Segments;
use crate::ItemAt;

impl Segments {
    /// Panics if the books are wrong. Returns the locations of all items that are not dead.
    pub(super) fn audit(&self) -> Vec<ItemAt> {
        self.log.audit_items()
    }
}
