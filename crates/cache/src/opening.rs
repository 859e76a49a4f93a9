//! Opens the caches of a process, over one pool.
//!
//! Upstream:   the server, the worlds of `testkit` and the simulation, by the contract.
//! Downstream: `Cache::new` and `segment`'s pool.

use std::io;
use std::sync::Arc;

use kachel_engine::{OpenEngines, Opening};
use kachel_host::Region;
use kachel_segment::{Pool, PoolOptions};
use kachel_stdx::SizeClassOptions;

use crate::cache::{Cache, EngineOf, budget_bytes_min, index_bytes};

/// How the caches of a process are made, besides what every engine needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheOpener {
    /// Whether items are in huge pages, if the machine has some.
    pub huge: bool,
    /// The size classes by which items are counted.
    pub classes: SizeClassOptions,
}

impl OpenEngines for CacheOpener {
    type Engine = Cache;

    fn budget_bytes_min(engines: u16) -> u64 {
        budget_bytes_min(engines)
    }

    /// Cost: reserves address space for `budget_bytes_max` bytes of items, and for the indexes,
    /// after a check that there is enough for all indexes and for the process.
    fn open(&self, opening: &Opening) -> io::Result<Vec<Cache>> {
        let &Opening { engines, cores, hasher, options, ref budget, budget_bytes_max, .. } =
            opening;
        let pool_options = PoolOptions {
            engines,
            cores,
            reserve_bytes: budget_bytes_max,
            huge: self.huge,
            classes: self.classes,
        };
        // The items are reserved first only to be named alone if they are what is too much.
        let items = budget_bytes_max.max(budget.limit_bytes());
        let others = index_bytes(items, engines) + opening.process_bytes;
        let sized = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Region::reserve(sized(items), false, "items")?;
        let all = sized(items.saturating_add(others));
        Region::reserve(all, false, "items, indexes, threads and buffers")?;
        let pool = Pool::new(Arc::clone(budget), pool_options)?;
        let cache = |engine| {
            let of = EngineOf { engine, engines };
            Cache::new(Arc::clone(&pool), Arc::clone(budget), hasher, options, of)
        };
        (0..engines).map(cache).collect()
    }
}
