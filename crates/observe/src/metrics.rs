//! Statistics in Prometheus' text format 0.0.4.
//!
//! Upstream:   the process, when it is scraped, on any thread.
//! Downstream: the rows of `stats` and `stats kachel`, and the histograms.
//!
//! The first metrics have the names, types and labels that memcached_exporter 0.16.0 makes of a
//! memcached, so dashboards and alerts for it work unchanged. Every other row follows under a name
//! that begins with `kachel_` and ends with its unit, and with `_total` if it is a counter. Two
//! kinds of rows have no metric of their own: facts, and memcached's names for what Kachel does not
//! have.
//!
//! Invariants:
//! - M1  A metric has one type, and all its series stand together.
//! - M2  No label has a key or anything else that a client chooses. So the number of series is
//!   fixed.
//!
//! Source: "Exposition formats", Prometheus' documentation; the names of memcached_exporter 0.16.0.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::counters::{TICK_UNIT_NS, WAIT_UNIT_NS};
use crate::histogram::HistogramSum;
use crate::rows::general::general_table;
use crate::rows::own::own_table;
use crate::rows::{Kind, Row, RowValue, Stat, Unit};
use crate::totals::Totals;

/// The metrics of the exporter with one series, and the rows that they show.
const EXPORTED: &[(&str, &str)] = &[
    ("memcached_uptime_seconds", "uptime"),
    ("memcached_time_seconds", "time"),
    ("memcached_process_user_cpu_seconds_total", "rusage_user"),
    ("memcached_process_system_cpu_seconds_total", "rusage_system"),
    ("memcached_read_bytes_total", "bytes_read"),
    ("memcached_written_bytes_total", "bytes_written"),
    ("memcached_current_connections", "curr_connections"),
    ("memcached_max_connections", "max_connections"),
    ("memcached_connections_total", "total_connections"),
    ("memcached_connections_rejected_total", "rejected_connections"),
    ("memcached_connections_yielded_total", "conn_yields"),
    ("memcached_connections_listener_disabled_total", "listen_disabled_num"),
    ("memcached_accepting_connections", "accepting_conns"),
    ("memcached_current_bytes", "bytes"),
    ("memcached_limit_bytes", "limit_maxbytes"),
    ("memcached_malloced_bytes", "kachel_memory_spent"),
    ("memcached_current_items", "curr_items"),
    ("memcached_items_total", "total_items"),
    ("memcached_items_evicted_total", "evictions"),
    ("memcached_items_reclaimed_total", "reclaimed"),
    ("memcached_item_too_large_total", "store_too_large"),
    ("memcached_item_no_memory_total", "store_no_memory"),
    ("memcached_direct_reclaims_total", "direct_reclaims"),
    ("memcached_lru_crawler_starts_total", "lru_crawler_starts"),
    ("memcached_lru_crawler_reclaimed_total", "crawler_reclaimed"),
    ("memcached_lru_crawler_items_checked_total", "crawler_items_checked"),
    ("memcached_lru_crawler_moves_to_cold_total", "moves_to_cold"),
    ("memcached_lru_crawler_moves_to_warm_total", "moves_to_warm"),
    ("memcached_lru_crawler_moves_within_lru_total", "moves_within_lru"),
];

/// The exporter's gauges of the crawler, and the settings that they show.
const CRAWLER: &[(&str, &str, &str)] = &[
    ("enabled", "lru_crawler", "1 if items may be listed."),
    ("sleep", "lru_crawler_sleep", "Microseconds between two steps; Kachel does not use it."),
    ("to_crawl", "lru_crawler_tocrawl", "Items of a run; 0 means all."),
    ("maintainer_thread", "lru_maintainer_thread", "Kachel has no such thread."),
    ("hot_percent", "hot_lru_pct", "Kachel has no LRU lists."),
    ("warm_percent", "warm_lru_pct", "Kachel has no LRU lists."),
    ("hot_max_factor", "hot_max_factor", "Kachel has no LRU lists."),
    ("warm_max_factor", "warm_max_factor", "Kachel has no LRU lists."),
];

/// The series of `memcached_commands_total`: command, status, and the row that each one shows.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("get", "hit", "get_hits"),
    ("get", "miss", "get_misses"),
    ("delete", "hit", "delete_hits"),
    ("delete", "miss", "delete_misses"),
    ("incr", "hit", "incr_hits"),
    ("incr", "miss", "incr_misses"),
    ("decr", "hit", "decr_hits"),
    ("decr", "miss", "decr_misses"),
    ("cas", "hit", "cas_hits"),
    ("cas", "miss", "cas_misses"),
    ("cas", "badval", "cas_badval"),
    ("touch", "hit", "touch_hits"),
    ("touch", "miss", "touch_misses"),
    ("flush", "hit", "cmd_flush"),
];

/// The metrics of a process that no row has: whether clients should be sent to it (`/ready`), and
/// the number of its shards that did not answer the last probe (`/health`). A process that does not
/// serve clients has these only, and one that says so.
pub fn process_metrics(is_ready: bool, stopped_shards: usize, serves: bool) -> String {
    let mut metrics = Metrics::default();
    let (ready, stopped) = (u8::from(is_ready).to_string(), stopped_shards.to_string());
    let help = "1 while clients should be sent to this server.";
    metrics.put("kachel_ready", Kind::Gauge, help, "", &ready);
    let help = "Shards that have made no tick for 1 s although they were asked to.";
    metrics.put("kachel_stopped_shards", Kind::Gauge, help, "", &stopped);
    if !serves {
        metrics.put("memcached_up", Kind::Gauge, UP_HELP, "", "0");
    }
    metrics.to
}

const UP_HELP: &str = "1: the server answers clients.";

/// A row that was taken for the metrics.
#[derive(Debug)]
struct Taken {
    name: String,
    number: u64,
    text: String,
    kind: Kind,
    unit: Unit,
    help: &'static str,
    /// Whether a metric of the exporter shows it.
    is_shown: bool,
}

/// The rows of a scrape.
#[derive(Debug, Default)]
pub struct Metrics {
    rows: Vec<Taken>,
    /// The storage requests that are no compare-and-swap requests.
    sets: u64,
    to: String,
}

impl Metrics {
    /// Takes a row of `stats` or `stats kachel`. A name counts once.
    pub fn take(&mut self, row: &Row<'_>) {
        if self.rows.iter().any(|taken| taken.name == row.name) {
            return;
        }
        let (number, text) = match row.value {
            RowValue::Number(number) => (number, number.to_string()),
            RowValue::Micros(us) => (us, RowValue::Micros(us).to_string()),
            RowValue::Text(text) => (0, text.to_owned()),
        };
        let &Row { name, kind, unit, help, .. } = row;
        let name = name.to_owned();
        self.rows.push(Taken { name, number, text, kind, unit, help, is_shown: false });
    }

    /// Takes what no row has: the histograms of all cores, the time of each one, and the storage
    /// requests that are no compare-and-swap requests.
    pub fn take_totals(&mut self, totals: &Totals) {
        // The difference of `cmd_set` and the others would fall when another core counts a request
        // between the readings. Prometheus takes a counter that falls for a restart.
        self.sets = totals.sum(|counters| &counters.sets);
        self.tick_histograms(totals);
        self.store_histograms(totals);
        let name = "kachel_busy_seconds_total";
        self.head(name, Kind::Counter, "Time in which a shard was not asleep.");
        for (shard, busy_ns) in totals.busy_ns() {
            let _ = writeln!(self.to, "{name}{{shard=\"{shard}\"}} {}", busy_ns as f64 / 1e9);
        }
    }

    fn tick_histograms(&mut self, totals: &Totals) {
        self.histogram(
            "kachel_tick_seconds",
            "The times of ticks, without their sleep.",
            &totals.histogram(|counters| &counters.tick_times),
            (6..=24).step_by(2).map(|power| (power, ((TICK_UNIT_NS << power) as f64) / 1e9)),
            TICK_UNIT_NS as f64 / 1e9,
        );
        self.histogram(
            "kachel_wait_seconds",
            "How long parked and delayed requests waited.",
            &totals.histogram(|counters| &counters.waits),
            (4..=24).step_by(2).map(|power| (power, ((WAIT_UNIT_NS << power) as f64) / 1e9)),
            WAIT_UNIT_NS as f64 / 1e9,
        );
        self.histogram(
            "kachel_tick_requests",
            "The number of requests of each tick that had any.",
            &totals.histogram(|counters| &counters.tick_requests),
            (1..=12).map(|power| (power, ((1_u32 << power) - 1).into())),
            1.0,
        );
    }

    fn store_histograms(&mut self, totals: &Totals) {
        self.histogram(
            "kachel_stored_bytes",
            "The lengths of stored values, of a sample of the stores.",
            &totals.histogram(|counters| &counters.stored_bytes),
            (4..=24).step_by(2).map(|power| (power, ((1_u32 << power) - 1).into())),
            1.0,
        );
        self.histogram(
            "kachel_stored_ttl_seconds",
            "The TTLs of stored items, of the same sample, without those that never expire.",
            &totals.histogram(|counters| &counters.stored_ttl_s),
            (2..=24).step_by(2).map(|power| (power, ((1_u32 << power) - 1).into())),
            1.0,
        );
    }

    /// Writes a histogram. `bounds` has two numbers for each bucket: the power of two that its
    /// values are below, and the bound that is shown. The sum is multiplied by `unit`.
    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        sum: &HistogramSum,
        bounds: impl Iterator<Item = (u32, f64)>,
        unit: f64,
    ) {
        let _ = writeln!(self.to, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (power, bound) in bounds {
            let count = sum.count_to((1 << power) - 1);
            let _ = writeln!(self.to, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let (count, total) = (sum.count(), sum.sum() as f64 * unit);
        let _ = writeln!(self.to, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(self.to, "{name}_sum {total}\n{name}_count {count}");
    }

    /// The rows that were taken as metrics. `settings` are the names and values of `stats
    /// settings`.
    pub fn text<'s>(
        mut self,
        settings: impl IntoIterator<Item = (&'s str, Cow<'s, str>)>,
    ) -> String {
        self.put("memcached_up", Kind::Gauge, UP_HELP, "", "1");
        let version = self.text_of("version").to_owned();
        let labels = label("version", &version);
        let help = "The memcached version that clients see.";
        self.put("memcached_version", Kind::Gauge, help, &labels, "1");
        for (metric, row) in EXPORTED {
            let Some(place) = self.rows.iter().position(|taken| taken.name == *row) else {
                continue;
            };
            let Taken { kind, help, .. } = self.rows[place];
            // The exporter knows which names are counters, whatever Kachel has behind them.
            let kind = if metric.ends_with("_total") { Kind::Counter } else { kind };
            // Kachel's own rows have a metric of their own as well.
            self.rows[place].is_shown = !row.starts_with("kachel_");
            let value = in_seconds(&self.rows[place]);
            let help = if help.is_empty() { "Kachel has nothing that this counts." } else { help };
            self.put(metric, kind, help, "", &value);
        }
        self.commands();
        self.crawler(settings.into_iter().collect());
        self.own(&version);
        self.to
    }

    fn text_of(&self, name: &str) -> &str {
        self.rows.iter().find(|row| row.name == name).map_or("", |row| &row.text)
    }

    fn number_of(&mut self, name: &str) -> u64 {
        let row = self.rows.iter_mut().find(|row| row.name == name);
        row.map_or(0, |row| {
            row.is_shown = true;
            row.number
        })
    }

    /// Writes a metric with one series.
    fn put(&mut self, name: &str, kind: Kind, help: &str, labels: &str, value: &str) {
        self.head(name, kind, help);
        let _ = writeln!(self.to, "{name}{labels} {value}");
    }

    fn head(&mut self, name: &str, kind: Kind, help: &str) {
        debug_assert!(!self.to.contains(&format!("# TYPE {name} ")), "M1");
        debug_assert!(!help.contains(['\\', '\n']), "it needs no escape");
        let kind = if kind == Kind::Counter { "counter" } else { "gauge" };
        let _ = writeln!(self.to, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn commands(&mut self) {
        let name = "memcached_commands_total";
        self.head(name, Kind::Counter, "Requests by command and status.");
        for (command, status, row) in COMMANDS {
            let number = self.number_of(row);
            let _ =
                writeln!(self.to, "{name}{{command=\"{command}\",status=\"{status}\"}} {number}");
        }
        let _shown_by_its_parts = self.number_of("cmd_set");
        let sets = self.sets;
        let _ = writeln!(self.to, "{name}{{command=\"set\",status=\"hit\"}} {sets}");
    }

    /// Writes the settings of the crawler, if it is on, as the exporter does.
    fn crawler(&mut self, settings: BTreeMap<&str, Cow<'_, str>>) {
        if settings.get("lru_crawler").is_none_or(|is_on| is_on != "yes") {
            return;
        }
        for (metric, setting, help) in CRAWLER {
            let value = match settings.get(setting).map(AsRef::as_ref) {
                Some("yes") => "1",
                Some("no") => "0",
                Some(number) if number.parse::<f64>().is_ok() => number,
                _ => continue,
            };
            self.put(&format!("memcached_lru_crawler_{metric}"), Kind::Gauge, help, "", value);
        }
    }

    /// Writes the rows that no metric of the exporter shows, under Kachel's names.
    fn own(&mut self, version: &str) {
        let labels = format!(
            "{{version=\"{}\",memcached_version=\"{}\",io=\"{}\"}}",
            escaped(self.text_of("kachel_version")),
            escaped(version),
            escaped(self.text_of("kachel_io")),
        );
        self.put("kachel_build_info", Kind::Gauge, "What runs, in its labels.", &labels, "1");
        for row in std::mem::take(&mut self.rows) {
            if row.is_shown || row.kind == Kind::Info || row.help.is_empty() {
                continue;
            }
            let value = in_seconds(&row);
            self.put(&own_name(&row.name, row.kind, row.unit), row.kind, row.help, "", &value);
        }
    }
}

/// The series of `/metrics` that show rows of `stats` and `stats kachel`, and the row of each. A
/// row is the sum of its series, in seconds if it is a time. For programs that read `/metrics`.
pub fn series_of_rows() -> Vec<(String, &'static str)> {
    // Kachel's own rows have a metric of their own as well, and count once.
    let exported = EXPORTED.iter().filter(|(_, row)| !row.starts_with("kachel_"));
    let exported = exported.map(|(metric, row)| (metric.to_string(), *row));
    let command = |command: &str, status: &str| {
        format!("memcached_commands_total{{command=\"{command}\",status=\"{status}\"}}")
    };
    let commands = COMMANDS.iter().map(|(name, status, row)| (command(name, status), *row));
    let sets = [("set", "hit"), ("cas", "hit"), ("cas", "miss"), ("cas", "badval")];
    let sets = sets.map(|(name, status)| (command(name, status), "cmd_set"));
    let is_own = |stat: &&Stat| {
        let is_shown = EXPORTED.iter().any(|(_, row)| *row == stat.name)
            || COMMANDS.iter().any(|(.., row)| *row == stat.name)
            || stat.name == "cmd_set";
        let has_metric = stat.kind != Kind::Info && !stat.help.is_empty();
        has_metric && (!is_shown || stat.name.starts_with("kachel_"))
    };
    let own = general_table().chain(own_table()).filter(is_own);
    let own = own.map(|stat| (own_name(stat.name, stat.kind, stat.unit), stat.name));
    exported.chain(commands).chain(sets).chain(own).collect()
}

/// The name of a metric that only Kachel has, for a row.
fn own_name(name: &str, kind: Kind, unit: Unit) -> String {
    let name = name.strip_prefix("kachel_").unwrap_or(name);
    let (row_suffix, suffix) = match unit {
        Unit::One => ("", ""),
        Unit::Bytes => ("_bytes", "_bytes"),
        Unit::Seconds => ("_s", "_seconds"),
        Unit::Micros => ("_us", "_seconds"),
    };
    let name = name.strip_suffix(row_suffix).unwrap_or(name);
    // Only a part of a histogram may end like this.
    let name = name.strip_suffix("_count").unwrap_or(name);
    let total = if kind == Kind::Counter { "_total" } else { "" };
    format!("kachel_{name}{suffix}{total}")
}

/// The value of a row. Times are in seconds.
fn in_seconds(row: &Taken) -> String {
    match row.unit {
        Unit::Micros => RowValue::Micros(row.number).to_string(),
        Unit::One | Unit::Bytes | Unit::Seconds => row.number.to_string(),
    }
}

/// A label set with one label.
fn label(name: &str, value: &str) -> String {
    format!("{{{name}=\"{}\"}}", escaped(value))
}

/// The value of a label with `\`, `"` and the end of a line escaped.
pub(crate) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
