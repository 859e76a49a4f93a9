//! The figures of a run, from its rows.
//!
//! Upstream:   the experiment and its rows.
//! Downstream: `page` shows each figure with its table.
//!
//! A point is the median over the rounds, with the range. A ratio is that to the baseline in the
//! same round, with its bootstrap interval.

use super::figure::{
    CAPACITY, COLUMNS, Cell, Drawing, Figure, Table, bar_text, capacity, number, scale_of,
};
use super::panel::Panel;
use super::{grid, published};
use crate::chart::{BarSeries, Bars, Chart, Limit, Line, Point, Scale};
use crate::cost::{PerJoule, per_joule};
use crate::experiment::Experiment;
use crate::experiment::capacity::Promise;
use crate::experiment::row::Row;
use crate::experiment::verdict::Subject;

/// The columns that are drawn unless the experiment names others.
const OPEN: [&str; 8] = [
    "mean_us",
    "p50_us",
    "p95_us",
    "p99_us",
    "server_cpu_us",
    "requests_per_joule",
    "beside_per_s",
    "beside_p50_us",
];
const CLOSED: [&str; 3] = ["achieved_per_s", "server_cpu_us", "requests_per_joule"];

/// All figures for which the rows have data. `id` begins the names within their drawings.
pub(super) fn figures(experiment: &Experiment, rows: &[Row], id: &str) -> Vec<Figure> {
    let Ok(rates) = experiment.rates() else { return Vec::new() };
    let panels = Panel::all(experiment, rows);
    let of_panel =
        |(index, panel): (usize, &Panel<'_>)| of_panel(panel, &rates, &format!("{id}-{index}"));
    let mut figures: Vec<Figure> = panels.iter().enumerate().flat_map(of_panel).collect();
    figures.extend(published::figures(experiment, rows, id));
    figures
}

/// The figures of a panel: against the offered load if there are several rates, or else against
/// the swept options.
fn of_panel(panel: &Panel<'_>, rates: &[Option<f64>], id: &str) -> Vec<Figure> {
    let plan = &panel.experiment.report;
    let loads: Vec<f64> = rates.iter().copied().flatten().collect();
    let mut figures = match (&plan.x, &loads[..]) {
        (_, []) => Vec::new(),
        (None, _) => capacities(panel, id).into_iter().collect(),
        (Some(_), _) => grid::capacities(panel, id),
    };
    let usual: &[&str] = if loads.is_empty() { &CLOSED } else { &OPEN };
    let chosen: Vec<&str> = match &plan.columns[..] {
        [] => usual.to_vec(),
        columns => columns.iter().map(String::as_str).collect(),
    };
    let is_against_load = loads.len() > 1 || (loads.len() == 1 && plan.x.is_none());
    for (index, name) in chosen.into_iter().enumerate() {
        figures.extend(match is_against_load {
            true => against_load(panel, &loads, name),
            false => grid::column(panel, rates[0], name, &format!("{id}-column-{index}")),
        });
    }
    figures
}

/// A column against the offered load.
fn against_load(panel: &Panel<'_>, rates: &[f64], name: &str) -> Option<Figure> {
    let column = COLUMNS.iter().find(|column| column.name == name)?;
    let Panel { experiment, rows, .. } = panel;
    let subjects = panel.subjects();
    let values = |subject: &Subject, rate: f64| {
        let by_round = experiment.column(rows, subject, column.name, Some(rate));
        Cell::new(by_round, experiment.rounds_at(rows, subject, Some(rate)))
    };
    let mut lines = Vec::new();
    for subject in &subjects {
        let point = |rate: &f64| values(subject, *rate).point(*rate / 1e3);
        let points: Vec<Point> = rates.iter().filter_map(point).collect();
        lines.push(Line { name: panel.name(subject), color: panel.color(subject), points });
    }
    if lines.iter().all(|line| line.points.is_empty()) {
        return None;
    }
    let chart = Chart {
        title: String::new(),
        x_label: "offered load, thousand requests a second".to_owned(),
        x_scale: Scale::FromZero,
        y_label: column.y_label.to_owned(),
        y_scale: scale_of(column.y_scale, &lines),
        lines,
        limit: limit(experiment, column.name),
    };
    let mut table = Table::new(experiment, &heads(panel, &subjects), "offered/s");
    for rate in rates {
        let cells = |subject: &Subject| values(subject, *rate);
        table.add(experiment, &subjects, format!("{rate:.0}"), &cells, &number);
    }
    let (title, note) = (panel.title(column.title), column.note.to_owned());
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
fn capacities(panel: &Panel<'_>, id: &str) -> Option<Figure> {
    let Panel { experiment, rows, .. } = panel;
    let subjects = panel.subjects();
    let promises = &experiment.capacity;
    let cell = |subject: &Subject, promise: &Promise, unit: f64| {
        let capacities = experiment.capacities(rows, subject, *promise).into_iter();
        let by_round = capacities.map(|(round, it)| (round, it.rate() / unit)).collect();
        Cell::new(by_round, experiment.rounds_with_capacity(rows, subject, *promise))
    };
    let bar = |subject: &Subject, promise: &Promise| {
        let text = |value| bar_text(experiment, rows, subject, *promise, value, 1e3);
        cell(subject, promise, 1e3).bar(text)
    };
    let series = |subject: &Subject| {
        let bars = promises.iter().map(|promise| bar(subject, promise)).collect();
        BarSeries { name: panel.name(subject), color: panel.color(subject), bars }
    };
    let series: Vec<BarSeries> = subjects.iter().map(series).collect();
    series.iter().flat_map(|series| &series.bars).flatten().next()?;
    let bars = Bars {
        id: id.to_owned(),
        title: String::new(),
        x_label: String::new(),
        y_label: "thousand requests a second".to_owned(),
        groups: promises.iter().map(|promise| promise.text()).collect(),
        series,
    };
    let mut table = Table::new(experiment, &heads(panel, &subjects), "definition");
    for promise in promises {
        let cells = |subject: &Subject| cell(subject, promise, 1.0);
        table.add(experiment, &subjects, promise.text(), &cells, &capacity);
    }
    let note = CAPACITY.to_owned();
    let drawing = Drawing::Bars(bars);
    Some(Figure { title: panel.title("Capacity"), drawing, note, table, published: None })
}

/// The name and the server of each column of a table.
fn heads(panel: &Panel<'_>, subjects: &[Subject]) -> Vec<(String, String)> {
    subjects.iter().map(|subject| (panel.name(subject), subject.server.clone())).collect()
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
}
