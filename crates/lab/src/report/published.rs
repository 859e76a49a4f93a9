//! Measured figures beside those that others published.
//!
//! Upstream:   the experiment with its rows; `[[published]]`.
//! Downstream: `page` shows each figure with its table.
//!
//! Published figures are from other machines, so they are not compared as ratios.

use std::collections::BTreeMap;

use super::figure::{COLUMNS, Drawing, Figure, Table, bar_text, number, of_rounds};
use crate::chart::{Ranking, RankingBar, short};
use crate::experiment::Experiment;
use crate::experiment::drawing::PublishedFigures;
use crate::experiment::row::Row;
use crate::experiment::statistics::Summary;
use crate::experiment::verdict::Subject;

/// A figure for each kind of published figures. `id` begins the names within their drawings.
pub(super) fn figures(experiment: &Experiment, rows: &[Row], id: &str) -> Vec<Figure> {
    let of_kind = |(index, published): (usize, &PublishedFigures)| {
        figure(experiment, rows, &format!("{id}-published-{index}"), published)
    };
    experiment.published.iter().enumerate().map(of_kind).collect()
}

/// The published figures, with the same figure of each server.
fn figure(experiment: &Experiment, rows: &[Row], id: &str, published: &PublishedFigures) -> Figure {
    let mut all: Vec<RankingBar> = Vec::new();
    let is_power = ["watts", "requests_per_joule"].contains(&&published.figure[..]);
    let is_estimate = rows.iter().flat_map(|row| row.power.first()).any(|it| it.is_estimate);
    for subject in experiment.subjects() {
        let (value, text) = match measured(experiment, rows, published, &subject) {
            Some((value, text)) if is_power && is_estimate => {
                (Some(value), text + " (an estimate)")
            }
            Some((value, text)) => (Some(value), text),
            None if is_power => (None, "no meter".to_owned()),
            None => continue,
        };
        all.push(RankingBar { name: subject.name(), value, text, is_measured: true });
    }
    for (system, value) in &published.values {
        let (least, most) = value.range();
        let text = match least < most {
            true => format!("{} to {}", short(least), short(most)),
            false => short(most),
        };
        let (name, value) = (system.clone(), Some(most));
        all.push(RankingBar { name, value, text, is_measured: false });
    }
    all.sort_by(|a, b| b.value.unwrap_or_default().total_cmp(&a.value.unwrap_or_default()));
    let column = COLUMNS.iter().find(|column| column.name == published.figure);
    let (title, x_label) = match (column, published.promise) {
        (Some(column), _) => (column.title.to_owned(), column.y_label),
        (None, Some(promise)) => (format!("Capacity with {}", promise.text()), "requests a second"),
        (None, None) => unreachable!("the file was checked: a figure is a column or a capacity"),
    };
    let head = ["system", x_label, ""].map(str::to_owned).to_vec();
    let row = |bar: &RankingBar| {
        let how = if bar.is_measured { "measured here" } else { "published" };
        vec![bar.name.clone(), bar.text.clone(), how.to_owned()]
    };
    let table = Table { head, rows: all.iter().map(row).collect() };
    let ranking = Ranking { id: id.to_owned(), x_label: x_label.to_owned(), bars: all };
    // A long source stands in several lines of the file.
    let source = published.source.split_whitespace().collect::<Vec<_>>().join(" ");
    Figure {
        title: format!("{title}, beside published figures"),
        drawing: Drawing::Ranking(ranking),
        note: format!(
            "The published figures are those of {source}. They are from other machines, years and \
             versions, so only their order of magnitude can be compared. Measured ones are medians \
             over the rounds."
        ),
        table,
        published: None,
    }
}

/// The median of the figure of a server, with its text.
fn measured(
    experiment: &Experiment,
    rows: &[Row],
    kind: &PublishedFigures,
    subject: &Subject,
) -> Option<(f64, String)> {
    let values: BTreeMap<u32, f64> = match kind.promise {
        Some(promise) => {
            let capacities = experiment.capacities(rows, subject, promise).into_iter();
            capacities.map(|(round, capacity)| (round, capacity.rate())).collect()
        }
        None => experiment.column(rows, subject, &kind.figure, kind.rate),
    };
    let median = Summary::of(&of_rounds(&values))?.median;
    let text = match kind.promise {
        Some(promise) => bar_text(experiment, rows, subject, promise, median, 1.0),
        None if median >= 100.0 => short(median.round()),
        None => number(median),
    };
    Some((median, text))
}
