//! A figure of a report: its drawing, its note and its table; and the columns that figures show.
//!
//! Upstream:   the experiment and its rows.
//! Downstream: `figures`, `grid` and `published` make figures; `page` shows them.

use std::collections::BTreeMap;

use crate::chart::{Bar, Bars, Chart, Line, Point, Ranking, Rounds, Scale};
use crate::experiment::Experiment;
use crate::experiment::capacity::{Capacity, Promise};
use crate::experiment::row::Row;
use crate::experiment::statistics::Summary;
use crate::experiment::verdict::{Subject, ratios};

/// A figure with its table.
pub(super) struct Figure {
    pub(super) title: String,
    pub(super) drawing: Drawing,
    /// A note for the reader.
    pub(super) note: String,
    pub(super) table: Table,
    /// Published figures, to compare with.
    pub(super) published: Option<Table>,
}

/// A chart.
pub(super) enum Drawing {
    /// Lines, which the page can enlarge.
    Lines(Chart),
    /// Bars.
    Bars(Bars),
    /// Measured and published systems.
    Ranking(Ranking),
}

/// A table of texts.
pub(super) struct Table {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// A column of the rows, as figures show it.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) y_label: &'static str,
    pub(super) y_scale: Scale,
    pub(super) note: &'static str,
}

/// The note of capacities.
pub(super) const CAPACITY: &str = "The highest offered rate whose step kept the limit without an error. A step at which the \
     generator may have been the limit does not count. '>' and '<': the highest step of a round \
     kept the limit, or the lowest one broke it, so the capacity is beyond the steps. The table then \
     has the highest step, or 'none'. A bar or a point is hollow, with a count, if less than half of \
     the rounds have a capacity.";

const RESPONSE: &str = "Response times count from the intended send time of each request. Points are \
                        medians over the rounds, vertical lines their ranges. A point is hollow, \
                        with a count, if less than half of the rounds reached its step, without an \
                        error and within a limit of the capacity.";

const MEDIANS: &str = "Points and bars are medians over the rounds, vertical lines their ranges. One \
                       is hollow, with a count, if less than half of the rounds reached its step, \
                       without an error and within a limit of the capacity.";

/// The columns of the rows, in their order.
pub(super) const COLUMNS: [Column; 16] = [
    Column {
        name: "achieved_per_s",
        title: "Throughput",
        y_label: "requests a second",
        y_scale: Scale::FromZero,
        note: MEDIANS,
    },
    Column {
        name: "keys_per_s",
        title: "Throughput of keys",
        y_label: "keys a second",
        y_scale: Scale::FromZero,
        note: MEDIANS,
    },
    Column {
        name: "mean_us",
        title: "Mean response time",
        y_label: "mean response time, us",
        y_scale: Scale::Log,
        note: RESPONSE,
    },
    Column {
        name: "p50_us",
        title: "Median response time",
        y_label: "50th percentile, us",
        y_scale: Scale::Log,
        note: RESPONSE,
    },
    Column {
        name: "p95_us",
        title: "95th percentile of the response times",
        y_label: "95th percentile, us",
        y_scale: Scale::Log,
        note: RESPONSE,
    },
    Column {
        name: "p99_us",
        title: "99th percentile of the response times",
        y_label: "99th percentile, us",
        y_scale: Scale::Log,
        note: RESPONSE,
    },
    Column {
        name: "p99_9_us",
        title: "99.9th percentile of the response times",
        y_label: "99.9th percentile, us",
        y_scale: Scale::Log,
        note: RESPONSE,
    },
    Column {
        name: "max_us",
        title: "Greatest response time",
        y_label: "greatest response time, us",
        y_scale: Scale::Log,
        note: RESPONSE,
    },
    Column {
        name: "hit_ratio",
        title: "Hits",
        y_label: "hits / gets",
        y_scale: Scale::FromZero,
        note: MEDIANS,
    },
    Column {
        name: "server_cpu_us",
        title: "Processor time a request",
        y_label: "processor time of the server, us a request",
        y_scale: Scale::FromZero,
        note: "The time of all threads of the server by the scheduler's account, divided by the \
               requests answered meanwhile.",
    },
    Column {
        name: "server_cpu_us_per_key",
        title: "Processor time a key",
        y_label: "processor time of the server, us a key",
        y_scale: Scale::FromZero,
        note: "The time of all threads of the server by the scheduler's account, divided by the \
               keys that gets read meanwhile.",
    },
    Column {
        name: "server_busy_cores",
        title: "Busy cores of the server",
        y_label: "cores",
        y_scale: Scale::FromZero,
        note: "Processor time of the server, divided by the time of the step.",
    },
    Column {
        name: "watts",
        title: "Power",
        y_label: "watts",
        y_scale: Scale::FromZero,
        note: "The power of the machine during the steps, as the first meter shows it.",
    },
    Column {
        name: "requests_per_joule",
        title: "Requests a joule",
        y_label: "requests a second and watt",
        y_scale: Scale::FromZero,
        note: "Requests a second, divided by the power of the machine as the first meter shows it. \
               It is a whole machine with both the server and the load generator if they share one.",
    },
    Column {
        name: "beside_per_s",
        title: "Throughput of the load beside",
        y_label: "requests a second",
        y_scale: Scale::FromZero,
        note: "The second load ran beside the measured one. If it achieved less than it offered, \
               the server or its generator was the limit.",
    },
    Column {
        name: "beside_p50_us",
        title: "Median response time of the load beside",
        y_label: "50th percentile, us",
        y_scale: Scale::Log,
        note: RESPONSE,
    },
];

/// The scale of an axis that shows these lines with their ranges. A logarithmic one shows no 0, so
/// a single 0 among the rounds makes it linear.
pub(super) fn scale_of(wanted: Scale, lines: &[Line]) -> Scale {
    let least = |point: &Point| point.range.map_or(point.y, |(low, _)| low.min(point.y));
    let has_zero = lines.iter().flat_map(|line| &line.points).any(|point| least(point) <= 0.0);
    if has_zero { Scale::FromZero } else { wanted }
}

/// The text of a bar: the median, as a bound if the capacity of some round is beyond the steps.
/// `value` is the median in units of `unit` requests a second.
pub(super) fn bar_text(
    experiment: &Experiment,
    rows: &[Row],
    subject: &Subject,
    promise: Promise,
    value: f64,
    unit: f64,
) -> String {
    let capacities = experiment.capacities(rows, subject, promise);
    let lowest = capacities.values().find_map(|capacity| match capacity {
        Capacity::Below(rate) => Some(rate / unit),
        Capacity::Rate(_) | Capacity::AtLeast(_) => None,
    });
    let is_open = capacities.values().any(|it| matches!(it, Capacity::AtLeast(_)));
    match lowest {
        Some(lowest) if value < lowest => format!("{NONE} (< {})", number(lowest)),
        _ if is_open => format!("> {}", number(value)),
        _ => number(value),
    }
}

/// In place of a capacity of 0: no step kept the limit.
pub(super) const NONE: &str = "none";

/// A figure of a subject.
pub(super) struct Cell {
    pub(super) by_round: BTreeMap<u32, f64>,
    /// The rounds that support it, if they are few.
    pub(super) unsupported: Option<Rounds>,
}

impl Cell {
    /// A figure that so many rounds support.
    pub(super) fn new(by_round: BTreeMap<u32, f64>, rounds: Rounds) -> Self {
        Self { by_round, unsupported: rounds.if_few() }
    }

    /// The point of a chart at `x`. `None`: no round has the figure.
    pub(super) fn point(&self, x: f64) -> Option<Point> {
        let summary = Summary::of(&of_rounds(&self.by_round))?;
        let range = Some((summary.least, summary.most));
        Some(Point { x, y: summary.median, range, unsupported: self.unsupported })
    }

    /// The bar of a chart, with the text of its value. `None`: no round has the figure.
    pub(super) fn bar(&self, text: impl Fn(f64) -> String) -> Option<Bar> {
        let Summary { median, least, most, .. } = Summary::of(&of_rounds(&self.by_round))?;
        let (range, text, unsupported) = ((least, most), text(median), self.unsupported);
        Some(Bar { value: median, range, text, unsupported })
    }

    /// The median with its range, and the count of rounds if they are few.
    fn text(&self, text: &dyn Fn(f64) -> String) -> String {
        let Some(summary) = Summary::of(&of_rounds(&self.by_round)) else { return "-".to_owned() };
        let Summary { rounds, median, least, most, .. } = summary;
        let range = match rounds {
            1 => text(median),
            _ => format!("{} ({} to {})", text(median), text(least), text(most)),
        };
        let count = self.unsupported.map(|rounds| format!(", {} rounds", rounds.text()));
        range + &count.unwrap_or_default()
    }
}

impl Table {
    /// A column for each subject, given by its name and its server, and one for the ratio of each
    /// to the baseline.
    pub(super) fn new(experiment: &Experiment, subjects: &[(String, String)], first: &str) -> Self {
        let mut head = vec![first.to_owned()];
        for (name, server) in subjects {
            head.push(name.clone());
            if *server != experiment.baseline {
                head.push(format!("to {}", experiment.baseline));
            }
        }
        Self { head, rows: Vec::new() }
    }

    /// Adds a row, unless it would be empty. A figure of one round has no range.
    pub(super) fn add(
        &mut self,
        experiment: &Experiment,
        subjects: &[Subject],
        first: String,
        values: &dyn Fn(&Subject) -> Cell,
        text: &dyn Fn(f64) -> String,
    ) {
        let mut row = vec![first];
        for subject in subjects {
            let own = values(subject);
            row.push(own.text(text));
            if subject.server != experiment.baseline {
                let base = values(&experiment.baseline_of(subject)).by_round;
                let ratios = ratios(&own.by_round, &base);
                // A capacity that was not found has no ratio.
                let is_none = row.last().is_some_and(|cell| cell.starts_with(NONE));
                let summary = Summary::of(&of_rounds(&ratios)).filter(|_| !is_none);
                row.push(summary.map_or("-".to_owned(), |summary| {
                    let Summary { rounds, median, low, high, .. } = summary;
                    match rounds {
                        1 => format!("{median:.2}"),
                        _ => format!("{median:.2} [{low:.2}, {high:.2}]"),
                    }
                }));
            }
        }
        assert_eq!(row.len(), self.head.len(), "a cell for each column");
        if row[1..].iter().any(|cell| cell != "-") {
            self.rows.push(row);
        }
    }
}

pub(super) fn of_rounds(values: &BTreeMap<u32, f64>) -> Vec<f64> {
    values.values().copied().collect()
}

/// A capacity, in units of which 1 is a step.
pub(super) fn capacity(value: f64) -> String {
    if value > 0.0 { format!("{value:.0}") } else { NONE.to_owned() }
}

/// A number with three significant digits, at least its whole part.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_of_the_raw_data_can_be_drawn() {
        let names = COLUMNS.each_ref().map(|column| column.name);
        assert_eq!(names, crate::experiment::row::COLUMNS);
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([0.0, 1.234, 12.34, 1_234.5].map(number), ["0", "1.23", "12.3", "1234"]);
    }
}
