//! Tells when no reader can still use a thing that was taken out of reach, because every reader
//! that is awake has ended a round since then.
//!
//! Upstream:   readers register, and report when they end a round, sleep and wake.
//! Downstream: an owner stamps the memory that it takes out of reach, and asks before it reuses it.
//!
//! ```text
//! word of a place:  0 free | 1 asleep | the newest stamp that the reader knew when it last held
//!                   nothing
//!          + AWAITED: an owner waits for this reader
//!
//!            register              sleep                    drop
//!   free ----------------> awake ---------> asleep     any ------> free
//!                          |  ^   <---------
//!                          +--+      wake
//!                        round_over
//! ```
//!
//! Invariants:
//! - I1  A reader holds nothing that it found before its last `round_over`, `sleep`, `wake` or
//!   `register`; asleep it looks for nothing.
//! - I2  A thing is taken out of reach before it is stamped. A reader that knows the stamp does not
//!   find the thing any more: the stamp is drawn with release and read with acquire.
//! - I3  When an owner sees that a reader sleeps or has ended a round, the reader's earlier reads
//!   are over (release, acquire).
//! - I4  A reader that wakes either finds the thing gone or is found awake: two sequentially
//!   consistent fences, one between each one's write and its read (Dekker), forbid that both miss.
//! - I5  A reader's own thread may leave its place out of the count while it holds nothing.
//! - I6  An owner that waits marks the word of one reader that may hold the thing
//!   ([`Quiescence::await_past`]). Mark and stamp are one word, which both change by a
//!   read-modify-write. So either the owner finds that the reader has passed, or the reader finds
//!   the mark when it passes and tells the owner. What the owner wrote before it marked is visible
//!   to a reader that finds the mark (release, acquire). When that reader has passed, the owner
//!   asks again, and marks the next one: no reader need know whether it is the last.
//!
//! Source: quiescent-state-based reclamation, as in McKenney and Slingwine, "Read-copy update",
//! PDCS 1998. Our change: a sleeping reader does not count, so no thread must wake it.

use std::sync::Arc;

use crate::CachePadded;
use crate::sync::{AtomicU64, Ordering, fence};

const FREE: u64 = 0;
const ASLEEP: u64 = 1;
/// The newest stamp before anything was stamped.
const FIRST: u64 = 2;
/// Set in the word of a reader that is awake while an owner waits for it (I6).
const AWAITED: u64 = 1 << 63;

/// The readers, and the newest stamp; shared by readers and reclaimers.
#[derive(Debug)]
pub struct Quiescence {
    newest: CachePadded<AtomicU64>,
    places: Box<[CachePadded<AtomicU64>]>,
}

/// A moment at which something was taken out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(u64);

/// Names a reader's place, for [`Quiescence::is_past_beside`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(usize);

/// One reader's place in a [`Quiescence`], awake or asleep. Dropped, it is out of the count.
/// A reader that an owner may wait for sleeps before it is dropped (I6).
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Quiescence>,
    place: usize,
}

impl Quiescence {
    /// Makes places for `readers_max` readers, none registered. Cost: 128 bytes per place.
    pub fn new(readers_max: usize) -> Self {
        let places = (0..readers_max).map(|_| CachePadded::new(AtomicU64::new(FREE))).collect();
        Self { newest: CachePadded::new(AtomicU64::new(FIRST)), places }
    }

    /// Registers a reader, which is awake. `None` when all places are taken.
    ///
    /// Cost: a search of the places, a full fence.
    pub fn register(self: &Arc<Self>) -> Option<Reader> {
        let reader = self.take_place(self.newest.load(Ordering::Acquire))?;
        fence(Ordering::SeqCst); // I4
        Some(reader)
    }

    /// Registers a reader, which is asleep. `None` when all places are taken.
    ///
    /// Cost: a search of the places.
    pub fn register_asleep(self: &Arc<Self>) -> Option<Reader> {
        self.take_place(ASLEEP)
    }

    /// Takes a free place for a reader whose word is `word` from now on.
    fn take_place(self: &Arc<Self>, word: u64) -> Option<Reader> {
        let place = self.places.iter().position(|place| {
            place.compare_exchange(FREE, word, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })?;
        Some(Reader { shared: Arc::clone(self), place })
    }

    /// Stamps what the caller has taken out of reach. Cost: a full fence and a shared write.
    pub fn stamp(&self) -> Stamp {
        fence(Ordering::SeqCst); // I4: out of reach before any reader is checked.
        Stamp(self.newest.fetch_add(1, Ordering::AcqRel) + 1) // I2
    }

    /// Whether no reader can hold what was stamped with `stamp`. Once this is true, it stays true.
    ///
    /// Cost: one cache line per place, until a reader is found that may hold it.
    pub fn is_past(&self, stamp: Stamp) -> bool {
        self.is_past_beside(stamp, None)
    }

    /// Can no reader except the one at `own` hold what was stamped so? The caller runs on that
    /// reader's thread, which holds nothing now (I5).
    ///
    /// Cost: a line a place, until one is found that may.
    pub fn is_past_beside(&self, stamp: Stamp, own: Option<Place>) -> bool {
        debug_assert!(own.is_none_or(|own| own.0 < self.places.len()), "I5: a place of this count");
        self.places.iter().enumerate().all(|(index, place)| {
            let word = place.load(Ordering::Acquire); // I3
            is_past(word, stamp) || own == Some(Place(index))
        })
    }

    /// As [`Self::is_past_beside`]. If a reader may hold what was stamped, also marks one that may:
    /// [`Reader::round_over`] or [`Reader::sleep`] of that reader then returns `true` (I6).
    ///
    /// Cost: as [`Self::is_past_beside`], and a read-modify-write of the word of the reader.
    pub fn await_past(&self, stamp: Stamp, own: Option<Place>) -> bool {
        for (index, place) in self.places.iter().enumerate() {
            if own == Some(Place(index)) {
                continue;
            }
            let mut word = place.load(Ordering::Acquire); // I3
            while !is_past(word, stamp) {
                // A mark that is there is set again, so that the reader sees what this owner wrote.
                let marked = word | AWAITED;
                match place.compare_exchange(word, marked, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return false,
                    Err(newer) => word = newer,
                }
            }
        }
        true
    }
}

/// Whether a reader whose place has this word cannot hold what was stamped so.
fn is_past(word: u64, stamp: Stamp) -> bool {
    let known = word & !AWAITED;
    debug_assert!(word == known || known >= FIRST, "I6: only a reader that is awake is awaited");
    known == FREE || known == ASLEEP || known >= stamp.0
}

impl Reader {
    /// A round is over, and nothing is held of it. Returns whether an owner waits for this reader,
    /// and must be told (I6). Cost: two loads, and a read-modify-write where something was stamped
    /// since.
    #[inline]
    pub fn round_over(&mut self) -> bool {
        debug_assert!(self.is_awake(), "I1: a reader that is asleep has no round");
        let newest = self.shared.newest.load(Ordering::Acquire); // I2
        if self.word().load(Ordering::Relaxed) == newest {
            return false;
        }
        self.word().swap(newest, Ordering::AcqRel) & AWAITED != 0 // I3, I6
    }

    /// The reader's place.
    pub const fn place(&self) -> Place {
        Place(self.place)
    }

    /// Whether the reader is awake. Cost: a load of its own line.
    pub fn is_awake(&self) -> bool {
        self.word().load(Ordering::Relaxed) != ASLEEP
    }

    /// Reports that the reader holds nothing, and looks for nothing until [`Self::wake`]. Returns
    /// whether an owner waits for this reader, and must be told (I6). Cost: a read-modify-write.
    pub fn sleep(&mut self) -> bool {
        self.word().swap(ASLEEP, Ordering::AcqRel) & AWAITED != 0 // I3, I6
    }

    /// Reports that the reader, which is asleep, looks for things again. Cost: a load, a store and
    /// a full fence.
    pub fn wake(&mut self) {
        debug_assert!(!self.is_awake(), "I6: the mark of a reader that is awake would be lost");
        let newest = self.shared.newest.load(Ordering::Acquire);
        self.word().store(newest, Ordering::Release);
        fence(Ordering::SeqCst); // I4: in the count before anything is looked for.
    }

    /// Whether this is a reader of `shared`, and awake. If so, a thing that it finds is not used
    /// again before its round is over. Cost: a load of its own line.
    pub fn is_awake_in(&self, shared: &Arc<Quiescence>) -> bool {
        Arc::ptr_eq(&self.shared, shared) && self.is_awake()
    }

    fn word(&self) -> &AtomicU64 {
        &self.shared.places[self.place]
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.word().store(FREE, Ordering::Release); // I3
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_past_once_every_reader_awake_has_ended_a_round() {
        let quiescence = Arc::new(Quiescence::new(2));
        assert!(quiescence.is_past(quiescence.stamp()), "nobody reads");
        let mut readers = [(); 2].map(|()| quiescence.register().expect("two places"));
        assert!(quiescence.register().is_none(), "and no third");
        let stamp = quiescence.stamp();
        assert!(!quiescence.is_past(stamp));
        assert!(!readers[0].round_over());
        assert!(!quiescence.is_past(stamp));
        assert!(!readers[1].round_over());
        assert!(quiescence.is_past(stamp));
        assert!(!quiescence.is_past(quiescence.stamp()), "rounds count from the stamp on");
    }

    #[test]
    fn a_thread_that_holds_nothing_does_not_wait_for_itself() {
        let quiescence = Arc::new(Quiescence::new(2));
        let own = quiescence.register().expect("a place");
        let mut other = quiescence.register().expect("a place");
        let stamp = quiescence.stamp();
        assert!(!quiescence.is_past_beside(stamp, Some(own.place())), "the other one may read");
        assert!(!other.round_over());
        assert!(quiescence.is_past_beside(stamp, Some(own.place())));
        assert!(!quiescence.is_past(stamp), "others wait for it");
    }

    #[test]
    fn each_reader_that_an_owner_waits_for_is_told_once() {
        let quiescence = Arc::new(Quiescence::new(3));
        let mut readers = [(); 3].map(|()| quiescence.register().expect("three places"));
        let own = readers[2].place();
        let stamp = quiescence.stamp();
        assert!(!quiescence.await_past(stamp, Some(own)) && !quiescence.is_past(stamp));
        assert!(!readers[1].round_over(), "the first one is awaited");
        assert!(readers[0].round_over() && !readers[0].round_over(), "once");
        assert!(quiescence.await_past(stamp, Some(own)), "nobody else is awaited");
        assert!(!readers[2].round_over(), "a thread does not wait for itself");
        let stamp = quiescence.stamp();
        assert!(!quiescence.await_past(stamp, None));
        assert!(readers[0].is_awake() && readers[0].sleep(), "sleep tells as well");
        readers[0].wake();
        assert!(!quiescence.await_past(stamp, None) && !quiescence.await_past(stamp, None));
        assert!(!readers[0].round_over() && readers[1].round_over(), "then it waits for the next");
    }

    #[test]
    fn a_sleeper_and_one_who_left_are_out_of_the_count() {
        let quiescence = Arc::new(Quiescence::new(2));
        let mut sleeper = quiescence.register().expect("a place");
        let left = quiescence.register().expect("a place");
        let early = quiescence.stamp();
        assert!(sleeper.is_awake_in(&quiescence));
        assert!(!sleeper.sleep());
        drop(left);
        let mut late = quiescence.register_asleep().expect("the place that was left");
        assert!(!late.is_awake() && quiescence.register_asleep().is_none(), "that was the last");
        late.wake();
        drop(late);
        assert!(!sleeper.is_awake_in(&quiescence));
        assert!(!sleeper.is_awake_in(&Arc::new(Quiescence::new(2))), "nor a reader of another");
        assert!(quiescence.is_past(early));
        let late = quiescence.stamp();
        sleeper.wake();
        assert!(quiescence.is_past(late), "it woke after that was out of reach");
        assert!(!quiescence.is_past(quiescence.stamp()));
        assert!(quiescence.register().is_some(), "a place that was left is free");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::model::explore;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;
    use std::sync::atomic::AtomicU64 as Count;

    /// Two things. `within_reach` is the index of the one that a reader finds.
    struct Things {
        cells: [AtomicU64; 2],
        within_reach: AtomicUsize,
        quiescence: Arc<Quiescence>,
    }

    const FIRST_USE: u64 = 7;
    const SECOND_USE: u64 = 8;

    impl Things {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                cells: [AtomicU64::new(FIRST_USE), AtomicU64::new(0)],
                within_reach: AtomicUsize::new(0),
                quiescence: Arc::new(Quiescence::new(2)),
            })
        }

        fn read(&self) {
            let found = self.within_reach.load(Ordering::Acquire);
            let read = self.cells[found].load(Ordering::Relaxed);
            assert_eq!(read, FIRST_USE, "used again while it is read");
        }

        /// Brings the second thing within reach instead of the first, and uses the first again as
        /// soon as it may. Returns whether it could within `tries` attempts.
        fn replace(&self, tries: usize) -> bool {
            self.replace_beside(tries, None)
        }

        /// As `replace`, on the thread of the reader at `own`.
        fn replace_beside(&self, tries: usize, own: Option<Place>) -> bool {
            self.cells[1].store(FIRST_USE, Ordering::Relaxed);
            self.within_reach.store(1, Ordering::Release);
            let stamp = self.quiescence.stamp();
            for _ in 0..tries {
                if self.quiescence.is_past_beside(stamp, own) {
                    self.cells[0].store(SECOND_USE, Ordering::Relaxed);
                    return true;
                }
                thread::yield_now();
            }
            false
        }
    }

    /// Runs `reader` beside a thread that replaces the thing. Both results of `replace` must occur.
    fn beside_a_reclaimer(name: &str, reader: impl Fn(&Things) + Copy + Send + Sync + 'static) {
        let used_again = Arc::new([Count::new(0), Count::new(0)]);
        let counts = Arc::clone(&used_again);
        explore(name, None, move || {
            let things = Things::new();
            let read = Arc::clone(&things);
            let reading = thread::spawn(move || reader(&read));
            counts[usize::from(things.replace(2))].fetch_add(1, Ordering::Relaxed);
            reading.join().expect("joins");
        });
        let [waited, used] = &*used_again;
        assert!(used.load(Ordering::Relaxed) > 0, "never used again");
        assert!(waited.load(Ordering::Relaxed) > 0, "never had to wait");
    }

    #[test]
    fn nothing_is_used_again_while_a_reader_ends_rounds() {
        beside_a_reclaimer("quiescence, rounds", |things| {
            let mut reader = things.quiescence.register().expect("a place");
            things.read();
            let _awaited = reader.round_over();
            things.read();
        });
    }

    #[test]
    fn nothing_is_used_again_while_a_reader_sleeps_and_wakes() {
        beside_a_reclaimer("quiescence, sleep", |things| {
            let mut reader = things.quiescence.register().expect("a place");
            things.read();
            let _awaited = reader.sleep();
            reader.wake();
            things.read();
        });
    }

    #[test]
    fn a_reader_that_comes_and_goes_keeps_nothing_from_use() {
        explore("quiescence, last reader", None, || {
            let things = Things::new();
            let read = Arc::clone(&things);
            let reading = thread::spawn(move || {
                let reader = read.quiescence.register().expect("a place");
                read.read();
                drop(reader);
            });
            let used = things.replace(1);
            reading.join().expect("joins");
            assert!(used || things.quiescence.is_past(things.quiescence.stamp()));
        });
    }

    #[test]
    fn a_core_that_reclaims_waits_for_the_others_and_not_for_itself() {
        let used_again = Arc::new(Count::new(0));
        let count = Arc::clone(&used_again);
        explore("quiescence, holder", None, move || {
            let things = Things::new();
            let read = Arc::clone(&things);
            let reading = thread::spawn(move || {
                let mut reader = read.quiescence.register().expect("a place");
                read.read();
                let _awaited = reader.round_over();
                read.read();
            });
            let mut holder = things.quiescence.register().expect("a place");
            things.read();
            // It ends its round before it changes anything, and begins another one afterwards.
            let _awaited = holder.round_over();
            let used = things.replace_beside(2, Some(holder.place()));
            count.fetch_add(u64::from(used), Ordering::Relaxed);
            things.read();
            reading.join().expect("joins");
        });
        assert!(used_again.load(Ordering::Relaxed) > 0, "it waited for itself");
    }

    #[test]
    fn two_readers_are_both_waited_for() {
        explore("quiescence, two readers", Some(3), || {
            let things = Things::new();
            let readers = [(); 2].map(|()| {
                let read = Arc::clone(&things);
                thread::spawn(move || {
                    let mut reader = read.quiescence.register().expect("a place");
                    read.read();
                    let _awaited = reader.round_over();
                })
            });
            things.replace(1);
            for reader in readers {
                reader.join().expect("joins");
            }
        });
    }

    #[test]
    fn an_owner_that_waits_is_told_by_a_reader_that_it_found_in_the_way() {
        let seen = Arc::new([Count::new(0), Count::new(0)]);
        let counts = Arc::clone(&seen);
        explore("quiescence, awaited", None, move || {
            let things = Things::new();
            let armed = Arc::new(AtomicU64::new(0));
            let (read, told) = (Arc::clone(&things), Arc::clone(&armed));
            let mut reader = things.quiescence.register().expect("a place");
            let reading = thread::spawn(move || {
                read.read();
                let is_awaited = reader.round_over();
                // I6: what the owner wrote before it marked the reader is visible.
                assert!(!is_awaited || told.load(Ordering::Relaxed) == 1);
                read.read();
                is_awaited || reader.sleep()
            });
            things.cells[1].store(FIRST_USE, Ordering::Relaxed);
            things.within_reach.store(1, Ordering::Release);
            let stamp = things.quiescence.stamp();
            armed.store(1, Ordering::Relaxed);
            let is_past = things.quiescence.await_past(stamp, None);
            let is_told = reading.join().expect("joins");
            assert!(is_past || is_told, "the wake-up is lost");
            assert!(things.quiescence.is_past(stamp));
            counts[usize::from(is_told)].fetch_add(1, Ordering::Relaxed);
        });
        assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) > 0), "both happen");
    }
}
