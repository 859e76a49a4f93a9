//! The trait that an opener of engines implements for the server, and its implementation for
//! caches. The crate is generic over the kind of the engines; `main` chooses it.
//!
//! Upstream:   `main` passes the opener to `serve`.
//! Downstream: `cache` opens the engines; `restart` loads and saves their items.

use kachel_cache::{Cache, CacheCommon, CacheOpener, SizeClassOptions};
use kachel_engine::{ClockOrigin, KeyHasher, Now, OpenEngines};
use kachel_host::PageKind;
use kachel_options::ServeOptions;
use kachel_shard::{Engines, FileEngine, Homes};

use crate::restart::{Claim, Found};

/// Engines that a server process can serve with.
pub(crate) trait ServedEngines: OpenEngines<Engine: FileEngine + Send + 'static> {
    /// Whether each I/O backend has a shard that was compiled for it. It costs the time of a
    /// compilation, and saves a branch for each call of the backend.
    const HAS_SHARD_PER_BACKEND: bool;

    /// The number of engines of the data that they keep. `None` if there is none yet.
    fn kept_engines(&self) -> Option<u16> {
        None
    }

    /// The most files that this number of engines have open.
    fn files_max(engines: u16) -> u64 {
        let _nothing_is_on_a_disk = engines;
        0
    }

    /// The pages in which the items are.
    fn pages(engines: &Engines<Self::Engine>) -> PageKind;

    /// Stores the items of the server before in `engines`, which are still empty. `None` if
    /// `must_end` has returned true, which is called now and then.
    fn load(
        found: Found,
        engines: Vec<Self::Engine>,
        hasher: KeyHasher,
        origin: ClockOrigin,
        must_end: fn() -> bool,
    ) -> Option<Vec<Self::Engine>>;

    /// Saves the items of all engines for the next server. The error is a sentence.
    fn save(
        claim: Claim,
        engines: &Engines<Self::Engine>,
        homes: Homes,
        now: Now,
    ) -> Result<(), String>;
}

/// The opener of the caches that the options describe.
pub(crate) fn opener(options: &ServeOptions) -> CacheOpener {
    let classes = SizeClassOptions {
        // memcached adds its header to the bytes that the option says.
        first_bytes: options.echo.chunk_size.saturating_add(48),
        last_bytes: options.echo.slab_chunk_bytes_max,
        growth_factor: options.echo.growth_factor,
    };
    CacheOpener { huge: options.huge_pages, classes }
}

impl ServedEngines for CacheOpener {
    const HAS_SHARD_PER_BACKEND: bool = true;

    fn pages(engines: &Engines<Cache>) -> PageKind {
        CacheCommon::pool(engines.common()).pages()
    }

    fn load(
        found: Found,
        engines: Vec<Cache>,
        hasher: KeyHasher,
        origin: ClockOrigin,
        must_end: fn() -> bool,
    ) -> Option<Vec<Cache>> {
        found.load(engines, hasher, origin, must_end)
    }

    fn save(claim: Claim, engines: &Engines<Cache>, homes: Homes, now: Now) -> Result<(), String> {
        claim.save(engines, homes, now)
    }
}
