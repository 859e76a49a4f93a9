//! Loads the items of a memory file: threads take the next block in turn, check it, and store its
//! items.
//!
//! Upstream:   `shards`, before the shards start.
//! Downstream: `cache` checks the blocks and stores the items.
//!
//! Invariants:
//! - L1  A block is read only if the head and the length of the file say that it is there, its own
//!   head has possible numbers, and its items may fit (`-I`). It takes no memory but its bytes.
//! - L2  Once a damaged block was found, no further one is read. The items of each other block are
//!   right.
//! - L3  All threads together hold at most [`LARGE_BYTES_MAX`] bytes of large blocks, or one large
//!   block. A thread holds at most one other block, of about 1 MiB.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::{Condvar, Mutex, PoisonError};

use kachel_cache::{
    BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, BlockHead, Cache, FileHead, HEAD_BYTES, Restored, SavedItem,
    Unfit,
};
use kachel_engine::{BATCH_MAX, ClockOrigin, Common as _, Engine as _, Key, KeyHasher, Now};
use kachel_io::{Clock as _, SystemClock};
use kachel_stdx::plural;

use super::{Found, Report, Size, lock};

/// Bytes of large blocks, those of one long item, that are in memory at once. A single block may be
/// longer. It is memory beside `-m` that only a server that loads has. A guess.
const LARGE_BYTES_MAX: u64 = 16 << 20;

impl Found {
    /// Stores the items in `caches`, which are all caches of the process and still empty, and
    /// schedules the flush that was pending. Prints what was loaded.
    ///
    /// `None` if `must_end`, which is called before each block, has returned true. Then the caller
    /// must not remove the file.
    pub(crate) fn load(
        self,
        caches: Vec<Cache>,
        hasher: KeyHasher,
        origin: ClockOrigin,
        must_end: fn() -> bool,
    ) -> Option<Vec<Cache>> {
        let now = origin.at(SystemClock.now_ns());
        assert!(now.second >= self.head.second, "the seconds of the file keep their meaning");
        let caches: Vec<Mutex<Cache>> = caches.into_iter().map(Mutex::new).collect();
        let items_each = self.head.items / caches.len() as u64;
        for cache in &caches {
            let mut cache = lock(cache);
            cache.give_tokens_above(self.head.greatest_cas);
            cache.expect_items(items_each, self.head.file_bytes);
        }
        let is_flushed = self.head.flush_due.is_some_and(|due| due <= now.second);
        let loader = Loader {
            reader: Mutex::new(Reader {
                file: &self.file,
                shown: self.path.display().to_string(),
                head: self.head,
                left_bytes: self.head.file_bytes - HEAD_BYTES as u64,
                number: 0,
                error: None,
                must_end,
                has_ended: false,
                report: Report::since(self.begun),
            }),
            caches,
            hasher,
            origin,
            counts: Mutex::default(),
            large: Large::default(),
        };
        if !is_flushed {
            std::thread::scope(|scope| {
                for _ in 0..loader.caches.len() {
                    scope.spawn(|| loader.load());
                }
            });
            // By the contract, so that copies outside of the engine hear of it, too.
            if let Some(due) = self.head.flush_due {
                let flushed = lock(&loader.caches[0]).common().flush_in(due, &now);
                flushed.expect("caches have no disk");
            }
        }
        if lock(&loader.reader).has_ended {
            say!(
                Info,
                "-e {}: told to end while items were loaded; the file stays",
                self.path.display()
            );
            return None;
        }
        loader.report(is_flushed);
        let caches = loader.caches.into_iter();
        Some(caches.map(|cache| cache.into_inner().expect("no thread has panicked")).collect())
    }
}

/// A key, its item and the value.
type ToRestore<'b> = (Key<'b>, SavedItem<'b>, &'b [u8]);

/// The threads that load a memory file.
struct Loader<'f> {
    reader: Mutex<Reader<'f>>,
    caches: Vec<Mutex<Cache>>,
    hasher: KeyHasher,
    origin: ClockOrigin,
    counts: Mutex<Counts>,
    large: Large,
}

/// The bytes of large blocks that are in memory (L3).
#[derive(Default)]
struct Large {
    bytes: Mutex<u64>,
    freed: Condvar,
}

impl Large {
    /// Waits until a block of this length may be read. The threads that hold other blocks must not
    /// wait for the caller.
    fn take(&self, block: BlockHead) {
        let Some(bytes) = Self::counted(block) else { return };
        let is_full = |held: &mut u64| *held > 0 && *held + bytes > LARGE_BYTES_MAX;
        let held = self.freed.wait_while(lock(&self.bytes), is_full);
        let mut held = held.unwrap_or_else(PoisonError::into_inner);
        *held += bytes;
        debug_assert!(*held <= LARGE_BYTES_MAX.max(bytes), "L3");
    }

    fn give_back(&self, block: BlockHead) {
        let Some(bytes) = Self::counted(block) else { return };
        let mut held = lock(&self.bytes);
        *held = held.checked_sub(bytes).expect("what was taken is given back once");
        self.freed.notify_all();
    }

    fn counted(block: BlockHead) -> Option<u64> {
        let bytes = u64::from(block.items_bytes);
        (bytes > BLOCK_BYTES_MAX as u64).then_some(bytes)
    }
}

/// The number of items that were read, by their result.
#[derive(Clone, Copy, Default)]
struct Counts {
    stored: u64,
    expired: u64,
    too_large: u64,
    no_room: u64,
    known: u64,
}

impl Counts {
    const fn note(&mut self, restored: Restored) {
        let count = match restored {
            Restored::Stored => &mut self.stored,
            Restored::Expired => &mut self.expired,
            Restored::TooLarge => &mut self.too_large,
            Restored::NoRoom => &mut self.no_room,
            Restored::Known => &mut self.known,
        };
        *count += 1;
    }

    const fn add(&mut self, other: Self) {
        self.stored += other.stored;
        self.expired += other.expired;
        self.too_large += other.too_large;
        self.no_room += other.no_room;
        self.known += other.known;
    }
}

impl Loader<'_> {
    /// Loads blocks until the file ends, or a thread finds a damaged one.
    fn load(&self) {
        let mut bytes = Vec::new();
        let mut counts = Counts::default();
        loop {
            let next = lock(&self.reader).next(self, &mut bytes, &mut counts);
            let Some(head) = next else { break };
            let loaded = self.load_block(head, &bytes, &mut counts);
            bytes.truncate(BLOCK_BYTES_MAX);
            bytes.shrink_to(BLOCK_BYTES_MAX);
            self.large.give_back(head);
            if let Err(unfit) = loaded {
                lock(&self.reader).fail(unfit.to_string());
            }
        }
        lock(&self.counts).add(counts);
    }

    /// Stores the items of a block, which are `bytes`. Errors: they are damaged; none was stored.
    fn load_block(&self, head: BlockHead, bytes: &[u8], counts: &mut Counts) -> Result<(), Unfit> {
        let now = self.origin.at(SystemClock.now_ns());
        let mut batches = vec![Vec::new(); self.caches.len()];
        head.show(bytes, |item, value| {
            let key = self.hasher.key(item.key);
            let owner = self.hasher.owner(key.hashes()).number();
            batches[owner].push((key, *item, value));
            if batches[owner].len() == BATCH_MAX {
                self.restore(owner, &mut batches[owner], &now, counts);
            }
        })?;
        for (owner, batch) in batches.iter_mut().enumerate() {
            self.restore(owner, batch, &now, counts);
        }
        Ok(())
    }

    /// Stores a batch of items in the cache of number `owner`, and empties it.
    fn restore(
        &self,
        owner: usize,
        batch: &mut Vec<ToRestore<'_>>,
        now: &Now,
        counts: &mut Counts,
    ) {
        debug_assert!(batch.len() <= BATCH_MAX, "a bounded number of lines is prefetched");
        if batch.is_empty() {
            return;
        }
        let mut cache = lock(&self.caches[owner]);
        batch.iter().for_each(|(key, ..)| cache.prefetch_place(key));
        for (key, item, value) in batch.drain(..) {
            counts.note(cache.restore(&key, &item, value, now));
        }
    }

    /// Prints one line about what was loaded.
    fn report(&self, is_flushed: bool) {
        let (reader, counts) = (lock(&self.reader), lock(&self.counts));
        let (shown, head) = (&reader.shown, &reader.head);
        if is_flushed {
            let items = plural(head.items, "item was", "items were");
            say!(Info, "-e {shown}: {} {items} flushed meanwhile", head.items);
            return;
        }
        let items = plural(head.items, "item", "items");
        let evicted: u64 = self.caches.iter().map(|cache| lock(cache).stats().evictions).sum();
        let others = [
            (counts.expired, "expired"),
            (evicted, "evicted, because memory is full"),
            (counts.no_room, "without room"),
            (counts.too_large, "longer than -I allows"),
            (counts.known, "there twice"),
        ];
        let mut line = format!(
            "-e {shown}: {} of {} {items} loaded, {} in {:.1} s",
            counts.stored.saturating_sub(evicted),
            head.items,
            Size(head.file_bytes),
            reader.report.seconds()
        );
        for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
            line += &format!("; {count} {what}");
        }
        if let Some(error) = &reader.error {
            line += &format!("; the rest of the file is not used: {error}");
        }
        if reader.error.is_some() {
            say!(Warning, "{line}");
        } else {
            say!(Info, "{line}");
        }
    }
}

/// A memory file that is being read.
struct Reader<'f> {
    file: &'f File,
    shown: String,
    head: FileHead,
    /// Bytes after the block that was read last.
    left_bytes: u64,
    /// The number of the next block.
    number: u32,
    /// Why the rest is not used.
    error: Option<String>,
    must_end: fn() -> bool,
    /// Whether that was true before the last block was read.
    has_ended: bool,
    report: Report,
}

impl Reader<'_> {
    /// Reads the next block: returns its head, and fills `bytes` with its items (R2). Blocks whose
    /// item is too long are counted and not read. `None` if there is none, the rest is not used, or
    /// the process must end.
    fn next(
        &mut self,
        loader: &Loader<'_>,
        bytes: &mut Vec<u8>,
        counts: &mut Counts,
    ) -> Option<BlockHead> {
        while self.error.is_none() && self.number < self.head.blocks {
            self.has_ended |= (self.must_end)();
            if self.has_ended {
                return None;
            }
            match self.read(loader, bytes) {
                Ok(read) => {
                    self.number += 1;
                    self.report_progress();
                    if read.is_some() {
                        return read;
                    }
                    counts.note(Restored::TooLarge);
                }
                Err(error) => self.fail(error.to_string()),
            }
        }
        None
    }

    fn report_progress(&mut self) {
        if self.report.is_due() {
            let (read, all) = (self.head.file_bytes - self.left_bytes, self.head.file_bytes);
            say!(Info, "-e {}: {} of {} loaded", self.shown, Size(read), Size(all));
        }
    }

    /// Reads the next block, or skips it: `None`.
    fn read(&mut self, loader: &Loader<'_>, bytes: &mut Vec<u8>) -> io::Result<Option<BlockHead>> {
        let mut head = [0; BLOCK_HEAD_BYTES];
        self.take(head.len() as u64)?;
        self.file.read_exact(&mut head)?;
        let head = BlockHead::decode(&head, self.head.file_id, self.number);
        let head = head.map_err(io::Error::other)?;
        self.take(u64::from(head.items_bytes))?;
        // All caches have the same options.
        if Large::counted(head).is_some() && !lock(&loader.caches[0]).may_take(&head) {
            self.file.seek(SeekFrom::Current(head.items_bytes.into()))?;
            return Ok(None);
        }
        loader.large.take(head);
        bytes.resize(head.items_bytes as usize, 0);
        if let Err(error) = self.file.read_exact(bytes) {
            loader.large.give_back(head);
            return Err(error);
        }
        debug_assert!(bytes.len() == head.items_bytes as usize, "L1");
        Ok(Some(head))
    }

    /// Counts bytes that are read. Errors: the file has fewer.
    fn take(&mut self, bytes: u64) -> io::Result<()> {
        let left = self.left_bytes.checked_sub(bytes);
        self.left_bytes = left.ok_or_else(|| io::Error::other(Unfit::Length))?;
        Ok(())
    }

    /// Notes why the rest of the file is not used.
    fn fail(&mut self, error: String) {
        self.error.get_or_insert(error);
    }
}
