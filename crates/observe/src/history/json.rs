//! The history, and what is wrong, as JSON for the live page.
//!
//! Upstream:   `kachel`, for each update of the page and when it is opened.
//! Downstream: the page (`crates/admin/page/page.js`).
//!
//! The writer is ours: all names are ASCII literals, so that only texts need escapes, and a
//! serializer would be a second description of each type.
//!
//! Invariants:
//! - J1  Numbers that JSON does not have (NaN) are written as `null`.
//! - J2  A text cannot end its string, nor the `<script>` or the line that it may stand in
//!   (`kachel_stdx::put_json_text`).
//! - J3  An update has at most [`CORES_MAX`] cores, [`HOT_KEYS_MAX`] keys of each list, and
//!   [`PREFIXES_SHOWN_MAX`] prefixes. So it is at most about 80 KiB.

use std::fmt::Write as _;

use kachel_engine::{MODEL_ACTUAL, MODEL_QUARTERS};
use kachel_stdx::put_json_text;

use crate::histogram::HistogramSum;
use crate::history::findings::{Circumstances, HealthFinding, ServePhase, findings};
use crate::history::sample::{CoreSample, Sample};
use crate::history::{Gauges, SampleHistory, Tally};
use crate::observers::{
    CurvePoint, CurveState, HotKey, HottestKeys, MissCurve, ObservedPrefixes, PrefixErrors,
    PrefixNumbers,
};

/// The most cores that an update tells about. A page shows no more.
pub(crate) const CORES_MAX: usize = 256;

/// The most keys of a list of hot ones.
pub const HOT_KEYS_MAX: usize = 10;

/// The most prefixes.
pub const PREFIXES_SHOWN_MAX: usize = 10;

/// The memory that the server has, in quarters of it.
const QUARTERS_NOW: u32 = MODEL_QUARTERS[MODEL_ACTUAL];

/// What an update tells besides the history.
#[derive(Clone, Copy, Debug)]
pub struct Newest<'a> {
    /// A text that another start of the server does not have.
    pub incarnation: &'a str,
    /// Kachel's version.
    pub version: &'a str,
    /// What else is known about the server.
    pub circumstances: Circumstances<'a>,
    /// What prefixes have, at most [`PREFIXES_SHOWN_MAX`] of them, if they are observed.
    pub prefixes: Option<&'a ObservedPrefixes>,
}

/// Writes an update: the newest sample, what is wrong, and counts since the start.
pub fn write_now(history: &SampleHistory, newest: &Newest<'_>, to: &mut String) {
    let Newest { incarnation, version, circumstances, prefixes } = newest;
    to.push('{');
    text_field(to, "incarnation", incarnation);
    to.push(',');
    text_field(to, "version", version);
    to.push(',');
    text_field(to, "phase", circumstances.phase.name());
    let _ = write!(to, ",\"findings\":");
    list(to, findings(history, circumstances).iter(), finding);
    let _ = write!(to, ",\"sample\":");
    match history.newest() {
        None => to.push_str("null"),
        Some(sample) => sample_object(to, sample),
    }
    let _ = write!(to, ",\"cores\":");
    let cores = history.cores().iter().enumerate().take(CORES_MAX);
    list(to, cores, |to, (core, sample)| core_object(to, core, sample, circumstances));
    if let Some(HottestKeys { reads, writes }) = circumstances.hottest {
        hot_keys(to, "reads", &reads.by_requests);
        hot_keys(to, "writes", &writes.by_requests);
        hot_keys(to, "read_bytes", &reads.by_bytes);
    }
    if let Some(curve) = circumstances.curve {
        miss_curve(to, curve);
    }
    if let Some(prefixes) = prefixes {
        observed_prefixes(to, prefixes);
    }
    if let Some(reading) = history.reading() {
        totals(to, &reading.tally, &reading.gauges);
        powers(to, "sizes", &reading.stored_bytes);
        powers(to, "ttls", &reading.stored_ttl_s);
    }
    to.push('}');
}

/// Writes all samples, the oldest first, each as a list of numbers in the order of `names`.
pub fn write_history(history: &SampleHistory, incarnation: &str, to: &mut String) {
    to.push('{');
    text_field(to, "incarnation", incarnation);
    let _ = write!(to, ",\"names\":");
    list(to, Sample::NAMES.iter(), |to, name| put_json_text(to, name));
    let _ = write!(to, ",\"samples\":");
    list(to, history.samples(), |to, sample| list(to, sample.values(), number));
    to.push('}');
}

fn finding(to: &mut String, finding: &HealthFinding) {
    to.push('{');
    text_field(to, "name", finding.name);
    to.push(',');
    text_field(to, "severity", finding.severity.name());
    to.push(',');
    text_field(to, "what", &finding.what);
    to.push(',');
    text_field(to, "advice", &finding.advice);
    to.push('}');
}

fn sample_object(to: &mut String, sample: &Sample) {
    to.push('{');
    for (place, (name, value)) in Sample::NAMES.iter().zip(sample.values()).enumerate() {
        separate(to, place);
        let _ = write!(to, "\"{name}\":");
        number(to, value);
    }
    to.push('}');
}

fn core_object(to: &mut String, core: usize, sample: &CoreSample, of: &Circumstances<'_>) {
    let CoreSample { requests, busy, connections } = *sample;
    let _ = write!(to, "{{\"requests\":");
    number(to, requests);
    let _ = write!(to, ",\"busy\":");
    number(to, busy);
    let stopped = of.phase == ServePhase::Serving && of.stopped.contains(&core);
    let _ = write!(to, ",\"connections\":{connections},\"stopped\":{stopped}}}");
}

/// Counts since the start, under the names that `stats` has.
fn totals(to: &mut String, tally: &Tally, gauges: &Gauges) {
    let _ = write!(to, ",\"totals\":{{");
    let named = [
        ("uptime", gauges.uptime_s.into()),
        ("kachel_requests", tally.requests),
        ("cmd_get", tally.hits + tally.misses),
        ("get_hits", tally.hits),
        ("get_misses", tally.misses),
        ("cmd_set", tally.sets),
        ("cmd_flush", tally.flushes),
        ("kachel_cmd_flush_prefix", tally.prefix_flushes),
        ("evictions", tally.evictions),
        ("reclaimed", tally.expired),
        ("store_no_memory", tally.refused),
        ("bytes_read", tally.received_bytes),
        ("bytes_written", tally.sent_bytes),
        ("total_connections", tally.opened),
        ("rejected_connections", tally.rejected),
        ("curr_connections", gauges.connections.into()),
        ("curr_items", gauges.items),
        ("bytes", gauges.item_bytes),
        ("limit_maxbytes", gauges.limit_bytes),
    ];
    for (place, (name, count)) in named.into_iter().enumerate() {
        separate(to, place);
        let _ = write!(to, "\"{name}\":{count}");
    }
    to.push('}');
}

/// A list of keys, with their rates.
fn hot_keys(to: &mut String, name: &str, keys: &[HotKey]) {
    let _ = write!(to, ",\"hot_{name}\":");
    list(to, keys.iter().take(HOT_KEYS_MAX), |to, key| {
        to.push('{');
        shown_field(to, "key", &key.shown(), key.key.is_none());
        for (name, value) in [
            ("requests", key.requests.per_s),
            ("requests_error", key.requests.error_per_s),
            ("requests_share", key.requests.share),
            ("bytes", key.bytes.per_s),
            ("bytes_share", key.bytes.share),
        ] {
            let _ = write!(to, ",\"{name}\":");
            number(to, value);
        }
        to.push('}');
    });
}

/// What more or less memory is worth. There are points only if they can be trusted.
fn miss_curve(to: &mut String, curve: &MissCurve) {
    let _ = write!(to, ",\"curve\":{{");
    text_field(to, "state", curve.state.word());
    to.push(',');
    text_field(to, "advice", &curve.advice());
    let _ = write!(to, ",\"points\":");
    let is_reliable = curve.state == CurveState::Reliable;
    list(to, curve.points.iter().filter(|_| is_reliable), |to, point| {
        let CurvePoint { quarters, memory_bytes, miss_ratio } = *point;
        let is_now = quarters == QUARTERS_NOW;
        let _ = write!(to, "{{\"memory_bytes\":{memory_bytes},\"is_now\":{is_now},\"misses\":");
        number(to, miss_ratio);
        to.push('}');
    });
    to.push('}');
}

/// What the prefixes with the most bytes have, the others, and the keys without a delimiter.
fn observed_prefixes(to: &mut String, prefixes: &ObservedPrefixes) {
    let ObservedPrefixes { listed, others, none, walk_age_s, .. } = prefixes;
    debug_assert!(listed.len() <= PREFIXES_SHOWN_MAX, "J3: the caller asks for no more");
    let _ = write!(to, ",\"prefixes\":{{\"walk_age_s\":");
    match walk_age_s {
        Some(age_s) => _ = write!(to, "{age_s}"),
        None => to.push_str("null"),
    }
    let _ = write!(to, ",\"listed\":");
    list(to, listed.iter(), |to, prefix| {
        to.push('{');
        shown_field(to, "name", &prefix.shown(), prefix.prefix.is_none());
        to.push(',');
        prefix_numbers(to, &prefix.numbers);
        let PrefixErrors { bytes, gets, hits, sets, evictions } = &prefix.errors;
        let _ = write!(
            to,
            ",\"bytes_error\":{bytes},\"gets_error\":{gets},\"hits_error\":{hits},\
             \"sets_error\":{sets},\"evictions_error\":{evictions}}}"
        );
    });
    for (name, numbers) in [("others", others), ("none", none)] {
        let _ = write!(to, ",\"{name}\":{{");
        prefix_numbers(to, numbers);
        to.push('}');
    }
    to.push('}');
}

fn prefix_numbers(to: &mut String, numbers: &PrefixNumbers) {
    let PrefixNumbers { items, bytes, gets, hits, sets, evictions } = numbers;
    let _ = write!(
        to,
        "\"items\":{items},\"bytes\":{bytes},\"gets\":{gets},\"hits\":{hits},\"sets\":{sets},\
         \"evictions\":{evictions}"
    );
}

fn powers(to: &mut String, name: &str, sum: &HistogramSum) {
    let _ = write!(to, ",\"{name}\":");
    list(to, sum.by_power().iter(), |to, count| _ = write!(to, "{count}"));
}

fn list<T>(to: &mut String, all: impl Iterator<Item = T>, one: impl Fn(&mut String, T)) {
    to.push('[');
    for (place, item) in all.enumerate() {
        separate(to, place);
        one(to, item);
    }
    to.push(']');
}

fn separate(to: &mut String, place: usize) {
    if place > 0 {
        to.push(',');
    }
}

/// A number with at most five decimals (J1).
fn number(to: &mut String, value: f64) {
    let rounded = (value * 1e5).round() / 1e5;
    if rounded.is_finite() {
        let _ = write!(to, "{rounded}");
    } else {
        to.push_str("null");
    }
}

fn text_field(to: &mut String, name: &str, value: &str) {
    let _ = write!(to, "\"{name}\":");
    put_json_text(to, value);
}

/// What is shown of a key or prefix. A name may look like a hash, so a hash is marked. A hash with
/// its mark is shorter than the longest name (J3).
fn shown_field(to: &mut String, name: &str, shown: &str, is_hash: bool) {
    text_field(to, name, shown);
    if is_hash {
        to.push_str(",\"is_hash\":true");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Reading;
    use crate::observers::{HotLists, ObservedPrefix};

    #[test]
    fn numbers_are_those_of_json() {
        let numbers = [0.1 + 0.2, f64::NAN, 1e12, 0.000_004, 5.0, f64::INFINITY];
        let mut to = String::new();
        list(&mut to, numbers.into_iter(), number);
        assert_eq!(to, "[0.3,null,1000000000000,0,5,null]", "J1");
    }

    #[test]
    fn hashes_are_marked_and_names_that_look_like_them_are_not() {
        for (key, marks) in [(None, 1), (Some(Box::from(*b"0000000000000007")), 0)] {
            let has_marks = |text: &str| text.matches(",\"is_hash\":true").count() == marks;
            let mut keys = String::new();
            let hot = HotKey { shown_hash: 7, key: key.clone(), ..HotKey::default() };
            hot_keys(&mut keys, "reads", &[hot]);
            assert!(keys.contains("\"0000000000000007\"") && has_marks(&keys), "{keys}");
            let mut prefixes = String::new();
            let one = ObservedPrefix { shown_hash: 7, prefix: key, ..ObservedPrefix::default() };
            let all = ObservedPrefixes { listed: vec![one], ..ObservedPrefixes::default() };
            observed_prefixes(&mut prefixes, &all);
            assert!(
                prefixes.contains("\"0000000000000007\"") && has_marks(&prefixes),
                "{prefixes}"
            );
        }
    }

    #[test]
    fn an_update_is_one_line_and_bounded() {
        let mut history = SampleHistory::default();
        for second in 1..=3 {
            let cores = vec![Default::default(); 5000];
            history.note(Reading { at_ns: second * 1_000_000_000, cores, ..Reading::default() });
        }
        let stopped: Vec<usize> = (0..5000).collect();
        let key = Some(Box::from([b'<'; 250]));
        let hot = HotKey { shown_hash: 7, key, ..HotKey::default() };
        let lists = HotLists { by_requests: vec![hot.clone(); 100], by_bytes: vec![hot; 100] };
        let hottest = HottestKeys { reads: lists.clone(), writes: lists };
        let point = |quarters| CurvePoint {
            quarters,
            memory_bytes: u64::from(quarters) << 20,
            miss_ratio: 0.1,
        };
        let curve = MissCurve {
            state: CurveState::Reliable,
            points: MODEL_QUARTERS.map(point),
            hopeless_ratio: 0.0,
            error: 0.0,
            samples: 9000,
            keys: 900,
            rate: 0.1,
        };
        let most = u64::MAX / 200;
        let numbers = PrefixNumbers {
            items: most,
            bytes: most,
            gets: most,
            hits: most,
            sets: most,
            evictions: most,
        };
        let prefix = Some(Box::from([b'<'; 250]));
        let one = ObservedPrefix { prefix, numbers, ..ObservedPrefix::default() };
        let listed = vec![one; PREFIXES_SHOWN_MAX];
        let prefixes = ObservedPrefixes { listed, ..ObservedPrefixes::default() };
        let circumstances = Circumstances {
            phase: ServePhase::Serving,
            stopped: &stopped,
            hottest: Some(&hottest),
            curve: Some(&curve),
        };
        let newest =
            Newest { incarnation: "a", version: "0.1.0", circumstances, prefixes: Some(&prefixes) };
        let mut to = String::new();
        write_now(&history, &newest, &mut to);
        assert_eq!(to.matches("\"bytes_error\":").count(), PREFIXES_SHOWN_MAX, "J3");
        assert!(to.len() < 80 << 10 && !to.contains('\n'), "J3: {}", to.len());
        assert_eq!(to.matches("\"busy\":").count(), CORES_MAX, "J3");
        assert_eq!(to.matches("\"key\":").count(), 3 * HOT_KEYS_MAX, "J3");
        assert_eq!(to.matches("\"memory_bytes\":").count(), MODEL_QUARTERS.len());
        assert_eq!(to.matches("\"is_now\":true").count(), 1, "the memory that it has");
        let mut to = String::new();
        write_history(&history, "a", &mut to);
        assert!(to.starts_with("{\"incarnation\":\"a\",\"names\":[\"time\","), "{to}");
        assert_eq!(to.matches('[').count(), 4, "two samples");
    }
}
