//! The steps of walks, over what the database has read and what is not written yet.
//!
//! Upstream:   `engine`, once it has noted the time and all flushes.
//! Downstream: `walks` for the records, `pending` for later changes of their keys.

use kachel_engine::{Cursor, ItemView, Now, WalkNext, WalkStep};
use kachel_stdx::is_before;

use crate::engine::{OPERATION_BYTES, Rocks};
use crate::item::RocksItem;
use crate::record::NOTE_KEY;
use crate::walks::Next;

impl Rocks {
    /// A step of a walk. One that finds no page shows nothing, and goes on when a page was read.
    pub(crate) fn step_walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        mut show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        let number = match cursor.to_u64() {
            0 => self.walks.begin(self.pending.last_sequence()),
            number => number,
        };
        *cursor = Cursor::from_u64(number);
        let mut step = WalkStep::in_memory(0, true);
        while step.items < items_max {
            let (key, record) = match self.walks.next(number, now.second) {
                Next::Record(key, record) => (key, record),
                Next::Later => {
                    step.next = WalkNext::Later;
                    break;
                }
                Next::End => {
                    step.next = WalkNext::End;
                    break;
                }
                Next::Failed => {
                    step.next = WalkNext::Failed;
                    break;
                }
            };
            step.items += 1;
            self.work_bytes += OPERATION_BYTES + record.len() as u64;
            if let Some(item) = self.shown(&key, &record, now)
                && !show(&key, &&item)
            {
                break;
            }
        }
        step
    }

    /// The item of a record that a walk has read, as it is now, if a walk shows it.
    fn shown(&self, key: &[u8], record: &[u8], now: &Now) -> Option<RocksItem> {
        if key == NOTE_KEY {
            return None;
        }
        let (heap, seconds) = (self.common.heap(), self.common.seconds());
        let mut item = match self.pending.find(key) {
            Some(known) => known.item?,
            None => RocksItem::of_record(record, heap, seconds).ok()?,
        };
        let is_dead = item.has_expired(now) || is_before(item.epoch(), self.current.epoch);
        item.set_access(self.accesses.last(self.hasher.secret_hash(key)));
        (!is_dead && !(&item).is_remnant()).then_some(item)
    }
}
