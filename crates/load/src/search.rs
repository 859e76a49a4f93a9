//! Finds the highest offered rate at which a server keeps a promise about its response time.
//!
//! Upstream:   `sweep` measures a step at each rate that this module asks for.
//! Downstream: the rate, and the interval in which it lies with a confidence.
//!
//! A step can fail by chance, and keep the promise by chance. So the search does not trust any
//! single one: it is a probabilistic bisection (Horstein 1963; Waeber, Frazier and Henderson, SIAM
//! J. Control Optim. 2013). It begins with rates that double until one fails. From then on it keeps
//! the probability that the limit lies in each cell of a logarithmic grid, measures at the median,
//! and weighs the cells on both sides by the chance that a step tells the truth. The grid is wider
//! than the two rates between which the limit seems to be, because both may err.
//!
//! A step that breaks the promise while the generator was late says nothing about the server, so it
//! is measured again, a few times. After that it ends the search as a broken step does, but the
//! result then is a lower bound for the server.
//!
//! The model knows no machine that is busy for a while, and steps beside the limit agree by chance.
//! So the interval of the result is the one of the model, made so wide that it holds all rates at
//! which steps contradict each other.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The weights of the cells sum to 1.
//! - I2  A search asks for at most `STEPS_MAX` steps.
//! - I3  A result has its rate, each broken step below it and each kept step above it within its
//!   interval.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// The most steps of a search (I2).
const STEPS_MAX: usize = 80;
/// The chance that a step is on the right side of the limit. A guess on the safe side: a step far
/// from the limit errs only when the machine stalls, one beside the limit nearly always can.
const TRUTH: f64 = 0.85;
/// The share of the probability that the interval holds.
pub(crate) const CONFIDENCE: f64 = 0.9;
/// The search ends when the interval is narrower than this share of the rate.
const WIDTH_MAX: f64 = 0.05;
/// The grid goes beyond the first rate that fails, and below the last one that does not, by this
/// factor.
const MARGIN: f64 = 32.0;
/// The probability, at first, that the limit is not between those two.
const OUTSIDE: f64 = 0.1;
/// How often a step that says nothing is measured again, before it counts.
const VOIDS_MAX: u32 = 3;
/// Cells of the grid.
const CELLS: usize = 1_200;
/// A percentile is judged only if this number of requests is expected beyond it.
const BEYOND_MIN: u64 = 10;
/// The lowest rate that is tried.
const RATE_MIN: f64 = 1.0;
/// The highest rate that is tried.
const RATE_MAX: f64 = 1e9;

/// A figure of the response times of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Statistic {
    /// The mean.
    Mean,
    /// The percentile, 0 to 100.
    Percentile(f64),
}

/// An upper limit of a figure of the response times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// The figure.
    pub statistic: Statistic,
    /// Its limit.
    pub limit_us: f64,
}

impl Promise {
    /// The verdict of a step with this figure. `is_doubtful`: the generator may have been the
    /// limit.
    pub(crate) fn verdict(self, value_us: f64, errors: u64, is_doubtful: bool) -> Verdict {
        match value_us <= self.limit_us && errors == 0 {
            true => Verdict::Kept,
            false if is_doubtful => Verdict::Void,
            false => Verdict::Broken,
        }
    }

    /// The least number of requests from which the figure can be judged.
    pub(crate) fn requests_min(self) -> u64 {
        match self.statistic {
            Statistic::Mean => BEYOND_MIN * 10,
            Statistic::Percentile(percent) => (BEYOND_MIN as f64 / (1.0 - percent / 100.0)) as u64,
        }
    }
}

impl FromStr for Promise {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a promise; examples are p95:1000us and mean:1ms");
        let (name, limit) = text.split_once(':').ok_or_else(wrong)?;
        let statistic = match name.strip_prefix('p') {
            _ if name == "mean" => Statistic::Mean,
            Some(percent) => {
                let percent = percent.parse().ok().filter(|percent| (0.0..100.0).contains(percent));
                Statistic::Percentile(percent.ok_or_else(wrong)?)
            }
            None => return Err(wrong()),
        };
        let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
        let limit_us = units.iter().find_map(|(unit, us)| {
            let number: f64 = limit.strip_suffix(unit)?.parse().ok()?;
            Some(number * us)
        });
        let limit_us = limit_us.filter(|&us| us > 0.0 && us.is_finite()).ok_or_else(wrong)?;
        Ok(Self { statistic, limit_us })
    }
}

impl Display for Promise {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.statistic {
            Statistic::Mean => write!(f, "mean:{}us", self.limit_us),
            Statistic::Percentile(percent) => write!(f, "p{percent}:{}us", self.limit_us),
        }
    }
}

impl serde::Serialize for Promise {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The rate that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    /// The median of the probability.
    pub(crate) rate: f64,
    /// The lower end of an interval that holds at least `CONFIDENCE` of it, and all contradictions
    /// (I3).
    pub(crate) low: f64,
    /// The upper end. `None`: only steps that say nothing about the server ended the search, so its
    /// limit may be higher.
    pub(crate) high: Option<f64>,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The promise was kept.
    Kept,
    /// It was broken.
    Broken,
    /// It was broken, but perhaps by the generator.
    Void,
}

/// A search.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    rate: f64,
    steps: usize,
    /// Steps at this rate that said nothing.
    voids: u32,
    /// The highest rate that kept the promise while the rates doubled, and the lowest that did not.
    kept: Option<f64>,
    failed: Option<f64>,
    grid: Option<Grid>,
    seen: Seen,
}

/// The ends of the rates at which steps had each verdict. A rate of no step is 0, or infinite.
#[derive(Clone, Copy, Debug)]
struct Seen {
    kept_most: f64,
    broken_least: f64,
    broken_most: f64,
    /// Whether a step counted as broken that says nothing.
    is_void: bool,
}

impl Seen {
    const NOTHING: Self =
        Self { kept_most: 0.0, broken_least: f64::INFINITY, broken_most: 0.0, is_void: false };

    /// Adds a step that counts.
    fn note(&mut self, rate: f64, verdict: Verdict) {
        match verdict {
            Verdict::Kept => self.kept_most = self.kept_most.max(rate),
            Verdict::Broken => {
                self.broken_least = self.broken_least.min(rate);
                self.broken_most = self.broken_most.max(rate);
            }
            Verdict::Void => self.is_void = true,
        }
    }

    /// The result, with the interval of the model made wider (I3).
    fn widened(self, Interval { rate, low, high }: Interval) -> Found {
        let (low, high) = (low.min(self.broken_least), high.max(self.kept_most));
        // Beside steps that say nothing, only one that the server broke bounds its limit.
        let high = match self.is_void {
            false => Some(high),
            true if self.broken_most > high => Some(self.broken_most),
            true => None,
        };
        assert!(low <= rate && high.is_none_or(|high| rate <= high), "I3");
        Found { rate, low, high }
    }
}

impl Search {
    /// A search whose first step has this rate.
    pub(crate) fn new(rate: f64) -> Self {
        assert!((RATE_MIN..=RATE_MAX).contains(&rate), "the first rate is within the limits");
        Self { rate, steps: 0, voids: 0, kept: None, failed: None, grid: None, seen: Seen::NOTHING }
    }

    /// The rate of the next step; `None` when the search is over.
    pub(crate) fn next(&self) -> Option<f64> {
        let is_narrow = self.grid.as_ref().is_some_and(|grid| {
            let Interval { rate, low, high } = grid.interval();
            high - low <= WIDTH_MAX * rate
        });
        let is_within = (RATE_MIN..=RATE_MAX).contains(&self.rate);
        (!is_narrow && is_within && self.steps < STEPS_MAX).then_some(self.rate) // I2
    }

    /// The step at the rate of `next` was measured.
    pub(crate) fn tell(&mut self, verdict: Verdict) {
        self.steps += 1;
        if verdict == Verdict::Void && self.voids < VOIDS_MAX {
            self.voids += 1;
            return;
        }
        self.voids = 0;
        self.seen.note(self.rate, verdict);
        let is_kept = verdict == Verdict::Kept;
        if let Some(grid) = &mut self.grid {
            grid.weigh(self.rate, is_kept);
            self.rate = grid.interval().rate;
            return;
        }
        match is_kept {
            true => self.kept = Some(self.rate),
            false => self.failed = Some(self.rate),
        }
        match (self.kept, self.failed) {
            (Some(kept), Some(failed)) => {
                let grid = Grid::new(kept, failed);
                self.rate = (kept * failed).sqrt();
                self.grid = Some(grid);
            }
            (Some(kept), None) => self.rate = kept * 2.0,
            (None, _) => self.rate /= 2.0,
        }
    }

    /// The result, once `next` has no more rates.
    ///
    /// Errors: no rate kept the promise, or every one did, as a message for the user.
    pub(crate) fn found(&self) -> Result<Found, String> {
        match (&self.grid, self.failed) {
            (Some(grid), _) => Ok(self.seen.widened(grid.interval())),
            (None, Some(failed)) if self.seen.broken_most == 0.0 => Err(format!(
                "--search: the generator was late at each rate down to {failed:.0}/s, so nothing \
                 is known about the server"
            )),
            (None, Some(failed)) => Err(format!("--search: even {failed:.0}/s breaks the promise")),
            (None, None) => Err("--search: no rate breaks the promise".into()),
        }
    }
}

/// The median of the probability, and the interval that holds `CONFIDENCE` of it.
#[derive(Clone, Copy, Debug)]
struct Interval {
    rate: f64,
    low: f64,
    high: f64,
}

/// The probability that the limit lies in each of several ranges of rates.
#[derive(Clone, Debug)]
struct Grid {
    low: f64,
    /// The factor from one cell to the next.
    factor: f64,
    weights: Vec<f64>,
}

impl Grid {
    /// The limit is probably between these two rates.
    fn new(kept: f64, failed: f64) -> Self {
        assert!(kept > 0.0 && failed > kept, "rates double until one fails");
        let (low, high) = (kept / MARGIN, failed * MARGIN);
        let factor = (high / low).powf(1.0 / CELLS as f64);
        let mut grid = Self { low, factor, weights: vec![0.0; CELLS] };
        let is_inside =
            |grid: &Self, cell: usize| (kept..failed).contains(&grid.rate(cell as f64 + 0.5));
        let inside = (0..CELLS).filter(|&cell| is_inside(&grid, cell)).count();
        let (inner, outer) = (inside as f64, (CELLS - inside) as f64);
        assert!(inner > 0.0 && outer > 0.0, "a margin on both sides");
        for cell in 0..CELLS {
            grid.weights[cell] = match is_inside(&grid, cell) {
                true => (1.0 - OUTSIDE) / inner,
                false => OUTSIDE / outer,
            };
        }
        grid
    }

    fn rate(&self, cell: f64) -> f64 {
        self.low * self.factor.powf(cell)
    }

    /// Weighs the cells by a step at `rate`.
    fn weigh(&mut self, rate: f64, is_kept: bool) {
        let edge = (rate / self.low).ln() / self.factor.ln();
        for (cell, weight) in self.weights.iter_mut().enumerate() {
            let is_above = cell as f64 + 0.5 > edge;
            *weight *= if is_above == is_kept { TRUTH } else { 1.0 - TRUTH };
        }
        let sum: f64 = self.weights.iter().sum();
        self.weights.iter_mut().for_each(|weight| *weight /= sum);
        assert!((self.weights.iter().sum::<f64>() - 1.0).abs() < 1e-6, "I1");
    }

    /// The rate below which this share of the probability lies.
    fn quantile(&self, share: f64) -> f64 {
        let mut below = 0.0;
        for (cell, weight) in self.weights.iter().enumerate() {
            if below + weight >= share {
                return self.rate(cell as f64 + (share - below) / weight);
            }
            below += weight;
        }
        self.rate(CELLS as f64)
    }

    fn interval(&self) -> Interval {
        let tail = (1.0 - CONFIDENCE) / 2.0;
        Interval {
            rate: self.quantile(0.5),
            low: self.quantile(tail),
            high: self.quantile(1.0 - tail),
        }
    }
}

/// The rates of a scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scan {
    from: f64,
    to: f64,
    step: f64,
}

/// The most steps of a scan.
const SCAN_STEPS_MAX: f64 = 1_000.0;

impl Scan {
    /// The rates, in order.
    pub fn rates(self) -> impl Iterator<Item = f64> {
        // A sum of steps that misses the end by rounding still has it.
        let count = ((self.to - self.from) / self.step + 1e-9).floor() as u32;
        (0..=count).map(move |index| self.from + f64::from(index) * self.step)
    }
}

impl FromStr for Scan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is not a scan FROM:TO:STEP; an example is 10000:50000:5000");
        let numbers: Option<Vec<f64>> = text.split(':').map(|part| part.parse().ok()).collect();
        let [from, to, step] = numbers.ok_or_else(wrong)?[..] else { return Err(wrong()) };
        let is_valid =
            from >= RATE_MIN && to >= from && to <= RATE_MAX && step > 0.0 && step.is_finite();
        if !is_valid {
            return Err(wrong());
        }
        if (to - from) / step > SCAN_STEPS_MAX {
            return Err(format!("'{text}' has more than {SCAN_STEPS_MAX} steps"));
        }
        Ok(Self { from, to, step })
    }
}

impl serde::Serialize for Scan {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { from, to, step } = self;
        serializer.collect_str(&format_args!("{from}:{to}:{step}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Arrivals, Schedule};

    /// Response times in us of a server with Poisson arrivals and a constant service time (M/D/1),
    /// in virtual time.
    fn queue(rate: f64, service_us: f64, requests: usize, seed: u64) -> Vec<f64> {
        let mut arrivals = Schedule::new(rate, Arrivals::Poisson, 0, seed);
        let mut free_us = 0.0_f64;
        let mut times = Vec::with_capacity(requests);
        for _ in 0..requests {
            let at_us = arrivals.next_ns() as f64 / 1e3;
            arrivals.advance();
            free_us = free_us.max(at_us) + service_us;
            times.push(free_us - at_us);
        }
        times.sort_unstable_by(f64::total_cmp);
        times
    }

    fn keeps(times: &[f64], promise: Promise) -> bool {
        let figure = match promise.statistic {
            Statistic::Mean => times.iter().sum::<f64>() / times.len() as f64,
            Statistic::Percentile(percent) => {
                times[(times.len() as f64 * percent / 100.0) as usize]
            }
        };
        figure <= promise.limit_us
    }

    fn verdict(is_kept: bool) -> Verdict {
        if is_kept { Verdict::Kept } else { Verdict::Broken }
    }

    fn search(promise: &str, requests: usize, first: f64, seed: u64) -> (Found, usize) {
        let promise: Promise = promise.parse().expect("a promise");
        let mut search = Search::new(first);
        while let Some(rate) = search.next() {
            let times = queue(rate, 10.0, requests, seed + search.steps as u64);
            search.tell(verdict(keeps(&times, promise)));
        }
        (search.found().expect("a rate"), search.steps)
    }

    #[test]
    fn the_limit_of_a_queue_is_found_and_lies_within_the_interval() {
        // The mean response of M/D/1 is D + rho D / (2 (1 - rho)): with D = 10 us it is 50 us at
        // rho = 8/9. The intervals must hold the limit in nine of ten searches.
        let limit = 8.0 / 9.0 * 100_000.0;
        let searches = if std::env::var_os("KACHEL_FULL").is_some() { 20 } else { 8 };
        let mut within = 0;
        for seed in 0..searches {
            let (found, steps) = search("mean:50us", 50_000, 1_000.0, seed * 1_000);
            assert!((found.rate / limit - 1.0).abs() < 0.03, "{found:?}");
            let high = found.high.expect("the server is the limit");
            assert!(found.low < found.rate && found.rate < high, "{found:?}");
            assert!(steps < 40, "{steps}");
            within += u64::from((found.low..high).contains(&limit));
        }
        assert!(within * 20 >= searches * 17, "{within} of {searches}");
    }

    #[test]
    fn a_percentile_is_searched_from_above_and_from_below() {
        let promise: Promise = "p95:100us".parse().expect("a promise");
        for first in [10.0, 90_000.0, 1_000_000.0] {
            let (found, _) = search("p95:100us", 50_000, first, 5);
            assert!(keeps(&queue(found.rate * 0.96, 10.0, 200_000, 77), promise), "{found:?}");
            assert!(!keeps(&queue(found.rate * 1.04, 10.0, 200_000, 77), promise), "{found:?}");
        }
    }

    #[test]
    fn a_step_that_errs_does_not_mislead_the_search() {
        for wrong in [4, 6, 9, 11] {
            let mut search = Search::new(1_000.0);
            while let Some(rate) = search.next() {
                let is_kept = rate < 23_456.0;
                search.tell(verdict(is_kept != (search.steps == wrong)));
            }
            let found = search.found().expect("a rate");
            assert!((found.rate / 23_456.0 - 1.0).abs() < 0.03, "step {wrong}: {found:?}");
        }
    }

    #[test]
    fn a_wrong_start_is_overcome() {
        // The machine is busy at first: nothing above 3,000/s is kept in ten steps.
        let mut search = Search::new(10_000.0);
        while let Some(rate) = search.next() {
            let limit = if search.steps < 10 { 3_000.0 } else { 60_000.0 };
            search.tell(verdict(rate < limit));
        }
        let found = search.found().expect("a rate");
        assert!((found.rate / 60_000.0 - 1.0).abs() < 0.05, "{found:?} {}", search.steps);
        assert!(found.low < 5_000.0, "it saw broken promises there: {found:?}");
    }

    /// Steps that answer at random over a wide range of rates tell no narrow interval.
    #[test]
    fn the_interval_holds_all_steps_that_contradict_each_other() {
        for seed in 0..20 {
            let mut random = seed * 2_654_435_761_u64 + 1;
            let mut search = Search::new(40_000.0);
            let (mut broken, mut kept) = (f64::INFINITY, 0.0_f64);
            while let Some(rate) = search.next() {
                random = crate::random::mix(random);
                let is_kept = rate < 30_000.0 || (rate < 75_000.0 && random.is_multiple_of(2));
                match is_kept {
                    true => kept = kept.max(rate),
                    false => broken = broken.min(rate),
                }
                search.tell(verdict(is_kept));
            }
            let Found { low, high, .. } = search.found().expect("a rate");
            let high = high.expect("the server is the limit");
            assert!(low <= broken && kept <= high, "I3: {low} {broken} {kept} {high}");
        }
    }

    #[test]
    fn steps_in_which_the_generator_was_late_are_repeated() {
        let mut search = Search::new(1_000.0);
        let mut rates = Vec::new();
        // Every third step is late.
        while let Some(rate) = search.next() {
            rates.push(rate);
            let is_late = search.steps % 3 == 1;
            search.tell(if is_late { Verdict::Void } else { verdict(rate < 23_456.0) });
        }
        let found = search.found().expect("a rate");
        assert!((found.rate / 23_456.0 - 1.0).abs() < 0.03, "{found:?}");
        assert!(rates[1].to_bits() == rates[2].to_bits(), "measured again: {rates:?}");
        // A generator that is always late is a limit, too.
        let mut search = Search::new(1_000.0);
        while let Some(rate) = search.next() {
            search.tell(if rate < 5_000.0 { Verdict::Kept } else { Verdict::Void });
        }
        let found = search.found().expect("a rate");
        assert!((found.rate / 5_000.0 - 1.0).abs() < 0.05, "{found:?}");
        assert_eq!(found.high, None, "the server's limit is not known");
        // It is, once a step far above is broken by the server itself.
        let mut search = Search::new(1_000.0);
        while let Some(rate) = search.next() {
            search.tell(match rate {
                rate if rate < 5_000.0 => Verdict::Kept,
                rate if rate < 6_000.0 => Verdict::Void,
                _ => Verdict::Broken,
            });
        }
        let found = search.found().expect("a rate");
        assert!(found.high.is_some_and(|high| high >= 8_000.0), "{found:?}");
    }

    #[test]
    fn a_promise_that_is_always_or_never_kept_is_said_so() {
        for (is_kept, words) in [(true, "no rate breaks"), (false, "breaks the promise")] {
            let mut search = Search::new(1_000.0);
            while search.next().is_some() {
                search.tell(verdict(is_kept));
            }
            let error = search.found().expect_err("no limit");
            assert!(error.contains(words), "{error}");
        }
        let mut search = Search::new(1_000.0);
        while search.next().is_some() {
            search.tell(Verdict::Void);
        }
        let error = search.found().expect_err("nothing is known");
        assert!(error.contains("generator was late"), "{error}");
    }

    #[test]
    fn a_step_is_judged_by_its_figure_its_errors_and_the_generator() {
        let promise: Promise = "p95:1ms".parse().expect("a promise");
        for (value_us, errors, is_doubtful, verdict) in [
            (1_000.0, 0, false, Verdict::Kept),
            (1_000.0, 0, true, Verdict::Kept),
            (1_000.1, 0, false, Verdict::Broken),
            (1_000.1, 0, true, Verdict::Void),
            (1.0, 1, false, Verdict::Broken),
        ] {
            assert_eq!(promise.verdict(value_us, errors, is_doubtful), verdict);
        }
    }

    #[test]
    fn promises_and_scans_are_read_and_refused() {
        for (text, written) in [
            ("p95:1000us", "p95:1000us"),
            ("mean:1ms", "mean:1000us"),
            ("p99.9:0.5s", "p99.9:500000us"),
        ] {
            assert_eq!(text.parse::<Promise>().expect("a promise").to_string(), written);
        }
        let least = |text: &str| text.parse::<Promise>().expect("a promise").requests_min();
        assert_eq!((least("mean:1ms"), least("p50:1ms"), least("p95:1ms")), (100, 20, 199));
        for text in ["p95", "p95:1000", "p100:1ms", "max:1ms", "mean:0us", "p:1ms", "mean:-1ms"] {
            assert!(text.parse::<Promise>().is_err(), "{text}");
        }
        let rates = |text: &str| text.parse::<Scan>().map(|scan| scan.rates().collect::<Vec<_>>());
        assert_eq!(rates("10:30:10"), Ok(vec![10.0, 20.0, 30.0]));
        assert_eq!(rates("10:35:10"), Ok(vec![10.0, 20.0, 30.0]));
        assert_eq!(rates("5:5:1"), Ok(vec![5.0]));
        for text in ["10:30", "30:10:1", "10:30:0", "0:1:1", "1:1e9:1", "a:b:c", "10:20:inf"] {
            assert!(rates(text).is_err(), "{text}");
        }
    }
}
