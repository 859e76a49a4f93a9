//! The figures of an experiment that has cases.
//!
//! Upstream:   the experiment and its rows.
//! Downstream: `page`, which shows each figure with its table.
//!
//! Cases differ by more than a factor of ten, so the bars are ratios to the baseline in the same
//! round; the tables have the figures themselves. A case with several rates also has the figures of
//! an experiment without cases.

use std::collections::BTreeMap;

use super::figure::{Cell, Drawing, Figure, Table, number};
use super::figures::figures;
use crate::chart::{BarSeries, Bars};
use crate::experiment::place::{Place, text_of};
use crate::experiment::row::Row;
use crate::experiment::verdict::{Subject, ratios};
use crate::experiment::{Experiment, Server};

/// A column that is compared in all cases.
struct Column {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    note: &'static str,
}

const COLUMNS: [Column; 7] = [
    Column {
        name: "server_cpu_us",
        title: "Processor time of a request or a key",
        unit: "us",
        note: "The time of all threads of the server by the scheduler's account, divided by the \
               requests answered meanwhile, or by the keys where a get has several. It falls as \
               batches grow, so compare it only where the servers were about equally busy.",
    },
    Column {
        name: "achieved_per_s",
        title: "Throughput",
        unit: "requests or keys a second",
        note: "Requests answered a second, or keys where a get has several.",
    },
    Column {
        name: "p50_us",
        title: "Median response time",
        unit: "us",
        note: "In an open loop response times count from the intended send time of each request.",
    },
    Column {
        name: "p99_us",
        title: "99th percentile of the response times",
        unit: "us",
        note: "In an open loop response times count from the intended send time of each request.",
    },
    Column {
        name: "server_busy_cores",
        title: "Busy cores of the server",
        unit: "cores",
        note: "Processor time of the server, divided by the time of the step.",
    },
    Column {
        name: "watts",
        title: "Power",
        unit: "watts",
        note: "The power of the machine during the steps, as the first meter shows it.",
    },
    Column {
        name: "requests_per_joule",
        title: "Requests or keys a joule",
        unit: "requests or keys a joule",
        note: "Requests a second, or keys where a get has several, divided by the power of the \
               machine as the first meter shows it. It is a whole machine with both the server and \
               the load generator if they share one.",
    },
];

/// All figures for which the rows have data. `id` begins the names within their drawings.
pub(super) fn case_figures(experiment: &Experiment, rows: &[Row], id: &str) -> Vec<Figure> {
    let mut all = Vec::new();
    for (place, options) in experiment.combinations().iter().enumerate() {
        for (index, column) in COLUMNS.iter().enumerate() {
            all.extend(compared(
                experiment,
                rows,
                options,
                column,
                format!("{id}-{place}-{index}"),
            ));
        }
    }
    for (index, name) in experiment.case_names().into_iter().flatten().enumerate() {
        let (case, rows) = experiment.part(Some(&name), rows);
        if case.rates().is_ok_and(|rates| rates.len() > 1) {
            let figures = figures(&case, &rows, &format!("{id}-case-{index}")).into_iter();
            all.extend(figures.map(|it| Figure { note: format!("{name}. {}", it.note), ..it }));
        }
    }
    all
}

/// The loads of the cases: their arguments for the load generator.
pub(super) fn loads(experiment: &Experiment) -> Table {
    let head = ["case", "arguments of kachel load"].map(str::to_owned).to_vec();
    let row =
        |case: &crate::experiment::case::Case| vec![case.name.clone(), case.arguments.join(" ")];
    Table { head, rows: experiment.cases.iter().map(row).collect() }
}

/// A column of all servers in all cases, with these values of the options.
fn compared(
    experiment: &Experiment,
    rows: &[Row],
    options: &BTreeMap<String, String>,
    column: &Column,
    id: String,
) -> Option<Figure> {
    let values = |place: &Place, server: &str| -> BTreeMap<u32, f64> {
        experiment.column_at(rows, place, server, column.name)
    };
    let mut places = experiment.places(options);
    // A place may be missing in a run that is not over.
    places.retain(|place| experiment.servers.iter().any(|it| !values(place, &it.name).is_empty()));
    let rounds = |place: &Place, server: &str| experiment.rounds_at_place(rows, place, server);
    let bar = |place: &Place, server: &str| {
        let ratios = ratios(&values(place, server), &values(place, &experiment.baseline));
        Cell::new(ratios, rounds(place, server)).bar(number)
    };
    let series = |server: &Server| {
        let bars = places.iter().map(|place| bar(place, &server.name)).collect();
        BarSeries { name: server.name.clone(), color: server.color.unwrap_or(0), bars }
    };
    let series: Vec<BarSeries> = experiment.servers.iter().map(series).collect();
    series.iter().flat_map(|series| &series.bars).flatten().next()?;
    let name = |place: &Place| experiment.name_of(place, rows);
    let bars = Bars {
        id,
        title: String::new(),
        x_label: String::new(),
        y_label: format!("ratio to {}", experiment.baseline),
        groups: places.iter().map(name).collect(),
        series,
    };
    let servers = experiment.servers.iter().map(|it| &it.name);
    let subject = |name: &String| Subject { server: name.clone(), options: BTreeMap::new() };
    let subjects: Vec<Subject> = servers.map(subject).collect();
    let heads = servers_of(experiment);
    let mut table = Table::new(experiment, &heads, column.unit);
    for place in &places {
        let cells = |subject: &Subject| {
            Cell::new(values(place, &subject.server), rounds(place, &subject.server))
        };
        table.add(experiment, &subjects, name(place), &cells, &number);
    }
    let with = match text_of(options) {
        text if text.is_empty() => text,
        text => format!("With {text}. "),
    };
    let note = format!(
        "{with}{} Bars are ratios to {} in the same round: medians, with vertical lines for their \
         ranges. One is hollow, with a count, if less than half of the rounds support it.",
        column.note, experiment.baseline
    );
    let drawing = Drawing::Bars(bars);
    Some(Figure { title: column.title.to_owned(), drawing, note, table, published: None })
}

/// The name and the server of each column of a table.
fn servers_of(experiment: &Experiment) -> Vec<(String, String)> {
    experiment.servers.iter().map(|it| (it.name.clone(), it.name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::row::PowerReading;
    use crate::experiment::row::tests::row;

    const TEXT: &str = r#"
question = "Which?"
baseline = "a"
rounds = 1
[[server]]
name = "a"
address = "x"
[[server]]
name = "b"
address = "y"
[load]
duration_s = 1
[[case]]
name = "closed"
[[case]]
name = "many keys"
arguments = ["--keys-per-get", "100"]
[[case]]
name = "open"
rates = [100, 200]
"#;

    fn cased(case: &str, server: &str, step: usize, rate: Option<f64>, mean_us: f64) -> Row {
        let mut row = row(1, server, step, 0.0, mean_us);
        (row.key.case, row.rate_per_s) = (Some(case.to_owned()), rate);
        row
    }

    #[test]
    fn each_case_has_a_row_and_bars_that_are_ratios() {
        let experiment = Experiment::parse(TEXT).expect("valid");
        let mut rows = Vec::new();
        for (server, us) in [("a", 10.0), ("b", 5.0)] {
            rows.push(cased("closed", server, 0, None, us));
            let mut many = cased("many keys", server, 0, None, us);
            many.server_cpu_us = Some(100.0);
            (many.keys_per_s, many.server_cpu_us_per_key) = (Some(1e6), Some(us / 100.0));
            many.power = vec![PowerReading {
                meter: "m".to_owned(),
                is_estimate: false,
                idle_w: None,
                loaded_w: Some(us * 10.0),
                covered: 1.0,
                error: None,
            }];
            rows.push(many);
            rows.push(cased("open", server, 0, Some(100.0), us));
            rows.push(cased("open", server, 1, Some(200.0), us * 3.0));
        }
        let figures = case_figures(&experiment, &rows, "i");
        let of = |title: &str| figures.iter().find(|it| it.title == title).expect("a figure");
        let cells: Vec<&[String]> = of("Processor time of a request or a key")
            .table
            .rows
            .iter()
            .map(|it| &it[..])
            .collect();
        assert_eq!(cells[1], ["many keys, a key", "0.10", "0.05", "0.50"]);
        // Only one case has a meter.
        let power = &of("Power").table.rows;
        assert_eq!(power[..], [["many keys, a key", "100", "50.0", "0.50"].map(str::to_owned)]);
        let per_joule = &of("Requests or keys a joule").table.rows;
        assert_eq!(per_joule[0], ["many keys, a key", "10000", "20000", "2.00"]);
        let names: Vec<&String> = cells.iter().map(|cells| &cells[0]).collect();
        assert_eq!(names, ["closed", "many keys, a key", "open, 100/s", "open, 200/s"]);
        let Drawing::Bars(bars) = &of("Median response time").drawing else { panic!("bars") };
        let heights = |index: usize| -> Vec<f64> {
            bars.series[index].bars.iter().map(|bar| bar.as_ref().expect("a bar").value).collect()
        };
        assert_eq!((heights(0), heights(1)), (vec![1.0; 4], vec![0.5; 4]));
        let Drawing::Lines(_) = &of("Mean response time").drawing else { panic!("lines") };
        assert!(of("Mean response time").note.starts_with("open. "), "the case with two rates");
        assert_eq!(loads(&experiment).rows[1], ["many keys", "--keys-per-get 100"]);
        // With a load beside, the processor time of a key is unknown. That of a request differs.
        for row in &mut rows {
            row.server_cpu_us_per_key = None;
        }
        let places = experiment.places(&BTreeMap::new());
        let of = |place: usize| experiment.column_at(&rows, &places[place], "b", "server_cpu_us");
        assert_eq!((of(0).len(), of(1).len()), (1, 0));
    }
}
