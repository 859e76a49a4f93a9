//! The metrics are those that memcached_exporter makes of a memcached, and Prometheus can read
//! them.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use kachel_observe::{Metrics, ProcessFacts, TICK_UNIT_NS, Totals, general, own};

/// A recorded scrape.
const RECORDED: &str = include_str!("data/exporter-0.16.0.txt");

const FACTS: ProcessFacts<'_> = ProcessFacts {
    pid: 7,
    uptime_s: 99,
    unix_s: 1_795_782_174,
    version: "1.6.45",
    own_version: "0.1 \"quoted\" \\",
    io_kind: "epoll",
    user_us: 1_250_000,
    system_us: 2,
    connections_max: 1024,
    connections: 3,
    limit_bytes: 1 << 26,
    spent_bytes: 1 << 20,
    pinned_bytes: 0,
    flushed_prefixes: 0,
    is_accepting: true,
    threads: 4,
    awake_cores: 1,
    spreads: 0,
    gathers: 0,
    core_trials: 0,
};

/// The metrics of these counters.
fn text(totals: &Totals) -> String {
    let mut metrics = Metrics::default();
    general(totals, &FACTS, &[], &mut |row| metrics.take(row));
    own(totals, &FACTS, &[], &mut |row| metrics.take(row));
    metrics.take_totals(totals);
    let settings = [
        ("maxconns", "1024"),
        ("lru_crawler", "yes"),
        ("lru_crawler_sleep", "100"),
        ("lru_crawler_tocrawl", "0"),
        ("lru_maintainer_thread", "yes"),
        ("hot_lru_pct", "20"),
        ("warm_lru_pct", "40"),
        ("hot_max_factor", "0.20"),
        ("warm_max_factor", "2.00"),
    ];
    metrics.text(settings.map(|(name, value)| (name, value.into())))
}

/// The series of a text, with their types and values.
fn series(text: &str) -> BTreeMap<String, (String, f64)> {
    let (mut types, mut all) = (BTreeMap::new(), BTreeMap::new());
    let mut of = "";
    for line in text.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').expect("a type");
            assert!(types.insert(name, kind).is_none(), "{name} stands twice");
            of = name;
        }
        if line.starts_with('#') {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let name = series.split('{').next().expect("a name");
        let parts = ["_bucket", "_sum", "_count"];
        let part = parts.iter().find_map(|part| name.strip_suffix(part));
        let name = part.filter(|part| types.get(part) == Some(&"histogram")).unwrap_or(name);
        assert_eq!(name, of, "the series of a metric stand together, behind its type");
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.chars().all(is_word), "{name} is a name");
        let value = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        let before = all.insert(series.to_owned(), (types[name].to_owned(), value));
        assert!(before.is_none(), "{series} stands twice");
    }
    all
}

#[test]
fn every_series_of_the_exporter_is_there_with_its_type() {
    let ours = series(&text(&Totals::new(2, 3)));
    let theirs = series(RECORDED);
    assert!(theirs.len() > 50, "{} series", theirs.len());
    for (name, (kind, _)) in &theirs {
        let own = ours.get(name).map(|(kind, _)| kind);
        assert_eq!(own, Some(kind), "{name}");
    }
    for name in ours.keys().filter(|name| name.starts_with("memcached_")) {
        assert!(theirs.contains_key(name), "{name} is ours");
    }
    assert!(ours.len() <= 300, "{} series", ours.len());
}

#[test]
fn each_number_is_the_one_of_stats() {
    let totals = Totals::new(2, 1);
    let counters = &totals.cores[0];
    counters.get_hits.add(10);
    totals.cores[1].get_hits.add(5);
    counters.sets.add(6);
    counters.cas_hits.add(2);
    counters.cas_badval.add(1);
    counters.longest_tick_us.set(2_500_000);
    totals.cores[1].longest_tick_us.set(1);
    totals.engines[0].items.set(77);
    [1, 3, 100].iter().for_each(|&requests| counters.tick_requests.note(requests));
    counters.tick_times.note(10_000 / TICK_UNIT_NS);
    let all = series(&text(&totals));
    let of = |name: &str| all[name].1;
    assert_eq!(of("memcached_commands_total{command=\"get\",status=\"hit\"}"), 15.0);
    assert_eq!(of("memcached_commands_total{command=\"set\",status=\"hit\"}"), 6.0);
    assert_eq!(of("memcached_commands_total{command=\"cas\",status=\"badval\"}"), 1.0);
    assert_eq!(of("memcached_current_items"), 77.0);
    assert_eq!(of("kachel_busy_seconds_total{shard=\"0\"}"), 9_984e-9, "in units of a tick");
    assert_eq!(of("kachel_busy_seconds_total{shard=\"1\"}"), 0.0);
    assert_eq!(of("memcached_process_user_cpu_seconds_total"), 1.25);
    assert_eq!(of("memcached_process_system_cpu_seconds_total"), 0.000_002);
    assert_eq!(of("kachel_longest_tick_seconds"), 2.5);
    assert_eq!(of("kachel_memory_spent_bytes"), f64::from(1 << 20));
    assert_eq!(of("kachel_requests_total"), 0.0);
    assert_eq!(of("kachel_tick_requests_bucket{le=\"3\"}"), 2.0);
    assert_eq!(of("kachel_tick_requests_bucket{le=\"+Inf\"}"), 3.0);
    assert_eq!(of("kachel_tick_requests_sum"), 104.0);
    assert_eq!(of("kachel_tick_requests_count"), 3.0);
    assert_eq!(of("kachel_tick_seconds_bucket{le=\"0.000008192\"}"), 0.0);
    assert_eq!(of("kachel_tick_seconds_bucket{le=\"0.000032768\"}"), 1.0);
}

/// M2: the number of series does not grow with the cores for ever.
#[test]
fn many_cores_have_few_series() {
    let totals = Totals::new(40, 1);
    for core in &totals.cores {
        core.tick_times.note(1_000_000_000 / TICK_UNIT_NS);
    }
    let all = series(&text(&totals));
    let busy = all.iter().filter(|(name, _)| name.starts_with("kachel_busy_seconds_total"));
    assert_eq!(busy.count(), 33);
    assert_eq!(all["kachel_busy_seconds_total{shard=\"31\"}"].1, 1.0);
    assert_eq!(all["kachel_busy_seconds_total{shard=\"others\"}"].1, 8.0);
    // TLS, the pipe, hot keys and the state of the process come to these.
    assert!(all.len() + 20 <= 300, "{} series", all.len());
    let mut row = String::new();
    own(&totals, &FACTS, &[], &mut |it| {
        if it.name == "kachel_busy_ms" {
            row = it.value.to_string();
        }
    });
    assert!(row.starts_with("0:1000,1:1000,") && row.ends_with(",31:1000,others:8000"), "{row}");
}

#[test]
fn units_stand_in_the_names_and_labels_are_escaped() {
    let text = text(&Totals::new(1, 1));
    let info = "kachel_build_info{version=\"0.1 \\\"quoted\\\" \\\\\",";
    assert!(text.contains(info), "{text}");
    for (name, (kind, _)) in series(&text) {
        if name.starts_with("kachel_") && kind == "counter" {
            let metric = name.split('{').next().expect("a name");
            assert!(metric.ends_with("_total"), "{name} is a counter");
        }
        assert!(kind == "histogram" || !name.ends_with("_count"), "{name} is no histogram");
        assert!(!name.ends_with("_us") && !name.ends_with("_us_total"), "{name} is in seconds");
    }
}
