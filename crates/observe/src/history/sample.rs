//! What the server did in one second.
//!
//! Upstream:   two readings.
//! Downstream: the ring of `SampleHistory`; `findings` and `json` read it.
//!
//! Invariants:
//! - G2  A number is finite and not negative, or NaN if the second had nothing of it, such as the
//!   latency of a second without ticks.

use crate::counters::{TICK_UNIT_NS, WAIT_UNIT_NS};
use crate::histogram::HistogramSum;
use crate::history::reading::{CoreReading, PipeReading, Reading, Tally};

macro_rules! sample {
    ($($(#[$doc:meta])+ $name:ident),+ $(,)?) => {
        /// What the server did between two readings, which are a second apart or more. Names of
        /// counts are events a second (G2).
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Sample { $($(#[$doc])+ pub $name: f64,)+ }

        impl Sample {
            /// The names of the numbers.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];

            /// The numbers, in the order of their names.
            pub fn values(&self) -> impl Iterator<Item = f64> + use<> {
                [$(self.$name),+].into_iter()
            }
        }
    };
}

sample! {
    /// The Unix time of its end, in seconds.
    time,
    /// Seconds from the reading before to this one.
    elapsed_s,
    /// Requests executed.
    requests,
    /// Keys read and found.
    hits,
    /// Keys read and not found.
    misses,
    /// Storage requests.
    sets,
    /// Deletes.
    deletes,
    /// `flush_all` and `flush_prefix` requests.
    flushes,
    /// Bytes received.
    received_bytes,
    /// Bytes sent.
    sent_bytes,
    /// Processors used in user mode.
    user_cores,
    /// Processors used in the kernel.
    system_cores,
    /// Processor time of a request, in microseconds.
    request_us,
    /// Half of the ticks took no longer, in microseconds.
    tick_p50_us,
    /// 99 % of the ticks took no longer, in microseconds.
    tick_p99_us,
    /// 99 % of the requests that waited did so no longer, in microseconds.
    wait_p99_us,
    /// The memory budget in bytes.
    limit_bytes,
    /// Bytes of the budget that are spent.
    spent_bytes,
    /// Bytes of items.
    item_bytes,
    /// Bytes of the index.
    index_bytes,
    /// Bytes of requests that wait.
    waiting_bytes,
    /// Bytes of values that are being sent.
    pinned_bytes,
    /// Bytes of replies that clients have not read.
    unread_bytes,
    /// Items.
    items,
    /// Items evicted.
    evictions,
    /// Items whose space came back because they had expired.
    expired,
    /// The mean time from the last use of an evicted item to its eviction, in seconds.
    evicted_age_s,
    /// Stores refused for lack of memory.
    refused,
    /// Connections.
    connections,
    /// The most connections.
    connections_max,
    /// Connections opened.
    opened,
    /// Connections refused at the limit.
    rejected,
    /// Connections closed because their clients were slow.
    slow_closes,
    /// Cores that serve clients.
    awake_cores,
    /// The part of the time in which the busiest core worked.
    busiest_core,
    /// 1 while the pipe answers; NaN if there is no pipe.
    pipe_on,
    /// Requests that the pipe has answered.
    pipe_answered,
    /// Requests that the pipe has passed to the server.
    pipe_passed,
    /// Copies that the pipe has.
    pipe_items,
    /// The most copies that fit into the pipe.
    pipe_items_max,
}

/// What a core did between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreSample {
    /// Requests a second.
    pub requests: f64,
    /// The part of the time in which the core worked.
    pub busy: f64,
    /// Connections.
    pub connections: u64,
}

impl Sample {
    /// What happened between two readings. `None` if no time has passed.
    pub(crate) fn between(before: &Reading, now: &Reading) -> Option<Self> {
        let elapsed_s = elapsed_s(before, now)?;
        let since = |count: fn(&Tally) -> u64| growth(count(&before.tally), count(&now.tally));
        let rate = |count: fn(&Tally) -> u64| since(count) / elapsed_s;
        let (user_us, system_us) = (since(|t| t.user_us), since(|t| t.system_us));
        let ticks = now.tick_times.since(&before.tick_times);
        let waits = now.waits.since(&before.waits);
        let busy = CoreSample::between(before, now).map(|core| core.busy);
        let gauges = &now.gauges;
        let mut sample = Self {
            time: gauges.unix_s as f64,
            elapsed_s,
            requests: rate(|t| t.requests),
            hits: rate(|t| t.hits),
            misses: rate(|t| t.misses),
            sets: rate(|t| t.sets),
            deletes: rate(|t| t.deletes),
            flushes: rate(|t| t.flushes + t.prefix_flushes),
            received_bytes: rate(|t| t.received_bytes),
            sent_bytes: rate(|t| t.sent_bytes),
            user_cores: user_us / 1e6 / elapsed_s,
            system_cores: system_us / 1e6 / elapsed_s,
            request_us: ratio(user_us + system_us, since(|t| t.requests)),
            tick_p50_us: percentile_us(&ticks, 500, TICK_UNIT_NS),
            tick_p99_us: percentile_us(&ticks, 990, TICK_UNIT_NS),
            wait_p99_us: percentile_us(&waits, 990, WAIT_UNIT_NS),
            limit_bytes: gauges.limit_bytes as f64,
            spent_bytes: gauges.spent_bytes as f64,
            item_bytes: gauges.item_bytes as f64,
            index_bytes: gauges.index_bytes as f64,
            waiting_bytes: gauges.waiting_bytes as f64,
            pinned_bytes: gauges.pinned_bytes as f64,
            unread_bytes: gauges.unread_bytes as f64,
            items: gauges.items as f64,
            evictions: rate(|t| t.evictions),
            expired: rate(|t| t.expired),
            evicted_age_s: ratio(since(|t| t.evicted_age_s), since(|t| t.evictions)),
            refused: rate(|t| t.refused),
            connections: gauges.connections.into(),
            connections_max: gauges.connections_max.into(),
            opened: rate(|t| t.opened),
            rejected: rate(|t| t.rejected),
            slow_closes: rate(|t| t.slow_closes),
            awake_cores: gauges.awake_cores.into(),
            busiest_core: busy.fold(0.0, f64::max),
            ..Self::default()
        };
        sample.note_pipe(before.pipe, now.pipe);
        debug_assert!(sample.values().all(|value| !(value < 0.0 || value.is_infinite())), "G2");
        Some(sample)
    }

    fn note_pipe(&mut self, before: Option<PipeReading>, now: Option<PipeReading>) {
        let has_pipe = if now.is_some() { 1.0 } else { f64::NAN };
        let now = now.unwrap_or_default();
        let before = before.unwrap_or(now);
        self.pipe_on = f64::from(u8::from(now.is_on)) * has_pipe;
        self.pipe_answered = growth(before.answered, now.answered) / self.elapsed_s * has_pipe;
        self.pipe_passed = growth(before.passed, now.passed) / self.elapsed_s * has_pipe;
        self.pipe_items = now.items as f64 * has_pipe;
        self.pipe_items_max = now.items_max as f64 * has_pipe;
    }

    /// Keys read.
    pub(crate) fn gets(&self) -> f64 {
        self.hits + self.misses
    }
}

impl CoreSample {
    /// What each core did between two readings.
    pub(crate) fn between(before: &Reading, now: &Reading) -> impl Iterator<Item = Self> {
        let elapsed_s = elapsed_s(before, now).unwrap_or(f64::INFINITY);
        let of = move |(before, now): (&CoreReading, &CoreReading)| Self {
            requests: growth(before.requests, now.requests) / elapsed_s,
            // A tick counts when it ends, so one that began before can be longer than this time.
            busy: (growth(before.busy_ns, now.busy_ns) / 1e9 / elapsed_s).min(1.0),
            connections: now.connections,
        };
        before.cores.iter().zip(&now.cores).map(of)
    }
}

fn elapsed_s(before: &Reading, now: &Reading) -> Option<f64> {
    let elapsed_ns = now.at_ns.checked_sub(before.at_ns).filter(|elapsed_ns| *elapsed_ns > 0)?;
    Some(elapsed_ns as f64 / 1e9)
}

/// By how much a count has grown.
fn growth(before: u64, now: u64) -> f64 {
    now.saturating_sub(before) as f64
}

/// `part / whole`; NaN if there is no whole.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { f64::NAN }
}

/// A percentile of times, in microseconds.
fn percentile_us(times: &HistogramSum, permille: u64, unit_ns: u64) -> f64 {
    if times.count() == 0 {
        return f64::NAN;
    }
    (times.percentile(permille) * unit_ns) as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rates_over_the_time_that_has_passed() {
        let before = Reading { at_ns: 5_000_000_000, ..Reading::default() };
        let tally = Tally {
            requests: 400,
            hits: 300,
            evictions: 4,
            evicted_age_s: 200,
            user_us: 1_500_000,
            system_us: 500_000,
            ..Tally::default()
        };
        let pipe = Some(PipeReading { answered: 50, items: 7, ..PipeReading::default() });
        let core = CoreReading { requests: 400, busy_ns: 500_000_000, connections: 3 };
        let mut now =
            Reading { at_ns: 7_000_000_000, tally, pipe, cores: vec![core], ..Reading::default() };
        let sample = Sample::between(&before, &now).expect("time has passed");
        assert_eq!((sample.elapsed_s, sample.requests, sample.hits), (2.0, 200.0, 150.0));
        assert_eq!((sample.evictions, sample.evicted_age_s), (2.0, 50.0));
        assert_eq!((sample.user_cores, sample.request_us), (0.75, 5000.0));
        assert_eq!((sample.pipe_items, sample.pipe_answered), (7.0, 0.0), "it came in between");
        assert!(sample.tick_p99_us.is_nan(), "there was no tick");
        now.pipe = None;
        let later = Reading { at_ns: 8_000_000_000, ..now.clone() };
        let sample = Sample::between(&now, &later).expect("time has passed");
        assert!(sample.request_us.is_nan() && sample.pipe_on.is_nan(), "there was none");
        assert_eq!(Sample::NAMES.len(), sample.values().count());
    }
}
