//! The figures of the report, and the published figures beside the measured ones.
//!
//! Upstream:   the tables `[report]` and `[[published]]` of the file.
//! Downstream: `report`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::capacity::Promise;
use super::{Experiment, row};

/// How the report draws the results.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReportPlan {
    /// A swept option whose values are the x axis, in place of the offered load.
    pub(crate) x: Option<String>,
    /// The label of that axis; the name of the option without it.
    pub(crate) x_label: Option<String>,
    /// Swept options; each combination of their values has figures of its own.
    pub(crate) panels: Vec<String>,
    /// The columns of the raw data that are drawn; the usual ones if there are none.
    pub(crate) columns: Vec<String>,
}

/// Figures of one kind that others published.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedFigures {
    /// `capacity`, or a column of the raw data.
    pub(crate) figure: String,
    /// With `capacity`: its definition.
    pub(crate) promise: Option<Promise>,
    /// With a column: the step of the measured servers.
    pub(crate) rate: Option<f64>,
    /// The publication.
    pub(crate) source: String,
    /// The figure of each system, in the unit of the column.
    pub(crate) values: BTreeMap<String, PublishedValue>,
}

/// A published number, or the least and the greatest one.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a number or a list of two")]
pub(crate) enum PublishedValue {
    Number(f64),
    Range(f64, f64),
}

impl ReportPlan {
    /// Errors: it names an option or a column that does not exist.
    pub(super) fn check(&self, experiment: &Experiment) -> Result<(), String> {
        let named: Vec<&String> = self.x.iter().chain(&self.panels).collect();
        for (place, name) in named.iter().enumerate() {
            if !experiment.sweep.contains_key(*name) {
                return Err(format!("report: the sweep has no {name}"));
            }
            if named[..place].contains(name) {
                return Err(format!("report: {name} stands there twice"));
            }
        }
        match self.columns.iter().find(|name| !row::COLUMNS.contains(&name.as_str())) {
            Some(name) => {
                Err(format!("report: '{name}' is not one of {}", row::COLUMNS.join(", ")))
            }
            None => Ok(()),
        }
    }

    /// Errors: no figure of the whole file would follow it.
    pub(super) fn check_used(&self, experiment: &Experiment) -> Result<(), String> {
        if self.x_label.is_some() && self.x.is_none() {
            return Err("report: x_label without x".to_owned());
        }
        let is_swept = |name: Option<String>| {
            experiment.of_case(name.as_deref()).rates().is_ok_and(|rates| rates.len() > 1)
        };
        let is_used =
            experiment.cases.is_empty() || experiment.case_names().into_iter().any(is_swept);
        let is_empty = self.x.is_none() && self.panels.is_empty() && self.columns.is_empty();
        if is_used || is_empty {
            return Ok(());
        }
        Err("report: only figures of cases with several rates have columns, x or panels".to_owned())
    }
}

impl PublishedFigures {
    /// Errors: the experiment does not measure it.
    pub(super) fn check(
        &self,
        experiment: &Experiment,
        rates: &[Option<f64>],
    ) -> Result<(), String> {
        check_figure(&self.figure, self.promise, self.rate, rates)?;
        match self.promise {
            Some(promise) if !experiment.capacity.contains(&promise) => {
                Err(format!("'{}' is not one of the definitions of capacity", promise.text()))
            }
            _ if self.values.is_empty() => Err("no values".to_owned()),
            _ => self.values.iter().try_for_each(|(system, value)| {
                let (least, most) = value.range();
                match least.is_finite() && most.is_finite() && 0.0 < least && least <= most {
                    true => Ok(()),
                    false => Err(format!("'{system}': a value is greater than 0")),
                }
            }),
        }
    }
}

impl PublishedValue {
    /// The least and the greatest value.
    pub(crate) fn range(self) -> (f64, f64) {
        match self {
            Self::Number(number) => (number, number),
            Self::Range(least, most) => (least, most),
        }
    }
}

/// Errors: an experiment with these steps does not measure the figure.
pub(super) fn check_figure(
    figure: &str,
    promise: Option<Promise>,
    rate: Option<f64>,
    rates: &[Option<f64>],
) -> Result<(), String> {
    match (figure == "capacity", promise) {
        (true, None) => Err("a capacity needs a promise".to_owned()),
        (true, Some(_)) if rates == [None] => Err("a capacity needs steps".to_owned()),
        (true, Some(_)) if rate.is_some() => {
            Err("a capacity has no rate: it is about all steps".to_owned())
        }
        (true, Some(_)) => Ok(()),
        (false, Some(_)) => Err("only a capacity has a promise".to_owned()),
        (false, None) if !row::COLUMNS.contains(&figure) => {
            let columns = row::COLUMNS.join(", ");
            Err(format!("'{figure}' is neither capacity nor one of {columns}"))
        }
        (false, None) if !rates.contains(&rate) => {
            Err("its rate is not one of the steps".to_owned())
        }
        (false, None) => Ok(()),
    }
}
