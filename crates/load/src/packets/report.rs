//! The result of `kachel-lab packets` as text and as JSON.
//!
//! Upstream:   `drive` measures.
//! Downstream: standard output, and the file of `--json`, with the names of `kachel load`'s.

use std::fmt::{self, Display, Formatter};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::limits;
use crate::meter::Cost;
use crate::packets::drive::Measured;
use crate::packets::options::Options;
use crate::report::{ErrorFigures, Machine, Row, Times};
use crate::request::Kind;
use crate::tally::Tally;

/// Version of the JSON format; increase it when a field's name or meaning changes.
const FORMAT_VERSION: u32 = 1;

/// All results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    format_version: u32,
    at_unix_s: u64,
    mode: &'static str,
    options: serde_json::Value,
    machine: Machine,
    result: Figures,
}

#[derive(Debug, Serialize)]
struct Figures {
    window_s: f64,
    /// Gets that were answered.
    gets: u64,
    gets_per_s: f64,
    /// Gets that were due.
    offered_per_s: Option<f64>,
    hits: u64,
    misses: u64,
    /// Sets that were answered.
    sets: u64,
    sets_per_s: f64,
    /// Replies with a value that was replaced before their get was sent.
    stale: u64,
    /// `dropped`: requests that were sent again, because no reply came in time.
    errors: ErrorFigures,
    /// Busy time of all cores of `--cores`, by the get.
    cores_us_per_get: Option<f64>,
    server_cpu_us_per_get: Option<f64>,
    generator_cpu_us_per_get: Option<f64>,
    cost: Cost,
    /// Of gets, from the intended send time.
    response: Times,
    /// Of gets, from the send.
    service: Option<Times>,
    set_response: Option<Times>,
    warnings: Vec<String>,
}

impl Report {
    pub(crate) fn new(options: &Options, measured: &Measured) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            format_version: FORMAT_VERSION,
            at_unix_s: now.map_or(0, |since| since.as_secs()),
            mode: "packets",
            options: serde_json::to_value(options).expect("options are plain data"),
            machine: Machine::look(),
            result: Figures::new(options, measured),
        }
    }

    /// True if there were no errors and no stale value.
    pub(crate) fn is_clean(&self) -> bool {
        self.result.errors.total == 0 && self.result.stale == 0
    }
}

impl Figures {
    fn new(options: &Options, measured: &Measured) -> Self {
        let Measured { tally, sets: tally_of_sets, stale, cost } = measured;
        // With a limit, the run may have ended before its time.
        let window_s = options.limit.map_or(options.duration_s, |_| cost.elapsed_s);
        let gets = tally.answered[Kind::Get.index()];
        let sets = tally_of_sets.answered[Kind::Set.index()];
        let mut errors = tally.errors.clone();
        errors.add(&tally_of_sets.errors);
        // The readings are slightly outside the window; the cost per second is the same.
        let per_get = |cores: f64| (gets > 0).then(|| cores * window_s * 1e6 / gets as f64);
        let busy = cost.cores.iter().map(|core| 1.0 - core.idle - core.steal).sum();
        let is_open = tally.is_open();
        let offered = is_open.then_some(tally.offered);
        // A thread that sleeps until its tick had time.
        let is_judged = options.tick_us.is_none();
        let warnings = limits::warnings(tally.turns, offered, cost, None);
        let times = |of: &Tally, kind: Kind| Times::new(&of.response[kind.index()]);
        Self {
            window_s,
            gets,
            gets_per_s: gets as f64 / window_s,
            offered_per_s: offered.map(|offered| offered as f64 / window_s),
            hits: tally.hits,
            misses: tally.keys.saturating_sub(tally.hits),
            sets,
            sets_per_s: sets as f64 / window_s,
            stale: *stale,
            errors: ErrorFigures::new(&errors),
            cores_us_per_get: per_get(busy).filter(|_| !cost.cores.is_empty()),
            server_cpu_us_per_get: cost.server_busy_cores.and_then(per_get),
            generator_cpu_us_per_get: per_get(cost.generator_busy_cores),
            cost: cost.clone(),
            response: times(tally, Kind::Get),
            service: is_open.then(|| Times::new(&tally.service)),
            set_response: (sets > 0).then(|| times(tally_of_sets, Kind::Set)),
            warnings: if is_judged { warnings } else { Vec::new() },
        }
    }

    fn write_cost(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rows = [
            ("cores", self.cores_us_per_get),
            ("server", self.server_cpu_us_per_get),
            ("generator", self.generator_cpu_us_per_get),
        ];
        for (name, us) in rows {
            if let Some(us) = us {
                writeln!(f, "{name:<11}{us:.3} us a get")?;
            }
        }
        for core in &self.cost.cores {
            writeln!(f, "  {core}")?;
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning    {warning}"))
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let result = &self.result;
        write!(f, "gets       {} in {:.3} s: ", result.gets, result.window_s)?;
        write!(f, "{:.0}/s, {} hits", result.gets_per_s, result.hits)?;
        writeln!(f, ", {} misses", result.misses)?;
        if let Some(offered_per_s) = result.offered_per_s {
            writeln!(f, "offered    {offered_per_s:.0}/s")?;
        }
        writeln!(f, "response   {}", Row(&result.response))?;
        if let Some(service) = &result.service {
            writeln!(f, "service    {}", Row(service))?;
        }
        if let Some(times) = &result.set_response {
            writeln!(f, "sets       {}: {:.0}/s, {}", result.sets, result.sets_per_s, Row(times))?;
            writeln!(f, "stale      {}", result.stale)?;
        }
        result.write_cost(f)?;
        writeln!(f, "{}", result.errors)
    }
}
