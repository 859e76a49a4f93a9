//! The places of an experiment: the loads under which its servers are compared side by side.
//!
//! Upstream:   the cases, their rates, the combinations of options, and the rows.
//! Downstream: the table that `run` prints; the figures of cases in `report`.
//!
//! Figures that depend on the size of a request are those of a key where a get has several keys:
//! otherwise a case of multigets could not stand beside one of single gets.

use std::collections::BTreeMap;

use super::Experiment;
use super::row::Row;
use super::verdict::Subject;
use crate::chart::Rounds;

/// A load, and values of the options.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    case: Option<String>,
    /// The offered rate; none in a closed loop.
    rate: Option<f64>,
    options: BTreeMap<String, String>,
}

impl Place {
    fn has(&self, row: &Row) -> bool {
        let key = &row.key;
        (&key.case, row.rate_per_s, &key.options) == (&self.case, self.rate, &self.options)
    }
}

impl Experiment {
    /// The places with these values of the options, in the order in which they are measured.
    pub(crate) fn places(&self, options: &BTreeMap<String, String>) -> Vec<Place> {
        let mut places = Vec::new();
        for case in self.case_names() {
            let rates = self.of_case(case.as_deref()).rates().expect("they were checked");
            places.extend(rates.into_iter().map(|rate| {
                let (case, options) = (case.clone(), options.clone());
                Place { case, rate, options }
            }));
        }
        places
    }

    /// The name of a place in tables, without its options. It tells whether figures are of a key.
    pub(crate) fn name_of(&self, place: &Place, rows: &[Row]) -> String {
        let mut words: Vec<String> = place.case.clone().into_iter().collect();
        words.extend(place.rate.map(|rate| format!("{rate}/s")));
        if rows.iter().any(|row| place.has(row) && row.keys_per_s.is_some()) {
            words.push("a key".to_owned());
        }
        words.join(", ")
    }

    /// As `rounds_at`, at a place.
    pub(crate) fn rounds_at_place(&self, rows: &[Row], place: &Place, server: &str) -> Rounds {
        let case = self.of_case(place.case.as_deref());
        let rows: Vec<Row> =
            rows.iter().filter(|row| row.key.case == place.case).cloned().collect();
        let (server, options) = (server.to_owned(), place.options.clone());
        case.rounds_at(&rows, &Subject { server, options }, place.rate)
    }

    /// A column of one server at a place in each round.
    pub(crate) fn column_at(
        &self,
        rows: &[Row],
        place: &Place,
        server: &str,
        column: &str,
    ) -> BTreeMap<u32, f64> {
        let value = |row: &Row| match (column, row.keys_per_s) {
            ("achieved_per_s", Some(keys_per_s)) => Some(keys_per_s),
            ("server_cpu_us", Some(_)) => row.server_cpu_us_per_key,
            ("requests_per_joule", Some(keys_per_s)) => {
                Some(keys_per_s / row.value("watts").filter(|watts| *watts > 0.0)?)
            }
            _ => row.value(column),
        };
        let rows = rows.iter().filter(|row| row.key.server == server && place.has(row));
        rows.filter_map(|row| Some((row.key.round, value(row)?))).collect()
    }
}

/// The values of options as text; empty without options.
pub(crate) fn text_of(options: &BTreeMap<String, String>) -> String {
    let pairs = options.iter().map(|(name, value)| format!("{name} = {value}"));
    pairs.collect::<Vec<_>>().join(", ")
}
