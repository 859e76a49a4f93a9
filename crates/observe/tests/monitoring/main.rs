//! The list of metrics, the Grafana board and the alert rules, which are generated here and kept in
//! the tree.
//!
//! `KACHEL_BLESS=1 cargo test -p kachel-observe --test monitoring` writes them. The names come from
//! what `/metrics` prints, and no expression names anything else. `promtool` is run by hand:
//!
//! ```sh
//! cd packaging/prometheus
//! promtool check rules kachel.rules.yml && promtool test rules kachel.tests.yml
//! ```

#![forbid(unsafe_code)]

mod alerts;
mod board;
mod names;
mod rules;

use std::collections::BTreeSet;
use std::path::PathBuf;

use kachel_observe::{
    CERTIFICATE_NEAR_DAYS, CONNECTIONS_NEAR, EVICTED_AGE_MIN_S, EVICTIONS_MIN, HOT_SHARE,
    HOT_WARNING, PIPE_FULL, THREADS_BUSY, UNREAD_PART, series_of_rows,
};

use names::{Group, Metric};

/// The generated files: their paths in the tree, and their contents.
fn generated() -> [(&'static str, String); 4] {
    [
        ("docs/metrics.md", names::page()),
        ("packaging/grafana/kachel.json", board::board()),
        ("packaging/prometheus/kachel.rules.yml", rules::rules()),
        ("packaging/prometheus/kachel.tests.yml", rules::tests()),
    ]
}

fn path_of(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

/// The names of metrics in a text: the words that begin as ours do.
fn named_in(text: &str) -> BTreeSet<&str> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_of_word(c));
    words.filter(|word| word.starts_with("memcached_") || word.starts_with("kachel_")).collect()
}

/// Whether one of these metrics has series of this name.
fn is_of(metrics: &[Metric], name: &str) -> bool {
    metrics.iter().any(|metric| metric.has_series(name))
}

#[test]
fn the_files_are_what_the_lists_say() {
    for (file, wanted) in generated() {
        let path = path_of(file);
        if std::env::var_os("KACHEL_BLESS").is_some() {
            std::fs::write(&path, &wanted).expect("it can be written");
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        let command = "KACHEL_BLESS=1 cargo test -p kachel-observe --test monitoring";
        assert!(written == wanted, "{file}: run {command}");
    }
}

#[test]
fn each_expression_names_only_what_is_printed() {
    let (metrics, of_board) = (names::metrics(), board::expressions());
    let of_alerts = alerts::ALERTS.iter().map(|alert| alert.expression.to_owned());
    let mut count = 0;
    for expression in of_board.into_iter().chain(of_alerts) {
        let names = named_in(&expression);
        let is_of_prometheus = expression.starts_with("up{");
        assert!(is_of_prometheus || !names.is_empty(), "{expression} has a metric");
        for name in names {
            assert!(is_of(&metrics, name), "{name} of {expression}");
            count += 1;
        }
    }
    assert!(count > 50, "{count} names");
}

#[test]
fn the_series_of_the_rule_tests_are_printed() {
    let metrics = names::metrics();
    for alert in alerts::ALERTS {
        for (series, _) in alert.fires.iter().chain(alert.silent) {
            let name = series.split('{').next().expect("a name");
            assert!(name == "up" || is_of(&metrics, name), "{}: {series}", alert.name);
        }
    }
}

/// The page for operators names metrics, and each alert with what it means.
#[test]
fn the_page_on_operating_names_what_is_there() {
    let page = std::fs::read_to_string(path_of("docs/operating.md")).expect("the page");
    let (_, section) = page.split_once("\n## Board and alerts\n").expect("its section");
    let (section, _) = section.split_once("\n## ").expect("the next section");
    for alert in alerts::ALERTS {
        assert!(section.contains(&format!("| `{}` |", alert.name)), "{} is not there", alert.name);
    }
    let metrics = names::metrics();
    for name in named_in(section) {
        assert!(is_of(&metrics, name), "{name}");
    }
}

#[test]
fn each_metric_has_a_sentence_and_one_group() {
    let metrics = names::metrics();
    let names: BTreeSet<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(names.len(), metrics.len(), "no name stands twice");
    for group in Group::ALL {
        assert!(metrics.iter().any(|metric| metric.group == group), "{group:?} has some");
    }
    for metric in &metrics {
        assert!(metric.help.ends_with('.'), "{}: {}", metric.name, metric.help);
    }
}

/// The fault: an alert, the page and `kachel top` each had the number that one of them judges by.
#[test]
fn alerts_have_the_thresholds_of_the_findings() {
    let days = CERTIFICATE_NEAR_DAYS;
    let thresholds = [
        ("KachelMemoryTooSmall", format!(" < {EVICTED_AGE_MIN_S} ")),
        ("KachelMemoryTooSmall", format!(" > {EVICTIONS_MIN}")),
        ("KachelConnectionsUsedUp", format!(" > {CONNECTIONS_NEAR} ")),
        ("KachelRepliesUnread", format!(" > {UNREAD_PART}")),
        ("KachelCoresBusy", format!(" > {THREADS_BUSY}")),
        ("KachelHotKey", format!(" > {HOT_SHARE}")),
        ("KachelHotKey", format!(" > {HOT_WARNING})")),
        ("KachelCertificateExpires", format!(" < {days} * 86400")),
        ("KachelPipeFull", format!(" > {PIPE_FULL} ")),
    ];
    for (name, threshold) in thresholds {
        let alert = alerts::ALERTS.iter().find(|alert| alert.name == name).expect(name);
        let expression = format!("{} ", alert.expression);
        assert!(expression.contains(&threshold), "{name}:{threshold}: {expression}");
    }
}

/// A program that reads `/metrics`, such as `kachel top`, finds each row there.
#[test]
fn each_series_of_a_row_is_printed() {
    let text = names::text_of_all();
    let series: BTreeSet<&str> =
        text.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    let rows = series_of_rows();
    for (name, row) in &rows {
        assert!(series.contains(name.as_str()), "{name} of {row}");
    }
    assert!(rows.len() > 80, "{} rows", rows.len());
    let places: BTreeSet<_> = rows.iter().collect();
    assert_eq!(places.len(), rows.len(), "no series counts twice for a row");
}
