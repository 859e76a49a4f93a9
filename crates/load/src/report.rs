//! The result as text and as JSON.
//!
//! Upstream:   `session` measures.
//! Downstream: standard output, and the file of `--json`, which `scripts/bench` reads.
//!
//! Units: times are in microseconds (`_us`) unless a name states another unit; shares are 0 to 1.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use kachel_stdx::plural;
use serde::Serialize;

use crate::idle::IdleMemory;
use crate::limits;
use crate::member::Member;
use crate::meter::Cost;
use crate::request::Kind;
use crate::search::Promise;
use crate::session::{Measured, Session};
use crate::tally::{Errors, Filled};

/// Version of the JSON format; increase it when a field's name or meaning changes.
const FORMAT_VERSION: u32 = 1;

/// Percentiles in the JSON file.
pub const PERCENTILES: [f64; 16] = [
    1.0, 5.0, 10.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0,
];

/// All results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    format_version: u32,
    at_unix_s: u64,
    /// `steady`, `scan`, `search` or `replay`.
    pub(crate) mode: &'static str,
    options: serde_json::Value,
    machine: Machine,
    server: Server,
    /// Summary of the trace, in a replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<crate::trace::Facts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preload: Option<Preloaded>,
    /// The steps of a scan or of a search; `result` is then that of the best one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sweep: Option<Sweep>,
    result: Figures,
}

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
}

/// The measured server.
#[derive(Debug, Serialize)]
pub(crate) struct Server {
    /// The resolved address.
    pub(crate) address: String,
    /// The reply to `version`.
    pub(crate) version: String,
    /// The measured process.
    pub(crate) pid: Option<u32>,
}

impl Server {
    /// The servers of a session.
    pub(crate) fn of(session: &Session) -> Self {
        let addresses = session.targets.iter().map(|target| target.address.to_string());
        Self {
            address: addresses.collect::<Vec<_>>().join(","),
            version: session.facts.version.clone(),
            pid: session.pid,
        }
    }
}

/// The steps of a scan or of a search.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Sweep {
    /// The promise of the search.
    pub(crate) promise: Option<Promise>,
    /// The highest rate that keeps it.
    pub(crate) rate_per_s: Option<f64>,
    /// The interval in which that rate lies with at least the confidence. It has all steps that
    /// contradict each other.
    pub(crate) low_per_s: Option<f64>,
    /// Its upper end. None: the generator was the limit, and that of the server may be higher.
    pub(crate) high_per_s: Option<f64>,
    /// A share of 1.
    pub(crate) confidence: Option<f64>,
    /// The steps in the order in which they were measured.
    pub(crate) steps: Vec<SweepStep>,
}

/// One step.
#[derive(Debug, Serialize)]
pub(crate) struct SweepStep {
    rate_per_s: f64,
    achieved_per_s: f64,
    /// The figure of the promise.
    value_us: Option<f64>,
    is_kept: bool,
    errors: u64,
    server_cpu_us_per_request: Option<f64>,
    response: Times,
    service: Option<Times>,
    warnings: Vec<String>,
}

impl SweepStep {
    /// A step at this rate, from its report.
    pub(crate) fn new(rate: f64, value_us: Option<f64>, is_kept: bool, report: &Report) -> Self {
        let result = &report.result;
        Self {
            rate_per_s: rate,
            achieved_per_s: result.requests_per_s,
            value_us,
            is_kept,
            errors: result.errors.total,
            server_cpu_us_per_request: result.server_cpu_us_per_request,
            response: result.response.clone(),
            service: result.service.clone(),
            warnings: result.warnings.clone(),
        }
    }
}

impl SweepStep {
    /// Whether the generator may have been the limit.
    fn is_doubtful(&self) -> bool {
        !self.warnings.is_empty()
    }
}

impl Display for SweepStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { rate_per_s, achieved_per_s, .. } = self;
        write!(f, "step       {rate_per_s:.0}/s, answered {achieved_per_s:.0}/s: ")?;
        write!(f, "{}", Row(&self.response))?;
        match (self.value_us, self.is_kept) {
            (None, _) => {}
            (Some(_), true) => f.write_str(", kept")?,
            (Some(_), false) => f.write_str(", not kept")?,
        }
        if self.errors > 0 {
            write!(f, ", {} {}", self.errors, plural(self.errors, "error", "errors"))?;
        }
        if self.is_doubtful() {
            f.write_str(", the generator may be the limit")?;
        }
        Ok(())
    }
}

impl Display for Sweep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        if let (Some(promise), Some(rate)) = (self.promise, self.rate_per_s) {
            let percent = 100.0 * self.confidence.unwrap_or_default();
            let low = self.low_per_s.unwrap_or(rate);
            write!(f, "search     {promise} is kept up to {rate:.0}/s ({low:.0}")?;
            match self.high_per_s {
                Some(high) => write!(f, " to {high:.0}/s with {percent:.0} % confidence")?,
                None => f.write_str("/s or more: the generator was the limit")?,
            }
            writeln!(f, "), {} steps", self.steps.len())?;
            let doubtful = self.steps.iter().filter(|step| step.is_doubtful()).count();
            if doubtful > 0 {
                writeln!(
                    f,
                    "warning    in {doubtful} of these steps the generator may have been the limit"
                )?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Serialize)]
struct Preloaded {
    keys: u64,
    elapsed_s: f64,
    keys_per_s: f64,
    /// From the intended send times, if the preload had a rate.
    response: Times,
}

#[derive(Debug, Serialize)]
struct Figures {
    window_s: f64,
    /// When the window began.
    begin_unix_s: f64,
    requests: u64,
    requests_per_s: f64,
    by_kind: Vec<(&'static str, u64)>,
    offered: Option<u64>,
    offered_per_s: Option<f64>,
    keys: u64,
    keys_per_s: f64,
    hits: u64,
    misses: u64,
    hit_ratio: Option<f64>,
    scanned_items: u64,
    not_done: u64,
    errors: ErrorFigures,
    server_cpu_us_per_request: Option<f64>,
    server_cpu_us_per_key: Option<f64>,
    cost: Cost,
    response: Times,
    response_by_kind: Vec<(&'static str, Times)>,
    service: Option<Times>,
    idle: Option<IdleMemory>,
    connects: Option<ConnectFigures>,
    /// The machines, if there were several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<MemberFigures>,
    /// Reasons to doubt that the server was the limit.
    warnings: Vec<String>,
}

/// The new connections beside the load.
#[derive(Debug, Serialize)]
struct ConnectFigures {
    rate_per_s: f64,
    failed: u64,
    first: Option<String>,
    /// From when each was due until its answer.
    times: Times,
}

/// The part of one machine.
#[derive(Debug, Serialize)]
struct MemberFigures {
    name: String,
    connections: usize,
    threads: usize,
    /// Its part of the rate, in an open loop.
    rate_per_s: Option<f64>,
    offered: Option<u64>,
    requests: u64,
    requests_per_s: f64,
    errors: u64,
    response: Times,
    busy_cores: f64,
    /// An agent's clock less the leader's, and the most that this is wrong.
    clock_offset_us: Option<f64>,
    clock_error_us: Option<f64>,
    /// After the agreed start.
    late_us: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct ErrorFigures {
    pub(crate) total: u64,
    refused: u64,
    wrong: u64,
    lost: u64,
    unanswered: u64,
    garbled: u64,
    dropped: u64,
    stray: u64,
    first: Option<String>,
}

/// One distribution of times.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Times {
    count: u64,
    mean_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    p99_9_us: f64,
    max_us: f64,
    /// Percent and time.
    percentiles_us: Vec<(f64, f64)>,
    /// The whole distribution in ns, in HdrHistogram's V2 encoding.
    hdr_v2_base64: String,
}

impl Times {
    pub(crate) fn new(histogram: &Histogram<u64>) -> Self {
        let at = |percent: f64| histogram.value_at_percentile(percent) as f64 / 1e3;
        let mut encoded = Vec::new();
        V2Serializer::new()
            .serialize(histogram, &mut encoded)
            .expect("writing into memory succeeds");
        Self {
            count: histogram.len(),
            mean_us: histogram.mean() / 1e3,
            p50_us: at(50.0),
            p95_us: at(95.0),
            p99_us: at(99.0),
            p99_9_us: at(99.9),
            max_us: histogram.max() as f64 / 1e3,
            percentiles_us: PERCENTILES.iter().map(|&percent| (percent, at(percent))).collect(),
            hdr_v2_base64: base64::engine::general_purpose::STANDARD.encode(encoded),
        }
    }
}

impl Preloaded {
    fn new(filled: &Filled) -> Self {
        let Filled { keys, elapsed_s, tally } = filled;
        Self {
            keys: *keys,
            elapsed_s: *elapsed_s,
            keys_per_s: *keys as f64 / elapsed_s,
            response: Times::new(&tally.response_of_all()),
        }
    }
}

impl Figures {
    fn new(measured: &Measured, has_fixed_window: bool) -> Self {
        let Measured { tally, window_s, cost, threads, .. } = measured;
        let requests = tally.answered_total();
        // The readings are slightly outside a fixed window; the cost per second is the same.
        let cpu_s = match has_fixed_window {
            true => cost.server_busy_cores.map(|busy| busy * window_s),
            false => cost.server_cpu_s,
        };
        let per = |count: u64| cpu_s.filter(|_| count > 0).map(|cpu_s| cpu_s * 1e6 / count as f64);
        let is_open = tally.is_open();
        let offered = is_open.then_some(tally.offered);
        let warnings = match &measured.members[..] {
            [] => limits::warnings(tally.turns, offered, cost, Some(*threads)),
            members => members.iter().flat_map(|member| member.warnings(cost)).collect(),
        };
        let kinds = || (0..Kind::COUNT).filter(|&kind| tally.answered[kind] > 0);
        Self {
            window_s: *window_s,
            begin_unix_s: measured.begin_unix_s,
            requests,
            requests_per_s: requests as f64 / window_s,
            by_kind: kinds().map(|kind| (Kind::NAMES[kind], tally.answered[kind])).collect(),
            offered,
            offered_per_s: is_open.then_some(tally.offered as f64 / window_s),
            keys: tally.keys,
            keys_per_s: tally.keys as f64 / window_s,
            hits: tally.hits,
            misses: tally.keys.saturating_sub(tally.hits),
            hit_ratio: (tally.keys > 0).then(|| tally.hits as f64 / tally.keys as f64),
            scanned_items: tally.scanned,
            not_done: tally.not_done,
            errors: ErrorFigures::new(&tally.errors),
            server_cpu_us_per_request: per(requests),
            server_cpu_us_per_key: per(tally.keys),
            cost: cost.clone(),
            response: Times::new(&tally.response_of_all()),
            response_by_kind: kinds()
                .map(|kind| (Kind::NAMES[kind], Times::new(&tally.response[kind])))
                .collect(),
            service: is_open.then(|| Times::new(&tally.service)),
            idle: measured.idle.clone(),
            connects: measured.connects.as_ref().map(|connects| ConnectFigures {
                rate_per_s: connects.rate,
                failed: connects.failed,
                first: connects.first.clone(),
                times: Times::new(&connects.times),
            }),
            members: measured.members.iter().map(MemberFigures::new).collect(),
            warnings,
        }
    }
}

impl MemberFigures {
    fn new(member: &Member) -> Self {
        let requests = member.tally.answered_total();
        Self {
            name: member.name.clone(),
            connections: member.connections,
            threads: member.threads,
            rate_per_s: member.rate,
            offered: member.tally.is_open().then_some(member.tally.offered),
            requests,
            requests_per_s: requests as f64 / member.window_s,
            errors: member.tally.errors.total(),
            response: Times::new(&member.tally.response_of_all()),
            busy_cores: member.busy_cores,
            clock_offset_us: member.clock.map(|clock| clock.offset_ns as f64 / 1e3),
            clock_error_us: member.clock.map(|clock| clock.error_ns as f64 / 1e3),
            late_us: member.late_ns as f64 / 1e3,
        }
    }
}

impl Display for MemberFigures {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { name, connections, threads, requests, requests_per_s, errors, .. } = self;
        let connected = plural(*connections as u64, "connection", "connections");
        write!(f, "  {name}: {connections} {connected}, {threads} ")?;
        write!(f, "{}, {requests} answered, ", plural(*threads as u64, "thread", "threads"))?;
        if let Some(rate_per_s) = self.rate_per_s {
            write!(f, "{rate_per_s:.0}/s offered, ")?;
        }
        write!(f, "{requests_per_s:.0}/s, {errors} {}, ", plural(*errors, "error", "errors"))?;
        write!(f, "{:.3} cores busy", self.busy_cores)?;
        if let (Some(offset_us), Some(error_us)) = (self.clock_offset_us, self.clock_error_us) {
            write!(f, ", its clock {offset_us:+.0} us (exact to {error_us:.0} us)")?;
        }
        write!(f, "\n    response {}", Row(&self.response))
    }
}

impl ErrorFigures {
    pub(crate) fn new(errors: &Errors) -> Self {
        Self {
            total: errors.total(),
            refused: errors.refused,
            wrong: errors.wrong,
            lost: errors.lost,
            unanswered: errors.unanswered,
            garbled: errors.garbled,
            dropped: errors.dropped,
            stray: errors.stray,
            first: errors.first.clone(),
        }
    }
}

impl Machine {
    pub(crate) fn look() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let cpu = model.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, cpu)| cpu);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: cpu.to_owned(),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            kernel: kernel.trim().to_owned(),
        }
    }
}

impl Report {
    /// Computes the figures of a report. `has_fixed_window`: the window ended by the clock, not at
    /// the end of the source.
    pub(crate) fn new(
        mode: &'static str,
        options: serde_json::Value,
        server: Server,
        measured: &Measured,
        has_fixed_window: bool,
    ) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            format_version: FORMAT_VERSION,
            at_unix_s: now.map_or(0, |since| since.as_secs()),
            mode,
            options,
            machine: Machine::look(),
            server,
            trace: None,
            sweep: None,
            preload: measured.preload.as_ref().map(Preloaded::new),
            result: Figures::new(measured, has_fixed_window),
        }
    }

    /// Whether the generator may have been the limit.
    pub(crate) fn is_doubtful(&self) -> bool {
        !self.result.warnings.is_empty()
    }

    /// Takes over the preload of an earlier step.
    pub(crate) fn keep_preload_of(&mut self, earlier: &Self) {
        assert!(self.preload.is_none(), "only the first step has a preload");
        self.preload.clone_from(&earlier.preload);
    }

    /// True if there were no errors.
    pub(crate) fn is_clean(&self) -> bool {
        let is_clean_beside = self.result.idle.as_ref().is_none_or(IdleMemory::is_clean)
            && self.result.connects.as_ref().is_none_or(|connects| connects.failed == 0);
        // The steps of a search beyond the limit may have errors.
        let is_clean_scan = self.sweep.as_ref().is_none_or(|sweep| {
            sweep.promise.is_some() || sweep.steps.iter().all(|step| step.errors == 0)
        });
        self.result.errors.total == 0 && is_clean_beside && is_clean_scan
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let result = &self.result;
        self.write_head(f)?;
        write!(
            f,
            "requests   {} in {:.3} s: {:.0}/s",
            result.requests, result.window_s, result.requests_per_s
        )?;
        for (name, count) in &result.by_kind {
            write!(f, ", {name} {count}")?;
        }
        writeln!(f)?;
        if let Some(offered_per_s) = result.offered_per_s {
            writeln!(f, "offered    {offered_per_s:.0}/s")?;
        }
        if let Some(hit_ratio) = result.hit_ratio {
            writeln!(
                f,
                "keys       {} in gets: {:.0}/s, hit ratio {hit_ratio:.5}, {} {}",
                result.keys,
                result.keys_per_s,
                result.misses,
                plural(result.misses, "miss", "misses")
            )?;
        }
        if result.not_done > 0 {
            writeln!(f, "not done   {} (not stored, not found, exists)", result.not_done)?;
        }
        writeln!(f, "response   {}", Row(&result.response))?;
        if result.response_by_kind.len() > 1 {
            for (name, times) in &result.response_by_kind {
                writeln!(f, "  {name:<9}{}", Row(times))?;
            }
        }
        if let Some(service) = &result.service {
            writeln!(f, "service    {}", Row(service))?;
        }
        if let Some(idle) = &result.idle {
            writeln!(f, "{idle}")?;
        }
        if let Some(connects) = &result.connects {
            write!(f, "connects   {}, {} failed", connects.times.count, connects.failed)?;
            if let Some(first) = &connects.first {
                write!(f, " (first: {first})")?;
            }
            writeln!(f, ": {}", Row(&connects.times))?;
        }
        self.write_cost(f)?;
        writeln!(f, "{}", result.errors)
    }
}

impl Display for ErrorFigures {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { total, refused, wrong, lost, unanswered, garbled, dropped, stray, first } = self;
        write!(f, "errors     {total}")?;
        if let Some(first) = first {
            write!(
                f,
                " (refused {refused}, wrong {wrong}, lost {lost}, unanswered {unanswered}, garbled \
                 {garbled}, dropped {dropped}; first: {first})"
            )?;
        }
        if *stray > 0 {
            let datagrams = plural(*stray, "datagram", "datagrams");
            write!(f, "\nstray      {stray} {datagrams} without a request")?;
        }
        Ok(())
    }
}

impl Report {
    fn write_head(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "server     {}, version {}", self.server.address, self.server.version)?;
        for sentence in self.trace.iter().flat_map(|trace| trace.oddities.sentences()) {
            writeln!(f, "trace      {sentence}")?;
        }
        if let Some(preload) = &self.preload {
            let keys = plural(preload.keys, "key", "keys");
            write!(f, "preload    {} {keys} in {:.2} s", preload.keys, preload.elapsed_s)?;
            writeln!(f, ": {:.0}/s", preload.keys_per_s)?;
        }
        if let Some(sweep) = &self.sweep {
            write!(f, "{sweep}")?;
        }
        Ok(())
    }

    fn write_cost(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (result, cost) = (&self.result, &self.result.cost);
        if let (Some(per_request), Some(busy)) =
            (result.server_cpu_us_per_request, cost.server_busy_cores)
        {
            write!(f, "server CPU {per_request:.3} us a request")?;
            if result.keys > result.requests {
                write!(f, ", {:.3} us a key", result.server_cpu_us_per_key.unwrap_or(0.0))?;
            }
            writeln!(f, ", {busy:.3} cores busy")?;
            for core in cost.cores.iter().take(8) {
                writeln!(f, "  {core}")?;
            }
        }
        writeln!(f, "generator  {:.3} cores busy", cost.generator_busy_cores)?;
        result.members.iter().try_for_each(|member| writeln!(f, "{member}"))?;
        result.warnings.iter().try_for_each(|warning| writeln!(f, "warning    {warning}"))
    }
}

/// One line of times.
pub(crate) struct Row<'t>(pub(crate) &'t Times);

impl Display for Row<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let times = self.0;
        write!(
            f,
            "mean {} p50 {} p95 {} p99 {} p99.9 {} max {}",
            Micros(times.mean_us),
            Micros(times.p50_us),
            Micros(times.p95_us),
            Micros(times.p99_us),
            Micros(times.p99_9_us),
            Micros(times.max_us)
        )
    }
}

/// A time in a suitable unit.
struct Micros(f64);

impl Display for Micros {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us < 1e3 => write!(f, "{us:.1} us"),
            us if us < 1e6 => write!(f, "{:.2} ms", us / 1e3),
            us => write!(f, "{:.2} s", us / 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_worded_in_the_unit_that_suits() {
        assert_eq!(Micros(12.34).to_string(), "12.3 us");
        assert_eq!(Micros(12_340.0).to_string(), "12.34 ms");
        assert_eq!(Micros(2_500_000.0).to_string(), "2.50 s");
    }

    #[test]
    fn percentiles_are_those_of_the_values_recorded() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000_000, 3).expect("bounds");
        for us in 1..=1_000u64 {
            histogram.record(us * 1_000).expect("within bounds");
        }
        let times = Times::new(&histogram);
        for (got, expected) in [
            (times.p50_us, 500.0),
            (times.p95_us, 950.0),
            (times.p99_us, 990.0),
            (times.max_us, 1_000.0),
            (times.mean_us, 500.5),
        ] {
            assert!((got / expected - 1.0).abs() < 0.002, "{got} instead of {expected}");
        }
    }
}
