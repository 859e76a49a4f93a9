//! Walks over all items of a database. The cursor of a walk is a number, so the engine remembers
//! where each walk is.
//!
//! Upstream:   listings, which step a walk until it ends, or leave it.
//! Downstream: a call reads the next page of records.
//!
//! ```text
//! idle --next--> wanted --take_wanted--> awaited --complete--> read --next, no record--> wanted
//!   ^                                                           |
//!   +------------- no step for some time, and others want pages-+
//! ```
//!
//! A step that finds no page shows nothing, and says that the walk goes on later. A walk begins to
//! read once the changes are in the database that were made before it began.
//!
//! Invariants:
//! - W1  At most [`PAGES_MAX`] pages are awaited or in memory. Other walks wait for one of these.
//! - W2  A page that no step has used for [`UNUSED_S`] seconds is dropped if other walks wait. It
//!   is read again when it is wanted.
//! - W3  At most [`WALKS_MAX`] walks are remembered. A further one displaces the one that was
//!   stepped least recently, and if that is stepped once more, it fails.

use std::collections::{BTreeMap, VecDeque};

use kachel_engine::{DurableWord, Sequence};

use crate::database::Page;

/// The most pages at a time. Clients that list at the same time share the steps of a core, so more
/// pages would wait for their steps.
const PAGES_MAX: usize = 16;
/// How long a page is kept for a walk that is not stepped while others wait. A guess.
const UNUSED_S: u32 = 2;
/// The most walks that are remembered. Nobody tells when a walk is left, but a client has one
/// listing at a time, so with fewer clients none is displaced that goes on. A place takes the
/// memory of a key and about 100 bytes.
const WALKS_MAX: usize = 1 << 14;

/// The next records of a walk.
#[derive(Debug)]
enum Paging {
    Idle,
    Wanted,
    Awaited,
    Read(VecDeque<(Vec<u8>, Vec<u8>)>, bool),
    Failed,
}

#[derive(Debug)]
struct Walk {
    /// The last key that was shown.
    behind: Vec<u8>,
    /// What must be in the database before the walk reads.
    since: Sequence,
    paging: Paging,
    /// The number and the second of the last step.
    stepped: (u64, u32),
}

/// What a step finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A key and its record.
    Record(Vec<u8>, Vec<u8>),
    /// The next page must be read.
    Later,
    /// There is nothing left.
    End,
    /// The disk cannot read the next page, or the walk was displaced.
    Failed,
}

/// The walks of one engine.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    walks: BTreeMap<u64, Walk>,
    /// The walks that want a page, the first one first.
    wanted: VecDeque<u64>,
    /// Pages that are awaited or in memory (W1).
    pages: usize,
    last: u64,
    steps: u64,
}

impl Walks {
    /// Begins a walk, and returns its number, which is not 0.
    pub(crate) fn begin(&mut self, since: Sequence) -> u64 {
        if self.walks.len() == WALKS_MAX {
            let oldest = self.walks.iter().min_by_key(|(_, walk)| walk.stepped);
            let oldest = oldest.map(|(&number, _)| number);
            oldest.into_iter().for_each(|oldest| self.end(oldest)); // W3
        }
        (self.last, self.steps) = (self.last + 1, self.steps + 1);
        let stepped = (self.steps, 0);
        let walk = Walk { behind: Vec::new(), since, paging: Paging::Idle, stepped };
        self.walks.insert(self.last, walk);
        self.last
    }

    /// Ends a walk. A page that is awaited counts until it comes.
    fn end(&mut self, number: u64) {
        let ended = self.walks.remove(&number);
        if ended.is_some_and(|walk| matches!(walk.paging, Paging::Read(..))) {
            self.pages -= 1;
        }
    }

    /// The next record of a walk, in second `now`.
    pub(crate) fn next(&mut self, number: u64, now: u32) -> Next {
        self.steps += 1;
        let Some(walk) = self.walks.get_mut(&number) else { return Next::Failed };
        walk.stepped = (self.steps, now);
        match &mut walk.paging {
            Paging::Idle => {
                walk.paging = Paging::Wanted;
                self.wanted.push_back(number);
                Next::Later
            }
            Paging::Wanted | Paging::Awaited => Next::Later,
            Paging::Read(records, is_last) => match (records.pop_front(), *is_last) {
                (Some((key, record)), _) => {
                    walk.behind.clone_from(&key);
                    Next::Record(key, record)
                }
                (None, true) => {
                    self.end(number);
                    Next::End
                }
                (None, false) => {
                    walk.paging = Paging::Wanted;
                    self.pages -= 1;
                    self.wanted.push_back(number);
                    Next::Later
                }
            },
            Paging::Failed => {
                self.end(number);
                Next::Failed
            }
        }
    }

    /// Takes the next page that is to be read: the number of its walk, and the key behind which it
    /// begins. `None` if there is none, or if there are as many pages as there may be (W1).
    pub(crate) fn take_wanted(&mut self, durable: &DurableWord) -> Option<(u64, Vec<u8>)> {
        if self.pages == PAGES_MAX {
            return None;
        }
        let walks = &mut self.walks;
        self.wanted.retain(|number| walks.contains_key(number));
        let may_read = |number: &u64| {
            let since = walks[number].since;
            durable.has_reached(since) || durable.is_lost(since)
        };
        let place = self.wanted.iter().position(may_read)?;
        let number = self.wanted.remove(place)?;
        let walk = walks.get_mut(&number)?;
        walk.paging = Paging::Awaited;
        self.pages += 1;
        Some((number, walk.behind.clone()))
    }

    /// A page was read. `None`: the disk cannot read it.
    pub(crate) fn complete(&mut self, number: u64, page: Option<Page>) {
        let walk = self.walks.get_mut(&number);
        let has_page = walk.is_some() && page.is_some();
        self.pages -= usize::from(!has_page);
        let Some(walk) = walk else { return };
        debug_assert!(matches!(walk.paging, Paging::Awaited), "a page is read once");
        walk.paging = match page {
            Some(Page { records, is_last }) => Paging::Read(records.into(), is_last),
            None => Paging::Failed,
        };
    }

    /// Drops pages that are not used, if other walks wait (W2). Called once a second.
    pub(crate) fn drop_unused(&mut self, now: u32) {
        if self.wanted.is_empty() || self.pages < PAGES_MAX {
            return;
        }
        for walk in self.walks.values_mut() {
            let is_unused = walk.stepped.1.saturating_add(UNUSED_S) <= now;
            if is_unused && matches!(walk.paging, Paging::Read(..)) {
                walk.paging = Paging::Idle;
                self.pages -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(keys: &[&[u8]], is_last: bool) -> Option<Page> {
        let records = keys.iter().map(|key| (key.to_vec(), b"record".to_vec())).collect();
        Some(Page { records, is_last })
    }

    fn is_record(next: Next, key: &[u8]) -> bool {
        next == Next::Record(key.to_vec(), b"record".to_vec())
    }

    #[test]
    fn a_walk_reads_what_was_changed_before_and_goes_on_behind_its_last_key() {
        let (mut walks, durable) = (Walks::default(), DurableWord::default());
        let number = walks.begin(Sequence(3));
        assert_eq!((walks.next(number, 1), walks.take_wanted(&durable)), (Next::Later, None));
        durable.advance(Sequence(3));
        assert_eq!(walks.take_wanted(&durable), Some((number, Vec::new())));
        assert_eq!((walks.next(number, 1), walks.take_wanted(&durable)), (Next::Later, None));
        walks.complete(number, page(&[b"a"], false));
        assert!(is_record(walks.next(number, 1), b"a"));
        assert_eq!(walks.next(number, 1), Next::Later);
        assert_eq!(walks.take_wanted(&durable), Some((number, b"a".to_vec())));
        walks.complete(number, page(&[b"b"], true));
        assert!(is_record(walks.next(number, 1), b"b"));
        assert_eq!((walks.next(number, 1), walks.walks.len(), walks.pages), (Next::End, 0, 0));
    }

    #[test]
    fn pages_are_few_and_one_that_nobody_uses_makes_room_for_others() {
        let (mut walks, durable) = (Walks::default(), DurableWord::default());
        let numbers: Vec<u64> = (0..PAGES_MAX + 2).map(|_| walks.begin(Sequence(0))).collect();
        assert!(numbers.iter().all(|&number| walks.next(number, 1) == Next::Later));
        let taken: Vec<_> = std::iter::from_fn(|| walks.take_wanted(&durable)).collect();
        assert_eq!(taken.len(), PAGES_MAX, "W1");
        taken.iter().for_each(|&(number, _)| walks.complete(number, page(&[b"a", b"b"], true)));
        assert!(is_record(walks.next(numbers[0], 2), b"a"));
        walks.drop_unused(2);
        assert_eq!(walks.take_wanted(&durable), None);
        walks.drop_unused(1 + UNUSED_S);
        assert_eq!(walks.pages, 1, "W2: that of the walk that was stepped");
        let taken: Vec<_> = std::iter::from_fn(|| walks.take_wanted(&durable)).collect();
        assert_eq!(taken, [(numbers[PAGES_MAX], vec![]), (numbers[PAGES_MAX + 1], vec![])]);
        // The others read their pages again.
        assert_eq!(walks.next(numbers[1], 9), Next::Later);
        assert_eq!(walks.take_wanted(&durable), Some((numbers[1], vec![])));
        walks.complete(numbers[1], page(&[b"a"], true));
        assert!(is_record(walks.next(numbers[1], 9), b"a"));
    }

    #[test]
    fn a_walk_that_cannot_go_on_fails() {
        let (mut walks, durable) = (Walks::default(), DurableWord::default());
        let [unreadable, left] = [walks.begin(Sequence(0)), walks.begin(Sequence(0))];
        assert_eq!((walks.next(unreadable, 1), walks.next(left, 1)), (Next::Later, Next::Later));
        assert_eq!(walks.take_wanted(&durable), Some((unreadable, vec![])));
        assert_eq!(walks.take_wanted(&durable), Some((left, vec![])));
        walks.complete(unreadable, None);
        assert_eq!((walks.next(unreadable, 1), walks.pages), (Next::Failed, 1));
        // Others displace the one that was stepped least recently, and its page comes in vain.
        let goes_on = walks.begin(Sequence(0));
        for _ in 2..WALKS_MAX {
            walks.begin(Sequence(0));
        }
        assert_eq!(walks.next(goes_on, 1), Next::Later);
        walks.begin(Sequence(0));
        assert_eq!((walks.walks.len(), walks.next(left, 1)), (WALKS_MAX, Next::Failed), "W3");
        walks.complete(left, page(&[b"a"], true));
        assert_eq!((walks.pages, walks.next(goes_on, 1)), (0, Next::Later));
    }
}
