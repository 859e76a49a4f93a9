//! The alerts: for each fault the expression that shows it, a sentence, what to do, and series for
//! which it fires and stays silent.
//!
//! Upstream:   the metrics of the crate.
//! Downstream: `rules`.
//!
//! The thresholds are guesses, which an operator may change. Each waits, so that a moment of
//! trouble wakes nobody.

/// How the value of an expression is shown.
#[derive(Clone, Copy)]
pub(crate) enum ShownAs {
    /// Not at all.
    Nothing,
    /// Seconds, as a time.
    Time,
    /// A part of one, in percent.
    Percent,
    /// A number.
    Number,
}

impl ShownAs {
    /// The template that Prometheus fills in.
    pub(crate) fn template(self) -> String {
        let function = match self {
            Self::Nothing => return String::new(),
            Self::Time => "humanizeDuration",
            Self::Percent => "humanizePercentage",
            Self::Number => "humanize",
        };
        format!("{{{{ $value | {function} }}}}")
    }
}

/// An alert.
pub(crate) struct Alert {
    pub(crate) name: &'static str,
    pub(crate) expression: &'static str,
    /// How long the expression must hold.
    pub(crate) holds: &'static str,
    pub(crate) severity: &'static str,
    /// The sentence, behind the server's name. `VALUE` stands for the value.
    says: &'static str,
    pub(crate) shown_as: ShownAs,
    /// What to do.
    pub(crate) advice: &'static str,
    /// Series, a value a minute, with which it fires at `at`.
    pub(crate) fires: &'static [(&'static str, &'static str)],
    /// Series with which it does not.
    pub(crate) silent: &'static [(&'static str, &'static str)],
    pub(crate) at: &'static str,
    /// The value that is shown in the first test.
    pub(crate) shown: &'static str,
}

impl Alert {
    /// The sentence about a server.
    pub(crate) fn says_with(&self, instance: &str, value: &str) -> String {
        format!("{instance} {}.", self.says.replace("VALUE", value))
    }
}

const GET_HIT: &str = "memcached_commands_total{command=\"get\",status=\"hit\"}";
const GET_MISS: &str = "memcached_commands_total{command=\"get\",status=\"miss\"}";

pub(crate) const ALERTS: &[Alert] = &[
    Alert {
        name: "KachelDown",
        expression: "up{job=~\"kachel.*\"} == 0",
        holds: "1m",
        severity: "critical",
        says: "does not answer Prometheus",
        shown_as: ShownAs::Nothing,
        advice: "Look at the log of the server, and whether its process runs and its --admin \
         address is reachable.",
        fires: &[("up", "1 1 0x10")],
        silent: &[("up", "1 1 0 1x10")],
        at: "5m",
        shown: "",
    },
    Alert {
        name: "KachelRestarted",
        expression: "resets(memcached_uptime_seconds[15m]) > 0",
        holds: "0m",
        severity: "info",
        says: "was restarted in the last 15 minutes",
        shown_as: ShownAs::Nothing,
        advice: "Without -e the cache began empty, so misses are expected for a while. If nobody \
         restarted the server, its log says why it ended.",
        fires: &[("memcached_uptime_seconds", "6000 6060 6120 5 65 125")],
        silent: &[("memcached_uptime_seconds", "6000+60x10")],
        at: "5m",
        shown: "",
    },
    Alert {
        name: "KachelNotReady",
        expression: "kachel_ready == 0",
        holds: "10m",
        severity: "warning",
        says: "has not been ready for clients for 10 minutes",
        shown_as: ShownAs::Nothing,
        advice: "It loads items (-e), drains (--drain) or ends; /ready says which. Clients should \
         be sent elsewhere until it is ready.",
        fires: &[("kachel_ready", "0x20")],
        silent: &[("kachel_ready", "0x8 1x12")],
        at: "15m",
        shown: "",
    },
    Alert {
        name: "KachelShardStopped",
        expression: "kachel_stopped_shards > 0",
        holds: "1m",
        severity: "critical",
        says: "has shards that do not answer (VALUE), so their clients wait",
        shown_as: ShownAs::Number,
        advice: "Look at the log and at what the machine does. If the shards stay so, restart \
         the server; please report it with the stacks of its threads.",
        fires: &[("kachel_stopped_shards", "0 0 1x10")],
        silent: &[("kachel_stopped_shards", "0 0 1 0x10")],
        at: "5m",
        shown: "1",
    },
    Alert {
        name: "KachelMemoryTooSmall",
        expression: "rate(kachel_evicted_age_seconds_total[10m]) / \
         rate(memcached_items_evicted_total[10m]) < 300 \
            and rate(memcached_items_evicted_total[10m]) > 1",
        holds: "15m",
        severity: "warning",
        says: "evicts items that were used VALUE ago: memory is too small for this load",
        shown_as: ShownAs::Time,
        advice: "Raise -m, add servers, or store less: shorter TTLs, fewer or smaller values.",
        fires: &[
            ("kachel_evicted_age_seconds_total", "0+24000x60"),
            ("memcached_items_evicted_total", "0+600x60"),
        ],
        // Items that nobody has used for a day.
        silent: &[
            ("kachel_evicted_age_seconds_total", "0+51840000x60"),
            ("memcached_items_evicted_total", "0+600x60"),
        ],
        at: "40m",
        shown: "40s",
    },
    Alert {
        name: "KachelMemoryRefused",
        expression: "rate(memcached_item_no_memory_total[5m]) > 0",
        holds: "2m",
        severity: "critical",
        says: "refuses VALUE stores a second, because no memory could be freed",
        shown_as: ShownAs::Number,
        advice: "Raise -m. With -M nothing is evicted, so the cache must hold everything. Clients \
         that read large values slowly pin memory: see kachel_pinned_bytes.",
        fires: &[("memcached_item_no_memory_total", "0+60x20")],
        silent: &[("memcached_item_no_memory_total", "7x20")],
        at: "10m",
        shown: "1",
    },
    Alert {
        name: "KachelConnectionsUsedUp",
        expression: "memcached_current_connections / memcached_max_connections > 0.95 \
            or rate(memcached_connections_rejected_total[5m]) > 0",
        holds: "2m",
        severity: "critical",
        says: "has used up its connections (-c), or nearly so, and refuses clients at the limit",
        shown_as: ShownAs::Nothing,
        advice: "Raise -c, and look for clients that open connections and do not close them: \
         stats conns lists them.",
        fires: &[
            ("memcached_current_connections", "1000x20"),
            ("memcached_max_connections", "1024x20"),
            ("memcached_connections_rejected_total", "0x20"),
        ],
        silent: &[
            ("memcached_current_connections", "500x20"),
            ("memcached_max_connections", "1024x20"),
            ("memcached_connections_rejected_total", "3x20"),
        ],
        at: "10m",
        shown: "",
    },
    Alert {
        name: "KachelMissesRise",
        expression: "sum by (job, instance) \
         (rate(memcached_commands_total{command=\"get\",status=\"miss\"}[5m])) \
            / sum by (job, instance) (rate(memcached_commands_total{command=\"get\"}[5m])) \
            > 0.2 + sum by (job, instance) \
            (rate(memcached_commands_total{command=\"get\",status=\"miss\"}[6h] offset 15m)) \
            / sum by (job, instance) (rate(memcached_commands_total{command=\"get\"}[6h] offset \
            15m)) \
            and sum by (job, instance) (rate(memcached_commands_total{command=\"get\"}[5m])) > 10",
        holds: "5m",
        severity: "warning",
        says: "misses VALUE of its gets, 20 points more than in the hours before",
        shown_as: ShownAs::Percent,
        advice: "Look for a flush_all, a restart, a release that changed the names of keys, a \
         client that scans keys which were never stored, or evictions.",
        fires: &[(GET_HIT, "0+6000x240 1440000+1500x60"), (GET_MISS, "0+300x240 72000+4500x60")],
        silent: &[(GET_HIT, "0+6000x240 1440000+6000x60"), (GET_MISS, "0+300x240 72000+600x60")],
        at: "255m",
        shown: "75%",
    },
    Alert {
        name: "KachelSlowClientsClosed",
        expression: "increase(kachel_line_closes_total[10m]) + \
         increase(kachel_block_closes_total[10m]) \
            + increase(kachel_reader_closes_total[10m]) + \
            increase(kachel_pinned_closes_total[10m]) > 5",
        holds: "5m",
        severity: "warning",
        says: "has closed VALUE connections in 10 minutes because their clients were too slow",
        shown_as: ShownAs::Number,
        advice: "-v logs the addresses. Look for clients that are overloaded, stopped, or behind \
         a network that loses packets.",
        fires: &[
            ("kachel_line_closes_total", "0x30"),
            ("kachel_block_closes_total", "0x30"),
            ("kachel_reader_closes_total", "0+2x30"),
            ("kachel_pinned_closes_total", "0x30"),
        ],
        silent: &[
            ("kachel_line_closes_total", "4x30"),
            ("kachel_block_closes_total", "0x30"),
            ("kachel_reader_closes_total", "0x14 1x16"),
            ("kachel_pinned_closes_total", "0x30"),
        ],
        at: "20m",
        shown: "20",
    },
    Alert {
        name: "KachelRepliesUnread",
        expression: "kachel_owed_bytes / memcached_limit_bytes > 0.1",
        holds: "5m",
        severity: "warning",
        says: "holds replies that clients do not read, in VALUE of its memory",
        shown_as: ShownAs::Percent,
        advice: "stats conns shows which clients are paused. They should read faster, or ask for \
         less at once.",
        fires: &[("kachel_owed_bytes", "16777216x20"), ("memcached_limit_bytes", "67108864x20")],
        silent: &[("kachel_owed_bytes", "65536x20"), ("memcached_limit_bytes", "67108864x20")],
        at: "10m",
        shown: "25%",
    },
    Alert {
        name: "KachelCoresBusy",
        expression: "(rate(memcached_process_user_cpu_seconds_total[5m]) \
            + rate(memcached_process_system_cpu_seconds_total[5m])) / kachel_threads > 0.9",
        holds: "15m",
        severity: "warning",
        says: "uses VALUE of the processor time that its threads can use",
        shown_as: ShownAs::Percent,
        advice: "Give it more cores (-t), add servers, or have clients send several keys in one \
         request.",
        fires: &[
            ("memcached_process_user_cpu_seconds_total", "0+60x40"),
            ("memcached_process_system_cpu_seconds_total", "0+54x40"),
            ("kachel_threads", "2x40"),
        ],
        silent: &[
            ("memcached_process_user_cpu_seconds_total", "0+12x40"),
            ("memcached_process_system_cpu_seconds_total", "0+12x40"),
            ("kachel_threads", "2x40"),
        ],
        at: "30m",
        shown: "95%",
    },
    Alert {
        name: "KachelHotKey",
        expression: "max by (job, instance) (kachel_hottest_key_ratio \
            and kachel_hottest_key_requests_per_second > 10000) > 0.2",
        holds: "5m",
        severity: "warning",
        says: "has one key with VALUE of all reads, or of all writes",
        shown_as: ShownAs::Percent,
        advice: "stats hotkeys and the live page tell which. Have clients keep it for a moment, or \
         store it under several names.",
        fires: &[
            ("kachel_hottest_key_ratio{of=\"reads\"}", "0.25x20"),
            ("kachel_hottest_key_requests_per_second{of=\"reads\"}", "50000x20"),
        ],
        silent: &[
            ("kachel_hottest_key_ratio{of=\"reads\"}", "0.9x20"),
            ("kachel_hottest_key_requests_per_second{of=\"reads\"}", "50x20"),
        ],
        at: "10m",
        shown: "25%",
    },
    Alert {
        name: "KachelOneThreadBusy",
        expression: "max by (job, instance) \
         (rate(kachel_busy_seconds_total{shard!=\"others\"}[5m])) > 0.95 \
            and avg by (job, instance) (rate(kachel_busy_seconds_total{shard!=\"others\"}[5m])) < \
            0.6",
        holds: "10m",
        severity: "warning",
        says: "has one shard that is busy for VALUE of the time, while the others are not",
        shown_as: ShownAs::Percent,
        advice: "One key, or one connection, has most of the load. Have clients keep a hot key for \
         a moment, or store it under several names; spread the load over more connections.",
        fires: &[
            ("kachel_busy_seconds_total{shard=\"0\"}", "0+59.4x40"),
            ("kachel_busy_seconds_total{shard=\"1\"}", "0+6x40"),
        ],
        silent: &[
            ("kachel_busy_seconds_total{shard=\"0\"}", "0+59.4x40"),
            ("kachel_busy_seconds_total{shard=\"1\"}", "0+48x40"),
        ],
        at: "30m",
        shown: "99%",
    },
    Alert {
        name: "KachelSlowTicks",
        expression: "histogram_quantile(0.99, rate(kachel_tick_seconds_bucket[10m])) > 0.01",
        holds: "10m",
        severity: "warning",
        says: "needs VALUE or more for one of a hundred ticks, and requests wait for it",
        shown_as: ShownAs::Time,
        advice: "Look for other programs on the same cores, for requests with very many keys, and \
         for values of megabytes.",
        fires: &[
            ("kachel_tick_seconds_bucket{le=\"0.008388608\"}", "0+900x40"),
            ("kachel_tick_seconds_bucket{le=\"0.033554432\"}", "0+1000x40"),
            ("kachel_tick_seconds_bucket{le=\"+Inf\"}", "0+1000x40"),
        ],
        silent: &[
            ("kachel_tick_seconds_bucket{le=\"0.000131072\"}", "0+999x40"),
            ("kachel_tick_seconds_bucket{le=\"0.033554432\"}", "0+1000x40"),
            ("kachel_tick_seconds_bucket{le=\"+Inf\"}", "0+1000x40"),
        ],
        at: "30m",
        shown: "31.04ms",
    },
    Alert {
        name: "KachelLoginsRefused",
        expression: "increase(kachel_auth_errors_total[10m]) > 30",
        holds: "5m",
        severity: "warning",
        says: "has refused VALUE logins in 10 minutes",
        shown_as: ShownAs::Number,
        advice: "Somebody guesses passwords, or a client has an old one.",
        fires: &[("kachel_auth_errors_total", "0+60x30")],
        silent: &[("kachel_auth_errors_total", "0+1x30")],
        at: "20m",
        shown: "600",
    },
    Alert {
        name: "KachelCertificateExpires",
        expression: "kachel_tls_expires_seconds - time() > 0 < 14 * 86400",
        holds: "1h",
        severity: "warning",
        says: "has a certificate that expires in VALUE",
        shown_as: ShownAs::Time,
        advice: "Renew the certificate, and send SIGHUP or refresh_certs.",
        fires: &[("kachel_tls_expires_seconds", "90000x120")],
        silent: &[("kachel_tls_expires_seconds", "9000000x120")],
        at: "90m",
        shown: "23h 30m 0s",
    },
    Alert {
        name: "KachelCertificateExpired",
        expression: "time() - kachel_tls_expires_seconds > 0",
        holds: "5m",
        severity: "critical",
        says: "has a certificate that expired VALUE ago: clients refuse to connect",
        shown_as: ShownAs::Time,
        advice: "Renew the certificate, and send SIGHUP or refresh_certs.",
        fires: &[("kachel_tls_expires_seconds", "600x120")],
        silent: &[("kachel_tls_expires_seconds", "9000000x120")],
        at: "90m",
        shown: "1h 20m 0s",
    },
    Alert {
        name: "KachelPipeFull",
        expression: "kachel_pipe_items / kachel_pipe_items_max > 0.98 \
            and rate(kachel_pipe_passed_total[10m]) > rate(kachel_pipe_answered_total[10m])",
        holds: "15m",
        severity: "info",
        says: "has a pipe that is VALUE full and passes on more requests than it answers",
        shown_as: ShownAs::Percent,
        advice: "Raise --pipe-memory, if the keys that are read often do not fit.",
        fires: &[
            ("kachel_pipe_items", "990x40"),
            ("kachel_pipe_items_max", "1000x40"),
            ("kachel_pipe_passed_total", "0+600x40"),
            ("kachel_pipe_answered_total", "0+60x40"),
        ],
        silent: &[
            ("kachel_pipe_items", "990x40"),
            ("kachel_pipe_items_max", "1000x40"),
            ("kachel_pipe_passed_total", "0+60x40"),
            ("kachel_pipe_answered_total", "0+600x40"),
        ],
        at: "30m",
        shown: "99%",
    },
    Alert {
        name: "KachelPipeOff",
        expression: "kachel_pipe_on == 0",
        holds: "5m",
        severity: "warning",
        says: "has a pipe that answers nothing",
        shown_as: ShownAs::Nothing,
        advice: "stats pipe and the log say why it was switched off. The server answers the \
         requests itself.",
        fires: &[("kachel_pipe_on", "0x20")],
        silent: &[("kachel_pipe_on", "1 1 0 0 1x20")],
        at: "10m",
        shown: "",
    },
];
