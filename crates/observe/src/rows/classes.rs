//! `stats items`, `stats slabs` and `stats sizes`: the items by their sizes.
//!
//! Upstream:   a listing, once it has walked all items.
//! Downstream: its census; the counts of all engines by class, and the counters of all cores by
//!             class.
//!
//! Kachel has no slabs: items of all classes lie in the same segments. The classes are those that
//! memcached would make, so its tools show where the items are. The pages of a class are as many as
//! memcached would need for its items, all on one LRU list, the cold one.
//!
//! `by_class` counts a sample of the requests by class, and here it is scaled up.
//!
//! Invariants:
//! - I1  `stats items` shows the classes that have items. `stats slabs` shows those as well that
//!   have had any since the last `stats reset`: memcached keeps the pages of such a class.
//! - I2  The items and bytes of the classes add up to `curr_items` and `bytes`, if no core changes
//!   items meanwhile, no item has expired, and there are not more items than a census examines.

use kachel_engine::{ClassStats, ReadBeside};
use kachel_stdx::{Counter, SizeClasses};

use crate::by_class::ClassCounters;
use crate::census::{Census, Group};
use crate::class_metrics::REQUEST_KINDS;
use crate::class_sums::ClassSums;
use crate::rows::{Kind, Row, RowValue, Unit};
use crate::totals::Totals;

/// Bytes of a step of `stats sizes`.
pub const SIZE_STEP_BYTES: u32 = 32;

/// The most rows of one piece of an answer.
pub const PIECE_ROWS_MAX: usize = CLASSES_PER_PIECE_MAX * CLASS_ROWS_MAX;
/// The most bytes of a row with its class, as a line or as a statistic of the binary protocol.
pub const CLASS_ROW_BYTES_MAX: usize = 72;
/// The most classes of one piece of an answer. A class has at most `CLASS_ROWS_MAX` rows.
const CLASSES_PER_PIECE_MAX: usize = 8;
const CLASS_ROWS_MAX: usize = 28;

/// Bytes of memcached's pages.
const PAGE_BYTES: u64 = 1 << 20;

/// A counter of a class.
type OfClass = fn(&ClassCounters) -> &Counter;
/// How many requests of all classes were counted.
type OfAll = fn(&Totals) -> u64;
/// A counter of a class, and the count of all requests of its kind.
type Pick = (OfClass, OfAll);

/// memcached's counters of a class, in its order.
const REQUESTS: [(&str, Pick); REQUEST_KINDS] = [
    ("get_hits", (|row| &row.get_hits, |all| all.sum(|core| &core.get_hits))),
    ("cmd_set", (|row| &row.cmd_set, Totals::stores)),
    ("delete_hits", (|row| &row.delete_hits, |all| all.sum(|core| &core.delete_hits))),
    ("incr_hits", (|row| &row.incr_hits, |all| all.sum(|core| &core.incr_hits))),
    ("decr_hits", (|row| &row.decr_hits, |all| all.sum(|core| &core.decr_hits))),
    ("cas_hits", (|row| &row.cas_hits, |all| all.sum(|core| &core.cas_hits))),
    ("cas_badval", (|row| &row.cas_badval, |all| all.sum(|core| &core.cas_badval))),
    ("touch_hits", (|row| &row.touch_hits, |all| all.sum(|core| &core.touch_hits))),
];

/// Values that were refused because there was no memory.
const REFUSED: Pick = (|row| &row.store_no_memory, |all| all.sum(|core| &core.store_no_memory));

/// The requests of a class in the sample, by kind, since the last `stats reset`.
pub fn sampled_requests(totals: &Totals, class: u8) -> [u64; REQUEST_KINDS] {
    REQUESTS.map(|(_, (of_class, _))| totals.sum_of_class(class, of_class))
}

/// The part of `all` requests that belongs to a class, if `counted` of `sample` requests do. Exact
/// if the sample has all of them.
fn part_of(all: u64, counted: u64, sample: u64) -> u64 {
    debug_assert!(counted <= sample, "a class has a part of the sample");
    let part = u128::from(all) * u128::from(counted) / u128::from(sample.max(1));
    debug_assert!(part <= u128::from(all), "no more than all");
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// The pages and chunks that memcached would need for the items of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunks {
    per_page: u64,
    pages: u64,
    used: u64,
}

impl Chunks {
    /// Those of `items` items that take `bytes`, in chunks of `chunk_bytes`. An item that is longer
    /// than a chunk takes several.
    fn of(chunk_bytes: u64, Group { items, bytes, .. }: Group) -> Self {
        let per_page = (PAGE_BYTES / chunk_bytes).max(1);
        let used = items.max(bytes.div_ceil(chunk_bytes));
        debug_assert!(used * chunk_bytes >= bytes, "the items have room");
        Self { per_page, pages: used.div_ceil(per_page), used }
    }

    const fn total(self) -> u64 {
        self.per_page * self.pages
    }
}

/// The requests of each kind by class, as they were when a reply began. The sample of a kind has
/// one sum, so it is not added up for each class again.
struct Requests {
    /// By kind: those of [`REQUESTS`], then [`REFUSED`].
    kinds: Vec<OfKind>,
}

/// The requests of one kind.
struct OfKind {
    /// All of them.
    all: u64,
    /// Those of the sample, by class.
    counted: [u64; SizeClasses::MAX],
    /// The sum of `counted`.
    sample: u64,
}

impl Requests {
    /// The place of the refused ones among the kinds.
    const REFUSED: usize = REQUESTS.len();

    /// Reads them. `of_class` returns the sum over all shards of the counter of a class, `of_all`
    /// that of a counter of all requests.
    ///
    /// Cost: a call of `of_class` for each kind and class.
    fn read(mut of_class: impl FnMut(u8, OfClass) -> u64, of_all: impl Fn(OfAll) -> u64) -> Self {
        let picks = REQUESTS.iter().map(|(_, pick)| *pick).chain([REFUSED]);
        let kinds = picks.map(|(row, all)| {
            let counted = std::array::from_fn(|class| of_class(class as u8, row));
            let sample = counted.iter().fold(0, |sum: u64, one| sum.saturating_add(*one));
            OfKind { all: of_all(all), counted, sample }
        });
        let kinds: Vec<OfKind> = kinds.collect();
        debug_assert!(kinds.len() == Self::REFUSED + 1, "the refused ones come last");
        Self { kinds }
    }

    /// Whether the sample has any of a class, the refused ones apart.
    fn has_any(&self, class: u8) -> bool {
        let kinds = self.kinds.iter().take(Self::REFUSED);
        kinds.map(|kind| kind.counted[usize::from(class)]).any(|counted| counted > 0)
    }

    /// The requests of a kind that belong to a class.
    fn of(&self, kind: usize, class: u8) -> u64 {
        let OfKind { all, counted, sample } = &self.kinds[kind];
        part_of(*all, counted[usize::from(class)], *sample)
    }
}

/// The counts of one class.
struct Class<'r> {
    number: u8,
    chunk_bytes: u64,
    /// Its living items.
    held: Group,
    /// Counts of the items that are gone.
    gone: ClassStats,
    /// The requests of all classes.
    requests: &'r Requests,
}

/// Takes the rows of classes. A row of all classes together has no class.
type Sink<'s> = &'s mut dyn FnMut(Option<u8>, &Row<'_>);

/// The counts of all size classes of a process.
#[derive(Clone, Copy, Debug)]
pub struct Classes<'a, R> {
    /// The counters of all cores and engines.
    pub totals: &'a Totals,
    /// Counts of the items that are gone.
    pub sums: &'a ClassSums<R>,
    /// The classes.
    pub sizes: &'a SizeClasses,
    /// The items that are there.
    pub census: &'a Census,
}

impl<R: ReadBeside> Classes<'_, R> {
    /// Calls `show` with each class that is shown (I1) from number `from` on, at most
    /// `CLASSES_PER_PIECE_MAX`; with those that have no items only if they are `also_empty`.
    /// Returns the number of the next one, if there may be more.
    fn each(&self, from: u32, also_empty: bool, mut show: impl FnMut(&Class<'_>)) -> Option<u32> {
        let chunk_bytes = self.sizes.lengths();
        debug_assert!(chunk_bytes.len() <= SizeClasses::MAX, "a row for each class");
        let of_class = |class, row| self.totals.sum_of_class(class, row);
        let requests = &Requests::read(of_class, |of_all| of_all(self.totals));
        let mut shown = 0;
        for (number, &chunk_bytes) in (0..).zip(chunk_bytes).skip(1.max(from as usize)) {
            let (held, gone) = (self.census.of(u32::from(number)), self.sums.of(number));
            let was_used = || gone.evicted + gone.reclaimed > 0 || requests.has_any(number);
            let is_used = held.items > 0 || also_empty && was_used();
            if is_used && shown == CLASSES_PER_PIECE_MAX {
                return Some(u32::from(number));
            }
            if is_used {
                let chunk_bytes = u64::from(chunk_bytes);
                show(&Class { number, chunk_bytes, held, gone, requests });
                shown += 1;
            }
        }
        None
    }

    /// Gives a piece of the rows of `stats items` to `sink`, from class `from` on. Returns where
    /// the next piece begins; `None` after the last one.
    pub fn items(&self, from: u32, now_s: u32, sink: Sink<'_>) -> Option<u32> {
        self.each(from, false, |class| class.items(now_s, sink))
    }

    /// Gives a piece of the rows of `stats slabs` to `sink`, as [`Self::items`] does. `spent_bytes`
    /// are those of the memory budget.
    pub fn slabs(&self, from: u32, spent_bytes: u64, sink: Sink<'_>) -> Option<u32> {
        let next = self.each(from, true, |class| class.slab(sink));
        if next.is_none() {
            let (mut active, mut from) = (0, Some(0));
            while let Some(first) = from {
                from = self.each(first, true, |_| active += 1);
            }
            debug_assert!(active <= SizeClasses::MAX as u64, "each class is counted once");
            sink(None, &Row::gauge("active_slabs", active, Unit::One, "Size classes in use."));
            let help = "Memory of the budget (-m) that is in use.";
            sink(None, &Row::gauge("total_malloced", spent_bytes, Unit::Bytes, help));
        }
        next
    }
}

/// Calls `sink` with a piece of `stats sizes`, from step `from` on: the upper bound of the sizes of
/// a step in bytes, and the number of its items. Returns where the next piece begins; `None` after
/// the last one.
pub fn sizes(census: &Census, from: u32, mut sink: impl FnMut(u32, u64)) -> Option<u32> {
    for (sent, (step, group)) in census.groups(from).enumerate() {
        if sent == PIECE_ROWS_MAX {
            return Some(step);
        }
        sink(step * SIZE_STEP_BYTES, group.items);
    }
    None
}

impl Class<'_> {
    fn items(&self, now_s: u32, sink: Sink<'_>) {
        let Class { number: class, held, gone, requests, .. } = *self;
        let age = if held.items == 0 { 0 } else { now_s.saturating_sub(held.oldest) };
        let (hits, refused) = (requests.of(0, class), requests.of(Requests::REFUSED, class));
        debug_assert!(gone.evicted_with_expiry <= gone.evicted, "they are evicted, too");
        let (one, count, gauge) = (Unit::One, Kind::Counter, Kind::Gauge);
        let rows = [
            ("number", held.items, gauge, one),
            ("number_hot", 0, gauge, one),
            ("number_warm", 0, gauge, one),
            ("number_cold", held.items, gauge, one),
            ("age_hot", 0, gauge, Unit::Seconds),
            ("age_warm", 0, gauge, Unit::Seconds),
            ("age", u64::from(age), gauge, Unit::Seconds),
            ("mem_requested", held.bytes, gauge, Unit::Bytes),
            ("evicted", gone.evicted, count, one),
            ("evicted_nonzero", gone.evicted_with_expiry, count, one),
            ("evicted_time", gone.evicted_age_s, gauge, Unit::Seconds),
            ("outofmemory", refused, count, one),
            ("tailrepairs", 0, count, one),
            ("reclaimed", gone.reclaimed, count, one),
            ("expired_unfetched", gone.expired_unfetched, count, one),
            ("evicted_unfetched", gone.evicted_unfetched, count, one),
            ("evicted_active", gone.evicted_active, count, one),
            ("crawler_reclaimed", 0, count, one),
            ("crawler_items_checked", 0, count, one),
            ("lrutail_reflocked", 0, count, one),
            ("moves_to_cold", 0, count, one),
            ("moves_to_warm", 0, count, one),
            ("moves_within_lru", 0, count, one),
            ("direct_reclaims", 0, count, one),
            ("hits_to_hot", 0, count, one),
            ("hits_to_warm", 0, count, one),
            ("hits_to_cold", hits, count, one),
            ("hits_to_temp", 0, count, one),
        ];
        debug_assert!(rows.len() <= CLASS_ROWS_MAX, "a piece has room for them");
        for (name, number, kind, unit) in rows {
            sink(Some(class), &Row { name, value: RowValue::Number(number), kind, unit, help: "" });
        }
    }

    fn slab(&self, sink: Sink<'_>) {
        let Class { number: class, chunk_bytes, held, requests, .. } = *self;
        let chunks = Chunks::of(chunk_bytes, held);
        debug_assert!(chunks.total() >= chunks.used, "the pages have room for the chunks");
        let rows = [
            ("chunk_size", chunk_bytes),
            ("chunks_per_page", chunks.per_page),
            ("total_pages", chunks.pages),
            ("total_chunks", chunks.total()),
            ("used_chunks", chunks.used),
            ("free_chunks", chunks.total() - chunks.used),
            ("free_chunks_end", 0),
        ];
        for (name, number) in rows {
            let unit = if name == "chunk_size" { Unit::Bytes } else { Unit::One };
            sink(Some(class), &Row::gauge(name, number, unit, ""));
        }
        for (kind, (name, _)) in REQUESTS.iter().enumerate() {
            sink(Some(class), &Row::counter(name, requests.of(kind, class), ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class_metrics::KINDS;

    #[test]
    fn the_metrics_name_the_same_kinds_of_requests() {
        for ((name, _), (command, status)) in REQUESTS.iter().zip(KINDS) {
            let wanted = match (command, status) {
                ("set", "hit") => "cmd_set".to_owned(),
                (_, "hit") => format!("{command}_hits"),
                _ => format!("{command}_{status}"),
            };
            assert_eq!(*name, wanted);
        }
    }

    #[test]
    fn each_counter_of_a_class_is_read_once_a_reply() {
        let (mut calls, mut counted) = (0, [0; SizeClasses::MAX]);
        // Meanwhile other cores count: each read shows more, and class 3 has no requests.
        let of_class = |class: u8, _: OfClass| {
            calls += 1;
            counted[usize::from(class)] += u64::from(class != 3);
            counted[usize::from(class)]
        };
        let requests = Requests::read(of_class, |_| 10 * (SizeClasses::MAX as u64 - 1));
        for class in 0..SizeClasses::MAX as u8 {
            assert_eq!(requests.has_any(class), class != 3);
            for kind in 0..=Requests::REFUSED {
                assert_eq!(requests.of(kind, class), if class == 3 { 0 } else { 10 });
            }
        }
        assert_eq!(calls, 9 * SizeClasses::MAX, "eight kinds, and the refused ones");
    }

    #[test]
    fn pages_have_room_for_the_items_of_a_class() {
        let of = |items, bytes| Group { items, bytes, ..Group::default() };
        let chunks = |per_page, pages, used| Chunks { per_page, pages, used };
        assert_eq!(Chunks::of(96, of(0, 0)), chunks(10_922, 0, 0));
        assert_eq!(Chunks::of(96, of(1, 24)), chunks(10_922, 1, 1));
        assert_eq!(Chunks::of(96, of(10_923, 24 * 10_923)), chunks(10_922, 2, 10_923));
        assert_eq!(Chunks::of(524_288, of(1, 1_000_000)), chunks(2, 1, 2), "a long item");
        assert_eq!(Chunks::of(2 << 20, of(1, 1)), chunks(1, 1, 1), "a chunk above a page");
    }
}
