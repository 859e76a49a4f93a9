//! Style as a test: the rules of STYLE.md that a program can check.
//!
//! Upstream:   `tests/repository.rs` reads the repository into a [`Tree`] and has it checked.
//! Downstream: the test's output; a person reads each [`Finding`].
//!
//! Invariants:
//! - I1  A rule reads a [`Tree`] and nothing else, so a test can give it a violation in memory.
//! - I2  A rule counts what it checked, so a rule that checks nothing is noticed.

#![forbid(unsafe_code)]

mod attributes;
mod cycles;
mod dependencies;
mod documents;
mod exports;
mod headers;
mod imports;
mod layers;
mod manifest;
mod names;
mod order;
mod ratchet;
mod reach;
mod server;
mod sizes;
mod source;
mod text;
mod tree;
mod unsafety;

pub use dependencies::{Package, packages_of_metadata};
pub use tree::Tree;

/// One violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path from the root of the repository, with `/`.
    pub path: String,
    /// Line from 1; 0 when the whole file is meant.
    pub line: usize,
    /// The rule's name.
    pub rule: &'static str,
    /// What is wrong, and how to mend it.
    pub what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}:{}: {}: {}", self.path, self.line, self.rule, self.what)
    }
}

/// What all rules found in one tree.
#[derive(Debug, Default)]
pub struct Report {
    /// Violations that fail the test.
    pub findings: Vec<Finding>,
    /// Violations that are only reported.
    pub warnings: Vec<Finding>,
    /// How many things each rule checked (I2), in the order in which the rules ran.
    pub looked: Vec<(&'static str, usize)>,
    /// Counts for the reader that may be 0.
    pub counted: Vec<(&'static str, usize)>,
}

impl Report {
    fn find(&mut self, rule: &'static str, path: &str, line: usize, what: impl Into<String>) {
        self.findings.push(Finding { path: path.to_owned(), line, rule, what: what.into() });
    }

    fn warn(&mut self, rule: &'static str, path: &str, line: usize, what: impl Into<String>) {
        self.warnings.push(Finding { path: path.to_owned(), line, rule, what: what.into() });
    }

    fn looked(&mut self, rule: &'static str, count: usize) {
        self.looked.push((rule, count));
    }

    fn counted(&mut self, what: &'static str, count: usize) {
        self.counted.push((what, count));
    }
}

/// Runs every rule that needs only the tree.
pub fn check(tree: &Tree) -> Report {
    let mut report = Report::default();
    layers::check(tree, &mut report);
    server::check(tree, &mut report);
    names::check(tree, &mut report);
    sizes::check_files(tree, &mut report);
    sizes::check_functions(tree, &mut report);
    text::check(tree, &mut report);
    attributes::check(tree, &mut report);
    headers::check(tree, &mut report);
    reach::check(tree, &mut report);
    unsafety::check(tree, &mut report);
    documents::check(tree, &mut report);
    exports::check(tree, &mut report);
    cycles::check(tree, &mut report);
    order::check(tree, &mut report);
    report
}

/// Runs the rules on dependencies: each direct one has its reason.
pub fn check_dependencies(tree: &Tree, packages: &[Package]) -> Report {
    let mut report = Report::default();
    dependencies::check(tree, packages, &mut report);
    report
}
