//! A shadow of item memory in debug builds. It records which bytes belong to which item or block,
//! and since when.
//!
//! Upstream:   `arena` has each read and write checked; `segments` and `pool` report when items,
//!             blocks and segments begin and end.
//! Downstream: nothing. Optimized builds have no shadow. Loom's models have another arena, which
//!             watches the bytes itself.
//!
//! ```text
//! segment:  free -> of items (begin) -> free (end, all its items dead)
//!           free -> of blocks (begin) -> free (end, all its blocks dead)
//! range:    under way (item) -> live (whole) -> dead -> gone with its segment
//!           live (block) -> dead -> live ...
//! ```
//!
//! Invariants. Each breach panics, and the message tells what happened to both ranges, and when:
//! - I1  Ranges do not overlap, and lie in a segment that is theirs.
//! - I2  Only an item under way is written, or a block in use; never beyond its end.
//! - I3  Bytes that are read lie in one range. The range is live, or it is dead in a segment that
//!   was not taken since; a reader that pins the segment, or has not ended its round, may still
//!   read it.
//! - I4  A range dies once, and a segment ends or begins anew without living ranges.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use kachel_stdx::uncounted;

/// Parts of the shadow, each with its lock, so that threads seldom wait for one. A part has every
/// `PARTS`th segment.
const PARTS: usize = 64;

/// Something that happened to a range or a segment.
#[derive(Clone, Copy, Debug)]
struct Event {
    number: u64,
    place: &'static Location<'static>,
    thread: ThreadId,
}

impl fmt::Display for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "event {} at {} on {:?}", self.number, self.place, self.thread)
    }
}

/// What a segment is cut into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nothing.
    #[default]
    Free,
    /// Items, one behind the other.
    Items,
    /// Blocks of large values.
    Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    Live,
    Dead,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    bytes: usize,
    state: State,
    born: Event,
    died: Option<Event>,
}

impl fmt::Display for Range {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes, {:?}, written by {}", self.bytes, self.state, self.born)?;
        match self.died {
            Some(died) => write!(formatter, ", dead since {died}"),
            None => Ok(()),
        }
    }
}

/// One segment's shadow.
#[derive(Debug, Default)]
struct Shadow {
    cut_into: Use,
    since: Option<Event>,
    /// Where each range starts, in order; items come in that order.
    starts: Vec<usize>,
    /// The ranges, in the order of their starts.
    ranges: Vec<Range>,
}

thread_local! {
    /// The place, in any shadow, of the range that this thread found last: a thread goes to one
    /// range several times. It is not in the shadow, because reads store nothing into memory that
    /// threads share, also in a build with all assertions.
    static FOUND: Cell<usize> = const { Cell::new(0) };
}

impl Shadow {
    /// The place of the range that `offset` lies in or behind.
    fn place(&self, offset: usize) -> Option<usize> {
        let newest = self.starts.len().checked_sub(1)?;
        if self.starts[newest] <= offset {
            return Some(newest);
        }
        let found = FOUND.get().min(newest.saturating_sub(1));
        if self.starts[found] <= offset && offset < self.starts[found + 1] {
            return Some(found);
        }
        let place = self.starts.partition_point(|&start| start <= offset).checked_sub(1)?;
        FOUND.set(place);
        Some(place)
    }

    /// The range that `offset` lies in or behind, and its start.
    fn before(&self, offset: usize) -> Option<(usize, &Range)> {
        self.place(offset).map(|place| (self.starts[place], &self.ranges[place]))
    }

    /// The range that begins at `offset`.
    fn at(&mut self, offset: usize) -> Option<&mut Range> {
        let place = self.place(offset).filter(|&place| self.starts[place] == offset)?;
        Some(&mut self.ranges[place])
    }

    fn insert(&mut self, offset: usize, range: Range) {
        match self.place(offset) {
            Some(place) if self.starts[place] == offset => self.ranges[place] = range,
            before => {
                let place = before.map_or(0, |place| place + 1);
                self.starts.insert(place, offset);
                self.ranges.insert(place, range);
            }
        }
    }

    fn story(&self) -> String {
        let since = self.since.map_or("ever".to_owned(), |since| since.to_string());
        format!("its segment is {:?} since {since}", self.cut_into)
    }

    /// The range that holds all of `bytes` at `offset`, or a panic (I3).
    #[track_caller]
    fn around(&self, what: &str, offset: usize, bytes: usize) -> (usize, &Range) {
        match self.before(offset) {
            Some((start, range)) if offset + bytes <= start + range.bytes => (start, range),
            Some((start, range)) => panic!(
                "audit: {what} of {bytes} bytes at {offset} is not inside the range at {start} \
                 ({range}); {}",
                self.story()
            ),
            None => panic!("audit: {what} of {bytes} bytes at {offset}: {}", self.story()),
        }
    }
}

/// The shadow of an arena.
#[derive(Debug)]
pub(crate) struct Audit {
    /// 0: nothing is watched.
    segment_bytes: usize,
    parts: [Mutex<Vec<Shadow>>; PARTS],
    events: AtomicU64,
}

impl Audit {
    /// Watches segments of this size, in debug builds.
    pub(crate) fn over(segment_bytes: usize) -> Self {
        Self {
            segment_bytes: if cfg!(debug_assertions) { segment_bytes } else { 0 },
            parts: [const { Mutex::new(Vec::new()) }; PARTS],
            events: AtomicU64::new(0),
        }
    }

    const fn is_off(&self) -> bool {
        !cfg!(debug_assertions) || self.segment_bytes == 0
    }

    /// The shadow of the segment at byte `offset`; `None` while a panic unwinds.
    fn with<R>(&self, offset: usize, act: impl FnOnce(&mut Shadow) -> R) -> Option<R> {
        if thread::panicking() {
            return None;
        }
        let segment = offset / self.segment_bytes;
        let (part, at) = (&self.parts[segment % PARTS], segment / PARTS);
        // The shadow's own memory does not count as memory of the server.
        Some(uncounted(|| {
            let mut part: MutexGuard<'_, _> = part.lock().unwrap_or_else(PoisonError::into_inner);
            if part.len() <= at {
                part.resize_with(at + 1, Shadow::default);
            }
            act(&mut part[at])
        }))
    }

    #[track_caller]
    fn event(&self) -> Event {
        Event {
            number: self.events.fetch_add(1, Ordering::Relaxed),
            place: Location::caller(),
            thread: thread::current().id(),
        }
    }

    /// The segment at `start` is in use from now on (I4).
    #[inline]
    #[track_caller]
    pub(crate) fn begin(&self, start: usize, cut_into: Use) {
        if !self.is_off() {
            let event = self.event();
            self.with(start, |shadow| shadow.turn(start, cut_into, event));
        }
    }

    /// The segment at `start` is no longer in use (I4).
    #[inline]
    #[track_caller]
    pub(crate) fn end(&self, start: usize) {
        self.begin(start, Use::Free);
    }

    /// An item is about to be written (I1).
    #[inline]
    #[track_caller]
    pub(crate) fn item(&self, offset: usize, bytes: usize) {
        self.born(offset, bytes, Use::Items, State::UnderWay);
    }

    /// The item at `offset` is written; nothing changes it any more.
    #[inline]
    pub(crate) fn whole(&self, offset: usize) {
        if !self.is_off() {
            self.with(offset, |shadow| {
                let range = shadow.at(offset).expect("audit: an item under way");
                assert!(range.state == State::UnderWay, "audit: written twice: {range}");
                range.state = State::Live;
            });
        }
    }

    /// A block is in use (I1).
    #[inline]
    #[track_caller]
    pub(crate) fn block(&self, offset: usize) {
        self.born(offset, crate::limits::BLOCK_BYTES, Use::Blocks, State::Live);
    }

    #[inline]
    #[track_caller]
    fn born(&self, offset: usize, bytes: usize, cut_into: Use, state: State) {
        if !self.is_off() {
            let born = self.event();
            let range = Range { bytes, state, born, died: None };
            self.with(offset, |shadow| {
                assert!(shadow.cut_into == cut_into, "audit: {range}: {}", shadow.story());
                let end = offset + bytes;
                assert!(
                    (end - 1) / self.segment_bytes == offset / self.segment_bytes,
                    "audit: {range} leaves its segment"
                );
                // A block may be used again; the place of an item only in a new segment.
                let is_again =
                    |other: &Range| cut_into == Use::Blocks && other.state == State::Dead;
                let last = shadow.before(end - 1);
                let overlapped = last.filter(|(at, other)| at + other.bytes > offset);
                if let Some((at, other)) = overlapped.filter(|(_, other)| !is_again(other)) {
                    panic!("audit: at {offset} {range} overlaps what lies at {at}: {other}");
                }
                shadow.insert(offset, range);
            });
        }
    }

    /// The item or block at `offset` is dead (I4).
    #[inline]
    #[track_caller]
    pub(crate) fn dead(&self, offset: usize) {
        if !self.is_off() {
            let died = self.event();
            self.with(offset, |shadow| {
                if shadow.at(offset).is_none() {
                    panic!("audit: nothing at {offset} can die by {died}: {}", shadow.story());
                }
                let Some(range) = shadow.at(offset) else { unreachable!("found above") };
                assert!(
                    range.state == State::Live,
                    "audit: at {offset} dies a second time, now by {died}: {range}"
                );
                (range.state, range.died) = (State::Dead, Some(died));
            });
        }
    }

    /// Bytes are written (I2).
    #[inline]
    #[track_caller]
    pub(crate) fn write(&self, offset: usize, bytes: usize) {
        if !self.is_off() && bytes > 0 {
            self.with(offset, |shadow| {
                let (start, range) = shadow.around("a write", offset, bytes);
                let may = match shadow.cut_into {
                    Use::Items => State::UnderWay,
                    Use::Blocks | Use::Free => State::Live,
                };
                assert!(range.state == may, "audit: a write at {offset} changes {start}: {range}");
            });
        }
    }

    /// Bytes are read (I3).
    #[inline]
    #[track_caller]
    #[cfg_attr(loom, expect(dead_code, reason = "models read words"))]
    pub(crate) fn read(&self, offset: usize, bytes: usize) {
        if !self.is_off() && bytes > 0 {
            self.with(offset, |shadow| {
                let (start, range) = shadow.around("a read", offset, bytes);
                let is_gone = shadow.cut_into == Use::Blocks && range.state == State::Dead;
                assert!(!is_gone, "audit: a read at {offset} of a block given back: {range}");
                assert!(
                    range.state != State::UnderWay,
                    "audit: a read at {offset} of what is not whole yet, at {start}: {range}"
                );
            });
        }
    }

    /// The header of an item is read: one begins exactly there (I3).
    #[inline]
    #[track_caller]
    pub(crate) fn header(&self, offset: usize) {
        if !self.is_off() {
            self.with(offset, |shadow| {
                let (start, range) = shadow.around("a header", offset, 8);
                assert!(
                    start == offset,
                    "audit: no item begins at {offset}, inside {start} {range}"
                );
            });
        }
    }
}

impl Shadow {
    fn turn(&mut self, start: usize, cut_into: Use, event: Event) {
        let mut ranges = self.starts.iter().zip(&self.ranges);
        if let Some((at, range)) = ranges.find(|(_, range)| range.state != State::Dead) {
            panic!("audit: {event} takes the segment at {start} from what lives at {at}: {range}");
        }
        let is_taken_twice = cut_into != Use::Free
            && self.cut_into != Use::Free
            && !(self.cut_into == cut_into && self.ranges.is_empty());
        assert!(!is_taken_twice, "audit: {event} takes the segment at {start}; {}", self.story());
        *self = Self { cut_into, since: Some(event), ..Self::default() };
    }
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use std::sync::Arc;

    use kachel_host::Budget;

    use super::*;
    use crate::{BLOCK_BYTES, Index, ItemAt, NewItem, NewValue, Pool, PoolOptions};
    use crate::{SegmentOptions, Segments};

    /// Segments of this many bytes, the first one of items.
    const SEGMENT: usize = 1 << 16;

    fn of_items() -> Audit {
        let audit = Audit::over(SEGMENT);
        audit.begin(0, Use::Items);
        audit.item(16, 40);
        audit.write(16, 40);
        audit.whole(16);
        audit
    }

    #[test]
    fn what_is_in_order_passes() {
        let audit = of_items();
        audit.item(56, 24);
        audit.write(60, 20);
        audit.whole(56);
        audit.header(16);
        audit.read(20, 36);
        audit.dead(16);
        audit.read(20, 36); // The pin allows it.
        audit.dead(56);
        audit.end(0);
        audit.begin(0, Use::Blocks);
        audit.block(BLOCK_BYTES);
        audit.write(BLOCK_BYTES, 7);
        audit.dead(BLOCK_BYTES);
        audit.block(BLOCK_BYTES);
        audit.read(BLOCK_BYTES, BLOCK_BYTES);
        audit.dead(BLOCK_BYTES);
        audit.begin(SEGMENT, Use::Items);
        audit.end(0);
    }

    #[test]
    #[should_panic(expected = "overlaps what lies at 16")]
    fn an_item_over_another_is_found() {
        of_items().item(48, 40);
    }

    #[test]
    #[should_panic(expected = "changes 16")]
    fn a_write_to_a_whole_item_is_found() {
        of_items().write(20, 1);
    }

    #[test]
    #[should_panic(expected = "a write of 9 bytes at 72 is not inside the range at 56")]
    fn a_write_beyond_its_item_is_found() {
        let audit = of_items();
        audit.item(56, 24);
        audit.write(72, 9);
    }

    #[test]
    #[should_panic(expected = "a read of 8 bytes at 56 is not inside")]
    fn a_read_of_what_nobody_wrote_is_found() {
        of_items().read(56, 8);
    }

    #[test]
    #[should_panic(expected = "no item begins at 24")]
    fn a_location_inside_an_item_is_found() {
        of_items().header(24);
    }

    #[test]
    #[should_panic(expected = "a read of 8 bytes at 16: its segment is Free since event")]
    fn a_read_of_a_segment_given_back_is_found() {
        let audit = of_items();
        audit.dead(16);
        audit.end(0);
        audit.read(16, 8);
    }

    #[test]
    #[should_panic(expected = "a read at 0 of a block given back")]
    fn a_read_of_a_block_given_back_is_found() {
        let audit = Audit::over(SEGMENT);
        audit.begin(0, Use::Blocks);
        audit.block(0);
        audit.dead(0);
        audit.read(0, 1);
    }

    struct NoIndex;

    impl Index for NoIndex {
        fn hash(&self, _key: &[u8]) -> u64 {
            0
        }
        fn swing(&mut self, _key: &[u8], _from: ItemAt, _to: ItemAt) {}
        fn remove(&mut self, _key: &[u8], _at: ItemAt) {}
    }

    fn pool() -> Arc<Pool> {
        let options = PoolOptions { engines: 1, reserve_bytes: 4 << 20, ..PoolOptions::default() };
        Pool::new(Arc::new(Budget::new(4 << 20)), options).expect("address space")
    }

    #[test]
    #[should_panic(expected = "takes the segment at")]
    fn a_segment_given_back_with_a_living_item_is_found() {
        let pool = pool();
        let options = SegmentOptions { evict: true, cas: true, shard: 0, item_overhead_bytes: 0 };
        let mut segments = Segments::new(Arc::clone(&pool), options).expect("address space");
        let item = NewItem {
            key: b"key",
            hash: 0,
            value: NewValue::Bytes(b"value"),
            client_flags: 0,
            expiry: 0,
            cas: Some(1),
            stale: false,
            win_sent: false,
            remnant: false,
            protocol_mark: false,
            replaces: None,
            keeps_access: false,
        };
        let at = segments.append(item, 1, &mut NoIndex).expect("memory suffices");
        pool.give(pool.segment_of(at), None);
    }

    #[test]
    #[should_panic(expected = "dies a second time")]
    fn a_large_value_freed_twice_is_found() {
        let pool = pool();
        let mut other = pool.begin_upload(BLOCK_BYTES).expect("less than all memory");
        other.write(&[2; 9]).expect("memory suffices"); // Keeps their segment.
        let mut upload = pool.begin_upload(2 * BLOCK_BYTES).expect("less than all memory");
        upload.write(&vec![1; 2 * BLOCK_BYTES]).expect("memory suffices");
        let extent = upload.extent().expect("it has whole blocks");
        upload.disown_extent();
        pool.free_extent(extent.id, extent.blocks);
        pool.free_extent(extent.id, extent.blocks);
    }
}
