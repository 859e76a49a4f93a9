//! The state of all counters at one moment.
//!
//! Upstream:   `kachel`, on the thread of the admin address, once a second.
//! Downstream: `sample`, which compares two readings.
//!
//! Invariants:
//! - G1  Counts are those since the start of the process, so `stats reset` does not change them.
//!   Each one never falls.

use kachel_stdx::Counter;

use crate::counters::{Counters, TICK_UNIT_NS};
use crate::engine_counters::EngineCounters;
use crate::histogram::{Histogram, HistogramSum};
use crate::rows::{ProcessFacts, Row, RowValue};
use crate::totals::Totals;

/// The state of all counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The monotonic clock, in nanoseconds.
    pub at_ns: u64,
    /// The counts.
    pub tally: Tally,
    /// What there is now.
    pub gauges: Gauges,
    /// The pipe, if there is one.
    pub pipe: Option<PipeReading>,
    /// Each core.
    pub cores: Vec<CoreReading>,
    /// The times of ticks.
    pub tick_times: HistogramSum,
    /// The times for which requests waited.
    pub waits: HistogramSum,
    /// The lengths of stored values, of a sample.
    pub stored_bytes: HistogramSum,
    /// The TTLs of stored items, of a sample.
    pub stored_ttl_s: HistogramSum,
}

/// How often something has happened since the start (G1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests executed.
    pub requests: u64,
    /// Keys read and found.
    pub hits: u64,
    /// Keys read and not found.
    pub misses: u64,
    /// Storage requests (`cmd_set`).
    pub sets: u64,
    /// Deletes.
    pub deletes: u64,
    /// `flush_all` requests.
    pub flushes: u64,
    /// `flush_prefix` requests.
    pub prefix_flushes: u64,
    /// Items evicted.
    pub evictions: u64,
    /// Items whose space came back because they had expired.
    pub expired: u64,
    /// Seconds from the last use of each evicted item to its eviction, in all.
    pub evicted_age_s: u64,
    /// Stores refused for lack of memory.
    pub refused: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Processor time in user mode, in microseconds.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_us: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections refused at the limit (`-c`).
    pub rejected: u64,
    /// Connections closed because their clients were slow.
    pub slow_closes: u64,
}

/// What there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// The Unix time in seconds.
    pub unix_s: u64,
    /// Seconds since the start.
    pub uptime_s: u32,
    /// The memory budget (`-m`).
    pub limit_bytes: u64,
    /// Bytes of the budget that are spent.
    pub spent_bytes: u64,
    /// Bytes of items.
    pub item_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Bytes of requests that wait, and of their buffers.
    pub waiting_bytes: u64,
    /// Bytes of values that are being sent.
    pub pinned_bytes: u64,
    /// Bytes of replies that clients have not read.
    pub unread_bytes: u64,
    /// Items.
    pub items: u64,
    /// Connections.
    pub connections: u32,
    /// The most connections (`-c`).
    pub connections_max: u32,
    /// Cores that serve clients.
    pub awake_cores: u16,
    /// The Unix second at which a certificate of the server expires. `None` without TLS.
    pub certificate_expires_s: Option<u64>,
}

/// The pipe at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeReading {
    /// Whether it answers.
    pub is_on: bool,
    /// Requests answered since the start.
    pub answered: u64,
    /// Requests passed to the server since the start.
    pub passed: u64,
    /// Copies.
    pub items: u64,
    /// The most copies that fit.
    pub items_max: u64,
}

/// A core at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreReading {
    /// Requests executed since the start.
    pub requests: u64,
    /// The times of all ticks since the start, in nanoseconds.
    pub busy_ns: u64,
    /// Connections.
    pub connections: u64,
}

impl Reading {
    /// Reads all counters, at `at_ns` of the monotonic clock. Requests that wait have
    /// `waiting_bytes`; `others` are the rows of other parts of the process.
    ///
    /// Cost: about 700 loads for each core.
    pub fn take(
        at_ns: u64,
        totals: &Totals,
        facts: &ProcessFacts<'_>,
        waiting_bytes: u64,
        others: &[Row<'_>],
    ) -> Self {
        debug_assert!(totals.cores.len() == usize::from(facts.threads), "a core is a thread");
        let all = |histogram: fn(&Counters) -> &Histogram| {
            HistogramSum::of(totals.cores.iter().map(|core| histogram(core)))
        };
        Self {
            at_ns,
            tally: Tally::of(totals, facts),
            gauges: Gauges::of(totals, facts, waiting_bytes, others),
            pipe: PipeReading::of(others),
            cores: totals.cores.iter().map(|core| CoreReading::of(core)).collect(),
            tick_times: all(|core| &core.tick_times),
            waits: all(|core| &core.waits),
            stored_bytes: all(|core| &core.stored_bytes),
            stored_ttl_s: all(|core| &core.stored_ttl_s),
        }
    }
}

fn sum(counters: [&Counter; 4]) -> u64 {
    counters.map(Counter::value).iter().sum()
}

impl Tally {
    fn of(totals: &Totals, facts: &ProcessFacts<'_>) -> Self {
        let cores = |count: fn(&Counters) -> u64| totals.cores.iter().map(|core| count(core)).sum();
        let engines = |count: fn(&EngineCounters) -> u64| totals.engines.iter().map(count).sum();
        Self {
            requests: cores(|c| c.requests.value()),
            hits: cores(|c| c.get_hits.value()),
            misses: cores(|c| c.get_misses.value()),
            sets: cores(|c| sum([&c.sets, &c.cas_hits, &c.cas_misses, &c.cas_badval])),
            deletes: cores(|c| c.delete_hits.value() + c.delete_misses.value()),
            flushes: cores(|c| c.cmd_flush.value()),
            prefix_flushes: cores(|c| c.cmd_flush_prefix.value()),
            evictions: engines(|e| e.evictions.value()),
            expired: engines(|e| e.reclaimed.value()),
            evicted_age_s: engines(|e| e.evicted_age_s.value()),
            refused: cores(|c| c.store_no_memory.value()),
            received_bytes: cores(|c| c.bytes_read.value()),
            sent_bytes: cores(|c| c.bytes_written.value()),
            user_us: facts.user_us,
            system_us: facts.system_us,
            opened: cores(|c| c.connections_opened.value()),
            rejected: cores(|c| c.connections_rejected.value()),
            // A login that is late is no slow client: a scan of ports leaves such connections.
            slow_closes: cores(|c| {
                sum([&c.line_closes, &c.block_closes, &c.reader_closes, &c.pinned_closes])
            }),
        }
    }
}

impl Gauges {
    fn of(
        totals: &Totals,
        facts: &ProcessFacts<'_>,
        waiting_bytes: u64,
        others: &[Row<'_>],
    ) -> Self {
        Self {
            unix_s: facts.unix_s,
            uptime_s: facts.uptime_s,
            limit_bytes: facts.limit_bytes,
            spent_bytes: facts.spent_bytes,
            item_bytes: totals.sum_of_engines(|e| &e.bytes),
            index_bytes: totals.sum_of_engines(|e| &e.index_bytes),
            waiting_bytes,
            pinned_bytes: facts.pinned_bytes,
            unread_bytes: totals.sum(|c| &c.owed_bytes),
            items: totals.sum_of_engines(|e| &e.items),
            connections: facts.connections,
            connections_max: facts.connections_max,
            awake_cores: facts.awake_cores,
            certificate_expires_s: number(others, "kachel_tls_expires_s"),
        }
    }
}

/// The number of the row with this name.
fn number(rows: &[Row<'_>], name: &str) -> Option<u64> {
    match rows.iter().find(|row| row.name == name)?.value {
        RowValue::Number(number) => Some(number),
        RowValue::Micros(_) | RowValue::Text(_) => None,
    }
}

impl PipeReading {
    /// The pipe by its rows, if there is one.
    fn of(rows: &[Row<'_>]) -> Option<Self> {
        let number = |name| number(rows, name);
        Some(Self {
            is_on: number("kachel_pipe_on")? == 1,
            answered: number("kachel_pipe_answered")?,
            passed: number("kachel_pipe_passed")?,
            items: number("kachel_pipe_items")?,
            items_max: number("kachel_pipe_items_max")?,
        })
    }
}

impl CoreReading {
    fn of(counters: &Counters) -> Self {
        Self {
            requests: counters.requests.value(),
            busy_ns: counters.tick_times.total() * TICK_UNIT_NS,
            connections: counters.connections.value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_of_statistics_changes_no_count() {
        let totals = Totals::new(2, 2);
        let facts = ProcessFacts { threads: 2, ..ProcessFacts::default() };
        totals.cores[0].get_hits.add(3);
        totals.cores[1].get_hits.add(4);
        totals.cores[1].tick_times.note(10);
        totals.engines[1].evictions.set(9);
        let before = Reading::take(1, &totals, &facts, 0, &[]);
        totals.reset();
        let after = Reading::take(2, &totals, &facts, 0, &[]);
        assert_eq!((before.tally, before.tally.hits, before.tally.evictions), (after.tally, 7, 9));
        assert_eq!(before.tick_times, after.tick_times, "G1");
        assert_eq!((after.cores[1].busy_ns, after.pipe), (10 * TICK_UNIT_NS, None));
    }
}
