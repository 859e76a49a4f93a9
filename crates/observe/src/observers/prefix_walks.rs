//! The items that each prefix has in each engine, as the last walk over the engine has found them.
//!
//! Upstream:   the home core of each engine, which walks over its items in small steps.
//! Downstream: `by_prefix`.
//!
//! ```text
//! home core:  begin, a table of its own --> steps --> end: the table replaces the last one
//! ```
//!
//! A walk counts into a table that no other thread sees. So a mutex is held only while a table is
//! replaced, or its numbers are copied.
//!
//! Invariants:
//! - W1  The table of an engine is from a walk that began after prefixes were switched on.
//! - W2  A core never waits for the table of an engine. A thread that asks for numbers does.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, TryLockError};

use kachel_engine::EngineIndex;
use kachel_stdx::CachePadded;

use crate::observers::by_prefix::PrefixSource;
use crate::observers::lock;
use crate::observers::prefix_table::PrefixTable;

/// The last walk over an engine.
#[derive(Debug)]
struct Walked {
    table: Box<PrefixTable>,
    ended_ns: u64,
}

/// The last walk over each engine; `None` while there is none.
#[derive(Debug)]
pub(super) struct PrefixWalks {
    /// How often all walks were forgotten.
    epoch: AtomicU32,
    engines: Box<[CachePadded<Mutex<Option<Walked>>>]>,
}

impl PrefixWalks {
    pub(super) fn new(engines: u16) -> Self {
        let engines = (0..engines).map(|_| CachePadded::default()).collect();
        Self { epoch: AtomicU32::new(0), engines }
    }

    /// Forgets all walks. Those that are under way are dropped when they end (W1).
    pub(super) fn begin_anew(&self) {
        self.epoch.fetch_add(1, Relaxed);
        for engine in &self.engines {
            *lock(engine) = None;
        }
    }

    /// How often all walks were forgotten. Cost: a load.
    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Relaxed)
    }

    /// Ends a walk over an engine, which began in `epoch`.
    ///
    /// Errors: another thread copies the numbers of the last one. The table is given back (W2).
    pub(super) fn end(
        &self,
        engine: EngineIndex,
        epoch: u32,
        table: Box<PrefixTable>,
        now_ns: u64,
    ) -> Result<(), Box<PrefixTable>> {
        let mut last = match self.engines[engine.number()].try_lock() {
            Ok(last) => last,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(table),
        };
        // A switch changes the epoch before it takes the mutex, so no table from before stays.
        if self.epoch() == epoch {
            *last = Some(Walked { table, ended_ns: now_ns });
        }
        Ok(())
    }

    /// The numbers of all engines, and how many seconds ago the oldest ones were counted, if each
    /// engine has some.
    pub(super) fn sources(&self, now_ns: u64) -> (Vec<PrefixSource>, Option<u64>) {
        let (mut sources, mut age_s) = (Vec::new(), Some(0));
        for engine in &self.engines {
            let last = lock(engine);
            age_s = match &*last {
                Some(Walked { table, ended_ns }) => {
                    sources.push(PrefixSource::of(table, 1));
                    age_s.map(|age_s| age_s.max(now_ns.saturating_sub(*ended_ns) / 1_000_000_000))
                }
                None => None,
            };
        }
        (sources, age_s)
    }

    /// The prefix with this hash, if any of the tables has it.
    pub(super) fn prefix(&self, hash: u64) -> Option<Box<[u8]>> {
        self.engines.iter().find_map(|engine| {
            let last = lock(engine);
            let Walked { table, .. } = last.as_ref()?;
            table.prefix(hash).map(Box::from)
        })
    }
}
