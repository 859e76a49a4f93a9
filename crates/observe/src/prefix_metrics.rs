//! Metrics of the prefixes that an option names (`--admin-prefixes`), while they are observed.
//!
//! Upstream:   the process, when it is scraped, on any thread.
//! Downstream: what prefixes have (`observers`).
//!
//! Invariants:
//! - L1  A label has only what the operator has given. So the series are at most
//!   [`SERIES_PER_PREFIX`] for each prefix that the option names, and one.

use std::fmt::Write as _;

use crate::metrics::escaped;
use crate::observers::{ObservedPrefixes, PrefixNumbers};

/// The series of a prefix.
const SERIES_PER_PREFIX: usize = METRICS.len();

/// A number of a prefix.
type Number = fn(&PrefixNumbers) -> u64;

/// The metrics of a prefix: name, type, sentence, and the number.
const METRICS: [(&str, &str, &str, Number); 6] = [
    ("kachel_prefix_items", "gauge", "Items of a prefix, as counted last.", |of| of.items),
    (
        "kachel_prefix_bytes",
        "gauge",
        "Memory that the items of a prefix take, as counted last.",
        |of| of.bytes,
    ),
    (
        "kachel_prefix_gets_total",
        "counter",
        "Keys read of a prefix; estimated from 1 of 256.",
        |of| of.gets,
    ),
    (
        "kachel_prefix_hits_total",
        "counter",
        "Keys read of a prefix and found; estimated from 1 of 256.",
        |of| of.hits,
    ),
    (
        "kachel_prefix_sets_total",
        "counter",
        "Items stored of a prefix; estimated from 1 of 256.",
        |of| of.sets,
    ),
    (
        "kachel_prefix_evictions_total",
        "counter",
        "Items evicted of a prefix; estimated from 1 of 256.",
        |of| of.evictions,
    ),
];

/// The metrics of the prefixes that an option names, in Prometheus' text format.
pub fn prefix_metrics(prefixes: &ObservedPrefixes) -> String {
    let ObservedPrefixes { named, walk_age_s, .. } = prefixes;
    let (mut to, mut series) = (String::new(), 0);
    for (name, kind, help, number) in METRICS {
        let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} {kind}");
        // Before all items were counted once, a sum of some engines would look like a loss.
        let is_known = kind == "counter" || walk_age_s.is_some();
        for (prefix, numbers) in named.iter().filter(|_| is_known) {
            let label = escaped(&String::from_utf8_lossy(prefix));
            let _ = writeln!(to, "{name}{{prefix=\"{label}\"}} {}", number(numbers));
            series += 1;
        }
    }
    debug_assert!(series <= named.len() * SERIES_PER_PREFIX, "L1");
    let name = "kachel_prefix_walk_age_seconds";
    let help =
        "How long ago the items of all prefixes were counted; not there before the first time.";
    let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} gauge");
    if let Some(age_s) = walk_age_s {
        let _ = writeln!(to, "{name} {age_s}");
    }
    to
}

#[cfg(test)]
mod tests {
    use crate::observers::ObservedPrefix;

    use super::*;

    /// L1.
    #[test]
    fn only_prefixes_that_an_option_names_are_labels() {
        let numbers = PrefixNumbers { items: 1, bytes: 2, gets: 3, hits: 4, sets: 5, evictions: 6 };
        let prefix = Some(Box::from(&b"of a client:"[..]));
        let one = ObservedPrefix { prefix, numbers, ..ObservedPrefix::default() };
        let named: [&[u8]; 2] = [b"user", b"a\"b\\"];
        let prefixes = ObservedPrefixes {
            listed: vec![one],
            named: named.map(|name| (name.into(), numbers)).into(),
            walk_age_s: Some(7),
            ..ObservedPrefixes::default()
        };
        let text = prefix_metrics(&prefixes);
        for line in [
            "kachel_prefix_items{prefix=\"user\"} 1",
            "kachel_prefix_bytes{prefix=\"a\\\"b\\\\\"} 2",
            "kachel_prefix_evictions_total{prefix=\"user\"} 6",
            "kachel_prefix_walk_age_seconds 7",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        assert!(!text.contains("client"), "{text}");
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(series, 2 * SERIES_PER_PREFIX + 1);
    }
}
