//! The rows of `stats`: facts about the process and the sums of all counters, as far as memcached
//! has their names.
//!
//! Upstream:   the sinks.
//! Downstream: the counters.
//!
//! The names and their order are those of memcached 1.6.45. The last row is Kachel's own.

use kachel_io::SEND_BLOCK_BYTES;

use crate::rows::Of::{Both, Computed, Engines, Fact, Sum};
use crate::rows::{ProcessFacts, Row, RowValue, Stat, counter, each, gauge, info, zero};
use crate::totals::Totals;

/// Gives the rows of `stats` to `sink`. `others` are rows that other parts of the process count,
/// with memcached's names: those of TLS.
///
/// Cost: a load for each row, and core or engine.
pub fn general(
    totals: &Totals,
    facts: &ProcessFacts<'_>,
    others: &[Row<'_>],
    sink: &mut dyn FnMut(&Row<'_>),
) {
    for table in [PROCESS, REQUESTS, SERVER, LOGS] {
        each(table, totals, facts, sink);
    }
    others.iter().for_each(&mut *sink);
    each(ITEMS, totals, facts, sink);
}

/// The rows of `stats`, without those of others.
pub(crate) fn general_table() -> impl Iterator<Item = &'static Stat> {
    [PROCESS, REQUESTS, SERVER, LOGS, ITEMS].into_iter().flatten()
}

fn connections<'f>(facts: &'f ProcessFacts<'_>) -> RowValue<'f> {
    RowValue::Number(u64::from(facts.connections))
}

/// The blocks that hold replies.
fn reply_blocks(totals: &Totals) -> u64 {
    totals.sum(|c| &c.owed_bytes) / SEND_BLOCK_BYTES as u64
}

/// The slots of the index as a power of 2.
fn index_power(totals: &Totals) -> u64 {
    u64::from(totals.sum_of_engines(|c| &c.index_slots).max(1).ilog2())
}

/// Facts about the process and its connections.
const PROCESS: &[Stat] = &[
    info("pid", Fact(|f| RowValue::Number(u64::from(f.pid))), "The process ID."),
    counter("uptime", Fact(|f| RowValue::Number(u64::from(f.uptime_s))), "Time since the start.")
        .seconds(),
    gauge("time", Fact(|f| RowValue::Number(f.unix_s)), "The Unix time of the server.").seconds(),
    info("version", Fact(|f| RowValue::Text(f.version)), "The memcached version that clients see."),
    info("libevent", Fact(|_| RowValue::Text("none")), "Kachel does not use libevent."),
    info("pointer_size", Fact(|_| RowValue::Number(64)), "Bits of an address."),
    counter("rusage_user", Fact(|f| RowValue::Micros(f.user_us)), "Processor time in user mode.")
        .micros(),
    counter(
        "rusage_system",
        Fact(|f| RowValue::Micros(f.system_us)),
        "Processor time in the kernel.",
    )
    .micros(),
    gauge(
        "max_connections",
        Fact(|f| RowValue::Number(u64::from(f.connections_max))),
        "Connections that may be open at once (-c).",
    ),
    gauge("curr_connections", Fact(connections), "Connections that are open."),
    counter("total_connections", Sum(|c| &c.connections_opened), "Connections ever opened."),
    counter(
        "rejected_connections",
        Sum(|c| &c.connections_rejected),
        "Connections refused because of the limit (-c).",
    ),
    gauge("connection_structures", Fact(connections), "Connections that are open."),
    zero("response_obj_oom"),
    gauge("response_obj_count", Computed(reply_blocks), "Blocks of replies not read yet."),
    gauge("response_obj_bytes", Sum(|c| &c.owed_bytes), "Memory of replies not read yet.").bytes(),
    // A connection has no buffer of its own for requests: received bytes are lent to it.
    zero("read_buf_count"),
    zero("read_buf_bytes"),
    zero("read_buf_bytes_free"),
    zero("read_buf_oom"),
    zero("reserved_fds"),
];

/// Requests by their results.
const REQUESTS: &[Stat] = &[
    counter("cmd_get", Both(|c| &c.get_hits, |c| &c.get_misses), "Keys read."),
    counter(
        "cmd_set",
        Computed(Totals::stores),
        "Storage requests, except those refused for lack of memory or for a failed disk.",
    ),
    counter("cmd_flush", Sum(|c| &c.cmd_flush), "flush_all requests."),
    counter("cmd_touch", Both(|c| &c.touch_hits, |c| &c.touch_misses), "Keys touched."),
    counter("cmd_meta", Sum(|c| &c.cmd_meta), "Requests of the meta command me."),
    counter("get_hits", Sum(|c| &c.get_hits), "Keys read and found."),
    counter("get_misses", Sum(|c| &c.get_misses), "Keys read and not found."),
    counter("get_expired", Sum(|c| &c.get_expired), "Misses whose item had expired."),
    counter("get_flushed", Sum(|c| &c.get_flushed), "Misses whose item was flushed."),
    counter("delete_misses", Sum(|c| &c.delete_misses), "Deletes that found no item."),
    counter("delete_hits", Sum(|c| &c.delete_hits), "Deletes that removed an item."),
    counter("incr_misses", Sum(|c| &c.incr_misses), "Increments that found no item."),
    counter("incr_hits", Sum(|c| &c.incr_hits), "Increments that found an item."),
    counter("decr_misses", Sum(|c| &c.decr_misses), "Decrements that found no item."),
    counter("decr_hits", Sum(|c| &c.decr_hits), "Decrements that found an item."),
    counter("cas_misses", Sum(|c| &c.cas_misses), "Compare-and-swap requests that found no item."),
    counter("cas_hits", Sum(|c| &c.cas_hits), "Compare-and-swap requests whose token matched."),
    counter(
        "cas_badval",
        Sum(|c| &c.cas_badval),
        "Compare-and-swap requests whose token differed.",
    ),
    counter("touch_hits", Sum(|c| &c.touch_hits), "Touches that found an item."),
    counter("touch_misses", Sum(|c| &c.touch_misses), "Touches that found no item."),
    counter("store_too_large", Sum(|c| &c.store_too_large), "Values refused as too large (-I)."),
    counter("store_no_memory", Sum(|c| &c.store_no_memory), "Values refused for lack of memory."),
    counter("auth_cmds", Sum(|c| &c.auth_cmds), "Logins, the refused ones included."),
    counter("auth_errors", Sum(|c| &c.auth_errors), "Logins that were refused."),
    counter("idle_kicks", Sum(|c| &c.idle_kicks), "Connections closed because they were idle."),
    counter("bytes_read", Sum(|c| &c.bytes_read), "Bytes received.").bytes(),
    counter("bytes_written", Sum(|c| &c.bytes_written), "Bytes sent.").bytes(),
];

/// The limits and threads of the process, and its index, which grows one bucket at a time.
const SERVER: &[Stat] = &[
    gauge("limit_maxbytes", Fact(|f| RowValue::Number(f.limit_bytes)), "The memory budget (-m).")
        .bytes(),
    gauge(
        "accepting_conns",
        Fact(|f| RowValue::Number(u64::from(f.is_accepting))),
        "1 while the server accepts connections.",
    ),
    // A connection above the limit is rejected, so no listener is ever disabled.
    zero("listen_disabled_num"),
    zero("time_in_listen_disabled_us"),
    gauge("threads", Fact(|f| RowValue::Number(u64::from(f.threads))), "Threads that serve (-t)."),
    counter(
        "conn_yields",
        Sum(|c| &c.conn_yields),
        "Times that a connection waited for its turn, its client or memory.",
    ),
    gauge("hash_power_level", Computed(index_power), "Slots of the index, as a power of 2."),
    gauge("hash_bytes", Engines(|c| &c.index_bytes), "Memory of the index.").bytes(),
    zero("hash_is_expanding"),
    // No page moves between size classes.
    zero("slab_reassign_rescues"),
    zero("slab_reassign_chunk_rescues"),
    zero("slab_reassign_inline_reclaim"),
    zero("slab_reassign_busy_items"),
    zero("slab_reassign_busy_deletes"),
    zero("slab_reassign_busy_nomem"),
];

/// The crawler, which is the walk of a listing, and the log. The rows of TLS come next.
const LOGS: &[Stat] = &[
    info("slab_reassign_last_busy_status", Fact(|_| RowValue::Text("none")), ""),
    zero("slab_reassign_running"),
    zero("slabs_moved"),
    gauge("lru_crawler_running", Sum(|c| &c.listings), "Listings of items that are being sent."),
    counter("lru_crawler_starts", Sum(|c| &c.listings_begun), "Listings of items ever begun."),
    zero("lru_maintainer_juggles"),
    zero("malloc_fails"),
    counter(
        "log_worker_dropped",
        Sum(|c| &c.log_worker_dropped),
        "Log lines dropped because a buffer was full.",
    ),
    counter("log_worker_written", Sum(|c| &c.log_worker_written), "Log lines written."),
    counter(
        "log_watcher_skipped",
        Sum(|c| &c.log_watcher_skipped),
        "Log lines that slow watchers missed.",
    ),
    counter("log_watcher_sent", Sum(|c| &c.log_watcher_sent), "Log lines passed to watchers."),
    gauge("log_watchers", Sum(|c| &c.watchers), "Clients that watch the log."),
];

/// Items. There are no LRU lists.
const ITEMS: &[Stat] = &[
    zero("unexpected_napi_ids"),
    zero("round_robin_fallback"),
    gauge("bytes", Engines(|c| &c.bytes), "Memory of the items.").bytes(),
    gauge("curr_items", Engines(|c| &c.items), "Items held."),
    counter("total_items", Sum(|c| &c.total_items), "Items ever stored."),
    zero("slab_global_page_pool"),
    counter(
        "expired_unfetched",
        Engines(|c| &c.expired_unfetched),
        "Items that expired and were never read.",
    ),
    counter(
        "evicted_unfetched",
        Engines(|c| &c.evicted_unfetched),
        "Items evicted that were never read.",
    ),
    counter(
        "evicted_active",
        Engines(|c| &c.evicted_active),
        "Items evicted although they were read recently.",
    ),
    counter("evictions", Engines(|c| &c.evictions), "Items evicted before they expired."),
    counter("reclaimed", Engines(|c| &c.reclaimed), "Expired items whose space was reused."),
    counter("crawler_reclaimed", Sum(|c| &c.crawler_reclaimed), "Items reclaimed by the crawler."),
    counter(
        "crawler_items_checked",
        Sum(|c| &c.listed_items),
        "Items examined for listings, or by the crawler.",
    ),
    zero("lrutail_reflocked"),
    zero("moves_to_cold"),
    zero("moves_to_warm"),
    zero("moves_within_lru"),
    zero("direct_reclaims"),
    zero("lru_bumps_dropped"),
    info("kachel_version", Fact(|f| RowValue::Text(f.own_version)), "Kachel's version."),
];
