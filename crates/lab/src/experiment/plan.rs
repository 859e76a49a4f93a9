//! The order of the steps of an experiment.
//!
//! Upstream:   the experiment, and the rows that were measured before.
//! Downstream: `run` executes the steps in this order.
//!
//! ```text
//! round 1:  options 1:  start all servers, fill them;  rate 1: A B C;  rate 2: B C A;  ...
//!           options 2:  ...
//! round 2:  options 1:  ...                            rate 1: B C A;  rate 2: C A B;  ...
//! ```
//! With cases, the rates of each case follow those of the case before it.
//! The servers take turns at each rate, so a disturbance of the machine meets all of them; and
//! each is first equally often, so none always follows the same one.

use std::collections::BTreeMap;

use super::row::{Row, StepKey};
use super::{Experiment, Setting};

/// A server is not measured at higher rates of a round after this number of steps that broke every
/// definition of capacity, one after the other. One alone may be a pause of the machine.
const BROKEN_MAX: usize = 2;

/// Steps that are measured with the same processes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) round: u32,
    pub(crate) options: BTreeMap<String, String>,
    pub(crate) steps: Vec<StepKey>,
}

impl Experiment {
    /// All combinations of the swept options; of a smoke run the first and the last one.
    pub(crate) fn combinations(&self) -> Vec<BTreeMap<String, String>> {
        let texts = |setting: &BTreeMap<String, Setting>| {
            setting.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect()
        };
        let mut all: Vec<BTreeMap<String, String>> = self.settings.iter().map(texts).collect();
        if all.is_empty() {
            all.push(BTreeMap::new());
        }
        for (name, values) in &self.sweep {
            all = all
                .iter()
                .flat_map(|before| {
                    values.iter().map(|value| {
                        let mut with = before.clone();
                        with.insert(name.clone(), value.0.clone());
                        with
                    })
                })
                .collect();
        }
        if self.is_smoke && all.len() > 2 {
            all.drain(1..all.len() - 1);
        }
        assert!(!all.is_empty(), "each option has a value");
        all
    }

    /// All steps in the order in which they are measured.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let mut groups = Vec::new();
        let cases = self.case_names().into_iter().map(|name| {
            let case = self.of_case(name.as_deref());
            let count = case.rates().expect("they were checked").len();
            (name, case.servers, count)
        });
        let cases: Vec<_> = cases.collect();
        for round in 1..=self.rounds {
            for options in self.combinations() {
                let mut steps = Vec::new();
                let mut turn = round as usize - 1;
                for (case, servers, step_count) in &cases {
                    for step in 0..*step_count {
                        for place in 0..servers.len() {
                            let server = servers[(turn + place) % servers.len()].name.clone();
                            let (case, options) = (case.clone(), options.clone());
                            steps.push(StepKey { round, options, case, server, step });
                        }
                        turn += 1;
                    }
                }
                groups.push(Group { round, options, steps });
            }
        }
        groups
    }

    /// Whether a step need not be measured: it has a row, or the server was overloaded before.
    pub(crate) fn is_over(&self, key: &StepKey, rows: &[Row]) -> bool {
        let same = |row: &&Row| {
            let StepKey { round, options, case, server, .. } = &row.key;
            (round, options, case, server) == (&key.round, &key.options, &key.case, &key.server)
        };
        let mut before: Vec<&Row> = rows.iter().filter(same).collect();
        before.sort_by_key(|row| row.key.step);
        if before.iter().any(|row| row.key.step == key.step) {
            return true;
        }
        let is_broken =
            |row: &&&Row| self.capacity.iter().all(|promise| promise.judge(row) == Some(false));
        let broken = before.iter().rev().take_while(is_broken).count();
        let is_beyond = before.last().is_some_and(|row| row.key.step < key.step);
        !self.capacity.is_empty() && broken >= BROKEN_MAX && is_beyond
    }
}
