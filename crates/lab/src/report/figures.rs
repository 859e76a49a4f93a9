//! The figures of a run, from its rows.
//!
//! Upstream:   the experiment and its rows.
//! Downstream: `page` shows each figure with its table.
//!
//! A point is the median over the rounds, with the range. A ratio is that to the baseline in the
//! same round, with its bootstrap interval.

use std::collections::BTreeMap;

use crate::chart::{Bar, Bars, Chart, Limit, Line, Point, Scale};
use crate::cost::{PerJoule, per_joule};
use crate::experiment::capacity::{Capacity, Promise};
use crate::experiment::row::Row;
use crate::experiment::statistics::Summary;
use crate::experiment::verdict::{Subject, ratios};
use crate::experiment::{Experiment, Server};

/// A figure with its table.
pub(super) struct Figure {
    pub(super) title: &'static str,
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
}

/// A table of texts.
pub(super) struct Table {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// A column of the rows that is drawn against the offered load.
struct Column {
    name: &'static str,
    title: &'static str,
    y_label: &'static str,
    y_scale: Scale,
    note: &'static str,
}

const RESPONSE: &str = "Response times count from the intended send time of each request. Points are \
                        medians over the rounds, vertical lines their ranges.";

const COLUMNS: [Column; 6] = [
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
        name: "server_cpu_us",
        title: "Processor time a request",
        y_label: "processor time of the server, us a request",
        y_scale: Scale::FromZero,
        note: "The time of all threads of the server by the scheduler's account, divided by the \
               requests answered meanwhile.",
    },
    Column {
        name: "requests_per_joule",
        title: "Requests a joule",
        y_label: "requests a second and watt",
        y_scale: Scale::FromZero,
        note: "Requests a second, divided by the power of the machine as the first meter shows it. \
               It is a whole machine with both the server and the load generator if they share one.",
    },
];

/// All figures for which the rows have data. `id` begins the names within their drawings.
pub(super) fn figures(experiment: &Experiment, rows: &[Row], id: &str) -> Vec<Figure> {
    let Ok(rates) = experiment.rates() else { return Vec::new() };
    let rates: Vec<f64> = rates.into_iter().flatten().collect();
    let mut figures = Vec::new();
    if rates.is_empty() {
        let throughput = ("achieved_per_s", "Throughput", "requests a second");
        let cost = ("server_cpu_us", "Processor time a request", "us a request");
        for (index, (column, title, label)) in [throughput, cost].into_iter().enumerate() {
            let id = format!("{id}-{index}");
            figures.extend(closed(experiment, rows, &id, column, title, label));
        }
        return figures;
    }
    figures.extend(capacities(experiment, rows, id));
    for column in &COLUMNS {
        figures.extend(against_load(experiment, rows, &rates, column));
    }
    figures
}

/// A column against the offered load.
fn against_load(
    experiment: &Experiment,
    rows: &[Row],
    rates: &[f64],
    column: &Column,
) -> Option<Figure> {
    let subjects = experiment.subjects();
    let values =
        |subject: &Subject, rate: f64| experiment.column(rows, subject, column.name, Some(rate));
    let mut lines = Vec::new();
    for subject in &subjects {
        let point = |rate: &f64| {
            let summary = Summary::of(&of_rounds(&values(subject, *rate)))?;
            let range = Some((summary.least, summary.most));
            Some(Point { x: *rate / 1e3, y: summary.median, range })
        };
        let points: Vec<Point> = rates.iter().filter_map(point).collect();
        lines.push(Line { name: subject.name(), points });
    }
    let has_zero = || lines.iter().flat_map(|line| &line.points).any(|point| point.y <= 0.0);
    if lines.iter().all(|line| line.points.is_empty()) || has_zero() {
        return None;
    }
    let chart = Chart {
        title: String::new(),
        x_label: "offered load, thousand requests a second".to_owned(),
        x_scale: Scale::FromZero,
        y_label: column.y_label.to_owned(),
        y_scale: column.y_scale,
        lines,
        limit: limit(experiment, column.name),
    };
    let mut table = Table::new(experiment, &subjects, "offered/s");
    for rate in rates {
        let cells = |subject: &Subject| values(subject, *rate);
        table.add(experiment, &subjects, format!("{rate:.0}"), &cells, &number);
    }
    let (title, note) = (column.title, column.note.to_owned());
    let published = (column.name == "requests_per_joule").then(published);
    Some(Figure { title, drawing: Drawing::Lines(chart), note, table, published })
}

/// Requests a joule that papers published.
fn published() -> Table {
    let head = ["published", "requests a joule", "", "source"].map(str::to_owned).to_vec();
    let row = |row: PerJoule| {
        let PerJoule { system, per_joule, is_computed, source } = row;
        let how = if is_computed { "computed" } else { "as printed" };
        vec![system, number(per_joule), how.to_owned(), source]
    };
    Table { head, rows: per_joule().into_iter().map(row).collect() }
}

/// The limit of the definition of capacity that is about this column.
fn limit(experiment: &Experiment, column: &str) -> Option<Limit> {
    let is_about = |promise: &&Promise| match promise.0.statistic {
        kachel_load::Statistic::Mean => column == "mean_us",
        kachel_load::Statistic::Percentile(percent) => column == format!("p{percent}_us"),
    };
    let promise = experiment.capacity.iter().find(is_about)?;
    let limit_us = promise.0.limit_us;
    Some(Limit { name: format!("limit {} ms", limit_us / 1e3), y: limit_us })
}

/// The capacity of each server by each definition.
fn capacities(experiment: &Experiment, rows: &[Row], id: &str) -> Option<Figure> {
    let subjects = experiment.subjects();
    let promises = &experiment.capacity;
    let rates = |subject: &Subject, promise: &Promise| -> BTreeMap<u32, f64> {
        let capacities = experiment.capacities(rows, subject, *promise).into_iter();
        capacities.map(|(round, capacity)| (round, capacity.rate())).collect()
    };
    let bar = |subject: &Subject, promise: &Promise| {
        let summary = Summary::of(&of_rounds(&rates(subject, promise)))?;
        let thousand = |rate: f64| rate / 1e3;
        let range = (thousand(summary.least), thousand(summary.most));
        let value = thousand(summary.median);
        let text = bar_text(experiment, rows, subject, *promise, value);
        Some(Bar { value, range, text })
    };
    let series: Vec<(String, Vec<Option<Bar>>)> = subjects
        .iter()
        .map(|subject| (subject.name(), promises.iter().map(|it| bar(subject, it)).collect()))
        .collect();
    if series.iter().flat_map(|(_, bars)| bars).flatten().all(|bar| bar.value == 0.0) {
        return None;
    }
    let bars = Bars {
        id: id.to_owned(),
        title: String::new(),
        y_label: "thousand requests a second".to_owned(),
        groups: promises.iter().map(|promise| promise.text()).collect(),
        series,
    };
    let mut table = Table::new(experiment, &subjects, "definition");
    for promise in promises {
        let cells = |subject: &Subject| rates(subject, promise);
        table.add(experiment, &subjects, promise.text(), &cells, &|rate| format!("{rate:.0}"));
    }
    let note = "The highest offered rate whose step kept the limit without an error, in requests a \
                second. A step at which the generator may have been the limit does not count. '>' \
                and '<': the highest step of a round kept the limit, or the lowest one broke it, so \
                the capacity is beyond the steps."
        .to_owned();
    let drawing = Drawing::Bars(bars);
    Some(Figure { title: "Capacity", drawing, note, table, published: None })
}

/// The text of a bar: the median, as a bound if the capacity of some round is beyond the steps.
fn bar_text(
    experiment: &Experiment,
    rows: &[Row],
    subject: &Subject,
    promise: Promise,
    thousand: f64,
) -> String {
    let capacities = experiment.capacities(rows, subject, promise);
    let lowest = capacities.values().find_map(|capacity| match capacity {
        Capacity::Below(rate) => Some(rate / 1e3),
        Capacity::Rate(_) | Capacity::AtLeast(_) => None,
    });
    let is_open = capacities.values().any(|it| matches!(it, Capacity::AtLeast(_)));
    match lowest {
        Some(lowest) if thousand < lowest => format!("< {}", number(lowest)),
        _ if is_open => format!("> {}", number(thousand)),
        _ => number(thousand),
    }
}

/// A column of a closed loop, a group of bars for each combination of the swept options.
fn closed(
    experiment: &Experiment,
    rows: &[Row],
    id: &str,
    column: &str,
    title: &'static str,
    y_label: &str,
) -> Option<Figure> {
    let combinations = experiment.combinations();
    let values = |server: &str, options: &BTreeMap<String, String>| {
        let subject = Subject { server: server.to_owned(), options: options.clone() };
        experiment.column(rows, &subject, column, None)
    };
    let bar = |server: &str, options: &BTreeMap<String, String>| {
        let summary = Summary::of(&of_rounds(&values(server, options)))?;
        let range = (summary.least, summary.most);
        Some(Bar { value: summary.median, range, text: number(summary.median) })
    };
    let names = experiment.servers.iter().map(|server| &server.name);
    let series: Vec<(String, Vec<Option<Bar>>)> = names
        .map(|name| (name.clone(), combinations.iter().map(|it| bar(name, it)).collect()))
        .collect();
    series.iter().flat_map(|(_, bars)| bars).flatten().next()?;
    let group = |options: &BTreeMap<String, String>| {
        let options = options.iter().map(|(name, value)| format!("{name} = {value}"));
        options.collect::<Vec<_>>().join(", ")
    };
    let groups = combinations.iter().map(group).collect();
    let (id, y_label) = (id.to_owned(), y_label.to_owned());
    let bars = Bars { id, title: String::new(), y_label, groups, series };
    let servers = |options: &BTreeMap<String, String>| {
        let subject =
            |server: &Server| Subject { server: server.name.clone(), options: options.clone() };
        experiment.servers.iter().map(subject).collect::<Vec<_>>()
    };
    let mut table = Table::new(experiment, &servers(&BTreeMap::new()), "");
    for options in &combinations {
        let cells = |it: &Subject| values(&it.server, &it.options);
        table.add(experiment, &servers(options), group(options), &cells, &number);
    }
    let note = "Bars are medians over the rounds, vertical lines their ranges.".to_owned();
    Some(Figure { title, drawing: Drawing::Bars(bars), note, table, published: None })
}

impl Table {
    /// A column for each subject, and one for the ratio of each to the baseline.
    pub(super) fn new(experiment: &Experiment, subjects: &[Subject], first: &str) -> Self {
        let mut head = vec![first.to_owned()];
        for subject in subjects {
            head.push(subject.name());
            if subject.server != experiment.baseline {
                head.push(format!("to {}", experiment.baseline));
            }
        }
        Self { head, rows: Vec::new() }
    }

    /// Adds a row, unless it would be empty.
    pub(super) fn add(
        &mut self,
        experiment: &Experiment,
        subjects: &[Subject],
        first: String,
        values: &dyn Fn(&Subject) -> BTreeMap<u32, f64>,
        text: &dyn Fn(f64) -> String,
    ) {
        let mut row = vec![first];
        for subject in subjects {
            let own = values(subject);
            row.push(Summary::of(&of_rounds(&own)).map_or("-".to_owned(), |summary| {
                let Summary { median, least, most, .. } = summary;
                format!("{} ({} to {})", text(median), text(least), text(most))
            }));
            if subject.server != experiment.baseline {
                let ratios = ratios(&own, &values(&experiment.baseline_of(subject)));
                row.push(Summary::of(&of_rounds(&ratios)).map_or("-".to_owned(), |summary| {
                    let Summary { median, low, high, .. } = summary;
                    format!("{median:.2} [{low:.2}, {high:.2}]")
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
    fn a_definition_of_capacity_is_drawn_where_it_belongs() {
        let text = "question = \"q\"\nbaseline = \"a\"\nrounds = 1\ncapacity = [\"p95:10ms\"]\n\
                    [[server]]\nname = \"a\"\naddress = \"x\"\n[load]\nduration_s = 1\n\
                    [steps]\nrates = [1]\n";
        let experiment = Experiment::parse(text).expect("valid");
        let found = limit(&experiment, "p95_us").expect("its column");
        assert_eq!((&found.name[..], found.y), ("limit 10 ms", 10_000.0));
        assert!(limit(&experiment, "mean_us").is_none());
        assert_eq!(experiment.capacity[0].text(), "p95 < 10 ms");
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([0.0, 1.234, 12.34, 1_234.5].map(number), ["0", "1.23", "12.3", "1234"]);
    }
}
