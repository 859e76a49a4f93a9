//! `stats` and its topics.
//!
//! Upstream:   `admin`.
//! Downstream: the sums of the counters of all cores and of all engines; the options of the
//!             process.
//!
//! The keys are those of memcached, in its order. Keys that only Kachel has begin with `kachel_`;
//! `stats kachel` tells them. `stats` has only one of them, its last line, because some programs
//! read 4,096 bytes of it. `classes` answers the topics about size classes.

use std::collections::BTreeMap;

use kachel_engine::{Common as _, Engine};
use kachel_io::SEND_BLOCK_BYTES;
use kachel_net::ConnectionIndex;
use kachel_stdx::Counter;
use kachel_wire::format::ShownKey;
use kachel_wire::request::BinaryHead;
use kachel_wire::{DetailTopic, Reply, StatsTopic, format};

use crate::clients::Clients;
use crate::context::Context;
use crate::cores::options::OtherCounts;
use crate::observe::counters::Counters;
use crate::observe::engine_counters::EngineCounters;
use crate::observe::prefixes::{PrefixCounts, WINDOW_BYTES_MAX};
use crate::waiting::engines::Engines;

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
        let dumps_allowed = self.context.shared.options.plain.dumps_allowed;
        match topic {
            StatsTopic::General => self.general(),
            StatsTopic::Kachel => self.own(io_kind),
            StatsTopic::Reset => unreachable!("`admin` resets the counters"),
            StatsTopic::Settings => self.settings(),
            StatsTopic::Detail(_) if !dumps_allowed => self.reply(Reply::StatsDetailNotAllowed),
            StatsTopic::Cachedump(_) if !dumps_allowed => self.reply(Reply::CachedumpNotAllowed),
            StatsTopic::Detail(topic @ (DetailTopic::On | DetailTopic::Off)) => {
                self.context.shared.set_detailed(topic == DetailTopic::On);
                // The requests after this one in the same tick follow it.
                self.context.begin_sample();
                self.reply(Reply::Ok);
            }
            StatsTopic::Detail(DetailTopic::Usage) => self.reply(Reply::StatsDetailUsage),
            StatsTopic::Cachedump(Err(reply)) => self.reply(reply),
            StatsTopic::Unknown => self.reply(Reply::Error),
            StatsTopic::Sizes => {
                // memcached counts sizes only with `-o track_sizes`, and so does this server, so
                // that a client cannot cause a walk that the operator did not allow.
                self.stat("sizes_status", b"disabled");
                self.reply(Reply::End);
            }
            StatsTopic::Items
            | StatsTopic::Slabs
            | StatsTopic::Conns
            | StatsTopic::Detail(DetailTopic::Dump)
            | StatsTopic::Cachedump(Ok(_)) => unreachable!("`admin` begins a listing"),
            // This topic has nothing to show yet.
            StatsTopic::Extstore => self.reply(Reply::End),
            StatsTopic::Pipe => self.pipe(),
        }
    }

    pub(crate) fn reply(&mut self, reply: Reply) {
        self.clients.reply(self.connection, self.head, reply);
    }

    pub(crate) fn stat(&mut self, name: &str, value: &[u8]) {
        if let Some(mut sink) = self.clients.answering(self.connection) {
            match self.head {
                Some(head) => head.put_stat(&mut sink, name.as_bytes(), value),
                None => format::stat(&mut sink, name.as_bytes(), value),
            }
        }
    }

    pub(crate) fn number(&mut self, name: &str, value: u64) {
        self.stat(name, value.to_string().as_bytes());
    }

    /// Sends the next lines of `stats detail dump`, and its end after the last ones.
    ///
    /// In the binary protocol the lines are the value of a statistic. There is one, as in
    /// memcached, unless the lines are more than a window of prefixes.
    pub(crate) fn prefixes(&mut self, prefixes: BTreeMap<Vec<u8>, PrefixCounts>, is_last: bool) {
        let mut text: Vec<u8> = prefixes.into_iter().flat_map(prefix_line).collect();
        debug_assert!(text.len() <= WINDOW_BYTES_MAX, "prefixes, P2");
        if self.head.is_none() {
            self.clients.text(self.connection, &text);
        } else {
            text.extend_from_slice(if is_last { Reply::End.bytes() } else { b"" });
            self.stat("detailed", &text);
        }
        if is_last {
            self.reply(Reply::End);
        }
    }

    fn yes_no(&mut self, name: &str, is_so: bool) {
        self.stat(name, if is_so { b"yes" } else { b"no" });
    }

    fn seconds(&mut self, name: &str, us: u64) {
        let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        self.stat(name, text.as_bytes());
    }

    fn rows(&mut self, rows: &[(&str, Row)]) {
        let shared = &self.context.shared;
        debug_assert!(!rows.is_empty(), "rows of a table");
        for (name, row) in rows {
            match row {
                Row::Sum(counter) => self.number(name, shared.sum(*counter)),
                Row::Engines(counter) => self.number(name, shared.sum_of_engines(*counter)),
                Row::Both(hits, misses) => {
                    self.number(name, shared.sum(*hits) + shared.sum(*misses));
                }
                Row::Max(counter) => {
                    let counters = shared.counters.iter();
                    self.number(name, counters.map(|of| counter(of).value()).max().unwrap_or(0));
                }
                Row::Zero => self.number(name, 0),
            }
        }
    }

    /// Sends the options of the process. Commands have changed some of them since the start.
    fn settings(&mut self) {
        let context = self.context;
        let shared = &context.shared;
        for (name, value) in &shared.options.settings {
            match name.as_str() {
                "maxbytes" => self.number(name, shared.budget.limit_bytes()),
                "detail_enabled" => self.yes_no(name, shared.is_detailed()),
                "lru_crawler" => self.yes_no(name, shared.crawler.is_on()),
                _ => self.stat(name, value.as_bytes()),
            }
        }
        self.reply(Reply::End);
    }

    /// Sends facts about the pipe, if there is one.
    fn pipe(&mut self) {
        let facts = self.context.shared.options.pipe.as_ref().map(|pipe| (pipe.facts)());
        debug_assert!(facts.as_ref().is_none_or(|facts| !facts.is_empty()), "a pipe has a state");
        for (name, value) in facts.into_iter().flatten() {
            self.stat(&name, value.as_bytes());
        }
        self.reply(Reply::End);
    }

    /// Sends facts about the process, and the sums of the counters of all shards, as far as
    /// memcached has their names.
    fn general(&mut self) {
        let context = self.context;
        let (shared, options) = (&context.shared, &context.shared.options);
        let now = context.now();
        self.number("pid", u64::from(options.pid));
        self.number("uptime", u64::from(now.second));
        self.number("time", u64::try_from(now.unix(now.second)).unwrap_or(0));
        self.stat("version", options.version.as_bytes());
        self.stat("libevent", b"none");
        self.number("pointer_size", 64);
        let usage = (options.usage)();
        self.seconds("rusage_user", usage.user_us);
        self.seconds("rusage_system", usage.system_us);
        let connections = u64::from(shared.open_connections());
        self.number("max_connections", u64::from(options.plain.connections_max));
        self.number("curr_connections", connections);
        self.rows(CONNECTIONS);
        self.number("connection_structures", connections);
        let reply_bytes = shared.sum(|c| &c.owed_bytes);
        self.number("response_obj_oom", 0);
        self.number("response_obj_count", reply_bytes / SEND_BLOCK_BYTES as u64);
        self.number("response_obj_bytes", reply_bytes);
        self.rows(REQUESTS);
        self.number("limit_maxbytes", shared.budget.limit_bytes());
        self.number("accepting_conns", u64::from(!shared.is_stopping()));
        // A connection above the limit is rejected, so no listener is ever disabled.
        self.number("listen_disabled_num", 0);
        self.number("time_in_listen_disabled_us", 0);
        self.number("threads", u64::from(options.shards));
        self.rows(&[("conn_yields", Row::Sum(|c| &c.conn_yields))]);
        let slots = shared.sum_of_engines(|c| &c.index_slots);
        self.number("hash_power_level", u64::from(slots.max(1).ilog2()));
        self.rows(SLABS);
        self.stat("slab_reassign_last_busy_status", b"none");
        self.rows(LOGS);
        self.others(false);
        self.rows(ITEMS);
        self.stat("kachel_version", options.own_version.as_bytes());
        self.reply(Reply::End);
    }

    /// Sends what other parts of the process count: Kachel's own names, or those of memcached.
    fn others(&mut self, own: bool) {
        let shared = &self.context.shared;
        for OtherCounts(counts) in &shared.options.other_counts {
            for (name, count) in counts() {
                debug_assert!(!name.is_empty(), "a statistic has a name");
                if name.starts_with("kachel_") == own {
                    self.number(name, count);
                }
            }
        }
    }

    /// Sends the statistics that only Kachel has.
    fn own(&mut self, io_kind: &str) {
        let shared = &self.context.shared;
        self.stat("kachel_version", shared.options.own_version.as_bytes());
        self.stat("kachel_io", io_kind.as_bytes());
        self.number("kachel_awake_cores", u64::from(shared.awake_cores()));
        self.number("kachel_spreads", shared.cores.spreads.value());
        self.number("kachel_gathers", shared.cores.gathers.value());
        self.number("kachel_core_trials", shared.cores.trials.value());
        self.others(true);
        self.rows(OWN);
        self.number("kachel_memory_spent", shared.budget.spent_bytes());
        self.number("kachel_pinned_bytes", self.engines.common().pinned_bytes());
        self.reply(Reply::End);
    }
}

/// A line of `stats detail dump`.
fn prefix_line((prefix, counts): (Vec<u8>, PrefixCounts)) -> Vec<u8> {
    let PrefixCounts { gets, hits, sets, deletes } = counts;
    debug_assert!(hits <= gets, "a hit is a get");
    let mut line = b"PREFIX ".to_vec();
    ShownKey::of(&prefix).put_text(&mut line);
    let counts = format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n");
    line.extend_from_slice(counts.as_bytes());
    line
}

/// The number of a line of `stats`.
enum Row {
    /// The sum of a counter over all cores.
    Sum(fn(&Counters) -> &Counter),
    /// The sum of a counter over all engines.
    Engines(fn(&EngineCounters) -> &Counter),
    /// The sum of two such counters, so that a request is counted once.
    Both(fn(&Counters) -> &Counter, fn(&Counters) -> &Counter),
    /// The greatest of a number over all cores.
    Max(fn(&Counters) -> &Counter),
    /// Always 0, because Kachel has nothing that the name counts.
    Zero,
}

/// memcached's keys between `curr_connections` and `connection_structures`.
const CONNECTIONS: &[(&str, Row)] = &[
    ("total_connections", Row::Sum(|c| &c.connections_opened)),
    ("rejected_connections", Row::Sum(|c| &c.connections_rejected)),
];

/// memcached's keys from `read_buf_count` to `bytes_written`.
const REQUESTS: &[(&str, Row)] = &[
    // A connection has no buffer of its own for requests: received bytes are lent to it.
    ("read_buf_count", Row::Zero),
    ("read_buf_bytes", Row::Zero),
    ("read_buf_bytes_free", Row::Zero),
    ("read_buf_oom", Row::Zero),
    ("reserved_fds", Row::Zero),
    ("cmd_get", Row::Both(|c| &c.get_hits, |c| &c.get_misses)),
    ("cmd_set", Row::Sum(|c| &c.cmd_set)),
    ("cmd_flush", Row::Sum(|c| &c.cmd_flush)),
    ("cmd_touch", Row::Both(|c| &c.touch_hits, |c| &c.touch_misses)),
    ("cmd_meta", Row::Sum(|c| &c.cmd_meta)),
    ("get_hits", Row::Sum(|c| &c.get_hits)),
    ("get_misses", Row::Sum(|c| &c.get_misses)),
    ("get_expired", Row::Sum(|c| &c.get_expired)),
    ("get_flushed", Row::Sum(|c| &c.get_flushed)),
    ("delete_misses", Row::Sum(|c| &c.delete_misses)),
    ("delete_hits", Row::Sum(|c| &c.delete_hits)),
    ("incr_misses", Row::Sum(|c| &c.incr_misses)),
    ("incr_hits", Row::Sum(|c| &c.incr_hits)),
    ("decr_misses", Row::Sum(|c| &c.decr_misses)),
    ("decr_hits", Row::Sum(|c| &c.decr_hits)),
    ("cas_misses", Row::Sum(|c| &c.cas_misses)),
    ("cas_hits", Row::Sum(|c| &c.cas_hits)),
    ("cas_badval", Row::Sum(|c| &c.cas_badval)),
    ("touch_hits", Row::Sum(|c| &c.touch_hits)),
    ("touch_misses", Row::Sum(|c| &c.touch_misses)),
    ("store_too_large", Row::Sum(|c| &c.store_too_large)),
    ("store_no_memory", Row::Sum(|c| &c.store_no_memory)),
    ("auth_cmds", Row::Sum(|c| &c.auth_cmds)),
    ("auth_errors", Row::Sum(|c| &c.auth_errors)),
    ("idle_kicks", Row::Sum(|c| &c.idle_kicks)),
    ("bytes_read", Row::Sum(|c| &c.bytes_read)),
    ("bytes_written", Row::Sum(|c| &c.bytes_written)),
];

/// memcached's keys from `hash_bytes` to `slab_reassign_busy_nomem`. The index grows one bucket at
/// a time, and no page moves between size classes.
const SLABS: &[(&str, Row)] = &[
    ("hash_bytes", Row::Engines(|c| &c.index_bytes)),
    ("hash_is_expanding", Row::Zero),
    ("slab_reassign_rescues", Row::Zero),
    ("slab_reassign_chunk_rescues", Row::Zero),
    ("slab_reassign_inline_reclaim", Row::Zero),
    ("slab_reassign_busy_items", Row::Zero),
    ("slab_reassign_busy_deletes", Row::Zero),
    ("slab_reassign_busy_nomem", Row::Zero),
];

/// memcached's keys from `slab_reassign_running` to `log_watchers`. The crawler is the walk of a
/// listing. The keys of TLS come next.
const LOGS: &[(&str, Row)] = &[
    ("slab_reassign_running", Row::Zero),
    ("slabs_moved", Row::Zero),
    ("lru_crawler_running", Row::Sum(|c| &c.listings)),
    ("lru_crawler_starts", Row::Sum(|c| &c.listings_begun)),
    ("lru_maintainer_juggles", Row::Zero),
    ("malloc_fails", Row::Zero),
    ("log_worker_dropped", Row::Sum(|c| &c.log_worker_dropped)),
    ("log_worker_written", Row::Sum(|c| &c.log_worker_written)),
    ("log_watcher_skipped", Row::Sum(|c| &c.log_watcher_skipped)),
    ("log_watcher_sent", Row::Sum(|c| &c.log_watcher_sent)),
    ("log_watchers", Row::Sum(|c| &c.watchers)),
];

/// memcached's keys from `unexpected_napi_ids` to the end. There are no LRU lists.
const ITEMS: &[(&str, Row)] = &[
    ("unexpected_napi_ids", Row::Zero),
    ("round_robin_fallback", Row::Zero),
    ("bytes", Row::Engines(|c| &c.bytes)),
    ("curr_items", Row::Engines(|c| &c.items)),
    ("total_items", Row::Sum(|c| &c.total_items)),
    ("slab_global_page_pool", Row::Zero),
    ("expired_unfetched", Row::Engines(|c| &c.expired_unfetched)),
    ("evicted_unfetched", Row::Engines(|c| &c.evicted_unfetched)),
    ("evicted_active", Row::Engines(|c| &c.evicted_active)),
    ("evictions", Row::Engines(|c| &c.evictions)),
    ("reclaimed", Row::Engines(|c| &c.reclaimed)),
    ("crawler_reclaimed", Row::Sum(|c| &c.crawler_reclaimed)),
    ("crawler_items_checked", Row::Sum(|c| &c.listed_items)),
    ("lrutail_reflocked", Row::Zero),
    ("moves_to_cold", Row::Zero),
    ("moves_to_warm", Row::Zero),
    ("moves_within_lru", Row::Zero),
    ("direct_reclaims", Row::Zero),
    ("lru_bumps_dropped", Row::Zero),
];

/// The keys of Kachel, for `stats kachel`.
const OWN: &[(&str, Row)] = &[
    ("kachel_index_slots", Row::Engines(|c| &c.index_slots)),
    ("kachel_owed_bytes", Row::Sum(|c| &c.owed_bytes)),
    ("kachel_pinned_closes", Row::Sum(|c| &c.pinned_closes)),
    ("kachel_line_closes", Row::Sum(|c| &c.line_closes)),
    ("kachel_block_closes", Row::Sum(|c| &c.block_closes)),
    ("kachel_login_closes", Row::Sum(|c| &c.login_closes)),
    ("kachel_reader_closes", Row::Sum(|c| &c.reader_closes)),
    ("kachel_resumptions", Row::Sum(|c| &c.resumptions)),
    ("kachel_long_lines", Row::Sum(|c| &c.long_lines)),
    ("kachel_listed_items", Row::Sum(|c| &c.listed_items)),
    ("kachel_parked", Row::Sum(|c| &c.parked)),
    ("kachel_reads_beside", Row::Sum(|c| &c.reads_beside)),
    ("kachel_writes_beside", Row::Sum(|c| &c.writes_beside)),
    ("kachel_engines_held", Row::Sum(|c| &c.engines_held)),
    ("kachel_connections_moved", Row::Sum(|c| &c.connections_moved)),
    ("kachel_udp_datagrams", Row::Sum(|c| &c.udp_datagrams)),
    ("kachel_udp_ignored", Row::Sum(|c| &c.udp_ignored)),
    ("kachel_udp_over_budget", Row::Sum(|c| &c.udp_over_budget)),
    ("kachel_udp_incomplete", Row::Sum(|c| &c.udp_incomplete)),
    ("kachel_udp_too_long", Row::Sum(|c| &c.udp_too_long)),
    ("kachel_udp_lost", Row::Sum(|c| &c.udp_lost)),
    ("kachel_requests", Row::Sum(|c| &c.requests)),
    ("kachel_ticks", Row::Sum(|c| &c.ticks)),
    ("kachel_busy_ticks", Row::Sum(|c| &c.busy_ticks)),
    ("kachel_longest_hold_bytes", Row::Max(|c| &c.longest_hold_bytes)),
    ("kachel_longest_hold_us", Row::Max(|c| &c.longest_hold_us)),
    ("kachel_longest_tick_bytes", Row::Max(|c| &c.longest_tick_bytes)),
    ("kachel_longest_tick_us", Row::Max(|c| &c.longest_tick_us)),
];
