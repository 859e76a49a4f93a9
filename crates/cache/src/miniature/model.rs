//! One miniature: the eviction of the engine with another size of memory, over the sampled keys.
//!
//! Upstream:   `mod.rs`, for each request of the sample that changes something here.
//! Downstream: `sample` has the keys and their links; `kachel_segment` has the rules of eviction.
//!
//! The queues are those of `kachel_segment`'s reclaimer: probation and main, oldest first, and the
//! ghosts. The reclaimer evicts a segment at a time; a miniature evicts as many of the oldest items
//! of a queue. Its memory is that of the engine's items, times the part of the keys in the sample.
//!
//! Invariants:
//! - M1  A key is in at most one queue of a miniature, and `bytes` are the sums of its two queues
//!   of items.
//! - M2  One request has a miniature examine at most [`EXAMINED_MAX`] items. If that is not enough,
//!   the next requests go on.

use kachel_segment::{
    Access, Examined, Queue, VictimSeen, Weights, is_probation_large, kept_bytes_max,
};

use super::sample::{KeyId, NO_KEY, Place, Sample, State};

/// The most items that one request has a miniature examine (M2).
pub(super) const EXAMINED_MAX: usize = 64;

/// A victim has this part of the memory of a miniature, as a divisor. The engine has more segments;
/// a miniature has so few items that the means over them would be random.
const VICTIMS: usize = 64;

/// The lists of a miniature: the two queues of items, and the ghosts.
const GHOSTS: usize = 2;
const LISTS: usize = 3;

/// A list of keys, oldest first.
#[derive(Clone, Copy, Debug)]
struct List {
    oldest: KeyId,
    youngest: KeyId,
    count: usize,
}

const NO_LIST: List = List { oldest: NO_KEY, youngest: NO_KEY, count: 0 };

/// A run of items at the old end of a queue, which stands for a segment that is emptied.
#[derive(Clone, Copy, Debug)]
struct Victim {
    queue: Queue,
    /// Bytes that are still to be examined.
    left_bytes: usize,
    kept_bytes: usize,
    kept_bytes_max: usize,
    seen: VictimSeen,
}

/// One miniature.
#[derive(Debug)]
pub(super) struct Model {
    /// Its number, which is that of its state and its links in the sample.
    which: usize,
    lists: [List; LISTS],
    /// Bytes of the items of probation and of main (M1).
    bytes: [usize; 2],
    weights: Weights,
    victim: Option<Victim>,
    /// Bytes of memory.
    capacity: usize,
    ghosts_max: usize,
}

const fn list_of(place: Place) -> usize {
    match place {
        Place::Probation => Queue::Probation as usize,
        Place::Main => Queue::Main as usize,
        Place::Ghost | Place::Absent => GHOSTS,
    }
}

const fn queue_of(place: Place) -> Queue {
    match place {
        Place::Main => Queue::Main,
        _ => Queue::Probation,
    }
}

impl Model {
    /// An empty miniature.
    pub(super) fn new(which: usize) -> Self {
        Self {
            which,
            lists: [NO_LIST; LISTS],
            bytes: [0; 2],
            weights: Weights::default(),
            victim: None,
            capacity: 0,
            ghosts_max: 0,
        }
    }

    /// Changes the memory, which the next insertions use.
    pub(super) fn set_capacity(&mut self, bytes: usize, ghosts_max: usize) {
        (self.capacity, self.ghosts_max) = (bytes, ghosts_max);
    }

    /// Bytes of the items that it holds.
    pub(super) fn total_bytes(&self) -> usize {
        self.bytes.iter().sum()
    }

    fn unlink(&mut self, sample: &mut Sample, id: KeyId, list: usize) {
        let [older, younger] = sample.links(id, self.which);
        let ends = &mut self.lists[list];
        match older {
            NO_KEY => ends.oldest = younger,
            _ => sample.links_mut(older, self.which)[1] = younger,
        }
        match younger {
            NO_KEY => ends.youngest = older,
            _ => sample.links_mut(younger, self.which)[0] = older,
        }
        debug_assert!(ends.count > 0, "M1");
        ends.count -= 1;
    }

    fn link(&mut self, sample: &mut Sample, id: KeyId, list: usize) {
        let ends = &mut self.lists[list];
        *sample.links_mut(id, self.which) = [ends.youngest, NO_KEY];
        match ends.youngest {
            NO_KEY => ends.oldest = id,
            youngest => sample.links_mut(youngest, self.which)[1] = id,
        }
        ends.youngest = id;
        ends.count += 1;
    }

    /// Moves a key to the young end of the list of its new state, or out of all.
    fn put(&mut self, sample: &mut Sample, id: KeyId, state: State) {
        let before = sample.state(id, self.which).place;
        let bytes = sample.bytes(id);
        if before != Place::Absent {
            self.unlink(sample, id, list_of(before));
            if before != Place::Ghost {
                self.bytes[queue_of(before) as usize] -= bytes;
            }
        }
        if state.place != Place::Absent {
            self.link(sample, id, list_of(state.place));
            if state.place != Place::Ghost {
                self.bytes[queue_of(state.place) as usize] += bytes;
            }
        }
        sample.set_state(id, self.which, state);
    }

    /// Takes a key out of the miniature.
    pub(super) fn remove(&mut self, sample: &mut Sample, id: KeyId) {
        self.put(sample, id, State { place: Place::Absent, reads: 0, turns: 0 });
    }

    /// Takes note that the size of an item changes, before it does.
    pub(super) fn resize(&mut self, sample: &Sample, id: KeyId, bytes: usize) {
        let place = sample.state(id, self.which).place;
        if matches!(place, Place::Probation | Place::Main) {
            let sum = &mut self.bytes[queue_of(place) as usize];
            *sum = *sum - sample.bytes(id) + bytes;
        }
    }

    /// Stores the item of a key, as the engine chooses its queue (`kachel_segment`, `append`).
    pub(super) fn store(&mut self, sample: &mut Sample, id: KeyId, reads: u32) {
        let before = sample.state(id, self.which);
        let place = match before.place {
            Place::Absent => Place::Probation,
            Place::Ghost | Place::Main => Place::Main,
            Place::Probation if Access::of(before.reads, 0).active() => Place::Main,
            Place::Probation => Place::Probation,
        };
        self.put(sample, id, State { place, reads, turns: 0 });
    }

    /// Evicts until the items fit the memory (M2). Calls `gone` with each key that the miniature
    /// has forgotten.
    pub(super) fn evict(
        &mut self,
        sample: &mut Sample,
        now: u32,
        mut gone: impl FnMut(&mut Sample, KeyId),
    ) {
        for _ in 0..EXAMINED_MAX {
            if self.total_bytes() <= self.capacity {
                return;
            }
            let Some(mut victim) = self.victim.take().or_else(|| self.choose()) else { return };
            let id = self.lists[victim.queue as usize].oldest;
            if id != NO_KEY {
                self.examine(sample, id, &mut victim, now);
                if sample.state(id, self.which).place == Place::Absent {
                    gone(sample, id);
                }
            }
            while self.lists[GHOSTS].count > self.ghosts_max {
                let oldest = self.lists[GHOSTS].oldest;
                self.remove(sample, oldest);
                gone(sample, oldest);
            }
            if victim.left_bytes > 0 && self.lists[victim.queue as usize].count > 0 {
                self.victim = Some(victim);
                continue;
            }
            let examined = Examined { seen: victim.seen, is_whole: true };
            self.weights.note(victim.queue, examined, self.bytes, self.victim_bytes());
        }
    }

    fn victim_bytes(&self) -> usize {
        (self.capacity / VICTIMS).max(1)
    }

    /// The next victim, as the engine chooses it. `None`: there are no items.
    fn choose(&self) -> Option<Victim> {
        let segment_bytes = self.victim_bytes();
        let is_large = is_probation_large(self.bytes);
        let is_main_due = is_large && self.weights.is_main_due(segment_bytes);
        let queues = if is_large && !is_main_due {
            [Queue::Probation, Queue::Main]
        } else {
            [Queue::Main, Queue::Probation]
        };
        let queue = queues.into_iter().find(|&queue| self.lists[queue as usize].count > 0)?;
        let whole = segment_bytes;
        let kept_bytes_max = if is_main_due { whole } else { kept_bytes_max(whole) };
        let seen = VictimSeen::default();
        Some(Victim { queue, left_bytes: whole, kept_bytes: 0, kept_bytes_max, seen })
    }

    /// Keeps or drops the oldest item of the victim, as the engine does.
    fn examine(&mut self, sample: &mut Sample, id: KeyId, victim: &mut Victim, now: u32) {
        let State { reads, turns, .. } = sample.state(id, self.which);
        let bytes = sample.bytes(id);
        victim.left_bytes = victim.left_bytes.saturating_sub(bytes);
        if sample.is_expired(id, now) {
            self.remove(sample, id);
            return;
        }
        let access = Access::of(reads, turns);
        let granted = self.weights.turns(victim.queue, access, bytes.max(1));
        victim.seen.add(access, bytes);
        if granted > 0 && victim.kept_bytes + bytes <= victim.kept_bytes_max {
            victim.kept_bytes += bytes;
            self.put(sample, id, State { place: Place::Main, reads: 0, turns: granted - 1 });
        } else if victim.queue == Queue::Probation && self.ghosts_max > 0 {
            self.put(sample, id, State { place: Place::Ghost, reads: 0, turns: 0 });
        } else {
            self.remove(sample, id);
        }
    }

    /// Checks the lists and their sums (M1). Marks the keys that it finds.
    #[cfg(all(test, not(loom)))]
    pub(super) fn audit(&self, sample: &Sample, used: &mut [bool]) {
        for (list, places) in
            [&[Place::Probation][..], &[Place::Main], &[Place::Ghost]].into_iter().enumerate()
        {
            let (mut bytes, mut count, mut older) = (0, 0, NO_KEY);
            let mut at = self.lists[list].oldest;
            while at != NO_KEY {
                assert!(places.contains(&sample.state(at, self.which).place), "M1");
                let [before, after] = sample.links(at, self.which);
                assert_eq!(before, older);
                used[usize::from(at)] = true;
                bytes += sample.bytes(at);
                count += 1;
                (older, at) = (at, after);
            }
            assert_eq!((self.lists[list].youngest, self.lists[list].count), (older, count));
            assert!(list == GHOSTS || self.bytes[list] == bytes, "M1");
        }
    }
}
