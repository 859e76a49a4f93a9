//! What a run covered: how often each rare event happened in it.
//!
//! Upstream:   `run`, which passes the server with its counters.
//! Downstream: `main`, which adds up all runs and names each run that covered too little.

use crate::client::Tally;
use crate::options::{Fault, Options};
use crate::record::Judged;
use crate::server::Server;
use crate::subject::Subject;

/// How often each rare event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Buckets that indexes added.
    pub index_grown: u64,
    /// Buckets that indexes gave back.
    pub index_shrunk: u64,
    /// Items evicted.
    pub evicted: u64,
    /// Items for which no memory was found.
    pub refused: u64,
    /// Items copied to make room.
    pub compacted: u64,
    /// Items found expired.
    pub expired: u64,
    /// Ticks in which a shard that accepts no connections had one.
    pub handed_over: u64,
    /// Times that a connection was paused, because its client did not read or for another reason.
    pub stalled: u64,
    /// Requests that were parked.
    pub parked: u64,
    /// Values that were refused as too large.
    pub too_large: u64,
    /// Sleeps of shards.
    pub sleeps: u64,
    /// Times that a client read all hot keys right after a flush or when a delayed one fell due.
    pub flush_reads: u64,
    /// Tokens of leases that clients got.
    pub leases: u64,
    /// Values that were stored with the token of a lease.
    pub lease_fills: u64,
    /// Values that were stored for leases only, because their token was invalid.
    pub stale_stores: u64,
    /// Connections closed because of the memory that they pinned.
    pub pinned_closes: u64,
    /// Operations executed by engines that delayed at least one.
    pub delayable: u64,
    /// Operations delayed before they were executed.
    pub delayed_before: u64,
    /// Operations whose reply was delayed after they were executed.
    pub delayed_after: u64,
    /// Reads that a shard executed beside the shard that owns the item.
    pub reads_beside: u64,
    /// Times that an operation waited until readers had left what was evicted for it.
    pub waits_for_room: u64,
    /// Requests executed with the engine of another shard.
    pub writes_beside: u64,
    /// Connections that moved from one shard to another.
    pub connections_moved: u64,
    /// Times that a shard found an engine held by another core.
    pub engines_held: u64,
    /// Times that the time of day was set back by an hour.
    pub clock_steps: u64,
    /// Listings of all items during the stormy phase.
    pub dumps: u64,
    /// Items that were listed.
    pub listed: u64,
    /// Listings that were compared with the items that are read.
    pub exact_listings: u64,
    /// Connections rejected because of their number.
    pub rejected: u64,
    /// Values of more than half a MiB that were stored.
    pub large_stores: u64,
    /// Items that were shown without a token.
    pub without_cas: u64,
    /// Times that the server was ended while clients worked.
    pub ends: u64,
    /// Operations on files.
    pub file_operations: u64,
    /// Operations on files that were done in part.
    pub files_short: u64,
    /// Operations on files that took longer than others.
    pub files_slow: u64,
    /// Reads of files that failed.
    pub reads_failed: u64,
    /// Writes of files, and syncs of their folder, that failed.
    pub writes_failed: u64,
    /// Calls of the library that failed.
    pub calls_failed: u64,
    /// Operations on files that found no space.
    pub files_full: u64,
    /// Items on the disk that were not read, because there was no memory for them.
    pub unread: u64,
    /// Records of logs that were read because an item was not in memory.
    pub cold_reads: u64,
    /// Segments of logs whose garbage was collected.
    pub collected: u64,
    /// Connections closed because a failed disk has lost a reply.
    pub lost_closes: u64,
    /// Requests that were answered with an error, because the disk has failed.
    pub disk_errors: u64,
    /// Values that were acknowledged, and found on the disk after a power cut.
    pub after_power_cut: u64,
    /// Starts after a power cut.
    pub restarts: u64,
}

impl Coverage {
    /// The number of counts.
    pub const COUNT: usize = 46;

    pub(crate) fn of<E: Subject>(server: &Server<E>) -> Self {
        let disk = server.disk_counts();
        let mut seen = Self {
            handed_over: server.handed_over,
            sleeps: server.sleeps,
            file_operations: disk.operations,
            files_short: disk.short,
            files_slow: disk.slow,
            reads_failed: disk.failed_reads,
            writes_failed: disk.failed_syncs,
            calls_failed: disk.failed_calls,
            files_full: disk.full,
            ..Self::default()
        };
        let shards = server.world.shards.iter().zip(&server.world.shared.totals.cores);
        for (shard, counters) in shards {
            let holdings = shard.holdings();
            seen.index_grown += holdings.index_splits;
            seen.index_shrunk += holdings.index_merges;
            seen.evicted += holdings.evictions;
            seen.refused += holdings.refused;
            seen.compacted += holdings.compacted;
            seen.expired += holdings.reclaimed;
            seen.pinned_closes += shard.pinned_closes();
            seen.stalled += counters.conn_yields.value();
            seen.parked += counters.parked.value();
            seen.too_large += counters.store_too_large.value();
            seen.reads_beside += counters.reads_beside.value();
            seen.writes_beside += counters.writes_beside.value();
            seen.connections_moved += counters.connections_moved.value();
            seen.engines_held += counters.engines_held.value();
        }
        for index in server.world.shared.homes.all() {
            let log = server.world.engines.inspect(index, E::log_counts);
            seen.cold_reads += log.records_read;
            seen.collected += log.segments_freed;
            seen.expired += server.world.engines.inspect(index, E::found_expired);
            let delays = server.world.engines.inspect(index, E::delays);
            seen.delayed_before += delays.before;
            seen.delayed_after += delays.after;
            seen.waits_for_room += delays.for_room;
            if delays.before + delays.after > 0 {
                seen.delayable += delays.executed;
            }
        }
        seen
    }

    /// The same without the operations on files.
    pub(crate) fn without_files(self) -> Self {
        Self {
            file_operations: 0,
            files_short: 0,
            files_slow: 0,
            reads_failed: 0,
            writes_failed: 0,
            calls_failed: 0,
            files_full: 0,
            ..self
        }
    }

    /// Adds what only the clients know.
    pub(crate) fn with(self, tally: &Tally) -> Self {
        Self {
            refused: self.refused.max(tally.refused),
            flush_reads: tally.flush_reads,
            leases: tally.leases,
            lease_fills: tally.lease_fills,
            stale_stores: tally.stale_stores,
            clock_steps: tally.clock_steps,
            dumps: tally.dumps,
            listed: tally.listed,
            exact_listings: tally.exact_listings,
            rejected: tally.rejected,
            large_stores: tally.large_stores,
            without_cas: tally.without_cas,
            ends: tally.ends,
            lost_closes: tally.lost_closes,
            unread: tally.unread,
            disk_errors: tally.disk_errors,
            after_power_cut: tally.after_power_cut,
            restarts: tally.restarts,
            ..self
        }
    }

    /// Whether memory was used and given back in every way that requests cause at once. Expiry is
    /// not among them: it takes seconds, which pass later.
    pub(crate) fn has_spent_memory(&self, options: &Options) -> bool {
        let mut ways = self.by_requests().into_iter();
        ways.all(|(way, count)| count > 0 || !options.engine.may_show(way))
    }

    /// What requests cause at once. A store refuses where a cache evicts, and its index need not
    /// shrink then.
    fn by_requests(&self) -> [(&'static str, u64); 4] {
        [
            ("growth", self.index_grown),
            ("shrinking", self.index_shrunk.max(self.refused)),
            ("eviction or refusal", self.evicted.max(self.refused)),
            ("compaction", self.compacted),
        ]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for ((_, sum), (_, count)) in self.fields_mut().into_iter().zip(other.fields()) {
            *sum += count;
        }
    }

    /// Each count with its name.
    pub fn fields(&self) -> [(&'static str, u64); Self::COUNT] {
        let mut copy = *self;
        copy.fields_mut().map(|(name, count)| (name, *count))
    }

    fn fields_mut(&mut self) -> [(&'static str, &mut u64); Self::COUNT] {
        [
            ("index grown", &mut self.index_grown),
            ("index shrunk", &mut self.index_shrunk),
            ("evicted", &mut self.evicted),
            ("refused", &mut self.refused),
            ("compacted", &mut self.compacted),
            ("expired", &mut self.expired),
            ("handed over", &mut self.handed_over),
            ("stalled", &mut self.stalled),
            ("parked", &mut self.parked),
            ("too large", &mut self.too_large),
            ("sleeps", &mut self.sleeps),
            ("reads after a flush", &mut self.flush_reads),
            ("leases", &mut self.leases),
            ("stored with a lease", &mut self.lease_fills),
            ("stored as stale", &mut self.stale_stores),
            ("pinned closes", &mut self.pinned_closes),
            ("operations of engines that delay", &mut self.delayable),
            ("delayed before", &mut self.delayed_before),
            ("delayed after", &mut self.delayed_after),
            ("reads beside the owner", &mut self.reads_beside),
            ("waits for room", &mut self.waits_for_room),
            ("writes beside", &mut self.writes_beside),
            ("connections moved", &mut self.connections_moved),
            ("engines held", &mut self.engines_held),
            ("time of day set back", &mut self.clock_steps),
            ("listings", &mut self.dumps),
            ("items listed", &mut self.listed),
            ("listings compared with reads", &mut self.exact_listings),
            ("rejected connections", &mut self.rejected),
            ("values above 512 KiB", &mut self.large_stores),
            ("items without a token", &mut self.without_cas),
            ("ends while clients work", &mut self.ends),
            ("operations on files", &mut self.file_operations),
            ("files: done in part", &mut self.files_short),
            ("files: slow", &mut self.files_slow),
            ("files: reads that failed", &mut self.reads_failed),
            ("files: writes and syncs that failed", &mut self.writes_failed),
            ("files: calls that failed", &mut self.calls_failed),
            ("files: no space", &mut self.files_full),
            ("no memory for cold reads", &mut self.unread),
            ("cold reads", &mut self.cold_reads),
            ("segments collected", &mut self.collected),
            ("closed by a failed disk", &mut self.lost_closes),
            ("refused by a failed disk", &mut self.disk_errors),
            ("values found after a power cut", &mut self.after_power_cut),
            ("restarts after a power cut", &mut self.restarts),
        ]
    }
}

/// The result of a run that found nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// A digest of all that happened.
    pub digest: u64,
    /// What the clients did.
    pub tally: Tally,
    /// What happened in the server.
    pub coverage: Coverage,
    /// How much was judged.
    pub judged: Judged,
}

impl Report {
    /// What a run with these options should have covered and did not; empty if it covered
    /// everything. A run that ends the server, or whose engines fail, has no time for the rest.
    pub fn lacks(&self, options: &Options) -> Vec<&'static str> {
        let tally = &self.tally;
        let drawn = |is_drawn, count| if is_drawn { count } else { 1 };
        let failed = self.coverage.writes_failed + self.coverage.calls_failed;
        let has_failed = options.has_cold_values() && failed > 0;
        let ends = options.faults.has(Fault::End);
        let is_whole = !ends && !has_failed;
        // The last clients of a run store such values, unless a store is full.
        let has_large = is_whole && options.evict && options.has_large();
        let faults = tally.cuts + tally.resets + tally.stops + tally.slow + tally.leaves;
        let others = [
            ("a fault", faults),
            ("expiry", drawn(is_whole, self.coverage.expired)),
            ("a listing", drawn(is_whole && options.faults.has(Fault::Dump), tally.listed)),
            ("a rejection", drawn(options.faults.has(Fault::Limit), tally.rejected)),
            ("an end", drawn(ends, tally.ends)),
            ("an item without a token", drawn(!options.cas && !has_failed, tally.without_cas)),
            ("a large value", drawn(has_large, tally.large_stores)),
        ];
        // Large values may fill the memory before an index has enough items to grow.
        let grows = is_whole && !options.has_large();
        let [growth, shrinking, rest @ ..] = self.coverage.by_requests();
        let index = [growth, shrinking].map(|(name, count)| (name, drawn(grows, count)));
        let memory = rest.map(|(name, count)| (name, drawn(is_whole, count)));
        let needed = index.into_iter().chain(memory).chain(others);
        let lacking = needed.filter(|(_, count)| *count == 0).map(|(name, _)| name);
        lacking.filter(|name| options.engine.may_show(name)).collect()
    }
}
