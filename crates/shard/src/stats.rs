//! `stats` and its topics.
//!
//! Upstream:   `admin`.
//! Downstream: every shard's counters, summed; the options the process was started with.
//!
//! The keys are memcached's, in its order, as far as they are true here; Kachel's own begin with
//! `kachel_`.

use kachel_net::ConnectionIndex;
use kachel_wire::{DetailTopic, Reply, StatsTopic, format, stats_topic};

use crate::core::Core;
use crate::counters::{Counter, Counters};

/// Picks one counter of a shard's.
type Pick = fn(&Counters) -> &Counter;

/// Answers `stats` with `topic` behind it.
pub(crate) fn stats(core: &mut Core, connection: ConnectionIndex, topic: &[u8]) {
    match stats_topic(topic) {
        StatsTopic::General => general(core, connection),
        StatsTopic::Reset => unreachable!("`admin` has all shards begin anew"),
        StatsTopic::Settings => {
            let shared = std::sync::Arc::clone(&core.shared);
            for (name, value) in &shared.options.settings {
                stat(core, connection, name, value.as_bytes());
            }
            core.text(connection, Reply::End.bytes());
        }
        StatsTopic::Detail(_) if !core.shared.options.dumps_allowed => {
            core.text(connection, Reply::StatsDetailNotAllowed.bytes());
        }
        StatsTopic::Cachedump(_) if !core.shared.options.dumps_allowed => {
            core.text(connection, Reply::CachedumpNotAllowed.bytes());
        }
        StatsTopic::Detail(DetailTopic::On | DetailTopic::Off) => {
            core.text(connection, Reply::Ok.bytes());
        }
        StatsTopic::Detail(DetailTopic::Usage) => {
            core.text(connection, Reply::StatsDetailUsage.bytes());
        }
        StatsTopic::Cachedump(Err(reply)) => core.text(connection, reply.bytes()),
        StatsTopic::Unknown => core.text(connection, Reply::Error.bytes()),
        StatsTopic::Sizes => {
            stat(core, connection, "sizes_status", b"disabled");
            core.text(connection, Reply::End.bytes());
        }
        // Nothing to show behind these names yet: memcached's slabs and tiers are not here.
        StatsTopic::Detail(DetailTopic::Dump)
        | StatsTopic::Cachedump(Ok(_))
        | StatsTopic::Conns
        | StatsTopic::Extstore
        | StatsTopic::Items
        | StatsTopic::Slabs => core.text(connection, Reply::End.bytes()),
    }
}

fn stat(core: &mut Core, connection: ConnectionIndex, name: &str, value: &[u8]) {
    if let Some((_, mut sink)) = core.client(connection) {
        format::stat(&mut sink, name.as_bytes(), value);
        core.mark_dirty(connection);
    }
}

fn number(core: &mut Core, connection: ConnectionIndex, name: &str, value: u64) {
    stat(core, connection, name, value.to_string().as_bytes());
}

fn seconds(core: &mut Core, connection: ConnectionIndex, name: &str, us: u64) {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    stat(core, connection, name, text.as_bytes());
}

/// The process's own facts, then what all shards counted.
fn general(core: &mut Core, connection: ConnectionIndex) {
    core.publish_gauges();
    let shared = std::sync::Arc::clone(&core.shared);
    let second = core.now.second;
    number(core, connection, "pid", u64::from(shared.options.pid));
    number(core, connection, "uptime", u64::from(second));
    let now = u64::try_from(core.now.unix(second)).unwrap_or(0);
    number(core, connection, "time", now);
    stat(core, connection, "version", shared.options.version.as_bytes());
    stat(core, connection, "kachel_version", shared.options.own_version.as_bytes());
    stat(core, connection, "kachel_io", core.io_kind.as_bytes());
    number(core, connection, "pointer_size", 64);
    let usage = (shared.options.usage)();
    seconds(core, connection, "rusage_user", usage.user_us);
    seconds(core, connection, "rusage_system", usage.system_us);
    number(core, connection, "max_connections", u64::from(shared.options.connections_max));
    number(core, connection, "curr_connections", u64::from(shared.open_connections()));
    for (name, counter) in BEFORE_AUTHENTICATION {
        sum(core, connection, name, *counter);
    }
    // Nobody can authenticate.
    number(core, connection, "auth_cmds", 0);
    number(core, connection, "auth_errors", 0);
    for (name, counter) in BEFORE_LIMITS {
        sum(core, connection, name, *counter);
    }
    number(core, connection, "limit_maxbytes", shared.budget.limit_bytes());
    number(core, connection, "threads", u64::from(shared.options.shards));
    for (name, counter) in BEHIND_LIMITS {
        sum(core, connection, name, *counter);
    }
    number(core, connection, "kachel_memory_spent", shared.budget.spent_bytes());
    number(core, connection, "kachel_pinned_bytes", core.cache.pinned_bytes());
    core.text(connection, Reply::End.bytes());
}

fn sum(core: &mut Core, connection: ConnectionIndex, name: &str, counter: Pick) {
    let counters = core.shared.counters.iter();
    let sum = counters.map(|counters| counter(counters).value()).sum();
    number(core, connection, name, sum);
}

/// memcached's keys from `total_connections` to `store_no_memory`.
const BEFORE_AUTHENTICATION: &[(&str, Pick)] = &[
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
];

/// memcached's keys from `idle_kicks` to `bytes_written`.
const BEFORE_LIMITS: &[(&str, Pick)] = &[
    ("idle_kicks", |c| &c.idle_kicks),
    ("bytes_read", |c| &c.bytes_read),
    ("bytes_written", |c| &c.bytes_written),
];

/// memcached's keys from `conn_yields` to the end, then ours.
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
    ("kachel_reader_closes", |c| &c.reader_closes),
    ("kachel_resumptions", |c| &c.resumptions),
    ("kachel_long_lines", |c| &c.long_lines),
    ("kachel_listed_items", |c| &c.listed_items),
    ("kachel_hops", |c| &c.hops),
    ("kachel_requests", |c| &c.requests),
    ("kachel_ticks", |c| &c.ticks),
    ("kachel_busy_ticks", |c| &c.busy_ticks),
];
