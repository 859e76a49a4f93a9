//! The engines of the server: caches. This is the one place that chooses their kind; the rest of
//! the crate is generic over it.
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
