//! The books and the items, as tests look at them.

use super::super::Segments;
use crate::ItemAt;

impl Segments {
    /// Panics where a book is wrong; returns the locations of all items not dead.
    pub(super) fn audit(&self) -> Vec<ItemAt> {
        self.log.audit_items()
    }
}
