//! The rows of `stats kachel`: statistics that only Kachel has.
//!
//! Upstream:   the sinks.
//! Downstream: the counters.

use crate::counters::{TICK_UNIT_NS, WAIT_UNIT_NS};
use crate::rows::Of::{Computed, Engines, Fact, Max, Sum};
use crate::rows::{Kind, ProcessFacts, Row, RowValue, Stat, Unit, counter, each, gauge, info};
use crate::totals::Totals;

/// Gives the rows of `stats kachel` to `sink`. `others` are rows that other parts of the process
/// count: those of TLS and of the pipe.
///
/// Cost: a load for each row, and core or engine.
pub fn own(
    totals: &Totals,
    facts: &ProcessFacts<'_>,
    others: &[Row<'_>],
    sink: &mut dyn FnMut(&Row<'_>),
) {
    each(PROCESS, totals, facts, sink);
    others.iter().for_each(&mut *sink);
    each(COUNTERS, totals, facts, sink);
    busy(totals, sink);
}

/// The rows of `stats kachel`, without those of others and of the time of each core.
pub(crate) fn own_table() -> impl Iterator<Item = &'static Stat> {
    [PROCESS, COUNTERS].into_iter().flatten()
}

/// Gives the row of the time of each core, which is one row because there may be many cores. It has
/// no space, because some clients end a value there. The metrics have a series for each core
/// (`metrics`).
fn busy(totals: &Totals, sink: &mut dyn FnMut(&Row<'_>)) {
    let each = totals.busy_ns().into_iter().map(|(core, ns)| format!("{core}:{}", ns / 1_000_000));
    let text = each.collect::<Vec<_>>().join(",");
    debug_assert!(!text.is_empty(), "a process has cores");
    sink(&Row {
        name: "kachel_busy_ms",
        value: RowValue::Text(&text),
        kind: Kind::Info,
        unit: Unit::One,
        help: "Time in which each shard was not asleep, in milliseconds.",
    });
}

/// A percentile of the times of ticks in microseconds, rounded up.
fn tick_us(totals: &Totals, permille: u64) -> u64 {
    (totals.histogram(|c| &c.tick_times).percentile(permille) * TICK_UNIT_NS).div_ceil(1000)
}

const PROCESS: &[Stat] = &[
    info("kachel_version", Fact(|f| RowValue::Text(f.own_version)), "Kachel's version."),
    info("kachel_io", Fact(|f| RowValue::Text(f.io_kind)), "The I/O backend: io_uring or epoll."),
    gauge(
        "kachel_awake_cores",
        Fact(|f| RowValue::Number(u64::from(f.awake_cores))),
        "Cores that serve clients.",
    ),
    counter(
        "kachel_spreads",
        Fact(|f| RowValue::Number(f.spreads)),
        "Times that clients were spread over more cores.",
    ),
    counter(
        "kachel_gathers",
        Fact(|f| RowValue::Number(f.gathers)),
        "Times that clients were gathered on fewer cores.",
    ),
    counter(
        "kachel_core_trials",
        Fact(|f| RowValue::Number(f.core_trials)),
        "Times that another number of cores was tried.",
    ),
];

const COUNTERS: &[Stat] = &[
    counter("kachel_cmd_flush_prefix", Sum(|c| &c.cmd_flush_prefix), "flush_prefix requests."),
    gauge(
        "kachel_flushed_prefixes",
        Fact(|f| RowValue::Number(f.flushed_prefixes)),
        "Prefixes whose flush is not over.",
    ),
    counter(
        "kachel_prefix_flushed",
        Engines(|c| &c.prefix_flushed),
        "Items whose space came back because their prefix was flushed.",
    ),
    gauge("kachel_index_slots", Engines(|c| &c.index_slots), "Slots of the index."),
    gauge("kachel_owed_bytes", Sum(|c| &c.owed_bytes), "Memory of replies not read yet.").bytes(),
    counter(
        "kachel_pinned_closes",
        Sum(|c| &c.pinned_closes),
        "Connections closed because they read large values slowly.",
    ),
    counter(
        "kachel_line_closes",
        Sum(|c| &c.line_closes),
        "Connections closed because a command line was late.",
    ),
    counter(
        "kachel_block_closes",
        Sum(|c| &c.block_closes),
        "Connections closed because a data block was late.",
    ),
    counter(
        "kachel_login_closes",
        Sum(|c| &c.login_closes),
        "Connections closed because a login was late.",
    ),
    counter(
        "kachel_reader_closes",
        Sum(|c| &c.reader_closes),
        "Connections closed because they read no replies.",
    ),
    counter(
        "kachel_resumptions",
        Sum(|c| &c.resumptions),
        "Times that a waiting connection was checked again.",
    ),
    counter("kachel_long_lines", Sum(|c| &c.long_lines), "Command lines of more than 2 KiB."),
    counter(
        "kachel_listed_items",
        Sum(|c| &c.listed_items),
        "Items examined for listings, or by the crawler.",
    ),
    counter(
        "kachel_prefix_walked_items",
        Sum(|c| &c.prefix_walked_items),
        "Items counted by prefix, while prefixes are observed.",
    ),
    counter("kachel_parked", Sum(|c| &c.parked), "Requests left to the core that held the engine."),
    counter(
        "kachel_reads_beside",
        Sum(|c| &c.reads_beside),
        "Reads of items whose engine has another home core.",
    ),
    counter(
        "kachel_writes_beside",
        Sum(|c| &c.writes_beside),
        "Changes to engines that have another home core.",
    ),
    counter(
        "kachel_engines_held",
        Sum(|c| &c.engines_held),
        "Times that a core found an engine held by another core.",
    ),
    counter(
        "kachel_connections_moved",
        Sum(|c| &c.connections_moved),
        "Connections moved to another core.",
    ),
    counter(
        "kachel_evicted_age_s",
        Engines(|c| &c.evicted_age_s),
        "Sum of the times from the last use of an item to its eviction.",
    )
    .seconds(),
    counter("kachel_udp_datagrams", Sum(|c| &c.udp_datagrams), "Datagrams received."),
    counter("kachel_udp_ignored", Sum(|c| &c.udp_ignored), "Datagrams that are never answered."),
    counter(
        "kachel_udp_over_budget",
        Sum(|c| &c.udp_over_budget),
        "Datagrams of senders that had used up their budget of the second.",
    ),
    counter(
        "kachel_udp_incomplete",
        Sum(|c| &c.udp_incomplete),
        "Requests that were longer than their datagram.",
    ),
    counter("kachel_udp_too_long", Sum(|c| &c.udp_too_long), "Replies too long for datagrams."),
    counter(
        "kachel_udp_lost",
        Sum(|c| &c.udp_lost),
        "Requests over UDP that found no free exchange, and replies that the kernel did not send.",
    ),
    counter(
        "kachel_requests",
        Sum(|c| &c.requests),
        "Requests executed; each key of a read is one.",
    ),
    counter("kachel_ticks", Sum(|c| &c.ticks), "Ticks of all cores."),
    counter("kachel_busy_ticks", Sum(|c| &c.busy_ticks), "Ticks that had something to do."),
    counter(
        "kachel_observed",
        Sum(|c| &c.observed),
        "Requests of the sample that observers have noted (--observe).",
    ),
    counter(
        "kachel_observed_lost",
        Sum(|c| &c.observed_lost),
        "Requests of the sample that no observer has noted, because its numbers were being read.",
    ),
    gauge(
        "kachel_longest_hold_bytes",
        Max(|c| &c.longest_hold_bytes),
        "The most work of a core while it held an engine.",
    )
    .bytes(),
    gauge(
        "kachel_longest_hold_us",
        Max(|c| &c.longest_hold_us),
        "The longest time for which an engine was held.",
    )
    .micros(),
    gauge(
        "kachel_longest_tick_bytes",
        Max(|c| &c.longest_tick_bytes),
        "The most work of the engines in a tick.",
    )
    .bytes(),
    gauge("kachel_tick_p50_us", Computed(|t| tick_us(t, 500)), "Half of the ticks took no longer.")
        .micros(),
    gauge("kachel_tick_p99_us", Computed(|t| tick_us(t, 990)), "99 % of the ticks took no longer.")
        .micros(),
    gauge(
        "kachel_wait_p99_us",
        Computed(|t| (t.histogram(|c| &c.waits).percentile(990) * WAIT_UNIT_NS).div_ceil(1000)),
        "99 % of the parked and delayed requests waited no longer.",
    )
    .micros(),
    gauge(
        "kachel_tick_requests_p50",
        Computed(|t| t.histogram(|c| &c.tick_requests).percentile(500)),
        "Half of the ticks with requests had no more.",
    ),
    gauge(
        "kachel_tick_requests_p99",
        Computed(|t| t.histogram(|c| &c.tick_requests).percentile(990)),
        "99 % of the ticks with requests had no more.",
    ),
    gauge("kachel_longest_tick_us", Max(|c| &c.longest_tick_us), "The longest tick.").micros(),
    gauge(
        "kachel_memory_spent",
        Fact(|f| RowValue::Number(f.spent_bytes)),
        "Memory of the budget (-m) that is in use.",
    )
    .bytes(),
    gauge(
        "kachel_pinned_bytes",
        Fact(|f| RowValue::Number(f.pinned_bytes)),
        "Memory of values that are being sent.",
    )
    .bytes(),
];
