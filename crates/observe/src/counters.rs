//! The counters of a core, for `stats`.
//!
//! Upstream:   `apply` counts outcomes; `serve`, `upload` and `records` count as they work.
//! Downstream: the shard that answers `stats` sums the counters of all cores. `engine_counters` has
//!             what belongs to the engines.
//!
//! Invariants:
//! - I1  Only the core itself changes its numbers, so an addition is a plain load and store. Any
//!   core may read a number at any time; it sees a recent value.
//! - I2  A counter is never set back: `stats reset` keeps a copy, and `stats` shows the difference.

use kachel_engine::{DeadFound, Direction, StoreTerms, Verb, Verdict};
use kachel_net::TooSlow;
use kachel_stdx::Counter;

use crate::by_class::ByClass;
use crate::histogram::Histogram;

/// Nanoseconds of a unit of [`Counters::tick_times`]. It is a power of two. The histogram reaches
/// from a tenth of a microsecond to eight seconds.
pub const TICK_UNIT_NS: u64 = 1 << 7;

/// Nanoseconds of a unit of [`Counters::waits`]. It is a power of two.
pub const WAIT_UNIT_NS: u64 = 1 << 10;

impl Counters {
    /// The counter of connections that were closed for this reason.
    pub const fn closes(&self, with: TooSlow) -> &Counter {
        match with {
            TooSlow::Line => &self.line_closes,
            TooSlow::Block => &self.block_closes,
            TooSlow::Login => &self.login_closes,
            TooSlow::Reader => &self.reader_closes,
            TooSlow::Holder => &self.pinned_closes,
        }
    }
}

macro_rules! counters {
    (
        gauges { $($(#[$gauge_doc:meta])* $gauge:ident),+ $(,)? }
        counters { $($(#[$doc:meta])* $name:ident),+ $(,)? }
    ) => {
        /// The counters of one core, on cache lines of their own.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[$gauge_doc])* pub $gauge: Counter,)+
            $($(#[$doc])* pub $name: Counter,)+
            /// A sample of the requests, by the size class of their item.
            pub by_class: ByClass,
            /// The times of ticks without their waits, in units of [`TICK_UNIT_NS`].
            pub tick_times: Histogram,
            /// The requests of each tick that executed any, in a batch or several.
            pub tick_requests: Histogram,
            /// The times from the tick in which a request was parked to the one in which its answer
            /// came back, in units of [`WAIT_UNIT_NS`].
            pub waits: Histogram,
            /// The lengths of stored values in bytes, of a sample.
            pub stored_bytes: Histogram,
            /// The seconds that stored items live, of the same sample, without those that never
            /// expire.
            pub stored_ttl_s: Histogram,
        }

        impl Counters {
            /// Copies what was counted so far. Gauges count nothing, so they stay 0 in the copy.
            pub(crate) fn copy_counts_from(&self, from: &Self) {
                $(self.$name.set(from.$name.value());)+
                self.by_class.copy_counts_from(&from.by_class);
                self.tick_times.copy_counts_from(&from.tick_times);
                self.tick_requests.copy_counts_from(&from.tick_requests);
                self.waits.copy_counts_from(&from.waits);
                self.stored_bytes.copy_counts_from(&from.stored_bytes);
                self.stored_ttl_s.copy_counts_from(&from.stored_ttl_s);
            }
        }
    };
}

counters! {
    gauges {
    /// Gauge: connections open.
    connections,
    /// Gauge: memory that holds replies which clients have not read. It is updated once per second.
    owed_bytes,
    /// Gauge: listings that are being sent.
    listings,
    /// Gauge: clients that watch the log.
    watchers,
    /// Gauge: when the core took its last sample of its own work, in nanoseconds.
    sampled_ns,
    /// Gauge: the part of the time before that sample in which the core was busy, and in which it
    /// waited for a processor, in one word (`balance`, I4).
    sampled_work,
    /// Gauge: thousandths of the last round in which the core was busy (`balance`).
    round_permille,
    /// The most work that this core has done while it held an engine, in bytes (`work`).
    longest_hold_bytes,
    /// The longest time for which this core has held an engine, in microseconds. Holds with little
    /// work are not measured.
    longest_hold_us,
    /// The most work of the engines in one tick of this core, in bytes.
    longest_tick_bytes,
    /// The longest tick of this core, without its wait, in microseconds.
    longest_tick_us,
    }
    counters {
    /// Connections ever opened.
    connections_opened,
    /// Connections turned away at the limit.
    connections_rejected,
    /// Connections closed for being idle.
    idle_kicks,
    /// Connections closed because they read large values slowly while too much memory was pinned.
    pinned_closes,
    /// Connections closed for a command line that was not whole in time.
    line_closes,
    /// Connections closed for a data block that was not whole in time.
    block_closes,
    /// Connections closed because their clients had not logged in in time.
    login_closes,
    /// Connections closed because they read nothing of their replies.
    reader_closes,
    /// Logins, refused ones included.
    auth_cmds,
    /// Logins with an unknown user or a wrong password.
    auth_errors,
    /// Storage requests, without those that `cas_hits`, `cas_misses` and `cas_badval` count, and
    /// without those refused for lack of memory or for a failed disk. `cmd_set` of `stats` is the
    /// sum of the four.
    sets,
    /// Items ever stored.
    total_items,
    /// `flush_all`s.
    cmd_flush,
    /// `flush_prefix`es.
    cmd_flush_prefix,
    /// `me` commands, as in memcached; no other meta command.
    cmd_meta,
    /// Keys found.
    get_hits,
    /// Keys not found.
    get_misses,
    /// Misses that found an expired item.
    get_expired,
    /// Misses that found a flushed item.
    get_flushed,
    /// Deletes that removed nothing.
    delete_misses,
    /// Deletes that removed an item.
    delete_hits,
    /// `incr` requests that found no item.
    incr_misses,
    /// `incr` requests that found an item.
    incr_hits,
    /// `decr` requests that found no item.
    decr_misses,
    /// `decr` requests that found an item.
    decr_hits,
    /// `cas` requests that found no item.
    cas_misses,
    /// `cas` requests whose token matched.
    cas_hits,
    /// `cas` requests whose token did not match.
    cas_badval,
    /// Touches that found an item.
    touch_hits,
    /// Touches that found no item.
    touch_misses,
    /// Values refused as too large.
    store_too_large,
    /// Values refused because there was no memory.
    store_no_memory,
    /// Datagrams received.
    udp_datagrams,
    /// Datagrams that are no request, or came from an address that is never answered.
    udp_ignored,
    /// Datagrams of senders that have used up the budget of a second.
    udp_over_budget,
    /// Requests that were longer than their datagrams.
    udp_incomplete,
    /// Replies that were too long for their datagrams.
    udp_too_long,
    /// Requests for which no exchange was free, and datagrams that the kernel did not send.
    udp_lost,
    /// Bytes received.
    bytes_read,
    /// Bytes sent.
    bytes_written,
    /// Times that a connection had to wait with requests that were received: for its turn (`-R`),
    /// for its client to read, or for a record.
    conn_yields,
    /// Listings ever begun.
    listings_begun,
    /// Items examined for listings, or by the crawler.
    listed_items,
    /// Items counted by prefix.
    prefix_walked_items,
    /// Times that a resumable connection was checked, and resumed if it still might be.
    resumptions,
    /// Lines of more than 2 KiB, which are retrievals of many keys.
    long_lines,
    /// Requests that were parked.
    parked,
    /// Reads that this core executed beside the owner of the item.
    reads_beside,
    /// Requests that this core executed with an engine that has another home core.
    writes_beside,
    /// Times that this core found an engine held by another core.
    engines_held,
    /// Connections that this core has handed over to another one, new ones apart.
    connections_moved,
    /// Ticks.
    ticks,
    /// Ticks in which clients or other shards had sent something.
    busy_ticks,
    /// Requests executed by this core, for other cores too. Each key of a retrieval counts.
    requests,
    /// Items whose space the crawler has reclaimed.
    crawler_reclaimed,
    /// Requests that observers have noted.
    observed,
    /// Requests that observers have not noted, because their numbers were being read.
    observed_lost,
    /// Lines written to the log.
    log_worker_written,
    /// Lines dropped because there was no room in the log of this core.
    log_worker_dropped,
    /// Lines passed on to a client that watches.
    log_watcher_sent,
    /// Lines that a client which watches has missed, because it was too slow.
    log_watcher_skipped,
    }
}

impl Counters {
    /// Counts lookups that found a dead item.
    #[inline]
    pub fn note_dead(&self, found: DeadFound) {
        if found != DeadFound::default() {
            self.get_expired.add(found.expired);
            self.get_flushed.add(found.flushed);
        }
    }

    /// Counts an operation by its verdict. `is_meta` says that a meta command has asked for it.
    #[inline]
    pub fn note(&self, verb: &Verb, verdict: &Verdict, is_meta: bool) {
        match verb {
            // As in memcached, an `mg` with `T` that finds nothing is a miss of a read. A `gat` is
            // one of a touch.
            Verb::Get(_) if is_meta && matches!(verdict, Verdict::Miss) => {
                self.note_get(false, verdict);
            }
            Verb::Get(terms) => self.note_get(terms.life.touches(), verdict),
            Verb::Store(terms) => self.note_store(terms, verdict),
            Verb::Delete(terms) => match verdict {
                Verdict::Deleted => self.delete_hits.add(1),
                Verdict::Invalidated if terms.empties && !terms.marks_stale => {
                    self.delete_hits.add(1);
                }
                Verdict::Miss | Verdict::Exists => self.delete_misses.add(1),
                _ => {}
            },
            Verb::Arithmetic(terms) => self.note_arithmetic(terms.direction, verdict),
            Verb::Touch(_) => self.note_get(true, verdict),
            Verb::Inspect => self.cmd_meta.add(1),
        }
    }

    /// Counts a read, or a read that touched the item.
    #[inline]
    pub fn note_get(&self, touches: bool, verdict: &Verdict) {
        debug_assert!(
            !matches!(verdict, Verdict::Stored { .. } | Verdict::Deleted),
            "a read neither stores nor deletes"
        );
        let counter = match (verdict, touches) {
            (Verdict::Hit(_) | Verdict::Touched, false) => &self.get_hits,
            (Verdict::Hit(_) | Verdict::Touched, true) => &self.touch_hits,
            (Verdict::Miss | Verdict::Leased { .. }, false) => &self.get_misses,
            (Verdict::Miss | Verdict::Leased { .. }, true) => &self.touch_misses,
            _ => return,
        };
        counter.add(1);
        if let Verdict::Hit(facts) = verdict
            && facts.created
        {
            self.total_items.add(1);
        }
    }

    #[inline]
    fn note_store(&self, terms: &StoreTerms, verdict: &Verdict) {
        if let Verdict::NoMemory { .. } = verdict {
            return self.store_no_memory.add(1);
        }
        if matches!(verdict, Verdict::DiskFailed) {
            return; // `sets` has only what the engine has judged.
        }
        debug_assert!(
            !matches!(verdict, Verdict::Hit(_) | Verdict::Deleted | Verdict::Touched),
            "a store neither reads nor deletes"
        );
        let compared = match verdict {
            Verdict::Stored { .. } => {
                self.total_items.add(1);
                &self.cas_hits
            }
            Verdict::Exists => &self.cas_badval,
            Verdict::Miss => &self.cas_misses,
            _ => &self.sets,
        };
        let counter = if terms.needs_match() { compared } else { &self.sets };
        counter.add(1);
    }

    fn note_arithmetic(&self, direction: Direction, verdict: &Verdict) {
        debug_assert!(!matches!(verdict, Verdict::Stored { .. }), "a number is told as one");
        let (hits, misses) = match direction {
            Direction::Up => (&self.incr_hits, &self.incr_misses),
            Direction::Down => (&self.decr_hits, &self.decr_misses),
        };
        match verdict {
            Verdict::Number { facts, .. } if facts.created => self.total_items.add(1),
            Verdict::Number { .. } | Verdict::NoMemory { found: true } => hits.add(1),
            Verdict::Miss => misses.add(1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use kachel_engine::{StoreMode, Ttl};

    use super::*;

    fn terms(compare_cas: Option<u64>) -> StoreTerms {
        StoreTerms {
            mode: StoreMode::Set,
            value_bytes: 1,
            client_flags: 0,
            ttl: Ttl(0),
            compare_cas,
            new_cas: None,
            stores_stale: false,
            protocol_mark: false,
            vivify: None,
        }
    }

    /// Regression: `cmd_set` included compare-and-swap requests. The metric of sets was the
    /// difference of two counters, and fell when a request was counted between their readings.
    #[test]
    fn a_storage_request_is_counted_once_by_whether_it_compares() {
        let stored = Verdict::Stored { cas: 1, value_bytes: 1 };
        let verdicts = [stored, Verdict::Exists, Verdict::Miss, Verdict::NotStored];
        for (place, verdict) in verdicts.iter().enumerate() {
            for (compare_cas, counted) in [(None, 3), (Some(1), place)] {
                let counters = Counters::default();
                counters.note(&Verb::Store(terms(compare_cas)), verdict, false);
                let Counters { cas_hits, cas_badval, cas_misses, sets, .. } = &counters;
                let all = [cas_hits, cas_badval, cas_misses, sets].map(Counter::value);
                let one = std::array::from_fn(|counter| u64::from(counter == counted));
                assert_eq!(all, one, "{verdict:?} {compare_cas:?}");
            }
        }
    }
}
