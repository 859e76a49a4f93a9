//! `stats items`, `stats slabs` and `stats sizes`: the items by their sizes.
//!
//! Upstream:   `listing`, once it has walked all items.
//! Downstream: its census; the counts of all engines by class, and the counters of all shards by
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

use kachel_engine::{ClassStats, Common as _, Engine};
use kachel_stdx::{Counter, SizeClasses};
use kachel_wire::Reply;

use crate::observe::by_class::ClassCounters;
use crate::observe::counters::Counters;
use crate::stats::census::{Census, Group};
use crate::stats::topics::Answering;
use crate::waiting::parked::PIECE_BYTES_MAX;

/// Bytes of a step of `stats sizes`.
pub(crate) const SIZE_STEP_BYTES: u32 = 32;

/// The most bytes of a line, or of a statistic of the binary protocol.
const ROW_BYTES_MAX: usize = 72;
/// The most classes of one piece of an answer. A class has `CLASS_ROWS_MAX` lines.
const CLASSES_PER_PIECE_MAX: usize = 8;
const CLASS_ROWS_MAX: usize = 28;
/// The most steps of `stats sizes` of one piece of an answer.
const STEPS_PER_PIECE_MAX: usize = 224;

const _: () = {
    assert!(CLASSES_PER_PIECE_MAX * CLASS_ROWS_MAX * ROW_BYTES_MAX <= PIECE_BYTES_MAX);
    assert!(STEPS_PER_PIECE_MAX * ROW_BYTES_MAX <= PIECE_BYTES_MAX);
};

/// Bytes of memcached's pages.
const PAGE_BYTES: u64 = 1 << 20;

/// A counter of a class.
type OfClass = fn(&ClassCounters) -> &Counter;
/// A counter of all requests.
type OfAll = fn(&Counters) -> &Counter;
/// A counter of a class, and the counter of all requests of its kind.
type Pick = (OfClass, OfAll);

/// memcached's counters of a class, in its order.
const REQUESTS: [(&str, Pick); 8] = [
    ("get_hits", (|row| &row.get_hits, |all| &all.get_hits)),
    ("cmd_set", (|row| &row.cmd_set, |all| &all.cmd_set)),
    ("delete_hits", (|row| &row.delete_hits, |all| &all.delete_hits)),
    ("incr_hits", (|row| &row.incr_hits, |all| &all.incr_hits)),
    ("decr_hits", (|row| &row.decr_hits, |all| &all.decr_hits)),
    ("cas_hits", (|row| &row.cas_hits, |all| &all.cas_hits)),
    ("cas_badval", (|row| &row.cas_badval, |all| &all.cas_badval)),
    ("touch_hits", (|row| &row.touch_hits, |all| &all.touch_hits)),
];

/// Values that were refused because there was no memory.
const REFUSED: Pick = (|row| &row.store_no_memory, |all| &all.store_no_memory);

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
    kinds: Vec<Kind>,
}

/// The requests of one kind.
struct Kind {
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
            Kind { all: of_all(all), counted, sample }
        });
        let kinds: Vec<Kind> = kinds.collect();
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
        let Kind { all, counted, sample } = &self.kinds[kind];
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

impl<E: Engine> Answering<'_, E> {
    /// Calls `show` with each class that is shown (I1) from number `from` on, at most
    /// `CLASSES_PER_PIECE_MAX`; with those that have no items only if they are `also_empty`.
    /// Returns the number of the next one, if there may be more.
    fn classes(
        &mut self,
        census: &Census,
        from: u32,
        also_empty: bool,
        mut show: impl FnMut(&mut Self, &Class<'_>),
    ) -> Option<u32> {
        let (engines, context) = (self.engines, self.context);
        let classes = engines.common().size_classes();
        let chunk_bytes = classes.lengths();
        debug_assert!(chunk_bytes.len() <= SizeClasses::MAX, "a row for each class");
        let of_class = |class, row| context.shared.sum_of_class(class, row);
        let requests = &Requests::read(of_class, |all| context.shared.sum(all));
        let mut shown = 0;
        for (number, &chunk_bytes) in (0..).zip(chunk_bytes).skip(1.max(from as usize)) {
            let (held, gone) = (census.of(u32::from(number)), engines.class_stats(number));
            let was_used = || gone.evicted + gone.reclaimed > 0 || requests.has_any(number);
            let is_used = held.items > 0 || also_empty && was_used();
            if is_used && shown == CLASSES_PER_PIECE_MAX {
                return Some(u32::from(number));
            }
            if is_used {
                let chunk_bytes = u64::from(chunk_bytes);
                show(self, &Class { number, chunk_bytes, held, gone, requests });
                shown += 1;
            }
        }
        None
    }

    /// Sends a piece of the answer to `stats items`, from class `from` on. Returns where the next
    /// piece begins; `None` after the last one.
    pub(crate) fn items(&mut self, census: &Census, from: u32) -> Option<u32> {
        let next = self.classes(census, from, false, Self::items_of);
        if next.is_none() {
            self.reply(Reply::End);
        }
        next
    }

    fn items_of(&mut self, class: &Class<'_>) {
        let Class { number: class, held, gone, requests, .. } = *class;
        let now = self.context.now().second;
        let age = if held.items == 0 { 0 } else { now.saturating_sub(held.oldest) };
        let (hits, refused) = (requests.of(0, class), requests.of(Requests::REFUSED, class));
        debug_assert!(gone.evicted_with_expiry <= gone.evicted, "they are evicted, too");
        let rows = [
            ("number", held.items),
            ("number_hot", 0),
            ("number_warm", 0),
            ("number_cold", held.items),
            ("age_hot", 0),
            ("age_warm", 0),
            ("age", u64::from(age)),
            ("mem_requested", held.bytes),
            ("evicted", gone.evicted),
            ("evicted_nonzero", gone.evicted_with_expiry),
            ("evicted_time", gone.evicted_age_s),
            ("outofmemory", refused),
            ("tailrepairs", 0),
            ("reclaimed", gone.reclaimed),
            ("expired_unfetched", gone.expired_unfetched),
            ("evicted_unfetched", gone.evicted_unfetched),
            ("evicted_active", gone.evicted_active),
            ("crawler_reclaimed", 0),
            ("crawler_items_checked", 0),
            ("lrutail_reflocked", 0),
            ("moves_to_cold", 0),
            ("moves_to_warm", 0),
            ("moves_within_lru", 0),
            ("direct_reclaims", 0),
            ("hits_to_hot", 0),
            ("hits_to_warm", 0),
            ("hits_to_cold", hits),
            ("hits_to_temp", 0),
        ];
        for (name, number) in rows {
            self.number(&format!("items:{class}:{name}"), number);
        }
    }

    /// Sends a piece of the answer to `stats slabs`, as [`Self::items`] does.
    pub(crate) fn slabs(&mut self, census: &Census, from: u32) -> Option<u32> {
        let next = self.classes(census, from, true, Self::slab);
        if next.is_none() {
            let (mut active, mut from) = (0, Some(0));
            while let Some(first) = from {
                from = self.classes(census, first, true, |_, _| active += 1);
            }
            debug_assert!(active <= SizeClasses::MAX as u64, "each class is counted once");
            self.number("active_slabs", active);
            self.number("total_malloced", self.context.shared.budget.spent_bytes());
            self.reply(Reply::End);
        }
        next
    }

    fn slab(&mut self, class: &Class<'_>) {
        let Class { number: class, chunk_bytes, held, requests, .. } = *class;
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
            self.number(&format!("{class}:{name}"), number);
        }
        for (kind, (name, _)) in REQUESTS.iter().enumerate() {
            self.number(&format!("{class}:{name}"), requests.of(kind, class));
        }
    }

    /// Sends a piece of the answer to `stats sizes`, from step `from` on. Returns where the next
    /// piece begins; `None` after the last one.
    pub(crate) fn sizes(&mut self, census: &Census, from: u32) -> Option<u32> {
        for (sent, (step, group)) in census.groups(from).enumerate() {
            if sent == STEPS_PER_PIECE_MAX {
                return Some(step);
            }
            self.number(&(step * SIZE_STEP_BYTES).to_string(), group.items);
        }
        self.reply(Reply::End);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
