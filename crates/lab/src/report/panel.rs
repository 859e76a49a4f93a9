//! A part of the results that has figures of its own: some values of swept options are fixed in it.
//!
//! Upstream:   the experiment with its rows; `[report] panels`.
//! Downstream: `figures`, `grid` and `capacities` draw one panel.

use std::collections::BTreeMap;

use crate::experiment::Experiment;
use crate::experiment::place::text_of;
use crate::experiment::row::Row;
use crate::experiment::verdict::Subject;

/// Results that are drawn together. Without `[report] panels` there is one, with everything.
pub(super) struct Panel<'e> {
    pub(super) experiment: &'e Experiment,
    pub(super) rows: &'e [Row],
    /// The values that are fixed.
    options: BTreeMap<String, String>,
}

impl<'e> Panel<'e> {
    /// The panels in the order of the sweep.
    pub(super) fn all(experiment: &'e Experiment, rows: &'e [Row]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for mut options in experiment.combinations() {
            options.retain(|name, _| experiment.report.panels.contains(name));
            if all.iter().all(|panel| panel.options != options) {
                all.push(Self { experiment, rows, options });
            }
        }
        assert!(!all.is_empty(), "an experiment has at least one combination");
        all
    }

    /// The combinations of the swept options, without those that are fixed.
    pub(super) fn combinations(&self) -> Vec<BTreeMap<String, String>> {
        let mut all = self.experiment.combinations();
        all.retain(|it| self.options.iter().all(|(name, value)| it.get(name) == Some(value)));
        assert!(!all.is_empty(), "a panel is a part of the combinations");
        all.iter_mut().for_each(|it| it.retain(|name, _| !self.options.contains_key(name)));
        all
    }

    /// A server with these values and the fixed ones.
    pub(super) fn subject(&self, server: &str, options: &BTreeMap<String, String>) -> Subject {
        let mut options = options.clone();
        options.extend(self.options.clone());
        Subject { server: server.to_owned(), options }
    }

    /// All servers with all combinations.
    pub(super) fn subjects(&self) -> Vec<Subject> {
        let combinations = self.combinations();
        let of = |server: &crate::experiment::Server| -> Vec<Subject> {
            combinations.iter().map(|options| self.subject(&server.name, options)).collect()
        };
        self.experiment.servers.iter().flat_map(of).collect()
    }

    /// The name in legends and tables, without the fixed values.
    pub(super) fn name(&self, subject: &Subject) -> String {
        let mut free = subject.clone();
        free.options.retain(|name, _| !self.options.contains_key(name));
        free.name()
    }

    /// The color of a server with these values, which is the same in each figure.
    pub(super) fn color(&self, subject: &Subject) -> usize {
        let servers = &self.experiment.servers;
        let server = servers.iter().find(|server| server.name == subject.server);
        let server = server.expect("a subject is a server of the experiment");
        let place = || self.experiment.combinations().iter().position(|it| *it == subject.options);
        server.color.or_else(place).unwrap_or(0)
    }

    /// The title of a figure of this panel.
    pub(super) fn title(&self, title: &str) -> String {
        match self.options.is_empty() {
            true => title.to_owned(),
            false => format!("{title}: {}", text_of(&self.options)),
        }
    }
}
