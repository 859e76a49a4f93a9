//! Metrics of the hottest key (`--observe=hotkeys`), which say that there is one, and not which.
//!
//! Upstream:   the process, when it is scraped, on any thread.
//! Downstream: the lists of the hottest keys (`observers`).
//!
//! Invariants:
//! - H1  No series has a key, or its hash.

use std::fmt::Write as _;

use crate::observers::{HotKey, HotRate, HottestKeys};

/// The metrics of the hottest key of reads and of writes, in Prometheus' text format.
pub fn hot_key_metrics(hottest: &HottestKeys) -> String {
    let first = |keys: &[HotKey]| keys.first().map_or_else(HotRate::default, |key| key.requests);
    let rates = [
        ("reads", first(&hottest.reads.by_requests)),
        ("writes", first(&hottest.writes.by_requests)),
    ];
    let mut to = String::new();
    let name = "kachel_hottest_key_ratio";
    let help = "The part of all reads, or of all writes, that the hottest key has; from a sample.";
    let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} gauge");
    for (of, HotRate { share, .. }) in rates {
        let _ = writeln!(to, "{name}{{of=\"{of}\"}} {share}");
    }
    let name = "kachel_hottest_key_requests_per_second";
    let help = "The reads, or the writes, of the hottest key in a second; from a sample.";
    let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} gauge");
    for (of, HotRate { per_s, .. }) in rates {
        let _ = writeln!(to, "{name}{{of=\"{of}\"}} {per_s}");
    }
    to
}

#[cfg(test)]
mod tests {
    use crate::observers::HotLists;

    use super::*;

    /// H1.
    #[test]
    fn the_share_of_the_hottest_key_is_told_and_not_the_key() {
        let requests = HotRate { per_s: 1234.5, error_per_s: 9.0, share: 0.25 };
        let key = Some(b"secret".to_vec().into_boxed_slice());
        let hot = HotKey { shown_hash: 0xfeed, key, requests, bytes: HotRate::default() };
        let reads = HotLists { by_requests: vec![hot], by_bytes: Vec::new() };
        let text = hot_key_metrics(&HottestKeys { reads, writes: HotLists::default() });
        assert!(text.contains("\nkachel_hottest_key_ratio{of=\"reads\"} 0.25\n"), "{text}");
        let rate = "\nkachel_hottest_key_requests_per_second{of=\"reads\"} 1234.5\n";
        assert!(text.contains(rate), "{text}");
        assert!(text.contains("\nkachel_hottest_key_ratio{of=\"writes\"} 0\n"), "{text}");
        assert!(!text.contains("secret") && !text.contains("feed"), "{text}");
    }
}
