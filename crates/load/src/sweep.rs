//! Measures a steady mix at several rates: those of a scan, or those that a search asks for.
//!
//! Upstream:   `lib`, for `--scan` and `--search`.
//! Downstream: `step`, or a leader with its agents, measures each rate; `report` shows all of them.

use crate::options::SteadyOptions;
use crate::report::{Report, Server, Sweep, SweepStep};
use crate::search::{CONFIDENCE, Found, Promise, Search, Statistic, Verdict};
use crate::session::Measured;

/// Measures all steps with `measure`, which gets a rate. The figures of the report are those of the
/// best step: the highest rate that kept the promise of a search, or the last one of a scan.
/// `progress` is called after each step.
///
/// Errors: as messages for the user.
pub(crate) fn run(
    options: &SteadyOptions,
    measure: &mut dyn FnMut(Option<f64>) -> Result<(Server, Measured), String>,
    json: &serde_json::Value,
    progress: &mut dyn FnMut(&SweepStep),
) -> Result<Report, String> {
    let mut sweep = Sweep::default();
    let mut best: Option<(f64, Report)> = None;
    let mut take = |rate: f64| -> Result<Verdict, String> {
        let (server, measured) = measure(Some(rate))?;
        let requests = measured.tally.response_of_all().len();
        if let Some(promise) = options.search
            && requests < promise.requests_min()
        {
            return Err(format!(
                "--search {promise}: the step at {rate:.0}/s had {requests} requests, and {} are \
                 needed; increase --duration-s or --search-from",
                promise.requests_min()
            ));
        }
        let value_us = options.search.map(|promise| value_us(promise, &measured));
        let mode = if options.search.is_some() { "search" } else { "scan" };
        let mut report = Report::new(mode, json.clone(), server, &measured, true);
        if let Some((_, best)) = &best {
            report.keep_preload_of(best);
        }
        let errors = measured.tally.errors.total();
        let verdict = match options.search.zip(value_us) {
            None => Verdict::Kept,
            Some((promise, value_us)) => promise.verdict(value_us, errors, report.is_doubtful()),
        };
        let is_kept = verdict == Verdict::Kept;
        let taken = SweepStep::new(rate, value_us, is_kept, &report);
        progress(&taken);
        sweep.steps.push(taken);
        let is_better = best.as_ref().is_none_or(|(best_rate, _)| is_kept && rate >= *best_rate);
        if is_better {
            // A first step that breaks the promise stands until another one keeps it.
            best = Some((if is_kept { rate } else { 0.0 }, report));
        }
        Ok(verdict)
    };
    if let Some(scan) = options.scan {
        for rate in scan.rates() {
            take(rate)?;
        }
    }
    if let Some(promise) = options.search {
        let mut search = Search::new(options.search_from);
        while let Some(rate) = search.next() {
            search.tell(take(rate)?);
        }
        let Found { rate, low, high } = search.found()?;
        sweep.promise = Some(promise);
        (sweep.rate_per_s, sweep.confidence) = (Some(rate), Some(CONFIDENCE));
        (sweep.low_per_s, sweep.high_per_s) = (Some(low), high);
    }
    let (_, mut report) = best.expect("a scan and a search have a step");
    report.sweep = Some(sweep);
    Ok(report)
}

/// The figure that a promise is about.
fn value_us(promise: Promise, measured: &Measured) -> f64 {
    let response = measured.tally.response_of_all();
    match promise.statistic {
        Statistic::Mean => response.mean() / 1e3,
        Statistic::Percentile(percent) => response.value_at_percentile(percent) as f64 / 1e3,
    }
}
