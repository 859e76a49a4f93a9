//! Engines over RocksDB, as the options describe them.
//!
//! Upstream:   `main` passes the opener to `serve`.
//! Downstream: `kachel_rocks` opens the engines.

use std::io;
use std::path::Path;

use kachel_engine::{ClockOrigin, KeyHasher, Now, OpenEngines, Opening};
use kachel_host::{PageKind, read_regular_file};
use kachel_options::{ServeOptions, SyncChoice, TEST_ROCKSDB_ENV};
use kachel_rocks::{Rocks, RocksOpener, RocksOptions, RocksSync};
use kachel_shard::{Engines, Homes};

use crate::caches::ServedEngines;
use crate::failure::Failure;
use crate::restart::{Claim, Found};

/// The most bytes of a file of options for RocksDB.
const OPTIONS_BYTES_MAX: u64 = 1 << 16;

/// Opens the engines, whose number the data has.
pub(crate) struct RocksEngines {
    opener: RocksOpener,
    kept: Option<u16>,
}

/// The opener of the engines that the options describe.
///
/// Errors: the folder of the data, or the file of options, cannot be used.
pub(crate) fn opener(options: &ServeOptions) -> Result<RocksEngines, Failure> {
    let data = options.data.folder.as_deref().expect("the options were checked");
    // A daemon leaves its folder.
    let data = std::path::absolute(data);
    let data = data.map_err(|error| Failure::system("--data: no working folder", &error))?;
    let text = match &options.data.rocksdb_options {
        None => String::new(),
        Some(path) => read_options(path)?,
    };
    let sync = match options.data.sync.unwrap_or_default() {
        SyncChoice::Always => RocksSync::Always,
        SyncChoice::IntervalMs(ms) => RocksSync::Interval(ms * 1_000_000),
        SyncChoice::Os => RocksSync::System,
    };
    let library = std::env::var_os(TEST_ROCKSDB_ENV).map(Into::into);
    let opener = RocksOpener(RocksOptions { data, sync, library, text });
    let kept = opener.engines().map_err(|error| Failure::machine(error.to_string()))?;
    Ok(RocksEngines { opener, kept })
}

/// Reads a file of options: `name=value` in each line. Empty lines, and those that begin with `#`,
/// say nothing.
fn read_options(path: &Path) -> Result<String, Failure> {
    let named = format!("--rocksdb-options {}", path.display());
    let bytes = read_regular_file(path, OPTIONS_BYTES_MAX);
    let bytes = bytes.map_err(|error| Failure::system(&named, &error))?;
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| Failure::machine(format!("{named}: is no text in UTF-8")))?;
    let lines = text.lines().map(str::trim);
    let said: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    Ok(said.join(";"))
}

impl OpenEngines for RocksEngines {
    type Engine = Rocks;

    fn budget_bytes_min(engines: u16) -> u64 {
        RocksOpener::budget_bytes_min(engines)
    }

    fn open(&self, opening: &Opening) -> io::Result<Vec<Rocks>> {
        self.opener.open(opening)
    }
}

impl ServedEngines for RocksEngines {
    const HAS_SHARD_PER_BACKEND: bool = false;

    fn kept_engines(&self) -> Option<u16> {
        self.kept
    }

    fn files_max(engines: u16) -> u64 {
        RocksOpener::files_max(engines)
    }

    fn pages(_engines: &Engines<Rocks>) -> PageKind {
        PageKind::Ordinary
    }

    fn load(
        _found: Found,
        _engines: Vec<Rocks>,
        _hasher: KeyHasher,
        _origin: ClockOrigin,
        _must_end: fn() -> bool,
    ) -> Option<Vec<Rocks>> {
        unreachable!("the options refuse -e")
    }

    fn save(
        _claim: Claim,
        _engines: &Engines<Rocks>,
        _homes: Homes,
        _now: Now,
    ) -> Result<(), String> {
        unreachable!("the options refuse -e")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_options_becomes_the_text_that_rocksdb_reads() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("options");
        std::fs::write(&path, "# ours\n\n max_open_files=100 \nbytes_per_sync=1048576\n").unwrap();
        let text = read_options(&path).expect("it is there");
        assert_eq!(text, "max_open_files=100;bytes_per_sync=1048576");
        std::fs::write(&path, b"\xff").unwrap();
        assert!(read_options(&path).unwrap_err().to_string().ends_with("is no text in UTF-8"));
        assert!(read_options(&place.path().join("none")).is_err());
    }
}
