//! The Grafana board.
//!
//! Upstream:   the metrics of the crate.
//! Downstream: `packaging/grafana/kachel.json`, which an operator imports.
//!
//! Panels stand in rows of three. In an expression, `$S` stands for the servers that the variables
//! of the board select, and `$R` for the time over which Grafana computes a rate.

use serde_json::{Value, json};

/// The servers of the variables.
const SELECTED: &str = "job=~\"$job\",instance=~\"$instance\"";
/// The columns of a board.
const COLUMNS: usize = 24;
const PANEL_COLUMNS: usize = 8;
const PANEL_LINES: usize = 8;

/// A chart.
struct Panel {
    title: &'static str,
    /// What it shows, for the tooltip.
    says: &'static str,
    /// The unit, by Grafana's name.
    unit: &'static str,
    /// Expressions with their legends.
    lines: &'static [(&'static str, &'static str)],
}

/// A row of charts.
struct Section {
    title: &'static str,
    panels: &'static [Panel],
}

const SECTIONS: &[Section] = &[NOW, LOAD, LATENCY, MEMORY, CPU, CONNECTIONS, SHARDS, VALUES, PIPE];

const NOW: Section = Section {
    title: "Now",
    panels: &[
        Panel {
            title: "Ready",
            says: "1 while clients should be sent to the server.",
            unit: "none",
            lines: &[("kachel_ready{$S}", "{{instance}}")],
        },
        Panel {
            title: "Shards that do not answer",
            says: "Shards that have made no tick for 1 s. Their clients wait.",
            unit: "none",
            lines: &[("kachel_stopped_shards{$S}", "{{instance}}")],
        },
        Panel {
            title: "Uptime",
            says: "Without -e, a cache begins empty at each restart.",
            unit: "s",
            lines: &[("memcached_uptime_seconds{$S}", "{{instance}}")],
        },
    ],
};

const LOAD: Section = Section {
    title: "Load",
    panels: &[
        Panel {
            title: "Requests",
            says: "Requests a second by command; each key of a read is one.",
            unit: "reqps",
            lines: &[(
                "sum by (command) \
                 (rate(memcached_commands_total{$S}[$R]))",
                "{{command}}",
            )],
        },
        Panel {
            title: "Hit ratio",
            says: "The part of reads that found their item.",
            unit: "percentunit",
            lines: &[(
                "sum by (instance) \
                 (rate(memcached_commands_total{command=\"get\",status=\"hit\",$S}[$R])) \
                 / sum by (instance) \
                 (rate(memcached_commands_total{command=\"get\",$S}[$R]))",
                "{{instance}}",
            )],
        },
        Panel {
            title: "Network",
            says: "Bytes a second that clients have sent and received.",
            unit: "Bps",
            lines: &[
                ("sum(rate(memcached_read_bytes_total{$S}[$R]))", "received"),
                ("sum(rate(memcached_written_bytes_total{$S}[$R]))", "sent"),
            ],
        },
        Panel {
            title: "Misses by cause",
            says: "Misses a second. The others found no item: it was never stored, deleted or \
             evicted.",
            unit: "reqps",
            lines: &[
                (
                    "sum(rate(memcached_commands_total{command=\"get\",status=\"miss\",$S}[$R]))",
                    "all",
                ),
                ("sum(rate(kachel_get_expired_total{$S}[$R]))", "expired"),
                ("sum(rate(kachel_get_flushed_total{$S}[$R]))", "flushed"),
            ],
        },
        Panel {
            title: "Refused stores",
            says: "Stores a second that were refused: no memory could be freed, or the value is \
             larger than -I.",
            unit: "reqps",
            lines: &[
                ("sum(rate(memcached_item_no_memory_total{$S}[$R]))", "no memory"),
                ("sum(rate(memcached_item_too_large_total{$S}[$R]))", "too large"),
            ],
        },
        Panel {
            title: "UDP",
            says: "Datagrams a second.",
            unit: "pps",
            lines: &[
                ("sum(rate(kachel_udp_datagrams_total{$S}[$R]))", "received"),
                ("sum(rate(kachel_udp_ignored_total{$S}[$R]))", "ignored"),
                ("sum(rate(kachel_udp_lost_total{$S}[$R]))", "lost"),
            ],
        },
    ],
};

const LATENCY: Section = Section {
    title: "Latency inside the server",
    panels: &[
        Panel {
            title: "Time of a tick",
            says: "A thread serves the requests that have arrived in one tick. A request waits \
             for the tick before it.",
            unit: "s",
            lines: &[
                (
                    "histogram_quantile(0.5, sum by (le) \
                 (rate(kachel_tick_seconds_bucket{$S}[$R])))",
                    "half",
                ),
                (
                    "histogram_quantile(0.99, sum by (le) \
                 (rate(kachel_tick_seconds_bucket{$S}[$R])))",
                    "99 %",
                ),
            ],
        },
        Panel {
            title: "Waiting for another thread",
            says: "How long requests waited that another thread executed, or that waited for \
             memory.",
            unit: "s",
            lines: &[
                (
                    "histogram_quantile(0.5, sum by (le) \
                 (rate(kachel_wait_seconds_bucket{$S}[$R])))",
                    "half",
                ),
                (
                    "histogram_quantile(0.99, sum by (le) \
                 (rate(kachel_wait_seconds_bucket{$S}[$R])))",
                    "99 %",
                ),
            ],
        },
        Panel {
            title: "Requests of a tick",
            says: "Requests that share a tick wait for memory together, so many requests cost \
             less each.",
            unit: "none",
            lines: &[
                (
                    "histogram_quantile(0.5, sum by (le) \
                 (rate(kachel_tick_requests_bucket{$S}[$R])))",
                    "half",
                ),
                (
                    "histogram_quantile(0.99, sum by (le) \
                 (rate(kachel_tick_requests_bucket{$S}[$R])))",
                    "99 %",
                ),
            ],
        },
    ],
};

const MEMORY: Section = Section {
    title: "Memory",
    panels: &[
        Panel {
            title: "Memory",
            says: "-m is the limit. A full cache is normal: look at the age of evicted items.",
            unit: "bytes",
            lines: &[
                ("sum(memcached_limit_bytes{$S})", "limit (-m)"),
                ("sum(kachel_memory_spent_bytes{$S})", "in use"),
                ("sum(memcached_current_bytes{$S})", "items"),
                ("sum(kachel_hash_bytes{$S})", "index"),
                ("sum(kachel_owed_bytes{$S})", "replies not read"),
                ("sum(kachel_pinned_bytes{$S})", "values being sent"),
            ],
        },
        Panel {
            title: "Evicted and expired items",
            says: "Items a second that made room: before they expired, and after.",
            unit: "ops",
            lines: &[
                ("sum(rate(memcached_items_evicted_total{$S}[$R]))", "evicted"),
                (
                    "sum(rate(kachel_evicted_unfetched_total{$S}[$R]))",
                    "evicted, \
                 never read",
                ),
                ("sum(rate(memcached_items_reclaimed_total{$S}[$R]))", "expired"),
            ],
        },
        Panel {
            title: "Age of evicted items",
            says: "Mean time from the last use of an item to its eviction. Seconds: memory is too \
             small. Days: only unused items go.",
            unit: "s",
            lines: &[(
                "rate(kachel_evicted_age_seconds_total{$S}[$R]) \
                 / rate(memcached_items_evicted_total{$S}[$R])",
                "{{instance}}",
            )],
        },
        Panel {
            title: "What fills the cache",
            says: "Memory by prefix, of the prefixes that --admin-prefixes names, while prefixes are \
                   observed.",
            unit: "bytes",
            lines: &[("sum by (prefix) (kachel_prefix_bytes{$S})", "{{prefix}}")],
        },
        Panel {
            title: "Hit ratio by prefix",
            says: "The part of reads that found their item, of the same prefixes; from a sample.",
            unit: "percentunit",
            lines: &[(
                "sum by (prefix) (rate(kachel_prefix_hits_total{$S}[$R])) \
                 / sum by (prefix) (rate(kachel_prefix_gets_total{$S}[$R]))",
                "{{prefix}}",
            )],
        },
        Panel {
            title: "Items",
            says: "Items in the cache.",
            unit: "short",
            lines: &[("memcached_current_items{$S}", "{{instance}}")],
        },
    ],
};

const CPU: Section = Section {
    title: "Processor",
    panels: &[
        Panel {
            title: "Processor time",
            says: "Cores that the server uses.",
            unit: "none",
            lines: &[
                ("sum(rate(memcached_process_user_cpu_seconds_total{$S}[$R]))", "user mode"),
                ("sum(rate(memcached_process_system_cpu_seconds_total{$S}[$R]))", "kernel"),
            ],
        },
        Panel {
            title: "Processor time of a request",
            says: "Falls as the load rises, because requests share ticks.",
            unit: "s",
            lines: &[(
                "(rate(memcached_process_user_cpu_seconds_total{$S}[$R]) \
                 + rate(memcached_process_system_cpu_seconds_total{$S}[$R])) \
                 / rate(kachel_requests_total{$S}[$R])",
                "{{instance}}",
            )],
        },
        Panel {
            title: "Awake cores",
            says: "Cores that serve clients. At low load, few do.",
            unit: "none",
            lines: &[
                ("kachel_awake_cores{$S}", "{{instance}} awake"),
                ("kachel_threads{$S}", "{{instance}} all"),
            ],
        },
    ],
};

const CONNECTIONS: Section = Section {
    title: "Connections",
    panels: &[
        Panel {
            title: "Connections",
            says: "-c is the limit.",
            unit: "none",
            lines: &[
                ("memcached_current_connections{$S}", "{{instance}}"),
                ("memcached_max_connections{$S}", "{{instance}} limit"),
            ],
        },
        Panel {
            title: "New and refused connections",
            says: "Connections a second. Many new ones: clients do not keep theirs.",
            unit: "ops",
            lines: &[
                ("sum(rate(memcached_connections_total{$S}[$R]))", "new"),
                ("sum(rate(memcached_connections_rejected_total{$S}[$R]))", "refused (-c)"),
                ("sum(rate(kachel_auth_errors_total{$S}[$R]))", "wrong logins"),
            ],
        },
        Panel {
            title: "Slow clients",
            says: "Connections a second that were closed, by what was late.",
            unit: "ops",
            lines: &[
                ("sum(rate(kachel_line_closes_total{$S}[$R]))", "command line"),
                ("sum(rate(kachel_block_closes_total{$S}[$R]))", "data block"),
                ("sum(rate(kachel_login_closes_total{$S}[$R]))", "login"),
                ("sum(rate(kachel_reader_closes_total{$S}[$R]))", "reading replies"),
                (
                    "sum(rate(kachel_pinned_closes_total{$S}[$R]))",
                    "reading large \
                 values",
                ),
            ],
        },
    ],
};

const SHARDS: Section = Section {
    title: "Shards",
    panels: &[
        Panel {
            title: "Load of each shard",
            says: "The part of the time in which a shard was not asleep. One at 100 % while \
             others are \
                   not: one key or one connection has most of the load.",
            unit: "percentunit",
            lines: &[(
                "sum by (instance, shard) (rate(kachel_busy_seconds_total{$S}[$R]))",
                "{{instance}} {{shard}}",
            )],
        },
        Panel {
            title: "Hottest key",
            says: "The part of all reads, and of all writes, that one key has, while hot keys are \
             observed.",
            unit: "percentunit",
            lines: &[("kachel_hottest_key_ratio{$S}", "{{instance}} {{of}}")],
        },
        Panel {
            title: "Ticks",
            says: "Ticks a second of all threads, and those that had something to do.",
            unit: "ops",
            lines: &[
                ("sum(rate(kachel_ticks_total{$S}[$R]))", "all"),
                ("sum(rate(kachel_busy_ticks_total{$S}[$R]))", "with work"),
            ],
        },
        Panel {
            title: "Requests between threads",
            says: "A thread executes most requests itself, also for keys of others.",
            unit: "reqps",
            lines: &[
                (
                    "sum(rate(kachel_reads_beside_total{$S}[$R]))",
                    "reads of others' \
                 keys",
                ),
                (
                    "sum(rate(kachel_writes_beside_total{$S}[$R]))",
                    "changes of \
                 others' keys",
                ),
                ("sum(rate(kachel_parked_total{$S}[$R]))", "left to another thread"),
            ],
        },
        Panel {
            title: "Moved connections",
            says: "Connections a second that were moved so that cores follow the load.",
            unit: "ops",
            lines: &[("sum(rate(kachel_connections_moved_total{$S}[$R]))", "moved")],
        },
    ],
};

const VALUES: Section = Section {
    title: "Values",
    panels: &[
        Panel {
            title: "Size of stored values",
            says: "Of a sample of the stores.",
            unit: "bytes",
            lines: &[
                (
                    "histogram_quantile(0.5, sum by (le) \
                 (rate(kachel_stored_bytes_bucket{$S}[$R])))",
                    "half",
                ),
                (
                    "histogram_quantile(0.99, sum by (le) \
                 (rate(kachel_stored_bytes_bucket{$S}[$R])))",
                    "99 %",
                ),
            ],
        },
        Panel {
            title: "TTL of stored items",
            says: "Of the same sample, without items that never expire.",
            unit: "s",
            lines: &[
                (
                    "histogram_quantile(0.5, sum by (le) \
                 (rate(kachel_stored_ttl_seconds_bucket{$S}[$R])))",
                    "half",
                ),
                (
                    "histogram_quantile(0.99, sum by (le) \
                 (rate(kachel_stored_ttl_seconds_bucket{$S}[$R])))",
                    "99 %",
                ),
            ],
        },
    ],
};

const PIPE: Section = Section {
    title: "Pipe (--pipe)",
    panels: &[
        Panel {
            title: "Requests",
            says: "GETs over UDP that the driver answered, and those that it passed to the server.",
            unit: "reqps",
            lines: &[
                ("sum(rate(kachel_pipe_answered_total{$S}[$R]))", "answered"),
                ("sum(rate(kachel_pipe_passed_total{$S}[$R]))", "passed"),
            ],
        },
        Panel {
            title: "Copies",
            says: "Items that the driver answers from, and its room.",
            unit: "none",
            lines: &[
                ("sum(kachel_pipe_items{$S})", "copies"),
                ("sum(kachel_pipe_items_max{$S})", "room"),
            ],
        },
    ],
};

/// The expressions of the board, for all servers.
pub(crate) fn expressions() -> Vec<String> {
    let panels = SECTIONS.iter().flat_map(|section| section.panels);
    panels.flat_map(|panel| panel.lines).map(|(expression, _)| selected(expression)).collect()
}

fn selected(expression: &str) -> String {
    assert!(expression.contains("$S"), "{expression}: it shows the selected servers");
    expression.replace("$S", SELECTED).replace("$R", "$__rate_interval")
}

/// The file of the board.
pub(crate) fn board() -> String {
    let mut panels = Vec::new();
    let mut top = 0;
    for section in SECTIONS {
        let place = json!({"x": 0, "y": top, "w": COLUMNS, "h": 1});
        let id = panels.len() + 1;
        panels.push(json!({
            "id": id, "type": "row", "title": section.title, "collapsed": false,
            "gridPos": place, "panels": [],
        }));
        top += 1;
        for (index, panel) in section.panels.iter().enumerate() {
            let x = index * PANEL_COLUMNS % COLUMNS;
            let y = top + index * PANEL_COLUMNS / COLUMNS * PANEL_LINES;
            let id = panels.len() + 1;
            panels.push(chart(panel, id, x, y));
        }
        top += (section.panels.len() * PANEL_COLUMNS).div_ceil(COLUMNS) * PANEL_LINES;
    }
    let board = json!({
        "uid": "kachel", "title": "Kachel", "tags": ["kachel", "memcached"],
        "description": "Generated: KACHEL_BLESS=1 cargo test -p kachel-observe --test monitoring",
        "schemaVersion": 39, "version": 1, "editable": true, "graphTooltip": 1, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "templating": {"list": variables()}, "annotations": {"list": []}, "panels": panels,
    });
    serde_json::to_string_pretty(&board).expect("it has string keys") + "\n"
}

fn chart(panel: &Panel, id: usize, x: usize, y: usize) -> Value {
    let &Panel { title, says, unit, lines } = panel;
    let targets: Vec<Value> = lines
        .iter()
        .zip('A'..='Z')
        .map(|((expression, legend), name)| {
            let expression = selected(expression);
            json!({
                "refId": name, "expr": expression, "legendFormat": legend, "datasource": source(),
            })
        })
        .collect();
    json!({
        "id": id, "type": "timeseries", "title": title, "description": says, "datasource": source(),
        "gridPos": {"x": x, "y": y, "w": PANEL_COLUMNS, "h": PANEL_LINES},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {
            "tooltip": {"mode": "multi"},
            "legend": {"displayMode": "list", "placement": "bottom"},
        },
        "targets": targets,
    })
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${source}"})
}

/// The variables of the board: where the metrics are, and which servers it shows.
fn variables() -> Vec<Value> {
    let of_servers = |name: &str, query: &str| {
        json!({
            "name": name, "type": "query", "datasource": source(),
            "query": {"query": query, "refId": name}, "refresh": 2, "multi": true,
            "includeAll": true, "current": {"text": "All", "value": "$__all"},
        })
    };
    vec![
        json!({"name": "source", "label": "source", "type": "datasource", "query": "prometheus"}),
        of_servers("job", "label_values(kachel_ready, job)"),
        of_servers("instance", "label_values(kachel_ready{job=~\"$job\"}, instance)"),
    ]
}
