//! The crawler: `lru_crawler crawl` has all cores reclaim the space of items that have expired or
//! were flushed.
//!
//! Upstream:   `control` begins a run; `tick` has each core continue it by one bounded step.
//! Downstream: the home engines of this core; `crawler`, which all cores share.
//!
//! Space comes back without it, too: when a whole segment has expired, when a lookup finds a dead
//! item, and when an engine needs memory. A run finds the other dead items now.
//!
//! ```text
//! begin: left = cores, run + 1 --> each core: its engines, step by step --> left - 1 --> 0: over
//! ```
//!
//! Invariants:
//! - R1  There is at most one run at a time in the process. Each core takes part in each run once.
//! - R2  In one tick a core examines at most `CRAWLED_ITEMS_PER_TICK_MAX` items.

use kachel_engine::{Cursor, Engine, WalkNext};

use crate::context::Context;
use crate::request::form::LISTED_ITEMS_PER_TICK_MAX;
use crate::waiting::engines::Engines;

/// The most items that a core examines in one tick for the crawler: as many as when it counts
/// items.
const CRAWLED_ITEMS_PER_TICK_MAX: usize = 8 * LISTED_ITEMS_PER_TICK_MAX;

/// How far the home engines of a core were examined.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    /// The number of engines that were examined to their ends.
    examined: usize,
    /// The position in the next one.
    cursor: Cursor,
}

/// The part of one core in the runs of the crawler.
#[derive(Debug, Default)]
pub(crate) struct Crawling {
    /// The last run that the core has noted.
    run: u32,
    /// How far its home engines were examined; `None` if it is done.
    at: Option<Position>,
}

impl Crawling {
    /// Whether the core must not sleep, because its engines are not done. Cost: a load.
    #[inline]
    pub(crate) const fn is_busy(&self) -> bool {
        self.at.is_some()
    }

    /// Whether a run was begun that the core has not noted yet. Cost: a load.
    #[inline]
    pub(crate) fn is_called(&self, context: &Context) -> bool {
        context.shared.crawler.run() != self.run
    }

    /// Continues the run by one step (R2). Does nothing while another core holds the engine.
    #[cold]
    pub(crate) fn step<E: Engine>(&mut self, context: &Context, engines: &Engines<E>) {
        let crawler = &context.shared.crawler;
        if self.is_called(context) {
            debug_assert!(self.at.is_none(), "R1: the run before is over");
            self.run = crawler.run();
            self.at = Some(Position::default());
        }
        let Some(Position { examined: engines_examined, cursor }) = &mut self.at else { return };
        let Some(&index) = context.home_engines().get(*engines_examined) else {
            return self.end(context);
        };
        let Some(mut engine) = engines.take(index, context) else { return };
        let (classes, sizes, now) = (crawler.classes(), &context.sizes, &context.now());
        let step = engine.crawl(cursor, now, CRAWLED_ITEMS_PER_TICK_MAX, |key, item| {
            classes >> sizes.of(key.len(), item.value_bytes(), item.client_flags()) & 1 == 1
        });
        drop(engine);
        debug_assert!(step.reclaimed <= step.walked.items, "what is reclaimed was examined");
        let (examined, reclaimed) = (step.walked.items as u64, step.reclaimed as u64);
        debug_assert!(examined <= CRAWLED_ITEMS_PER_TICK_MAX as u64, "R2");
        context.counters.listed_items.add(examined);
        context.counters.crawler_reclaimed.add(reclaimed);
        crawler.note(examined, reclaimed);
        if step.walked.next == WalkNext::End {
            (*engines_examined, *cursor) = (*engines_examined + 1, Cursor::default());
            if *engines_examined == context.home_engines().len() {
                self.end(context);
            }
        }
    }

    /// Ends the run for this core (R1).
    fn end(&mut self, context: &Context) {
        self.at = None;
        if let Some(run) = context.shared.crawler.end() {
            context.log_crawled(run);
        }
    }
}
