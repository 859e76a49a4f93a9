//! What a run has seen: whether the rare things happened in it.
//!
//! Upstream:   `run`, from the server's own books.
//! Downstream: `main` sums over all runs; a run that saw too little is named.

use crate::client::Tally;
use crate::record::Judged;
use crate::server::Server;

/// How often what is rare has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Buckets that indexes added.
    pub index_grown: u64,
    /// Buckets that indexes gave back.
    pub index_shrunk: u64,
    /// Items evicted.
    pub evicted: u64,
    /// Items for which no room was found.
    pub refused: u64,
    /// Items copied to make room.
    pub compacted: u64,
    /// Items found expired.
    pub expired: u64,
    /// Connections seen at shards that accept none.
    pub handed_over: u64,
    /// Sleeps because a mailbox was full.
    pub full_mailboxes: u64,
    /// Connections that had to wait: for their client's reading, or for room.
    pub stalled: u64,
    /// Requests that went to another shard.
    pub hops: u64,
    /// Values that were refused as too large.
    pub too_large: u64,
    /// Sleeps of shards.
    pub sleeps: u64,
    /// Clients that read all hot keys once a flush was answered, or fell due.
    pub flush_looks: u64,
    /// Connections closed for the memory that they held pinned.
    pub pinned_closes: u64,
    /// Operations that the engine executed, in runs in which it delays some.
    pub delayable: u64,
    /// Operations delayed before they were executed.
    pub delayed_before: u64,
    /// Operations whose reply was delayed after they were executed.
    pub delayed_after: u64,
}

impl Coverage {
    /// How many counts there are.
    pub const COUNT: usize = 17;

    pub(crate) fn of(server: &Server) -> Self {
        let mut seen = Self {
            handed_over: server.handed_over,
            full_mailboxes: server.full_mailboxes,
            sleeps: server.sleeps,
            ..Self::default()
        };
        for (shard, counters) in server.world.shards.iter().zip(&server.world.shared.counters) {
            let holdings = shard.holdings();
            seen.index_grown += holdings.index_splits;
            seen.index_shrunk += holdings.index_merges;
            seen.evicted += holdings.evictions;
            seen.refused += holdings.refused;
            seen.compacted += holdings.compacted;
            seen.expired += holdings.reclaimed;
            seen.pinned_closes += shard.pinned_closes();
            seen.stalled += counters.conn_yields.value();
            seen.hops += counters.hops.value();
            seen.too_large += counters.store_too_large.value();
            let delays = shard.engine().delays();
            seen.delayed_before += delays.before;
            seen.delayed_after += delays.after;
            if delays.before + delays.after > 0 {
                seen.delayable += delays.executed;
            }
        }
        seen
    }

    /// Whether memory was spent and came back in every way that requests bring about. Expiry takes
    /// seconds, which pass later.
    pub(crate) fn has_spent_memory(&self) -> bool {
        self.by_requests().iter().all(|(_, count)| *count > 0)
    }

    /// A store refuses where a cache evicts, and then its index need not shrink.
    fn by_requests(&self) -> [(&'static str, u64); 4] {
        [
            ("growth", self.index_grown),
            ("shrinking", self.index_shrunk.max(self.refused)),
            ("eviction or refusal", self.evicted.max(self.refused)),
            ("compaction", self.compacted),
        ]
    }

    /// Adds what another run has seen.
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
            ("full mailboxes", &mut self.full_mailboxes),
            ("stalled", &mut self.stalled),
            ("hops", &mut self.hops),
            ("too large", &mut self.too_large),
            ("sleeps", &mut self.sleeps),
            ("looks after a flush", &mut self.flush_looks),
            ("pinned closes", &mut self.pinned_closes),
            ("operations of engines that delay", &mut self.delayable),
            ("delayed before", &mut self.delayed_before),
            ("delayed after", &mut self.delayed_after),
        ]
    }
}

/// What a run that found nothing wrong has to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// All that happened, as a number.
    pub digest: u64,
    /// What clients have done.
    pub tally: Tally,
    /// What has happened in the server.
    pub coverage: Coverage,
    /// What was judged.
    pub judged: Judged,
}

impl Report {
    /// Why this run says less than it should; empty: it does not.
    pub fn lacks(&self) -> Vec<&'static str> {
        let tally = &self.tally;
        let faults = tally.cuts + tally.resets + tally.stops + tally.slow + tally.leaves;
        let others = [("expiry", self.coverage.expired), ("a fault", faults)];
        let needed = self.coverage.by_requests().into_iter().chain(others);
        needed.filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }
}
