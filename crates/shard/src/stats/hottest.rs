//! The answer to `stats hotkeys`.
//!
//! Upstream:   `topics`.
//! Downstream: the observers of the process.
//!
//! ```text
//! STAT hotkeys on
//! STAT reads:1:key 9d3f04c2a1b5e677          of the lists `reads`, `reads_by_bytes`,
//! STAT reads:1:requests_per_s 1520.3         `writes` and `writes_by_bytes`
//! STAT reads:1:requests_error_per_s 61.2
//! STAT reads:1:requests_percent 6.51
//! STAT reads:1:bytes_per_s ...
//! ```
//!
//! Invariants:
//! - H1  An answer has at most `TEXT_BYTES_MAX`. The first keys of all lists come first, so the
//!   last ones are left out.

use kachel_engine::Engine;
use kachel_observe::{HotKey, HotRate, HottestKeys};
use kachel_wire::Reply;

use crate::stats::topics::Answering;

/// The most bytes of the names and values of an answer (H1). Of 20 keys of each list, which have
/// hashes, an answer has about 20 KiB.
const TEXT_BYTES_MAX: usize = 40 << 10;

impl<E: Engine> Answering<'_, E> {
    /// Sends the hottest keys, at most `count` of each list.
    pub(crate) fn hottest_keys(&mut self, count: u32) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let now_ns = self.context.now_ns();
        match self.context.shared.hottest_keys(count, now_ns) {
            None => self.stat("hotkeys", b"off"),
            Some(hottest) => {
                self.stat("hotkeys", b"on");
                let stats = hottest_stats(&hottest);
                stats.iter().for_each(|(name, value)| self.stat(name, value));
            }
        }
        self.reply(Reply::End);
    }
}

/// The names and values of all lists, the first key of each list first (H1).
fn hottest_stats(hottest: &HottestKeys) -> Vec<(String, Vec<u8>)> {
    let HottestKeys { reads, writes } = hottest;
    let lists = [
        ("reads", &reads.by_requests),
        ("reads_by_bytes", &reads.by_bytes),
        ("writes", &writes.by_requests),
        ("writes_by_bytes", &writes.by_bytes),
    ];
    let longest = lists.iter().map(|(_, keys)| keys.len()).max().unwrap_or(0);
    let mut stats = Vec::new();
    let mut bytes = 0;
    for place in 0..longest {
        for (list, keys) in &lists {
            let Some(key) = keys.get(place) else { continue };
            let of_key = key_stats(list, place + 1, key);
            bytes += of_key.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
            if bytes > TEXT_BYTES_MAX {
                return stats;
            }
            stats.extend(of_key);
        }
    }
    stats
}

/// The names and values of a key.
fn key_stats(list: &str, place: usize, hot: &HotKey) -> [(String, Vec<u8>); 7] {
    let HotKey { requests, bytes, .. } = hot;
    let shown = hot.shown();
    let name = |field: &str| format!("{list}:{place}:{field}");
    let of = |what: &str, HotRate { per_s, error_per_s, share }: &HotRate| {
        [
            (name(&format!("{what}_per_s")), format!("{per_s:.1}").into_bytes()),
            (name(&format!("{what}_error_per_s")), format!("{error_per_s:.1}").into_bytes()),
            (name(&format!("{what}_percent")), format!("{:.3}", share * 100.0).into_bytes()),
        ]
    };
    let ([a, b, c], [d, e, f]) = (of("requests", requests), of("bytes", bytes));
    [(name("key"), shown.into_bytes()), a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use kachel_observe::HotLists;

    use super::*;

    #[test]
    fn an_answer_is_bounded_and_has_the_first_keys_of_all_lists() {
        let key = HotKey {
            shown_hash: 1,
            key: Some(vec![b' '; 250].into()),
            requests: HotRate::default(),
            bytes: HotRate::default(),
        };
        let list = || HotLists { by_requests: vec![key.clone(); 100], by_bytes: vec![key.clone()] };
        let stats = hottest_stats(&HottestKeys { reads: list(), writes: list() });
        let bytes: usize = stats.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!((TEXT_BYTES_MAX - 2_000..=TEXT_BYTES_MAX).contains(&bytes), "H1: {bytes}");
        let places = |list: &str| {
            let name = format!("{list}:");
            stats
                .iter()
                .filter(|(each, _)| each.starts_with(&name) && each.ends_with("key"))
                .count()
        };
        assert_eq!((places("reads_by_bytes"), places("writes_by_bytes")), (1, 1));
        assert!(places("reads").abs_diff(places("writes")) <= 1 && places("reads") > 10);
    }
}
