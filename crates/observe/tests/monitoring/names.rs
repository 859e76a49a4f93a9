//! The metrics of a server: name, type and sentence of each, read from what `/metrics` prints.
//!
//! Upstream:   the rows of the crate, printed for a server without a request.
//! Downstream: `docs/metrics.md`; the names that board and alerts may use.

use std::fmt::Write as _;

use kachel_engine::{ClassStats, FileReport};
use kachel_observe::{
    ClassNumbers, HottestKeys, Metrics, ObservedPrefixes, PipeNumbers, PrefixNumbers, ProcessFacts,
    REQUEST_KINDS, Row, TlsNumbers, Totals, class_metrics, engine_rows, general, hot_key_metrics,
    log_rows, own, pipe_rows, prefix_metrics, process_metrics, tls_rows,
};

const FACTS: ProcessFacts<'_> = ProcessFacts {
    pid: 1,
    uptime_s: 0,
    unix_s: 0,
    version: "",
    own_version: "",
    io_kind: "",
    user_us: 0,
    system_us: 0,
    connections_max: 0,
    connections: 0,
    limit_bytes: 0,
    spent_bytes: 0,
    pinned_bytes: 0,
    is_accepting: true,
    threads: 1,
    awake_cores: 1,
    spreads: 0,
    gathers: 0,
    core_trials: 0,
    flushed_prefixes: 0,
};

/// The settings that have metrics.
const SETTINGS: [(&str, &str); 8] = [
    ("lru_crawler", "yes"),
    ("lru_crawler_sleep", "100"),
    ("lru_crawler_tocrawl", "0"),
    ("lru_maintainer_thread", "yes"),
    ("hot_lru_pct", "20"),
    ("warm_lru_pct", "40"),
    ("hot_max_factor", "0.20"),
    ("warm_max_factor", "2.00"),
];

/// The servers that print a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// All; memcached_exporter has it, too.
    Exporter,
    /// All.
    Own,
    /// Those that show size classes.
    Classes,
    /// Those that observe hot keys.
    HotKeys,
    /// Those that observe prefixes.
    Prefixes,
    /// Those with TLS.
    Tls,
    /// Those with the pipe.
    Pipe,
    /// Those whose engines have files.
    Engine,
}

impl Group {
    pub(crate) const ALL: [Self; 8] = [
        Self::Exporter,
        Self::Own,
        Self::Classes,
        Self::HotKeys,
        Self::Prefixes,
        Self::Tls,
        Self::Pipe,
        Self::Engine,
    ];

    const fn heading(self) -> &'static str {
        match self {
            Self::Exporter => "Metrics of memcached_exporter",
            Self::Own => "Metrics that only Kachel has",
            Self::Classes => "Servers that show size classes (`--admin-classes`)",
            Self::HotKeys => "Servers that observe hot keys (`--observe=hotkeys`)",
            Self::Prefixes => {
                "Servers that observe prefixes (`--observe=prefixes`) which `--admin-prefixes` names"
            }
            Self::Tls => "Servers with TLS (`-Z`)",
            Self::Pipe => "Servers with the pipe (`--pipe`)",
            Self::Engine => "Servers whose engines have files (`--engine`, `stats engine`)",
        }
    }
}

/// A metric.
#[derive(Clone, Debug)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) group: Group,
    /// The names of its labels, in the order of a series. That of the buckets of histograms is not
    /// among them.
    pub(crate) labels: Vec<String>,
}

impl Metric {
    /// Whether series of this name belong to it.
    pub(crate) fn has_series(&self, name: &str) -> bool {
        let Some(part) = name.strip_prefix(&self.name) else { return false };
        let is_histogram = self.kind == "histogram";
        part.is_empty() || (is_histogram && matches!(part, "_bucket" | "_sum" | "_count"))
    }
}

/// The names of the labels of the first series of a metric in a text.
fn labels_in(text: &str, name: &str) -> Vec<String> {
    let of_series = |line: &str| Some(line.strip_prefix(name)?.strip_prefix('{')?.to_owned());
    let Some(series) = text.lines().find_map(of_series) else { return Vec::new() };
    let (labels, _) = series.rsplit_once('}').expect("a whole series");
    let pairs = labels.split("\",").map(|pair| pair.split_once("=\"").expect("a value").0);
    pairs.map(str::to_owned).collect()
}

/// What a server prints that has these rows of others beside its own.
fn text(others: &[Row<'_>]) -> String {
    let totals = Totals::new(1, 1);
    let mut metrics = Metrics::default();
    general(&totals, &FACTS, others, &mut |row| metrics.take(row));
    own(&totals, &FACTS, &[], &mut |row| metrics.take(row));
    metrics.take_totals(&totals);
    let settings = SETTINGS.map(|(name, value)| (name, value.into()));
    process_metrics(true, 0, true) + &metrics.text(settings)
}

/// What every server prints.
pub(crate) fn text_of_all() -> String {
    text(&[])
}

/// Every metric that a server may print, in the order of `/metrics`.
pub(crate) fn metrics() -> Vec<Metric> {
    let tls = TlsNumbers { new_sessions: Some(0), expires_s: Some(0), ..TlsNumbers::default() };
    // A class is shown once it was used.
    let class = ClassNumbers {
        number: 1,
        bytes_max: 96,
        gone: ClassStats::default(),
        requests: [1; REQUEST_KINDS],
    };
    let prefix = (Box::from(&b"user"[..]), PrefixNumbers::default());
    let prefixes = ObservedPrefixes {
        named: vec![prefix],
        walk_age_s: Some(0),
        ..ObservedPrefixes::default()
    };
    let mut all: Vec<Metric> = Vec::new();
    for (text, group) in [
        (text(&log_rows(0)), Group::Own),
        (class_metrics(&[class]), Group::Classes),
        (hot_key_metrics(&HottestKeys::default()), Group::HotKeys),
        (prefix_metrics(&prefixes), Group::Prefixes),
        (text(&tls_rows(&tls)), Group::Tls),
        (text(&pipe_rows(&PipeNumbers::default())), Group::Pipe),
        (text(&engine_rows(&FileReport::default())), Group::Engine),
    ] {
        let heads = text.lines().zip(text.lines().skip(1)).filter_map(|(first, second)| {
            let (name, help) = first.strip_prefix("# HELP ")?.split_once(' ')?;
            let kind = second.strip_prefix("# TYPE ")?.strip_prefix(name)?.trim();
            let is_of_all = group == Group::Own && name.starts_with("memcached_");
            let group = if is_of_all { Group::Exporter } else { group };
            let labels = labels_in(&text, name);
            Some(Metric { name: name.into(), kind: kind.into(), help: help.into(), group, labels })
        });
        for metric in heads {
            if !all.iter().any(|known| known.name == metric.name) {
                all.push(metric);
            }
        }
    }
    all
}

/// `docs/metrics.md`.
pub(crate) fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Every metric of `/metrics` (`--admin`). `crates/observe/tests/monitoring/main.rs` \
         generates this page from \
         what the server prints; a test fails if they differ. [operating.md](operating.md) says \
         how to use them.\n",
    );
    let metrics = metrics();
    for group in Group::ALL {
        let heading = group.heading();
        let _ = writeln!(page, "\n## {heading}\n");
        page += "| metric | type | labels | means |\n|---|---|---|---|\n";
        for metric in metrics.iter().filter(|it| it.group == group) {
            let Metric { name, kind, help, labels, .. } = metric;
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let _ = writeln!(page, "| `{name}` | {kind} | {} | {help} |", labels.join(", "));
        }
    }
    page
}
