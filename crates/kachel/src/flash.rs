//! Engines over durable logs, as the options describe them.
//!
//! Upstream:   `main` passes the opener to `serve`.
//! Downstream: `kachel_flash` opens the engines.

use std::io;
use std::path::PathBuf;

use kachel_engine::{ClockOrigin, KeyHasher, Now, OpenEngines, Opening};
use kachel_flash::{
    DIRECTORY_FILES_MAX, Flash, FlashDirectory, FlashOpener, FlashOptions, engines_of,
};
use kachel_host::{PageKind, file_system_bytes};
use kachel_log::{Geometry, SyncMode};
use kachel_options::{ENGINE_SPACE_BYTES_MIN, ServeOptions, SyncChoice};
use kachel_shard::{Engines, Homes};

use crate::caches::ServedEngines;
use crate::failure::Failure;
use crate::restart::{Claim, Found};

/// The bytes on the disk, in percent of the bytes of live records, above which garbage is
/// collected.
const TARGET_PERCENT: u64 = 135;

/// The fewest segments of an engine. Six are never filled with items, so with fewer than these an
/// engine would refuse nearly every store. The segments of a new store are always more.
const ENGINE_SEGMENTS_MIN: u64 = 8;

/// Opens the engines, whose number the data has.
pub(crate) struct FlashEngines {
    data: PathBuf,
    sync: SyncMode,
    /// The most bytes of all logs. `None`: as many as the file system has.
    space: Option<u64>,
    kept: Option<u16>,
}

/// The opener of the engines that the options describe.
///
/// Errors: the folder of the data cannot be used.
pub(crate) fn opener(options: &ServeOptions) -> Result<FlashEngines, Failure> {
    let data = options.data.folder.as_deref().expect("the options were checked");
    // A daemon leaves its folder.
    let data = std::path::absolute(data);
    let data = data.map_err(|error| Failure::system("--data: no working folder", &error))?;
    let sync = match options.data.sync.unwrap_or_default() {
        SyncChoice::Always => SyncMode::Always,
        SyncChoice::IntervalMs(ms) => SyncMode::Interval(ms * 1_000_000),
        SyncChoice::Os => SyncMode::Os,
    };
    let kept = engines_of(&data).map_err(|error| Failure::machine(error.to_string()))?;
    Ok(FlashEngines { data, sync, space: options.data.space_bytes, kept })
}

impl OpenEngines for FlashEngines {
    type Engine = Flash;

    fn budget_bytes_min(engines: u16) -> u64 {
        FlashOpener::<FlashDirectory>::budget_bytes_min(engines)
    }

    fn open(&self, opening: &Opening) -> io::Result<Vec<Flash>> {
        let engines = u64::from(opening.engines);
        let of_engine = self.space.unwrap_or(u64::MAX) / engines;
        if of_engine < ENGINE_SPACE_BYTES_MIN {
            let each = ENGINE_SPACE_BYTES_MIN >> 20;
            let why = format!("--space: {engines} engines need at least {each}m each");
            return Err(io::Error::other(why));
        }
        let made_s = u64::try_from(opening.start.unix(opening.start.second)).unwrap_or(0);
        let space = match self.space {
            Some(space) => space,
            None => file_system_bytes(&self.data)?,
        };
        let directory = FlashDirectory::open(&self.data, opening.engines, space, made_s)?;
        let segment_bytes = directory.segment_bytes();
        if of_engine / segment_bytes < ENGINE_SEGMENTS_MIN {
            let needed = (engines * ENGINE_SEGMENTS_MIN * segment_bytes).div_ceil(1 << 20);
            let each = segment_bytes.div_ceil(1 << 20);
            let why = format!(
                "--space: {engines} engines need at least {needed}m in all, because their segments \
                 have {each} MiB"
            );
            return Err(io::Error::other(why));
        }
        let geometry = Geometry::new(segment_bytes, of_engine);
        let options = FlashOptions { geometry, sync: self.sync, target_percent: TARGET_PERCENT };
        FlashOpener::new(options, directory).open(opening)
    }
}

impl ServedEngines for FlashEngines {
    const HAS_SHARD_PER_BACKEND: bool = false;

    fn kept_engines(&self) -> Option<u16> {
        self.kept
    }

    fn files_max(engines: u16) -> u64 {
        DIRECTORY_FILES_MAX + 2 * u64::from(engines)
    }

    fn pages(_engines: &Engines<Flash>) -> PageKind {
        PageKind::Ordinary
    }

    fn load(
        _found: Found,
        _engines: Vec<Flash>,
        _hasher: KeyHasher,
        _origin: ClockOrigin,
        _must_end: fn() -> bool,
    ) -> Option<Vec<Flash>> {
        unreachable!("the options refuse -e")
    }

    fn save(
        _claim: Claim,
        _engines: &Engines<Flash>,
        _homes: Homes,
        _now: Now,
    ) -> Result<(), String> {
        unreachable!("the options refuse -e")
    }
}
