//! Metrics by size class (`--admin-classes`).
//!
//! Upstream:   the process, when it is scraped, on any thread.
//! Downstream: the counts of all engines and of all cores by class, which need no walk over items.
//!
//! The items of a class that are there now are counted only by such a walk (`census`), so the
//! metrics of memcached_exporter about them are not here. Requests of a class are counted in a
//! sample, which is what is shown: scaled up to all requests, a number could fall, and Prometheus
//! takes a counter that falls for a restart.
//!
//! Invariants:
//! - S1  A class has [`SERIES_PER_CLASS`] series. It is shown once one of its requests was in the
//!   sample, or one of its items is gone.

use std::fmt::Write as _;

use kachel_engine::ClassStats;

/// The series of a class: its length, the counts of the items that are gone, and requests.
const SERIES_PER_CLASS: usize = 1 + GONE.len() + REQUEST_KINDS;
/// The kinds of requests that are counted by class.
pub const REQUEST_KINDS: usize = KINDS.len();

/// The kinds of requests, as commands with a status, in the order of `stats slabs`.
pub(crate) const KINDS: [(&str, &str); 8] = [
    ("get", "hit"),
    ("set", "hit"),
    ("delete", "hit"),
    ("incr", "hit"),
    ("decr", "hit"),
    ("cas", "hit"),
    ("cas", "badval"),
    ("touch", "hit"),
];

/// A count of the items of a class that are gone.
type Gone = fn(&ClassStats) -> u64;

/// Those counts: the metric of memcached_exporter, its sentence, and the count.
const GONE: [(&str, &str, Gone); 6] = [
    (
        "memcached_slab_items_evicted_total",
        "Items of a size class that were evicted before they expired.",
        |gone| gone.evicted,
    ),
    (
        "memcached_slab_items_evicted_nonzero_total",
        "Items of a size class that were evicted and would have expired.",
        |gone| gone.evicted_with_expiry,
    ),
    (
        "memcached_slab_items_evicted_time_seconds",
        "Time from the last use of the item that was evicted last to its eviction.",
        |gone| gone.evicted_age_s,
    ),
    (
        "memcached_slab_items_evicted_unfetched_total",
        "Items of a size class that were evicted and never read.",
        |gone| gone.evicted_unfetched,
    ),
    (
        "memcached_slab_items_expired_unfetched_total",
        "Items of a size class that expired and were never read.",
        |gone| gone.expired_unfetched,
    ),
    (
        "memcached_slab_items_reclaimed_total",
        "Expired items of a size class whose space was reused.",
        |gone| gone.reclaimed,
    ),
];

/// The counts of a size class.
#[derive(Clone, Copy, Debug)]
pub struct ClassNumbers {
    /// The number of the class.
    pub number: u8,
    /// The longest items of the class in bytes.
    pub bytes_max: u32,
    /// Its items that are gone.
    pub gone: ClassStats,
    /// Its requests in the sample, by kind.
    pub requests: [u64; REQUEST_KINDS],
}

impl ClassNumbers {
    /// Whether anything of the class was counted (S1).
    fn is_used(&self) -> bool {
        self.gone != ClassStats::default() || self.requests.iter().any(|count| *count > 0)
    }
}

/// The metrics of the classes that have had items, in Prometheus' text format.
pub fn class_metrics(classes: &[ClassNumbers]) -> String {
    let used: Vec<&ClassNumbers> = classes.iter().filter(|class| class.is_used()).collect();
    let mut to = String::new();
    let mut series = 0;
    // The types are those of the exporter.
    let name = "memcached_slab_chunk_size_bytes";
    head(&mut to, name, "gauge", "The longest items of a size class.");
    for ClassNumbers { number, bytes_max, .. } in &used {
        let _ = writeln!(to, "{name}{{slab=\"{number}\"}} {bytes_max}");
        series += 1;
    }
    for (name, help, count) in GONE {
        head(&mut to, name, "counter", help);
        for ClassNumbers { number, gone, .. } in &used {
            let _ = writeln!(to, "{name}{{slab=\"{number}\"}} {}", count(gone));
            series += 1;
        }
    }
    let name = "kachel_class_sampled_requests_total";
    let help = "Requests by size class, of a sample: the first two requests of each tick.";
    head(&mut to, name, "counter", help);
    for ClassNumbers { number, requests, .. } in &used {
        for ((command, status), count) in KINDS.iter().zip(requests) {
            let labels = format!("slab=\"{number}\",command=\"{command}\",status=\"{status}\"");
            let _ = writeln!(to, "{name}{{{labels}}} {count}");
            series += 1;
        }
    }
    debug_assert!(series == used.len() * SERIES_PER_CLASS, "S1");
    to
}

fn head(to: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_never_had_an_item_are_not_shown() {
        let of = |number, gets| {
            let requests = [gets, 0, 0, 0, 0, 0, 0, 0];
            ClassNumbers { number, bytes_max: 96, gone: ClassStats::default(), requests }
        };
        let mut evicted = of(7, 0);
        evicted.gone.evicted = 3;
        let text = class_metrics(&[of(1, 5), of(2, 0), evicted]);
        let all =
            "kachel_class_sampled_requests_total{slab=\"1\",command=\"get\",status=\"hit\"} 5\n";
        assert!(text.contains(all), "{text}");
        assert!(text.contains("\nmemcached_slab_items_evicted_total{slab=\"7\"} 3\n"), "{text}");
        assert!(text.contains("\nmemcached_slab_chunk_size_bytes{slab=\"1\"} 96\n"), "{text}");
        assert!(!text.contains("slab=\"2\""), "{text}");
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(series, 2 * SERIES_PER_CLASS);
    }
}
