//! `kachel backup`: copies a data directory, also while a server serves from it.
//!
//! Upstream:   `main`, with the arguments after `backup`.
//! Downstream: `kachel_flash` copies the store.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kachel_flash::{BackedUp, WatchBackup, back_up};
use kachel_stdx::plural;

use crate::upkeep::{Pace, mib, paths, refuse};

const USAGE: &str = "\
usage: kachel backup DIR TO

Copies DIR, which is a data directory of `--engine flash`, to the directory TO, which is made or is
empty. A server may serve from DIR meanwhile. The copy has all that was acknowledged before, and a
server can serve from it. Ends with status 0 if TO is whole, with 1 if it is not, and with 64 if the
arguments are wrong.
";

/// The most files that are open: a log for each engine, and some others.
const FILES_MAX: u64 = kachel_engine::PARTITIONS as u64 + 64;

/// Prints the progress to standard error.
#[derive(Debug)]
struct Printer {
    pace: Pace,
    bytes: AtomicU64,
}

impl WatchBackup for Printer {
    fn copied(&self, bytes: u64) {
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.pace.tell(|| format!("{} MiB are copied", mib(bytes)));
    }
}

/// Copies the directory that `words` name.
pub(crate) fn run(words: Vec<OsString>) -> ExitCode {
    let [path, to] = match paths(words, USAGE) {
        Ok(paths) => paths,
        Err(ended) => return ended,
    };
    // Each log of the copy is open until the end.
    kachel_host::raise_open_files(FILES_MAX);
    let printer = Printer { pace: Pace::new(), bytes: AtomicU64::new(0) };
    let printer: Arc<dyn WatchBackup> = Arc::new(printer);
    match back_up(&path, &to, &printer) {
        Ok(BackedUp { engines, bytes }) => {
            let noun = plural(engines.into(), "engine", "engines");
            let (to, mib) = (to.display(), mib(bytes));
            crate::print(&format!("{to}: {engines} {noun}, {mib} MiB in use\n"))
        }
        Err(why) => refuse("backup", &path, &why),
    }
}
