//! What the simulation asks of an engine besides the contract: what it has delayed, and whether its
//! memory is accounted for.
//!
//! Upstream:   `server` and `audit`, which know no kind of engine.
//! Downstream: the cache, the delaying engine over caches, the plain engine, the engine over a log,
//!             and the engine over RocksDB.

use kachel_cache::{Cache, Pool};
use kachel_engine::Engine as _;
use kachel_flash::{Flash, FlashCounts};
use kachel_rocks::Rocks;
use kachel_shard::FileEngine;
use kachel_testkit::{DelayCounts, Delaying, Plain, Uncounted, World};

/// An engine that is simulated.
pub(crate) trait Subject: FileEngine + Sized {
    /// Whether the index counts a dead item until its record is collected.
    const COUNTS_DEAD: bool = false;

    /// The counts of what it has delayed.
    fn delays(&self) -> DelayCounts;

    /// The counts of what it has done with its log, if it has one.
    fn log_counts(&self) -> FlashCounts {
        FlashCounts::default()
    }

    /// The items that it has found expired, if its statistics do not say how many it has removed.
    fn found_expired(&self) -> u64 {
        0
    }

    /// The bytes of the budget that the engines of a server have for indexes and items.
    fn charged_bytes(world: &World<Uncounted, Self>) -> u64;

    /// Checks that nothing is stored, and that all memory of items is given back.
    ///
    /// Errors: something is left over, or a sum is wrong.
    fn audit_empty(world: &World<Uncounted, Self>) -> Result<(), String>;
}

impl Subject for Cache {
    fn delays(&self) -> DelayCounts {
        DelayCounts::default()
    }

    fn charged_bytes(world: &World<Uncounted, Self>) -> u64 {
        charged_by_caches(world, world.pool())
    }

    fn audit_empty(world: &World<Uncounted, Self>) -> Result<(), String> {
        audit_empty_caches(world, world.pool())
    }
}

impl Subject for Delaying<Cache> {
    fn delays(&self) -> DelayCounts {
        Self::delays(self)
    }

    fn charged_bytes(world: &World<Uncounted, Self>) -> u64 {
        charged_by_caches(world, world.pool())
    }

    fn audit_empty(world: &World<Uncounted, Self>) -> Result<(), String> {
        audit_empty_caches(world, world.pool())
    }
}

impl Subject for Plain {
    fn delays(&self) -> DelayCounts {
        DelayCounts::default()
    }

    /// Called while nothing is stored. Each item is charged for itself.
    fn charged_bytes(_world: &World<Uncounted, Self>) -> u64 {
        0
    }

    fn audit_empty(_world: &World<Uncounted, Self>) -> Result<(), String> {
        Ok(())
    }
}

impl Subject for Flash {
    const COUNTS_DEAD: bool = true;

    fn delays(&self) -> DelayCounts {
        DelayCounts::default()
    }

    fn log_counts(&self) -> FlashCounts {
        self.counts()
    }

    fn charged_bytes(world: &World<Uncounted, Self>) -> u64 {
        charged_by_caches(world, world.engines.common().pool())
    }

    fn audit_empty(world: &World<Uncounted, Self>) -> Result<(), String> {
        audit_empty_caches(world, world.engines.common().pool())
    }
}

impl Subject for Rocks {
    /// Its databases count items until a compaction drops them.
    const COUNTS_DEAD: bool = true;

    fn delays(&self) -> DelayCounts {
        DelayCounts::default()
    }

    fn found_expired(&self) -> u64 {
        self.stats().found_expired
    }

    /// Called while nothing waits. A value is charged until it is written.
    fn charged_bytes(_world: &World<Uncounted, Self>) -> u64 {
        0
    }

    fn audit_empty(_world: &World<Uncounted, Self>) -> Result<(), String> {
        Ok(())
    }
}

fn charged_by_caches<E: FileEngine>(world: &World<Uncounted, E>, pool: &Pool) -> u64 {
    let index_bytes: u64 = world.holdings().map(|held| held.index_bytes).sum();
    let books = pool.books();
    index_bytes + books.charged_segments * books.charge_bytes
}

fn audit_empty_caches<E: FileEngine>(
    world: &World<Uncounted, E>,
    pool: &Pool,
) -> Result<(), String> {
    let (mut segments, mut blocks) = (0, 0);
    for held in world.holdings() {
        segments += held.segments;
        blocks += held.blocks;
    }
    let pool = pool.books();
    let cut = (pool.free_blocks + blocks) / pool.blocks_per_segment;
    let known = pool.idle_segments + segments + cut;
    if pool.charged_segments != known {
        return Err(format!("{known} segments are accounted for, a wrong number: {pool:?}"));
    }
    if cut != 0 {
        return Err(format!("{cut} segments are still cut into blocks"));
    }
    Ok(())
}
