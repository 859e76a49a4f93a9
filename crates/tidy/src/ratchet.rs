//! Committed lists that rules compare the tree with. Their numbers only change in one direction.
//!
//! Upstream:   rules that have a list beside the manifest of this crate.
//! Downstream: nothing.
//!
//! Invariants:
//! - I1  Empty lines and lines that begin with `#` are not rows.

use std::collections::BTreeMap;

use crate::{Report, Tree};

/// The rows of the list at `path`, each with its line from 1.
pub(crate) fn rows<'a>(tree: &'a Tree, path: &str) -> impl Iterator<Item = (usize, &'a str)> {
    let lines = tree.text(path).unwrap_or_default().lines().enumerate();
    lines
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, row)| !row.is_empty() && !row.starts_with('#'))
}

/// Rows of the form `name number`: the line and the number by name. A name may hold spaces.
pub(crate) fn numbers(
    tree: &Tree,
    path: &str,
    rule: &'static str,
    report: &mut Report,
) -> BTreeMap<String, (usize, usize)> {
    let mut numbers = BTreeMap::new();
    for (line, row) in rows(tree, path) {
        let entry = row.rsplit_once(' ').and_then(|(name, n)| Some((name, n.parse().ok()?)));
        match entry {
            Some((name, number)) => {
                if numbers.insert(name.to_owned(), (line, number)).is_some() {
                    report.find(rule, path, line, format!("`{name}` stands here twice"));
                }
            }
            None => report.find(rule, path, line, "not a name and a number"),
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_what_is_no_row_or_stands_twice_is_found() {
        let tree = Tree::of(&[("l", "# Why.\n\na b 3\nc\na b 4\nd x\n")]);
        let mut report = Report::default();
        let numbers = numbers(&tree, "l", "r", &mut report);
        assert_eq!(numbers, BTreeMap::from([("a b".to_owned(), (5, 4))]));
        let found: Vec<_> = report.findings.iter().map(|f| (f.line, f.what.as_str())).collect();
        let shape = "not a name and a number";
        assert_eq!(found, [(4, shape), (5, "`a b` stands here twice"), (6, shape)]);
    }
}
