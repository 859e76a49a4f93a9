//! Figures without the offered load on their x axis: a swept option, or groups of bars.
//!
//! Upstream:   `figures`, with a panel.
//! Downstream: `page` shows each figure with its table.
//!
//! An option whose values are at least three numbers is an axis of numbers; any other one has a
//! group of bars for each value.

use std::collections::BTreeMap;

use super::figure::{
    CAPACITY, COLUMNS, Cell, Drawing, Figure, NONE, Table, bar_text, number, scale_of,
};
use super::panel::Panel;
use crate::chart::{BarSeries, Bars, Chart, Line, Scale, compact};
use crate::experiment::place::text_of;
use crate::experiment::verdict::Subject;

/// The least number of points of a line.
const POINTS_MIN: usize = 3;
/// Values are drawn at a logarithmic distance if the last is this number of times the first.
const LOG_FROM: f64 = 20.0;

const THOUSAND: &str = "thousand requests a second";

/// The places along the x axis, and the series of a figure.
struct Grid {
    /// The text of each place, with its values of options.
    places: Vec<(String, BTreeMap<String, String>)>,
    /// The name, the server and the other values of each series.
    series: Vec<Series>,
    /// The label of the x axis; empty if the places name their options.
    x_label: String,
}

struct Series {
    name: String,
    server: String,
    options: BTreeMap<String, String>,
}

/// A figure of each subject, and its text at a bar and in the table.
struct Values<'v> {
    of: &'v dyn Fn(&Subject) -> Cell,
    text: &'v dyn Fn(&Subject, f64) -> String,
    in_table: &'v dyn Fn(f64) -> String,
}

impl Grid {
    fn new(panel: &Panel<'_>) -> Self {
        let plan = &panel.experiment.report;
        let combinations = panel.combinations();
        let servers = panel.experiment.servers.iter().map(|server| &server.name);
        let Some(x) = &plan.x else {
            let places = combinations.into_iter().map(|options| (text_of(&options), options));
            let of = |name: &String| {
                let (name, server) = (name.clone(), name.clone());
                Series { name, server, options: BTreeMap::new() }
            };
            let series = servers.map(of).collect();
            return Self { places: places.collect(), series, x_label: String::new() };
        };
        let values = &panel.experiment.sweep[x];
        let place = |value: &String| (value.clone(), BTreeMap::from([(x.clone(), value.clone())]));
        let places = values.iter().map(|value| place(&value.0)).collect();
        let mut others: Vec<BTreeMap<String, String>> = Vec::new();
        for mut options in combinations {
            options.remove(x);
            if !others.contains(&options) {
                others.push(options);
            }
        }
        let series = servers.flat_map(|server| {
            others.iter().map(|options| {
                let (server, options) = (server.clone(), options.clone());
                let name = Subject { server: server.clone(), options: options.clone() }.name();
                Series { name, server, options }
            })
        });
        assert!(!others.is_empty() && !values.is_empty(), "the file was checked");
        let x_label = plan.x_label.clone().unwrap_or_else(|| x.clone());
        Self { series: series.collect(), places, x_label }
    }

    /// The places as numbers that increase, if they are.
    fn numbers(&self) -> Option<Vec<f64>> {
        let numbers: Option<Vec<f64>> =
            self.places.iter().map(|(text, _)| text.parse().ok()).collect();
        let is_axis = |numbers: &Vec<f64>| {
            numbers.len() >= POINTS_MIN
                && numbers.iter().all(|number| number.is_finite() && *number >= 0.0)
                && numbers.windows(2).all(|pair| pair[0] < pair[1])
        };
        numbers.filter(is_axis)
    }

    fn subject(&self, panel: &Panel<'_>, place: usize, series: &Series) -> Subject {
        let mut options = series.options.clone();
        options.extend(self.places[place].1.clone());
        panel.subject(&series.server, &options)
    }

    fn drawing(
        &self,
        panel: &Panel<'_>,
        id: &str,
        (y_label, y_scale): (&str, Scale),
        values: &Values<'_>,
    ) -> Option<Drawing> {
        let subject = |place: usize, series: &Series| self.subject(panel, place, series);
        let color = |series: &Series| panel.color(&subject(0, series));
        let y_label = y_label.to_owned();
        if let Some(numbers) = self.numbers() {
            let line = |series: &Series| {
                let point =
                    |(place, x): (usize, &f64)| (values.of)(&subject(place, series)).point(*x);
                let points = numbers.iter().enumerate().filter_map(point).collect();
                Line { name: series.name.clone(), color: color(series), points }
            };
            let lines: Vec<Line> = self.series.iter().map(line).collect();
            lines.iter().flat_map(|line| &line.points).next()?;
            let y_scale = scale_of(y_scale, &lines);
            let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
            assert!(first < last, "the numbers increase");
            let is_log = first > 0.0 && last / first >= LOG_FROM;
            let x_scale = if is_log { Scale::LogAtPoints } else { Scale::FromZero };
            let (title, x_label, limit) = (String::new(), self.x_label.clone(), None);
            let chart = Chart { title, x_label, x_scale, y_label, y_scale, lines, limit };
            return Some(Drawing::Lines(chart));
        }
        let bar = |place: usize, series: &Series| {
            let subject = subject(place, series);
            (values.of)(&subject).bar(|value| (values.text)(&subject, value))
        };
        let bars = |series: &Series| {
            let bars = (0..self.places.len()).map(|place| bar(place, series)).collect();
            BarSeries { name: series.name.clone(), color: color(series), bars }
        };
        let series: Vec<BarSeries> = self.series.iter().map(bars).collect();
        series.iter().flat_map(|series| &series.bars).flatten().next()?;
        let groups = self.places.iter().map(|(text, _)| text.clone()).collect();
        let (id, title, x_label) = (id.to_owned(), String::new(), self.x_label.clone());
        Some(Drawing::Bars(Bars { id, title, x_label, y_label, groups, series }))
    }

    fn table(&self, panel: &Panel<'_>, values: &Values<'_>) -> Table {
        let heads = self.series.iter().map(|series| (series.name.clone(), series.server.clone()));
        let mut table = Table::new(panel.experiment, &heads.collect::<Vec<_>>(), &self.x_label);
        for (place, (text, _)) in self.places.iter().enumerate() {
            let subject = |series: &Series| self.subject(panel, place, series);
            let subjects: Vec<Subject> = self.series.iter().map(subject).collect();
            table.add(panel.experiment, &subjects, text.clone(), values.of, values.in_table);
        }
        table
    }
}

/// A column of the raw data at this rate, `None` in a closed loop.
pub(super) fn column(panel: &Panel<'_>, rate: Option<f64>, name: &str, id: &str) -> Option<Figure> {
    let column = COLUMNS.iter().find(|column| column.name == name)?;
    let grid = Grid::new(panel);
    let values = Values {
        of: &|subject| {
            let by_round = panel.experiment.column(panel.rows, subject, name, rate);
            Cell::new(by_round, panel.experiment.rounds_at(panel.rows, subject, rate))
        },
        text: &|_, value| compact(value),
        in_table: &number,
    };
    let drawing = grid.drawing(panel, id, (column.y_label, column.y_scale), &values)?;
    let mut note = column.note.to_owned();
    if let Some(rate) = rate {
        note += &format!(" The offered load is {rate:.0} requests a second.");
    }
    let (title, table) = (panel.title(column.title), grid.table(panel, &values));
    Some(Figure { title, drawing, note, table, published: None })
}

/// The capacity by each definition, with the option of `[report] x` on the x axis.
pub(super) fn capacities(panel: &Panel<'_>, id: &str) -> Vec<Figure> {
    let grid = Grid::new(panel);
    let of_promise = |(index, promise): (usize, &_)| {
        let capacities = |subject: &Subject| {
            panel.experiment.capacities(panel.rows, subject, *promise).into_iter()
        };
        let values = Values {
            of: &|subject| {
                let by_round = capacities(subject).map(|(round, it)| (round, it.rate() / 1e3));
                let rounds = panel.experiment.rounds_with_capacity(panel.rows, subject, *promise);
                Cell::new(by_round.collect(), rounds)
            },
            in_table: &|value| if value > 0.0 { number(value) } else { NONE.to_owned() },
            text: &|subject, value| {
                bar_text(panel.experiment, panel.rows, subject, *promise, value, 1e3)
            },
        };
        let id = format!("{id}-{index}");
        let drawing = grid.drawing(panel, &id, (THOUSAND, Scale::FromZero), &values)?;
        let title = panel.title(&format!("Capacity with {}", promise.text()));
        let note = format!("{CAPACITY} The table has {THOUSAND}.");
        let table = grid.table(panel, &values);
        Some(Figure { title, drawing, note, table, published: None })
    };
    panel.experiment.capacity.iter().enumerate().filter_map(of_promise).collect()
}
