//! The data directory of a run over RocksDB, and the library that stands in for RocksDB.
//!
//! Upstream:   `run`. Each thread does one run at a time, so it has one directory.
//! Downstream: the file system, for the small files of the directory; `testkit`'s library, which
//!             has the items in memory.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kachel_rocks::{RocksOpener, RocksOptions, RocksSync};
use kachel_testkit::FakeRocksdb;
use tempfile::TempDir;

/// A folder of a thread, and the library. Both are removed when the thread ends.
struct RocksPlace {
    folder: TempDir,
    library: Arc<FakeRocksdb>,
}

thread_local! {
    static PLACE: RefCell<Option<RocksPlace>> = const { RefCell::new(None) };
}

/// The library, which all threads share.
fn library() -> Arc<FakeRocksdb> {
    static SHARED: Mutex<Weak<FakeRocksdb>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let built = Arc::new(FakeRocksdb::build(None));
        *shared = Arc::downgrade(&built);
        built
    })
}

/// Opens databases in a new directory, which replaces that of the thread's run before.
///
/// Errors: a folder cannot be made or removed.
pub(crate) fn new_rocks_store() -> io::Result<RocksOpener> {
    PLACE.with_borrow_mut(|place| {
        let place = match place {
            Some(place) => place,
            None => place.insert(RocksPlace { folder: tempfile::tempdir()?, library: library() }),
        };
        let data = place.folder.path().join("data");
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        let library = Some(place.library.path().to_owned());
        let (sync, text) = (RocksSync::Always, String::new());
        Ok(RocksOpener(RocksOptions { data, sync, library, text }))
    })
}
