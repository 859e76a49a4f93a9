//! Walks over all items of a database. The cursor of a walk is a number, so the engine remembers
//! where each walk is.
//!
//! Upstream:   listings, which step a walk until it ends.
//! Downstream: a call reads the next page of records.
//!
//! A step that finds no page shows nothing, and says that the walk goes on. A walk begins to read
//! once the changes are in the database that were made before it began.
//!
//! Invariants:
//! - W1  There are at most [`WALKS_MAX`] walks. A further one ends the oldest.

use std::collections::VecDeque;

use kachel_engine::{DurableWord, Sequence};

use crate::database::Page;

/// The most walks at a time. Clients that list at the same time share the steps of a shard, so
/// there are rarely more than a few.
const WALKS_MAX: usize = 16;

/// The next records of a walk.
#[derive(Debug)]
enum Paging {
    Wanted,
    Awaited,
    Read(VecDeque<(Vec<u8>, Vec<u8>)>, bool),
}

#[derive(Debug)]
struct Walk {
    number: u64,
    /// The last key that was shown.
    behind: Vec<u8>,
    /// What must be in the database before the walk reads.
    since: Sequence,
    paging: Paging,
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
}

/// The walks of one engine.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    walks: VecDeque<Walk>,
    last: u64,
}

impl Walks {
    /// Begins a walk, and returns its number, which is not 0.
    pub(crate) fn begin(&mut self, since: Sequence) -> u64 {
        if self.walks.len() == WALKS_MAX {
            self.walks.pop_front(); // W1
        }
        self.last += 1;
        let (number, behind, paging) = (self.last, Vec::new(), Paging::Wanted);
        self.walks.push_back(Walk { number, behind, since, paging });
        number
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.walks.iter().position(|walk| walk.number == number)
    }

    /// The next record of a walk. A walk that was ended by others has none.
    pub(crate) fn next(&mut self, number: u64) -> Next {
        let Some(at) = self.place(number) else { return Next::End };
        let walk = &mut self.walks[at];
        let Paging::Read(records, is_last) = &mut walk.paging else { return Next::Later };
        match (records.pop_front(), *is_last) {
            (Some((key, record)), _) => {
                walk.behind.clone_from(&key);
                Next::Record(key, record)
            }
            (None, true) => {
                self.walks.remove(at);
                Next::End
            }
            (None, false) => {
                walk.paging = Paging::Wanted;
                Next::Later
            }
        }
    }

    /// Takes the next page that is to be read: the number of its walk, and the key behind which it
    /// begins.
    pub(crate) fn take_wanted(&mut self, durable: &DurableWord) -> Option<(u64, Vec<u8>)> {
        let may_read = |walk: &&mut Walk| {
            let is_there = durable.has_reached(walk.since) || durable.is_lost(walk.since);
            is_there && matches!(walk.paging, Paging::Wanted)
        };
        let walk = self.walks.iter_mut().find(may_read)?;
        walk.paging = Paging::Awaited;
        Some((walk.number, walk.behind.clone()))
    }

    /// A page was read. `None`: the disk cannot read it, so the walk ends.
    pub(crate) fn complete(&mut self, number: u64, page: Option<Page>) {
        let Some(at) = self.place(number) else { return };
        debug_assert!(matches!(self.walks[at].paging, Paging::Awaited), "a page is read once");
        match page {
            Some(Page { records, is_last }) => {
                self.walks[at].paging = Paging::Read(records.into(), is_last);
            }
            None => drop(self.walks.remove(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_reads_what_was_changed_before_and_goes_on_behind_its_last_key() {
        let (mut walks, durable) = (Walks::default(), DurableWord::default());
        let number = walks.begin(Sequence(3));
        assert_eq!((walks.next(number), walks.take_wanted(&durable)), (Next::Later, None));
        durable.advance(Sequence(3));
        assert_eq!(walks.take_wanted(&durable), Some((number, Vec::new())));
        assert_eq!((walks.next(number), walks.take_wanted(&durable)), (Next::Later, None));
        let record = |key: &[u8]| (key.to_vec(), b"record".to_vec());
        let page = |key, is_last| Some(Page { records: vec![record(key)], is_last });
        walks.complete(number, page(b"a", false));
        assert_eq!(walks.next(number), Next::Record(b"a".to_vec(), b"record".to_vec()));
        assert_eq!(walks.next(number), Next::Later);
        assert_eq!(walks.take_wanted(&durable), Some((number, b"a".to_vec())));
        walks.complete(number, page(b"b", true));
        assert!(matches!(walks.next(number), Next::Record(..)));
        assert_eq!((walks.next(number), walks.walks.len()), (Next::End, 0));
    }

    #[test]
    fn walks_are_few_and_one_that_cannot_be_read_ends() {
        let (mut walks, durable) = (Walks::default(), DurableWord::default());
        let numbers: Vec<u64> = (0..=WALKS_MAX).map(|_| walks.begin(Sequence(0))).collect();
        assert_eq!(walks.walks.len(), WALKS_MAX, "W1");
        assert_eq!((walks.next(numbers[0]), walks.next(numbers[1])), (Next::End, Next::Later));
        let (number, _) = walks.take_wanted(&durable).expect("nothing is to be waited for");
        walks.complete(number, None);
        assert_eq!((number, walks.next(number)), (numbers[1], Next::End));
        walks.complete(numbers[0], None);
    }
}
