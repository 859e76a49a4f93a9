//! The steps of walks and scans, over what the database has read and what is not written yet.
//!
//! Upstream:   `engine`, once it has noted the time and all flushes.
//! Downstream: `walks` and `scans` for the records, `pending` for later changes of their keys.

use kachel_engine::{Cursor, ItemView, Now, ScanCursor, WalkNext, WalkStep};
use kachel_stdx::is_before;

use crate::engine::{OPERATION_BYTES, Rocks};
use crate::item::RocksItem;
use crate::record::NOTE_KEY;
use crate::scans::{self, Shown};
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

    /// A step of a scan. One that has no page shows nothing, and goes on when a page was read.
    pub(crate) fn step_scan(
        &mut self,
        cursor: &mut ScanCursor,
        now: &Now,
        items_max: usize,
        mut show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        let mut step = WalkStep::in_memory(0, true);
        let (number, wanted) = (cursor.reads.to_u64(), (cursor.key(), items_max));
        let page = match self.scans.next(number, wanted, now.second, &self.durable) {
            scans::Next::Page(page) => page,
            scans::Next::Later(number) => {
                cursor.reads = Cursor::from_u64(number);
                step.next = WalkNext::Later;
                return step;
            }
            scans::Next::Failed => {
                step.next = WalkNext::Failed;
                return step;
            }
        };
        cursor.reads = Cursor::default();
        for (key, shown) in page.items {
            if step.items == items_max {
                return step;
            }
            step.items += 1;
            cursor.pass(&key);
            let (heap, seconds) = (self.common.heap(), self.common.seconds());
            let item = match shown {
                Shown::Record(record) => RocksItem::of_record(&record, heap, seconds).ok(),
                Shown::Changed(item) => Some(item),
                Shown::Removed => None,
            };
            let item = item.and_then(|item| self.live(&key, item, now));
            let value_bytes = item.as_ref().map_or(0, |item| item.value().bytes().len());
            self.work_bytes += OPERATION_BYTES + value_bytes as u64;
            if let Some(item) = item
                && !show(&key, &&item)
            {
                return step;
            }
        }
        step.next = if page.is_last { WalkNext::End } else { WalkNext::More };
        step
    }

    /// The item of a record that a walk has read, as it is now, if a walk shows it.
    fn shown(&self, key: &[u8], record: &[u8], now: &Now) -> Option<RocksItem> {
        if key == NOTE_KEY {
            return None;
        }
        let (heap, seconds) = (self.common.heap(), self.common.seconds());
        let item = match self.pending.find(key) {
            Some(known) => known.item?,
            None => RocksItem::of_record(record, heap, seconds).ok()?,
        };
        self.live(key, item, now)
    }

    /// The item of a key, with its last access, unless it is dead or a remnant.
    fn live(&self, key: &[u8], mut item: RocksItem, now: &Now) -> Option<RocksItem> {
        let is_dead = item.has_expired(now) || is_before(item.epoch(), self.current.epoch);
        item.set_access(self.accesses.last(self.hasher.secret_hash(key)));
        (!is_dead && !(&item).is_remnant()).then_some(item)
    }
}
