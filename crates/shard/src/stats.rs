//! `stats` and its topics.
//!
//! Upstream:   `admin`.
//! Downstream: the sums of the counters of all shards; the options of the process.
//!
//! The keys are those of memcached that apply to Kachel, in its order. Keys that only Kachel has
//! begin with `kachel_`.

use kachel_engine::{Common as _, Engine};
use kachel_net::ConnectionIndex;
use kachel_wire::request::BinaryHead;
use kachel_wire::{DetailTopic, Reply, StatsTopic, format};

use crate::clients::Clients;
use crate::context::Context;
use crate::counters::{Counter, Counters};
use crate::engines::Engines;

/// Selects one counter of a shard.
type Pick = fn(&Counters) -> &Counter;

/// Answers `stats` to one client.
pub(crate) struct Answering<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) connection: ConnectionIndex,
    /// The head that replies of the binary protocol repeat. `None` in other protocols.
    pub(crate) head: Option<BinaryHead>,
}

impl<E: Engine> Answering<'_, E> {
    /// Answers `stats` with this topic.
    pub(crate) fn stats(&mut self, topic: StatsTopic, io_kind: &str) {
        let dumps_allowed = self.context.shared.options.dumps_allowed;
        match topic {
            StatsTopic::General => self.general(io_kind),
            StatsTopic::Reset => unreachable!("`admin` resets the counters"),
            StatsTopic::Settings => {
                let context = self.context;
                for (name, value) in &context.shared.options.settings {
                    self.stat(name, value.as_bytes());
                }
                self.reply(Reply::End);
            }
            StatsTopic::Detail(_) if !dumps_allowed => self.reply(Reply::StatsDetailNotAllowed),
            StatsTopic::Cachedump(_) if !dumps_allowed => self.reply(Reply::CachedumpNotAllowed),
            StatsTopic::Detail(DetailTopic::On | DetailTopic::Off) => self.reply(Reply::Ok),
            StatsTopic::Detail(DetailTopic::Usage) => self.reply(Reply::StatsDetailUsage),
            StatsTopic::Cachedump(Err(reply)) => self.reply(reply),
            StatsTopic::Unknown => self.reply(Reply::Error),
            StatsTopic::Sizes => {
                self.stat("sizes_status", b"disabled");
                self.reply(Reply::End);
            }
            StatsTopic::Detail(DetailTopic::Dump) if self.head.is_some() => {
                // As in 1.6.45: one statistic, whose value is the text protocol's reply.
                self.stat("detailed", Reply::End.bytes());
                self.reply(Reply::End);
            }
            // These topics have nothing to show yet: Kachel has neither the slabs nor the tiers of
            // memcached.
            StatsTopic::Detail(DetailTopic::Dump)
            | StatsTopic::Cachedump(Ok(_))
            | StatsTopic::Conns
            | StatsTopic::Extstore
            | StatsTopic::Items
            | StatsTopic::Slabs => self.reply(Reply::End),
        }
    }

    fn reply(&mut self, reply: Reply) {
        self.clients.reply(self.connection, self.head, reply);
    }

    fn stat(&mut self, name: &str, value: &[u8]) {
        if let Some(mut sink) = self.clients.answering(self.connection) {
            match self.head {
                Some(head) => head.put_stat(&mut sink, name.as_bytes(), value),
                None => format::stat(&mut sink, name.as_bytes(), value),
            }
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        self.stat(name, value.to_string().as_bytes());
    }

    fn seconds(&mut self, name: &str, us: u64) {
        let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        self.stat(name, text.as_bytes());
    }

    fn sums(&mut self, rows: &[(&str, Pick)]) {
        let context = self.context;
        for (name, counter) in rows {
            self.number(name, context.shared.sum(*counter));
        }
    }

    /// Sends facts about the process, and the sums of the counters of all shards.
    fn general(&mut self, io_kind: &str) {
        let context = self.context;
        let (shared, options) = (&context.shared, &context.shared.options);
        let now = context.now();
        self.number("pid", u64::from(options.pid));
        self.number("uptime", u64::from(now.second));
        self.number("time", u64::try_from(now.unix(now.second)).unwrap_or(0));
        self.stat("version", options.version.as_bytes());
        self.stat("kachel_version", options.own_version.as_bytes());
        self.stat("kachel_io", io_kind.as_bytes());
        self.number("pointer_size", 64);
        let usage = (options.usage)();
        self.seconds("rusage_user", usage.user_us);
        self.seconds("rusage_system", usage.system_us);
        self.number("max_connections", u64::from(options.connections_max));
        self.number("curr_connections", u64::from(shared.open_connections()));
        self.sums(BEFORE_IDLE);
        self.sums(BEFORE_LIMITS);
        self.number("limit_maxbytes", shared.budget.limit_bytes());
        self.number("threads", u64::from(options.shards));
        self.number("kachel_awake_cores", u64::from(shared.awake_cores()));
        self.number("kachel_spreads", shared.cores.spreads.value());
        self.number("kachel_gathers", shared.cores.gathers.value());
        self.number("kachel_core_trials", shared.cores.trials.value());
        self.sums(BEHIND_LIMITS);
        self.number("kachel_memory_spent", shared.budget.spent_bytes());
        self.number("kachel_pinned_bytes", self.engines.common().pinned_bytes());
        self.reply(Reply::End);
    }
}

/// memcached's keys from `total_connections` to `auth_errors`.
const BEFORE_IDLE: &[(&str, Pick)] = &[
    ("total_connections", |c| &c.connections_opened),
    ("rejected_connections", |c| &c.connections_rejected),
    ("cmd_get", |c| &c.cmd_get),
    ("cmd_set", |c| &c.cmd_set),
    ("cmd_flush", |c| &c.cmd_flush),
    ("cmd_touch", |c| &c.cmd_touch),
    ("cmd_meta", |c| &c.cmd_meta),
    ("get_hits", |c| &c.get_hits),
    ("get_misses", |c| &c.get_misses),
    ("get_expired", |c| &c.get_expired),
    ("get_flushed", |c| &c.get_flushed),
    ("delete_misses", |c| &c.delete_misses),
    ("delete_hits", |c| &c.delete_hits),
    ("incr_misses", |c| &c.incr_misses),
    ("incr_hits", |c| &c.incr_hits),
    ("decr_misses", |c| &c.decr_misses),
    ("decr_hits", |c| &c.decr_hits),
    ("cas_misses", |c| &c.cas_misses),
    ("cas_hits", |c| &c.cas_hits),
    ("cas_badval", |c| &c.cas_badval),
    ("touch_hits", |c| &c.touch_hits),
    ("touch_misses", |c| &c.touch_misses),
    ("store_too_large", |c| &c.store_too_large),
    ("store_no_memory", |c| &c.store_no_memory),
    ("auth_cmds", |c| &c.auth_cmds),
    ("auth_errors", |c| &c.auth_errors),
];

/// memcached's keys from `idle_kicks` to `bytes_written`.
const BEFORE_LIMITS: &[(&str, Pick)] = &[
    ("idle_kicks", |c| &c.idle_kicks),
    ("bytes_read", |c| &c.bytes_read),
    ("bytes_written", |c| &c.bytes_written),
];

/// memcached's keys from `conn_yields` to the end, then the keys of Kachel.
const BEHIND_LIMITS: &[(&str, Pick)] = &[
    ("conn_yields", |c| &c.conn_yields),
    ("hash_bytes", |c| &c.index_bytes),
    ("bytes", |c| &c.bytes),
    ("curr_items", |c| &c.items),
    ("total_items", |c| &c.total_items),
    ("expired_unfetched", |c| &c.expired_unfetched),
    ("evicted_unfetched", |c| &c.evicted_unfetched),
    ("evicted_active", |c| &c.evicted_active),
    ("evictions", |c| &c.evictions),
    ("reclaimed", |c| &c.reclaimed),
    ("kachel_index_slots", |c| &c.index_slots),
    ("kachel_owed_bytes", |c| &c.owed_bytes),
    ("kachel_pinned_closes", |c| &c.pinned_closes),
    ("kachel_line_closes", |c| &c.line_closes),
    ("kachel_block_closes", |c| &c.block_closes),
    ("kachel_login_closes", |c| &c.login_closes),
    ("kachel_reader_closes", |c| &c.reader_closes),
    ("kachel_resumptions", |c| &c.resumptions),
    ("kachel_long_lines", |c| &c.long_lines),
    ("kachel_listed_items", |c| &c.listed_items),
    ("kachel_parked", |c| &c.parked),
    ("kachel_reads_beside", |c| &c.reads_beside),
    ("kachel_writes_beside", |c| &c.writes_beside),
    ("kachel_engines_held", |c| &c.engines_held),
    ("kachel_connections_moved", |c| &c.connections_moved),
    ("kachel_requests", |c| &c.requests),
    ("kachel_ticks", |c| &c.ticks),
    ("kachel_busy_ticks", |c| &c.busy_ticks),
];
