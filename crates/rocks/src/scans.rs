//! The pages that scans read. A page has the records behind a key, and the changes of their keys
//! that the database did not have yet.
//!
//! Upstream:   scans, which come back for their pages, or are left.
//! Downstream: a call reads the records of a page; `pending` has the changes.
//!
//! ```text
//! wanted --take_wanted--> awaited --complete--> read --next, once it is durable--> the scan
//! ```
//!
//! A page shows the engine at one moment: when its call has completed. Until then `pending` keeps
//! all changes since the call began, so it does not matter which of them the records show.
//!
//! Invariants:
//! - C1  At most [`PAGES_MAX`] pages are awaited or in memory. Other scans wait for one of these.
//! - C2  A scan that was not stepped for [`UNUSED_S`] seconds was left, most likely: its page is
//!   dropped. If it goes on all the same, it asks for the page again.
//! - C3  A scan gets a page once all changes that the page shows are durable.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use kachel_engine::{DurableWord, Sequence};

use crate::database::{PAGE_RECORDS_MAX, Page};
use crate::item::RocksItem;
use crate::pending::Pending;

/// The most pages at a time. Scans that are under way at the same time share the steps of a core,
/// so more pages would wait for their steps.
const PAGES_MAX: usize = 16;
/// How long a page waits for its scan. A guess.
const UNUSED_S: u32 = 2;

/// What a page has for a key.
#[derive(Debug)]
pub(crate) enum Shown {
    /// The record in the database.
    Record(Vec<u8>),
    /// The item that the last change has made.
    Changed(RocksItem),
    /// The last change has removed the item.
    Removed,
}

/// The next items of a scan.
#[derive(Debug)]
pub(crate) struct ScanPage {
    /// The keys, in their order.
    pub(crate) items: Vec<(Vec<u8>, Shown)>,
    /// Whether there is nothing behind these.
    pub(crate) is_last: bool,
    /// The last change that it shows (C3).
    changed: Sequence,
}

impl ScanPage {
    /// Adds the changes to the records behind a key that were read.
    fn of(behind: &[u8], read: Page, pending: &Pending) -> Self {
        let last = read.records.last().map(|(key, _)| key.clone());
        let end = match &last {
            Some(last) if !read.is_last => Bound::Included(&last[..]),
            _ => Bound::Unbounded,
        };
        let mut changed = Sequence(0);
        let mut items = BTreeMap::new();
        for (key, record) in read.records {
            // A range that was removed has no change for each of its keys.
            let shown = match pending.find(&key) {
                None => Shown::Record(record),
                Some(known) => {
                    changed = changed.max(known.sequence);
                    known.item.map_or(Shown::Removed, Shown::Changed)
                }
            };
            items.insert(key, shown);
        }
        let mut is_last = read.is_last;
        // As many again, so that the page stays short.
        let mut changes = pending.known_in((Bound::Excluded(behind), end));
        for (key, known) in changes.by_ref().take(PAGE_RECORDS_MAX) {
            changed = changed.max(known.sequence);
            let item = known.item.clone();
            items.insert(key.to_vec(), item.map_or(Shown::Removed, Shown::Changed));
        }
        if let Some((next, _)) = changes.next() {
            is_last = false;
            items.retain(|key, _| key.as_slice() < next);
        }
        Self { items: items.into_iter().collect(), is_last, changed }
    }
}

#[derive(Debug)]
enum Paging {
    Wanted { behind: Vec<u8>, records_max: usize },
    Awaited,
    Read(ScanPage),
    Failed,
}

/// A page that is to be read.
#[derive(Debug)]
pub(crate) struct WantedPage {
    /// The number of its scan.
    pub(crate) scan: u64,
    /// The key behind which it begins.
    pub(crate) behind: Vec<u8>,
    /// The most records.
    pub(crate) records_max: usize,
    /// What `pending` keeps for it.
    pub(crate) since: Sequence,
}

/// What a step of a scan finds.
#[derive(Debug)]
pub(crate) enum Next {
    Page(ScanPage),
    /// The page must be read. The scan has this number.
    Later(u64),
    /// The disk cannot read the page, or what it shows is lost.
    Failed,
}

/// The scans of one engine that wait for a page, or have one.
#[derive(Debug, Default)]
pub(crate) struct Scans {
    /// By their numbers: the second of the last step, and the page.
    scans: BTreeMap<u64, (u32, Paging)>,
    /// Those that want a page, the first one first.
    wanted: VecDeque<u64>,
    /// Pages that are awaited or in memory (C1).
    pages: usize,
    last: u64,
}

impl Scans {
    /// The page behind a key for the scan with a number; 0 for one that has none. The page has at
    /// most about `records_max` records.
    pub(crate) fn next(
        &mut self,
        number: u64,
        (behind, records_max): (&[u8], usize),
        now: u32,
        durable: &DurableWord,
    ) -> Next {
        let Some((stepped, paging)) = self.scans.get_mut(&number) else {
            self.last += 1;
            let records_max = records_max.min(PAGE_RECORDS_MAX);
            let paging = Paging::Wanted { behind: behind.to_vec(), records_max };
            self.scans.insert(self.last, (now, paging));
            self.wanted.push_back(self.last);
            return Next::Later(self.last);
        };
        *stepped = now;
        let is_ready = match paging {
            Paging::Wanted { .. } | Paging::Awaited => false,
            Paging::Read(page) => {
                durable.has_reached(page.changed) || durable.is_lost(page.changed)
            }
            Paging::Failed => true,
        };
        if !is_ready {
            return Next::Later(number); // C3
        }
        match self.end(number) {
            Some(Paging::Read(page)) if durable.has_reached(page.changed) => Next::Page(page),
            _ => Next::Failed,
        }
    }

    /// Ends a scan. A page that is awaited counts until it comes.
    fn end(&mut self, number: u64) -> Option<Paging> {
        let (_, paging) = self.scans.remove(&number)?;
        self.pages -= usize::from(matches!(paging, Paging::Read(_)));
        Some(paging)
    }

    /// Takes the next page that is to be read. `None` if there is none, or if there are as many
    /// pages as there may be (C1).
    pub(crate) fn take_wanted(&mut self, pending: &mut Pending) -> Option<WantedPage> {
        while self.pages < PAGES_MAX {
            let scan = self.wanted.pop_front()?;
            let Some((_, paging)) = self.scans.get_mut(&scan) else { continue };
            let Paging::Wanted { behind, records_max } = std::mem::replace(paging, Paging::Awaited)
            else {
                unreachable!("a page is wanted once")
            };
            self.pages += 1;
            let since = pending.keep_changes();
            return Some(WantedPage { scan, behind, records_max, since });
        }
        None
    }

    /// A page was read. `None`: the disk cannot read it.
    pub(crate) fn complete(
        &mut self,
        wanted: WantedPage,
        page: Option<Page>,
        pending: &mut Pending,
    ) {
        let WantedPage { scan, behind, since, .. } = wanted;
        let page = page.map(|page| ScanPage::of(&behind, page, pending));
        pending.drop_changes(since);
        let awaited = self.scans.get_mut(&scan);
        self.pages -= usize::from(awaited.is_none() || page.is_none());
        if let Some((_, paging)) = awaited {
            *paging = page.map_or(Paging::Failed, Paging::Read);
        }
    }

    /// Ends scans that were left (C2). Called once a second.
    pub(crate) fn drop_unused(&mut self, now: u32) {
        let is_unused = |stepped: u32| stepped.saturating_add(UNUSED_S) <= now;
        let unused = self.scans.iter().filter(|(_, (stepped, _))| is_unused(*stepped));
        let unused: Vec<u64> = unused.map(|(number, _)| *number).collect();
        unused.into_iter().for_each(|number| drop(self.end(number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pending::Batch;
    use crate::range::KeyRange;

    fn page(keys: &[&[u8]], is_last: bool) -> Page {
        let records = keys.iter().map(|key| (key.to_vec(), b"record".to_vec())).collect();
        Page { records, is_last }
    }

    /// The keys of a page, each with `-` if its item was removed.
    fn keys(page: &ScanPage) -> String {
        let key = |(key, shown): &(Vec<u8>, Shown)| {
            let mark = if matches!(shown, Shown::Removed) { "-" } else { "" };
            format!("{}{mark}", key.escape_ascii())
        };
        page.items.iter().map(key).collect::<Vec<_>>().join(" ")
    }

    fn commit(pending: &mut Pending) -> Batch {
        pending.take_batch().expect("there are changes")
    }

    fn wanted(scans: &mut Scans, pending: &mut Pending) -> WantedPage {
        scans.take_wanted(pending).expect("a page is wanted")
    }

    #[test]
    fn a_page_shows_changes_that_were_written_while_it_was_read() {
        let (mut scans, mut pending) = (Scans::default(), Pending::default());
        let durable = DurableWord::default();
        pending.change(b"b", None);
        let first = commit(&mut pending);
        let Next::Later(number) = scans.next(0, (b"", 9), 1, &durable) else { panic!() };
        let wanted = wanted(&mut scans, &mut pending);
        assert_eq!((&wanted.behind[..], wanted.records_max), (&b""[..], 9));
        pending.committed(&first);
        durable.advance(first.sequence);
        pending.delete_range(&KeyRange { from: b"d"[..].into(), to: Some(b"f"[..].into()) });
        let second = commit(&mut pending);
        pending.committed(&second);
        pending.change(b"g", None);
        // The records are those of before all this.
        let read = page(&[b"a", b"b", b"d", b"e", b"f", b"g"], true);
        scans.complete(wanted, Some(read), &mut pending);
        assert!(matches!(scans.next(number, (b"", 9), 1, &durable), Next::Later(_)), "C3");
        durable.advance(Sequence(3));
        let Next::Page(page) = scans.next(number, (b"", 9), 1, &durable) else { panic!() };
        assert_eq!((keys(&page), page.is_last), ("a b- d- e- f g-".to_owned(), true));
        assert_eq!((scans.pages, scans.scans.len()), (0, 0));
        // Nothing is kept for it any more.
        assert!(pending.find(b"b").is_none() && pending.find(b"e").is_none());
        assert!(pending.find(b"g").is_some());
    }

    #[test]
    fn a_page_has_no_change_behind_its_records_and_is_cut_before_too_many() {
        let (mut scans, mut pending) = (Scans::default(), Pending::default());
        let durable = DurableWord::default();
        let mut scan = |pending: &mut Pending, behind: &[u8], read| {
            let Next::Later(number) = scans.next(0, (behind, 9), 1, &durable) else { panic!() };
            let wanted = wanted(&mut scans, pending);
            scans.complete(wanted, Some(read), pending);
            let Some(Paging::Read(page)) = scans.end(number) else { panic!() };
            page
        };
        for key in [b"b", b"c", b"e"] {
            pending.change(key, None);
        }
        let cut = scan(&mut pending, b"b", page(&[b"d"], false));
        assert_eq!((keys(&cut), cut.is_last), ("c- d".to_owned(), false));
        (0..100).for_each(|number| drop(pending.change(format!("f{number:02}").as_bytes(), None)));
        let cut = scan(&mut pending, b"d", page(&[b"f50", b"g"], true));
        assert_eq!((cut.items.len(), cut.is_last), (PAGE_RECORDS_MAX, false));
        assert_eq!(cut.items.last().expect("some").0, b"f62");
    }

    #[test]
    fn pages_are_few_and_those_of_scans_that_were_left_are_dropped() {
        let (mut scans, mut pending) = (Scans::default(), Pending::default());
        let durable = DurableWord::default();
        let begin = |scans: &mut Scans| scans.next(0, (b"", 9), 1, &durable);
        (0..PAGES_MAX + 2).for_each(|_| drop(begin(&mut scans)));
        let mut taken: Vec<_> = std::iter::from_fn(|| scans.take_wanted(&mut pending)).collect();
        assert_eq!(taken.len(), PAGES_MAX, "C1");
        scans.complete(taken.pop().expect("one"), Some(page(&[b"a"], true)), &mut pending);
        let failed = taken.pop().expect("one");
        let number = failed.scan;
        scans.complete(failed, None, &mut pending);
        assert!(matches!(scans.next(number, (b"", 9), 2, &durable), Next::Failed));
        assert_eq!(scans.take_wanted(&mut pending).map(|wanted| wanted.scan), Some(17));
        scans.drop_unused(1 + UNUSED_S);
        assert_eq!((scans.scans.len(), scans.pages), (0, PAGES_MAX - 1), "C2");
        for wanted in taken {
            scans.complete(wanted, Some(page(&[b"a"], true)), &mut pending);
        }
        assert_eq!(scans.pages, 1);
        // A scan that goes on all the same begins again.
        let Next::Later(again) = scans.next(number, (b"a", 9), 9, &durable) else { panic!() };
        assert!(again != number);
        assert_eq!(
            scans.take_wanted(&mut pending).map(|wanted| wanted.behind),
            Some(b"a".to_vec())
        );
    }
}
