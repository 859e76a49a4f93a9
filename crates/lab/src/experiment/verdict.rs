//! Figures of an experiment over its rounds, and the verdict on its predictions.
//!
//! Upstream:   the experiment and its rows.
//! Downstream: `run` prints the verdicts; `report` draws the figures.
//!
//! A figure of a server is compared with the same figure of the baseline in the same round, because
//! rounds differ more than servers on a machine that is shared.

use std::collections::{BTreeMap, BTreeSet};

use super::capacity::{Capacity, Promise};
use super::row::Row;
use super::statistics::Summary;
use super::{Experiment, Prediction};
use crate::chart::Rounds;

/// The lines of a figure: a server with values of the swept options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) server: String,
    pub(crate) options: BTreeMap<String, String>,
}

/// The judgment of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The whole interval is within the limits.
    Confirmed,
    /// The whole interval is outside of them.
    Refuted,
    /// The interval has a limit in it, a capacity lies beyond the rates that were measured, a round
    /// has no figure, or a step had errors.
    Undecided,
    /// The figure is not in the rows.
    NoData,
}

impl Verdict {
    /// The word of reports.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Refuted => "refuted",
            Self::Undecided => "undecided",
            Self::NoData => "no data",
        }
    }
}

impl Subject {
    /// The name in legends.
    pub(crate) fn name(&self) -> String {
        let options = self.options.iter().map(|(name, value)| format!(", {name} = {value}"));
        format!("{}{}", self.server, options.collect::<String>())
    }

    /// Whether the row is one of its.
    pub(crate) fn has(&self, row: &Row) -> bool {
        row.key.server == self.server && row.key.options == self.options
    }
}

impl Experiment {
    /// All servers with all combinations of the swept options.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let combinations = self.combinations();
        let of = |server: &super::Server| {
            let name = server.name.clone();
            combinations
                .clone()
                .into_iter()
                .map(move |options| Subject { server: name.clone(), options })
        };
        self.servers.iter().flat_map(of).collect()
    }

    /// The same options with the baseline.
    pub(crate) fn baseline_of(&self, subject: &Subject) -> Subject {
        Subject { server: self.baseline.clone(), options: subject.options.clone() }
    }

    /// The capacity of each round that has one.
    pub(crate) fn capacities(
        &self,
        rows: &[Row],
        subject: &Subject,
        promise: Promise,
    ) -> BTreeMap<u32, Capacity> {
        let of_round = |round: u32| {
            let is_one = |row: &&Row| row.key.round == round && subject.has(row);
            let mut steps: Vec<&Row> = rows.iter().filter(is_one).collect();
            steps.sort_by_key(|row| row.key.step);
            Some((round, Capacity::of(&steps, promise)?))
        };
        (1..=self.rounds).filter_map(of_round).collect()
    }

    /// A column at a rate in each round.
    pub(crate) fn column(
        &self,
        rows: &[Row],
        subject: &Subject,
        column: &str,
        rate: Option<f64>,
    ) -> BTreeMap<u32, f64> {
        let rows = steps(rows, subject, rate);
        rows.filter_map(|row| Some((row.key.round, row.value(column)?))).collect()
    }

    /// How many rounds support the step of a subject at a rate, of those in which the subject was
    /// measured. A round in which it was overloaded before it came to this rate does not, nor one
    /// whose step had errors or kept none of the definitions of capacity.
    pub(crate) fn rounds_at(&self, rows: &[Row], subject: &Subject, rate: Option<f64>) -> Rounds {
        let all: BTreeSet<u32> =
            rows.iter().filter(|row| subject.has(row)).map(|row| row.key.round).collect();
        let is_kept = |row: &Row| {
            let mut kept = self.capacity.iter().map(|promise| promise.judge(row) == Some(true));
            rate.is_none() || self.capacity.is_empty() || kept.any(|is_kept| is_kept)
        };
        let is_good = |row: &&Row| !row.has_errors() && is_kept(row);
        let good: BTreeSet<u32> =
            steps(rows, subject, rate).filter(is_good).map(|row| row.key.round).collect();
        Rounds { good: good.len(), all: all.len() }
    }

    /// How many rounds have a capacity of a subject, of those in which it was measured.
    pub(crate) fn rounds_with_capacity(
        &self,
        rows: &[Row],
        subject: &Subject,
        promise: Promise,
    ) -> Rounds {
        let all: BTreeSet<u32> =
            rows.iter().filter(|row| subject.has(row)).map(|row| row.key.round).collect();
        let capacities = self.capacities(rows, subject, promise);
        let good = capacities.values().filter(|it| !matches!(it, Capacity::Below(_))).count();
        Rounds { good, all: all.len() }
    }

    /// The judgment of a prediction by the rows, with its figure.
    pub(crate) fn judge(
        &self,
        prediction: &Prediction,
        rows: &[Row],
    ) -> (Verdict, Option<Summary>) {
        let (case, rows) = self.part(prediction.case.as_deref(), rows);
        case.judge_case(prediction, &rows)
    }

    fn judge_case(&self, prediction: &Prediction, rows: &[Row]) -> (Verdict, Option<Summary>) {
        let mut judged: Option<(Verdict, Option<Summary>)> = None;
        let wanted = |subject: &Subject| {
            let has = |(name, value): (&String, &super::Setting)| {
                subject.options.get(name) == Some(&value.0)
            };
            subject.server == prediction.server && prediction.options.iter().all(has)
        };
        // Every combination of the options that are not named must keep the limits.
        for subject in self.subjects().iter().filter(|subject| wanted(subject)) {
            let found = self.judge_one(prediction, rows, subject);
            if judged.is_none_or(|(verdict, _)| found.0.rank() < verdict.rank()) {
                judged = Some(found);
            }
        }
        judged.unwrap_or((Verdict::NoData, None))
    }

    fn judge_one(
        &self,
        prediction: &Prediction,
        rows: &[Row],
        subject: &Subject,
    ) -> (Verdict, Option<Summary>) {
        // A bound, as of a sweep that was too short, cannot decide. Nor can a step with errors: a
        // request that is refused counts as answered, and needs less time than others. A capacity
        // is below the steps that have errors.
        let mut is_doubtful = false;
        let mut figures = |subject: &Subject| match prediction.promise {
            Some(promise) => {
                let capacities = self.capacities(rows, subject, promise);
                is_doubtful |= capacities.values().any(|it| !matches!(it, Capacity::Rate(_)));
                capacities.into_iter().map(|(round, it)| (round, it.rate())).collect()
            }
            None => {
                is_doubtful |= steps(rows, subject, prediction.rate).any(Row::has_errors);
                self.column(rows, subject, &prediction.figure, prediction.rate)
            }
        };
        let mut values = figures(subject);
        if prediction.ratio {
            values = ratios(&values, &figures(&self.baseline_of(subject)));
        }
        let values: Vec<f64> = values.into_values().collect();
        let Some(summary) = Summary::of(&values) else { return (Verdict::NoData, None) };
        let least = prediction.at_least.unwrap_or(f64::NEG_INFINITY);
        let most = prediction.at_most.unwrap_or(f64::INFINITY);
        // A round without a figure may be the one in which the server was overloaded.
        let is_partial = values.len() < self.rounds as usize;
        let verdict = match () {
            () if is_doubtful || is_partial => Verdict::Undecided,
            () if summary.low >= least && summary.high <= most => Verdict::Confirmed,
            () if summary.high < least || summary.low > most => Verdict::Refuted,
            () => Verdict::Undecided,
        };
        (verdict, Some(summary))
    }
}

impl Verdict {
    /// The verdict on several subjects is the one with the lowest rank.
    fn rank(self) -> u8 {
        match self {
            Self::Refuted => 0,
            Self::Undecided => 1,
            Self::NoData => 2,
            Self::Confirmed => 3,
        }
    }
}

/// The steps of a subject at a rate.
fn steps<'r>(
    rows: &'r [Row],
    subject: &'r Subject,
    rate: Option<f64>,
) -> impl Iterator<Item = &'r Row> {
    rows.iter().filter(move |row| row.rate_per_s == rate && subject.has(row))
}

/// The ratios of figures to those of the baseline in the same rounds.
pub(crate) fn ratios(
    figures: &BTreeMap<u32, f64>,
    baseline: &BTreeMap<u32, f64>,
) -> BTreeMap<u32, f64> {
    let ratio = |(round, figure): (&u32, &f64)| {
        let base = baseline.get(round).filter(|base| **base != 0.0)?;
        Some((*round, figure / base))
    };
    figures.iter().filter_map(ratio).collect()
}

impl Prediction {
    /// The figure with its limits, as text.
    pub(crate) fn terms(&self, baseline: &str) -> String {
        let mut text = match self.promise {
            Some(promise) => format!("capacity with {}", promise.text()),
            None => self.figure.clone(),
        };
        if let Some(rate) = self.rate {
            text += &format!(" at {rate}/s");
        }
        text += &format!(" of {}", self.server);
        if let Some(case) = &self.case {
            text += &format!(", {case}");
        }
        for (name, value) in &self.options {
            text += &format!(", {name} = {}", value.0);
        }
        if self.ratio {
            text += &format!(", to {baseline} in the same round");
        }
        if let Some(least) = self.at_least {
            text += &format!(", at least {least}");
        }
        if let Some(most) = self.at_most {
            text += &format!(", at most {most}");
        }
        text
    }
}
