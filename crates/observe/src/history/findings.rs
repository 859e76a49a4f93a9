//! What is wrong with the server, in sentences, and what to do about it.
//!
//! Upstream:   the history of the last ten minutes, and a few facts that it does not have.
//! Downstream: the first lines of the live page, by `json`.
//!
//! A rule looks at a window of whole seconds. One event in a minute is reported if it is wrong
//! whenever it happens, such as a refused store. A state must last for the whole window, so that
//! one odd second reports nothing.
//!
//! Invariants:
//! - W1  There is at least one finding, and the most serious ones come first.
//! - W2  A server without another finding is called well, in one sentence.
//! - W3  A window has at most `SAMPLES_MAX` samples.

use std::cmp::Reverse;

use crate::figures::{shown_bytes, shown_percent, shown_time};
use crate::history::SampleHistory;
use crate::history::sample::Sample;
use crate::observers::{CurveState, HotKey, HottestKeys, MissCurve};
use crate::thresholds::{
    CERTIFICATE_NEAR_DAYS, CONNECTIONS_NEAR, EVICTED_AGE_MIN_S, EVICTIONS_MIN, HOT_SHARE,
    HOT_WARNING, MISSES_MANY, PIPE_FULL, UNREAD_PART,
};

/// The window for events that are wrong whenever they happen. A reader who opens the page a while
/// after an event still sees it.
const EVENTS_S: usize = 60;
/// The window for a state. It must last this long, so a burst is not reported. A guess.
const STATE_S: usize = 10;
/// The window for what needs many requests to be judged.
const LOAD_S: usize = 30;
/// The fewest seconds before the window of a flood of misses that tell what is usual.
const USUAL_S: usize = 60;

/// The part of the gets that must miss before the age of evicted items matters to anybody.
const MISSES_MIN: f64 = 0.01;
/// Bytes that clients may leave unread without a finding. A reply of the largest default value has
/// as many.
const UNREAD_BYTES: f64 = (1 << 20) as f64;
/// Requests of a key in a second from which it is told.
const HOT_MIN: f64 = 1000.0;
/// Gets a second below which no miss is a flood.
const LOAD_MIN: f64 = 100.0;
/// A flood is this many times as high as the part that missed before.
const FLOOD_RISE: f64 = 2.0;
/// In a flood that nobody fills, this part of the misses or less is followed by a store. A cache
/// that warms up has a store for most misses.
const FILLED: f64 = 0.1;
/// Seconds before the end of a certificate at which it is reported, and at which it is a problem:
/// three days.
const CERTIFICATE_NEAR_S: u64 = CERTIFICATE_NEAR_DAYS * DAY_S;
const CERTIFICATE_URGENT_S: u64 = 3 * DAY_S;
const DAY_S: u64 = 24 * 60 * 60;
/// The part of its requests that a full pipe must pass on before more slots would help.
const PIPE_PASSED: f64 = 0.2;
/// The most shards that a sentence names.
const NAMED_MAX: usize = 8;

/// How far the server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServePhase {
    /// It starts, and may load items.
    #[default]
    Starting,
    /// It serves clients.
    Serving,
    /// It serves clients, which should go elsewhere.
    Draining,
    /// It ends.
    Ending,
}

impl ServePhase {
    /// The name that the page knows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Ending => "ending",
        }
    }
}

/// What is known about the server besides its history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances<'a> {
    /// How far it is.
    pub phase: ServePhase,
    /// The shards that do not answer.
    pub stopped: &'a [usize],
    /// The hottest keys, if keys are observed.
    pub hottest: Option<&'a HottestKeys>,
    /// The miss-ratio curve, if it is observed.
    pub curve: Option<&'a MissCurve>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The server is well.
    Good,
    /// Nothing is wrong, but a reader should know it.
    Note,
    /// It will be wrong soon, or costs something.
    Warning,
    /// Clients are refused or not answered.
    Problem,
}

impl Severity {
    /// The name that the page knows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// Something that a reader should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthFinding {
    /// A name that does not change, for tools.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// A sentence that says what is so.
    pub what: String,
    /// Sentences that say what to do. Empty if there is nothing to do.
    pub advice: String,
}

impl HealthFinding {
    fn new(name: &'static str, severity: Severity, what: String, advice: &str) -> Self {
        Self { name, severity, what, advice: advice.to_owned() }
    }
}

/// What is wrong with the server, the worst first (W1, W2).
///
/// Cost: a few passes over the history.
pub fn findings(history: &SampleHistory, circumstances: &Circumstances<'_>) -> Vec<HealthFinding> {
    let rules: [fn(&SampleHistory, &Circumstances<'_>) -> Option<HealthFinding>; 10] = [
        phase,
        stopped_shard,
        refused_memory,
        connection_limit,
        flood_of_misses,
        small_memory,
        hot_key,
        slow_client,
        expiring_certificate,
        full_pipe,
    ];
    let mut found: Vec<_> = rules.iter().filter_map(|rule| rule(history, circumstances)).collect();
    found.sort_by_key(|finding| Reverse(finding.severity)); // W1
    if found.iter().all(|finding| finding.severity < Severity::Note) {
        found.insert(0, well(history)); // W2
    }
    found
}

fn phase(_: &SampleHistory, of: &Circumstances<'_>) -> Option<HealthFinding> {
    let (what, advice) = match of.phase {
        ServePhase::Serving => return None,
        ServePhase::Starting => (
            "The server starts: it loads the items of the last run (-e) and serves nobody yet.",
            "Wait. Clients that connect now are answered when the items are loaded.",
        ),
        ServePhase::Draining => (
            "The server was asked to end. It still serves clients for the time of --drain.",
            "Send clients to another server.",
        ),
        ServePhase::Ending => ("The server is ending.", ""),
    };
    Some(HealthFinding::new("phase", Severity::Note, what.to_owned(), advice))
}

fn stopped_shard(_: &SampleHistory, of: &Circumstances<'_>) -> Option<HealthFinding> {
    let names: Vec<String> = of.stopped.iter().take(NAMED_MAX).map(usize::to_string).collect();
    let more = of.stopped.len() - names.len();
    let mut names = names.join(", ");
    if more > 0 {
        names += &format!(" and {more} more");
    }
    let what = match of.stopped {
        [] => return None,
        [_] => format!("Shard {names} has not answered for a second: its clients wait."),
        _ => format!("Shards {names} have not answered for a second: their clients wait."),
    };
    let advice = "See whether something else takes its processor, or whether the process was \
                  stopped. If it stays so, restart the server and report the fault.";
    Some(HealthFinding::new("stopped_shard", Severity::Problem, what, advice))
}

fn refused_memory(history: &SampleHistory, _: &Circumstances<'_>) -> Option<HealthFinding> {
    let refused = events(history.latest(EVENTS_S), |sample| sample.refused);
    let what = format!(
        "{} in the last minute for lack of memory.",
        counted(refused, "store was refused", "stores were refused")
    );
    let advice = "Raise -m. With -M nothing is evicted, so stores are refused when memory is full; \
                  otherwise clients that read large values slowly hold the memory.";
    (refused > 0.0).then(|| HealthFinding::new("refused_memory", Severity::Problem, what, advice))
}

fn connection_limit(history: &SampleHistory, _: &Circumstances<'_>) -> Option<HealthFinding> {
    let max = history.newest()?.connections_max;
    let rejected = events(history.latest(EVENTS_S), |sample| sample.rejected);
    let advice = "Raise -c, and the limit on open files with it, or find the client that opens so \
                  many connections: `stats conns` lists them.";
    if rejected > 0.0 {
        let rejected = counted(rejected, "connection was refused", "connections were refused");
        let what = format!("{rejected} in the last minute: all {max} (-c) were open.");
        return Some(HealthFinding::new("connection_limit", Severity::Problem, what, advice));
    }
    let near = least(history, STATE_S, |sample| sample.connections / sample.connections_max)?;
    let what = format!("{} of the {max} connections (-c) are open.", shown_percent(near));
    (near >= CONNECTIONS_NEAR)
        .then(|| HealthFinding::new("connection_limit", Severity::Warning, what, advice))
}

fn flood_of_misses(history: &SampleHistory, _: &Circumstances<'_>) -> Option<HealthFinding> {
    let now = Load::of(history.latest(STATE_S));
    let is_flood = now.seconds >= STATE_S as f64
        && now.gets >= LOAD_MIN * now.seconds
        && now.missed() >= MISSES_MANY;
    if !is_flood {
        return None;
    }
    let missed = shown_percent(now.missed());
    if now.sets <= FILLED * (now.gets - now.hits) {
        let what = format!("{missed} of the gets miss, and clients store nothing for them.");
        let advice = "They ask for keys that nobody stores here. See whether clients use another \
                      key, prefix or list of servers than the ones that store, or whether somebody \
                      scans keys. More memory does not help.";
        return Some(HealthFinding::new("flood_of_misses", Severity::Warning, what, advice));
    }
    let before = Load::of(history.latest(STATE_S + LOAD_S + USUAL_S).skip(STATE_S + LOAD_S));
    let is_usual_known =
        before.seconds >= USUAL_S as f64 && before.gets >= LOAD_MIN * before.seconds;
    if !is_usual_known || now.missed() < FLOOD_RISE * before.missed() {
        return None;
    }
    let what =
        format!("{missed} of the gets miss; before, {} did.", shown_percent(before.missed()));
    let flushed = events(history.latest(EVENTS_S), |sample| sample.flushes) > 0.0;
    let advice = if flushed {
        "flush_all or flush_prefix was called in the last minute. The cache fills again as clients \
         store what they miss."
    } else {
        "See whether keys were renamed by a new release, were deleted, or expired together. The \
         cache fills again as clients store what they miss."
    };
    Some(HealthFinding::new("flood_of_misses", Severity::Warning, what, advice))
}

fn small_memory(history: &SampleHistory, of: &Circumstances<'_>) -> Option<HealthFinding> {
    let load = Load::of(history.latest(EVENTS_S));
    let is_told = load.evictions >= EVICTIONS_MIN * load.seconds && load.missed() >= MISSES_MIN;
    let age = load.evicted_age_s / load.evictions;
    if load.seconds < STATE_S as f64 || !is_told || age >= EVICTED_AGE_MIN_S {
        return None;
    }
    let limit = shown_bytes(history.newest()?.limit_bytes);
    let what = format!(
        "Evicting items {} after their last use: memory is too small for this load.",
        shown_time(age)
    );
    let mut advice = format!(
        "Raise -m (now {limit}), add a server, or store less: smaller values, shorter TTLs, fewer \
         keys that nobody reads again. {} of the gets miss.",
        shown_percent(load.missed())
    );
    if let Some(curve) = of.curve.filter(|curve| curve.state == CurveState::Reliable) {
        advice += &format!(" {}", curve.advice());
    }
    Some(HealthFinding::new("small_memory", Severity::Warning, what, &advice))
}

fn hot_key(_: &SampleHistory, of: &Circumstances<'_>) -> Option<HealthFinding> {
    let HottestKeys { reads, writes } = of.hottest?;
    let first = |keys: &'_ [HotKey], of| keys.first().map(|key| (key.clone(), of));
    let hottest = [first(&reads.by_requests, "reads"), first(&writes.by_requests, "writes")];
    let is_hot = |(key, _): &(HotKey, &str)| {
        key.requests.share >= HOT_SHARE && key.requests.per_s >= HOT_MIN
    };
    let hottest = hottest.into_iter().flatten().filter(is_hot);
    let (key, of) =
        hottest.max_by(|(a, _), (b, _)| a.requests.per_s.total_cmp(&b.requests.per_s))?;
    let (shown, share) = (key.shown(), shown_percent(key.requests.share));
    let what = format!("One key, {shown}, has {share} of all {of}.");
    let is_warning = key.requests.per_s >= HOT_WARNING;
    let severity = if is_warning { Severity::Warning } else { Severity::Note };
    let advice = "Cache it in the clients for a second, store copies of it under several keys, or, \
                  if it is counted up or down, split it. The pipe answers hot keys over UDP.";
    Some(HealthFinding::new("hot_key", severity, what, advice))
}

fn slow_client(history: &SampleHistory, _: &Circumstances<'_>) -> Option<HealthFinding> {
    let closed = events(history.latest(EVENTS_S), |sample| sample.slow_closes);
    let unread = least(history, STATE_S, |sample| sample.unread_bytes);
    let sent = least(history, STATE_S, |sample| sample.pinned_bytes / sample.limit_bytes);
    let advice = "`stats conns` shows each client with its address and state. See whether the \
                  client is overloaded or stopped, or asks for more than it reads.";
    let what = if closed > 0.0 {
        let closed = counted(closed, "slow client was closed", "slow clients were closed");
        format!("{closed} in the last minute.")
    } else if let Some(unread) = unread.filter(|unread| *unread >= UNREAD_BYTES) {
        format!(
            "A slow client: {} of replies have not been read for {STATE_S} s.",
            shown_bytes(unread)
        )
    } else if let Some(sent) = sent.filter(|sent| *sent >= UNREAD_PART) {
        let part = shown_percent(sent);
        format!("Values that clients read slowly take {part} of the memory for {STATE_S} s.")
    } else {
        return None;
    };
    Some(HealthFinding::new("slow_client", Severity::Warning, what, advice))
}

fn expiring_certificate(history: &SampleHistory, _: &Circumstances<'_>) -> Option<HealthFinding> {
    let gauges = &history.reading()?.gauges;
    let left_s = gauges.certificate_expires_s?.saturating_sub(gauges.unix_s);
    if left_s >= CERTIFICATE_NEAR_S {
        return None;
    }
    let what = if left_s == 0 {
        "The TLS certificate has expired: clients refuse to connect.".to_owned()
    } else {
        format!("The TLS certificate expires in {}.", shown_time(left_s as f64))
    };
    let is_urgent = left_s < CERTIFICATE_URGENT_S;
    let severity = if is_urgent { Severity::Problem } else { Severity::Warning };
    let advice = "Put a new certificate into its file and send SIGHUP, or `refresh_certs`. Clients \
                  that are connected stay.";
    Some(HealthFinding::new("expiring_certificate", severity, what, advice))
}

fn full_pipe(history: &SampleHistory, _: &Circumstances<'_>) -> Option<HealthFinding> {
    let full = least(history, STATE_S, |sample| sample.pipe_items / sample.pipe_items_max)?;
    let answered = events(history.latest(STATE_S), |sample| sample.pipe_answered);
    let passed = events(history.latest(STATE_S), |sample| sample.pipe_passed);
    let part = passed / (answered + passed);
    let items = history.newest()?.pipe_items_max;
    let what =
        format!("The pipe is full: it has {items} items, and passes {} on.", shown_percent(part));
    let advice = "Raise --pipe-memory, so that it has more of the keys that are read.";
    // Without requests, the part is no number, and so not greater.
    (full >= PIPE_FULL && part > PIPE_PASSED)
        .then(|| HealthFinding::new("full_pipe", Severity::Warning, what, advice))
}

/// The sentence about a server that is well.
fn well(history: &SampleHistory) -> HealthFinding {
    let load = Load::of(history.latest(EVENTS_S));
    let what = match history.newest() {
        None => "The server serves clients. Its first figures come in a second.".to_owned(),
        Some(_) if load.requests == 0.0 => "The cache is well, and idle.".to_owned(),
        Some(newest) => {
            let spent = shown_percent(newest.spent_bytes / newest.limit_bytes);
            let hit = if load.gets > 0.0 {
                format!("{} of gets hit, ", shown_percent(load.hits / load.gets))
            } else {
                String::new()
            };
            format!("The cache is well: {hit}{spent} of memory is used, and no client is refused.")
        }
    };
    HealthFinding::new("well", Severity::Good, what, "")
}

/// The load of a window: events in all, not a second.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    seconds: f64,
    requests: f64,
    gets: f64,
    hits: f64,
    sets: f64,
    evictions: f64,
    /// Seconds from the last use of the evicted items to their eviction, in all.
    evicted_age_s: f64,
}

impl Load {
    fn of<'s>(window: impl Iterator<Item = &'s Sample>) -> Self {
        window.fold(Self::default(), |sum, sample| {
            let seconds = sample.elapsed_s;
            let evictions = sample.evictions * seconds;
            let age_s = if evictions > 0.0 { sample.evicted_age_s } else { 0.0 };
            Self {
                seconds: sum.seconds + seconds,
                requests: sum.requests + sample.requests * seconds,
                gets: sum.gets + sample.gets() * seconds,
                hits: sum.hits + sample.hits * seconds,
                sets: sum.sets + sample.sets * seconds,
                evictions: sum.evictions + evictions,
                evicted_age_s: sum.evicted_age_s + evictions * age_s,
            }
        })
    }

    /// The part of the gets that missed. 0 without gets.
    fn missed(&self) -> f64 {
        if self.gets > 0.0 { 1.0 - self.hits / self.gets } else { 0.0 }
    }
}

/// How many events a window has.
fn events<'s>(window: impl Iterator<Item = &'s Sample>, rate: fn(&Sample) -> f64) -> f64 {
    window.map(|sample| rate(sample) * sample.elapsed_s).sum()
}

/// The least value in the last `seconds` samples. `None` if there are not as many.
fn least(history: &SampleHistory, seconds: usize, of: fn(&Sample) -> f64) -> Option<f64> {
    let window = history.latest(seconds);
    (window.clone().count() == seconds).then(|| window.map(of).fold(f64::INFINITY, f64::min))
}

/// A number of events with its noun and verb.
fn counted(events: f64, one: &str, many: &str) -> String {
    let events = events.round().max(1.0);
    format!("{events} {}", if events == 1.0 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::reading::{Gauges, PipeReading, Reading};
    use crate::observers::{HotLists, HotRate};

    /// The Unix second at which the histories of these tests begin.
    const BEGIN_S: u64 = 1_800_000_000;

    /// What a second changes.
    type Change<'c> = &'c dyn Fn(&mut Reading);

    /// A server on virtual time, which makes one reading a second.
    #[derive(Default)]
    struct Virtual {
        history: SampleHistory,
        reading: Reading,
    }

    impl Virtual {
        /// A server with 64 MiB and 1,024 connections, ten of which are open.
        fn new() -> Self {
            let gauges = Gauges {
                limit_bytes: 64 << 20,
                spent_bytes: 60 << 20,
                connections: 10,
                connections_max: 1024,
                unix_s: BEGIN_S,
                ..Gauges::default()
            };
            Self { reading: Reading { gauges, ..Reading::default() }, ..Self::default() }
        }

        /// Lets seconds pass, each of which has changed the counters like this.
        fn run(mut self, seconds: usize, change: impl Fn(&mut Reading)) -> Self {
            for _ in 0..seconds {
                change(&mut self.reading);
                self.reading.at_ns += 1_000_000_000;
                self.reading.gauges.unix_s += 1;
                self.history.note(self.reading.clone());
            }
            self
        }

        /// The names of what is found.
        fn names(&self, circumstances: &Circumstances<'_>) -> Vec<&'static str> {
            let found = findings(&self.history, circumstances);
            assert!(!found.is_empty(), "W1");
            assert!(found.is_sorted_by_key(|finding| Reverse(finding.severity)), "W1");
            assert!(found.iter().all(|finding| finding.what.ends_with('.')), "a sentence");
            found.iter().map(|finding| finding.name).collect()
        }

        #[track_caller]
        fn assert_well(&self) {
            assert_eq!(self.names(&SERVING), ["well"]);
        }
    }

    const SERVING: Circumstances<'_> =
        Circumstances { phase: ServePhase::Serving, stopped: &[], hottest: None, curve: None };

    /// A second with this many gets, of which a part misses and is stored.
    fn reads(gets: u64, misses: u64) -> impl Fn(&mut Reading) {
        move |reading| {
            reading.tally.requests += gets + misses;
            reading.tally.hits += gets - misses;
            reading.tally.misses += misses;
            reading.tally.sets += misses;
        }
    }

    #[test]
    fn ten_healthy_minutes_have_no_finding_in_any_second() {
        let healthy: [(&str, Change<'_>); 6] = [
            ("idle", &|_| {}),
            ("few requests, all of which miss", &reads(3, 3)),
            ("a steady load", &reads(50_000, 2000)),
            ("a cache that warms up", &|reading| {
                let misses = 1000_u64.saturating_sub(2 * (reading.gauges.unix_s - BEGIN_S));
                reads(1000, misses.max(10))(reading);
            }),
            ("a full cache of old items, at its limits of what is usual", &|reading| {
                reads(10_000, 500)(reading);
                reading.tally.evictions += 500;
                reading.tally.evicted_age_s += 500 * 3600;
                reading.gauges.connections = 900;
                reading.pipe = Some(PipeReading {
                    is_on: true,
                    answered: reading.tally.hits,
                    passed: reading.tally.misses,
                    items: 1000,
                    items_max: 1000,
                });
            }),
            ("a scan evicts young items, and everything hits", &|reading| {
                reads(100_000, 500)(reading);
                reading.tally.evictions += 500;
                reading.tally.evicted_age_s += 500;
                // A reader of a large value for one second in five.
                let is_read = reading.gauges.unix_s % 5 == 0;
                reading.gauges.pinned_bytes = if is_read { 8 << 20 } else { 0 };
            }),
        ];
        for (name, second) in healthy {
            let mut server = Virtual::new();
            server.reading.gauges.certificate_expires_s = Some(BEGIN_S + 60 * DAY_S);
            for _ in 0..600 {
                server = server.run(1, second);
                assert_eq!(server.names(&SERVING), ["well"], "{name}");
            }
        }
    }

    #[test]
    fn each_of_ten_faults_has_its_sentence_and_ends() {
        let faults: [(&str, Change<'_>); 8] = [
            ("small_memory", &|reading| {
                reads(10_000, 2000)(reading);
                reading.tally.evictions += 2000;
                reading.tally.evicted_age_s += 2000 * 40;
            }),
            ("connection_limit", &|reading| {
                reading.gauges.connections = 1024;
                reading.tally.rejected += 3;
            }),
            ("slow_client", &|reading| reading.gauges.unread_bytes = 2 << 20),
            ("full_pipe", &|reading| {
                let mut pipe = reading.pipe.unwrap_or_default();
                (pipe.items, pipe.items_max) = (999, 1000);
                (pipe.answered, pipe.passed) = (pipe.answered + 500, pipe.passed + 500);
                reading.pipe = Some(pipe);
            }),
            ("refused_memory", &|reading| reading.tally.refused += 1),
            ("expiring_certificate", &|reading| {
                reading.gauges.certificate_expires_s = Some(BEGIN_S + DAY_S);
            }),
            ("expiring_certificate", &|reading| {
                reading.gauges.certificate_expires_s = Some(BEGIN_S);
            }),
            ("flood_of_misses", &|reading| {
                reading.tally.misses += 1000;
                reading.tally.requests += 1000;
            }),
        ];
        for (name, second) in faults {
            let server = Virtual::new().run(60, reads(1000, 50)).run(STATE_S + 1, second);
            assert_eq!(server.names(&SERVING), [name]);
            let calm = |reading: &mut Reading| {
                reads(1000, 50)(reading);
                (reading.gauges.unread_bytes, reading.gauges.connections) = (0, 10);
                reading.gauges.certificate_expires_s = None;
            };
            server.run(EVENTS_S, calm).assert_well();
        }
        let server = Virtual::new().run(60, reads(1000, 50));
        let requests = HotRate { per_s: 20_000.0, error_per_s: 100.0, share: 0.4 };
        let hot = HotKey { shown_hash: 7, key: None, requests, bytes: requests };
        let list = HotLists { by_requests: vec![hot], ..HotLists::default() };
        let hottest = HottestKeys { reads: list, ..HottestKeys::default() };
        for (name, circumstances) in [
            ("hot_key", Circumstances { hottest: Some(&hottest), ..SERVING }),
            ("stopped_shard", Circumstances { stopped: &[1], ..SERVING }),
        ] {
            assert_eq!(server.names(&circumstances), [name]);
        }
        // A warm load comes before the first sample.
        assert_eq!(Virtual::new().names(&Circumstances::default()), ["phase"]);
    }

    #[test]
    fn the_sentences_have_the_figures() {
        let server = Virtual::new().run(61, |reading| {
            reads(10_000, 2000)(reading);
            reading.tally.evictions += 2000;
            reading.tally.evicted_age_s += 2000 * 40;
            reading.tally.refused += 1;
        });
        let stopped = Circumstances { stopped: &[0, 2], ..SERVING };
        let found = findings(&server.history, &stopped);
        let what: Vec<&str> = found.iter().map(|finding| &finding.what[..]).collect();
        assert_eq!(
            what,
            [
                "Shards 0, 2 have not answered for a second: their clients wait.",
                "60 stores were refused in the last minute for lack of memory.",
                "Evicting items 40 s after their last use: memory is too small for this load.",
            ]
        );
        assert!(found[2].advice.contains("(now 64.0 MiB)") && found[2].advice.contains("20.0 %"));
        let well = findings(&Virtual::new().run(60, reads(1000, 37)).history, &SERVING);
        let sentence = "The cache is well: 96.3 % of gets hit, 93.8 % of memory is used,";
        assert_eq!(well[0].what, format!("{sentence} and no client is refused."));
    }

    #[test]
    fn a_flood_is_told_apart_from_a_cache_that_fills() {
        let fills =
            |seconds| Virtual::new().run(120, reads(1000, 50)).run(seconds, reads(1000, 800));
        assert_eq!(fills(STATE_S).names(&SERVING), ["flood_of_misses"], "misses have risen");
        Virtual::new().run(30, reads(1000, 800)).assert_well();
        let flushed = Virtual::new()
            .run(120, reads(1000, 50))
            .run(1, |reading| reading.tally.flushes += 1)
            .run(STATE_S, reads(1000, 900));
        let found = findings(&flushed.history, &SERVING);
        assert!(found[0].advice.contains("flush_all"), "{found:?}");
    }
}
