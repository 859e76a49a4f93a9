//! The state of a server at one moment, typed, and the rates between two moments.
//!
//! Upstream:   `view`, with the numbers of each second.
//! Downstream: `findings` and `frame`.
//!
//! Invariants:
//! - R1  A rate is of one life of the server: none is told across a restart, and none of a counter
//!   that fell (`stats reset`).

use std::collections::BTreeMap;

use crate::numbers::Numbers;

/// The most threads whose load is shown: each is a character.
const THREADS_MAX: usize = 32;

/// What a server says about itself at one moment. Counts are since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// The memcached version that it shows.
    pub(crate) version: String,
    /// Kachel's version; `None` for other servers.
    pub(crate) kachel_version: Option<String>,
    pub(crate) uptime_s: f64,
    /// The process ID, which `/metrics` does not have.
    pub(crate) pid: Option<f64>,
    pub(crate) counts: Counts,
    pub(crate) items: f64,
    /// Bytes in use: of the whole budget in Kachel, of items in memcached.
    pub(crate) used_bytes: f64,
    pub(crate) limit_bytes: f64,
    pub(crate) connections: f64,
    pub(crate) connections_max: Option<f64>,
    pub(crate) threads: Option<f64>,
    pub(crate) awake_cores: Option<f64>,
    /// Seconds in which each thread was not asleep, with its name, as far as Kachel tells it.
    pub(crate) busy_s: Vec<(String, f64)>,
    /// Shards that do not answer; only an admin address knows.
    pub(crate) stopped_shards: f64,
    /// Whether clients should be sent there; only an admin address knows.
    pub(crate) is_ready: bool,
    /// memcached's evictions of each size class. Empty in Kachel, which has
    /// [`Counts::evicted_age_s`], and where only metrics are read.
    pub(crate) evicted_by_class: BTreeMap<String, Evicted>,
}

/// The evictions of a size class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Evicted {
    pub(crate) count: f64,
    /// Seconds from the last use of the last evicted item to its eviction.
    pub(crate) age_s: f64,
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counts since the start of a server, or between two moments, or a second.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub(crate) struct Counts {
            $($(#[$doc])* pub(crate) $name: f64,)+
        }

        impl Counts {
            /// The growth a second since `before`, `seconds` earlier. `None` if one fell (R1).
            fn since(&self, before: &Self, seconds: f64) -> Option<Self> {
                debug_assert!(seconds > 0.0, "time passes");
                $(if self.$name < before.$name {
                    return None;
                })+
                Some(Self { $($name: (self.$name - before.$name) / seconds,)+ })
            }
        }
    };
}

counts! {
    hits,
    misses,
    sets,
    /// Deletes, increments, decrements and touches.
    others,
    /// Each key of a read is one.
    requests,
    received_bytes,
    sent_bytes,
    evictions,
    /// Seconds from the last use of each evicted item to its eviction, in all; only Kachel has it.
    evicted_age_s,
    expired,
    refused_stores,
    opened,
    refused_clients,
    user_s,
    system_s,
}

impl Counts {
    pub(crate) const fn gets(&self) -> f64 {
        self.hits + self.misses
    }
}

/// The times of single threads: `0:1234,1:56,others:7` in milliseconds in `stats kachel`, and
/// already apart in metrics.
fn busy_s(numbers: &Numbers) -> Vec<(String, f64)> {
    let text = numbers.text("kachel_busy_ms").unwrap_or_default();
    let entries = text.split(',').filter_map(|entry| {
        let (name, ms) = entry.split_once(':').filter(|(name, _)| *name != "others")?;
        let ms: f64 = ms.parse().ok()?;
        (ms.is_finite() && ms >= 0.0).then(|| (name.to_owned(), ms / 1000.0))
    });
    entries.take(THREADS_MAX).collect()
}

impl Reading {
    /// The reading of these numbers.
    ///
    /// Errors: they are not those of a server that serves clients.
    pub(crate) fn of(numbers: &Numbers) -> Result<Self, String> {
        if numbers.number("up") == Some(0.0) {
            return Err("the server does not serve clients: it starts or ends".into());
        }
        let known = |name: &str| numbers.number(name);
        let number = |name: &str| known(name).unwrap_or(0.0);
        let Some(uptime_s) = known("uptime") else {
            return Err("the answer has no statistics of a memcached".into());
        };
        let names = ["delete", "incr", "decr", "touch"];
        let both = |name: &str| number(&format!("{name}_hits")) + number(&format!("{name}_misses"));
        let mut counts = Counts {
            hits: number("get_hits"),
            misses: number("get_misses"),
            sets: number("cmd_set"),
            others: names.into_iter().map(both).sum(),
            requests: 0.0,
            received_bytes: number("bytes_read"),
            sent_bytes: number("bytes_written"),
            evictions: number("evictions"),
            evicted_age_s: number("kachel_evicted_age_s"),
            expired: number("reclaimed"),
            refused_stores: number("store_no_memory"),
            opened: number("total_connections"),
            refused_clients: number("rejected_connections"),
            user_s: number("rusage_user"),
            system_s: number("rusage_system"),
        };
        let served = counts.gets() + counts.sets + counts.others;
        counts.requests = known("kachel_requests").unwrap_or(served);
        let text = |name: &str| numbers.text(name).map(str::to_owned);
        let by_class = numbers.numbers_of("items:", ":evicted");
        let by_class = by_class.filter_map(|(class, count)| {
            let age_s = known(&format!("items:{class}:evicted_time"))?;
            Some((class.to_owned(), Evicted { count, age_s }))
        });
        Ok(Self {
            version: text("version").unwrap_or_default(),
            kachel_version: text("kachel_version"),
            uptime_s,
            pid: known("pid"),
            counts,
            items: number("curr_items"),
            used_bytes: known("kachel_memory_spent").unwrap_or_else(|| number("bytes")),
            limit_bytes: number("limit_maxbytes"),
            connections: number("curr_connections"),
            connections_max: known("max_connections"),
            threads: known("threads"),
            awake_cores: known("kachel_awake_cores"),
            busy_s: busy_s(numbers),
            stopped_shards: number("kachel_stopped_shards"),
            is_ready: known("kachel_ready") != Some(0.0),
            evicted_by_class: by_class.collect(),
        })
    }

    /// Whether this is another life of the server than `before`.
    pub(crate) fn is_restarted_since(&self, before: &Self) -> bool {
        let is_other = matches!((self.pid, before.pid), (Some(one), Some(other)) if one != other);
        is_other || self.uptime_s < before.uptime_s
    }

    /// The counts a second since `before`, `seconds` earlier. `None` if there is no such rate (R1).
    pub(crate) fn rates(&self, before: &Self, seconds: f64) -> Option<Counts> {
        if self.is_restarted_since(before) || seconds <= 0.0 {
            return None;
        }
        let mut rates = self.counts.since(&before.counts, seconds)?;
        for (class, now) in &self.evicted_by_class {
            let count_before =
                before.evicted_by_class.get(class).map_or(0.0, |before| before.count);
            // The items of a class that left in a second are taken to be as old as the last one.
            rates.evicted_age_s += (now.count - count_before).max(0.0) * now.age_s / seconds;
        }
        Some(rates)
    }

    /// The part of the time in which each thread was busy since `before`, `seconds` earlier, from
    /// 0 to 1. Empty if it is not known, or the threads are others (R1).
    pub(crate) fn loads(&self, before: &Self, seconds: f64) -> Vec<f64> {
        let pairs = self.busy_s.iter().zip(&before.busy_s);
        let is_same = self.busy_s.len() == before.busy_s.len()
            && pairs.clone().all(|((name, now), (other, then))| name == other && now >= then);
        if !is_same || self.is_restarted_since(before) || seconds <= 0.0 {
            return Vec::new();
        }
        pairs.map(|((_, now), (_, then))| ((now - then) / seconds).min(1.0)).collect()
    }

    /// The mean time from the last use of the items that `rates` evicts to their eviction. `None`
    /// if there are none, or the server does not tell it.
    pub(crate) fn evicted_age_s(&self, rates: &Counts) -> Option<f64> {
        let is_told = self.kachel_version.is_some() || !self.evicted_by_class.is_empty();
        (is_told && rates.evictions > 0.0).then(|| rates.evicted_age_s / rates.evictions)
    }
}
