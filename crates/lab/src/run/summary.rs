//! The figures and the verdicts that a run prints at its end.
//!
//! Upstream:   the experiment and its rows.
//! Downstream: standard output.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::experiment::Experiment;
use crate::experiment::capacity::Capacity;
use crate::experiment::place::text_of;
use crate::experiment::row::{Row, doubts};
use crate::experiment::statistics::Summary;
use crate::experiment::verdict::ratios;

/// In place of a verdict of a smoke run.
pub(crate) const NO_VERDICT: &str = "no verdict (smoke run)";

/// The columns of the table, each with its name and the number of its decimals.
const COLUMNS: [(&str, &str, usize); 5] = [
    ("achieved_per_s", "per second", 0),
    ("server_cpu_us", "CPU us each", 3),
    ("server_busy_cores", "busy cores", 2),
    ("p50_us", "p50 us", 0),
    ("p99_us", "p99 us", 0),
];

/// The figures and the verdicts as text.
pub(super) fn text(experiment: &Experiment, rows: &[Row]) -> String {
    let mut text = format!("{}\n", experiment.question);
    // The steps of a sweep of rates are many; their capacities say more.
    if !experiment.cases.is_empty() || experiment.rates().is_ok_and(|rates| rates == [None]) {
        for options in experiment.combinations() {
            if !options.is_empty() {
                let _ = writeln!(text, "{}:", text_of(&options));
            }
            text += &table(experiment, rows, &options);
        }
        let baseline = &experiment.baseline;
        let _ =
            writeln!(text, "Medians over the rounds; x: ratio to {baseline} in the same round.");
    }
    for name in experiment.case_names() {
        let (case, rows) = experiment.part(name.as_deref(), rows);
        let name = name.map_or(String::new(), |name| format!("{name}, "));
        text += &capacities(&case, &rows, &name);
    }
    for doubt in doubts(rows) {
        let _ = writeln!(text, "{doubt}");
    }
    for prediction in &experiment.predictions {
        let (verdict, summary) = experiment.judge(prediction, rows);
        let found = summary.map_or(String::new(), |it| {
            format!(": {:.3} ({:.3} to {:.3})", it.median, it.low, it.high)
        });
        // Fractions of a second decide nothing.
        let verdict = if experiment.is_smoke { NO_VERDICT } else { verdict.text() };
        let _ = writeln!(text, "{verdict}: {}{found}", prediction.claim);
    }
    text
}

fn capacities(experiment: &Experiment, rows: &[Row], case: &str) -> String {
    let mut text = String::new();
    if experiment.rates().is_ok_and(|rates| rates == [None]) {
        return text;
    }
    for promise in &experiment.capacity {
        for subject in experiment.subjects() {
            let capacities = experiment.capacities(rows, &subject, *promise);
            let shown: Vec<String> = capacities.values().map(|it| it.text()).collect();
            let rates: Vec<f64> = capacities.values().map(|it| Capacity::rate(*it)).collect();
            let found = Summary::of(&rates).map(|summary| summary.median).filter(|it| *it > 0.0);
            let median = found.map_or("none".to_owned(), |median| format!("{median:.0}/s"));
            let (name, rounds) = (subject.name(), shown.join(", "));
            let _ = writeln!(
                text,
                "capacity with {}: {case}{name}: median {median} (rounds: {rounds})",
                promise.text()
            );
        }
    }
    text
}

/// A line for each server in each case: medians, and ratios to the baseline in the same rounds.
fn table(experiment: &Experiment, rows: &[Row], options: &BTreeMap<String, String>) -> String {
    let mut head = vec!["case".to_owned(), "server".to_owned()];
    head.extend(COLUMNS.map(|(_, name, _)| name.to_owned()));
    head.extend(["rate x", "CPU x"].map(str::to_owned));
    let mut lines = vec![head];
    for place in experiment.places(options) {
        let mut name = experiment.name_of(&place, rows);
        for server in &experiment.servers {
            let values =
                |name: &str, column: &str| experiment.column_at(rows, &place, name, column);
            let of = |column: &str| values(&server.name, column);
            if of("p50_us").is_empty() {
                continue;
            }
            let mut line = vec![std::mem::take(&mut name), server.name.clone()];
            line.extend(COLUMNS.map(|(column, _, decimals)| median(&of(column), decimals)));
            let baseline = &experiment.baseline;
            line.extend(["achieved_per_s", "server_cpu_us"].map(|column| {
                let ratios = ratios(&of(column), &values(baseline, column));
                if server.name == *baseline { String::new() } else { median(&ratios, 3) }
            }));
            lines.push(line);
        }
    }
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

fn median(values: &BTreeMap<u32, f64>, decimals: usize) -> String {
    let values: Vec<f64> = values.values().copied().collect();
    Summary::of(&values).map_or("-".to_owned(), |it| format!("{:.decimals$}", it.median))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::row::tests::row;

    #[test]
    fn errors_stand_before_the_verdicts() {
        let file = "question = \"q\"\nbaseline = \"a\"\nrounds = 1\n[[server]]\nname = \"a\"\n\
                    address = \"x\"\n[load]\nduration_s = 1\n[[prediction]]\nclaim = \"fast\"\n\
                    figure = \"p50_us\"\nserver = \"a\"\nat_most = 5\n";
        let experiment = Experiment::parse(file).expect("valid");
        let mut row = row(1, "a", 0, 10.0, 1.0);
        row.rate_per_s = None;
        let smoke = Experiment { is_smoke: true, ..experiment.clone() };
        let said = text(&smoke, std::slice::from_ref(&row));
        assert!(
            said.ends_with("\nno verdict (smoke run): fast: 1.000 (1.000 to 1.000)\n"),
            "{said}"
        );
        let end = |row: &Row| text(&experiment, std::slice::from_ref(row));
        assert!(end(&row).ends_with("same round.\nconfirmed: fast: 1.000 (1.000 to 1.000)\n"));
        row.errors = 3;
        let said = end(&row);
        assert!(said.contains("In 1 of 1 steps there were errors.\nundecided: fast"), "{said}");
    }
}
