//! Opens the engines of a process: the library, the directory, and a database for each engine.
//!
//! Upstream:   the program that starts the engines.
//! Downstream: `library`, `directory`, `database`, and `engine` over them.
//!
//! Memory of `-m`: a half is the cache of blocks, a quarter the buffers for writes. A quarter is
//! left for requests in progress.

use std::io;
use std::sync::Arc;

use kachel_engine::{OpenEngines, Opening, StartFound, StartReport, Tokens};
use kachel_host::{Level, log};
use kachel_io::{Clock as _, SystemClock};

use crate::change::Change;
use crate::database::{BlockCache, DATABASE_FILES_MAX, Database, DatabaseOptions};
use crate::directory::{self, DIRECTORY_FILES_MAX, Directory};
use crate::engine::{Parts, Rocks};
use crate::filter::RecordFilter;
use crate::library::Library;
use crate::options::{RocksOptions, RocksSync};
use crate::record::{NOTE_KEY, Note};
use crate::shared::RocksCommon;

/// The smallest buffer for writes. Below it, each flush writes a tiny file.
const WRITE_BUFFER_BYTES_MIN: u64 = 1 << 20;
/// The largest: RocksDB's default.
const WRITE_BUFFER_BYTES_MAX: u64 = 64 << 20;
/// RocksDB's default number of buffers of a database.
const WRITE_BUFFERS: u64 = 2;

/// The option with which RocksDB refuses a log that has a bad record before its end.
const STRICT_LOG: &str = "wal_recovery_mode=kTolerateCorruptedTailRecords;";

/// Opens engines over databases of RocksDB.
#[derive(Clone, Debug)]
pub struct RocksOpener(pub RocksOptions);

/// How the memory of a process is divided, in bytes.
struct Memory {
    block_cache: u64,
    write_buffer: u64,
}

impl Memory {
    fn of(budget_bytes: u64, engines: u16) -> Self {
        let buffers = u64::from(engines) * WRITE_BUFFERS;
        let write_buffer = budget_bytes / 4 / buffers;
        Self {
            block_cache: budget_bytes / 2,
            write_buffer: write_buffer.clamp(WRITE_BUFFER_BYTES_MIN, WRITE_BUFFER_BYTES_MAX),
        }
    }

    fn all(&self, engines: u16) -> u64 {
        self.block_cache + u64::from(engines) * WRITE_BUFFERS * self.write_buffer
    }
}

impl RocksOpener {
    /// The most files that this number of engines have open.
    #[must_use]
    pub fn files_max(engines: u16) -> u64 {
        DIRECTORY_FILES_MAX + u64::from(engines) * DATABASE_FILES_MAX
    }

    /// The number of engines that the directory was made for. `None` if there is none yet.
    ///
    /// Errors: the directory is not ours, in a sentence.
    pub fn engines(&self) -> io::Result<Option<u16>> {
        directory::engines_of(&self.0.data)
    }
}

impl OpenEngines for RocksOpener {
    type Engine = Rocks;

    fn budget_bytes_min(engines: u16) -> u64 {
        4 * u64::from(engines) * WRITE_BUFFERS * WRITE_BUFFER_BYTES_MIN
    }

    fn open(&self, opening: &Opening) -> io::Result<Vec<Rocks>> {
        let RocksOptions { data, sync, library, text } = &self.0;
        let refused =
            |why: &dyn std::fmt::Display| io::Error::other(format!("--engine rocksdb: {why}"));
        let library = Library::load(library.as_deref()).map_err(|why| refused(&why))?;
        let library = Arc::new(library);
        let directory = Directory::open(data, opening.engines)?;
        let folders: Vec<_> = (0..opening.engines).map(|number| directory.folder(number)).collect();
        let (kept, creates) = (directory.flushes()?, directory.is_new());
        let common = RocksCommon::new(opening, directory, kept);
        let memory = Memory::of(opening.budget.limit_bytes(), opening.engines);
        opening.budget.charge_ahead(memory.all(opening.engines));
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let cache = BlockCache::new(&library, bytes(memory.block_cache));
        let write_buffer_bytes = bytes(memory.write_buffer);
        // By default RocksDB stops at the first bad record of its log, and says nothing of what it
        // has left out. Only the last record may be bad, and it was not acknowledged.
        let strict = if matches!(sync, RocksSync::Always) { STRICT_LOG } else { "" };
        let text = format!("{strict}{text}");
        let options = DatabaseOptions { creates, write_buffer_bytes, text };
        let mut report = StartReport::new(data, opening.engines, SystemClock.now_ns());
        let mut sums = StartFound { is_estimate: true, ..StartFound::default() };
        let mut engines = Vec::new();
        for (number, folder) in (0..).zip(folders) {
            let filter = Arc::new(RecordFilter::new(Arc::clone(common.heap().flushes())));
            let opened = Database::open(&library, &folder, (&options, &cache), Arc::clone(&filter));
            let of_folder =
                |why: &dyn std::fmt::Display| refused(&format_args!("{}: {why}", folder.display()));
            let database = opened.map_err(|why| of_folder(&why))?;
            let noted = noted(&database, number, opening.engines);
            let (tokens, note) = noted.map_err(|why| of_folder(&why))?;
            common.resume((number, &note), &opening.start).map_err(|why| of_folder(&why))?;
            let measured = database.measure();
            sums.items += database.items();
            sums.live_bytes += measured.live_bytes;
            sums.file_bytes += measured.disk_bytes;
            if let Some(line) = report.opened(number, SystemClock.now_ns()) {
                log(Level::Info, format_args!("{line}"), &[]);
            }
            let (common, hasher, sync) = (common.clone(), opening.hasher, *sync);
            engines.push(Rocks::new(Parts {
                number,
                common,
                hasher,
                database,
                filter,
                tokens,
                note,
                sync,
            }));
        }
        common.finish_directory()?;
        let line = report.end(&sums, SystemClock.now_ns());
        log(Level::Info, format_args!("{line}"), &sums.fields());
        Ok(engines)
    }
}

/// The tokens of an engine, behind those that may have been given out, and the note that the
/// database has then.
fn noted(database: &Database, engine: u16, engines: u16) -> Result<(Tokens, Note), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let found = database.on_disk(NOTE_KEY, Note::of_bytes).map_err(|error| text(&error))?;
    let found = found.transpose().map_err(|error| text(&error))?.unwrap_or_default();
    let mut tokens = Tokens::behind(found.tokens, engine, engines);
    let note = Note { tokens: tokens.first_note(), ..found };
    database.write(&[Change::Note(note)], true).map_err(|error| text(&error))?;
    Ok((tokens, note))
}
