//! Saves the items of all engines: a thread for each engine fills blocks, and writes them in turn.
//!
//! Upstream:   `shards`, when all shards have ended.
//! Downstream: `cache` passes the items and makes the blocks.
//!
//! The head is written last: a file without it is no memory file.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, PoisonError};

use kachel_cache::{BlockBuilder, Cache, FileHead, HEAD_BYTES};
use kachel_engine::Now;
use kachel_io::SystemClock;
use kachel_shard::{Engines, Homes};
use kachel_stdx::plural;

use super::{Claim, Report, Size, lock};

impl Claim {
    /// Saves the items of all engines, whose shards have ended in second `now`. The error is a
    /// sentence; then there is no file.
    pub(crate) fn save(
        self,
        engines: &Engines<Cache>,
        homes: Homes,
        now: Now,
    ) -> Result<(), String> {
        let shown = self.path.display();
        // Of the same moment as `now`: writing may take long, and this time counts for the items.
        let unix_s = SystemClock.unix_ns() / 1_000_000_000;
        let file_id = kachel_host::entropy().map_err(|error| error.to_string())?[0];
        let writer = Mutex::new(Writer {
            file: self.file.next(),
            shown: shown.to_string(),
            file_id,
            file_bytes: HEAD_BYTES as u64,
            items: 0,
            blocks: 0,
            report: Report::new(),
        });
        let saved = write_all(&writer, engines, homes, now);
        let writer = writer.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Writer { file_bytes, items, blocks, report, .. } = writer;
        let placed = saved.and_then(|greatest_cas| {
            let head = FileHead {
                file_id,
                file_bytes,
                items,
                blocks,
                second: now.second,
                unix_s,
                greatest_cas,
                flush_due: engines.common().pool().flush_word().pending(now.second),
            };
            self.file.next().write_all_at(&head.encode(), 0)?;
            report.begin_sync(file_bytes);
            self.file.place()
        });
        match placed {
            Ok(warning) => {
                let (size, time) = (Size(file_bytes), report.seconds());
                let (path, noun) = (self.path.display(), plural(items, "item", "items"));
                say!(Info, "-e {path}: {items} {noun} saved, {size} in {time:.1} s");
                if let Some(error) = warning {
                    let path = self.path.display();
                    say!(Warning, "-e {path}: a loss of power may remove the file: {error}");
                }
                Ok(())
            }
            Err(error) => Err(format!("-e {}: items are not saved: {error}", self.path.display())),
        }
    }
}

/// Writes the items of each engine, each on a thread of its own. Returns the greatest CAS token.
fn write_all(
    writer: &Mutex<Writer<'_>>,
    engines: &Engines<Cache>,
    homes: Homes,
    now: Now,
) -> io::Result<u64> {
    lock(writer).file.write_all(&[0; HEAD_BYTES])?;
    let save = |index| {
        let saved = engines.with_idle(index, |cache| {
            let mut block = BlockBuilder::default();
            cache.save(&now, |item, value| {
                if block.is_full_for(value.bytes()) {
                    lock(writer).write(&mut block)?;
                }
                block.push(item, value);
                Ok::<(), io::Error>(())
            })?;
            lock(writer).write(&mut block)?;
            Ok(cache.greatest_cas())
        });
        saved.unwrap_or_else(|| Err(io::Error::other("an engine is still busy")))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = homes.all().map(|index| scope.spawn(move || save(index))).collect();
        let saved =
            threads.into_iter().map(|thread| thread.join().expect("a bug ends the process"));
        let saved: io::Result<Vec<u64>> = saved.collect();
        Ok(saved?.into_iter().max().unwrap_or(0))
    })
}

/// A memory file that is being written.
struct Writer<'f> {
    file: &'f File,
    shown: String,
    file_id: u64,
    file_bytes: u64,
    items: u64,
    blocks: u32,
    report: Report,
}

impl Writer<'_> {
    /// Writes a block, unless it is empty, and empties it (R2).
    fn write(&mut self, block: &mut BlockBuilder) -> io::Result<()> {
        if block.is_empty() {
            return Ok(());
        }
        let items = block.items();
        debug_assert!(self.file_bytes >= HEAD_BYTES as u64, "there is room for the head");
        let bytes = block.seal(self.file_id, self.blocks);
        self.file.write_all(bytes)?;
        self.file_bytes += bytes.len() as u64;
        self.items += u64::from(items);
        self.blocks += 1;
        block.clear();
        if self.report.is_due() {
            say!(Info, "-e {}: {} saved so far", self.shown, Size(self.file_bytes));
        }
        Ok(())
    }
}
